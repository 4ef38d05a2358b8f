"""A thread of ours compares the words of a guard while a graph is launched."""

import array
import ctypes
import os
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.call import replay
from gfxgraph.device import gpu
from gfxgraph.device.emulated import EmulatedDevice
from gfxgraph.graph import words

if words.Words is None or words._memory() is None or words._layout() is None:
    pytest.skip("there is no compiled part", allow_module_level=True)

COMPILED = sys.modules[words.Words.__module__].__file__


def address_of(function):
    return ctypes.cast(function, ctypes.c_void_p).value


# Functions of C in the place of the driver's: the first argument is the graph.
SLEEP, NOW = address_of(ctypes.CDLL(None).usleep), address_of(ctypes.CDLL(None).abs)
LAUNCHES = [(SLEEP, 10_000, 0), (NOW, 0, 0)]


class Memory:
    """Words that a test may change."""

    def __init__(self, count=40_000):
        self.held = array.array("Q", range(count))
        self.first = self.held.buffer_info()[0]
        size = self.held.itemsize
        found = [(words.HEAD, self.first + n * size, n) for n in range(count)]
        self.words = words.SameWords(found, lambda: None, lambda: False)

    def store(self, n, word):
        self.held[n] = word


@pytest.mark.parametrize("at", [0, 1, 20_000, 39_999])
def test_a_word_that_differs_is_found_whoever_compares(at):
    memory = Memory()
    for launch in LAUNCHES:
        assert memory.words.beside(*launch) == (0, True)
        memory.store(at, 1 << 40)
        assert memory.words.beside(*launch) == (0, False)
        memory.store(at, at)


def test_another_thread_compares_while_the_launch_goes_on(stores):
    memory = Memory()
    stores.at.value = memory.first + 7 * 8
    answers = []
    for _ in range(50):
        memory.store(7, 7)
        # It writes there at its end: too late for a thread that has looked.
        answers.append(memory.words.beside(address_of(stores.launch), 10_000, 0))
    assert (0, True) in answers


DRIVER = """
#include <stdint.h>
#include <unistd.h>

uint64_t *at;

/* It writes to memory when it has slept. */
int launch(uint64_t graph, uint64_t stream)
{
    (void)stream;
    usleep((unsigned)graph);
    *at = 0;
    return 0;
}

static int mode = 0; /* the global one */

int cuThreadExchangeStreamCaptureMode(int *other)
{
    int before = mode;
    mode = *other;
    *other = before;
    return 0;
}

/* In the global mode it is refused, as while another thread captures. Stream 5 is busy. */
int cuStreamQuery(void *stream)
{
    return mode != 2 ? 900 : stream == (void *)5 ? 600 : 0;
}

int now(void) { return mode; }
"""


@pytest.fixture(scope="module")
def stores(compiled):
    """Functions in the place of the driver's."""
    library = compiled(DRIVER)
    library.at = ctypes.c_void_p.in_dll(library, "at")
    return library


def test_no_other_thread_runs_python_during_a_launch():
    holds_the_lock = address_of(ctypes.pythonapi.PyGILState_Check)
    assert Memory().words.beside(holds_the_lock, 0, 0) == (1, True)


def test_the_answer_of_one_launch_is_not_that_of_the_next():
    memory = Memory()
    for _ in range(100):
        memory.store(3, 3)
        assert memory.words.beside(SLEEP, 1_000, 0) == (0, True)
        memory.store(3, 4)
        assert not memory.words.same()
        assert memory.words.beside(NOW, 0, 0) == (0, False)


def test_what_the_driver_says_is_given():
    memory = Memory()
    assert memory.words.beside(NOW, 719, 0) == (719, True)


@pytest.mark.parametrize(
    "wrong", [(), (NOW,), (NOW, 0), (NOW, 0, 0, 0), (None, 0, 0), (NOW, "", 0), (NOW, -1, 0)]
)
def test_other_arguments_are_refused_and_leave_nothing_behind(wrong):
    memory = Memory(9_000)
    with pytest.raises((TypeError, OverflowError)):
        memory.words.same.__self__.beside(*wrong)
    with pytest.raises(ValueError, match="address of a function"):
        memory.words.beside(0, 0, 0)
    memory.store(5, 6)
    assert memory.words.beside(SLEEP, 1_000, 0) == (0, False)


