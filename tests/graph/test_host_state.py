"""State of the host that a function reads, draws from or advances is what eager execution leaves.

Each case makes a function, what to call it with, and a look at its state. It is made twice: one is
graphed and one stays eager, and after each of five calls results, arguments, state and generators
are the same.
"""

from __future__ import annotations

import array
import collections
import concurrent.futures
import contextlib
import contextvars
import csv
import ctypes
import decimal
import functools
import io
import itertools
import mmap
import multiprocessing
import multiprocessing.sharedctypes
import queue
import random
import subprocess
import sys
import tempfile
import textwrap
import threading
import types
import warnings
import weakref
from collections import OrderedDict, UserDict, defaultdict, deque

import numpy as np
import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import gfxgraph
from gfxgraph.device import current_device
from tests.helpers.processes import printed
from tests.helpers.sampled import sampled

gfxgraph.graphed  # noqa: B018  loaded now: a library that is loaded with it draws random numbers


def globals_of_random():
    """The states of all generators that belong to nobody."""
    states = [torch.get_rng_state(), random.getstate(), repr(np.random.get_state(legacy=False))]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return states


def set_everything():
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)


def shown(item):
    """A value that can be compared."""
    if isinstance(item, torch.Tensor):
        return item.detach().cpu().tolist()
    if isinstance(item, torch.Generator):
        return item.get_state().tolist()
    if isinstance(item, np.ndarray):
        return item.tolist()
    if isinstance(item, (np.random.Generator, np.random.RandomState, np.random.BitGenerator)):
        bits = getattr(item, "bit_generator", item)
        return repr(getattr(bits, "state", None) or bits.get_state(legacy=False))
    if isinstance(item, random.Random):
        return item.getstate()
    if isinstance(item, dict):
        return [(shown(key), shown(value)) for key, value in dict.items(item)]
    if isinstance(item, (list, tuple, deque)):
        return [shown(value) for value in item]
    return item


def inputs(device):
    """Arguments whose sums have both signs."""
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    return [(x * sign + 0.1 * n * sign).to(device) for n, sign in enumerate((1, -1, 1, 1, -1))]


def play(make, device, graph, verify=True):
    """Results, arguments, state and generators of five calls."""
    set_everything()
    fn, look = make(device)
    called = gfxgraph.graphed(fn, verify=verify) if graph else fn
    seen = []
    with torch.no_grad():
        for x in inputs(device):
            result = called(x)
            seen.append([shown(result), shown(x), shown(look()), shown(globals_of_random())])
    return seen, called.stats() if graph else None


def same(make, device, verify=True):
    """Play it eagerly and graphed; the stats of the graphed one."""
    eager, _ = play(make, device, False)
    graphed, stats = play(make, device, True, verify)
    for n, (a, b) in enumerate(zip(eager, graphed, strict=True)):
        for what, ours, theirs in zip(
            ("result", "argument", "state", "generators"), b, a, strict=True
        ):
            if isinstance(ours, list) and what == "result":
                torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs))
            else:
                assert ours == theirs, f"the {what} after call {n} is not that of eager"
    return stats


# ---- torch's generators, with a branch: the call that takes a new path draws once


class Slotted:
    __slots__ = ("generator",)


def place_closure(device):
    g = torch.Generator(device).manual_seed(3)
    return lambda: g, g


def place_slot(device):
    owner = Slotted()
    owner.generator = torch.Generator(device).manual_seed(3)
    return lambda: owner.generator, owner.generator


def place_class(device):
    class Config:
        generator = torch.Generator(device).manual_seed(3)

    return lambda: Config.generator, Config.generator


def place_module(device):
    module = types.ModuleType("a_module_of_ours")
    module.generator = torch.Generator(device).manual_seed(3)
    return lambda: module.generator, module.generator


def place_container(device):
    held = {"a": [(torch.Generator(device).manual_seed(3),)]}
    return lambda: held["a"][0][0], held["a"][0][0]


def place_default(device):
    g = torch.Generator(device).manual_seed(3)

    def get(g=g):
        return g

    return get, g


