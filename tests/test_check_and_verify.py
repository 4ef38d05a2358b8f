"""``check``, ``verify`` and ``graphed`` agree on a function, and leave the program as it was."""

from __future__ import annotations

import contextvars
import csv
import enum
import functools
import itertools
import os
import random
import re
import secrets
import signal
import sys
import time
import uuid

import numpy as np
import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.errors import ArgumentError

LOOKS = [gfxgraph.check, gfxgraph.verify]
looks = pytest.mark.parametrize("look", LOOKS, ids=["check", "verify"])


@pytest.fixture
def x(device):
    return torch.ones(4, device=device)


# ---- code of the program


class Ran(Exception):
    """Code of an object has run of which the function asks nothing."""


def refuse(*args):
    raise Ran


SPECIAL = [
    "eq",
    "hash",
    "repr",
    "str",
    "bool",
    "len",
    "iter",
    "contains",
    "format",
    "reduce_ex",
    "deepcopy",
    "copy",
    "dir",
    "setattr",
]


class Silent:
    """Nobody may ask it for anything but ``scale``."""

    scale = 2.0
    shape = grad = property(refuse)
    __class__ = property(refuse)
    locals().update({f"__{name}__": refuse for name in SPECIAL})


class SilentMeta(type):
    __eq__ = __hash__ = __repr__ = __instancecheck__ = __subclasscheck__ = refuse


class SilentDict(dict):
    __iter__ = __len__ = __contains__ = keys = items = values = get = refuse


class SilentList(list):
    __iter__ = __len__ = __contains__ = __eq__ = refuse


class Key:
    """As a key it is asked once in each call."""

    asked = 0

    def __hash__(self):
        if sys._getframe(1).f_code.co_name not in ("keyed", "with_a_key"):
            raise Ran
        return 5


class SilentRoot:
    def __call__(self, x):
        return x * 2

    __eq__ = __hash__ = __repr__ = __bool__ = __getattr__ = refuse


def in_a_list():
    items = [Silent(), {"a": Silent()}]
    return lambda x: x * items[1]["a"].scale


def a_default():
    def fn(x, *, item=Silent()):  # noqa: B008
        return x * item.scale

    return fn


def of_a_silent_class():
    kind = SilentMeta("Kind", (), {"scale": 2.0})
    return lambda x: x * kind.scale


def of_a_dict():
    item = SilentDict(a=2.0)
    return lambda x: x * item["a"]


def of_a_list():
    item = SilentList([2.0])
    return lambda x: x * item[0]


def with_a_key():
    key = Key()
    items = {key: 2.0}

    def keyed(x):
        return x * items[key]

    return keyed


@pytest.mark.parametrize(
    "make",
    [in_a_list, a_default, of_a_silent_class, of_a_dict, of_a_list, with_a_key, SilentRoot],
    ids=lambda make: make.__name__,
)
def test_no_code_of_an_object_runs_that_the_function_does_not_run(make, x):
    assert gfxgraph.check(make(), x).verdict == "captures"
    assert gfxgraph.verify(make(), x).verdict == "equal"


@looks
def test_what_cannot_be_called_is_refused_without_a_question(look, x):
    with pytest.raises(
        ArgumentError, match=r"takes a function, a module or a method, not .*Silent"
    ):
        look(Silent(), x)


# ---- what stays eager


def advanced(item):
    return lambda x: x * float(next(item))  # here


def generator():
    yield from range(1000)


def draws(item):
    return lambda x: x * item.random()  # here


EAGER = {
    "generator": lambda: advanced(generator()),
    "count": lambda: advanced(itertools.count()),
    "cycle": lambda: advanced(itertools.cycle([1.0, 2.0, 3.0])),
    "list iterator": lambda: advanced(iter([1.0] * 1000)),
    "map": lambda: advanced(map(float, range(1000))),
    "zip": lambda: advanced(map(lambda a: a, range(1000))),
    "random": lambda: draws(random),
    "own random": lambda: draws(random.Random(3)),
    "NumPy": lambda: draws(np.random.default_rng(0)),
    "SystemRandom": lambda: draws(random.SystemRandom()),
    "secrets": lambda: lambda x: x * secrets.randbelow(1000),  # here
    "uuid": lambda: lambda x: x * (uuid.uuid4().int % 1000),  # here
    "urandom": lambda: lambda x: x * os.urandom(1)[0],  # here
    "clock": lambda: lambda x: x * (time.perf_counter_ns() % 1000),  # here
    "file": lambda: lambda x: x * len(open(os.devnull).read()),  # here  # noqa: SIM115
    "generator as result": lambda: lambda x: (x * n for n in range(2)),  # here
}
HERE = re.compile("# here")


