"""The charts: specifications for Vega-Lite, drawn as SVG without JavaScript.

Each row of a chart has its name above its marks and its value at the right end, so that the marks
have the full width of a phone. Colours are variables of the page's style, which light and dark
pages set; marks also differ in their shape or stand in rows with names, so that no figure depends
on a colour alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .layout import MARKS, NARROW, axis, base, names_of, specs, x_axis, y_axis
from .parts import TIMES, Chart, Table, number, ratio, require_numbers

__all__ = [
    "Bar",
    "Period",
    "Range",
    "Row",
    "bars",
    "intervals",
    "lines",
    "periods",
    "ranges",
    "strips",
]


_KIND: dict[str, Any] = {
    "color": {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": ["graph", "other"], "range": ["var(--c1)", "var(--c2)"]},
        "legend": None,
    }
}


class Row(NamedTuple):
    """A value with its interval."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    kind: str = "graph"


class Range(NamedTuple):
    """Percentiles of one way."""

    name: str
    p50: float
    p95: float | None
    p99: float


class Period(NamedTuple):
    """A time in which a row is busy."""

    name: str
    kind: str
    start: float
    end: float


class Bar(NamedTuple):
    """A part of a bar."""

    name: str
    part: str
    value: float


def intervals(title: str, rows: Sequence[Row], unit: str, *, wide: bool = False) -> Chart:
    """A dot with its interval for each row, on a logarithmic axis where the values ask for one.

    The line at 1 is eager.
    """
    require_numbers(*(one for row in rows for one in row[1:4] if one is not None))
    values: list[dict[str, Any]] = [
        {
            "name": row.name,
            "kind": row.kind,
            "value": row.value,
            "low": row.value if row.low is None else row.low,
            "high": row.value if row.high is None else row.high,
            "text": ratio(row.value) + TIMES + _interval(row),
        }
        for row in rows
    ]
    ends = [one[end] for one in values for end in ("low", "high")] + [1.0]
    x = x_axis("value", unit, ends)
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": [{"one": 1}]},
            "mark": {"type": "rule", "stroke": "var(--ink2)", "strokeDash": [3, 3]},
            "encoding": {"x": {"field": "one", "type": "quantitative"}},
        },
        {
            "mark": {**MARKS, "type": "rule", "strokeWidth": 4, "opacity": 0.35},
            "encoding": {
                **y_axis(rows),
                "x": {**x, "field": "low"},
                "x2": {"field": "high"},
                **_KIND,
            },
        },
        {
            "mark": {**MARKS, "type": "point", "filled": True, "size": 60, "opacity": 1},
            "encoding": {**y_axis(rows), "x": x, **_KIND},
        },
        *names_of(rows),
    ]
    words = "; ".join(
        f"{row.name}: {number(row.value)}"
        + (f" ({number(row.low)} to {number(row.high)})" if row.low is not None else "")
        for row in rows
    )
    figures = Table(
        ("", unit, "low", "high"),
        tuple((r.name, number(r.value), number(r.low), number(r.high)) for r in rows),
    )
    return Chart(title, specs(values, layers, rows, wide), f"{title}, {unit}. {words}", figures)


def _interval(row: Row) -> str:
    if row.low is None or row.high is None:
        return ""
    return f" ({ratio(row.low)} to {ratio(row.high)})"


