"""Reads files as Python source: modules, notebooks, and the exports of shell scripts."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..report import Severity
from .source import LintRule, Source

__all__ = ["RULES", "Problem", "Text", "read"]

_ASSIGNMENT = r"(\w+)=(\"[^\"]*\"|'[^']*'|[^\s;&|]*)"
_EXPORT = re.compile(rf"\s*(?:export\s+)?((?:{_ASSIGNMENT}\s*)+)")
_MAGIC = re.compile(r"(\s*)(?:[%!?]|[\w.]+\?|(?:cd|conda|ls|mkdir|pip|pwd)\b)")
_ENV_MAGIC = re.compile(r"%(?:set_)?env\s+(\w+)[=\s]\s*(.*)")
_LARGEST = 4 << 20  # bytes; the largest modules that people write have some hundred KiB
_QUOTES = "\"'"
_PYTHON_CELLS = ("%%capture", "%%prun", "%%time", "%%timeit")


@dataclass(frozen=True)
class Problem:
    """Why a file or a cell could not be read, at a line of the text (0: none)."""

    line: int
    what: str
    severity: Severity | None = None


@dataclass
class Text:
    """The text of a file.

    Attributes:
        source: the file as Python, or ``None``.
        lines: its lines as they were written.
        cells: of a notebook, for each code cell its number and its first line in ``lines``.
        problems: parts that could not be read.
    """

    source: Source | None = None
    lines: list[str] = field(default_factory=list)
    cells: list[tuple[int, int]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def place(self, line: int) -> tuple[int | None, int]:
        """The cell that a line is in, and its number in the cell."""
        for number, first in reversed(self.cells):
            if first <= line:
                return number, line - first + 1
        return None, line


def read(path: Path) -> Text:
    """Read a Python file, a notebook (``.ipynb``) or a shell script (``.sh``)."""
    try:
        if path.stat().st_size > _LARGEST and path.suffix != ".ipynb":  # which may hold images
            what = f"larger than {_LARGEST >> 20} MiB, and so taken for data: exclude it"
            return Text(problems=[Problem(0, what, "note")])
        raw = path.read_bytes()
        if path.suffix == ".ipynb":
            return _notebook(json.loads(raw))
        if path.suffix == ".sh":
            return _script(raw.decode())
        return _module(importlib.util.decode_source(raw), path)
    # ValueError: not UTF-8, or not JSON; RecursionError: JSON that is nested too deep.
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        return Text(problems=[_problem(error)])


def _problem(error: Exception) -> Problem:
    if isinstance(error, SyntaxError):
        return Problem(error.lineno or 0, f"no valid Python: {error.msg}")
    if isinstance(error, OSError):
        return Problem(0, error.strerror or str(error))
    return Problem(0, str(error))


def _module(text: str, path: Path) -> Text:
    lines = text.split("\n")
    packaged = (path.parent / "__init__.py").is_file()
    try:
        return Text(Source(text, _parse(text), _name(path), packaged), lines)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Text(None, lines, problems=[_problem(error)])


def _name(path: Path) -> str:
    """The name of a module: its file's, after those of the packages around it."""
    parts = [path.stem]
    for folder in path.absolute().parents:
        if not (folder / "__init__.py").is_file():
            break
        parts.insert(0, folder.name)
    return ".".join(parts)


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the linted code: invalid escapes
        return ast.parse(text)


def _script(text: str) -> Text:
    """A shell script as the Python that would set the same variables, line by line."""
    lines = text.splitlines()
    python = "\n".join(_as_python(line) for line in lines)
    return Text(Source(python, _parse(python)), lines)


def _as_python(line: str) -> str:
    exports = _EXPORT.match(line)
    found = re.findall(_ASSIGNMENT, exports[1]) if exports else []
    return "; ".join(f"os.environ[{name!r}] = {value.strip(_QUOTES)!r}" for name, value in found)


def _notebook(content: Any) -> Text:
    """The code cells one after the other: they share their names."""
    text = Text()
    python: list[str] = []
    cells = content.get("cells") if isinstance(content, dict) else None
    if not isinstance(cells, list):
        raise ValueError("no notebook: it has no cells")
    for number, cell in enumerate(cells, start=1):
        match cell:
            case {"cell_type": "code", "source": (str() | list()) as written}:
                source = "".join(map(str, written))
                lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
                text.cells.append((number, len(text.lines) + 1))
                python += _cell(lines, text)
                text.lines += lines
    joined = "\n".join(python)
    text.source = Source(joined, _parse(joined))
    return text


def _cell(lines: list[str], text: Text) -> list[str]:
    """A cell as Python; IPython's own syntax is replaced only if the cell is not valid Python."""
    python = lines
    if lines[0].startswith("%%"):
        python = ["", *lines[1:]] if lines[0].startswith(_PYTHON_CELLS) else [""] * len(lines)
    for fast_path in (python, [_without_magic(line) for line in python]):
        try:
            _parse("\n".join(fast_path))
            return fast_path
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            problem = _problem(error)
    text.problems.append(Problem(len(text.lines) + max(problem.line, 1), problem.what))
    return [""] * len(lines)


def _without_magic(line: str) -> str:
    env = _ENV_MAGIC.match(line)
    if env:
        return f"os.environ[{env[1]!r}] = {env[2]!r}"
    magic = _MAGIC.match(line)
    return f"{magic[1]}pass" if magic else line


RULES = (
    LintRule(
        id="unreadable",
        title="a file cannot be read as Python",
        severity="error",
        why="gfxgraph lint checked nothing in it.",
        remedy="Correct the file, save it as UTF-8, or lint it with the Python version that it is "
        "written for.",
        bad="def f(:\n",
        good="def f():\n    pass\n",
        words=frozenset(),  # found while reading, before any rule
        check=lambda source: (),
    ),
)
