"""State in Python that a call writes: made an argument and a result, so that a graph can hold it.

``self.state = cell(x, self.state)`` would stay what it was at the capture. So the function is
captured as ``run(entry, args) -> (result, effects)``: ``entry`` is what the places hold that it
reads before it writes to them, ``effects`` what they hold afterwards. Each replay takes the one
from the places and stores the other there.
"""

from __future__ import annotations

import enum
import functools
import re
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import CaptureError
from ..interpose.codes import address
from . import raw
from .containers import Container, Slots, item_at, owner_of, put_at
from .locks import is_only_thread
from .places import Bind, Content, Item, Place, equal

__all__ = [
    "Counted",
    "EffectsError",
    "Left",
    "Lift",
    "Lifting",
    "Slot",
    "Unread",
    "lift_among",
    "owner_name",
    "slots_of",
]

# In place of keys: the container as a whole.
_ALL: frozenset[Any] = frozenset({Ellipsis})


class Left(enum.Enum):
    """Stands for the value of a place that has none to store.

    Attributes:
        ABSENT: the place is empty.
        AS_IT_WAS: the run has not written to it.
    """

    ABSENT = "absent"
    AS_IT_WAS = "as it was"

    def __repr__(self) -> str:
        """In the keys of graphs."""
        return f"<{self.value}>"


class Slot:
    """A place that a call writes: an item of a dict, class, cell or object, or all of a container.

    Attributes:
        path: how it is reached, for messages.
        is_read: whether a call reads it before it writes to it.
        is_counter: whether a call only adds a fixed number to it.
        counts: whether the code shows that, so that no object has to stand there to see it.
        value_before: what it held before the run in which it was found.
    """

    def __init__(self, path: str, container: Container, key: Any, is_whole: bool) -> None:
        item = container.item
        self.path = path
        self.is_read = self.is_counter = self.counts = False
        self.is_whole = is_whole
        self.container = item
        self.key: Any = None if is_whole else key
        #: ``get`` returns the current value, ``put`` stores another one.
        self.get: Callable[[], Any] = functools.partial(item_at, item, key, Left.ABSENT)
        self.put: Callable[[Any], None] = functools.partial(put_at, item, key, missing=Left.ABSENT)
        self.value_before: Any = Left.ABSENT
        if is_whole:
            self.get = functools.partial(_all_of, item)
            self.put = functools.partial(_put_all, item)
        else:
            held = {raw.token(k): value for k, value in container.held}
            self.value_before = held.get(raw.token(key), Left.ABSENT)

    @property
    def owner(self) -> int:
        """The number of the object by which places know the container."""
        return address(owner_of(self.container))

    @property
    def argument(self) -> int | None:
        """The number of the argument whose place it is, among those compared by identity."""
        found = re.match(r"argument (\d+)", self.path)
        return None if found is None else int(found[1])

    @property
    def identity(self) -> Any:
        """Identifies the slot: equal for two slots of one place."""
        if self.is_whole:
            return ("whole", self.owner)
        kind = "slot" if type(self.container) is Slots else "item"
        name = self.key if kind == "slot" else raw.token(self.key)
        return (kind, self.owner, name)

    @property
    def known_as(self) -> int:
        """How much of what calls do with it is known: they write, they count, they read."""
        return 2 * self.is_read - self.is_counter

    def covers(self, place: Place) -> bool:
        """Whether ``place`` is this one, or a part of it."""
        if self.is_whole:
            owner = self.owner
            return place.identity[:2] in [(k, owner) for k in ("item", "content", "length")]
        return bool(place.identity == self.identity)

    def is_in(self, place: Place) -> bool:
        """Whether ``place`` is all that the container holds."""
        return isinstance(place, Content) and address(place.container.item) == self.owner


def _all_of(item: Any) -> list[Any]:
    """All that a container holds, but for what is ours."""
    held = raw.contents(item)
    if raw.is_a(item, dict):
        return [pair for pair in held if not Container.is_ours(*pair)]
    return [value for _, value in held]


