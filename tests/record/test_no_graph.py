"""What ``no_graph`` functions do to Python objects, and to tensors that others hold."""

from __future__ import annotations

import numpy
import pytest
import torch

import gfxgraph
from tests.helpers.sampled import sampled
from tests.hostile.hostile_no_graph import CASES as GIVEN
from tests.hostile.hostile_no_graph import EAGER, eq

CASES = {}


def case(reason):
    """A function that makes one; ``reason`` is part of why it runs eagerly."""

    def add(make):
        CASES[make.__name__] = make, reason
        return make

    return add


@case("h(), which is marked no_graph, changes box[0]")
def rebinds_what_is_read(device):
    box = [torch.ones(2, device=device)]

    @gfxgraph.no_graph
    def h(x):
        box[0] = x * 2

    def fn(x):
        h(x)
        return box[0] + 0

    return fn


@case("changes argument 0[0] in Python, in its arguments")
def appends_to_a_list_that_it_is_given(device):
    @gfxgraph.no_graph
    def h(found):
        found.append(1)

    def fn(x):
        found = []
        h(found)
        return x * len(found)

    return fn


@case("changes argument 0[0].n in Python, in its arguments")
def writes_to_a_dict_in_a_tuple(device):
    @gfxgraph.no_graph
    def h(pair):
        pair[0]["n"] = 3

    def fn(x):
        found = {"n": 1}
        h((found, x))
        return x * found["n"]

    return fn


@case("changes argument 0.scale")
def is_a_method_that_changes_its_object(device):
    class Model:
        scale = 1.0

        @gfxgraph.no_graph
        def h(self):
            self.scale += 1

        def __call__(self, x):
            self.h()
            return x * self.scale

    return Model()


@case("changes argument 0")
def fills_an_array_that_it_is_given(device):
    @gfxgraph.no_graph
    def h(numbers):
        numbers += 1

    def fn(x):
        numbers = numpy.ones(1)
        h(numbers)
        return x * float(numbers[0])

    return fn


@case("gives out or keeps a tensor")
def gives_its_buffer_twice(device):
    buffer = torch.zeros(2, device=device)

    @gfxgraph.no_graph
    def h(x):
        return buffer.copy_(x)

    def fn(x):
        first = h(x)
        second = h(x * 2)
        return first + second

    return fn


@case("gives out or keeps a tensor")
def gives_one_tensor_in_two_places(device):
    @gfxgraph.no_graph
    def h(x):
        y = x * 3
        return y, y

    def fn(x):
        first, second = h(x)
        first.add_(1)
        return second + 0

    return fn


@case("gives out or keeps a tensor")
def keeps_its_argument_and_writes_to_it_later(device):
    kept = []

    @gfxgraph.no_graph
    def keep(y):
        kept.append(y)

    @gfxgraph.no_graph
    def bump():
        kept[-1].add_(1)

    def fn(x):
        y = x * 2
        keep(y)
        bump()
        return y + 0

    return fn


@case("has changed scale[0]")
def changes_what_is_read_in_a_later_call(device):
    scale, calls = [2.0], []

    @gfxgraph.no_graph
    def h(x):
        calls.append(1)
        if len(calls) % 4 == 0:
            scale[0] += 1

    def fn(x):
        h(x)
        return x * scale[0]

    return fn


@case("has changed its arguments")
def changes_its_arguments_in_a_later_call(device):
    calls = []

    @gfxgraph.no_graph
    def h(found, y):
        calls.append(1)
        if len(calls) > 3:
            found.append(y)

    def fn(x):
        found, y = [], x * 2
        h(found, y)
        return y + sum(found)

    return fn


@case("called in torch.vmap")
def is_called_in_vmap(device):
    h = gfxgraph.no_graph(lambda x: x * 2)
    return lambda x: torch.vmap(h)(x)


class State:
    def __init__(self, device):
        self.h, self.n = torch.zeros(2, device=device), 0


@case("runs in the middle of a call that changes something")
def reads_what_the_call_has_stored(device):
    state = State(device)

    @gfxgraph.no_graph
    def h():
        return state.h + 1

    def fn(x):
        state.h = x * 2
        return h() + 1

    return fn


@case("runs in the middle of a call that changes something")
def rebinds_once_what_the_call_stores(device):
    state, calls = State(device), [0]

    @gfxgraph.no_graph
    def h():
        calls[0] += 1
        if calls[0] == 6:
            state.h = torch.zeros(2, device=device)

    def fn(x):
        state.h = state.h + x
        h()
        return state.h * 1

    return fn


@case("runs in the middle of a call that stores something")
def writes_in_place_to_what_the_call_stores(device):
    state = State(device)

    @gfxgraph.no_graph
    def h():
        state.h.add_(5)

    def fn(x):
        y = x * 2
        h()
        state.h = state.h + y
        return state.h + 0

    return fn


@case("runs in the middle of a call that changes something")
def is_given_a_counter(device):
    state, log = State(device), State(device)

    @gfxgraph.no_graph
    def h(n):
        assert type(n) is int
        log.n = n

    def fn(x):
        state.n += 1
        y = x * 2
        h(state.n)
        return y + 1

    return fn


@case("raises ValueError")
def raises_and_the_function_catches_it(device):
    @gfxgraph.no_graph
    def h(x):
        if int(x[0]) % 2:
            raise ValueError
        return x + 10

    def fn(x):
        try:
            return h(x * 1)
        except ValueError:
            return -x

    return fn