PLACES = [
    place_closure,
    place_slot,
    place_class,
    place_module,
    place_container,
    place_default,
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("first", ["draw", "branch"])
def test_a_generator_of_the_users_is_state_wherever_it_is(device, place, first):
    def make(device):
        get, g = place(device)

        def fn(x):
            noise = torch.randn(4, generator=get(), device=device) if first == "draw" else 0.0
            if x.sum() > 0:
                return x + noise + torch.rand(4, generator=get(), device=device)
            return x - noise

        return fn, lambda: g

    stats = same(make, device)
    assert stats.captures == 2 and stats.replays == 3 and not stats.fallbacks


def test_a_generator_that_is_an_argument_is_state(device):
    def call(graph):
        torch.manual_seed(0)
        g = torch.Generator(device).manual_seed(5)

        def fn(x, generator):
            noise = torch.randn(4, generator=generator, device=device)
            return x + noise if x.sum() > 0 else x - noise

        called = gfxgraph.graphed(fn) if graph else fn
        with torch.no_grad():
            return [(called(x, g).tolist(), g.get_state().tolist()) for x in inputs(device)]

    assert call(True) == call(False)


def test_a_branch_on_what_was_drawn_takes_the_path_of_eager(device):
    def make(device):
        g = torch.Generator(device).manual_seed(11)

        def fn(x):
            if torch.rand((), generator=g, device=device) > 0.5:
                return x + torch.randn(4, generator=g, device=device)
            return x * 2

        return fn, lambda: g

    same(make, device)


def test_a_seed_that_the_function_sets_on_its_own_generator_is_never_lost(device):
    def make(device):
        g = torch.Generator(device).manual_seed(3)

        def fn(x):
            g.manual_seed(1)
            return x + torch.randn(4, generator=g, device=device)

        return fn, lambda: g

    for verify in (True, False):
        stats = same(make, device, verify)
        assert stats.replays == 0 and any("manual_seed" in why for why in stats.fallbacks)


# ---- random state that is saved and restored inside


def forked(x):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noise = torch.randn(4, device=x.device)
    return x + noise + torch.randn(4, device=x.device)


def saved(x):
    state = torch.get_rng_state() if x.device.type == "cpu" else torch.cuda.get_rng_state()
    noise = torch.randn(4, device=x.device)
    (torch.set_rng_state if x.device.type == "cpu" else torch.cuda.set_rng_state)(state)
    return x + noise * 2


def saved_twice(x):
    on_cpu = x.device.type == "cpu"
    get = torch.get_rng_state if on_cpu else torch.cuda.get_rng_state
    put = torch.set_rng_state if on_cpu else torch.cuda.set_rng_state
    first = get()
    a = torch.rand(4, device=x.device)
    second = get()
    b = torch.rand(4, device=x.device)
    put(first)
    c = torch.rand(4, device=x.device)
    put(second)
    return x + a - 2 * b + 4 * c


def saved_in_a_branch(x):
    if x.sum() > 0:
        return forked(x)
    return saved(x) + torch.randn(4, device=x.device)


def seeded(x):
    torch.manual_seed(5)
    return x + torch.randn(4, device=x.device)


def seeded_by_the_seed(x):
    return x + torch.initial_seed() + torch.randn(4, device=x.device)


@pytest.mark.parametrize(
    "function", [forked, saved, saved_twice, saved_in_a_branch, seeded, seeded_by_the_seed]
)
def test_random_state_saved_and_restored_inside_leaves_the_draws_of_eager(device, function):
    def make(device):
        return (lambda x: function(x)), lambda: None

    stats = same(make, device)
    assert stats.replays > 0 and not stats.fallbacks


def test_the_state_of_a_generator_object_saved_and_restored_inside_is_never_lost(device):
    def make(device):
        g = torch.Generator(device).manual_seed(3)

        def fn(x):
            state = g.get_state()
            noise = torch.randn(4, generator=g, device=device)
            g.set_state(state)
            return x + noise + torch.randn(4, generator=g, device=device)

        return fn, lambda: g

    for verify in (True, False):
        same(make, device, verify)


# ---- what no replay advances


SOURCES = {
    "random": lambda: (random.random, lambda: None),
    "random.seed": lambda: ((lambda: random.seed(3) or random.random()), lambda: None),
    "numpy": lambda: (np.random.rand, lambda: None),
    "numpy seeded": lambda: ((lambda: np.random.seed(3) or np.random.rand()), lambda: None),
    "default_rng": lambda: (lambda r: (lambda: r.random(), lambda: r))(np.random.default_rng(3)),
    "RandomState": lambda: (lambda r: (lambda: r.rand(), lambda: r))(np.random.RandomState(3)),
    "PCG64": lambda: (lambda r: (lambda: r.random_raw() % 100, lambda: r))(np.random.PCG64(3)),
    "Random": lambda: (lambda r: (lambda: r.gauss(0, 1), lambda: r))(random.Random(3)),
    "bound method": lambda: (lambda r: (r.uniform, lambda: r))(random.Random(3)),
}


def bound(draw):
    return (lambda: draw(0.0, 1.0)) if getattr(draw, "__name__", "") == "uniform" else draw


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("source", SOURCES)
def test_draws_of_python_and_numpy_stay_eager_and_lose_no_number(device, source, verify):
    def make(device):
        draw, look = SOURCES[source]()
        draw = bound(draw)
        return (lambda x: x * float(draw())), look

    stats = same(make, device, verify)
    assert stats.replays == 0 and stats.fallbacks, stats


class WithGenerator:
    rng = np.random.default_rng(3)


@pytest.mark.parametrize("where", ["slot", "class", "module", "helper", "method"])
def test_a_numpy_generator_is_found_wherever_it_is(device, where):
    def make(device):
        rng = np.random.default_rng(3)
        owner, module = Slotted(), types.ModuleType("a_module_of_ours")
        owner.generator = rng
        module.rng = rng

        class Config:
            noise = rng

            def draw(self):
                return self.noise.random()

        config = Config()
        code = compile("def draw():\n    return rng.random()", "a_module_of_ours.py", "exec")
        exec(code, module.__dict__)
        draws = {
            "slot": lambda: owner.generator.random(),
            "class": lambda: Config.noise.random(),
            "module": lambda: module.rng.random(),
            "helper": lambda: module.draw(),
            "method": lambda: config.draw(),
        }
        return (lambda x: x * draws[where]()), lambda: rng

    for verify in (True, False):
        stats = same(make, device, verify)
        assert stats.replays == 0 and stats.fallbacks


def generator_function():
    n = 0
    while True:
        yield n
        n += 1


ITERATORS = {
    "count": lambda: itertools.count(1),
    "list": lambda: iter([1, 2, 3, 4, 5, 6, 7]),
    "reversed": lambda: reversed([1, 2, 3, 4, 5, 6, 7]),
    "tuple": lambda: iter((1, 2, 3, 4, 5, 6, 7)),
    "range": lambda: iter(range(9)),
    "dict": lambda: iter({n: n for n in range(9)}),
    "set": lambda: iter({1, 2, 3, 4, 5, 6, 7}),
    "cycle": lambda: itertools.cycle([1, 2, 3]),
    "cycle later": lambda: (lambda c: [next(c) for _ in range(4)] and c)(itertools.cycle([1, 2])),
    "map": lambda: map(abs, [1, 2, 3, 4, 5, 6, 7]),
    "zip": lambda: (a for a, _ in zip(range(9), range(9), strict=True)),
    "enumerate": lambda: (n for n, _ in enumerate("abcdefgh")),
    "islice": lambda: itertools.islice(itertools.count(), 8),
    "chain": lambda: itertools.chain([1, 2], [3, 4, 5, 6, 7]),
    "accumulate": lambda: itertools.accumulate([1] * 9),
    "generator": generator_function,
    "constant generator": lambda: (1 for _ in range(9)),
    "csv": lambda: (float(row[0]) for row in csv.reader(["1", "2", "3", "4", "5", "6"])),
    "callable": lambda: iter(itertools.count(1).__next__, -1),
    "sequence": lambda: iter(Sequence()),
    "tee": lambda: itertools.tee([1, 2, 3, 4, 5, 6, 7])[1],
}


class Sequence:
    def __getitem__(self, n):
        return n + 1


@pytest.mark.parametrize("kind", ITERATORS)
def test_an_iterator_moves_once_in_each_call(device, kind):
    def make(device):
        iterator = ITERATORS[kind]()
        seen = []

        def look():
            return list(seen)

        def fn(x):
            value = next(iterator)
            return x * float(value)

        return fn, look

    for verify in (True, False):
        stats = same(make, device, verify)
        assert stats.replays == 0 and stats.fallbacks


def test_a_file_is_read_once_in_each_call_whatever_files_were_met_before(device, tmp_path):
    (tmp_path / "numbers").write_text("1\n2\n3\n4\n5\n6\n7\n")
    with (tmp_path / "log").open("w") as log, (tmp_path / "numbers").open() as numbers:
        for file in (log, numbers):

            def fn(x, file=file):
                return x * float(next(file)) if file.readable() else x

            graph = gfxgraph.graphed(fn)
            results = [graph(torch.ones(1, device=device)).item() for _ in range(5)]
        assert results == [1, 2, 3, 4, 5]


def test_an_iterator_that_stands_still_costs_no_graph(device):
    def make(device):
        iterator, limit, always = iter([1, 2, 3]), itertools.count(4), itertools.repeat(2.0)

        def fn(x):
            return x * next(always) if iterator is not limit else x

        return fn, lambda: [repr(limit), iterator.__length_hint__()]

    stats = same(make, device)
    # The first call tells which state the function has: nobody can see before what it changes.
    assert stats.captures == 1 and stats.replays == 3


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("place", ["reached", "of a property"])
def test_an_iterator_that_only_a_later_call_advances_is_not_advanced_by_us(device, place, verify):
    """The first call changes Python state, so that a run after it would take another way."""

    def make(device):
        seen, numbers = [], iter(range(5, 99))

        class Steps:
            @property
            def kept(self):
                return seen

        steps = Steps()

        def fn(x):
            kept = seen if place == "reached" else steps.kept
            if kept:
                x = x + next(numbers)
            kept.append(1)
            return x * 2

        return fn, lambda: [len(seen), numbers.__length_hint__()]

    assert same(make, device, verify).replays == 0


def test_a_file_that_a_run_of_ours_reads_is_put_back(device):
    def make(device):
        seen, text = [], io.StringIO("1\n2\n3\n4\n5\n6\n")

        def fn(x):
            if seen:
                x = x + float(text.readline())
            seen.append(1)
            return x * 2

        return fn, text.tell

    assert same(make, device).replays == 0


def test_a_file_that_is_only_written_to_costs_no_graph(device, tmp_path):
    with (tmp_path / "log").open("w") as file:
        owner = types.SimpleNamespace(log=file, scale=2)
        graph = gfxgraph.graphed(lambda x: x * owner.scale)
        with torch.no_grad():
            for x in inputs(device):
                torch.testing.assert_close(graph(x), x * 2)
    assert graph.stats().replays == 4


def test_an_iterator_that_nobody_can_look_into_is_not_advanced_by_us(device):
    class Opaque(types.SimpleNamespace):
        pass

    import re

    def make(device):
        owner = Opaque(matches=re.finditer("a", "aaaaaaaaaa"))

        def fn(x):
            return x * next(owner.matches).start()

        return fn, lambda: None

    stats = same(make, device)
    assert stats.replays == 0 and any("owner.matches" in why for why in stats.fallbacks)


@pytest.mark.parametrize(
    "kind", ["ndarray", "bytearray", "array", "pointer", "deque", "queue", "slots"]
)
def test_what_a_call_changes_in_place_changes_once(device, kind):
    def make(device):
        holder = {
            "ndarray": np.zeros(2),
            "bytearray": bytearray(2),
            "array": array.array("d", [0.0, 0.0]),
            "pointer": ctypes.pointer(ctypes.c_double(0.0)),
            "deque": deque([0, 0], maxlen=4),
            "queue": queue.Queue(),
            "slots": Slotted(),
        }[kind]
        if kind == "slots":
            holder.generator = 0

        def fn(x):
            if kind == "slots":
                holder.generator += 1
                return x * holder.generator
            if kind == "queue":
                holder.put(1)
                return x * holder.qsize()
            if kind == "deque":
                holder.append(len(holder))
                return x * len(holder)
            holder[0] += 1
            return x * float(holder[0])

        def look():
            if kind == "slots":
                return holder.generator
            if kind == "pointer":
                return holder.contents.value
            return list(holder.queue) if kind == "queue" else list(holder)

        return fn, look

    for verify in (True, False):
        stats = same(make, device, verify)
        assert stats.replays == 0 and (stats.fallbacks or stats.stored == ["holder.generator"])


@pytest.mark.parametrize("draw", ["SystemRandom", "urandom", "secrets", "uuid"])
def test_numbers_of_the_operating_system_are_not_frozen(device, draw):
    import os
    import secrets
    import uuid

    system = random.SystemRandom()
    draws = {
        "SystemRandom": lambda: system.random(),
        "urandom": lambda: os.urandom(4)[0],
        "secrets": lambda: secrets.randbelow(1 << 20),
        "uuid": lambda: uuid.uuid4().int % (1 << 20),
    }
    number = draws[draw]
    drawn = []

    def fn(x):
        drawn.append(None)
        return x * float(number())

    graph = gfxgraph.graphed(fn, verify=False)
    x = torch.ones(3, device=device)
    with torch.no_grad():
        results = {float(graph(x)[0]) for _ in range(6)}
    assert len(results) > 1 and len(drawn) == 6 and graph.stats().replays == 0


# ---- no_graph functions run once in each call


@pytest.mark.parametrize("verify", [True, False])
def test_a_no_graph_function_runs_once_in_each_call(device, verify, tmp_path):
    def make(device):
        ran, file = [], (tmp_path / f"{random.getrandbits(60)}").open("w+")

        @gfxgraph.no_graph
        def count(y):
            ran.append(float(y.sum()))
            print(len(ran), file=file, flush=True)
            return y * len(ran)

        def look():
            file.seek(0)
            return [len(ran), file.read().split()]

        return (lambda x: count(x + 1) - 1), look

    stats = same(make, device, verify)
    assert stats.captures == 1 and stats.replays == 4


def test_a_no_graph_function_runs_once_also_where_the_data_takes_a_new_path(device):
    def make(device):
        ran = []

        @gfxgraph.no_graph
        def count(y):
            ran.append(1)
            y.add_(len(ran))
            return y * 2

        def fn(x):
            y = count(x + 1)
            if x.sum() > 0:
                return count(y) + 1
            return y - 1

        return fn, lambda: len(ran)

    stats = same(make, device)
    assert stats.replays > 0 and stats.captures == 2


def test_what_a_no_graph_function_draws_and_writes_is_that_of_eager(device):
    def make(device):
        numbers, buffer = random.Random(1), torch.zeros(4, device=device)

        @gfxgraph.no_graph
        def work(y):
            buffer.add_(1)
            return y + numbers.random() + torch.randn(4, device=device)

        def fn(x):
            y = work(x)
            return y + buffer + torch.rand(4, device=device)

        return fn, lambda: [numbers, buffer]

    same(make, device)


def test_a_no_graph_function_that_gives_its_argument_back_gives_that(device):
    def make(device):
        ran = []

        @gfxgraph.no_graph
        def scale(y):
            ran.append(1)
            return y.mul_(len(ran))

        return (lambda x: scale(x + 1) + 1), lambda: len(ran)

    stats = same(make, device)
    assert stats.captures == 1 and stats.replays == 4


def test_a_no_graph_function_in_a_function_with_buckets_runs_once_in_each_call(device):
    ran = []

    @gfxgraph.no_graph
    def count(y):
        ran.append(y.shape[0])
        return y * 2

    graph = gfxgraph.graphed(lambda x: count(x + 1) - 1, buckets=[2, 4])
    with torch.no_grad():
        for n, rows in enumerate((1, 2, 3, 3, 1, 4)):
            x = torch.randn(rows, 4, device=device)
            torch.testing.assert_close(graph(x), (x + 1) * 2 - 1)
            assert len(ran) == n + 1


@pytest.mark.parametrize("outputs", ["own", "view"])
def test_a_no_graph_function_runs_once_in_a_capture_that_nobody_called_for(device, outputs):
    ran = []

    @gfxgraph.no_graph
    def count(y):
        ran.append(1)
        return y * 2

    pool = gfxgraph.ShapeBucketPool(model_fn=lambda x: count(x) + 1, buckets=[4])
    x = torch.randn(4, 4, device=device)
    with torch.no_grad():
        torch.testing.assert_close(pool(x), x * 2 + 1)
        before = len(ran)
        torch.testing.assert_close(pool(x), x * 2 + 1)
    assert before == 1 and len(ran) == 2


# ---- results that no operation of torch made


@pytest.mark.parametrize("verify", [True, False])
def test_a_result_that_a_library_made_is_not_frozen(device, verify):
    def make(device):
        g = torch.Generator(device).manual_seed(3)
        clock = np.zeros(2, dtype=np.float32)

        def fn(x):
            state = g.get_state()
            return x + torch.rand(4, generator=g, device=device), state.float().sum() * 0 + 1

        return fn, lambda: [g, clock]

    same_results(make, device, verify)


def same_results(make, device, verify):
    set_everything()
    eager, look = make(device)
    set_everything()
    fn, other = make(device)
    graph = gfxgraph.graphed(fn, verify=verify)
    with torch.no_grad():
        for x in inputs(device):
            torch.testing.assert_close(graph(x), eager(x))
            assert shown(look()) == shown(other())


def test_the_state_of_a_generator_as_a_result_is_that_of_the_call(device):
    def make(device):
        g = torch.Generator(device).manual_seed(3)

        def fn(x):
            return x + torch.rand(4, generator=g, device=device), g.get_state()

        return fn, lambda: g

    for verify in (True, False):
        same_results(make, device, verify)


# ---- hostile functions: results, arguments, state and generators are those of eager

DEVICE = gfxgraph.device_type()
HOSTILE = {}


def case(make):
    """A function that is played eagerly and graphed."""
    HOSTILE[make.__name__] = make
    return make


def rand(generator=None):
    return torch.rand(4, generator=generator, device=DEVICE)


def get_rng_state():
    return torch.get_rng_state() if DEVICE == "cpu" else torch.cuda.get_rng_state()


def set_rng_state(state):
    (torch.set_rng_state if DEVICE == "cpu" else torch.cuda.set_rng_state)(state)


@case
def random_on_one_path(device):
    r = random.Random(1)
    return (lambda x: x * 2 if x.sum() <= 0 else x * r.random()), lambda: r


@case
def iterator_on_one_path(device):
    it = itertools.count(1)

    def fn(x):
        if x.sum() > 0:
            return x * 1
        v = next(it)
        return x * v

    return fn, lambda: repr(it)


@case
def first_call_only(device):
    it = iter([3, 4])
    c = {}

    def fn(x):
        if "v" not in c:
            c["v"] = next(it)
        return x * c["v"]

    return fn, lambda: it.__length_hint__()


@case
def numpy_global_on_one_path(device):
    return (lambda x: x * 2 if x.sum() > 0 else x * float(np.random.rand())), lambda: None


@case
def torch_gen_only_on_second_path(device):
    g = torch.Generator(DEVICE).manual_seed(1)
    return (lambda x: x * 2 if x.sum() > 0 else x + rand(generator=g)), lambda: g


@case
def gen_in_kwargs_default(device):
    g = torch.Generator(DEVICE).manual_seed(1)

    def fn(x, *, gen=g):
        if x.sum() > 0:
            return x.bernoulli(0.5, generator=gen)
        return torch.randperm(12, generator=gen, device=DEVICE).reshape(3, 4) + x

    return fn, lambda: g


@case
def inplace_normal(device):
    g = torch.Generator(DEVICE).manual_seed(1)
    buf = torch.zeros(4, device=DEVICE)

    def fn(x):
        buf.normal_(generator=g)
        return x + buf if x.sum() > 0 else x - buf

    return fn, lambda: [g, buf]


@case
def two_gens(device):
    g = torch.Generator(DEVICE).manual_seed(1)
    h = torch.Generator(DEVICE).manual_seed(2)

    def fn(x):
        y = x + rand(generator=g)
        if y.sum() > 1:
            y = y + rand(generator=h)
        if y.sum() > 2:
            y = y * rand()
        return y

    return fn, lambda: [g, h]


@case
def rng_state_as_branch(device):
    def fn(x):
        s = get_rng_state()
        a = rand()
        if a.sum() > 2:
            set_rng_state(s)
        return x + a + rand()

    return fn, lambda: None


@case
def nested_fork(device):
    def fn(x):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            a = rand()
            with torch.random.fork_rng():
                torch.manual_seed(2)
                b = rand()
            c = rand()
        return x + a + 2 * b + 4 * c + 8 * rand()

    return fn, lambda: None


@case
def fork_if(device):
    def fn(x):
        with torch.random.fork_rng(enabled=bool(x.sum() > 0)):
            a = rand()
        return x + a + rand()

    return fn, lambda: None


@case
def clone_of_generator(device):
    g = torch.Generator(DEVICE).manual_seed(1)

    def fn(x):
        h = torch.Generator(DEVICE)
        h.set_state(g.get_state())
        return x + rand(generator=h) + rand(generator=g)

    return fn, lambda: g


@case
def fresh_generator(device):
    def fn(x):
        h = torch.Generator(DEVICE).manual_seed(4)
        return x + rand(generator=h)

    return fn, lambda: None


@case
def set_without_draw(device):
    g = torch.Generator(DEVICE).manual_seed(1)

    def fn(x):
        g.manual_seed(9)
        return x * 2

    def look():
        v = g.get_state().tolist()
        rand(generator=g)
        return v

    return fn, look


@case
def random_seed_only(device):
    def fn(x):
        random.seed(1)
        return x * 2

    def look():
        return [random.random() for _ in range(2)]

    return fn, look


@case
def numpy_seed_only(device):
    def fn(x):
        np.random.seed(1)
        return x * 2

    return fn, lambda: np.random.rand()


@case
def threadlocal(device):
    held = threading.local()
    held.n = 0

    def fn(x):
        held.n += 1
        return x * held.n

    return fn, lambda: held.n


@case
def func_attr(device):
    def fn(x):
        fn.n += 1
        return x * fn.n

    fn.n = 0
    return fn, lambda: fn.n


@case
def counter(device):
    c = collections.Counter()

    def fn(x):
        c["a"] += 1
        return x * c["a"]

    return fn, lambda: dict(c)


@case
def userlist(device):
    c = collections.UserList()

    def fn(x):
        c.append(1)
        return x * len(c)

    return fn, lambda: list(c)


@case
def chainmap(device):
    c = collections.ChainMap({}, {"a": 1})

    def fn(x):
        c["a"] = c["a"] + 1
        return x * c["a"]

    return fn, lambda: dict(c)


@case
def helper_global(device):
    m = types.ModuleType("another_module")
    m.n = 0
    exec("def inc():\n    global n\n    n+=1\n    return n", m.__dict__)
    m.inc.__module__ = "another_module"
    return (lambda x: x * m.inc()), lambda: m.n


@case
def class_attr_list(device):
    class K:
        seen = []  # noqa: RUF012

    def fn(x):
        K.seen.append(1)
        return x * len(K.seen)

    return fn, lambda: len(K.seen)


@case
def contextvar(device):
    v = contextvars.ContextVar("v", default=0)

    def fn(x):
        v.set(v.get() + 1)
        return x * v.get()

    return fn, lambda: v.get()


@case
def no_graph_branch_value(device):
    n = []

    @gfxgraph.no_graph
    def ask(y):
        n.append(1)
        return len(n) % 2

    def fn(x):
        return x + 1 if ask(x) else x - 1

    return fn, lambda: len(n)


@case
def no_graph_twice(device):
    n = []

    @gfxgraph.no_graph
    def a(y):
        n.append("a")
        return y + len(n)

    @gfxgraph.no_graph
    def b(y):
        n.append("b")
        y.mul_(2)
        return None

    def fn(x):
        y = a(x * 1)
        b(y)
        if x.sum() > 0:
            y = a(y)
        return y + 1

    return fn, lambda: list(n)


@case
def no_graph_dict(device):
    n = []

    @gfxgraph.no_graph
    def a(d):
        n.append(1)
        return {"y": d["x"] + 1, "n": [d["x"] * 2]}

    def fn(x):
        r = a({"x": x * 2})
        return r["y"] + r["n"][0]

    return fn, lambda: list(n)


@case
def no_graph_global_buffer(device):
    buf = torch.zeros(4, device=DEVICE)
    n = []

    @gfxgraph.no_graph
    def push(y):
        n.append(1)
        buf.add_(y.sum())

    def fn(x):
        z = x + buf
        push(z)
        return z * 2 + buf

    return fn, lambda: [buf, len(n)]


@case
def no_graph_generator(device):
    g = torch.Generator(DEVICE).manual_seed(1)

    @gfxgraph.no_graph
    def noise(y):
        return y + rand(generator=g)

    def fn(x):
        y = noise(x) + rand(generator=g)
        return y if x.sum() > 0 else y - rand(generator=g)

    return fn, lambda: g


@case
def no_graph_iter(device):
    it = itertools.count()

    @gfxgraph.no_graph
    def tick(y):
        return y + next(it)

    return (lambda x: tick(x) * 2), lambda: repr(it)


@case
def rng_numpy_into_tensor(device):
    r = np.random.default_rng(1)

    def fn(x):
        return x + torch.from_numpy(r.standard_normal(4).astype("float32")).to(DEVICE)

    return fn, lambda: r


@case
def shuffle_list(device):
    held = [1, 2, 3, 4, 5]

    def fn(x):
        random.shuffle(held)
        return x * held[0]

    return fn, lambda: list(held)


@case
def partial_bound(device):
    r = random.Random(3)
    f = functools.partial(r.uniform, 0, 1)
    return (lambda x: x * f()), lambda: r


@case
def generator_object_attr(device):
    class M(torch.nn.Module):
        def __init__(s):
            super().__init__()
            s.it = iter(range(10))
            s.rng = np.random.default_rng(0)

        def forward(s, x):
            return x * (next(s.it) + s.rng.random())

    m = M()
    return m, lambda: m.rng


@case
def readline(device):
    file = io.StringIO("1\n2\n3\n4\n5\n6\n7\n")
    return (lambda x: x * float(file.readline())), file.tell


@case
def read(device):
    file = io.BytesIO(bytes(range(1, 20)))
    return (lambda x: x * float(file.read(1)[0])), file.tell


@case
def send(device):
    def totals():
        total = 0
        while True:
            total += yield total

    running = totals()
    next(running)
    return (lambda x: x + running.send(1)), lambda: None


@case
def seeded_before_and_after(device):
    def fn(x):
        torch.manual_seed(3)
        noise = rand()
        torch.manual_seed(4)
        return x + noise

    return fn, lambda: None


@case
def default_generator_seeded(device):
    def fn(x):
        default_generator().manual_seed(3)
        return x + rand()

    return fn, lambda: None


@case
def default_generator_put_back(device):
    def fn(x):
        state = default_generator().get_state()
        noise = rand()
        default_generator().set_state(state)
        return x + noise + rand()

    return fn, lambda: None


@case
def subclass_of_random(device):
    class Counting(random.Random):
        count = 0

        def random(self):
            self.count += 1
            return super().random()

    numbers = Counting(3)
    return (lambda x: x * numbers.random()), lambda: [numbers, numbers.count]


@case
def deleted_and_set_again(device):
    owner = types.SimpleNamespace(a=1)

    def fn(x):
        value = owner.a
        del owner.a
        owner.a = value + 1
        return x * value

    return fn, lambda: owner.a


@case
def variable_that_is_not_bound_yet(device):
    def fn(x):
        nonlocal count
        try:
            count += 1
        except NameError:
            count = 1
        return x * count

    def look():
        try:
            return count
        except NameError:
            return None

    if device is None:
        count = 0
    return fn, look


def default_generator():
    return current_device().default_generator(0)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", sampled(HOSTILE, 3, of_long=5))
def test_a_hostile_function_is_what_it_is_eagerly(device, name, verify):
    same(HOSTILE[name], device, verify)


# ---- containers are read and written through no method of the user's


class Hostile:
    """Every question that is asked of it is counted."""

    asked: list = []  # noqa: RUF012


def _hostile(name):
    def method(self, *args, **kwargs):
        Hostile.asked.append(name)
        raise AssertionError(f"{name} was called")

    return method


METHODS = """
    __getitem__ __setitem__ __delitem__ __iter__ __len__ __contains__ __eq__ __ne__ __repr__ __str__
    __bool__ __reversed__ __ior__ __or__ keys items values get pop update clear copy setdefault
    append extend insert remove add discard popleft
"""


def hostile(base):
    """A container class of which nothing can be asked."""
    space = {name: _hostile(name) for name in METHODS.split() if hasattr(base, name)}
    space["__hash__"] = _hostile("__hash__")
    space["__getattr__"] = _hostile("__getattr__")
    space["__class__"] = property(_hostile("__class__"))
    return type(f"Hostile{base.__name__}", (base,), space)


CONTAINERS = {
    "dict": lambda: hostile(dict)(a=1, b=torch.ones(2)),
    "OrderedDict": lambda: hostile(OrderedDict)(),
    "defaultdict": lambda: hostile(defaultdict)(_hostile("factory")),
    "list": lambda: hostile(list)([1, [2], "x"]),
    "deque": lambda: hostile(deque)([1, 2]),
    "set": lambda: hostile(set)([1, 2]),
    "tuple": lambda: hostile(tuple)([1, [2]]),
    "object": lambda: hostile(object)(),
    "keys": lambda: {hostile_key(): 1, hostile_key(): 2},
    "items": lambda: {hostile_key()},
    "value": lambda: [hostile_key()],
    "metaclass": lambda: [Strange()],
    "class": lambda: [Strange],
}


class Meta(type):
    __eq__ = __hash__ = __getattribute__ = __len__ = __repr__ = _hostile("a metaclass")


class Strange(metaclass=Meta):
    pass


def hostile_key():
    key = hostile(object)
    key.__hash__ = lambda self: id(self)
    return key()


@pytest.mark.parametrize("kind", CONTAINERS)
def test_no_method_of_the_users_is_called_to_look_at_a_container(device, kind):
    held = CONTAINERS[kind]()
    box = types.SimpleNamespace(held=held)

    def fn(x):
        return x + (1 if box.held is not None else 2)

    graph = gfxgraph.graphed(fn)
    Hostile.asked.clear()
    with torch.no_grad():
        for x in inputs(device):
            torch.testing.assert_close(graph(x), x + 1)
    assert not Hostile.asked
    assert graph.stats().captures == 1 and graph.stats().replays == 4


def test_no_method_of_a_metaclass_is_called_to_see_what_is_read(device):
    first, second = Strange(), Strange()
    first.step, second.step = 1, 2
    box = types.SimpleNamespace(held=[first, second])

    def fn(x):
        for held in box.held:
            if held and isinstance(held, Strange) and type(held) is not int:
                x = x + max(held.step, len([held]))
        return x

    graph = gfxgraph.graphed(fn)
    Hostile.asked.clear()
    with torch.no_grad():
        for x in inputs(device):
            torch.testing.assert_close(graph(x), x + 3)
        assert graph.stats().captures == 1 and graph.stats().replays == 4
        first.step = 5
        torch.testing.assert_close(graph(x), x + 7)
    assert not Hostile.asked


class Instantiating(OrderedDict):
    """As transformers' ACT2FN: it holds classes, and gives a new instance each time."""

    def __getitem__(self, key):
        return super().__getitem__(key)()


def test_a_mapping_that_makes_instances_still_holds_its_classes(device):
    table = Instantiating(relu=torch.nn.ReLU, tanh=torch.nn.Tanh)

    def fn(x):
        return table["relu"](x) + table["tanh"](x)

    graph = gfxgraph.graphed(fn)
    with torch.no_grad():
        for x in inputs(device):
            torch.testing.assert_close(graph(x), fn(x))
    assert dict(OrderedDict.items.__get__(table)()) != {} and table["relu"](torch.ones(1)) == 1
    assert [dict.get(table, key) for key in table] == [torch.nn.ReLU, torch.nn.Tanh]
    assert graph.stats().captures == 1 and graph.stats().replays == 4


def change_order(d):
    first = next(iter(d))
    d[first] = d.pop(first)


def change_defaultdict(d):
    d["new"].append(1)


def change_list(d):
    d[:] = [*d[::-1], 5]


CHANGES = {
    "order": (lambda: {"a": 1, "b": 2}, change_order),
    "order of an OrderedDict": (
        lambda: OrderedDict(a=1, b=2),
        lambda d: d.move_to_end(min(d, key=list(d).index)),
    ),
    "factory": (lambda: defaultdict(list), change_defaultdict),
    "removed": (lambda: {n: n for n in range(40)}, lambda d: d.pop(min(d))),
    "list": (lambda: [1, 2, 3], change_list),
    "set": (lambda: {1, 2}, lambda d: d.add(len(d) + 1)),
    "deque": (lambda: deque([1, 2, 3]), lambda d: d.rotate(1)),
    "UserDict": (lambda: UserDict(n=0), lambda d: d.update(n=d["n"] + 1)),
    "keys of a class": (
        lambda: {frozenset([1]): 1, (1, 2): 2},
        lambda d: d.update({(1, 2): d[1, 2] + 1}),
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_a_run_changed_in_a_container_is_put_back_in_its_place(device, kind):
    def make(device):
        new, change = CHANGES[kind]
        held = new()

        def fn(x):
            change(held)
            return x + len(held)

        def look():
            return sorted(held) if isinstance(held, set) else repr(held)

        return fn, look

    stats = same(make, device)
    assert stats.stored or stats.fallbacks


def test_looking_at_lists_shows_nobody(device):
    class Shown:
        shows = 0

        def __repr__(self):
            type(self).shows += 1
            return "shown"

        __str__ = __repr__

    held = [Shown(), Shown()]
    by_object = {Shown(): 1}

    def fn(x):
        return x + len(held) + len(by_object)

    graph = gfxgraph.graphed(fn)
    with torch.no_grad():
        for x in inputs(device):
            torch.testing.assert_close(graph(x), x + 3)
    assert Shown.shows == 0 and graph.stats().replays == 4


def test_a_class_that_lies_about_itself_is_taken_for_what_it_is(device):
    class Liar:
        @property
        def __class__(self):
            raise AssertionError("asked for __class__")

        def __getattribute__(self, name):
            raise AssertionError(f"asked for {name}")

    liar = Liar()

    def fn(x):
        return x + 1 if liar is not None else x

    graph = gfxgraph.graphed(fn)
    with torch.no_grad():
        for x in inputs(device):
            torch.testing.assert_close(graph(x), x + 1)
    assert graph.stats().replays == 4 and current_device().type == torch.device(device).type


# ---- a capture that fails


def test_a_generator_of_the_users_can_be_used_after_a_capture_that_failed(device):
    g = torch.Generator(device).manual_seed(3)
    graph = gfxgraph.BridgedCUDAGraph()
    graph.register_generator_state(g)
    kind, x = current_device(), torch.ones(4, device=device)
    with pytest.raises(RuntimeError), kind.on_stream(kind.new_stream(0), 0):
        graph.capture_begin()
        try:
            torch.rand(4, generator=g, device=device)
            x.sum().item()
        finally:
            graph.capture_end()
    assert torch.rand(4, generator=g, device=device).shape == (4,)


# ---- memory that nobody sees, and settings of the process


def shared_value():
    value = multiprocessing.Value("i", 0)

    def add():
        value.value += 1

    return add, lambda: value.value


def shared_array():
    values = multiprocessing.Array("i", 2)

    def add():
        values[0] += 1

    return add, lambda: values[0]


def raw_value():
    value = multiprocessing.sharedctypes.RawValue("i", 0)

    def add():
        value.value += 1

    return add, lambda: value.value


def map_of_memory():
    memory = mmap.mmap(-1, 4)

    def add():
        memory[0] += 1

    return add, lambda: memory[0]


def place_in_a_map():
    memory = mmap.mmap(-1, 16)
    return lambda: memory.read_byte(), memory.tell


def map_of_numpy():
    numbers = np.memmap(tempfile.NamedTemporaryFile(), dtype="int32", shape=(2,))  # noqa: SIM115

    def add():
        numbers[0] += 1

    return add, lambda: int(numbers[0])


def precision_of_decimal():
    before = decimal.getcontext().prec

    def add():
        decimal.getcontext().prec += 1

    return add, lambda: decimal.getcontext().prec - before


@pytest.mark.parametrize(
    "make",
    [
        shared_value,
        shared_array,
        raw_value,
        map_of_memory,
        place_in_a_map,
        map_of_numpy,
        precision_of_decimal,
    ],
)
def test_what_each_call_advances_is_advanced_once(device, make):
    with decimal.localcontext(), torch.no_grad():
        add, look = make()

        def fn(x):
            add()
            return x * 2

        graph = gfxgraph.graphed(fn)
        for n in range(5):
            graph(torch.ones(2, device=device))
            assert look() == n + 1
    assert graph.stats().replays == 0 and graph.stats().fallbacks


def test_what_is_put_back_after_each_call_costs_no_graph(device):
    def fn(x):
        with warnings.catch_warnings(), decimal.localcontext() as context, np.errstate(all="raise"):
            warnings.simplefilter("ignore")
            context.prec = 7
            return x * float(decimal.Decimal(1) / 3)

    graph = gfxgraph.graphed(fn)
    with torch.no_grad():
        for _ in range(4):
            graph(torch.ones(2, device=device))
    assert graph.stats().replays == 3


# ---- settings that are changed between calls


def test_a_matmul_is_a_graph_where_the_newer_way_has_set_its_precision(device):
    """The older way to ask raises then, for the whole process."""
    program = """
        import torch, gfxgraph
        if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
            torch.backends.cuda.matmul.fp32_precision = "tf32"
        layer = torch.nn.Linear(4, 4).to(gfxgraph.device_type())
        graph, x = gfxgraph.graphed(layer), torch.ones(2, 4, device=gfxgraph.device_type())
        with torch.no_grad():
            for _ in range(3):
                graph(x)
        print(graph.stats().replays, list(graph.stats().fallbacks))
    """
    assert printed(textwrap.dedent(program)) == "2 []"


def of_flag(get, put):
    return lambda: put(not get())


SWITCHES = {
    "torch.use_deterministic_algorithms": of_flag(
        torch.are_deterministic_algorithms_enabled,
        lambda on: torch.use_deterministic_algorithms(on, warn_only=True),
    ),
    "torch.set_float32_matmul_precision": lambda: torch.set_float32_matmul_precision(
        "high" if torch.get_float32_matmul_precision() == "highest" else "highest"
    ),
    "torch.backends.cudnn.enabled": of_flag(
        torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled
    ),
    "torch.backends.cuda.enable_math_sdp": of_flag(
        torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp
    ),
    "torch.backends.cuda.matmul.allow_fp16_accumulation": of_flag(
        torch._C._get_cublas_allow_fp16_accumulation, torch._C._set_cublas_allow_fp16_accumulation
    ),
    "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp": of_flag(
        torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp,
    ),
    "the order of attention": lambda: torch._C._set_sdp_priority_order(
        torch._C._get_sdp_priority_order()[::-1]
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("writes", [False, True])
def test_a_graph_is_used_under_the_settings_of_its_capture_alone(device, name, writes):
    total = torch.zeros(2, device=device)

    def fn(x):
        if writes:
            total.add_(1)
        flags = (
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision() == "highest",
            torch._C._get_cudnn_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch._C._get_cublas_allow_fp16_accumulation(),
            torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(),
            torch._C._get_sdp_priority_order()[0] > torch._C._get_sdp_priority_order()[-1],
        )
        return x * sum(flag << n for n, flag in enumerate(flags))

    graph, x = gfxgraph.graphed(fn), torch.ones(2, device=device)
    switch = SWITCHES[name]
    for _ in range(2):
        for _ in range(3):
            assert torch.equal(graph(x), fn(x))
        switch()
    for _ in range(3):
        assert torch.equal(graph(x), fn(x))
    stats, entry = graph.stats(), graph._dispatcher.entries.order[0]  # the first is back
    assert (stats.captures, stats.recaptures, stats.replays) == (2, 1, 7)
    assert entry._guard.places_hold()  # without a second look
    assert total[0].item() == (18 if writes else 0)


@torch.no_grad()
@pytest.mark.parametrize(("layer", "recaptures"), [("Linear", 0), ("Conv1d", 1)])
def test_only_settings_that_kernels_of_the_graph_ask_for_are_looked_at(device, layer, recaptures):
    model = (
        getattr(torch.nn, layer)(*((8, 8) if layer == "Linear" else (4, 4, 3))).to(device).eval()
    )
    graph, x = gfxgraph.graphed(model), torch.randn(2, 4, 8, device=device)
    for _ in range(2):
        for _ in range(3):
            torch.testing.assert_close(graph(x), model(x))
        torch._C._set_cudnn_benchmark(not torch._C._get_cudnn_benchmark())
    assert graph.stats().recaptures == recaptures


def test_a_context_variable_without_a_value_has_none_after_runs_of_ours(device):
    scale = contextvars.ContextVar("scale", default=2.0)

    def fn(x):
        scale.set(scale.get() + 1)
        return x * 2

    x = torch.ones(3, device=device)
    for look in (gfxgraph.check, gfxgraph.verify):
        assert look(fn, x).verdict == "eager"
        assert scale.get() == 2.0 and scale not in contextvars.copy_context()


# ---- arrays and views that cannot be put back as they were


def _change_shape(held):
    held.shape = (2, 3) if held.ndim == 1 else (6,)


def _lock_or_unlock(held):
    held.flags.writeable = not held.flags.writeable


def _release(held):
    held.release()


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: np.arange(6.0)[:], _change_shape),  # it does not own its memory: no resize()
        (lambda: np.arange(6.0), _change_shape),
        (lambda: np.arange(6.0), _lock_or_unlock),
        (lambda: np.arange(6.0)[:], _lock_or_unlock),
        (lambda: memoryview(bytearray(6)), _release),  # nothing can be written to it any more
    ],
    ids=["shape of a view", "shape", "lock", "lock of a view", "release"],
)
def test_what_cannot_be_put_back_runs_eagerly(make, change, device):
    def outcomes(as_graph):
        held = make()

        def function(x):
            change(held)
            return x * (1 + getattr(held, "ndim", 0))

        call = gfxgraph.graphed(function) if as_graph else function
        found = []
        for _ in range(6):
            try:
                result = call(torch.ones(2, device=device)).tolist()
            except ValueError:
                result = "raises"
            found.append((result, getattr(getattr(held, "flags", None), "writeable", None)))
        return found, call

    found, graph = outcomes(as_graph=True)
    assert found == outcomes(as_graph=False)[0]
    assert graph.stats().replays == 0


# ---- iterators that only some calls advance


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "values", sampled(itertools.product((0.0, -3.0, 0.3), repeat=4), 4, of_long=7), ids=str
)
def test_a_run_of_ours_advances_no_iterator_by_the_way_that_written_memory_takes(
    values, mode, device
):
    """A call that leaves the iterator alone may write what lets the next one advance it."""

    def world(wrap):
        state = types.SimpleNamespace(numbers=iter(range(1000)))
        with mode():
            state.kept = torch.zeros(3, device=device)

        def function(x):
            state.kept.add_(1).remainder_(4)
            count, half = 0, (x + state.kept).abs() + 1
            while half.amax() > 1.5 and count < 3:
                count, half = count + 1, half * 0.5
                x = x + next(state.numbers) % 3
            return half, x

        call, found = wrap(function), []
        for value in values:
            with mode():
                results = call(torch.full((3,), value, device=device))
                found.append(([r.tolist() for r in results], state.kept.tolist()))
            found.append(state.numbers.__reduce__()[2])
        return found

    assert world(gfxgraph.graphed) == world(lambda function: function)


@torch.no_grad()
def test_so_it_is_for_two_variables_of_one_name(device):
    def world(wrap):
        numbers = iter(range(1000))

        def part(step):
            kept = torch.zeros(3, device=device)
            return lambda: kept.add_(step).remainder_(4)

        parts = [part(1), part(0), part(1), part(0)]

        def function(x):
            total = sum(one() for one in parts[:2]) * 0 + sum(one() for one in parts[2:])
            count, half = 0, (x + total).abs() + 1
            while half.amax() > 1.5 and count < 3:
                count, half = count + 1, half * 0.5
                x = x + next(numbers) % 3
            return half, x

        call, found = wrap(function), []
        for value in (0.0, 0.0, -3.0, 0.0, 0.3, -3.0):
            found.append([r.tolist() for r in call(torch.full((3,), value, device=device))])
            found.append(numbers.__reduce__()[2])
        return found

    assert world(gfxgraph.graphed) == world(lambda function: function)


_LAYOUTS = {
    "expanded": lambda: torch.zeros(4).expand(3, 4),
    "overlapping": lambda: torch.zeros(6).as_strided((3, 4), (1, 1)),
    "sparse": lambda: torch.zeros(3, 4).to_sparse(),
    "csr": lambda: torch.eye(3, 4).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(3), torch.zeros(2)]),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.zeros(3), torch.zeros(2)], layout=torch.jagged
    ),
    "two in one": lambda: TwoTensor(torch.zeros(3, 4), torch.zeros(3, 4)),
    "subclass": lambda: torch.zeros(3, 4).as_subclass(type("Sub", (torch.Tensor,), {})),
    "quantized": lambda: torch.quantize_per_tensor(torch.zeros(3, 4), 0.1, 0, torch.qint8),
}


