"""Whether two tensors are equal within a tolerance, and how they differ if not."""

from __future__ import annotations

from typing import TypeAlias

import torch

__all__ = ["Tolerance", "difference"]

Tolerance: TypeAlias = bool | float
"""``True``: by dtype, see :data:`BY_DTYPE`; a number: that, for every floating-point dtype."""

BY_DTYPE = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 2e-2,
}
"""The largest error allowed, relative to the largest magnitude of the expected tensor (or 1)."""


# What to compare in; any other floating-point dtype in float32.
_WIDE = {
    torch.float64: torch.float64,
    torch.complex128: torch.complex128,
    torch.complex64: torch.complex64,
    torch.complex32: torch.complex64,
}


def difference(
    got: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, least: float = 0.0
) -> str | None:
    """What is different, or ``None``.

    Args:
        got: the tensor to judge.
        expected: the tensor that it should equal; NaN equals NaN in the same place.
        tolerance: see :data:`Tolerance`. Integers and booleans must be equal.
        least: allow at least so much where the tolerance is that by dtype. Default 0.
    """
    for what in ("shape", "dtype", "device"):
        a, b = getattr(got, what), getattr(expected, what)
        if a != b:
            return f"its {what} is {a}, expected {b}"
    if not expected.numel() or torch.equal(got, expected):
        return None
    if not (expected.is_floating_point() or expected.is_complex()):
        return f"{int((got != expected).sum())} of {expected.numel()} elements are not equal"
    by_dtype = max(least, BY_DTYPE.get(expected.dtype, 2e-2))
    allowed = by_dtype if tolerance is True else float(tolerance)
    wide = _WIDE.get(expected.dtype, torch.float32)
    a, b = got.to(wide), expected.to(wide)
    finite = b.isfinite()
    placed = (finite == a.isfinite()) & (finite | (a == b) | (a.isnan() & b.isnan()))
    # All that is asked of the device in one read.
    error, scale, in_place = torch.stack(
        [
            torch.where(placed & finite, (a - b).abs(), 0).amax().double(),
            torch.where(finite, b.abs(), 0).amax().double(),
            placed.all().double(),
        ]
    ).tolist()
    if not in_place:
        return "NaN or infinity in other places than expected"
    scale = max(1.0, scale)
    return (
        f"largest error {error:.3g}, allowed {allowed * scale:.3g}"
        if error > allowed * scale
        else None
    )
