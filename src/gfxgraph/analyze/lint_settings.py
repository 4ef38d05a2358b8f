"""Settings of ``gfxgraph lint`` in pyproject.toml, and findings that are known already."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import ArgumentError
from .lint import LINT_RULES, Finding

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["FAIL_ON", "LintSettings", "new_findings", "settings_from", "write_baseline"]

FAIL_ON = ("error", "warning", "note", "never")
"""The least severity that makes the command fail; ``"never"``: none does."""

_SCHEMA = "gfxgraph.lint-baseline/1"
_Key: TypeAlias = tuple[str, str, str]  # rule, file, source


@dataclass(frozen=True)
class LintSettings:
    """The table ``[tool.gfxgraph.lint]``.

    Attributes:
        select: ids of the rules to check; ``None``: all.
        ignore: ids of rules to skip.
        exclude: patterns of files to skip, see :func:`gfxgraph.analyze.lint.lint`.
        fail_on: the least severity that makes the command fail (``fail-on`` in the file).
        baseline: a file with known findings, from the folder of pyproject.toml.
    """

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    fail_on: str = "warning"
    baseline: Path | None = None


def settings_from(folder: Path) -> LintSettings:
    """The settings of the nearest pyproject.toml in a folder or above it.

    Raises:
        ArgumentError: it cannot be read, or a setting is malformed; the message names it.
    """
    for place in (folder, *folder.parents):
        file = place / "pyproject.toml"
        if file.is_file():
            return _settings(file)
    return LintSettings()


def _settings(file: Path) -> LintSettings:
    try:
        data = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: no TOML, or no UTF-8
        raise ArgumentError(f"{file}: cannot be read: {error}.") from error
    table: Any = data
    for name in ("tool", "gfxgraph", "lint"):
        if not isinstance(table, dict):
            raise ArgumentError(f"{file}: [tool.gfxgraph.lint]: expected a table.")
        table = table.get(name, {})
    if not isinstance(table, dict):
        raise ArgumentError(f"{file}: [tool.gfxgraph.lint]: expected a table.")
    known = [one.name.replace("_", "-") for one in fields(LintSettings)]
    given: dict[str, Any] = {}
    for key, value in table.items():
        where = f"{file}: [tool.gfxgraph.lint] {key} = {value!r}"
        if key not in known:
            raise ArgumentError(f"{where}: there is no such setting; expected {', '.join(known)}.")
        given[key.replace("-", "_")] = _value(key, value, where, file.parent)
    return LintSettings(**given)


def _value(key: str, value: Any, where: str, folder: Path) -> Any:
    if key in ("select", "ignore", "exclude"):
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ArgumentError(f'{where}: expected a list of strings, such as ["tests"].')
        for rule in value if key != "exclude" else ():
            if rule not in LINT_RULES:
                raise ArgumentError(f"{where}: no rule {rule!r}; expected {', '.join(LINT_RULES)}.")
        return tuple(value)
    if not isinstance(value, str) or (key == "fail-on" and value not in FAIL_ON):
        expected = f"one of {', '.join(FAIL_ON)}" if key == "fail-on" else "the path of a file"
        raise ArgumentError(f"{where}: expected {expected}.")
    return folder / value if key == "baseline" else value


def write_baseline(file: Path, findings: Iterable[Finding]) -> None:
    """Write findings to a file, so that later runs report only new ones.

    It names a finding by rule, file (from the folder of the baseline) and source, not by line: code
    may move.

    Raises:
        ArgumentError: the file cannot be written.
    """
    counts = Counter(_key(one, file) for one in findings)
    known = [
        {"rule": rule, "file": name, "source": source, "count": count}
        for (rule, name, source), count in sorted(counts.items())
    ]
    text = json.dumps({"schema": _SCHEMA, "findings": known}, indent=1, ensure_ascii=False)
    try:
        file.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ArgumentError(f"The baseline cannot be written: {error}.") from error


def new_findings(file: Path, findings: Iterable[Finding]) -> tuple[list[Finding], int]:
    """The findings that a baseline does not hold, and how many of it there are no more.

    Raises:
        ArgumentError: there is no such file, or it is no baseline.
    """
    known = _known(file)
    new = []
    for one in findings:
        key = _key(one, file)
        if known[key] > 0:
            known[key] -= 1
        else:
            new.append(one)
    return new, known.total()


def _known(file: Path) -> Counter[_Key]:
    try:
        data = json.loads(file.read_bytes())
    except OSError as error:
        raise ArgumentError(
            f"{file}: the baseline cannot be read: {error.strerror or error}. "
            "gfxgraph lint --write-baseline FILE makes one."
        ) from error
    except (ValueError, RecursionError) as error:  # no JSON, or nested too deep
        raise ArgumentError(f"{file}: no baseline of gfxgraph lint: {error}.") from error
    if not isinstance(data, Mapping) or data.get("schema") != _SCHEMA:
        raise ArgumentError(f"{file}: no baseline of gfxgraph lint: expected {_SCHEMA!r} in it.")
    known: Counter[_Key] = Counter()
    for entry in data["findings"] if isinstance(data.get("findings"), list) else (None,):
        match entry:
            case {"rule": str(rule), "file": str(name), "source": str(source), "count": int(count)}:
                known[rule, name, source] += count
            case _:
                raise ArgumentError(
                    f"{file}: no baseline of gfxgraph lint: {entry!r}; expected rule, file, source "
                    "and count."
                )
    return known


def _key(one: Finding, baseline: Path) -> _Key:
    name = os.path.abspath(one.file)
    folder = os.path.abspath(baseline.parent)
    if os.path.splitdrive(name)[0] == os.path.splitdrive(folder)[0]:
        name = os.path.relpath(name, folder)
    cell = f" cell {one.cell}" if one.cell is not None else ""
    return one.rule, f"{Path(name).as_posix()}{cell}", re.sub(r"\s+", " ", one.source)
