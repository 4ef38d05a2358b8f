"""Effects on arguments: a replay stores in the arguments of its call what the function would.

Each of our runs gets containers that are made for it. :class:`Held` compares what they hold before
and after the run. The difference becomes part of the result: ``("stores", None, changes, (result,
*values))``. A replay first makes the result and the values. Then it finds the same containers among
the arguments of its call, and stores the values there.
"""

from __future__ import annotations

import enum
import functools
from collections import UserDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree

from ..errors import ArgumentError
from ..graph import raw
from ..graph.containers import Slots
from ..graph.lift import Counted, Unread
from .signature import Const, Given, Spec, constants, flatten, is_value, objects_in

__all__ = [
    "Advance",
    "Change",
    "Counter",
    "Held",
    "OfCall",
    "at",
    "counts",
    "hold_numbers",
    "holds_way",
    "is_used",
    "store",
    "written_as",
]

Way: TypeAlias = tuple[tuple[str, Any], ...]
"""Steps from ``(args, kwargs)`` to something: ``("[]", position)``, ``("{}", key)``, and ``(".",
None)`` for the dict of the attributes of an object."""

Change: TypeAlias = tuple[Way, int | None, tuple[Any, ...], tuple[Any, ...]]
"""The way to a container; of a list or a deque how many items stay, else ``None``; the keys to
remove; the keys, or the positions, that get values."""

_Seen: TypeAlias = tuple[Any, Any]
"""Addresses to compare, and the objects themselves: while they live, no other gets an address."""

_CONTAINERS = (dict, list, deque)


class Same(enum.Enum):
    """The value that was there before: its key is removed and comes again, so it is the last."""

    SAME = "same"


class Advance:
    """Stands for a number that is added to the one that is there."""

    def __init__(self, by: int) -> None:
        self.by = by


_advance = functools.lru_cache(maxsize=None)(Advance)

Counter: TypeAlias = tuple[Way, str]
"""The way to a container, and the key of a counter there: calls only add numbers to it."""


class OfCall(tuple[torch.Tensor, ...]):
    """The tensors of a call, together with its arguments.

    Attributes:
        arguments: positional and keyword arguments.
    """

    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, leaves: Sequence[torch.Tensor], arguments: tuple[Any, ...]) -> OfCall:
        """Those of a call with such arguments."""
        made = cls(leaves)
        made.arguments = arguments
        return made


