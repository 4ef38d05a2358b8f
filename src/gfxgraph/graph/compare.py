"""Whether two tensors are equal within a tolerance, and how they differ if not."""

from __future__ import annotations

from typing import TypeAlias

import torch

from ..device import Device
from ..errors import VerificationError
from ..record.journal import Judge
from ..stats import tally
from ..tables import counted

__all__ = ["Tensors", "Tolerance", "difference", "magnitude", "require_equal", "rounding"]

Tensors: TypeAlias = tuple[list[torch.Tensor], list[torch.Tensor]]
"""Outputs, and what was written to tensors from outside."""

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
"""The largest error allowed, relative to the magnitude of the expected tensor (or 1)."""

# Numbers so much larger than all that differ say nothing of how exact these are.
_FAR = 100.0

# Compiled code rounds at other places than eager execution: what it may differ by, in tolerances.
_COMPILED_SLACK = 4.0

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
    """Say how a tensor differs from another; ``None``: it does not.

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
            magnitude(b, a != b, least=1.0).double(),
            placed.all().double(),
        ]
    ).tolist()
    if not in_place:
        return "NaN or infinity in other places than expected"
    limit = allowed * max(1.0, scale)
    return f"largest error {error:.3g}, allowed {limit:.3g}" if error > limit else None


def magnitude(expected: torch.Tensor, differs: torch.Tensor, least: float = 0.0) -> torch.Tensor:
    """The largest finite magnitude of a tensor, by which errors are judged.

    Without numbers far above all that differ: with ``-1e9`` for scores that do not count, any error
    of the others would be small.

    Args:
        expected: the tensor, on the device.
        differs: which of its elements are not what was found.
        least: the smallest magnitude that counts. Default 0.
    """
    sizes = torch.where(expected.isfinite(), expected.abs(), 0)
    of_others = torch.where(differs, sizes, 0).amax().clamp(min=least)
    return torch.where((sizes <= _FAR * of_others) | (of_others == 0), sizes, 0).amax()


def require_equal(
    got: Tensors,
    expected: Tensors,
    judge: Judge,
    what: str = "first replay differs from eager execution",
    transient: bool = False,
) -> None:
    """Compare outputs and written tensors, one by one.

    Args:
        got: the tensors to judge.
        expected: what they should equal.
        judge: says how a tensor differs from another.
        what: begins the message.
        transient: whether another attempt may well succeed. Default ``False``.

    Raises:
        VerificationError: one differs.
    """
    for part, tensors, others in zip(("output", "written tensor"), got, expected, strict=True):
        if len(tensors) != len(others):
            counts = f"{counted(len(tensors), part)}, not {len(others)}"
            raise VerificationError(f"the {what}: {counts}", transient=transient)
        for n, pair in enumerate(zip(tensors, others, strict=True)):
            found = judge(*pair)
            if found is not None:
                tally.add("validation_failures")
                raise VerificationError(f"the {what} in {part} {n}: {found}", transient=transient)


def rounding(dtypes: set[torch.dtype], device: Device) -> float:
    """How far compiled code that computes in ``dtypes`` may be off; its results may be wider."""
    if device.kind != "emulated" and torch.get_float32_matmul_precision() != "highest":
        # TF32 has the mantissa of float16.
        dtypes = {torch.float16 if dtype == torch.float32 else dtype for dtype in dtypes}
    return _COMPILED_SLACK * max((BY_DTYPE.get(dtype, 0.0) for dtype in dtypes), default=0.0)
