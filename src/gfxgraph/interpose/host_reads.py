"""Repeats in the capture the values that compiled code reads between its regions.

A compiled function leaves its code where the host asks for a value (``while time >= 0``). No mode
of ours can see that: compiled code does not run under one. So we replace the methods of the tensor
during a run. In a warm-up run they remember their results. In the capture they return these instead
of waiting for the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..errors import CaptureError
from .patch import intercept

__all__ = ["HostReads"]

_METHODS = ("__bool__", "__complex__", "__float__", "__index__", "__int__", "item", "tolist")


class HostReads:
    """The values that this thread read from tensors on a device, in order.

    Args:
        device_type: what ``tensor.device.type`` is on the device.
    """

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._values: list[tuple[str, Any]] = []

    def __len__(self) -> int:
        return len(self._values)

    @contextmanager
    def remembered(self) -> Iterator[None]:
        """Remember each value that is read."""
        self._values = []

        def read(name: str, original: Callable[..., Any], tensor: torch.Tensor) -> Any:
            value = original(tensor)
            self._values.append((name, value))
            return value

        with self._replaced(read):
            yield

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Return the values that were read before, and touch no tensor.

        Raises:
            CaptureError: the function reads other values, or fewer.
        """
        left = iter(self._values)

        def read(name: str, original: Callable[..., Any], tensor: torch.Tensor) -> Any:
            expected, value = next(left, (None, None))
            if name != expected:
                raise _another_way(f"it called Tensor.{name}() where {_call(expected)} was")
            return value.copy() if isinstance(value, list) else value

        with self._replaced(read):
            yield
        for name, _ in left:
            raise _another_way(f"it ended before Tensor.{name}()")

    @contextmanager
    def _replaced(self, read: Callable[..., Any]) -> Iterator[None]:
        device_type = self._device_type

        def method(name: str, original: Any, tensor: torch.Tensor, *args: Any) -> Any:
            if tensor.device.type != device_type:
                return original(tensor, *args)
            return read(name, original, tensor)

        with ExitStack() as stack:
            for name in _METHODS:
                handler = functools.partial(method, name)
                stack.enter_context(intercept(torch.Tensor, name, handler))
            yield


def _call(name: str | None) -> str:
    return "the end" if name is None else f"Tensor.{name}()"


def _another_way(how: str) -> CaptureError:
    return CaptureError(
        f"the compiled function took another path in its capture than in the run before: {how}. "
        "Its path has to depend on its arguments alone."
    )
