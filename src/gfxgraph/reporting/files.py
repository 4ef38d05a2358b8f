"""Finds and reads the files of a report; what cannot be read is named with the reason."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .kinds import Unknown, parts_of, unwrapped
from .parts import Part

__all__ = ["LeftOut", "Shown", "printable", "read"]

_LARGEST = 64 * 2**20  # bytes; a trace of seconds has some


class LeftOut(NamedTuple):
    """A file that a report does not show.

    Attributes:
        file: its path, as it was reached.
        reason: why it is left out.
    """

    file: str
    reason: str


class Shown(NamedTuple):
    """A file that a report shows.

    Attributes:
        file: its path, as it was reached.
        parts: what it adds to the page.
    """

    file: str
    parts: tuple[Part, ...]


def read(paths: Iterable[Path]) -> tuple[list[Shown], list[LeftOut]]:
    """Read files, and the files ``*.json`` in directories and those below, but hidden ones."""
    shown: list[Shown] = []
    left_out: list[LeftOut] = []
    seen: set[str] = set()
    for path in paths:
        files, closed = _files(path)
        left_out += closed
        if not files and not closed:
            left_out.append(LeftOut(printable(str(path)), "a directory without files *.json"))
        for file in files:
            name = printable(str(file))
            try:
                real = os.path.realpath(file)
                if real in seen:
                    continue
                seen.add(real)
                reports = list(unwrapped(_json(file), {"file": printable(file.name)}))
            except (Unknown, ValueError) as error:  # the latter of a null character in the path
                left_out.append(LeftOut(name, str(error)))
                continue
            parts: list[Part] = []
            for where, report, known in reports:
                try:
                    parts += parts_of(report, known)
                except Unknown as error:
                    left_out.append(LeftOut(name + where, str(error)))
            if parts:
                shown.append(Shown(name, tuple(parts)))
    return shown, left_out


def _files(path: Path) -> tuple[list[Path], list[LeftOut]]:
    """The files at ``path``, and the directories there that cannot be read."""
    closed: list[LeftOut] = []
    if not _is_directory(path):
        return [path], closed

    def note(error: OSError) -> None:
        closed.append(LeftOut(printable(str(error.filename)), _words(error)))

    found: list[Path] = []
    for folder, folders, names in os.walk(path, onerror=note):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            Path(folder, name)
            for name in sorted(names)
            if name.endswith(".json") and not name.startswith(".")
        ]
    return found, closed


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # reading it says what is wrong
        return False


def _json(file: Path) -> Any:
    try:
        if not file.is_file() and file.exists():
            raise Unknown("neither a file nor a directory")
        if file.stat().st_size > _LARGEST:
            raise Unknown(f"larger than {_LARGEST // 2**20} MiB")
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unknown("no text in UTF-8") from error
    except OSError as error:
        raise Unknown(_words(error)) from error
    if not text.strip():
        raise Unknown("an empty file")
    try:
        return _clean(json.loads(text))
    except RecursionError as error:
        raise Unknown("JSON that is nested too deeply") from error
    except json.JSONDecodeError as error:
        begun, ends = text.strip()[0], text.strip()[-1]
        cut = ", and the file ends within: it is truncated"
        cut = cut if begun in "{[" and (ends not in "}]" or error.pos >= len(text.rstrip())) else ""
        raise Unknown(f"no JSON: {error.msg} in line {error.lineno}{cut}") from error
    except ValueError as error:
        raise Unknown("a number in it has more digits than Python reads") from error


def printable(text: str) -> str:
    """``text`` with a replacement for what no page and no drawing may hold."""
    return _NO_CHARACTER.sub("\N{REPLACEMENT CHARACTER}", text)


# Control characters, half a pair of surrogates, separators of lines: for some of them Vega fails,
# or ends the process. Characters that set the direction would turn our own figures around.
_NO_CHARACTER = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def _clean(data: Any) -> Any:
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, list):
        return [_clean(one) for one in data]
    if isinstance(data, dict):
        return {printable(name): _clean(one) for name, one in data.items()}
    return data


def _words(error: OSError) -> str:
    words = {FileNotFoundError: "there is no such file", PermissionError: "it may not be read"}
    return words.get(type(error)) or error.strerror or str(error)
