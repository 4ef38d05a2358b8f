"""``BridgedCUDAGraph.capture``: a ``with`` block as one graph, or its call for any batch size."""

from __future__ import annotations

import contextlib
import cProfile
import functools
import gc
import sys
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph import BridgedCUDAGraph
from gfxgraph.device import current_device, generator_state
from gfxgraph.errors import ArgumentError, CaptureError
from tests.helpers.devices import region, works_afterwards
from tests.helpers.models import Attention, rows, same_net
from tests.helpers.processes import printed
from tests.helpers.sampled import sampled

pytestmark = pytest.mark.usefixtures("no_grad")
GPU = torch.cuda.is_available()
BUCKETS = [1, 4, 8, 16, 32]


def doubled(x):
    return x * 2


def reads_the_device(x):
    return x * 2 if x.sum().item() > 0 else -x


def swallows_its_failure(x):
    y = x * 2
    with contextlib.suppress(RuntimeError):
        y.sum().item()
    return y


def captured(model_fn, *args, **options):
    """A graph whose block is one call, and what came out of the call."""
    graph = BridgedCUDAGraph()
    options = {"dynamic_shapes": True, "buckets": BUCKETS} | options
    with graph.capture(model_fn=model_fn, **options):
        out = model_fn(*args)
    return graph, out


# ---- one graph


def test_a_block_is_captured_and_replayed_with_what_the_static_input_holds(device):
    model, x = same_net(device), rows(device, 4)
    model(x)
    for options in ({}, {"model_fn": model}):
        graph = BridgedCUDAGraph()
        with graph.capture(**options):
            out = model(x)
        for seed in range(3):
            x.copy_(rows(device, 4, seed))
            result = graph.replay()
            torch.testing.assert_close(out, model(x))
            assert result is (out if options else None)
    assert gfxgraph.stats()["capture_count"] == 2 and gfxgraph.stats()["fallback_count"] == 0


def test_a_block_that_does_more_than_one_call_is_captured_whole(device):
    x = torch.ones(3, device=device)
    graph = BridgedCUDAGraph()
    with graph.capture(model_fn=doubled):
        y = doubled(doubled(x) + 1)
    x.fill_(2.0)
    assert graph.replay() is None and y.tolist() == [10.0] * 3


def test_a_block_may_share_a_memory_pool_with_another_graph(device):
    x = torch.ones(3, device=device)
    one, two = BridgedCUDAGraph(), BridgedCUDAGraph()
    with one.capture():
        y = x + 1
    with two.capture(pool=one.pool(), capture_error_mode="relaxed", check_input_liveness=True):
        z = y * 2
    one.replay(), two.replay()
    assert two.pool() == one.pool() and z.tolist() == [4.0] * 3


@pytest.mark.parametrize("fn", [reads_the_device, swallows_its_failure])
def test_without_a_model_fn_a_failed_capture_is_an_error_and_leaves_nothing(device, fn):
    graph = BridgedCUDAGraph()
    with pytest.raises(RuntimeError), graph.capture():
        fn(torch.ones(3, device=device))
    assert works_afterwards(device)
    with pytest.raises(RuntimeError):
        graph.replay()


def test_a_capture_that_fails_in_model_fn_runs_it_eagerly_from_then_on(device, caplog):
    x = torch.ones(3, device=device)
    graph = BridgedCUDAGraph()
    with graph.capture(model_fn=reads_the_device):
        reads_the_device(x)
    assert works_afterwards(device)
    assert graph.replay().tolist() == [2.0] * 3
    x.fill_(-1.0)
    assert graph.replay().tolist() == [1.0] * 3
    stats = gfxgraph.stats()
    assert stats["fallback_count"] == 3 and stats["capture_failures"] == 1
    (reason,) = stats["fallbacks"]
    assert reason.startswith("reads_the_device: capture failed") and "x.sum().item()" in reason
    fallbacks = [r for r in caplog.records if getattr(r, "event", "") == "fallback"]
    assert len(fallbacks) == 1 and fallbacks[0].levelname == "WARNING"


