"""Numbers that are inputs of the graph: each value is that of eager execution, in one graph."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from torch import nn
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

import gfxgraph
from gfxgraph.errors import ArgumentError, CaptureError
from gfxgraph.record.as_numbers import AsNumbers


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls, self.last = nn.Linear(3, 3), 0, None

    def forward(self, x, scale=1.0, *, shift=0.0):
        return self.linear(x) * scale + shift


@pytest.fixture
def x(device):
    return torch.randn(4, 3, device=device)


def agree(graph, fn, *calls):
    """Each call gives what eager gives, to the last bit; afterwards the statistics."""
    for args, kwargs in calls:
        got, expected = graph(*args, **kwargs), fn(*args, **kwargs)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    return graph.stats()


@torch.no_grad()
def test_each_number_is_one_of_the_same_graph(device, x):
    model = Scaled().to(device).eval()
    graph = gfxgraph.graphed(model, inputs=["scale", "shift"])
    stats = agree(graph, model, *(((x, n * 0.3), {"shift": n * 0.7}) for n in range(8)))
    assert (stats.captures, stats.replays) == (1, 7)


def test_whole_numbers_and_others_are_two_kinds_as_are_calls_without_the_number(device, x):
    def scaled(x, scale=2):
        return x * scale

    graph = gfxgraph.graphed(scaled, inputs=["scale"])
    calls = [((x, n), {}) for n in (1, 2.5, 3, 4.5)] + [((x,), {}), ((x,), {})]
    stats = agree(graph, scaled, *calls)
    assert (stats.captures, stats.replays) == (3, 3)


def test_numbers_outside_of_64_bits_booleans_and_tensors_stay_what_they_are(device, x):
    seen = []

    def scaled(x, scale):
        seen.append(type(scale))
        return x * float(scale)

    graph = gfxgraph.graphed(lambda x, scale: scaled(x, scale), inputs=["scale"])
    for scale in (True, torch.tensor(3.0, device=device), 1 << 80):
        torch.testing.assert_close(graph(x, scale), x * float(scale))
    assert bool in seen and torch.Tensor in seen and int in seen


def test_what_is_decided_by_the_number_is_a_path(device, x):
    def decided(x, scale):
        return x * scale if scale > 2 else x - scale

    graph = gfxgraph.graphed(decided, inputs=["scale"])
    stats = agree(graph, decided, *(((x, float(n % 5)), {}) for n in range(15)))
    assert stats.replays >= 12 and not stats.fallbacks


def test_what_asks_for_the_number_itself_runs_eagerly_and_says_where(device, x):
    def filled(x, value):
        return torch.full_like(x, value)

    graph = gfxgraph.graphed(filled, inputs=["value"])
    stats = agree(graph, filled, *(((x, float(n)), {}) for n in range(14)))
    assert any("full_like" in reason for reason in stats.thrashing)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, s: (x, s),
        lambda x, s: torch.arange(3, device=x.device) * s,
        lambda x, s: x.clone() if isinstance(s, float) else x * 2,
        lambda x, s: x * len(str(s)),
        lambda x, s: x * math.floor(s),
        lambda x, s: {f"{s:.1f}": x},
    ],
    ids=["returned", "another dtype", "by its class", "as text", "rounded", "as a key"],
)
def test_what_a_tensor_changes_is_seen(device, x, fn):
    graph = gfxgraph.graphed(fn, inputs=["s"])
    agree(graph, fn, *(((x, n * 0.75), {}) for n in range(6)))


@pytest.mark.parametrize(
    ("dtype", "fn"),
    [
        (torch.float16, lambda x, s: x * s),
        (torch.bfloat16, lambda x, s: x + (1 - s)),
        (torch.float32, lambda x, s: x * (x.mean() * s)),
        (torch.float32, lambda x, s: x + torch.arange(3, device=x.device) * s),
        (torch.float32, lambda x, s: x + (x > 0) * s),
        (torch.float32, lambda x, s: x * (torch.as_tensor(s, device=x.device).view(1) + x.mean())),
    ],
    ids=["half", "bfloat16", "no dimensions", "whole numbers", "booleans", "with a dimension"],
)
def test_what_rounds_a_number_otherwise_runs_eagerly_also_where_one_example_agrees(
    device, dtype, fn
):
    graph = gfxgraph.graphed(fn, inputs=["s"])
    x = torch.randn(4, 3, device=device).to(dtype)
    agree(graph, fn, *(((x, s), {}) for s in (0.0, 0.0, 1.0, 0.1, 0.3)))
    (reason,) = graph.stats().fallbacks
    assert "inputs= makes a tensor" in reason and "test_inputs.py" in reason


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, s: x * torch.as_tensor(s, dtype=x.dtype, device=x.device),
        lambda x, s: (x.float() * s).to(x.dtype),
        lambda x, s: torch.where(x > 0, x.float(), s).clamp(max=2 * s - 0.5),
        lambda x, s: x.float().masked_fill(x > 1, s) / (1 + abs(s)),
    ],
    ids=["converted", "computed in float32", "where", "masked"],
)
def test_what_rounds_it_alike_is_a_graph(device, fn):
    graph = gfxgraph.graphed(fn, inputs=["s"])
    x = torch.randn(4, 3, device=device).to(torch.bfloat16)
    stats = agree(graph, fn, *(((x, n * 0.1), {}) for n in range(6)))
    assert (stats.captures, stats.replays) == (1, 5)


OTHERS = [
    (torch.ones((2,) * dim, dtype=torch.float32).to(dtype))
    for dim in (0, 1)
    for dtype in (
        *(torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16),
        *(torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
]


@pytest.mark.parametrize("number", [2.5, 3])
def test_a_tensor_passes_for_a_number_only_where_torch_gives_the_same_dtype(number):
    promote = functools.partial(
        elementwise_dtypes, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    )
    tensor = torch.tensor(number, dtype=torch.float64 if type(number) is float else torch.int64)
    for others in (*((one,) for one in OTHERS), *itertools.product(OTHERS, repeat=2)):
        if AsNumbers(id, [tensor]).differ(None, [*others, tensor], []):
            continue
        dtype = promote(*others, number)[1]
        assert promote(*others, tensor)[1] is dtype
        assert dtype not in (torch.float16, torch.bfloat16)


def test_numbers_that_it_writes_and_draws_with_are_those_of_eager(device, x):
    def step(x, into, scale):
        into.add_(x * scale)
        return x + torch.randn_like(x) * scale

    graph = gfxgraph.graphed(step, inputs=["scale"])
    one, other = torch.zeros_like(x), torch.zeros_like(x)
    for n in range(5):
        torch.manual_seed(n)
        got = graph(x, one, n * 0.3)
        torch.manual_seed(n)
        assert torch.equal(got, step(x, other, n * 0.3)) and torch.equal(one, other)
    assert graph.stats().replays == 4


def test_a_function_that_writes_and_rounds_otherwise_with_a_tensor_runs_eagerly(device, x):
    def step(into, scale):
        into.add_(torch.arange(3, device=into.device) * scale * 1e8 % 7)

    graph = gfxgraph.graphed(step, inputs=["scale"])
    one, other = torch.zeros(3, device=device), torch.zeros(3, device=device)
    for n in range(4):
        graph(one, n * 0.1)
        step(other, n * 0.1)
        assert torch.equal(one, other)


@torch.no_grad()
def test_methods_state_buckets_and_compiled_code(device, x):
    class Policy:
        steps, last = 0, None

        @gfxgraph.graphed(inputs=["gain"])
        def act(self, x, gain):
            self.steps += 1
            self.last = x * gain
            return x + gain

    policy = Policy()
    for n in range(5):
        assert torch.equal(policy.act(x, n * 0.5), x + n * 0.5)
        assert torch.equal(policy.last, x * (n * 0.5)) and policy.steps == n + 1
    assert policy.act.stats().replays >= 3
    assert torch.equal(Policy.act(policy, x, 9.0), x + 9.0)

    model = Scaled().to(device).eval()
    graph = gfxgraph.graphed(model, inputs=["scale"], buckets=[4, 8])
    for n in range(1, 8):
        rows = torch.randn(n, 3, device=device)
        torch.testing.assert_close(graph(rows, n * 0.5), model(rows, n * 0.5))
    assert graph.stats().captures <= 2 and graph.stats().replays >= 4

    compiled = gfxgraph.graphed(model, inputs=["scale"], compile={"backend": "eager"})
    stats = agree(compiled, model, *(((x, n * 0.5), {}) for n in range(5)))
    assert (stats.captures, stats.replays, stats.not_compiled) == (1, 4, {})


def test_other_devices_of_the_arguments_and_static_inputs(device, x):
    def scaled(batch, scale):
        return batch["x"] * scale

    graph = gfxgraph.graphed(scaled, inputs=["scale"])
    with pytest.raises(CaptureError):
        graph.static_inputs({"x": x}, 2.0)
    graph({"x": x}, 2.0)
    (batch, scale), _ = graph.static_inputs({"x": x}, 2.0)
    assert scale.shape == () and scale.device == batch["x"].device
    batch["x"].copy_(x)
    scale.fill_(5.0)
    assert torch.equal(graph(batch, scale), x * 5.0)
    assert graph.stats().captures == 1


def test_a_name_is_that_of_its_parameter_alone(device, x):
    def added(x, *rest, scale=1.0, **more):
        return x * scale + sum(rest) + more.get("shift", 0)

    graph = gfxgraph.graphed(added, inputs=["scale", "shift"])
    calls = [((x, 5), {"scale": n * 0.3, "shift": n * 0.7}) for n in range(4)]
    stats = agree(graph, added, *calls, ((x, 1, 2, 3), {}), ((x, 1, 2, 3), {"scale": 2.0}))
    assert stats.captures == 3 and stats.replays == 3 and not stats.fallbacks


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["q"], "no parameter is called 'q'. There are: x, scale, shift"),
        ("scale", "expected a list of names"),
        ([1], "expected a list of names"),
        (["a.b"], "names of parameters"),
    ],
)
def test_names_that_are_none_are_refused(inputs, message):
    with pytest.raises(ArgumentError, match=message):
        gfxgraph.graphed(Scaled(), inputs=inputs)


def test_a_function_whose_parameters_nobody_knows_is_refused():
    with pytest.raises(ArgumentError, match="not known"):
        gfxgraph.graphed(torch._C._nn.gelu, inputs=["x"])
