"""Known issues of graphs, from ``known_issues.json``, and which of them a platform meets.

An issue names vendors, architectures and ranges of versions. A version may be known only in part:
with ``7.2``, a range that ends with ``7.2.3`` stays open. Such a match is not certain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from math import inf
from typing import Literal

from .platform import Platform

__all__ = ["Issue", "IssueSeverity", "Match", "Range", "issues_of", "known_issues", "within"]

IssueSeverity = Literal["error", "warning", "info"]
Program = Literal["rocm", "torch", "triton", "vllm"]

_NAMES = {"rocm": "ROCm", "torch": "torch", "triton": "Triton", "vllm": "vLLM"}


@dataclass(frozen=True)
class Range:
    """Versions from one on and before another; ``None``: no end on that side."""

    start: str | None = None
    before: str | None = None

    def __str__(self) -> str:
        ends = [f"from {self.start}"] if self.start else []
        return " ".join([*ends, *([f"before {self.before}"] if self.before else [])]) or "all"


@dataclass(frozen=True)
class Issue:
    """A known problem, and the platforms that have it.

    Attributes:
        id: where it was reported, in short: ``"pt#155684"``.
        links: the reports.
        symptom: what happens.
        workaround: what to do; also what gfxgraph does by itself.
        severity: ``"error"``: graphs may give wrong results or end the process, and nothing here
            prevents it; ``"warning"``: only in some uses, or first replays show it; ``"info"``:
            gfxgraph avoids it, or it is not of graphs.
        vendors: ``"nvidia"``, ``"amd"``.
        archs: patterns of architectures, such as ``"gfx11*"``; empty: all.
        versions: the range of each program that matters.
        variables: environment variables that avoid it.
    """

    id: str
    links: tuple[str, ...]
    symptom: str
    workaround: str
    severity: IssueSeverity
    vendors: tuple[str, ...]
    archs: tuple[str, ...]
    versions: Mapping[Program, Range]
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Match:
    """An issue that a platform meets, or may meet.

    Attributes:
        issue: the issue.
        unknown: why the match is not certain; empty: it is certain.
    """

    issue: Issue
    unknown: tuple[str, ...] = ()


@cache
def known_issues() -> tuple[Issue, ...]:
    """All issues, in the order of the file."""
    text = files(__package__).joinpath("known_issues.json").read_text(encoding="utf-8")
    return tuple(
        Issue(
            id=row["id"],
            links=tuple(row["links"]),
            symptom=row["symptom"],
            workaround=row["workaround"],
            severity=row["severity"],
            vendors=tuple(row["vendors"]),
            archs=tuple(row.get("archs", ())),
            versions={
                program: Range(ends.get("from"), ends.get("before"))
                for program, ends in row.get("versions", {}).items()
            },
            variables=row.get("variables", {}),
        )
        for row in json.loads(text)["issues"]
    )


def issues_of(platform: Platform) -> list[Match]:
    """The issues that ``platform`` meets or may meet, in the order of the file."""
    matches = (_match(issue, platform) for issue in known_issues())
    return [match for match in matches if match is not None]


def within(version: str, versions: Range) -> bool | None:
    """Whether ``version`` lies in a range; ``None`` if it is not precise enough.

    Text after the numbers (``+rocm7.2``, ``a0``) does not count. Nor does a number from 1000 on
    with its followers: HIP counts its builds there.
    """
    low, high = _numbers(version, 0), _numbers(version, inf)
    if versions.start is not None:
        start = _numbers(versions.start, 0)
        if high < start:
            return False
        if low < start:
            return None
    if versions.before is not None:
        before = _numbers(versions.before, 0)
        if low >= before:
            return False
        if high >= before:
            return None
    return True


def _match(issue: Issue, platform: Platform) -> Match | None:
    if platform.vendor not in issue.vendors:
        return None
    unknown = []
    # An override changes what code runs, not what runs it: both count.
    archs = [arch for arch in (platform.arch, platform.hardware_arch) if arch]
    if issue.archs and not archs:
        unknown.append(f"the architecture is not known (affected: {', '.join(issue.archs)})")
    elif issue.archs and not any(fnmatchcase(a, one) for a in archs for one in issue.archs):
        return None
    for program, versions in issue.versions.items():
        version = getattr(platform, program)
        if version == "":  # it is not there
            return None
        inside = None if version is None else within(version, versions)
        if inside is False:
            return None
        if inside is None:
            known = f"known only as {version}" if version else "not known"
            unknown.append(f"the version of {_NAMES[program]} is {known} (affected: {versions})")
    return Match(issue, tuple(unknown))


def _numbers(version: str, rest: float) -> tuple[float, ...]:
    """Four numbers, with ``rest`` for those that are missing."""
    match = re.match(r"\d+(\.\d+)*", version)
    known: list[float] = [int(one) for one in match[0].split(".")] if match else []
    known = known[: next((at for at, one in enumerate(known) if one >= 1000), len(known))]
    return tuple([*known, rest, rest, rest, rest][:4])
