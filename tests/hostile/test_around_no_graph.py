"""What a ``no_graph`` function finds, is given and gives, compared with eager execution."""

from __future__ import annotations

import contextlib
import contextvars
import decimal
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gfxgraph

VARIABLE = contextvars.ContextVar("VARIABLE", default=0)
LEVEL = 0


class Passes(TorchFunctionMode):
    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class PassesBelow(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class State:
    shared = 1

    def __init__(self) -> None:
        self.flag, self.stack, self.table = False, [0], {"a": 0}
        self.net = nn.Dropout(0.5)


@contextlib.contextmanager
def variable(state: State) -> Iterator[None]:
    token = VARIABLE.set(5)
    yield
    VARIABLE.reset(token)


@contextlib.contextmanager
def attribute(state: State) -> Iterator[None]:
    state.flag = True
    yield
    state.flag = False


@contextlib.contextmanager
def pushed(state: State) -> Iterator[None]:
    state.stack.append(1)
    yield
    state.stack.pop()


@contextlib.contextmanager
def item(state: State) -> Iterator[None]:
    state.table["b"] = 1
    yield
    del state.table["b"]


@contextlib.contextmanager
def of_module(state: State) -> Iterator[None]:
    global LEVEL
    LEVEL = 5
    yield
    LEVEL = 0


@contextlib.contextmanager
def of_class(state: State) -> Iterator[None]:
    State.shared = 2
    yield
    State.shared = 1


@contextlib.contextmanager
def evaluated(state: State) -> Iterator[None]:
    state.net.eval()
    yield
    state.net.train()


@contextlib.contextmanager
def hooked(state: State) -> Iterator[None]:
    handle = state.net.register_forward_hook(lambda *args: None)
    yield
    handle.remove()


@contextlib.contextmanager
def wide(state: State) -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


CHANGES: dict[str, tuple[Callable[[State], Any], Callable[[State], Any]]] = {
    "a context variable": (variable, lambda state: VARIABLE.get()),
    "an attribute": (attribute, lambda state: state.flag),
    "a list": (pushed, lambda state: list(state.stack)),
    "a dict": (item, lambda state: dict(state.table)),
    "a global": (of_module, lambda state: LEVEL),
    "a class": (of_class, lambda state: State.shared),
    "eval()": (evaluated, lambda state: state.net.training),
    "a hook": (hooked, lambda state: len(state.net._forward_hooks)),
    "the default dtype": (wide, lambda state: torch.get_default_dtype()),
    "a setting of NumPy": (
        lambda state: np.errstate(divide="raise"),
        lambda state: np.geterr()["divide"],
    ),
    "a decimal context": (
        lambda state: decimal.localcontext(decimal.Context(prec=3)),
        lambda state: decimal.Decimal(1) / 3,
    ),
    "a device": (lambda state: torch.device("meta"), lambda state: torch.empty(1).device),
    "a function mode": (
        lambda state: Passes(),
        lambda state: torch._C._len_torch_function_stack() > 0,
    ),
    "a dispatch mode": (
        lambda state: PassesBelow(),
        lambda state: torch._C._len_torch_dispatch_stack() > 0,
    ),
}


@pytest.mark.parametrize("name", CHANGES)
@torch.no_grad()
def test_what_is_changed_for_a_while_around_it_is_found(device, name):
    enter, look = CHANGES[name]
    modes = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()

    def found(is_graphed: bool) -> list[Any]:
        state, seen = State(), []

        @gfxgraph.no_graph
        def between(x: torch.Tensor) -> None:
            seen.append(look(state))

        def fn(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            with enter(state):
                between(y)
            return y + 1

        called = gfxgraph.graphed(fn) if is_graphed else fn
        for n in range(4):
            x = torch.full((2,), float(n), device=device)
            assert torch.equal(called(x), x * 2 + 1)
        return seen

    assert found(True) == found(False)
    assert (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()) == modes


GIVEN: dict[str, tuple[bool, Callable[[torch.Tensor], Any]]] = {
    "a generator": (False, lambda y: (y * n for n in (1, 2))),
    "a zip": (False, lambda y: zip([y], [y * 2], strict=True)),
    "an object": (False, lambda y: types.SimpleNamespace(value=y)),
    "a method": (False, lambda y: y.sum),
    "a function": (False, lambda y: lambda: y),
    "a shape": (True, lambda y: y.shape),
    "a list": (True, lambda y: [y, {"a": (y * 2, 3, "b", None)}]),
    "a dtype": (True, lambda y: y.dtype),
}


@pytest.mark.parametrize("name", GIVEN)
@torch.no_grad()
def test_it_is_given_what_eager_execution_gives(device, name):
    is_replayed, give = GIVEN[name]
    kept: list[Any] = []

    @gfxgraph.no_graph
    def total(given: Any) -> torch.Tensor:
        kept.append(given)
        if callable(given):
            return given() * torch.ones(2, device=device)
        if isinstance(given, torch.Size):
            return torch.full((2,), float(given.numel()), device=device)
        parts = vars(given).values() if hasattr(given, "__dict__") else given
        if isinstance(parts, (torch.dtype, torch.Tensor)):
            return torch.ones(2, device=device, dtype=parts)
        tensors = torch.utils._pytree.tree_leaves(list(parts))
        return sum(t for t in tensors if isinstance(t, torch.Tensor))

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + total(give(x * 3))

    graphed = gfxgraph.graphed(fn)
    for n in range(4):
        x = torch.full((2,), float(n), device=device)
        assert torch.equal(graphed(x), fn(x))
    assert len(set(map(id, kept))) == len(kept) or name in ("a dtype", "a shape")
    assert bool(graphed.stats().replays) == is_replayed, graphed.stats().fallbacks


RESULTS: dict[str, tuple[list[Callable[[torch.Tensor], Any]], Callable[..., Any]]] = {
    "a tuple, or a shape": (
        [lambda x: (2, 3), lambda x: torch.Size([2, 3])],
        lambda x, v: x * (v.numel() if isinstance(v, torch.Size) else -1),
    ),
    "ranges with as much in them": (
        [lambda x: range(0, 3, 2), lambda x: range(0, 4, 2)],
        lambda x, v: x * v.stop,
    ),
    "decimals with as much in them": (
        [lambda x: decimal.Decimal("1.0"), lambda x: decimal.Decimal("1.00")],
        lambda x, v: x * len(str(v)),
    ),
    "one tensor twice": (
        [lambda x: (x + 1, x + 1), lambda x: (x + 1,) * 2],
        lambda x, v: x * (1 if v[0] is v[1] else 2),
    ),
}


@pytest.mark.parametrize("name", RESULTS)
@torch.no_grad()
def test_what_it_gives_takes_the_way_that_eager_execution_takes(device, name):
    values, use = RESULTS[name]

    def outcome(is_graphed: bool) -> list[Any]:
        count = iter(range(100))

        @gfxgraph.no_graph
        def give(x: torch.Tensor) -> Any:
            return values[next(count) % len(values)](x)

        def fn(x: torch.Tensor) -> torch.Tensor:
            return use(x, give(x))

        called = gfxgraph.graphed(fn) if is_graphed else fn
        return [called(torch.ones(1, device=device)).item() for _ in range(6)]

    assert outcome(True) == outcome(False)


@torch.no_grad()
def test_a_list_of_its_own_that_the_call_changes_is_changed_each_time(device):
    own = [1]

    @gfxgraph.no_graph
    def give() -> list[int]:
        return own

    def fn(x: torch.Tensor) -> torch.Tensor:
        found = give()
        found.append(2)
        return x * len(found)

    graphed = gfxgraph.graphed(fn)
    assert [graphed(torch.ones(1, device=device)).item() for _ in range(5)] == [2, 3, 4, 5, 6]
    assert own == [1, 2, 2, 2, 2, 2]
