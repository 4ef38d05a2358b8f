"""The files that ``gfxgraph lint`` reads."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path, PurePath

from ..errors import ArgumentError
from .report import within

__all__ = ["files_of"]

_SUFFIXES = {".ipynb", ".py", ".sh"}
_SKIPPED = {"__pycache__", "build", "node_modules", "site-packages"}


def files_of(
    paths: Iterable[Path], exclude: Collection[str] = ()
) -> tuple[list[Path], list[tuple[Path, str]]]:
    """The files at and below paths, sorted; and the directories that cannot be read, with reasons.

    A file that is reached twice, also by a link, is read once.

    Raises:
        ArgumentError: a path is no file and no directory.
    """
    unread: list[tuple[Path, str]] = []
    found: dict[str, Path] = {}
    for path in paths:
        for file in _walk(Path(path), exclude, unread):
            found.setdefault(os.path.realpath(file), file)
    return sorted(found.values()), unread


def _walk(path: Path, exclude: Collection[str], unread: list[tuple[Path, str]]) -> Iterator[Path]:
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, ValueError) as error:  # no permission, or a null character
        raise ArgumentError(f"lint: {str(path)!r} cannot be read: {error}.") from error
    if not is_file and not is_folder:
        raise ArgumentError(f"lint: {str(path)!r} is no file and no directory.")
    if _is_excluded(path, exclude):
        return
    if is_file:
        yield path
        return

    def refused(error: OSError) -> None:
        unread.append((Path(error.filename or path), error.strerror or str(error)))

    for folder, inside, names in os.walk(path, onerror=refused):
        inside[:] = [
            name
            for name in inside
            if not _is_skipped(Path(folder, name)) and not _is_excluded(Path(folder, name), exclude)
        ]
        for name in names:
            file = Path(folder, name)
            if file.suffix in _SUFFIXES and file.is_file() and not _is_excluded(file, exclude):
                yield file


def _is_skipped(folder: Path) -> bool:
    name = folder.name
    return name.startswith(".") or name in _SKIPPED or (folder / "pyvenv.cfg").is_file()


def _is_excluded(path: Path, patterns: Collection[str]) -> bool:
    """Whether a pattern matches the path from here, one above it, or a name in it."""
    if not patterns:
        return False
    below = PurePath(within(os.path.abspath(path)))
    parts = [below, *below.parents]
    names = {one.as_posix() for one in parts} | set(below.parts)
    return any(fnmatch(name, pattern.rstrip("/")) for name in names for pattern in patterns)
