"""``enable(validate=True)`` compares replays with eager execution, and no call does anything twice.

A factor in memory that Python's guards cannot see (of C) stands for whatever makes a replay stale.
"""

from __future__ import annotations

import logging

import pytest
import torch

import gfxgraph
from gfxgraph.errors import ArgumentError, SettingError, VerificationError
from gfxgraph.settings import from_environment
from gfxgraph.stats import tally
from tests.helpers.devices import region
from tests.helpers.processes import printed
from tests.helpers.threads import on_threads
from tests.helpers.unseen import Unseen

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture
def factor():
    """A number that no guard sees."""
    return Unseen(2.0)


def failures():
    return gfxgraph.stats()["validation_failures"]


def test_a_stale_replay_is_caught_at_the_nth_replay(device, factor, caplog):
    @gfxgraph.graphed
    def scaled(x):
        return x * factor.value

    gfxgraph.enable(validate=True, validate_every=10)
    x = torch.ones(4, device=device)
    for _ in range(4):  # the call that captures, and three replays
        scaled(x)
    factor.value = 3.0
    with caplog.at_level(logging.WARNING, "gfxgraph"):
        found = [scaled(x)[0].item() for _ in range(8)]
    # Replays 4 to 9 are stale; the 10th is compared, and its call gives the eager result.
    assert found == [2.0] * 6 + [3.0, 3.0]
    assert failures() == 1
    stats = scaled.stats()
    assert (stats.recaptures, stats.captures, stats.refused) == (1, 2, {})
    assert any("validate" in reason for reason in stats.fallbacks)
    assert sum("validation_failed" in record.message for record in caplog.records) == 1


def test_the_first_replay_is_compared(device, factor):
    @gfxgraph.graphed
    def scaled(x):
        return x * factor.value

    gfxgraph.enable(validate=True)
    x = torch.ones(4, device=device)
    scaled(x)
    factor.value = 3.0
    assert scaled(x)[0].item() == 3.0
    assert failures() == 1


def test_after_a_second_failure_the_key_runs_eagerly_and_says_what_differed(device, factor):
    @gfxgraph.graphed
    def scaled(x):
        return x * factor.value

    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.ones(4, device=device)
    for n in range(8):
        factor.value = float(n)
        assert scaled(x)[0].item() == n
    assert failures() == 2
    stats = scaled.stats()
    assert not stats.graphs and stats.captures == 2
    assert "differs from eager execution in output 0" in next(iter(stats.refused.values()))
    scaled.reset()  # all is forgotten
    for _ in range(3):
        assert scaled(x)[0].item() == 7
    assert len(scaled.stats().graphs) == 1


def test_a_failure_in_one_key_makes_the_others_due(device, factor):
    @gfxgraph.graphed
    def scaled(x):
        return x * factor.value

    gfxgraph.enable(validate=True, validate_every=4)
    small, large = torch.ones(2, device=device), torch.ones(8, device=device)
    for x in (small, small, large, large, small, small):
        scaled(x)
    factor.value = 3.0
    assert scaled(small)[0].item() == 3.0  # the fourth replay of that key
    assert scaled(large)[0].item() == 3.0  # only the second of this one


def test_fallback_raise_raises_what_differs(device, factor):
    @gfxgraph.graphed(fallback="raise")
    def scaled(x):
        return x, {"y": x * factor.value}

    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.ones(4, device=device)
    for _ in range(3):
        scaled(x)
    factor.value = 3.0
    with pytest.raises(VerificationError, match="output 1: largest error 1"):
        scaled(x)
    assert failures() == 1
    assert scaled(x)[1]["y"][0].item() == 3.0  # captured again


def test_enable_and_disable_take_effect_on_graphs_that_exist(device, factor):
    @gfxgraph.graphed
    def scaled(x):
        return x * factor.value

    x = torch.ones(4, device=device)
    for _ in range(5):
        scaled(x)
    (entry,) = scaled._dispatcher.entries.all()
    assert scaled._dispatcher.fast_path is entry.fast_path  # nothing stands in the way of a call
    factor.value = 3.0
    assert scaled(x)[0].item() == 2.0  # nobody looks
    gfxgraph.enable(validate=True, validate_every=1)
    assert scaled(x)[0].item() == 3.0
    gfxgraph.enable()  # without validate
    for _ in range(2):
        assert scaled(x)[0].item() == 3.0
    (entry,) = scaled._dispatcher.entries.all()
    assert scaled._dispatcher.fast_path is entry.fast_path
    factor.value = 4.0
    assert scaled(x)[0].item() == 3.0
    gfxgraph.enable(validate=True)
    gfxgraph.disable()
    assert scaled._dispatcher.fast_path is entry.fast_path
    assert failures() == 1


