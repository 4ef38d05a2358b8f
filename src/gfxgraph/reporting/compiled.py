"""Reads what ``compile_log``, ``graph_breaks`` and ``save_recipes`` write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tables import counted
from .facts import facts_of
from .parts import Flag, Part, Table, number

__all__ = ["read_breaks", "read_compile_log", "read_recipes"]


def read_compile_log(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for the log of what ``torch.compile`` compiled."""
    found = data["compilations"]
    rows = tuple(
        (
            one["function"],
            f"{one['file']}:{one['line']}",
            one["backend"],
            "backward" if one["backward"] else "forward",
            number(one["seconds"]),
            number(one["nodes"]),
            number(one["kernels"]),
            one["error"] or "",
        )
        for one in found
    )
    heads = ("function", "where", "backend", "graph", "s", "nodes", "kernels", "error")
    failed = [one for one in found if one["error"]]
    flags = tuple(Flag("warning", f"{one['function']} is not compiled.", one["error"])
                  for one in failed)  # fmt: skip
    sentence = f"{counted(len(found), 'compilation')} in {number(data['seconds'])} s."
    return [
        Part("experiments", "torch.compile", sentence, "warning" if failed else None,
             facts_of(data, known), (), (Table(heads, rows, folded=True),), flags)
    ]  # fmt: skip


def read_breaks(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for the places where Dynamo goes back to Python."""
    rows = tuple(
        (
            f"{one['file']}:{one['line']}\n{one['source']}",
            one["reason"],
            one["explanation"],
            "\n".join(one["hints"]),
        )
        for one in data["breaks"]
    )
    sentence = (
        f"{counted(len(data['regions']), 'compiled region')}, {counted(len(rows), 'break')}; "
        f"{number(data['outside'])} of {counted(data['launches'], 'launch')} stay eager."
    )
    tables = (Table(("where", "why", "explanation", "instead"), rows, "Graph breaks"),)
    return [
        Part("hazards", f"{data['name']}: graph breaks", sentence, "note" if rows else "ok",
             dict(known), (), tables if rows else ())
    ]  # fmt: skip


def read_recipes(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for what a service captures at its next start."""
    rows = tuple((one["name"], number(len(one["recipes"]))) for one in data["functions"])
    count = sum(len(one["recipes"]) for one in data["functions"])
    sentence = f"{counted(count, 'graph')} to capture at the next start."
    facts = facts_of(data["environment"], known)
    table = Table(("function", "graphs"), rows, folded=True)
    return [Part("memory", "Recipes", sentence, None, facts, (), (table,))]
