"""Whether a function takes the arguments that it is to be called with."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..errors import ArgumentError

__all__ = ["require_fit", "signature_of"]


def signature_of(fn: Any) -> inspect.Signature | None:
    """The signature of a function, or of the ``forward`` of a module; ``None``: it is a builtin."""
    if isinstance(fn, torch.nn.Module):
        fn = fn.forward
    call = inspect.getattr_static(type(fn), "__call__", None)
    wrapped = inspect.getattr_static(fn, "__wrapped__", None) or inspect.getattr_static(
        fn, "__signature__", None
    )
    if type(call) is types.FunctionType and wrapped is None:
        fn = types.MethodType(call, fn)  # the object itself may answer any question
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def require_fit(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str
) -> None:
    """Check that ``fn`` takes these arguments.

    Args:
        fn: a function or a module.
        args: its arguments.
        kwargs: its keyword arguments.
        what: what messages begin with.

    Raises:
        ArgumentError: they are too many, too few, or have other names.
    """
    signature = signature_of(fn)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(f"{what}: the function takes {signature}: {error}.") from error
