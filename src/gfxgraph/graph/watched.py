"""Dicts that CPython watches for us: while none of them changes, nothing has to be asked of them.

From Python 3.12 on a function in C can be told before each change of a dict
(``PyDict_AddWatcher``, https://docs.python.org/3.12/c-api/dict.html). No code in Python may run
there: another thread could go on with the same dict. So what is told is the ``__next__`` of an
iterator in C, and its ``__length_hint__`` says how often that was.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from ..forking import new_lock

__all__ = ["Unchanged", "Watcher", "watcher"]


class Watcher:
    """Counts the changes of all dicts that are watched in this process.

    Raises:
        OSError: this Python has no such thing, or none is left, or it does not tell of everything.

    Attributes:
        left: gives a number that is another one after each change.
        is_running: whether changes are counted.
    """

    def __init__(self) -> None:
        api: Any = ctypes.pythonapi
        # Without a lock around all of Python a change could come while a guard is asked.
        if not hasattr(api, "PyDict_AddWatcher") or not getattr(sys, "_is_gil_enabled", lambda: True)():
            raise OSError("no watchers of dicts")
        self._events = itertools.repeat(0, sys.maxsize)
        self.left: Callable[[], int] = self._events.__length_hint__
        self._told = ctypes.PYFUNCTYPE(ctypes.c_int)(self._events.__next__)
        try:
            self._id = api.PyDict_AddWatcher(self._told)
        except RuntimeError as error:
            raise OSError(str(error)) from error
        self._watch = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.py_object)(
            ("PyDict_Watch", api)
        )
        self._unwatch = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.py_object)(
            ("PyDict_Unwatch", api)
        )
        self._watched: Counter[int] = Counter()
        self._lock = new_lock()
        self.is_running = True
        atexit.register(self.end)
        if not self._tells_all():
            self.end()
            raise OSError("not all changes of dicts are told")

    def watch(self, item: dict[Any, Any]) -> None:
        """Count changes of ``item``, which has to live until :meth:`unwatch`."""
        with self._lock:
            self._watched[id(item)] += 1
            if self.is_running:
                self._watch(self._id, item)

    def unwatch(self, item: dict[Any, Any]) -> None:
        """Take one :meth:`watch` back."""
        with self._lock:
            self._watched[id(item)] -= 1
            if not self._watched[id(item)]:
                del self._watched[id(item)]
                if self.is_running:
                    self._unwatch(self._id, item)

    def end(self) -> None:
        """Before Python frees what is told: nobody may take silence for no change then."""
        if self.is_running:
            self.is_running = False
            next(self._events)
            ctypes.pythonapi.PyDict_ClearWatcher(self._id)

    def _tells_all(self) -> bool:
        """Python 3.13.0 tells nothing of most attributes that are set."""
        item = type("_Probe", (), {})()
        item.value = 0
        space = item.__dict__
        self.watch(space)

        def stores() -> None:
            for n in range(50):  # as often as makes the interpreter take a shorter way
                item.value = n

        def tells(change: Callable[[], object], times: int = 1) -> bool:
            before = self.left()
            change()
            return before - self.left() >= times

        try:
            return (
                tells(lambda: setattr(item, "value", 1))
                and tells(stores, 50)
                and tells(lambda: setattr(item, "other", 1))
                and tells(lambda: delattr(item, "other"))
                and tells(lambda: space.update(value=2))
                and tells(stores, 50)
            )
        finally:
            self.unwatch(space)


def _made() -> Watcher | None:
    try:
        return Watcher()
    except (OSError, MemoryError):  # without leave to run what ctypes makes, there is no memory
        return None


_found: list[Watcher | None] = []


def watcher() -> Watcher | None:
    """The one of this process; ``None``: this Python has none."""
    if not _found:
        _found.append(_made())
    return _found[0]


class Unchanged:
    """Answers a question again only after a change of ``dicts``, on which alone it depends."""

    def __init__(self, by: Watcher, asked: Callable[[], bool], dicts: list[dict[Any, Any]]) -> None:
        self._by, self._asked, self._dicts = by, asked, dicts
        self.stamp = -1
        for item in dicts:
            by.watch(item)

    def __del__(self) -> None:
        for item in self._dicts:
            self._by.unwatch(item)

    def holds(self) -> bool:
        """Ask."""
        now = self._by.left()
        if not self._asked():
            return False
        self.stamp = now if self._by.is_running else -1
        return True