def _put_all(item: Any, value: list[Any]) -> None:
    """Let a container hold what :func:`_all_of` gave, in place of that."""
    now = raw.contents(item)
    if raw.is_a(item, dict):
        held = [*value, *(pair for pair in now if Container.is_ours(*pair))]
    else:
        held = list(enumerate(value))
    raw.put_back(item, held, now)


class EffectsError(CaptureError):
    """A call writes to places in Python. The function may be lifted over these.

    Attributes:
        slots: the places, and whether each is read before it is written to; none: it cannot be.
    """

    def __init__(
        self, message: str, slots: Iterable[Slot] = (), *, transient: bool = False
    ) -> None:
        super().__init__(message, transient=transient)
        self.slots = list(slots)


class _Used(AttributeError, TypeError):
    """A use of what stands for a value.

    C code that asks for an attribute, as torch does for ``__torch_function__``, takes an
    AttributeError for "it has none". From Python 3.13 on it prints any other error.
    """


class Unread:
    """Stands where a call is not expected to read: every use raises, and is noted.

    Attributes:
        was_used: whether somebody has used it.
    """

    was_used = False

    def _use(self, *args: Any, **kwargs: Any) -> Any:
        self.__dict__["was_used"] = True
        raise _Used("gfxgraph: a place was read that no call has read so far")

    def __getattr__(self, name: str) -> Any:
        return self._use()

    # isinstance() asks for it, unseen where code in C calls that.
    __class__ = property(lambda self: self._use())


class Counted(Unread):
    """Stands for a counter: knows how to be advanced, and raises in every other use.

    Args:
        by: by how much it was advanced.
        start: the one that it was advanced from. Default: it begins here.
    """

    def __init__(self, by: int = 0, start: Counted | None = None) -> None:
        self.__dict__.update(by=by, start=self if start is None else start)

    # Who stores it may ask: a module asks whether it is a parameter.
    __class__ = property(type)

    def _use(self, *args: Any, **kwargs: Any) -> Any:
        self.start.__dict__["was_used"] = True
        raise _Used("gfxgraph: the counter is used for more than counting")

    def use(self) -> None:
        """Somebody asks what it is."""
        self.start.__dict__["was_used"] = True

    def _advanced(self, by: Any) -> Any:
        return Counted(self.by + by, self.start) if type(by) is int else self._use()

    __add__ = __radd__ = __iadd__ = _advanced

    def __sub__(self, by: Any) -> Any:
        return self._advanced(-by if type(by) is int else by)

    __isub__ = __sub__


# Whatever an operator or a statement may ask an object for.
_COMMON = (
    "bool len iter eq ne lt gt le ge mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow "
    "add radd iadd sub isub rpow neg pos abs invert and rand or ror xor rxor lshift rlshift "
    "rshift rrshift getitem setitem delitem contains call index int float complex round next "
    "str repr format hash enter exit torch_function array reversed rsub matmul rmatmul"
)
for _name in _COMMON.split():
    setattr(Unread, f"__{_name}__", lambda self, *args, **kwargs: self._use())


