"""A kind of calls that differs from a known one in sizes alone is captured after that one.

It shares the guard of the first graph, so it may rely on nothing else.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gfxgraph
from gfxgraph.call import builder
from gfxgraph.graph.capture import capture_like
from tests.helpers.sampled import sampled
from tests.hostile import hostile_repeats
from tests.hostile.test_python_state import CASES, outcome

LARGE = 4  # rows from which on a function does something else


@pytest.fixture
def short(monkeypatch):
    """Of each capture after another one, whether the short way did."""
    found: list[bool] = []

    @functools.wraps(capture_like)
    def counted(*args: Any) -> Any:
        captured = capture_like(*args)
        found.append(captured is not None)
        return captured

    monkeypatch.setattr(builder, "capture_like", counted)
    return found


def rows(device: str, count: int) -> torch.Tensor:
    return torch.randn(count, 4, device=device)


def same(got: Any, expected: Any) -> None:
    if isinstance(expected, type):
        assert got is expected
    else:
        torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize("name", sampled(sorted(CASES)[::5], 20, of_long=8))
@torch.no_grad()
def test_what_all_kinds_have_read_and_changes_is_never_stale(device, name):
    with torch.device(device):
        fn, change = CASES[name]()
    graph = gfxgraph.graphed(fn)
    try:
        for count in (2, 2, 3, 3, 5, 0, 2, 3, 3, 5, 7):
            if not count:
                with torch.device(device):
                    change()
                continue
            x = rows(device, count)
            expected = outcome(fn, x)
            same(outcome(graph, x), expected)
    finally:
        getattr(fn, "undo", lambda: None)()


@pytest.mark.parametrize("name", sampled(sorted(hostile_repeats.CASES)[::5], 20, of_long=8))
@torch.no_grad()
def test_so_it_is_with_layers_that_are_alike(device, name):
    with torch.device(device):
        fn, changes = hostile_repeats.CASES[name]()
    graph = gfxgraph.graphed(fn)
    for count in (2, 3, 3, 0, 2, 3, 5):
        for change in changes if not count else ():
            with torch.device(device):
                change()
        if count:
            x = rows(device, count)
            expected = outcome(fn, x)
            same(outcome(graph, x), expected)


class State:
    """What a function reaches."""

    def __init__(self, device: str) -> None:
        self.count, self.log, self.table = 0, [], {}
        self.weight = torch.nn.Parameter(torch.ones(4, device=device))
        self.buffer = torch.zeros(4, device=device)
        self.generator = torch.Generator(device)

    def shown(self) -> tuple[Any, ...]:
        return (
            self.count,
            list(self.log),
            dict(self.table),
            self.buffer.tolist(),
            vars(State).get("tag"),
        )


def _counts(s: State, x: torch.Tensor) -> Any:
    s.count += 1


def _appends(s: State, x: torch.Tensor) -> Any:
    s.log.append(len(x))


def _stores(s: State, x: torch.Tensor) -> Any:
    s.table["rows"] = len(x)


def _stores_in_the_class(s: State, x: torch.Tensor) -> Any:
    type(s).tag = len(x)


def _writes_a_buffer(s: State, x: torch.Tensor) -> Any:
    s.buffer.add_(1)


def _writes_its_argument(s: State, x: torch.Tensor) -> Any:
    x.add_(1)


def _draws(s: State, x: torch.Tensor) -> Any:
    return x + torch.rand_like(x)


def _draws_from_its_own(s: State, x: torch.Tensor) -> Any:
    return x + torch.rand(x.shape, generator=s.generator, device=x.device)


def _draws_on_the_host(s: State, x: torch.Tensor) -> Any:
    return x * random.random()


def _reads_a_clock(s: State, x: torch.Tensor) -> Any:
    return x * (time.time() > 0)


def _reads_data(s: State, x: torch.Tensor) -> Any:
    return x * 2 if x.sum() > 0 else x * 3


def _reads_an_item(s: State, x: torch.Tensor) -> Any:
    return x * x[0, 0].item()


def _asks_for_strides(s: State, x: torch.Tensor) -> Any:
    return x * x.stride(0) * (2 if x.is_contiguous() else 3)


def _asks_for_the_version(s: State, x: torch.Tensor) -> Any:
    return x * (1 + s.buffer._version)


def _asks_for_the_gradient(s: State, x: torch.Tensor) -> Any:
    return x if s.weight.grad is None else x * 2


def _asks_whether_it_requires_grad(s: State, x: torch.Tensor) -> Any:
    return x * 2 if s.weight.requires_grad else x * 3


def _asks_for_a_setting(s: State, x: torch.Tensor) -> Any:
    return x * (2 if torch.are_deterministic_algorithms_enabled() else 3)


def _asks_for_a_default(s: State, x: torch.Tensor) -> Any:
    return x * torch.ones(4, device=x.device, dtype=torch.get_default_dtype())


def _uses_another_tensor(s: State, x: torch.Tensor) -> Any:
    return x + s.buffer


def _returns_what_lies_outside(s: State, x: torch.Tensor) -> Any:
    return x, s.buffer


def _returns_its_argument(s: State, x: torch.Tensor) -> Any:
    return x


def _returns_a_number(s: State, x: torch.Tensor) -> Any:
    return x * 2, len(x)


def _reads_one_more_attribute(s: State, x: torch.Tensor) -> Any:
    return x * (1 + s.count)


def _makes_a_constant(s: State, x: torch.Tensor) -> Any:
    return x * torch.tensor([1.0, 2.0, 3.0, len(x)], device=x.device)


def _enables_grad(s: State, x: torch.Tensor) -> Any:
    with torch.enable_grad():
        return (s.weight * x).detach()


def _runs_backward(s: State, x: torch.Tensor) -> Any:
    with torch.enable_grad():
        (given,) = torch.autograd.grad((s.weight * x).sum(), [s.weight])
    return x * given


def _sets_a_gradient(s: State, x: torch.Tensor) -> Any:
    s.weight.grad = torch.ones_like(s.weight)


def _marks_its_argument(s: State, x: torch.Tensor) -> Any:
    x.tag = len(x)


def _raises(s: State, x: torch.Tensor) -> Any:
    raise ValueError(len(x))


GATED = {
    f.__name__.lstrip("_"): f
    for f in list(globals().values())
    if getattr(f, "__name__", "").startswith("_") and getattr(f, "__module__", "") == __name__
}


def changes_of(s: State, n: int) -> None:
    """What the program does between two calls."""
    if n == 6:
        s.count, s.buffer = 5, s.buffer + 3
        s.weight.grad = torch.ones_like(s.weight)
        s.weight.requires_grad_(False)


def do_as_eager(made: Callable[[], tuple[Any, State]], device: str) -> None:
    """Call a graphed function and an eager twin of it, and compare what they give and leave."""
    (eager, one), (fn, other) = made(), made()
    graph = gfxgraph.graphed(fn)
    for n, count in enumerate((2, 2, 5, 5, 5, 2, 5, 5, 6, 6, 2)):
        changes_of(one, n), changes_of(other, n)
        x = rows(device, count)
        x = x.t().contiguous().t() if n == 4 else x
        mine = x.clone(memory_format=torch.preserve_format)
        random.seed(n), torch.manual_seed(n)
        expected = outcome(eager, x)
        random.seed(n), torch.manual_seed(n)
        same(outcome(graph, mine), expected)
        same((mine,), (x,))
        assert getattr(mine, "tag", None) == getattr(x, "tag", None)
        assert one.shown() == other.shown()


@pytest.mark.parametrize("name", sorted(GATED))
@torch.no_grad()
def test_what_only_larger_calls_do_is_found_in_them(device, name):
    """The first kind of calls only computes."""
    act = GATED[name]

    def made() -> tuple[Any, State]:
        state = State(device)

        def fn(x: torch.Tensor) -> Any:
            y = x * state.weight
            result = act(state, x) if len(x) > LARGE else None
            return y if result is None else (y, result)

        return fn, state

    try:
        do_as_eager(made, device)
    finally:
        if "tag" in vars(State):
            del State.tag


BRANCHES: dict[str, Any] = {
    "adds_to_a_count": "s.count += 1",
    "appends": "s.log.append(len(x))",
    "stores_an_item": "s.table['rows'] = len(x)",
    "writes_a_buffer": "s.buffer.add_(1)",
    "writes_its_argument": "x.add_(1)",
    "draws": "y = y + torch.rand_like(x)",
    "asks_for_strides": "y = y * x.stride(0) * (2 if x.is_contiguous() else 3)",
    "asks_for_the_version": "y = y * (1 + s.buffer._version)",
    "asks_for_the_gradient": "y = y if s.weight.grad is None else y * 2",
    "reads_data": "y = y * 2 if x.sum() > 0 else y * 3",
    "uses_another_tensor": "y = y + s.buffer",
    "reads_an_attribute": "y = y * (1 + s.count)",
    "reads_an_item": "y = y * s.table.get('rows', 1)",
    "enables_grad": "\n        with torch.enable_grad(): y = y + (s.weight * x).detach()",
    "sets_a_default": "torch.set_printoptions(precision=5)",
    "raises": "raise ValueError(len(x))",
}
MET = "(s.count, s.log, s.table, s.buffer, s.weight, s.table.get, s.log.append, x.stride, x.is_contiguous, x.add_, x.sum, torch.rand_like, torch.enable_grad, ValueError, len, y)"


@pytest.mark.parametrize("name", sorted(BRANCHES))
@torch.no_grad()
def test_so_it_is_in_a_branch_of_code_that_the_first_kind_has_run(device, name):
    """It has read all names there, and called nothing."""
    text = f"def fn(x):\n    y = x * s.weight\n    met = {MET}\n    if len(x) > {LARGE}:\n        {BRANCHES[name]}\n    return y\n"

    def made() -> tuple[Any, State]:
        space = {"s": State(device), "torch": torch}
        exec(compile(text, __file__, "exec"), space)
        return space["fn"], space["s"]

    try:
        do_as_eager(made, device)
    finally:
        torch.set_printoptions(profile="default")


@torch.no_grad()
def test_a_model_that_only_computes_is_recorded_once_for_each_further_kind(device, short):
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(device).eval()
    graph = gfxgraph.graphed(model)
    for count in (2, 3, 5, 3, 2):
        x = torch.randn(count, 4, 8, device=device)
        torch.testing.assert_close(graph(x), model(x))
    assert short == [True, True] and graph.stats().replays == 2


@torch.no_grad()
def test_so_it_is_with_constants_of_the_host(device, short):
    def fn(x):
        return x * torch.tensor([1.0, 2.0, 3.0, len(x)], device=x.device)

    graph = gfxgraph.graphed(fn)
    for count in (2, 3, 5, 3, 2, 5):
        x = rows(device, count)
        assert torch.equal(graph(x), fn(x))
    assert short == [True, True] and graph.stats().replays == 3


@torch.no_grad()
def test_so_it_is_with_random_numbers_which_are_those_of_eager_execution(device, short):
    def fn(x):
        return x + torch.randn_like(x)

    graph = gfxgraph.graphed(fn)
    for n, count in enumerate((2, 3, 5, 3, 2, 5, 3)):
        x = rows(device, count)
        torch.manual_seed(n)
        expected = fn(x), fn(x)
        torch.manual_seed(n)
        assert torch.equal(graph(x), expected[0]) and torch.equal(graph(x), expected[1])
    assert short == [True, True] and graph.stats().replays == 11


@torch.no_grad()
def test_what_only_a_further_kind_draws_from_is_found(device):
    generator = torch.Generator(device)

    def fn(x):
        if len(x) > LARGE:
            return x + torch.rand(x.shape, generator=generator, device=x.device)
        return x + generator.initial_seed() * 0

    graph = gfxgraph.graphed(fn)
    for n, count in enumerate((2, 5, 5, 2, 5, 6, 6)):
        x = rows(device, count)
        generator.manual_seed(n)
        expected = fn(x), fn(x)
        generator.manual_seed(n)
        assert torch.equal(graph(x), expected[0]) and torch.equal(graph(x), expected[1])


@torch.no_grad()
def test_a_setting_that_only_a_further_kind_depends_on_is_asked_in_its_calls(device, short):
    weight = torch.randint(-2, 3, (4, 4), device=device).float()

    def fn(x):
        both = torch.float32, torch.bfloat16
        dtype = both[len(x) > LARGE]
        return (x.to(dtype) @ weight.to(dtype)).float()

    graph = gfxgraph.graphed(fn)
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    try:
        for count in (2, 5, 5):
            graph(rows(device, count))
        assert short == [False] and graph.stats().replays == 1
        matmul.allow_bf16_reduced_precision_reduction = not before
        graph(rows(device, 5))
        assert graph.stats().captures == 3
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before


@torch.no_grad()
def test_buckets_ask_for_it_as_well(device):
    weight = torch.randint(-2, 3, (4, 4), device=device).float()

    def fn(x):
        both = torch.float32, torch.bfloat16
        dtype = both[len(x) > LARGE]
        return (x.round().clamp(-4, 4).to(dtype) @ weight.to(dtype)).float()

    pool = gfxgraph.ShapeBucketPool(fn, [4, 8])
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction
    try:
        for count in (3, 3, 7, 7):
            pool(rows(device, count))
        assert pool.stats().captures == 2 and not pool.stats().fallbacks
        matmul.allow_bf16_reduced_precision_reduction = not before
        pool(rows(device, 7))
        assert pool.stats().captures == 3
    finally:
        matmul.allow_bf16_reduced_precision_reduction = before


class Chosen(torch.nn.Module):
    """One of two layers, by the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.large(x) if len(x) > LARGE else self.small(x)


