"""The suite of benchmarks: ``make bench``."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys

import pytest
import torch

from benchmarks.lib.report import RESULTS, ROOT
from benchmarks.suite import PROGRAMS


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