def test_words_may_go_when_the_launch_has_ended():
    page = ctypes.CDLL(None)
    page.malloc.restype, page.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    page.free.argtypes = (ctypes.c_void_p,)
    size = 64 << 20  # the system takes such memory back at once
    for _ in range(200):
        start = page.malloc(size)
        every = range(start, start + size, size // 4)
        for at in every:
            ctypes.c_uint64.from_address(at).value = 1
        asks = words.Words(array.array("Q", [n for at in every for n in (at, 1)]).tobytes())
        assert asks.beside(NOW, 0, 0) == (0, True)
        del asks
        page.free(start)


@pytest.mark.parametrize("interval", [1e-6, 1.0])
def test_threads_each_get_the_answer_to_their_own_words(interval):
    wrong, kept = [], sys.getswitchinterval()

    def run(number):
        memory = Memory(9_000)
        for n in range(60):
            memory.store(number, number if n % 2 else 1 << 40)
            answer = memory.words.beside(*LAUNCHES[n % 3 == 0])
            wrong.extend([n] * (answer != (0, bool(n % 2))))

    sys.setswitchinterval(interval)
    try:
        threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(kept)
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork()")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_child_process_has_a_thread_of_its_own():
    memory = Memory()
    assert memory.words.beside(SLEEP, 10_000, 0) == (0, True)
    child = os.fork()
    if child == 0:
        right = memory.words.beside(SLEEP, 10_000, 0) == (0, True)
        memory.store(9, 1)
        right = right and memory.words.beside(SLEEP, 10_000, 0) == (0, False)
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_stream_is_asked_in_the_mode_that_ends_no_capture_of_another_thread(stores):
    is_idle = gpu.idle_by(stores)
    assert is_idle(7) and not is_idle(5) and is_idle(0)
    assert stores.now() == 0
    with pytest.raises(AttributeError):
        gpu.idle_by(ctypes.CDLL(None))


# ---- the thread in its process

ASKS = f"""
import array, ctypes, os, signal, sys, threading, time
sys.path.insert(0, {os.path.dirname(COMPILED)!r})
from _compiled import Words
libc = ctypes.CDLL(None)
sleep, now = (ctypes.cast(f, ctypes.c_void_p).value for f in (libc.usleep, libc.abs))
held = array.array("Q", [1])
asks = Words(array.array("Q", [held.buffer_info()[0], 1] * 40_000).tobytes())
"""


def ran(script):
    """A process in which ``asks.beside`` may be called; torch is not imported there."""
    command = [sys.executable, "-c", ASKS + script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_signal_that_the_program_blocks_in_its_threads_is_left_to_the_program():
    done = ran(
        "asks.beside(sleep, 100_000, 0)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "print(signal.sigwait({signal.SIGUSR1}).name)\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "SIGUSR1\n", "")


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="no SCHED_IDLE")
def test_a_thread_that_comes_to_run_after_the_end_of_python_does_no_harm():
    # It has to wait while a first thread has something to do on the one processor. The end of
    # a process takes a second (its status) in C, as where libraries have much to put away.
    command = [sys.executable, "-c", ASKS + LATE]
    ends = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(8)]
    said = [end.communicate(timeout=60)[1] for end in ends]
    assert [end.returncode for end in ends] == [1] * len(ends) and not any(said)


LATE = """
asks.beside(sleep, 100_000, 0)
(tid,) = {int(task) for task in os.listdir("/proc/self/task")} - {os.getpid()}
cpu = {min(os.sched_getaffinity(0))}
os.sched_setaffinity(0, cpu)
os.sched_setaffinity(tid, cpu)
os.sched_setscheduler(tid, os.SCHED_IDLE, os.sched_param(0))
libc.on_exit(libc.sleep, None)
asks.beside(now, 0, 0)
sys.exit(1)
"""