@pytest.mark.parametrize("wrap", ["graphed", "buckets"])
@torch.no_grad()
def test_what_the_program_has_bound_since_stays_where_the_short_way_ends(device, wrap):
    model = Chosen().to(device)
    graph = (
        gfxgraph.graphed(model) if wrap == "graphed" else gfxgraph.ShapeBucketPool(model, [4, 8])
    )
    graph(rows(device, 2))
    weight = model.large.weight = torch.nn.Parameter(torch.ones(4, 4, device=device))
    model.large.bias = None
    for _ in range(3):
        x = rows(device, 5)
        torch.testing.assert_close(graph(x), model(x))
        assert model.large.weight is weight and model.large.bias is None


@pytest.mark.parametrize("wrap", ["graphed", "buckets"])
@torch.no_grad()
def test_what_a_large_call_stores_beside_another_thread_is_stored_once(device, wrap):
    def made() -> tuple[Any, State]:
        state = State(device)

        def fn(x: torch.Tensor) -> torch.Tensor:
            if len(x) > LARGE:
                state.count += 1
                state.log.append(len(x))
                state.table["k"] = state.table.get("k", 0) + 1
            return x * 2

        return fn, state

    (eager, one), (fn, other) = made(), made()
    graph = gfxgraph.graphed(fn) if wrap == "graphed" else gfxgraph.ShapeBucketPool(fn, [4, 8])
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        for n, count in enumerate((2, 2, 5, 5, 7, 2, 5)):
            if n == 2:
                for state in (one, other):
                    state.count, state.log, state.table["k"] = 100, [1], 50
            x = rows(device, count)
            assert torch.equal(graph(x), eager(x))
            assert one.shown() == other.shown()
    finally:
        done.set()
        thread.join()


