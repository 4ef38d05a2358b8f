"""A change of a watched dict is heard, and without one nothing has to be asked."""

from __future__ import annotations

import gc
import sys

import pytest
import torch

import gfxgraph
from gfxgraph.graph.places import Bind, Parts
from gfxgraph.graph.watched import SameVersions, Unchanged, _changes, watcher
from gfxgraph.graph.words import versions
from tests.helpers.processes import python
from tests.helpers.threads import on_threads

needs_watchers = pytest.mark.skipif(
    watcher() is None, reason="this Python does not tell of all changes of dicts"
)


class Held:
    value = 1

    def __init__(self):
        self.own = 1


CHANGES = {
    "an attribute is set": lambda item: setattr(item, "own", 2),
    "an attribute comes": lambda item: setattr(item, "new", 2),
    "an attribute goes": lambda item: delattr(item, "own"),
    "past __setattr__": lambda item: object.__setattr__(item, "own", 2),
    "an item of the dict": lambda item: item.__dict__.__setitem__("own", 2),
    "an update": lambda item: item.__dict__.update(own=2),
    "a union": lambda item: item.__dict__.__ior__({"own": 2}),
    "all go": lambda item: item.__dict__.clear(),
    "one is popped": lambda item: item.__dict__.pop("own"),
    "the last is popped": lambda item: item.__dict__.popitem(),
    "a default comes": lambda item: item.__dict__.setdefault("new", 2),
    "the class": lambda item: setattr(type(item), "value", 2),
    "past the metaclass": lambda item: type.__setattr__(type(item), "value", 2),
    "the class gets one": lambda item: setattr(type(item), "new", 2),
    "the class loses one": lambda item: delattr(type(item), "value"),
}


def spaces(item):
    return [item.__dict__, *gc.get_referents(type(item).__dict__)]


@pytest.mark.skipif(versions([{}]) is None, reason="dicts have no numbers of their own")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("times", [1, 20])
def test_each_change_of_a_dict_shows_in_its_number(change, times):
    for _ in range(times):  # the interpreter takes shorter ways after some
        held = type("Other", (Held,), dict(vars(Held)))()
        others = [type("Other", (Held,), dict(vars(Held)))() for _ in range(3)]
        dicts = [space for item in (held, *others) for space in spaces(item)]
        asked = SameVersions(lambda: True, versions(dicts), dicts)
        assert asked.holds() and asked.then == asked.versions()
        assert (held.own, held.value, vars(held)["own"]) == (1, 1, 1)
        assert asked.then == asked.versions()
        CHANGES[change](held)
        assert asked.then != asked.versions()


@pytest.mark.skipif(versions([{}]) is None, reason="dicts have no numbers of their own")
def test_what_changes_while_it_is_asked_is_asked_again():
    held = Held()
    answers = []

    def answer():
        answers.append(held.own)
        if len(answers) == 1:
            held.own += 1
        return True

    asked = SameVersions(answer, versions([held.__dict__]), [held.__dict__])
    assert asked.holds() and asked.then != asked.versions()
    assert asked.holds() and asked.then == asked.versions()
    assert answers == [1, 2]


def yes():
    return True


@needs_watchers
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_a_watched_dict_is_heard(change):
    by = watcher()
    held = type("Other", (Held,), dict(vars(Held)))()
    asked = Unchanged(by, [(space, yes) for space in spaces(held)])
    assert asked.holds() and asked.same() and asked.stamp == by.changes()
    CHANGES[change](held)
    assert not asked.same() and asked.stamp != by.changes()


@needs_watchers
@pytest.mark.skipif(sys.platform != "linux", reason="only there a process can list its memory")
def test_the_place_where_torch_counts_is_found():
    by, held = watcher(), Held()
    by.watch(held.__dict__)
    unchanged = by.since(by.changes())
    assert by._counted_at is not None
    for n in range(100):
        before = by.changes()
        held.own = n
        assert by.changes() == before + 1 and not unchanged()


@needs_watchers
def test_each_of_many_sets_in_one_line_of_code_is_heard():
    by, held = watcher(), Held()
    Unchanged(by, [(space, yes) for space in spaces(held)])
    for n in range(1000):
        before = by.changes()
        assert by.changes() == before
        held.own = n
        assert by.changes() != before


@needs_watchers
def test_a_change_is_heard_by_all_who_ask():
    by, held = watcher(), Held()
    both = [Unchanged(by, [(held.__dict__, yes)]) for _ in range(2)]
    assert all(asked.holds() and asked.stamp == by.changes() for asked in both)
    held.own = 2
    for asked in both:
        assert asked.stamp != by.changes()
        assert asked.holds()
    assert all(asked.stamp == by.changes() for asked in both)


@needs_watchers
def test_only_what_depends_on_a_dict_that_has_changed_is_asked():
    by, first, second, other = watcher(), Held(), Held(), Held()
    by.watch(other.__dict__)
    counts = {"first": 0, "second": 0}

    def asking(name, item):
        def ask():
            counts[name] += 1
            return item.own != "wrong"

        return item.__dict__, ask

    asked = Unchanged(by, [asking("first", first), asking("second", second)])
    assert asked.holds() and asked.same() and counts == {"first": 1, "second": 1}
    other.own = 2
    assert not asked.same() and asked.holds() and asked.same()
    assert counts == {"first": 1, "second": 1}
    second.own = 2
    assert not asked.same() and asked.holds() and asked.same()
    assert counts == {"first": 1, "second": 2}
    first.own = "wrong"
    second.own = "wrong"
    assert not asked.holds() and not asked.holds() and not asked.same()
    first.own = 1
    assert not asked.holds()
    second.own = 1
    assert asked.holds() and asked.same()