def _fill(layout, tensor, number):
    if layout == "expanded":
        tensor.select(0, 0).select(0, 0).fill_(number)
    elif layout == "overlapping":
        tensor[0].fill_(number)
    elif layout == "sparse":
        tensor.copy_((torch.eye(3, 4) * number).to_sparse())
    elif layout == "csr":
        tensor.values().fill_(number)
    elif layout == "nested":
        tensor.unbind()[0].fill_(number)
    elif layout == "jagged":
        tensor.values().fill_(number)
    elif layout == "quantized":
        tensor.copy_(torch.full((3, 4), float(number % 5)))
    else:
        tensor.fill_(number)


def _sum(layout, tensor):
    if layout in ("sparse", "csr"):
        return float(tensor.to_dense().sum())
    if layout == "two in one":
        return float(tensor.a.sum() + tensor.b.sum())
    if layout == "nested":
        return float(tensor.unbind()[0].sum())
    if layout == "quantized":
        return float(tensor.dequantize().sum())
    return float((tensor.values() if layout == "jagged" else tensor).sum())


def _advances_by(get, read, write, device):
    """A function that advances an iterator where a tensor holds little, and writes to that."""

    def world(wrap):
        tensor_of, numbers = get(), iter(range(1, 100))

        def function(x):
            number = next(numbers) if read(tensor_of()) < 3 else 0
            write(tensor_of(), number % 7)
            return x + number

        call, found = wrap(function), []
        for value in range(8):
            result = call(torch.full((3,), float(value), device=device))
            found.append((result.tolist(), read(tensor_of())))
        return found

    return world


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("layout", _LAYOUTS)
@torch.no_grad()
def test_so_it_is_for_tensors_of_every_layout(layout, device):
    def get():
        tensor = _LAYOUTS[layout]()
        return lambda: tensor

    world = _advances_by(get, lambda t: _sum(layout, t), lambda t, n: _fill(layout, t, n), device)
    assert world(gfxgraph.graphed) == world(lambda function: function)