def test_where_no_thread_can_be_started_the_calling_one_compares():
    done = ran(
        "threading.stack_size(1 << 46)\n"
        "print(asks.beside(sleep, 10_000, 0), len(os.listdir('/proc/self/task')))\n"
        "held[0] = 2\n"
        "print(asks.beside(sleep, 10_000, 0))\n"
    )
    assert (done.stdout, done.stderr) == ("(0, True) 1\n(0, False)\n", "")


def test_a_moment_without_memory_ends_no_process():
    pytest.importorskip("_testcapi")
    done = ran(
        "import _testcapi\n"
        "asks.beside(sleep, 10_000, 0)\n"
        "for n in range(8):\n"
        "    _testcapi.set_nomemory(n, n + 1)\n"
        "    try:\n"
        "        asks.beside(sleep, 10_000, 0)\n"
        "    except MemoryError:\n"
        "        pass\n"
        "    finally:\n"
        "        _testcapi.remove_mem_hooks()\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_may_end_while_other_threads_launch():
    done = ran(
        "def run():\n"
        "    while True:\n"
        "        asks.beside(sleep, 1_000, 0)\n"
        "for _ in range(3):\n"
        "    threading.Thread(target=run, daemon=True).start()\n"
        "time.sleep(0.05)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


# ---- whole calls


@pytest.fixture(scope="module")
def deep():
    """A network with more weights than are compared in a moment, and calls of it by a graph."""
    device = gfxgraph.device_type()
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8, bias=False) for _ in range(900)]
    for layer in layers:
        nn.init.eye_(layer.weight)
    model = nn.Sequential(*layers).to(device).requires_grad_(False)
    graph, x = gfxgraph.graphed(model), torch.randn(2, 8, device=device)
    for _ in range(3):
        assert torch.equal(graph(x), model(x))
    return model, graph, x


def guard_of(graph):
    (entry,) = graph._dispatcher.entries.all()
    return entry.captured.guard


@pytest.mark.gpu
def test_the_words_of_many_weights_are_left_to_another_thread(deep, monkeypatch):
    model, _, x = deep
    asked, beside = [], words.SameWords.beside

    def counted(self, *given):
        asked.append(beside(self, *given))
        return asked[-1]

    monkeypatch.setattr(words.SameWords, "beside", counted)
    graph = gfxgraph.graphed(model, fallback="raise")
    for _ in range(3):
        torch.cuda.synchronize()
        assert torch.equal(graph(x), model(x))
    assert asked == [(0, True)] * 2
    asked.clear()
    for _ in range(50):  # the device is busy from the second call on
        graph(x)
    assert len(asked) < 10


@torch.no_grad()
def test_a_launch_that_cuda_refuses_is_left_to_torch(deep, monkeypatch):
    model, _, x = deep
    if x.device.type != "cpu":
        pytest.skip("a real device has functions of its own")
    refused = (lambda stream: True), NOW, 719  # abs() gives what it is given
    monkeypatch.setattr(EmulatedDevice, "launcher", lambda self, index, graph: refused)
    asked, beside = [], words.SameWords.beside

    def counted(self, *given):
        asked.append(beside(self, *given))
        return asked[-1]

    monkeypatch.setattr(words.SameWords, "beside", counted)
    graph = gfxgraph.graphed(model, fallback="raise")
    for n in range(4):
        assert torch.equal(graph(x + n), model(x + n))
    assert asked == [(719, True)] * 3


CHANGES = {
    "weight": lambda layer: setattr(layer, "weight", nn.Parameter(2 * layer.weight, False)),
    "data": lambda layer: setattr(layer.weight, "data", 2 * layer.weight),
    "in place": lambda layer: layer.weight.mul_(2),
    "hook": lambda layer: layer.register_forward_hook(lambda m, a, out: 2 * out),
    "swapped": lambda layer: torch.utils.swap_tensors(
        layer.weight, nn.Parameter(2 * layer.weight, False)
    ),
}


