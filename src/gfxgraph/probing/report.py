"""The report of ``parity``: a row for each capability, a verdict of one line, and JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import ArgumentError
from ..tables import Shown, as_json, filled, table
from .capabilities import Capability, groups, sources

__all__ = ["FOOT", "SCHEMA", "STATES", "ParityReport", "Row", "State", "since", "where"]

SCHEMA = "gfxgraph.parity/1"

State = Literal["works", "bridged", "absent", "not probed"]
STATES: tuple[State, ...] = ("works", "bridged", "absent", "not probed")


@dataclass(frozen=True)
class Row:
    """What this machine does with one capability.

    Attributes:
        capability: what a program can do, and what is read of other machines.
        state: ``"works"``: a probe has proved it; ``"bridged"``: a probe has proved that gfxgraph
            gives the same by another way; ``"absent"``: neither; ``"not probed"``: it cannot be
            told here, such as where a package is missing.
        saw: what the probe saw.
        why: why it does not work; ``""``: it does.
        seconds: that the probes took.
    """

    capability: Capability
    state: State
    saw: str = ""
    why: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """What there is to say, in words."""
        one = self.capability
        if self.state == "works":
            return self.saw
        if self.state == "bridged" and one.bridge:
            return one.bridge.how
        return f"{self.why}. {one.instead}" if self.state == "absent" else self.why

    def to_dict(self) -> dict[str, Any]:
        """The row as plain data."""
        one = self.capability
        known = {
            vendor: {**asdict(fact), "sources": [asdict(sources()[name]) for name in fact.sources]}
            for vendor, fact in one.facts.items()
        }
        return {
            **{name: getattr(one, name) for name in ("id", "group", "name", "does")},
            "state": self.state,
            "saw": self.saw,
            "how": one.bridge.how if one.bridge and self.state == "bridged" else "",
            "why": self.why,
            "instead": one.instead if self.state == "absent" else "",
            "seconds": self.seconds,
            "read": known,
            "issues": list(one.issues),
        }


@dataclass(frozen=True)
class ParityReport(Shown):
    """The result of :func:`gfxgraph.parity`.

    Attributes:
        rows: a row for each capability.
        machine: the facts about the device, and whether it is emulated.
        versions: those of gfxgraph, torch and Python.
    """

    rows: tuple[Row, ...]
    machine: dict[str, Any] = field(default_factory=dict, repr=False)
    versions: dict[str, str] = field(default_factory=dict, repr=False)

    def __getitem__(self, id: str) -> Row:
        """The row of a capability.

        Raises:
            KeyError: there is none.
        """
        for row in self.rows:
            if row.capability.id == id:
                return row
        raise KeyError(id)

    @property
    def counts(self) -> dict[State, int]:
        """State -> rows in it."""
        found = Counter(row.state for row in self.rows)
        return {state: found[state] for state in STATES}

    @property
    def verdict(self) -> str:
        """One line: how many capabilities are in each state."""
        n = self.counts
        several = {True: ("works", "is bridged"), False: ("work", "are bridged")}
        parts = [
            f"{n['works']} {several[n['works'] == 1][0]}",
            f"{n['bridged']} {several[n['bridged'] == 1][1]}",
            f"{n['absent']} absent",
        ]
        if n["not probed"]:
            parts.append(f"{n['not probed']} not probed")
        return f"{len(self.rows)} capabilities: {', '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data; docs/parity.md has its fields."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "counts": dict(self.counts),
            "rows": [row.to_dict() for row in self.rows],
            "machine": dict(self.machine),
            "versions": dict(self.versions),
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON, also written to the file ``path`` if there is one.

        Raises:
            ArgumentError: the file cannot be written.
        """
        try:
            return as_json(self.to_dict(), path)
        except (OSError, TypeError, ValueError) as error:
            raise ArgumentError(f"parity: the report cannot be written: {error}") from error

    def _printed(self) -> list[str]:
        lines = [self.verdict, where(self)]
        for group, heading in groups().items():
            rows = [row for row in self.rows if row.capability.group == group]
            if rows:
                cells = [(row.capability.name, row.state, *since(row)) for row in rows]
                lines += ["", *table((heading, "here", "CUDA", "ROCm"), cells)]
        for row in self.rows:
            if row.state != "works":
                lines += ["", filled(f"{row.capability.name}, {row.state}: {row.text}")]
        return [*lines, "", filled(FOOT)]


FOOT = (
    "CUDA, ROCm: since which version, read in sources and reported by users, not run. "
    "gfxgraph parity --json has the sources."
)


def where(report: ParityReport) -> str:
    """The machine, in one line."""
    return f"on {report.machine['device']}, torch {report.versions['torch']}"


def since(row: Row) -> tuple[str, str]:
    """Since which version of CUDA, and of ROCm."""
    cells = []
    for vendor in ("cuda", "rocm"):
        fact = row.capability.facts.get(vendor)
        cells.append("" if fact is None else fact.since or "none")
    return cells[0], cells[1]
