"""``gfxgraph.verify`` finds what differs between a graph and eager, and by experiment why."""

from __future__ import annotations

import json
import random
import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn

import gfxgraph
from gfxgraph import BridgedCUDAGraph, verify
from gfxgraph.errors import ArgumentError
from gfxgraph.graph.compare import difference
from gfxgraph.verifying.inputs import fresh
from tests.helpers.command import gfxgraph_command, importable
from tests.helpers.devices import region
from tests.helpers.processes import printed


def by_hand(fn, *example, forgets=(), views=False, replays=True, generators=()):
    """A graph as people write it: static inputs, capture, copy and replay in each call."""
    static = [leaf.clone() for leaf in example]
    graph = BridgedCUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.no_grad():
        fn(*static)
        with region(graph):
            outputs = fn(*static)
    graph.replay()

    def wrapper(*args):
        for n, (one, value) in enumerate(zip(static, args, strict=True)):
            if n not in forgets:
                one.copy_(value)
        if replays:
            graph.replay()
        return outputs if views else pytree.tree_map_only(torch.Tensor, torch.clone, outputs)

    return wrapper


def kinds(result):
    return [(cause.kind, cause.what) for cause in result.causes]


def errors_of(result, name):
    return next(row for row in result.outputs if row.name == name)


@pytest.fixture
def x(device):
    return torch.randn(4, 8, device=device)


@pytest.fixture
def model(device):
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3)).to(device).eval()


# What is right.


def test_a_graphed_model_equals_eager_and_says_that_it_is_a_graph(model, x):
    report = verify(model, x)
    assert report.ok and report.graph.captured and report.graph.calls == 8
    assert not (report.graph.causes or report.graph.cautions or report.graph.fallbacks)
    (row,) = report.graph.outputs
    assert (row.name, row.max_error, row.mean_error, row.relative_error) == ("out", 0, 0, 0)
    assert (row.dtype, row.threshold, row.ok) == ("float32", 1e-4, True)
    assert "equals eager in 8 calls of 4 inputs" in str(report)


def test_a_graph_by_hand_that_is_right_is_ok_and_warned_of_weights_that_move(model, x):
    report = verify(model, x, candidate=by_hand(model, x))
    assert report.ok and report.graph.captured is None
    assert [c.kind for c in report.graph.cautions] == ["moved-later"]


def test_what_is_already_graphed_is_compared_with_the_function_inside(model, x):
    fast = gfxgraph.graphed(model)
    assert verify(fast, x).ok
    assert fast.stats().replays > 0


def test_a_graphed_method_inside_runs_eagerly_in_eager(device, x):
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 2.0

        @gfxgraph.graphed
        def act(self, x):
            return x * self.scale

        def forward(self, x):
            return self.act(x) + 1

    policy = Policy()
    with torch.no_grad():
        for _ in range(3):
            policy(x)
    before = policy.act.stats().replays
    assert before > 0 and verify(policy, x, candidate=lambda x: x * 2 + 1).ok
    assert policy.act.stats().replays <= before + 4  # of the round in which it was noticed


def test_dropout_in_training_draws_the_same_under_the_same_seeds(device, x):
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)).to(device).train()
    report = verify(net, x)
    assert report.ok and report.graph.captured
    assert {row.name for row in report.graph.outputs if row.part == "state"} == {
        "Sequential.2.running_mean",
        "Sequential.2.running_var",
        "Sequential.2.num_batches_tracked",
    }
    assert verify(net, x, candidate=by_hand(net, x)).ok


def test_a_generator_of_the_functions_own_is_seeded_too(device, x):
    generator = torch.Generator(device)

    def noisy(x):
        return x + torch.randn(x.shape, generator=generator, device=x.device)

    candidate = by_hand(noisy, x, generators=[generator])
    before = generator.get_state()
    assert verify(noisy, x, candidate=candidate).ok
    assert torch.equal(generator.get_state(), before)


