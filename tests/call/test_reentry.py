"""A call in the middle of a replay on the same thread: both calls get what eager execution gives.

Finalizers, callbacks of the garbage collector, signal handlers and ``no_graph`` functions run
between the copy of a call's inputs and the making of its result. What they call may be the function
whose replay is under way, or one whose graphs lie in the same memory.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import types

import pytest
import torch

import gfxgraph
from gfxgraph.device import current_device
from gfxgraph.errors import CaptureError
from gfxgraph.graph.locks import LOCK
from tests.helpers.processes import printed
from tests.helpers.unseen import Unseen

pytestmark = pytest.mark.usefixtures("no_grad", "one_thread")

IN_THE_MIDDLE = "in the middle of a replay in the same memory"


def full(device, value, *shape):
    return torch.full(shape or (8,), float(value), device=device)


class Once:
    """Calls ``function`` when it is called, but not while it does."""

    def __init__(self, function):
        self.function, self.inside, self.calls, self.results = function, False, 0, set()

    def __call__(self, *args):
        if self.inside:
            return
        self.inside = True
        try:
            self.calls += 1
            self.results.add(self.function().cpu().flatten()[0].item())
        finally:
            self.inside = False


@contextlib.contextmanager
def collecting_all_the_time(callback):
    """A collection whenever Python makes an object; ``callback`` is called after each."""

    def after(phase, info):
        if phase == "stop":
            callback()

    before = gc.get_threshold()
    gc.callbacks.append(after)
    gc.set_threshold(1, 1, 1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(after)


def of_a_function(device):
    graph = gfxgraph.graphed(lambda x: x * 2)
    return (lambda n: graph(full(device, n))), lambda: graph(full(device, 1000))


def of_another_shape(device):
    graph = gfxgraph.graphed(lambda x: x * 2)
    return (lambda n: graph(full(device, n))), lambda: graph(full(device, 1000, 4))


def of_branching_data(device):
    graph = gfxgraph.graphed(lambda x: x * 2 if x.sum() < 4000 else x * 2 + 0)
    return (lambda n: graph(full(device, n))), lambda: graph(full(device, 1000))


def of_a_bucket(device):
    pool = gfxgraph.ShapeBucketPool(model_fn=lambda x: x * 2, buckets=[4, 8])
    return (lambda n: pool(full(device, n, 3, 4))), lambda: pool(full(device, 1000, 2, 4))


def of_another_bucket(device):
    pool = gfxgraph.ShapeBucketPool(model_fn=lambda x: x * 2, buckets=[4, 8])
    return (lambda n: pool(full(device, n, 3, 4))), lambda: pool(full(device, 1000, 6, 4))


def of_numbers(device):
    graph = gfxgraph.graphed(lambda x, by: x * by, inputs=["by"])
    return (lambda n: graph(full(device, 2), n)), lambda: graph(full(device, 2), 1000)


def of_a_branch(device):
    graph = gfxgraph.ConditionalGraph()
    graph.add_branch("a", lambda x: x * 2).add_branch("b", lambda x: x + x)
    graph.capture(full(device, 1))
    return (lambda n: graph.run("a", full(device, n))), lambda: graph.run("b", full(device, 1000))


def of_what_stores(device):
    state = types.SimpleNamespace(last=None)

    def stores(x):
        state.last = x * 3
        return x * 2

    graph = gfxgraph.graphed(stores)
    return (lambda n: graph(full(device, n))), lambda: graph(full(device, 1000))


def of_what_writes_to_arguments(device):
    graph = gfxgraph.graphed(lambda x: x.mul_(2))
    return (lambda n: graph(full(device, n))), lambda: graph(full(device, 1000))


@pytest.mark.parametrize(
    "make",
    [
        of_a_function,
        of_another_shape,
        of_branching_data,
        of_a_bucket,
        of_another_bucket,
        of_numbers,
        of_a_branch,
        of_what_stores,
        of_what_writes_to_arguments,
    ],
)
def test_a_call_of_the_garbage_collector_leaves_alone_what_it_interrupts(device, make):
    call, inner = make(device)
    for n in (1, 2, 3):
        call(n), inner()
    interrupt = Once(inner)
    found = []
    with collecting_all_the_time(interrupt):
        for n in range(20):
            result = call(n)
            interrupt.inside = True  # it is not called while we look
            found.append(result.cpu().flatten().tolist())
            interrupt.inside = False
    assert interrupt.calls >= 20
    assert interrupt.results == {2000.0}
    assert found == [[2.0 * n] * len(row) for n, row in enumerate(found)]
    if device == "cpu":  # a copy to a GPU starts in C, and there no collection begins
        reasons = gfxgraph.stats()["fallbacks"]
        assert any(IN_THE_MIDDLE in reason for reason in reasons), reasons


def test_a_call_of_another_function_in_the_middle_of_a_replay_is_replayed(device):
    graph, other = gfxgraph.graphed(lambda x: x * 2), gfxgraph.graphed(lambda x: x * 3)
    for n in (1, 2):
        graph(full(device, n)), other(full(device, n))
    before = other.stats().replays
    interrupt = Once(lambda: other(full(device, 1000)))
    with collecting_all_the_time(interrupt):
        found = [graph(full(device, n)) for n in range(9)]
    assert [y.cpu().tolist() for y in found] == [[2.0 * n] * 8 for n in range(9)]
    assert interrupt.results == {3000.0}
    assert other.stats().replays - before == interrupt.calls
    assert not other.stats().fallbacks and not graph.stats().fallbacks


_does = []
_is_on = Unseen()


def do():
    """What no run for a graph calls, so that no graph depends on it."""
    for action in list(_does):
        action()


@torch.library.custom_op("gfxgraph_tests::in_the_middle", mutates_args=())
def in_the_middle(x: torch.Tensor) -> torch.Tensor:
    """Runs Python code while the emulated device replays."""
    if _is_on.value:
        do()
    return x + 0


@in_the_middle.register_fake
def _(x):
    return torch.empty_like(x)


def stop_doing():
    _is_on.value = 0.0
    _does.clear()


@pytest.fixture
def doing():
    """Let something happen in each replay and in each call of the function from then on."""

    def do_from_now_on(action):
        _does.append(action)
        _is_on.value = 1.0

    yield do_from_now_on
    stop_doing()


def with_an_operator(x):
    doubled = x * 2
    return doubled + in_the_middle(x) * 0


needs_emulation = pytest.mark.skipif(
    current_device().kind != "emulated", reason="a launch on a GPU runs no code in Python"
)


def replayed_twice(f):
    """A graphed function that is known to replay."""
    graph = gfxgraph.graphed(f)
    graph(full("cpu", 1)), graph(full("cpu", 2))
    assert graph.stats().captures == graph.stats().replays == 1
    return graph


class Cycle:
    """Something that only the garbage collector finds."""

    def __init__(self, at_its_end):
        self.me, self.at_its_end = self, at_its_end

    def __del__(self):
        self.at_its_end()


@pytest.mark.long
@needs_emulation
def test_a_finalizer_in_the_middle_of_a_replay_calls_the_function(doing):
    graph = replayed_twice(with_an_operator)
    interrupt = Once(lambda: graph(full("cpu", 1000)))

    def leave_garbage():
        if not interrupt.inside:
            Cycle(interrupt)
            gc.collect()

    doing(leave_garbage)
    results = [graph(full("cpu", n)).tolist() for n in range(5)]
    assert results == [[2.0 * n] * 8 for n in range(5)]
    assert interrupt.calls == 5 and interrupt.results == {2000.0}
    assert [IN_THE_MIDDLE in reason for reason in graph.stats().fallbacks] == [True]
    assert list(graph.stats().fallbacks.values()) == [5]
    assert graph(full("cpu", 7)).tolist() == [14.0] * 8


needs_signals = pytest.mark.skipif(
    not hasattr(signal, "SIGUSR1") or threading.current_thread() is not threading.main_thread(),
    reason="only the main thread of a POSIX system has such signals",
)


@needs_emulation
@needs_signals
def test_a_signal_handler_in_the_middle_of_a_replay_calls_the_function(doing):
    graph = replayed_twice(with_an_operator)
    interrupt = Once(lambda: graph(full("cpu", 1000)))
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        doing(lambda: None if interrupt.inside else signal.raise_signal(signal.SIGUSR1))
        results = [graph(full("cpu", n)).tolist() for n in range(5)]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert results == [[2.0 * n] * 8 for n in range(5)]
    assert interrupt.calls == 5 and interrupt.results == {2000.0}


@needs_emulation
@needs_signals
def test_after_an_error_in_the_middle_of_a_replay_calls_replay_again(doing):
    graph = replayed_twice(with_an_operator)

    def stop(*args):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        doing(lambda: signal.raise_signal(signal.SIGUSR1))
        with pytest.raises(KeyboardInterrupt):
            graph(full("cpu", 3))
    finally:
        signal.signal(signal.SIGUSR1, before)
    stop_doing()
    replays = graph.stats().replays
    assert graph(full("cpu", 4)).tolist() == [8.0] * 8
    assert graph.stats().replays == replays + 1
    assert not LOCK._is_owned()


@needs_emulation
def test_a_new_kind_of_call_in_the_middle_of_a_replay_is_captured_later(doing):
    graph = replayed_twice(with_an_operator)
    interrupt = Once(lambda: graph(full("cpu", 1000, 4)))
    doing(interrupt)
    assert graph(full("cpu", 5)).tolist() == [10.0] * 8
    assert interrupt.results == {2000.0} and graph.stats().captures == 1
    stop_doing()
    graph(full("cpu", 3, 4))
    assert graph.stats().captures == 2


@needs_emulation
def test_an_error_instead_of_an_eager_call_is_also_raised_in_the_middle_of_a_replay(doing):
    graph = gfxgraph.graphed(with_an_operator, fallback="raise")
    graph(full("cpu", 1)), graph(full("cpu", 2))
    errors = []

    def call():
        try:
            graph(full("cpu", 1000))
        except CaptureError as error:
            errors.append(str(error))

    doing(call)
    assert graph(full("cpu", 5)).tolist() == [10.0] * 8
    assert len(errors) == 1 and IN_THE_MIDDLE in errors[0]


@needs_emulation
def test_graphs_that_are_reset_in_the_middle_of_their_replay_are_released_after_it(doing):
    graph = replayed_twice(with_an_operator)
    doing(graph.reset)
    assert graph(full("cpu", 5)).tolist() == [10.0] * 8
    stop_doing()
    assert not graph.stats().graphs
    results = [graph(full("cpu", n)).tolist() for n in range(3)]
    assert results == [[2.0 * n] * 8 for n in range(3)]
    assert graph.stats().captures == 1 and graph.stats().replays == 2


@needs_emulation
def test_a_call_that_interrupts_a_replay_adds_nothing_to_what_that_repeats(doing):
    """It calls the no_graph function, too; on a new path, its result is not that of the other."""
    seen = []

    def host(y):
        seen.append(y[0].item())
        return y * 3

    on_host = gfxgraph.no_graph(host)

    def f(x):
        doubled = in_the_middle(x) * 2
        tripled = on_host(x)
        return doubled + tripled if x.sum() < 100 else doubled - tripled

    graph = gfxgraph.graphed(f)
    for n in (1, 2, 3):
        graph(full("cpu", n))
    seen.clear()
    interrupt = Once(lambda: graph(full("cpu", 4)))
    doing(interrupt)
    assert graph(full("cpu", 5)).tolist() == [25.0] * 8
    assert interrupt.results == {20.0} and seen == [4.0, 5.0]
    seen.clear()
    doing(stop_doing)  # the replay alone is interrupted, and not the run after it
    assert graph(full("cpu", 1000)).tolist() == [-1000.0] * 8  # a path that was not captured
    assert interrupt.results == {20.0} and seen == [4.0, 1000.0]


def same_function(device, made):
    def host(y):
        if y[0] >= 100:
            return y * 1
        return f(y + 100)

    on_host = gfxgraph.no_graph(host) if made else host

    def eager(x):
        doubled = x * 2
        return doubled + on_host(x)

    f = gfxgraph.graphed(eager) if made else eager
    return f


def another_branch(device, made):
    def b(x):
        return (x * 5 + 1) * 2

    def host(y):
        return run("b", y + 100)

    on_host = gfxgraph.no_graph(host) if made else host

    def a(x):
        doubled = x * 2
        return doubled + on_host(x) + doubled

    graph = gfxgraph.ConditionalGraph().add_branch("a", a).add_branch("b", b)
    if made:
        graph.capture(full(device, 1))
    run = graph.run if made else lambda name, x: {"a": a, "b": b}[name](x)
    return lambda x: run("a", x)


def another_bucket(device, made):
    def host(y):
        return f(y[:2] + 100)[:1] if len(y) > 2 else y[:1] * 1

    on_host = gfxgraph.no_graph(host) if made else host

    def eager(x):
        doubled = x * 2
        return doubled + on_host(x)

    f = gfxgraph.graphed(eager) if made else eager
    return lambda x: f(x.reshape(4, 2))


def what_writes_to_its_own(device, made):
    total = torch.zeros(8, device=device)

    def host(y):
        if y[0] >= 100:
            return y * 1
        return f(y + 100)

    on_host = gfxgraph.no_graph(host) if made else host

    def eager(x):
        doubled = x * 2
        total.add_(x)
        return doubled + on_host(x) + total

    f = gfxgraph.graphed(eager) if made else eager
    return f


@pytest.mark.parametrize(
    "make", [same_function, another_branch, another_bucket, what_writes_to_its_own]
)
def test_a_no_graph_function_calls_the_function_around_it(device, make):
    expected, got = make(device, False), make(device, True)
    for n in range(6):
        x = full(device, n)
        assert got(x).cpu().tolist() == expected(x).cpu().tolist()


def test_a_no_graph_function_that_calls_the_function_around_it_is_counted(device):
    graph = same_function(device, True)
    for n in range(6):
        graph(full(device, n))
    assert graph.stats().captures == 1 and graph.stats().replays == 5
    assert [(IN_THE_MIDDLE in r, n) for r, n in graph.stats().fallbacks.items()] == [(True, 5)]


FORKS = """
import os, threading
from tests.call.test_reentry import _does, _is_on, full, replayed_twice, with_an_operator

graph = replayed_twice(with_an_operator)
inside, go = threading.Event(), threading.Event()
_does.append(lambda: (inside.set(), go.wait(60)))
_is_on.value = 1.0
thread = threading.Thread(target=lambda: graph(full("cpu", 3)))
thread.start()
inside.wait(60)
_is_on.value = 0.0
child = os.fork()
if not child:
    is_right = graph(full("cpu", 4)).tolist() == [8.0] * 8
    os._exit(0 if is_right and graph.stats().replays == 2 else 1)
go.set()
thread.join()
print(os.waitpid(child, 0)[1], graph.stats().replays)
"""


@pytest.mark.long
@needs_emulation
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_that_is_forked_beside_a_replay_replays():
    assert printed(FORKS) == "0 2"
