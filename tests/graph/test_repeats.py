"""A call of a module that reads what an earlier one has read is not looked at; any other one is.

In each case a function calls one module several times, and something makes a later call read what
the first one did not: ``m.other``. If nobody looks at that call, a change of it is not seen.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import types
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gfxgraph.graph.reads import Reads
from gfxgraph.graph.repeats import Repeats


class Deep(nn.Module):
    """Large enough to be remembered; ``asks`` says whether it reads ``other``."""

    def __init__(self, asks: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(6)])
        self.other, self.asks, self.kept, self.scale = 2.0, asks, None, 1.0

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x * self.other if self.asks(self, x, *args, **kwargs) else x


def recorded(fn: Any, x: torch.Tensor, decided: Any = lambda: 0) -> Reads:
    reads = Reads({"fn": fn}, [x], Repeats(lambda tensor: True, decided))
    with reads.recording():
        fn(x)
    assert not reads.failed
    return reads


class Probe:
    """Calls ``tell`` in code that is not looked at."""

    tell: Any = None


_probe = types.FunctionType((lambda: Probe.tell()).__code__, {"__name__": "numpy", "Probe": Probe})


def test_the_second_call_is_not_looked_at_and_the_third_one_with_other_arguments_is():
    def asks(m, x, *args):
        _probe()
        return False

    m = Deep(asks)
    repeats = Repeats(lambda tensor: True)
    seen = []
    Probe.tell = types.FunctionType(
        (lambda: seen.append(repeats.skipped is not None)).__code__,
        {"__name__": "numpy"},
        closure=tuple(map(types.CellType, (repeats, seen))),
    )

    def fn(x):
        return m(x, 1) + m(x, 1) + m(x, 2) + m(x[:1], 1) + m(x, 1)

    reads = Reads({"fn": fn}, (), repeats)
    x = torch.ones(2, 4)
    fn(x)
    seen.clear()
    with reads.recording():
        fn(x)
    assert seen == [False, True, False, False, True]


CASES: dict[str, Any] = {}


def case(fn: Any) -> Any:
    CASES[fn.__name__] = fn
    return fn


def _twice(m: Any, first: Any, second: Any) -> Any:
    return lambda x: m(x, first(x)) + m(x, second(x))


@case
def another_number():
    m = Deep(lambda m, x, n: n == 2)
    return m, _twice(m, lambda x: 1, lambda x: 2)


@case
def another_kind_of_number():
    m = Deep(lambda m, x, n: type(n) is bool)
    return m, _twice(m, lambda x: 1, lambda x: True)


@case
def minus_zero():
    m = Deep(lambda m, x, n: str(n) == "-0.0")
    return m, _twice(m, lambda x: 0.0, lambda x: -0.0)


@case
def another_key():
    m = Deep(lambda m, x, d: "b" in d)
    return m, _twice(m, lambda x: {"a": 1}, lambda x: {"b": 1})


@case
def another_order_of_keys():
    m = Deep(lambda m, x, d: next(iter(d)) == "b")
    return m, _twice(m, lambda x: {"a": 1, "b": 1}, lambda x: {"b": 1, "a": 1})


@case
def a_longer_list():
    m = Deep(lambda m, x, items: len(items) == 3)
    return m, _twice(m, lambda x: [1, 2], lambda x: [1, 2, 2])


@case
def a_number_deep_inside():
    m = Deep(lambda m, x, items: items[0]["a"][1] == 3)
    return m, _twice(m, lambda x: [{"a": (1, 2)}], lambda x: [{"a": (1, 3)}])


@case
def a_keyword():
    m = Deep(lambda m, x, mode="a": mode == "b")
    return m, lambda x: m(x) + m(x, mode="b")


@case
def another_shape():
    m = Deep(lambda m, x, y: y.shape[0] == 1)
    return m, _twice(m, lambda x: x, lambda x: x[:1])


@case
def another_layout():
    m = Deep(lambda m, x, y: not y.is_contiguous())
    return m, _twice(m, lambda x: x @ x.t(), lambda x: (x @ x.t()).t())


@case
def another_dtype():
    m = Deep(lambda m, x, y: y.dtype is torch.float64)
    return m, _twice(m, lambda x: x, lambda x: x.double())


@case
def one_that_requires_grad():
    m = Deep(lambda m, x, y: y.requires_grad)
    return m, _twice(m, lambda x: x + 0, lambda x: (x + 0).requires_grad_())


@case
def an_attribute_of_a_tensor():
    m = Deep(lambda m, x, y: hasattr(y, "mark"))

    def marked(x):
        y = x + 0
        y.mark = 1
        return y

    return m, _twice(m, lambda x: x + 0, marked)


@case
def one_tensor_twice():
    m = Deep(lambda m, x, pair: pair[0] is pair[1])
    return m, _twice(m, lambda x: (x + 0, x + 1), lambda x: (x + 0,) * 2)


@case
def an_object_that_the_run_has_made():
    m = Deep(lambda m, x, o: o.n == 2)
    return m, _twice(m, lambda x: SimpleNamespace(n=1), lambda x: SimpleNamespace(n=2))


@case
def one_object_that_the_run_changes():
    m = Deep(lambda m, x, o: o.n == 2)

    def fn(x):
        o = SimpleNamespace(n=1)
        first = m(x, o)
        o.n = 2
        return first + m(x, o)

    return m, fn


@case
def an_iterator():
    m = Deep(lambda m, x, it: next(it) == 2)

    def fn(x):
        it = iter([1, 2])
        return m(x, it) + m(x, it)

    return m, fn


@case
def a_function_that_the_run_has_made():
    m = Deep(lambda m, x, f: f() == 2)
    return m, _twice(m, lambda x: lambda: 1, lambda x: lambda: 2)


@case
def an_attribute_that_the_run_sets():
    m = Deep(lambda m, x: m.scale == 2.0)

    def fn(x):
        m.scale = 1.0
        first = m(x)
        m.scale = 2.0
        second = m(x)
        m.scale = 1.0
        return first + second

    return m, fn


@case
def an_attribute_that_c_code_sets():
    m = Deep(lambda m, x: m.scale == 2.0)

    def fn(x):
        first = m(x)
        vars(m).update(scale=2.0)
        second = m(x)
        vars(m).update(scale=1.0)
        return first + second

    return m, fn


@case
def an_object_that_c_code_puts_there():
    m = Deep(lambda m, x: m.kept.n == 2)

    def fn(x):
        kept = SimpleNamespace(n=1)
        vars(m).update(kept=kept)
        first = m(x)
        kept.n = 2
        second = m(x)
        vars(m).update(kept=None)
        return first + second

    return m, fn


@case
def a_list_that_grows():
    items: list[int] = []
    m = Deep(lambda m, x: len(items) == 1)

    def fn(x):
        first = m(x)
        items.append(1)
        second = m(x)
        items.clear()
        return first + second

    return m, fn


@case
def an_attribute_of_a_class():
    class Config:
        n = 1

    m = Deep(lambda m, x: Config.n == 2)

    def fn(x):
        first = m(x)
        Config.n = 2
        second = m(x)
        Config.n = 1
        return first + second

    return m, fn


@case
def a_method_of_a_class():
    class Ask:
        def now(self):
            return False

    ask = Ask()
    before = Ask.now
    m = Deep(lambda m, x: ask.now())

    def fn(x):
        first = m(x)
        type.__setattr__(Ask, "now", lambda self: True)
        second = m(x)
        type.__setattr__(Ask, "now", before)
        return first + second

    return m, fn


@case
def a_variable_of_the_context():
    variable = contextvars.ContextVar("variable", default=1)
    m = Deep(lambda m, x: variable.get() == 2)

    def fn(x):
        first = m(x)
        token = variable.set(2)
        second = m(x)
        variable.reset(token)
        return first + second

    return m, fn


@case
def a_variable_of_the_context_that_is_set_twice():
    variable = contextvars.ContextVar("variable", default=1)
    m = Deep(lambda m, x: variable.get() == 2)

    def fn(x):
        one = variable.set(1)
        first = m(x)
        two = variable.set(2)
        second = m(x)
        variable.reset(two)
        variable.reset(one)
        return first + second

    return m, fn


@case
def a_variable_of_the_thread():
    local = threading.local()
    local.n = 1
    m = Deep(lambda m, x: local.n == 2)

    def fn(x):
        first = m(x)
        local.n = 2
        second = m(x)
        local.n = 1
        return first + second

    return m, fn


@case
def a_variable_of_the_function_around_it():
    n = 1
    m = Deep(lambda m, x: n == 2)

    def fn(x):
        nonlocal n
        first = m(x)
        n = 2
        second = m(x)
        n = 1
        return first + second

    return m, fn


@case
def gradients():
    m = Deep(lambda m, x: not torch.is_grad_enabled())

    def fn(x):
        first = m(x)
        with torch.no_grad():
            return first + m(x)

    return m, fn


@case
def autocast():
    m = Deep(lambda m, x: torch.is_autocast_enabled("cpu"))

    def fn(x):
        first = m(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return first + m(x)

    return m, fn


@case
def a_mode():
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    m = Deep(lambda m, x: bool(torch.overrides._get_current_function_mode_stack()))

    def fn(x):
        first = m(x)
        with Mode():
            return first + m(x)

    return m, fn


@case
def the_way_of_torch_to_multiply():
    m = Deep(lambda m, x: torch.get_float32_matmul_precision() == "high")

    def fn(x):
        before = torch.get_float32_matmul_precision()
        first = m(x)
        torch.set_float32_matmul_precision("high")
        second = m(x)
        torch.set_float32_matmul_precision(before)
        return first + second

    return m, fn


@case
def a_hook():
    m = Deep(lambda m, x: False)

    def fn(x):
        first = m(x)
        handle = m.layers[3].register_forward_hook(lambda layer, args, out: out * m.other)
        second = m(x)
        handle.remove()
        return first + second

    return m, fn


@case
def a_child_in_place_of_another():
    m = Deep(lambda m, x: False)

    class Other(nn.Module):
        def forward(self, x):
            return x * m.other

    other = Other()

    def fn(x):
        first = m(x)
        before = m.layers[2]
        m.layers[2] = other
        second = m(x)
        m.layers[2] = before
        return first + second

    return m, fn


@case
def a_mode_of_the_module():
    m = Deep(lambda m, x: m.training)

    def fn(x):
        m.eval()
        first = m(x)
        m.train()
        return first + m(x)

    return m, fn


@case
def after_an_error_in_a_call_that_is_not_looked_at():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.deep = Deep(lambda m, x: False)

        def forward(self, x, data):
            y = self.deep(x)
            data.sum().backward()  # the second time this is an error
            return y

    outer = Outer()
    m = Deep(lambda m, x: True)

    def fn(x):
        data = x.detach().requires_grad_().exp()
        with contextlib.suppress(RuntimeError):
            outer(x, data)
            outer(x, data)
        return m(x)

    return m, fn


@case
def a_generator_that_is_read_inside():
    m = Deep(lambda m, x, it=None: it is not None and next(it) == 2)

    def numbers():
        yield 1
        yield 2

    def fn(x):
        it = numbers()
        return m(x, it) + m(x, it)

    return m, fn


@pytest.mark.parametrize("name", CASES)
def test_a_call_that_may_read_something_else_is_looked_at(name):
    m, fn = CASES[name]()
    x = torch.ones(2, 4)
    fn(x)
    reads = recorded(fn, x)
    assert not [name for name in reads.changes() if "other" in name]
    m.other = 3.0
    assert [name for name in reads.changes() if "other" in name]


def test_a_call_that_asks_the_device_is_looked_at():
    asked = 0

    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.deep, self.other = Deep(lambda m, x: False), 2.0

        def forward(self, x):
            nonlocal asked
            y = self.deep(x)
            asked += 1
            return y * self.other if x.sum() > 8 else y

    m = Asks()

    def fn(x):
        return m(x) + m(x * 2)

    x = torch.ones(2, 4)
    reads = recorded(fn, x, decided=lambda: asked)
    m.other = 3.0
    assert [name for name in reads.changes() if name.endswith("other")]


def test_what_the_host_holds_is_looked_at():
    m = Deep(lambda m, x, n: int(n) == 2)

    def fn(x):
        return m(x, torch.tensor(1)) + m(x, torch.tensor(2))

    x = torch.ones(2, 4)
    reads = Reads({"fn": fn}, [x], Repeats(lambda tensor: tensor.dim() > 0))
    with reads.recording():
        fn(x)
    m.other = 3.0
    assert [name for name in reads.changes() if "other" in name]
