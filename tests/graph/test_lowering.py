"""With ``branching="device"`` the device decides where ``if`` and ``while`` read data."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.utils._pytree as pytree

import gfxgraph
from gfxgraph.errors import ArgumentError
from tests.graph import branching
from tests.helpers.sampled import sampled


@pytest.fixture(autouse=True)
def _without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(autouse=True)
def _outside(device, monkeypatch):
    for name in ("WEIGHT", "OTHER"):
        monkeypatch.setattr(branching, name, getattr(branching, name).to(device))


def values(device, n):
    torch.manual_seed(n)
    x = torch.randn(8) * (0, 1, 3, 0.2)[n % 4]
    return (x.abs() if n % 3 == 1 else x).to(device)


def called(fn, x):
    """What a call gives, which of that are the same tensors, and what it leaves in Python."""
    branching.STATE.update(turns=0, last=None)
    torch.manual_seed(5)
    results = pytree.tree_leaves(fn(x))
    same = [[a is b for a in results] for b in results]
    found = [result.clone() for result in (*results, branching.WEIGHT, branching.OTHER)]
    last = branching.STATE["last"]
    return found, same, branching.STATE["turns"], last if last is None else last.clone()


def same_in_each_call(fn, device, order):
    """Call ``fn`` and its graph with equal arguments, until all calls have gone each way."""
    graph = gfxgraph.graphed(fn, branching="device")
    for n in (*order, *order, *order):
        x, y = values(device, n), values(device, n)
        expected, got = called(fn, x), called(graph, y)
        assert expected[1:3] == got[1:3]
        torch.testing.assert_close(got[0], expected[0], equal_nan=True)
        torch.testing.assert_close(got[3], expected[3])
        torch.testing.assert_close(x, y)
    return graph.stats()


MANY = [pytest.mark.long, pytest.mark.full]
ORDERS = pytest.mark.parametrize(
    "order",
    [(1, 0, 2, 6), pytest.param((6, 2, 0, 1, 4, 7, 3, 5), marks=MANY)],
    ids=["few", "many"],
)


@pytest.mark.parametrize("fn", sampled(branching.FITS, 6), ids=lambda fn: fn.__name__)
def test_where_statements_only_compute_there_is_one_graph(fn, device):
    stats = same_in_each_call(fn, device, (1, 0, 2, 6))
    # What other tests have left in the process may make the first call of all wait.
    assert all("it is not known yet" in why for why in stats.fallbacks)
    assert [(row.paths, row.report) for row in stats.graphs] == [(1, [])]


@ORDERS
@pytest.mark.parametrize("case", sampled(branching.STAYS, 6), ids=lambda case: case[0].__name__)
def test_elsewhere_the_host_decides_and_the_report_says_why(case, device, order):
    fn, why = case
    stats = same_in_each_call(fn, device, order)
    lines = [line for row in stats.graphs for line in row.report]
    assert any("the host decides: " in line and why in line for line in lines), lines


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.scale = 2.0

    def forward(self, x):
        y = self.first(x)
        if y.sum() > 0:
            y = self.second(y) * self.scale
        return y.relu()


def test_what_a_branch_reads_is_watched_also_where_the_capture_did_not_take_it(device):
    model = Gate().to(device)
    model.first.weight.fill_(1.0)
    graph, x = gfxgraph.graphed(model, branching="device"), torch.ones(8, device=device)
    for sign in (1, -1, -1, -1):
        torch.testing.assert_close(graph(sign * x), model(sign * x))
    assert [row.report for row in graph.stats().graphs] == [[]]
    model.scale = 5.0
    model.second.weight = torch.nn.Parameter(torch.ones(8, 8, device=device))
    for y in (x, -x, x, -x):
        torch.testing.assert_close(graph(y), model(y))


def halved(x):
    while x.norm() > 1:
        x = x * 0.5
    return x + 0


def test_a_function_has_its_own_code_again_after_the_capture(device):
    code = halved.__code__
    graph = gfxgraph.graphed(halved, branching="device")
    for n in range(3):
        torch.testing.assert_close(graph(values(device, n)), halved(values(device, n)))
    assert halved.__code__ is code


def test_functions_that_are_called_decide_on_the_device_as_well(device):
    def outer(x):
        return halved(x) + halved(x * 2)

    graph = gfxgraph.graphed(outer, branching="device")
    for n in (2, *range(8)):
        torch.testing.assert_close(graph(values(device, n)), outer(values(device, n)))
    assert graph.stats().captures == 1


def table(x):
    if not hasattr(table, "made"):
        table.made = torch.arange(8, device=x.device) * 1.0
    return table.made


def test_python_of_a_branch_runs_only_where_a_call_has_taken_it(device):
    def function(x):
        y = x * 1
        if x.sum() > 0:
            y = y + table(x)
        return y + 0

    graph, x = gfxgraph.graphed(function, branching="device"), torch.ones(8, device=device)
    for sign in (-1, -1, 1, -1, 1, 1):
        made = hasattr(table, "made")
        got = graph(sign * x)
        assert hasattr(table, "made") == (made or sign > 0)
        torch.testing.assert_close(got, function(sign * x))
    del table.made


@pytest.mark.parametrize("what", ["hash", "id", "_is_view", "storage_offset"])
def test_who_can_tell_a_tensor_from_a_copy_keeps_the_statement(device, what):
    def function(x):
        y = z = x[2:] * 1
        if what != "id":
            z = y[1:]
            y = y[1:]
        if x.sum() > 0:
            y = y * 2
        if what == "hash":
            return x[3:] + len({y, z})
        if what == "id":
            return x[2:] + (id(y) == id(z))
        return x[3:] + int(getattr(y, what)())

    graph = gfxgraph.graphed(function, branching="device")
    for n in (1, 0, 2, 5, 3, 1, 0):
        x = values(device, n)
        torch.testing.assert_close(graph(x), function(x))


def test_other_threads_may_call_the_function_while_it_is_captured(device):
    if device == "cuda":
        torch.cuda.synchronize()
    graph = gfxgraph.graphed(halved, branching="device")
    stop, wrong = threading.Event(), []

    @torch.no_grad()
    def call():
        while not stop.is_set():
            x = torch.zeros(4)
            y = halved(x)
            wrong.extend([y] if y.abs().sum() else [])

    thread = threading.Thread(target=call)
    thread.start()
    try:
        for n in (2, *range(6)):
            torch.testing.assert_close(graph(values(device, n)), halved(values(device, n)))
    finally:
        stop.set()
        thread.join()
    assert not wrong
    assert graph.stats().captures == 1


def test_code_whose_source_is_not_what_runs_stays_as_it_is(device):
    space = {}
    exec("def f(x):\n    if x.sum() > 0:\n        x = x * 2\n    return x + 1", space)
    stats = same_in_each_call(space["f"], device, range(6))
    assert any("the source of f() is not there" in line for line in stats.graphs[0].report)


def test_a_function_that_is_made_in_each_call_stays_as_it_is(device):
    def outer(x):
        def inner(x):
            if x.sum() > 0:
                x = x * 2
            return x + 1

        return inner(x)

    stats = same_in_each_call(outer, device, range(6))
    assert any("made anew in each call" in line for line in stats.graphs[0].report)


def test_the_limit_of_a_range_is_read_in_each_capture(device):
    def limited(x, most):
        y = x * 1
        for _ in range(most):
            y = y * 2 + 1
            if y.sum() > 1000:
                break
        return y + 0

    graph = gfxgraph.graphed(limited, branching="device")
    for most in (3, 0, 1, 3, 0, 1):
        for n in range(4):
            x = values(device, n)
            torch.testing.assert_close(graph(x, most), limited(x, most))
    assert graph.stats().captures == 3


@pytest.mark.parametrize("by_hand", [True, False])
def test_padding_may_not_decide(device, by_hand):
    def function(x):
        y = x * 1
        if by_hand:
            return gfxgraph.cond(y.mean() > 0.5, lambda y: y * 2, lambda y: y + 0, y)
        if y.mean() > 0.5:
            y = y * 2
        return y + 0

    graph = gfxgraph.graphed(function, buckets=[4, 8], branching="device")
    for n in range(12):
        torch.manual_seed(n)
        x = torch.rand(1 + n % 8, 3).to(device) * 1.3
        torch.testing.assert_close(graph(x), function(x))
    assert any("decides how the call goes on" in why for why in graph.stats().fallbacks)


def test_another_word_is_refused():
    with pytest.raises(ArgumentError, match=r"branching='gpu'.*'auto', 'device' or 'off'"):
        gfxgraph.graphed(halved, branching="gpu")