def test_a_capture_that_fails_at_its_end_leaves_an_output_that_eager_calls_fill(device):
    x = torch.ones(3, device=device)
    graph = BridgedCUDAGraph()
    with graph.capture(model_fn=swallows_its_failure):
        out = swallows_its_failure(x)
    assert works_afterwards(device)
    for value in (1.0, 5.0):
        x.fill_(value)
        result = graph.replay()
        assert out.tolist() == result.tolist() == [2 * value] * 3
        assert result is not out
    assert gfxgraph.stats()["fallback_count"] == 3


def test_what_the_trial_after_a_failed_capture_does_is_taken_back(device):
    x, seen, calls = torch.ones(3, device=device), torch.zeros((), device=device), []

    def counted(x):
        calls.append(1)
        seen.add_(1)
        return reads_the_device(x + torch.rand_like(x))

    generator = current_device().default_generator(0)
    state = generator_state(generator)
    graph = BridgedCUDAGraph()
    with graph.capture(model_fn=counted):
        counted(x)
    assert int(seen) == 0 and torch.equal(state, generator_state(generator))
    assert len(calls) == 1  # the block's own
    graph.replay()
    assert int(seen) == 1 and len(calls) == 2


class OwnError(RuntimeError):
    pass


def raises(error):
    def model_fn(x):
        y = x * 2
        if y.shape[0] == 3:
            raise error
        return y

    return model_fn


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OwnError])
def test_an_error_of_the_callers_own_code_is_raised_and_the_process_captures_again(
    device, error, dynamic
):
    options = {"dynamic_shapes": True, "buckets": BUCKETS} if dynamic else {}
    x = torch.ones(3, device=device)
    model_fn = raises(error)
    graph = BridgedCUDAGraph()
    with pytest.raises(error), graph.capture(model_fn=model_fn, **options):
        model_fn(x)
    with pytest.raises(error), graph.capture(model_fn=doubled, **options):
        doubled(x)
        raise error
    assert works_afterwards(device) and gfxgraph.stats()["fallback_count"] == 0
    with pytest.raises(RuntimeError):
        graph.replay()
    with graph.capture(model_fn=doubled, **options):
        out = doubled(x)
    x.fill_(4.0)
    graph.replay()
    assert out.tolist() == [8.0] * 3


def test_a_block_that_fails_outside_of_model_fn_is_an_error_for_nothing_can_do_its_work(device):
    x = torch.ones(3, device=device)
    for before, after in ((True, False), (False, True)):
        with pytest.raises(RuntimeError), BridgedCUDAGraph().capture(model_fn=doubled):
            if before:
                x.sum().item()
            y = doubled(x)
            if after:
                y.sum().item()
        assert works_afterwards(device)
    with pytest.raises(RuntimeError), BridgedCUDAGraph().capture(model_fn=doubled):
        reads_the_device(x)
    with pytest.raises(RuntimeError), BridgedCUDAGraph().capture(model_fn=swallows_its_failure):
        swallows_its_failure(x)
        swallows_its_failure(x)
    assert gfxgraph.stats()["fallback_count"] == 0 and works_afterwards(device)


# ---- any batch size


def test_a_batch_size_is_answered_from_the_next_bucket(device):
    model, x = same_net(device), rows(device, 32)
    graph, out = captured(model, x)
    torch.testing.assert_close(out, model(x))
    counts = gfxgraph.stats()
    assert counts["capture_count"] == 5
    kept = []
    for count in (12, 1, 16, 5, 32, 12):
        x[:count].copy_(rows(device, count, 1))
        result = graph.replay(batch_size=count)
        assert result.shape == (count, 4)
        kept.append((result, model(rows(device, count, 1))))
    for result, expected in kept:  # each is of its own
        torch.testing.assert_close(result, expected)
    assert gfxgraph.stats()["capture_count"] == 5 and gfxgraph.stats()["fallback_count"] == 0
    # The first calls of 12 and of 5 rows, sizes that no bucket was compared for, run eagerly.
    assert gfxgraph.stats()["replay_count"] == counts["replay_count"] + 4