def ranges(title: str, rows: Sequence[Range], unit: str) -> Chart:
    """The 50th, 95th and 99th percentile of each row: a circle, a square, a triangle."""
    require_numbers(*(end for row in rows for end in row[1:] if end is not None))
    values: list[dict[str, Any]] = [
        {"name": r.name, "p50": r.p50, "p99": r.p99, "text": f"{number(r.p50)} {unit}"}
        for r in rows
    ]
    marks = [
        {"name": r.name, "at": at, "value": value}
        for r in rows
        for at, value in zip(("p50", "p95", "p99"), r[1:], strict=True)
        if value is not None
    ]
    x = x_axis("value", unit, [end for r in rows for end in r[1:] if end is not None])
    shape = {
        "field": "at",
        "type": "nominal",
        "scale": {"domain": ["p50", "p95", "p99"], "range": ["circle", "square", "triangle-right"]},
        "legend": {"orient": "top", "title": None, "symbolStrokeColor": "var(--c1)", "offset": 2},
    }
    layers: list[dict[str, Any]] = [
        {
            "mark": {
                **MARKS,
                "type": "rule",
                "strokeWidth": 2,
                "stroke": "var(--c1)",
                "opacity": 0.4,
            },
            "encoding": {**y_axis(rows), "x": {**x, "field": "p50"}, "x2": {"field": "p99"}},
        },
        {
            "data": {"values": marks},
            "mark": {
                **MARKS,
                "type": "point",
                "size": 55,
                "stroke": "var(--c1)",
                "fill": "var(--c1)",
            },
            "encoding": {**y_axis(rows), "x": x, "shape": shape},
        },
        *names_of(rows),
    ]
    words = "; ".join(
        f"{r.name}: half of the calls take {number(r.p50)}, "
        + (f"95 % {number(r.p95)}, " if r.p95 is not None else "")
        + f"99 % {number(r.p99)} at most"
        for r in rows
    )
    table = Table(
        ("", *(f"{p} {unit}" for p in ("p50", "p95", "p99"))),
        tuple((r.name, *map(number, r[1:])) for r in rows),
    )
    return Chart(title, specs(values, layers, rows), f"{title}, {unit}. {words}", table)


def bars(title: str, rows: Sequence[Bar], unit: str) -> Chart:
    """A bar for each name, of parts one after the other."""
    require_numbers(*(row.value for row in rows))
    names = list(dict.fromkeys(row.name for row in rows))
    parts = list(dict.fromkeys(row.part for row in rows))
    total = {name: sum(row.value for row in rows if row.name == name) for name in names}
    values: list[dict[str, Any]] = [
        {"name": r.name, "part": r.part, "value": r.value, "order": parts.index(r.part)}
        for r in rows
    ]
    texts = [{"name": name, "text": f"{number(total[name])} {unit}"} for name in names]
    x = {
        "field": "value",
        "type": "quantitative",
        "title": unit,
        "stack": "zero",
        "axis": axis(),
    }
    colour = {
        "field": "part",
        "type": "nominal",
        "sort": parts,
        "scale": {"domain": parts, "range": ["var(--c1)", "var(--c5)", "var(--c2)", "var(--c3)"]},
        "legend": {"orient": "top", "title": None, "offset": 2} if len(parts) > 1 else None,
    }
    layers: list[dict[str, Any]] = [
        {
            "mark": {**MARKS, "type": "bar", "height": 9},
            "encoding": {
                **y_axis(names),
                "x": x,
                "color": colour,
                "order": {"field": "order", "type": "quantitative"},
            },
        },
        *names_of(names, texts),
    ]
    words = "; ".join(
        f"{name}: "
        + ", ".join(f"{r.part} {number(r.value)}".strip() for r in rows if r.name == name)
        for name in names
    )
    cells = {(r.name, r.part): number(r.value) for r in rows}
    table = Table(
        ("", *(f"{part} {unit}".strip() for part in parts)),
        tuple((name, *(cells.get((name, part), "-") for part in parts)) for name in names),
    )
    return Chart(title, specs(values, layers, names), f"{title}, {unit}. {words}", table)


def periods(title: str, rows: Sequence[Period], unit: str) -> Chart:
    """A row for each name, with a bar from the start to the end of each period."""
    require_numbers(*(end for row in rows for end in row[2:]))
    names = list(dict.fromkeys(row.name for row in rows))
    kinds = sorted({row.kind for row in rows}, key=lambda kind: (kind != "kernel", kind))
    busy = {name: sum(r.end - r.start for r in rows if r.name == name) for name in names}
    last = {name: max(r.end for r in rows if r.name == name) for name in names}
    values: list[dict[str, Any]] = [
        {"name": r.name, "kind": r.kind, "start": r.start, "end": r.end} for r in rows
    ]
    texts = [{"name": name, "text": f"done at {number(last[name])}"} for name in names]
    x = {"field": "start", "type": "quantitative", "title": unit, "axis": axis()}
    colour = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": kinds, "range": ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c5)"]},
        "legend": {"orient": "top", "title": None, "offset": 2} if len(kinds) > 1 else None,
    }
    layers: list[dict[str, Any]] = [
        {
            "mark": {**MARKS, "type": "bar", "height": 11, "minBandSize": 1},
            "encoding": {**y_axis(names), "x": x, "x2": {"field": "end"}, "color": colour},
        },
        *names_of(names, texts),
    ]
    words = "; ".join(
        f"{name}: busy for {number(busy[name])} µs, done after {number(last[name])} µs"
        for name in names
    )
    table = Table(
        ("", "busy µs", "done after µs"),
        tuple((name, number(busy[name]), number(last[name])) for name in names),
    )
    return Chart(title, specs(values, layers, names, wide=True), f"{title}. {words}", table)


