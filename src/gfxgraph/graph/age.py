"""Which objects a run has made, as the garbage collector tells it."""

from __future__ import annotations

import gc
import itertools

from ..interpose.codes import address

__all__ = ["Since"]

# Python 3.12 itself freezes some hundred tuples, which are of no use to the collector.
_FROZEN_BY_PYTHON = 1000


class Since:
    """The time since this was made, in which no collection runs by itself.

    What the collector has not seen yet lies in its youngest generation. That is empty now, so what
    lies there later was made since.
    """

    def __init__(self) -> None:
        self._made: set[int] = set()
        _age()

    def made(self, item: object) -> bool:
        """Whether ``item`` was made since; of what the collector does not track, nobody knows."""
        at = address(item)
        if at not in self._made:  # whatever else comes to be there is new as well
            self.look()
        return at in self._made

    def look(self) -> None:
        """Note what was made, before a collection that is asked for."""
        self._made |= _young_addresses()
        _age()


def _young_addresses() -> set[int]:
    """Where the containers of the youngest generation are.

    One call to C, in which no other thread runs: a tuple that one of them is about to make must not
    be referred to from elsewhere when it goes on.
    """
    return set(map(address, itertools.chain.from_iterable(map(gc.get_objects, (0,)))))


def _age() -> None:
    """Move everything to the oldest generation: no finalizer runs, and it takes no time.

    Without this each question goes through all that the run has made. Where the program itself has
    frozen objects they would be unfrozen, so there it is left out.
    """
    if gc.get_freeze_count() < _FROZEN_BY_PYTHON:
        # Both are called from C, without a step of Python between them. A child that was forked
        # in between would keep these objects frozen.
        any(map(_call, (gc.freeze, gc.unfreeze)))


_call = type(gc.freeze).__call__
