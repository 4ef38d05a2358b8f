"""docs/cases.md: what a capture does with code as people write it, and what ``check`` says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from benchmarks.lib.report import RESULTS, ROOT
from benchmarks.tables.markdown import table
from tests.cases.capture_cases import CASES, agreement, check_case
from tests.helpers.devices import LACKS_DRIVER

PAGE = ROOT / "docs" / "cases.md"
COLUMNS = ("case", "capture, cold", "capture, warm", "check", "agrees", "line", "hazards")


def made() -> str:
    """The page of the results as they are; ``gfxgraph.check`` is asked here and now."""
    return page(json.loads((RESULTS / "cases.json").read_text(encoding="utf-8")), CASES)[0]


def page(measured: dict[str, Any], names: Iterable[str]) -> tuple[str, bool]:
    """The page of these cases, and whether a verdict or a line is not as measured."""
    rows, bad = [], Counter[str]()
    for name in names:
        found = measured["cases"][name]
        if name == "scripted" and LACKS_DRIVER:  # torch.jit would load the driver to compile it
            captures = found["cold"]["outcome"], found["warm"]["outcome"]
            rows.append((name, *captures, "not asked", "", "", "needs a driver"))
            continue
        report = check_case(name)
        verdict, line = agreement(CASES[name], found, report)
        bad["verdicts"] += verdict == "NO"
        bad["lines"] += line == "NOT NAMED"
        rules = ", ".join(dict.fromkeys(f"{h['rule']}:{h['line']}" for h in report["hazards"]))
        rows.append(
            (
                name.replace("_", " "),
                found["cold"]["outcome"],
                found["warm"]["outcome"],
                report["verdict"],
                verdict,
                line,
                rules,
            )
        )
    asked = sum(row[3] != "not asked" for row in rows)
    about = measured["about"]
    lines = [
        "# What capture does with code as people write it",
        "",
        "<!-- Made by benchmarks/tables/cases.py. -->",
        "",
        "Each case of `tests/cases/capture_cases.py`, captured with plain `torch.cuda.graph` "
        f"on one {about['device']} (torch {about['torch']}, {about['date']}), cold and after "
        "three runs; "
        f"and what `gfxgraph.check` says of it on a CPU (torch {torch.__version__}).",
        "",
        "*Wrong*: the capture passed, and a replay differs from eager. They agree if `check` says "
        "*captures* just where the capture after warm-up is right. *Stricter*: it says less, for "
        "the reason that the case gives. *Named*: a hazard names the line that is marked in the "
        "case.",
        "",
        *table(COLUMNS, rows),
        "",
        f"{len(rows)} cases: {asked - bad['verdicts']} of {asked} verdicts agree; "
        f"{bad['lines']} lines are not named.",
        "",
    ]
    return "\n".join(lines), bad.total() > 0
