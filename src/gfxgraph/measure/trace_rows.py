"""The rows of a report of ``trace``, and how they are printed."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..interpose.source import Source
from ..tables import filled, in_bytes, table
from .report import Status, made_of
from .timing import Percentiles

__all__ = [
    "SHOWN",
    "Copies",
    "Gaps",
    "HotKernel",
    "HotOperator",
    "Line",
    "Span",
    "WayTrace",
    "at",
    "copies_table",
    "kernels_table",
    "rows_from",
    "share",
    "short",
    "times_of",
    "waits_of",
    "way_from",
]

SHOWN = 12
"""Rows of a printed table."""
_NAME = 52


@dataclass(frozen=True)
class Line:
    """A line of the user's code, with the text that it had in the run.

    Attributes:
        file: its path.
        line: its number, from 1.
        function: the function that it is in.
        text: the line itself, without indentation; ``""`` where its file cannot be read.
    """

    file: str
    line: int
    function: str
    text: str

    @classmethod
    def of(cls, source: Source | None) -> Line | None:
        """The line as it is now; ``None`` where it is not known."""
        if source is None or source.file is None:
            return None
        linecache.checkcache(source.file)  # it may hold what was there before a reload
        return cls(source.file, source.line, source.function, source.text)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}, in {self.function}" + (self.text and f": {self.text}")


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
    where: Line | None


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
    where: Line | None


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
    where: Line | None


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


def share(part: float | None) -> str:
    """A share in percent; ``-`` for none."""
    return "-" if part is None else f"{part:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def times_of(way: WayTrace) -> tuple[str, ...]:
    """The cells of a row of times."""
    return (
        way.name,
        _number(way.end_to_end_us.p50 if way.end_to_end_us else None),
        _number(way.host_us.p50 if way.host_us else None),
        *map(_number, (way.traced_us, way.busy_us, way.kernels_us)),
        *map(share, (way.idle, way.traced_idle)),
        *("-" if n is None else f"{n:g}" for n in (way.launches, way.graph_launches)),
    )


def waits_of(way: WayTrace) -> tuple[str, ...]:
    """The cells of a row of gaps."""
    gaps = way.gaps
    assert gaps is not None
    times = (gaps.median_us, gaps.total_us, gaps.longest_us, gaps.before_us)
    return (way.name, f"{gaps.count:g}", *map(_number, times))


def copies_table(way: WayTrace) -> list[str]:
    """The lines of the table of copies; none without any."""
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
        for one in way.copies[:SHOWN]
    )
    return ["", *table(heads, rows)]


def kernels_table(way: WayTrace) -> list[str]:
    """The lines of the table of kernels; none without any."""
    if not way.hot:
        return []
    heads = (f"kernels of {way.name}", "calls", "us", "share", "line")
    rows = (
        (
            short(one.name),
            f"{one.calls:g}",
            f"{one.total_us:.1f}",
            f"{one.share:.0%}",
            _line(way, one),
        )
        for one in way.hot[:SHOWN]
    )
    return ["", *table(heads, rows), *([filled(way.lines)] if way.lines else [])]


def _line(way: WayTrace, one: HotKernel | Copies) -> str:
    is_outside = way.name == "graph" and not one.in_graph and one.where is None
    return "outside of it" if is_outside else at(one.where)


def short(name: str) -> str:
    """The name of a kernel, cut to what a table has room for."""
    name = name.removeprefix("void ").removeprefix("at::native::")
    return name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."


def at(where: Line | None) -> str:
    """File and line."""
    return f"{Path(where.file).name}:{where.line}" if where else "-"


def way_from(row: Mapping[str, Any]) -> WayTrace:
    """A row from its plain data."""
    times = {
        name: made_of(Percentiles, row[name]) if row[name] else None
        for name in ("end_to_end_us", "host_us")
    }
    parts = {
        "gaps": made_of(Gaps, row["gaps"]) if row["gaps"] else None,
        "copies": rows_from(Copies, row["copies"]),
        "hot": rows_from(HotKernel, row["hot"]),
        "timeline": rows_from(Span, row["timeline"]),
    }
    return made_of(WayTrace, {**row, **times, **parts})


def rows_from(kind: type[Any], rows: Iterable[Mapping[str, Any]]) -> tuple[Any, ...]:
    """Rows from their plain data."""

    def row(data: Mapping[str, Any]) -> Any:
        where = data.get("where")
        return made_of(kind, {**data, "where": made_of(Line, where) if where else None})

    return tuple(map(row, rows))
