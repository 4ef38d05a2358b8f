"""Experiment ``modes``: the ways of calling a function, how fast and how steady each is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ...verifying.inputs import Inputs
from ..bench import chosen_ways, measuring
from ..report import WayReport
from ..timing import Percentiles, Samples
from .report import Outcome
from .subject import Subject

__all__ = ["run"]

# A graph that is slower than eager by less than this has cost nobody anything.
_NOT_SLOWER = 0.95


def run(subject: Subject) -> Outcome:
    """Call each way in turn, in rounds."""
    ways = chosen_ways("experiment", subject.ways)
    given = Inputs.of(subject.args, subject.kwargs)
    with measuring(
        subject.fn or subject.eager, given, ways, subject.seconds, subject.progress
    ) as run:
        report = run.report(None)
        rows = {way.name: way for way in report.ways}
        samples = {name: one for name, one in run.samples.items() if rows[name].status == "ok"}
        emulated = run.is_emulated
    found = tuple(_row(row, samples.get(name)) for name, row in rows.items())
    notes = tuple(f"{row.name}: {row.status}: {row.note}" for row in rows.values() if row.note)
    wrong = [row for row in rows.values() if row.status == "differs"]
    if wrong:
        words = f"{wrong[0].name} gives something else than eager: {wrong[0].note.rstrip('.')}."
        return Outcome(found, words, False, notes)
    graph = rows.get("graph")
    if graph is None or not graph.speedup:
        why = "it was not measured" if graph is None else graph.note.rstrip(".")
        return Outcome(found, f"There is no graph to compare: {why}.", None, notes)
    if emulated:
        words = "The ways that run here agree with eager; their times say nothing of a GPU."
        return Outcome(found, words, None, notes)
    gain = graph.speedup
    variation = [_variation(samples[name]) for name in ("graph", "eager")]
    return Outcome(
        found,
        f"A graph is {gain.median:.2f} times as fast as eager ({gain.low:.2f} to {gain.high:.2f}), "
        f"its times vary by {variation[0]:.1%} where eager's do by {variation[1]:.1%}; fastest is "
        f"{report.fastest.name}.",
        gain.high >= _NOT_SLOWER,
        notes,
    )


def _row(row: WayReport, samples: Samples | None) -> dict[str, Any]:
    times = _all(samples) if samples else None
    medians = [Percentiles.of(one).p50 for one in samples.total] if samples else []
    return {
        "mode": row.name,
        "status": row.status,
        "median_us": times and times.p50,
        "p95_us": times and times.p95,
        "p99_us": times and times.p99,
        "variation": _variation(samples) if samples else None,
        "spread": _spread(medians) if medians else None,
        "rounds": len(medians),
        "speedup": row.speedup and row.speedup.median,
        "first_call_s": row.first_call_s,
    }


def _all(samples: Samples) -> Percentiles:
    return Percentiles.of([us for one in samples.total for us in one])


def _variation(samples: Samples) -> float:
    """The coefficient of variation: the standard deviation, relative to the mean."""
    times: Sequence[float] = [us for one in samples.total for us in one]
    return round(statistics.pstdev(times) / statistics.fmean(times), 4)


def _spread(medians: Sequence[float]) -> float:
    """How far the medians of the rounds lie apart, relative to the middle one."""
    return round((max(medians) - min(medians)) / statistics.median(medians), 4)
