"""Reads what ``gfxgraph experiment`` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .facts import facts_of
from .parts import Flag, Level, Part, Table, number

__all__ = ["read_experiment"]


def read_experiment(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for one experiment: its question, its rows and its conclusion."""
    facts = facts_of({**data["versions"], **data["machine"]}, known)
    levels: dict[bool | None, Level] = {True: "ok", False: "error", None: "note"}
    level = levels[data["holds"]]
    title = f"{data['name']}: {data['function']}"
    flags = (Flag("error", f"{title}: {data['conclusion']}", data["question"]),)
    question = data["question"][:1].upper() + data["question"][1:]
    rows = list(data["rows"])
    heads = list(dict.fromkeys(head for row in rows for head in row))
    cells = tuple(tuple(_cell(row.get(head)) for head in heads) for row in rows)
    tables = [Table(tuple(head.replace("_", " ") for head in heads), cells)] if rows else []
    if data["notes"]:
        tables.append(Table(("",), tuple((note,) for note in data["notes"]), "Notes"))
    return [
        Part(
            "experiments",
            title,
            f"{question} {data['conclusion']} {data['shows']}",
            level,
            facts,
            (),
            tuple(tables),
            flags if level == "error" else (),
            (),
            (),
            facts.get("device", ""),
            data["machine"]["emulated"],
        )
    ]


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        number(value) if isinstance(value, (int, float)) else "-" if value is None else str(value)
    )
