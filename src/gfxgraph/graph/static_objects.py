"""Objects and dicts among the static arguments of a run, and what that reads of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from ..interpose.codes import address
from . import raw
from .places import Place

__all__ = ["Path", "Read", "StaticObjects"]

Path: TypeAlias = tuple[int, ...]
"""The numbers of the children that lead to an object in a tree of arguments."""

Read: TypeAlias = frozenset[Any] | None
"""Names of which a run has asked whether something is there, and what; ``None``: it may have asked
for anything."""


class StaticObjects:
    """What a run is given beside tensors.

    Attributes:
        read: what recorded runs have read of each, by path.
        as_itself: classes of objects of which runs may have asked which object they are: they were
            compared, or given to code in C.
    """

    def __init__(self) -> None:
        self.read: dict[Path, Read] = {}
        self.as_itself: list[type] = []
        self._objects: dict[int, tuple[Path, Any]] = {}

    def begin(self, objects: Iterable[tuple[Path, Any]]) -> None:
        """A run is given these."""
        self._objects = {address(item): (path, item) for path, item in objects}

    def __contains__(self, item: object) -> bool:
        return address(item) in self._objects

    def is_whole(self, items: Iterable[object]) -> None:
        """All of these matters, if they are among the objects."""
        for item in items:
            if item in self:
                self.read[self._objects[address(item)][0]] = None

    def __bool__(self) -> bool:
        return bool(self._objects)

    def hand_out(self, item: object) -> None:
        """Nobody sees what is done with one of the objects, and with what is in there."""
        path, _ = self._objects[address(item)]
        self.is_whole(held for at, held in self._objects.values() if at[: len(path)] == path)
        if type(item) is not dict:
            self.as_itself.append(type(item))

    def hand_out_all(self) -> None:
        """Something was done with an object, and nobody knows with which."""
        for _, item in self._objects.values():
            self.hand_out(item)

    def take_out(self, places: dict[Any, Place]) -> None:
        """Leave to the key of a call what was read of its arguments; no guard is to watch that."""
        found: dict[int, set[Any]] = {}
        spaces: dict[int, int] = {}
        for at, (_, item) in self._objects.items():
            own = item if type(item) is dict else raw.attributes(item)
            spaces[address(own)] = spaces[at] = at
            found[at] = set()
        for key in [key for key in places if len(key) > 1 and key[1] in spaces]:
            at = spaces[key[1]]
            if key[0] == "item" and key[2][0] is str:
                found[at].add(key[2][1])
            elif key[0] != "type":  # the key of a call knows its class
                self.is_whole([self._objects[at][1]])
            del places[key]
        for at, names in found.items():
            path = self._objects[at][0]
            before = self.read.get(path, frozenset())
            self.read[path] = None if before is None else before | names
