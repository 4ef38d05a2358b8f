"""Names that lead to something else in the middle of a run, or between calls."""

from __future__ import annotations

import collections
import itertools
import sys
import types
import unittest.mock
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import gfxgraph
from tests.helpers.sampled import sampled

from .hostile_lookups import CASES, CHANGES, HOLDERS, PRELUDE, THREE

_NUMBERS = itertools.count()
_NOT_SEEN = (types.ModuleType, type, RemovableHandle)
# To collect garbage takes long in a process that has run many tests.
_COLLECTS = ("v_gen4",)
_KNOWN = {
    "g_h18": "a hook that is put into the dict of a module directly",
}


class World:
    """A module made of a source; its name and file are its own."""

    def __init__(self, source: str) -> None:
        torch.manual_seed(0)
        self.module = types.ModuleType(f"usr_{next(_NUMBERS)}")
        sys.modules[self.module.__name__] = self.module
        source = THREE + source[1:] if source.startswith("+") else source
        exec(compile(PRELUDE + source, f"<{self.module.__name__}>", "exec"), vars(self.module))

    def call(self, function: Any, x: torch.Tensor) -> Any:
        try:
            return function(x)
        except Exception as error:
            return type(error)

    def close(self) -> None:
        unittest.mock.patch.stopall()  # mock keeps what a test leaves patched
        del sys.modules[self.module.__name__]

    def seen(self) -> Any:
        return {
            name: seen(value)
            for name, value in vars(self.module).items()
            if not name.startswith("__") and not isinstance(value, _NOT_SEEN)
        }


def seen(value: Any, depth: int = 0) -> Any:
    """What can be compared."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.detach().tolist()
    if value is None or isinstance(value, (int, float, str, bool, bytes, complex)):
        return value
    if depth > 5 or isinstance(value, (type, types.FunctionType, types.MethodType)):
        return type(value).__name__
    if isinstance(value, dict):
        return [
            (seen(key, depth + 1), seen(item, depth + 1))
            for key, item in list(dict.items(value))
            if not str(key).startswith("__gfxgraph_")
        ]
    if isinstance(value, (list, tuple, collections.deque)):
        return [seen(item, depth + 1) for item in value]
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    if isinstance(value, nn.Module):
        own = {k: v for k, v in own.items() if "hook" not in k}
    return type(value).__name__, seen(dict(own), depth + 1)


def _agree(source: str, changes: dict[int, str], name: str = "") -> None:
    graphed, eager = World(source), World(source)
    try:
        graph = gfxgraph.graphed(graphed.module.f)
        for n in range(7):
            for world in (graphed, eager):
                if n in changes:
                    exec(changes[n], vars(world.module))
            x = torch.linspace(-1, 1, 8).view(2, 4) + n * 0.01
            got, expected = graphed.call(graph, x.clone()), eager.call(eager.module.f, x.clone())
            assert seen(got) == seen(expected), f"{name}, call {n}"
            assert graphed.seen() == eager.seen(), f"{name}, call {n}"
    finally:
        graphed.close()
        eager.close()


@pytest.mark.parametrize(
    "name", sampled(CASES, 12, lambda name: [pytest.mark.long] * (name in _COLLECTS), of_long=5)
)
@torch.no_grad()
def test_a_name_is_followed_to_what_it_leads_to(name):
    if name in _KNOWN:
        pytest.xfail(_KNOWN[name])
    try:
        _agree(*CASES[name])
    except SyntaxError:
        pytest.skip("syntax of a later Python")


def _sources(change: str) -> Iterator[tuple[str, str]]:
    """Sources in which it happens and is put back, or not; by the name of the holder."""
    how, back = CHANGES[change]
    for name, (made, read, has_class) in HOLDERS.items():
        derived = "class K2(H):\n    cfg = property(lambda s: B)\n" if has_class else ""
        swaps = "global A, B" if change == "swapA" else "pass"
        for end in (back, "pass"):
            yield (
                name,
                f"+{made}{derived}def f(x):\n    {swaps}\n    y = x * {read}.s\n    {how}\n"
                f"    y = y + {read}.s\n    y = y * {read}.t\n    {end}\n    return y + {read}.s\n",
            )


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_an_attribute_that_changes_in_the_middle_of_a_run_is_read_anew(change):
    """Where the change makes no sense for a holder, eager execution and the graph raise alike."""
    for name, source in _sources(change):
        for changes in (
            {3: "B.t = B.t + 1.", 5: "A.s = A.s + 1."},
            {2: "B.s = B.s + 1.", 4: "A.t = A.t + 1."},
        ):
            _agree(source, changes, name)