def test_without_a_batch_size_all_rows_are_computed_and_the_static_output_holds_them(device):
    model, x = same_net(device), rows(device, 16)
    graph, out = captured(model, x)
    before = out.clone()
    x.copy_(rows(device, 16, 1))
    graph.replay(batch_size=3)
    assert torch.equal(out, before)
    result = graph.replay()
    torch.testing.assert_close(result, model(x))
    assert torch.equal(out, result) and result is not out


@pytest.mark.parametrize("held", [2, 5, 40])
def test_the_static_input_need_not_be_as_large_as_the_largest_bucket(device, held):
    model, x = same_net(device), rows(device, held)
    graph, out = captured(model, x, buckets=[4, 16])
    for count in {1, 2, held}:
        torch.testing.assert_close(graph.replay(batch_size=count), model(x[:count]))
    x.add_(1)
    graph.replay()
    torch.testing.assert_close(out, model(x))
    assert gfxgraph.stats()["capture_count"] == 2
    with pytest.raises(ArgumentError, match=f"batch_size={held + 1}.* holds {held}"):
        graph.replay(batch_size=held + 1)


def test_no_rows_give_no_rows(device):
    graph, _ = captured(same_net(device), rows(device, 4))
    assert graph.replay(batch_size=0).shape == (0, 4)


def test_a_bound_method_is_a_model_fn(device):
    class Policy:
        def __init__(self):
            self.model = same_net(device)

        def act(self, x, scale=1.0, *, bias=None):
            y = self.model(x) * scale
            return y if bias is None else y + bias

    policy, other, x = Policy(), Policy(), rows(device, 8)
    graph = BridgedCUDAGraph()
    bias = rows(device, 8)[:, :4].clone()
    with graph.capture(dynamic_shapes=True, buckets=BUCKETS, model_fn=policy.act):
        other.act(x)
        out = policy.act(x, bias=bias)
    x.add_(1), bias.add_(1)
    torch.testing.assert_close(graph.replay(batch_size=3), policy.act(x[:3], bias=bias[:3]))
    graph.replay()
    torch.testing.assert_close(out, policy.act(x, bias=bias))


def test_arguments_are_seen_however_they_are_passed(device):
    def model_fn(a, /, b, c=None, *rest, d, e=2.0, **more):
        tensors = [t for t in (a, b, c, *rest, d, *more.values()) if t is not None]
        return sum(t * n for n, t in enumerate(tensors, 1)) * e

    a, b, c, r, d, m = (rows(device, 4, seed) for seed in range(6))
    for args, kwargs in (
        ((a, b), {"d": d}),
        ((a,), {"b": b, "d": d, "e": 3.0}),
        ((a, b, c, r, r), {"d": d, "m": m}),
        ((a, b, None, r), {"d": d, "m": m, "n": r}),
        ((a,), {"d": d, "c": c, "b": b}),
    ):
        graph = BridgedCUDAGraph()
        with graph.capture(dynamic_shapes=True, buckets=[2, 4], model_fn=model_fn):
            out = model_fn(*args, **kwargs)
        cut = functools.partial(torch.utils._pytree.tree_map_only, torch.Tensor, lambda t: t[:3])
        expected = model_fn(*cut(args), **cut(kwargs))
        torch.testing.assert_close(graph.replay(batch_size=3), expected)
        graph.replay()
        torch.testing.assert_close(out, model_fn(*args, **kwargs))
    assert gfxgraph.stats()["fallback_count"] == 0


def times(factor):
    def model_fn(x):
        return x * factor

    return model_fn


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


