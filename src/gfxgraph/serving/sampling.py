"""One replay of an engine's graph, compared with eager execution of what was captured.

An engine's forward writes the key-value cache, and custom kernels write what nobody sees. So its
effects cannot be put back, and a comparison runs it again over them. It then writes the same values
to the same places, unless it keeps a state that each run advances. The engines' modules refuse
those that are known to do so. A replay counts as wrong only if eager execution gives the same
result twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..call.signature import Objects, flatten
from ..call.validation import differs
from ..errors import ArgumentError, one_line

__all__ = ["Comparison", "compare"]

_ADVANCES = (
    "two eager runs of one step give different results. If the model keeps a state, the comparison "
    "has advanced it"
)


@dataclass(frozen=True)
class Comparison:
    """A step that was answered by a replay and by eager execution.

    Attributes:
        result: what the engine is to get: that of the replay; of eager execution if they differ.
        difference: what differs, ``None``: nothing.
        impossible: why they could not be compared, else empty.
    """

    result: Any
    difference: str | None = None
    impossible: str = ""


def compare(replay: Callable[[], Any], run: Callable[[], Any], rows: int | None) -> Comparison:
    """Replay, run eagerly, and compare.

    Args:
        replay: gives the result of a replay, in memory that the graph writes.
        run: gives that of eager execution, maybe in the same memory.
        rows: how many rows of each tensor are not padding; ``None``: all.
    """
    result = replay()
    try:
        tensors = _tensors(result)
    except ArgumentError as error:
        return Comparison(result, impossible=str(error))
    got = _copies(tensors)
    try:
        expected = run()
        first = _copies(_tensors(expected))
        found = _difference(got, first, rows)
        if found is None:
            return Comparison(result)
        repeats = _difference(_copies(_tensors(run())), first, rows) is None
    except Exception as error:  # of the engine's own code, or out of memory: the replay answers
        why = f"its eager run failed: {one_line(error)}"
    else:
        if repeats:
            return Comparison(expected, found)
        why = _ADVANCES
    with torch.inference_mode():  # a tensor that was made in it allows writes only there
        for tensor, copy in zip(tensors, got, strict=True):
            tensor.copy_(copy)
    return Comparison(result, impossible=why)


def _tensors(result: Any) -> list[torch.Tensor]:
    return flatten(result, Objects())[0]


def _copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in tensors]


def _difference(
    got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], rows: int | None
) -> str | None:
    if len(got) != len(expected):
        return f"{len(got)} tensors, not {len(expected)}"
    return differs(_real(got, rows), _real(expected, rows), tolerance=True)


def _real(tensors: Sequence[torch.Tensor], rows: int | None) -> list[torch.Tensor]:
    return [tensor[:rows] if tensor.dim() else tensor for tensor in tensors]
