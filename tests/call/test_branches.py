"""Branches: each call runs the one that the host picks, from its own graphs, in one pool."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import threading
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import gfxgraph
import hipgraph_bridge
from gfxgraph.errors import ArgumentError, CaptureError
from gfxgraph.graph.locks import CAPTURING
from tests.helpers.models import net
from tests.helpers.processes import printed
from tests.helpers.threads import on_threads


def rows(device, seed=0, count=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 8, generator=generator).to(device)


class Scaled(nn.Module):
    """Has a bound method to run, and a weight that it reads."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((8,), 2.0))

    def scaled(self, x):
        return x * self.weight


class Statistics(NamedTuple):
    mean: torch.Tensor
    largest: torch.Tensor


def summed_up(x):
    return {"statistics": Statistics(x.mean(1), x.amax(1)), "rows": [x * 2, 3]}


def doubled(x):
    return x * 2


def negated(x):
    return -x


def says(x):
    print("here")
    return x + 1


def pair():
    return gfxgraph.ConditionalGraph().add_branch("double", doubled).add_branch("negate", negated)


def counts(graph):
    """Captures and replays of each branch."""
    return {name: (stats.captures, stats.replays) for name, stats in graph.stats().items()}


# ---- what it gives


@torch.no_grad()
def test_branches_may_differ_in_what_they_are_and_in_what_they_give(device):
    model, owner = net(device, outputs=4), Scaled().to(device)
    branches = {"net": model, "method": owner.scaled, "tree": summed_up}
    graph = gfxgraph.ConditionalGraph()
    for name, fn in branches.items():
        assert graph.add_branch(name, fn) is graph
    graph.capture(rows(device))
    assert graph.branches == ("net", "method", "tree") and graph.failed_branches == {}
    for seed in range(3):
        x = rows(device, seed)
        for name, fn in branches.items():
            torch.testing.assert_close(graph.run(name, x), fn(x))
    got = graph.run("tree", rows(device))
    assert type(got["statistics"]) is Statistics and got["rows"][1] == 3
    assert counts(graph) == {"net": (1, 3), "method": (1, 3), "tree": (1, 4)}


def test_a_branch_is_picked_by_name_by_position_or_by_an_index_tensor(device):
    graph, x = pair(), rows(device)
    graph.capture(x)
    seconds = [
        "negate",
        1,
        True,
        np.int64(1),
        torch.tensor(1),
        torch.tensor([[1]], dtype=torch.uint8),
        torch.tensor(True),
        torch.tensor([1], device=device),
        (x == x).all(),
    ]
    for which in seconds:
        assert torch.equal(graph.run(which, x), -x)
    for which in ("double", 0, False, torch.tensor(0, device=device), (x != x).any()):
        assert torch.equal(graph.run(which, x), x * 2)
    assert counts(graph) == {"double": (1, 5), "negate": (1, len(seconds))}


def test_branches_may_take_other_arguments(device):
    @dataclasses.dataclass
    class Request:
        rows: torch.Tensor
        scale: float

    graph = (
        gfxgraph.ConditionalGraph()
        .add_branch("two", lambda x, y: x + y)
        .add_branch("which", lambda request, /, *, which, mask=None: request.rows * which)
        .add_branch("tree", lambda r, parts: r.rows * r.scale + parts["a"][0])
        .add_branch("none", lambda: torch.ones(3, device=device) * 2)
    )
    for seed in range(3):
        x, y = rows(device, seed), rows(device, seed + 10)
        assert torch.equal(graph.run("two", x, y=y), x + y)
        # `which` is an argument of the branch here
        assert torch.equal(graph.run("which", Request(x, 1.0), which=y), x * y)
        assert torch.equal(graph.run("tree", Request(x, 2.0), {"a": [y]}), x * 2.0 + y)
        assert graph.run("none").tolist() == [2.0] * 3
    assert counts(graph) == dict.fromkeys(graph.branches, (1, 2))


def test_each_kind_of_arguments_has_a_graph_of_its_own(device):
    graph = pair()
    graph.capture(rows(device))
    for count in (3, 5, 3, 5, 3):
        x = rows(device, count=count)
        assert torch.equal(graph.run("double", x), x * 2)
    assert counts(graph)["double"] == (2, 4)


# ---- one pool