class Heads(nn.Module):
    @gfxgraph.graphed
    def first(self, x):
        return x * 2

    def forward(self, x, again=True):
        return self(x, again=False) if again else x * 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: (times(2), times(3)),
        lambda: (Scaled(2), Scaled(3)),
        lambda: (gfxgraph.graphed(times(2)), gfxgraph.graphed(times(3))),
        lambda: (Heads(), Heads()),
        lambda: (Heads().first, Heads().first),
        lambda: (gfxgraph.no_graph(times(2)), gfxgraph.no_graph(times(3))),
    ],
    ids=["closure", "object", "graphed", "module that calls itself", "graphed method", "no_graph"],
)
def test_only_calls_of_the_very_model_fn_count(device, make):
    model_fn, similar = make()
    x = rows(device, 4)
    graph = BridgedCUDAGraph()
    with graph.capture(dynamic_shapes=True, buckets=[2, 4], model_fn=model_fn):
        similar(x + 1)
        out = model_fn(x)
    x.add_(1)
    torch.testing.assert_close(graph.replay(batch_size=3), x[:3] * 2)
    graph.replay()
    torch.testing.assert_close(out, x * 2)


def test_several_dimensions_are_asked_for_by_name(device):
    torch.manual_seed(0)
    model = Attention().to(device).eval()
    names = {0: "batch", 1: "seq"}
    ids = torch.randint(0, 50, (4, 16)).to(device)
    mask = torch.ones_like(ids)
    graph = BridgedCUDAGraph()
    with graph.capture(
        dynamic_shapes=True,
        buckets={"batch": [2, 4], "seq": [8, 16]},
        dims={"input_ids": names, "attention_mask": names},
        model_fn=model,
    ):
        out = model(ids, attention_mask=mask)
    for sizes in ({"batch_size": 3, "seq": 11}, {"seq": 7}, {"batch": 1}, {"batch_size": 2}):
        count, length = sizes.get("batch_size", sizes.get("batch", 4)), sizes.get("seq", 16)
        expected = model(ids[:count, :length], mask[:count, :length])
        result = graph.replay(**sizes)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    ids.copy_(ids.flip(0))
    graph.replay()
    torch.testing.assert_close(out, model(ids, mask), rtol=1e-4, atol=1e-5)
    assert gfxgraph.stats()["capture_count"] == 4 and gfxgraph.stats()["fallback_count"] == 0
    with pytest.raises(ArgumentError, match="'rows' is no dynamic dimension; expected batch, seq"):
        graph.replay(rows=3)
    with pytest.raises(ArgumentError, match=r"seq=17.* holds 16"):
        graph.replay(batch_size=2, seq=17)
    with pytest.raises(ArgumentError, match="expected one of them"):
        graph.replay(batch_size=2, batch=2)


def test_what_larger_and_pad_say_holds_for_replays(device):
    def normalised(x):
        return x / x.abs().amin(1, keepdim=True)

    x = rows(device, 9)
    graph, _ = captured(normalised, x, buckets=[2, 4], larger="split", pad=1.0)
    torch.testing.assert_close(graph.replay(), normalised(x))
    assert gfxgraph.stats()["fallback_count"] == 0
    graph, _ = captured(normalised, x, buckets=[2, 4], larger="error")
    with pytest.raises(ArgumentError, match="batch 9 is above the largest bucket, 4"):
        graph.replay()
    torch.testing.assert_close(graph.replay(batch_size=3), normalised(x[:3]))


def test_a_function_that_has_no_graph_runs_eagerly_and_is_counted(device):
    kept = []

    def keeps_what_it_sees(x):
        kept.append(x.shape[0])
        return x * len(kept)

    x = torch.ones(8, 2, device=device)
    graph, _ = captured(keeps_what_it_sees, x)
    kept.clear()
    assert graph.replay(batch_size=3).tolist() == [[1.0, 1.0]] * 3
    assert graph.replay(batch_size=5).tolist() == [[2.0, 2.0]] * 5
    assert kept == [3, 5] and gfxgraph.stats()["fallback_count"] >= 2