_WRITES = {
    "data": lambda t, n: t.data.fill_(n),
    "NumPy": lambda t, n: t.detach().numpy().fill(n),
    "DLPack": lambda t, n: torch.from_dlpack(t).fill_(n),
    "storage": lambda t, n: t.untyped_storage().fill_(n),
    "other memory": lambda t, n: t.set_(torch.full((3, 4), float(n))),
}


def _in_context_variable(tensor):
    variable = contextvars.ContextVar("kept")
    variable.set(tensor)
    return variable.get


def _in_cache(tensor):
    kept = [tensor]
    cached = functools.lru_cache(lambda: kept.pop())
    cached()
    return cached


def _as_gradient(tensor):
    weight = torch.zeros(3, 4, requires_grad=True)
    weight.grad = tensor
    return lambda: weight.grad


@pytest.mark.parametrize(
    "hold", [_in_context_variable, _in_cache, _as_gradient, lambda tensor: lambda: tensor]
)
@pytest.mark.parametrize("write", _WRITES)
@torch.no_grad()
def test_so_it_is_for_writes_that_no_version_counts(write, hold, device):
    world = _advances_by(
        lambda: hold(torch.zeros(3, 4)), lambda t: float(t.sum()), _WRITES[write], device
    )
    assert world(gfxgraph.graphed) == world(lambda function: function)


