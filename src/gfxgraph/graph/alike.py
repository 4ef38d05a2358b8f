"""Frames that run as others did, with other objects of the same kind.

The layers of a model run the same code, each with modules of its own. So what one of them has read
is asked of the next one when it begins (:mod:`~gfxgraph.graph.repeats`): each attribute, item and
length, in the same order. As long as the answers are alike it has to take the same way, so that it
reads what was asked and nothing else, and its instructions need not be looked at.

*Alike* are equal numbers and strings, one and the same function, class or module, and two objects
of one class in the same role: what stands for one in the first frame stands for the other in the
second one, and never for a third. Whatever else an answer is, the frame is looked at itself.
"""

from __future__ import annotations

import functools
import gc
import itertools
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from ..interpose.codes import address
from . import raw
from .imports import Imports
from .lookups import CHANGING, Empty, Way, parts_of
from .places import Content, Item, Length, Live, Parts, Referent, TypeOf, equal
from .repeats import LIKE_OTHERS, Key, Plain, Seen, look_of

__all__ = ["Alike"]


class Alike(Imports):
    """Lookups that can be asked of other objects as well."""

    def _is_alike(self, key: Key) -> bool:
        """Whether a frame that begins can only do what an earlier frame of its code has done.

        All that the earlier frame has read is asked of the objects of this one.
        """

        def asked(seen: Seen) -> bool:
            if not self._is_explained(seen):
                return False
            pairs, read = _Pairs(self), len(self._repeats.read)
            # A mode that is on must not be asked for the shape of a tensor.
            with torch._C.DisableTorchFunction():
                is_alike = all(map(pairs.are_alike, seen.objects, key.objects))
                is_alike = is_alike and all(map(pairs.answers, seen.places()))
            self._asking_for = None
            if not is_alike:
                del self._repeats.read[read:]  # we have asked that, and not the frame
            else:
                self.stores.meet_whole(key.objects)
            return is_alike

        return self._repeats.is_alike(key, asked)

    def _is_explained(self, seen: Seen) -> bool:
        """Whether it was seen how the frame has got each object of which it has read something.

        It was given it, or read it somewhere; or it is the same for all frames that run this code.
        """
        if seen.is_explained is None:
            reached = set(self._common)
            for item in (*seen.objects, *seen.same):
                _reach(item, reached)
            seen.is_explained = all(_explains(place, reached) for place in seen.places())
        return seen.is_explained

    def is_state_of_its_own(self, item: Any) -> bool:
        """Whether ``item`` was there before the run, and is no argument of the call."""
        return address(item) in self._known and not self.is_given(item)

    def plain(self, item: Any) -> Plain | None:
        """What ``item`` holds, if that can be told."""
        return self._repeats.plain(item, type(item), self)

    def is_for_all(self, item: Any) -> bool:
        """Whether all frames that run the same code find ``item`` itself."""
        return address(item) in self._common

    def path_of(self, item: Any) -> str:
        """How ``item`` is reached."""
        return self._path(item)

    def note(self, place: Any) -> None:
        """A place is read that was read before."""
        self._repeats.read.append(place)

    # Ask what another frame has asked.

    def ask_attribute(self, item: Any, name: str) -> Any:
        """The value of an attribute."""
        return self._attribute(item, name)

    def ask_hooks(self, own: Any, place: Empty, path: str) -> bool:
        """Whether a module has no hooks."""
        names = [name for name, _ in place.hooks]
        return [name for name, _ in self._hooks(own, names, path).hooks] == names

    def ask_item(self, container: Any, place: Item, path: str) -> Any:
        """The item of a container."""
        self._asking_for = place.where
        return self._read(container, place.key, path)

    def ask_content(self, item: Any, place: Content, path: str) -> Content:
        """All that a container holds."""
        self._asking_for = place.where
        self._content_of(item, path)
        found = self.places["content", address(item)]
        assert isinstance(found, Content)
        return found

    def ask_length(self, item: Any, place: Length, path: str) -> bool:
        """Whether a container holds as much."""
        self._asking_for = place.where
        found = self._place(("length", address(item)), lambda: Length(path, item))
        return isinstance(found, Length) and found.is_as_long_as(place)

    def ask_parts(self, function: Any) -> None:
        """What a function was made with."""
        self._place_of_parts(function)

    def ask_type(self, item: Any, place: TypeOf, path: str) -> bool:
        """The class of an object, which is that of the other one."""
        self._asking_for = place.where
        self._place(("type", address(item)), lambda: TypeOf(path, item))
        return True


