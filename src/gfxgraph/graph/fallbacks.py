"""Ways to capture a function: as it runs, following its recording, or in several graphs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import torch

from ..errors import CaptureError
from ..record.explain import explain
from ..record.recorder import Event, Recording
from ..stats import log
from .lowering import Lowering, Ways
from .segments import Segment
from .session import CaptureSession, Failed, Traced
from .warm_up import WarmedUp, confirm, report_line

__all__ = ["capture_with_fallbacks", "lower", "reads_often"]

# Operators that may become branches because a capture failed at them, before it is given up.
_MAX_FORCED = 8

# Reads at one statement in one call from which on a graph is tried in which the device decides: a
# read takes longer than a conditional node, and a capture as long as some hundred of them.
_OFTEN = 8


def reads_often(recording: Recording) -> bool:
    """Whether a statement read data of the device so often that it may pay to let that decide."""
    counts = Counter(event.at for event in recording.breaks() if event.at is not None)
    return max(counts.values(), default=0) >= _OFTEN


def lower(session: CaptureSession, eager: WarmedUp, ways: Ways, now: bool) -> None:
    """Record once more, with the device deciding where it can.

    What was found is put into ``session`` and ``eager``, unless the host reads more than before.

    Args:
        session: of the capture.
        eager: what warming up found.
        ways: what is known of the sites of the callable.
        now: whether to do it. Else the graphs stay as they are, and it is noted whether the device
            could decide in a new tree.
    """
    recording = eager.recording
    if recording.compiles or recording.collectives or not recording.breaks():
        return
    lowering, reads = Lowering(eager.recording.breaks(), ways), session.reads
    if not lowering.is_empty:
        session.rewind()
        with session.pool.on_stream(), lowering.noting():
            session.run()
        session.rewind()
        session.ran = lowering.ran
        lowering.drop_unknown()
    session.could_be_lowered = not (now or lowering.is_empty)
    if not now:
        return
    session.repeats = False  # `is` is looked for in each frame
    session.lowering = lowering
    found: Recording | None = None
    while not lowering.is_empty:
        failure: CaptureError | None = None
        try:
            with session.pool.on_stream():
                found, _ = session.record_again()
        except CaptureError as error:
            failure = error
        if lowering.learn():  # also if the function has caught the error
            found = None
            continue
        if failure is not None:
            found = None
            lowering.why["the function as a whole"] = str(failure)
        break
    if found is None or len(found.breaks()) > len(eager.recording.breaks()):
        session.lowering, session.reads = None, reads
    else:
        if any(event.folds and not event.is_of_the_host for event in found.events):
            with session.pool.on_stream():
                confirm(session, found)
        eager.recording = found
    eager.not_lowered = [f"{where}: the host decides: {why}" for where, why in lowering.why.items()]


def capture_with_fallbacks(
    session: CaptureSession, eager: WarmedUp, branching: bool, root: Segment | None
) -> Traced:
    """Capture as the function runs, or by folding and branching.

    An operator that fails in a capture becomes a branch.

    Args:
        session: of the capture.
        eager: what warming up found.
        branching: whether it may become several graphs.
        root: the tree that it becomes a path of; ``None``: it is a tree of its own.

    Raises:
        CaptureError: it cannot be captured.
    """
    compiled = session.target.compiled
    # The emulated device captures under modes, where nothing runs compiled.
    if session.pool.device.kind != "emulated" and (compiled or eager.recording.compiles):
        try:
            return _trace_compiled(session, eager)
        except Failed as failed:
            session.pool.renew_pool()
            if compiled or isinstance(failed.__cause__, torch.OutOfMemoryError):
                raise failed.explained from failed.__cause__
            session.not_compiled = str(failed.explained)
    first: Failed | None = None
    for _ in range(_MAX_FORCED):
        # Whether graphs are cut at collectives was decided before.
        breaks = [e for e in eager.recording.breaks() if e.point.rule != "collective"]
        if breaks and not branching:
            raise _refused_branch(breaks[0], eager.recording.decisions)
        try:
            return trace_lightly(session, eager.recording, root)
        except Failed as failed:
            session.pool.renew_pool()
            # What is cut at one operator more goes another way than the tree so far: no reason.
            first = failed if first is None or root is None else first
            if failed.operator is None or not branching or failed.operator in session.forced:
                raise first.explained from first.__cause__
            session.forced.add(failed.operator)
        session.inputs[:] = session.given
        with session.pool.on_stream():
            eager.recording, _ = session.record_again()
    raise CaptureError(f"these operators cannot be captured: {', '.join(sorted(session.forced))}")


def _refused_branch(event: Event, decisions: list[str]) -> CaptureError:
    place = f"{event.where}: "
    decided = (line.removeprefix(place) for line in decisions if line.startswith(place))
    more = ", and ".join(('branching="off"', *islice(decided, 1)))
    return explain(event.point.rule, event.point.what, event.where, f"{more}.")


def trace_lightly(
    session: CaptureSession, recording: Recording, root: Segment | None = None
) -> Traced:
    """Capture with as little of us in between as will do.

    Args:
        session: of the capture.
        recording: what to follow.
        root: the tree that it becomes a path of. Default: it is a tree of its own.

    Raises:
        Failed: it cannot be captured in this way.
    """
    for only in _lighter_ways(session, recording) if root is None else ():
        session.rewind()
        try:
            return session.trace(None if only is None else recording, only=only)
        except Failed as failed:
            if failed.cause_is_final and not only:
                raise
            log(logging.DEBUG, "captured_again", because=str(failed.explained))
            session.pool.renew_pool()
    session.rewind()
    return session.trace(recording, root=root)


def _trace_compiled(session: CaptureSession, eager: WarmedUp) -> Traced:
    """Capture what is compiled, which reads what it read in the last warm-up run."""
    for event in eager.recording.breaks():
        cut = f"the host takes over between two graphs: {report_line(event)}"
        raise Failed(None, CaptureError(cut), final=True)
    session.rewind()
    return session.trace(around=eager.reads.repeated)


def _lighter_ways(session: CaptureSession, recording: Recording) -> Iterator[frozenset[int] | None]:
    """In which calls to see operations in a capture that may do; ``None``: in none."""
    if recording.breaks():
        return
    if not recording.events and not session.not_compiled:
        yield None
    calls = recording.calls_that_fold()
    if calls:
        yield calls