def test_branches_share_the_memory_of_one_pool(device):
    def wave(x):
        return (x * 2).sin() * 3

    def other_wave(x):
        return (x + 2).cos() - 3

    alone, graph = gfxgraph.graphed(other_wave), gfxgraph.ConditionalGraph()
    graph.add_branch("wave", wave).add_branch("other", other_wave)
    x = torch.ones(1 << 22, device=device)
    alone(x)
    graph.capture(x)
    (row,), (row_alone,) = graph.stats()["other"].graphs, alone.stats().graphs
    assert row.pool_bytes < row_alone.pool_bytes


def test_no_result_is_overwritten_by_a_later_run(device):
    def large(x):
        return x.repeat(64, 1).mul(3)[:3] - x, (x * 2).sin()

    branches = {"double": doubled, "negate": negated, "large": large}
    graph = gfxgraph.ConditionalGraph()
    for name, fn in branches.items():
        graph.add_branch(name, fn)
    graph.capture(rows(device))
    calls = [(name, rows(device, seed)) for seed in range(5) for name in branches]
    results = [graph.run(name, x) for name, x in calls]
    for (name, x), result in zip(calls, results, strict=True):
        torch.testing.assert_close(result, branches[name](x))


def test_the_result_of_one_branch_can_go_into_the_next(device):
    graph, x = pair(), rows(device)
    graph.capture(x)
    for n in range(1, 6):
        x = graph.run("double", graph.run("negate", x))
        assert torch.equal(x, rows(device) * (-2) ** n)


def test_branches_see_what_the_others_write(device):
    cache = torch.zeros(8, device=device)

    def write(x):
        cache.copy_(x[0])
        return x.sum()

    graph = gfxgraph.ConditionalGraph()
    graph.add_branch("write", write).add_branch("read", lambda x: x + cache)
    graph.capture(rows(device))
    for seed in range(4):
        x = rows(device, seed)
        graph.run("write", x)
        assert torch.equal(graph.run("read", x), x + x[0])
    assert counts(graph) == {"write": (1, 4), "read": (1, 4)}


def test_a_weight_that_was_rebound_is_found(device):
    owner, x = Scaled().to(device), rows(device)
    graph = gfxgraph.ConditionalGraph().add_branch("scaled", owner.scaled)
    with torch.no_grad():
        graph.capture(x)
        assert torch.equal(graph.run("scaled", x), x * 2)
        owner.weight = nn.Parameter(torch.full((8,), 5.0, device=device))
        for _ in range(3):
            assert torch.equal(graph.run("scaled", x), x * 5)
    assert graph.stats()["scaled"].recaptures == 1


# ---- captured at once, or at the first run


@torch.no_grad()
def test_what_branches_write_and_draw_while_captured_is_taken_back(device):
    norm = nn.BatchNorm1d(8).to(device).train()
    twin = copy.deepcopy(norm)
    graph = (
        gfxgraph.ConditionalGraph().add_branch("norm", norm).add_branch("noise", torch.rand_like)
    )
    x = rows(device)
    torch.manual_seed(3)
    graph.capture(x)
    assert int(norm.num_batches_tracked) == 0 and torch.equal(x, rows(device))
    torch.testing.assert_close(norm.running_mean, twin.running_mean, rtol=0, atol=0)
    noise = [graph.run("noise", x) for _ in range(3)]
    torch.manual_seed(3)
    assert all(torch.equal(drawn, torch.rand_like(x)) for drawn in noise)
    for _ in range(3):
        torch.testing.assert_close(graph.run("norm", x), twin(x))
    torch.testing.assert_close(norm.running_mean, twin.running_mean)
    assert counts(graph) == {"norm": (1, 3), "noise": (1, 3)}


def test_a_branch_that_was_not_captured_is_at_its_first_run(device):
    graph, x = pair(), rows(device)
    for _ in range(3):
        assert torch.equal(graph.run("negate", x), -x)
    assert counts(graph) == {"double": (0, 0), "negate": (1, 2)}
    graph.add_branch("third", lambda x: x * 3)
    for _ in range(3):
        assert torch.equal(graph.run(2, x), x * 3)
    assert counts(graph)["third"] == (1, 2) and graph.failed_branches == {}


def test_the_progress_of_capture_goes_by_name(device):
    seen = []

    def progress(names):
        for name in names:
            seen.append((name, counts(graph)[name][0]))
            yield name
            seen.append((name, counts(graph)[name][0]))

    graph = pair()
    graph.capture(rows(device), progress=progress)
    assert seen == [("double", 0), ("double", 1), ("negate", 0), ("negate", 1)]


