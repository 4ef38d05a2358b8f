"""docs/comparison.md: what was measured of the ways, between its two ``figures`` marks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.lib.report import RESULTS, ROOT
from benchmarks.tables.markdown import code, marked, table
from benchmarks.tables.models import equal, measured_with

PAGE = ROOT / "docs" / "comparison.md"
HEAD = """
## Measured side by side

Each way has a process of its own and the same weights; they make calls in turn. Imports are not
counted, all else is: no kernel is loaded and nothing compiled beforehand, except that
`torch.compile, max-autotune-no-cudagraphs` finds the kernels that `max-autotune` chose before it.
"""
TIMES = """
**Milliseconds of a call until the device is done**, the median of the fastest tenth, and how many
times faster than eager. Bold: the least of a model. gfxgraph, `torch.cuda.graph` and onnxruntime
copy their result; with graphs, `torch.compile` and `make_graphed_callables` overwrite it in the
next call.
"""
FIRST = """
**Seconds until the first result**, with compiling and capturing.
"""
MEMORY = """
**MiB that the device holds for a way**, beside the model: graphs, workspaces, kernels, and copies
of weights.
"""
SAME = """
**Largest difference from eager**, of three calls with fresh arguments.
"""


def made() -> str:
    """The page with the figures of the results as they are."""
    return page(PAGE.read_text(encoding="utf-8"))


def page(text: str, results: Path = RESULTS) -> str:
    """``text`` with these figures; none before they were measured."""
    file = results / "alternatives.json"
    lines = of(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else ()
    return marked(text, "alternatives", lines)


def of(found: dict[str, Any]) -> Iterator[str]:
    """Markdown of all that was found."""
    models: dict[str, dict[str, Any]] = {n: m["ways"] for n, m in found["models"].items()}
    yield from HEAD.splitlines()
    yield from ("", measured_with(found), "")
    yield from (f"- {name}: {model['what']}" for name, model in found["models"].items())
    for words, cell in ((TIMES, _time), (FIRST, _first), (MEMORY, _held), (SAME, _same)):
        yield from ("", *words.strip().splitlines(), "", *_matrix(models, cell))
    short = [name for name, model in found["models"].items() if not model.get("complete")]
    late = (f"There was no time for all ways of {', '.join(short)}.",) if short else ()
    yield from ("", *_lost(models), *late, "", "Not there:", "", *_failed(models), "")


def _matrix(models: dict[str, Any], cell: Callable[[str, dict[str, Any]], Any]) -> Iterator[str]:
    ways = list(dict.fromkeys(way for rows in models.values() for way in rows))
    cells = [(way, *(cell(way, rows) for rows in models.values())) for way in ways]
    return table(("", *models), (row for row in cells if any(c is not None for c in row[1:])))


def _time(way: str, rows: dict[str, Any]) -> str | None:
    row = rows.get(way, {})
    if "ms" not in row:
        return None
    text = f"{row['fastest tenth ms']:.3g}"
    if row["fastest tenth ms"] == min(r["fastest tenth ms"] for r in rows.values() if "ms" in r):
        text = f"**{text}**"
    faster = row.get("times faster")
    return f"{text} ({faster[0]:.2f})" if faster else text


def _first(way: str, rows: dict[str, Any]) -> Any:
    return rows.get(way, {}).get("first call s")


def _held(way: str, rows: dict[str, Any]) -> Any:
    return rows.get(way, {}).get("held MiB")


def _same(way: str, rows: dict[str, Any]) -> str | None:
    row = rows.get(way, {})
    if "largest difference" not in row:
        return None
    return "bit for bit" if row["bit for bit"] else equal(row["largest difference"])


def _lost(models: dict[str, Any]) -> Iterator[str]:
    """Where another way is faster than both of ours, by more than the two can be told apart."""
    lost = []
    for name, rows in models.items():
        timed = {way: row["fastest tenth ms"] for way, row in rows.items() if "ms" in row}
        ours = [ms for way, ms in timed.items() if way.startswith("gfxgraph")]
        if not ours:
            continue
        best = min(timed, key=timed.__getitem__)
        if timed[best] < 0.99 * min(ours):
            lost.append(f"{name}, {min(ours) / timed[best]:.2f} times ({best})")
    if lost:
        yield "Where another way is faster than the faster one of gfxgraph by over 1 %:"
        yield f"{'; '.join(lost)}."
    else:
        yield "No other way is faster than the faster one of gfxgraph by over 1 %."


def _failed(models: dict[str, Any]) -> Iterator[str]:
    """Why, a line for each reason of a way."""
    why: dict[tuple[str, str], list[str]] = {}
    for name, rows in models.items():
        for way, row in rows.items():
            notes = [f"eager: {reason}" for reason in row.get("why eager", ())]
            notes += [f"not compiled: {reason}" for reason in row.get("not compiled", ())]
            notes += [row["error"]] if "error" in row else []
            for note in notes:
                why.setdefault((way, note), []).append(name)
    for (way, note), names in why.items():
        of_all = "" if len(names) == len(models) else f", of {', '.join(names)}"
        yield f"- {way}{of_all}: {code(note)}"
