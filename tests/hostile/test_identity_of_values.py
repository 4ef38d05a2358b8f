"""Which object a plain value is, weak references to arguments, and results that share memory."""

from __future__ import annotations

import operator
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.weak import WeakTensorKeyDictionary

import gfxgraph

AUTO = "".join(["au", "to"])
LARGE, NAN = int("1000"), float("nan")
STATE = types.SimpleNamespace(mode=AUTO)


def text(x, value):
    return x * (1 if value is AUTO else 2)


def large_number(x, value):
    return x * (1 if value is LARGE else 2)


def number_with_a_fraction(x, value):
    return x * (1 if value is NAN else 2)


def not_a_number_in_a_list(x, value):
    return x * (1 if value in [NAN] else 2)


def state(x, value):
    STATE.mode = value
    return x * (1 if STATE.mode is AUTO else 2)


def two_arguments(x, value):
    return x * (1 if value[0] is value[1] else 2)


VALUES = {
    text: lambda n: AUTO if n % 2 else "".join(["aut", "o"]),
    large_number: lambda n: LARGE if n % 2 else int("1000"),
    number_with_a_fraction: lambda n: NAN if n % 2 else float("nan"),
    not_a_number_in_a_list: lambda n: NAN if n % 2 else float("nan"),
    state: lambda n: AUTO if n % 2 else "".join(["a", "uto"]),
    two_arguments: lambda n: (AUTO, AUTO) if n % 2 else (AUTO, "".join(["a", "uto"])),
}


@pytest.mark.parametrize("options", [{}, {"buckets": [4, 8]}], ids=["exact", "padded"])
def test_a_tensor_without_elements_that_is_passed_twice_is_one_tensor(device, options):
    def fn(x, a, b):
        return x * (2 if a is b else 3)

    graph = gfxgraph.graphed(fn, **options)
    for n in range(10):
        x, a = torch.randn(3, 2, device=device), torch.empty(3, 0, device=device)
        b = a if n % 2 else torch.empty(3, 0, device=device)
        with torch.no_grad():
            torch.testing.assert_close(graph(x, a, b), fn(x, a, b))
    assert graph.stats().captures == 2 and graph.stats().replays >= 6


