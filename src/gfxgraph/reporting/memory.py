"""Reads statistics of graphed callables, of the process and of the demo."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..tables import counted, in_bytes
from .charts import Bar, bars
from .facts import facts_of
from .parts import Chart, Flag, Gain, Level, Part, Table, number, percent

__all__ = ["read_demo", "read_graphed", "read_process"]

_MIB = 2**20


def read_graphed(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for the statistics of a graphed callable, with buckets or without."""
    facts = facts_of(data, known)
    name = str(data.get("name") or "a graphed callable")
    calls = data["replays"] + data["eager_calls"]
    sentence = (
        f"{number(data['replays'])} of {counted(calls, 'call')} were replays of "
        f"{counted(len(data['graphs']), 'graph')}, which keep "
        f"{in_bytes(data['pool_bytes'] + data['input_bytes'])}."
    )
    charts = list(_of_graphs(data["graphs"]))
    tables = [_graphs(data["graphs"])]
    if data.get("computed"):
        charts.append(_padding({name: (data["asked"], data["computed"])}))
        sentence += f" {percent(1 - data['asked'] / data['computed'])} of what they compute is "
        sentence += "padding."
    reasons = {
        "eager, because": data["fallbacks"],
        "captured again, because": data["changed"],
        "refused": data["refused"],
        "not compiled": data["not_compiled"],
    }
    rows = tuple(
        (what, str(key), str(value))
        for what, found in reasons.items()
        for key, value in found.items()
    )
    if rows:
        tables.append(Table(("", "reason", "calls, or why"), rows, "Reasons"))
    flags = [
        Flag("warning", f"{name}: {counted(count, 'call')} ran eagerly.", reason)
        for reason, count in data["fallbacks"].items()
    ]
    flags += [Flag("warning", f"{name}: {why}") for why in data["thrashing"]]
    flags += [
        Flag("warning", f"{name}: {key} is refused.", w) for key, w in data["refused"].items()
    ]
    level: Level = "warning" if flags else "ok"
    return [
        Part("memory", name, sentence, level, facts, tuple(charts), tuple(tables), tuple(flags))
    ]


def read_process(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for ``gfxgraph.stats()``."""
    plain = tuple((k, str(v)) for k, v in data.items() if not isinstance(v, dict))
    flags = [
        Flag("error", f"{counted(data['validation_failures'], 'replay')} differed from eager.")
    ] * bool(data["validation_failures"])
    flags += [
        Flag("warning", f"{counted(count, 'call')} ran eagerly.", str(reason))
        for reason, count in data.get("fallbacks", {}).items()
    ]
    sentence = (
        f"{counted(data['capture_count'], 'capture')}, {counted(data['replay_count'], 'replay')}, "
        f"{counted(data['fallback_count'], 'fallback')}."
    )
    level: Level = flags[0].level if flags else "ok"
    tables = (Table(("counter", "value"), plain, "Counters", folded=True),)
    return [Part("memory", "The process", sentence, level, dict(known), (), tables, tuple(flags))]


def read_demo(data: Mapping[str, Any], known: Mapping[str, str]) -> list[Part]:
    """A part for the search of ``gfxgraph demo``."""
    facts = facts_of(data, known)
    device, padding, timing = data["device"], data["padding"], data["timing"]
    emulated = device["vendor"] == "emulated"
    asked = padding["asked"]
    charts = [*_of_graphs(data["graphs"])]
    charts.append(
        _padding(
            {
                "as captured": (asked, padding["computed"]),
                "powers of two": (asked, asked / (1 - padding["powers_of_two"])),
                "all as the longest": (asked, asked / (1 - padding["longest"])),
            }
        )
    )
    name = "gfxgraph demo"
    gains: tuple[Gain, ...] = ()
    sentence = (
        f"{number(data['passages'])} passages in {counted(data['replays'], 'replay')} of "
        f"{counted(data['captures'], 'graph')}; {percent(padding['share'])} of what they compute "
        f"is padding. The largest difference from eager is {number(data['difference']['max'])}."
    )
    if timing and not emulated:
        gains = (Gain(f"{name}: {timing['rows']} texts", "graph", timing["ratio"]),)
    wrong = [
        Flag("warning", f"{name}: {counted(count, 'call')} ran eagerly.", str(reason))
        for reason, count in data["fallbacks"].items()
    ]
    level: Level = "warning" if wrong else "ok"
    return [
        Part("memory", name, sentence, level, facts, tuple(charts), (_graphs(data["graphs"]),),
             tuple(wrong), gains, (), device["name"], emulated)
    ]  # fmt: skip


def _of_graphs(graphs: Sequence[Mapping[str, Any]]) -> Iterable[Chart]:
    rows = [
        bar
        for one in graphs[:24]
        for bar in (
            Bar(one["key"], "added to the pool", one["pool_bytes"] / _MIB),
            Bar(one["key"], "static inputs", one["input_bytes"] / _MIB),
        )
    ]
    if rows:
        yield bars("Memory of each graph", rows, "MiB")


def _padding(found: Mapping[str, tuple[float, float]]) -> Chart:
    rows = [
        bar
        for name, (asked, computed) in found.items()
        for bar in (
            Bar(name, "asked for", asked),
            Bar(name, "padding", max(0, computed - asked)),
        )
    ]
    return bars("What is computed", rows, "elements")


def _graphs(graphs: Sequence[Mapping[str, Any]]) -> Table:
    rows = tuple(
        (
            one["key"],
            number(one["replays"]),
            in_bytes(one["pool_bytes"]),
            in_bytes(one["input_bytes"]),
            in_bytes(one["private_bytes"]),
        )
        for one in graphs
    )
    heads = ("arguments", "replays", "added to the pool", "static inputs", "its own in all")
    return Table(heads, rows, "Graphs", folded=True)