class Lift:
    """The places that calls of one callable write.

    Args:
        slots: these places.

    Attributes:
        gather: a function that gives what the places hold that are read: an ``entry``.
        read: those.
    """

    def __init__(self, slots: Iterable[Slot]) -> None:
        self.slots = {slot.identity: slot for slot in slots}
        self.read = [slot for slot in self.slots.values() if slot.is_read and not slot.is_counter]
        self.gather = _gather(self.read)
        #: What the places held when the last run of ours began.
        self._began: list[Any] = []
        self._keys: dict[int, frozenset[Any]] = {}
        for slot in self.slots.values():
            slot.value_before = None  # it may be large, and is of no use from here on
            known = self._keys.get(slot.owner, frozenset())
            key = raw.token(slot.key)
            self._keys[slot.owner] = _ALL if slot.is_whole else known | {key}
        in_dicts: dict[int, tuple[Any, set[Any]]] = {}
        for slot in self.slots.values():
            if raw.is_a(slot.container, dict) and not slot.is_whole:
                in_dicts.setdefault(slot.owner, (slot.container, set()))[1].add(slot.key)
        #: Dicts with several of the places, and their keys.
        self.in_dicts = [found for found in in_dicts.values() if len(found[1]) > 1]

    @property
    def dicts(self) -> set[int]:
        """The numbers of the dicts among the containers."""
        spaces = (s.container for s in self.slots.values())
        return {address(raw.dict_of(c) if raw.is_a(c, type) else c) for c in spaces}

    def keys_in(self, container: Any) -> frozenset[Any]:
        """Tokens of the keys of ``container`` that calls write."""
        return self._keys.get(address(owner_of(container)), frozenset())

    def grown(self, slots: Collection[Slot], anew: bool = False) -> Lift | None:
        """One of more places, or of more that are read; ``None``: that is nothing new.

        ``anew``: a place stands for the one of the same path, as that of a state which was reset.
        """
        paths = {slot.path for slot in slots if anew and slot.identity not in self.slots}
        merged = {key: slot for key, slot in self.slots.items() if slot.path not in paths}
        is_new = False
        for slot in slots:
            known = merged.get(slot.identity)
            if known is None or slot.known_as > known.known_as:
                merged[slot.identity], is_new = slot, True
        return Lift(merged.values()) if is_new else None

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """Put back what the places hold when what runs inside is done."""
        before = [(slot, slot.get()) for slot in self.slots.values()]
        try:
            yield
        finally:
            for slot, value in before:
                slot.put(value)
            self._began = []

    def begin(self, entry: list[Any], is_alone: bool | None = None) -> None:
        """Let the places hold ``entry``, before a run of ours.

        In the others stands what shows whether they are read or written to: something that nobody
        may read, or, where another thread could meet it, a copy of what was there. ``is_alone``
        says whether none could; default: that is found out.
        """
        for slot, value in zip(self.read, entry, strict=True):
            slot.put(value)
        is_alone = is_only_thread() if is_alone is None else is_alone
        for slot in self.slots.values():
            if slot.is_counter and is_alone:
                slot.put(Counted())
            elif slot.is_counter and not slot.counts:
                raise self._learnt([slot])
            elif not slot.is_read:
                slot.put(Unread() if is_alone else self._stand_in(slot))
        self._began = self.values()

    def _stand_in(self, slot: Slot) -> Any:
        """Another object that is what the place holds, for other threads that may look at it.

        Raises:
            EffectsError: it cannot be told from another one. A plain value counts as read.
        """
        value = slot.get()
        if value is Left.ABSENT:  # to delete it is an error, so who leaves it so has not written
            return value
        if type(value) is torch.Tensor:
            return value.detach()
        if type(value) in (list, dict, set, deque) or (type(value) is tuple and value):
            return type(value)([*value] if type(value) is not dict else value.items())
        if type(value) is float:
            return float.fromhex(value.hex())
        if raw.is_scalar(value):
            raise self._learnt([slot])
        if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
            return value.copy("K")
        raise EffectsError(
            f"it could not be told whether a call writes to {slot.path}, since another thread is "
            "alive",
            transient=True,
        )

    def end(self) -> tuple[Any, ...]:
        """What a run of ours has left in the places.

        Raises:
            EffectsError: it has used a place for more than was known.
        """
        self.require_unused()
        effects = []
        for slot, before in zip(self.slots.values(), self._began, strict=True):
            now = slot.get()
            if slot.is_counter and type(before) is Counted:
                if type(now) is not Counted or now.start is not before:
                    raise self._learnt([slot])
                now = now.by
            elif slot.is_counter:
                if type(now) is not int or type(before) is not int:
                    raise self._learnt([slot])
                now = now - before
            elif not slot.is_read and now is before:
                now = Left.AS_IT_WAS
            effects.append(now)
        return tuple(effects)

    def require_unused(self) -> None:
        """Raise if a run has used what stands for places that it was not known to read.

        Raises:
            EffectsError: it has.
        """
        pairs = zip(self.slots.values(), self._began, strict=True)
        used = [s for s, v in pairs if type(v) in (Unread, Counted) and v.was_used]
        if used:
            raise self._learnt(used)

    def _learnt(self, slots: Iterable[Slot]) -> EffectsError:
        found = []
        for slot in slots:
            more = Slot.__new__(Slot)
            more.__dict__.update(slot.__dict__, is_read=True, is_counter=False)
            found.append(more)
        names = ", ".join(slot.path for slot in found[:5])
        return EffectsError(f"a call reads {names} before it writes there", found)

    def own(self, before: list[Any]) -> tuple[Any, ...]:
        """What the caller's own run has left in the places, which held ``before``."""
        effects = []
        for slot, old, now in zip(self.slots.values(), before, self.values(), strict=True):
            counts = slot.is_counter and type(now) is int and type(old) is int
            effects.append(now - old if counts else now)
        return tuple(effects)

    def values(self) -> list[Any]:
        """What all places hold now."""
        return [slot.get() for slot in self.slots.values()]

    def store(self, effects: tuple[Any, ...]) -> None:
        """Let the places hold what a replay has given for them."""
        for slot, value in zip(self.slots.values(), effects, strict=True):
            if value is not Left.AS_IT_WAS:
                slot.put(slot.get() + value if slot.is_counter else value)

    def has_order(self) -> bool:
        """Whether it is known in which order what is stored will stand in its dict: a key that is
        missing there comes last, and of several nobody knows which one the function stores first.
        """
        return all(
            dict.keys(item) >= keys or sum(not dict.__contains__(item, key) for key in keys) < 2
            for item, keys in self.in_dicts
        )

    def counts(self) -> bool:
        """Whether all counters hold whole numbers, so that a replay can advance them."""
        return all(type(slot.get()) is int for slot in self.slots.values() if slot.is_counter)

    def take_out(self, places: dict[Any, Place]) -> None:
        """Leave to the entry what is known of these places; the guard is not to watch them.

        Raises:
            EffectsError: one is read that was not known to be.
        """
        read = []
        for slot, began in zip(self.slots.values(), self._began, strict=True):
            is_known = slot.is_read or slot.is_counter
            if slot.is_counter and type(began) is int and slot.get() != began:
                is_seen = any(slot.covers(place) for place in places.values())
                read += [] if is_seen else [slot]  # code in C has written to it
            for key in [key for key, place in places.items() if slot.covers(place)]:
                place = places.pop(key)
                value = getattr(place, "value", began)
                is_used = slot.is_counter and type(began) is int and not place.counts
                if is_used or not (is_known or place.stored or not _is_same(value, began)):
                    read.append(slot)
        for place in places.values():
            if isinstance(place, Content) and self.keys_in(place.container.item):
                place.container.lifted = self.keys_in(place.container.item)
                read += [
                    slot
                    for slot, began in zip(self.slots.values(), self._began, strict=True)
                    if slot.is_in(place)
                    and (
                        type(began) is int
                        if slot.is_counter
                        else not slot.is_read and _is_same(place.held_at(slot.key), began)
                    )
                ]
        if read:
            raise self._learnt(read)