@pytest.mark.parametrize("at", [0, 450, 899])
@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_what_changes_in_one_of_many_layers_is_noticed_in_the_next_call(deep, change, at):
    model, graph, x = deep
    before = model(x)
    done = CHANGES[change](model[at])
    try:
        expected = model(x)
        assert torch.equal(graph(x), expected) and not torch.equal(before, expected)
        assert torch.equal(graph(x), expected)
    finally:
        if change == "hook":
            done.remove()
        nn.init.eye_(model[at].weight)
    assert torch.equal(graph(x), before)


@torch.no_grad()
def test_a_call_that_another_thread_changes_meanwhile_gives_a_result_of_before_or_after(deep):
    model, graph, x = deep
    stop, layer = threading.Event(), model[450]
    one = nn.Parameter(torch.eye(8, device=x.device), False)
    two = nn.Parameter(2 * one, False)

    def change():
        while not stop.is_set():
            layer.weight = two
            layer.weight = one
            time.sleep(0.001)

    expected = [model(x), 2 * model(x)]
    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(40):
            got = graph(x)
            assert any(torch.equal(got, right) for right in expected)
    finally:
        stop.set()
        thread.join()
        layer.weight = one


@torch.no_grad()
def test_a_graph_that_is_launched_in_no_time_compares_by_itself(deep, monkeypatch):
    monkeypatch.setattr(replay, "_LONG_LAUNCH", 1 << 62)
    model, _, x = deep
    monkeypatch.setattr(words.SameWords, "beside", None)
    graph = gfxgraph.graphed(model, fallback="raise")
    for _ in range(3):
        assert torch.equal(graph(x), model(x))


# ---- what another thread takes away


class Held:
    """A tensor in each place where a function may find one."""

    def __init__(self, device):
        self.layer = nn.Linear(8, 8, bias=False, device=device).requires_grad_(False)
        nn.init.eye_(self.layer.weight)
        self.cell = torch.eye(8, device=device)
        self.listed = [torch.eye(8, device=device) for _ in range(9)]

    def function(self):
        """A function that takes long before it reads them."""
        # A call takes some 0.2 s, most of it here.
        big, layer, cell = torch.zeros(1500, 1500, device=self.cell.device), self.layer, self.cell
        listed = self.listed

        def run(x):
            x = layer(x + (big @ big)[0, :8]) @ cell
            for weight in listed:
                x = x @ weight
            return x

        def rebind(new):
            nonlocal cell
            old, cell = cell, new
            return old

        return run, rebind

    def put(self, how, new, rebind):
        """Put ``new`` in the place of a tensor; gives memory that nothing has any more."""
        layer = self.layer
        old = layer.weight.detach()
        if how == "cell":
            return rebind(new)
        if how == "list":
            old, self.listed[7] = self.listed[7], new
        if how == "data":
            layer.weight.data = new
        if how == "set":
            layer.weight.set_(new)
        if how == "swapped":
            torch.utils.swap_tensors(layer.weight, nn.Parameter(new, False))
        if how == "attributes":
            registry = {"weight": nn.Parameter(new, False), "bias": None}
            layer.__dict__ = {**layer.__dict__, "_parameters": registry}
        return old


@pytest.mark.parametrize("how", ["data", "set", "swapped", "cell", "list", "attributes"])
@torch.no_grad()
def test_memory_that_another_thread_takes_away_during_a_launch_gives_no_result(
    device, monkeypatch, how
):
    monkeypatch.setattr(words, "_MANY_WORDS", 1)  # of some layers instead of hundreds
    monkeypatch.setattr(replay, "_LONG_LAUNCH", 0)
    held = Held(device)
    function, rebind = held.function()
    graph, x = gfxgraph.graphed(function), torch.randn(2, 8, device=device)
    before = function(x)
    for _ in range(4):
        assert torch.equal(graph(x), before)
    assert guard_of(graph).words is not None

    def change():
        time.sleep(0.02 if device == "cpu" else 0.0001)  # the helper has compared by then
        with torch.no_grad():
            held.put(how, 2 * torch.eye(8, device=device), rebind).fill_(float("nan"))

    thread = threading.Thread(target=change)
    thread.start()
    got = graph(x)
    thread.join()
    assert torch.equal(got, before) or torch.equal(got, 2 * before)
    assert torch.equal(graph(x), function(x))