def test_keyword_arguments_are_captured_too(device):
    graph = gfxgraph.ConditionalGraph().add_branch("scale", lambda x, *, by: x * by)
    graph.capture(rows(device), by=3.0)
    assert torch.equal(graph.run("scale", rows(device, 1), by=3.0), rows(device, 1) * 3)
    assert counts(graph) == {"scale": (1, 1)}


@torch.no_grad()
def test_capture_waits_for_another_thread_that_captures(device):
    graph, x = pair(), rows(device)
    held, done = threading.Event(), threading.Event()

    def hold():
        with CAPTURING:
            held.set()
            done.wait()

    @torch.no_grad()
    def wait():
        graph.capture(x)

    holder, waiter = threading.Thread(target=hold), threading.Thread(target=wait)
    holder.start()
    held.wait()
    waiter.start()
    assert torch.equal(graph.run("double", x), x * 2)  # eagerly, and without waiting
    assert counts(graph)["double"] == (0, 0)
    done.set()
    for thread in (holder, waiter):
        thread.join()
    assert torch.equal(graph.run("double", x), x * 2)
    assert counts(graph)["double"] == (1, 1) and graph.failed_branches == {}


# ---- branches that stay eager


class Counting:
    def __init__(self):
        self.calls = 0

    def step(self, x):
        self.calls += 1
        return x + self.calls


def test_a_branch_that_cannot_be_captured_runs_eagerly_while_others_replay(device, capsys):
    state = Counting()
    graph = pair().add_branch("says", says).add_branch("counts", state.step)
    x = rows(device)
    graph.capture(x)
    assert capsys.readouterr().out == "" and state.calls == 0
    assert set(graph.failed_branches) == {"says", "counts"}
    assert "the function prints" in graph.failed_branches["says"]
    assert "rebinds Counting.calls" in graph.failed_branches["counts"]
    for n in range(1, 4):
        assert torch.equal(graph.run("says", x), x + 1)
        assert torch.equal(graph.run("counts", x), x + n)
        assert torch.equal(graph.run("double", x), x * 2)
    assert capsys.readouterr().out == "here\n" * 3 and state.calls == 3
    assert counts(graph) == {"double": (1, 3), "negate": (1, 0), "says": (0, 0), "counts": (0, 0)}
    assert graph.stats()["says"].eager_calls == 3
    assert set(graph.failed_branches) == {"says", "counts"}


def test_a_branch_found_out_at_its_first_run_has_its_reason_too(device):
    graph, x = pair().add_branch("says", says), rows(device)
    assert graph.failed_branches == {}
    for _ in range(2):
        assert torch.equal(graph.run("says", x), x + 1)
        assert torch.equal(graph.run("double", x), x * 2)
    (failed,) = graph.failed_branches.items()
    assert failed[0] == "says" and "the function prints" in failed[1]


def test_arguments_that_no_graph_can_take_are_a_reason(device):
    graph, sparse = pair(), rows(device).to_sparse()
    graph.capture(sparse)
    assert all("sparse" in reason for reason in graph.failed_branches.values())
    assert set(graph.failed_branches) == {"double", "negate"}
    assert torch.equal(graph.run("double", sparse).to_dense(), rows(device) * 2)


def test_a_branch_that_does_not_take_the_example_is_captured_at_its_first_run(device):
    graph, x = pair().add_branch("two", torch.add), rows(device)
    graph.capture(x)
    assert list(graph.failed_branches) == ["two"] and "add()" in graph.failed_branches["two"]
    for _ in range(3):
        assert torch.equal(graph.run("two", x, x), x + x)
    assert graph.failed_branches == {} and counts(graph)["two"] == (1, 2)


def test_with_fallback_raise_the_reason_is_an_error(device):
    graph = gfxgraph.ConditionalGraph(fallback="raise").add_branch("says", says)
    with pytest.raises(CaptureError, match=r"says: .*the function prints"):
        graph.capture(rows(device))
    with pytest.raises(CaptureError, match="the function prints"):
        graph.run("says", rows(device))


def test_an_error_of_a_branch_reaches_the_caller_unchanged(device):
    def fails(x):
        raise KeyError("mine")

    graph = pair().add_branch("fails", fails)
    graph.capture(rows(device))
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            graph.run("fails", rows(device))