def test_everything_is_as_it_was_afterwards(device, x):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("seen", torch.zeros(3))
            self.steps, self.history = 0, []

        def forward(self, x):
            self.steps += 1
            self.history.append(self.steps)
            self.seen += 1
            return self.linear(x) + torch.rand_like(x) + random.random() + self.seen.sum()

    counts = Counts().to(device)
    pointers = [p.data_ptr() for p in counts.parameters()]
    values = {name: v.clone() for name, v in counts.state_dict().items()}
    given = x.clone()
    torch.manual_seed(3)
    random.seed(3)
    expected = torch.rand(2), torch.rand(2, device=device), random.random()
    torch.manual_seed(3)
    random.seed(3)
    verify(counts, x)
    verify(counts, x, candidate=lambda x: x)
    assert torch.equal(torch.rand(2), expected[0])
    assert torch.equal(torch.rand(2, device=device), expected[1])
    assert random.random() == expected[2]
    assert (counts.steps, counts.history) == (0, []) and torch.equal(x, given)
    assert pointers == [p.data_ptr() for p in counts.parameters()]
    assert all(torch.equal(v, values[name]) for name, v in counts.state_dict().items())


def test_a_call_that_cannot_be_a_graph_is_ok_but_no_graph(device, x):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = []

        def forward(self, x):
            self.steps.append(x.shape)
            return x * len(self.steps)

    report = verify(Counts(), x)
    assert report.ok and report.graph.captured is False
    assert any("steps" in reason for reason in report.graph.fallbacks)
    assert report.verdict == "eager" and report.graph.replays == 0 and report.is_graph is False
    verdict, _, rest = str(report).partition("\nCompared on")
    verdict = " ".join(verdict.split())
    assert verdict.startswith("test_") and "runs eagerly, since each call rebinds" in verdict
    assert "steps" in verdict and "There was no graph to compare" in rest


def test_why_it_is_no_graph_comes_first_for_each_kind_of_reason(device, x):
    def prints(x):
        print(end="said\n")
        return x + 1

    def draws(x):
        return x * random.random()

    def starts_a_thread(x):
        threading.Thread(target=int).start()
        return x + 1

    reasons = ((prints, "prints"), (draws, "random"), (starts_a_thread, "another thread"))
    for fn, reason in reasons:
        report = verify(fn, x)
        verdict = " ".join(str(report).partition("\nCompared on")[0].split())
        assert "runs eagerly, since" in verdict and reason in verdict, str(report)
        assert reason in report.to_dict()["reason"] and report.to_dict()["is_graph"] is False


def test_a_path_for_each_input_is_said_to_hardly_ever_replay(device, x):
    report = verify(lambda x: x * float(x.sum()), x)
    assert report.ok and report.is_graph is False
    verdict = " ".join(str(report).partition("\nCompared on")[0].split())
    assert "each input takes its own path" in verdict and "float(x.sum())" in verdict
    assert verify(lambda x: x * 2 if x.sum() > 0 else x, x).is_graph


def test_all_lines_of_a_report_fit_into_100_columns(device, x):
    def prints(x):
        print("a line that is much longer than a terminal is wide " * 3)
        return x

    for report in (verify(prints, x), verify(nn.Linear(8, 8).to(device), x, candidate=torch.sin)):
        assert max(map(len, str(report).splitlines())) <= 100, str(report)


def test_arguments_that_are_written_are_compared(device, x):
    def writes(x, cache):
        cache += x
        return cache.sum()

    report = verify(writes, x, torch.zeros_like(x))
    assert report.ok and errors_of(report.graph, "cache").part == "argument"
    forgetful = by_hand(writes, x, torch.zeros_like(x))  # does not copy it back
    report = verify(writes, x, torch.zeros_like(x), candidate=forgetful)
    assert not errors_of(report.graph, "cache").ok and errors_of(report.graph, "out").ok


def test_what_a_first_call_adds_to_a_module_is_no_difference(device, x):
    class Lazy(nn.Module):
        def forward(self, x):
            if not hasattr(self, "mask"):
                self.mask = torch.ones_like(x).triu()
            return x * self.mask

    report = verify(Lazy(), x)
    assert report.ok and report.graph.captured