def in_place(x):
    return x.add_(1).mul(2)


def test_an_argument_that_is_written_is_written_once(device):
    graphed = gfxgraph.graphed(in_place)
    gfxgraph.enable(validate=True, validate_every=1)
    x, y = torch.zeros(4, device=device), torch.zeros(4, device=device)
    for _ in range(6):
        assert torch.equal(graphed(x), in_place(y)) and torch.equal(x, y)
    assert failures() == 0 and graphed.stats().replays == 5


def test_a_static_input_that_is_written_is_written_once(device):
    graphed = gfxgraph.graphed(in_place)
    gfxgraph.enable(validate=True, validate_every=1)
    y = torch.zeros(4, device=device)
    graphed(torch.zeros(4, device=device))
    (x,), _ = graphed.static_inputs(y)
    x.zero_()
    for _ in range(5):
        assert torch.equal(graphed(x), in_place(y)) and torch.equal(x, y)
    assert failures() == 0 and graphed.stats().replays == 5


def test_state_outside_advances_once_a_call(device):
    seen = torch.zeros(4, device=device)

    @gfxgraph.graphed
    def counted(x):
        seen.add_(x)
        seen[:2].mul_(1.5)
        return seen * 2, seen

    gfxgraph.enable(validate=True, validate_every=1)
    x, expected = torch.ones(4, device=device), torch.zeros(4, device=device)
    for _ in range(6):
        expected.add_(x)
        expected[:2].mul_(1.5)
        doubled, same = counted(x)
        assert torch.equal(doubled, expected * 2) and torch.equal(seen, expected)
        assert same.data_ptr() == seen.data_ptr()
    assert failures() == 0 and counted.stats().replays == 5


def test_where_state_differs_what_eager_execution_leaves_stays(device, factor):
    seen = torch.zeros(4, device=device)

    @gfxgraph.graphed
    def counted(x):
        seen.add_(x * factor.value)
        return x.clone()

    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.ones(4, device=device)
    for _ in range(3):
        counted(x)
    factor.value = 10.0
    counted(x)
    counted(x)  # another thread could have been the reason of the first difference
    assert seen[0].item() == 26.0 and failures() == 1


def test_random_functions_are_compared_under_one_state_of_the_generator(device):
    own = torch.Generator(device)

    def noisy(x):
        return x + torch.rand_like(x), torch.randn(3, device=device, generator=own)

    graphed = gfxgraph.graphed(noisy)
    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.zeros(4, device=device)

    def six(fn):
        torch.manual_seed(7)
        own.manual_seed(8)
        return [fn(x) for _ in range(6)]

    for got, expected in zip(six(graphed), six(noisy), strict=True):
        assert all(map(torch.equal, got, expected))
    assert failures() == 0 and graphed.stats().replays >= 5


def test_a_random_function_that_went_stale_is_caught(device, factor):
    @gfxgraph.graphed
    def noisy(x):
        return x * factor.value + torch.rand_like(x)

    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.ones(4, device=device)
    for _ in range(3):
        noisy(x)
    factor.value = 5.0
    for _ in range(3):
        assert noisy(x).min() >= 5.0
    assert failures() == 1


def branching(x):
    return x * 2 if x.sum() > 0 else x - 1


def test_branches_are_compared_on_every_path(device):
    graphed = gfxgraph.graphed(branching)
    gfxgraph.enable(validate=True, validate_every=1)
    for sign in (1, 1, -1, -1, 1, -1):
        x = torch.full((4,), float(sign), device=device)
        assert torch.equal(graphed(x), branching(x))
    assert failures() == 0
    stats = graphed.stats()
    assert stats.replays == 4 and stats.graphs[0].paths == 2


def test_a_branch_with_state_is_left_as_eager_execution_leaves_it(device):
    def step(x, seen):
        seen.add_(x)
        return torch.rand_like(x) * 0 + (seen * 2 if seen.sum() > 10 else seen - 1)

    seen, expected = torch.zeros(4, device=device), torch.zeros(4, device=device)
    graphed = gfxgraph.graphed(lambda x: step(x, seen))
    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.ones(4, device=device)
    for _ in range(8):
        assert torch.equal(graphed(x), step(x, expected)) and torch.equal(seen, expected)
    assert failures() == 0


