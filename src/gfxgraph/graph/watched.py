"""Dicts that are watched for us: while none of them changes, nothing has to be asked of them.

From Python 3.12 on CPython tells C code of each change of a dict. No code in Python may run there,
so torch's own watcher is used, which its compiler has for the same purpose: it gives each change
a number, the next one (``dict_version``, private to torch; tried with torch 2.13 on Python 3.12 to
3.14). Up to Python 3.11 each dict has a number itself, which changes with it. A process tries
either before it relies on it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import one_line
from ..stats import log
from . import words

__all__ = ["SameVersions", "Unchanged", "Watcher", "watcher"]


class Watcher:
    """Tells whether any of the dicts that are watched in this process has changed.

    Attributes:
        watch: watches a dict for as long as it lives; gives the number of its newest change. Of
            what is put into an empty dict torch hears nothing.
        changes: gives a number, which differs after any watched dict has changed.

    Raises:
        OSError: this Python or this torch has no such thing, or it does not tell of everything.
    """

    def __init__(self) -> None:
        if sys.version_info < (3, 12):
            raise OSError("CPython watches dicts from version 3.12 on")
        # Without a lock around all of Python a change could come while a guard is asked.
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            raise OSError("Python runs without its lock")
        try:
            from torch._C._dynamo.guards import dict_version
        except ImportError as error:
            raise OSError(str(error)) from error
        self.watch: Callable[[dict[Any, Any]], int] = dict_version
        self._counted_at: int | None = _place_of_count(dict_version)
        self.changes: Callable[[], int] = (
            _changes(dict_version)
            if self._counted_at is None
            else functools.partial(getattr, ctypes.c_uint64.from_address(self._counted_at), "value")
        )
        # Python 3.13.0 tells nothing of most attributes that are set.
        if not (
            words.tells_all(lambda space: (self.watch(space), self.changes)[1])
            and words.tells_all(lambda space: functools.partial(self.watch, space))
        ):
            raise OSError("not all changes of dicts are told")

    def since(self, stamp: int) -> Callable[[], bool]:
        """A function that says whether nothing has changed since ``changes`` gave ``stamp``."""
        changes = self.changes
        if self._counted_at is None or words.Words is None:
            return lambda: changes() == stamp
        return words.question([(words.HEAD, self._counted_at, stamp)])


def _place_of_count(number_of: Callable[[dict[Any, Any]], int]) -> int | None:
    """Where torch has the number of the next change; ``None``: it was not found.

    A change of a dict that is watched gets that number, so what is counted there is known.
    """
    own: dict[int, object] = {0: None}
    number_of(own)

    def advance() -> int:
        own[0] = []
        return number_of(own) + 1

    return words.counting(advance, "libtorch_python")


def _changes(number_of: Callable[[dict[Any, Any]], int]) -> Callable[[], int]:
    """See :attr:`Watcher.changes`. A closure: most replays call it."""
    own: dict[int, object] = {0: None}
    last, count = number_of(own), 0

    def changes() -> int:
        nonlocal last, count
        # A change, too: its number is the next one if there was no other. Each time a new object,
        # since another thread may be between these lines.
        own[0] = []
        number = number_of(own)
        if number != last + 1:
            count += 1
        last = number
        return count

    return changes


@functools.lru_cache(maxsize=1)
def watcher() -> Watcher | None:
    """The one of this process; ``None``: there is none."""
    try:
        return Watcher()
    except OSError as error:
        log(logging.DEBUG, "dicts_not_watched", because=one_line(error))
        return None


class Unchanged:
    """Asks questions again only after a change of the dict on which alone the answer depends.

    Args:
        by: watches the dicts.
        asked: of each dict the question.

    Attributes:
        stamp: what :attr:`Watcher.changes` gave when all answers were yes.
        same: whether no watched dict of the process has changed since.
    """

    def __init__(
        self, by: Watcher, asked: Sequence[tuple[dict[Any, Any], Callable[[], bool]]]
    ) -> None:
        self._by, self._asked = by, asked
        self._dicts = [item for item, _ in asked]
        #: The change of each dict after which the answer was yes; ``None``: it has to be asked.
        self._numbers: list[int | None] = [None for _ in map(by.watch, self._dicts)]
        self.stamp = -1
        self.same: Callable[[], bool] = lambda: False

    def holds(self) -> bool:
        """Ask where a dict has changed: most changes are those of others."""
        # First: what changes while it is asked is asked again.
        now, numbers = self._by.changes(), list(map(self._by.watch, self._dicts))
        if numbers != self._numbers:
            for n, (item, asked) in enumerate(self._asked):
                if self._numbers[n] != numbers[n]:
                    self._numbers[n] = None
                    if not asked():
                        return False
                    if dict.__len__(item):
                        self._numbers[n] = numbers[n]
            if None in self._numbers:
                return True
        self.stamp, self.same = now, self._by.since(now)
        return True


class SameVersions:
    """Asks a question again only after a change of dicts, up to Python 3.11.

    Args:
        asked: the question.
        versions: gives the numbers of all dicts on which the answer depends.
        dicts: these, to keep them.
    """

    def __init__(
        self,
        asked: Callable[[], bool],
        versions: Callable[[], bytes],
        dicts: list[dict[Any, Any]],
    ) -> None:
        self._asked, self._dicts = asked, dicts
        self.versions = versions
        #: What they were when the answer was yes.
        self.then = b""

    def holds(self) -> bool:
        """Ask."""
        now = self.versions()  # first: what changes while it is asked is asked again
        if not self._asked():
            return False
        self.then = now
        return True
