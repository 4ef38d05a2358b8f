"""Lets torch's C++ code switch to a GPU where there is none."""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path

import torch

from ..errors import DeviceError

__all__ = ["lend_device_guard"]


@functools.cache
def lend_device_guard() -> None:
    """Let C++ switch to the device, and do nothing.

    torch's own way, ``_ensureCUDADeviceGuardSet``, exists from 2.10 on and does nothing in a CPU
    build. In 2.10 and 2.11 its guard dies with the thread that asked for it first. Ours is the
    guard of the CPU, which does nothing, but reports the type CUDA and the device 0.
    """
    if getattr(torch._C, "_cuda_getDeviceCount", int)():
        return  # a real device has a guard
    suffix = {"darwin": "dylib"}.get(sys.platform, "so")
    library = Path(torch.__file__).parent / "lib" / f"libc10.{suffix}"
    try:
        guards = (ctypes.c_void_p * 2).in_dll(ctypes.CDLL(str(library)), _GUARDS)
    except (OSError, ValueError) as error:
        raise DeviceError(f"This build of torch cannot simulate a device: {error}.") from error
    # A device is two bytes, the type (CUDA is 1) and the index: as a number 1, as is the type.
    answer = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)
    methods = (ctypes.c_void_p * 64)()
    ctypes.memmove(methods, ctypes.c_void_p.from_address(guards[0] or 0).value or 0, 64 * 8)
    methods[:3] = [ctypes.cast(answer, ctypes.c_void_p).value] * 3  # type, exchange, get
    guard = ctypes.c_void_p(ctypes.addressof(methods))
    _lent.append((guard, methods, answer))  # for good: C++ may ask at any time
    guards[1] = ctypes.addressof(guard)


_lent: list[object] = []
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
