"""Kernels of the emulated device: for calls from C++, for custom operators, and out of memory."""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS

from ..errors import DeviceError
from .operation import Call
from .tensor import local

__all__ = ["allocating", "lend_kernels", "refuse_of_cpu"]

# torch.tensor([x[0], x[1]]) reads each of them; torch.tensor([], device="cuda") makes an empty one.
_OPERATORS: tuple[Any, ...] = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
)


def lend_kernels() -> torch.library.Library:
    """Register some for CUDA that torch's C++ calls past all modes.

    They last until ``_destroy()`` of the result is called.
    """
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


def refuse_of_cpu(call: Call) -> None:
    """Raise as torch does for a custom operator that the program made for the CPU only."""
    made = OPDEFS.get(call.name)
    kernels = getattr(made, "_backend_fns", None)
    if kernels and not kernels.keys() & {"cuda", None}:
        raise NotImplementedError(
            f"Could not run '{call.name}' with arguments from the 'CUDA' backend: it is registered "
            f"for {', '.join(map(str, kernels))} only (device_types=)."
        )


def allocating(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``op``; where memory runs out, raise the error of CUDA."""
    try:
        return op(*args, **kwargs)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        size = re.search(r"allocate (\d+) bytes", str(error))
        what = f" Tried to allocate {int(size[1]) >> 20} MiB." if size else ""
        raise torch.OutOfMemoryError(
            f"CUDA out of memory.{what} The memory of the emulated device is that of the host."
        ) from error
