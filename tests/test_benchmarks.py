"""The suite of benchmarks: ``make bench``."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys

import pytest
import torch

from benchmarks.lib.report import RESULTS, ROOT, failure
from benchmarks.suite import PROGRAMS
from benchmarks.tables import alternatives, memory


def suite(*options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.suite", *map(str, options)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)


def test_each_benchmark_of_the_suite_exists_and_takes_a_file_and_a_commit():
    for name, program in PROGRAMS.items():
        source = (ROOT / "benchmarks" / "runs" / f"{name}.py").read_text(encoding="utf-8")
        assert "arguments(__doc__" in source, name
        assert ast.get_docstring(ast.parse(source)), name
        assert all((RESULTS / file).is_file() for file in program.files), name


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the benchmark would run")
def test_a_benchmark_that_fails_leaves_the_result_of_before(tmp_path):
    shutil.copy(RESULTS / "update.json", tmp_path)
    done = suite("update", "--results", tmp_path)
    assert done.returncode == 1 and "update: it ended with status 1" in done.stdout
    assert (tmp_path / "update.json").read_bytes() == (RESULTS / "update.json").read_bytes()


def test_a_benchmark_without_time_is_named(tmp_path):
    done = suite("update", "release", "--minutes", "0", "--results", tmp_path)
    assert done.returncode == 1 and "release: no time was left" in done.stdout


def test_an_unknown_benchmark_is_named_with_those_that_exist(tmp_path):
    done = suite("hosttime", "--results", tmp_path)
    assert done.returncode == 2 and "hosttime" in done.stderr and "host_time" in done.stderr


MEASURED = {"command": "python3 x.py", "commit": "abc1234", "device": "a GPU", "torch": "2.11"}
TIMED = {"ms": 2.0, "fastest tenth ms": 1.9, "times faster": [1.0, 1.0, 1.0]}
FIRST = {"first call s": 0.5, "held MiB": 40.0, "bit for bit": True, "largest difference": 0.0}
NUMBERS = {"graphs": 1, "pool MiB": 3.0, "inputs MiB": 0.5, "why eager": [], "held MiB": 4.0}


def test_a_page_has_no_figures_before_they_were_measured(tmp_path):
    for table in (alternatives, memory):
        text = table.PAGE.read_text(encoding="utf-8")
        assert "Measured" not in table.page(text, tmp_path).partition("<!-- figures")[2]


def test_the_alternatives_that_are_faster_and_those_that_failed_are_named(tmp_path):
    faster = TIMED | {"fastest tenth ms": 0.95, "times faster": [2.0, 1.9, 2.1]}
    ways = {
        "eager": TIMED | FIRST,
        "gfxgraph": faster | FIRST | {"fastest tenth ms": 1.0},
        "torch.compile": faster | FIRST | {"bit for bit": False, "largest difference": 0.002},
        "AOTInductor": {"error": "ended after 100 s"},
    }
    found = MEASURED | {"models": {"mlp": {"what": "Two layers.", "ways": ways}}}
    (tmp_path / "alternatives.json").write_text(json.dumps(found))
    page = alternatives.page(alternatives.PAGE.read_text(encoding="utf-8"), tmp_path)
    assert "| eager | 1.9 (1.00) |" in page and "| torch.compile | **0.95** (2.00) |" in page
    assert "mlp, 1.05 times (torch.compile)." in page
    assert "| gfxgraph | bit for bit |" in page and "| torch.compile | to 0.002 |" in page
    assert "- AOTInductor: `ended after 100 s`" in page and "## Which one" in page


def test_the_page_about_memory_shows_each_measurement(tmp_path):
    peaks = {"what": "Two layers.", "eager peak MiB": 2.0, "pool to eager peak": 1.5}
    growing = NUMBERS | {"shapes seen": 32, "captures": 33, "evictions": 1, "hit us": 20.0}
    found = MEASURED | {
        "models": {"mlp": peaks | NUMBERS, "vit": {"error": "no timm"}},
        "shapes of one callable": {"MLP": {"one callable": NUMBERS}},
        "many shapes": {"3 calls of each": {"rows": [growing]}, "1 calls of each": {"error": "x"}},
    }
    (tmp_path / "memory.json").write_text(json.dumps(found))
    page = memory.page(memory.PAGE.read_text(encoding="utf-8"), tmp_path)
    assert "| mlp | 2 | 3 | 0.5 | 1.5 |" in page and "- models, vit: `no timm`" in page
    assert "| MLP | one callable | 1 | 3 | 0.5 | 4 |" in page
    assert "| 32 | 1 | 3 | 0.5 | 4 | 33 | 1 |" in page


def test_an_error_in_a_result_names_no_folder_of_the_machine():
    error = failure(RuntimeError(f"{ROOT}/x.py:\n  /tmp/abc/e.cpp:3 and ~/y/z.so, a / b"))["error"]
    assert error == "RuntimeError: x.py: e.cpp:3 and z.so, a / b"


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="there it would take minutes")
def test_alternatives_and_memory_are_measured_row_by_row(tmp_path):
    ways = ["eager", "gfxgraph", "torch.cuda.graph", "onnxruntime"]
    for name, options in (
        ("alternatives", ["--models", "mlp", "--ways", *ways]),
        ("memory", ["--models", "mlp", "--shapes", "3"]),
    ):
        command = [sys.executable, "-m", f"benchmarks.runs.{name}", "--tiny", *options]
        out = tmp_path / f"{name}.json"
        subprocess.run([*command, "--out", str(out)], cwd=ROOT, check=True, timeout=110)
    rows = json.loads((tmp_path / "alternatives.json").read_text())["models"]["mlp"]["ways"]
    assert list(rows) == ways and rows["torch.cuda.graph"] == {"error": "needs a GPU"}
    assert rows["gfxgraph"]["bit for bit"] and rows["gfxgraph"]["calls"] > 6
    found = json.loads((tmp_path / "memory.json").read_text())
    assert found["models"]["mlp"]["graphs"] == 1 and found["models"]["mlp"]["pool MiB"] > 0
    assert [row["shapes seen"] for row in found["many shapes"]["3 calls of each"]["rows"]] == [1, 3]
    assert len(found["shapes of one callable"]) == 3
