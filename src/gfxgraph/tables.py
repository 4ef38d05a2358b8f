"""Formats printed text: lines, fields and tables of at most 100 columns."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "WIDTH",
    "Printed",
    "Sections",
    "as_json",
    "counted",
    "fields",
    "filled",
    "in_bytes",
    "table",
]

WIDTH = 100


def as_json(data: Any, path: str | Path | None = None) -> str:
    """``data`` as indented JSON, also written to the file ``path`` if there is one."""
    text = json.dumps(data, indent=2)
    if path is not None:
        Path(path).write_text(f"{text}\n", encoding="utf-8")
    return text


def counted(count: int, what: str) -> str:
    """``"1 launch"``, ``"2 launches"``."""
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{count} {what if count == 1 else plural}"


def filled(text: str, width: int = WIDTH) -> str:
    """``text`` wrapped between words, indented as it begins."""
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.fill(
        text,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def fields(rows: Iterable[tuple[str, Any]]) -> list[str]:
    """A line for each name and its value; a mapping gets a line for each of its items."""
    rows = list(rows)
    width = 2 + max((len(name) for name, _ in rows), default=0)
    lines = []
    for name, value in rows:
        if isinstance(value, Mapping):
            items = [f"{key}: {item}" for key, item in value.items()]
        elif isinstance(value, (list, tuple)):
            items = [str(item) for item in value]
        else:
            items = [f"{value:.2f}" if isinstance(value, float) else str(value)]
        for n, item in enumerate(items or ["none"]):
            lines += textwrap.wrap(
                item,
                WIDTH,
                initial_indent=f"{'' if n else name:<{width}}",
                subsequent_indent=" " * (width + 2),
                break_on_hyphens=False,
            )
    return lines


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of cells; a first cell that would make a line too long is on a line of its own."""
    cells = [tuple(map(str, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    room = max(len(headings[0]), WIDTH - sum(width + 2 for width in widths[1:]))
    widths[0] = max(len(row[0]) for row in (headings, *cells) if len(row[0]) <= room)
    lines = []
    for row in (tuple(headings), *cells):
        if len(row[0]) > widths[0]:
            lines += textwrap.wrap(row[0], WIDTH, subsequent_indent="  ")
            row = ("", *row[1:])
        parts = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(parts).rstrip())
    return lines


def in_bytes(number: int) -> str:
    """Such as ``"2.0 MiB"``."""
    size, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{number} B" if unit == "B" else f"{size:.1f} {unit}"


class Printed(dict[str, Any]):
    """A dict that prints as a line for each item."""

    def __str__(self) -> str:
        return "\n".join(fields(self.items()))


class Sections(dict[str, Any]):
    """A dict that prints as a heading and a text for each item."""

    def __str__(self) -> str:
        return "\n\n".join(f"{name}:\n{text}" for name, text in self.items())
