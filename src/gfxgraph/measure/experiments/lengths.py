"""Experiment ``lengths``: one fixed size against graphs of several."""

from __future__ import annotations

from typing import Any

import torch

from ...device import current_device, index_of
from ...errors import ArgumentError
from ...record.collectives import refused
from ..bench import traffic_of
from ..traffic import TrafficReport, measure
from .report import Outcome
from .subject import Subject

__all__ = ["run"]

_NAMES = {
    "eager": "eager, each length as it is",
    "fixed": "one graph, all padded to the largest",
    "graph": "a graph for each length",
    "buckets": "graphs of a few lengths",
    "compile": "torch.compile(dynamic=True)",
}


def run(subject: Subject) -> Outcome:
    """Send calls of various lengths through each way."""
    if subject.ways is not None and [*subject.ways] != ["compile"]:
        raise ArgumentError(
            f"experiment('lengths'): ways={[*subject.ways]!r}: expected ['compile'], or none."
        )
    if subject.traffic is None:
        raise ArgumentError(
            f"experiment('lengths', {subject.name}): expected calls of several lengths. Give "
            "traffic=, or on the command line --shapes N=5,9,16 for arguments that have N."
        )
    calls = traffic_of("experiment", subject.eager, subject.traffic, subject.kwargs)
    device = current_device()
    with torch.no_grad(), refused():
        found = measure(
            subject.eager,
            calls,
            lambda: device.synchronize(index_of(device)),
            subject.seconds,
            subject.ways is not None,
            subject.progress,
            fixed=True,
        )
    rows = tuple(map(_row, found))
    notes = tuple(f"{row.name}: {row.note}" for row in found if row.note)
    by_name = {row.name: row for row in found}
    few, fixed, each = (by_name[name] for name in ("buckets", "fixed", "graph"))
    wrong = [row for row in found if row.status == "differs"]
    if wrong:
        words = f"{_NAMES[wrong[0].name]}: it differs from eager, {wrong[0].note.rstrip('.')}."
        return Outcome(rows, words, False, notes)
    if few.status != "ok" or few.eager_calls:
        why = few.note.rstrip(".")
        if few.status == "ok":
            why = f"{few.eager_calls:.0%} of the calls run eagerly; {why}"
        return Outcome(rows, f"Padding does not suit the function: {why}.", False, notes)
    waste = f"{few.padding:.0%} of what is computed is padding where one length takes "
    words = (
        f"{few.captures} graphs answer all lengths, {waste}{fixed.padding:.0%} and a graph for "
        f"each takes {each.captures} captures"
    )
    if device.kind != "emulated" and few.speedup and fixed.speedup:
        words += (
            f"; they are {few.speedup.median:.2f} times as fast as eager, one length is "
            f"{fixed.speedup.median:.2f}"
        )
    return Outcome(rows, f"{words}.", few.padding <= fixed.padding, notes)


def _row(row: TrafficReport) -> dict[str, Any]:
    call, gain = row.call_us, row.speedup
    return {
        "way": row.name,
        "status": row.status,
        "captures": row.captures,
        "padding": row.padding,
        "eager_calls": row.eager_calls,
        "call_us": call and call.p50,
        "p95_us": call and call.p95,
        "speedup": gain and gain.median,
        "first_pass_s": row.first_pass_s,
    }