def test_a_branch_whose_course_depends_on_data_is_a_tree_or_eager_as_asked(device):
    def signed(x):
        return x * 2 if x.sum() > 0 else x - 1

    auto = gfxgraph.ConditionalGraph().add_branch("signed", signed)
    off = gfxgraph.ConditionalGraph(branching="off").add_branch("signed", signed)
    for graph in (auto, off):
        graph.capture(torch.ones(4, device=device))
        for value in (1.0, -1.0, 2.0, -2.0):
            x = torch.full((4,), value, device=device)
            assert torch.equal(graph.run("signed", x), signed(x))
    (row,) = auto.stats()["signed"].graphs
    assert row.paths == 2 and row.replays == 3 and auto.failed_branches == {}
    assert "reads a value from the device" in off.failed_branches["signed"]


# ---- inside of others


def test_a_graphed_function_may_run_branches_picked_by_its_data(device):
    inner = pair()

    @gfxgraph.graphed
    def outer(x):
        return inner.run((x.sum() > 0).long(), x) + 1

    for value in (1.0, -1.0, 2.0, -2.0, 3.0, -3.0):
        x = torch.full((4,), value, device=device)
        assert torch.equal(outer(x), (-x if value > 0 else x * 2) + 1)
    assert outer.stats().replays == 4 and not outer.stats().fallbacks


# ---- threads


@torch.no_grad()
def test_eight_threads_run_mixed_branches_and_each_gets_its_own_results(device):
    model = net(device, outputs=4)
    branches = {"net": model, "double": doubled, "tree": summed_up}
    graph = gfxgraph.ConditionalGraph()
    for name, fn in branches.items():
        graph.add_branch(name, fn)
    graph.capture(rows(device))
    right = []

    def work(seed):
        with torch.no_grad():
            for n in range(60):
                name = graph.branches[(seed + n) % 3]
                x = rows(device, seed * 100 + n, count=3 + n % 2)  # one is captured, one is not
                which = name if n % 5 else torch.tensor((seed + n) % 3, device=device)
                torch.testing.assert_close(graph.run(which, x), branches[name](x))
                right.append((seed, n))

    on_threads(work, range(8))
    stats = graph.stats().values()
    assert len(right) == 8 * 60 == sum(s.replays + s.eager_calls for s in stats)
    assert graph.failed_branches == {}


# ---- release and copies


def test_reset_releases_all_graphs_and_lets_branches_be_added_again(device):
    graph, x = pair().add_branch("says", says), rows(device)
    graph.capture(x)
    graph.run("double", x)
    graph.reset()
    assert graph.failed_branches == {} and set(counts(graph).values()) == {(0, 0)}
    graph.add_branch("third", lambda x: x * 3)
    assert graph.branches == ("double", "negate", "says", "third")
    graph.capture(x)
    assert list(graph.failed_branches) == ["says"]
    for _ in range(2):
        assert torch.equal(graph.run("double", x), x * 2)
        assert torch.equal(graph.run("third", x), x * 3)
    assert counts(graph)["double"] == counts(graph)["third"] == (1, 2)


def test_graphs_are_released_with_it_and_not_when_the_collector_comes_round(device):
    owner, x = Scaled().to(device), rows(device)
    graph = gfxgraph.ConditionalGraph().add_branch("scaled", owner.scaled)
    with torch.no_grad():
        graph.capture(x)
    weight = weakref.ref(owner.weight)
    gc.collect()
    gc.disable()
    try:
        del owner, graph
        assert weight() is None
    finally:
        gc.enable()


