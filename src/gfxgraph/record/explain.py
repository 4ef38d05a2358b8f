"""Turns a hazard into an error that explains it."""

from __future__ import annotations

from ..errors import CaptureError
from ..interpose.source import Source
from .rules import RULES

__all__ = ["explain", "some"]


def explain(rule: str, what: str, where: Source, more: str = "") -> CaptureError:
    """The error that says why a function is not captured: line, operation, rule and remedy.

    Args:
        rule: id in the catalogue.
        what: the API or the operator.
        where: the user's line.
        more: a further sentence.
    """
    entry = RULES[rule]
    place = f"{where}: " if where.file else ""
    parts = [f"{place}{entry.title} ({what}).", more, entry.why, f"Instead: {entry.remedy}"]
    error = CaptureError(" ".join(part for part in parts if part))
    error.rule, error.operation, error.remedy = rule, what, entry.remedy
    error.file, error.line = where.file, where.line
    return error


def some(names: list[str]) -> str:
    """The first of ``names``, for a message."""
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
