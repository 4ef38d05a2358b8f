"""The first replay of a graph, and how it compares with eager execution."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from ..device import Device
from ..errors import VerificationError
from ..record.effects import overwrite
from ..stats import tally
from .compare import BY_DTYPE, Tolerance, difference
from .locks import LOCK
from .segments import run
from .trace import Traced
from .warm_up import Run, Tensors, cloned

__all__ = [
    "compare_all",
    "first_replay",
    "rounding",
    "timed_replay",
    "verify",
]

# Compiled code rounds at other places than eager execution: what it may differ by, in tolerances.
_COMPILED_SLACK = 4.0


def first_replay(
    traced: Traced,
    this: Run,
    written: Sequence[torch.Tensor] = (),
    draws: bool = False,
) -> Tensors:
    """Replay for the first time, with the arguments that were given.

    Returns:
        Copies of the outputs and of ``written``.

    Raises:
        VerificationError: it took another path than the capture.
    """
    graph_pool = this.graph_pool
    with LOCK:
        graph_pool.follow(graph_pool.device.stream_id(graph_pool.index))
        with torch.no_grad():
            for static, value in zip(this.inputs, this.given, strict=True):
                if static is not value:
                    overwrite(static, value)
        start = time.perf_counter_ns()
        with this.journal.playing(this.judge):
            last = run(traced.root, traced.graft)
        # At a read the host waits for the device.
        traced.launch_ns = time.perf_counter_ns() - start if traced.root.step is None else 0
        if last is not traced.last:
            raise VerificationError(
                "the first replay took another path than eager execution", transient=draws
            )
        # Copied at once: another graph of the same memory pool may overwrite them.
        return cloned(last.outputs or (), written)


def timed_replay(traced: Traced, this: Run) -> float:
    """Seconds of a replay until the device is done; the state it finds is put back."""
    device, index = this.graph_pool.device, this.graph_pool.index
    this.rewind()
    device.synchronize(index)
    start = time.perf_counter()
    first_replay(traced, this)
    device.synchronize(index)
    seconds = time.perf_counter() - start
    this.rewind()
    return seconds


def verify(
    got: Tensors,
    expected: Tensors,
    tolerance: Tolerance,
    draws: bool = False,
    what: str = "first replay",
    least: float = 0.0,
) -> None:
    """Compare outputs and written tensors; see :func:`compare_all`."""
    for tensors, others, part in zip(got, expected, ("output", "written tensor"), strict=True):
        compare_all(
            what,
            "eager execution",
            tensors,
            others,
            tolerance,
            part,
            transient=draws,  # another thread may have drawn from the same generator in between
            least=least,
        )


def compare_all(
    what: str,
    other: str,
    got: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    tolerance: Tolerance | None,
    part: str = "output",
    transient: bool = False,
    least: float = 0.0,
) -> None:
    """Compare tensor by tensor.

    Args:
        what: what ``got`` is of.
        other: what ``expected`` is of.
        got: the tensors to judge.
        expected: what they should equal.
        tolerance: see :func:`~.compare.difference`; ``None``: do not compare.
        part: what each of them is.
        transient: whether another attempt may well succeed.
        least: see :func:`~.compare.difference`.

    Raises:
        VerificationError: one differs.
    """
    if tolerance is None:
        return
    for n, pair in enumerate(zip(got, expected, strict=True)):
        found = difference(*pair, tolerance, least)
        if found is not None:
            tally.add("validation_failures")
            raise VerificationError(
                f"the {what} differs from {other} in {part} {n}: {found}", transient=transient
            )


def rounding(dtypes: set[torch.dtype], device: Device) -> float:
    """What compiled code may differ by that computes in ``dtypes``: its results may be wider."""
    if device.kind != "emulated" and torch.get_float32_matmul_precision() != "highest":
        # TF32 has the mantissa of float16.
        dtypes = {torch.float16 if dtype == torch.float32 else dtype for dtype in dtypes}
    return _COMPILED_SLACK * max((BY_DTYPE.get(dtype, 0.0) for dtype in dtypes), default=0.0)
