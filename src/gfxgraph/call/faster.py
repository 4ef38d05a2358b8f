"""Chooses for ``compile=``: a graph of compiled code, one of the uncompiled function, or none."""

from __future__ import annotations

import logging
import statistics
from functools import partial
from typing import Protocol

from ..device import current_device
from ..errors import CaptureError, CompileError
from ..graph.captured import CapturedGraph
from ..interpose.interrupts import interrupt_in
from ..stats import log, tally
from .compiled import Compiled
from .entries import Entries
from .entry import Entry
from .key import Call
from .options import Options
from .tuned import TunedCode, in_turn, tuned

__all__ = ["Capture", "NotWorthIt", "device_is_faster", "graph_of_compiled", "note_not_compiled"]

# Calls that are timed to choose between two graphs and none.
_ROUNDS = 20

# Of calls that are timed to choose who decides: how many rounds, and seconds that all may take.
_FEW_ROUNDS = 7
_SECONDS = 0.25


class NotWorthIt(CaptureError):
    """There could be a graph, and it would be no faster than eager execution."""


class Capture(Protocol):
    """Captures a function, or the compiled code of it."""

    def __call__(self, code: Compiled | None = None, timed: bool = False) -> Entry:
        """``timed``: calls are to be timed, see ``CapturedGraph.time_call``."""


def graph_of_compiled(
    capture: Capture, code: Compiled, entries: Entries, options: Options, call: Call
) -> Entry:
    """A graph of compiled code where that can be had, else of the function as it is.

    Args:
        capture: captures it.
        code: the code.
        entries: of the callable.
        options: of the callable.
        call: a call that the graph is for.

    Raises:
        NotWorthIt: both were timed, and eager execution is faster.
        Exception: see :func:`~gfxgraph.graph.capture.capture`; or the code cannot be had, and
            ``fallback="raise"``.
    """
    try:
        if code.kinds >= options.max_graphs:
            raise CompileError(
                f"it was compiled for {code.kinds} kinds of calls, and max_graphs is "
                f"{options.max_graphs}"
            )
        if isinstance(code, TunedCode):
            compiled = tuned(capture, code, call, entries.name)
        else:
            compiled = capture(code)
            compiled.keeps = code
    except Exception as error:
        if interrupt_in(error) or getattr(error, "transient", False) or options.fallback == "raise":
            raise
        reason = str(error)
    else:
        if not code.measure:
            return compiled
        kept = _the_faster(compiled, capture, entries.name, options.fallback == "eager")
        kept.tuned = compiled.tuned
        return kept
    return note_not_compiled(entries, capture(), reason)


def device_is_faster(host: CapturedGraph, device: CapturedGraph | None) -> tuple[bool, str]:
    """Whether a call is faster where the device decides, and how long it takes either way.

    Args:
        host: the graphs between which the host decides; the path of one call is timed.
        device: a graph of the same function in which the device decides; ``None``: it is gone.
    """
    if device is None:
        return False, "not timed: the graph was released"
    times = _deciding_us(host, device)
    if not times:
        return True, "not timed: the emulated device has no host to wait for"
    of_host, of_device = times
    verdict = f"{of_device:.1f} us a call if the device does, {of_host:.1f} us if the host does"
    log(logging.INFO, "measured", kept="device" if of_device < of_host else "host", because=verdict)
    return of_device < of_host, verdict


def _deciding_us(host: CapturedGraph, device: CapturedGraph) -> list[float]:
    """Median microseconds of a call where the host decides, and where the device does, in turn.

    Empty on the emulated device.
    """
    if current_device().kind == "emulated":
        return []
    assert host.time_call is not None and device.time_call is not None
    rounds: list[list[float]] = []
    while len(rounds) <= _FEW_ROUNDS and (len(rounds) < 3 or sum(map(sum, rounds)) < _SECONDS):
        rounds.append([host.time_call("replay"), device.time_call("replay")])
    return [1e6 * statistics.median(seconds) for seconds in zip(*rounds[1:], strict=True)]


def note_not_compiled(entries: Entries, entry: Entry, reason: str) -> Entry:
    """Count, and log when first met, why a graph holds no compiled code."""
    entry.not_compiled = reason
    tally.add("compile_failures")
    if entries.is_new(reason):
        log(logging.WARNING, "not_compiled", function=entries.name, key=entry.key, reason=reason)
    return entry


def _the_faster(compiled: Entry, capture: Capture, name: str, may_be_eager: bool) -> Entry:
    """``compiled``, or a graph of the uncompiled function if that is no slower.

    Raises:
        NotWorthIt: a call takes less without a graph.
    """
    try:
        plain = capture(timed=True)
    except Exception as error:
        if interrupt_in(error):
            compiled.release()
            raise
        log(logging.INFO, "not_measured", function=name, because=str(error))
        if compiled.captured is not None:
            compiled.captured.time_call = None
            compiled.captured.report.append(f"compiled: not timed: {error}")
        return compiled
    try:
        times = _call_us(compiled, plain)
    except BaseException:
        compiled.release()
        plain.release()
        raise
    kept, verdict = compiled, "not timed: on the emulated device both do the same"
    if times:
        of_compiled, of_plain, *eager = times
        kept = compiled if of_compiled < of_plain else plain
        verdict = f"{of_compiled:.1f} us a call compiled, {of_plain:.1f} us as it is"
        if may_be_eager and eager and eager[0] < min(of_compiled, of_plain):
            compiled.release()
            plain.release()
            verdict = f"{eager[0]:.1f} us a call eagerly; as a graph, {verdict}"
            log(
                logging.INFO,
                "measured",
                function=name,
                key=plain.key,
                kept="eager",
                because=verdict,
            )
            raise NotWorthIt(f"a graph would be slower: {verdict}")
    if kept is plain:
        plain.not_compiled = f"it would be no faster: {verdict}"
    elif compiled.captured is not None:
        compiled.captured.report.append(f"compiled: {verdict}")
    (plain if kept is compiled else compiled).release()
    how = "compiled" if kept is compiled else "as it is"
    log(logging.INFO, "measured", function=name, key=kept.key, kept=how, because=verdict)
    return kept


def _call_us(compiled: Entry, plain: Entry) -> list[float]:
    """Median microseconds of a call: as a graph of compiled code, as one of the function, eagerly.

    They take turns, since the device's clock may change. The time of a graph is that of the copies,
    the launch and the device's work. It leaves out what the host checks before, so that eager is
    found faster only where it is. Only a function that does nothing but compute is run eagerly.
    Empty on the emulated device.
    """
    one, other = compiled.captured, plain.captured
    if one is None or other is None or one.time_call is None or other.time_call is None:
        return []
    ways = [partial(one.time_call, "replay"), partial(other.time_call, "replay")]
    if other.state is not None:
        ways.append(partial(other.time_call, "eager"))
    if current_device().kind == "emulated":
        ways = []
    rounds = in_turn(ways, _ROUNDS)
    one.time_call = other.time_call = (
        None  # they hold what it takes to get back to the state of then
    )
    return [1e6 * statistics.median(seconds) for seconds in zip(*rounds, strict=True)]
