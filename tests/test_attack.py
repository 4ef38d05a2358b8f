"""Uses that somebody found who had read nothing but the documentation."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

import gfxgraph


class Counts:
    calls = 0


@torch.no_grad()
def test_a_number_of_a_class_that_a_function_counts_is_counted_once_in_each_call(device):
    def fn(x):
        Counts.calls += 1
        return x * Counts.calls

    Counts.calls = 0
    graph = gfxgraph.graphed(fn)
    assert [graph(torch.ones(1, device=device)).item() for _ in range(5)] == [1, 2, 3, 4, 5]


@torch.no_grad()
def test_points_of_a_sobol_sequence_are_those_of_eager(device):
    def make() -> Any:
        engine = torch.quasirandom.SobolEngine(8)
        return lambda x: x + engine.draw(4).to(x.device)

    eager, graph = make(), gfxgraph.graphed(make())
    x = torch.zeros(4, 8, device=device)
    assert all(torch.equal(eager(x), graph(x)) for _ in range(6))


@torch.no_grad()
def test_the_seed_of_an_own_generator_is_asked_in_each_call(device):
    generator = torch.Generator()
    graph = gfxgraph.graphed(lambda x: x * float(generator.initial_seed()))
    for seed in range(5):
        generator.manual_seed(seed)
        assert graph(torch.ones(1, device=device)).item() == seed


@torch.no_grad()
def test_a_gradient_that_a_function_keeps_is_that_of_all_calls(device):
    weight = torch.nn.Parameter(torch.zeros(2, device=device))

    def fn(x):
        weight.grad = x.clone() if weight.grad is None else weight.grad + x
        return x * 2

    graph = gfxgraph.graphed(fn)
    for _ in range(5):
        graph(torch.ones(2, device=device))
    assert weight.grad.tolist() == [5.0, 5.0]


@torch.no_grad()
def test_the_gradient_of_an_argument_is_that_of_the_call(device):
    graph = gfxgraph.graphed(lambda x: x * (2 if x.grad is None else x.grad))
    for n in range(5):
        x = torch.ones(2, device=device).requires_grad_()
        if n % 2:
            x.grad = torch.full((2,), float(n), device=device)
        assert graph(x).tolist() == [n if n % 2 else 2.0] * 2


@torch.no_grad()
def test_what_a_no_graph_function_keeps_is_its_own(device):
    kept = []

    @gfxgraph.no_graph
    def keep(y):
        kept.append(y)

    def fn(x):
        keep(x * 2)
        return x + 1

    graph = gfxgraph.graphed(fn)
    for n in range(6):
        graph(torch.full((1,), float(n), device=device))
    assert [t.item() for t in kept] == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


@torch.no_grad()
def test_a_view_that_a_no_graph_function_returns_can_be_written(device):
    @gfxgraph.no_graph
    def rest(y):
        y[0] = 5
        return y[1:]

    def fn(x):
        y = x * 2
        rest(y).add_(1)
        return y

    graph = gfxgraph.graphed(fn)
    for n in range(6):
        x = torch.full((3,), float(n), device=device)
        assert torch.equal(graph(x), fn(x))


@torch.no_grad()
def test_a_bound_draw_of_numpy_runs_eagerly_for_a_reason_that_names_it(device):
    draw = numpy.random.default_rng(3).standard_normal
    graph = gfxgraph.graphed(lambda x: x * float(draw()))
    for _ in range(3):
        graph(torch.ones(2, device=device))
    (reason,) = graph.stats().fallbacks
    assert "draw" in reason and "attribute" not in reason


@torch.no_grad()
@pytest.mark.parametrize("buckets", [[4, 8], [8]])
def test_a_number_that_follows_the_size_is_found_whatever_the_first_data(device, buckets):
    def fn(x):
        return (x * x.shape[0] + 2).amax(-1).sign()

    graph = gfxgraph.graphed(fn, buckets=buckets)
    graph(torch.zeros(1, 3, device=device))
    for n in (1, 1, 2, 3, 1, 4):
        x = -torch.ones(n, 3, device=device) * n
        assert torch.equal(graph(x), fn(x))


@torch.no_grad()
@pytest.mark.parametrize("catches", [True, False])
def test_an_error_of_a_no_graph_function_is_raised_where_it_is_called(device, catches):
    def make() -> Any:
        state, calls = {"caught": 0}, []
        total = torch.zeros(2, device=device)

        @gfxgraph.no_graph
        def risky(y):
            calls.append(1)
            if len(calls) % 3 == 0:
                raise ValueError("no")
            y.mul_(2)

        def fn(x):
            y = x + 1
            total.add_(1)
            try:
                risky(y)
            except ValueError:
                if not catches:
                    raise
                state["caught"] += 1
                y = y - 5
            return y + total

        return fn, state, total

    (eager, *theirs), (plain, *ours) = make(), make()
    graph = gfxgraph.graphed(plain)
    for n in range(9):
        results: list[Any] = []
        for fn in (eager, graph):
            try:
                results.append(fn(torch.full((2,), float(n), device=device)).tolist())
            except ValueError as error:
                results.append(str(error))
        assert results[0] == results[1]
        assert theirs[0] == ours[0]
        assert torch.equal(theirs[1], ours[1])
    assert graph.stats().replays > 0