def strips(
    title: str, groups: Mapping[str, Iterable[tuple[str, float]]], unit: str, *, wide: bool = False
) -> Chart:
    """A tick for each value, a row for each group, and a dot at its median."""
    found = {group: sorted(rows, key=lambda row: row[1]) for group, rows in groups.items()}
    middle = {group: _median([value for _, value in rows]) for group, rows in found.items()}
    values: list[dict[str, Any]] = [
        {"name": group, "value": value} for group, rows in found.items() for _, value in rows
    ]
    texts = [
        {
            "name": group,
            "value": middle[group],
            "text": ratio(middle[group]) + TIMES,
        }
        for group in found
    ]
    x = x_axis("value", unit, [one["value"] for one in values if one["value"]] + [1.0])
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": [{"one": 1}]},
            "mark": {"type": "rule", "stroke": "var(--ink2)", "strokeDash": [3, 3]},
            "encoding": {"x": {"field": "one", "type": "quantitative"}},
        },
        {
            "mark": {**MARKS, "type": "tick", "color": "var(--c1)", "opacity": 0.45, "height": 11},
            "encoding": {**y_axis(list(found)), "x": x},
        },
        {
            "data": {"values": texts},
            "mark": {**MARKS, "type": "point", "filled": True, "size": 70, "color": "var(--c1)"},
            "encoding": {**y_axis(list(found)), "x": x},
        },
        *names_of(list(found), texts),
    ]
    words = "; ".join(
        f"{group}: {len(rows)} values from {number(rows[0][1])} to {number(rows[-1][1])}, "
        f"median {number(middle[group])}"
        for group, rows in found.items()
    )
    table = Table(
        ("", "", unit),
        tuple((group, name, number(v)) for group, rows in found.items() for name, v in rows),
    )
    drawn = specs(values, layers, list(found), wide)
    return Chart(title, drawn, f"{title}, {unit}. {words}", table)


def lines(title: str, points: Sequence[tuple[str, float]], unit: str) -> Chart:
    """Values in the order in which they come, such as those of commits."""
    values: list[dict[str, Any]] = [
        {"n": n, "at": at, "value": value} for n, (at, value) in enumerate(points)
    ]
    names = [at for at, _ in points]  # shown by their index, since a commit may come twice
    at = {
        "labelExpr": f"{json.dumps(names)}[datum.value]",
        "values": list(range(len(names))),
        "labelAngle": -40 if len(names) > 3 else 0,
        "labelLimit": 90,
        "grid": False,
        "labelOverlap": "greedy",
    }
    x: dict[str, Any] = {"field": "n", "type": "ordinal", "title": None, "axis": at}
    y = {
        "field": "value",
        "type": "quantitative",
        "title": unit,
        "scale": {"zero": True, "nice": True},
        "axis": {**axis(), "tickCount": 4},
    }
    layer = [
        {
            "mark": {"type": "line", "stroke": "var(--c1)", "strokeWidth": 1.5},
            "encoding": {"x": x, "y": y},
        },
        {
            "mark": {
                "type": "point",
                "filled": True,
                "opacity": 1,
                "fill": "var(--c1)",
                "size": 45,
            },
            "encoding": {"x": x, "y": y},
        },
    ]
    spec = {**base(NARROW - 8), "height": 130, "data": {"values": values}, "layer": layer}
    words = ", ".join(f"{at}: {number(value)}" for at, value in points)
    table = Table(("", unit), tuple((at, number(value)) for at, value in points))
    return Chart(title, {NARROW: spec}, f"{title}, {unit}. {words}", table)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
