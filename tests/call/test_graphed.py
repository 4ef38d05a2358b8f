"""``graphed``: whatever it is called with, the result is what eager execution gives."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import gc
import pickle
import re
import types
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

import gfxgraph
from gfxgraph.device import current_device
from gfxgraph.errors import ArgumentError, CaptureError, DeadTensorError, VerificationError
from tests.helpers.devices import region
from tests.helpers.models import net
from tests.helpers.threads import on_threads
from tests.helpers.unseen import Unseen


def replayed(graph: Any, captures: int = 1, replays: int | None = None) -> bool:
    stats = graph.stats()
    return (
        stats.captures == captures
        and (replays is None or stats.replays == replays)
        and not stats.fallbacks
    )


def only_reason(graph: Any) -> str:
    (reason,) = graph.stats().fallbacks
    return str(reason)


# ---- what it gives


def test_a_module_is_captured_once_and_then_replayed(device):
    model = net(device)
    graph = gfxgraph.graphed(model)
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(4, 8, device=device)
            torch.testing.assert_close(graph(x), model(x))
    assert replayed(graph, captures=1, replays=4)


def test_python_does_not_run_again_on_a_replay(device):
    runs = Unseen()

    @gfxgraph.graphed
    def double(x):
        runs.value += 1
        return x * 2

    double(torch.ones(2, device=device))
    before = runs.value
    double(torch.ones(2, device=device))
    assert runs.value == before > 1


def test_each_shape_dtype_and_constant_has_a_graph_of_its_own(device):
    @gfxgraph.graphed
    def scale(x, factor, *, add=0.0):
        return x * factor + add

    cases = [
        (torch.randn(2, 3), 2, 0.0),
        (torch.randn(3, 2), 2, 0.0),
        (torch.randn(2, 3), 3, 0.0),
        (torch.randn(2, 3), 3.0, 0.0),
        (torch.randn(2, 3, dtype=torch.float64), 2, 0.0),
        (torch.randn(2, 3), 2, -0.0),
        (torch.randn(2, 3), 2, 1.5),
    ]
    for _ in range(3):
        for x, factor, add in cases:
            x = torch.randn_like(x).to(device)
            torch.testing.assert_close(scale(x, factor, add=add), x * factor + add)
    assert replayed(scale, captures=len(cases), replays=2 * len(cases))


def test_minus_zero_is_another_constant_than_zero(device):
    @gfxgraph.graphed
    def divide(x, by):
        return x / by

    one = torch.ones(1, device=device)
    for _ in range(2):
        assert divide(one, 0.0).item() == float("inf")
        assert divide(one, -0.0).item() == float("-inf")


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass
class Observation:
    image: torch.Tensor
    state: dict[str, torch.Tensor]
    scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class Action:
    chunk: torch.Tensor
    steps: int
    parts: tuple[torch.Tensor, ...]


def test_arguments_and_results_may_be_trees(device):
    @gfxgraph.graphed
    def act(observation, pair, *rest, mask=None, **options):
        chunk = observation.image.sum() + observation.state["q"] * observation.scale
        chunk = chunk + pair.first - pair.second + rest[0][0] + rest[0][1]["z"]
        if mask is not None:
            chunk = chunk.masked_fill(mask, options["fill"])
        return Action(chunk, steps=3, parts=(chunk * 2, observation.image))

    def arguments():
        t = functools.partial(torch.randn, 4, device=device)
        args = (Observation(t(), {"q": t(), "v": t()}, 2.0), Pair(t(), t()), [t(), {"z": t()}])
        return args, {"mask": torch.rand(4, device=device) > 0.5, "fill": -1.0}

    for _ in range(3):
        args, kwargs = arguments()
        got, expected = act(*args, **kwargs), act.__wrapped__(*args, **kwargs)
        assert type(got) is Action and got.steps == 3
        torch.testing.assert_close(got.chunk, expected.chunk)
        torch.testing.assert_close(got.parts, expected.parts)
    assert replayed(act, captures=1, replays=2)


@pytest.mark.parametrize("count", [1, 2, 40])
def test_any_number_of_tensors_of_several_dtypes_is_copied(device, count):
    graph = gfxgraph.graphed(lambda *xs: sum(x.sum().double() for x in xs))
    dtypes = [torch.float32, torch.float32, torch.float64, torch.int64]
    for mode in (torch.no_grad, torch.inference_mode, torch.no_grad, torch.inference_mode):
        with mode():
            xs = [
                torch.randint(9, (3,), device=device).to(dtypes[n % len(dtypes)])
                for n in range(count)
            ]
            assert float(graph(*xs)) == float(sum(x.sum().double() for x in xs))
    assert replayed(graph, captures=2, replays=2)


def test_results_keep_their_types(device):
    def everything(x):
        ordered = collections.OrderedDict(b=x, a=x + 1)
        return [x, (x * 2, None), {"k": Pair(x, x - 1)}, ordered, torch.max(x, dim=0), 7, "text"]

    graph = gfxgraph.graphed(everything)
    for _ in range(3):
        x = torch.randn(3, 2, device=device)
        got, expected = graph(x), everything(x)
        assert [type(part) for part in got] == [type(part) for part in expected]
        assert list(got[3]) == ["b", "a"] and got[5:] == [7, "text"] and got[1][1] is None
        torch.testing.assert_close(got[4].indices, expected[4].indices)
        torch.testing.assert_close(got[2]["k"].second, expected[2]["k"].second)
    assert replayed(graph)


def test_a_model_output_of_transformers_comes_back_as_one(device):
    outputs = pytest.importorskip("transformers.modeling_outputs")

    @gfxgraph.graphed
    def model(batch):
        hidden = batch["input_ids"].float() * 2
        return outputs.BaseModelOutput(last_hidden_state=hidden)

    for n in range(3):
        ids = torch.full((2, 3), n, device=device)
        got = model({"input_ids": ids})
        assert type(got) is outputs.BaseModelOutput and got.hidden_states is None
        assert got.last_hidden_state.flatten().tolist() == [2.0 * n] * 6
    assert replayed(model)


def test_owned_results_are_not_overwritten_by_later_calls(device):
    graph = gfxgraph.graphed(lambda x: x + 1)
    results = [graph(torch.full((2,), float(n), device=device)) for n in range(4)]
    assert [r[0].item() for r in results] == [1.0, 2.0, 3.0, 4.0]


def test_view_results_are_the_static_outputs_and_are_overwritten(device):
    graph = gfxgraph.graphed(lambda x: x + 1, outputs="view")
    graph(torch.zeros(2, device=device))
    one = graph(torch.ones(2, device=device))
    two = graph(torch.full((2,), 2.0, device=device))
    assert one.data_ptr() == two.data_ptr() and one.tolist() == [3.0, 3.0]


def test_a_result_that_lives_outside_is_handed_out_itself(device):
    cache = torch.zeros(4, device=device)

    @gfxgraph.graphed
    def write(x):
        cache.add_(x)
        return cache, x * 2

    for n in range(1, 4):
        got, _ = write(torch.ones(4, device=device))
        assert got.data_ptr() == cache.data_ptr() and cache.tolist() == [float(n)] * 4


# What a function returns beside ``x * weight``, of a weight, a view of it that was there before the
# call, and a dict that holds another.
ON_MEMORY_FROM_OUTSIDE = {
    "the weight": lambda w, view, held: w,
    "the weight, contiguous": lambda w, view, held: w.contiguous(),
    "a view": lambda w, view, held: view,
    "a view in a dict": lambda w, view, held: held["rows"],
    "data": lambda w, view, held: w.data,
    "detached": lambda w, view, held: w.detach(),
    "a slice": lambda w, view, held: w[1:],
    "a slice of a view": lambda w, view, held: view[1:],
    "one thing twice": lambda w, view, held: [w.data] * 2,
    "two things": lambda w, view, held: [w.data, w.data, view, w],
    "a parameter": lambda w, view, held: torch.nn.Parameter(w.data, requires_grad=False),
}


@pytest.mark.parametrize("outputs", ["own", "view"])
@pytest.mark.parametrize("what", ON_MEMORY_FROM_OUTSIDE.values(), ids=ON_MEMORY_FROM_OUTSIDE)
def test_what_was_there_before_a_call_is_returned_itself_and_all_else_made_anew(
    what, outputs, device
):
    weight = torch.arange(4.0, device=device)
    view, held = weight[:2], {"rows": weight.view(2, 2)}

    def function(x):
        return x * weight, what(weight, view, held)

    def returned(call):
        results = [call(torch.ones(4, device=device))[1] for _ in range(5)]
        found = pytree.tree_leaves(results)
        known = list(map(id, (weight, view, held["rows"], *found)))
        return [(known.index(id(t)), type(t), t.data_ptr(), t.tolist()) for t in found]

    graph = gfxgraph.graphed(function, outputs=outputs)
    assert returned(graph) == returned(function)
    is_made = "each call makes" in str(graph.stats().fallbacks)  # only a Parameter is not copied
    assert replayed(graph) or is_made


# ---- the arguments


def test_the_static_inputs_may_be_passed_and_are_then_not_copied(device):
    graph = gfxgraph.graphed(lambda x, y: x - y, outputs="view")
    x, y = torch.ones(3, device=device), torch.zeros(3, device=device)
    graph(x, y)
    (static_x, static_y), kwargs = graph.static_inputs(x, y)
    assert kwargs == {}
    static_x.fill_(5.0)
    assert graph(static_x, y).tolist() == [5.0] * 3
    static_y.fill_(2.0)
    assert graph(static_x, static_y).tolist() == [3.0] * 3
    assert graph(x, static_y).tolist() == [-1.0] * 3


def test_static_inputs_of_unknown_arguments_are_an_error(device):
    graph = gfxgraph.graphed(lambda x: x)
    with pytest.raises(CaptureError, match="call it once with them first"):
        graph.static_inputs(torch.ones(3, device=device))


def test_cpu_tensors_go_into_the_static_inputs(device):
    graph = gfxgraph.graphed(lambda x, i: x.to(device)[i.to(device)] * 2)
    for _ in range(3):
        x, i = torch.randn(5), torch.randint(5, (3,))
        torch.testing.assert_close(graph(x, i).cpu(), x[i] * 2)
    assert replayed(graph)


@pytest.mark.gpu
def test_a_pinned_tensor_may_be_overwritten_as_soon_as_the_call_returns():
    graph = gfxgraph.graphed(lambda x: x.to("cuda") * 2)
    pinned = torch.zeros(1 << 22).pin_memory()
    graph(pinned)
    for n in range(5):
        pinned.fill_(n)
        result = graph(pinned)
        pinned.fill_(-1)
        assert result.eq(2 * n).all()


def layouts(device: str) -> dict[str, torch.Tensor]:
    base = torch.randn(4, 6, device=device)
    return {
        "transposed": base.t(),
        "sliced": base[:, 1:4],
        "strided": base[::2],
        "expanded": base[:1].expand(4, 6),
        "zero-sized": base[:0],
        "scalar": base[0, 0],
        "channels last": torch.randn(2, 3, 4, 5, device=device).to(
            memory_format=torch.channels_last
        ),
        "conjugated": torch.randn(3, dtype=torch.complex64, device=device).conj(),
        "negated": torch.randn(3, dtype=torch.complex64, device=device).conj().imag,
    }


@pytest.mark.parametrize("name", layouts("cpu"))
def test_inputs_of_any_layout_give_what_eager_gives(device, name):
    graph = gfxgraph.graphed(lambda x: (x * 2 + 1, x.sum(), x.reshape(-1)))
    for _ in range(3):
        x = layouts(device)[name]
        torch.testing.assert_close(graph(x), (x * 2 + 1, x.sum(), x.reshape(-1)))
    assert replayed(graph, captures=1, replays=2)


def test_slices_of_buffers_of_any_size_share_one_graph(device):
    graph = gfxgraph.graphed(lambda x: x * 2)
    for width in (5, 6, 7, 8):
        x = torch.randn(3, width, device=device)[:, :4]
        torch.testing.assert_close(graph(x), x * 2)
    assert replayed(graph, captures=1, replays=3)


def test_the_same_tensor_twice_is_fine_when_nothing_writes_to_it(device):
    graph = gfxgraph.graphed(lambda x, y: x @ y)
    x = torch.randn(3, 3, device=device)
    for _ in range(2):
        torch.testing.assert_close(graph(x, x), x @ x)
        y = torch.randn(3, 3, device=device)
        torch.testing.assert_close(graph(x, y), x @ y)
    assert not graph.stats().fallbacks


def test_what_the_function_writes_to_its_arguments_reaches_the_caller(device):
    @gfxgraph.graphed
    def accumulate(total, x):
        total += x
        return total * 1

    for n in range(1, 4):
        total = torch.full((3,), 10.0 * n, device=device)
        result = accumulate(total, torch.ones(3, device=device))
        assert total.tolist() == result.tolist() == [10.0 * n + 1] * 3
    assert replayed(accumulate)


def test_arguments_that_share_memory_run_eagerly_when_written(device):
    @gfxgraph.graphed
    def shift(x, y):
        x += 1
        return x + y

    for _ in range(3):
        x, y = torch.zeros(2, device=device), torch.zeros(2, device=device)
        assert shift(x, y).tolist() == [1.0, 1.0]
        z = torch.zeros(2, device=device)
        assert shift(z, z).tolist() == [2.0, 2.0] and z.tolist() == [1.0, 1.0]
    assert "share memory" in only_reason(shift)


def test_inputs_that_require_grad_run_eagerly_while_autograd_records(device):
    graph = gfxgraph.graphed(lambda x: (x * 3).sum())
    x = torch.randn(3, device=device, requires_grad=True)
    for _ in range(2):
        (grad,) = torch.autograd.grad(graph(x), x)
        assert grad.tolist() == [3.0] * 3
    assert "requires grad" in only_reason(graph)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(graph(x), (x * 3).sum())
    assert graph.stats().replays == 1


def test_grad_mode_inference_mode_and_autocast_are_part_of_the_key(device):
    linear = nn.Linear(4, 4).to(device).requires_grad_(False)
    graph = gfxgraph.graphed(linear)
    x = torch.randn(2, 4, device=device)
    for _ in range(2):
        assert not graph(x).is_inference()
        with torch.no_grad():
            assert graph(x).dtype == torch.float32
            with torch.autocast(device, dtype=torch.bfloat16):
                assert graph(x).dtype == torch.bfloat16
            with torch.autocast(device, dtype=torch.float16):
                assert graph(x).dtype == torch.float16
        with torch.inference_mode():
            assert graph(x).is_inference()
    assert replayed(graph, captures=5, replays=5)


def _asks_for_the_mode(x, weight):
    return x * 2 + 100 if torch.is_inference_mode_enabled() else x * 2


def _asks_for_the_version(x, weight):
    y = x * 2
    return y * 3 if y.is_inference() else y + y._version


def _differentiates(x, weight):
    with torch.enable_grad():
        return (x * weight).detach()


def _or_error(fn, *args):
    try:
        y = fn(*args)
        return y.is_inference(), y.tolist()
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("outputs", ["own", "view"])
@pytest.mark.parametrize("fn", [_asks_for_the_mode, _asks_for_the_version, _differentiates])
@pytest.mark.parametrize("order", ["nNiI", "IiNn"])
def test_inference_tensors_outside_of_inference_mode_are_calls_of_another_kind(
    device, outputs, fn, order
):
    weight = nn.Parameter(torch.ones(2, device=device))
    graph = gfxgraph.graphed(lambda x: fn(x, weight), outputs=outputs)
    with torch.inference_mode():
        made_in = torch.ones(2, device=device)
    plain = torch.ones(2, device=device)
    for kind in order + order:
        with torch.inference_mode() if kind in "iI" else torch.no_grad():
            x = plain if kind in "ni" else made_in
            for _ in range(2):
                assert _or_error(graph, x) == _or_error(fn, x, weight)
    assert graph.stats().replays


def _in_place_by(weight):
    def write(y, *others):
        with torch.enable_grad():
            y.mul_(weight)
        return [other.requires_grad for other in (y, *others)]

    return write


@pytest.mark.parametrize(
    "parts",
    [
        lambda y: (y, y[0], y[1:]),
        lambda y: (y[1:], y),
        lambda y: (y, y.detach()),
        lambda y: (y.detach(), y),
        lambda y: (y, y.view(-1), y.mT),
        lambda y: y.chunk(2),
        lambda y: torch.unsafe_chunk(y, 2),
        lambda y: (y.mT, y.mT[0]),
        lambda y: (y[:, 0], y[:, 1]),
        lambda y: (y, y.real, y.conj()),
    ],
)
@pytest.mark.parametrize("use", ["detach_", "in place", "base", "memory"])
def test_what_a_result_is_a_view_of_is_the_result_that_it_was(device, parts, use):
    weight = torch.ones(2, 3, device=device, requires_grad=True)

    def used(result):
        if use == "detach_":
            return [one.detach_() is one for one in result]
        if use == "in place":
            return _in_place_by(weight[: result[0].shape[0]])(*result)
        if use == "base":
            bases = [next((n for n, b in enumerate(result) if b is t._base), None) for t in result]
            return [t._is_view() for t in result], bases
        result[0].fill_(5)
        return [t.tolist() for t in result]

    def outcome(fn):
        try:
            return used(fn(x))
        except RuntimeError as error:
            return str(error)

    def fn(x):
        return parts(x * 2)

    graph, x = gfxgraph.graphed(fn), torch.arange(6.0, device=device).view(2, 3)
    for _ in range(3):
        with torch.no_grad():
            assert outcome(graph) == outcome(fn)
    assert graph.stats().replays == 2


def test_autocast_is_part_of_the_key_where_all_arguments_are_on_the_host(device):
    weight = torch.randn(4, 4, device=device)
    graph = gfxgraph.graphed(lambda x: x.to(device) @ weight)
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            assert graph(x).dtype == torch.float32
            with torch.autocast(device, dtype=torch.bfloat16):
                assert graph(x).dtype == torch.bfloat16


def _switches(x, weight):
    with torch.inference_mode(False):
        normal = weight * 2
    with torch.inference_mode():
        made = x.sum(-1)
    return {"a": [normal, normal[1:], made, x * 3]}


def _views(x, weight):
    return {"a": [x.view(-1), x.view(x.shape)]}


@torch.inference_mode()
def _is_decorated(x, weight):
    return {"a": x * weight}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("of_argument", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("fn", [_switches, _views, _is_decorated])
@pytest.mark.parametrize("buckets", [None, [2, 4]])
def test_a_function_may_switch_inference_mode(device, fn, mode, of_argument, buckets):
    if fn is _views and buckets:
        pytest.skip("views of arguments of a padded call are copies in the mode of the caller")
    weight = torch.ones(2, device=device)
    graph = gfxgraph.graphed(lambda x: fn(x, weight), buckets=buckets)
    for size in (2, 3, 3, 3):
        with of_argument():
            x = torch.ones(size, 2, device=device)
        with mode():
            expected, got = fn(x, weight)["a"], graph(x)["a"]
        for one, other in zip(expected, got, strict=True):
            assert one.is_inference() is other.is_inference()
            assert torch.equal(one, other)
    assert graph.stats().replays


def test_the_training_flag_is_part_of_the_key(device):
    model = nn.Dropout(0.5).to(device)
    graph = gfxgraph.graphed(model)
    x = torch.ones(1000, device=device)
    for _ in range(2):
        assert graph(x).eq(0).any()
        model.eval()
        assert graph(x).eq(1).all()
        model.train()
    assert replayed(graph, captures=2, replays=2)


def test_a_function_without_arguments_reads_what_it_closes_over(device):
    source = torch.zeros(3, device=device)
    graph = gfxgraph.graphed(lambda: source * 2)
    for n in range(3):
        source.fill_(n)
        assert graph().tolist() == [2.0 * n] * 3
    assert replayed(graph)


# ---- state


def test_random_numbers_are_those_of_eager_under_the_same_seed(device):
    def noisy(x):
        return torch.nn.functional.dropout(x, 0.5) + torch.randn_like(x)

    graph = gfxgraph.graphed(noisy)
    x = torch.ones(64, device=device)
    torch.manual_seed(7)
    expected = [noisy(x) for _ in range(4)]
    torch.manual_seed(7)
    torch.testing.assert_close([graph(x) for _ in range(4)], expected)
    assert replayed(graph)


def test_capturing_undoes_what_warm_up_wrote(device):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("position", torch.zeros((), dtype=torch.long))
            self.register_buffer("cache", torch.zeros(8))

        def forward(self, x):
            self.cache.index_copy_(0, self.position.view(1), x)
            self.position.add_(1)
            return self.cache.sum()

    model = Counter().to(device)
    graph = gfxgraph.graphed(model)
    for n in range(1, 7):
        total = graph(torch.full((1,), float(n), device=device))
        assert int(model.position) == n and float(total) == n * (n + 1) / 2
    assert replayed(graph, replays=5)


def test_batch_norm_in_training_updates_its_statistics_once_a_call(device):
    torch.manual_seed(0)
    eager = nn.BatchNorm1d(4).to(device).requires_grad_(False)
    model = copy.deepcopy(eager)
    graph = gfxgraph.graphed(model)
    for _ in range(4):
        x = torch.randn(16, 4, device=device)
        torch.testing.assert_close(graph(x), eager(x))
        torch.testing.assert_close(model.running_var, eager.running_var)
        assert model.num_batches_tracked == eager.num_batches_tracked
    assert replayed(graph, replays=3)


def test_lazily_made_state_is_not_advanced_by_the_capture(device):
    class Lazy:
        cache = None

        def step(self, x):
            if self.cache is None:
                self.cache = torch.zeros_like(x)
            self.cache += x
            return self.cache * 1

    lazy = Lazy()
    graph = gfxgraph.graphed(lazy.step)
    for n in range(1, 5):
        assert graph(torch.ones(2, device=device)).tolist() == [float(n)] * 2
    assert replayed(graph, replays=3)


def test_state_that_is_another_number_in_each_call_runs_eagerly_and_is_named(device):
    class Walker:
        def __init__(self):
            self.position = 0
            self.hidden = torch.zeros(2, device=device)

        def step(self, x):
            self.position += 1
            self.hidden = self.hidden + x
            return self.hidden * self.position

    walker, twin = Walker(), Walker()
    graph = gfxgraph.graphed(walker.step)
    for _ in range(4):
        x = torch.randn(2, device=device)
        torch.testing.assert_close(graph(x), twin.step(x))
    assert walker.position == 4
    stats = graph.stats()
    assert stats.replays == 0
    assert [path.rpartition(".")[2] for path in stats.stored] == ["position", "hidden"]


@pytest.mark.parametrize("kind", [dict, types.SimpleNamespace])
def test_state_that_is_replaced_by_a_new_container_is_stored_there_however_often(device, kind):
    class Recurrent:
        def reset(self):
            self.state = kind(h=torch.zeros(2, device=device), n=0)

        def step(self, x):
            state = self.state if kind is dict else vars(self.state)
            state["h"] = state["h"] / 2 + x
            state["n"] += 1
            return state["h"] * 2

    model, twin = Recurrent(), Recurrent()
    graph = gfxgraph.graphed(model.step)
    for episode in range(10):
        model.reset(), twin.reset()
        first = model.state
        for _ in range(6):
            x = torch.randn(2, device=device)
            torch.testing.assert_close(graph(x), twin.step(x))
        assert model.state is first
        held, expected = (m.state if kind is dict else vars(m.state) for m in (model, twin))
        torch.testing.assert_close(held, expected)
        stats = graph.stats()
        assert (stats.captures, stats.recaptures) == (episode + 1, episode)
        assert stats.replays == 4 * (episode + 1) and not stats.fallbacks
    assert len(stats.stored) == 2 and list(stats.changed.values()) == [9]


def test_a_rebound_weight_leads_to_a_recapture(device):
    model = net(device)
    graph = gfxgraph.graphed(model)
    x = torch.randn(2, 8, device=device)
    with torch.no_grad():
        graph(x), graph(x)
        model[0].weight = nn.Parameter(torch.randn(16, 8, device=device))
        torch.testing.assert_close(graph(x), model(x))
        model[2].weight.data = torch.randn(8, 16, device=device)
        torch.testing.assert_close(graph(x), model(x))
        model.load_state_dict(net(device).state_dict())  # in place: the graph sees it
        torch.testing.assert_close(graph(x), model(x))
        model.load_state_dict(net(device).state_dict(), assign=True)
        torch.testing.assert_close(graph(x), model(x))
        model.double().float()
        torch.testing.assert_close(graph(x), model(x))
    assert graph.stats().recaptures == 4 and not graph.stats().fallbacks


def test_a_rebound_closure_variable_global_or_attribute_leads_to_a_recapture(device):
    weight = torch.ones(2, device=device)
    factor = 2.0

    @gfxgraph.graphed
    def scale(x):
        return x * weight * factor * GLOBAL["bias"]

    x = torch.ones(2, device=device)
    GLOBAL["bias"] = torch.ones(2, device=device)
    scale(x), scale(x)
    weight = torch.full((2,), 3.0, device=device)
    assert scale(x).tolist() == [6.0, 6.0]
    factor = 5.0
    assert scale(x).tolist() == [15.0, 15.0]
    GLOBAL["bias"] = torch.full((2,), 2.0, device=device)
    assert scale(x).tolist() == [30.0, 30.0]
    assert scale.stats().recaptures == 3


GLOBAL: dict[str, torch.Tensor] = {}


def test_a_number_on_the_object_that_changes_leads_to_a_recapture(device):
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_steps = 2

        @gfxgraph.graphed
        def sample(self, x):
            for _ in range(self.num_steps):
                x = x * 2
            return x

    policy = Policy()
    x = torch.ones(1, device=device)
    assert [policy.sample(x).item() for _ in range(2)] == [4.0, 4.0]
    policy.num_steps = 3
    assert [policy.sample(x).item() for _ in range(2)] == [8.0, 8.0]


def test_a_number_or_a_flag_of_a_submodule_that_changes_leads_to_a_recapture(device):
    model = nn.Sequential(nn.Dropout(0.5), nn.LeakyReLU(0.5)).to(device).eval()
    graph = gfxgraph.graphed(model)
    x = -torch.ones(100, device=device)
    assert [graph(x).sum().item() for _ in range(2)] == [-50.0, -50.0]
    model[1].negative_slope = 0.25
    assert [graph(x).sum().item() for _ in range(2)] == [-25.0, -25.0]
    model[0].train()
    assert graph(x).eq(0).any() and graph(x).eq(0).any()
    model[0].eval()
    assert [graph(x).sum().item() for _ in range(2)] == [-25.0, -25.0]


def test_a_tensor_whose_memory_was_freed_is_an_error(device):
    weight = torch.ones(1000, device=device)
    graph = gfxgraph.graphed(lambda x: x * weight)
    x = torch.ones(1000, device=device)
    graph(x), graph(x)
    weight.untyped_storage().resize_(0)
    with pytest.raises(DeadTensorError, match="weight"):
        graph(x)


def test_weights_outlive_the_name_they_were_reached_by(device):
    weights = [torch.full((1000,), 2.0, device=device)]

    def make():
        weight = weights[0] * 1
        return gfxgraph.graphed(lambda x: x * weight.detach())

    graph = make()
    x = torch.ones(1000, device=device)
    for _ in range(3):
        assert graph(x).sum().item() == 2000.0
        gc.collect()
        torch.zeros(1000, device=device)
    assert replayed(graph)


# ---- methods and instances


class Policy(nn.Module):
    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.factor = factor

    @gfxgraph.graphed
    def sample_actions(self, x):
        """Draw actions."""
        return self.linear(x) * self.factor

    @gfxgraph.graphed(outputs="view", max_graphs=2)
    def other(self, x):
        return x + self.factor


def test_each_instance_has_its_own_graphs(device):
    one, two = Policy(1.0).to(device), Policy(2.0).to(device)
    x = torch.randn(2, 4, device=device)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(one.sample_actions(x), one.linear(x))
            torch.testing.assert_close(two.sample_actions(x), two.linear(x) * 2)
        one.other(x)
    assert one.sample_actions.stats().replays == two.sample_actions.stats().replays == 2
    assert one.other.stats().captures == 1 and two.other.stats().captures == 0
    assert one.sample_actions.__doc__ == Policy.sample_actions.__doc__ == "Draw actions."


def test_graphs_are_released_with_their_instance(device):
    policy = Policy().to(device)
    policy.me = [policy]  # a cycle through the object itself, as trainers make them
    with torch.no_grad():
        policy.sample_actions(torch.ones(2, 4, device=device))
        policy.sample_actions(torch.ones(2, 4, device=device))
    weight = weakref.ref(policy.linear.weight)
    instance = weakref.ref(policy)
    del policy
    gc.collect()
    assert instance() is None and weight() is None


def test_without_a_cycle_they_are_released_at_once(device):
    policy = Policy().to(device)
    with torch.no_grad():
        policy.sample_actions(torch.ones(2, 4, device=device))
    gc.collect()
    gc.disable()
    try:
        weight = weakref.ref(policy.linear.weight)
        del policy
        assert weight() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_copies_and_pickles_have_no_graphs_and_work(device, duplicate):
    policy = Policy().to(device)
    x = torch.randn(2, 4, device=device)
    with torch.no_grad():
        policy.sample_actions(x), policy.sample_actions(x)
        twin = duplicate(policy)
        twin.factor = 5.0
        assert twin.sample_actions.stats().captures == 0
        for _ in range(2):
            torch.testing.assert_close(twin.sample_actions(x), twin.linear(x) * 5)
            torch.testing.assert_close(policy.sample_actions(x), policy.linear(x) * 2)
    assert policy.sample_actions.stats().captures == 1


def test_a_graphed_module_can_be_copied_and_forwards_attributes(device):
    graph = gfxgraph.graphed(net(device))
    with torch.no_grad():
        graph(torch.ones(1, 8, device=device))
    assert graph.training is False and len(list(graph.parameters())) == 4
    for twin in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert twin.stats().captures == 0
        mine, theirs = next(graph.parameters()), next(twin.parameters())
        assert mine.data_ptr() != theirs.data_ptr() and mine.equal(theirs)


def test_an_attribute_of_a_graphed_module_can_be_deleted(device):
    module = net(device)
    graph = gfxgraph.graphed(module)
    graph.scale = 2.0
    assert module.scale == 2.0
    del graph.scale
    assert not hasattr(module, "scale") and not hasattr(graph, "scale")
    with pytest.raises(AttributeError):
        del graph.scale
    function = gfxgraph.graphed(lambda x: x)
    function.note = 1
    del function.note
    assert not hasattr(function, "note")


def test_a_module_whose_forward_is_graphed_stays_registered(device):
    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net(device)
            self.net.forward = gfxgraph.graphed(self.net.forward)

        def forward(self, x):
            return self.net(x)

    outer, x = Outer(), torch.ones(1, 8, device=device)
    assert len(list(outer.parameters())) == 4
    with torch.no_grad():
        for _ in range(3):
            outer(x)
    assert outer.net.forward.stats().replays == 2


def test_instances_without_a_dict_are_refused_with_the_remedy(device):
    class Slotted:
        __slots__ = ()

        @gfxgraph.graphed
        def step(self, x):
            return x

    with pytest.raises(ArgumentError, match="__slots__"):
        Slotted().step(torch.ones(1, device=device))


# ---- bounds, threads


def test_the_least_recently_used_graph_is_released(device):
    graph = gfxgraph.graphed(lambda x: x + 1, max_graphs=2)
    for size in (1, 2, 1, 3, 1, 2):
        assert graph(torch.zeros(size, device=device)).tolist() == [1.0] * size
    stats = graph.stats()
    assert stats.captures == 4 and stats.evictions == 2 and stats.replays == 2
    assert [row.key for row in stats.graphs] == ["float32[1]", "float32[2]"]


def test_reset_releases_everything_and_starts_anew(device):
    graph = gfxgraph.graphed(lambda x: x + 1)
    x = torch.zeros(3, device=device)
    graph(x), graph(x)
    graph.reset()
    assert graph.stats() == gfxgraph.graphed(lambda x: x).stats()
    graph(x), graph(x)
    assert replayed(graph, captures=1, replays=1)


def test_stats_tell_of_each_graph(device):
    graph = gfxgraph.graphed(lambda x, k: x * k)
    for _ in range(3):
        graph(torch.ones(4, 8, device=device), 2)
    (row,) = graph.stats().graphs
    assert row.key == "float32[4,8], 2" and row.input_bytes == 128 and row.replays == 2
    assert row.pool_bytes > 0
    assert gfxgraph.stats()["replay_count"] == 2
    assert gfxgraph.stats()["capture_count"] == 1


def test_many_threads_get_their_own_results(device):
    model = net(device)
    graph = gfxgraph.graphed(model, max_graphs=3)
    wrong: list[str] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for n in range(40):
                x = torch.randn(1 + (n * seed) % 5, 8, generator=generator).to(device)
                if not torch.allclose(graph(x), model(x), atol=1e-4):
                    wrong.append(f"thread {seed} call {n}")

    on_threads(work, range(1, 7))
    stats = graph.stats()
    assert not wrong and set(stats.fallbacks) <= set(stats.thrashing)
    assert stats.replays + stats.eager_calls == 240


# ---- what cannot be a graph


def refuse_print(x):
    print("step", x.shape)
    return x * 2


def refuse_item(x):
    return x * float(x.sum().item())


def refuse_nonzero(x):
    return x[x > 0]


UNGRAPHABLE = {
    "prints": (refuse_print, "prints"),
    "reads the device": (refuse_item, "the host reads a value from the device"),
    "shape depends on data": (refuse_nonzero, "the shape of a result depends on data"),
    "returns an object": (lambda x: (x, torch.nn.Identity()), "cannot make anew"),
    "returns a NumPy array": (lambda x: x.cpu().numpy() * 2, "numpy.ndarray"),
    "returns a number that changes": (lambda x: (x, _TICK.tick()), "plain values change"),
}


class _Tick:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0

    def tick(self):
        self.n += 1
        return self.n


_TICK = _Tick()


@pytest.mark.parametrize("name", UNGRAPHABLE)
def test_what_cannot_be_a_graph_runs_eagerly_and_says_why(device, name):
    function, reason = UNGRAPHABLE[name]
    graph = gfxgraph.graphed(function, branching="off")
    for _ in range(3):
        x = torch.arange(4.0, device=device) - 1
        got, expected = graph(x), function(x)
        if isinstance(expected, tuple):
            got, expected = got[0], expected[0]
        assert np.array_equal(torch.as_tensor(got).cpu(), torch.as_tensor(expected).cpu())
    assert reason in only_reason(graph)
    assert graph.stats().fallbacks[only_reason(graph)] == 3
    assert gfxgraph.stats()["fallback_count"] == 3
    # ... and the device is as it was
    assert torch.randn(3, device=device).isfinite().all()


@pytest.mark.parametrize("name", UNGRAPHABLE)
def test_with_fallback_raise_the_reason_is_an_error(device, name):
    function, reason = UNGRAPHABLE[name]
    graph = gfxgraph.graphed(function, fallback="raise", branching="off")
    for _ in range(2):
        with pytest.raises(CaptureError, match=reason):
            graph(torch.arange(4.0, device=device))


def test_an_error_of_the_function_reaches_the_caller_unchanged(device):
    graph = gfxgraph.graphed(lambda x: x.reshape(7))
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        graph(torch.zeros(3, device=device))
    assert graph(torch.zeros(7, device=device)).shape == (7,)


def test_an_error_in_the_middle_of_the_capture_falls_back(device):
    class Moody:
        calls = 0

        def __call__(self, x):
            if _busy_capturing():
                raise KeyError("only while capturing")
            return x * 2

    graph = gfxgraph.graphed(Moody())
    for _ in range(2):
        assert graph(torch.ones(2, device=device)).tolist() == [2.0, 2.0]
    assert "KeyError" in only_reason(graph)


def _busy_capturing() -> bool:
    return current_device().is_capturing()


def test_a_keyboard_interrupt_in_the_capture_is_not_swallowed_and_leaves_nothing(device):
    def interrupted(x):
        if _busy_capturing():
            raise KeyboardInterrupt
        return x + torch.rand_like(x)

    graph = gfxgraph.graphed(interrupted)
    with pytest.raises(KeyboardInterrupt):
        graph(torch.zeros(2, device=device))
    assert not _busy_capturing()
    later = gfxgraph.graphed(lambda x: x + torch.rand_like(x))
    later(torch.zeros(2, device=device)), later(torch.zeros(2, device=device))
    assert replayed(later)


def test_a_capture_that_disagrees_with_eager_is_not_used(device):
    def two_faced(x):
        return x * (3 if _busy_capturing() else 2)

    graph = gfxgraph.graphed(two_faced)
    for _ in range(3):
        assert graph(torch.ones(2, device=device)).tolist() == [2.0, 2.0]
    assert re.search("second run differs from first|differs from eager", only_reason(graph))
    assert gfxgraph.stats()["validation_failures"] == 1
    with pytest.raises(VerificationError, match="largest error 1"):
        gfxgraph.graphed(two_faced, fallback="raise")(torch.ones(2, device=device))
    trusting = gfxgraph.graphed(two_faced, verify=False)
    lenient = gfxgraph.graphed(two_faced, verify=2.0)
    for graph in (trusting, lenient):
        graph(torch.ones(2, device=device))
        assert graph(torch.ones(2, device=device)).tolist() == [3.0, 3.0]


class Tagged(torch.Tensor):
    pass


ODD_ARGUMENTS = {
    "a tensor subclass": (lambda d: torch.ones(2, device=d).as_subclass(Tagged), "subclass"),
    "a NumPy array": (lambda d: np.ones(2), "give its data as a tensor"),
    "a sparse tensor": (lambda d: torch.eye(2, device=d).to_sparse(), "layout"),
    "a set": (lambda d: {1, 2}, "give its data as a tensor"),
}


@pytest.mark.parametrize("name", ODD_ARGUMENTS)
def test_arguments_that_no_graph_can_take_run_eagerly(device, name):
    make, reason = ODD_ARGUMENTS[name]
    seen = []
    graph = gfxgraph.graphed(lambda odd, x: seen.append(odd) or x * 2)
    odd = make(device)
    for _ in range(2):
        assert graph(odd, torch.ones(2, device=device)).tolist() == [2.0, 2.0]
    assert seen[-1] is odd and reason in only_reason(graph)


def test_a_meta_tensor_runs_eagerly(device):
    graph = gfxgraph.graphed(lambda x: x * 2)
    assert graph(torch.ones(2, 3, device="meta")).shape == (2, 3)
    assert "meta" in only_reason(graph)


@pytest.mark.gpu
def test_a_call_with_only_cpu_tensors_runs_eagerly_on_a_machine_with_a_gpu():
    graph = gfxgraph.graphed(lambda x: x * 2)
    for _ in range(2):
        assert graph(torch.ones(2)).tolist() == [2.0, 2.0]
    assert "is on cuda" in only_reason(graph)


def test_a_call_inside_another_capture_becomes_part_of_it(device):
    inner = gfxgraph.graphed(lambda x: x * 2)
    x = torch.ones(2, device=device)
    inner(x), inner(x)
    graph = gfxgraph.BridgedCUDAGraph()
    with region(graph):
        result = inner(x) + 1
    x.fill_(5.0)
    graph.replay()
    assert result.tolist() == [11.0, 11.0]
    assert "another graph is captured" in only_reason(inner)


def test_a_graphed_function_inside_another_is_part_of_its_graph(device):
    inner = gfxgraph.graphed(lambda x: x * 2)
    outer = gfxgraph.graphed(lambda x: inner(x) + 1)
    for n in range(3):
        assert outer(torch.full((2,), float(n), device=device)).tolist() == [2.0 * n + 1] * 2
    assert replayed(outer) and inner.stats().captures == 0 and not inner.stats().fallbacks


def test_a_dispatch_mode_of_the_caller_sees_the_operations(device):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Interceptor(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    graph = gfxgraph.graphed(lambda x: x * 2)
    x = torch.ones(2, device=device)
    graph(x), graph(x)
    with Interceptor():
        graph(x)
    assert torch.ops.aten.mul.Tensor in seen and "TorchDispatchMode" in only_reason(graph)


def test_vmap_over_a_graphed_function_runs_eagerly(device):
    graph = gfxgraph.graphed(lambda x: x * 2)
    x = torch.ones(3, 2, device=device)
    assert torch.func.vmap(graph)(x).tolist() == [[2.0, 2.0]] * 3
    assert "torch.func" in only_reason(graph)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda: gfxgraph.graphed(3), "not int"),
        (lambda: gfxgraph.graphed(nn.Linear), "not torch.nn.modules.linear.Linear"),
        (lambda: gfxgraph.graphed(warmup=0)(len), "warmup=0"),
        (lambda: gfxgraph.graphed(len, outputs="copy"), "expected 'own' or 'view'"),
        (lambda: gfxgraph.graphed(len, verify=-1.0), "tolerance"),
        (lambda: gfxgraph.graphed(len, verify="yes"), "tolerance"),
        (lambda: gfxgraph.graphed(len, fallback="no"), "expected 'eager' or 'raise'"),
        (lambda: gfxgraph.graphed(len, max_graphs=True), "max_graphs=True"),
        (lambda: gfxgraph.graphed(lambda: (yield)), "generator"),
    ],
)
def test_bad_options_are_refused(what, message):
    with pytest.raises(ArgumentError, match=message):
        what()


# ---- any function


OPERATIONS = [
    lambda x: x + 1,
    lambda x: x.t().contiguous().t() if x.dim() == 2 else x,
    lambda x: x.relu(),
    lambda x: x.mul_(0.5),
    lambda x: torch.cat([x, x], 0)[: x.shape[0]],
    lambda x: x.softmax(-1),
    lambda x: x.sum(-1, keepdim=True) + x,
    lambda x: x.view(-1).flip(0).view(x.shape) if x.is_contiguous() else x,
    lambda x: torch.where(x > 0, x, -x),
    lambda x: x.clone().index_fill_(0, torch.zeros_like(x[:1, 0]).long(), 2.0),
]


@settings(max_examples=25, deadline=None)
@given(
    picks=st.lists(st.integers(0, len(OPERATIONS) - 1), min_size=1, max_size=6),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_any_chain_of_operations_replays_as_eager_runs(picks, shape):
    device = gfxgraph.device_type()

    def chain(x):
        for pick in picks:
            x = OPERATIONS[pick](x)
        return x

    graph = gfxgraph.graphed(chain, fallback="raise")
    for _ in range(3):
        x = torch.randn(shape, device=device)
        mine, theirs = x.clone(), x.clone()
        torch.testing.assert_close(graph(mine), chain(theirs))
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@torch.inference_mode()
def test_recurrent_layers_run_the_operators_of_eager_execution(device, kind):
    model = kind(8, 16, batch_first=True).to(device).eval()
    graph = gfxgraph.graphed(model, fallback="raise")
    for _ in range(3):
        x = torch.randn(2, 5, 8, device=device)
        torch.testing.assert_close(graph(x), model(x))
    assert graph.stats().replays == 2


LAID = {
    "contiguous": lambda x: x.clone(),
    "transposed": lambda x: x.t().contiguous().t(),
    "a_slice": lambda x: torch.cat([x, x], 1)[:, 4:].roll(2, 1)[:, :4],
    "behind_others": lambda x: torch.cat([x, x])[4:],
    "expanded": lambda x: x[:1].expand(4, 4),
    "on_the_host": lambda x: x.cpu(),
    "pinned": lambda x: x.cpu().pin_memory() if x.is_cuda else x,
    "requires_grad": lambda x: x.clone().requires_grad_(),
    "inference": torch.inference_mode()(lambda x: x.clone()),
}


@pytest.mark.parametrize("first", LAID)
@torch.no_grad()
def test_an_argument_arrives_in_a_replay_however_it_lies_in_memory(device, first):
    graph = gfxgraph.graphed(lambda x: x.to(device) * 2)
    for lay in (LAID[first], *LAID.values()):
        for _ in range(2):
            x = lay(torch.randn(4, 4, device=device))
            assert torch.equal(graph(x), x.to(device) * 2)


@torch.no_grad()
def test_a_replay_follows_what_its_stream_and_its_thread_did(device):
    graph, kind = gfxgraph.graphed(lambda x: x.cumsum(0)), current_device()
    graph(torch.ones(1 << 20, device=device))

    def call(n: int) -> None:
        for _ in range(20):
            with torch.no_grad(), kind.on_stream(kind.new_stream(0), 0):
                x = torch.ones(1 << 20, device=device)
                for _ in range(n):
                    x = x + 1
                assert graph(x)[0] == n + 1

    on_threads(call, range(4))


@pytest.mark.gpu
@torch.no_grad()
def test_state_that_lies_on_the_host_stays_there(device):
    class Kept:
        steps = torch.zeros(2)

        def __call__(self, x):
            if self.steps.device.type != "cpu":
                raise AssertionError(self.steps.device)
            self.steps = self.steps + 1
            return x + self.steps.to(x.device)

    eager, graph = Kept(), gfxgraph.graphed(Kept())
    x = torch.zeros(2, device=device)
    assert all(torch.equal(eager(x), graph(x)) for _ in range(6))
    assert any("on cpu" in reason for reason in graph.stats().fallbacks)


@torch.no_grad()
def test_an_array_that_was_there_before_is_returned_itself(device):
    """Who writes to the result writes to what the function knows."""
    array = np.zeros(2)
    graph = gfxgraph.graphed(lambda x: (x * 2, array))
    for n in range(4):
        graph(torch.ones(2, device=device))[1][:] = n
        assert array.tolist() == [n, n]
    assert "numpy.ndarray" in str(graph.stats().fallbacks)


def test_an_array_in_a_result_does_not_count_among_what_comes_twice(device):
    def fn(x):
        parts = [x + 1]
        return np.arange(3.0), parts, parts

    graph = gfxgraph.graphed(fn)
    for n in range(4):
        array, first, second = graph(torch.full((2,), float(n), device=device))
        assert array.tolist() == [0.0, 1.0, 2.0] and first is second
        assert first[0].tolist() == [n + 1.0] * 2
    assert graph.stats().replays == 3
