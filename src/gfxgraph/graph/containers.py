"""Snapshots of Python containers: find the items that were rebound since, and put them back."""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Collection, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from operator import is_
from typing import Any, Literal

from ..interpose.dynamo import is_installed
from . import raw

__all__ = ["Additions", "Container", "Slots", "item_at", "owner_of", "put_at"]

_PREFIX = f"__{__name__.partition('.')[0]}_"


@dataclass
class Container:
    """A dict, list, set, deque, closure cell, class or object with slots, and what it held.

    Attributes:
        path: how it is reached.
        item: the container.
        names: of a namespace the names that count; ``None``: all.
        counted: what it holds of a module, if torch tells of additions: a guard looks at it only
            after one.
        shrinks: things are taken out of it as well, which nobody tells of.
        guarded: whether a graph that relies on it watches it.
        unseen: whether code reads it that nobody looks at.
        lifted: tokens of keys that calls write, so that they are no part of this; see ``lift.py``.
    """

    path: str
    item: Any
    names: Collection[str] | None = None
    counted: Literal["children", "hooks"] | None = None
    shrinks: bool = False
    guarded: bool = True
    unseen: bool = False
    lifted: frozenset[Any] = frozenset()
    held: raw.Pairs = field(init=False)

    def __post_init__(self) -> None:
        self._quick: tuple[list[Any], list[Any]] | None = None
        self.held = self.read()
        self._next = raw.next_of_set(self.item)

    @property
    def owner(self) -> Any:
        """The object of the user's that it is."""
        return owner_of(self.item)

    def read(self) -> raw.Pairs:
        """Keys and values, as of now."""
        item: Any = self.item
        if type(item) is types.CellType:
            value = item_at(item, 0)
            return [] if value is raw.MISSING else [(0, value)]
        if type(item) is Slots:
            return item.read()
        if raw.is_a(item, type):
            item = raw.namespace(item)
            if self.names is None:
                return list(item.items())
        if self.names is not None:
            # Of hundreds of names most are not there.
            found = zip(self.names, map(item.get, self.names, repeat(raw.MISSING)), strict=True)
            return [pair for pair in found if pair[1] is not raw.MISSING]
        return raw.contents(item)

    def changes(self) -> list[Any]:
        """Keys whose value is another object by now, or that came or went."""
        if Ellipsis in self.lifted:
            return []
        # Most are the hooks and children that a module does not have.
        if not self.held and type(self.item) in (dict, OrderedDict) and not self.item:
            return []
        if self._is_as_it_was():
            return []
        held, now = self.held, self.read()
        # Keys of ours come and go; what stands behind one then has not moved.
        if len(held) != len(now):
            held, now = ([p for p in pairs if not self.is_ours(*p)] for pairs in (held, now))
        found = raw.differences(held, now, ordered=not raw.is_a(self.item, type))
        if not found and now and raw.next_of_set(self.item) != self._next:
            found = [now[0][0]]  # pop() gives another of the same items
        if found and raw.is_a(self.item, dict, type):
            values = {raw.token(key): value for pairs in (held, now) for key, value in pairs}
            found = [key for key in found if not self.is_ours(key, values.get(raw.token(key)))]
        if self.lifted and not self._is_rearranged(now):
            found = [key for key in found if not self.is_lifted(key)]
        return found

    def _is_as_it_was(self) -> bool:
        """Whether nothing has changed, where that is seen without making pairs of all items."""
        item, names, kind = self.item, self.names, type(self.item)
        if kind is not dict and (kind is not list or names is not None):
            return False
        if self._quick is None:
            keys, values = [key for key, _ in self.held], [value for _, value in self.held]
            if names is not None:
                known = dict(self.held)
                keys, values = list(names), [known.get(name, raw.MISSING) for name in names]
            self._quick = keys, values
        keys, values = self._quick
        # All of it in C: no other thread runs meanwhile, and no code of the program's.
        if kind is list:
            return len(item) == len(values) and all(map(is_, values, item))
        if names is not None:
            now = map(dict.get, repeat(item), keys, repeat(raw.MISSING))
            return len(names) == len(keys) and all(map(is_, values, now))
        if len(item) != len(values):
            return False
        return all(map(is_, keys, item)) and all(map(is_, values, item.values()))

    def _is_rearranged(self, now: raw.Pairs) -> bool:
        """Whether keys that are there and were there come in another order."""
        if not raw.is_a(self.item, dict) or self.names is not None:
            return False
        before, after = ([raw.token(key) for key, _ in pairs] for pairs in (self.held, now))
        both = set(before) & set(after)
        return [k for k in before if k in both] != [k for k in after if k in both]

    def is_lifted(self, key: Any) -> bool:
        """Whether calls write there, and graphs store it again."""
        return bool(self.lifted) and (Ellipsis in self.lifted or raw.token(key) in self.lifted)

    @staticmethod
    def is_ours(key: Any, value: Any = None) -> bool:
        """Whether it names what comes and goes: the graphs of a method, what ``copy`` notes, what
        torch's compiler puts among the global variables of a module."""
        if type(key) is not str:
            return False
        return key.startswith(_PREFIX) or key == "__slotnames__" or is_installed(key, value)

    @property
    def has_length(self) -> bool:
        """Whether more or fewer items could matter, and nobody tells of them."""
        is_one = raw.is_a(self.item, dict, list) and self.path != ""
        return is_one and (self.shrinks or not self.counted)

    def restore(
        self, changed: Collection[Any] | None = None, held: raw.Pairs | None = None
    ) -> None:
        """Put back what is another object by now.

        Args:
            changed: the keys at which to do so. Default: all.
            held: what a list or deque is to hold. Default: what it held.
        """
        changed = self.changes() if changed is None else changed
        if not changed:
            return
        item, now = self.item, self.read()
        if self.names is not None or raw.is_a(item, type, types.CellType, Slots):
            before = dict(self.held)
            for key in changed:
                put_at(item, key, before.get(key, raw.MISSING))
        elif raw.is_a(item, dict, set):
            raw.put_back(item, self._as_it_was(set(map(raw.token, changed)), now), now)
        else:
            raw.put_back(item, self.held if held is None else held, now)

    def _as_it_was(self, changed: set[Any], now: raw.Pairs) -> raw.Pairs:
        """Return the items for a dict or set: old ones at the keys ``changed``, else new ones."""
        after = {raw.token(key): value for key, value in now}
        held = [(raw.token(key), key, value) for key, value in self.held]
        known = changed.union(token for token, _, _ in held)
        return [
            *(
                (key, value if token in changed else after[token])
                for token, key, value in held
                if token in changed or token in after
            ),
            *(pair for pair in now if raw.token(pair[0]) not in known),
        ]

    def name(self, key: Any) -> str:
        """How the item at ``key`` is reached."""
        if type(self.item) is types.CellType:
            return self.path
        if not self.path:  # a global
            return str(key)
        if type(key) is str:
            return f"{self.path}.{key}"
        return f"{self.path}[{raw.written_as(key)}]"


