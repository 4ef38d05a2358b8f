"""Which objects a run has made, as the garbage collector tells it."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Collection

from ..interpose.codes import address

__all__ = ["Since", "collect_what_is_due", "grow_old"]

# Python 3.12 itself freezes some hundred tuples, which are of no use to the collector.
_FROZEN_BY_PYTHON = 1000

# How many objects were aged since the last full collection, and how many full ones there were then.
_aged, _collections = 0, 0
# When to count all objects again, and how many there were before anything was aged.
_FIRST_LIMIT = 100_000
_limit, _others = _FIRST_LIMIT, 0


def collect_what_is_due() -> None:
    """Collect garbage once there are twice as many objects as before we began to age some.

    Python runs a full collection once enough objects have grown old by themselves. Those that we
    have aged it does not count, so their cycles would stay, and the tensors in them.
    """
    global _aged, _collections, _limit, _others
    collections = gc.get_stats()[-1]["collections"]
    if collections != _collections:
        _aged, _collections, _limit, _others = 0, collections, _FIRST_LIMIT, 0
    if _aged <= _limit or not gc.isenabled():
        return
    count = len(gc.get_objects())
    # Most of those that were aged may be gone by now, as what is not in cycles is.
    _others = _others or max(count - _aged, count // 2)
    if count > 2 * _others:
        gc.collect()
    else:
        _limit = _aged + max(2 * _others - count, count // 10)


def grow_old() -> None:
    """Leave nothing that we have made to the next collection, which would go through all of it.

    Of what is in use, as a graph and its guard are, it would find nothing to free. The caller holds
    :data:`~gfxgraph.graph.locks.CAPTURING`: a run that is recorded asks what was made since.
    """
    if gc.get_freeze_count() < _FROZEN_BY_PYTHON:  # nothing that the program has frozen
        _age()


class Since:
    """The time since this was made, in which no collection runs by itself.

    What the collector has not seen yet lies in its youngest generation. That is empty now, so what
    lies there later was made since.

    What the program has frozen is with the rest of its objects until :meth:`end`.

    Args:
        older: where objects are of which it is known that they were there, and that stay alive: to
            ask the collector takes longer. Up to Python 3.13 it leaves out dicts of plain values,
            and takes one for new once something else is stored in it.
    """

    def __init__(self, older: Collection[int] = ()) -> None:
        self._made: set[int] = set()
        self._older = older
        self._was_frozen = gc.get_freeze_count() >= _FROZEN_BY_PYTHON
        _age()

    def end(self) -> None:
        """Freeze again what the program had frozen, but no garbage: it would stay for ever."""
        if self._was_frozen:
            gc.collect()
            gc.freeze()

    def made(self, item: object) -> bool:
        """Whether ``item`` was made since; of what the collector does not track, nobody knows."""
        at = address(item)
        if at in self._older:
            return False
        if at not in self._made:  # whatever else comes to be there is new as well
            self.look()
        return at in self._made

    def look(self) -> None:
        """Note what was made, before a collection that is asked for."""
        # One call to C, in which no other thread runs: a tuple that one of them is about to make
        # must not be referred to from elsewhere when it goes on.
        self._made.update(map(address, itertools.chain.from_iterable(map(gc.get_objects, (0,)))))
        _age()


def _age() -> None:
    """Move everything to the oldest generation: no finalizer runs, and it takes no time.

    Without this each question goes through all that the run has made.
    """
    global _aged
    _aged += gc.get_count()[0]  # freezing sets it to zero
    # Both are called from C, without a step of Python between them. A child that was forked in
    # between would keep these objects frozen.
    any(map(_call, (gc.freeze, gc.unfreeze)))


_call = type(gc.freeze).__call__