def test_a_function_that_does_not_take_the_buckets_runs_eagerly_with_the_rows_asked_for(device):
    def in_pairs(x):
        if x.shape[0] % 2:
            raise RuntimeError("an even number of rows, please")
        return x.view(-1, 2, 8).flip(1).reshape(-1, 8)

    x = rows(device, 8)
    graph, out = captured(in_pairs, x, buckets=[3, 5])
    torch.testing.assert_close(graph.replay(batch_size=6), in_pairs(x[:6]))
    x.add_(1)
    graph.replay()
    torch.testing.assert_close(out, in_pairs(x))
    assert gfxgraph.stats()["fallback_count"] >= 2
    with pytest.raises(RuntimeError, match="an even number"):
        graph.replay(batch_size=5)


def test_an_output_that_is_the_input_stays_of_its_own(device):
    def with_its_input(x):
        print(end="")
        return x * 2, x

    for fn in (lambda x: (x * 2, x), with_its_input):
        x = torch.ones(4, 2, device=device)
        graph, _ = captured(fn, x)
        _, same = graph.replay(batch_size=3)
        _, whole = graph.replay()
        x.zero_()
        assert same.tolist() == [[1.0] * 2] * 3 and whole.tolist() == [[1.0] * 2] * 4


def test_results_of_any_structure_fill_the_static_output(device):
    @dataclass
    class Output:
        double: torch.Tensor
        parts: tuple[torch.Tensor, ...]
        name: str

    def model_fn(x):
        return Output(x * 2, (x + 1, x.sum(1)), "name")

    x = rows(device, 4)
    graph, out = captured(model_fn, x)
    x.add_(1)
    graph.replay()
    torch.testing.assert_close(out.double, x * 2)
    torch.testing.assert_close(out.parts, (x + 1, x.sum(1)))
    result = graph.replay(batch_size=3)
    assert isinstance(result, Output) and result.parts[1].shape == (3,) and result.name == "name"


def test_a_result_of_another_shape_than_the_static_output_is_an_error(device):
    def positive(x):
        print(end="")  # which keeps it eager
        return x[x > 0]

    x = torch.ones(4, device=device)
    graph, _ = captured(positive, x)
    x[0] = -1
    with pytest.raises(CaptureError, match=r"shapes \[\(3,\)\], the static output \[\(4,\)\]"):
        graph.replay()
    assert graph.replay(batch_size=4).tolist() == [1.0] * 3


# ---- modes


def test_a_replay_computes_in_the_modes_of_the_capture_whatever_those_of_the_caller(device):
    model, x = same_net(device), rows(device, 8)
    with (
        torch.inference_mode(),
        torch.autocast(device, dtype=torch.bfloat16),
    ):
        graph, out = captured(model, x)
        expected = model(x[:5])
    captures = gfxgraph.stats()["capture_count"]
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            result = graph.replay(batch_size=5)
            assert result.dtype == out.dtype == torch.bfloat16 and not result.requires_grad
            torch.testing.assert_close(result, expected)
            graph.replay()
    assert gfxgraph.stats()["capture_count"] == captures
    assert gfxgraph.stats()["fallback_count"] == 0


def test_where_autograd_records_a_capture_leaves_it_out(device):
    model, x = same_net(device), rows(device, 8)
    with torch.enable_grad():
        graph, out = captured(model, x)
        x.add_(1)
        result = graph.replay(batch_size=5)
        graph.replay()
        assert out.requires_grad and not result.requires_grad
        torch.testing.assert_close(out, model(x))
    assert gfxgraph.stats()["fallback_count"] == 0


# ---- what is refused


