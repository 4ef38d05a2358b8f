"""What CPython tells of dicts and functions is heard, and nothing else has to be asked."""

from __future__ import annotations

import gc
import sys

import pytest
import torch

import gfxgraph
from gfxgraph.graph.watched import Unchanged, watcher
from tests.helpers.processes import python

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


@needs_watchers
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_a_watched_dict_is_heard(change):
    by = watcher()
    held = type("Other", (Held,), dict(vars(Held)))()
    asked = Unchanged(by, lambda: True, spaces(held))
    assert asked.holds() and asked.stamp == by.left()
    CHANGES[change](held)
    assert asked.stamp != by.left()


@needs_watchers
def test_each_of_many_sets_in_one_line_of_code_is_heard():
    by, held = watcher(), Held()
    watching = Unchanged(by, lambda: True, spaces(held))
    for n in range(1000):
        before = by.left()
        held.own = n
        assert by.left() != before
    del watching


@needs_watchers
@pytest.mark.parametrize("part", ["__code__", "__defaults__", "__kwdefaults__"])
def test_each_change_of_a_function_is_heard_by_all(part):
    def function(a=1, *, b=2):
        return a + b

    def other(a=3, *, b=4):
        return a * b

    by = watcher()
    both = [Unchanged(by, lambda: True, [function]) for _ in range(2)]
    for asked in both:
        assert asked.holds()
    setattr(function, part, getattr(other, part))
    for asked in both:  # the first one that asks leaves it to be seen by the second
        by.settle()
        assert asked.stamp != by.left()
        assert asked.holds() and asked.stamp == by.left()


@needs_watchers
def test_nothing_is_heard_of_what_is_not_watched_any_more():
    by, held = watcher(), Held()
    first, second = (Unchanged(by, lambda: True, [held.__dict__]) for _ in range(2))
    del first
    before = by.left()
    held.own = 2
    assert by.left() == before - 1
    del second
    held.own = 3
    assert by.left() == before - 1


@needs_watchers
def test_what_does_not_hold_is_asked_again():
    held, answers = Held(), [False, True]
    asked = Unchanged(watcher(), lambda: answers.pop(0), [held.__dict__])
    assert not asked.holds() and asked.stamp == -1
    assert asked.holds() and asked.stamp == watcher().left()


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

atexit.register(late)  # runs after what the first capture registers
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


@needs_watchers
def test_a_replay_asks_nothing_that_audit_hooks_of_the_program_hear():
    done = python("-c", HOOK)
    assert done.stdout.split() == ["[]"], done.stderr[-3000:] + done.stdout


def test_this_python_is_one_that_tells_or_one_that_does_not():
    tells = (3, 12) <= sys.version_info < (3, 13) or sys.version_info >= (3, 14)
    if tells:
        assert watcher() is not None
    elif sys.version_info < (3, 12):
        assert watcher() is None
