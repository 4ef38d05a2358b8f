"""What the readers of files make, and the page shows: parts with charts, tables and flags.

A reader knows one kind of file and nothing of HTML; the page knows nothing of the files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "NOT_STATED",
    "SECTIONS",
    "TIMES",
    "Chart",
    "Flag",
    "Gain",
    "Level",
    "Part",
    "Point",
    "Section",
    "Table",
    "number",
    "percent",
    "ratio",
    "require_numbers",
]

Section = Literal[
    "gains",
    "hazards",
    "verification",
    "timelines",
    "memory",
    "history",
    "experiments",
    "machines",
]

SECTIONS: Mapping[Section, tuple[str, str]] = {
    "gains": ("Gains", "How long a call takes, as it is and as a graph."),
    "hazards": ("Hazards", "What in the source matters in a graph, and what to write instead."),
    "verification": ("Verification", "Whether graphs give what eager gives."),
    "timelines": ("Timelines", "What the host and the device do in a call."),
    "memory": ("Memory and padding", "What graphs keep on the device, and what buckets add."),
    "history": ("History", "The same figure over commits."),
    "experiments": ("Experiments", "Other measurements."),
    "machines": ("Machines", "Where the figures come from."),
}
"""The sections of the page in their order: heading, and a sentence about it."""

Level = Literal["error", "warning", "note", "ok"]
"""``"error"``: wrong or broken; ``"warning"``: refused, eager, slower or left out; ``"note"``: what
a reader of the figures has to know."""

NOT_STATED = "not stated"
TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Flag:
    """Something that the front of the page says first.

    Attributes:
        level: how bad it is.
        text: a sentence.
        more: the place in the source or the remedy; ``""``: none.
    """

    level: Level
    text: str
    more: str = ""

    def __post_init__(self) -> None:
        _require_texts(self.text, self.more)


@dataclass(frozen=True)
class Gain:
    """How many times as fast as eager one function is, called in one way, on a real device.

    Attributes:
        function: its name.
        way: ``"graph"``, or as the file names it.
        times: eager's time divided by that of the way.
        low: lower end of the 95 % interval; ``None``: the file has none.
        high: the upper end.
        verdict: the sentence of ``bench``; ``""``: none.
    """

    function: str
    way: str
    times: float
    low: float | None = None
    high: float | None = None
    verdict: str = ""

    def __post_init__(self) -> None:
        _require_texts(self.function, self.way, self.verdict)
        require_numbers(self.times, *(end for end in (self.low, self.high) if end is not None))

    @property
    def is_graph(self) -> bool:
        """Whether the way is a graph of ours, of the function as it is."""
        return self.way in ("graph", "graphs", "graphed", "graphed, own", "one graph")


@dataclass(frozen=True)
class Point:
    """One value of a figure that is measured again at other commits.

    Attributes:
        figure: its name; points of the same figure, unit and device make a line.
        at: the commit, or what the file says instead.
        value: the value.
        unit: of the value.
        device: where it was measured.
    """

    figure: str
    at: str
    value: float
    unit: str
    device: str

    def __post_init__(self) -> None:
        _require_texts(self.figure, self.at, self.device)
        require_numbers(self.value)


@dataclass(frozen=True)
class Table:
    """Rows of text. Columns of numbers are aligned to the right.

    Attributes:
        heads: a heading for each column.
        rows: a text for each column.
        title: of the table; ``""``: none.
        folded: whether the page shows it only when it is opened.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    folded: bool = False

    def __post_init__(self) -> None:
        _require_texts(self.title, *self.heads, *(cell for row in self.rows for cell in row))


@dataclass(frozen=True)
class Chart:
    """A chart for Vega-Lite, and what it shows in words and in figures.

    Attributes:
        title: with the unit.
        spec: ``{width in px: its specification}``: one, or a narrow one and a wide one.
        words: the text alternative.
        table: the figures.
    """

    title: str
    spec: Mapping[int, Mapping[str, Any]]
    words: str
    table: Table


@dataclass(frozen=True)
class Part:
    """What one file, or one of several reports in it, adds to the page.

    Attributes:
        section: where it stands.
        title: of what it is.
        sentence: the verdict.
        level: of the verdict; ``None``: the file judges nothing.
        facts: where the figures come from: command, commit, device and versions.
        charts: shown side by side.
        tables: shown below them.
        flags: for the front of the page.
        gains: for the front of the page.
        points: for the history.
        machine: the device on which it was measured; ``""``: none.
        emulated: whether the device was emulated, so that times say nothing of a GPU.
    """

    section: Section
    title: str
    sentence: str = ""
    level: Level | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    flags: tuple[Flag, ...] = ()
    gains: tuple[Gain, ...] = ()
    points: tuple[Point, ...] = ()
    machine: str = ""
    emulated: bool = False

    def __post_init__(self) -> None:
        _require_texts(self.title, self.sentence, self.machine, *self.facts, *self.facts.values())
        if not isinstance(self.emulated, bool):
            raise TypeError(f"emulated: expected true or false, not {self.emulated!r:.50}")


def require_numbers(*values: object) -> None:
    """Raise ``TypeError`` or ``ValueError`` for anything that no chart can show."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"expected a number, not {value!r:.50}")
        if not abs(value) < 1e100:
            raise ValueError(f"expected a finite number, not {value!r:.50}")


def _require_texts(*values: object) -> None:
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"expected a text, not {value!r:.50}")


def number(value: float | None, unit: str = "") -> str:
    """``value`` with four digits that count, as people write it; ``None``: a dash."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        text = str(value)
    elif isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        text = f"{int(value):,}"
    elif 1e-3 <= abs(value) < 1e6:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    else:
        text = f"{value:.2e}"
    return f"{text} {unit}" if unit else text


def ratio(value: float) -> str:
    """How many times something is: two decimals, and two digits that count below 0.1."""
    return f"{value:,.2f}" if abs(value) >= 0.1 or not value else f"{value:.2g}"


def percent(share: float | None) -> str:
    """A share as ``"12 %"``; ``None``: a dash."""
    return "-" if share is None else f"{100 * share:.3g} %"