class Held:
    """The containers among the arguments of a call, and what they hold before it runs.

    Args:
        args: the positional arguments.
        kwargs: the keyword arguments.
        spec: of both. What is compared by identity is not looked into.
        start: how many of the arguments are state, and not looked at either. Default: none.

    Attributes:
        found: by number, what tensors of the call held before it, if it has written to one of its
            tensors and has changed a container: our runs come after it, and find containers made
            as they were before it.
        ways: of each container, and of each object that is compared by identity, its number and
            the way to it.
    """

    def __init__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], spec: Spec, start: int = 0
    ) -> None:
        self.ways: dict[int, Way] = {}
        self.found: dict[int, torch.Tensor] = {}
        self._fixed = set(map(id, objects_in(spec)))
        self._alive: list[Any] = []  # or others would get their numbers
        self._containers: list[tuple[Way, Any, raw.Pairs]] = []
        #: What a replay could not store: how to read it, and what it was before the run.
        self._closed: list[tuple[Callable[[], _Seen], _Seen]] = []
        todo: list[tuple[Way, Any]] = []
        parts: list[tuple[Way, Any]] = [((("[]", 0),), args), ((("[]", 1),), kwargs)]
        if start:  # ``(entry, args, kwargs)``, as a lifted function is called
            parts = [((("[]", 0), ("[]", n)), args[n]) for n in range(start, len(args))]
        for way, part in parts:  # the function gets others of these
            pairs = enumerate(part) if type(part) is tuple else part.items()
            kind = "[]" if type(part) is tuple else "{}"
            todo += [((*way, (kind, key)), item) for key, item in pairs]
        for way, item in todo:  # which grows meanwhile
            todo += self._inside(way, item)

    def _inside(self, way: Way, item: Any) -> Iterator[tuple[Way, Any]]:
        if raw.is_a(item, Unread, torch.Tensor) or is_value(item) or id(item) in self.ways:
            return
        if type(item) is tuple and not item:  # the same one everywhere
            return
        self.ways[id(item)] = way
        self._alive.append(item)
        if id(item) in self._fixed:
            return
        if raw.is_a(item, UserDict):
            data = item.__dict__
            self._containers.append(((*way, (".", None)), data, raw.contents(data)))
            yield (*way, (".", None), ("{}", "data")), data["data"]
            return
        if raw.is_a(item, tuple):
            for n, value in enumerate(tuple.__iter__(item)):
                yield (*way, ("[]", n)), value
        elif raw.is_a(item, *_CONTAINERS):
            pairs = raw.contents(item)
            self._containers.append((way, item, pairs))
            kind = "{}" if raw.is_a(item, dict) else "[]"
            for key, value in pairs:
                yield (*way, (kind, key)), value
        is_open = raw.is_a(item, tuple, *_CONTAINERS)
        is_closed = type(item) in _pytree.SUPPORTED_NODES and not is_open
        if is_closed:
            self._watch(functools.partial(_taken_apart, item))
        elif raw.slots(item):
            self._watch(functools.partial(_in_slots, item))
        own = None if is_closed else raw.attributes(item)
        if own is not None:
            self._watch(functools.partial(_class_and_attributes, item))
            yield (*way, (".", None)), own

    def _watch(self, read: Callable[[], _Seen]) -> None:
        """Refuse a run that changes what ``read`` gives, since no replay could store it."""
        self._closed.append((read, read()))

    def numbers(self) -> dict[Counter, Any]:
        """The integers in dicts that a run has changed: the place of each, and its dict."""
        return {
            (way, key): item
            for way, item, before in self._containers
            if raw.is_a(item, dict)
            for key, old in before
            if type(key) is str and type(old) is int
            for new in [dict.get(item, key)]
            if type(new) is int and new != old
        }

    def changes(self, counters: Collection[Counter] = ()) -> list[tuple[Change, list[Any]]]:
        """What a run has changed in the containers, and the values that it has left there.

        The change of one of ``counters`` is the number to add. Default: none is a counter.

        Raises:
            ArgumentError: it cannot be stored again.
        """
        if any(read()[0] != before[0] for read, before in self._closed):
            raise ArgumentError(
                "it has __slots__, or is of a class that torch.utils._pytree knows, or gets "
                "another class or another __dict__"
            )
        found = []
        for way, item, before in self._containers:
            now = raw.contents(item)
            if not raw.differences(before, now):
                continue
            of = _change_of_dict if raw.is_a(item, dict) else _change_of_sequence
            if counters:
                now = [
                    (key, _counted(way, key, dict(before), value, counters)) for key, value in now
                ]
            change, values = of(way, before, now)
            if change[1:] != (None, (), ()):
                found.append((change, values))
        return found

    def count(self, counters: Collection[Counter]) -> list[tuple[Counter, Any, Counted]]:
        """Let an object that can do nothing but count stand for counters, before a run of ours.

        Returns:
            Each place, its container and that object.
        """
        placed: list[tuple[Counter, Any, Counted]] = []
        for n, (way, item, before) in enumerate(self._containers):
            names = [key for key, old in before if (way, key) in counters and type(old) is int]
            for name in names:
                stands_in = Counted()
                dict.__setitem__(item, name, stands_in)
                placed.append(((way, name), item, stands_in))
            if names:
                self._containers[n] = way, item, raw.contents(item)
        return placed

    def has_changed(self) -> bool:
        """Whether a run has changed anything."""
        try:
            return bool(self.changes())
        except ArgumentError:
            return True


def _counted(
    way: Way, key: Any, before: dict[Any, Any], value: Any, counters: Collection[Counter]
) -> Any:
    """A value that a run has left, or by how much it has advanced a counter."""
    old = before.get(key)
    if value is old or (way, key) not in counters:
        return value
    if type(value) is Counted:
        return _advance(value.by) if value.by else old
    return _advance(value - old) if type(value) is type(old) is int else value


def is_used(place: Counter, item: Any, stands_in: Counted) -> bool:
    """Whether a run has used a counter for more than counting."""
    now = dict.get(item, place[1])
    return stands_in.was_used or type(now) is not Counted or now.start is not stands_in


def counts(changes: Sequence[Change], specs: Sequence[Spec]) -> list[Counter]:
    """The counters that these changes advance."""
    keys = [(way, key) for way, _, _, keys in changes for key in keys]
    return [
        place
        for place, spec in zip(keys, specs, strict=False)
        if spec[0] == "const" and type(spec[1].value) is Advance
    ]


def hold_numbers(arguments: Any, counters: Sequence[Counter]) -> bool:
    """Whether a replay can advance the counters of a call."""
    return all(type(dict.get(at(arguments, way), key)) is int for way, key in counters)


