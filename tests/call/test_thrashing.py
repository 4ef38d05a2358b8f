"""A callable whose calls are all of new kinds stops capturing, says what differs, and begins again
when kinds repeat. Counted in captures and replays, never in time."""

from __future__ import annotations

import gc
import logging
import weakref
from itertools import permutations

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.call.thrash import _MAX_KINDS
from tests.helpers.sampled import sampled

ENOUGH = 8  # kinds of calls without a replay, as call/thrash.py has it


def called(graph, calls):
    """Make the calls, each compared with eager; the statistics."""
    with torch.no_grad():
        for args in calls:
            assert torch.equal(graph(*args), graph.__wrapped__(*args))
    return graph.stats()


def lengths(device, sizes, rounds=1):
    return [(torch.randn(n, 8, device=device),) for _ in range(rounds) for n in sizes]


@pytest.fixture
def x(device):
    return torch.randn(4, device=device)


@pytest.fixture
def linear(device):
    return nn.Linear(8, 8).to(device).eval()


# ---- It stops, and says what differs and what to write.


class Scale:
    def __init__(self, n):
        self.n = n


def laid_out(x, order):
    """One shape, and strides that differ with the order."""
    there = x.new_ones(*((2, 3, 4, 5)[dim] for dim in order))
    return there.permute(*(order.index(dim) for dim in range(4)))


def with_number(make):
    return lambda x: (lambda x, scale: x * scale, [(x, make(n)) for n in range(30)])


THRASHING = {
    "the first size": (
        lambda x: (torch.sin, [(x.new_ones(n, 2),) for n in range(1, 31)]),
        "dimension 0 of argument",
        "buckets=[...]",
    ),
    "another size": (
        lambda x: (lambda ids: ids + 1, [(x.new_ones(2, n),) for n in range(1, 31)]),
        "dimension 1 of argument ids differs in every call",
        "dims={'ids': {1: 'length'}}",
    ),
    "a float": (
        with_number(lambda n: n * 0.5),
        "argument scale (float) differs in every call",
        "inputs=['scale']",
    ),
    "an int": (
        with_number(lambda n: n),
        "argument scale (int) differs in every call",
        "inputs=['scale']",
    ),
    "a text": (
        lambda x: (lambda x, name: x + len(name), [(x, "a" * n) for n in range(30)]),
        "argument name (str) differs in every call",
        "Take few values of it",
    ),
    "a number in an object": (
        lambda x: (lambda x, scale: x * scale.n, ((x, Scale(n)) for n in range(30))),
        "argument scale.n (int) differs in every call",
        "Pass a tensor instead of the number",
    ),
    "an object": (
        lambda x: (lambda x, scale: x * (hash(scale) != 0), ((x, Scale(n)) for n in range(30))),
        "Scale) differs in every call",
        "Pass one object in all calls",
    ),
    "a number in a dict": (
        lambda x: (
            lambda batch: batch["x"] * batch["n"],
            [({"x": x, "n": n},) for n in range(30)],
        ),
        'argument batch["n"] (int) differs in every call',
        "Pass a tensor instead of the number.",
    ),
    "the length of a list": (
        lambda x: (lambda parts: sum(parts), [([x] * n,) for n in range(1, 31)]),
        "the structure of the arguments differs in every call",
        "Give them one structure",
    ),
    "strides": (
        lambda x: (lambda x: x + 1, [(laid_out(x, order),) for order in permutations(range(4))]),
        "the layout of argument x differs in every call",
        "Call contiguous() before",
    ),
}


@pytest.mark.parametrize("name", sampled(THRASHING, 3))
def test_what_differs_in_every_call_is_said_and_what_to_write(device, x, name):
    make, what, remedy = THRASHING[name]
    fn, calls = make(x)
    stats = called(gfxgraph.graphed(fn), calls)
    # With a second object of a class it begins anew: it looks into them.
    captures = ENOUGH + ("object" in name)
    assert (stats.captures, stats.replays) == (captures, 0)
    (reason,) = stats.thrashing
    assert what in reason and remedy in reason
    assert stats.fallbacks[reason] >= stats.eager_calls - captures - 1 >= 14
    assert sum(stats.fallbacks.values()) == stats.eager_calls - captures


def test_it_is_said_once_in_the_log_and_counted_in_the_statistics_of_the_process(
    device, linear, caplog
):
    caplog.set_level(logging.WARNING, "gfxgraph")
    called(gfxgraph.graphed(linear), lengths(device, range(1, 41)))
    (record,) = [r for r in caplog.records if r.name == "gfxgraph"]
    assert "dimension 0 of argument input differs in every call" in record.getMessage()
    assert gfxgraph.stats()["fallback_count"] == 40 - ENOUGH
    assert "dimension 0 of argument input" in gfxgraph.stats()["thrashing"]["Linear"]


