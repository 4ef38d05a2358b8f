"""Which objects were there before a run began, as the garbage collector tells it."""

from __future__ import annotations

import gc
import itertools

__all__ = ["Before"]

# In place of id(), which tells the audit hooks of the process, and those run code.
_address = object.__hash__
# Python 3.12 itself freezes some hundred tuples, which are of no use to the collector.
_FROZEN_BY_PYTHON = 1000


class Before:
    """What is there when this is made. Meanwhile no collection may run.

    What the collector has not seen yet lies in its youngest generation. That is empty now, so what
    lies there later was made since. What it does not track (numbers, strings, and before Python
    3.14 dicts of nothing else) counts as new.
    """

    def __init__(self) -> None:
        self._made_since: set[int] = set()
        _age()

    def has(self, item: object) -> bool:
        """Whether ``item`` is older than this."""
        at = _address(item)
        # Whatever else comes to be at this address is new as well.
        if at in self._made_since:
            return False
        self._made_since |= _young_addresses()
        _age()
        return at not in self._made_since and gc.is_tracked(item)


def _young_addresses() -> set[int]:
    """Where the containers of the youngest generation are.

    One call to C, in which no other thread runs: a tuple that one of them is about to make must not
    be referred to from elsewhere when it goes on.
    """
    return set(map(_address, itertools.chain.from_iterable(map(gc.get_objects, (0,)))))


def _age() -> None:
    """Move everything to the oldest generation: no finalizer runs, and it takes no time.

    Without this each question goes through all that the run has made. Where the program itself has
    frozen objects they would be unfrozen, so there it is left out.
    """
    if gc.get_freeze_count() < _FROZEN_BY_PYTHON:
        gc.freeze()
        gc.unfreeze()
