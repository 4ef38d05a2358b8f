"""An error of a signal handler ends the call, wherever it comes, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import random
import signal
import sys
import threading

import pytest
import torch

import gfxgraph
from gfxgraph import forking
from gfxgraph.device import current_device
from gfxgraph.graph import listening, reads
from gfxgraph.graph.locks import is_inside_gfxgraph
from gfxgraph.interpose import interrupts, patch
from gfxgraph.interpose.interrupts import held_back, interrupt_in
from tests.helpers.sampled import sampled

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="no such signal")


class Alarm(Exception):
    """What a handler of the program raises."""


@pytest.fixture
def raised():
    """The errors that the handler of SIGUSR1 has raised; it raises those of ``kind``."""

    class Raised(list):
        kind: type[BaseException] = Alarm

    raised = Raised()

    def handler(number, frame):
        raised.append(raised.kind("the alarm"))
        raise raised[-1]

    before = signal.signal(signal.SIGUSR1, handler)
    raised.handler = handler
    yield raised
    signal.signal(signal.SIGUSR1, before)


# A profiler that sends a signal at one of the events of a call. Python runs a handler at the same
# places: before the first instruction of a function, and after calls of C. Its file is none of the
# program's, so that the frame below counts.
_PROFILER = """
def profiler(trip, at, code):
    left = at
    def profile(frame, event, arg):
        nonlocal left
        if code is None:
            left -= event in ("call", "c_return")
        else:
            left -= event == "call" and frame.f_code is code
        if left == 0:
            left = -1
            trip()
    def met():
        return at - left
    return profile, met