def test_what_stays_the_same_is_not_said_to_differ(device, x):
    calls = [(x, n * 0.5, "mean") for n in range(20)]
    (reason,) = called(gfxgraph.graphed(lambda x, s, how: x * s), calls).thrashing
    assert "argument s (float)" in reason and "how" not in reason and "dimension" not in reason


def test_a_number_of_two_types_is_one_argument(device, x):
    calls = [(x, n * 0.5 if n % 2 else n) for n in range(20)]
    (reason,) = called(gfxgraph.graphed(lambda x, s: x * s), calls).thrashing
    assert "argument s (float or int) differs in every call. Pass tensors" in reason
    assert "structure" not in reason


def test_strides_that_follow_a_size_are_not_said_to_differ(device):
    calls = [(torch.randn(2, n, device=device).t(),) for n in range(2, 22)]
    (reason,) = called(gfxgraph.graphed(lambda x: x + 1), calls).thrashing
    assert "dimension 0 of argument x differs" in reason and "layout" not in reason


def test_a_value_that_is_read_and_differs_in_every_call_is_said_with_its_line(device):
    def fn(x):
        return x * float(x.sum())

    stats = called(gfxgraph.graphed(fn), [(torch.randn(4, device=device),) for _ in range(30)])
    (reason,) = stats.thrashing
    assert stats.captures == ENOUGH and "the value read at" in reason and __file__ in reason
    assert "float(x.sum())" in reason and "differs in every call" in reason


@pytest.mark.long
def test_paths_of_many_sizes_are_not_captured_without_end(device):
    def fn(x):
        return x * float(x.sum())

    stats = called(gfxgraph.graphed(fn), lengths(device, range(1, 41), rounds=3))
    assert stats.replays == 0 and stats.captures <= 100 < 3 * 40


def test_a_rebound_attribute_that_differs_in_every_call_is_said_by_name(device, x):
    class Model(nn.Module):
        scale = 1

        def forward(self, x):
            return x * self.scale

    model = Model()
    graph = gfxgraph.graphed(model)
    with torch.no_grad():
        for n in range(30):
            model.scale = n
            assert torch.equal(graph(x), x * n)
    stats = graph.stats()
    assert stats.captures <= ENOUGH + 1 and stats.replays == 0
    (reason,) = stats.thrashing
    assert "Model.scale (read in test_thrashing.py:" in reason and "changes on every call" in reason


def test_a_function_that_no_graph_takes_is_not_tried_for_each_size(device, x):
    tries = []

    def fn(x):
        tries.append(torch.jit.is_tracing())  # Python state that each call changes
        return x + 1

    graph = gfxgraph.graphed(fn)
    with torch.no_grad():
        for n in range(1, 61):
            graph(x.new_ones(n))
    stats = graph.stats()
    assert stats.captures == 0 and len(stats.refused) == ENOUGH
    assert "could not be captured" in stats.thrashing[0] and "rebinds" in stats.thrashing[0]
    assert "buckets" not in stats.thrashing[0]  # which would not help


def test_a_pool_has_a_graph_for_each_bucket_first(device):
    pool = gfxgraph.ShapeBucketPool(torch.sin, buckets=list(range(1, 21)))
    for n in range(1, 21):
        pool(torch.ones(n, 2, device=device))
    assert pool.stats().captures == 20 and not pool.stats().thrashing


def test_a_pool_stops_at_what_is_no_bucket(device):
    pool = gfxgraph.ShapeBucketPool(lambda x, scale: x * scale, buckets=[4, 8])
    for n in range(40):
        x = torch.randn(n % 8 + 1, 2, device=device)
        assert torch.equal(pool(x, n * 0.5), x * (n * 0.5))
    stats = pool.stats()
    assert stats.captures == ENOUGH + 2 and "argument scale (float)" in stats.thrashing[0]


def test_each_instance_of_a_method_thrashes_alone(device, x):
    class Model:
        @gfxgraph.graphed
        def scaled(self, x, by):
            return x * by

    one, other = Model(), Model()
    for n in range(20):
        one.scaled(x, n)
        other.scaled(x, 2)
    assert one.scaled.stats().thrashing and one.scaled.stats().captures == ENOUGH
    assert not other.scaled.stats().thrashing and other.scaled.stats().replays == 19


def test_who_asks_for_a_graph_or_an_error_gets_his_graphs_and_a_warning(device, x, caplog):
    graph = gfxgraph.graphed(lambda x, s: x * s, fallback="raise")
    stats = called(graph, [(x, n) for n in range(12)])
    assert stats.captures == 12 and not stats.fallbacks and "argument s (int)" in stats.thrashing[0]
    assert sum("thrashing" in record.getMessage() for record in caplog.records) == 1


# ---- It begins again.


