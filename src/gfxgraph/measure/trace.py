"""``trace``: what host and device do in a call, eagerly and as a graph, side by side."""

from __future__ import annotations

import math
import platform
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from ..device import current_device
from ..device.emulated import EmulatedGraph
from ..errors import ArgumentError
from ..interpose.source import Source
from . import chrome as chrome_file
from .activity import Activity
from .bench import Progress, Run, checked, measuring
from .kineto import EXACT, Call, Event, Work, calls_in, profiled, require_no_profiler
from .lines import Operation, Recorded, lines_of, recorded
from .report import WayReport
from .trace_report import TraceReport
from .trace_rows import Copies, Gaps, HotKernel, HotOperator, Line, Span, WayTrace
from .ways import WAYS, Function

__all__ = ["trace"]

_CALLS = 3
_HOTTEST = 40
_SPANS = 2000


def trace(
    fn: Function,
    /,
    *args: Any,
    seconds: float = 2.0,
    chrome: str | Path | None = None,
    mark: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    progress: Progress = lambda what, share: None,
) -> TraceReport:
    """Trace calls of ``fn`` with torch.profiler, eagerly and as a graph.

    Both are compared and timed first as in :func:`gfxgraph.bench`, without a profiler. Then three
    calls of each are traced, and one more eager call has its operations marked: from it come the
    user's lines. A line that does not follow from it is left out.

    Everything runs under ``torch.no_grad()``, on copies of the arguments. What ``fn`` changes
    outside is put back before each call and at the end. Traced calls draw the same random numbers.

    Args:
        fn: the function, module or method. If it is graphed, that is the way ``"graph"``.
        *args: its arguments, with at least one tensor (here or in ``kwargs``).
        seconds: how long to time calls without a profiler, both ways together. Default 2. At least
            6 rounds are made.
        chrome: the file for a trace that Perfetto and chrome://tracing open, with a process for
            each way. Default: none.
        mark: make the calls in NVTX or roctx ranges instead of tracing them, for another profiler
            to see, such as nsys or rocprofv3. Default ``False``.
        kwargs: keyword arguments of ``fn``.
        progress: called with what is being done and with the share that is over.

    Returns:
        The report: ``report["eager"].idle``, ``report["graph"].hot[0].where``; printed, it is a
        text. Without a GPU it has operators and no times of a device.

    Raises:
        ArgumentError: an argument is not of the kind that is taken, or a profiler runs already.
        DeviceError: the trace of torch.profiler cannot be read.
        CaptureError: ``fn`` issues a collective in a group of several ranks; nothing was sent.
        Exception: any error of ``fn`` itself. An error of the graph is in its row.
    """
    if mark and chrome is not None:
        raise ArgumentError(
            "trace(mark=True, chrome=...): nothing is traced with mark; expected one."
        )
    if mark and current_device().kind == "emulated":
        raise ArgumentError("trace(mark=True): there is no GPU that another profiler could see.")
    if not mark:
        require_no_profiler()
    path = None if chrome is None else chrome_file.require_writable(chrome, "trace(chrome=)")
    given = checked("trace", fn, args, seconds, kwargs, progress)
    ways = [WAYS["eager"], WAYS["graph"]]
    with measuring(fn, given, ways, seconds, progress) as run:
        seen = _Seen(run.is_emulated)
        report = run.report(_marked if mark else seen)
        known = None if mark else _known(run, progress)
    found = [_Way(way, seen.calls.get(way.name, []), known) for way in report.ways]
    if path is not None:
        about = {"schema": "gfxgraph.trace.chrome/1", "function": report.name}
        about |= {"device": report.device, "torch": report.torch, "gfxgraph": report.gfxgraph}
        traced = {name: (seen.events[name], seen.calls[name]) for name in seen.calls}
        lines = {key: line for way in found for key, line in way.lines_of_events()}
        chrome_file.write(path, traced, lines, about)
    gain = report["graph"].speedup
    operations = [] if known is None else known.eager.operations
    return TraceReport(
        report.name,
        report.arguments,
        report.device,
        report.emulated,
        report.torch,
        report.gfxgraph,
        platform.python_version(),
        report.seconds,
        report.changes_state,
        None if gain is None else gain.median,
        tuple(way.report(seen.replays.get(way.name)) for way in found),
        () if known is None else _operators(known.eager),
        sum(operation.launches for operation in operations),
        "" if path is None else str(chrome),
    )