def _explains(place: Any, reached: set[int]) -> bool:
    """Whether the object of a place was reached; what the place holds is reached from now on."""
    if isinstance(place, Way):
        if address(place.item) not in reached:
            return False
        _reach(place.value, reached)
    elif isinstance(place, Empty):
        return address(place.own) in reached
    elif isinstance(place, Item):
        if address(place.container) not in reached and not raw.is_a(place.container, type):
            return False
        _reach(place.value, reached)
    elif isinstance(place, Content):
        if address(place.container.item) not in reached:
            return False
        for _, value in place.held:
            _reach(value, reached)
    elif isinstance(place, Length):
        return address(place.owner) in reached or raw.is_a(place.owner, type)
    elif len(place.identity) > 1 and place.identity[0] not in ("parts", "bases", "tensor"):
        at = place.identity[1]
        return type(at) is not int or at in reached
    return True


def _reach(item: Any, reached: set[int]) -> None:
    reached.add(address(item))
    kind = type(item)
    if kind is tuple:
        for part in item:
            _reach(part, reached)
    elif kind is types.MethodType:
        reached.add(address(item.__self__))
        _reach(item.__func__, reached)
    elif kind is functools.partial:
        for part in _parts_of(item):
            _reach(part, reached)
    elif kind is types.FunctionType:
        # Its code, defaults, annotations and attributes: no other function has its role.
        reached.update(map(address, gc.get_referents(item)))
    elif raw.is_mutable(kind) or kind is types.ModuleType:
        reached.add(address(raw.attributes(item)))


# Asked of an object that has to be itself in both frames.
_ITSELF: Any = object()


