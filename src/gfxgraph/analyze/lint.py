"""``gfxgraph lint``: checks source code without running or importing it, and without torch.

>>> from pathlib import Path
>>> findings = lint([Path("my_model")])
"""

from __future__ import annotations

import ast
import gc
import multiprocessing
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import ArgumentError
from .lint_files import files_of
from .lint_rules import LINT_RULES, LintRule
from .lint_rules.reading import Problem, Text, read
from .lint_rules.source import Mark
from .report import Severity

__all__ = ["LINT_RULES", "Finding", "LintRule", "lint"]

_IGNORE = re.compile(r"#\s*gfxgraph:\s*ignore\b(?:\[([^\]]*)\])?")
_AT_ONCE = 16  # files that a process is given: few, since files differ in size
_WORTH_IT = 48  # files from which on more processes are quicker than one


@dataclass(frozen=True)
class Finding:
    """One place in the source that a rule objects to.

    Attributes:
        rule: id of the rule in :data:`LINT_RULES`, whose ``title``, ``why`` and ``remedy`` it has.
        severity: ``"error"``: it fails or gives wrong results; ``"warning"``: it has no effect, or
            keeps a call from being one graph; ``"note"``: it costs time, or is worth a look.
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


# A finding, and the name that must not occur in another file.
_Found: TypeAlias = tuple[Finding, str]


def lint(
    paths: Iterable[Path],
    *,
    select: Collection[str] | None = None,
    ignore: Collection[str] = (),
    exclude: Collection[str] = (),
    jobs: int = 1,
) -> list[Finding]:
    """Read Python files, notebooks and shell scripts, and report what the rules object to.

    ``# gfxgraph: ignore`` on the first or last line of a statement suppresses its findings,
    ``# gfxgraph: ignore[rule, other]`` those of these rules.

    Args:
        paths: files and directories. Directories are walked; hidden ones, virtual environments,
            ``build``, ``node_modules``, ``site-packages`` and ``__pycache__`` are skipped in them.
        select: ids of the rules to check, default all.
        ignore: ids of rules to skip.
        exclude: patterns of files and directories to skip, such as ``"tests"``, ``"*_pb2.py"`` or
            ``"src/old/*.py"``: each is compared with the path from the current directory, with
            those of the directories above, and with each of their names.
        jobs: how many processes read files. With more than 1, code that is not in a module is to
            be under ``if __name__ == "__main__":``, as always with :mod:`multiprocessing`.

    Returns:
        The findings, in the order of the files' names, cells, lines and columns. A file that cannot
        be read is one of them.

    Raises:
        ArgumentError: a path or a rule does not exist, or ``jobs`` is no number from 1.
    """
    rules = [rule.id for rule in _rules(select, ignore)]
    if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1:
        raise ArgumentError(f"lint: jobs={jobs!r}: expected a whole number from 1.")
    files, unread = files_of(paths, exclude)
    found: list[_Found] = []
    if "unreadable" in rules:
        found += [(_unreadable(path, Text(), Problem(0, what)), "") for path, what in unread]
    work = partial(_lint_file, rules=rules)
    found += [one for some in _in_processes(work, files, jobs) for one in some]
    elsewhere = _named_elsewhere(files, found)
    kept = [one for one, name in found if (one.file, name) not in elsewhere]
    return sorted(kept, key=_position)


def _in_processes(
    work: Callable[[Path], list[_Found]], files: list[Path], jobs: int
) -> Iterator[list[_Found]]:
    if jobs == 1 or len(files) < _WORTH_IT:
        yield from map(work, files)
        return
    # To fork is quicker, and safe while there are no other threads, such as torch's.
    forks = sys.platform == "linux" and "torch" not in sys.modules
    context = multiprocessing.get_context("fork" if forks else "spawn")
    with ProcessPoolExecutor(jobs, context, initializer=gc.disable) as pool:
        yield from pool.map(work, files, chunksize=_AT_ONCE)


def _position(one: Finding) -> tuple[str, int, int, int, str]:
    return one.file, one.cell or 0, one.line, one.column, one.rule


def _rules(select: Collection[str] | None, ignore: Collection[str]) -> list[LintRule]:
    for rule in [*(select or ()), *ignore]:
        if rule not in LINT_RULES:
            known = ", ".join(LINT_RULES)
            raise ArgumentError(f"lint: there is no rule {rule!r}; the rules: {known}.")
    wanted = LINT_RULES if select is None else select
    return [rule for rule in LINT_RULES.values() if rule.id in wanted and rule.id not in ignore]


def _lint_file(file: Path, rules: list[str]) -> list[_Found]:
    """The findings in a file."""
    text, found = read(file), []
    checked = [LINT_RULES[name] for name in rules]
    wanted = set().union(*(rule.words for rule in checked))  # several rules share most of them
    words = {word for word in wanted if text.source and word in text.source.text}
    for rule in checked:
        marks: list[Mark] = []
        if text.source and words & rule.words:
            try:
                marks = list(rule.check(text.source))
            except (RecursionError, ValueError) as error:  # ValueError: of ast.unparse
                text.problems.append(Problem(0, f"{rule.id} was not checked: {error}"))
        for mark in marks:
            if not _is_ignored(text, mark.node, rule):
                line, offset = mark.node.lineno, mark.node.col_offset
                one = _finding(file, text, rule, mark.what, line, offset, mark.severity)
                found.append((one, mark.unless_named))
    if "unreadable" in rules:
        found += [(_unreadable(file, text, problem), "") for problem in text.problems]
    return found


def _unreadable(file: Path, text: Text, problem: Problem) -> Finding:
    rule = LINT_RULES["unreadable"]
    return _finding(file, text, rule, problem.what, problem.line, severity=problem.severity)


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


def _named_elsewhere(files: Iterable[Path], found: Iterable[_Found]) -> set[tuple[str, str]]:
    """The pairs of file and name whose name occurs in another file too."""
    wanted = {(one.file, name) for one, name in found if name}
    if not wanted:
        return set()
    pattern = re.compile(rf"\b(?:{'|'.join(sorted({name for _, name in wanted}))})\b")
    holders: dict[str, set[str]] = defaultdict(set)
    for file in files:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:  # reported when it was read as source
            continue
        for name in set(pattern.findall(text)):
            holders[name].add(str(file))
    return {(file, name) for file, name in wanted if holders[name] - {file}}
