"""Which tensors can be the inputs and outputs of a graph, and who asks for gradients."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..errors import ArgumentError
from ..record.storages import is_whole
from .signature import constants, flatten

__all__ = ["FREED", "check_progress", "describe", "inference", "unsuitable"]

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


def describe(value: Any) -> str:
    """The full name of a class, or of the class of an object."""
    cls = value if isinstance(value, type) else type(value)
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")


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
