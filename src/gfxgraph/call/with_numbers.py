"""One call of a function some of whose numbers are tensors of the device, as inputs of its graph.

A number is part of the key, so each value of it has a graph of its own. A number that only scales
what the device computes can be a tensor without dimensions, which each replay reads anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..device import current_device
from ..record.interceptor import current_interceptor

__all__ = ["WithNumbers"]


class WithNumbers:
    """Takes tensors in place of numbers.

    The function gets the tensors where it is recorded or captured. In the caller's own run, and in
    the runs that graphs are compared with, it gets the numbers: eager execution is what it does
    with these.

    Args:
        fn: the function.
        numbers: position or name of an argument -> its number in this call.
        tensors: what stands for them in this call; runs of ours have static inputs.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        numbers: dict[int | str, Any],
        tensors: Sequence[torch.Tensor],
    ) -> None:
        self.__wrapped__ = fn
        self._numbers, self._tensors = numbers, tensors

    @property
    def __self__(self) -> Any:
        """The module that it belongs to, if it does."""
        return getattr(self.__wrapped__, "__self__", self.__wrapped__)

    def among(self, leaves: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """Which of these tensors stand for numbers."""
        return tuple(n for n, leaf in enumerate(leaves) if any(leaf is t for t in self._tensors))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, with its numbers or with what stands for them."""
        given, named = list(args), dict(kwargs)
        is_for_graph = current_interceptor() is not None or current_device().is_capturing()
        for key, number in self._numbers.items():
            holder: Any = given if isinstance(key, int) else named
            if not is_for_graph or any(holder[key] is tensor for tensor in self._tensors):
                holder[key] = number
        return self.__wrapped__(*given, **named)