def test_arguments_that_do_not_go_together_are_refused(device):
    graph, x = BridgedCUDAGraph(), rows(device, 4)
    for options, message in (
        ({"dynamic_shapes": True}, "needs buckets="),
        ({"dynamic_shapes": True, "buckets": BUCKETS}, "needs buckets=.* and model_fn="),
        ({"dynamic_shapes": True, "model_fn": doubled}, "needs buckets="),
        ({"buckets": BUCKETS, "model_fn": doubled}, "pass dynamic_shapes=True"),
        ({"dims": {"x": {0: "batch"}}}, "pass dynamic_shapes=True"),
        ({"dynamic_shapes": True, "buckets": [4, 2], "model_fn": doubled}, "ascending"),
        (
            {"dynamic_shapes": True, "buckets": [4], "model_fn": doubled, "pool": (0, 1)},
            "takes no pool=",
        ),
        ({"capture_error_mode": "lax"}, "capture_error_mode='lax'"),
        ({"model_fn": 3}, "model_fn is a int"),
        ({"model_fn": torch.relu}, "Python cannot observe"),
        ({"model_fn": functools.partial(doubled)}, "Python cannot observe"),
    ):
        with pytest.raises(ArgumentError, match=message), graph.capture(**options):
            doubled(x)
    assert works_afterwards(device)


@pytest.mark.parametrize("calls", [0, 2])
def test_a_block_has_to_call_model_fn_once(device, calls):
    x = rows(device, 4)
    graph = BridgedCUDAGraph()
    with (
        pytest.raises(ArgumentError, match=rf"called model_fn, .*doubled.* {calls} times"),
        graph.capture(dynamic_shapes=True, buckets=BUCKETS, model_fn=doubled),
    ):
        for _ in range(calls):
            doubled(x)
        times(2)(x)
    with pytest.raises(RuntimeError):
        graph.replay()


def test_sizes_that_are_none_are_refused(device):
    graph, _ = captured(doubled, rows(device, 4))
    for size in (-1, 2.0, True, "3"):
        with pytest.raises(ArgumentError, match="expected a whole number from 0"):
            graph.replay(batch_size=size)
    with pytest.raises(ArgumentError, match="'seq' is no dynamic dimension; expected batch"):
        graph.replay(seq=3)


def test_a_graph_of_one_size_takes_no_sizes(device):
    x = rows(device, 4)
    low, plain, eager = BridgedCUDAGraph(), BridgedCUDAGraph(), BridgedCUDAGraph()
    with region(low):
        x * 2
    with plain.capture(model_fn=doubled):
        doubled(x)
    with eager.capture(model_fn=reads_the_device):
        reads_the_device(x)
    for graph in (low, plain, eager, BridgedCUDAGraph()):
        for sizes in ({"batch_size": 3}, {"seq": 3}):
            with pytest.raises(ArgumentError, match=r"sizes.*capture\(dynamic_shapes=True"):
                graph.replay(**sizes)


def test_a_graph_that_was_not_captured_replays_as_torch_says():
    with pytest.raises(RuntimeError):
        BridgedCUDAGraph().replay()


@pytest.mark.parametrize("fn", [doubled, reads_the_device])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_second_capture_needs_a_reset(device, dynamic, fn):
    options = {"model_fn": fn} | ({"dynamic_shapes": True, "buckets": [4]} if dynamic else {})
    x = torch.ones(3, device=device)
    graph = BridgedCUDAGraph()
    for _ in range(2):
        with graph.capture(**options):
            fn(x)
        for again in ({}, {"dynamic_shapes": True, "buckets": [4], "model_fn": doubled}):
            with pytest.raises(CaptureError, match="holds a capture"), graph.capture(**again):
                pass
        with pytest.raises(CaptureError, match="holds a capture"), region(graph):
            pass
        graph.reset()
        with pytest.raises(RuntimeError):
            graph.replay()
    with region(graph):
        y = x + 1
    graph.replay()
    assert y.tolist() == [2.0] * 3
    with pytest.raises(CaptureError, match="holds a capture"), graph.capture():
        pass


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_capture_inside_a_capture_is_refused(device, dynamic):
    options = {"dynamic_shapes": True, "buckets": [4], "model_fn": doubled} if dynamic else {}
    x = torch.ones(3, device=device)
    outer = BridgedCUDAGraph()
    with outer.capture():
        y = x + 1
        inner = BridgedCUDAGraph()
        with pytest.raises(CaptureError, match="already capturing"), inner.capture(**options):
            doubled(x)
        z = y + 1
    outer.replay()
    assert z.tolist() == [3.0] * 3 and works_afterwards(device)


