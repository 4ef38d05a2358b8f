"""Reads what ``gfxgraph trace`` and ``gfxgraph inspect`` write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ..tables import counted, in_bytes
from .charts import Period, Range, periods, ranges
from .facts import facts_of
from .parts import Chart, Flag, Gain, Level, Part, Table, number, percent

__all__ = ["read_inspect", "read_trace"]

_PIXELS = 700  # what lies closer together than one of them is drawn as one
_STREAMS = 8  # of a way; more are in the file


def read_trace(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for a report of ``trace``."""
    facts = facts_of(data, known)
    name = f"{data['name']}({', '.join(data['arguments'])})"
    ways, emulated = list(data["ways"]), data["emulated"]
    levels: dict[str, Level] = {"differs": "error", "raises": "error", "eager": "warning"}
    flags = tuple(
        Flag(levels.get(way["status"], "warning"), f"{name}: {way['name']} {way['status']}.",
             way["note"])
        for way in ways
        if way["status"] != "ok"
    )  # fmt: skip
    gains: tuple[Gain, ...] = ()
    if data["speedup"] and not emulated:
        gains = (Gain(name, "graph", data["speedup"], verdict=data["verdict"]),)
    level: Level = "note" if emulated else "ok"
    for flag in flags:
        level = flag.level if level != "error" else level
    return [
        Part(
            "timelines",
            name,
            data["verdict"],
            level,
            facts,
            tuple(_charts(ways)),
            (_ways(ways), *_kernels(ways), *_copies(ways), *_operators(data["operators"])),
            flags,
            gains,
            (),
            data["device"],
            emulated,
        )
    ]


def read_inspect(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for a report of ``inspect``: how many nodes of each type, and of each line."""
    facts = facts_of(data, known)
    graphs = list(data["graphs"])
    tables = []
    for graph in graphs:
        nodes = Counter(
            (_place(node), node["source"], node["name"] or node["type"]) for node in graph["nodes"]
        )
        rows = tuple(
            (number(count), what, f"{place}\n{source}".strip())
            for (place, source, what), count in nodes.items()
        )
        title = f"{graph['name']}: {counted(len(graph['nodes']), 'node')}"
        tables.append(Table(("nodes", "what", "where"), rows, title, folded=True))
    types = Counter(node["type"] for graph in graphs for node in graph["nodes"])
    words = ", ".join(f"{kind} {number(count)}" for kind, count in types.most_common())
    sentence = f"{counted(len(graphs), 'graph')}. Nodes: {words or 'none'}."
    return [
        Part("timelines", f"{data['name']}: nodes", sentence, None, facts, (), tuple(tables), (),
             (), (), data["device"], data["emulated"])
    ]  # fmt: skip


def _charts(ways: list[Mapping[str, Any]]) -> Iterator[Chart]:
    found = [period for way in ways for period in _periods(way)]
    if found:
        yield periods("The device in one call", found, "µs from the begin of the call")
    timed = [way for way in ways if way["end_to_end_us"]]
    if timed:
        rows = [Range(way["name"], *_percentiles(way["end_to_end_us"])) for way in timed]
        yield ranges("Latency of a call, end to end, without a profiler", rows, "µs")


def _percentiles(found: Mapping[str, float]) -> tuple[float, float, float]:
    return found["p50"], found["p95"], found["p99"]


def _periods(way: Mapping[str, Any]) -> Iterator[Period]:
    """What the device does in a call of one way, a row for each stream."""
    spans = sorted(way["timeline"], key=lambda span: span["start_us"])
    if not spans:
        return
    least = max(span["start_us"] + span["us"] for span in spans) / _PIXELS
    streams = list(dict.fromkeys(span["stream"] for span in spans))[:_STREAMS]
    for stream in streams:
        name = way["name"] if len(streams) == 1 else f"{way['name']}, stream {stream}"
        last: Period | None = None
        for span in (one for one in spans if one["stream"] == stream):
            start, end = span["start_us"], span["start_us"] + span["us"]
            if last and last.kind == span["kind"] and start - last.end < least:
                last = last._replace(end=max(end, last.end))
                continue
            if last:
                yield last
            last = Period(name, span["kind"], start, end)
        if last:
            yield last


def _ways(ways: list[Mapping[str, Any]]) -> Table:
    def row(way: Mapping[str, Any]) -> tuple[str, ...]:
        total, host, gaps = way["end_to_end_us"] or {}, way["host_us"] or {}, way["gaps"] or {}
        return (
            way["name"],
            way["status"],
            *(number(total.get(p)) for p in ("p50", "p95", "p99")),
            number(host.get("p50")),
            number(way["busy_us"]),
            percent(way["idle"]),
            number(way["kernels"]),
            number(way["launches"]),
            number(gaps.get("count")),
            number(gaps.get("total_us")),
            number(gaps.get("longest_us")),
            way["note"] or way["lines"],
        )

    heads = ("way", "status", "end to end µs", "p95 µs", "p99 µs", "host µs", "busy µs", "idle")
    more = ("kernels", "launches", "gaps", "gaps µs", "longest gap µs", "note")
    return Table((*heads, *more), tuple(map(row, ways)), "Times of a call", folded=True)


def _kernels(ways: list[Mapping[str, Any]]) -> Iterator[Table]:
    rows = tuple(
        (
            way["name"],
            one["name"],
            number(one["calls"]),
            number(one["total_us"]),
            percent(one["share"]),
            _place(one["where"], "text"),
        )
        for way in ways
        for one in way["hot"]
    )
    if rows:
        heads = ("way", "kernel", "calls", "µs", "share", "where")
        yield Table(heads, rows, "Kernels", folded=True)


def _copies(ways: list[Mapping[str, Any]]) -> Iterator[Table]:
    rows = tuple(
        (
            way["name"],
            f"{one['direction']} {one['memory']}".strip(),
            number(one["calls"]),
            in_bytes(int(one["bytes"])),
            number(one["total_us"]),
            _place(one["where"], "text"),
        )
        for way in ways
        for one in way["copies"]
    )
    if rows:
        yield Table(("way", "copy", "calls", "size", "µs", "where"), rows, "Copies", folded=True)


def _operators(found: list[Mapping[str, Any]]) -> Iterator[Table]:
    rows = tuple(
        (one["name"], number(one["calls"]), number(one["host_us"]), _place(one["where"], "text"))
        for one in found
    )
    if rows:
        heads = ("operator", "calls", "host µs", "where")
        yield Table(heads, rows, "Operators of eager", folded=True)


def _place(where: Mapping[str, Any] | None, source: str = "") -> str:
    """The file and the line of a node or of a kernel, and the text of the line."""
    if not where or not where["file"]:
        return "-"
    text = f"\n{where[source]}" if source and where.get(source) else ""
    return f"{where['file']}:{where['line']}{text}"
