"""Whatever changes around a graphed function between two calls, the result is that of eager."""

from __future__ import annotations

import collections
import contextvars
import functools
import itertools
import operator
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.device import current_device
from tests.helpers.threads import on_threads

DEVICE = gfxgraph.device_type()
WEIGHT: Any = None
SCALE: Any = 2.0


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*(shape or (3,)), device=DEVICE)


class Scale(nn.Module):
    steps = 1.0

    def __init__(self, by: float = 2.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), by, device=DEVICE))
        self.register_buffer("shift", None)
        self._private = 1.0
        self.act = torch.abs

    def forward(self, x):
        x = self.act(x * self.weight * self.steps * self._private)
        return x if self.shift is None else x + self.shift


class Holder:
    def __init__(self) -> None:
        self.model = nn.Sequential(Scale(), nn.ModuleList([Scale()])[0])
        self.weights: Any = [ones() * 2]
        self.inner = Inner()
        self.config = {"k": 2.0}

    def __call__(self, x):
        x = self.model(x) * self.weights[0] * self.inner.weight * self.config["k"]
        return sum((w * 0 for w in self.weights), x) + len(self.weights)


class Inner:
    def __init__(self, by: float = 1.0) -> None:
        self.weight = ones() * by


def put_data(weight: torch.Tensor) -> None:
    weight.data = weight.data * 5


def put_scale(value: float) -> None:
    Scale.steps = value


CHANGES = {
    "a submodule": lambda h: setattr(h.model, "0", Scale(7.0)),
    "a grown Sequential": lambda h: h.model.append(nn.Softmax(-1)),
    "a Sequential cut short": lambda h: h.model.__delitem__(0),
    "a replaced list": lambda h: setattr(h, "weights", [ones() * 9]),
    "a list turned tuple": lambda h: setattr(h, "weights", (ones() * 9,)),
    "a grown list": lambda h: h.weights.append(ones()),
    "an element of a list": lambda h: h.weights.__setitem__(0, ones() * 9),
    "the memory of an element": lambda h: put_data(h.weights[0]),
    "an object that holds a tensor": lambda h: setattr(h, "inner", Inner(3.0)),
    "a tensor of an inner object": lambda h: setattr(h.inner, "weight", ones() * 3),
    "a number in a dict": lambda h: h.config.__setitem__("k", 5.0),
    "a private number": lambda h: setattr(h.model[0], "_private", 3.0),
    "a function": lambda h: setattr(h.model[0], "act", torch.exp),
    "a buffer that was None": lambda h: setattr(h.model[0], "shift", ones()),
    "a number of a class": lambda h: put_scale(3.0),
    "an attribute that hides one of the class": lambda h: setattr(h.model[0], "steps", 4.0),
    "a forward hook": lambda h: h.model[0].register_forward_hook(lambda m, a, out: out * 2),
    "a patched forward": lambda h: setattr(h.model[0], "forward", lambda x: x * 11),
    "a cast and back": lambda h: h.model.double().float(),
}


@pytest.mark.parametrize("name", CHANGES)
@torch.no_grad()
def test_a_change_of_what_it_reaches_is_seen(device, name, monkeypatch):
    monkeypatch.setattr(Scale, "steps", 1.0)
    holder = Holder()
    graph = gfxgraph.graphed(holder)
    for _ in range(3):
        torch.testing.assert_close(graph(ones()), holder(ones()))
    assert graph.stats().replays == 2
    CHANGES[name](holder)
    for _ in range(3):
        torch.testing.assert_close(graph(ones()), holder(ones()))


def helper(x):
    return x * WEIGHT.weight * SCALE


def with_default(x, weight=(ones() * 2,)):  # noqa: B008
    return x * weight[0]