class Routed(nn.Module):
    """Keeps the branches, which are methods of its own."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.steps = gfxgraph.ConditionalGraph()
        self.steps.add_branch("draft", self.draft).add_branch("full", self.full)

    def draft(self, x):
        return self.linear(x)

    def full(self, x):
        return self.linear(self.linear(x))

    def forward(self, which, x):
        return self.steps.run(which, x)


@torch.no_grad()
def test_an_object_that_keeps_branches_of_its_own_is_released(device):
    model = Routed().to(device)
    model("full", rows(device))
    weight = weakref.ref(model.linear.weight)
    del model
    gc.collect()
    assert weight() is None


@torch.no_grad()
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_and_pickles_have_the_branches_and_no_graphs(device, duplicate):
    model, x = Routed().to(device), rows(device)
    model("draft", x), model("full", x)
    twin = duplicate(model)
    assert counts(twin.steps) == {"draft": (0, 0), "full": (0, 0)}
    twin.linear.weight.zero_()
    for _ in range(3):
        torch.testing.assert_close(twin("full", x), twin.full(x))
        torch.testing.assert_close(model("full", x), model.full(x))
    assert counts(twin.steps)["full"] == (1, 2) and counts(model.steps)["full"] == (1, 3)


def test_the_statistics_are_plain_data(device):
    graph = pair()
    graph.capture(rows(device))
    assert dataclasses.asdict(graph.stats()["double"])["captures"] == 1


def test_the_second_import_name_has_the_graph_classes_and_nothing_else():
    names = ["BridgedCUDAGraph", "ConditionalGraph", "ShapeBucketPool"]
    assert hipgraph_bridge.__all__ == names
    assert all(getattr(hipgraph_bridge, name) is getattr(gfxgraph, name) for name in names)


# ---- bad input


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("triple", "run('triple'): there is no such branch; expected one of 'double', 'negate'"),
        ("", "run(''): there is no such branch"),
        (2, "run(2): there is no such position; expected one from 0 to 1, in the order 'double'"),
        (-1, "run(-1): there is no such position"),
        (torch.tensor(2), "run(2): there is no such position"),
        (torch.tensor(-1), "run(-1): there is no such position"),
        (
            torch.tensor([0, 1]),
            "run(tensor of shape (2,)): expected an index tensor of one element",
        ),
        (torch.tensor([]), "run(tensor of shape (0,)): expected an index tensor of one element"),
        (torch.tensor(1.0), "run(tensor of torch.float32): expected an index tensor of integers"),
        (torch.tensor(1j), "run(tensor of torch.complex64): expected an index tensor of integers"),
        (1.0, "run(float): expected the name of a branch, its position or an index tensor"),
        (None, "run(NoneType): expected the name of a branch"),
        (["double"], "run(list): expected the name of a branch"),
    ],
)
def test_what_names_no_branch_is_refused(device, which, message):
    graph, x = pair(), rows(device)
    with pytest.raises(ArgumentError) as refused:
        graph.run(which, x)
    assert str(refused.value).startswith(message)
    assert set(counts(graph).values()) == {(0, 0)}


def test_an_index_tensor_of_the_device_is_looked_at_as_one_of_the_host_is(device):
    with pytest.raises(ArgumentError, match=r"run\(7\): there is no such position"):
        pair().run(torch.tensor(7, device=device), rows(device))


@pytest.mark.parametrize(
    ("name", "fn", "message"),
    [
        ("double", doubled, r"'double'.*there is a branch of this name.*'double', 'negate'"),
        ("", doubled, r"add_branch\(''\): expected a name"),
        (3, doubled, r"add_branch\(3\): expected a name"),
        (None, doubled, r"add_branch\(None\): expected a name"),
        ("third", 3, "expected a function, a module or a bound method, not int"),
        ("third", None, "expected a function, a module or a bound method, not NoneType"),
        ("third", nn.Linear, r"not torch\.nn\.modules\.linear\.Linear"),
    ],
)
def test_what_is_no_branch_is_refused(name, fn, message):
    graph = pair()
    with pytest.raises(ArgumentError, match=message):
        graph.add_branch(name, fn)
    assert graph.branches == ("double", "negate")


def test_without_branches_there_is_nothing_to_capture_or_to_run(device):
    graph = gfxgraph.ConditionalGraph()
    with pytest.raises(ArgumentError, match=r"capture\(\): there are no branches. Call add_branch"):
        graph.capture(rows(device))
    for which in ("double", 0, torch.tensor(0)):
        with pytest.raises(ArgumentError, match=r"run\(\): there are no branches. Call add_branch"):
            graph.run(which, rows(device))
    assert graph.branches == () and graph.failed_branches == graph.stats() == {}


def test_after_capture_no_branch_is_added_and_nothing_is_captured_again(device):
    graph = pair()
    graph.capture(rows(device))
    with pytest.raises(ArgumentError, match=r"capture\(\) has been called. Add all branches"):
        graph.add_branch("third", doubled)
    with pytest.raises(ArgumentError, match=r"capture\(\) has been called. .*reset\(\) first"):
        graph.capture(rows(device))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"warmup": 0}, "warmup=0"),
        ({"verify": -1.0}, "verify=-1.0"),
        ({"fallback": "never"}, "fallback='never'"),
        ({"branching": True}, "branching=True"),
    ],
)
def test_options_that_are_none_are_refused(option, message):
    with pytest.raises(ArgumentError, match=message):
        gfxgraph.ConditionalGraph(**option)


@torch.no_grad()
def test_all_branches_take_their_inputs_from_the_same_memory(device):
    graph, alone = pair(), gfxgraph.ConditionalGraph().add_branch("double", doubled)
    x = torch.randn(4096, 8, device=device)
    for each in (graph, alone):
        each.capture(x)
    both, one = graph.stats(), alone.stats()["double"]
    assert both["negate"].graphs[0].input_bytes == one.graphs[0].input_bytes == x.nbytes
    assert one.graphs[0].private_bytes >= x.nbytes and both["negate"].graphs[0].private_bytes == 0
    first, second = graph.run("double", x), graph.run("negate", x + 1)
    assert torch.equal(first, x * 2) and torch.equal(second, -(x + 1))


# ---- autograd


def test_branches_of_modules_run_without_autograd_unless_an_argument_asks_for_it(device):
    torch.manual_seed(0)
    draft, full = (torch.nn.Linear(4, 2).to(device) for _ in range(2))
    graph = gfxgraph.ConditionalGraph().add_branch("draft", draft).add_branch("full", full)
    x = torch.randn(3, 4, device=device)
    graph.capture(x)
    assert torch.is_grad_enabled() and not graph.failed_branches
    for _ in range(2):
        y = graph.run("draft", x)
        assert not y.requires_grad
        torch.testing.assert_close(y, draft(x))
    assert graph.stats()["draft"].replays == 2
    asking = x.clone().requires_grad_()
    graph.run("full", asking).sum().backward()
    torch.testing.assert_close(asking.grad, full.weight.sum(0).expand(3, 4))
    assert any("grad" in reason for reason in graph.stats()["full"].fallbacks)
    with torch.no_grad():
        torch.testing.assert_close(graph.run("draft", x), draft(x))
    assert graph.stats()["draft"].captures == 1


@torch.no_grad()
def test_a_cond_of_torch_decides_anew_in_each_call(device):
    def fn(x):
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,)) + 1

    graph = gfxgraph.graphed(fn)
    for sign in (1.0, -1.0, 1.0, -1.0):
        x = torch.full((3,), sign, device=device)
        assert torch.equal(graph(x), fn(x))
    # One graph where the device decides, a path for each sign where the host does.
    assert graph.stats().captures <= 2 and not graph.stats().fallbacks


@torch.no_grad()
def test_a_path_that_writes_to_an_expanded_argument_runs_eagerly(device):
    def fn(x, y):
        if y.sum() > 0:
            x.zero_()
        return y * 2

    graph = gfxgraph.graphed(fn)
    for sign in (-1.0, -1.0, 1.0, 1.0, -1.0):
        x = torch.ones(1, 3, device=device).expand(2, 3)
        y = torch.full((3,), sign, device=device)
        try:
            expected = fn(torch.ones(1, 3, device=device).expand(2, 3), y)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                graph(x, y)
        else:
            assert torch.equal(graph(x, y), expected)


@torch.no_grad()
def test_a_call_that_writes_what_it_branches_on_gets_the_path_that_it_took(device):
    def fn(x):
        x.mul_(0.5)
        if x.sum() > 1.0:
            x.mul_(0.5)
        return x + 1

    graph = gfxgraph.graphed(fn)
    for number in (1.0, 1.0, -1.0, 1.0, -1.0, 0.1, 1.0):
        mine, eager = (torch.full((2, 4), number, device=device) for _ in range(2))
        assert torch.equal(graph(mine), fn(eager))
        assert torch.equal(mine, eager)
    stats = graph.stats()
    assert (stats.captures, stats.replays, stats.fallbacks) == (2, 5, {})


NO_MEMORY = """
import resource, torch, gfxgraph

def fn(x):
    x.mul_(0.5)
    return x[:1] + 1 if x[0] > 0 else x[:1] - 1

device, size = gfxgraph.device_type(), 1 << 26
graph = gfxgraph.graphed(fn)
inputs = [torch.ones(size, device=device), -torch.ones(size, device=device)]
with torch.no_grad():
    for _ in range(3):
        graph(inputs[0])
    if device == "cpu":
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + size, used + size))
    else:
        torch.cuda.empty_cache()
        total = torch.cuda.mem_get_info()[1]
        used = torch.cuda.memory_reserved()
        torch.cuda.set_per_process_memory_fraction((used + size) / total)
    result = graph(inputs[1])
print(result.item(), inputs[1].sum().item() / size, *graph.stats().fallbacks)
"""


@pytest.mark.long
def test_a_new_path_whose_arguments_cannot_be_copied_runs_eagerly():
    said = printed(NO_MEMORY)
    assert said.startswith("-1.5 -0.5 what it writes to could not be copied"), said
