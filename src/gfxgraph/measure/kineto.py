"""Runs calls under torch.profiler, and reads from its trace what each of them does."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

from torch._C._autograd import _profiler_enabled
from torch.profiler import ProfilerActivity, profile, record_function

from ..errors import ArgumentError, DeviceError
from .activity import is_launch, stretches

__all__ = [
    "CALL",
    "EXACT",
    "MARK",
    "RETURNS",
    "Call",
    "Event",
    "Work",
    "calls_in",
    "profiled",
    "require_no_profiler",
]

CALL = "gfxgraph: call"
"""The range of a call until the device is done, in the trace."""
RETURNS = "gfxgraph: until the call returns"
"""The range of the same call on the host."""
MARK = "gfxgraph: operation "
"""With a number behind it: the range of an operation whose line is known."""

EXACT = 0.01
"""Microseconds that two times have to differ by: the clock's large numbers are rounded."""

Event: TypeAlias = "dict[str, Any]"
"""An event of the Trace Event Format, as Kineto writes it."""

Kind = Literal["kernel", "copy", "fill"]

# Source: ActivityType in libkineto, whose names are the categories of events. The same on ROCm.
_ON_DEVICE: dict[str, Kind] = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "fill"}
_RANGE = "user_annotation"
_DIRECTION = re.compile(r"([HDPA])(?:ost|evice)?[tT]o([HDPA])(?=[DHPA(\s]|ost|evice|$)")
_OTHER = (
    "The function starts a torch profiler of its own, which ends the one that traces it: torch has "
    "one at a time. Call it without its profiler."
)


@dataclass(frozen=True)
class Work:
    """A kernel, a copy or a fill that the device ran.

    Attributes:
        name: as the profiler gives it.
        kind: which of the three.
        start_us: its start, on the clock of the trace.
        end_us: its end.
        stream: device and stream.
        bytes: of a copy.
        mark: number of the operation that launched it; ``None``: not known.
        event: its event.
        launch: that of the call of the runtime for it, which all work of a graph shares; ``None``:
            there is none.
    """

    name: str
    kind: Kind
    start_us: float
    end_us: float
    stream: str
    bytes: int
    mark: int | None
    event: Event = field(repr=False, compare=False)
    launch: Event | None = field(repr=False, compare=False)

    @property
    def us(self) -> float:
        """How long it took."""
        return self.end_us - self.start_us

    @property
    def launched_us(self) -> float:
        """When the host called the runtime for it."""
        us: float = (self.launch or self.event)["ts"]
        return us

    @property
    def in_graph(self) -> bool:
        """Whether the launch of a graph started it."""
        return self.launch is not None and "GraphLaunch" in self.launch["name"]

    @property
    def direction(self) -> str:
        """Of a copy: ``"HtoD"``, ``"DtoH"``, ``"DtoD"``, ``"PtoP"``, ``"HtoH"``; else ``""``."""
        found = _DIRECTION.search(self.name) if self.kind == "copy" else None
        return f"{found[1]}to{found[2]}" if found else ""

    @property
    def memory(self) -> str:
        """Of a copy: ``"pageable"`` or ``"pinned"`` memory of the host; ``""``: not said."""
        lower = self.name.lower()
        return next((kind for kind in ("pageable", "pinned") if kind in lower), "")


@dataclass
class Call:
    """One call in the trace.

    Attributes:
        start_us: when it began, on the clock of the trace.
        returns_us: when it returned.
        end_us: when the device was done.
        work: what the device ran for it, in the order of the launches.
        launches: calls of the runtime that gave the device work. A graph is one.
        graph_launches: those of graphs.
        operators: (number of the operation, name, microseconds of the host), where marked.
    """

    start_us: float
    returns_us: float
    end_us: float
    work: list[Work] = field(default_factory=list)
    launches: int = 0
    graph_launches: int = 0
    operators: list[tuple[int, str, float]] = field(default_factory=list)

    @property
    def us(self) -> float:
        """Until the device was done."""
        return self.end_us - self.start_us

    def busy(self) -> list[tuple[float, float]]:
        """When at least one kernel, copy or fill ran: intervals in order, which do not touch."""
        return list(stretches((work.start_us, work.end_us) for work in self.work))


def require_no_profiler() -> None:
    """Check that this thread can start a profiler.

    Raises:
        ArgumentError: one is running.
    """
    if _profiler_enabled():
        raise ArgumentError(
            "A torch profiler is running already, and there can be one only: call this outside of "
            "its block."
        )


