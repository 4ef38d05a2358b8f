"""What a run has read in Python is known as places, and a change of any of them is seen."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import ctypes
import functools
import gc
import sys
import threading
import types
import weakref

import pytest
import torch
from torch import nn
from torch.utils import _pytree

import gfxgraph
from gfxgraph.graph.places import Item
from gfxgraph.graph.reads import Reads
from tests.helpers.sampled import sampled
from tests.hostile.hostile_python import CASES

# Settings and global hooks of torch are no places: others know and count them.
ELSEWHERE = ("torch_dispatch_flags", "default_dtype", "global_hook")


def recorded(fn, x):
    """The reads of a second call: what the first one leaves behind has settled."""
    fn(x)
    reads = Reads({"fn": fn}, [x])
    with reads.recording():
        fn(x)
    assert not reads.failed
    return reads


@pytest.mark.parametrize(
    "name", sampled((name for name in CASES if name not in ELSEWHERE), 3, of_long=5)
)
@torch.no_grad()
def test_a_change_of_what_was_read_is_seen_and_nothing_else(name):
    fn, change = CASES[name]()
    x = torch.randn(2, 4)
    reads = recorded(fn, x)
    try:
        fn(x)
        assert not reads.changes()
        change()
        assert reads.changes()
    finally:
        getattr(fn, "undo", lambda: None)()


def test_a_place_has_a_name_and_the_line_that_read_it():
    class Config:
        scale = 2.0

    def fn(x):
        return x * Config.scale

    reads = recorded(fn, torch.ones(2))
    (place,) = (place for place in reads.places.values() if place.path.endswith("Config.scale"))
    assert place.where == (__file__, fn.__code__.co_firstlineno + 1)
    Config.scale = 3.0
    assert reads.changes() == [place.path]


class Asked:
    """Counts who asks it for anything that a class may override."""

    def __init__(self):
        self.value, self.times = 1.0, 0

    def _count(self, *args):
        object.__setattr__(self, "times", object.__getattribute__(self, "times") + 1)
        return 1

    __len__ = __hash__ = __bool__ = _count

    def __repr__(self):
        self._count()
        return ""

    def __eq__(self, other):
        self._count()
        return True


def test_none_of_the_programs_code_is_called_to_look():
    held = {"a": Asked()}
    asked = held["a"]

    def fn(x):
        return x * held["a"].value

    reads = recorded(fn, torch.ones(2))
    assert asked.times == 0 and not reads.changes() and asked.times == 0
    asked.value = 2.0
    assert len(reads.changes()) == 1 and asked.times == 0


class Held:
    def __init__(self):
        self.scale = 2.0


@pytest.mark.parametrize("frozen", [False, True])
def test_an_object_that_no_place_leads_to_is_state_if_it_was_there_before(frozen):
    """Engines freeze what they have loaded; the collector lists nothing of it then."""
    held = Held()
    address = id(held)

    def fn(x):
        made = [Held()]  # these are the run's own
        there = ctypes.cast(address, ctypes.py_object).value
        return x * there.scale * made[0].scale

    if frozen:
        gc.freeze()
    try:
        reads = recorded(fn, torch.ones(2))
    finally:
        if frozen:
            gc.unfreeze()
    assert (
        sum(place.path == "Held.scale" for place in reads.places.values()) == 2
    )  # in the class and in the object
    held.scale = 3.0
    assert reads.changes() == ["Held.scale"]


@pytest.mark.long
def test_what_a_program_has_frozen_is_frozen_again_and_garbage_of_the_run_is_not():
    """While a run is recorded it is not: each question would go through all that the run made."""
    held, young, alive = Held(), [], []
    address = id(held)

    def fn(x):
        kept = [Held() for _ in range(20_000)]
        there = ctypes.cast(address, ctypes.py_object).value
        result = x * there.scale * len(kept)  # asks whether the run has made it
        one = Held()
        one.itself = one
        alive.append(weakref.ref(one))
        young.append(len(gc.get_objects(0)))
        return result

    gc.collect()
    gc.freeze()
    try:
        assert not any(item is young for item in gc.get_objects())
        with Reads({"fn": fn}, [torch.ones(2)]).recording():
            fn(torch.ones(2))
        assert not any(item is young for item in gc.get_objects())
    finally:
        gc.unfreeze()
    assert max(young) < 10_000
    assert [ref() for ref in alive] == [None]


def test_what_a_run_puts_into_a_context_variable_is_its_own():
    variable = contextvars.ContextVar("variable", default=None)

    def fn(x):
        token = variable.set({"scale": 2.0})
        try:
            return x * variable.get()["scale"]
        finally:
            variable.reset(token)

    reads = recorded(fn, torch.ones(2))
    assert not any("scale" in place.path for place in reads.places.values())
    assert not reads.changes()
    variable.set({})
    assert reads.changes()


def test_what_a_collection_calls_reads_nothing_for_the_function():
    counts = {"started": 0}

    def count(phase, info):
        counts["started"] += phase == "start"

    def fn(x):
        gc.collect()
        return x + 1

    gc.callbacks.append(count)
    try:
        reads = recorded(fn, torch.ones(2))
    finally:
        gc.callbacks.remove(count)
    assert counts["started"] and not reads.changes()


def numbered():
    class Kept:
        number = 2.0

    kept = Kept()

    def function(x):
        id(kept)  # C code, which may look into its class
        y = x * kept.number
        Kept.number = Kept.number + 1.0
        return y + kept.number

    return function, lambda: Kept.number


def replaced():
    class Inner:
        number = 2.0

    class Kept:
        inner = Inner()

    kept = Kept()

    def function(x):
        id(kept)
        y = x * kept.inner.number
        new = Inner()
        new.number = kept.inner.number + 1.0
        Kept.inner = property(lambda self: new)
        return y + kept.inner.number

    return function, lambda: kept.inner.number


@pytest.mark.parametrize("make", [numbered, pytest.param(replaced, marks=pytest.mark.long)])
@torch.no_grad()
def test_what_a_run_changes_in_a_class_is_put_back_where_python_finds_it(device, make):
    (function, held), (twin, expected) = make(), make()
    graph = gfxgraph.graphed(function)
    x = torch.ones(2, device=device)
    for _ in range(6):
        assert torch.equal(graph(x), twin(x))
        gc.collect()
        assert held() == expected()


def hidden():
    class Net(nn.Module):
        pass

    net, first, second = Net(), nn.Identity(), nn.Identity()
    first.scale, second.scale = 2.0, 3.0
    net.inner = first

    def function(x):
        y = x * net.inner.scale
        vars(net).update(inner=second)
        y = y + net.inner.scale
        vars(net).pop("inner")
        return y + net.inner.scale

    def change():
        second.scale += 1

    return function, lambda: sorted(vars(net)), change


def of_this_thread():
    class Inner:
        scale = 2.0

    class Local(threading.local):
        pass

    class Other(Local):
        inner = property(lambda self: second)

    local, second = Local(), Inner()
    local.inner = Inner()

    def function(x):
        y = x * local.inner.scale
        local.__class__ = Other
        y = y + local.inner.scale
        local.__class__ = Local
        return y + local.inner.scale

    def change():
        second.scale += 1

    return function, lambda: type(local).__name__, change


def answered():
    class Inner:
        def __init__(self, scale):
            self.scale = scale

    first, second = Inner(2.0), Inner(3.0)

    class Meta(type):
        def __getattr__(cls, name):
            return second

    class Kept(metaclass=Meta):
        inner = first

    def function(x):
        y = x * Kept.inner.scale
        del Kept.inner
        y = y + Kept.inner.scale
        Kept.inner = first
        return y

    def change():
        second.scale += 1

    return function, lambda: Kept.inner is first, change


def answered_by_a_module():
    class Net(nn.Module):
        def __getattr__(self, name):
            return self._modules["second"] if name == "first" else super().__getattr__(name)

    net = Net()
    net.first, net.second = nn.Identity(), nn.Identity()
    net.first.scale, net.second.scale = 2.0, 3.0

    def change():
        net._modules["second"].scale += 1

    return lambda x: x * net.first.scale, lambda: len(vars(net)), change


@pytest.mark.parametrize("make", [hidden, of_this_thread, answered, answered_by_a_module])
@torch.no_grad()
def test_what_a_name_leads_to_may_change_in_the_middle_of_a_run(device, make):
    (function, held, change), (twin, expected, change_twin) = make(), make()
    graph = gfxgraph.graphed(function)
    x = torch.ones(2, device=device)
    for _ in range(5):
        assert torch.equal(graph(x), twin(x))
        assert held() == expected()
        change()
        change_twin()


def _read_scale(x):
    return x * CFG.scale  # noqa: F821  each copy has its own


def _copy(name: str, scale: float) -> types.FunctionType:
    """One code object with global variables of its own, as ``reload()`` and factories leave it."""
    space = {"__name__": name, "CFG": types.SimpleNamespace(scale=scale)}
    return types.FunctionType(_read_scale.__code__, space)


@pytest.mark.parametrize("how", ["rebound", "changed"])
@pytest.mark.parametrize("last", [0, 1, 2])
@torch.no_grad()
def test_copies_of_a_function_each_read_their_own_global_variables(device, how, last):
    first, second = _copy("first", 2.0), _copy("second", 3.0)
    called = (first, second, first) if last != 1 else (first, second, second)

    def fn(x):
        for function in called:
            x = function(x)
        return x

    graph, x = gfxgraph.graphed(fn), torch.ones(3, device=device)
    for _ in range(3):
        assert torch.equal(graph(x), fn(x))
    assert graph.stats().replays
    space = called[last].__globals__
    if how == "rebound":
        space["CFG"] = types.SimpleNamespace(scale=5.0)
    else:
        space["CFG"].scale = 5.0
    assert torch.equal(graph(x), fn(x))


TURNS = types.SimpleNamespace(scale=2.0)
OTHER = types.SimpleNamespace(scale=3.0)


@torch.no_grad()
def test_a_global_variable_that_is_bound_anew_in_a_loop_leads_to_each_value(device):
    def fn(x):
        global TURNS, OTHER
        for _ in range(2):
            x = x * TURNS.scale
            TURNS, OTHER = OTHER, TURNS
        return x

    graph, x = gfxgraph.graphed(fn), torch.ones(3, device=device)
    for _ in range(3):
        assert torch.equal(graph(x), fn(x))
    for holder in (TURNS, OTHER):
        holder.scale += 1
        assert torch.equal(graph(x), fn(x))


def _modules(source: str, **shared) -> tuple[dict, dict]:
    """One code object in two modules, as one file that is run twice leaves it."""
    code = compile(source, "module.py", "exec")
    spaces = {"__name__": "first", **shared}, {"__name__": "second", **shared}
    for space in spaces:
        exec(code, space)
    return spaces


def _one_inside_the_other():
    first, second = _modules(
        "G = 2.\ndef layer(x, inner=None):\n    if inner: x = inner(x)\n    return x * G"
    )
    outer, inner = first["layer"], second["layer"]
    return lambda x: outer(x, inner), lambda: first.update(G=7.0)


def _one_inside_the_others_handler():
    first, second = _modules(
        "G = 2.\n"
        "def layer(x, inner=None):\n"
        "    try:\n"
        "        if inner: raise ValueError(x)\n"
        "    except ValueError as error:\n"
        "        x = inner(error.args[0])\n"
        "    return x * G"
    )
    outer, inner = first["layer"], second["layer"]
    return lambda x: outer(x, inner), lambda: first.update(G=7.0)


def _one_generator_inside_the_other():
    first, second = _modules("G = 2.\ndef items(xs):\n    for x in xs: yield x * G")
    outer, inner = first["items"], second["items"]
    return lambda x: sum(outer(inner([x, x]))), lambda: first.update(G=7.0)


def _an_object_in_the_other():
    first, second = _modules(
        "G = 2.\n"
        "class Layer:\n"
        "    def __init__(self, inner=None): self.inner = inner\n"
        "    def __call__(self, x): return (self.inner(x) if self.inner else x) * G"
    )
    model = first["Layer"](second["Layer"]())
    return lambda x: model(x), lambda: first.update(G=7.0)


def _with_other_builtins():
    def scaled(x):
        return x * SCALE_OF_BUILTINS  # noqa: F821

    space, builtins = {"__name__": "m", "__builtins__": {"SCALE_OF_BUILTINS": 2.0}}, {}
    first = types.FunctionType(scaled.__code__, space)
    builtins["SCALE_OF_BUILTINS"] = 3.0
    space["__builtins__"] = builtins
    second = types.FunctionType(scaled.__code__, space)
    return lambda x: second(first(x)), lambda: builtins.update(SCALE_OF_BUILTINS=7.0)


def _first_in_a_closed_module():
    (first, _) = _modules("G = 2.\ndef scaled(x): return x * G")
    own = first["scaled"]
    closed = types.FunctionType(own.__code__, {"__name__": "torch.other", "G": 3.0})
    return lambda x: own(closed(x)), lambda: first.update(G=7.0)


BOX = types.SimpleNamespace(scale=2.0)


def _in_a_context_manager_after_an_error():
    @contextlib.contextmanager
    def catching(found):
        try:
            yield
        except ValueError:
            found.append(BOX.scale)

    def fn(x):
        found = []
        with catching(found):
            raise ValueError
        return x * found[0]

    return fn, lambda: setattr(BOX, "scale", BOX.scale + 1)


def _in_a_generator_that_is_closed():
    def steps(found):
        try:
            yield 1
        finally:
            found.append(BOX.scale)

    def fn(x):
        found = []
        going = steps(found)
        next(going)
        going.close()
        return x * found[0]

    return fn, lambda: setattr(BOX, "scale", BOX.scale + 1)


def _in_a_cache_that_is_emptied_and_filled_again():
    @functools.lru_cache(maxsize=2)
    def scale():
        return BOX.scale

    scale()

    def change():
        BOX.scale += 1
        scale.cache_clear()
        scale()

    return lambda x: x * scale(), change


READ = [
    _one_inside_the_other,
    _one_inside_the_others_handler,
    _one_generator_inside_the_other,
    _an_object_in_the_other,
    _with_other_builtins,
    _first_in_a_closed_module,
    _in_a_context_manager_after_an_error,
    _in_a_generator_that_is_closed,
    _in_a_cache_that_is_emptied_and_filled_again,
]


@pytest.mark.parametrize("make", READ)
@torch.no_grad()
def test_what_is_read_in_the_middle_of_something_else_is_seen(device, make):
    fn, change = make()
    graph, x = gfxgraph.graphed(fn), torch.ones(3, device=device)
    for _ in range(3):
        assert torch.equal(graph(x), fn(x))
    assert graph.stats().replays == 2
    change()
    assert torch.equal(graph(x), fn(x))


def test_an_item_that_is_put_back_as_absent_leaves_the_order_of_an_ordereddict_whole():
    held = collections.OrderedDict(first=1)
    place = Item.of("held", held, "later")
    held["later"] = 2
    place.put_back()
    assert list(held) == ["first"] and list(held.items()) == [("first", 1)]


def test_what_a_function_holds_goes_when_it_ends():
    """Also where what called it is not looked at: torch's own code here."""
    callers: list[str] = []

    class Held:
        def __del__(self) -> None:
            callers.append(sys._getframe(1).f_code.co_name)

    def callback(x):
        held = Held()
        return x if held else None

    def function():
        _pytree.tree_map(callback, [0])

    function()
    with Reads({"function": function}).recording():
        function()
    assert callers[0] == callers[1]


class _Box:
    """Holds what tells nobody its shape."""

    def __init__(self):
        self.items = [torch.nn.UninitializedParameter()]


@pytest.mark.parametrize("way", [map, filter, zip])
def test_what_cannot_be_looked_at_where_a_frame_ends_raises_nothing_in_the_function(device, way):
    box = _Box()

    def given(_=None):
        return box

    def each():
        yield box

    def fn(x):
        found = list(zip(each(), [1], strict=True) if way is zip else way(given, [1]))
        return x * len(found)

    graph, x = gfxgraph.graphed(fn), torch.ones(2, device=device)
    for _ in range(3):
        assert torch.equal(graph(x), x)
    *_, reason = graph.stats().fallbacks
    assert "could not be seen" in reason and "uninitialized parameter" in reason
