"""The ways in which torch spreads a model over ranks: graphs, or eager with the reason.

Two ranks over Gloo with emulated graphs. They run ``parallel.py``; each test looks at one case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.devices import HAS_GPU
from tests.helpers.paths import ROOT
from tests.ranks.parallel import CASES

if not torch.distributed.is_available() or HAS_GPU:
    pytest.skip("needs torch.distributed and emulated graphs", allow_module_level=True)

pytestmark = pytest.mark.long
_HERE = Path(__file__).parent
_ENVIRON = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [*sys.path, str(ROOT)]))}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel")
    command = [sys.executable, _HERE / "parallel.py", folder]
    done = subprocess.run(command, env=_ENVIRON, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return {name: [rank[name] for rank in ranks] for name in CASES}


@pytest.fixture
def ranks(found, request):
    """What each rank gave in the case that a test is named after."""
    given = found[request.node.originalname.removeprefix("test_")]
    for rank in given:
        assert "error" not in rank, rank["error"]
        assert all(rank["right"])
    return given


def was_replayed(ranks, replays):
    for rank in ranks:
        assert rank["replays"] == replays and not rank["fallbacks"]


def test_tensor_parallel(ranks):
    was_replayed(ranks, 3)
    for rank in ranks:
        (report,) = rank["graphs"]
        assert sum("all_reduce, between two graphs" in line for line in report) == 2


def test_tensor_parallel_inside(ranks):
    was_replayed(ranks, 3)
    assert all(rank["graphs"] == [[]] for rank in ranks)  # one graph, and no host in between


def test_sequence_parallel(ranks):
    was_replayed(ranks, 3)


def test_weights_that_change(ranks):
    was_replayed(ranks, 10)  # of twelve calls: not the first, and not after another tensor


def test_fully_sharded(ranks):
    for rank in ranks:
        assert rank["replays"] == 0
        assert "a tensor whose storage holds less than its elements" in rank["fallbacks"][0]


def test_fully_sharded_and_kept_whole(ranks):
    assert all(rank["replays"] >= 3 for rank in ranks)


def test_data_parallel(ranks):
    was_replayed(ranks, 3)


def test_pipeline(ranks):
    assert all(rank["replays"] >= 4 and not rank["fallbacks"] for rank in ranks)


def test_pipeline_by_hand(ranks):
    was_replayed(ranks, 3)


def test_shut_down_and_begun_again(ranks):
    """Graphs go before the group, which would not end with NCCL."""
    for rank in ranks:
        assert rank["before"] == [1, 1] and rank["after"] == [0, 0]


# A thread of Gloo may still hold the tensor of the last collective. Where it lets go of it while
# Python ends, torch 2.13 aborts the process, also without gfxgraph: hence the sleep.
_PROGRAM = """
import time, torch, torch.distributed as dist, gfxgraph

dist.init_process_group("gloo")
torch.set_grad_enabled(False)

@gfxgraph.graphed(collectives={how!r})
def f(x):
    y = x * 2
    dist.all_reduce(y)
    return y

for _ in range(3):
    y = f(torch.ones(2))
with open({folder!r} + f"/{{dist.get_rank()}}.txt", "w") as file:
    print(y.tolist(), f.stats().replays, list(f.stats().fallbacks), file=file)
time.sleep(1)
if {raises} and dist.get_rank() == 1:
    raise ValueError("on purpose")
"""


@pytest.mark.long
@pytest.mark.parametrize("how", ["split", "inside"])
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("front", [(), ("-m", "gfxgraph", "run")])
def test_torchrun(tmp_path, front, how, raises):
    """Nothing shuts the group down: the program ends with its graphs alive."""
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM.format(how=how, raises=raises, folder=str(tmp_path)))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *front, *torchrun, program]
    done = subprocess.run(command, env=_ENVIRON, capture_output=True, text=True, timeout=110)
    said = done.stdout + done.stderr
    assert (done.returncode != 0) == raises, said[-2000:]
    for rank in range(2):
        assert (tmp_path / f"{rank}.txt").read_text() == "[4.0, 4.0] 2 []\n"
    assert ("on purpose" in said) == raises


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("split", "1 capture, 3 replays, equal to eager\n{}/examples/tensor_parallel.py:"),
        ("inside", "1 capture, 3 replays, equal to eager"),
        ("refuse", "0 capture, 0 replays, equal to eager"),
    ],
)
def test_the_example(tmp_path, how, said):
    example, program = ROOT / "examples" / "tensor_parallel.py", tmp_path / "program.py"
    lines = "import runpy, time", f"runpy.run_path({str(example)!r}, run_name='__main__')"
    program.write_text("\n".join((*lines, "time.sleep(1)")))  # as above
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", program, how]
    done = subprocess.run(command, env=_ENVIRON, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
    assert said.format(ROOT) in done.stdout
