"""Which graph a callable with ``compile=`` keeps: of compiled code, or of the function as it is."""

from __future__ import annotations

import logging
import statistics
from typing import Protocol

from ..device import current_device
from ..errors import CompileError
from ..interpose.interrupts import interrupt_in
from ..stats import log, tally
from .compiled import Compiled
from .entries import Entries
from .entry import Entry
from .options import Options

__all__ = ["Capture", "graph_of_compiled", "note_not_compiled"]

# Replays that are timed to choose between two graphs, and those before.
_ROUNDS = 20
_ROUNDS_OF_WARMTH = 5


class Capture(Protocol):
    """Captures a function, or the compiled code of it."""

    def __call__(self, code: Compiled | None = None, timed: bool = False) -> Entry:
        """``timed``: replays are to be timed, see ``CapturedGraph.time_replay``."""


def graph_of_compiled(
    capture: Capture, code: Compiled, entries: Entries, options: Options
) -> Entry:
    """A graph of compiled code where that can be had, else of the function as it is.

    Raises:
        Exception: see :func:`~gfxgraph.graph.capture.capture`; or the code cannot be had, and
            ``fallback="raise"``.
    """
    try:
        if code.kinds >= options.max_graphs:
            raise CompileError(
                f"it was compiled for {code.kinds} kinds of calls, and max_graphs is "
                f"{options.max_graphs}"
            )
        compiled = capture(code)
        compiled.keeps = code
    except Exception as error:
        if interrupt_in(error) or getattr(error, "transient", False) or options.fallback == "raise":
            raise
        reason = str(error)
    else:
        return _the_faster(compiled, capture, entries.name) if code.measure else compiled
    return note_not_compiled(entries, capture(), reason)


def note_not_compiled(entries: Entries, entry: Entry, reason: str) -> Entry:
    """Count, and log when first met, why a graph holds no compiled code."""
    entry.not_compiled = reason
    tally.add("compile_failures")
    if entries.is_new(reason):
        log(logging.WARNING, "not_compiled", function=entries.name, key=entry.key, reason=reason)
    return entry


def _the_faster(compiled: Entry, capture: Capture, name: str) -> Entry:
    """``compiled``, or a graph of the function as it is where that is as fast."""
    try:
        plain = capture(timed=True)
    except Exception as error:
        if interrupt_in(error):
            compiled.release()
            raise
        log(logging.INFO, "not_measured", function=name, because=str(error))
        if compiled.captured is not None:
            compiled.captured.time_replay = None
            compiled.captured.report.append(f"compiled: not timed: {error}")
        return compiled
    try:
        times = _replay_us(compiled, plain)
    except BaseException:
        compiled.release()
        plain.release()
        raise
    kept, verdict = compiled, "not timed: on the emulated device both do the same"
    if times:
        of_compiled, of_plain = times
        kept = compiled if of_compiled < of_plain else plain
        verdict = f"{of_compiled:.1f} us a replay compiled, {of_plain:.1f} us as it is"
    if kept is plain:
        plain.not_compiled = f"it would be no faster: {verdict}"
    elif compiled.captured is not None:
        compiled.captured.report.append(f"compiled: {verdict}")
    (plain if kept is compiled else compiled).release()
    how = "compiled" if kept is compiled else "as it is"
    log(logging.INFO, "measured", function=name, key=kept.key, kept=how, because=verdict)
    return kept


def _replay_us(*entries: Entry) -> list[float]:
    """Median microseconds of a replay of each, taken in turn: the device's clock may change.

    None on the emulated device.
    """
    calls = [e.captured.time_replay for e in entries if e.captured and e.captured.time_replay]
    if current_device().kind == "emulated":
        calls = []
    for _ in range(_ROUNDS_OF_WARMTH):
        for call in calls:
            call()
    rounds = [[call() for call in calls] for _ in range(_ROUNDS)]
    for entry in entries:  # it holds what it takes to get back to the state of then
        if entry.captured is not None:
            entry.captured.time_replay = None
    return [1e6 * statistics.median(seconds) for seconds in zip(*rounds, strict=True)]
