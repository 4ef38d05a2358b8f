"""What another thread does to objects that a function reaches and does not use, while gfxgraph
captures that function."""

from __future__ import annotations

import array
import ctypes
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import gfxgraph

pytestmark = pytest.mark.filterwarnings("ignore")


class Policy(torch.nn.Module):
    """A policy with the last frame of a camera, which it is not given."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * 2


def _at_index(held: Any) -> Callable[[int], bool]:
    before = [held[0]]

    def step(number: int) -> bool:
        is_as_left = bool(held[0] == before[0])
        held[0] = number % 100
        before[0] = held[0]
        return is_as_left

    return step


def _draws(draw: Callable[[], float], twin: Callable[[], float]) -> Callable[[int], bool]:
    return lambda number: draw() == twin()


def _objects() -> dict[str, tuple[Any, Callable[[int], bool]]]:
    frame, raw = np.zeros(6), bytearray(8)
    found = {
        "numpy": (frame, _at_index(frame)),
        "a view": (frame[2:], _at_index(frame[2:])),
        "bytearray": (raw, _at_index(raw)),
        "array": (made := array.array("d", [0.0] * 4), _at_index(made)),
        "ctypes": (of_c := (ctypes.c_int * 4)(), _at_index(of_c)),
    }
    of_python = random.Random(3)
    found["random"] = of_python, _draws(of_python.random, random.Random(3).random)
    rng = np.random.default_rng(3)
    found["numpy.random"] = rng, _draws(rng.random, np.random.default_rng(3).random)
    old = np.random.RandomState(3)
    found["RandomState"] = old, _draws(old.random_sample, np.random.RandomState(3).random_sample)
    return found


@contextmanager
def stepping(step: Callable[[int], bool]) -> Iterator[list[int]]:
    """Another thread takes steps; gives the numbers of those before which something had changed."""
    done, wrong = threading.Event(), []
    begun = threading.Event()

    def run() -> None:
        number = 0
        while not done.is_set():
            number += 1
            if not step(number):
                wrong.append(number)
            if number > 20:
                begun.set()
            done.wait(1e-4)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        begun.wait()
        yield wrong
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("name", _objects())
def test_what_another_thread_does_with_it_stays(device, name):
    held, step = _objects()[name]
    policy = Policy(held).to(device)
    x = torch.ones(2, 4, device=device)
    with torch.inference_mode(), stepping(step) as wrong:
        expected = policy(x)
        fast = gfxgraph.graphed(policy)
        for _ in range(4):
            assert torch.equal(fast(x), expected)
    assert not wrong
    assert fast.stats().replays >= 2


@contextmanager
def an_idle_thread() -> Iterator[None]:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("name", _objects())
def test_what_runs_of_ours_do_with_it_beside_a_thread_is_put_back(device, name):
    held, step = _objects()[name]

    def function(x):
        if hasattr(held, "__setitem__"):
            held[0] += 1
        else:
            step(0)
        return x * 2

    x = torch.ones(3, device=device)
    with an_idle_thread():
        fast = gfxgraph.graphed(function)
        for number in range(1, 5):
            assert torch.equal(fast(x), x * 2)
            assert not hasattr(held, "__setitem__") or held[0] == number
    assert hasattr(held, "__setitem__") or step(0)
    assert not fast.stats().replays


WRITES = {
    "in a list": (lambda a: [a], lambda held: [a.__iadd__(1) for a in held]),
    "by a loop": (lambda a: (a, a), lambda held: _add_to_each(held)),
    "in a dict": (lambda a: {"a": a}, lambda held: _add_to_each(held.values())),
    "by map": (lambda a: [a], lambda held: list(map(np.ndarray.sort, held))),
    "by fill": (lambda a: [[a]], lambda held: held[0][0].fill(held[0][0][0] + 1)),
    "by out": (lambda a: [a], lambda held: np.add(held[0], 1, out=held[0])),
    "by torch": (lambda a: a, lambda held: torch.from_numpy(held).add_(1)),
    "by a view": (lambda a: a[:2], lambda held: _add_to_each([held])),
    "of vars()": (
        lambda a: Held(a),
        lambda held: _add_to_each(vars(held).values()),
    ),
    "of an attribute": (lambda a: Held(Held(a)), lambda held: _add_to_each([held.a.a])),
}


class Held:
    def __init__(self, a: Any) -> None:
        self.a = a


def _add_to_each(arrays: Any) -> None:
    for one in arrays:
        one += 1


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("through", ["a global", "an argument"])
def test_an_array_that_a_call_writes_is_written_once_by_it_beside_a_thread(device, name, through):
    pack, write = WRITES[name]

    def results(make: Callable[[Any], Any]) -> list[Any]:
        array = np.arange(4.0)[::-1].copy()
        held = pack(array)

        def of_global(x):
            write(held)
            return x * 2

        def of_argument(x, held):
            write(held)
            return x * 2

        call, found = make(of_global if through == "a global" else of_argument), []
        for _ in range(4):
            x = torch.ones(3, device=device)
            got = call(x) if through == "a global" else call(x, held)
            found.append((got.tolist(), array.tolist()))
        return found

    with an_idle_thread():
        assert results(gfxgraph.graphed) == results(lambda function: function)