def _in_slots(item: Any) -> _Seen:
    found = Slots(item, raw.slots(item)).read()
    return [(name, id(value)) for name, value in found], found


def _taken_apart(item: Any) -> _Seen:
    leaves, spec = flatten(item)
    return (list(map(id, leaves)), spec), leaves


def _class_and_attributes(item: Any) -> _Seen:
    held = type(item), raw.attributes(item)
    return list(map(id, held)), held


def _change_of_sequence(way: Way, before: raw.Pairs, now: raw.Pairs) -> tuple[Change, list[Any]]:
    kept = 0
    for (_, old), (_, new) in zip(before, now, strict=False):
        if old is not new:
            break
        kept += 1
    values = [value for _, value in now[kept:]]
    return (way, kept, (), tuple(range(kept, len(now)))), values


def _change_of_dict(way: Way, before: raw.Pairs, now: raw.Pairs) -> tuple[Change, list[Any]]:
    for key, _ in (*before, *now):
        if not (raw.is_scalar(key) or isinstance(key, enum.Enum)):
            raise ArgumentError("a dict with keys other than strings, integers and enums")
    old = {raw.token(key): value for key, value in before}
    # A dict only gets keys at its end: the first ones, in the order of before, were never removed.
    names, kept = iter(old), 0
    for key, _ in now:
        if raw.token(key) not in names:  # which goes on behind the one that was found last
            break
        kept += 1
    stay = {raw.token(key) for key, _ in now[:kept]}
    removed = tuple(key for key, _ in before if raw.token(key) not in stay)
    keys, values = [], []
    for n, (key, value) in enumerate(now):
        name = raw.token(key)
        is_same = name in old and (
            old[name] is value or (raw.is_scalar(value) and Const(old[name]) == Const(value))
        )
        if n < kept and is_same:
            continue
        keys.append(key)
        values.append(Same.SAME if is_same else value)
    return (way, None, removed, tuple(keys)), values


def at(arguments: Any, way: Way) -> Any:
    """Follow a way from the arguments, and return the object at its end."""
    item = arguments
    for kind, key in way:
        if kind == ".":
            item = raw.attributes(item)
        elif kind == "{}":
            item = dict.__getitem__(item, key)
        elif raw.is_a(item, tuple):
            item = tuple.__getitem__(item, key)
        else:
            item = (list if raw.is_a(item, list) else deque).__getitem__(item, key)
    return item


def store(
    arguments: Any, changes: Sequence[Change], result: Any, found: tuple[Any, ...], *effects: Any
) -> Any:
    """Store ``found`` in the containers of a call; gives its result.

    ``effects`` are those of a lifted function, whose result they belong to.
    """
    values = iter(found)
    for item, change in [(at(arguments, change[0]), change) for change in changes]:
        _, kept, removed, keys = change
        if kept is not None:
            _store_behind(item, kept, [next(values) for _ in keys])
            continue
        base = raw.base_of_dict(item)
        before = dict(raw.contents(item))
        for key in removed:
            if dict.__contains__(item, key):
                base.__delitem__(item, key)
        for key in keys:
            value = next(values)
            if type(value) is Advance:
                value = before[key] + value.by
            base.__setitem__(item, key, before[key] if value is Same.SAME else value)
    return (result, *effects) if effects else result


def _store_behind(item: Any, kept: int, values: list[Any]) -> None:
    if raw.is_a(item, list):
        list.__setitem__(item, slice(kept, None), values)
        return
    while len(item) > kept:
        deque.pop(item)
    deque.extend(item, values)


def written_as(change: Change, is_lifted: bool) -> list[str]:
    """The places of a change: ``argument 0.h``, ``argument out["logits"]``."""
    way, kept, removed, keys = change
    (_, first), *steps = way[2 if is_lifted else 1 :]
    text = f"argument {first}" + "".join(
        _step(step, before) for step, before in zip(steps, [None, *steps], strict=False)
    )
    if kept is not None:
        return [text]
    names = dict.fromkeys([("{}", key) for key in (*removed, *keys)])
    return [text + _step(name, way[-1]) for name in names]


def _step(step: tuple[str, Any], before: tuple[str, Any] | None) -> str:
    kind, key = step
    if kind == ".":
        return ""
    return f".{key}" if before == (".", None) else f"[{raw.written_as(key)}]"


def holds_way(spec: Spec) -> bool:
    """Whether a tree holds a container of the call."""
    return any(
        isinstance(const.value, Given) and type(const.value.where) is tuple
        for const in constants(spec)
    )
