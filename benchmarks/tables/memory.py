"""docs/internals/memory.md: what graphs hold, between its two ``figures`` marks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.lib.report import RESULTS, ROOT
from benchmarks.tables.markdown import code, marked, table
from benchmarks.tables.models import measured_with

PAGE = ROOT / "docs" / "internals" / "memory.md"
KEPT = ("graphs", "pool MiB", "inputs MiB", "held MiB")
GROWING = ("shapes seen", *KEPT, "captures", "evictions", "eager calls", "hit us")
PEAKS = ("eager peak MiB", "pool MiB", "inputs MiB", "pool to eager peak")

ABOUT = """
Eager's peak is what a call has allocated at most, beside weights and arguments. A pool also has a
workspace of cuBLAS, about 32 MiB. *Held* is what the device has left less. It may be less than the
pools: a capture frees the workspaces that calls before it have left. What the graph of a model
holds, in a process of its own and beside other ways, is in [Compared with other
ways](../comparison.md#measured-side-by-side).
"""


def made() -> str:
    """The page with the figures of the results as they are."""
    return page(PAGE.read_text(encoding="utf-8"))


def page(text: str, results: Path = RESULTS) -> str:
    """``text`` with these figures; none before they were measured."""
    file = results / "memory.json"
    lines = of(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else ()
    return marked(text, "memory", lines)


def of(found: dict[str, Any]) -> Iterator[str]:
    """Markdown of all that was found."""
    yield from ("", "## Measured", "", measured_with(found), "")
    yield from ABOUT.strip().splitlines()
    yield from ("", "A graph of one shape against a call of the model:", "")
    models = found["models"]
    rows = ((name, *(row.get(what) for what in PEAKS)) for name, row in models.items())
    yield from table(("", *PEAKS), rows)
    yield ""
    yield from (f"- {name}: {row['what']}" for name, row in models.items() if "what" in row)
    yield from ("", "Eight shapes, in the graphs of one callable and of eight:", "")
    yield from table(
        ("", "graphs of", *KEPT),
        (
            (name, way, *(row.get(what) for what in KEPT))
            for name, ways in found["shapes of one callable"].items()
            if "error" not in ways
            for way, row in ways.items()
        ),
    )
    yield from ("", "In what follows, *held* includes what libraries load at their first call.")
    for name, part in found["many shapes"].items():
        if "error" in part:
            continue
        yield from (
            "",
            f"Two layers of 256, {name} shape in a row, and a call of one shape between:",
        )
        yield from ("", *table(GROWING, ([r.get(w) for w in GROWING] for r in part["rows"])))
    yield from ("", *_failed(found), "")


def _failed(found: dict[str, Any]) -> Iterator[str]:
    for part in ("models", "shapes of one callable", "many shapes"):
        for name, row in found[part].items():
            if "error" in row:
                yield f"- {part}, {name}: {code(row['error'])}"
            for reason in row.get("why eager", ()):
                yield f"- {part}, {name}, eager: {code(reason)}"