class _Seen:
    """Traces calls of each way; to be called by :meth:`Run.report`."""

    def __init__(self, is_emulated: bool) -> None:
        self._is_emulated = is_emulated
        self.events: dict[str, list[Event]] = {}
        self.calls: dict[str, list[Call]] = {}
        #: Name of a way -> replays of emulated graphs in a call.
        self.replays: dict[str, float] = {}

    def __call__(
        self,
        name: str,
        call: Callable[[], Any],
        prepare: Callable[[], object],
        synchronize: Callable[[], object],
    ) -> Activity | None:
        before = EmulatedGraph.replays
        events = profiled(call, prepare, synchronize, _CALLS, not self._is_emulated)
        calls = calls_in(events)
        self.events[name], self.calls[name] = events, calls
        if self._is_emulated:
            replays = EmulatedGraph.replays - before
            self.replays[name] = replays / (_CALLS + 1)
            return None
        return _activity(calls) if any(call.work for call in calls) else None


def _marked(
    name: str,
    call: Callable[[], Any],
    prepare: Callable[[], object],
    synchronize: Callable[[], object],
) -> None:
    """Make calls in ranges that other profilers see."""
    for n in range(_CALLS):
        prepare()
        synchronize()
        torch.cuda.nvtx.range_push(f"gfxgraph {name} call {n + 1}")
        try:
            call()
            synchronize()
        finally:
            torch.cuda.nvtx.range_pop()


def _activity(calls: Sequence[Call]) -> Activity:
    """The work of the device for one call, on average; see :func:`activity`."""
    times = len(calls)
    by_name: dict[str, float] = defaultdict(float)
    for call in calls:
        for work in call.work:
            by_name[work.name] += work.us
    hottest = sorted(by_name.items(), key=lambda item: -item[1])[:8]
    return Activity(
        busy_us=round(sum(end - start for c in calls for start, end in c.busy()) / times, 3),
        kernels_us=round(sum(by_name.values()) / times, 3),
        kernels=round(sum(len(call.work) for call in calls) / times, 1),
        launches=round(sum(call.launches for call in calls) / times, 1),
        top={name: round(us / times, 3) for name, us in hottest},
    )


@dataclass(frozen=True)
class _Known:
    """Marked eager runs.

    Attributes:
        eager: of the function as it runs eagerly.
        captured: as it runs in a capture; another one only if it asks whether there is one.
    """

    eager: Recorded
    captured: Recorded


def _known(run: Run, progress: Progress) -> _Known:
    progress("lines", 1.0)
    call = run.calls_of(run.state.eager)
    kind = current_device().type

    def once(in_capture: bool) -> Recorded:
        on_gpu = not run.is_emulated
        return recorded(call, call.prepare_alike, run.synchronize, kind, on_gpu, in_capture)

    captured = once(True)
    return _Known(once(False) if captured.asks_capturing else captured, captured)


