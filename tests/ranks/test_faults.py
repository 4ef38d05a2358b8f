"""One of four ranks is at fault: nobody waits for it for long, and all results are right.

Gloo and emulated graphs. The ranks run ``faults.py``; each test looks at one case. Where graphs
hold collectives, all ranks run eagerly from then on, and say which one was at fault. Where graphs
are cut at collectives, each rank does as well as it can.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.devices import HAS_GPU
from tests.ranks.faults import FAULTY

if not torch.distributed.is_available() or HAS_GPU:
    pytest.skip("needs torch.distributed and emulated graphs", allow_module_level=True)

pytestmark = pytest.mark.long

# Seconds until the ranks are taken to hang.
_LIMIT = 100
_QUICK = (
    "nothing",
    "raises_in_warm_up",
    "raises_in_capture",
    "out_of_memory",
    "has_another_shape",
    "sends_another_shape",
    "sends_another_shape_later",
    "takes_another_branch",
    "rebinds_a_weight",
    "resets",
    "of_a_mesh",
)
_OF_GROUPS = ("of_groups_that_differ", "of_groups_that_are_gone")
_SLOW = ("stalls", "is_killed")


def run_ranks(how, folder, names):
    """What each rank gave, by case; the ranks are killed if they hang."""
    program = Path(__file__).with_name("faults.py")
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (folder / "log").open("w+") as log:
        ranks = subprocess.Popen(
            [sys.executable, program, how, folder, *names],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
        try:
            ranks.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            log.seek(0)
            pytest.fail(f"the ranks hang: {log.read()[-3000:]}")
        finally:
            if ranks.poll() is None:
                os.killpg(ranks.pid, signal.SIGKILL)
                ranks.wait()
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]
    return {name: [rank.get(name) for rank in found] for name in names}


@pytest.fixture(scope="module")
def inside(tmp_path_factory):
    names = ("raises_as_on_a_gpu", *_OF_GROUPS, *_QUICK, *_SLOW)
    return run_ranks("inside", tmp_path_factory.mktemp("inside"), names)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return run_ranks("split", tmp_path_factory.mktemp("split"), (*_QUICK, *_SLOW))


def all_right(ranks):
    for rank in ranks:
        assert "error" not in rank, rank["error"]
        assert all(rank["right"])
    return ranks


def names_the_rank(ranks):
    for rank in ranks:
        assert any(f"rank {FAULTY}" in reason for reason in rank["fallbacks"]), rank["fallbacks"]


def test_no_rank_at_fault(inside):
    for rank in all_right(inside["nothing"]):
        assert rank["replays"] == 4 and not rank["fallbacks"]


@pytest.mark.parametrize("case", ["raises_in_warm_up", "raises_in_capture", "out_of_memory"])
def test_a_rank_that_cannot_capture(inside, case):
    names_the_rank(inside[case])
    for rank in all_right(inside[case]):
        assert rank["replays"] == 0
        assert any("faults.py:" in r or "not in a warm-up" in r for r in rank["fallbacks"])


def test_a_rank_that_cannot_capture_on_a_gpu(inside):
    """Nothing is sent in vain, nobody is waited for, and the ranks meet again."""
    for rank in all_right(inside["raises_as_on_a_gpu"]):
        *faulty, last = rank["each"]
        assert rank["sent"] == 3 * 5 + 1  # those of the calls, and of the first replay
        assert last["replays"] == 4 and not last["fallbacks"]
        for each in faulty:
            assert each["replays"] == 0 and each["fallbacks"]
            assert not any("gave no answer" in reason for reason in each["fallbacks"])


def test_a_rank_with_another_shape(inside):
    names_the_rank(inside["has_another_shape"])
    for rank in all_right(inside["has_another_shape"]):
        assert rank["replays"] == 1  # while all ranks have the first shape
        assert "rank 2 has no graph (for float32[7])" in rank["fallbacks"][0]


def test_a_rank_that_sends_another_shape(inside):
    names_the_rank(inside["sends_another_shape"])
    for rank in all_right(inside["sends_another_shape"]):
        assert rank["replays"] == 3  # of graphs that are cut there
        difference = rank["fallbacks"][0].splitlines()
        signs = {line[1:].partition(" in")[0]: line[0] for line in difference[-2:]}
        assert signs.keys() == {"all_reduce(float32[2, 2])", "all_reduce(float32[4])"}
        assert set(signs.values()) == {"-", "+"}  # the first rank's is taken away
        assert all("faults.py:" in line for line in difference[-2:])


def test_a_rank_that_sends_another_shape_in_another_kind_of_calls(inside):
    names_the_rank(inside["sends_another_shape_later"])
    for rank in all_right(inside["sends_another_shape_later"]):
        assert rank["cut"] == [1, 1]  # none is left that holds the collective
        assert rank["replays"] == 1 + 1 + 2


def test_a_rank_that_takes_another_branch(inside):
    for rank in all_right(inside["takes_another_branch"]):
        assert rank["replays"] == 3  # of graphs that are cut there
        assert "faults.py" in rank["fallbacks"][0]


@pytest.mark.parametrize(("case", "replays"), [("rebinds_a_weight", 5), ("resets", 2)])
def test_a_rank_that_loses_its_graph(inside, case, replays):
    """All run that call eagerly, and capture again."""
    names_the_rank(inside[case])
    for number, rank in enumerate(all_right(inside[case])):
        assert rank["replays"] == replays or (number, case) == (FAULTY, "resets")


def test_several_groups(inside):
    """A graph holds the collectives of all of them, if it is said who calls the function."""
    for rank in all_right(inside["of_a_mesh"]):
        assert rank["replays"] == 4 and rank["cut"] == [0]
        assert all(rank["not_named"]["right"]) and rank["not_named"]["cut"] == [2]


def test_groups_that_have_sent_more_on_one_rank_than_on_another(inside):
    for rank in all_right(inside["of_groups_that_differ"]):
        assert rank["replays"] == 4 and rank["cut"] == [0]
        # Ranks that send nothing take part, and learn that others do.
        assert all(rank["one"]["right"]) and rank["one"]["replays"] == 3
        assert any("differs from rank" in reason for reason in rank["one"]["fallbacks"])


def test_groups_that_are_gone(inside):
    for rank in all_right(inside["of_groups_that_are_gone"]):
        assert [each["replays"] for each in rank["each"]] == [2, 2, 2, 0]
        assert any("new_group" in reason for reason in rank["each"][-1]["fallbacks"])


def test_a_rank_that_stalls(inside):
    ranks = all_right(inside["stalls"])
    names_the_rank(ranks)
    for rank in ranks:
        assert rank["replays"] == 2


def test_a_rank_that_is_killed(inside):
    survivors = [rank for rank in inside["is_killed"] if rank is not None]
    assert len(survivors) == 3
    names_the_rank(survivors)
    for rank in all_right(survivors):
        assert rank["replays"] == 1
        assert len(rank["errors"]) == 2  # of eager execution: there is nobody to add up with
        assert all(rank["again"]["right"]) and rank["again"]["replays"] == 4


@pytest.mark.parametrize("case", [*_QUICK, "stalls"])
def test_with_graphs_that_are_cut_each_rank_does_as_well_as_it_can(split, case):
    ranks = all_right(split[case])
    others = [rank for number, rank in enumerate(ranks) if number != FAULTY]
    assert all(rank["replays"] for rank in others)
    assert not any(rank["fallbacks"] for rank in others)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
def test_the_error_of_a_collective_between_graphs_names_the_rank(split):
    survivors = [rank for rank in split["is_killed"] if rank is not None]
    notes = [rank["errors"][0][1] for rank in all_right(survivors)]
    for note in notes:
        assert note.startswith("gfxgraph: allreduce of ranks [0, 1, 2, 3], not failed in it")
    assert any(note.endswith(f": [{FAULTY}]") for note in notes)