def _is_same(value: Any, before: Any) -> bool:
    if before is Left.ABSENT:
        return value is Item.MISSING or value is Left.ABSENT
    return value is before or equal(value, before)


class Lifting:
    """A callable that runs a function with the state that it writes as argument and result.

    Attributes:
        lift: the places.
    """

    lift: Lift
    __wrapped__: Callable[..., Any]


def owner_name(fn: Any, name: str) -> str:
    """What names of places begin with: of a bound method its class, else ``name``."""
    if isinstance(fn, Lifting):
        fn = fn.__wrapped__
    if type(fn) is not types.MethodType:
        return name
    owner: Any = fn.__self__
    return raw.name_of(owner if raw.is_a(owner, type) else type(owner))


def slots_of(
    changed: Iterable[tuple[Container, Any]], places: dict[Any, Place], taken_from: Collection[int]
) -> list[Slot] | None:
    """The places that a run has changed, and whether it has read them before.

    Args:
        changed: containers as they were before the run, with the keys.
        places: what the run has read.
        taken_from: numbers of dicts out of which it has taken something.

    Returns:
        ``None``: one is of a kind that cannot be stored again. One alone, if it is of an argument.
    """
    found: dict[Any, Slot] = {}
    for container, key in changed:
        item = container.item
        if container.path.startswith("argument "):  # of another object in each call, maybe
            return [Slot(container.path, container, key, is_whole=True)]
        if raw.is_a(item, set) or not raw.is_scalar(key):
            return None
        is_whole = raw.is_a(item, list, deque) or _is_arranged(container, taken_from)
        if not is_whole and address(item) in taken_from:
            return None  # what is stored there afterwards comes last
        if is_whole and not all(raw.is_scalar(key) for key, _ in raw.contents(item)):
            return None
        grows = is_whole and len(container.held) != len(raw.contents(item))
        if grows and not (raw.is_a(item, deque) and item.maxlen):
            return None  # each call would have a graph of its own
        slot = Slot(container.path if is_whole else container.name(key), container, key, is_whole)
        # torch asks which registry of a module has a name before it stores something there.
        is_registry = container.counted == "children"
        slot.is_read = slot.is_whole or is_registry or _is_read(slot, places)
        before, now = slot.value_before, slot.get()
        slot.is_counter = slot.is_read and type(before) is int and type(now) is int
        slot.counts = slot.is_counter and _counts(slot, places)
        found.setdefault(slot.identity, slot)
    return list(found.values())


