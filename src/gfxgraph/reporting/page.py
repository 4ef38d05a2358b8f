"""The page: sorts parts into sections, and fills the template."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from ..errors import MissingPackageError
from .charts import Row, intervals, lines, strips
from .drawing import svg
from .files import LeftOut, Shown
from .layout import NARROW
from .parts import NOT_STATED, SECTIONS, TIMES, Chart, Flag, Gain, Part, Point, Table, ratio

__all__ = ["page"]

_UNIT = "times as fast as eager"
_MANY = 14  # rows of the chart on the front; more are shown as one row a file
_GROUPS = 40  # rows of the front, at most
_ROWS = 400  # of a table; the rest is in the file
_ORDER = ("error", "warning", "note")
_MAIN = ("device", "torch", "gfxgraph", "commit", "command")


def page(title: str, shown: Sequence[Shown], left_out: Sequence[LeftOut]) -> str:
    """The HTML of a report.

    Raises:
        MissingPackageError: jinja2 or Vega-Lite is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingPackageError("The report needs jinja2: pip install jinja2.") from error
    from .. import reporting

    folder = files(reporting)
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(
            lambda name: folder.joinpath(name).read_text(encoding="utf-8")
        ),
    )
    environment.filters["drawn"] = _drawn
    environment.filters["columns"] = _columns
    environment.filters["key"] = id
    parts = [part for file in shown for part in file.parts]
    parts += _history([point for part in parts for point in part.points])
    sections = [
        (name, *SECTIONS[name], [part for part in parts if part.section == name])
        for name in SECTIONS
        if any(part.section == name for part in parts)
    ]
    anchors = {id(part): f"{part.section}-{n}" for n, part in enumerate(parts)}
    gains = [gain for part in parts for gain in part.gains]
    return environment.get_template("page.html").render(
        title=title,
        sections=sections,
        anchors=anchors,
        flags=_flags(parts, anchors),
        front=_front(parts, gains),
        verdicts=[
            (part, anchors[id(part)])
            for part in parts
            if part.section == "gains" and part.sentence and part.gains
        ],
        summary=_summary(parts, gains, left_out),
        machines=_machines(parts),
        shown=shown,
        left_out=left_out,
        main=_MAIN,
        not_stated=NOT_STATED,
        rows=_ROWS,
    )


def _flags(parts: Sequence[Part], anchors: dict[int, str]) -> list[tuple[Flag, str]]:
    found = [(flag, anchors[id(part)]) for part in parts for flag in part.flags]
    return sorted(found, key=lambda one: _ORDER.index(one[0].level))


def _front(parts: Sequence[Part], gains: Sequence[Gain]) -> Chart | None:
    """The gains of graphs: a row for each function, or for each file if there are many."""
    graphs = [(part, gain) for part in parts for gain in part.gains if gain.is_graph]
    if not graphs:
        return None
    if len(graphs) <= _MANY:
        ordered = sorted(graphs, key=lambda one: -one[1].times)
        rows = [Row(gain.function or part.title, *_ends(gain)) for part, gain in ordered]
        return intervals("Gain of a graph", rows, _UNIT, wide=True)
    groups: dict[str, list[tuple[str, float]]] = {}
    for part, gain in graphs:
        group = part.facts.get("file", part.title).removesuffix(".json").replace("_", " ")
        groups.setdefault(group, []).append((gain.function or part.title, gain.times))
    title = "Gain of a graph: a tick for each function, a dot at the median"
    if len(groups) > _GROUPS:
        title += f" (the first {_GROUPS} of {len(groups)} files)"
        groups = dict(list(groups.items())[:_GROUPS])
    return strips(title, groups, _UNIT, wide=True)


def _ends(gain: Gain) -> tuple[float, float | None, float | None]:
    return gain.times, gain.low, gain.high


def _summary(
    parts: Sequence[Part], gains: Sequence[Gain], left_out: Sequence[LeftOut]
) -> list[tuple[str, str, str]]:
    """The figures that the page begins with: value, what it is, level."""
    graphs = sorted(gain.times for gain in gains if gain.is_graph)
    flags = [flag for part in parts for flag in part.flags]
    count = {level: sum(flag.level == level for flag in flags) for level in _ORDER}
    found = [
        (str(count["error"]), "wrong or broken", "error" if count["error"] else "ok"),
        (
            str(count["warning"] + len(left_out)),
            "refused, slower or left out",
            "warning" if count["warning"] + len(left_out) else "ok",
        ),
    ]
    if graphs:
        half = len(graphs) // 2
        median = graphs[half] if len(graphs) % 2 else (graphs[half - 1] + graphs[half]) / 2
        worst, best = ratio(graphs[0]), ratio(graphs[-1])
        spread = f", {worst}{TIMES} to {best}{TIMES}" if len(graphs) > 1 else ""
        found.append(
            (ratio(median) + TIMES, f"median gain of {len(graphs)} graphs over eager{spread}", "")
        )
    return found


def _machines(parts: Sequence[Part]) -> list[tuple[str, str]]:
    """Device -> the versions of torch that were used there."""
    found: dict[str, dict[str, None]] = {}
    for part in parts:
        name = part.facts.get("device") or part.machine
        if name:
            emulated = " (emulated: its times say nothing of a GPU)" if part.emulated else ""
            found.setdefault(name + emulated * (name != "emulated"), {})
            if part.facts.get("torch"):
                found[name + emulated * (name != "emulated")][part.facts["torch"]] = None
    return [(name, ", ".join(versions)) for name, versions in found.items()]


def _history(points: Sequence[Point]) -> list[Part]:
    """A part for each figure that was measured at several commits."""
    groups: dict[tuple[str, str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point.figure, point.unit, point.device), []).append(point)
    charts: dict[str, list[Chart]] = {}
    for (figure, unit, device), found in groups.items():
        if len({point.at for point in found}) > 1:
            values = [(point.at, point.value) for point in found]
            group, _, rest = figure.partition(": ")
            charts.setdefault(f"{group}, {device}", []).append(lines(rest or group, values, unit))
    return [
        Part("history", name, "In the order of the file or files.", charts=tuple(some))
        for name, some in charts.items()
    ]


def _drawn(chart: Chart) -> list[tuple[str, Any]]:
    """The drawings of a chart, each with its class."""
    from markupsafe import Markup

    found = svg(chart)
    names = {width: "narrow" if width == NARROW else "wide" for width in found}
    if len(found) == 1:
        names = dict.fromkeys(found, "only")
    return [(names[width], Markup(text)) for width, text in found.items()]


def _columns(table: Table) -> list[str]:
    """The class of each column: a number, prose, or ``""``: a short text."""
    found = []
    for n in range(len(table.heads)):
        texts = [row[n] for row in table.rows]
        if all(map(_NUMBER.fullmatch, texts)):
            found.append("number")
        else:
            found.append("prose" if max(map(len, texts), default=0) > 40 else "")
    return found


_NUMBER = re.compile(r"-?|[-+]?[\d,.]+(e[-+]\d+)?( ?%| [KMG]?i?B)?|-?inf|nan")
