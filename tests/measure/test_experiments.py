"""``experiment`` asks six questions about graphs, and says where the answer is not as expected."""

from __future__ import annotations

import inspect
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import gfxgraph
from gfxgraph.cli import app
from gfxgraph.errors import ArgumentError
from gfxgraph.measure.experiments.experiment import EXPERIMENTS
from tests.helpers.paths import SOURCE
from tests.helpers.unseen import Unseen

pytestmark = pytest.mark.usefixtures("one_thread")

HERE = Path(__file__).name
HAS_GPU = gfxgraph.device_type() == "cuda"


def layers(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    return model.to(device).eval(), torch.randn(4, 8, device=device)


def held(report):
    """What each row says by its first column."""
    return {row["check"]: row["holds"] for row in report.rows}


# smoke


def test_smoke_holds_for_a_model(device):
    report = gfxgraph.experiment("smoke", *layers(device))
    assert report.holds is True
    assert all(held(report).values()) and len(report.rows) == 6
    assert report["calls are replays of a graph"]["found"] == "20 of 20"
    assert "20 replays are alike" in report.conclusion


def test_smoke_says_why_there_is_no_graph(device):
    report = gfxgraph.experiment(
        "smoke", lambda x: x + random.random(), torch.ones(3, device=device)
    )
    assert report.holds is False
    assert held(report)["calls are replays of a graph"] is False
    assert "Python's random module" in report.conclusion


def test_smoke_finds_results_that_later_calls_overwrite(device):
    model, x = layers(device)
    report = gfxgraph.experiment("smoke", gfxgraph.graphed(model, outputs="view"), x)
    assert report.holds is False
    assert held(report)["later calls leave earlier results alone"] is False
    assert "is overwritten" in report.conclusion


def test_smoke_finds_a_graph_that_gives_something_else(device):
    number = Unseen(1.0)

    def act(x):
        number.value += 1
        return x * number.value

    report = gfxgraph.experiment("smoke", act, torch.ones(3, device=device))
    assert report.holds is False
    assert held(report)["they give what eager gives"] is False


def test_smoke_puts_state_back(device):
    state = torch.zeros(3, device=device)
    x = torch.ones(3, device=device)
    report = gfxgraph.experiment("smoke", lambda x: state.add_(x).clone(), x)
    assert report.holds is True
    assert state.tolist() == [0.0] * 3 and x.tolist() == [1.0] * 3


# modes


def test_modes_tells_how_steady_each_way_is(device):
    report = gfxgraph.experiment("modes", *layers(device), ways=["graph"], seconds=0.2)
    assert [row["mode"] for row in report.rows] == ["eager", "graph"]
    for row in report.rows:
        assert row["status"] == "ok" and row["rounds"] >= 3 and row["first_call_s"] > 0
        assert 0 < row["median_us"] <= row["p95_us"] <= row["p99_us"]
        assert row["variation"] >= 0 and row["spread"] >= 0
    assert report["eager"]["speedup"] == 1
    assert HAS_GPU or (report.holds is None and "nothing of a GPU" in report.shows)


def test_modes_that_need_a_gpu_say_so():
    if HAS_GPU:
        pytest.skip("there is a GPU")
    report = gfxgraph.experiment("modes", *layers("cpu"), ways=["max-autotune"], seconds=0.1)
    assert report["max-autotune"]["status"] == "raises"
    assert report.notes == ("max-autotune: raises: it needs a GPU",)


# lengths


@pytest.mark.long
def test_lengths_compares_one_length_with_several(device):
    traffic = [(torch.ones(n, 8, device=device),) for n in (3, 9, 5, 16, 3, 9)]
    model, _ = layers(device)
    report = gfxgraph.experiment("lengths", model, traffic=traffic, seconds=0.2)
    assert report.holds is True
    assert [row["way"] for row in report.rows] == ["eager", "graph", "buckets", "fixed"]
    assert report["fixed"]["captures"] == 1 and report["graph"]["captures"] == 4
    waste = 1 - (3 + 9 + 5 + 16 + 3 + 9) / (6 * 16)
    assert report["fixed"]["padding"] == pytest.approx(waste, abs=1e-3)
    assert report["buckets"]["padding"] < report["fixed"]["padding"]


def test_lengths_says_where_padding_does_not_suit(device):
    traffic = [(torch.ones(n, 8, device=device),) for n in (3, 9)]
    report = gfxgraph.experiment("lengths", lambda x: x / x.sum(), traffic=traffic, seconds=0.1)
    assert report.holds is False and "Padding does not suit" in report.conclusion


def test_lengths_needs_calls_of_several_lengths(device):
    model, x = layers(device)
    with pytest.raises(ArgumentError, match=r"traffic=.*--shapes"):
        gfxgraph.experiment("lengths", model, x)
    with pytest.raises(ArgumentError, match="all have one"):
        gfxgraph.experiment("lengths", model, traffic=[(x,), (x,)])


# allocations


def act(x):
    y = x.relu()
    return y + 1


def test_allocations_tells_the_lines_and_that_a_replay_makes_its_results_only(device):
    report = gfxgraph.experiment("allocations", act, torch.ones(256, device=device))
    line = inspect.getsourcelines(act)[1]
    lines = {row["place"]: row for row in report.rows}
    assert lines[f"{HERE}:{line + 1}"]["operation"] == "relu"
    assert lines[f"{HERE}:{line + 2}"]["operation"] == "add.Tensor"
    assert lines["all of eager"]["allocations"] == 2
    assert lines["all of eager"]["bytes"] == 2 * 1024
    own, view = report.rows[-2:]
    assert (own["allocations"], own["bytes"]) == (1, 1024)
    assert (view["allocations"], view["bytes"], view["driver_calls"]) == (0, 0, 0)
    assert report.holds is True


def test_allocations_of_torchs_own_code_have_no_line_of_the_caller(device):
    layer = torch.nn.Linear(4, 4).to(device)
    report = gfxgraph.experiment("allocations", layer, torch.ones(2, 4, device=device))
    assert report.rows[0] == report["-"] and report["-"]["operation"] == "addmm"


def test_allocations_says_why_there_is_no_graph(device):
    report = gfxgraph.experiment(
        "allocations", lambda x: x + random.random(), torch.ones(3, device=device)
    )
    assert report.holds is False and "Python's random module" in report.conclusion


# ranks


def agree(rows):
    """Whether the ranks have acted as they should."""
    agreed = {(row["case"], row["rank"]): row["agreed"] for row in rows}
    graphs = ("graphs", "graphs")
    for case, told in {
        "all capture": graphs,
        "one cannot capture": ("all run eagerly", "all run eagerly"),
        "cut at the sum": graphs,
        "cut, one cannot": ("graphs", "runs eagerly"),
        "sum inside": graphs,
        "inside, one cannot": ("runs eagerly", "runs eagerly"),
        "one is gone": ("no", None),
    }.items():
        assert (agreed.get((case, 0)), agreed.get((case, 1))) == told, case
    for row in rows:
        assert bool(row["replays"]) == (row["agreed"] == "graphs")
        # Of a graph with the sum inside the first replay is compared, in which all take part.
        assert row["collectives"] == (row["case"] == "sum inside")


RANKED = """
import os, torch
from torch import distributed as dist

def sums(x):
    y = x * 2
    dist.all_reduce(y)
    return y

def leaves(x):
    os._exit(7)
"""


@pytest.fixture
def ranked(tmp_path, monkeypatch):
    (tmp_path / "ranked_here.py").write_text(RANKED)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("ranked_here")
    sys.modules.pop("ranked_here", None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "holds", "words"),
    [
        ("sums", True, "All 2 ranks have a graph"),
        ("leaves", False, "status 7"),
    ],
)
def test_ranks_run_the_users_function(device, ranked, name, holds, words):
    fn, x = getattr(ranked, name), torch.ones(4, device=device)
    report = gfxgraph.experiment("ranks", fn, x)
    assert report.holds is holds and words in report.conclusion, str(report)


