"""What a child of ``fork()`` starts with: locks that nobody holds, and nothing underway.

A child has one thread, a copy of the one that called ``fork()``. What the other threads held and
were in the middle of stays as it was, and nobody is there to end it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["in_child", "new_lock"]

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> threading.RLock:
    """A lock that is free in a child of ``fork()``.

    Reentrant, since the garbage collector may bring a thread back to where it is.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def in_child(forget: Callable[[], None]) -> None:
    """Call ``forget`` in each child of ``fork()``, before anything else of it runs."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
        os.register_at_fork(after_in_child=forget)


def _free_locks() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as the modules of Python do with theirs


in_child(_free_locks)