def test_a_stale_branch_is_caught(device, factor):
    @gfxgraph.graphed
    def step(x):
        return x * factor.value if x.sum() > 0 else x - factor.value

    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.ones(4, device=device)
    for _ in range(3):
        step(x)
    factor.value = 3.0
    for _ in range(3):
        assert step(x)[0].item() == 3.0
    assert failures() == 1


def test_what_runs_between_two_graphs_runs_once_a_call(device):
    calls = []

    @gfxgraph.no_graph
    def count(x):
        calls.append(1)
        return x + 1

    graphed = gfxgraph.graphed(lambda x: count(x * 2) * 3)
    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.ones(4, device=device)
    graphed(x)
    before = len(calls)
    for _ in range(3):
        assert graphed(x)[0].item() == 9.0
    assert len(calls) == before + 3 and graphed.stats().replays == 3


def test_views_stay_the_static_outputs(device, factor):
    @gfxgraph.graphed(outputs="view")
    def scaled(x):
        return x * factor.value

    gfxgraph.enable(validate=True, validate_every=2)
    x = torch.ones(4, device=device)
    scaled(x)
    views = [scaled(x) for _ in range(5)]
    assert len({view.data_ptr() for view in views}) == 1 and failures() == 0


def test_an_error_of_the_function_is_the_callers(device, factor):
    def strict(x):
        if factor.value > 2:
            raise LookupError("too large")
        return x + 1

    graphed = gfxgraph.graphed(strict)
    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.ones(4, device=device)
    for _ in range(3):
        graphed(x)
    factor.value = 3.0
    with pytest.raises(LookupError, match="too large"):
        graphed(x)
    factor.value = 2.0
    assert graphed(x)[0].item() == 2.0 and graphed.stats().replays >= 3


def test_a_compared_call_does_what_the_call_does_once(device, factor):
    """State of C that the function writes: a replay leaves it out, eager execution does it once."""

    def stepping(x):
        factor.value += 1.0
        return x + 1

    graphed = gfxgraph.graphed(stepping)
    x = torch.ones(4, device=device)
    graphed(x)
    before = factor.value
    gfxgraph.enable(validate=True, validate_every=1)
    for _ in range(3):
        graphed(x)
    assert factor.value == before + 3 and graphed.stats().replays == 3


def test_a_method_is_compared_for_each_instance(device):
    class Scaled:
        def __init__(self, factor):
            self.factor = Unseen(factor)

        @gfxgraph.graphed
        def __call__(self, x):
            return x * self.factor.value

    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.ones(4, device=device)
    a, b = Scaled(2.0), Scaled(3.0)
    for _ in range(3):
        assert (a(x)[0].item(), b(x)[0].item()) == (2.0, 3.0)
    a.factor.value = 5.0
    assert (a(x)[0].item(), b(x)[0].item()) == (5.0, 3.0)
    assert failures() == 1


def test_a_pool_is_compared_with_the_call_that_is_not_padded(device, factor):
    pool = gfxgraph.ShapeBucketPool(lambda x: x * factor.value, [4, 8])
    gfxgraph.enable(validate=True, validate_every=2)
    x = torch.arange(3.0, device=device)[:, None].expand(3, 5).contiguous()
    for _ in range(6):
        assert torch.equal(pool(x), x * 2)
    assert failures() == 0 and pool.stats().replays == 5
    factor.value = 3.0
    results = [pool(x) for _ in range(3)]
    assert torch.equal(results[1], x * 3) and torch.equal(results[2], x * 3)
    assert failures() == 1


def test_a_pool_that_answered_quickly_before_is_compared_from_now_on(device, factor):
    pool = gfxgraph.ShapeBucketPool(lambda x: x * factor.value, [4, 8])
    x = torch.ones(3, 5, device=device)
    for _ in range(4):
        pool(x)
    gfxgraph.enable(validate=True, validate_every=1)
    factor.value = 3.0
    assert torch.equal(pool(x), x * 3)
    gfxgraph.disable()
    for _ in range(3):
        assert torch.equal(pool(x), x * 3)
    factor.value = 4.0
    assert torch.equal(pool(x), x * 3)  # nobody looks


def test_pieces_of_a_call_that_is_split_are_compared(device, factor):
    graphed = gfxgraph.graphed(lambda x: x * factor.value, buckets=[2, 4], larger="split")
    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.ones(7, 3, device=device)
    for _ in range(3):
        assert torch.equal(graphed(x), x * 2)
    factor.value = 3.0
    assert torch.equal(graphed(x), x * 3)
    assert failures() >= 1


