"""How often a function runs before its capture."""

import pytest
import torch

import gfxgraph
from gfxgraph.graph.session import CaptureSession


@pytest.fixture
def unwatched(monkeypatch):
    """The runs before a capture that are not recorded."""
    runs = []
    run = CaptureSession.run
    monkeypatch.setattr(CaptureSession, "run", lambda self: (runs.append(self), run(self))[1])
    return runs


class Net(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4).to(device)
        self.register_buffer("seen", torch.zeros(4, device=device))
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.linear(x)


class Writes(Net):
    def forward(self, x):
        self.seen += x[0]
        return self.linear(x) + self.seen


class Draws(Net):
    def forward(self, x):
        return self.dropout(self.linear(x))


def called(module, device, **options):
    """Three calls of a module, and of one in a graph, from the same generators."""
    results = []
    for call in (module(device), gfxgraph.graphed(module(device), fallback="raise", **options)):
        torch.manual_seed(0)
        x = torch.rand(2, 4, device=device)
        with torch.no_grad():
            for weight in call.parameters():
                weight.fill_(0.5)
            results.append([call(x + n) for n in range(3)])
    return results


@pytest.mark.parametrize(
    ("module", "options", "count"),
    [
        (Net, {}, 0),
        (Draws, {}, 0),
        (Writes, {}, 1),
        (Net, {"warmup": 3}, 2),
        (Net, {"warmup": 1}, 0),
    ],
    ids=["computes", "draws", "writes", "three are asked for", "one is asked for"],
)
def test_the_first_call_stands_for_a_second_run_of_what_only_computes(
    device, unwatched, module, options, count
):
    eager, graphed = called(module, device, **options)
    assert len(unwatched) == count
    torch.testing.assert_close(graphed, eager)


class Counts:
    count = 0


def counts_unwatched(given):
    def fn(x):
        if torch._C._len_torch_function_stack() == 0:
            given.count += 1
        return x * 2

    return fn


def draws_unwatched(given):
    def fn(x):
        if not torch.overrides._get_current_function_mode_stack():
            torch.rand(2)
        return x * 2

    return fn


def another_structure_unwatched(given):
    def fn(x):
        return [x * 2] if torch._C._len_torch_dispatch_stack() == 0 else x * 2

    return fn


@pytest.mark.parametrize("warmup", [1, 2])
def test_numbers_in_a_list_are_compared_with_those_of_the_first_call(device, warmup):
    def fn(x):
        return [x * 2, 1 if torch._C._len_torch_function_stack() else 2]

    graph = gfxgraph.graphed(fn, warmup=warmup)
    assert [graph(torch.ones(2, device=device))[1] for _ in range(4)] == [2] * 4


def test_a_dtype_that_nobody_can_compare_is_no_obstacle(device):
    graph = gfxgraph.graphed(lambda x: x.to(torch.complex32), verify=False)
    for n in range(3):
        x = torch.full((2,), float(n), device=device)
        assert graph(x).real.tolist() == x.tolist()
    assert graph.stats().replays == 2


@pytest.mark.parametrize(
    "make",
    [counts_unwatched, draws_unwatched, another_structure_unwatched],
    ids=lambda f: f.__name__,
)
def test_what_does_more_where_nobody_watches_runs_once_more_unwatched(device, unwatched, make):
    left = []
    for wrap in (lambda fn: fn, gfxgraph.graphed):
        given = Counts()
        call = wrap(make(given))
        torch.manual_seed(0)
        results = [call(torch.full((2,), float(n), device=device)) for n in range(4)]
        left.append((results, given.count, torch.get_rng_state().tolist()))
    assert unwatched
    torch.testing.assert_close(left[1], left[0])
