"""Gives a child of ``fork()`` free locks and a clean state.

A child has one thread, a copy of the one that called ``fork()``. Locks and unfinished work of the
other threads would stay for ever, since nobody is there to end them.
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

    It is reentrant, since the garbage collector may call the same code again on the thread.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def in_child(forget: Callable[[], None]) -> None:
    """Call ``forget`` in each child of ``fork()``, before any other code of the child."""
    if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
        os.register_at_fork(after_in_child=forget)


def _free_locks() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as the modules of Python do with theirs


in_child(_free_locks)
