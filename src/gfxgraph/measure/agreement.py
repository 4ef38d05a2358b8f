"""Whether what a way gives is what eager execution gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from ..call.signature import Const
from ..graph.compare import BY_DTYPE
from ..verifying.bench import Values
from ..verifying.compare import DEFAULT, Errors, within

__all__ = ["alike", "difference"]


def difference(found: Sequence[Values], right: Sequence[Values], slack: float) -> tuple[str, float]:
    """What differs from eager in words, ``""`` for nothing, and the largest relative error.

    Args:
        found: the values of calls.
        right: those of eager's calls with the same arguments, from the same states.
        slack: how many times the usual tolerance is allowed.
    """
    largest, words = 0.0, ""
    for key in dict.fromkeys(key for values in (*right, *found) for key in values):
        value = next((values[key] for values in right if key in values), None)
        if key[0] == "state" and not any(key in values for values in found):
            continue  # rebound in Python, and put back since
        usual = BY_DTYPE.get(value.dtype, DEFAULT) if isinstance(value, torch.Tensor) else 0.0
        errors = Errors(*key, slack * min(DEFAULT, usual))
        for n, (values, eagers) in enumerate(zip(found, right, strict=True)):
            if key in values or key in eagers:
                errors.add(n + 1, values.get(key), eagers.get(key))
        row = errors.row()
        largest = max(largest, row.relative_error)
        if row.first is not None and not words:
            words = f"call {row.first.call}, {key[1]}: {row.first.problem}"
    return words, largest


def alike(got: Any, right: Any) -> bool:
    """Whether two results have the same structure, and tensors within the usual tolerance."""
    (ours, structure), (theirs, expected) = map(pytree.tree_flatten, (got, right))
    return structure == expected and all(
        within(a.cpu(), b.cpu(), None)
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        else within(Const(a), Const(b), None)
        for a, b in zip(ours, theirs, strict=True)
    )
