"""Objects and dicts among the static arguments of a run, and what that reads of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

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
    """The objects and dicts that a run is given beside tensors.

    Attributes:
        objects: path and object, by address.
        read: what recorded runs have read of each, by path.
        as_itself: classes of objects of which runs may have asked which object they are: they were
            compared, or given to code in C.
        leaves_out: says, given :attr:`read`, whether there is anything that was not read.
        refusal: what runs have asked for that a static argument cannot answer.
        asks_attributes: whether runs have asked tensors for attributes that their class lacks.
        stores: whether a run has stored something in an argument.
        counted: names of counters, by path: the key of a call leaves them out.
        probe: what the next run finds in place of that; ``None``: what was given.
        ways: of each container of the run, by number, the way to it from the arguments.
    """

    def __init__(self) -> None:
        self.read: dict[Path, Read] = {}
        self.as_itself: list[type] = []
        self.refusal = ""
        self.asks_attributes = self.stores = False
        self.leaves_out: Callable[[Mapping[Path, Read]], bool] = lambda read: False
        self.counted: dict[Path, set[str]] = {}
        self.probe: Literal["poison", "nothing"] | None = None
        self.ways: Mapping[int, Any] = {}
        self.objects: dict[int, tuple[Path, Any]] = {}
        self._containers: set[int] = set()

    def begin(self, objects: Iterable[tuple[Path, Any]], containers: Iterable[object]) -> None:
        """A run is given these; and all containers, the lists and tuples too."""
        self._containers = set(map(address, containers))
        self.objects = {address(item): (path, item) for path, item in objects}
        for path, item in list(self.objects.values()):
            if type(item) is not dict:
                own = raw.attributes(item)
                self.objects[address(own)] = path, own

    def __contains__(self, item: object) -> bool:
        return address(item) in self.objects

    def is_container(self, item: object) -> bool:
        """Whether it is one of the containers."""
        return address(item) in self._containers

    def count(self, item: object, name: str) -> bool:
        """The value of ``item`` at ``name`` is only counted; whether keys can leave that out."""
        if item not in self:
            return False
        self.counted.setdefault(self.objects[address(item)][0], set()).add(name)
        return True

    def all_matters(self) -> None:
        """Nothing may be left out."""
        self.read = dict.fromkeys(self.read)

    def refuse(self, why: str, where: tuple[str, int]) -> None:
        """No graph can answer what the run asks for at this place."""
        file, line = where
        self.refusal = self.refusal or f"the function {why} ({file}:{line})"

    def is_whole(self, items: Iterable[object]) -> None:
        """All of these matters, if they are among the objects."""
        for item in items:
            if item in self:
                self.read[self.objects[address(item)][0]] = None

    def __bool__(self) -> bool:
        return bool(self.objects)

    def hand_out(self, item: object) -> None:
        """Nobody sees what is done with one of the objects, and with what is in there."""
        path, _ = self.objects[address(item)]
        inside = [held for at, held in self.objects.values() if at[: len(path)] == path]
        self.is_whole(inside)
        self.as_itself += [type(held) for held in inside if type(held) is not dict]

    def hand_out_all(self) -> None:
        """Something was done with an object, and nobody knows with which."""
        for _, item in self.objects.values():
            self.hand_out(item)

    def take_out(self, places: dict[Any, Place]) -> None:
        """Leave to the key of a call what was read of its arguments; no guard is to watch that."""
        found: dict[Path, set[Any]] = {path: set() for path, _ in self.objects.values()}
        for key in [key for key in places if len(key) > 1 and key[1] in self.objects]:
            path, item = self.objects[key[1]]
            if key[0] == "item" and key[2][0] is str:
                found[path].add(key[2][1])
            elif key[0] != "type":  # the key of a call knows its class
                self.is_whole([item])
            del places[key]
        for path, names in found.items():
            before = self.read.get(path, frozenset())
            more = names - self.counted.get(path, set())
            self.read[path] = None if before is None else before | more
