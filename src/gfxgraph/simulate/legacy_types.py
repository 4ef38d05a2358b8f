"""``torch.cuda.FloatTensor`` and the like: names of a dtype on the device, from before dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .tensor import DEVICE

__all__ = ["TYPES", "of_device", "set_default_tensor_type"]

_DTYPES = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}


class _Type(type):
    """The class of these classes: they make tensors, and know theirs."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: Any) -> bool:
        known = isinstance(instance, torch.Tensor)
        return known and instance.is_cuda and instance.dtype is cls.dtype

    def __call__(cls, *args: Any, device: Any = None) -> Any:
        first = args[0] if args else ()
        if isinstance(first, torch.Tensor):
            if not isinstance(first, cls):
                raise TypeError(f"expected a {cls.__module__}.{cls.__name__}, got {first.type()}")
            return first.detach()
        if isinstance(first, int):
            return torch.empty(args, dtype=cls.dtype, device=DEVICE)
        if isinstance(first, torch.Size):
            return torch.empty(first, dtype=cls.dtype, device=DEVICE)
        if isinstance(first, Sequence) or hasattr(first, "__array__"):
            return torch.tensor(first, dtype=cls.dtype, device=DEVICE)
        raise TypeError(f"{cls.__module__}.{cls.__name__}: cannot be made of {type(first)}")


def _type_named(name: str, dtype: torch.dtype) -> _Type:
    names = {"dtype": dtype, "is_cuda": True, "is_sparse": False, "layout": torch.strided}
    return _Type(f"{name}Tensor", (), {"__module__": "torch.cuda", **names})


TYPES = {f"torch.cuda.{name}Tensor": _type_named(name, dtype) for name, dtype in _DTYPES.items()}
"""Their paths -> the classes."""


def of_device(kind: Any) -> torch.dtype | None:
    """The dtype that ``kind`` names on the device: one of these classes, or its path."""
    found = TYPES.get(kind) if isinstance(kind, str) else kind
    return found.dtype if type(found) is _Type else None


_set_default: Any = torch.set_default_tensor_type
_is_ours: list[bool] = []


def set_default_tensor_type(kind: Any, /) -> None:
    """``torch.set_default_tensor_type``: the default dtype, and the default device."""
    dtype = of_device(kind)
    if dtype is not None:
        torch.set_default_dtype(dtype)
        torch.set_default_device(DEVICE)
        _is_ours[:] = [True]
        return
    if _is_ours:
        torch.set_default_device(None)
        _is_ours.clear()
    _set_default(kind)
