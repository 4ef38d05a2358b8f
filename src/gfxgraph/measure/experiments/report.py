"""The report of an experiment: rows, a conclusion of one sentence, and JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...device import machine_and_versions
from ...tables import Shown, as_json, filled, table
from ..report import written

__all__ = ["SCHEMA", "ExperimentReport", "Outcome", "reports_as_json"]

SCHEMA = "gfxgraph.experiment/1"

_WORDS = {True: "holds", False: "DOES NOT HOLD", None: "not shown"}


@dataclass(frozen=True)
class Outcome:
    """What an experiment has found.

    Attributes:
        rows: column -> value, the same columns in each; a value is a string, a number, a boolean or
            ``None``.
        conclusion: one sentence.
        holds: whether what the question expects is so; ``None``: it cannot be shown here.
        notes: sentences about single rows.
    """

    rows: tuple[dict[str, Any], ...]
    conclusion: str
    holds: bool | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExperimentReport(Shown):
    """The result of :func:`gfxgraph.experiment`.

    Attributes:
        name: the experiment.
        question: what it asks.
        function: the function that it ran.
        shows: what this machine can show of the answer, and what it cannot.
        rows: column -> value, the same columns in each.
        conclusion: one sentence.
        holds: whether what the question expects is so; ``None``: it cannot be shown here.
        notes: sentences about single rows.
        machine: the facts about the device, and whether it is emulated.
        versions: those of gfxgraph, torch and Python.
    """

    name: str
    question: str
    function: str
    shows: str
    rows: tuple[dict[str, Any], ...]
    conclusion: str
    holds: bool | None
    notes: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=dict, repr=False)
    versions: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, name: str, question: str, function: str, shows: str, outcome: Outcome
    ) -> ExperimentReport:
        """The report of an outcome on this machine."""
        machine, versions = machine_and_versions()
        return cls(
            name=name,
            question=question,
            function=function,
            shows=shows,
            rows=outcome.rows,
            conclusion=outcome.conclusion,
            holds=outcome.holds,
            notes=outcome.notes,
            machine=machine,
            versions=versions,
        )

    def __getitem__(self, name: str) -> dict[str, Any]:
        """The row whose first column is ``name``.

        Raises:
            KeyError: there is none.
        """
        for row in self.rows:
            if next(iter(row.values())) == name:
                return row
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data; docs/experiments.md has its fields."""
        names = ("name", "question", "function", "shows", "conclusion", "holds")
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in names},
            "rows": [dict(row) for row in self.rows],
            "notes": list(self.notes),
            "machine": dict(self.machine),
            "versions": dict(self.versions),
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON, also written to the file ``path`` if there is one.

        Raises:
            ArgumentError: the file cannot be written.
        """
        return written("experiment", self.to_dict(), path)

    def _printed(self) -> list[str]:
        lines = [
            filled(f"{self.name}: {self.question}"),
            filled(f"{self.function} on {self.machine['device']}, torch {self.versions['torch']}"),
            filled(self.shows),
            "",
        ]
        if self.rows:
            cells = [[_cell(value) for value in row.values()] for row in self.rows]
            lines += [*table([name.replace("_", " ") for name in self.rows[0]], cells), ""]
        lines += map(filled, self.notes)
        return [*lines, filled(f"{_WORDS[self.holds]}: {self.conclusion}")]


def reports_as_json(reports: Iterable[ExperimentReport]) -> str:
    """Several reports as a list in JSON."""
    return as_json([report.to_dict() for report in reports])


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)
