"""Reads what ``gfxgraph doctor``, ``gfxgraph env`` and ``gfxgraph parity`` write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tables import in_bytes
from .facts import facts_of
from .parts import Flag, Level, Part, Table

__all__ = ["read_doctor", "read_env", "read_parity"]

_LEVELS: dict[str, Level] = {"ok": "ok", "info": "note", "warning": "warning", "error": "error"}
_SHOWN = ("vendor", "arch", "driver", "rocm", "cuda", "torch", "triton", "vllm")


def read_doctor(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for a diagnosis of a machine."""
    platform = data["platform"] or {}
    name = platform.get("name") or "no machine"
    facts = {**known, "device": name}
    facts |= {what: str(platform[what]) for what in _SHOWN if platform.get(what)}
    if platform.get("memory_total"):
        facts["memory"] = in_bytes(platform["memory_total"])
    found = [(one, _LEVELS.get(one["level"], "warning")) for one in data["findings"]]
    flags = tuple(
        Flag(level, f"{name}: {one['text']}", one["remedy"])
        for one, level in found
        if level in ("error", "warning")
    )
    rows = tuple(
        (level, one["check"], one["text"], one["remedy"], ", ".join(map(str, one["sources"])))
        for one, level in found
    )
    settings = tuple(sorted((platform.get("environment") or {}).items()))
    tables = [Table(("level", "check", "finding", "remedy", "source"), rows, "Findings")]
    if settings:
        tables.append(Table(("variable", "value"), settings, "Environment", folded=True))
    health = data["health"] or {}
    words = {"ok": "Nothing is wrong", "warning": "There are warnings", "error": "It is broken"}
    sentence = f"{words.get(data['status'], data['status'])}."
    if health.get("details"):
        sentence += f" A small graph: {health['details']}."
    level = _LEVELS.get(data["status"], "warning")
    emulated = platform.get("vendor") == "emulated"
    return [Part("machines", name, sentence, level, facts, (), tuple(tables), flags, machine=name,
                 emulated=emulated)]  # fmt: skip


def read_env(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for the settings that a machine needs."""
    tables = []
    for title, name in (("To set", "recommended"), ("Set without effect", "no_effect")):
        rows = [one for one in data[name] if isinstance(one, dict)]
        if rows:
            heads = tuple(rows[0])
            cells = tuple(tuple(str(row.get(head, "")) for head in heads) for row in rows)
            tables.append(Table(heads, cells, title))
    sentence = "" if tables else "This machine needs no settings."
    return [Part("machines", "Settings", sentence, facts=dict(known), tables=tuple(tables))]


def read_parity(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for the capabilities of a machine."""
    machine = data["machine"]
    facts = facts_of({**data["versions"], **machine}, known)
    rows = tuple(
        (row["name"], row["state"], row["does"], row["how"] or row["saw"] or row["why"])
        for row in data["rows"]
    )
    heads = ("capability", "here", "what a program can do", "how, or what was seen, or why not")
    return [
        Part(
            "machines",
            f"Capabilities of CUDA graphs: {machine['device']}",
            f"{data['verdict']}.",
            "note" if data["counts"]["absent"] else "ok",
            facts,
            tables=(Table(heads, rows, folded=True),),
            machine=machine["device"],
            emulated=machine["emulated"],
        )
    ]
