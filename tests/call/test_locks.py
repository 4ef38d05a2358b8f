"""A replay takes the locks of the program that the function takes: other threads see no half work.

What it cannot hold for as long as the call does runs eagerly, and says so.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import types

import pytest
import torch

import gfxgraph
from tests.helpers.threads import on_threads

pytestmark = pytest.mark.usefixtures("no_grad", "one_thread")

HELD = "another thread held a lock that the function takes"


def full(device, value):
    return torch.full((4,), float(value), device=device)


@contextlib.contextmanager
def half_done(lock, state, before_it_ends):
    """Another thread is in the middle of its work, and holds ``lock``; it ends in the body.

    ``before_it_ends`` waits until the call of the body waits for the lock.
    """
    inside = threading.Event()

    def work():
        with lock:
            value = state.h.clone()
            state.h.fill_(-1000.0)
            inside.set()
            before_it_ends()
            state.h.copy_(value + 100)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(60)
    yield
    thread.join()


def with_lock(lock, state, x):
    with lock:
        return state.h * x


def by_hand(lock, state, x):
    lock.acquire()
    try:
        return state.h * x
    finally:
        lock.release()


def in_place(lock, state, x):
    with lock:
        state.h.add_(x)
        return state.h * 2


def rebound(lock, state, x):
    with lock:
        state.h = state.h + x
        return state.h * 2


def of_branches(lock, state, x):
    with lock:
        return state.h * x if x.sum() > 0 else state.h * x - 1


def into_an_argument(lock, state, x, found=None):
    with lock:
        if found is not None:
            found["h"] = state.h * x
        return state.h * x


KINDS = [with_lock, by_hand, in_place, rebound, of_branches, into_an_argument]


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock, threading.Condition])
@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_finds_nothing_that_another_thread_has_half_done(device, kind, make):
    expected = []
    for made in (False, True):
        lock, state = make(), types.SimpleNamespace(h=torch.zeros(4, device=device))
        f = functools.partial(kind, lock, state)
        f = gfxgraph.graphed(f) if made else f
        for _ in range(3):
            f(full(device, 1))
        # Long enough for a call that does not wait, and a call that does cannot be wrong.
        with half_done(lock, state, lambda: threading.Event().wait(0.2)):
            result = f(full(device, 1))
        expected.append((result.cpu().tolist(), state.h.cpu().tolist()))
        for _ in range(2):
            expected[-1] += (f(full(device, 1)).cpu().tolist(),)
    assert expected[0] == expected[1]


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock, threading.Condition])
@pytest.mark.parametrize("kind", [with_lock, by_hand, in_place, into_an_argument])
def test_a_function_that_takes_a_lock_is_a_graph(device, kind, make):
    lock, state = make(), types.SimpleNamespace(h=torch.ones(4, device=device))
    f = gfxgraph.graphed(functools.partial(kind, lock, state))
    for _ in range(4):
        f(full(device, 1))
    assert f.stats().captures == 1 and f.stats().replays == 3, f.stats()
    assert lock.acquire(blocking=False)
    lock.release()


def test_a_lock_that_this_thread_holds_already_is_taken_once_more(device):
    lock, state = threading.RLock(), types.SimpleNamespace(h=torch.ones(4, device=device))
    f = gfxgraph.graphed(functools.partial(with_lock, lock, state))
    for _ in range(2):
        f(full(device, 1))
    with lock:
        assert f(full(device, 3)).cpu().tolist() == [3.0] * 4
    assert f.stats().replays == 2


def test_while_another_thread_holds_the_lock_the_call_waits_in_the_function(device):
    lock, state = threading.Lock(), types.SimpleNamespace(h=torch.ones(4, device=device))
    f = gfxgraph.graphed(functools.partial(with_lock, lock, state))
    for _ in range(2):
        f(full(device, 1))
    with half_done(lock, state, lambda: threading.Event().wait(0.1)):
        assert f(full(device, 1)).cpu().tolist() == [101.0] * 4
    assert [HELD in reason for reason in f.stats().fallbacks] == [True]
    assert f(full(device, 1)).cpu().tolist() == [101.0] * 4 and f.stats().replays == 2


def test_the_lock_of_a_call_is_that_which_it_is_given(device):
    state = types.SimpleNamespace(h=torch.ones(4, device=device))
    f = gfxgraph.graphed(lambda lock, x: with_lock(lock, state, x))
    first, second = threading.Lock(), threading.Lock()
    for lock in (first, first, second, second):
        f(lock, full(device, 1))
    for lock in (first, second):
        with half_done(lock, state, lambda: threading.Event().wait(0.2)):
            before = state.h.cpu().tolist()
            result = f(lock, full(device, 1)).cpu().tolist()
        assert before == [-1000.0] * 4 and result == state.h.cpu().tolist()


def test_two_locks_are_not_waited_for_in_another_order_than_the_functions(device):
    """The function never holds both; a replay that waited for the second would wait for ever."""
    first, second = threading.Lock(), threading.Lock()
    state = types.SimpleNamespace(h=torch.ones(4, device=device))

    def both(x):
        with first:
            y = state.h * x
        with second:
            return y + state.h

    f = gfxgraph.graphed(both)
    for _ in range(2):
        f(full(device, 1))
    inside, results = threading.Event(), []

    def work():
        with second:
            inside.set()
            threading.Event().wait(0.1)
            with first:
                results.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(60)
    assert f(full(device, 1)).cpu().tolist() == [2.0] * 4
    thread.join(60)
    assert results == [True]
    assert f(full(device, 1)).cpu().tolist() == [2.0] * 4 and f.stats().replays == 2


@pytest.mark.parametrize("kind", [rebound, of_branches])
def test_a_lock_that_no_replay_could_hold_is_named(device, kind):
    lock, state = threading.Lock(), types.SimpleNamespace(h=torch.ones(4, device=device))
    f = gfxgraph.graphed(functools.partial(kind, lock, state))
    for _ in range(4):
        f(full(device, 1))
    (reason,) = f.stats().refused.values()
    assert "each call takes" in reason and "Take the lock around the call" in reason, reason
    assert not f.stats().replays


@pytest.mark.parametrize("buckets", [(4, 8), (8,)])
def test_a_function_with_buckets_takes_its_lock_in_each_size(device, buckets):
    lock, state = threading.Lock(), types.SimpleNamespace(h=torch.ones((), device=device))
    f = functools.partial(with_lock, lock, state)
    pool = gfxgraph.ShapeBucketPool(model_fn=f, buckets=list(buckets))
    for rows in (3, 3, 6, 6, 3, 6):
        pool(torch.ones(rows, 2, device=device))
    for rows in (3, 6):
        with half_done(lock, state, lambda: threading.Event().wait(0.2)):
            result = pool(torch.ones(rows, 2, device=device))
        assert result.cpu().flatten().tolist() == [state.h.item()] * rows * 2


@pytest.mark.parametrize("kind", KINDS)
def test_check_says_which_locks_no_replay_could_hold(kind):
    lock, state = threading.Lock(), types.SimpleNamespace(h=torch.ones(4))
    report = gfxgraph.check(functools.partial(kind, lock, state), full("cpu", 1))
    reasons = [hazard.what for hazard in report.hazards if hazard.rule == "python-state"]
    is_eager = kind in (rebound, of_branches)
    assert (report.verdict == "eager") == is_eager, report
    assert ["each call takes" in reason for reason in reasons] == [True] * is_eager


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock, threading.Condition])
def test_no_write_of_threads_that_take_turns_is_lost(device, make):
    lock, state = make(), types.SimpleNamespace(h=torch.zeros(4, device=device))
    f = gfxgraph.graphed(functools.partial(in_place, lock, state))
    x = full(device, 1)
    for _ in range(2):
        f(x)
    state.h.zero_()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def work(calls):
        for _ in range(200):
            if calls:
                with torch.no_grad():
                    assert f(x)[0] > 0
                continue
            with lock:
                before = state.h.clone()
                state.h.fill_(-1e6)
                time.sleep(0)
                state.h.copy_(before + 1)

    try:
        on_threads(work, (True, True, False))
    finally:
        sys.setswitchinterval(interval)
    assert state.h.cpu().tolist() == [600.0] * 4
    assert f.stats().replays > 100 and f.stats().captures == 1