@torch.no_grad()
def test_what_helpers_partials_defaults_and_inner_functions_read_is_seen(device):
    global WEIGHT, SCALE
    WEIGHT, SCALE = Scale(), 2.0
    model = Scale()
    cases = {
        "helper": lambda x: helper(x),
        "inner": lambda x: (lambda y: y * SCALE)(x),
        "partial": functools.partial(model),
        "default": with_default,
    }
    graphs = {name: gfxgraph.graphed(fn) for name, fn in cases.items()}

    def agree():
        for name, fn in cases.items():
            for _ in range(2):
                torch.testing.assert_close(graphs[name](ones()), fn(ones()), msg=name)

    agree(), agree()
    WEIGHT.weight.data = WEIGHT.weight.data * 3
    agree()
    SCALE = 7.0
    agree()
    model.load_state_dict(Scale(9.0).state_dict(), assign=True)
    put_data(with_default.__defaults__[0][0])
    agree()


@torch.no_grad()
def test_weights_updated_in_place_are_seen_under_autocast(device):
    model = nn.Linear(3, 3).to(device)
    graph = gfxgraph.graphed(model)
    for _ in range(2):
        with torch.autocast(device, dtype=torch.bfloat16):
            graph(ones(1, 3)), graph(ones(1, 3))
        model.weight.mul_(2)
        with torch.autocast(device, dtype=torch.bfloat16):
            torch.testing.assert_close(graph(ones(1, 3)), model(ones(1, 3)))


@torch.no_grad()
def test_the_default_dtype_is_part_of_the_key(device):
    graph = gfxgraph.graphed(lambda x: x + torch.full((3,), 0.5, device=device))
    graph(ones()), graph(ones())
    torch.set_default_dtype(torch.float64)
    try:
        assert graph(ones()).dtype == graph(ones()).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@torch.no_grad()
def test_two_methods_of_one_name_have_graphs_of_their_own(device):
    def make(factor):
        @gfxgraph.graphed
        def method(self, x):
            return x * factor

        return method

    class Two:
        one, two = make(2.0), make(3.0)

    two = Two()
    for _ in range(3):
        assert two.one(ones()).tolist() == [2.0] * 3 and two.two(ones()).tolist() == [3.0] * 3
        assert Two.one.__get__(two)(ones()).tolist() == [2.0] * 3


@torch.no_grad()
def test_a_container_argument_that_the_function_changes_is_changed_in_every_call(device):
    @gfxgraph.graphed
    def fill(batch, out):
        batch["y"] = batch["x"] * 2
        out.append(batch["y"])
        return batch["y"] + 1

    for n in range(3):
        batch, out = {"x": ones() * n}, []
        assert fill(batch, out).tolist() == [2.0 * n + 1] * 3
        assert batch["y"].tolist() == out[0].tolist() == [2.0 * n] * 3


@torch.no_grad()
def test_an_argument_that_is_what_the_function_writes_gives_what_eager_gives(device):
    class Accumulator:
        def __init__(self):
            self.total = ones()

        def step(self, x):
            self.total.add_(1)
            return x + self.total

    mine, theirs = Accumulator(), Accumulator()
    graph = gfxgraph.graphed(mine.step)
    for _ in range(3):
        torch.testing.assert_close(graph(ones()), theirs.step(ones()))
    for _ in range(3):
        torch.testing.assert_close(graph(mine.total), theirs.step(theirs.total))


@torch.no_grad()
def test_static_inputs_in_each_others_place_are_exchanged(device):
    graph = gfxgraph.graphed(lambda a, b: a - b)
    graph(ones(), ones())
    (a, b), _ = graph.static_inputs(ones(), ones())
    a.fill_(1.0)
    b.fill_(4.0)
    assert graph(b, a).tolist() == [3.0] * 3


@torch.no_grad()
def test_an_explicit_generator_gives_the_numbers_of_eager(device):
    class Noisy:
        def __init__(self):
            self.generator = torch.Generator(device).manual_seed(3)

        def step(self, x):
            return x + torch.rand(3, generator=self.generator, device=device)

    mine, theirs = Noisy(), Noisy()
    graph = gfxgraph.graphed(mine.step)
    torch.testing.assert_close(
        [graph(ones()) for _ in range(4)], [theirs.step(ones()) for _ in range(4)]
    )
    assert graph.stats().replays == 3


@torch.no_grad()
def test_pythons_random_numbers_are_drawn_once_a_call(device):
    graph = gfxgraph.graphed(lambda x: x * random.random())
    random.seed(5)
    got = [float(graph(ones())[0]) for _ in range(4)]
    random.seed(5)
    assert got == pytest.approx([random.random() for _ in range(4)])


