"""Findings as SARIF 2.1.0, the JSON that code-scanning services and editors read."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from ..record.rules import Rule
from .addresses import rule_address
from .lint import Finding, LintRule
from .report import Hazard

__all__ = ["to_sarif"]

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


Item: TypeAlias = Hazard | Finding


def to_sarif(
    items: Iterable[Item],
    rules: Mapping[str, Rule | LintRule],
    tool_version: str,
    *,
    docs: str | None = None,
) -> dict[str, Any]:
    """Findings as a SARIF 2.1.0 log with one run.

    Args:
        items: hazards of ``check``, findings of ``lint``, or both. GitHub refuses a log with a
            result that has no file.
        rules: the catalogue they come from; for both, ``RULES | LINT_RULES``. All of it is
            written, also the rules that found nothing.
        tool_version: version of gfxgraph.
        docs: address of the documentation. Each rule links to its section of the page of rules,
            and the tool to the page.

    Returns:
        The log, for ``json.dump``. Files inside the current directory are named relative to it
        (``%SRCROOT%``), others by their ``file:`` address.

    Raises:
        KeyError: an item's rule is not in ``rules``.
    """
    index = {rule_id: number for number, rule_id in enumerate(rules)}
    seen: Counter[str] = Counter()
    driver = {
        "name": "gfxgraph",
        "version": tool_version,
        "rules": [_rule(rule, docs) for rule in rules.values()],
    }
    if docs:
        driver["informationUri"] = docs
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(item, index[item.rule], seen) for item in items],
            }
        ],
    }


def _rule(rule: Rule | LintRule, docs: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "id": rule.id,
        "name": "".join(word.capitalize() for word in rule.id.split("-")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": rule.remedy, "markdown": _help(rule)},
    }
    if docs:
        found["helpUri"] = rule_address(docs, rule.id)
    if isinstance(rule, LintRule):
        found["defaultConfiguration"] = {"level": rule.severity}
    return found


def _help(rule: Rule | LintRule) -> str:
    """Reason, remedy and examples, which GitHub shows beside a result."""
    parts = [rule.why, f"**Remedy:** {rule.remedy}"]
    for name, code in (("Before", rule.bad), ("After", rule.good)):
        if code:
            parts.append(f"{name}:\n\n```python\n{code.rstrip()}\n```")
    return "\n\n".join(parts)


def _result(item: Item, rule_index: int, seen: Counter[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": item.rule,
        "ruleIndex": rule_index,
        "level": item.severity,
        "message": {"text": _message(item)},
        "partialFingerprints": {"gfxgraphFinding/v1": _fingerprint(item, seen)},
    }
    if item.file is not None:
        result["locations"] = [_location(item, item.file)]
    if isinstance(item, Hazard):
        result["occurrenceCount"] = item.count
    return result


def _message(item: Item) -> str:
    """The finding, the reason and the remedy, each as a sentence."""
    cell = _cell(item)
    return " ".join(
        text if text.endswith((".", "!", "?")) else f"{text}."
        for text in (f"{cell}: {item.what}" if cell else item.what, item.why, item.remedy)
        if text
    )


def _cell(item: Item) -> str:
    """The place in a notebook: SARIF counts lines of the file, which a cell does not have."""
    if isinstance(item, Finding) and item.cell is not None:
        return f"cell {item.cell}, line {item.line}"
    return ""


def _location(item: Item, file: str) -> dict[str, Any]:
    physical = {"artifactLocation": _artifact(file), "region": _region(item)}
    location: dict[str, Any] = {"physicalLocation": physical}
    if cell := _cell(item):
        location["logicalLocations"] = [{"name": cell}]
    return location


def _region(item: Item) -> dict[str, Any]:
    # SARIF lets a result be about a file as a whole; GitHub and others ask for a line.
    if item.line < 1 or _cell(item):
        return {"startLine": 1}
    region: dict[str, Any] = {"startLine": item.line}
    if isinstance(item, Finding) and item.column > 0:
        region["startColumn"] = item.column
    if item.source:
        region["snippet"] = {"text": item.source}
    return region


def _artifact(file: str) -> dict[str, str]:
    path = Path(os.path.abspath(file))  # takes ".." out, and leaves links as they are
    here = Path.cwd()
    if path.is_relative_to(here):
        return {"uri": quote(path.relative_to(here).as_posix()), "uriBaseId": "%SRCROOT%"}
    return {"uri": path.as_uri()}


def _fingerprint(item: Item, seen: Counter[str]) -> str:
    """A fingerprint that stays the same when the line moves in its file."""
    place = _artifact(item.file)["uri"] if item.file is not None else ""
    key = "\0".join((item.rule, place, re.sub(r"\s+", " ", item.source.strip())))
    seen[key] += 1
    return hashlib.sha256(f"{key}\0{seen[key]}".encode()).hexdigest()[:32]
