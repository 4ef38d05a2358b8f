"""A number that gfxgraph's watch over Python state cannot see."""

from __future__ import annotations

import ctypes

_allocate = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(
    ("PyMem_RawMalloc", ctypes.pythonapi)
)
_free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyMem_RawFree", ctypes.pythonapi))


class Unseen:
    """A float in memory that Python knows by its address alone."""

    def __init__(self, value: float = 0.0) -> None:
        self._address = _allocate(ctypes.sizeof(ctypes.c_double))
        self.value = value

    @property
    def value(self) -> float:
        return ctypes.c_double.from_address(self._address).value

    @value.setter
    def value(self, value: float) -> None:
        ctypes.c_double.from_address(self._address).value = value

    def __del__(self) -> None:
        _free(self._address)
