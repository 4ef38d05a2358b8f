"""What programs can do with graphs: the rows of ``capabilities.json``, each fact with its source.

A row says what a program can do, which probe proves it, how gfxgraph gives the same where the
machine does not have it, and since which version CUDA and ROCm have it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

__all__ = ["Bridge", "Capability", "Fact", "Source", "capabilities", "groups", "sources"]


@dataclass(frozen=True)
class Source:
    """Where a fact is from.

    Attributes:
        title: what it is.
        url: where it is.
        how: ``"read"`` in source or documentation, or ``"reported"`` by users. Nothing was run.
    """

    title: str
    url: str
    how: Literal["read", "reported"]


@dataclass(frozen=True)
class Fact:
    """What is known of a capability on machines of one vendor.

    Attributes:
        since: the version of CUDA or ROCm; ``"any"``: PyTorch gives it; ``None``: none has it.
        functions: those that it needs.
        note: what else is known; ``""``: nothing.
        sources: names of sources.
    """

    since: str | None
    functions: tuple[str, ...]
    note: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Bridge:
    """How gfxgraph gives the same by another way.

    Attributes:
        probe: proves it.
        how: in words.
    """

    probe: str
    how: str


@dataclass(frozen=True)
class Capability:
    """Something that a program can do. A probe named like ``id`` proves it.

    Attributes:
        id: a short name.
        group: a key of :func:`groups`.
        name: in the field's words.
        does: what a program can do, one sentence.
        instead: what to do where it is absent.
        bridge: how gfxgraph gives the same; ``None``: it does not.
        facts: ``"cuda"`` and ``"rocm"``, as far as they say something of it.
        issues: ids of known issues (``device/known_issues.json``).
    """

    id: str
    group: str
    name: str
    does: str
    instead: str
    bridge: Bridge | None = None
    facts: Mapping[str, Fact] = field(default_factory=dict)
    issues: tuple[str, ...] = ()


@cache
def _data() -> dict[str, Any]:
    text = files(__package__).joinpath("capabilities.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


@cache
def capabilities() -> tuple[Capability, ...]:
    """All, in the order of the file."""
    return tuple(
        Capability(
            id=row["id"],
            group=row["group"],
            name=row["name"],
            does=row["does"],
            instead=row["instead"],
            bridge=Bridge(**row["bridge"]) if "bridge" in row else None,
            facts={vendor: _fact(row[vendor]) for vendor in ("cuda", "rocm") if vendor in row},
            issues=tuple(row.get("issues", ())),
        )
        for row in _data()["capabilities"]
    )


def groups() -> Mapping[str, str]:
    """Name of a group -> its heading, in order."""
    found: dict[str, str] = _data()["groups"]
    return found


@cache
def sources() -> Mapping[str, Source]:
    """Name -> source."""
    return {name: Source(**one) for name, one in _data()["sources"].items()}


def _fact(data: Mapping[str, Any]) -> Fact:
    return Fact(data["since"], tuple(data["functions"]), data["note"], tuple(data["sources"]))
