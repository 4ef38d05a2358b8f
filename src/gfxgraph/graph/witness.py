"""Looks at what a call of a ``no_graph`` function does to Python objects.

Such a function runs between two graphs. What it rebinds, the graph after it cannot see.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from ..record.journal import Effects, Place
from . import raw
from .executed import Executed
from .saved_state import kind_of
from .state import PythonState

__all__ = ["witness"]


def witness(fn: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[], Effects]:
    """See :data:`~gfxgraph.record.journal.Look`."""
    given = _State({**{f"argument {n}": value for n, value in enumerate(args)}, **kwargs})
    own = _state_of(fn)

    def look() -> Effects:
        changed = given.changed()
        # A method is given its object, too.
        places = [place for place in own.changed() if not _is_among(place, changed)]
        keeps = _state_of(fn).python.names()
        return Effects(
            [name for name, _, _ in changed], places, keeps, frozenset(own.python.names())
        )

    return look


class _State:
    """What ``roots`` reach: containers, and buffers with what they hold."""

    def __init__(self, roots: dict[str, object]) -> None:
        self.python = PythonState(roots, search=False)
        self._buffers = [
            (path, item, kind, kind.read(item))
            for path, item in self.python.stateful
            # Numbers that it draws are its own affair.
            if (kind := kind_of(item)) is not None and not kind.draws
        ]

    def changed(self) -> list[Place]:
        written = [
            (path, item, None)
            for path, item, kind, held in self._buffers
            if kind.read(item) != held
        ]
        return [*self.python.changed_places(), *written]


def _state_of(fn: Callable[..., Any]) -> _State:
    executed = Executed()
    function = fn.__func__ if type(fn) is types.MethodType else fn
    if type(function) is types.FunctionType:
        executed.spaces[function.__code__] = function.__globals__
        executed.packages.add(str(function.__module__).partition(".")[0])
    with executed.known():
        return _State({"a no_graph function": fn})


def _is_among(place: Place, others: list[Place]) -> bool:
    return any(
        place[1] is item and raw.token(place[2]) == raw.token(key) for _, item, key in others
    )
