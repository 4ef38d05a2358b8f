"""``graphed(inputs=["scale"])``: one graph for all values of a number, to the bit."""

from __future__ import annotations

import functools
import json
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.torch_version import TorchVersion

import gfxgraph
from gfxgraph.errors import ArgumentError
from tests.helpers.sampled import sampled

pytestmark = pytest.mark.usefixtures("device")

DEVICE = gfxgraph.device_type()
VALUES = (0.3, 0.7, 1.9, 2.3, -1.1, 5.0, 1.234567, 0.1, -0.0, 1e-3)
STEPS = (3, 7, 1, 40, -2, 0, 1000, 12)

BOTH: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, s: x + s,
    "reflected add": lambda x, s: s + x,
    "sub": lambda x, s: x - s,
    "reflected sub": lambda x, s: s - x,
    "mul": lambda x, s: x * s,
    "reflected mul": lambda x, s: s * x,
    "div": lambda x, s: x / (s + 0.5),
    "reflected div": lambda x, s: s / x,
    "torch.mul": lambda x, s: torch.mul(x, s),
    "torch.mul, the number first": lambda x, s: torch.mul(s, x),
    "torch.sub": lambda x, s: torch.sub(x, s),
    "in place": lambda x, s: x.clone().mul_(s).add_(s).sub_(s),
    "greater": lambda x, s: x > s,
    "less": lambda x, s: torch.lt(x, s),
    "reflected less": lambda x, s: s < x,
    "equal": lambda x, s: x == s,
    "integers": lambda x, s: (x * 4).long() * s,
    "whole comparison": lambda x, s: (x * 4).long() <= s,
    "booleans": lambda x, s: (x > 0) + s,
    "two numbers": lambda x, s: x * (2 * s + 1 - s * 0.1),
    "quotients": lambda x, s: x * (s / 3) + (1.0 / (s + 0.25)) * x,
    "sign": lambda x, s: x * -s + abs(s),
    "keyword": lambda x, s: torch.add(input=x, other=s),
    "tensor": lambda x, s: x * torch.tensor(s, device=x.device, dtype=x.dtype),
    "list of numbers": lambda x, s: x * torch.tensor([s, 1.0, 2], device=x.device)[0],
    "without dimensions": lambda x, s: x[0, 0] * s + x,
    "branch": lambda x, s: x * 2 if s > 0.5 else x + s,
    "truth": lambda x, s: x * (2 if s else 3) + (s or 4.0),
    "not": lambda x, s: x * 2 if not s else x + s,
    "min and max": lambda x, s: x * min(max(s, 0.2), 1.5),
}
FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "where, a method": lambda x, s: x.where(x > 0, s),
    "where of booleans": lambda x, s: (x > 0).where(x > 1, s),
    "where": lambda x, s: torch.where(x > 0, x, s),
    "where first": lambda x, s: torch.where(x > 0, s, x),
    "masked_fill": lambda x, s: x.masked_fill(x > 0, s),
    "full": lambda x, s: torch.full((2, 3), s, device=x.device) + x[:2, :1],
    "full, with keywords": lambda x, s: (
        torch.full(size=(2,), fill_value=s, device=x.device) + x[0, :1]
    ),
    "full_like, with keywords": lambda x, s: torch.full_like(x, fill_value=s),
    "full_like": lambda x, s: torch.full_like(x, s),
    "new_full": lambda x, s: x.new_full((2,), s),
    "item": lambda x, s: operator.setitem(y := x.clone(), (slice(None), 0), s) or y,
    "softmax": lambda x, s: torch.softmax(x / (abs(s) + 0.01), -1),
    "isinstance": lambda x, s: x * (s if isinstance(s, float) else 100),
}
READ: dict[str, Callable[[Any, Any], Any]] = {
    "alpha": lambda x, s: torch.add(x, x, alpha=s),
    "power": lambda x, s: x * 2.0**s,
    "power of a tensor": lambda x, s: x.abs() ** s,
    "math": lambda x, s: x * math.exp(s),
    "text": lambda x, s: x * len(f"{s}"),
    "round": lambda x, s: x * round(s, 1),
    "method": lambda x, s: x * (2 if float(s).is_integer() else 3),
    "dict": lambda x, s: x * {0.3: 2.0}.get(s, 3.0),
    "clamp": lambda x, s: (x * 0).clamp(min=s),
    "a sum of numbers": lambda x, s: x.double() * sum([s, 0.1, 0.2, 0.7]),
    "type": lambda x, s: x * s if type(s) is float else x * abs(s),
    "whole power": lambda x, s: x * (round(s * 10) ** 2.0 + 2.0 ** round(s)),
    "divmod": lambda x, s: x * sum(divmod(s, 0.3)) + 7 % (abs(s) + 1),
    "a set": lambda x, s: x * (2 if s in {0.3, 1.9} else 3),
    "lerp": lambda x, s: torch.lerp(x, x + 1, s),
    "half": lambda x, s: x.half() > s * 1e9,
}
ALL = BOTH | FLOATS | READ
# Functions that look at an index while they find out what they were given.
SIZES: dict[str, Callable[[Any, Any], Any]] = {
    "flip": lambda x, n: x.flip(n - 1),
    "reshape": lambda x, n: x.reshape(n, -1),
    "split": lambda x, n: x.split(n)[0],
    "pad": lambda x, n: nn.functional.pad(x, (n, 0)),
    "topk": lambda x, n: x.topk(n).values,
    "repeat": lambda x, n: x.repeat(n, 1),
    "narrow": lambda x, n: x.narrow(0, n, 1),
    "item": lambda x, n: x[n],
    "slice": lambda x, n: x[:n],
    "broadcast": lambda x, n: x[None].broadcast_to(n, 4, 3),
    "arange": lambda x, n: x[:1] + torch.arange(n, device=x.device)[:1],
    "complex": lambda x, n: x * complex(n, 1),
}


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    """To the bit, but for which NaN it is."""
    return (got.dtype, got.shape) == (want.dtype, want.shape) and bool(
        torch.all((got == want) | ((got != got) & (want != want)))
    )