# What is wrong, and why.


def test_an_input_that_is_not_copied_is_named(x):
    def two(a, *, mask):
        return a * 2 + mask

    def adapted(fn, **options):
        inner = by_hand(lambda a, m: fn(a, mask=m), x, x + 1, **options)
        return lambda a, *, mask: inner(a, mask)

    for forgotten, name in ((0, "a"), (1, "mask")):
        report = verify(two, x, kwargs={"mask": x + 1}, candidate=adapted(two, forgets=[forgotten]))
        assert not report.ok and kinds(report.graph) == [("input", name)]
        assert report.graph.first.first.call == 2  # the first call has the inputs of the capture


def test_a_tensor_inside_of_an_argument_is_named_by_its_path(x):
    def sums(batch):
        return batch["ids"][0] + batch["ids"][1]

    stale = x.clone()
    report = verify(sums, {"ids": [x, x + 1]}, candidate=lambda batch: batch["ids"][0] + stale + 1)
    assert kinds(report.graph) == [("input", 'batch["ids"][1]')]


def test_a_number_that_was_baked_in_is_named(x):
    def scaled(x, scale):
        return x * scale

    report = verify(scaled, x, 2.0, inputs=[(x + 1, 3.0)], candidate=lambda x, scale: x * 2.0)
    assert report.runs == 2 and kinds(report.graph) == [("constant", "scale")]


def test_results_that_a_later_replay_overwrites_are_named(model, x):
    def twice(x):
        return {"kept": x + 1, "logits": model(x)}

    report = verify(twice, x, candidate=by_hand(twice, x, views=True))
    assert not report.ok and all(row.ok for row in report.graph.outputs)
    assert kinds(report.graph) == [("overwritten", 'out["kept"], out["logits"]')]
    assert "its results do not last" in str(report)


def test_views_may_be_allowed(model, x):
    assert verify(model, x, candidate=by_hand(model, x, views=True), views=True).ok
    assert verify(gfxgraph.graphed(model, outputs="view"), x).ok


def test_a_result_that_eager_overwrites_too_is_no_fault(device, x):
    buffer = torch.zeros(4, 8, device=device)

    def into(x):
        return buffer.copy_(x)

    assert verify(into, x, candidate=by_hand(into, x, views=True)).ok


def test_a_weight_that_was_rebound_is_named(model, x):
    candidate = by_hand(model, x)
    model[2].weight = nn.Parameter(model[2].weight.detach() + 1)
    report = verify(model, x, candidate=candidate)
    assert not report.ok and kinds(report.graph) == [("external", "Sequential.2.weight")]
    assert report.graph.first.first.call == 1


def test_a_copy_of_the_weights_is_a_caution_since_it_is_right_for_now(model, x):
    weight, bias = (p.detach().clone() for p in model[0].parameters())
    report = verify(model[0], x, candidate=lambda x: nn.functional.linear(x, weight, bias))
    assert report.ok
    assert [c.kind for c in report.graph.cautions] == ["changed-later", "moved-later"]


def test_a_graph_that_is_not_replayed_is_told_from_inputs_that_are_not_copied(model, x):
    report = verify(model, x, candidate=by_hand(model, x, replays=False))
    assert kinds(report.graph) == [("not-replayed", "")]


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x):
        self.step += 1
        return x * self.step


def test_a_python_counter_that_was_baked_in_is_named(device, x):
    counter = Counter()
    report = verify(counter, x, candidate=by_hand(counter, x))
    assert not report.ok and ("python-state", "Counter.step") in kinds(report.graph)
    assert not errors_of(report.graph, "Counter.step").ok


def test_a_cache_that_python_rebinds_is_named(device, x):
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.cache = torch.zeros(4, 8, device=device)

        def forward(self, x):
            self.cache = self.cache * 0.5 + x
            return self.cache

    report = verify(Cache(), x)
    assert report.ok and report.graph.captured and "Cache.cache (state)" in str(report)
    cache = Cache()
    report = verify(cache, x, candidate=by_hand(cache, x))
    assert [cause.kind for cause in report.graph.causes] == ["python-state"]
    assert "Cache.cache" in report.graph.causes[0].what


