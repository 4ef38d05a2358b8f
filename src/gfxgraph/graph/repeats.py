"""Calls of modules that read what an earlier call in the same run has read.

A pipeline calls one model for each of its steps, and to look at each instruction takes far longer
than to run it. What a call reads depends on its arguments, on the places that it reads, and on
what it asks the device: that is why a graph may be replayed while its guard holds. So a second
call of a module with arguments of the same kind, whose places hold what they held, and which asks
the device for nothing, reads the same places, and nobody has to look. It runs as always.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from . import raw
from .containers import Container
from .places import Place
from .torch_settings import SETTINGS

__all__ = ["OWN", "Repeats"]

OWN: Any = object()
"""In the list of what was read: something that the run itself has made or changed."""

# Calls that read less are looked at again: that takes no longer than to compare.
_MIN_READ = 64
_MAX_PARTS = 256
_KINDS = ("cpu", "cuda")
_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format)


@dataclass
class _Call:
    """A call of a module that runs."""

    frame: types.FrameType
    key: Hashable
    read_before: int
    decided_before: int


class Repeats:
    """The calls of modules that a run has made.

    Args:
        on_device: whether a tensor is on the device, where nobody reads its data unseen.
        decided: how many values of the device the run has asked for.

    Attributes:
        read: keys of the places that were read in the calls that run, in order; :data:`OWN`.
        skipped: the frame of a call that nobody has to look at.
    """

    def __init__(
        self,
        on_device: Callable[[torch.Tensor], bool] = lambda tensor: False,
        decided: Callable[[], int] = lambda: 0,
    ) -> None:
        self.read: list[Any] = []
        self.skipped: types.FrameType | None = None
        self._on_device, self._decided = on_device, decided
        self._calls: list[_Call] = []
        self._known: dict[Hashable, list[Any] | set[Any]] = {}
        self._modes: tuple[int, ...] = ()

    def start(self) -> None:
        """The run begins."""
        self._modes = _modes()

    def clear(self) -> None:
        """Forget all."""
        self._calls.clear()
        self._known.clear()
        self.read.clear()
        self.skipped = None

    def begin(
        self,
        frame: types.FrameType,
        places: dict[Any, Place],
        hooks: dict[int, Container],
        is_state: Callable[[Any], bool],
    ) -> None:
        """A module is called.

        Args:
            frame: that of the call, of torch's own code.
            places: what the run has read so far.
            hooks: the same, of registries of hooks that were empty.
            is_state: whether an object was there before the run.
        """
        variables = frame.f_locals
        module = variables["self"]
        if not (raw.attributes(module) or {}).get("_modules"):
            return  # one without children reads little
        if _modes() != self._modes:
            return
        given = self._same((variables["args"], variables["kwargs"]), is_state)
        if given is None:
            return
        key = (id(module), given, _ambient())
        read = self._known.get(key)
        if type(read) is list:
            read = self._known[key] = _with_tensors(read, places)
        if type(read) is set and _hold(read, places, hooks):
            self.skipped = frame
            self.read += read
            return
        self._calls.append(_Call(frame, key, len(self.read), self._decided()))

    def runs(self, frame: types.FrameType) -> bool:
        """Whether ``frame`` is that of a call that runs."""
        return frame is self.skipped or any(call.frame is frame for call in self._calls)

    def end(self, frame: types.FrameType, failed: bool = False) -> None:
        """``frame`` is done; ``failed``: an exception has left it."""
        if frame is self.skipped:
            self.skipped = None
            return
        while self.runs(frame):  # those inside of it may be left by exceptions
            call = self._calls.pop()
            if call.frame is frame and not failed:
                self._learn(call)
        if not self._calls:
            self.read.clear()

    def _learn(self, call: _Call) -> None:
        read = self.read[call.read_before :]
        if len(read) >= _MIN_READ and self._decided() == call.decided_before:
            self._known[call.key] = read

    def _same(self, given: Any, is_state: Callable[[Any], bool]) -> Hashable:
        """What is equal for arguments that a function cannot tell apart; ``None``: not known."""
        found: list[Hashable] = []
        seen: dict[int, int] = {}
        todo: list[Any] = [given]
        with torch._C.DisableTorchFunction():
            while todo:
                value = todo.pop()
                kind = type(value)
                if raw.is_scalar(value):
                    found.append((kind, repr(value) if kind in (float, complex) else value))
                    continue
                if kind in _VALUES:
                    found.append(value)
                    continue
                if id(value) in seen:
                    found.append(seen[id(value)])
                    continue
                seen[id(value)] = len(seen)
                if len(seen) > _MAX_PARTS:
                    return None
                if raw.is_a(value, torch.Tensor):
                    part = self._same_tensor(value, is_state)
                    if part is None:
                        return None
                    found.append(part)
                elif kind in (tuple, list, torch.Size):
                    found.append((kind, len(value), kind is list and is_state(value) and id(value)))
                    todo += value
                elif kind is dict and raw.has_plain_keys(list(value.items())):
                    found.append((kind, tuple(value), is_state(value) and id(value)))
                    todo += value.values()
                elif is_state(value):
                    found.append(id(value))
                else:
                    return None
        return tuple(found)

    def _same_tensor(self, tensor: torch.Tensor, is_state: Callable[[Any], bool]) -> Hashable:
        if is_state(tensor):
            return id(tensor)
        if type(tensor) is not torch.Tensor or tensor.__dict__ or not self._on_device(tensor):
            return None
        if tensor.layout is not torch.strided or tensor.is_nested:
            return None
        return (
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.device,
            tensor.requires_grad,
            tensor.is_leaf,
            tensor._is_view(),
            tensor.is_inference(),
            tensor.is_conj(),
            tensor.is_neg(),
        )


def _with_tensors(read: list[Any], places: dict[Any, Place]) -> set[Any]:
    """What was read, and how the tensors that stand there lie in memory."""
    found = set(read)
    for key in read:
        place = places.get(key)
        held = getattr(place, "held", None)
        values = [getattr(place, "value", None)] if held is None else [value for _, value in held]
        found |= {("tensor", id(value)) for value in values} & places.keys()
    return found


def _hold(read: set[Any], places: dict[Any, Place], hooks: dict[int, Container]) -> bool:
    if OWN in read:
        return False
    for key in read:
        place = places.get(key)
        if place is None:
            container = hooks.get(key)
            if container is None or container.changes():
                return False
        elif place.stored or not place.holds():
            return False
    return True


def _modes() -> tuple[int, ...]:
    """The modes that see what torch does."""
    functions = range(torch._C._len_torch_function_stack())
    dispatches = range(torch._C._len_torch_dispatch_stack())
    return (
        *(id(torch._C._get_function_stack_at(n)) for n in functions),
        *(id(torch._C._get_dispatch_stack_at(n)) for n in dispatches),
    )


def _ambient() -> Hashable:
    """The settings that code may ask for, and that no place tells."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_cache_enabled(),
        *((torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in _KINDS),
        *(setting.read() for setting in SETTINGS),
    )
