"""What is known of an engine's graphs, without an engine."""

from __future__ import annotations

import pytest
import torch

from gfxgraph.serving import between
from gfxgraph.serving.between import BETWEEN, between_steps
from gfxgraph.serving.graphs import EngineGraphs


class Owner:
    """Stands for the object of an engine that holds the graphs: only its identity counts."""


@pytest.fixture
def owner(monkeypatch):
    monkeypatch.setattr(BETWEEN, "lazy", 60.0)
    monkeypatch.setattr(BETWEEN, "spent", 0.0)
    monkeypatch.setattr(BETWEEN, "release_below", 0.0)
    monkeypatch.setattr(BETWEEN, "look_at", 0.0)
    return Owner()


@pytest.fixture
def graphs(owner):
    return EngineGraphs.of(owner, "an engine", "Owner")


def add(graphs: EngineGraphs, *keys: str, replays: int = 0) -> None:
    for key in keys:
        graphs.add(key, 0, counted=lambda: replays, release=lambda: None)


def state(graphs: EngineGraphs, key: str) -> str:
    return next(size.state for size in graphs.sizes() if size.size == key)


# ---- weights


def test_a_size_that_was_captured_with_another_weight_is_found_once_the_first_is_bound_back(graphs):
    model = torch.nn.Linear(2, 2)
    graphs.watch(model)
    add(graphs, "8")
    first, model.weight = model.weight, torch.nn.Parameter(torch.ones(2, 2))
    graphs.watch(model)
    add(graphs, "4")
    assert "1 of 2 size(s)" in graphs.stale()[0]
    model.weight = first
    (said,) = graphs.stale()
    assert "1 weight(s)" in said and "(weight)" in said and "1 of 2 size(s)" in said


def test_capturing_all_again_makes_the_weights_of_now_the_right_ones(graphs):
    model = torch.nn.Linear(2, 2)
    graphs.watch(model)
    add(graphs, "8", "4")
    model.weight = torch.nn.Parameter(torch.ones(2, 2))
    assert "2 of 2 size(s)" in graphs.stale()[0]
    add(graphs, "8")
    assert "1 of 2 size(s)" in graphs.stale()[0]
    add(graphs, "4")
    assert graphs.stale() == []


def test_a_model_that_took_the_place_of_another_is_the_one_that_counts(graphs):
    old, new = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    for model in (old, new):
        graphs.watch(model)
        add(graphs, "8")
    old.weight = torch.nn.Parameter(torch.ones(2, 2))
    assert graphs.stale() == []
    new.weight = torch.nn.Parameter(torch.ones(2, 2))
    assert graphs.stale()


def test_sizes_without_a_graph_read_no_weights(graphs):
    model = torch.nn.Linear(2, 2)
    graphs.watch(model)
    add(graphs, "8", "4")
    model.weight = torch.nn.Parameter(torch.ones(2, 2))
    graphs.fail("4", RuntimeError("no"))
    graphs.release_unused()
    assert graphs.stale() == []


def test_where_no_capture_began_the_graph_of_before_has_answered(graphs):
    model = torch.nn.Linear(2, 2)
    graphs.watch(model)
    add(graphs, "8")
    model.weight = torch.nn.Parameter(torch.ones(2, 2))
    graphs.watch(model)
    nothing = lambda: None  # noqa: E731
    with graphs.capturing("8", nothing, lambda: True, lambda: 0, nothing, nothing):
        pass
    assert graphs.stale()


# ---- an interrupt in a late capture


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_late_capture_goes_on_and_its_size_runs_eagerly(graphs, owner, interrupt):
    def capture():
        raise interrupt

    graphs.wait("4", capture)
    graphs.want("4")
    with pytest.raises(interrupt):
        between_steps(owner)
    assert state(graphs, "4") == "failed" and interrupt.__name__ in graphs.sizes()[0].reason
    graphs.want("4")
    between_steps(owner)  # nothing waits any more
    assert state(graphs, "4") == "failed"


def test_an_interrupt_that_spends_the_budget_ends_it_too(graphs, owner):
    captured = []

    def capture():
        BETWEEN.spent = 60.0
        raise KeyboardInterrupt

    graphs.wait("4", capture)
    graphs.wait("2", lambda: captured.append("2"))
    graphs.want("4")
    graphs.want("2")
    with pytest.raises(KeyboardInterrupt):
        between_steps(owner)
    between_steps(owner)
    assert not captured and "are spent" in graphs.sizes()[1].reason


# ---- captures of the engine while a size waits


def test_a_size_that_the_engine_captures_waits_no_longer(graphs, owner):
    graphs.wait("4", lambda: add(graphs, "4"))
    graphs.want("4")
    add(graphs, "4", replays=1)
    between_steps(owner)
    assert graphs.wanted == [] and graphs.sizes()[0].replays == 1


# ---- releases


def late(graphs: EngineGraphs, owner: Owner, key: str) -> None:
    graphs.wait(key, lambda: add(graphs, key))
    graphs.want(key)
    between_steps(owner)


def test_a_size_that_was_just_captured_for_a_batch_is_not_released_before_a_batch_can_use_it(
    graphs, owner, monkeypatch
):
    monkeypatch.setattr(BETWEEN, "release_below", 1e30)
    monkeypatch.setattr(between, "_EVERY", 0.0)
    monkeypatch.setattr(between, "_GRACE", 5)
    add(graphs, "8")
    late(graphs, owner, "4")
    assert state(graphs, "8") == "eager" and state(graphs, "4") == "captured"
    for _ in range(4):
        between_steps(owner)
    assert state(graphs, "4") == "captured"
    between_steps(owner)
    assert state(graphs, "4") == "eager"


def test_the_function_releases_a_size_whenever_it_was_captured(graphs, owner):
    late(graphs, owner, "4")
    assert [size.size for size in graphs.release_unused()] == ["4"]
