"""Runs the tests with the Python and the torch that run this file, and records the result.

``python benchmarks/versions.py [--core] [--record] [options of pytest ...]``. ``--core`` runs the
files of ``CORE`` alone. ``--record`` puts the result into ``results/torch_versions.json``, in place
of that of the same versions, and makes docs/versions.md of all of them. The exit status is that of
pytest. ``make test-torch TORCH=2.8.0`` makes an environment with that torch and runs this in it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "torch_versions.json"
PAGE = ROOT / "docs" / "versions.md"
CORE = (
    "branches",
    "bridged",
    "buckets",
    "check",
    "compiled",
    "dynamo",
    "emulated",
    "folding",
    "graphed",
    "layers",
    "never_stale",
    "pretend",
)
HEAD = """# Versions of torch and Python

<!-- Made by benchmarks/versions.py. -->

gfxgraph needs torch {oldest} or newer and Python 3.10 or newer; an older torch is refused when
gfxgraph is imported. The tests were run with these, on a CPU, where the device is emulated. *all*
is `make test`; *core* are the files that `benchmarks/versions.py` names. CUDA builds of torch were
run without a driver.

| torch | Python | tests | passed | failed | skipped | seconds | date | commit |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
FOOT = """
`make test-torch TORCH=2.8.0` makes an environment with that torch in `.venv-torch-2.8.0` and runs
the tests in it; with `CORE=1` the core alone, with `RECORD=1` it adds a row here, and
`PYTHON=python3.12` takes another Python. Where pip finds no CPU build of that version it takes a
CUDA build: about 3 GB to fetch, 7 GB unpacked. `make test-long` runs the core with the oldest one.

Python 3.14 has not been run; torch 2.13.0 has a wheel for it.
"""
COLUMNS = ("torch", "python", "tests", "passed", "failed", "skipped", "seconds", "date", "commit")


def page(rows: list[dict[str, Any]]) -> str:
    """Markdown of all results."""
    lines = ("| " + " | ".join(str(row[name]) for name in COLUMNS) + " |\n" for row in rows)
    return HEAD.format(oldest=oldest_torch()) + "".join(lines) + FOOT


def oldest_torch() -> str:
    """The version that pyproject.toml asks for."""
    found = re.search(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def in_order(row: dict[str, Any]) -> tuple[list[int], ...]:
    """The oldest torch first, then the oldest Python."""
    return tuple([int(n) for n in re.findall(r"\d+", row[key])[:3]] for key in ("torch", "python"))


def recorded(rows: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
    """``rows`` with ``new`` in place of the row of the same versions."""
    same = ("torch", "python")
    others = [row for row in rows if [row[key] for key in same] != [new[key] for key in same]]
    return sorted([*others, new], key=in_order)


def counts(report: Path) -> dict[str, Any]:
    """What pytest's JUnit file says."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    number = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    return {
        "passed": number["tests"] - failed - number["skipped"],
        "failed": failed,
        "skipped": number["skipped"],
        "seconds": round(float(suite.get("time", 0))),
    }


def main() -> int:
    """Run the tests; the exit status of pytest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--core", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--commit", default="")
    own, options = parser.parse_known_args()

    import torch

    tests = [str(ROOT / f"tests/test_{name}.py") for name in CORE] if own.core else [str(ROOT)]
    print(f"torch {torch.__version__}, Python {platform.python_version()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "not gpu", f"--junitxml={report}"]
        status = subprocess.run([*command, *options, *tests], cwd=ROOT).returncode
        if not own.record or not report.exists():
            return status
        row = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "tests": "core" if own.core else "all",
            "date": datetime.date.today().isoformat(),
            "commit": own.commit,
            **counts(report),
        }
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    rows = recorded(rows, row)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(rows), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