@pytest.mark.parametrize("mode", sampled([torch.no_grad, torch.inference_mode], 2))
@pytest.mark.parametrize("name", CASES)
def test_each_call_gives_what_eager_gives_and_the_reason_names_the_function(device, name, mode):
    make, reason = CASES[name]
    with mode():
        eager, graph = make(device), gfxgraph.graphed(make(device))
        for n in range(1, 9):
            x = torch.full((2,), float(n), device=device)
            assert torch.equal(graph(x), eager(x))
    assert any(reason in why and "no_graph" in why for why in graph.stats().fallbacks)


@torch.no_grad()
def test_what_is_its_own_costs_no_graph(device):
    counted, names, buffer = [], {}, torch.zeros(2, device=device)

    @gfxgraph.no_graph
    def h(x, found):
        counted.append(x)
        names[len(counted)] = found["name"]
        return buffer.copy_(x), x * len(counted)

    def fn(x):
        first, second = h(x * 2, {"name": "a"})
        second.add_(1)
        return first + second

    graph = gfxgraph.graphed(fn)
    for n in range(1, 7):
        x = torch.full((2,), float(n), device=device)
        assert torch.equal(graph(x), x * 2 * (n + 1) + 1)
    assert graph.stats().replays == 5 and list(names) == [1, 2, 3, 4, 5, 6]
    assert [t[0].item() for t in counted] == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]


@torch.no_grad()
def test_an_argument_that_a_function_reaches_itself_holds_what_the_call_has_stored(device):
    """A no_graph function in the middle of the call finds it there."""

    def make():
        held = {"h": torch.zeros(2, device=device)}

        @gfxgraph.no_graph
        def h():
            return held["h"] + 0

        def fn(given, x):
            given["h"] = x * 2
            return h() + 1

        return held, fn

    (ours, fn), (theirs, eager) = make(), make()
    graph = gfxgraph.graphed(fn)
    for n in range(6):
        x = torch.full((2,), float(n), device=device)
        assert torch.equal(graph(ours, x), eager(theirs, x))
        assert torch.equal(ours["h"], theirs["h"])


@torch.no_grad()
def test_an_operator_that_raises_and_is_caught_is_never_left_out(device):
    def fn(x):
        try:
            return torch.linalg.cholesky(torch.eye(2, device=device) - x) + 0
        except RuntimeError:
            return -x

    graph = gfxgraph.graphed(fn)
    for scale in (2.0, 0.0, 0.2, 0.0, 0.1):
        x = torch.eye(2, device=device) * scale
        torch.testing.assert_close(graph(x), fn(x))
    assert graph.stats().fallbacks


@pytest.mark.parametrize("mode", sampled([torch.no_grad, torch.inference_mode], 2))
@pytest.mark.parametrize("name", GIVEN)
def test_what_a_function_is_given_is_what_eager_gives_it(device, name, mode):
    graph = None
    with mode(), torch.device(device):
        worlds = [GIVEN[name](), GIVEN[name]()]
        for n in range(1, 9):
            views = []
            for fn, arguments, look in worlds:
                given = arguments(n)
                if fn is worlds[1][0]:
                    fn = graph = graph or gfxgraph.graphed(fn)
                with torch.device(device):
                    result = fn(*given)
                views.append([result.clone(), look(given, result)])
            assert eq(*views), (n, views)
    assert graph is not None
    reasons = graph.stats().fallbacks
    if name in EAGER:
        assert not graph.stats().replays and all(EAGER[name] in reason for reason in reasons)
    else:
        assert graph.stats().replays > 1


@torch.no_grad()
@pytest.mark.parametrize("part", [lambda y: y, lambda y: y.view(-1)[1:]])
def test_a_tensor_that_a_function_keeps_in_a_later_call_is_the_one_that_the_call_returns(
    device, part
):
    calls, kept = [], []

    @gfxgraph.no_graph
    def h(x):
        y = x + 1
        calls.append(None)
        if len(calls) > 4:
            kept.append(part(y))
        return {"a": [y, y * 2]}

    graph = gfxgraph.graphed(lambda x: h(x * 2)["a"])
    x = torch.ones(2, 3, device=device)
    for n in range(1, 8):
        first, second = graph(x)
        assert torch.equal(first, x * 3) and torch.equal(second, x * 6) and len(calls) == n
        if n > 4:
            first.zero_()
            assert not kept[-1].any()
    assert graph.stats().replays == 3
    assert all("keeps a tensor that it gives" in reason for reason in graph.stats().fallbacks)


@pytest.mark.parametrize("size", [4, 1 << 18])  # a large one is often full of zeros
def test_what_nobody_has_written_to_may_be_given_to_one_call_after_the_other(device, size):
    """What lies there differs from run to run, and may well be what is written there."""

    @gfxgraph.no_graph
    def fill(x, *, into):
        into.copy_(x)

    @gfxgraph.graphed
    def f(x):
        first, second = torch.empty_like(x), torch.empty_like(x)
        fill(into=first, x=x)
        fill(first, into=second)
        return first + second

    for n in range(3):
        x = torch.full((size,), float(n), device=device)
        assert torch.equal(f(x), 2 * x)
    assert f.stats().replays == 2, f.stats().fallbacks