@torch.no_grad()
def test_state_in_sets_classes_and_memory_is_advanced_once_a_call(device):
    class Stateful:
        calls = 0

        def __init__(self):
            self.seen = set()
            self.memory = ones()

        def step(self, x):
            type(self).calls += 1
            self.seen.add(len(self.seen))
            self.memory.data = self.memory.data * 2
            return x * self.memory

    stateful = Stateful()
    graph = gfxgraph.graphed(stateful.step)
    for n in range(1, 4):
        assert graph(ones()).tolist() == [2.0**n] * 3
        assert Stateful.calls == len(stateful.seen) == n


@torch.no_grad()
def test_a_graph_without_arguments_inside_another_runs_once_a_call(device):
    cache = torch.zeros(1, device=device)
    inner = gfxgraph.graphed(lambda: cache.add_(1))
    inner(), inner()
    outer = gfxgraph.graphed(lambda x: (inner(), x * 2)[1])
    for n in range(3, 6):
        outer(ones())
        assert cache.item() == n


@torch.no_grad()
def test_a_shape_changed_in_place_is_changed_in_every_call(device):
    graph = gfxgraph.graphed(lambda x: x.squeeze_() * 2)
    for _ in range(3):
        x = ones(1, 3)
        assert graph(x).shape == x.shape == (3,)


@torch.no_grad()
@pytest.mark.parametrize(
    "argument",
    [
        collections.defaultdict(list),
        {1.0: 1, 2.0: 2},
        functools.reduce(lambda inner, _: [inner], range(300), 1),
    ],
    ids=["defaultdict", "float keys", "nested 300 deep"],
)
def test_odd_arguments_are_no_reason_to_fail(device, argument):
    graph = gfxgraph.graphed(lambda odd, x: x * 2)
    for _ in range(3):
        assert graph(argument, ones()).tolist() == [2.0] * 3


@torch.no_grad()
def test_an_object_that_is_new_in_each_call_is_not_captured_for_ever(device):
    class Cache:
        pass

    graph = gfxgraph.graphed(lambda cache, x: x * 2 if hash(cache) else x)
    for _ in range(30):
        assert graph(Cache(), ones()).tolist() == [2.0] * 3
    stats = graph.stats()
    assert stats.captures < 10 and any(
        "argument cache (Cache) differs in every call" in r for r in stats.fallbacks
    )


@torch.no_grad()
def test_a_number_that_changes_in_each_call_is_not_captured_for_ever(device):
    class Counting:
        def __init__(self):
            self.count = 0

        @gfxgraph.graphed
        def step(self, x):
            return x * self.count

    counting = Counting()
    for n in range(30):
        counting.count = n
        assert counting.step(ones()).tolist() == [float(n)] * 3
    stats = counting.step.stats()
    assert stats.captures < 12 and any("count" in reason for reason in stats.fallbacks)


# ---- threads


@torch.no_grad()
@pytest.mark.parametrize("graphed_inside", [False, True])
def test_work_of_another_thread_is_not_baked_in_and_does_not_hang(device, graphed_inside):
    inner = gfxgraph.graphed(lambda x: x * 2) if graphed_inside else lambda x: x * 2
    inner(ones()), inner(ones())
    with ThreadPoolExecutor(1) as pool:

        def call(x):
            with torch.no_grad():
                result = inner(x)
                torch.cuda.synchronize() if device == "cuda" else None
                return result

        outer = gfxgraph.graphed(lambda x: pool.submit(call, x).result(30) + 1)
        for n in range(3):
            assert outer(ones() * n).tolist() == [2.0 * n + 1] * 3
        (reason,) = outer.stats().fallbacks
        assert "on another thread" in reason


def test_a_reset_in_another_thread_is_no_reason_to_run_eagerly(device):
    net = nn.Linear(8, 8).to(device)
    graph = gfxgraph.graphed(net)
    wrong: list[object] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for n in range(100):
                x = torch.randn(1 + (n * seed) % 5, 8, generator=generator).to(device)
                if not torch.allclose(graph(x), net(x), atol=1e-4):
                    wrong.append((seed, n))
                wrong.extend(graph.stats().fallbacks)
                if n % 20 == seed:
                    graph.reset()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads take turns often, so that the races are met
    try:
        on_threads(work, range(8))
    finally:
        sys.setswitchinterval(before)
    assert not wrong


