"""docs/versions.md: the versions of torch and Python that the tests were run with."""

from __future__ import annotations

import json
import re
from typing import Any

from benchmarks.lib import report
from benchmarks.lib.report import ROOT
from benchmarks.tables.markdown import table

RESULTS = report.RESULTS / "torch_versions.json"
PAGE = ROOT / "docs" / "versions.md"
HEAD = """# Versions of torch and Python

<!-- Made by benchmarks/tables/versions.py. -->

gfxgraph needs torch {oldest} or newer and Python 3.10 or newer; an older torch is refused when
gfxgraph is imported. The tests were run with these, on a CPU, where the device is emulated. *all*
is `make test`; *core* are the files that `benchmarks/runs/versions.py` names. CUDA builds of torch
were run without a driver.

"""
FOOT = """
`make test-torch TORCH=2.8.0` makes an environment with that torch in `.venv-torch-2.8.0` and runs
the tests in it; with `CORE=1` the core alone, with `RECORD=1` it adds a row here, and
`PYTHON=python3.12` takes another Python. Where pip finds no CPU build of that version it takes a
CUDA build: about 3 GB to fetch, 7 GB unpacked. `make test-long` runs the core with the oldest one.

The Dynamo of torch 2.13 compiles nothing of a loop that a tensor ends on Python 3.14; the tests of
that are skipped there.
"""
COLUMNS = ("torch", "Python", "tests", "passed", "failed", "skipped", "seconds", "date", "commit")


def made() -> str:
    """The page of the results as they are."""
    return page(json.loads(RESULTS.read_text(encoding="utf-8")))


def page(rows: list[dict[str, Any]]) -> str:
    """Markdown of all results."""
    cells = ((str(row[name.lower()]) for name in COLUMNS) for row in rows)
    return HEAD.format(oldest=oldest_torch()) + "\n".join(table(COLUMNS, cells)) + "\n" + FOOT


def oldest_torch() -> str:
    """The version that pyproject.toml asks for."""
    found = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]
