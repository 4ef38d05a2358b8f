"""Two servers in a process, captures that come again, and interrupts, with the engines' own."""

from __future__ import annotations

import pytest

from tests.serving.test_lazy import SGLANG, VLLM

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

RUN = """
from tests.serving import histories
print(json.dumps({name: histories.all_of(live) for name, live in LIVES.items()}))
"""
# Not in a function: one of the modules keeps the frames that import it.
IMPORTED = """
import vllm.v1.worker.gpu_model_runner
import vllm.v1.worker.gpu.model_runner
"""
VARIABLES = {
    **{"GFXGRAPH": "1", "GFXGRAPH_LAZY": "60", "GFXGRAPH_RELEASE_BELOW": "0.001"},
    "GFXGRAPH_VALIDATE_EVERY": "1",
}
ALL = ["captured"] * 4


@pytest.fixture(scope="module")
def of_vllm(vllm):
    return vllm(VLLM + IMPORTED + RUN.replace("LIVES", "{'v1': LiveV1, 'v2': LiveV2}"), **VARIABLES)


@pytest.fixture(scope="module")
def of_sglang(sglang):
    return sglang(SGLANG + RUN.replace("LIVES", "{'sglang': Live}"), **VARIABLES)


@pytest.fixture(params=["v1", "v2", "sglang"])
def seen(request):
    """What was seen in each history of one engine."""
    kind = request.param
    return request.getfixturevalue("of_sglang" if kind == "sglang" else "of_vllm")[kind]


def test_what_one_of_two_servers_drops_the_other_keeps(seen):
    found = seen["two_servers"]
    assert found["before"] == [["graph"], ["graph"]]
    # The first step after the weight was rebound finds that; the other server has another one.
    assert found["steps"] == [["graph", "eager"], ["graph", "graph"]]
    assert found["states"] == [["captured", "failed", "captured", "captured"], ALL]
    assert found["released"] == 3 and found["after"] == [["eager"] * 2, ["graph"] * 4]


def test_the_comparisons_and_replays_of_two_servers_are_counted_apart(seen):
    found = seen["two_servers"]
    assert found["compared"] == [[0, 2, 0, 0], [0, 3, 0, 0]]
    assert found["replays"] == [1, 4, 1, 1]


def test_a_late_capture_that_fails_in_one_of_two_servers_is_no_matter_of_the_other(seen):
    found = seen["late_failure_of_one_of_two"]
    assert found["steps"] == [["eager", "graph"], ["eager", "eager"], ["graph"]]
    assert [states[1] for states in found["states"]] == ["captured", "failed"]


def test_of_graphs_of_pieces_a_runner_drops_its_own_and_none_that_a_drafter_may_need(of_vllm):
    found = of_vllm["v1"]["pieces"]
    # Sizes 8 and 4, of which 4 was replayed.
    assert found["replays"] == [[0, 1], [0, 1]] and found["gone"] == [1, 0]
    assert found["graphs"] == [[2, 2], [1, 1], [2, 2, 2]]
    assert found["dispatched"] == [[2], [1], [2, 2]]


@pytest.mark.parametrize("history", ["dropped", "dropped_while_sizes_wait"])
def test_a_server_that_is_dropped_is_freed(seen, history):
    assert seen[history]["lives"] is False and seen[history]["sizes"] == 0


def test_health_finds_the_size_that_was_captured_while_another_weight_was_bound(seen):
    found = seen["rebound_and_bound_back"]
    assert found["late"] == ["graph"] and found["then"] == ["graph, and wrong"]
    assert "(linear.weight)" in found["stale"][0] and "1 of 2 size(s)" in found["stale"][0]


def test_captured_again_all_is_well(seen):
    assert seen["captured_again"] == {"health": [False, True], "steps": ["graph"] * 4}


def test_a_size_that_failed_and_is_captured_again_runs_as_a_graph(seen):
    found = seen["failed_and_captured_again"]
    assert found["before"] == ["eager", "eager", "graph"]
    assert found["after"] == ["graph", "eager", "graph"]
    assert found["states"] == ["captured", "captured", "failed", "captured"]


def test_captured_again_after_the_budget_is_spent_all_sizes_run_as_graphs(seen):
    found = seen["captured_again_after_the_budget"]
    assert found["before"] == [
        *["eager", "eager", "graph"],
        *["captured", "waiting", "waiting", "captured"],
    ]
    assert found["after"] == ["graph"] * 4 and found["states"] == ALL


def test_captured_again_while_sizes_wait_they_wait_again(seen):
    found = seen["captured_again_while_sizes_wait"]
    assert found["states"] == ["captured", *["waiting"] * 3]
    assert found["steps"] == ["eager", "graph", "eager", "graph", "eager", "graph"]


def test_an_interrupt_in_a_late_capture_goes_on_and_its_size_runs_eagerly(seen):
    found = seen["interrupted"]
    assert found["went on"] and found["graphs"] == 1
    assert found["states"] == ["captured", "failed", "waiting", "waiting"]
    assert found["after"] == ["eager", "eager", "eager", "graph", "graph"]


def test_what_was_captured_for_a_batch_answers_it_also_when_memory_is_short(seen):
    found = seen["late_and_short_of_memory"]
    assert found["before"] == ["graph", "eager"] and found["after"] == ["graph"] * 2
    assert found["states"] == ["captured", "captured", "waiting", "waiting"]