class _Pairs:
    """Which object of a frame has the role of which one of another frame."""

    def __init__(self, asks: Alike) -> None:
        self._asks = asks
        self._other: dict[int, Any] = {}
        self._taken: set[int] = set()
        self._names: dict[int, tuple[str, str]] = {}

    def are_alike(self, one: Any, other: Any) -> bool:
        """Whether the second frame would do the same with ``other`` as the first with ``one``."""
        if raw.is_scalar(one):
            return equal(other, one)
        known = self._other.get(address(one))
        if known is not None:
            return one is other if known is _ITSELF else known is other
        if one is other:
            return self._stays(one)
        kind = type(one)
        if type(other) is not kind:
            return False
        if kind is torch.device or kind is torch.Size:
            return bool(one == other)
        if kind is types.MethodType:
            return one.__func__ is other.__func__ and self.are_alike(one.__self__, other.__self__)
        if kind is tuple:
            return len(one) == len(other) and all(map(self.are_alike, one, other))
        if kind is functools.partial:
            return self._are_partials(one, other)
        return self._are_a_pair(one, other, kind)

    def _are_partials(self, one: Any, other: Any) -> bool:
        (*parts, keywords), (*others, its_keywords) = _parts_of(one), _parts_of(other)
        if list(keywords) != list(its_keywords):
            return False
        parts += keywords.values()
        others += its_keywords.values()
        if not all(map(self.are_alike, parts, others)):
            return False
        return self._take(keywords, its_keywords, one, other) and self._take(one, other)

    def _are_a_pair(self, one: Any, other: Any, kind: type) -> bool:
        asks = self._asks
        if address(other) in self._taken or not asks.is_state_of_its_own(other):
            return False
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            look = look_of(one)
            if look is None or look != look_of(other):
                return False
        elif kind not in LIKE_OTHERS and asks.plain(one) is None:
            return False
        own = raw.attributes(one)
        if own is not None and not self._take(own, raw.attributes(other), one, other):
            return False
        return self._take(one, other)

    def _take(self, one: Any, other: Any, owner: Any = None, its_owner: Any = None) -> bool:
        if address(one) in self._other or address(other) in self._taken:
            return False
        # What each frame finds under a name may be compared with what it is given.
        if self._asks.is_for_all(one) or self._asks.is_for_all(other):
            return False
        self._other[address(one)] = other
        self._taken.add(address(other))
        named, other_named = (one, other) if owner is None else (owner, its_owner)
        self._names[address(one)] = self._asks.path_of(named), self._asks.path_of(other_named)
        return True

    def _path(self, place: Any, of: Any) -> str:
        return self._renamed(str(place.path), address(of))

    def _renamed(self, path: str, of: int) -> str:
        before, now = self._names.get(of, ("", ""))
        return now + path[len(before) :] if before and path.startswith(before) else path

    def _of(self, item: Any) -> Any:
        """What stands for ``item`` in the other frame; :data:`_ITSELF`: it does."""
        other = self._other.setdefault(address(item), _ITSELF)
        return _ITSELF if other is item else other

    def answers(self, place: Any) -> bool:
        """Ask what was asked of one object of the other one; whether the answers are alike."""
        asks = self._asks
        if isinstance(place, Way):
            item = self._of(place.item)
            if item is not _ITSELF:
                return self.are_alike(place.value, asks.ask_attribute(item, place.name))
        elif isinstance(place, Empty):
            own = self._of(place.own)
            if own is not _ITSELF:
                return asks.ask_hooks(own, place, self._names[address(place.own)][1])
        elif isinstance(place, Item):
            container = self._of(place.container)
            if container is not _ITSELF:
                path = self._path(place, place.container)
                return self._is_answer(place, asks.ask_item(container, place, path))
        elif isinstance(place, Content):
            item = self._of(place.container.item)
            if item is not _ITSELF:
                path = self._path(place, place.container.item)
                return self._are_items(place, asks.ask_content(item, place, path))
        elif isinstance(place, Length):
            item = self._of(place.container)
            if item is not _ITSELF:
                path = self._path(place, place.container)
                return place.container is place.owner and asks.ask_length(item, place, path)
        elif isinstance(place, TypeOf):
            item = self._other.get(place.identity[1], _ITSELF)
            if item is not _ITSELF and address(item) != place.identity[1]:
                one = place.identity[1]
                return asks.ask_type(item, place, self._renamed(place.path, one))
        elif isinstance(place, Parts):
            function = self._other.setdefault(place.identity[1], _ITSELF)
            if function is not _ITSELF and address(function) != place.identity[1]:
                asks.ask_parts(function)
                return True
        elif place.identity[0] == "setting":  # what it is now is part of the key of the frame
            asks.note(place)
            return True
        elif len(place.identity) > 1 and place.identity[0] != "tensor":
            at = place.identity[1]
            other = self._other.setdefault(at, _ITSELF)
            if other is not _ITSELF and address(other) != at:
                return False
        if not place.holds() or not all(map(self._stays, _held_by(place))):
            return False
        asks.note(place)
        return True

    def _stays(self, item: Any) -> bool:
        """Whether both frames find ``item`` itself, and it has no other role in any of them."""
        if raw.is_scalar(item):
            return True
        known = self._other.get(address(item))
        if known is not None:
            return known is _ITSELF or known is item
        if address(item) in self._taken:
            return False
        self._other[address(item)] = item
        self._taken.add(address(item))
        return all(map(self._stays, parts_of(item)))

    def _is_answer(self, place: Item, value: Any) -> bool:
        is_alike = self.are_alike(place.value, value)
        if is_alike and type(value) is dict and value is not place.value:
            # Its items are named as those of the module whose registry it is.
            self._names[address(place.value)] = self._names[address(place.container)]
        return is_alike

    def _are_items(self, place: Content, now: Content) -> bool:
        if raw.is_a(place.container.item, set) or len(place.held) != len(now.held):
            return False
        return all(
            raw.token(key) == raw.token(other_key) and self.are_alike(value, other)
            for (key, value), (other_key, other) in zip(place.held, now.held, strict=True)
        )


def _held_by(place: Any) -> Iterator[Any]:
    """What a frame has found at a place, and what C code may have compared with that."""
    if isinstance(place, Content):
        for item in itertools.chain.from_iterable(place.held):
            yield item
            if raw.is_a(item, *CHANGING) and item is not place.container.item:
                yield from itertools.chain.from_iterable(raw.contents(item))
            elif raw.is_a(item, weakref.ref):
                yield weakref.ref.__call__(item)
    elif isinstance(place, Referent):
        yield place.read()
    elif isinstance(place, (Way, Item, Live)):
        yield place.value


def _parts_of(partial: Any) -> list[Any]:
    """The function of a ``functools.partial``, its arguments and its keywords."""
    own = raw.namespace(functools.partial)
    return [own[part].__get__(partial) for part in ("func", "args", "keywords")]
