"""Tables in Markdown, and what is written into their cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.lib.report import shortened


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    """A table; what is no text is written short."""
    head = list(head)
    yield f"| {' | '.join(head)} |"
    yield "| --- |" + " --- |" * (len(head) - 1)
    for row in rows:
        yield f"| {' | '.join(written(cell) for cell in row)} |"


def written(cell: Any) -> str:
    """A cell of a table."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.3g}" if abs(cell) < 100 else f"{cell:,.0f}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return shortened(str(cell)).replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    """Text in which characters mean nothing to Markdown."""
    return f"`{text.replace('`', chr(39))}`"


def marked(text: str, module: str, lines: Iterable[str]) -> str:
    """``text`` with these lines between the marks of the module that makes them."""
    begin, end = f"<!-- figures: benchmarks/tables/{module}.py -->", "<!-- end of figures -->"
    before, rest = text.split(begin)
    return "\n".join([f"{before}{begin}", *lines, end]) + rest.split(end, 1)[1]
