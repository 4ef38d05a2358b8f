"""docs/operators.md: what a stream capture does with the operators of PyTorch."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.lib.report import ROOT
from benchmarks.tables.markdown import table

DATA = ROOT / "src/gfxgraph/device/operators.json"
PAGE = ROOT / "docs/operators.md"


def made() -> str:
    """The page of the table as it is."""
    return page(json.loads(DATA.read_text(encoding="utf-8")))


def agreement(what: str, found: dict[str, Any]) -> tuple[str, ...]:
    """A row: how often that is right."""
    wrong = "; ".join(f"`{k}` ({n})" for k, n in found["wrong"].items())
    right = f"{found['right']}: {found['percent']} %"
    return what, str(found["samples"]), right, wrong or "none"


def page(data: dict[str, Any]) -> str:
    """The page of what ``operators.json`` holds."""
    counts = ", ".join(f"{n} {what}" for what, n in data["counts"].items())
    of = data["operators"]
    lines = [
        "# Operators in a capture",
        "",
        "<!-- Made by benchmarks/tables/operators.py. -->",
        "",
        f"What a CUDA stream capture does with the samples of PyTorch's operator database "
        f"(`op_db`), in float32 and int64, at most 40 of each: measured on one {data['device']}, "
        f"torch {data['torch']}, {data['date']}, with `{data['command']}`.",
        "",
        f"{sum(data['counts'].values())} samples: {counts}. Split by a hash: "
        + ", ".join(f"{n} {what}" for what, n in data["splits"].items())
        + ".",
        "",
        "To see how good the table is, one was made of the measured samples alone, and asked of "
        "each held-out sample whether it captures. The table that `gfxgraph.check` uses is made "
        "of both.",
        "",
        *table(
            ("Predicted from", "Samples", "Right", "Wrong"),
            (
                agreement("the ATen calls recorded on the GPU", data["agreement"]["trace"]),
                agreement(
                    f"`gfxgraph.check` on a CPU, torch {data['checked with']}",
                    data["agreement"]["check"],
                ),
            ),
        ),
        "",
        "Not part of it: samples that did not run, and those where `op_db` itself calls "
        "`torch.manual_seed` inside of the capture. One that replays with other results, or needs "
        "a warm-up, counts as captured. With `check` also not: samples that the CPU does not run, "
        "or that `op_db` draws with other sizes or options there "
        f"({sum(data['agreement']['check']['not compared'].values())}).",
        "",
        "## Variants that do not simply capture",
        "",
        *table(
            ("Variant", "What happens", "dtype", "ATen operator", "Condition", "Samples"),
            (
                (f"`{name}`", what, dtype, op, ", ".join(c for _, c in of.get(op, ())), n)
                for name, rows in data["variants"].items()
                for what, dtype, op, n in rows
                if what != "captures"
            ),
        ),
    ]
    lines += ["", "## Variants of which every sample captures", ""]
    lines += [", ".join(f"`{n}`" for n in data["others"]) + ".", ""]
    return "\n".join(lines)
