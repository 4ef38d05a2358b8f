"""What code in C asks, and what ``__init__`` of an object in C changes, between two calls."""

from __future__ import annotations

import codecs
import collections
import functools
import sqlite3
import struct
import types
import warnings

import numpy as np
import pytest
import torch

import gfxgraph

ZERO = np.array([0.0])


class Truncated:
    def __trunc__(self):
        return 2

    def __float__(self):
        return Number(2.0)


class Own(RuntimeWarning):
    pass


class Number(float):
    pass


def or_3(do, error):
    def fn(x):
        try:
            do(x)
        except error:
            return x * 3
        return x * 2

    return fn


def divided():
    return or_3(lambda x: ZERO / ZERO, FloatingPointError), lambda: np.seterr(all="raise")


def divided_numbers():
    box = types.SimpleNamespace(number=np.float64(0))
    fn = or_3(lambda x: box.number / box.number, FloatingPointError)
    return fn, lambda: np.seterr(all="raise")


def divided_with_its_own_setting():
    box = types.SimpleNamespace(errors=np.errstate)

    def divide(x):
        with box.errors(all="ignore"):
            ZERO / ZERO
        ZERO / ZERO

    return or_3(divide, FloatingPointError), lambda: np.seterr(all="raise")


def summed():
    box = types.SimpleNamespace(big=np.array([1e308, 1e308]))
    return or_3(lambda x: box.big.sum(), FloatingPointError), lambda: np.seterr(all="raise")


def divided_with_a_callback():
    def fail(*given):
        raise KeyError

    def change():
        np.seterrcall(fail)
        np.seterr(all="call")

    return or_3(lambda x: ZERO / ZERO, KeyError), change


def warned_of_by_numpy():
    np.seterr(all="warn")
    fn = or_3(lambda x: ZERO / ZERO, RuntimeWarning)
    return fn, lambda: warnings.simplefilter("error")


def warned_of_by_a_conversion():
    held = Truncated()
    return or_3(lambda x: float(held), DeprecationWarning), lambda: warnings.simplefilter("error")


def warned_of_by_eval():
    fn = or_3(lambda x: eval(r"'\d'"), SyntaxError)
    return fn, lambda: warnings.simplefilter("error")


def of_class(read, change, base=object):
    class Held(base):
        value = property(lambda self: 2.0)
        cls_value = classmethod(lambda cls: 2.0)
        fixed = staticmethod(lambda: 2.0)

    held = Held()
    return lambda x: x * read(held), lambda: change(vars(Held))


def a_property():
    return of_class(lambda held: held.value, lambda own: own["value"].__init__(lambda self: 3.0))


def a_property_of_a_module():
    def change(own):
        own["value"].__init__(lambda self: 3.0)

    return of_class(lambda held: held.value, change, torch.nn.Module)


def a_property_of_a_base():
    class Base:
        value = property(lambda self: 2.0)

    class Derived(Base):
        @property
        def value(self):
            return super().value

    held = Derived()
    return lambda x: x * held.value, lambda: vars(Base)["value"].__init__(lambda self: 3.0)


def a_setter():
    class Held:
        def put(self, value):
            self.held = value

        value = property(None, put)

    held = Held()

    def fn(x):
        held.value = 2.0
        return x * held.held

    def change():
        vars(Held)["value"].__init__(None, lambda self, value: Held.put(self, value + 1))

    return fn, change


def a_class_method():
    return of_class(
        lambda held: held.cls_value(), lambda own: own["cls_value"].__init__(lambda cls: 3.0)
    )


def a_static_method():
    return of_class(lambda held: held.fixed(), lambda own: own["fixed"].__init__(lambda: 3.0))


def a_descriptor_that_is_called():
    held = property(lambda self: 2.0)
    return lambda x: x * held.__get__(x), lambda: held.__init__(lambda self: 3.0)


def size_of_a_struct():
    held = struct.Struct("<H")
    return lambda x: x * held.size, lambda: held.__init__("<I")


def packed():
    held = struct.Struct("<H")
    return lambda x: x * len(held.pack(1)), lambda: held.__init__("<I")


def a_super_that_is_kept():
    item = Nearest()
    held = super(Nearest, item)
    return lambda x: x * held.value, lambda: super.__init__(held, Nearer, item)


CASES = {
    make.__name__: make
    for make in (
        *(divided, divided_numbers, divided_with_its_own_setting, summed),
        *(divided_with_a_callback, warned_of_by_numpy, warned_of_by_a_conversion),
        *(warned_of_by_eval, a_property, a_property_of_a_module, a_property_of_a_base, a_setter),
        *(a_class_method, a_static_method, a_descriptor_that_is_called, size_of_a_struct, packed),
        *(a_super_that_is_kept,),
    )
}


@pytest.fixture(autouse=True)
def settings_as_before():
    call = np.geterrcall()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        np.seterrcall(call)


