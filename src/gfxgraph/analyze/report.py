"""The report of ``check``: hazards in the order of the run, and a verdict."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Literal

from ..interpose.source import is_own_file
from ..record.rules import RULES, Effect
from ..tables import counted, filled

__all__ = ["CheckReport", "Hazard", "Report", "Severity", "Watched", "within"]

Severity = Literal["error", "warning", "note"]
"""``"error"``: it runs eagerly because of this; ``"warning"``: it captures by branching, which
costs; ``"note"``: it captures unmodified, or by folding."""

Verdict = Literal["captures", "folds", "branches", "new-paths", "eager"]
"""``"new-paths"``: a new path for each new value, so calls will not replay."""

_ORDER: tuple[Effect, ...] = ("captures", "folds", "branches", "eager")
_IN_WORDS: dict[Verdict, str] = {
    "captures": "captures unmodified",
    "folds": "captures by folding constants",
    "branches": "captures as several graphs, with the host in between",
    "new-paths": "takes a new path for each new value, and will not replay",
    "eager": "runs eagerly",
}
# White text is legible on these colours, and they are legible on light and dark pages.
_COLOURS: dict[Severity, str] = {"error": "#cf222e", "warning": "#9a6700", "note": "#0969da"}
_SHOWN = 3
_HEADINGS = ("Severity", "Rule", "Where", "Why and remedy")


def within(file: str) -> str:
    """``file``, relative to the current directory where it is inside."""
    with suppress(ValueError):
        return str(Path(file).relative_to(Path.cwd()))
    return file


@dataclass
class Hazard:
    """A construct of a function that matters in a graph, at one place in the source.

    Attributes:
        rule: id of the rule in the catalogue (:data:`gfxgraph.record.rules.RULES`).
        severity: see :data:`Severity`.
        effect: what happens to the function because of it.
        what: the call, such as ``"Tensor.item()"`` or ``"aten.nonzero.default"``.
        file: file of the user's line; ``None`` where it has none (``<stdin>``).
        line: its number, from 1; 0 where there is none.
        source: its text.
        count: how often it happened in the run.
        tainted: whether the data depends on the inputs, on random numbers, or on tensors from
            outside that change from call to call.
        why: why it matters in a graph.
        remedy: the code to write instead.
        decides_anew: the host acts on a floating-point number that depends on the inputs, so a call
            replays only if the same number came before.
    """

    rule: str
    severity: Severity
    effect: Effect
    what: str
    file: str | None
    line: int
    source: str
    count: int
    tainted: bool
    why: str
    remedy: str
    decides_anew: bool = False

    @property
    def place(self) -> str:
        """File and line; ``""``: it has none."""
        return f"{within(self.file)}:{self.line}" if self.file else ""


@dataclass(frozen=True)
class Watched:
    """A place in Python that the function reads, so that a graph of it would watch it.

    Attributes:
        name: how the function reaches it, such as ``"CFG.scale"``.
        value: the number or string that it holds, as text; ``""``: it holds something else.
        file: file of the line that reads it; ``""``: not known.
        line: its number, from 1; 0: not known.
    """

    name: str
    value: str
    file: str
    line: int


@dataclass
class CheckReport:
    """The result of :func:`gfxgraph.check`. Notebooks show it as a table.

    Attributes:
        name: the function.
        verdict: ``"captures"`` as it is, ``"folds"``: by folding constants, ``"branches"``: as
            several graphs with the host in between, ``"new-paths"``: the same, but with a new path
            for each new number, so that calls will not replay, ``"eager"``: it runs eagerly.
        hazards: errors, then warnings, then notes; each in the order in which the run met them.
        operations: device operations of the run.
        assumed: operators whose results were made up, since only the shapes of their arguments are
            known: tensors on the meta device, kernels that only a GPU has.
        device: the device of the check: ``"cuda (simulated on the CPU)"``.
        torch: version of torch.
        watched: the places in Python that a graph would watch. If one of them changes, the next
            call is captured again.
        unwatched: why they are not known; ``""``: they are.
    """

    name: str
    hazards: list[Hazard] = field(default_factory=list)
    operations: int = 0
    assumed: list[str] = field(default_factory=list)
    device: str = ""
    torch: str = ""
    watched: list[Watched] = field(default_factory=list)
    unwatched: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst effect of a hazard."""
        effects = (hazard.effect for hazard in self.hazards)
        worst: Effect = max(effects, key=_ORDER.index, default="captures")
        anew = any(hazard.decides_anew for hazard in self.hazards)
        return "new-paths" if anew and worst != "eager" else worst

    @property
    def in_words(self) -> str:
        """The verdict, with the reason if calls run eagerly."""
        reasons = {RULES[h.rule].title: None for h in self.hazards if h.effect == "eager"}
        because = f" because {'; '.join(reasons)}" if reasons else ""
        if self.verdict == "new-paths":
            places = [f"{h.what} at {h.place}" for h in self.hazards if h.decides_anew]
            because = f": {'; '.join(places)}"
        return _IN_WORDS[self.verdict] + because

    @property
    def is_graph(self) -> bool:
        """Whether calls are replays: it captures, and no number decides that is always new."""
        return self.verdict not in ("eager", "new-paths")

    @property
    def basis(self) -> list[str]:
        """The counts of hazards and operations, the device of the check, and what is watched."""
        found = counted(len(self.hazards), "hazard") if self.hazards else "No hazards"
        operations = counted(self.operations, "operation")
        made_up = f" Made up, as only shapes are known: {', '.join(self.assumed)}."
        checked = f"Checked on {self.device}, torch {self.torch}."
        lines = [f"{found} in {operations}.", checked + (made_up if self.assumed else "")]
        return [*lines, self.watching] if self.watching else lines

    @property
    def watching(self) -> str:
        """What a graph would watch: how much, and the first numbers that the user's code reads."""
        if self.unwatched or not self.watched:
            return self.unwatched and f"What it reads in Python is not known: {self.unwatched}."
        own = [place for place in self.watched if place.value and is_own_file(place.file)]
        some = [f"{p.name} = {p.value} ({within(p.file)}:{p.line})" for p in own[:_SHOWN]]
        among = f", among them {', '.join(some)}" if some else ""
        count = counted(len(self.watched), "place")
        return f"A graph would watch {count} in Python{among}: it is captured again if one changes."

    def to_dict(self) -> dict[str, Any]:
        """The report for ``--json``."""
        head = {"verdict": self.verdict, "in_words": self.in_words, "is_graph": self.is_graph}
        return {"schema": "gfxgraph.check/1", **head, **asdict(self)}

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.in_words}", *self.basis]
        explained: set[tuple[str, str]] = set()
        for hazard in self.hazards:
            count = f", {hazard.count} times" if hazard.count > 1 else ""
            lines += ["", f"{hazard.severity} {hazard.rule}: {hazard.what}{count}"]
            lines += [f"  {hazard.place}"] if hazard.file else []
            lines += [f"    {hazard.source}"] if hazard.source else []
            if (hazard.why, hazard.remedy) not in explained:
                explained.add((hazard.why, hazard.remedy))
                lines += [f"  Why: {hazard.why}", f"  Remedy: {hazard.remedy}"]
        return "\n".join(map(filled, lines))

    def _repr_html_(self) -> str:
        """The report for notebooks."""
        head = f"<b><code>{escape(self.name)}</code>:</b> {escape(self.in_words)}"
        rows = [_row("th", _HEADINGS), *(_row("td", _cells(hazard)) for hazard in self.hazards)]
        table = f"<table>{''.join(rows)}</table>" if self.hazards else ""
        return f"<div><div>{head}</div><div>{escape(' '.join(self.basis))}</div>{table}</div>"


def _cells(hazard: Hazard) -> tuple[str, ...]:
    badge = f"background:{_COLOURS[hazard.severity]};color:#fff;border-radius:3px;padding:1px 6px"
    count = f", {hazard.count} times" if hazard.count > 1 else ""
    return (
        f'<span style="{badge}">{hazard.severity}</span>',
        f"<b>{escape(hazard.rule)}</b><br>{escape(hazard.what)}{count}",
        f"{escape(hazard.place)}<br><code>{escape(hazard.source)}</code>",
        f"{escape(hazard.why)}<br><b>Remedy:</b> {escape(hazard.remedy)}",
    )


def _row(tag: str, cells: tuple[str, ...]) -> str:
    style = "text-align:left;vertical-align:top;padding:4px 6px;border-top:1px solid #8888"
    inside = "".join(f'<{tag} style="{style}">{cell}</{tag}>' for cell in cells)
    return f"<tr>{inside}</tr>"


Report = CheckReport
"""The former name of :class:`CheckReport`."""
