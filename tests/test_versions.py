"""Which versions of torch gfxgraph takes, and the table of those that it was tested with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gfxgraph
from benchmarks.runs import versions
from benchmarks.tables import versions as table
from tests.helpers.paths import RESULTS, ROOT, SOURCE
from tests.helpers.processes import python

ROW = {
    "torch": "2.9.1+cu128",
    "python": "3.12.1",
    "tests": "core",
    "date": "2026-11-22",
    "commit": "abc1234",
    "passed": 10,
    "failed": 0,
    "skipped": 2,
    "seconds": 3,
}


def with_torch(version: str, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python where torch is a package that has a version and nothing else."""
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n")
    return python(*command, PYTHONPATH=os.pathsep.join((str(folder), SOURCE)))


@pytest.mark.parametrize("version", ["2.7.1", "2.7.1+rocm6.3", "2.6.0a0+git1234", "1.13.1"])
@pytest.mark.parametrize("name", ["gfxgraph", "hipgraph_bridge"])
def test_an_older_torch_is_refused_at_import_with_one_sentence(version, name, tmp_path):
    done = with_torch(version, tmp_path, "-c", f"import {name}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"gfxgraph.errors.TorchVersionError: gfxgraph needs torch 2.8 or newer, and finds "
        f"{version} in {tmp_path / 'torch'}: install a newer torch."
    )


@pytest.mark.parametrize("version", ["2.8.0", "2.8.0a0+git1234", "2.10.0.dev20260101", "3.0", "x"])
def test_any_other_torch_is_taken(version, tmp_path):
    done = with_torch(version, tmp_path, "-c", "import gfxgraph")
    assert done.returncode == 0, done.stderr


def test_code_that_looks_for_an_import_error_finds_it(tmp_path):
    code = "try:\n    import gfxgraph\nexcept ImportError as error:\n    print(error)"
    done = with_torch("2.7.1", tmp_path, "-c", code)
    assert done.stdout.startswith("gfxgraph needs torch 2.8 or newer")


def test_the_command_says_it_without_a_traceback(tmp_path):
    done = with_torch("2.7.1", tmp_path, "-m", "gfxgraph", "doctor")
    assert done.returncode == 2 and not done.stdout
    assert re.fullmatch(
        r"Error: gfxgraph needs torch 2\.8 or newer, and finds 2\.7\.1 .*\n", done.stderr
    )


def test_all_places_name_the_same_oldest_torch():
    assert table.oldest_torch() == gfxgraph._OLDEST_TORCH == "2.8"
    assert "torch 2.8 or newer" in (ROOT / "README.md").read_text()


def test_the_page_is_what_the_results_say():
    rows = json.loads((RESULTS / "torch_versions.json").read_text())
    assert table.page(rows) == table.PAGE.read_text()
    assert rows == sorted(rows, key=versions.in_order)


def test_no_recorded_run_failed_or_was_empty():
    for row in json.loads((RESULTS / "torch_versions.json").read_text()):
        assert row["failed"] == 0 and row["passed"] > 0, row


def test_a_new_result_takes_the_place_of_that_of_the_same_versions():
    later, other = ROW | {"torch": "2.10.0"}, ROW | {"python": "3.13.0"}
    new = ROW | {"passed": 11, "tests": "all"}
    assert versions.recorded([later, other, ROW], new) == [new, other, later]


def test_the_core_is_made_of_files_that_exist():
    for name in versions.CORE:
        assert (ROOT / "tests" / name).is_file(), name


def test_counts_are_those_of_pytest(tmp_path):
    (tmp_path / "test_four.py").write_text(
        "import pytest\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert 0\n"
        "def test_skips(): pytest.skip()\n"
        "@pytest.fixture\n"
        "def broken(): raise KeyError\n"
        "def test_errs(broken): pass\n"
    )
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", str(tmp_path)]
    subprocess.run(command, capture_output=True)
    found = versions.counts(report)
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 2, 1)