class _Way:
    """The calls of one way, and the lines of their work."""

    def __init__(self, row: WayReport, calls: list[Call], known: _Known | None) -> None:
        self.name = row.name
        self._row, self._calls = row, calls
        self._lines: list[tuple[Work, Source | None]] = []
        if known is None:
            return
        for call in calls:
            work = call.work
            if row.name == "eager":
                self._lines += zip(work, lines_of(work, known.eager.work), strict=True)
                continue
            inside = [one for one in work if one.in_graph]
            self._lines += zip(inside, lines_of(inside, known.captured.work), strict=True)
            self._lines += [(one, None) for one in work if not one.in_graph]

    def lines_of_events(self) -> Iterator[tuple[int, Source]]:
        """``id`` of each event whose line is known, and the line."""
        return ((id(work.event), line) for work, line in self._lines if line is not None)

    def report(self, replays: float | None) -> WayTrace:
        """The row of this way; ``replays`` of emulated graphs in a call of it."""
        row = self._row
        found = WayTrace(
            row.name,
            row.status,
            row.note,
            row.end_to_end_us,
            row.host_us,
            len(self._calls),
            graph_launches=replays,
        )
        seen, calls = row.activity, self._calls
        if seen is None or not calls:
            return found
        times = len(calls)
        traced = sum(call.us for call in calls) / times
        return replace(
            found,
            traced_us=round(traced, 3),
            busy_us=seen.busy_us,
            kernels_us=seen.kernels_us,
            idle=row.idle,
            traced_idle=round(max(0.0, 1 - seen.busy_us / traced), 4),
            kernels=seen.kernels,
            launches=seen.launches,
            graph_launches=round(sum(call.graph_launches for call in calls) / times, 1),
            gaps=_gaps(calls),
            copies=self._copies(),
            hot=self._hot(seen.kernels_us),
            lines=self._without_lines(),
            timeline=_timeline(sorted(calls, key=lambda call: call.us)[times // 2]),
        )

    def _hot(self, total: float) -> tuple[HotKernel, ...]:
        groups: dict[tuple[str, bool, Source | None], list[float]] = defaultdict(list)
        for work, line in self._lines:
            if work.kind == "kernel":
                groups[work.name, work.in_graph, line].append(work.us)
        times = len(self._calls)
        rows = [
            HotKernel(
                name,
                round(len(took) / times, 2),
                round(sum(took) / times, 3),
                round(sum(took) / times / total, 4) if total else 0.0,
                in_graph,
                Line.of(line),
            )
            for (name, in_graph, line), took in groups.items()
        ]
        return tuple(sorted(rows, key=lambda one: -one.total_us)[:_HOTTEST])

    def _copies(self) -> tuple[Copies, ...]:
        groups: dict[tuple[str, str, bool, Source | None], list[Work]] = defaultdict(list)
        for work, line in self._lines:
            if work.kind == "copy":
                groups[work.direction, work.memory, work.in_graph, line].append(work)
        times = len(self._calls)
        rows = [
            Copies(
                direction,
                memory,
                round(len(copies) / times, 2),
                round(sum(one.bytes for one in copies) / times, 1),
                round(sum(one.us for one in copies) / times, 3),
                in_graph,
                Line.of(line),
            )
            for (direction, memory, in_graph, line), copies in groups.items()
        ]
        return tuple(sorted(rows, key=lambda one: -one.total_us))

    def _without_lines(self) -> str:
        is_eager = self._row.name == "eager"
        ours = [line for work, line in self._lines if is_eager or work.in_graph]
        missing = ours.count(None)
        if not missing:
            return ""
        return (
            f"Of {missing} of {len(ours)} kernels and copies no line is known: a marked eager run "
            "did not launch the same ones in the same order, or launched them outside of any "
            "operator of torch; or torch alone called the operator."
        )


def _gaps(calls: Sequence[Call]) -> Gaps:
    gaps, before = [], []
    for call in calls:
        busy = call.busy()
        pauses = (later[0] - earlier[1] for earlier, later in pairwise(busy))
        gaps += [pause for pause in pauses if pause > EXACT]
        before += [busy[0][0] - call.start_us] if busy else []
    return Gaps(
        round(len(gaps) / len(calls), 1),
        round(statistics.median(gaps), 3) if gaps else 0.0,
        round(sum(gaps) / len(calls), 3),
        round(max(gaps, default=0.0), 3),
        round(statistics.median(before), 3) if before else 0.0,
    )


def _timeline(call: Call) -> tuple[Span, ...]:
    """The work of a call; where there is too much, what lies closest on its stream is joined."""
    by_stream: dict[str, list[Work]] = defaultdict(list)
    for work in sorted(call.work, key=lambda work: work.start_us):
        by_stream[work.stream].append(work)
    gaps = sorted(
        later.start_us - earlier.end_us
        for found in by_stream.values()
        for earlier, later in pairwise(found)
    )
    surplus = len(call.work) - _SPANS
    limit = gaps[surplus - 1] if surplus > 0 else -math.inf
    spans = []
    for stream, found in by_stream.items():
        joined: list[list[Work]] = []
        for work in found:
            if joined and work.start_us - joined[-1][-1].end_us <= limit:
                joined[-1].append(work)
            else:
                joined.append([work])
        for group in joined:
            start, end = group[0].start_us, max(work.end_us for work in group)
            kinds = {work.kind for work in group}
            spans.append(
                Span(
                    round(start - call.start_us, 3),
                    round(end - start, 3),
                    stream,
                    group[0].kind if len(kinds) == 1 else "several",
                    group[0].name,
                    len(group),
                )
            )
    return tuple(sorted(spans, key=lambda span: span.start_us))


def _operators(known: Recorded) -> tuple[HotOperator, ...]:
    took: dict[int, float] = defaultdict(float)
    for mark, _, us in known.call.operators:
        took[mark] += us
    groups: dict[Operation, list[float]] = defaultdict(list)
    for number, operation in enumerate(known.operations):
        groups[operation].append(took[number])
    rows = [
        HotOperator(
            operation.name,
            len(us),
            round(sum(us), 3),
            operation.launches,
            Line.of(operation.where),
        )
        for operation, us in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.host_us)[:_HOTTEST])
