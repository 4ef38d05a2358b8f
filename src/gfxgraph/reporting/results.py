"""Reads results of benchmarks, such as those of this repository, which have no schema.

Each is shown whole, as tables. What is a time as eager and as a graph also becomes a gain: either
``{"eager_ms": ..., "graph_ms": ...}``, or ``{"eager": {"end_to_end_us": ...}, "graph": {...}}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..tables import counted
from .charts import Bar, Range, Row, bars, intervals, ranges, strips
from .facts import PACKAGES, facts_of
from .parts import Chart, Flag, Gain, Level, Part, Point, Section, Table, number, ratio

__all__ = ["read_results", "read_versions"]

_UNIT = "times as fast as eager"
_TIMES = ("end_to_end_us", "ms an image", "ms a step", "ms")
_MANY = 12
_CHARTS = 24
_REPLAYS = 3  # with fewer the times are those of captures
_ORIGIN = {"command", "commit", "commits", "device", "gpu", "about", "report", "notes", *PACKAGES}


def read_results(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for the results of one benchmark."""
    facts = facts_of(data, known)
    title = _title(facts)
    emulated = facts.get("device") == "emulated"
    gains = [] if emulated else list(gains_of(data))
    memory = list(_memory(data))
    charts = [*_charts(title, gains), *memory, *_latencies(data)]
    flags = list(_flags(title, data, gains, facts))
    sentence = ""
    if len(gains) > 1:
        ordered = sorted(gain.times for gain in gains if gain.is_graph)
        if ordered:
            sentence = (
                f"{counted(len(ordered), 'graph')}: from {ratio(ordered[0])} to "
                f"{ratio(ordered[-1])} times as fast as eager."
            )
    elif gains:
        sentence = f"{gains[0].way}: {ratio(gains[0].times)} times as fast as eager."
    few = sum(1 for row in _rows(data) if row.get("replays", _REPLAYS) < _REPLAYS)
    if gains and few:
        sentence += f" {few} have fewer than {_REPLAYS} replays; their times are in the table only."
    functions = len({gain.function for gain in gains})
    if len({gain.way for gain in gains}) > 1 and functions > _CHARTS:
        sentence += f" The charts show {_CHARTS} of {functions} functions, the tables all."
    section: Section = "gains" if gains else "memory" if memory else "experiments"
    if section == "experiments" and _counted(data):
        section = "verification"
    level: Level | None = "ok" if section == "verification" else None
    if flags:
        level = "error" if any(flag.level == "error" for flag in flags) else "warning"
    if emulated:
        sentence = "On the emulated device: the times say nothing of a GPU."
    note = data.get("notes")
    sentence = sentence or _counted(data)
    return [
        Part(
            section,
            title,
            " ".join(filter(None, (sentence, note if isinstance(note, str) else ""))),
            level,
            facts,
            tuple(charts),
            tuple(tables_of(data)),
            tuple(flags),
            tuple(gains),
            tuple(_points(title, data, facts)),
            facts.get("device", ""),
            emulated,
        )
    ]


def read_versions(data: list[Mapping[str, Any]], known: Mapping[str, str]) -> list[Part]:
    """A part for the tests with several versions of torch."""
    failed = [one for one in data if one["failed"]]
    flags = [
        Flag("error", f"torch {one['torch']}, Python {one['python']}: {one['failed']} tests fail.")
        for one in failed
    ]
    sentence = f"All tests pass with {len(data)} pairs of torch and Python."
    if failed:
        sentence = f"Tests fail with {len(failed)} of {len(data)} pairs of torch and Python."
    heads = tuple(data[0])
    rows = tuple(tuple(_text(one.get(head)) for head in heads) for one in data)
    level: Level = "error" if failed else "ok"
    table = Table(heads, rows, folded=True)
    facts = facts_of({"runs": data}, known)
    return [Part("verification", "Versions of torch", sentence, level, facts, (), (table,),
                 tuple(flags))]  # fmt: skip


def gains_of(data: Any, name: str = "") -> Iterator[Gain]:
    """The gains among ``data``; ``name`` is the path to it."""
    if isinstance(data, list):
        for row in data:
            if isinstance(row, dict):
                yield from gains_of(row, str(row.get("name", name)))
        return
    if not isinstance(data, dict):
        return
    plain = {key.replace("_", " "): value for key, value in data.items()}
    both = _is_time(plain.get("eager ms")) and _is_time(plain.get("graph ms"))
    if both and data.get("replays", _REPLAYS) >= _REPLAYS:
        yield Gain(name, "graph", plain["eager ms"] / plain["graph ms"])
    unit = next((u for u in _TIMES if _is_time(_time(data, "eager", u))), None)
    eager = None if unit is None else _time(data, "eager", unit)
    if unit is None:
        for unit in _TIMES:  # of decode: eager with two kinds of caches
            found = [key for key in data if key.startswith("eager,") and _time(data, key, unit)]
            if found:
                eager = min(_time(data, key, unit) for key in found)
                break
    for key, value in data.items():
        if " / " in key:  # a ratio
            continue
        if eager and not key.startswith("eager") and _is_time(_time(data, key, unit or "")):
            yield Gain(name, key, eager / _time(data, key, unit or ""))
        elif isinstance(value, (dict, list)):
            inner = key if key not in ("models", "cases", "ways", "times", "rows") else ""
            yield from gains_of(value, ", ".join(filter(None, (name, inner))))