def test_forty_lengths_in_turn_replay_all_graphs_that_are_kept(device, linear):
    stats = called(gfxgraph.graphed(linear), lengths(device, range(1, 41), rounds=5))
    assert (stats.captures, stats.evictions) == (32, 0)
    # The first 8 are captured in the first round, 24 in the second.
    assert stats.replays == 4 * 8 + 3 * 24
    assert "max_graphs" in stats.thrashing[1] and len(stats.thrashing) == 2


def test_a_kind_that_comes_again_is_captured(device, x):
    graph = gfxgraph.graphed(lambda x, s: x * s)
    assert called(graph, [(x, n) for n in range(20)]).captures == ENOUGH
    stats = called(graph, [(x, 100)] * 10)
    assert (stats.captures, stats.replays) == (ENOUGH + 1, 8)


@pytest.mark.long
def test_a_rotation_that_fits_is_captured_whole(device, linear):
    graph = gfxgraph.graphed(linear, max_graphs=64)
    called(graph, lengths(device, range(1, 51), rounds=2))
    before = graph.stats()
    stats = called(graph, lengths(device, range(1, 51)))
    assert before.captures == stats.captures == 50 and stats.replays - before.replays == 50


def test_another_phase_takes_the_place_of_graphs_that_are_not_used_any_more(device, linear):
    graph = gfxgraph.graphed(linear, max_graphs=4)
    called(graph, lengths(device, range(1, 11), rounds=4))
    stats = called(graph, lengths(device, range(20, 24), rounds=60))
    assert {row.key.partition(",")[0] for row in stats.graphs} == {
        f"float32[{n}" for n in range(20, 24)
    }
    assert stats.captures < 40


def test_a_graph_in_use_stays_while_others_come_and_go(device, linear):
    graph = gfxgraph.graphed(linear, max_graphs=2)
    step = torch.randn(1, 8, device=device)
    stats = called(
        graph,
        [call for n in range(2, 40) for call in [(step,)] * 5 + lengths(device, [n])],
    )
    assert stats.replays >= 38 * 5 - 2 and stats.captures <= 1 + 2 * ENOUGH


def test_kinds_that_come_twice_and_never_again_do_not_go_on_for_ever(device, linear):
    calls = [call for n in range(1, 121) for call in lengths(device, [n], rounds=2)]
    stats = called(gfxgraph.graphed(linear, max_graphs=8), calls)
    assert stats.captures <= 8 + 2 * ENOUGH
    assert "before they are replayed" in stats.thrashing[0]


def test_after_a_reset_all_is_forgotten(device, x):
    graph = gfxgraph.graphed(lambda x, s: x * s)
    called(graph, [(x, n) for n in range(20)])
    graph.reset()
    assert not graph.stats().thrashing
    assert called(graph, [(x, 100)] * 3).replays == 2


def test_weights_that_are_rebound_now_and_then_are_no_thrashing(device, linear):
    graph = gfxgraph.graphed(linear)
    with torch.no_grad():
        for _ in range(20):
            linear.weight = nn.Parameter(torch.randn_like(linear.weight))
            for call in lengths(device, [4], rounds=5):
                assert torch.equal(graph(*call), linear(*call))
    assert graph.stats().captures == 20 and not graph.stats().thrashing


# ---- It keeps nothing of the caller's alive.


def test_objects_of_calls_that_are_not_captured_are_let_go(device, x):
    graph = gfxgraph.graphed(lambda x, scale: x * scale.n)
    alive = []
    with torch.no_grad():
        for n in range(50):
            scale = Scale(n)
            alive.append(weakref.ref(scale))
            graph(x, scale)
    del scale
    gc.collect()
    assert sum(one() is not None for one in alive) <= ENOUGH


def test_an_object_at_the_address_of_one_that_is_gone_is_not_taken_for_it(device, x):
    graph = gfxgraph.graphed(lambda x, scale: x * scale.n if hash(scale) else x)
    calls = ((x, Scale(n)) for n in range(300))  # each is freed before the next is made
    assert called(graph, calls).captures == ENOUGH + 1


def test_the_number_of_kinds_that_are_remembered_is_bounded(device, x):
    graph = gfxgraph.graphed(lambda x, s: x * s)
    called(graph, [(x, n) for n in range(_MAX_KINDS + 200)])
    assert len(graph._dispatcher.entries.thrash._seen) == _MAX_KINDS


def test_state_that_differs_in_every_call_is_called_by_its_name(device, x):
    held = {"pair": (0, 1)}

    def fn(x):
        held["pair"] = (held["pair"][0] + 1, 1)
        return x * held["pair"][0]

    graph = gfxgraph.graphed(fn)
    for n in range(8):
        assert torch.equal(graph(x), x * (n + 1))
    (reason,) = graph.stats().thrashing
    assert "pair" in reason and "differs in every call" in reason
    assert "argument" not in reason and "Keep the number in a tensor" in reason
