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


def difference(got: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> str | None:
    """What is different, or ``None``.

    Args:
        got: the tensor to judge.
        expected: the tensor that it should equal; NaN equals NaN in the same place.
        tolerance: see :data:`Tolerance`. Integers and booleans must be equal.
    """
    for what in ("shape", "dtype", "device"):
        a, b = getattr(got, what), getattr(expected, what)
        if a != b:
            return f"its {what} is {a}, expected {b}"
    if not expected.numel() or torch.equal(got, expected):
        return None
    if not (expected.is_floating_point() or expected.is_complex()):
        return f"{int((got != expected).sum())} of {expected.numel()} elements are not equal"
    allowed = BY_DTYPE.get(expected.dtype, 2e-2) if tolerance is True else float(tolerance)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    a, b = got.to(wide), expected.to(wide)
    if not torch.equal(torch.isfinite(a), torch.isfinite(b)):
        return "NaN or infinity in other places than expected"
    finite = torch.isfinite(b)
    error = float((a - b)[finite].abs().max()) if bool(finite.any()) else 0.0
    scale = max(1.0, float(b[finite].abs().max())) if bool(finite.any()) else 1.0
    if not torch.equal(a[~finite].isnan(), b[~finite].isnan()) or error > allowed * scale:
        return f"largest error {error:.3g}, allowed {allowed * scale:.3g}"
    return None
