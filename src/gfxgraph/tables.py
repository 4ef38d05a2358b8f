"""Formats reports: as text of at most 100 columns, and as HTML for notebooks."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

__all__ = [
    "WIDTH",
    "Printed",
    "Sections",
    "Shown",
    "as_json",
    "counted",
    "fields",
    "filled",
    "fit",
    "in_bytes",
    "progress_bar",
    "table",
    "write_text",
]

WIDTH = 100
"""The columns of a text that is not shown in a terminal, and the most of one that is."""

_NARROWEST = 20
_width = WIDTH

_CELL = "text-align:left;vertical-align:top;white-space:pre-wrap;padding:2px 8px"


def as_json(data: Any, path: str | Path | None = None) -> str:
    """``data`` as indented JSON, also written to the file ``path`` if there is one."""
    text = json.dumps(data, indent=2)
    if path is not None:
        write_text(path, f"{text}\n")
    return text


def write_text(path: str | Path, text: str) -> None:
    """Write a file whole or not at all: where there is no room, what was there before stays.

    Raises:
        OSError: it cannot be written.
    """
    target = Path(path).resolve()  # of a link its target
    if target.exists() and not target.is_file():  # a device or a pipe
        target.write_text(text, encoding="utf-8")
        return
    temporary = target.with_name(f".gfxgraph.{os.getpid()}.{threading.get_ident()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except PermissionError:  # of the folder: no other file can take its place
        target.write_text(text, encoding="utf-8")
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def progress_bar(total: float, wanted: bool = True) -> Iterator[Callable[[str, float], None]]:
    """A progress bar, where stderr is a terminal.

    Args:
        total: how much there is to do.
        wanted: ``False``: no bar.

    Returns:
        A function that shows what is being done, and how much is done. Nothing is shown before.
    """
    if not wanted or not total or not _is_terminal(sys.stderr):
        yield lambda what, done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    # Without a thread that draws: beside another thread some captures are refused. Nor is stdout
    # replaced, which a function that is captured may use.
    bar = Progress(
        console=Console(stderr=True),
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = bar.add_task("", total=total)

    def show(what: str, done: float) -> None:
        bar.start()
        bar.update(task, description=what, completed=done, refresh=True)

    try:
        yield show
    finally:
        bar.stop()


def _is_terminal(stream: Any) -> bool:
    """Whether it is one; a service may have no stderr, or a closed one."""
    return stream is not None and not stream.closed and bool(stream.isatty())


def counted(count: int, what: str) -> str:
    """``"1 launch"``, ``"2 launches"``."""
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{count} {what if count == 1 else plural}"


def fit(columns: int) -> None:
    """Write texts for a terminal of so many columns from now on."""
    global _width
    _width = min(max(columns, _NARROWEST), WIDTH)


def filled(text: str, width: int | None = None) -> str:
    """``text`` wrapped between words, indented as it begins."""
    width = _width if width is None else width
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.fill(
        text,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


class _Table(str):
    """The printed lines of a table, which knows its cells."""

    cells: list[tuple[str, ...]]
    headings: tuple[str, ...]

    def __new__(
        cls,
        lines: Iterable[str],
        cells: list[tuple[str, ...]],
        headings: Sequence[str] = (),
    ) -> _Table:
        made = super().__new__(cls, "\n".join(lines))
        made.cells, made.headings = cells, tuple(headings)
        return made


def fields(rows: Iterable[tuple[str, Any]]) -> list[str]:
    """A table with a row for each name and its value, in which a mapping has a line an item."""
    rows = list(rows)
    width = 2 + max((len(name) for name, _ in rows), default=0)
    lines: list[str] = []
    cells: list[tuple[str, ...]] = []
    for name, value in rows:
        if isinstance(value, Mapping):
            items = [f"{key}: {item}" for key, item in value.items()]
        elif isinstance(value, (list, tuple)):
            items = [str(item) for item in value]
        else:
            items = [f"{value:.2f}" if isinstance(value, float) else str(value)]
        items = items or ["none"]
        cells.append((name, "\n".join(items)))
        for n, item in enumerate(items):
            lines += textwrap.wrap(
                item,
                max(_width, width + _NARROWEST),
                initial_indent=f"{'' if n else name:<{width}}",
                subsequent_indent=" " * (width + 2),
                break_on_hyphens=False,
            )
    return [_Table(lines, cells)] if rows else []


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table; a first cell that would make a line too long is on a line of its own.

    Where the terminal is too narrow for the columns, each cell has a line, with its heading.
    """
    cells = [tuple(map(str, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    if sum(width + 2 for width in widths[1:]) + len(headings[0]) > _width and _width < WIDTH:
        return [_Table(_stacked(headings, cells), cells, headings)]
    room = max(len(headings[0]), _width - sum(width + 2 for width in widths[1:]))
    widths[0] = max(len(row[0]) for row in (headings, *cells) if len(row[0]) <= room)
    lines = []
    for row in (tuple(headings), *cells):
        if len(row[0]) > widths[0]:
            lines += textwrap.wrap(row[0], _width, subsequent_indent="  ")
            row = ("", *row[1:])
        parts = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(parts).rstrip())
    return [_Table(lines, cells, headings)]


def _stacked(headings: Sequence[str], cells: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in cells:
        yield filled(row[0])
        for heading, cell in zip(headings[1:], row[1:], strict=True):
            if cell:
                yield filled(f"  {heading}: {cell}" if heading else f"  {cell}")


def in_bytes(number: int) -> str:
    """Such as ``"2.0 MiB"``."""
    size, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{number} B" if unit == "B" else f"{size:.1f} {unit}"


class Shown:
    """A report that prints as text, and that notebooks show with tables of HTML."""

    def _printed(self) -> list[str]:
        """The text in pieces: lines, :func:`fields` and :func:`table`."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(map(_wrapped, self._printed()))

    def _repr_html_(self) -> str:
        """The report for notebooks. It has no colours of its own, so it suits any theme."""
        return f"<div>{''.join(_as_html(self._printed()))}</div>"


def _wrapped(piece: str) -> str:
    """A piece of a text, whose lines fit the terminal; tables do already."""
    if isinstance(piece, _Table) or _width == WIDTH:
        return piece
    return "\n".join(filled(line) if len(line) > _width else line for line in piece.split("\n"))


def _as_html(pieces: Iterable[str]) -> Iterator[str]:
    for is_table, some in groupby(pieces, key=lambda piece: isinstance(piece, _Table)):
        if not is_table:
            text = "\n".join(some).strip("\n")
            if text:
                yield f'<pre style="overflow-x:auto">{escape(text)}</pre>'
            continue
        for table in some:
            assert isinstance(table, _Table)
            rows = [_row("th", table.headings)] if table.headings else []
            rows += [_row("td", cells) for cells in table.cells]
            yield f'<div style="overflow-x:auto"><table>{"".join(rows)}</table></div>'


def _row(tag: str, cells: Iterable[str]) -> str:
    inside = "".join(f'<{tag} style="{_CELL}">{escape(cell)}</{tag}>' for cell in cells)
    return f"<tr>{inside}</tr>"


class Printed(dict[str, Any]):
    """A dict that prints as a line for each item, under a verdict if there is one."""

    verdict = ""

    def __str__(self) -> str:
        head = [filled(self.verdict), ""] if self.verdict else []
        return "\n".join([*head, *fields(self.items())])


class Sections(Shown, dict[str, Any]):
    """A dict of reports that prints as a heading and a text for each."""

    def _printed(self) -> list[str]:
        pieces = [
            piece for name, one in self.items() for piece in ("", f"{name}:", *one._printed())
        ]
        return pieces[1:]