def test_ranks_refuse_what_other_processes_cannot_import(device):
    with pytest.raises(ArgumentError, match="top of a module"):
        gfxgraph.experiment("ranks", lambda x: x, torch.ones(2, device=device))


@pytest.mark.long
def test_an_interrupt_ends_all_ranks_and_leaves_no_files(tmp_path):
    code = (  # a job in the background of a shell begins with an interrupt that is ignored
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import gfxgraph; gfxgraph.experiment('ranks')"
    )
    path = os.pathsep.join(filter(None, (SOURCE, os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
    )
    children: list[str] = []
    until = time.monotonic() + 60
    while len(children) < 2 and time.monotonic() < until and process.poll() is None:
        file = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        children = file.read_text().split() if file.exists() else []
        time.sleep(0.01)
    if not children:
        process.kill()
        pytest.skip("this system does not list the children of a process")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in error
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert not list(tmp_path.glob("gfxgraph-ranks-*"))


# The report, and wrong use.


def test_a_report_as_json_has_everything(device, tmp_path):
    report = gfxgraph.experiment("allocations", act, torch.ones(8, device=device))
    text = report.to_json(tmp_path / "report.json")
    data = json.loads(text)
    assert json.loads((tmp_path / "report.json").read_text()) == data
    assert data["schema"] == "gfxgraph.experiment/1"
    assert data["name"] == "allocations" and data["function"] == "act"
    assert data["holds"] is True and data["conclusion"] == report.conclusion
    assert data["rows"] == [dict(row) for row in report.rows]
    assert data["machine"]["emulated"] is not HAS_GPU
    assert data["versions"]["torch"] == torch.__version__
    with pytest.raises(ArgumentError, match="cannot be written"):
        report.to_json(tmp_path / "no" / "folder.json")


def test_printed_it_has_the_question_the_table_and_the_conclusion(device):
    report = gfxgraph.experiment("allocations", act, torch.ones(8, device=device))
    lines = str(report).splitlines()
    assert lines[0].startswith("allocations: does a replay allocate memory")
    assert any("add.Tensor" in line for line in lines)
    assert "holds: Eager allocates 2 times" in str(report)
    assert all(len(line) <= 100 for line in lines)


X = torch.ones(2)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (("smok",), {}, "there is none of this name; expected one of smoke, modes"),
        ((3,), {}, "there is none of this name"),
        (("smoke", 3, X), {}, "takes a function"),
        (("smoke", nn.ReLU, X), {}, "takes a function"),
        (("smoke", act), {}, "missing a required argument"),
        (("smoke", act, X, X), {}, "too many positional"),
        (("smoke", lambda n: n, 3), {}, "no tensor among"),
        (("smoke", act, torch.ones(2, device="meta")), {}, "meta device"),
        (("smoke", None, X), {}, "a function before its arguments"),
        (("smoke", act, X), {"kwargs": 3}, "expected keyword arguments"),
        (("smoke", act, X), {"seconds": 0}, "above 0"),
        (("smoke", act, X), {"seconds": float("nan")}, "above 0"),
        (("smoke", act, X), {"ways": ["graph"]}, "only 'modes' and 'lengths'"),
        (("smoke", act, X), {"traffic": [(X,)]}, "only 'lengths'"),
        (("modes", act, X), {"ways": "graph"}, "expected names of ways"),
        (("modes", act, X), {"ways": ["fast"]}, "is no way"),
        (("lengths", act), {"traffic": 3}, "expected tuples"),
        (("lengths", act), {"traffic": [X]}, "a tuple of arguments"),
        (("lengths", act), {"traffic": [(X,), (X,)], "ways": ["graph"]}, r"expected \['compile'\]"),
        (("ranks",), {"ranks": 1}, "from 2"),
        (("ranks",), {"ranks": True}, "from 2"),
    ],
)
def test_wrong_use_is_an_error_of_ours_before_any_work(arguments, options, words):
    with pytest.raises(ArgumentError, match=words):
        gfxgraph.experiment(*arguments, **options)


