"""Calls of functions are told before they happen, of one thread and of code that matters."""

import contextlib
import gc
import os
import sys
import threading
import time
import types
from types import CodeType, FrameType
from typing import Any

import pytest
import torch

import gfxgraph
from gfxgraph.interpose.listen import _through_the_hook, observing


class Told:
    """Notes calls of ``time.time`` and of :func:`marked`."""

    def __init__(self, closed: tuple[CodeType, ...] = (), stops: bool = False) -> None:
        self.codes = {marked.__code__: "marked"}
        self.found: list[str] = []
        self.listening: Any = None
        self._closed, self._stops = closed, stops

    def looks_at(self, code: CodeType) -> bool:
        return code not in self._closed

    def matters(self, function: Any, owner: Any) -> bool:
        return function is time.time or (function.__name__ == "append" and owner == ["mine"])

    def calls(self, frame: FrameType, function: Any, owner: Any) -> None:
        self.found.append(f"{function.__name__} in {frame.f_code.co_name}")
        if self._stops:
            if self.listening is not None:
                self.listening.go_on_after_errors(frame, None)
            raise Stopped

    def begins(self, frame: FrameType) -> None:
        self.found.append(f"begin {frame.f_code.co_name} {frame.f_locals['n']}")


class Stopped(Exception):
    pass


def marked(n):
    return n + 1


def asks():
    return time.time()


def also_asks():
    return time.time()


def test_a_function_in_c_and_one_in_python_are_told():
    told = Told()
    with observing(told):
        for n in range(3):
            asks()
            marked(n)
            list(map(abs, [n]))
    asks()
    marked(9)
    assert told.found == [
        *("time in asks", "begin marked 0"),
        *("time in asks", "begin marked 1"),
        *("time in asks", "begin marked 2"),
    ]


def test_a_method_in_c_is_told_with_its_object():
    told = Told()
    mine, other = ["mine"], ["other"]
    with observing(told):
        other.append(1)
        mine.append(1)
        mine.append(2)
    assert told.found == ["append in test_a_method_in_c_is_told_with_its_object"]


def test_an_error_stops_the_call_and_what_the_handlers_call_is_told_as_well():
    told = Told(stops=True)
    items = ["mine"]

    def stopped():
        try:
            items.append(1)
        finally:
            asks()

    with observing(told) as told.listening, contextlib.suppress(Stopped):
        stopped()
    assert items == ["mine"]
    assert told.found == ["append in stopped", "time in asks"]


held = types.SimpleNamespace()
# A call that is stopped, by how its arguments are given.
UNPACKED = {
    "list": (lambda mine, values: mine.append(*values), list),
    "list and keywords": (lambda mine, values: mine.append(*values, **{}), list),
    "list of nobody": (lambda mine, values: mine.append(*[v for v in values]), list),
    "iterator": (lambda mine, values: mine.append(*iter(values)), list),
    "several": (lambda mine, values: mine.append(*values[:0], *values), list),
    "dict": (lambda mine, values: mine.append(*values), dict.fromkeys),
    "tuple": (lambda mine, values: mine.append(*values), tuple),
    "tuple of nobody": (lambda mine, values: mine.append(*(lambda *v: v)(*values)), tuple),
    "tuple of an object": (
        lambda mine, values: (
            setattr(held, "values", values),
            mine.append(*held.values),
        ),
        tuple,
    ),
    "shared variable": (lambda mine, values: [mine.append(*values) for _ in "a"], list),
    "plain": (lambda mine, values: mine.append(values[0]), list),
}


@pytest.fixture
def quick_collections():
    """What other tests have left is not looked at."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("name", UNPACKED)
@pytest.mark.parametrize("way", ["sys.monitoring", "sys.setprofile"])
def test_what_a_stopped_call_would_have_unpacked_lives_on_and_is_released_once(
    name, way, quick_collections
):
    act, make = UNPACKED[name]
    begin = _through_the_hook if way == "sys.setprofile" else observing
    values = make([("of the caller",)])
    for _ in range(3):  # so that what a first call keeps does not count
        gc.collect()
        refcount, told = sys.getrefcount(values), Told(stops=True)
        with contextlib.suppress(Stopped), begin(told) as told.listening:
            act(["mine"], values)
        assert told.found
        del told
    gc.collect()
    made = [[str(n)] for n in range(1000)]  # takes the memory of what was released too often
    assert sys.getrefcount(values) == refcount
    assert list(values) == [("of the caller",)]
    assert made == [[str(n)] for n in range(1000)]


def test_two_observers_are_both_told_until_each_ends():
    outer, inner = Told(), Told()
    with observing(outer):
        asks()
        with observing(inner):
            asks()
        asks()
    assert len(outer.found) == 3
    assert len(inner.found) == 1


def test_the_calls_of_another_thread_are_not_told():
    told = Told()

    def run():
        for n in range(10):
            asks()
            marked(n)

    with observing(told):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        asks()
    assert told.found == ["time in asks"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has no sys.monitoring")
def test_code_that_does_not_matter_is_not_told_but_to_whom_it_matters():
    first, second = Told(closed=(asks.__code__,)), Told()
    with observing(first):
        asks()
        also_asks()
        with observing(second):
            asks()
        asks()
    assert first.found == ["time in also_asks"]
    assert second.found == ["time in asks"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has no sys.monitoring")
def test_the_tool_of_python_is_given_back():
    before = list(map(sys.monitoring.get_tool, range(6)))
    with observing(Told()):
        assert list(map(sys.monitoring.get_tool, range(6))) != before
    with pytest.raises(ValueError, match="mine"), observing(Told()):
        raise ValueError("mine")
    assert list(map(sys.monitoring.get_tool, range(6))) == before


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has no sys.monitoring")
def test_where_no_tool_is_free_the_profiler_hook_tells():
    taken = [tool for tool in (1, 2, 3, 4, 5) if sys.monitoring.get_tool(tool) is None]
    for tool in taken:
        sys.monitoring.use_tool_id(tool, "mine")
    told = Told()
    try:
        with observing(told):
            asks()
            marked(0)
    finally:
        for tool in taken:
            sys.monitoring.free_tool_id(tool)
    assert told.found == ["time in asks", "begin marked 0"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_of_fork_is_told_of_its_own_thread_only():
    told, other = Told(), Told()
    ready, done = threading.Event(), threading.Event()

    def run():
        with observing(other):
            ready.set()
            done.wait()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    with observing(told):
        child = os.fork()
        if child == 0:
            try:
                asks()
                os._exit(0 if told.found == ["time in asks"] and not other.found else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    done.set()
    thread.join()
    assert told.found == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has no sys.monitoring")
@pytest.mark.parametrize("others", [(0, 1, 2), (1, 3), (0, 3), (0, 1)])
def test_beside_a_debugger_a_coverage_tool_and_a_profiler_functions_are_captured(others):
    taken = [tool for tool in others if sys.monitoring.get_tool(tool) is None]
    for tool in taken:
        sys.monitoring.use_tool_id(tool, "mine")
    try:
        graph = gfxgraph.graphed(lambda x: x + 1)
        for _ in range(3):
            assert graph(torch.ones(2)).tolist() == [2.0, 2.0]
    finally:
        for tool in taken:
            sys.monitoring.free_tool_id(tool)
    assert (graph.stats().captures, graph.stats().fallbacks) == (1, {})
