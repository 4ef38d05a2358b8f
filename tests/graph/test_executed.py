"""The first call is listened to, and nobody notices."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from contextlib import suppress
from typing import Any

import pytest
import torch

import gfxgraph
from gfxgraph.graph.executed import Executed, executed_now
from gfxgraph.interpose import frames
from gfxgraph.interpose.listen import Listening


def helper(x):
    return x + 1


def names(executed: Executed) -> set[str]:
    return {code.co_name for code in executed.spaces}


def is_listening() -> bool:
    if sys.version_info >= (3, 12):
        monitoring = sys.monitoring
        tools = [n for n in range(6) if monitoring.get_tool(n) == "gfxgraph"]
        return any(monitoring.get_events(tool) for tool in tools)
    return sys.gettrace() is not None


def test_the_code_that_runs_inside_is_known_and_that_of_torch_is_not():
    executed = Executed()
    with executed.listening():
        torch.nn.functional.relu(helper(torch.ones(1)))
    helper(torch.ones(1))
    assert "helper" in names(executed) and "relu" not in names(executed)
    assert executed.packages == {__name__.partition(".")[0]}


def test_nobody_listens_afterwards(device):
    graph = gfxgraph.graphed(helper)
    with torch.no_grad():
        graph(torch.ones(2, device=device))
    assert not is_listening() and executed_now() is None


def test_nobody_listens_after_an_error(device):
    def fails(x):
        raise KeyError("no")

    with pytest.raises(KeyError), torch.no_grad():
        gfxgraph.graphed(fails)(torch.ones(2, device=device))
    assert not is_listening() and executed_now() is None


@torch.no_grad()
def test_a_debugger_keeps_its_trace_function(device):
    seen = []

    def trace(frame, event, arg):
        if frame.f_code is helper.__code__:
            seen.append(event)

    graph = gfxgraph.graphed(helper)
    sys.settrace(trace)
    try:
        graph(torch.ones(2, device=device))
        assert sys.gettrace() is trace
    finally:
        sys.settrace(None)
    assert seen and torch.equal(graph(torch.ones(2, device=device)).cpu(), torch.full((2,), 2.0))


@torch.no_grad()
def test_while_a_debugger_traces_nothing_is_captured_that_could_not_be_seen(device):
    class Config:
        scale = 2.0

    def scaled(x):
        return x * Config.scale

    graph, x = gfxgraph.graphed(scaled), torch.ones(2, device=device)
    sys.settrace(lambda frame, event, arg: None)
    try:
        graph(x)
        is_seen = sys.version_info >= (3, 12)  # sys.monitoring has room for several tools
        assert graph.stats().captures == is_seen
        assert is_seen or any("sys.settrace is in use" in r for r in graph.stats().fallbacks)
    finally:
        sys.settrace(None)
    graph(x)
    graph(x)
    assert graph.stats().captures == 1 and graph.stats().replays
    Config.scale = 3.0
    assert torch.equal(graph(x), torch.full_like(x, 3.0))


@torch.no_grad()
def test_a_function_may_begin_to_trace(device):
    def trace(frame, event, arg):
        return None

    def fn(x):
        sys.settrace(trace)
        return x + 1

    try:
        gfxgraph.graphed(fn)(torch.ones(2, device=device))
        assert sys.gettrace() is trace
    finally:
        sys.settrace(None)


def test_what_other_threads_run_is_not_known():
    def others(stop: threading.Event) -> None:
        while not stop.is_set():
            helper(1)

    executed, stop = Executed(), threading.Event()
    thread = threading.Thread(target=others, args=(stop,))
    with executed.listening():
        thread.start()
        for _ in range(100):
            torch.ones(1)
        stop.set()
        thread.join()
    assert "others" not in names(executed) and "helper" not in names(executed)


def test_what_the_garbage_collector_calls_is_not_known():
    def further() -> None:
        helper(1)

    def callback(phase: str, info: Any) -> None:
        further()

    executed = Executed()
    gc.callbacks.append(callback)
    try:
        with executed.listening():
            gc.collect()
    finally:
        gc.callbacks.remove(callback)
    assert not names(executed) & {"callback", "further", "helper"}


def test_what_an_import_runs_is_not_known(tmp_path, monkeypatch):
    (tmp_path / "imported_late.py").write_text(
        "def decorate(f):\n    return f\n@decorate\ndef later():\n    return 1\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    executed = Executed()
    with executed.listening():
        import imported_late

        imported_late.later()
    assert names(executed) == {"later"}


def test_an_outer_listener_learns_what_an_inner_one_does():
    outer, inner = Executed(), Executed()
    with outer.listening(), inner.listening():
        helper(1)
    assert "helper" in names(inner) and "helper" in names(outer)


@torch.no_grad()
def test_nothing_that_a_call_makes_lives_on(device):
    made: list[Any] = []

    class Owner:
        def __init__(self, x):
            self.x = x

        def run(self):
            parts = [self.x, {"n": self}]

            def inner():
                return parts[0] * 2

            return inner()

    def fn(x):
        owner = Owner(x + 1)
        made.append(weakref.ref(owner))
        made.append(weakref.ref(owner.x))
        return owner.run()

    graph = gfxgraph.graphed(fn)
    for _ in range(3):
        graph(torch.ones(2, device=device))
    gc.collect()
    assert made and not any(reference() is not None for reference in made)


@torch.no_grad()
def test_a_variable_of_an_outer_function_is_put_back(device):
    def make() -> Any:
        n = 0

        def count() -> None:
            nonlocal n
            n += 1

        class Owner:
            def run(self, x):
                count()
                return x * n

        return Owner(), lambda: n

    owner, count = make()
    other, others_count = make()
    graph = gfxgraph.graphed(lambda x: owner.run(x))
    results = [graph(torch.ones(1, device=device)).item() for _ in range(5)]
    assert results == [1, 2, 3, 4, 5] and count() == 5 and others_count() == 0
    assert other.run(torch.ones(1)).item() == 1


def test_a_frame_that_began_while_we_listened_sets_no_hook_later():
    def waits():
        with suppress(ValueError):
            yield 1
        yield 2

    listening = Listening(lambda frame, event, value: None)
    with listening:
        listening.go_on_after_errors(sys._getframe(), sys._getframe().f_back)
        generator = waits()
        next(generator)
    sys.settrace(lambda frame, event, arg: None)
    try:
        generator.throw(ValueError())
    finally:
        sys.settrace(None)
    assert sys.getprofile() is None


@torch.no_grad()
def test_on_a_python_whose_variables_are_not_found_nothing_is_captured(device, monkeypatch):
    """As on one that is newer than those that were tried."""
    scale = 2.0

    def scaled(x):
        return x * sum(scale for _ in range(1))

    monkeypatch.setattr(frames, "_layout", lambda: None)
    graph, x = gfxgraph.graphed(scaled), torch.ones(2, device=device)
    for scale in (2.0, 2.0, 2.0, 5.0):
        assert torch.equal(graph(x), torch.full_like(x, scale))
    (reason,) = graph.stats().fallbacks
    assert "does not know where this Python keeps variables" in reason
    assert not graph.stats().replays