def profiled(
    call: Callable[[], Any],
    prepare: Callable[[], object],
    synchronize: Callable[[], object],
    times: int,
    on_gpu: bool,
) -> list[Event]:
    """The events of ``times`` calls, each with the ranges :data:`CALL` and :data:`RETURNS`.

    Args:
        call: makes a call.
        prepare: runs before each, outside of its range.
        synchronize: waits for the device; each call ends with it.
        times: how many calls to make, after one that is not traced.
        on_gpu: whether there is a GPU to trace.

    Raises:
        ArgumentError: a profiler runs in this thread already, or ``call`` starts one; torch has one
            at a time.
        DeviceError: the trace of torch.profiler cannot be read.
        Exception: any error of ``call``; the profiler is stopped.
    """
    require_no_profiler()
    prepare()
    call()
    synchronize()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    was_ended = False
    try:
        with profile(activities=activities) as seen:
            try:
                for _ in range(times):
                    prepare()
                    synchronize()
                    with record_function(CALL):
                        with record_function(RETURNS):
                            call()
                        synchronize()
            finally:
                was_ended = not _profiler_enabled()
    except RuntimeError as error:
        if was_ended:  # then torch 2.8 raises at the end
            raise ArgumentError(_OTHER) from error
        raise
    if was_ended:  # torch has no events, and crashes if it is asked for them
        raise ArgumentError(_OTHER)
    with TemporaryDirectory(prefix="gfxgraph-") as folder:
        path = Path(folder) / "trace.json"
        try:
            seen.export_chrome_trace(str(path))
            # Names of kernels may hold anything.
            text = path.read_text(encoding="utf-8", errors="replace")
            events: list[Event] = json.loads(text, strict=False)["traceEvents"]
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise DeviceError(f"The trace of torch.profiler cannot be read: {error}") from error
    if [event.get("cat") for event in events if event.get("name") == CALL].count(_RANGE) != times:
        raise ArgumentError(_OTHER)
    return events


def calls_in(events: Iterable[Event]) -> list[Call]:
    """The calls in a trace of :func:`profiled`, with the work of the device for each."""
    sorted_out: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X":
            sorted_out[str(event.get("cat", ""))].append(event)
    ranges = sorted_out[_RANGE]
    calls = [Call(e["ts"], _end(e), _end(e)) for e in ranges if e["name"] == CALL]
    calls.sort(key=lambda call: call.start_us)
    starts = [call.start_us for call in calls]

    def call_at(us: float) -> Call | None:
        n = bisect_right(starts, us) - 1
        return calls[n] if n >= 0 and us <= calls[n].end_us else None

    for event in ranges:
        call = call_at(event["ts"]) if event["name"] == RETURNS else None
        if call is not None:
            call.returns_us = _end(event)
    marks = _Marks(event for event in ranges if event["name"].startswith(MARK))
    operators = sorted_out["cpu_op"]
    for event, mark in marks.outermost(operators):
        call = call_at(event["ts"])
        if call is not None:
            call.operators.append((mark, event["name"], event["dur"]))
    runtime: dict[int, Event] = {}
    for category, found in sorted_out.items():
        if not category.endswith(("_runtime", "_driver")):
            continue
        for event in found:
            runtime.setdefault(_args(event).get("correlation", -1), event)
            call = call_at(event["ts"]) if is_launch(event["name"]) else None
            if call is not None:
                call.launches += 1
                call.graph_launches += "GraphLaunch" in event["name"]
    by_id = {
        _args(event)["External id"]: event for event in operators if "External id" in _args(event)
    }
    for category, kind in _ON_DEVICE.items():
        for event in sorted_out[category]:
            given = _args(event)
            launch = runtime.get(given.get("correlation", -1))
            operator = by_id.get(given.get("External id", -1))
            work = _work(event, kind, launch, marks.of(operator, launch))
            call = call_at(work.launched_us)
            if call is not None:
                call.work.append(work)
    for call in calls:
        call.work.sort(key=lambda work: (work.launched_us, work.start_us))
    return calls


def _work(event: Event, kind: Kind, launch: Event | None, mark: int | None) -> Work:
    given = _args(event)
    device = given.get("device", event.get("pid"))
    stream = given.get("stream", event.get("tid"))
    size = _args(launch).get("size", 0) if launch is not None else 0  # of ROCm 6
    return Work(
        event["name"],
        kind,
        event["ts"],
        _end(event),
        f"GPU {device}, stream {stream}",
        int(given.get("bytes", size)),
        mark,
        event,
        launch,
    )


class _Marks:
    """The ranges of operations, by thread."""

    def __init__(self, ranges: Iterable[Event]) -> None:
        self._ranges: dict[Any, list[tuple[float, float, int]]] = defaultdict(list)
        for event in ranges:
            number = event["name"].removeprefix(MARK)
            if number.isdecimal():
                self._ranges[_thread(event)].append((event["ts"], _end(event), int(number)))
        for found in self._ranges.values():
            found.sort()

    def of(self, *events: Event | None) -> int | None:
        """The number of the range that the first of these events lies in that lies in one."""
        for event in events:
            found = None if event is None else self._at(_thread(event), event["ts"])
            if found is not None:
                return found[2]
        return None

    def outermost(self, operators: Sequence[Event]) -> Iterator[tuple[Event, int]]:
        """The operators that lie in a range but in no other operator of it."""
        until: dict[Any, float] = {}
        for event in sorted(operators, key=lambda event: (event["ts"], -event["dur"])):
            thread = _thread(event)
            found = self._at(thread, event["ts"])
            if found is not None and event["ts"] >= until.get(thread, 0.0):
                until[thread] = _end(event)
                yield event, found[2]

    def _at(self, thread: Any, us: float) -> tuple[float, float, int] | None:
        ranges = self._ranges.get(thread, [])
        n = bisect_right(ranges, (us, float("inf"), 0)) - 1
        return ranges[n] if n >= 0 and us <= ranges[n][1] else None


def _end(event: Event) -> float:
    end: float = event["ts"] + event.get("dur", 0)
    return end


def _thread(event: Event) -> tuple[Any, Any]:
    return event.get("pid"), event.get("tid")


def _args(event: Event) -> Mapping[str, Any]:
    args: Mapping[str, Any] = event.get("args") or {}
    return args
