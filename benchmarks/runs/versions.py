"""Runs the tests with the Python and the torch that run this file, and records the result.

``python -m benchmarks.runs.versions [--core] [--record] [options of pytest ...]``. ``--core`` runs
the files of ``CORE`` alone. ``--record`` puts the result into ``results/torch_versions.json``, in
place of that of the same versions, and makes docs/versions.md of all of them. The exit status is
that of pytest. ``make test-torch TORCH=2.8.0`` makes an environment with that torch and runs this
in it.
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

from benchmarks.lib.report import ROOT
from benchmarks.tables import versions as table

# In the folder of the tests.
CORE = (
    "analyze/test_check.py",
    "bridge/test_bridged.py",
    "call/test_branches.py",
    "call/test_compiled.py",
    "call/test_graphed.py",
    "device/test_emulated.py",
    "graph/test_never_stale.py",
    "interpose/test_dynamo.py",
    "record/test_folding.py",
    "simulate/test_pretend.py",
    "test_layers.py",
)


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

    tests = [str(ROOT / "tests" / name) for name in CORE] if own.core else [str(ROOT)]
    print(f"torch {torch.__version__}, Python {platform.python_version()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "not gpu and not long", *options, *tests]
        status = subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT).returncode
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
    rows = json.loads(table.RESULTS.read_text(encoding="utf-8")) if table.RESULTS.exists() else []
    rows = recorded(rows, row)
    table.RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    table.PAGE.write_text(table.page(rows), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