@pytest.mark.parametrize("name", EAGER)
def test_what_stays_eager_is_eager_for_all_three_and_check_names_the_line(name, x):
    report = gfxgraph.check(EAGER[name](), x)
    assert report.verdict == "eager", report
    for hazard in report.hazards:
        assert hazard.file == __file__ and HERE.search(hazard.source), hazard
        assert hazard.why and hazard.remedy
    found = gfxgraph.verify(EAGER[name](), x)
    assert found.ok and found.verdict == "eager", found
    assert found.graph.reason and "wrong" not in str(found)
    fast = gfxgraph.graphed(EAGER[name]())
    for _ in range(3):
        fast(x)
    assert not fast.stats().replays


def test_verify_says_what_its_calls_have_advanced(x):
    report = gfxgraph.verify(advanced(itertools.count()), x)
    (cause,) = [cause for cause in report.graph.cautions if cause.kind == "advanced"]
    assert cause.what == "item"
    assert "equal eager" not in str(report)


@looks
def test_a_cycle_goes_on_afterwards(look, x):
    numbers = itertools.cycle([1.0, 2.0, 3.0])
    rows = csv.reader(f"{n},{n + 1}" for n in range(1000))
    look(advanced(numbers), x)
    look(lambda x: x * int(next(rows)[1]), x)
    first, *others = itertools.islice(numbers, 4)
    assert others[-1] == first and len(next(rows)) == 2


def test_verify_says_why_a_function_stays_eager_that_sets_the_data_of_a_tensor(x):
    weight = nn.Parameter(torch.ones_like(x))

    def fn(x):
        weight.data = weight.data * 0.5
        return x * weight

    report = gfxgraph.verify(fn, x)
    assert report.verdict == "eager" and "Tensor.data = " in report.graph.reason
    assert weight.tolist() == [1.0] * 4 and "equal" not in str(report)


# ---- what is a graph only after its first call


class Kind(enum.Flag):
    ONE = 1
    TWO = 2


def with_a_cache():
    known = {}

    def fn(x):
        if x.shape not in known:
            known[x.shape] = torch.arange(4, device=x.device)
        return x * known[x.shape]

    return fn


def that_sets_once():
    holder = nn.Module()
    holder.value = 1.0

    def fn(x):
        holder.value = 5.0
        return x * 2

    return fn


def with_a_combined_flag():
    return lambda x: x * (Kind.ONE | Kind.TWO).value


def that_returns_a_set():
    return lambda x: (x * 2, {1, 2})


@pytest.mark.parametrize(
    "make",
    [with_a_cache, that_sets_once, with_a_combined_flag, that_returns_a_set],
    ids=lambda make: make.__name__,
)
def test_verify_compares_a_graph_that_only_the_first_call_is_not(make, x):
    assert gfxgraph.check(make(), x).verdict == "captures"
    report = gfxgraph.verify(make(), x)
    assert report.verdict == "equal" and report.is_graph, report


# ---- the program afterwards


class Box:
    def __init__(self, scale):
        self.scale = scale


class Boxes(Box):
    pass


@looks
def test_classes_can_be_called_afterwards_as_before(look, x):
    assert look(lambda x: x * Box(2.0).scale * Boxes(3.0).scale * random.Random(1).random(), x)
    assert Box(4.0).scale == Boxes(4.0).scale == 4.0
    assert random.SystemRandom().random() < 1


class Calls:
    count = 0


def count_calls(module, given, result):
    Calls.count += 1