def test_a_candidate_that_changes_what_eager_reads_is_told(model, x):
    def scribbles(x):
        model[0].weight.add_(0.1)
        return model(x)

    report = verify(model, x, candidate=scribbles)
    assert kinds(report.graph) == [("side-effect", "")]


def test_a_counter_of_the_device_that_is_not_advanced_is_named(device, x):
    position = torch.zeros(1, device=device)

    def advances(x):
        position.add_(1)
        return x + position

    assert verify(advances, x, candidate=by_hand(advances, x)).ok
    copy = torch.zeros(1, device=device)
    report = verify(advances, x, candidate=lambda x: x + copy + 1)
    assert ("state", "position") in kinds(report.graph)


def noisy(x):
    return x + torch.randn_like(x)


def test_noise_that_was_drawn_once_is_told(device, x):
    noise = torch.randn_like(x)
    report = verify(noisy, x, candidate=by_hand(lambda x: x + noise, x))
    assert not report.ok and kinds(report.graph) == [("random-baked", "")]


def test_a_python_random_number_that_was_baked_in_is_told(device, x):
    def jitters(x):
        return x * random.random()

    report = verify(jitters, x, candidate=by_hand(jitters, x))
    assert kinds(report.graph) == [("random-baked", "")]


def test_a_generator_that_seeds_do_not_reach_is_told(device, x):
    own = torch.Generator(device)

    def draws(x):
        return x + torch.randn(x.shape, generator=own, device=x.device)

    report = verify(noisy, x, candidate=by_hand(draws, x, generators=[own]))
    assert not report.ok and kinds(report.graph) == [("random-unregistered", "")]


def test_random_numbers_in_another_order_are_told(device, x):
    def skips(x):
        torch.randn_like(x)
        return noisy(x)

    report = verify(noisy, x, candidate=by_hand(skips, x))
    assert kinds(report.graph) == [("random-other", "")]


def test_a_wrapper_whose_first_call_is_wrong_is_told(model, x):
    made = []

    def lazy(x):
        if not made:
            static, graph = x.clone(), BridgedCUDAGraph()
            model(static)
            with region(graph):
                out = model(static)
            made.extend((static, graph, out))
            return torch.full_like(out, float("nan"))  # as the static output may be by now
        made[0].copy_(x)
        made[1].replay()
        return made[2].clone()

    report = verify(model, x, candidate=lazy)
    assert kinds(report.graph) == [("capture", "")]
    assert report.graph.first.first.call == 1


def test_an_eager_function_that_differs_from_itself_is_told(device, x):
    seen = iter(range(10**6))
    report = verify(lambda x: x + next(seen), x, candidate=lambda x: x)
    assert kinds(report.graph) == [("not-reproducible", "")]


def test_where_no_experiment_explains_it_none_is_made_up(x):
    report = verify(torch.relu, x, candidate=torch.sigmoid)
    assert not report.ok and report.graph.causes == ()
    assert "No experiment shows why." in str(report)


def test_an_error_of_the_candidate_is_reported(x):
    def fails(x):
        raise ValueError("not today")

    report = verify(torch.relu, x, candidate=fails)
    assert not report.ok and report.graph.error == "ValueError: not today"
    assert "raises ValueError: not today" in str(report)


def test_an_error_of_eager_is_passed_on_and_its_state_put_back(device, x):
    counter = Counter()

    def fails(x):
        counter(x)
        raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        verify(fails, x)
    assert counter.step == 0


# How far it differs.