def after_each_call(make, wrap, x):
    fn, change = make()
    called, found = wrap(fn), []
    with np.errstate(), warnings.catch_warnings():
        for n in range(6):
            if n == 4:
                change()
            found.append(called(x).tolist())
    return found, called


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_what_is_changed_in_place_is_never_stale(device, name):
    x = torch.ones(1, device=device)
    eager, _ = after_each_call(CASES[name], lambda fn: fn, x)
    assert eager[3] != eager[4]
    found, _ = after_each_call(CASES[name], gfxgraph.graphed, x)
    assert found == eager


@torch.no_grad()
def test_what_is_set_and_put_back_between_calls_keeps_the_graph(device):
    graph, x = gfxgraph.graphed(lambda x: (ZERO + ZERO, x * 2)[1]), torch.ones(1, device=device)
    for _ in range(6):
        graph(x)
        np.seterr(**np.seterr(all="raise"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Own)
            graph(x)
    assert graph.stats().captures == 1
    assert graph.stats().replays >= 10


class Adapted:
    pass


ADAPTER = (Adapted, sqlite3.PrepareProtocol)


def adapts():
    found = sqlite3.adapters.pop(ADAPTER, None)
    return found is not None


def handler(error):
    return "?", error.end


def other_handler(error):
    return "!!", error.end


def handles():
    try:
        return "\u00e9".encode("ascii", "gfxgraph_test")
    except LookupError:
        return None
    finally:
        codecs.register_error("gfxgraph_test", other_handler)


def initialized(held, first, second, state):
    """What a call does to ``held``, and what was there after it; then that is as it was."""

    def asked():
        found = state(held)
        held.__init__(*first)
        return found

    return lambda: held.__init__(*second), asked


def two(*_):
    return 2.0


def three(*_):
    return 3.0


class Kept:
    value = 2.0


class Nearer(Kept):
    value = 3.0


class Nearest(Nearer):
    pass


def a_kept_super():
    item = Nearest()
    held = super(Nearest, item)

    def asked():
        found = held.value
        super.__init__(held, Nearest, item)
        return found

    return lambda: super.__init__(held, Nearer, item), asked


# What a call does; and what gives what it has left, and puts back what was there before.
WRITES = {
    "a property": lambda: initialized(property(two), (two,), (three,), lambda p: p.fget(p)),
    "a struct": lambda: initialized(
        struct.Struct("<H"), ("<H",), ("<I",), lambda held: held.format
    ),
    "a module": lambda: initialized(
        types.ModuleType("one"), ("one",), ("other",), lambda held: held.__name__
    ),
    "a super that is kept": a_kept_super,
    "a handler of errors": lambda: (
        lambda: codecs.register_error("gfxgraph_test", handler),
        handles,
    ),
    "an adapter": lambda: (lambda: sqlite3.register_adapter(Adapted, str), adapts),
}


@pytest.mark.parametrize("name", WRITES)
@torch.no_grad()
def test_what_a_call_changes_in_place_is_changed_by_each(device, name):
    x, found = torch.ones(1, device=device), []
    for wrap in (lambda fn: fn, gfxgraph.graphed):
        write, asked = WRITES[name]()

        def fn(x, write=write):
            write()
            return x * 2

        asked()
        called = wrap(fn)
        found.append([(called(x).tolist(), asked()) for _ in range(6)])
    assert found[0] == found[1]


def _takes_and_puts_back(d):
    d["a"] = d.pop("a")


def _deletes_and_stores(d):
    value = d["a"]
    del d["a"]
    d["a"] = value


def _empties_and_fills(d):
    held = sorted(d.items(), reverse=True)
    d.clear()
    d.update(held)


@pytest.mark.parametrize("sizes", [(3,), (2, 3, 5)])
@pytest.mark.parametrize(
    "make", [dict, collections.OrderedDict, functools.partial(collections.defaultdict, int)]
)
@pytest.mark.parametrize("change", [_takes_and_puts_back, _deletes_and_stores, _empties_and_fills])
@torch.no_grad()
def test_what_is_taken_out_of_a_dict_and_put_back_comes_last_in_each_call(
    device, change, make, sizes
):
    def made():
        held = make()
        held.update(a=1, b=2)

        def fn(x):
            change(held)
            return x * 2

        return fn, held

    (fn, held), (twin, expected) = made(), made()
    graph = gfxgraph.graphed(fn)
    for n in range(12):
        if n % 3 == 2:  # the program changes the order
            for d in (held, expected):
                d["b"] = d.pop("b")
        x = torch.ones(sizes[n % len(sizes)], 4, device=device)
        assert torch.equal(graph(x), twin(x))
        assert list(held) == list(expected)


@pytest.mark.parametrize("sizes", [(3,), (2, 3, 5)])
@torch.no_grad()
def test_so_does_an_attribute_that_is_deleted_and_set(device, sizes):
    def made():
        held = types.SimpleNamespace(a=1, b=2)

        def fn(x):
            value = held.a
            del held.a
            held.a = value
            return x * value

        return fn, held

    (fn, held), (twin, expected) = made(), made()
    graph = gfxgraph.graphed(fn)
    for n in range(12):
        if n % 3 == 2:
            for item in (held, expected):
                item.b = vars(item).pop("b")
        x = torch.ones(sizes[n % len(sizes)], 4, device=device)
        assert torch.equal(graph(x), twin(x))
        assert list(vars(held)) == list(vars(expected))
