"""Tensors that stand for numbers in a recorded run, and operations that tell them apart.

``x * 2.5`` computes what ``x * torch.tensor(2.5, dtype=torch.float64)`` computes, unless the number
decides the dtype of the result, or is rounded to it: in half precision a number is not, a tensor
is. What a run gives may agree in one example all the same, so each operation is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

__all__ = ["AsNumbers"]

_CONVERTS = torch.ops.aten._to_copy.default
_EXACT = (torch.float32, torch.float64, torch.complex64, torch.complex128)


class AsNumbers:
    """The tensors of a run that are made of numbers alone.

    Args:
        name: names the memory of a tensor.
        tensors: those that stand for the numbers of the call.
    """

    def __init__(
        self, name: Callable[[torch.Tensor], int], tensors: Sequence[torch.Tensor]
    ) -> None:
        self._name = name
        self._known = set(map(name, tensors))

    def differ(self, func: object, given: list[torch.Tensor], made: list[torch.Tensor]) -> str:
        """Why an operation gives something else for numbers than for these; ``""``: it does not.

        Args:
            func: the operator.
            given: the tensors that it took.
            made: those that it gave.
        """
        if not self._known:
            return ""
        numbers = [tensor for tensor in given if self._name(tensor) in self._known]
        if (
            not numbers or func is _CONVERTS
        ):  # what comes of that is a tensor in eager execution too
            return ""
        others = [tensor for tensor in given if self._name(tensor) not in self._known]
        if not others:
            self._known.update(map(self._name, made))
            is_other = any(t.is_floating_point() and t.dtype is not torch.float64 for t in made)
            return "whole numbers give float32 where Python's give a float" if is_other else ""
        if any(number.dim() for number in numbers):
            return "it has got dimensions, which a number has not"
        rows = [tensor.dtype for tensor in others if tensor.dim()]
        single = [tensor.dtype for tensor in others if not tensor.dim()]
        kinds = [max(map(_kind, dtypes), default=-1) for dtypes in (rows, single)]
        kind = max(_kind(number.dtype) for number in numbers)
        beside = f"beside {' and '.join(dict.fromkeys(map(str, rows + single)))} it"
        # The dtype is that of the tensors with dimensions, unless others are of a higher kind.
        if kinds[0] < max(kind, kinds[1]) and any(
            torch.promote_types(dtype, number.dtype) is not dtype
            for dtype in single or rows
            for number in numbers
        ):
            return f"{beside} decides the dtype of the result as a number does not"
        if kind and any(d.is_floating_point and d not in _EXACT for d in rows + single):
            return f"{beside} is rounded to half precision, which a number is not"
        return ""


def _kind(dtype: torch.dtype) -> int:
    """Of two dtypes of different kinds that of the higher one is the dtype of the result."""
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype is not torch.bool)