@pytest.mark.parametrize("fn", VALUES, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("first", [0, 1])
def test_equal_values_may_be_other_objects_in_a_later_call(fn, first):
    fast, x = gfxgraph.graphed(fn), torch.ones(2)
    for n in range(6):
        value = VALUES[fn](n + first)
        assert torch.equal(fast(x, value), fn(x, value))


def test_who_asks_for_none_a_small_number_or_another_text_keeps_the_graph():
    def fn(x, none, small, mode, dtype):
        x = x * (2 if none is None else 3) * (5 if small is LARGE else 7)
        return x * (11 if mode is AUTO else 13) * (17 if dtype is torch.float32 else 19)

    fast, x = gfxgraph.graphed(fn), torch.ones(2)
    for _ in range(4):
        call = x, None, 3, "other", torch.float32
        assert torch.equal(fast(*call), fn(*call))
    assert fast.stats().replays == 3


def in_an_attribute(held, x):
    held.one = weakref.ref(x)


def in_a_list(held, x):
    held.many[:] = [weakref.ref(x)]


def in_a_dict(held, x):
    held.named["x"] = weakref.ref(x)


def with_a_callback(held, x):
    held.one = weakref.ref(x, lambda ref: None)


@pytest.mark.parametrize("keep", [in_an_attribute, in_a_list, in_a_dict, with_a_callback])
def test_a_weak_reference_to_an_argument_is_one_to_that_of_the_call(keep):
    held = types.SimpleNamespace(one=None, many=[], named={})

    def fn(x):
        keep(held, x)
        return x * 2

    fast = gfxgraph.graphed(fn)
    for n in range(5):
        x = torch.full((2,), float(n))
        assert torch.equal(fast(x), x * 2)
        (ref,) = filter(None, [held.one, *held.many, *held.named.values()])
        assert ref() is x


def test_a_weak_reference_to_an_object_of_the_program_is_stored_again():
    class Thing:
        pass

    held, thing = types.SimpleNamespace(one=None), Thing()

    def fn(x):
        held.one = weakref.ref(thing)
        return x * 2

    fast = gfxgraph.graphed(fn)
    for _ in range(4):
        held.one = None
        fast(torch.ones(2))
        assert held.one() is thing


def conjugated(x):
    y = x * 2
    return y, y.conj(), y[:1].conj(), y[1:]


def conjugated_first(x):
    y = (x * 2).conj()
    return y, y.conj(), y[1:]


def negated(x):
    y = x * 2
    return y, torch._neg_view(y), y[1:]


def imaginary(x):
    y = (x * 2j).conj()
    return y.imag, y.imag[1:]


@pytest.mark.parametrize("fn", [conjugated, conjugated_first, negated, imaginary])
def test_results_that_conjugate_or_negate_one_another_share_memory(fn):
    fast = gfxgraph.graphed(fn)
    for n in range(4):
        x = torch.arange(3.0).to(torch.complex64) + n + 1j
        got, expected = fast(x), fn(x)
        for results in (got, expected):
            results[0].add_(5)
        for a, b in zip(got, expected, strict=True):
            assert torch.equal(a, b) and (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg())
            assert a.stride() == b.stride()
    assert fast.stats().replays > 0


class Outside:
    """What a function knows of the tensors that it may be given."""

    def __init__(self) -> None:
        self.table: dict[Any, float] = {}
        self.some: set[torch.Tensor] = set()
        self.listed: list[torch.Tensor] = []
        self.one: torch.Tensor | None = None
        self.numbers: set[int] = set()
        self.weak: Any = WeakTensorKeyDictionary()

    def learn(self, x: torch.Tensor) -> None:
        self.table[x] = self.table[x, 0] = self.weak[x] = 2.0
        self.some.add(x)
        self.listed.append(x)
        self.one = x
        self.numbers.add(id(x))

    def by_try(self, x: torch.Tensor) -> float:
        try:
            return self.table[x]
        except KeyError:
            return 5.0

    def by_list(self, x: torch.Tensor) -> bool:
        try:
            return x in self.listed
        except RuntimeError:  # two elements are no bool
            return False


ASKED: dict[str, Callable[[Outside, torch.Tensor], Any]] = {
    "get": lambda known, x: known.table.get(x, 5.0),
    "a subscript": lambda known, x: known.by_try(x),
    "in a tuple": lambda known, x: known.table.get((x, 0), 5.0),
    "setdefault of a copy": lambda known, x: dict(known.table).setdefault(x, 5.0),
    "a set": lambda known, x: len({x} & known.some),
    "isdisjoint": lambda known, x: known.some.isdisjoint([x]),
    "in a list": lambda known, x: known.by_list(x),
    "is": lambda known, x: any(x is one for one in known.listed),
    "operator.is_": lambda known, x: operator.is_(x, known.one),
    "hash": lambda known, x: hash(x) in map(hash, known.listed),
    "id": lambda known, x: id(x) in known.numbers,
    "an alias": lambda known, x: known.one is not None and torch._C._is_alias_of(x, known.one),
    "the same memory": lambda known, x: known.one is not None and x.is_set_to(known.one),
    "the object in C": lambda known, x: x._cdata in [one._cdata for one in known.listed],
    "a weak dictionary": lambda known, x: known.weak.get(x, 5.0),
}


@pytest.mark.parametrize("is_known", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ASKED)
@torch.no_grad()
def test_which_tensor_an_argument_is_no_graph_can_tell(device, name, is_known):
    known, ask = Outside(), ASKED[name]

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * (1.0 + ask(known, x))

    given = [torch.full((2,), n + 1.0, device=device) for n in range(3)]
    graphed = gfxgraph.graphed(fn)
    for n in range(9):
        if n == (0 if is_known else 4):
            known.learn(given[1])
        assert torch.equal(graphed(given[n % 3]), fn(given[n % 3])), n
    assert graphed.stats().fallbacks


@torch.no_grad()
def test_which_of_its_arguments_is_which_a_graph_can_tell(device):
    weights = {"one": torch.ones(2, device=device)}

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        order, seen = {x: 1.0, y: 2.0}, {x, y, x}
        own = [x, *weights.values(), y]
        return x * order[y] + y * len(seen) + weights.get("one") * len(own) * (x in seen)

    x, y = (torch.rand(2, device=device) for _ in range(2))
    graphed = gfxgraph.graphed(fn)
    for args in (x, y), (y, x), (x, x), (x, y):
        assert torch.equal(graphed(*args), fn(*args))
    assert graphed.stats().replays and not graphed.stats().fallbacks


LOOKED_UP: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a subscript": lambda table, i: table[i],
    "with a slice": lambda table, i: table[i, 1:],
    "getitem": lambda table, i: operator.getitem(table, i),
    "a comparison": lambda table, i: (table[:2, 0] == i) * 1.0,
    "both": lambda table, i: table[i] @ table[(i, slice(None))].mT,
    "in a list": lambda table, i: [table, table * 2][1][i],
    "sums": lambda table, i: sum([table[i], table[i] * 2]),
}


@pytest.mark.parametrize("name", LOOKED_UP)
@torch.no_grad()
def test_rows_of_a_table_are_no_question_of_identity(device, name):
    table, fn = torch.randn(5, 3, device=device), LOOKED_UP[name]
    graphed = gfxgraph.graphed(lambda i: fn(table, i))
    for index in [0, 1], [0, 1], [4, 2], [3, 3]:
        i = torch.tensor(index, device=device)
        assert torch.equal(graphed(i), fn(table, i))
    assert graphed.stats().replays == 3 and not graphed.stats().fallbacks