@looks
def test_what_a_hook_counts_is_put_back(look, device):
    layer = nn.Linear(4, 4).to(device).eval()
    layer.register_forward_hook(count_calls)
    look(layer, torch.ones(2, 4, device=device))
    assert Calls.count == 0


@looks
def test_generators_of_the_program_go_on_from_where_they_were(look, x):
    own, numpy = random.Random(3), np.random.default_rng(3)
    random.seed(3)
    np.random.seed(3)
    look(lambda x: x * own.random() * numpy.random() * random.random() * np.random.rand(), x)
    assert own.random() == random.random() == random.Random(3).random()
    assert numpy.random() == np.random.default_rng(3).random()
    assert np.random.rand() == np.random.RandomState(3).rand()


def test_a_context_variable_keeps_a_value_that_it_had(x):
    scale = contextvars.ContextVar("scale")
    scale.set(3.0)

    def fn(x):
        scale.set(scale.get() + 1)
        return x * scale.get()

    for look in LOOKS:
        assert look(fn, x).verdict == "eager" and scale.get() == 3.0


# ---- what is given and what is raised


async def asynchronous(x):
    return x


def yields(x):
    yield x


@looks
@pytest.mark.parametrize("fn", [asynchronous, yields, Box, functools.partial(yields)])
def test_a_function_without_a_result_is_refused(look, fn, x):
    with pytest.raises(ArgumentError, match=r"(check\(\)|verify\(fn\)) takes a function"):
        look(fn, x)


class Unreadable(Exception):
    __str__ = __repr__ = refuse


class NoException(BaseException):
    pass


@pytest.mark.parametrize("error", [Unreadable, NoException, GeneratorExit, StopIteration])
def test_check_reports_each_error_that_the_function_raises(error, x):
    def fn(x):
        raise error  # here

    (hazard,) = gfxgraph.check(fn, x).hazards
    assert hazard.rule == "raises" and HERE.search(hazard.source)
    with pytest.raises(error):
        gfxgraph.verify(fn, x)


def test_a_result_that_holds_itself_does_not_keep_a_call_from_ending(x):
    def fn(x):
        items = [x * 2]
        items.append(items)
        return items

    fast = gfxgraph.graphed(fn)
    for _ in range(3):
        result = fast(x)
        assert result[1] is result and torch.equal(result[0], x * 2)
    assert gfxgraph.verify(fn, x).ok


class State:
    __slots__ = ("items", "scale")

    def __init__(self):
        self.items, self.scale = [1.0], 2.0


@pytest.mark.long
def test_no_interrupt_of_check_leaves_anything_on_the_thread(device):
    layer, x = nn.Linear(4, 4).to(device).eval(), torch.ones(2, 4, device=device)

    def seen():
        stacks = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
        return stacks, sys.stdout, sys.stderr, sys.gettrace(), sys.getprofile()

    for _ in range(2):  # what is imported is there then
        began = time.monotonic()
        gfxgraph.check(layer, x)
        seconds = time.monotonic() - began
    before, drawn, interrupts = seen(), random.Random(0), 0
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds * drawn.uniform(0.02, 0.98))
                gfxgraph.check(layer, x)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
            assert seen() == before
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert interrupts > 30


@pytest.mark.long
@looks
@pytest.mark.parametrize("part", range(12))
def test_an_interrupt_at_any_time_leaves_the_program_as_it_was(look, part, device):
    layer, state, table = nn.Linear(4, 4).to(device).eval(), State(), {"a": [2.0, {"b": 3.0}]}
    layer.calls = 0

    def fn(x):
        layer.calls += 1
        y = layer(x) * state.scale * state.items[0] * table["a"][1]["b"]
        layer.last = y
        return y

    def seen():
        own = {name: value for name, value in vars(layer).items() if name != "last"}
        return own, state.items, state.scale, repr(table), random.getstate(), sys.gettrace()

    x = torch.ones(2, 4, device=device)
    began = time.monotonic()
    look(fn, x)
    seconds = (time.monotonic() - began) * (part + 0.5) / 12
    before, handler = seen(), signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        look(fn, x)
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert seen() == before
    assert gfxgraph.verify(fn, x).verdict == "equal"