def _halves_a_rate() -> tuple[Any, Any]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    group = optimizer.param_groups[0]
    return lambda: group.update(lr=group["lr"] * 0.5), lambda: group["lr"]


def _moves_a_distribution() -> tuple[Any, Any]:
    normal = torch.distributions.Normal(torch.zeros(4), torch.ones(4))
    return lambda: setattr(normal, "loc", normal.loc + 1), lambda: normal.loc.tolist()


def _adds_to_a_long_list() -> tuple[Any, Any]:
    numbers = [0] * 5000

    def add() -> None:
        numbers[0] += 1

    return add, lambda: numbers[0]


@pytest.mark.parametrize("make", [_halves_a_rate, _moves_a_distribution, _adds_to_a_long_list])
@torch.no_grad()
def test_what_a_large_call_does_to_objects_of_torch_is_done_once(device, make):
    act, shown = make()
    twin, expected = make()

    def fn(x: torch.Tensor) -> torch.Tensor:
        if len(x) > LARGE:
            act()
        return x * 2

    graph = gfxgraph.graphed(fn)
    for count in (2, 2, 5, 5, 2, 6):
        if count > LARGE:
            twin()
        x = rows(device, count)
        assert torch.equal(graph(x), x * 2) and shown() == expected()


@pytest.mark.parametrize("text", ["s.count += 1", "s.log.append(len(x))", "s.table[s.count] = 1"])
@torch.no_grad()
def test_what_only_calls_do_that_do_not_fill_their_bucket_is_done_in_each(device, text):
    def made() -> tuple[Any, State]:
        space = {"s": State(device)}
        lines = ("def fn(x):", "    if len(x) % 2:", f"        {text}", "    return x * 2")
        exec(compile("\n".join(lines), __file__, "exec"), space)
        return space["fn"], space["s"]

    (eager, one), (fn, other) = made(), made()
    pool = gfxgraph.ShapeBucketPool(fn, [4, 8])
    for n, count in enumerate((2, 2, 5, 5, 7, 2, 5, 6, 3, 3)):
        x = rows(device, count)
        assert torch.equal(pool(x), eager(x))
        assert one.shown() == other.shown(), n


@torch.no_grad()
def test_templates_are_bounded_and_hold_nothing_of_a_call(device):
    graph = gfxgraph.graphed(lambda x, n: x * n)
    for n in range(200):
        graph(rows(device, 2), n)
    kept = graph._dispatcher.strategy.templates
    assert 0 < len(kept) <= 64
