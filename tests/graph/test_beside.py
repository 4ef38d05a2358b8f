"""Another thread compares the words of a guard while a graph is launched."""

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
from gfxgraph.graph import words

if words.Words is None or words._memory() is None or words._layout() is None:
    pytest.skip("there is no compiled part", allow_module_level=True)


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


def pause():
    """Python's lock is free meanwhile."""
    time.sleep(0.01)
    return 0


@pytest.mark.parametrize("at", [0, 1, 20_000, 39_999])
def test_a_word_that_differs_is_found_whoever_compares(at):
    memory = Memory()
    for launch in (pause, lambda: 0):
        assert memory.words.beside(launch) == (0, True)
        memory.store(at, 1 << 40)
        assert memory.words.beside(launch) == (0, False)
        memory.store(at, at)


def test_another_thread_compares_while_the_launch_leaves_the_lock_to_it():
    memory = Memory()

    def launch():
        pause()
        memory.store(7, 0)  # too late for a thread that has looked
        return 0

    answers = []
    for _ in range(100):
        memory.store(7, 7)
        answers.append(memory.words.beside(launch)[1])
    assert any(answers)


def test_the_answer_of_one_launch_is_not_that_of_the_next():
    memory = Memory()
    for _ in range(100):
        memory.store(3, 3)
        assert memory.words.beside(pause) == (0, True)
        memory.store(3, 4)
        assert not memory.words.same()
        assert memory.words.beside(lambda: 0) == (0, False)


def test_a_launch_that_raises_leaves_nothing_behind():
    memory = Memory()

    def launch():
        pause()
        raise KeyError("launch")

    for _ in range(20):
        with pytest.raises(KeyError):
            memory.words.beside(launch)
        memory.store(5, 6)
        assert memory.words.beside(lambda: 0) == (0, False)
        memory.store(5, 5)


def test_what_the_launch_gives_is_given():
    memory, given = Memory(), object()
    assert memory.words.beside(lambda: given) == (given, True)


def test_words_may_go_while_the_other_thread_is_on_its_way_to_them():
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
        assert asks.beside(lambda: 0) == (0, True)
        del asks
        page.free(start)


def test_threads_each_get_the_answer_to_their_own_words():
    wrong = []

    def run(number):
        memory = Memory(9_000)
        for n in range(60):
            memory.store(number, number if n % 2 else 1 << 40)
            wrong.extend([n] * (memory.words.beside(pause) != (0, bool(n % 2))))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_launch_inside_of_a_launch_has_its_own_answer():
    outer, inner = Memory(), Memory()
    inner.store(2, 1)
    found = []

    def launch():
        found.append(inner.words.beside(pause))
        found.append(outer.words.beside(pause))
        return 1

    assert outer.words.beside(launch) == (1, True)
    assert found == [(0, False), (0, True)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork()")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_child_process_has_a_thread_of_its_own():
    memory = Memory()
    assert memory.words.beside(pause) == (0, True)
    child = os.fork()
    if child == 0:
        right = memory.words.beside(pause) == (0, True)
        memory.store(9, 1)
        right = right and memory.words.beside(pause) == (0, False)
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_end_of_a_process_waits_for_nobody(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import array, time\n"
        "from gfxgraph._compiled import Words\n"
        "held = array.array('Q', [1])\n"
        "pairs = [held.buffer_info()[0], 1] * 40_000\n"
        "asks = Words(array.array('Q', pairs).tobytes())\n"
        "for _ in range(50):\n"
        "    asks.beside(lambda: 0)\n"
        "print(asks.beside(lambda: 7))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "(7, True)\n" and not done.stderr


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


def test_the_words_of_many_weights_are_left_to_another_thread(deep):
    model, graph, x = deep
    words_of_graph, asked = guard_of(graph).words, []
    beside = words_of_graph.beside

    def counted(launch):
        asked.append(beside(launch))
        return asked[-1]

    words_of_graph.beside = counted
    try:
        assert torch.equal(graph(x), model(x))
    finally:
        del words_of_graph.beside
    assert [same for _, same in asked] == [True]


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
    graph = gfxgraph.graphed(model, fallback="raise")
    graph(x), graph(x)
    monkeypatch.setattr(guard_of(graph).words, "beside", None)
    assert torch.equal(graph(x), model(x))
