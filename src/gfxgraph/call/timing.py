"""The host time of replays, taken of a sample of the calls; off until metrics ask for it.

While it is on, the fast path of each graph is one that counts the calls, and reads the clock in one
of :data:`EVERY`. While it is off nothing of this runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

from ..forking import new_lock
from ..stats import tally

__all__ = ["EVERY", "Holder", "holders", "is_on", "register", "switch", "timed", "timed_always"]

EVERY = 61
"""One call of so many is timed. A prime: models call the same layer 8, 12 or 50 times in a row."""

# Nor is a try timed for nothing again and again, where graphs of other calls are tried first.
_SOON = 4


class Holder(Protocol):
    """An owner of graphs, whose calls take another way while they are timed."""

    name: str

    def timing_changed(self) -> None:
        """Timing was turned on or off."""

    def graphs(self) -> dict[Any, Any]:
        """The graphs that it has."""


_lock = new_lock()
_holders: weakref.WeakSet[Holder] = weakref.WeakSet()
_is_on = False


def is_on() -> bool:
    """Whether calls are timed."""
    return _is_on


def register(holder: Holder) -> None:
    """Tell ``holder`` when timing is turned on or off, as long as it lives."""
    with _lock:
        _holders.add(holder)


def holders() -> list[Holder]:
    """All that are told."""
    with _lock:
        return list(_holders)


def switch(on: bool) -> None:
    """Time calls from now on, or no longer."""
    global _is_on
    with _lock:
        changed, _is_on = _is_on != on, on
    for holder in holders() if changed else ():
        holder.timing_changed()


def timed(who: str, path: Callable[..., Any], no_match: object) -> Callable[..., Any]:
    """``path``, of whose calls a sample is timed while timing is on.

    Args:
        who: the callable that the times are counted for.
        path: the fast path of a graph, or what this function has made of one.
        no_match: what it gives where it did not answer the call, which does not count.
    """
    path = getattr(path, "untimed", path)
    return timed_always(who, path, no_match) if _is_on else path


def timed_always(who: str, path: Callable[..., Any], no_match: object) -> Callable[..., Any]:
    """The same, whether timing is on or not."""
    left = 1  # the first call is timed, so that there is a number soon

    def sampled(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal left
        left -= 1
        if left > 0:  # below, where threads count at once
            return path(fn, args, kwargs)
        left = _SOON
        start = perf_counter_ns()
        result = path(fn, args, kwargs)
        took = perf_counter_ns() - start
        if result is not no_match:
            left = EVERY
            tally.time(who, took)
        return result

    sampled.untimed = path  # type: ignore[attr-defined]
    return sampled
