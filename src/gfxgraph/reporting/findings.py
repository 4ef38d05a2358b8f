"""Reads what ``gfxgraph check``, ``lint`` and ``verify`` write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..tables import counted
from .facts import facts_of
from .parts import Flag, Level, Part, Table, number

__all__ = ["read_check", "read_lint", "read_verify"]

_ORDER = ("error", "warning", "note")


def read_check(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for a report of ``check``."""
    facts = facts_of(data, known)
    hazards = list(data["hazards"])
    level: Level = "ok"
    if data["verdict"] in ("eager", "new-paths"):
        level = "warning"
    elif not data["is_graph"] or data["verdict"] != "captures":
        level = "note"
    flags = [
        Flag("warning", f"{data['name']} {data['in_words']}.", "; ".join(_places(hazards)))
    ] * (level == "warning")
    watched = tuple(
        (one["name"], one["value"], _place(one["file"], one["line"])) for one in data["watched"]
    )
    tables = [_hazards(hazards)] if hazards else []
    if watched:
        heads = ("place", "value", "read at")
        title = "What a graph would watch: a change is captured again"
        tables.append(Table(heads, watched, title, folded=True))
    notes = f" {counted(data['operations'], 'operation')} in one run."
    if data["unwatched"]:
        notes += f" What a graph would watch is not known: {data['unwatched']}"
    return [
        Part(
            "hazards",
            data["name"],
            f"{data['name']} {data['in_words']}.{notes}",
            level,
            facts,
            tables=tuple(tables),
            flags=tuple(flags),
        )
    ]


def read_lint(data: Sequence[Mapping[str, Any]], known: Mapping[str, str]) -> list[Part]:
    """A part for the findings of ``lint``."""
    counts = Counter(one["severity"] for one in data)
    level = next((level for level in _ORDER if counts[level]), "ok")
    words = ", ".join(counted(counts[level], level) for level in _ORDER if counts[level])
    flags = [
        Flag(one["severity"], f"lint, {one['rule']}: {one['what']}", _of_finding(one))
        for one in sorted(data, key=lambda one: _ORDER.index(one["severity"]))
        if one["severity"] != "note"
    ]
    rows = [{**one, "effect": "", "count": 1, "place": _of_finding(one)} for one in data]
    files = len({one["file"] for one in data})
    return [
        Part(
            "hazards",
            "lint",
            f"{words} in {counted(files, 'file')}.",
            level,  # type: ignore[arg-type]
            dict(known),
            tables=(_hazards(rows),),
            flags=tuple(flags),
        )
    ]


def read_verify(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for a report of ``verify``."""
    facts = facts_of(data, known)
    results = [data["graph"], *([data["compiled"]] if data["compiled"] else [])]
    level: Level = "ok"
    if data["ok"] is not True or data["verdict"] in ("differs", "raises"):
        level = "error"
    elif data["verdict"] != "equal" or data["reason"]:
        level = "warning"
    words = {
        "equal": "gives what eager gives",
        "differs": "differs from eager",
        "eager": "runs eagerly",
        "raises": "raises an error",
    }
    verdict = f"{data['name']} {words.get(data['verdict'], data['verdict'])}"
    reason = data["graph"]["error"] or data["reason"]
    sentence = f"{verdict}: {reason}" if reason else f"{verdict}, in {data['runs']} runs."
    flags = [Flag(level, f"verify: {verdict}.", reason or _causes(results))]
    return [
        Part(
            "verification",
            data["name"],
            sentence,
            level,
            {**facts, "seeds from": str(data["seed"])},
            tables=tuple(_outputs(results)),
            flags=tuple(flags if level != "ok" else ()),
        )
    ]


def _hazards(rows: Iterable[Mapping[str, Any]]) -> Table:
    ordered = sorted(rows, key=lambda one: _ORDER.index(one["severity"]))
    cells = tuple(
        (
            one["severity"],
            one["rule"],
            f"{one.get('place') or _place(one['file'], one['line'])}\n{one['source']}".rstrip(),
            one["what"] + (f", {one['count']} times" if one["count"] > 1 else ""),
            one["why"],
            one["remedy"],
        )
        for one in ordered
    )
    heads = ("severity", "rule", "where", "what", "why", "instead")
    return Table(heads, cells, "Hazards")


def _places(hazards: Iterable[Mapping[str, Any]]) -> list[str]:
    return [
        f"{_place(one['file'], one['line'])}: {one['source']}"
        for one in hazards
        if one["effect"] == "eager"
    ]


def _place(file: str | None, line: int) -> str:
    return f"{file}:{line}" if file else "-"


def _of_finding(one: Mapping[str, Any]) -> str:
    cell = f", cell {one['cell']}" if one["cell"] else ""
    return f"{one['file']}{cell}:{one['line']}"


def _causes(results: Iterable[Mapping[str, Any]]) -> str:
    return "; ".join(
        f"{one['what']}: {one['why']}" if one["what"] else one["why"]
        for result in results
        for one in result["causes"]
    )


def _outputs(results: Iterable[Mapping[str, Any]]) -> Iterable[Table]:
    heads = ("output", "part", "dtype", "allowed", "relative error", "largest error", "differs at")
    for result in results:
        rows = tuple(
            (
                one["name"],
                one["part"],
                one["dtype"],
                number(one["threshold"]),
                number(one["relative_error"]),
                number(one["max_error"]),
                "nowhere" if one["first"] is None else _where(one["first"]),
            )
            for one in result["outputs"]
        )
        replays = "" if result["replays"] is None else f", {result['replays']} of them replays"
        title = f"{result['name']}: {counted(result['calls'], 'call')}{replays}"
        if rows:
            yield Table(heads, rows, title)
        told = tuple(
            (word, one["kind"], one["what"], one["why"], one["remedy"])
            for word, causes in (("differs", result["causes"]), ("may later", result["cautions"]))
            for one in causes
        )
        if told:
            heads_of_causes = ("", "experiment", "about", "why", "instead")
            yield Table(heads_of_causes, told, f"{result['name']}: why it differs, or may later")


def _where(first: Mapping[str, Any]) -> str:
    at = f", element {first['element']}" if first["element"] else ""
    return f"call {first['call']}{at}: {first['problem']}"