@pytest.mark.parametrize("name", ["smoke", "modes", "allocations"])
def test_an_error_of_the_function_is_its_callers(device, name):
    def fails(x):
        raise ValueError("a weight is missing")

    with pytest.raises(ValueError, match="a weight is missing"):
        gfxgraph.experiment(name, fails, torch.ones(2, device=device))


def test_ways_are_read_once(device):
    names = (name for name in ["graph"])
    report = gfxgraph.experiment("modes", *layers(device), ways=names, seconds=0.05)
    assert [row["mode"] for row in report.rows] == ["eager", "graph"]


# The command.

MODULE = """
import random, torch
print("a line of its own")
def act(x):
    return x.relu() + 1
def draws(x):
    return x + random.random()
def fails(x):
    raise ValueError("a weight is missing")
def example():
    return (torch.ones(2, 8),)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "tried_here.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("tried_here", None)


def command(*arguments):
    return CliRunner().invoke(app, ["experiment", *arguments])


def test_without_a_name_they_are_listed():
    found = command()
    assert found.exit_code == 0
    names = [line.split()[0] for line in found.stdout.splitlines()[1:]]
    assert names == [*EXPERIMENTS]


@pytest.mark.long
def test_the_status_says_whether_it_holds(folder):
    found = command("smoke", "tried_here:act", "--make", "tried_here:example")
    assert found.exit_code == 0 and "holds: 20 replays" in found.stdout
    found = command("smoke", "tried_here:draws", "float32[2]")
    assert found.exit_code == 1 and "DOES NOT HOLD: There is no graph" in found.stdout


def test_json_is_all_that_is_on_standard_output(folder):
    found = command("allocations", "tried_here:act", "float32[2,8]", "--json", "--out", "a.json")
    data = json.loads(found.stdout)
    assert data["schema"] == "gfxgraph.experiment/1"
    assert json.loads(Path("a.json").read_text()) == data


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["smok"], "expected one of smoke"),
        (["smoke", "tried_here:fails", "float32[2]"], "a weight is missing"),
        (["smoke", "tried_here:gone", "float32[2]"], "cannot be loaded"),
        (["smoke", "tried_here"], "expected module:callable"),
        (["smoke", "tried_here:act"], "missing a required argument"),
        (["smoke", "tried_here:act", "float32[2", "--seconds", "1"], "expected a tensor"),
        (["smoke", "tried_here:act", "float32[2]", "--make", "tried_here:example"], "not both"),
        (["smoke", "--make", "tried_here:example"], "need a function"),
        (["smoke", "--shapes", "N=1,2"], "need a function"),
        (["smoke", "tried_here:act", "float32[N]", "--shapes", "N=1,2"], "Only lengths"),
        (["smoke", "--way", "graph"], "Only modes and lengths"),
        (["smoke", "--seconds", "-1"], "above 0"),
        (["smoke", "--out", "no/folder.json"], "--out: no/folder.json cannot be written"),
        (["lengths", "tried_here:act", "float32[2]"], "--shapes"),
        (["lengths", "--way", "graph"], "expected"),
        (["modes", "--way", "fast"], "is no way"),
        (["ranks", "--ranks", "0"], "from 2"),
    ],
)
def test_the_command_ends_with_status_2_and_says_what_was_wrong(folder, arguments, words):
    found = command(*arguments)
    assert found.exit_code == 2 and words in found.output
    assert "Traceback" not in found.output


@pytest.mark.long
def test_all_runs_each_once_and_the_ranks_agree(folder):
    found = command(
        *("all", "tried_here:act", "float32[N,8]", "--shapes", "N=2,5", "--calls", "6"),
        *("--seconds", "0.1", "--json", *(["--way", "graph"] if HAS_GPU else [])),
    )
    reports = json.loads(found.stdout)
    assert [
        one["name"] for one in reports if one["holds"] is False and one["name"] != "modes"
    ] == []
    assert found.exit_code == any(one["holds"] is False for one in reports)  # so small a function
    assert [one["name"] for one in reports] == [*EXPERIMENTS]
    assert {one["schema"] for one in reports} == {"gfxgraph.experiment/1"}
    functions = [one["function"] for one in reports]
    assert functions == ["act"] * 4 + ["functions of its own"] * 2
    assert reports[-1]["holds"] is True
    agree(reports[-1]["rows"])