def test_a_branch_of_a_conditional_graph_is_compared(device, factor):
    graph = gfxgraph.ConditionalGraph()
    graph.add_branch("a", lambda x: x * factor.value).add_branch("b", lambda x: x + 1)
    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.ones(4, device=device)
    graph.capture(x)
    for _ in range(3):
        assert graph.run("a", x)[0].item() == 2.0 and graph.run("b", x)[0].item() == 2.0
    factor.value = 3.0
    for _ in range(2):
        assert graph.run("a", x)[0].item() == 3.0
    assert failures() == 1


def test_a_captured_block_is_compared_where_its_function_is_known(device, factor):
    seen = torch.zeros(4, device=device)

    def model(x):
        seen.add_(1)
        return x * factor.value

    x = torch.ones(4, device=device)
    graph = gfxgraph.BridgedCUDAGraph()
    with graph.capture(model_fn=model):
        out = model(x)
    seen.zero_()
    gfxgraph.enable(validate=True, validate_every=2)
    for n in range(5):
        x.fill_(n)
        assert graph.replay() is out
        assert out[0].item() == 2 * n and seen[0].item() == n + 1
    assert failures() == 0
    with pytest.raises(ArgumentError, match="takes sizes only after"):
        graph.replay(batch_size=2)
    factor.value = 3.0
    graph.replay()  # the sixth
    assert out[0].item() == 12 and seen[0].item() == 6 and failures() == 1
    x.fill_(7)
    graph.replay()
    assert out[0].item() == 21 and seen[0].item() == 7
    assert any("differs from eager" in why for why in gfxgraph.stats()["fallbacks"])


def test_a_captured_block_is_the_graph_again_when_disabled(device, factor):
    x = torch.ones(4, device=device)

    def model(x):
        return x * factor.value

    gfxgraph.enable(validate=True, validate_every=1)
    graph = gfxgraph.BridgedCUDAGraph()
    with graph.capture(model_fn=model):
        out = model(x)
    graph.replay()
    gfxgraph.disable()
    assert graph.stand_in is None
    factor.value = 3.0
    graph.replay()
    assert out[0].item() == 2.0 and failures() == 0
    graph.reset()
    gfxgraph.enable(validate=True)
    assert graph.stand_in is None


def test_a_block_that_computes_the_arguments_is_not_compared(device):
    x = torch.ones(4, device=device)

    def model(x):
        return x + 1

    gfxgraph.enable(validate=True, validate_every=1)
    graph = gfxgraph.BridgedCUDAGraph()
    with graph.capture(model_fn=model):
        out = model(x * 2)
    for n in range(4):
        x.fill_(n)
        graph.replay()
        assert out[0].item() == 2 * n + 1
    assert failures() == 0


def test_graphs_of_sizes_of_a_block_are_compared(device, factor):
    x = torch.ones(8, 2, device=device)

    def model(x):
        return x * factor.value

    gfxgraph.enable(validate=True, validate_every=1)
    graph = gfxgraph.BridgedCUDAGraph()
    with graph.capture(dynamic_shapes=True, buckets=[4, 8], model_fn=model):
        model(x)
    assert graph.replay(batch_size=3)[0, 0].item() == 2.0
    factor.value = 3.0
    assert graph.replay(batch_size=3)[0, 0].item() == 3.0
    assert failures() == 1


def test_where_the_function_is_not_known_nothing_is_compared(device, factor):
    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.ones(4, device=device)
    graph = torch.cuda.CUDAGraph()
    with region(graph):
        out = x * factor.value
    factor.value = 3.0
    graph.replay()
    assert out[0].item() == 2.0 and failures() == 0


def loop(x):
    time = torch.tensor(1.0, device=x.device)
    while time > 0:
        x, time = x * 1.1, time - 0.3
    return x


def seeded(x):
    torch.manual_seed(3)
    return x + torch.rand_like(x)


HARMLESS = {
    "gives an argument": lambda x: x,
    "gives a written argument": lambda x: (x.add_(1), x),
    "writes a part": lambda x: x[1:].mul_(2).sum(),
    "writes by a view": lambda x: x.view(2, 2).t().add_(1),
    "draws into an argument": lambda x: x.normal_(),
    "draws on one path": lambda x: x + torch.rand_like(x) if x.sum() > 0 else x - 1,
    "writes on one path": lambda x: x.add_(1) if x.sum() > 0 else x.sub_(1),
    "seeds": seeded,
    "samples": lambda x: torch.multinomial(x.softmax(-1), 2),
    "loops": loop,
    "reads data": lambda x: x[x > 0].sum() + x,
    "gives no number": lambda x: x / (x - x),
    "gives integers": lambda x: (x * 10).long(),
    "gives complex numbers": lambda x: torch.view_as_complex(x.view(2, 2)) * 2,
    "gives a structure": lambda x: {"a": [x + 1, 2.5, None], "b": x.sort()},
    "holds a constant": lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device),
    "is half": lambda x: x.half().outer(x.half()),
}