def tables_of(data: Mapping[str, Any]) -> Iterator[Table]:
    """All that ``data`` has: a table for objects with alike keys, one for each list of objects."""
    plain: list[tuple[str, str]] = []
    groups: list[tuple[list[str], list[tuple[str, Mapping[str, Any]]]]] = []
    lists: list[tuple[str, list[Any]]] = []
    for path, row, found in _objects({k: v for k, v in data.items() if k not in _ORIGIN}, ""):
        lists += found
        alike = (g for g in groups if 2 * sum(key in g[0] for key in row) >= len(row))
        heads, rows = group = next(alike, ([], []))
        if not rows and row:
            groups.append(group)
        heads += [key for key in row if key not in heads]
        rows.append((path, row))
    for heads, rows in groups:
        if len(rows) == 1:
            path, row = rows[0]
            prefix = f"{path}: " if path else ""
            plain += [(f"{prefix}{key}", _text(value)) for key, value in row.items()]
            continue
        cells = tuple((path, *(_text(row.get(head)) for head in heads)) for path, row in rows)
        yield Table(("", *heads), cells, ", ".join(heads[:3]), folded=True)
    for path, found_rows in lists:
        flat = [_flat(row) for row in found_rows]
        columns = list(dict.fromkeys(head for row in flat for head in row))
        cells = tuple(tuple(_text(row.get(head)) for head in columns) for row in flat)
        yield Table(tuple(columns), cells, path, folded=True)
    if plain:
        yield Table(("", "value"), tuple(plain), "Other values", folded=True)


def _objects(
    data: Mapping[str, Any], path: str
) -> Iterator[tuple[str, Mapping[str, Any], list[tuple[str, list[Any]]]]]:
    """The objects in ``data``: the path of each, its plain values and its lists of objects."""
    plain, lists, inner = {}, [], []
    for key, value in data.items():
        below = f"{path}, {key}" if path else key
        if isinstance(value, dict) and value:
            inner.append((below, value))
        elif isinstance(value, list) and _is_rows(value):
            lists.append((below, value))
        else:
            plain[key] = value
    if plain or lists:
        yield path, plain, lists
    for below, value in inner:
        yield from _objects(value, below)


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{prefix}{key}, ")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _title(facts: Mapping[str, str]) -> str:
    """What the benchmark calls itself: ``whole_calls`` of ``-m benchmarks.runs.whole_calls``."""
    command = facts.get("command", "")
    match = re.search(r"benchmarks[./](?:runs[./])?(\w+)", command) or re.search(
        r"(\w+)\.py\b", command
    )
    name = match[1] if match else facts["file"].removesuffix(".json")
    return name.replace("_", " ").capitalize()


def _counted(data: Mapping[str, Any]) -> str:
    """The counts that say whether all is right, of the last run where there are several."""
    runs, at = data.get("runs"), ""
    if "wrong" not in data and isinstance(runs, list) and runs and isinstance(runs[-1], dict):
        data, at = (
            runs[-1],
            f"The last of {len(runs)} runs, at {runs[-1].get('commit', 'no commit')}: ",
        )
    if "wrong" not in data:
        return ""
    found = {
        name: len(data[name]) if isinstance(data[name], list) else data[name]
        for name in _COUNTS
        if isinstance(data.get(name), (int, list))
    }
    words = ", ".join(f"{name} {_text(value)}" for name, value in found.items())
    return f"{at}{words}." if at else f"{words[:1].upper()}{words[1:]}."


_COUNTS = (
    "programs", "models", "requests", "calls", "captures", "replays", "replayed",
    "false recaptures", "errors", "standstills", "wrong",
)  # fmt: skip


