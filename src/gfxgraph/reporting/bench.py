"""Reads what ``gfxgraph bench`` writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..tables import in_bytes
from .charts import Bar, Range, Row, bars, intervals, ranges
from .facts import facts_of
from .parts import Chart, Flag, Gain, Level, Part, Point, Table, number, percent, ratio

__all__ = ["read_bench"]

_UNIT = "times as fast as eager"
_LEVELS: dict[str, Level] = {"ok": "ok", "eager": "warning", "differs": "error", "raises": "error"}


def read_bench(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for a report of ``bench``."""
    facts = facts_of(data, known)
    name = known.get("model") or f"{data['name']}({', '.join(data['arguments'])})"
    emulated = data["emulated"]
    ways = list(data["ways"])
    others = [way for way in ways if way["speedup"] and way["name"] != "eager"]
    gains = [
        Gain(name, way["name"], *_interval(way), data["verdict"])
        for way in others
        if not emulated and way["status"] == "ok"
    ]
    graph = next((gain for gain in gains if gain.way == "graph"), None)
    flags = [*_refused(name, ways)]
    level: Level = "ok"
    if any(way["status"] in ("differs", "raises") for way in ways):
        level = "error"
    elif flags:
        level = "warning"
    if graph and graph.high is not None and graph.high < 1:
        level = "warning" if level == "ok" else level
        text = f"{name}: the graph is slower than eager, {ratio(graph.times)} times as fast."
        flags.append(Flag("warning", text))
    points = [Point(f"{name}: {g.way}", _at(facts), g.times, _UNIT, data["device"]) for g in gains]
    return [
        Part(
            "gains",
            name,
            data["verdict"],
            "note" if emulated and level == "ok" else level,
            facts,
            tuple(_charts(ways, data["traffic"])),
            (_times(ways), _costs(ways), *_kernels(ways), *_sizes(data["traffic"])),
            tuple(flags),
            tuple(gains),
            tuple(points),
            data["device"],
            emulated,
        )
    ]


def _at(facts: Mapping[str, str]) -> str:
    return facts.get("commit") or facts["file"]


def _interval(way: Mapping[str, Any]) -> tuple[float, float, float]:
    return tuple(way["speedup"][end] for end in ("median", "low", "high"))


def _refused(name: str, ways: Iterable[Mapping[str, Any]]) -> Iterable[Flag]:
    words = {"eager": "runs eagerly", "differs": "differs from eager", "raises": "raises"}
    for way in ways:
        if way["status"] != "ok":
            text = f"{name}: {way['name']} {words.get(way['status'], way['status'])}."
            yield Flag(_LEVELS.get(way["status"], "warning"), text, way["note"])


def _charts(ways: list[Mapping[str, Any]], traffic: list[Mapping[str, Any]]) -> Iterable[Chart]:
    gained = [
        Row(way["name"], *_interval(way), "graph" if way["name"] == "graph" else "other")
        for way in ways
        if way["speedup"] and way["name"] != "eager"
    ]
    if gained:
        yield intervals("Speedup, end to end", gained, _UNIT)
    timed = [way for way in ways if way["end_to_end_us"]]
    if timed:
        rows = [_range(way["name"], way["end_to_end_us"]) for way in timed]
        yield ranges("Latency of a call, end to end", rows, "µs")
    seen = [way for way in timed if way["activity"]]
    if seen:
        yield bars(
            "Where the time of a call goes",
            [bar for way in seen for bar in _busy(way)],
            "µs",
        )
    kept = [Bar(way["name"], "", way["held_bytes"] / 2**20) for way in ways if way["held_bytes"]]
    if kept:
        yield bars("Memory that a way keeps", kept, "MiB")
    sizes = [way for way in traffic if way["call_us"]]
    if sizes:
        rows = [_range(way["name"], way["call_us"]) for way in sizes]
        yield ranges("Calls of many sizes, end to end", rows, "µs")
    if any(way["padding"] for way in traffic):
        padded = [
            bar
            for way in traffic
            for bar in (
                Bar(way["name"], "asked for", 100 * (1 - way["padding"])),
                Bar(way["name"], "padding", 100 * way["padding"]),
            )
        ]
        yield bars("Calls of many sizes: what is computed", padded, "%")


def _range(name: str, found: Mapping[str, float]) -> Range:
    return Range(name, found["p50"], found["p95"], found["p99"])


def _busy(way: Mapping[str, Any]) -> Iterable[Bar]:
    """The busy time is that of other calls than those timed, so it can exceed the median."""
    busy, whole = way["activity"]["busy_us"], way["end_to_end_us"]["p50"]
    yield Bar(way["name"], "device busy", busy)
    yield Bar(way["name"], "device idle", max(0.0, whole - busy))


def _times(ways: list[Mapping[str, Any]]) -> Table:
    def row(way: Mapping[str, Any]) -> tuple[str, ...]:
        total, host = way["end_to_end_us"] or {}, way["host_us"] or {}
        gain, seen = way["speedup"] or {}, way["activity"] or {}
        return (
            way["name"],
            way["status"],
            number(gain.get("median")),
            f"{number(gain['low'])} to {number(gain['high'])}" if gain else "-",
            *(number(total.get(p)) for p in ("p50", "p95", "p99")),
            number(host.get("p50")),
            number(seen.get("busy_us")),
            percent(way["idle"]),
            number(seen.get("kernels")),
            number(seen.get("launches")),
            number(way["calls"]),
        )

    heads = ("way", "status", "speedup", "95 % interval", "end to end µs", "p95 µs", "p99 µs")
    more = ("host µs", "busy µs", "idle", "kernels", "launches", "calls timed")
    return Table((*heads, *more), tuple(map(row, ways)), "Times", folded=True)


def _costs(ways: list[Mapping[str, Any]]) -> Table:
    heads = (
        "way",
        "first call s",
        "first three s",
        "kept",
        "a call takes",
        "relative error",
        "note",
    )
    rows = tuple(
        (
            way["name"],
            number(way["first_call_s"]),
            number(way["ready_s"]),
            _bytes(way["held_bytes"]),
            _bytes(way["peak_bytes"]),
            number(way["relative_error"]),
            way["note"],
        )
        for way in ways
    )
    return Table(heads, rows, "Start, memory and errors", folded=True)


def _bytes(count: int | None) -> str:
    return "-" if count is None else in_bytes(count)


def _kernels(ways: list[Mapping[str, Any]]) -> Iterable[Table]:
    rows = tuple(
        (way["name"], kernel, number(us))
        for way in ways
        if way["activity"]
        for kernel, us in way["activity"]["top"].items()
    )
    if rows:
        yield Table(("way", "kernel", "µs"), rows, "Kernels that take longest", folded=True)


def _sizes(traffic: list[Mapping[str, Any]]) -> Iterable[Table]:
    heads = ("way", "status", "speedup", "95 % interval", "call µs", "p95 µs", "p99 µs")
    more = ("first pass s", "captures", "eager calls", "padding", "note")
    rows = tuple(
        (
            way["name"],
            way["status"],
            number(way["speedup"]["median"]) if way["speedup"] else "-",
            "{} to {}".format(*(number(way["speedup"][end]) for end in ("low", "high")))
            if way["speedup"]
            else "-",
            *(number(way["call_us"][p]) if way["call_us"] else "-" for p in ("p50", "p95", "p99")),
            number(way["first_pass_s"]),
            number(way["captures"]),
            percent(way["eager_calls"]),
            percent(way["padding"]),
            way["note"],
        )
        for way in traffic
    )
    if rows:
        yield Table((*heads, *more), rows, "Calls of many sizes", folded=True)
