"""Our modes on torch's mode stacks: entering them, taking them off, and hiding function modes.

``torch.nn`` takes its fast paths (fused encoder layers, nested tensors where there is padding)
only where ``torch.overrides.has_torch_function`` says that nobody overrides torch's functions. A
function mode overrides all of them, so a run under one of ours would take other paths than eager
execution does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import overrides
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch as dispatch_stack
from torch.utils._python_dispatch import TorchDispatchMode

from ..interpose.dynamo import step_aside, step_back
from ..interpose.patch import Claim, intercept

__all__ = [
    "MODE_STACKS",
    "HiddenFunctionMode",
    "ThreadDispatchMode",
    "UnwrappedDispatchMode",
    "WithoutModes",
    "are_spread",
    "hidden_modes",
    "remove_modes",
]

_function_stack: Any = overrides  # has no types
MODE_STACKS: tuple[tuple[Any, Any, Any], ...] = tuple(
    (getattr(stack, f"_get_current_{kind}_mode"), stack._pop_mode, stack._push_mode)
    for stack, kind in ((_function_stack, "function"), (dispatch_stack, "dispatch"))
)
"""Of function modes and of dispatch modes: look at the top of this thread's stack, pop, push."""


def remove_modes(which: Callable[[Any], bool]) -> list[Any]:
    """Take modes off this thread's stacks, also from under the modes of others; returns them."""
    removed: list[Any] = []
    for top, pop, push in MODE_STACKS:
        kept: list[Any] = []
        while top() is not None:
            mode = pop()
            (removed if which(mode) else kept).append(mode)
        for mode in reversed(kept):
            push(mode)
    return removed


class WithoutModes(AbstractContextManager[None]):
    """Inside, no mode of this thread and no subclass of ``Tensor`` sees what is called.

    A class, not a generator: a recording looks at each frame of :mod:`contextlib`.
    """

    def __enter__(self) -> None:
        self._disabled = torch._C.DisableTorchFunction()
        self._disabled.__enter__()
        count = torch._C._len_torch_dispatch_stack()
        self._modes = [dispatch_stack._pop_mode() for _ in range(count)]

    def __exit__(self, *error: Any) -> None:
        while self._modes:
            dispatch_stack._push_mode(self._modes.pop())
        self._disabled.__exit__(*error)


Mode = TypeVar("Mode", bound="ThreadDispatchMode")


class ThreadDispatchMode(TorchDispatchMode):
    """A dispatch mode that only the thread that enters it notices.

    ``TorchDispatchMode.__enter__`` sets flags of the whole process and ``__exit__`` puts back what
    it found. So Dynamo (up to torch 2.10) skips what other threads call, for good, and Inductor's
    code takes another way; and where two threads do not leave in the reverse order in which they
    entered, a flag stays set, and nothing is compiled any more (read in torch 2.8 to 2.15, seen
    with 2.8 to 2.10). Here Dynamo is told by the stance instead (:func:`step_aside`).
    """

    def __enter__(self: Mode) -> Mode:
        step_aside()
        dispatch_stack._push_mode(self)
        _tell_guards(True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        dispatch_stack._pop_mode(getattr(self, "_mode_key", None))
        _tell_guards(bool(torch._C._len_torch_dispatch_stack()))
        step_back()


class UnwrappedDispatchMode(ThreadDispatchMode):
    """One whose ``__torch_dispatch__`` torch calls as it is."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch puts a wrapper around it, entered for each operation, which imports Dynamo when
        # it first runs: a second.
        return False


# A flag of this thread, by which torch's TensorGuards see a dispatch mode from 2.10 on.
_tell_guards: Callable[[bool], object] = getattr(
    torch._C._dynamo.guards, "set_is_in_mode_without_ignore_compile_internals", lambda is_in: None
)


@functools.cache
def _is_spread(cls: type) -> bool:
    return cls.__module__.startswith("torch.distributed.") and issubclass(cls, torch.Tensor)


def are_spread(types: Iterable[type]) -> bool:
    """Whether one of the classes of tensors spreads them over ranks, or waits for other ranks.

    Such a class turns an operation into others on plain tensors, and these are to be seen: a mode
    returns ``NotImplemented`` then.
    """
    return any(map(_is_spread, types))


class HiddenFunctionMode(TorchFunctionMode):
    """A function mode that torch's own code does not notice inside :func:`hidden_modes`."""


def hidden_modes() -> Claim:
    """Hide our function modes from all threads; each call asks the modes of its own thread."""
    return intercept(overrides, "has_torch_function", _has_torch_function, everywhere=True)


def _has_torch_function(original: Callable[[Any], bool], args: Any) -> bool:
    found = original(args)
    return found and (
        any(map(_has_own, args))
        or not all(
            isinstance(torch._C._get_function_stack_at(n), HiddenFunctionMode)
            for n in range(torch._C._len_torch_function_stack())
        )
    )


def _has_own(value: object) -> bool:
    cls, disabled = type(value), torch._C._disabled_torch_function_impl
    known = cls is torch.Tensor or cls is torch.nn.Parameter
    return not known and getattr(cls, "__torch_function__", disabled) is not disabled