def _charts(title: str, gains: list[Gain]) -> Iterator[Chart]:
    if not gains:
        return
    if len({gain.way for gain in gains}) == 1 and len(gains) > _MANY:
        rows = [(gain.function, gain.times) for gain in gains]
        yield strips(title, {f"{len(gains)} functions": rows}, _UNIT)
        ordered = sorted(gains, key=lambda gain: gain.times)
        for words, some in (("Gain least", ordered[:8]), ("Gain most", ordered[:-9:-1])):
            yield intervals(words, [Row(g.function, g.times) for g in some], _UNIT)
        return
    for function in list(dict.fromkeys(gain.function for gain in gains))[:_CHARTS]:
        rows_of = [
            Row(g.way, g.times, kind="graph" if g.is_graph else "other")
            for g in gains
            if g.function == function
        ]
        if len({g.way for g in gains}) > 1:
            yield intervals(function or title, rows_of, _UNIT)
    if len({gain.way for gain in gains}) == 1:
        yield intervals(title, [Row(g.function or g.way, g.times) for g in gains], _UNIT)


def _memory(data: Mapping[str, Any]) -> Iterator[Chart]:
    """A chart for each object that has several sizes in MiB, such as one graph and many."""
    for path, row, _ in _objects(data, ""):
        found = [
            Bar(key.removesuffix(" MiB"), "", value)
            for key, value in row.items()
            if key.endswith(" MiB") and _is_time(value)
        ]
        if len(found) > 1:
            yield bars(path or "Memory", found, "MiB")


def _latencies(data: Mapping[str, Any]) -> Iterator[Chart]:
    """A chart for each object whose values are lists of runs with percentiles."""
    for key, ways in data.items():
        rows = [
            Range(f"{way}, run {n}", run["p50_ms"], None, run["p99_ms"])
            for way, runs in (ways.items() if isinstance(ways, dict) else ())
            for n, run in enumerate(runs if isinstance(runs, list) else (), 1)
            if isinstance(run, dict) and {"p50_ms", "p99_ms"} <= run.keys()
        ]
        if rows:
            yield ranges(f"{key}: latency of a request", rows, "ms")


def _flags(
    title: str, data: Mapping[str, Any], gains: list[Gain], facts: Mapping[str, str]
) -> Iterator[Flag]:
    last = data["runs"][-1] if isinstance(data.get("runs"), list) and data["runs"] else {}
    wrong = data.get("wrong", last.get("wrong") if isinstance(last, dict) else None)
    if wrong:
        count = len(wrong) if isinstance(wrong, (list, dict)) else wrong
        yield Flag("error", f"{title}: {count} wrong.", f"commit {facts.get('commit', '')}")
    slow = [gain for gain in gains if gain.times < 1 and gain.is_graph]
    for gain in slow[:3]:
        name = f"{title}, {gain.function}" if gain.function else title
        text = f"{name}: {gain.way} is slower than eager, {ratio(gain.times)} times as fast."
        yield Flag("warning", text)
    if len(slow) > 3:
        yield Flag("warning", f"{title}: {len(slow) - 3} more are slower than eager.")
    for row in _rows(data):
        if row.get("wrong"):
            yield Flag("error", f"{title}, {row.get('name')}: {row['wrong']}")
        if row.get("why"):
            yield Flag("warning", f"{title}, {row.get('name')} runs eagerly.", _text(row["why"]))
    for key, value in data.items():  # of a server: {"graphs / eager, open loop": {"p99_ms": 16.4}}
        if key.startswith("graphs / eager") and isinstance(value, dict):
            for name, share in value.items():
                worse = share < 0.95 if "per_s" in name else share > 1.05
                if worse:
                    text = f"{title}: with graphs {name} is {ratio(share)} times that of eager."
                    yield Flag("warning", text, key)


def _points(title: str, data: Mapping[str, Any], facts: Mapping[str, str]) -> Iterator[Point]:
    """Figures of several commits or trees in one file; times of other files are no others of these,
    since another host may have been slower."""
    device = facts.get("device", NOT_KNOWN)
    runs = data.get("runs")
    if isinstance(runs, list) and all(isinstance(run, dict) for run in runs):
        for run in runs:
            if "programs" in run and "wrong" in run:
                value = 1e6 * run["wrong"] / run["programs"]
                on = str(run.get("device", device))
                yield Point(f"{title}: wrong", str(run["commit"]), value, "of a million", on)
    cases = data.get("cases")
    if isinstance(data.get("trees"), list) and isinstance(cases, dict):
        for case, trees in cases.items():
            for tree, found in trees.items():
                yield Point(
                    f"{title}, {facts['file']}: {case}", tree, found["median_us"], "µs", device
                )


NOT_KNOWN = "device not stated"


def _time(data: Mapping[str, Any], key: str, unit: str) -> Any:
    value = data.get(key)
    return value.get(unit) if isinstance(value, dict) else None


def _rows(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = data.get("rows")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_rows(data: list[Any]) -> bool:
    return bool(data) and all(isinstance(row, dict) for row in data)


def _text(value: Any) -> str:
    if value is None or value == [] or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value)