@dataclass
class Additions(Container):
    """Attributes that an object, module or class does not have yet, and that code may give it.

    ``names``: those that code binds of whatever object; more may come to be known.
    """

    names: Set[str]

    def __post_init__(self) -> None:
        space = self._space()
        self._known, self._length = frozenset(space), len(space)
        super().__post_init__()

    def _space(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.item
        return raw.namespace(self.item) if raw.is_a(self.item, type) else found

    def read(self) -> raw.Pairs:
        """See :meth:`Container.read`."""
        space = self._space()
        if len(space) == self._length:
            return []
        added = (space.keys() & self.names) - self._known
        found = ((name, space[name]) for name in sorted(added))
        return [pair for pair in found if type(pair[1]) is not types.ModuleType]  # imported

    def _is_as_it_was(self) -> bool:
        """See :meth:`Container._is_as_it_was`; there are thousands of names."""
        return not self.held and len(self._space()) == self._length


class Slots:
    """The attributes of an object that its classes declare in ``__slots__``."""

    def __init__(self, item: Any, found: dict[str, Any]) -> None:
        self.item, self._found = item, found

    def read(self) -> raw.Pairs:
        """Names and values of those that are set."""
        pairs = []
        for name, slot in self._found.items():
            try:
                pairs.append((name, slot.__get__(self.item)))
            except AttributeError:  # not set yet
                continue
        return pairs

    def put_back(self, held: raw.Pairs) -> None:
        """Let the object have the attributes ``held``, and no others."""
        before, after = dict(held), dict(self.read())
        for name, slot in self._found.items():
            # One that is read-only in C may give another object each time; none can be put there.
            with suppress(AttributeError):
                if name in before and before[name] is not after.get(name, raw.MISSING):
                    slot.__set__(self.item, before[name])
                elif name in after and name not in before:
                    slot.__delete__(self.item)


def owner_of(item: Any) -> Any:
    """The object of the user's that a container is, or is the slots of."""
    return item.item if type(item) is Slots else item


def item_at(container: Any, key: Any, missing: Any = raw.MISSING) -> Any:
    """The value at ``key`` of a cell, class, dict, list or object with slots, or ``missing``.

    Here and in :func:`put_at` ``issubclass`` of what is built in asks no metaclass.
    """
    kind = type(container)
    try:
        if kind is types.CellType:
            return container.cell_contents
        if kind is Slots:
            return dict(container.read()).get(key, missing)
        if issubclass(kind, type):
            return raw.namespace(container).get(key, missing)
        if issubclass(kind, list):
            return list.__getitem__(container, key)
        return dict.get(container, key, missing)
    except (LookupError, ValueError):  # a variable that is not bound, for one
        return missing


def put_at(container: Any, key: Any, value: Any, missing: Any = raw.MISSING) -> None:
    """Let it hold ``value`` there; ``missing``: nothing. A list keeps its length."""
    kind = type(container)
    if kind is types.CellType:
        if value is missing:
            del container.cell_contents
        else:
            container.cell_contents = value
    elif kind is Slots:
        held = [(name, old) for name, old in container.read() if name != key]
        container.put_back(held if value is missing else [*held, (key, value)])
    elif issubclass(kind, type):
        # Never in the dict behind it: Python remembers what it has found in classes.
        if value is not missing:
            type.__setattr__(container, key, value)
        elif key in raw.namespace(container):
            type.__delattr__(container, key)
    elif issubclass(kind, list):
        if key < list.__len__(container):
            list.__setitem__(container, key, value)
    elif value is missing:
        if dict.__contains__(container, key):
            raw.base_of_dict(container).__delitem__(container, key)
    else:
        raw.base_of_dict(container).__setitem__(container, key, value)