@pytest.mark.parametrize("outputs", ["own", "view"])
@pytest.mark.parametrize("fn", HARMLESS.values(), ids=HARMLESS.keys())
def test_what_is_right_is_never_taken_for_wrong(device, fn, outputs):
    graphed = gfxgraph.graphed(fn, outputs=outputs)
    gfxgraph.enable(validate=True, validate_every=1)

    def calls(function):
        torch.manual_seed(5)
        for n in range(5):
            x = torch.randn(4, generator=torch.Generator().manual_seed(n)).to(device)
            leaves = torch.utils._pytree.tree_leaves((function(x), x, torch.rand(2, device=device)))
            yield [t.clone() if isinstance(t, torch.Tensor) else t for t in leaves]

    for got, expected in zip(list(calls(graphed)), list(calls(fn)), strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True, rtol=1e-3, atol=1e-3)
    stats = graphed.stats()
    assert failures() == 0 and stats.replays and not stats.refused


def test_a_compiled_model_of_a_block_may_round_elsewhere(device):
    model = torch.compile(torch.nn.Linear(8, 8).to(device), backend="aot_eager")
    x = torch.randn(2, 8, device=device)
    model(x)

    def call(x):
        return model(x)

    graph = gfxgraph.BridgedCUDAGraph()
    with graph.capture(model_fn=call):
        out = call(x)
    gfxgraph.enable(validate=True, validate_every=1)
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(out, model(x))
    assert failures() == 0


def test_threads_compare_while_others_replay(device):
    seen = torch.zeros(64, device=device)

    @gfxgraph.graphed
    def counted(x):
        seen.add_(1)
        return x * 2

    plain = gfxgraph.graphed(lambda x: x.sin() + 1)
    gfxgraph.enable(validate=True, validate_every=3)
    x = torch.ones(64, device=device)
    for _ in range(2):
        counted(x)
        plain(x)
    wrong, calls = [], 60

    def work(n):
        with torch.no_grad():
            for _ in range(calls):
                y = torch.full((64,), float(n), device=device)
                if not torch.equal(counted(y), y * 2) or not torch.allclose(plain(y), y.sin() + 1):
                    wrong.append(n)

    on_threads(work, range(4))
    assert not wrong and failures() == 0
    assert seen[0].item() == 2 + 4 * calls


def test_the_variable_says_how_often(monkeypatch):
    assert from_environment({}).validate_every == 100
    assert from_environment({"GFXGRAPH_VALIDATE_EVERY": " 7 "}).validate_every == 7


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "often", "1e3", "٣", "0x10"])
def test_a_malformed_variable_is_named(value):
    with pytest.raises(SettingError, match=r"GFXGRAPH_VALIDATE_EVERY=.*a whole number from 1"):
        from_environment({"GFXGRAPH_VALIDATE_EVERY": value})


@pytest.mark.parametrize("value", [0, -3, 2.5, "7", True])
def test_an_argument_that_is_no_count_is_refused(value):
    with pytest.raises(ArgumentError, match="a whole number from 1"):
        gfxgraph.enable(validate=True, validate_every=value)


def test_the_environment_turns_it_on():
    program = """
import ctypes, torch, gfxgraph
torch.set_grad_enabled(False)
factor = ctypes.c_double(2.0)
at = ctypes.addressof(factor)  # of what is known by its address alone no guard can know
f = gfxgraph.graphed(lambda x: x * ctypes.c_double.from_address(at).value)
x = torch.ones(4, device=gfxgraph.device_type())
for _ in range(3): f(x)
factor.value = 3.0
print([f(x)[0].item() for _ in range(3)], gfxgraph.stats()["validation_failures"])
"""
    environ = {"GFXGRAPH": "validate", "GFXGRAPH_VALIDATE_EVERY": "3"}
    assert printed(program, **environ) == "[3.0, 3.0, 3.0] 1"


def test_counters_are_those_of_calls(device):
    graphed = gfxgraph.graphed(lambda x: x + 1)
    gfxgraph.enable(validate=True, validate_every=1)
    x = torch.ones(4, device=device)
    for _ in range(5):
        graphed(x)
    stats = graphed.stats()
    assert (stats.replays, stats.eager_calls) == (4, 1)
    assert tally.snapshot()["replay_count"] == 4
