"""A probe that dies, hangs or lies costs its own row, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from gfxgraph.probing.child import Job, run
from tests.helpers.paths import ROOT
from tests.helpers.processes import printed


@pytest.fixture(autouse=True)
def bad_probes_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


def outcomes(*names, **options):
    jobs = [Job(f"{n}: {name}", name) for n, name in enumerate(names)]
    found = run(jobs, module="tests.parity.bad_probes", **options)
    assert list(found) == [job.key for job in jobs]
    return list(found.values())


@pytest.mark.long
def test_a_process_that_dies_costs_the_row_of_its_probe():
    died, between, fault, after = outcomes("aborts", "good", "segfaults", "good")
    assert [one.kind for one in (between, after)] == ["works"] * 2
    assert died.kind == fault.kind == "died"
    assert "ended by SIGABRT: " in died.text and "SIGSEGV" in fault.text
    assert after.text == "one and one is 2"


@pytest.mark.long
def test_a_process_that_ends_by_itself_without_an_answer_costs_the_row():
    died, after = outcomes("exits", "good")
    assert died.kind == "died" and "ended by status 0" in died.text
    assert after.kind == "works"


@pytest.mark.long
def test_a_probe_that_hangs_is_stopped_after_its_time():
    hung, after = outcomes("hangs", "good", timeout=8)
    assert hung.kind == "hung" and "did not end within 8 s" in hung.text
    assert after.kind == "works"


@pytest.mark.long
def test_a_probe_that_lies_is_not_believed():
    wrong, nothing, after = outcomes("wrong", "proves_nothing", "good")
    assert (wrong.kind, wrong.text) == ("wrong", "one and one is 2, expected 3")
    assert (nothing.kind, after.kind) == ("wrong", "works")
    assert "compared nothing" in nothing.text


@pytest.mark.long
def test_what_a_probe_says_is_its_outcome_and_what_it_prints_is_not():
    printed, absent, unprobed, error = outcomes("prints", "absent", "unprobed", "raises")
    assert (printed.kind, printed.text) == ("works", "one and one is 2")
    assert (absent.kind, absent.text) == ("absent", "it is not there")
    assert (unprobed.kind, unprobed.text) == ("unprobed", "a package is missing")
    assert (error.kind, error.text) == ("error", "OSError: no such device")


@pytest.mark.long
def test_a_probe_that_fails_after_others_runs_again_alone():
    first, second = outcomes("first", "second")
    assert first.kind == second.kind == "works"


def test_where_no_process_comes_to_a_probe_all_rows_say_why(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = run([Job("a", "good"), Job("b", "good")], module="tests.parity.no_such_module")
    assert [one.kind for one in found.values()] == ["died", "died"]
    assert "No module named 'tests.parity.no_such_module'" in found["b"].text


def test_progress_tells_of_each_row_once():
    done = []
    outcomes("first", "second", progress=done.append)
    assert done == ["0: first", "1: second"]


HIP = """
import ctypes, sys
from gfxgraph.probing.probes.here import Absent, Here, Unprobed

def of(*functions):
    try:
        Here(functions)._ask_hip()
    except (Absent, Unprobed) as error:
        return f"{type(error).__name__}: {error}"

print(of("hipGraphCreate"))
ctypes.CDLL(sys.argv[1])
print(of("hipGraphCreate"))
print(of("hipGraphCreate", "hipGraphConditionalHandleCreate"))
print(of())
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_of_hip_only_a_function_that_is_missing_is_certain(tmp_path):
    library = tmp_path / "libamdhip64.so"
    (tmp_path / "hip.c").write_text("int hipGraphCreate(void) { return 0; }")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libamdhip64.so", tmp_path / "hip.c", "-o", library],
        check=True,
    )
    code = HIP.replace("sys.argv[1]", repr(str(library)))
    no_runtime, there, missing, none = printed(code).splitlines()
    assert no_runtime.startswith("Unprobed: torch has loaded no libamdhip64")
    assert there == "Unprobed: HIP's runtime has hipGraphCreate; no probe of it exists for HIP"
    assert missing.startswith("Absent:") and missing.endswith("hipGraphConditionalHandleCreate")
    assert none.endswith("lacks such a function")