class _Owner:
    pass


def _owner_of(item):
    owner = _Owner()
    owner.item = item
    return owner


def _getters(item):
    """How a function may get at ``item``, by name, with what must live meanwhile."""
    owner, variable = _owner_of(item), contextvars.ContextVar("kept")
    variable.set(item)
    default = contextvars.ContextVar("default", default=item)
    by_value, by_key = weakref.WeakValueDictionary(a=owner), weakref.WeakKeyDictionary()
    by_key[owner], members = item, weakref.WeakSet([owner])
    proxy, view = types.MappingProxyType({"a": item}), {"a": item}.values()
    weak, fifo = weakref.proxy(owner), queue.SimpleQueue()
    fifo.put(item)
    future, stack = concurrent.futures.Future(), contextlib.ExitStack()
    future.set_result(item)
    stack.item = item
    error, outer = ValueError(), ValueError()
    error.item, outer.__cause__ = item, ValueError(item)
    meta = type("Meta", (type,), {"item": item})("Made", (), {})
    module = types.ModuleType("math")  # by its name one of Python's
    module.item = item

    def from_queue():
        found = fifo.get()
        fifo.put(found)
        return found

    found = {
        "context variable": variable.get,
        "its default": default.get,
        "cache": _in_cache(item),
        "weak value": lambda: by_value["a"].item,
        "weak key": lambda: by_key[owner],
        "weak set": lambda: next(iter(members)).item,
        "mapping proxy": lambda: proxy["a"],
        "view": lambda: next(iter(view)),
        "weak proxy": lambda: weak.item,
        "queue": from_queue,
        "context manager": lambda: contextlib.nullcontext(stack).enter_result.item,
        "future": future.result,
        "attribute of an error": lambda: error.item,
        "cause of an error": lambda: outer.__cause__.args[0],
        "metaclass": lambda: meta.item,
        "module of Python": lambda: module.item,
    }
    return found, owner


