"""Whose turn it is: captures and replays of all threads, one after the other."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import CaptureError

__all__ = [
    "CAPTURING",
    "LOCK",
    "being_busy",
    "busy",
    "no_garbage_collection",
    "turn_to_capture",
]

LOCK = threading.RLock()
"""Held while a graph is captured or replayed, by whatever thread.

A replay in one thread fails while another captures (torch's generator cannot do both). A replay
holds it until its work is launched; a capture for its duration, not for its warm-up.
"""


CAPTURING = threading.RLock()
"""Held from the first warm-up to the end of the verification. Never waited for: a thread that
cannot have it runs eagerly. Two warm-ups at once would rewind each other's generators, and torch
keeps whether a dispatch mode is active in flags of the process, which two threads can leave set.
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
    if not CAPTURING.acquire(timeout=_TURN):
        raise CaptureError(
            f"another thread has been capturing for {_TURN:.0f} s; call capture() after it.",
            transient=True,
        )
    try:
        yield
    finally:
        CAPTURING.release()


def busy() -> bool:
    """Whether this thread is inside a run, a warm-up or a capture that we have started."""
    return getattr(_local, "busy", False)


@contextmanager
def being_busy() -> Iterator[None]:
    """Mark this thread as :func:`busy`."""
    before = busy()
    _local.busy = True
    try:
        yield
    finally:
        _local.busy = before


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A collection in the middle of a capture may free other graphs, which CUDA forbids there."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
