"""What a run has read in Python is known as places, and a change of any of them is seen."""

from __future__ import annotations

import pytest
import torch

from gfxgraph.graph.reads import Reads
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


@pytest.mark.parametrize("name", [name for name in CASES if name not in ELSEWHERE])
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