def test_errors_are_counted_over_all_calls_and_named_where_they_begin(device):
    x = torch.full((2, 2), 4.0, device=device)

    def candidate(x):
        off = torch.zeros_like(x)
        off[1, 0] = 1.0
        return [x, {"logits": x + off}]

    report = verify(lambda x: (x, {"logits": x}), x, inputs=[(x * 2,)], candidate=candidate)
    assert errors_of(report.graph, "out[0]").ok
    row = report.graph.first
    assert row.name == 'out[1]["logits"]'
    assert (row.max_error, row.mean_error, row.relative_error) == (1.0, 0.25, 0.25)
    assert (row.first.call, row.first.element) == (1, (1, 0))
    assert (row.first.got, row.first.expected) == (5.0, 4.0)


@pytest.mark.parametrize(
    ("dtype", "off", "ok"),
    [
        (torch.float16, 0.008, True),
        (torch.float16, 0.02, False),
        (torch.bfloat16, 0.02, False),
        (torch.float32, 5e-5, True),
        (torch.float32, 1e-3, False),
        (torch.float64, 1e-6, False),
    ],
)
def test_the_threshold_is_tighter_where_the_dtype_allows(device, dtype, off, ok):
    x = torch.full((4,), 100.0, device=device, dtype=dtype)
    assert verify(lambda x: x, x, inputs=[], candidate=lambda x: x * (1 + off)).ok is ok


def test_a_threshold_that_is_given_holds_for_all_floats_and_not_for_integers(device):
    x = torch.full((4,), 100.0, device=device)
    assert verify(lambda x: x, x, threshold=0.01, candidate=lambda x: x * 1.005).ok
    assert not verify(lambda x: x, x, threshold=0.001, candidate=lambda x: x * 1.005).ok
    n = torch.full((4,), 1000, device=device)
    assert not verify(lambda n: n, n, threshold=0.01, candidate=lambda n: n + 1).ok
    large = n << 50  # more digits than a double has
    assert not verify(lambda n: n, large, candidate=lambda n: n + 1).ok


def test_small_results_are_held_to_their_own_scale(device):
    x = torch.full((4,), 1e-6, device=device)
    assert not verify(lambda x: x, x, candidate=lambda x: x * 1.5).ok


def test_nan_and_infinities_have_to_be_in_the_same_places(device):
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf")], device=device)
    assert verify(lambda x: x, x, candidate=torch.clone).ok
    for wrong in (torch.nan_to_num, torch.neg, lambda x: x * 0):
        assert not verify(lambda x: x, x, inputs=[], candidate=wrong).ok


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (lambda x: x[:2], "its shape is (2, 8), eager's is (4, 8)"),
        (lambda x: x.double(), "its dtype is torch.float64"),
        (lambda x: (x, x), "not there"),
        (lambda x: None, "eager gives a tensor"),
    ],
)
def test_a_result_of_another_kind_is_a_difference(x, wrong, problem):
    report = verify(lambda x: x, x, candidate=wrong)
    assert not report.ok and problem in str(report)


def test_values_that_are_no_tensors_are_compared(x):
    assert verify(lambda x: (x, "a", 1), x, candidate=lambda x: (x, "a", 1)).ok
    report = verify(lambda x: (x, "a", 1), x, candidate=lambda x: (x, "a", 2))
    assert report.graph.first.name == "out[2]" and "it is 2, eager gives 1" in str(report)


@dataclass
class Output:
    logits: torch.Tensor
    cache: OrderedDict


def test_outputs_are_named_by_their_path(x):
    def nested(x):
        return Output(x, OrderedDict(k=[x + 1], v=torch.max(x, 0)))

    report = verify(nested, x)
    assert report.ok
    assert [row.name for row in report.graph.outputs] == [
        "out.logits",
        'out.cache["k"][0]',
        'out.cache["v"][0]',
        'out.cache["v"][1]',
    ]


# Inputs.


def test_fresh_floats_have_the_range_and_about_the_moments_of_the_example(device):
    x = torch.rand(64, 64, device=device)
    new = fresh(x, 1)
    assert not torch.equal(new, x) and new.min() >= 0 and new.max() <= x.max()
    assert abs(float(new.mean() - x.mean())) < 0.05 and abs(float(new.std() - x.std())) < 0.1
    assert torch.equal(new, fresh(x, 1)) and not torch.equal(new, fresh(x, 2))