@pytest.mark.parametrize("way", _getters(None)[0])
@pytest.mark.parametrize("kind", ["iterator", "counter", "dict"])
@torch.no_grad()
def test_iterators_behind_objects_in_c_and_objects_of_python_are_met(kind, way, device):
    make = {
        "iterator": lambda: iter(range(1, 100)),
        "counter": lambda: itertools.count(1),
        "dict": lambda: {"count": 0},
    }[kind]

    def world(wrap):
        getters, owner = _getters(make())
        get = getters[way]

        def function(x):
            found = get()
            if kind == "dict":
                found["count"] += 1
                return x * found["count"]
            return x * next(found)

        call = wrap(function)
        found = [call(torch.ones(2, device=device)).tolist() for _ in range(7)]
        del owner
        return found

    assert world(gfxgraph.graphed) == world(lambda function: function)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("layout", ["sparse", "csr", "nested", "jagged"])
@torch.no_grad()
def test_writes_to_a_part_of_a_tensor_outside_happen_once(layout, device):
    def world(wrap):
        tensor = _LAYOUTS[layout]()
        if layout == "sparse":
            tensor = torch.eye(3, 4).to_sparse()

        def function(x):
            (tensor._values() if layout == "sparse" else tensor.values()).add_(1)
            return x + _sum(layout, tensor)

        call = wrap(function)
        return [call(torch.ones(3, device=device)).tolist() for _ in range(6)]

    assert world(gfxgraph.graphed) == world(lambda function: function)


@torch.no_grad()
def test_a_write_to_a_tensor_that_wraps_others_runs_eagerly(device):
    weight = TwoTensor(torch.zeros(3), torch.zeros(3))

    def function(x):
        weight.fill_(float(x[0]) + 1)
        return x + float(weight.a.sum())

    graph = gfxgraph.graphed(function)
    for value in range(5):
        x = torch.full((3,), float(value), device=device)
        torch.testing.assert_close(graph(x), x + 3 * (value + 1))
    assert any("TwoTensor" in reason for reason in graph.stats().fallbacks)


ATTENTION = """
import torch
import gfxgraph

@gfxgraph.graphed(fallback="raise")
def attention(x):
    return torch.nn.functional.scaled_dot_product_attention(x, x, x)

x = torch.randn(2, 2, 8, 16, dtype=torch.float16, device="cuda")
with torch.no_grad():
    results = [attention(x) for _ in range(2)]
assert torch.equal(*results) and attention.stats().replays == 1
"""


@pytest.mark.gpu
def test_the_first_attention_of_a_process_changes_no_setting():
    subprocess.run([sys.executable, "-c", ATTENTION], check=True, timeout=100)
