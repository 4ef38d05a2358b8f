"""Functions with collectives of several ranks become graphs between these, and nobody waits.

Two and three processes over Gloo with emulated graphs, two over NCCL where there are two GPUs. The
ranks run ``collective_cases.py``, in which they do different things; each test looks at one case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.helpers.devices import HAS_GPU
from tests.record.collective_cases import CASES

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

# Seconds until a rank is taken to hang.
_LIMIT = 400


@pytest.fixture(
    scope="module",
    params=[
        *(
            pytest.param(
                ("gloo", world),
                marks=[pytest.mark.long, pytest.mark.skipif(HAS_GPU, reason="graphs are real")],
            )
            for world in (2, 3)
        ),
        pytest.param(("nccl", 2), marks=pytest.mark.gpu),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def found(request, tmp_path_factory):
    """Case -> what it gave in each rank."""
    backend, world = request.param
    if backend == "nccl" and torch.cuda.device_count() < world:
        pytest.skip("needs two GPUs")
    folder = tmp_path_factory.mktemp("ranks")
    program = Path(__file__).with_name("collective_cases.py")
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ranks, logs = [], []
    for rank in range(world):
        logs.append((folder / f"{rank}.log").open("w+"))
        command = [sys.executable, program, str(rank), str(world), backend, folder, *CASES]
        ranks.append(
            subprocess.Popen(command, stdout=logs[-1], stderr=subprocess.STDOUT, env=environ)
        )
    end, ended = time.monotonic() + _LIMIT, []
    try:
        for rank in ranks:
            ended.append(rank.wait(max(1.0, end - time.monotonic())))
    except subprocess.TimeoutExpired:
        ended.append(None)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    texts = []
    for log in logs:
        log.seek(0)
        texts.append(log.read()[-2000:])
        log.close()
    assert ended == [0] * world, f"a rank hangs or died {ended}: {texts}"
    given = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    return {name: [of_rank[name] for of_rank in given] for name in CASES}


@pytest.fixture
def ranks(found, request):
    """What each rank gave in the case that a test is named after."""
    given = found[request.node.originalname.removeprefix("test_")]
    for rank in given:
        assert "error" not in rank, rank["error"]
    return given


def was_split(rank, replays):
    """It has graphs, and the collectives ran between them."""
    is_split = all(rank["right"]) and rank["replays"] == replays and not rank["refused"]
    assert is_split, rank  # with the reasons of calls that ran eagerly


def ran_eagerly(rank, operation, world):
    assert all(rank["right"])
    assert rank["captures"] == rank["replays"] == 0
    reasons = rank["refused"]
    assert reasons and all(f"({operation} in a group of {world} ranks)" in r for r in reasons)
    assert all("collective_cases.py:" in reason for reason in reasons)


def test_all_ranks_do_the_same(ranks):
    for rank in ranks:
        was_split(rank, replays=3)
        assert rank["issued"] == 4  # the caller's own and no others


def test_held_in_graphs(ranks):
    for rank in ranks:
        was_split(rank, replays=3)
        # The first call. NCCL does not count what a graph sends; of emulated graphs we see it.
        assert rank["sent"] == (1 if HAS_GPU else 1 + 1 + 3)


def test_refused_where_that_was_asked_for(ranks):
    for rank in ranks:
        ran_eagerly(rank, "all_reduce", len(ranks))
        assert rank["issued"] == 4


def test_one_rank_cannot_capture(ranks):
    for number, rank in enumerate(ranks):
        assert all(rank["right"]) and rank["issued"] == 5
        assert rank["replays"] == (0 if number == 1 else 4)


def test_one_rank_has_another_shape(ranks):
    for rank in ranks:
        assert all(rank["right"]) and rank["issued"] == 4
    assert [rank["captures"] for rank in ranks[:2]] == [1, 4]


def test_one_rank_resets(ranks):
    for number, rank in enumerate(ranks):
        was_split(rank, replays=2 if number == 1 else 4)
        assert rank["issued"] == 5


def test_one_rank_does_not_use_us(ranks):
    was_split(ranks[0], replays=3)
    assert all(rank["issued"] == 4 and all(rank["right"]) for rank in ranks)


@pytest.mark.parametrize(
    "kind",
    [
        "early",
        "waits",
        "waits_later",
        "functional_sum",
        "operator",
        "gathers",
        "into_one",
        "from_first",
        "barrier",
        "to_the_right",
        "one_by_one",
        "together",
        "into_its_argument",
        "is_asked_for",
    ],
)
def test_whatever_is_issued(ranks, kind):
    for rank in ranks:
        was_split(rank[kind], replays=2)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("gathers_objects", "sends objects"),
        ("asks_its_work", "graphs know only its end"),
        ("leaves_it_undone", "still goes on when the call ends"),
    ],
)
def test_what_stays_whole(ranks, kind, why):
    for rank in ranks:
        assert all(rank[kind]["right"]) and rank[kind]["captures"] == 0
        assert all(why in reason for reason in rank[kind]["refused"]) and rank[kind]["refused"]


def test_a_tensor_that_is_spread(ranks):
    for rank in ranks:
        was_split(rank, replays=2)


def test_a_sharded_model(ranks):
    for rank in ranks:
        assert all(rank["right"]) and rank["captures"] == 0
        assert "a tensor whose storage holds less than its elements" in rank["refused"][0]


def test_buffers_sent_from_code_in_cpp(ranks):
    for rank in ranks:
        ran_eagerly(rank, "broadcast_", len(ranks))
        assert rank["issued"] == 3


def test_only_one_path_issues(ranks):
    for rank in ranks:
        assert all(rank["right"]) and rank["issued"] == 3
        assert rank["captures"] == 2 and rank["replays"] >= 4


def test_a_new_path_after_a_collective(ranks):
    for rank in ranks:
        was_split(rank, replays=3)
        assert rank["captures"] == 2 and rank["issued"] == 15


def test_a_count_that_nobody_sees(ranks):
    for rank in ranks:
        assert rank["issued"] == 0 and rank["captures"] == 0 and len(rank["refused"]) == 1


def test_an_error_that_is_caught(ranks):
    assert all(all(rank["right"]) for rank in ranks)
    assert "all_reduce" in ranks[0]["failed"]["f"]  # captured before anybody has called


def test_a_pool(ranks):
    for rank in ranks:
        ran_eagerly(rank, "all_reduce", len(ranks))
        assert rank["issued"] == 3


def test_branches_by_name(ranks):
    for rank in ranks:
        assert all(rank["right"]) and rank["issued"] == 3
    assert "all_reduce" in ranks[0]["failed"]["sum"]  # captured before anybody has called
    assert ranks[0]["others"] == 1  # the branch that issues nothing is a graph


def test_a_block_with_its_function(ranks):
    for rank in ranks:
        assert all(rank["right"]) and rank["issued"] == 3
    assert any("all_reduce" in reason for reason in ranks[0]["fallbacks"])


def test_a_block_of_sizes(ranks):
    for rank in ranks:
        assert all(rank["right"]) and rank["issued"] == 4  # the block itself runs once


def test_a_low_level_capture(ranks):
    for rank in ranks:
        assert rank["issued"] == 0 and all(rank["right"])
    if not HAS_GPU:
        assert ranks[0]["said"] == ranks[0]["caught"] == "collective"


def test_compiled(ranks):
    for rank in ranks:
        was_split(rank, replays=2)


def test_asked_to_compile(ranks):
    for rank in ranks:
        was_split(rank, replays=2)
        assert rank["issued"] == 3


def test_raising(ranks):
    for rank in ranks:
        assert rank["rule"] == "collective" and rank["line"]
        assert f"all_reduce in a group of {len(ranks)} ranks" in rank["text"]


def test_verified_and_checked_by_one_rank(ranks):
    first = ranks[0]
    assert first["hazards"] == [["collective", True, "branches"]] and first["verdict"] == "branches"
    assert first["checked"] == {
        "functional_sum": ["branches", ["collective"]],
        "gathers": ["branches", ["collective"]],
        "to_the_right": ["branches", ["collective"]],
        "is_asked_for": ["branches", ["collective", "host-read"]],
    }
    assert first["verified"] == "collective" and first["issued"] == 0


def test_run_between_two_graphs(ranks):
    for rank in ranks:
        was_split(rank, replays=2)
        assert rank["issued"] == 3


def test_a_group_made_inside(ranks):
    for rank in ranks:
        ran_eagerly(rank, "new_group", len(ranks))


def test_a_group_written_in_python(ranks):
    for rank in ranks:
        ran_eagerly(rank, "allreduce", len(ranks))
        assert rank["calls"] == 3


def test_coalescing_by_a_run_of_ours(ranks):
    for rank in ranks:
        assert all(rank["right"]) and rank["left"] == 0


def test_coalesced_and_sent_at_the_end(ranks):
    for rank in ranks:
        was_split(rank, replays=3)
        assert rank["captures"] == 2
        was_split(rank["point to point"]["to_the_right"], replays=2)


def test_a_replay_that_is_compared(ranks):
    for rank in ranks:
        assert all(rank["right"]) and rank["replays"] == 3 and rank["issued"] == 6


def test_what_another_thread_issues(ranks):
    for rank in ranks:
        assert rank["refused"] == []


def test_a_group_of_one_rank(ranks):
    for rank in ranks:
        assert all(rank["right"])
        assert rank["captures"] == 1 and rank["replays"] == 3 and not rank["refused"]
        assert rank["after"] == 0  # released when its group was destroyed


def test_a_function_without_collectives(ranks):
    for rank in ranks:
        assert all(rank["right"]) and rank["replays"] == 3 and rank["as_before"]


def test_a_low_level_capture_lives_when_the_group_goes(ranks):
    for rank in ranks:
        assert rank["right"] and not rank["captured"]