def test_fresh_integers_are_those_of_the_example_elsewhere(device):
    ids = torch.randint(50_000, (2, 16), device=device)
    new = fresh(ids, 1)
    assert not torch.equal(new, ids) and torch.equal(new.sort().values, ids.sort().values)


@pytest.mark.parametrize(
    "kept",
    [
        torch.ones(2, 3, dtype=torch.bool),
        torch.ones(2, 3, dtype=torch.int64),
        torch.arange(5),
        torch.tensor([0, 3, 3, 9]),
        torch.tensor(7),
        torch.zeros(0, 3),
    ],
)
def test_masks_that_are_all_true_offsets_and_positions_stay(kept):
    assert torch.equal(fresh(kept, 1), kept)


def test_masks_stay_masks():
    mask = torch.tensor([[0.0, 0.0, -float("inf")]])
    assert sorted(fresh(mask, 1).flatten().tolist()) == [-float("inf"), 0.0, 0.0]
    of_numbers = torch.tensor([[1.0, 1.0, 0.0]])
    assert set(fresh(of_numbers, 1).flatten().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_fresh_values_have_the_dtype_and_the_layout(dtype):
    x = torch.randn(3, 4, dtype=dtype).t()
    new = fresh(x, 1)
    assert (new.dtype, new.stride()) == (x.dtype, x.stride()) and not torch.equal(new, x)


def test_inputs_that_are_given_are_used_also_of_other_shapes(model, device):
    shapes = (4, 2, 7)
    first, *more = (torch.randn(rows, 8, device=device) for rows in shapes)
    report = verify(model, first, inputs=((value,) for value in more))
    assert report.ok and report.runs == 3 and report.graph.captured


@pytest.mark.parametrize(
    ("arguments", "options", "problem"),
    [
        ((3, torch.ones(1)), {}, "takes a function"),
        ((torch.relu,), {}, "no tensor among the arguments"),
        ((torch.relu, torch.ones(1, device="meta")), {}, "meta"),
        ((torch.relu, torch.ones(1)), {"candidate": 3}, "verify\\(candidate=\\)"),
        ((torch.relu, torch.ones(1)), {"runs": 0}, "runs=0"),
        ((torch.relu, torch.ones(1)), {"runs": True}, "runs=True"),
        ((torch.relu, torch.ones(1)), {"threshold": -1}, "threshold=-1"),
        ((torch.relu, torch.ones(1)), {"threshold": float("nan")}, "threshold=nan"),
        ((torch.relu, torch.ones(1)), {"seed": -1}, "seed=-1"),
        ((torch.relu, torch.ones(1)), {"inputs": [torch.ones(1)]}, "a tuple of arguments"),
        ((torch.relu, torch.ones(1)), {"inputs": [], "runs": 3}, "inputs=, runs="),
    ],
)
def test_bad_arguments_are_explained(arguments, options, problem):
    with pytest.raises(ArgumentError, match=problem):
        verify(*arguments, **options)


# torch.compile.


def test_what_is_compiled_is_compared_too_and_a_failure_to_compile_is_reported(x, monkeypatch):
    def breaks(model, example_inputs):
        raise RuntimeError("no compiler here")

    compile_ = torch.compile
    with monkeypatch.context() as patch:
        patch.setattr(torch, "compile", lambda fn, **_: compile_(fn, backend=breaks))
        report = verify(lambda x: x * 2, x, compiled=True)
    assert report.ok and "no compiler here" in str(report) and report.compiled.error is not None
    with monkeypatch.context() as patch:
        patch.setattr(torch, "compile", lambda fn, **_: compile_(fn, backend="eager"))
        report = verify(lambda x: x * 3, x, compiled=True)
    assert report.ok and report.compiled.ok and "torch.compile equals eager" in str(report)


# The command.

MODULE = """\
import torch
from torch import nn

print("loaded")

def double(x, mask=None):
    return x * 2 if mask is None else x * 2 + mask

def wrong(x, mask=None):
    return x * 2.1

def fails(x):
    raise ValueError("not today")

def eager(x):
    print("said")
    return x * 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x)

net = Net()

def args_and_kwargs():
    return (torch.ones(4, 8),), {"mask": torch.randn(4, 8)}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    importable(tmp_path, monkeypatch, "verify_subject", MODULE)
    return lambda target, *args: gfxgraph_command("verify", f"verify_subject:{target}", *args)


X = "float32[4,8]"


@pytest.mark.parametrize(
    "args",
    [
        ("double", X),
        ("double", X, "mask=float32[4,8]"),
        ("double", "--make", "verify_subject:args_and_kwargs"),
        ("Net()", X, "--runs", "2", "--seed", "5", "--threshold", "0.01"),
    ],
)
def test_status_0_is_equal(device, run, args):
    result = run(*args)
    assert result.exit_code == 0, result.output
    assert "The graph equals eager" in result.stdout and "loaded" not in result.stdout


def test_status_3_is_no_graph_where_one_is_required(device, run):
    assert run("double", X, "--require-graph").exit_code == 0
    result = run("eager", X)
    assert result.exit_code == 0 and "eager: runs eagerly, since" in result.stdout
    result = run("eager", X, "--require-graph")
    assert result.exit_code == 3 and "eager: runs eagerly, since" in result.stdout
    result = run("wrong", X, "--candidate", "verify_subject:double", "--require-graph")
    assert result.exit_code == 1
    result = run("double", X, "--candidate", "verify_subject:double", "--require-graph")
    assert result.exit_code == 2 and "does not tell" in result.output


def test_status_1_is_different(device, run):
    result = run("double", X, "--candidate", "verify_subject:wrong")
    assert result.exit_code == 1, result.output
    assert "wrong differs from eager" in result.stdout
    assert "First in out, call 1 (input 0, seed 0): element [0, 0]" in result.stdout


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("nothing", X), "has no attribute"),
        (("double",), "missing a required argument"),
        (("double", "3"), "no tensor"),
        (("double", "float32[4]:meta"), "meta"),
        (("double", X, "--candidate", "verify_subject"), "module:callable"),
        (("double", X, "--make", "verify_subject:args_and_kwargs"), "not both"),
        (("double", X, "--runs", "0"), "--runs"),
        (("double", X, "--threshold", "-1"), "--threshold"),
        (("fails", X), "ValueError: not today"),
    ],
)
def test_status_2_is_a_bad_argument(device, run, args, problem):
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert problem in result.output and "Traceback" not in result.output


def test_json_is_the_report(device, run):
    result = run("double", X, "--json", "--candidate", "verify_subject:wrong")
    report = json.loads(result.stdout)
    assert result.exit_code == 1 and report["ok"] is False and report["runs"] == 4
    (row,) = report["graph"]["outputs"]
    assert row["name"] == "out" and row["first"]["element"] == [0, 0]


def test_a_method_of_a_module_can_be_named(device, run):
    assert run("net.forward", X).exit_code == 0


def test_what_is_not_finite_is_still_json(x):
    report = verify(lambda x: x, x, candidate=lambda x: x / 0)
    assert not report.ok and "NaN" not in json.dumps(report.to_dict(), allow_nan=False)


def test_the_report_is_plain_data(model, x):
    report = verify(model, x)
    assert json.loads(json.dumps(asdict(report)))["graph"]["captured"] is True


# ---- what a candidate may not do


def test_a_candidate_that_overwrites_its_argument_differs(x):
    report = verify(lambda x: x * 2, x, candidate=lambda x: x.mul_(2).clone())
    assert not report.ok
    assert [(row.name, row.part) for row in report.graph.outputs if not row.ok] == [
        ("x", "argument")
    ]


@pytest.mark.parametrize(
    "other", [lambda x: (x * 2,), lambda x: {"a": x * 2}, lambda x: [[x * 2]], lambda x: x * 2]
)
def test_a_result_of_another_structure_differs(x, other):
    assert verify(lambda x: [x * 2], x, candidate=lambda x: [x * 2]).ok
    report = verify(lambda x: [x * 2], x, candidate=other)
    assert not report.ok


FACTOR = 2.0


class Scaled(nn.Module):
    offset = 1

    def __init__(self):
        super().__init__()
        self.inner = nn.LayerNorm(8)
        self.config = {"mode": "add", "scales": [0.5, 1.5], "on": True}

    def forward(self, x):
        x = self.inner(x) * FACTOR + self.offset
        if self.config["mode"] == "add" and self.config["on"]:
            x = x + self.config["scales"][1]
        return x


def test_a_change_of_each_value_that_it_reads_in_python_is_noticed(device, x):
    model = Scaled().to(device)
    report = verify(model, x)
    assert report.ok
    # FACTOR, offset, mode, on, scales[1], the eps of the layer norm
    assert report.graph.places.noticed >= 6
    noticed = report.graph.places.noticed
    assert f"It noticed {noticed} of {noticed} changes to what it watches; " in str(report)
    assert report.to_dict()["graph"]["places"]["noticed"] == report.graph.places.noticed
    assert (FACTOR, Scaled.offset) == (2.0, 1) and "offset" not in vars(model)
    assert model.config == {"mode": "add", "scales": [0.5, 1.5], "on": True}


def test_a_graph_that_misses_a_change_of_a_value_is_not_ok(device, x):
    model = Scaled().to(device)
    graph = gfxgraph.graphed(model)
    with torch.no_grad():
        graph(x)
    (guard,) = graph._dispatcher.guards()
    guard.places_hold = lambda: True  # what a defect of a guard would do
    report = verify(model, x, candidate=graph)
    assert not report.ok
    (kind, what), (other, _) = kinds(report.graph)
    assert (kind, other) == ("value-later", "unnoticed")
    assert "FACTOR (read in test_verify.py:" in what and "['scales'][1]" in what
    assert report.graph.places.noticed < report.graph.places.changed


def test_a_candidate_of_somebody_else_is_not_asked_what_it_notices(model, x):
    assert verify(model, x, candidate=by_hand(model, x)).graph.places.noticed == 0


def test_values_are_changed_where_objects_refuse_it(device, x):
    class Stubborn:
        scale = 2.0

        def __setattr__(self, name, value):
            raise AttributeError(name)

        def __call__(self, x):
            return x * self.scale

    report = verify(Stubborn(), x)
    assert report.ok and report.graph.places.noticed >= 1 and Stubborn.scale == 2.0


@pytest.mark.parametrize("hidden", [-1e9, torch.finfo(torch.float32).min])
def test_scores_that_do_not_count_hide_no_error_of_the_others(device, x, hidden):
    def scores(x, factor=2.0):
        return torch.cat([x * factor, torch.full_like(x[:1], hidden)])

    found = verify(scores, x, candidate=lambda x: scores(x, 2.01))
    assert not found.ok and "eager gives" in str(found)
    assert verify(scores, x, candidate=lambda x: scores(x, 2.0000002)).ok
    assert difference(scores(x, 2.01), scores(x), True) is not None
    assert difference(scores(x, 2.000001), scores(x), True) is None


_WAYS = {
    "verify": "assert gfxgraph.verify(model, x).ok",
    "buckets": "graph = gfxgraph.graphed(model, buckets=[4, 8]); graph(x), graph(x[:2])",
    "a capture by hand": """
gfxgraph.enable()
torch.cuda.synchronize()
with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
    model(x)
graph.replay()
""",
}


@pytest.mark.gpu  # the tensors without data of the emulated device load it
@pytest.mark.parametrize("way", _WAYS)
def test_nothing_loads_the_compiler_unasked(way):
    code = f"""
import sys, torch, gfxgraph
torch.set_grad_enabled(False)
model, x = torch.nn.Linear(8, 8).cuda(), torch.ones(4, 8, device="cuda")
model(x)
{_WAYS[way]}
print("torch._dynamo" in sys.modules)
"""
    assert printed(code) == "False"
