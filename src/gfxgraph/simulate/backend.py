"""Kernels for the few operators that torch's C++ calls on the device past all modes."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..errors import DeviceError
from .tensor import Call, local

__all__ = ["lend_kernels"]

# torch.tensor([x[0], x[1]]) reads each of them; torch.tensor([], device="cuda") makes an empty one.
_OPERATORS: tuple[Any, ...] = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
)


def lend_kernels() -> torch.library.Library:
    """Register them for CUDA until ``_destroy()`` of the result is called."""
    library = torch.library.Library("aten", "IMPL")
    for op in _OPERATORS:
        name = op._schema.name.partition("::")[2]
        overload = op._schema.overload_name
        name = f"{name}.{overload}" if overload else name
        library.impl(name, functools.partial(_call, op), "CUDA")
    return library


def _call(op: Any, *args: Any, **kwargs: Any) -> Any:
    if local.world is None:
        raise DeviceError(
            "This thread began before enable(emulate=True), so it has no device. Start it after "
            "that call."
        )
    return Call(op, args, kwargs, local.world).run()
