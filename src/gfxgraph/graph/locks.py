"""Whose turn it is: captures and replays of all threads, one after the other."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ..errors import CaptureError
from ..forking import in_child, new_lock
from ..interpose.interrupts import held_back

__all__ = [
    "CAPTURING",
    "LOCK",
    "PATIENCE",
    "TURNS",
    "Gate",
    "inside_gfxgraph",
    "is_inside_gfxgraph",
    "is_lock_ours",
    "is_only_thread",
    "no_garbage_collection",
    "release_waiting",
    "turn_if_free",
    "turn_to_capture",
    "when_captured_next",
    "when_free",
]

LOCK = new_lock()
"""Held while a graph is captured or replayed, by whatever thread.

A replay in one thread fails while another captures (torch's generator cannot do both). A replay
holds it until its result is made; a capture for its duration, not for its warm-up.
"""

TURNS: Iterator[bool] = iter(functools.partial(LOCK.acquire, False), None)
"""Each step tries to take :data:`LOCK`, and yields whether that worked.

A ``for`` loop takes the step in C. So no interrupt comes between the lock and the body of the loop,
which begins with ``try``.
"""


def is_lock_ours() -> bool:
    """Whether this thread holds :data:`LOCK`."""
    return bool(LOCK._is_owned())  # type: ignore[attr-defined]


CAPTURING = new_lock()
"""Held from the first warm-up to the end of the verification. A call does not wait for it, and runs
eagerly; a capture that the user asks for waits a minute. Two warm-ups at once would rewind each
other's generators, and torch keeps whether a dispatch mode is active in flags of the process, which
two threads can leave set.
"""


# Seconds that an explicit capture waits for another thread's. Not for ever: what that one captures
# may wait for this thread.
_TURN = 60.0


_local = threading.local()


@contextmanager
def turn_to_capture() -> Iterator[None]:
    """Hold :data:`CAPTURING` for captures that the user asked for, and wait for it.

    Raises:
        CaptureError: another thread has been capturing for a minute.
    """
    with _turn(_TURN, all_leave=True) as is_ours:
        if not is_ours:
            raise CaptureError(
                f"another thread has been capturing for {_TURN:.0f} s; call capture() after it.",
                transient=True,
            )
        yield


def turn_if_free(all_leave: bool = True) -> AbstractContextManager[bool]:
    """Hold :data:`CAPTURING` where no other thread does; gives whether that is so.

    Args:
        all_leave: see :class:`held_back`; not where the function runs for its caller inside.
    """
    return _turn(0.0, all_leave)


@contextmanager
def _turn(patience: float, all_leave: bool) -> Iterator[bool]:
    held: list[bool] = []
    with held_back(all_leave):
        try:
            # In one go: no interrupt comes after the lock is taken and before that is known.
            held.extend(map(CAPTURING.acquire, (True,), (patience,)))
            yield held[0]
        finally:
            if any(held):
                CAPTURING.release()


_waiting: deque[Callable[[], object]] = deque()


# Seconds to wait for another thread's capture. Never for ever: what is captured may wait for us.
PATIENCE = 5.0


class Gate:
    """Calls of one function pass side by side, but not beside a capture of it that is alone.

    A capture of a function that writes to tensors of its own puts back what its runs have written;
    what other calls wrote meanwhile would be lost. Nobody waits for longer than :data:`PATIENCE`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition(new_lock())
        self._passing: Counter[int] = Counter()
        self._alone = 0
        _gates.add(self)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """A call of this thread goes on inside."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._alone in (0, me), PATIENCE)
            self._passing[me] += 1
        try:
            yield
        finally:
            with self._changed:
                self._passing[me] -= 1
                if self._passing[me] <= 0:  # less, in a child that was forked inside
                    del self._passing[me]
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """No call of another thread goes on inside; gives whether that is so.

        The caller holds :data:`CAPTURING`.
        """
        me = threading.get_ident()
        with self._changed:
            self._alone = me
            is_free = self._changed.wait_for(lambda: self._passing.keys() <= {me}, PATIENCE)
        try:
            yield is_free
        finally:
            with self._changed:
                self._alone = 0
                self._changed.notify_all()

    def open(self) -> None:
        """Nobody is inside."""
        self._passing.clear()
        self._alone = 0


_gates: weakref.WeakSet[Gate] = weakref.WeakSet()


def when_free(release: Callable[[], object], patience: float = PATIENCE) -> None:
    """Call ``release`` under :data:`LOCK`: now, or before the next capture.

    Args:
        release: what to call.
        patience: seconds to wait for the lock. A finalizer may not wait: it runs at any point of
            any thread, and that one may hold what the thread that captures is waiting for.
    """
    _waiting.append(release)
    for is_ours in map(LOCK.acquire, (True,), (patience,)):  # a loop, as with TURNS
        try:
            if is_ours:
                release_waiting()
        finally:
            if is_ours:
                LOCK.release()


def when_captured_next(release: Callable[[], object]) -> None:
    """Call ``release`` under :data:`LOCK`, before the next capture."""
    _waiting.append(release)


def release_waiting() -> None:
    """Call what waits for :data:`LOCK`, which the caller holds."""
    for _ in range(len(_waiting)):  # one that cannot be yet joins them again
        if _waiting:
            _waiting.popleft()()


def is_only_thread() -> bool:
    """Whether no other thread could read or write what a run of ours does."""
    me = threading.current_thread()
    return all(t is me or _serves_a_library(t) for t in threading.enumerate())


def _serves_a_library(thread: threading.Thread) -> bool:
    """Whether a thread never runs code of the program on its own account.

    That of tqdm looks after progress bars, ours answer who asks for metrics. Those of autograd run
    the backward pass of a call that waits for it, one thread for each GPU; they stay, and
    ``threading`` knows them once Python code has asked for its thread there.
    """
    if type(thread).__module__.startswith(("tqdm.", "gfxgraph.")):
        return True
    if not isinstance(thread, threading._DummyThread):
        return False
    try:
        name = Path(f"/proc/self/task/{thread.native_id}/comm").read_text()
    except OSError:  # no such file system
        return False
    return name.startswith("pt_autograd")


def is_inside_gfxgraph() -> bool:
    """Whether this thread is inside a run, a warm-up or a capture that we have started."""
    return getattr(_local, "is_inside_gfxgraph", False)


@contextmanager
def inside_gfxgraph() -> Iterator[None]:
    """Mark this thread as :func:`is_inside_gfxgraph`."""
    before = is_inside_gfxgraph()
    _local.is_inside_gfxgraph = True
    try:
        yield
    finally:
        _local.is_inside_gfxgraph = before


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A collection in the middle of a capture may free other graphs, which CUDA forbids there.

    Threads may be inside at the same time: the last one that leaves switches collections on again.
    """
    global _was_enabled
    me = object()
    try:
        with _switch:
            if not _inside:
                _was_enabled = gc.isenabled()
            _inside.add(me)  # first: a fork() in between leaves no child without collections
            gc.disable()
        yield
    finally:
        with _switch:
            if _inside == {me} and _was_enabled:
                gc.enable()
            _inside.discard(me)  # it is not there in a child that was forked inside


_switch = new_lock()
_inside: set[object] = set()
_was_enabled = False


def _forget() -> None:
    """Nothing of ours is underway in a child of fork()."""
    if _inside and _was_enabled:
        gc.enable()
    _inside.clear()
    _local.is_inside_gfxgraph = False
    _waiting.clear()
    for gate in list(_gates):
        gate.open()


in_child(_forget)
