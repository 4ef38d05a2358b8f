"""Dicts and functions that CPython watches for us: while none changes, none has to be asked.

From Python 3.12 on functions in C can be told before each change of a dict and of a function
(``PyDict_AddWatcher``, ``PyFunction_AddWatcher``, https://docs.python.org/3.12/c-api/). No code in
Python may run there: another thread could go on with the same dict. So what is told are methods of
iterators and dicts in C, which count.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from ..forking import new_lock

__all__ = ["USUAL", "Unchanged", "Watcher", "watcher"]

USUAL = 2
"""How many kinds of events of functions are no change: one was made, one went."""


class Watcher:
    """Counts the changes of all dicts and functions that are watched in this process.

    Raises:
        OSError: this Python has no such thing, or none is left, or it does not tell of everything.

    Attributes:
        left: gives a number that is another one after each change of a dict.
        functions: longer than ``USUAL`` after a change of a function.
        is_running: whether changes are counted.
    """

    def __init__(self) -> None:
        api: Any = ctypes.pythonapi
        # Without a lock around all of Python a change could come while a guard is asked.
        if not hasattr(api, "PyDict_AddWatcher") or not getattr(sys, "_is_gil_enabled", _yes)():
            raise OSError("no watchers of dicts")
        self._events = itertools.repeat(0, sys.maxsize)
        self.left: Callable[[], int] = self._events.__length_hint__
        self.functions: dict[int, int] = defaultdict(int, dict.fromkeys(range(USUAL), 0))
        told = ctypes.PYFUNCTYPE(ctypes.c_int)(self._events.__next__)
        told_of_functions = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int)(
            self.functions.__getitem__
        )
        self._kept = told, told_of_functions
        of_dict = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.py_object)
        self._watch, self._unwatch = (
            of_dict(("PyDict_Watch", api)),
            of_dict(("PyDict_Unwatch", api)),
        )
        self._watched: Counter[int] = Counter()
        self._lock = new_lock()
        self._ids: list[tuple[Any, int]] = []
        self.is_running = True
        atexit.register(self.end)
        try:
            self._id = api.PyDict_AddWatcher(told)
            self._ids.append((api.PyDict_ClearWatcher, self._id))
            of_functions = api.PyFunction_AddWatcher(told_of_functions)
            self._ids.append((api.PyFunction_ClearWatcher, of_functions))
            if not self._tells_all():
                raise OSError("not all changes are told")
        except (OSError, RuntimeError) as error:
            self.end()
            raise OSError(str(error)) from error

    def settle(self) -> None:
        """Let a change of a function be seen by all who look at :attr:`left`."""
        for event in list(self.functions)[USUAL:]:
            next(self._events)
            del self.functions[event]

    def watch(self, item: object) -> None:
        """Count changes of ``item``, if it is a dict; it has to live until :meth:`unwatch`."""
        if not isinstance(item, dict):
            return
        with self._lock:
            self._watched[id(item)] += 1
            if self.is_running:
                self._watch(self._id, item)

    def unwatch(self, item: object) -> None:
        """Take one :meth:`watch` back."""
        if not isinstance(item, dict):
            return
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
            for clear, ident in self._ids:
                clear(ident)

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

        def set_defaults() -> None:
            tells.__defaults__ = (1,)
            self.settle()

        try:
            return (
                tells(lambda: setattr(item, "value", 1))
                and tells(stores, 50)
                and tells(lambda: setattr(item, "other", 1))
                and tells(lambda: delattr(item, "other"))
                and tells(lambda: space.update(value=2))
                and tells(stores, 50)
                and tells(set_defaults)
            )
        finally:
            self.unwatch(space)


def _yes() -> bool:
    return True


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
    """Answers a question again only after a change of ``items``, on which alone it depends."""

    def __init__(self, by: Watcher, asked: Callable[[], bool], items: list[Any]) -> None:
        self._by, self._asked, self._items = by, asked, items
        self.stamp = -1
        for item in items:
            by.watch(item)

    def __del__(self) -> None:
        for item in self._items:
            self._by.unwatch(item)

    def holds(self) -> bool:
        """Ask."""
        self._by.settle()
        now = self._by.left()
        if not self._asked():
            return False
        self.stamp = now if self._by.is_running else -1
        return True