@torch.no_grad()
def test_threads_that_capture_at_once_leave_stdout_as_it_was(device, capsys):
    before = sys.stdout
    barrier = threading.Barrier(6)

    def work(n):
        with torch.no_grad():
            barrier.wait()
            for size in range(1, 5):
                graph = gfxgraph.graphed(lambda x: x * n)
                graph(ones(size)), graph(ones(size))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in itertools.chain(threads):
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.stdout is before and not current_device().is_capturing()
    print("heard")
    assert capsys.readouterr().out == "heard\n"


@torch.no_grad()
def test_a_property_and_a_call_by_class_do_not_keep_the_instance(device):
    import gc
    import weakref

    class Parent:
        @property
        @gfxgraph.graphed
        def double(self):
            return self.weight * 2

        @gfxgraph.graphed
        def step(self, x):
            return x * self.weight

    class Child(Parent):
        def __init__(self):
            self.weight = ones()

        def both(self, x):
            return Parent.step(self, x) + self.double

        @classmethod
        @gfxgraph.graphed
        def make(cls, x):
            return x + 1

    child = Child()
    for _ in range(3):
        assert child.both(ones()).tolist() == [3.0] * 3
        assert Child.make(ones()).tolist() == [2.0] * 3
    gone = weakref.ref(child)
    del child
    gc.collect()
    assert gone() is None


class WithSlot:
    __slots__ = ("list",)


def in_a_slot(item):
    holder = WithSlot()

    def put(value):
        holder.list = value

    put(item)
    return lambda: holder.list, put


def in_a_tuple_in_a_slot(item):
    holder = WithSlot()

    def put(value):
        holder.list = (value, 1)

    put(item)
    return lambda: holder.list[0], put


def in_this_thread(item):
    local = threading.local()

    def put(value):
        local.list = value

    put(item)
    return lambda: local.list, put


def in_a_context_variable(item):
    variable = contextvars.ContextVar("variable")
    variable.set(item)
    return variable.get, variable.set


@pytest.mark.parametrize(
    "held", [in_a_slot, in_a_tuple_in_a_slot, in_this_thread, in_a_context_variable]
)
def test_a_list_that_takes_the_place_of_an_equal_one_gets_what_calls_write(held):
    get, put = held([0.0])

    def fn(x):
        get()[0] = x * 2
        return x * 3

    fast = gfxgraph.graphed(fn)
    for n in range(6):
        if n == 4:
            put([*get()])
        fast(ones() * n)
        assert torch.equal(get()[0], ones() * n * 2)
    assert fast.stats().replays


class Failure(Exception):
    """An exception with attributes."""


OWNERS = {
    "function": lambda: lambda: None,
    "partial": lambda: functools.partial(print),
    "exception": ValueError,
    "exception of the program": Failure,
    "ordered dict": collections.OrderedDict,
    "static method": lambda: staticmethod(print),
    "class method": lambda: classmethod(print),
    "tensor": lambda: torch.ones(1),
}
ASKED = {
    "attribute": lambda item: item.k,
    "vars()": lambda item: vars(item)["k"],
    "getattr()": lambda item: getattr(item, "k", 2.0),
    "hasattr()": lambda item: 2.0 if hasattr(item, "more") else 3.0,
    "in C": operator.attrgetter("k"),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("owner", OWNERS)
@torch.no_grad()
def test_attributes_in_another_dict_are_those_of_now(device, owner, asked):
    item, ask = OWNERS[owner](), ASKED[asked]

    def fn(x):
        return x * ask(item)

    item.__dict__ = {"k": 1.0}
    graph, x = gfxgraph.graphed(fn), torch.ones(2, device=device)
    for own in ({"k": 1.0}, None, None, {"k": 5.0}, {"k": 5.0, "more": 1}, None):
        if own is not None:
            item.__dict__ = own
        assert torch.equal(graph(x), fn(x))