"""
_made: dict[str, object] = {}
exec(compile(_PROFILER, "<frozen profiler>", "exec"), _made)
TRIP = functools.partial(signal.raise_signal, getattr(signal, "SIGUSR1", 0))


def interrupted(call, at, trip=TRIP, code=None):
    """The result of a call or its error, if a signal comes at its event ``at``; how many it had.

    ``code``: only calls of it count. An error counts that a handler raises while Python finalizes
    an object: Python only prints it.
    """
    profile, met = _made["profiler"](trip, at, code)
    printed = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda given: printed.append(given.exc_value)
    sys.setprofile(profile)
    try:
        got = call()
    except BaseException as error:
        sys.setprofile(None)
        got = error
    finally:
        sys.setprofile(None)
        sys.unraisablehook = hook
    return printed[0] if printed else got, met()


def marks():
    """All that a call may leave behind in the process or on this thread."""
    held = []

    def look():  # what this thread holds, it would get again
        for lock in [*forking._locks, patch._lock]:
            if lock.acquire(blocking=False):
                lock.release()
            else:
                held.append(lock)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return {
        "locks": held,
        "collections": (gc.isenabled(), len(gc.callbacks)),
        "replaced": {key[1] for key, place in list(patch._places.items()) if place.users},
        "thread": is_inside_gfxgraph(),
        "stacks": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "hooks": (sys.gettrace(), sys.getprofile()),
        "streams": (sys.stdout, sys.stderr),
        "capturing": current_device().is_capturing(),
        "handlers": [signal.getsignal(n) for n in signal.valid_signals()],
        "listening": list(listening._running),
        "waiting": (interrupts._blocks, [*interrupts.waiting], [*interrupts._raised]),
        "torch": (
            torch.is_grad_enabled(),
            torch.is_autocast_cache_enabled(),
            torch._C._is_torch_function_enabled(),
        ),
    }


class Model(torch.nn.Module):
    """It writes to a tensor of its own, draws random numbers, and does something more."""

    def __init__(self, device, more):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4, device=device)
        self.register_buffer("count", torch.zeros((), device=device))
        self.calls, self.more = 0, more

    def forward(self, x):
        self.count.add_(1)
        x = self.layer(x) * 2
        if self.more != "buckets":
            x = x + torch.rand_like(x)
        if self.more == "mask":
            x = x[x > 0].sum() + x
        if self.more == "branch" and bool(x.sum() > 0):
            x = x * 2
        if self.more == "python":
            self.calls += 1
        return x


def outcome(call, model, x):
    torch.manual_seed(0)
    model.count.zero_()
    model.calls = 0
    return call(x), model.count.item(), model.calls, torch.random.get_rng_state()


def same(one, other):
    return torch.allclose(one[0], other[0]) and one[1:3] == other[1:3] and one[3].equal(other[3])


def problems(model, x, at, raised):
    """What is wrong after the first call was interrupted at its event ``at``."""
    graph = gfxgraph.graphed(model, buckets=[4, 8] if model.more == "buckets" else None)
    with torch.no_grad():
        before = marks()
        torch.manual_seed(0)
        model.count.zero_()
        model.calls = 0
        raised.clear()
        got, _ = interrupted(lambda: graph(x), at)
        after = marks()
        found = [name for name, mark in before.items() if after[name] != mark]
        if raised and got is not raised[0]:
            found.append(f"the call gives {got!r}")
        for error in raised:
            error.__traceback__ = None
        raised.clear()
        del got
        if model.count.item() not in (0, 1) or model.calls not in (0, 1):
            found.append(f"{model.count.item()} calls in tensors, {model.calls} in Python")
        expected = outcome(model, model, x)
        found += [
            f"call {n} is wrong" for n in range(4) if not same(outcome(graph, model, x), expected)
        ]
        if not graph.stats().replays:
            found.append(str(graph.stats().fallbacks))
        return found


MORE = ("nothing", "mask", "branch", "python", "buckets")


def events_of_a_first_call(more, device, raised):
    model, x = Model(device, more), torch.randn(4, 4, device=device)
    assert problems(model, x, 10**9, raised) == []  # whatever is imported is there now
    graph = gfxgraph.graphed(model, buckets=[4, 8] if more == "buckets" else None)
    with torch.no_grad():
        _, count = interrupted(lambda: graph(x), 10**9)
    return model, x, count


@pytest.mark.parametrize("kind", sampled([Alarm, KeyboardInterrupt], 2))
@pytest.mark.parametrize("more", MORE)
@pytest.mark.filterwarnings("ignore:The graph is empty")
def test_an_error_of_a_handler_reaches_the_caller_and_leaves_nothing(more, kind, device, raised):
    raised.kind = kind
    model, x, count = events_of_a_first_call(more, device, raised)
    for n in range(8):
        at = count * (2 * n + 1) // 16
        assert problems(model, x, at, raised) == [], at


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("more", MORE)
@pytest.mark.filterwarnings("ignore:The graph is empty")
@pytest.mark.full
def test_so_it_is_at_many_points(more, device, raised):
    model, x, count = events_of_a_first_call(more, device, raised)
    # A first call takes five times as long on a GPU.
    points = random.Random(0).sample(
        range(1, count), min(count - 1, 1000 if device == "cpu" else 200)
    )
    found = {at: wrong for at in points if (wrong := problems(model, x, at, raised))}
    assert found == {}


@pytest.mark.parametrize("more", ["nothing", "branch", "python"])
def test_so_it_is_at_each_event_of_a_replay(more, device, raised):
    model, x = Model(device, more), torch.randn(4, 4, device=device)
    graph = gfxgraph.graphed(model)
    with torch.no_grad():
        for _ in range(3):
            expected = outcome(graph, model, x)
        replays = graph.stats().replays
        _, count = interrupted(lambda: graph(x), 10**9)
        assert graph.stats().replays == replays + 1
        before, reached = marks(), 0
        for at in range(1, count + 1):
            raised.clear()
            got, met = interrupted(lambda: graph(x), at)
            # The call that was counted may have had more events: some replays are timed.
            assert got is raised[0] if raised else met < at, at
            assert marks() == before, at
            assert same(outcome(graph, model, x), expected)
            reached += bool(raised)
        assert reached > 10


# ---- who ends a call


# With three runs to warm up: for the caller, the recorded one, one of the others, the capture.
RUNS = [1, 2, 3, 5]


@pytest.mark.parametrize("nth", RUNS)
@pytest.mark.parametrize("fallback", ["eager", "raise"])
def test_an_alarm_ends_the_call_in_each_run_of_the_function(nth, fallback, device, raised):
    def function(x):
        return x + 1

    graph, x = gfxgraph.graphed(function, fallback=fallback, warmup=3), torch.ones(3, device=device)
    got, _ = interrupted(lambda: graph(x), nth, code=function.__code__)
    assert got is raised[0]
    assert [graph(x).tolist() for _ in range(3)] == [[2.0] * 3] * 3
    assert graph.stats().replays and not graph.stats().fallbacks


def test_a_handler_that_raises_nothing_runs_at_once(device):
    frames, x = [], torch.ones(3, device=device)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: frames.append(number))
    try:
        graph = gfxgraph.graphed(lambda x: x + 1)
        for _ in range(2):  # a very first call does more than all others
            graph.reset()
            _, count = interrupted(lambda: graph(x), 10**9)
        for at in range(1, count * 9 // 10, count // 7):
            graph.reset()
            frames.clear()
            _, _ = interrupted(lambda: graph(x), at)
            assert len(frames) == 1 and graph.stats().captures == 1
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("nth", RUNS)
def test_an_alarm_that_the_function_catches(nth, device, raised):
    def inner(x):
        return torch.relu(x)

    def copes(x):
        try:
            return inner(x)
        except Alarm:
            return x * 0

    graph, x = gfxgraph.graphed(copes, warmup=3), torch.ones(3, device=device)
    got, _ = interrupted(lambda: graph(x), nth, code=inner.__code__)
    if nth == 1:  # in the caller's own run: so it is without us
        assert got.tolist() == [0.0] * 3
    else:  # but not what is done for the caller's alarm in a run that is nobody's
        assert got is raised[0]
    assert [graph(x).tolist() for _ in range(3)] == [[1.0] * 3] * 3


def test_a_block_that_is_captured_by_hand_is_not_run_again_because_of_an_alarm(device, raised):
    raised.kind = RuntimeError  # as the handler of torch's DataLoader raises it
    calls = []

    def function(x):
        calls.append(None)
        signal.raise_signal(signal.SIGUSR1)
        return x + 1

    graph, x = gfxgraph.BridgedCUDAGraph(), torch.ones(3, device=device)
    with pytest.raises(RuntimeError) as caught, graph.capture(model_fn=function):
        function(x)
    assert caught.value is raised[0] and len(calls) == 1
    assert not current_device().is_capturing()


# ---- what waits


def test_an_error_waits_in_our_code_and_no_longer_than_the_block(raised):
    code = compile("def ours(do):\n    do()\n    return 'done'", interrupts.__file__, "exec")
    made = {}
    exec(code, made)
    done = []
    with pytest.raises(Alarm) as caught, held_back():
        done.append(made["ours"](TRIP))
        assert interrupts.waiting == raised
    assert done == ["done"] and caught.value is raised[0]
    assert not interrupts.waiting and signal.getsignal(signal.SIGUSR1) is raised.handler


def test_an_error_that_waits_where_a_recording_ends_does_not_keep_it_from_ending(raised):
    @contextlib.contextmanager
    def doubled(x):
        yield 2 * x

    def function():
        with doubled(1) as y:  # so the code of contextlib is listened to
            return y

    source = (
        "def ours(block, function, trip):\n    with block:\n        function()\n        trip()\n"
    )
    made = {}
    exec(compile(source, reads.__file__, "exec"), made)
    recording = reads.Reads({"the function": function}).recording()
    running = dict(listening._running)
    with pytest.raises(Alarm) as caught, held_back():
        made["ours"](recording, function, TRIP)
    assert caught.value is raised[0] and listening._running == running


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="sys.monitoring is of Python 3.12")
def test_an_error_in_what_ends_a_recording_leaves_nobody_listening():
    """Here of a tool of the program that listens as well."""
    monitoring, code = sys.monitoring, contextlib._GeneratorContextManager.__exit__.__code__

    def tool(*event):
        monitoring.set_local_events(0, code, 0)
        raise Alarm

    running = dict(listening._running)
    monitoring.use_tool_id(0, "the program's")
    monitoring.register_callback(0, monitoring.events.PY_START, tool)
    try:
        with pytest.raises(Alarm), reads.Reads({"the function": len}).recording():
            monitoring.set_local_events(0, code, monitoring.events.PY_START)
        assert listening._running == running
    finally:
        monitoring.set_local_events(0, code, 0)
        monitoring.register_callback(0, monitoring.events.PY_START, None)
        monitoring.free_tool_id(0)


def test_who_interrupts_twice_does_not_wait(raised):
    code = compile(
        "def ours(do):\n    do()\n    do()\n    return 'done'", interrupts.__file__, "exec"
    )
    made, done = {}, []
    exec(code, made)
    with pytest.raises(Alarm) as caught, held_back():
        done.append(made["ours"](TRIP))
    assert caught.value in raised and len(raised) == 2 and not done


def test_handlers_that_the_block_installs_stay():
    def handler(number, frame):
        raise AssertionError

    before = signal.getsignal(signal.SIGUSR1)
    try:
        with held_back():
            signal.signal(signal.SIGUSR1, handler)
        assert signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_was_kept_in_a_block_still_passes_on(raised):
    with held_back():
        kept = signal.getsignal(signal.SIGUSR1)
    with pytest.raises(Alarm):
        kept(signal.SIGUSR1, sys._getframe())


def test_a_function_that_asks_for_handlers_gets_its_own(device, raised):
    def function(x):
        return x * 2 if signal.getsignal(signal.SIGUSR1) is raised.handler else x * 3

    graph, x = gfxgraph.graphed(function), torch.ones(2, device=device)
    assert [graph(x).tolist() for _ in range(3)] == [[2.0, 2.0]] * 3
    (reason,) = graph.stats().fallbacks
    assert "signal.getsignal() gives" in reason
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert [graph(x).tolist() for _ in range(3)] == [[3.0, 3.0]] * 3


def test_a_function_may_set_a_handler_for_the_time_of_its_call(device, raised):
    def function(x):
        before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        own = before is raised.handler
        signal.signal(signal.SIGUSR1, before)
        return x * 2 if own else x * 3

    graph, x = gfxgraph.graphed(function), torch.ones(2, device=device)
    assert [graph(x).tolist() for _ in range(3)] == [[2.0, 2.0]] * 3
    assert signal.getsignal(signal.SIGUSR1) is raised.handler


# ---- errors that other threads send


def send(thread=None):
    """Send an alarm to a thread, as libraries of timeouts do. Default: to this one."""
    ident = ctypes.c_ulong(thread or threading.get_ident())
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Alarm))


def sent_in_a_loop():
    for n in range(1000):
        if n == 10:
            send()


def sent_in_a_call_of_c():
    send()
    list(range(1000))


def sent_in_a_call_of_python():
    send()
    raises(0)


def raises(kind):
    if kind:
        raise kind


@pytest.mark.parametrize("sent", [sent_in_a_loop, sent_in_a_call_of_c, sent_in_a_call_of_python])
def test_an_error_that_was_sent_is_known(sent):
    with pytest.raises(Alarm) as caught:
        sent()
    assert interrupt_in(caught.value) is caught.value
    try:
        try:
            raise ValueError from caught.value
        except ValueError as error:
            raise CaptureWrapped from error
    except CaptureWrapped as error:
        assert interrupt_in(error) is caught.value


class CaptureWrapped(Exception):
    pass


def mapped():
    return list(map(raises, [Alarm()]))


FAILURES = {
    "raise": lambda: raises(Alarm),
    "raise in C": mapped,
    "an error of C": lambda: int("one"),
    "an error of torch": lambda: torch.ones(2) @ torch.ones(3),
    "next": lambda: next(iter(())),
    "no memory": lambda: bytes(1 << 62),
    "an empty queue": lambda: __import__("queue").SimpleQueue().get_nowait(),
    "assert": lambda: (_ for _ in ()).throw(AssertionError),
    "recursion": lambda: recursive(),
}


def recursive():
    return recursive()


@pytest.mark.parametrize("name", FAILURES)
def test_no_error_of_the_program_is_taken_for_one_that_was_sent(name):
    with pytest.raises(BaseException) as caught:
        FAILURES[name]()
    assert interrupt_in(caught.value) is None
    with pytest.raises(BaseException) as caught:  # while one is handled that was sent
        try:
            sent_in_a_loop()
        except Alarm:
            FAILURES[name]()
    assert interrupt_in(caught.value) is None


@pytest.mark.parametrize("nth", RUNS)
def test_an_error_that_is_sent_during_a_capture_ends_the_call(nth, device):
    def function(x):
        return x + 1

    graph, x, got = gfxgraph.graphed(function, warmup=3), torch.ones(3, device=device), []

    def work():
        ident = ctypes.c_ulong(threading.get_ident())
        trip = functools.partial(
            ctypes.pythonapi.PyThreadState_SetAsyncExc, ident, ctypes.py_object(Alarm)
        )
        got.append(interrupted(lambda: graph(x), nth, trip, function.__code__)[0])
        got.append([graph(x).tolist() for _ in range(3)])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert isinstance(got[0], Alarm) and got[1:] == [[[2.0] * 3] * 3]
    assert graph.stats().replays and not graph.stats().fallbacks