def _is_arranged(container: Container, taken_from: Collection[int]) -> bool:
    """Whether a run has added or removed keys of a dict, or has changed their order."""
    if not raw.is_a(container.item, dict) or container.names is not None:
        return False
    if address(container.item) in taken_from:
        return True
    both = (container.held, container.read())
    before, after = ([raw.token(p[0]) for p in part if not Container.is_ours(*p)] for part in both)
    return before != after


def _is_read(slot: Slot, places: dict[Any, Place]) -> bool:
    for place in places.values():
        if slot.is_in(place):
            return True
        if slot.covers(place) and not place.stored:
            return _is_same(getattr(place, "value", slot.value_before), slot.value_before)
    return False


def _counts(slot: Slot, places: dict[Any, Place]) -> bool:
    """Whether nothing has read it but instructions that add a constant."""
    if any(map(slot.is_in, places.values())):
        return False
    found = [place.counts for place in places.values() if slot.covers(place)]
    return bool(found) and all(found)


def _gather(slots: list[Slot]) -> Callable[[], list[Any]]:
    """A function that gives what ``slots`` hold."""
    names: dict[str, Any] = {"ABSENT": Left.ABSENT}
    bind = Bind(names)
    parts = []
    for slot in slots:
        item = slot.container
        if type(item) is dict and not slot.is_whole:
            key = repr(slot.key) if type(slot.key) in (str, int) else bind(slot.key)
            parts.append(f"{bind(item)}.get({key}, ABSENT)")
        else:
            parts.append(f"{bind(slot.get)}()")
    # A list, of which no two are one object.
    text = f"def gather():\n    return [{', '.join(parts)}]\n"
    exec(compile(text, "<gfxgraph>", "exec"), names)
    return names.pop("gather")  # type: ignore[no-any-return]


def lift_among(roots: Collection[object]) -> Lift | None:
    """The places over which one of ``roots`` is lifted; ``None``: none is."""
    return next((root.lift for root in roots if isinstance(root, Lifting)), None)
