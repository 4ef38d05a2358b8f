"""The report of ``trace``: what host and device do in a call, for each way, as text and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..interpose.source import Source
from ..tables import as_json, counted, filled, in_bytes, table
from .report import Status, called, made_of
from .timing import Percentiles

__all__ = [
    "SCHEMA",
    "Copies",
    "Gaps",
    "HotKernel",
    "HotOperator",
    "Span",
    "TraceReport",
    "WayTrace",
]

SCHEMA = "gfxgraph.trace/1"

_SHOWN = 12
_NAME = 52


@dataclass(frozen=True)
class Gaps:
    """Times in a call in which the device waits between two kernels or copies.

    Attributes:
        count: how many there are in a call.
        median_us: the median of all.
        total_us: their sum, of a call.
        longest_us: the longest.
        before_us: from the begin of a call to its first kernel or copy; not one of them.
    """

    count: float
    median_us: float
    total_us: float
    longest_us: float
    before_us: float


@dataclass(frozen=True)
class Copies:
    """Copies of one kind from one line.

    Attributes:
        direction: ``"HtoD"``, ``"DtoH"``, ``"DtoD"``, ``"PtoP"``, ``"HtoH"``; ``""``: not said.
        memory: ``"pageable"`` or ``"pinned"`` memory of the host; ``""``: not said.
        calls: how many there are in a call of the function.
        bytes: that they copy in a call of the function.
        total_us: that they take in a call of the function.
        in_graph: whether the launch of a graph started them.
        where: the user's line; ``None``: not known.
    """

    direction: str
    memory: str
    calls: float
    bytes: float
    total_us: float
    in_graph: bool
    where: Source | None


@dataclass(frozen=True)
class HotKernel:
    """A kernel from one line.

    Attributes:
        name: as the profiler gives it.
        calls: how often it runs in a call of the function.
        total_us: that it takes in a call of the function.
        share: the share of ``kernels_us`` of the way.
        in_graph: whether the launch of a graph started it.
        where: the user's line; ``None``: not known, see ``WayTrace.lines``.
    """

    name: str
    calls: float
    total_us: float
    share: float
    in_graph: bool
    where: Source | None


@dataclass(frozen=True)
class HotOperator:
    """An operator that eager execution calls at one line.

    Attributes:
        name: such as ``"aten.addmm.default"``.
        calls: how often it is called in a call of the function.
        host_us: that it takes on the host in a call of the function.
        launches: whether it gives the device work.
        where: the user's line; ``None``: there is none.
    """

    name: str
    calls: int
    host_us: float
    launches: bool
    where: Source | None


@dataclass(frozen=True)
class Span:
    """Work of the device in one call, for a drawing.

    Attributes:
        start_us: from the begin of the call.
        us: how long.
        stream: device and stream.
        kind: ``"kernel"``, ``"copy"``, ``"fill"``; ``"several"``: what lay close was joined.
        name: of the kernel or the copy; of the first one, where several were joined.
        count: how many were joined.
    """

    start_us: float
    us: float
    stream: str
    kind: str
    name: str
    count: int = 1


@dataclass(frozen=True)
class WayTrace:
    """What host and device do in a call of one way. Numbers are of one call, on average.

    Attributes:
        name: ``"eager"`` or ``"graph"``.
        status: ``"ok"``, or why it was not traced; see :class:`WayReport`.
        note: the reason, where the status is another; else ``""``.
        end_to_end_us: until the device is done, without a profiler.
        host_us: until a call returns, without a profiler.
        calls: how many calls were traced.
        traced_us: until the device is done, in the trace. A profiler makes calls slower.
        busy_us: in which at least one kernel, copy or fill ran.
        kernels_us: the sum of the times of all of them, as the profiler gives them.
        idle: the share of ``end_to_end_us.p50`` in which the device does nothing.
        traced_idle: the same of ``traced_us``.
        kernels: how many kernels, copies and fills ran.
        launches: calls of the runtime that gave the device work. A graph is one.
        graph_launches: those of graphs; without a GPU the replays of emulated graphs.
        gaps: when the device waits.
        copies: copies by direction, memory and line; the longest first.
        hot: kernels by name and line; the longest first, at most 40.
        lines: for how many kernels and copies no line is known, and why; ``""``: for none.
        timeline: the device in the call of median length, at most 2,000 intervals.
    """

    name: str
    status: Status
    note: str = ""
    end_to_end_us: Percentiles | None = None
    host_us: Percentiles | None = None
    calls: int = 0
    traced_us: float | None = None
    busy_us: float | None = None
    kernels_us: float | None = None
    idle: float | None = None
    traced_idle: float | None = None
    kernels: float | None = None
    launches: float | None = None
    graph_launches: float | None = None
    gaps: Gaps | None = None
    copies: tuple[Copies, ...] = ()
    hot: tuple[HotKernel, ...] = ()
    lines: str = ""
    timeline: tuple[Span, ...] = ()


@dataclass(frozen=True)
class TraceReport:
    """The result of :func:`gfxgraph.trace`.

    Attributes:
        name: the function.
        arguments: the arguments, in words.
        device: name of the device.
        emulated: whether there is no GPU, so that nothing is known of a device.
        torch: version of torch.
        gfxgraph: version of gfxgraph.
        python: version of Python.
        seconds: that calls were timed for without a profiler.
        changes_state: whether the function writes to its arguments or outside; that was put back
            before each call.
        speedup: how many times as fast as eager the graph is, end to end; ``None``: no graph.
        ways: eager and graph.
        operators: what eager execution calls, by operator and line; the longest on the host first,
            at most 40. Measured with each operation marked, which makes them slower.
        operations: how many operators of a call give the device work.
        chrome: the file of the trace; ``""``: none was written.
        commands: name of a tool -> a command that shows more; from the command line only.
    """

    name: str
    arguments: tuple[str, ...]
    device: str
    emulated: bool
    torch: str
    gfxgraph: str
    python: str
    seconds: float
    changes_state: bool
    speedup: float | None
    ways: tuple[WayTrace, ...]
    operators: tuple[HotOperator, ...]
    operations: int
    chrome: str = ""
    commands: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> WayTrace:
        for way in self.ways:
            if way.name == name:
                return way
        raise KeyError(name)

    @property
    def verdict(self) -> str:
        """What a graph takes away: one or two sentences."""
        eager, graph = self["eager"], self["graph"]
        if graph.status == "eager":
            gain = f"There is no graph: {graph.note.rstrip('.')}."
        elif graph.status != "ok":
            gain = f"The graph {graph.status}: {graph.note.rstrip('.')}."
        elif self.emulated or graph.launches is None:
            gain = f"A replay of the graph is {_launches(graph.graph_launches or 1)}."
        else:
            gain = (
                f"With the graph: {_launches(graph.launches)}, idle for {_share(graph.idle)} of a "
                f"call, {self.speedup or 1:.2f} times as fast."
            )
        if not eager.calls:
            return (
                "The calls were made in ranges for another profiler, such as gfxgraph eager call "
                "1. Nothing was traced here."
            )
        if self.emulated:
            return (
                "No GPU here: this trace shows operators, their lines and the time of the host, "
                "and nothing of a device. On a GPU eager would launch the kernels of "
                f"{counted(self.operations, 'operator')} one by one. {gain}"
            )
        if eager.busy_us is None:
            return (
                "torch.profiler saw no work of the GPU. The function may use none; or another "
                "profiler holds CUPTI or roctracer."
            )
        return (
            f"Eager: {_launches(eager.launches)}, and the device is idle for {_share(eager.idle)} "
            f"of a call. {gain}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data; docs/trace.md has its fields."""
        data: dict[str, Any] = _with_text(asdict(self))
        return {"schema": SCHEMA, "verdict": self.verdict, **data}

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON, also written to the file ``path`` if there is one.

        Raises:
            ArgumentError: the file cannot be written.
        """
        try:
            return as_json(self.to_dict(), path)
        except OSError as error:
            raise ArgumentError(f"trace: the report cannot be written: {error}") from error

    @classmethod
    def from_json(cls, path: str | Path) -> TraceReport:
        """A report that :meth:`to_json` has written.

        Raises:
            ArgumentError: the file cannot be read, or is no report of ``trace``.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ArgumentError(f"{path}: cannot be read as a report of trace: {error}") from error
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema != SCHEMA:
            raise ArgumentError(
                f"{path}: expected a report of trace, whose schema is {SCHEMA!r}, not {schema!r}."
            )
        try:
            parts = {
                "arguments": tuple(data["arguments"]),
                "ways": tuple(map(_way, data["ways"])),
                "operators": _rows(HotOperator, data["operators"]),
            }
            report = made_of(cls, {**data, **parts})
            report["eager"], report["graph"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"{path}: a report of trace, but damaged: {error!r}") from error
        return report

    def __str__(self) -> str:
        lines = [filled(called(self.name, self.arguments)), filled(self.verdict)]
        is_traced = any(way.calls for way in self.ways)
        lines += [f"{self.device}, torch {self.torch}", ""]
        heads = ("way", "end to end us", "host us", "traced us", "busy us", "kernels us", "idle")
        lines += table((*heads, "traced", "launches", "graphs"), map(_times, self.ways))
        lines += [filled(f"{w.name}: {w.status}: {w.note}") for w in self.ways if w.note]
        if any(way.gaps for way in self.ways):
            waits = ("gaps of a call", "count", "median us", "total us", "longest us", "before us")
            lines += ["", *table(waits, (_waits(w) for w in self.ways if w.gaps))]
        for way in self.ways:
            lines += _copies(way) + _kernels(way)
        if self.operators and not any(way.hot for way in self.ways):
            lines += self._operators()
        if self.chrome:
            lines += ["", f"Trace: {self.chrome}. Open it in https://ui.perfetto.dev."]
        if self.commands and is_traced:
            where = "On a machine with a GPU these" if self.emulated else "These"
            lines += ["", f"{where} show more:", *(f"  {line}" for line in self.commands.values())]
        return "\n".join(lines)

    def _operators(self) -> list[str]:
        heads = ("operators of eager", "calls", "host us", "launches", "line")
        rows = (
            (
                _short(o.name),
                o.calls,
                f"{o.host_us:.1f}",
                "yes" if o.launches else "no",
                _at(o.where),
            )
            for o in self.operators[:_SHOWN]
        )
        return ["", *table(heads, rows)]