def agree(fn: Callable[..., Any], values: tuple[Any, ...], dtype: torch.dtype) -> Any:
    """Call with each value, twice round; gives the statistics."""
    graph = gfxgraph.graphed(fn, inputs=["s"])
    for n, value in enumerate(values + values):
        x = torch.linspace(-2, 3, 12, device=DEVICE).reshape(4, 3).add(n / 7).to(dtype)
        assert same(graph(x, value), fn(x, value)), (n, value)
    return graph.stats()


def named(fn: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def scaled(x: torch.Tensor, s: float) -> torch.Tensor:
        return fn(x, s)

    return scaled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", sampled(BOTH | FLOATS, 3, of_long=5))
def test_one_graph_computes_what_eager_does_for_each_value(name, dtype):
    stats = agree(named(ALL[name]), VALUES, dtype)
    if name == "new_full" and torch.__version__ < TorchVersion("2.9"):
        assert ["new_full() of torch 2.8" in reason for reason in stats.fallbacks] == [True]
        return
    assert len(stats.graphs) == 1
    assert stats.replays > len(VALUES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", sampled(BOTH, 2))
def test_whole_numbers_as_well(name, dtype):
    stats = agree(named(BOTH[name]), STEPS, dtype)
    assert stats.replays > len(STEPS) / 2


@pytest.mark.parametrize("name", READ)
def test_a_value_that_python_needs_is_read(name):
    stats = agree(named(READ[name]), VALUES[:3], torch.float32)
    assert stats.replays or stats.fallbacks


@pytest.mark.parametrize("name", SIZES)
def test_a_number_that_is_a_size_or_an_index_is_read_and_branches(name):
    def fn(x: torch.Tensor, s: int) -> torch.Tensor:
        return SIZES[name](x, s) * 2

    graph = gfxgraph.graphed(fn, inputs=["s"])
    for value in (1, 2, 1, 2):
        x = torch.randn(4, 3, device=DEVICE)
        assert same(graph(x, value), fn(x, value))
    assert graph.stats().replays == 2, graph.stats().refused


@pytest.mark.parametrize(
    "compute",
    [torch.roll, torch.sum, lambda x, n: x.new_zeros(n, 2), lambda x, n: x[None].expand(n, -1, -1)],
)
def test_a_function_that_takes_a_list_or_a_plain_number_is_named_by_its_line(compute):
    def fn(x: torch.Tensor, s: int) -> torch.Tensor:
        return compute(x, s)

    graph = gfxgraph.graphed(fn, inputs=["s"])
    x = torch.randn(4, 3, device=DEVICE)
    assert torch.equal(graph(x, 1), fn(x, 1))
    (reason,) = graph.stats().refused.values()
    assert "takes plain numbers alone" in reason and "number_inputs.py:" in reason


@pytest.mark.parametrize("name", ALL)
def test_what_raises_for_a_number_raises(name):
    def fn(x: torch.Tensor, s: float) -> torch.Tensor:
        return ALL[name](x, s).reshape(-1) / torch.ones(5, device=x.device)

    graph = gfxgraph.graphed(fn, inputs=["s"])
    for value in VALUES[:2]:
        with pytest.raises(RuntimeError):
            graph(torch.ones(4, 3, device=DEVICE), value)


def test_a_division_by_zero_raises_as_in_python():
    graph = gfxgraph.graphed(lambda x, s: x * (1 / s), inputs=["s"])
    x = torch.ones(3, device=DEVICE)
    for value in (2.0, 4.0, 8.0, 16.0):
        assert graph(x, value).tolist() == [1 / value] * 3
    with pytest.raises(ZeroDivisionError):
        graph(x, 0.0)
    assert graph(x, 0.5).tolist() == [2.0] * 3


@pytest.mark.parametrize(
    "value", [True, None, 2**40, 1e300, 40_000.5, float("inf"), "auto", 2 + 1j]
)
def test_other_values_are_part_of_the_key(value):
    def fn(x: torch.Tensor, s: Any = None) -> torch.Tensor:
        return x * 3 if s is None or isinstance(s, str) else x.to(torch.complex128) * s

    graph = gfxgraph.graphed(fn, inputs=["s"])
    x = torch.ones(3, device=DEVICE)
    for s in (2.0, value, 3.0, value, 2.0, value):
        assert same(graph(x, s), fn(x, s))


def test_a_number_and_a_tensor_without_dimensions_have_graphs_of_their_own():
    def fn(x: torch.Tensor, s: Any) -> torch.Tensor:
        return x * s

    graph = gfxgraph.graphed(fn, inputs=["s"])
    x = torch.linspace(0, 1, 7, device=DEVICE).half()
    for n in range(8):
        number = 0.1 * (n + 1)
        s = number if n % 2 else torch.tensor(number, device=DEVICE, dtype=torch.float64)
        assert same(graph(x, s), fn(x, s))
    assert len(graph.stats().graphs) == 2


class Sampler(nn.Module):
    """A loop of a sampler: guidance and temperature change from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, x: torch.Tensor, *, guidance: float = 1.0, step: int = 0) -> torch.Tensor:
        self.calls += 1
        free, bound = self.net(torch.cat([x, x + step])).chunk(2)
        return free + guidance * (bound - free)


def test_keyword_only_parameters_of_a_module_that_counts_its_calls():
    torch.manual_seed(0)
    model, twin = Sampler().to(DEVICE).eval(), Sampler().to(DEVICE).eval()
    twin.load_state_dict(model.state_dict())
    graph = gfxgraph.graphed(model, inputs=["guidance", "step"])
    x = torch.randn(2, 8, device=DEVICE)
    with torch.no_grad():
        for n in range(12):
            given: dict[str, Any] = {"guidance": 1 + n / 3} if n % 3 else {}
            assert same(graph(x, step=n, **given), twin(x, step=n, **given))
            assert model.calls == twin.calls
    assert len(graph.stats().graphs) == 2


def test_methods_and_buckets_take_inputs():
    class Model:
        @functools.partial(gfxgraph.graphed, inputs=["s"], buckets=[4, 16])
        def run(self, x: torch.Tensor, s: float) -> torch.Tensor:
            return x * s

    model = Model()
    for n in range(1, 17):
        x = torch.arange(3.0 * n, device=DEVICE).reshape(n, 3)
        assert same(model.run(x, n / 7), x * (n / 7))
    assert len(model.run.stats().graphs) == 2


def test_a_result_that_holds_the_number_runs_eagerly_and_says_why():
    graph = gfxgraph.graphed(lambda x, s: (x * s, s), inputs=["s"])
    for s in VALUES[:3]:
        assert graph(torch.ones(2, device=DEVICE), s)[1] == s
    assert "inputs=" in json.dumps(graph.stats().fallbacks)


def test_a_graph_inside_another_passes_the_number_on():
    inner = gfxgraph.graphed(lambda x, s: x * s, inputs=["s"])
    outer = gfxgraph.graphed(lambda x, s: inner(x, s) + s, inputs=["s"])
    x = torch.ones(3, device=DEVICE)
    for s in VALUES:
        assert same(outer(x, s), x * s + s)
    assert len(outer.stats().graphs) == 1


def test_the_static_input_of_a_number_can_be_written():
    graph = gfxgraph.graphed(lambda x, s: x * s, inputs=["s"])
    x = torch.ones(3, device=DEVICE)
    graph(x, 2.0)
    (_, scale), _ = graph.static_inputs(x, 2.0)
    scale.value.fill_(5.0)
    assert graph(x, scale).tolist() == [5.0] * 3
    assert graph(x, 3.0).tolist() == [3.0] * 3


def test_the_report_proposes_it():
    graph = gfxgraph.graphed(lambda x, scale: x * scale)
    for n in range(30):
        graph(torch.ones(3, device=DEVICE), n + 0.5)
    assert "inputs=['scale']" in graph.stats().thrashing[0]


@pytest.mark.parametrize(
    "inputs, says",
    [("scale", "expected names"), (["size"], "'size'"), ([3], "names of parameters")],
)
def test_what_is_no_name_of_a_parameter_is_an_error(inputs, says):
    with pytest.raises(ArgumentError, match=says):
        gfxgraph.graphed(lambda x, scale: x * scale, inputs=inputs)


def test_compiled_code_takes_no_inputs():
    with pytest.raises(ArgumentError, match="compile"):
        gfxgraph.graphed(lambda x, s: x * s, inputs=["s"], compile=True)


def test_a_function_between_two_graphs_may_keep_the_number():
    kept = []

    @gfxgraph.no_graph
    def keep(number, more):
        kept.append((number, type(number), more))

    def fn(x, scale):
        y = x * scale
        keep(scale, {"twice": [scale * 2]})
        return y + 1

    graph, x = gfxgraph.graphed(fn, inputs=["scale"]), torch.ones(2, device=DEVICE)
    with torch.no_grad():
        for scale in (1, 2, 3, 4):
            assert torch.equal(graph(x, scale), x * scale + 1)
    assert kept == [(n, int, {"twice": [2 * n]}) for n in (1, 2, 3, 4)]
    assert graph.stats().replays >= 2