# ---- what is left behind


def test_the_callers_profiler_hears_of_the_block_and_is_there_afterwards(device):
    heard = []

    def profiler(frame, event, arg):
        heard.append((frame.f_code.co_name, event))

    x, before = rows(device, 4), sys.getprofile()
    sys.setprofile(profiler)
    try:
        captured(doubled, x)
        with pytest.raises(ValueError), BridgedCUDAGraph().capture(model_fn=doubled):
            doubled(x)
            raise ValueError
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(before)
    assert ("doubled", "call") in heard and ("doubled", "return") in heard
    with cProfile.Profile() as profile:
        captured(doubled, x)
        times(3)(x)
    assert any("model_fn" in str(entry.code) for entry in profile.getstats())
    assert sys.getprofile() is before


@pytest.mark.long
def test_a_graph_that_goes_releases_its_graphs_and_its_model(device):
    class Model(nn.Module):
        def forward(self, x):
            return reads_the_device(x) if self.reads else x * 2

    x = torch.ones(3, device=device)
    for reads in (False, True):
        for options in ({}, {"dynamic_shapes": True, "buckets": [2, 4]}):
            for drop in (BridgedCUDAGraph.reset, lambda graph: None):
                model = Model()
                model.reads = reads
                gone = weakref.ref(model)
                graph = BridgedCUDAGraph()
                with graph.capture(model_fn=model, **options):
                    model(x)
                graph.replay()
                drop(graph)
                if drop is not BridgedCUDAGraph.reset:
                    del graph
                del model
                gc.collect()
                assert gone() is None, (reads, options)
    assert works_afterwards(device)


def test_enabled_torchs_own_name_is_the_same_class_and_captures_by_size(device):
    gfxgraph.enable()
    assert torch.cuda.CUDAGraph is BridgedCUDAGraph is gfxgraph.bridge.graph.BridgedCUDAGraph

    class Own(torch.cuda.CUDAGraph):
        def capture(self, x):
            with super().capture(dynamic_shapes=True, buckets=[4], model_fn=doubled):
                doubled(x)
            return self

    x = rows(device, 4)
    torch.testing.assert_close(Own().capture(x).replay(batch_size=3), x[:3] * 2)


@pytest.mark.parametrize(
    "code",
    sampled(
        [
            "from gfxgraph.bridge.graph import BridgedCUDAGraph",
            "from gfxgraph import BridgedCUDAGraph",
            "import gfxgraph, torch\ngfxgraph.enable()\nBridgedCUDAGraph = torch.cuda.CUDAGraph",
            "from hipgraph_bridge import BridgedCUDAGraph",
        ],
        4,
    ),
)
def test_the_class_captures_by_size_wherever_it_is_imported_from(code):
    code += """
import gfxgraph, torch
x = torch.ones(4, device=gfxgraph.device_type())
graph, f = BridgedCUDAGraph(), lambda x: x * 2
with graph.capture(dynamic_shapes=True, buckets=[4], model_fn=f):
    f(x)
print(graph.replay(batch_size=3).tolist())
"""
    assert printed(code) == "[2.0, 2.0, 2.0]"


def test_a_block_is_judged_by_made_inputs_not_by_its_static_input_of_zeros(device):
    x = torch.zeros(8, 6, device=device)

    def centred(x):
        return x - x.mean(0)

    graph, _ = captured(centred, x, buckets=[4, 8])
    x.copy_(torch.randn(8, 6, device=device))
    for size in (3, 8, 5):
        torch.testing.assert_close(graph.replay(batch_size=size), centred(x[:size]))
    assert any("rows influence each other" in why for why in gfxgraph.stats()["fallbacks"])
    graph, _ = captured(lambda x: x.sum(0), x, buckets=[4, 8], pad="zero", rows="independent")
    torch.testing.assert_close(graph.replay(batch_size=3), x[:3].sum(0))