def _launches(count: float | None) -> str:
    return f"{count:g} launch{'' if count == 1 else 'es'}"


def _share(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _times(way: WayTrace) -> tuple[str, ...]:
    return (
        way.name,
        _number(way.end_to_end_us.p50 if way.end_to_end_us else None),
        _number(way.host_us.p50 if way.host_us else None),
        *map(_number, (way.traced_us, way.busy_us, way.kernels_us)),
        *map(_share, (way.idle, way.traced_idle)),
        *("-" if n is None else f"{n:g}" for n in (way.launches, way.graph_launches)),
    )


def _waits(way: WayTrace) -> tuple[str, ...]:
    gaps = way.gaps
    assert gaps is not None
    times = (gaps.median_us, gaps.total_us, gaps.longest_us, gaps.before_us)
    return (way.name, f"{gaps.count:g}", *map(_number, times))


def _copies(way: WayTrace) -> list[str]:
    if not way.copies:
        return []
    heads = (f"copies of {way.name}", "calls", "size", "us", "line")
    rows = (
        (
            f"{one.direction or '?'} {one.memory}".strip(),
            f"{one.calls:g}",
            in_bytes(round(one.bytes)),
            f"{one.total_us:.1f}",
            _line(way, one),
        )
        for one in way.copies[:_SHOWN]
    )
    return ["", *table(heads, rows)]


def _kernels(way: WayTrace) -> list[str]:
    if not way.hot:
        return []
    heads = (f"kernels of {way.name}", "calls", "us", "share", "line")
    rows = (
        (
            _short(one.name),
            f"{one.calls:g}",
            f"{one.total_us:.1f}",
            f"{one.share:.0%}",
            _line(way, one),
        )
        for one in way.hot[:_SHOWN]
    )
    return ["", *table(heads, rows), *([filled(way.lines)] if way.lines else [])]


def _line(way: WayTrace, one: HotKernel | Copies) -> str:
    is_outside = way.name == "graph" and not one.in_graph and one.where is None
    return "outside of it" if is_outside else _at(one.where)


def _short(name: str) -> str:
    name = name.removeprefix("void ").removeprefix("at::native::")
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."


def _at(where: Source | None) -> str:
    return f"{Path(where.file).name}:{where.line}" if where and where.file else "-"


def _with_text(data: Any) -> Any:
    """Plain data whose lines of code have their text."""
    if isinstance(data, Mapping):
        if data.keys() == {"file", "line", "function"}:
            return {**data, "text": Source(**data).text}
        return {key: _with_text(value) for key, value in data.items()}
    return [_with_text(item) for item in data] if isinstance(data, (list, tuple)) else data


def _way(row: Mapping[str, Any]) -> WayTrace:
    times = {
        name: made_of(Percentiles, row[name]) if row[name] else None
        for name in ("end_to_end_us", "host_us")
    }
    parts = {
        "gaps": made_of(Gaps, row["gaps"]) if row["gaps"] else None,
        "copies": _rows(Copies, row["copies"]),
        "hot": _rows(HotKernel, row["hot"]),
        "timeline": _rows(Span, row["timeline"]),
    }
    return made_of(WayTrace, {**row, **times, **parts})


def _rows(kind: type[Any], rows: Iterable[Mapping[str, Any]]) -> tuple[Any, ...]:
    def row(data: Mapping[str, Any]) -> Any:
        where = data.get("where")
        return made_of(kind, {**data, "where": made_of(Source, where) if where else None})

    return tuple(map(row, rows))
