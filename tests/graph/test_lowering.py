"""With ``branching="device"`` the device decides where ``if`` and ``while`` read data."""

from __future__ import annotations

import operator
import threading

import pytest
import torch
import torch.utils._pytree as pytree

import gfxgraph
from gfxgraph.call import faster
from gfxgraph.errors import ArgumentError
from gfxgraph.graph.native import NativeGraph
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


def steps(x):
    """Three operators."""
    return (x * 0.5).sin() + 0.1


def counts_down(x):
    left = x.new_full((), 3)
    while left > 0:
        x, left = steps(x), left - 1
    return x


def ends_in_the_middle(x):
    for _ in range(20):
        x = steps(x)
        if x.sum().item() < 2:
            break
    return x


def has_two_conditions(x):
    while x.norm() > 1:
        x = steps(x)
        if x.sum() < 2:
            break
    return x


def returns_a_flag(x):
    def turn(x, goes_on):
        x = steps(x)
        return x, x.norm() > 1

    return gfxgraph.while_loop(lambda x, goes_on: goes_on, turn, x, x.norm() > 1, max_turns=5)[0]


def counts_in_two_dtypes(x):
    turns = torch.zeros((), dtype=torch.int64, device=x.device)
    while x.norm() > 1:
        x, turns = steps(x), turns + 1
    return x, turns


TURNS = {
    # What a turn does beside its three steps.
    counts_down: ["sub", "_foreach_copy_", "gt"],
    ends_in_the_middle: ["sum", "_to_copy", "lt", "logical_not", "copy_"],
    has_two_conditions: [
        *("sum", "lt", "logical_not", "copy_"),
        *("linalg_vector_norm", "gt", "logical_and"),
    ],
    returns_a_flag: ["linalg_vector_norm", "gt", "copy_", "copy_"],
    counts_in_two_dtypes: ["add", "copy_", "copy_", "linalg_vector_norm", "gt"],
}


@pytest.mark.parametrize("fn", TURNS, ids=lambda fn: fn.__name__)
def test_a_turn_is_the_operators_of_the_function_and_one_copy_of_each_dtype(
    fn, device, monkeypatch
):
    if device == "cuda":
        pytest.skip("the nodes of a GPU have the names of kernels")
    monkeypatch.setattr(NativeGraph, "keeps_nodes", True)
    graph, x = gfxgraph.graphed(fn, branching="device"), torch.full((8,), 2.0)
    for _ in range(3):
        torch.testing.assert_close(graph(x), fn(x), rtol=0, atol=0)
    (found,) = gfxgraph.inspect(graph, x).graphs
    names = [node.name.removeprefix("aten::").partition(".")[0] for node in found.nodes]
    turn = names[[node.type for node in found.nodes].index("body 0") + 1 :]
    assert [name for name in turn if name][:3] == ["mul", "sin", "add"]
    assert turn[3:] == TURNS[fn]


def drops_while_it_counts(x, left, calls):
    calls += 1  # state outside of the loop
    noise = torch.rand_like(x)
    while left > 0:
        x = x * 0.5 if x.sum() > 3 else x + 0.3
        left = left - 1
    return x + noise


@pytest.mark.parametrize("of_device", [1.0, 3.0], ids=["device", "host"])
def test_by_default_that_decides_which_is_faster_and_no_trial_is_seen(
    device, monkeypatch, of_device
):
    def timed(host, other):
        assert min(graph.time_call("replay") for graph in (host, other, host)) > 0
        return [2.0, of_device]

    monkeypatch.setattr(faster, "_deciding_us", timed)
    calls, expected_calls = (torch.zeros((), device=device) for _ in range(2))
    graph = gfxgraph.graphed(lambda x, left: drops_while_it_counts(x, left, calls))
    for seed, turns in enumerate((3, 12, 12, 3, 20, 0, 9, 12)):
        torch.manual_seed(seed)
        x, left = torch.randn(8, device=device), torch.full((), float(turns), device=device)
        expected, drawn = drops_while_it_counts(x, left, expected_calls), torch.rand(3)
        torch.manual_seed(seed)
        torch.randn(8, device=device)
        torch.testing.assert_close((graph(x, left), calls), (expected, expected_calls))
        torch.testing.assert_close(torch.rand(3), drawn)
    (row,) = graph.stats().graphs
    who = "device" if of_device == 1.0 else "host"
    said = f"the {who} decides: {of_device} us a call if the device does, 2.0 us if the host does"
    assert said in row.report and (row.paths == 1) == (who == "device")
    assert sum(" us a call" in line for line in row.report) == 1, "measured once"


def test_by_default_statements_that_read_seldom_are_left_as_they_are(device):
    graph = gfxgraph.graphed(halved)
    for n in range(8):
        torch.testing.assert_close(graph(values(device, n)), halved(values(device, n)))
    assert all("decides: " not in line for row in graph.stats().graphs for line in row.report)


def is_same(a, b):
    return a is b


def is_its_key(a, b):
    return {a: True}.get(b, False)


def is_once_in_a_set(a, b):
    return len({a, b}) == 1


def has_its_attribute(a, b):
    setattr(a, "mark", True)  # noqa: B010
    return getattr(b, "mark", False)


@pytest.mark.parametrize("branching", ["device", "auto"])
@pytest.mark.parametrize(
    "asks", [is_same, operator.is_, is_its_key, is_once_in_a_set, has_its_attribute]
)
def test_a_helper_that_tells_objects_apart_is_seen(device, asks, branching):
    def fn(x, left):
        y = x
        while left > 0:
            y, left = y * 0.5, left - 1
        return y * 2 if asks(y, x) else y + 0

    graph = gfxgraph.graphed(fn, branching=branching)
    for turns in (9, 9, 0, 0, 9, 1, 0):
        left = torch.full((), float(turns), device=device)
        expected = fn(values(device, 1), left)
        torch.testing.assert_close(graph(values(device, 1), left), expected)
    lines = [line for row in graph.stats().graphs for line in row.report]
    assert any("told apart" in line for line in lines), lines


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
