"""``gfxgraph lint``: checks source code without running or importing it.

>>> from pathlib import Path
>>> findings = lint([Path("my_model")])
"""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from .lint_rules import LINT_RULES, LintRule
from .lint_rules.reading import Problem, Text, read
from .lint_rules.source import Mark
from .report import Severity

__all__ = ["LINT_RULES", "Finding", "LintRule", "lint"]

_SUFFIXES = {".ipynb", ".py", ".sh"}
_SKIPPED = {"__pycache__", "build", "node_modules", "site-packages"}
_IGNORE = re.compile(r"#\s*gfxgraph:\s*ignore\b(?:\[([^\]]*)\])?")


@dataclass(frozen=True)
class Finding:
    """One place in the source that a rule objects to.

    Attributes:
        rule: id of the rule in :data:`LINT_RULES`, whose ``title``, ``why`` and ``remedy`` it has.
        severity: ``"error"``: it fails or gives wrong results; ``"warning"``: it has no effect, or
            fails on some devices; ``"note"``: worth a look.
        what: the finding at this place.
        file: the file, as it was reached from the path given to :func:`lint`.
        cell: of a notebook, the number of the cell, from 1; else ``None``.
        line: number of the line in the file or cell, from 1; 0 where it is the whole file.
        column: number of the character in the line, from 1; 0 where there is none.
        source: the text of the line.
    """

    rule: str
    severity: Severity
    title: str
    what: str
    file: str
    cell: int | None
    line: int
    column: int
    source: str
    why: str
    remedy: str

    def to_dict(self) -> dict[str, Any]:
        """The finding for ``--json``."""
        return asdict(self)


def lint(
    paths: Iterable[Path],
    *,
    select: Collection[str] | None = None,
    ignore: Collection[str] = (),
) -> list[Finding]:
    """Read Python files, notebooks and shell scripts, and report what the rules object to.

    ``# gfxgraph: ignore`` on a line suppresses its findings, ``# gfxgraph: ignore[rule]`` those of
    that rule.

    Args:
        paths: files and directories. Directories are walked; hidden ones, virtual environments,
            ``build``, ``node_modules``, ``site-packages`` and ``__pycache__`` are skipped in them.
        select: ids of the rules to check, default all.
        ignore: ids of rules to skip.

    Returns:
        The findings, in the order of the files' names, cells, lines and columns.

    Raises:
        ArgumentError: a path does not exist, or a rule.
    """
    rules = _rules(select, ignore)
    files = sorted({file for path in paths for file in _files(Path(path))})
    found: list[tuple[Finding, str]] = []
    for file in files:
        found += _lint_file(file, rules)
    elsewhere = _named_elsewhere(files, found)
    kept = [one for one, name in found if (one.file, name) not in elsewhere]
    return sorted(kept, key=_position)


def _position(one: Finding) -> tuple[str, int, int, int, str]:
    return one.file, one.cell or 0, one.line, one.column, one.rule


def _rules(select: Collection[str] | None, ignore: Collection[str]) -> list[LintRule]:
    for rule in [*(select or ()), *ignore]:
        if rule not in LINT_RULES:
            known = ", ".join(LINT_RULES)
            raise ArgumentError(f"lint: there is no rule {rule!r}; the rules: {known}.")
    wanted = LINT_RULES if select is None else select
    return [rule for rule in LINT_RULES.values() if rule.id in wanted and rule.id not in ignore]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    if not path.is_dir():
        raise ArgumentError(f"lint: {str(path)!r} is no file and no directory.")
    for folder, inside, names in os.walk(path):
        inside[:] = [name for name in inside if not _is_skipped(Path(folder, name))]
        found = (Path(folder, name) for name in names if Path(name).suffix in _SUFFIXES)
        yield from (file for file in found if file.is_file())


def _is_skipped(folder: Path) -> bool:
    name = folder.name
    return name.startswith(".") or name in _SKIPPED or (folder / "pyvenv.cfg").is_file()


def _lint_file(file: Path, rules: list[LintRule]) -> Iterator[tuple[Finding, str]]:
    """The findings in a file; each with the name that must not occur in another file."""
    text = read(file)
    for rule in rules:
        marks: list[Mark] = []
        if text.source and rule.words.search(text.source.text):
            try:
                marks = list(rule.check(text.source))
            except (RecursionError, ValueError) as error:  # ValueError: of ast.unparse
                text.problems.append(Problem(0, f"{rule.id} was not checked: {error}"))
        for mark in marks:
            if not _is_ignored(text, mark.node, rule):
                line, offset = mark.node.lineno, mark.node.col_offset
                found = _finding(file, text, rule, mark.what, line, offset, mark.severity)
                yield found, mark.unless_named
    unreadable = LINT_RULES["unreadable"]
    if unreadable in rules:
        for problem in text.problems:
            yield _finding(file, text, unreadable, problem.what, problem.line), ""


def _is_ignored(text: Text, node: ast.expr | ast.stmt, rule: LintRule) -> bool:
    """Whether a comment on its first or last line suppresses it."""
    for line in (node.lineno, node.end_lineno or node.lineno):
        comment = _IGNORE.search(text.lines[line - 1])
        if comment and (comment[1] is None or rule.id in re.split(r"[\s,]+", comment[1])):
            return True
    return False


def _finding(
    file: Path,
    text: Text,
    rule: LintRule,
    what: str,
    line: int,
    offset: int | None = None,
    severity: Severity | None = None,
) -> Finding:
    written = text.lines[line - 1] if 0 < line <= len(text.lines) else ""
    cell, number = text.place(line)
    return Finding(
        rule=rule.id,
        severity=severity or rule.severity,
        title=rule.title,
        what=what,
        file=str(file),
        cell=cell,
        line=number,
        column=0 if offset is None else _column(written, offset),
        source=written.strip(),
        why=rule.why,
        remedy=rule.remedy,
    )


def _column(line: str, offset: int) -> int:
    """The syntax tree counts bytes, people count characters."""
    return len(line.encode()[:offset].decode(errors="ignore")) + 1


def _named_elsewhere(
    files: Iterable[Path], found: Iterable[tuple[Finding, str]]
) -> set[tuple[str, str]]:
    """The pairs of file and name whose name occurs in another file too."""
    wanted = {(one.file, name) for one, name in found if name}
    if not wanted:
        return set()
    pattern = re.compile(rf"\b(?:{'|'.join(sorted({name for _, name in wanted}))})\b")
    holders: dict[str, set[str]] = defaultdict(set)
    for file in files:
        with suppress(OSError):
            for name in set(pattern.findall(file.read_text(errors="replace"))):
                holders[name].add(str(file))
    return {(file, name) for file, name in wanted if holders[name] - {file}}
