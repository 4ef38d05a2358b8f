"""``report``: reads files, makes the page, writes it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import ArgumentError
from ..tables import Shown, counted, write_text
from .files import LeftOut, printable, read
from .page import page

__all__ = ["ReportPage", "report"]


@dataclass(frozen=True)
class ReportPage(Shown):
    """A page that :func:`gfxgraph.report` has written.

    Attributes:
        path: the page.
        shown: the files that it shows.
        left_out: the files that it names as left out, each with ``file`` and ``reason``.
    """

    path: Path
    shown: tuple[str, ...]
    left_out: tuple[LeftOut, ...]

    def _printed(self) -> list[str]:
        lines = [f"{self.path}: {counted(len(self.shown), 'file')} shown."]
        lines += [f"Left out: {one.file}: {one.reason}." for one in self.left_out]
        return lines


def report(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    out: str | os.PathLike[str] = "report.html",
    *,
    title: str = "gfxgraph report",
) -> ReportPage:
    """Make one HTML page of the JSON that commands of gfxgraph wrote; docs/report.md.

    The page needs no network and runs no JavaScript. A file that cannot be shown is left out, and
    the page says so.

    Args:
        paths: a file or a directory, or several. In directories all ``*.json`` are read, also
            further down. Figures of several commits stand in the order in which they are read.
        out: the page; a file of that name is replaced.
        title: its heading.

    Raises:
        ArgumentError: no file can be shown, or the page cannot be written; a file of that name is
            then as before.
        MissingPackageError: jinja2 or vl-convert-python is not installed.

    >>> print(gfxgraph.report(["bench.json", "results"], "report.html"))
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    try:
        files = [Path(one) for one in given]
        out = Path(out)
        page_file = os.path.realpath(out)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"report() takes paths of files or directories, and one of the page: {error}."
        ) from error
    if not isinstance(title, str):
        raise ArgumentError(f"report(title=): expected text, not {type(title).__name__}.")
    if not files:
        raise ArgumentError("report() takes at least one file or directory.")
    shown, left_out = read(files)
    if not shown:
        reasons = "\n".join(f"{one.file}: {one.reason}." for one in left_out)
        raise ArgumentError(f"There is nothing to show, so no page was written.\n{reasons}")
    names = [one.file for one in shown] + [one.file for one in left_out]
    if any(page_file == os.path.realpath(name) for name in names):
        raise ArgumentError(f"{out} is one of the files to show; name another page.")
    _write(out, page(printable(title), shown, left_out))
    return ReportPage(out, tuple(one.file for one in shown), tuple(left_out))


def _write(path: Path, text: str) -> None:
    """Replace ``path`` at once, so that an error leaves what was there."""
    try:
        target = path.resolve()  # of a link its target
        if target.exists() and not target.is_file():
            raise FileExistsError(0, "it is no file")  # such as a directory, or a device
        if not target.parent.is_dir():
            raise FileNotFoundError(0, f"there is no folder {target.parent}")
        write_text(target, text)
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a null character
        why = getattr(error, "strerror", None) or error
        raise ArgumentError(f"The page cannot be written to {path}: {why}.") from error
