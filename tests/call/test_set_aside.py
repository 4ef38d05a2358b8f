"""A graph that holds for a value of the program is there again when the value is."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import gfxgraph


class Adapted(nn.Module):
    """A layer with low-rank adapters, one of which is active."""

    def __init__(self, names="abc"):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.adapters = nn.ParameterDict({n: nn.Parameter(torch.randn(3, 3)) for n in names})
        self.active, self.scale, self.is_on, self.steps = names[0], 1.0, True, 2

    def forward(self, x):
        y = self.layer(x)
        if self.is_on:
            for _ in range(self.steps):
                y = y + self.scale * (x @ self.adapters[self.active])
        return y


def agree(graph, model, x):
    with torch.no_grad():
        assert torch.allclose(graph(x), type(model).forward(model, x), atol=1e-6)


def switch(graph, model, x, names):
    for name in names:
        model.active = name
        agree(graph, model, x)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("active", ["a", "b", "c"]),
        ("scale", [1.0, 0.5, 2.0]),
        ("is_on", [True, False]),
        ("steps", [1, 2, 3]),
    ],
)
def test_each_value_of_an_attribute_keeps_its_graph(device, name, values):
    model, x = Adapted().to(device), torch.randn(2, 3, device=device)
    graph = gfxgraph.graphed(model)
    for n in range(12):
        setattr(model, name, values[n % len(values)])
        agree(graph, model, x)
    stats = graph.stats()
    assert (stats.captures, stats.replays) == (len(values), 12 - len(values))
    assert stats.recaptures == len(values) - 1 and not stats.fallbacks


def test_an_attribute_that_hides_one_of_the_class_may_come_and_go(device):
    class Scaled(nn.Module):
        scale = 2.0

        def forward(self, x):
            return x * self.scale

    model, x = Scaled(), torch.ones(3, device=device)
    graph = gfxgraph.graphed(model)
    for _ in range(3):
        agree(graph, model, x)
        model.scale = 3.0
        agree(graph, model, x)
        del model.scale
    assert graph.stats().captures == 2


def test_values_that_change_together_have_a_graph_for_each_pair(device):
    model, x = Adapted().to(device), torch.randn(2, 3, device=device)
    graph = gfxgraph.graphed(model)
    for n in range(24):
        model.active, model.scale = "ab"[n % 2], [1.0, 2.0][n // 2 % 2]
        agree(graph, model, x)
    assert graph.stats().captures == 4 and graph.stats().replays == 20


def test_a_setting_that_alternates_keeps_its_graphs(device):
    graph, x = gfxgraph.graphed(lambda x: x @ x.T), torch.randn(3, 3, device=device)
    before = torch.get_float32_matmul_precision()
    try:
        for n in range(8):
            torch.set_float32_matmul_precision(["highest", "high"][n % 2])
            graph(x)
    finally:
        torch.set_float32_matmul_precision(before)
    assert graph.stats().captures == 2 and graph.stats().replays == 6


def test_weights_that_are_replaced_meanwhile_are_seen_and_are_not_kept_alive(device):
    model, x = Adapted().to(device), torch.randn(2, 3, device=device)
    graph = gfxgraph.graphed(model)
    switch(graph, model, x, "abab")
    old = weakref.ref(model.layer.weight)
    model.layer.weight = nn.Parameter(torch.randn(3, 3, device=device))
    switch(graph, model, x, "aabbaabb")
    gc.collect()
    assert old() is None
    assert graph.stats().captures == 4


def test_weights_that_are_offloaded_say_nothing_of_a_graph_that_reads_others(device):
    model, x = Adapted().to(device), torch.randn(2, 3, device=device)
    graph = gfxgraph.graphed(model)
    switch(graph, model, x, "abab")
    model.adapters["a"].data.untyped_storage().resize_(0)
    switch(graph, model, x, "bcbc")
    assert graph.stats().captures == 3 and graph.stats().replays == 5


def test_an_object_that_is_replaced_leaves_no_graph_behind(device):
    model, x = Adapted().to(device), torch.randn(2, 3, device=device)
    graph = gfxgraph.graphed(model)
    for _ in range(3):
        model.layer = nn.Linear(3, 3).to(device)
        agree(graph, model, x)
        agree(graph, model, x)
    assert len(graph.stats().graphs) == 1


def test_a_value_that_never_comes_again_runs_eagerly_and_says_why(device):
    model, x = Adapted().to(device), torch.randn(2, 3, device=device)
    graph = gfxgraph.graphed(model)
    for n in range(24):
        model.scale = 1.0 + n
        agree(graph, model, x)
    (reason,) = graph.stats().fallbacks
    assert "Adapted.scale" in reason and "set it once" in reason
    assert not graph.stats().graphs


def test_few_graphs_of_one_kind_are_set_aside(device):
    model, x = Adapted().to(device), torch.randn(2, 3, device=device)
    graph = gfxgraph.graphed(model)
    for n in range(20):  # each value comes often enough to pay, and never again
        model.scale = 1.0 + n
        for _ in range(5):
            agree(graph, model, x)
    assert graph.stats().replays == 80
    assert len(graph.stats().graphs) <= 9


def test_graphs_that_are_set_aside_count_among_those_that_are_kept(device):
    model, x = Adapted("abcdef").to(device), torch.randn(2, 3, device=device)
    graph = gfxgraph.graphed(model, max_graphs=3)
    for n in range(36):
        model.active = "abcdef"[n // 4 % 6]
        agree(graph, model, x)
    assert len(graph.stats().graphs) <= 3


def test_data_that_takes_a_new_path_extends_the_graph_of_the_value_of_now(device):
    class Branches(nn.Module):
        sign = 1

        def forward(self, x):
            if (x.sum() * self.sign > 0).item():
                return x * 2 + self.sign
            return x * 3 - self.sign

    model, x = Branches(), torch.ones(3, device=device)
    graph = gfxgraph.graphed(model)
    for n in range(24):
        model.sign = [1, -1][n // 2 % 2]
        agree(graph, model, x if n % 3 else -x)
    assert graph.stats().replays > 12


def test_two_threads_switch_to_and_fro(device):
    import threading

    model, x = Adapted().to(device), torch.randn(2, 3, device=device)
    graph, lock, wrong = gfxgraph.graphed(model), threading.Lock(), []

    def work(names):
        for n in range(60):
            with lock:
                model.active = names[n % len(names)]
                with torch.no_grad():
                    if not torch.allclose(graph(x), model(x), atol=1e-6):
                        wrong.append(n)

    threads = [threading.Thread(target=work, args=(names,)) for names in ("ab", "bca")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and graph.stats().captures == 3
