"""Which tensors can be the inputs and outputs of a graph, and who asks for gradients."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..errors import ArgumentError
from ..graph import raw
from ..interpose.source import name_of
from ..record.storages import is_whole
from .signature import constants, flatten

__all__ = [
    "FREED",
    "GOES_ON",
    "check_function",
    "check_progress",
    "describe",
    "ends_autograd",
    "inference",
    "unsuitable",
]

_KINDS = (torch.Tensor, torch.nn.Parameter)

FREED = "its storage was freed or made smaller: it does not hold all elements"
"""Why a tensor cannot be read."""


def unsuitable(leaf: torch.Tensor, kinds: Iterable[type] = _KINDS) -> str | None:
    """Why this tensor cannot be an input or output of a graph."""
    if type(leaf) not in kinds:
        return f"is a {describe(leaf)}, a subclass of Tensor with behaviour of its own"
    if leaf.layout is not torch.strided:
        return f"has the layout {leaf.layout}, only torch.strided can be copied"
    if leaf.is_nested:
        return "is nested: its shape is data of its own"
    if leaf.is_quantized:
        return f"is quantized ({leaf.dtype})"
    if not is_whole(leaf):
        return FREED
    # Names that begin with an underscore are marks of torch and of other libraries.
    more = [name for name in getattr(leaf, "__dict__", ()) if not name.startswith("_")]
    if more and type(leaf) is torch.Tensor:
        return f"has attributes of its own ({', '.join(more)}), which a static input would lack"
    if any(getattr(leaf, "names", None) or ()):  # gone in torch 2.13
        return "has named dimensions"
    if torch._C._functorch.is_functorch_wrapped_tensor(leaf):
        return "is inside a torch.func transform (vmap, grad, jvp)"
    return None


GOES_ON = (
    "a backward pass of the function reaches a tensor that has hooks, or that autograd has "
    "recorded outside. Pass detach().requires_grad_() instead"
)
"""Why a call cannot be answered for whose tensors :func:`ends_autograd` is false."""


def ends_autograd(leaf: torch.Tensor) -> bool:
    """Whether a backward pass ends at this tensor, with no hook, as it does at a static input."""
    tensor: Any = leaf
    return not tensor.requires_grad or (
        tensor.is_leaf and not (tensor._backward_hooks or tensor._post_accumulate_grad_hooks)
    )


def describe(value: Any) -> str:
    """The full name of a class, or of the class of an object."""
    cls = value if raw.is_a(value, type) else type(value)
    return f"{raw.module_of(cls)}.{raw.name_of(cls)}".removeprefix("builtins.")


_WITHOUT_RESULT: dict[str, Callable[[Any], bool]] = {
    "a generator function": inspect.isgeneratorfunction,
    "an async function": inspect.iscoroutinefunction,
    "an async generator function": inspect.isasyncgenfunction,
}


def check_function(fn: Any, what: str) -> None:
    """Raise unless ``fn`` can be called for a result.

    Args:
        fn: what is to be a function, a module or a method.
        what: what messages begin with.

    Raises:
        ArgumentError: it is not callable, a class, or it gives its result later.
    """
    if not callable(fn) or raw.is_a(fn, type):
        raise ArgumentError(
            f"{what} takes a function, a module or a method, not {describe(fn)}. Of a class, give "
            "an object or a method."
        )
    target = fn.forward if raw.is_a(fn, torch.nn.Module) else fn
    # An object may answer any question for an attribute.
    is_function = raw.is_a(target, types.FunctionType, types.MethodType, functools.partial)
    for kind, is_one in _WITHOUT_RESULT.items():
        if (is_function and is_one(target)) or is_one(type(fn).__call__):
            raise ArgumentError(
                f"{what} takes a function that returns its result; {name_of(fn)} is {kind}. Give "
                "it the function that does the tensor work."
            )


def check_progress(progress: object) -> None:
    """Raise unless it can be called with what is to be gone through.

    Raises:
        ArgumentError: it cannot.
    """
    if not callable(progress):
        raise ArgumentError(
            f"capture(progress={progress!r}): expected a function that takes a list and gives its "
            "items one by one, such as rich.progress.track."
        )


def inference(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[Any]:
    """``torch.no_grad()``, or nothing where an argument may ask for gradients."""
    try:
        tensors, spec = flatten((args, kwargs))
    except (ArgumentError, AttributeError, RecursionError, TypeError):  # nobody can look into it
        return nullcontext()
    hidden = any(not const.is_value for const in constants(spec))
    return nullcontext() if hidden or any(t.requires_grad for t in tensors) else torch.no_grad()
