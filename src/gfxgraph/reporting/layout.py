"""Axes, rows and sizes that the charts share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["MARKS", "NARROW", "axis", "base", "names_of", "specs", "x_axis", "y_axis"]

NARROW, WIDE = 340, 700
_STEP = 38  # px for a row: its name, and its marks below
_BELOW = 7  # px of the marks below the middle of the row, and of its name above it
_FONT = "system-ui, sans-serif"
MARKS = {"yOffset": _BELOW}


def specs(
    values: list[dict[str, Any]],
    layers: list[dict[str, Any]],
    rows: Sequence[Any],
    wide: bool = False,
) -> dict[int, dict[str, Any]]:
    """The chart of these rows for a phone, and if ``wide`` also for a wide page."""
    return {
        width: {
            **base(width),
            "height": _STEP * len(rows),
            "data": {"values": values},
            "layer": layers,
        }
        for width in ((NARROW, WIDE) if wide else (NARROW,))
    }


def base(width: int) -> dict[str, Any]:
    """What all charts of this width begin with."""
    text = {"labelFont": _FONT, "titleFont": _FONT, "labelFontSize": 11, "titleFontSize": 11}
    ink = {"labelColor": "var(--ink2)", "titleColor": "var(--ink2)", "titleFontWeight": "normal"}
    return {
        "width": width,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": 4,
        "background": None,
        "config": {
            "aria": False,  # the figure has a text alternative of its own
            "font": _FONT,
            "view": {"stroke": None},
            "axis": {
                **text,
                **ink,
                "gridColor": "var(--line)",
                "domainColor": "var(--line)",
                "ticks": False,
                "labelPadding": 4,
            },
            "legend": {**text, **ink, "symbolSize": 50, "columnPadding": 18},
        },
    }


def x_axis(name: str, unit: str, ends: Sequence[float]) -> dict[str, Any]:
    """The horizontal axis for values of which these are the ends."""
    wide = min(ends) > 0 and max(ends) / min(ends) > 8
    scale = {"type": "log", "padding": 8, "nice": False} if wide else {"zero": True, "padding": 8}
    return {
        "field": name,
        "type": "quantitative",
        "scale": scale,
        "title": unit + (", logarithmic" if wide else ""),
        "axis": {**axis(), **({"values": _steps(min(ends), max(ends))} if wide else {})},
    }


def _steps(low: float, high: float) -> list[float]:
    """1, 2, 5, 10 ... between two values; 1, 10, 100 where that is enough."""
    decades = range(-12, 13)
    fine = [m * 10.0**e for e in decades for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    return fine if len(fine) <= 7 else [x for x in fine if f"{x:e}".startswith("1.0")]


def axis() -> dict[str, Any]:
    """An axis of plain numbers."""
    return {"format": ",.6~r", "tickCount": 5, "labelOverlap": "greedy", "labelSeparation": 8}


def y_axis(rows: Sequence[Any]) -> dict[str, Any]:
    """The vertical position: rows in their order; their names are written above the marks."""
    names = [row if isinstance(row, str) else row.name for row in rows]
    return {
        "y": {"field": "name", "type": "nominal", "sort": names, "axis": None},
    }


def names_of(
    rows: Sequence[Any], texts: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """The name of each row at the left end, and its value at the right one."""
    data = {"data": {"values": texts}} if texts else {}
    y = y_axis(rows)
    text = {"type": "text", "fontSize": 12, "baseline": "middle", "yOffset": -_BELOW}
    return [
        {
            **data,
            "mark": {**text, "align": "left", "fill": "var(--ink)", "limit": 190},
            "encoding": {**y, "x": {"value": 0}, "text": {"field": "name"}},
        },
        {
            **data,
            "mark": {**text, "align": "right", "fill": "var(--ink)", "fontWeight": 600},
            "encoding": {**y, "x": {"value": {"expr": "width"}}, "text": {"field": "text"}},
        },
    ]
