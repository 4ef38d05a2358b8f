"""Shows what ``check`` and ``lint`` found in a terminal."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from ..tables import counted, filled
from .lint import Finding
from .report import CheckReport, Hazard, Severity, Verdict, within

__all__ = ["located", "show", "show_findings"]

_STYLES: dict[Severity, str] = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
_VERDICTS: dict[Verdict, str] = {
    "captures": "bold green",
    "folds": "bold green",
    "branches": "bold yellow",
    "new-paths": "bold red",
    "eager": "bold red",
}
_PYTHON = Syntax("", "python", theme="ansi_dark")
_AS_IT_IS: dict[str, Any] = {"soft_wrap": True, "markup": False, "highlight": False}


def located(report: CheckReport, fn: Callable[..., Any]) -> list[Hazard]:
    """The hazards; those without a line get that of the definition of ``fn``."""
    for one in (inspect.unwrap(fn), getattr(fn, "forward", None), type(fn).__call__):
        code = getattr(one, "__code__", None)
        if code is not None:
            file, line = code.co_filename, code.co_firstlineno
            return [h if h.file else replace(h, file=file, line=line) for h in report.hazards]
    return report.hazards


def show(report: CheckReport, console: Console) -> None:
    """Print the verdict and the hazards, the worst first."""
    verdict = f"{report.name}: {report.in_words}"
    _print(console, verdict, len(verdict), _VERDICTS[report.verdict])
    for line in report.basis:
        _print(console, line)
    explained: set[tuple[str, str]] = set()
    for hazard in report.hazards:
        count = f", {hazard.count} times" if hazard.count > 1 else ""
        console.print()
        head = f"{hazard.severity} {hazard.rule}: {hazard.what}{count}"
        _print(console, head, len(hazard.severity), _STYLES[hazard.severity])
        if hazard.file:
            console.print(f"  {hazard.place}", **_AS_IT_IS)
        _explain(hazard, explained, console)


def show_findings(findings: list[Finding], console: Console, *, known: int = 0) -> None:
    """Print what ``lint`` found, in the order of the files; ``known``: how many it leaves out."""
    explained: set[tuple[str, str]] = set()
    for one in findings:
        cell = f":cell {one.cell}" if one.cell is not None else ""
        line = "".join(f":{number}" for number in (one.line, one.column) if number)
        text = Text(f"{within(one.file)}{cell}{line}: ")
        text.append(one.severity, _STYLES[one.severity]).append(f": {one.rule}: {one.what}")
        console.print(text, **_AS_IT_IS)
        _explain(one, explained, console)
        console.print()
    severities = [one.severity for one in findings]
    counts = [counted(severities.count(one), one) for one in _STYLES if one in severities]
    found = f"{counted(len(findings), 'finding')}: {', '.join(counts)}." if findings else ""
    more = f" {known} more in the baseline." if known else ""
    console.print(f"{found or 'Nothing found.'}{more}", **_AS_IT_IS)


def _explain(one: Hazard | Finding, explained: set[tuple[str, str]], console: Console) -> None:
    """Print the line of source, and the text of the rule unless it was printed before."""
    if one.source:
        source = _PYTHON.highlight(one.source)
        source.rstrip()
        console.print(Text("    ").append_text(source), **_AS_IT_IS)
    if (one.why, one.remedy) in explained:
        _print(console, f"  Why, remedy: as for {one.rule} above.")
    else:
        explained.add((one.why, one.remedy))
        _print(console, f"  Why: {one.why}")
        _print(console, f"  Remedy: {one.remedy}")


def _print(console: Console, text: str, styled: int = 0, style: str = "") -> None:
    """Wrapped between words, with the first ``styled`` characters in a style."""
    shown = Text(filled(text, min(console.width, 100)))
    shown.stylize(style, 0, styled)
    console.print(shown, **_AS_IT_IS)
