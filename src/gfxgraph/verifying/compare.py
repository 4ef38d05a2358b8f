"""Errors of one tensor over many calls, for the tables of ``verify``.

``graph/compare.py`` judges a single replay with one read of the device, by the magnitude of the
tensor but at least 1. This adds up errors over calls, by the magnitude alone, and finds the first
element that is wrong. Both take the tolerance of a dtype from ``BY_DTYPE`` there.
"""

from __future__ import annotations

import enum

import torch

from ..call.signature import Const
from ..graph import raw
from ..graph.compare import BY_DTYPE, magnitude
from ..graph.places import equal
from .report import Divergence, OutputErrors, Part

__all__ = ["Errors", "Value", "same", "within"]

Value = torch.Tensor | Const
"""A tensor of a result, or a part of it that is no tensor."""

#: The documented default; it is tighter where the dtype allows.
DEFAULT = 0.01


class Errors:
    """Adds up the errors of one tensor against eager's.

    Args:
        part: see :class:`~gfxgraph.verifying.report.OutputErrors`.
        name: see there.
        threshold: the relative error that is allowed for floating-point tensors; ``None``: by
            dtype.

    Attributes:
        holds_tensors: whether one of the values was a tensor.
    """

    def __init__(self, part: Part, name: str, threshold: float | None) -> None:
        self._name, self._part, self._given = name, part, threshold
        self._dtype, self._threshold = "", 0.0
        self._max = self._sum = self._relative = 0.0
        self._count = 0
        self._first: Divergence | None = None
        self.holds_tensors = False

    def add(self, call: int, got: Value | None, expected: Value | None) -> None:
        """Add a call; ``None``: its result has no such part."""
        self.holds_tensors |= isinstance(got, torch.Tensor) or isinstance(expected, torch.Tensor)
        self._dtype = self._dtype or _kind(got if expected is None else expected)
        if isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor):
            what = _other_kind(got, expected)
            if what is None:
                self._add(call, got, expected)
                return
        elif _equal(got, expected):
            return
        else:
            what = f"it is {_shown(got)}, eager gives {_shown(expected)}"
        self._first = self._first or Divergence(call, (), None, None, what)

    def row(self) -> OutputErrors:
        """The row of the table."""
        return OutputErrors(
            self._name,
            self._part,
            self._dtype,
            self._threshold,
            self._max,
            self._sum / max(1, self._count),
            self._relative,
            self._first,
        )

    def _add(self, call: int, got: torch.Tensor, expected: torch.Tensor) -> None:
        self._count += expected.numel()
        self._threshold = _threshold(expected.dtype, self._given)
        if not expected.numel() or torch.equal(got, expected):
            return
        a, b = _wide(got), _wide(expected)
        finite = a.isfinite() & b.isfinite()
        placed = finite | (a == b) | (a.isnan() & b.isnan())
        error = torch.where(finite, (a - b).abs(), 0)
        scale = float(magnitude(b, a != b)) or 1.0
        self._max = max(self._max, float(error.amax()))
        self._sum += float(error.sum())
        self._relative = max(self._relative, float(error.amax()) / scale)
        inexact = expected.is_floating_point() or expected.is_complex()
        wrong = ~placed | (error > self._threshold * scale) if inexact else got != expected
        if wrong.any():
            flat = int(wrong.flatten().int().argmax())
            here, there = a.flatten()[flat], b.flatten()[flat]
            element = tuple(int(n) for n in torch.unravel_index(torch.tensor(flat), wrong.shape))
            place = f"element {list(element)}" if element else "its value"
            what = f"{place} is {here.item():.6g}, eager gives {there.item():.6g}"
            found = Divergence(call, element, _number(here), _number(there), what)
            self._first = self._first or found


def same(a: Value | None, b: Value | None) -> bool:
    """Whether two values are equal to the last bit; NaN equals NaN."""
    return within(a, b, 0.0)


def within(a: Value | None, b: Value | None, threshold: float | None) -> bool:
    """Whether ``a`` is as near to ``b`` as ``verify`` demands."""
    errors = Errors("output", "", threshold)
    errors.add(1, a, b)
    return errors.row().ok


def _threshold(dtype: torch.dtype, given: float | None) -> float:
    if not (dtype.is_floating_point or dtype.is_complex):
        return 0.0
    return min(DEFAULT, BY_DTYPE.get(dtype, DEFAULT)) if given is None else given


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _number(value: torch.Tensor) -> float | None:
    return float(value.abs() if value.is_complex() else value) if value.isfinite() else None


def _kind(value: Value | None) -> str:
    if isinstance(value, torch.Tensor):
        return str(value.dtype).removeprefix("torch.")
    return type(value.value).__name__ if value is not None else ""


def _other_kind(got: torch.Tensor, expected: torch.Tensor) -> str | None:
    for what in ("shape", "dtype", "device"):
        a, b = getattr(got, what), getattr(expected, what)
        if a != b:
            a, b = (tuple(a), tuple(b)) if what == "shape" else (a, b)
            return f"its {what} is {a}, eager's is {b}"
    return None


def _equal(got: Value | None, expected: Value | None) -> bool:
    if not isinstance(got, Const) or not isinstance(expected, Const):
        return False
    if got.is_value and expected.is_value:
        return got == expected or _is_member_like(got.value, expected.value)
    return type(got.value) is type(expected.value)  # objects: no two are equal


def _is_member_like(one: object, other: object) -> bool:
    """Whether both are of one enum and have one value: a combination of flags is made when it is
    first used."""
    if type(one) is not type(other) or not raw.is_a(one, enum.Flag):
        return False
    values = [(raw.attributes(item) or {}).get("_value_") for item in (one, other)]
    return values[0] is not None and equal(*values)


def _shown(value: Value | None) -> str:
    if value is None:
        return "not there"
    return "a tensor" if isinstance(value, torch.Tensor) else f"{value!r}"