@needs_watchers
def test_a_dict_that_changes_while_another_is_asked_is_asked_again():
    by, first, second, answers = watcher(), Held(), Held(), []

    def ask():
        answers.append(second.own)
        first.own = second.own = -len(answers)
        return True

    asked = Unchanged(by, [(first.__dict__, yes), (second.__dict__, ask)])
    for n in range(3):
        assert asked.holds() and not asked.same() and len(answers) == n + 1


@needs_watchers
def test_a_dict_that_has_become_empty_is_asked_each_time():
    """Torch hears nothing of what is put into an empty dict at once."""
    by, held = watcher(), Held()
    asked = Unchanged(by, [(held.__dict__, lambda: "hidden" not in held.__dict__)])
    held.__dict__.clear()
    assert asked.holds() and asked.stamp != by.changes()
    held.__dict__.update({"hidden": 1, "other": 2})
    assert not asked.holds()


@needs_watchers
def test_what_does_not_hold_is_asked_again():
    held, answers = Held(), [False, True]
    asked = Unchanged(watcher(), [(held.__dict__, lambda: answers.pop(0))])
    assert not asked.holds() and asked.stamp == -1
    assert asked.holds() and asked.stamp == watcher().changes()


@needs_watchers
def test_changes_in_other_threads_are_heard_while_many_ask():
    by, held = watcher(), Held()
    asked = Unchanged(by, [(held.__dict__, yes)])
    missed = []

    def work(number):
        mine = Held()
        own = Unchanged(by, [(mine.__dict__, yes)])
        for n in range(3000):
            own.holds()
            stamp = own.stamp
            mine.own = n
            missed.extend([n] if by.changes() == stamp else [])
            asked.holds()

    on_threads(work, range(4))
    assert not missed


PARTS = {
    "the code": lambda f, other: setattr(f, "__code__", other.__code__),
    "the defaults": lambda f, other: setattr(f, "__defaults__", (3,)),
    "the keyword defaults": lambda f, other: setattr(f, "__kwdefaults__", {"b": 3}),
    "no defaults": lambda f, other: delattr(f, "__defaults__"),
}


@pytest.mark.parametrize("part", PARTS)
def test_each_change_of_a_function_is_seen(part):
    def function(a=1, *, b=2):
        return a + b

    def other(a=1, *, b=2):
        return a * b

    place = Parts("function", function)
    bind = Bind({})
    holds = eval(f"lambda: {place.term(bind)}", bind.names)
    assert place.holds() and holds()
    PARTS[part](function, other)
    assert not place.holds() and not holds()


@torch.no_grad()
def test_a_change_in_each_call_costs_a_question_and_no_graph(device):
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4, device=device) for _ in range(4)])
    fast = gfxgraph.graphed(model)
    x = torch.randn(2, 4, device=device)
    for n in range(5):
        model.step = n
        torch.testing.assert_close(fast(x), model(x))
    assert fast.stats().captures == 1


ENDS = """
import atexit, torch, gfxgraph

device = gfxgraph.device_type()
model = torch.nn.Sequential(*[torch.nn.Linear(4, 4, device=device) for _ in range(4)])
fast = gfxgraph.graphed(model)
x = torch.randn(2, 4, device=device)

@torch.no_grad()
def late():
    model[0].weight = torch.nn.Parameter(torch.zeros(4, 4, device=device))
    torch.testing.assert_close(fast(x), model(x))
    print("late", fast.stats().captures)

atexit.register(late)
with torch.no_grad():
    fast(x), fast(x)
for n in range(1000):
    setattr(model, f"a{n}", n)
"""


def test_a_program_that_holds_graphs_ends_in_peace():
    done = python("-c", ENDS)
    assert done.returncode == 0 and done.stdout.split() == ["late", "2"], done.stderr[-3000:]


HOOK = """
import sys, torch, gfxgraph

def helper(x, scale=2.0):
    return x * scale

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = helper(layer(x))
        return x

device = gfxgraph.device_type()
fast, x = gfxgraph.graphed(Model().to(device)), torch.randn(2, 4, device=device)
with torch.no_grad():
    fast(x), fast(x)
    seen = []
    sys.addaudithook(lambda name, args: seen.append((name, args[-1] if args else None)))
    fast(x)
    print([event for event in seen if event[0] == "object.__getattr__"])
"""


def test_a_replay_asks_nothing_that_audit_hooks_of_the_program_hear():
    done = python("-c", HOOK)
    assert done.stdout.split() == ["[]"], done.stderr[-3000:] + done.stdout


def test_before_python_3_12_nothing_is_told():
    if sys.version_info < (3, 12):
        assert watcher() is None
    elif sys.version_info < (3, 13):
        assert watcher() is not None


@needs_watchers
@torch.no_grad()
def test_places_are_asked_again_after_each_change_however_often(device):
    """The question is compiled when it is asked for the second time."""
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(8)]).to(device)
    graph, x = gfxgraph.graphed(model, fallback="raise"), torch.ones(2, 4, device=device)
    graph(x)
    for n in range(6):
        if n % 2:
            model[n].weight = torch.nn.Parameter(torch.randn(4, 4, device=device))
        else:  # nothing that matters changes
            model.label = n
        assert torch.equal(graph(x), model(x))
    assert graph.stats().captures == 4


@needs_watchers
def test_a_change_between_two_steps_of_another_thread_is_heard():
    from torch._C._dynamo.guards import dict_version

    held, other_threads = {"value": 1}, []
    dict_version(held)

    def number_of(item):
        if other_threads:
            other_threads.pop()()
        return dict_version(item)

    changes = _changes(number_of)
    before = changes()

    def on_another_thread():
        held["value"] = 2
        assert changes() != before

    other_threads.append(on_another_thread)
    changes()
    assert not other_threads
