"""The part of a call that a graph depends on: of objects and dicts, only what was read of them.

A recording says which attributes of its arguments a function has read. The values of the others are
not in the key of the graph: a request may hold another number in each call, another text, a tensor
of another shape that nobody looks at. Which names there are is in the key.
"""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from ..graph import raw
from ..graph.listening import is_closed
from ..graph.static_objects import Path, Read
from .held import Counter
from .key import Call, taken_apart
from .signature import Spec, can_be_apart, count_tensors, objects_in

__all__ = [
    "Mask",
    "NoObjects",
    "ObjectArguments",
    "leave_out",
    "mask_of",
    "parts_of_arguments",
]

_OBJECTS = ("object", "dataclass", "namespace")
_HOLDING = ("sequence", "namedtuple", "dict", *_OBJECTS)

Mask = tuple[Any, ...] | None
"""``None``: all of a tree matters; ``("all", masks)``: those of its children say what does;
``("read", class, names, masks, all_names)``: which names there are, and what is found at some."""


def names_of(spec: Spec) -> tuple[Any, ...] | None:
    """The names under which an object or a dict holds its children; ``None``: it has no such."""
    kind = spec[0]
    keys: Any = spec[2] if len(spec) > 2 else None
    if kind == "object":
        items, held, in_slots = spec[2]
        is_plain = not items and not in_slots and all(type(name) is str for name in held)
        return held if is_plain else None
    if kind in ("dataclass", "namespace"):
        is_in_slot = any(raw.is_slot(spec[1], name) for name in keys)
        return None if is_in_slot or not spec[1].__dictoffset__ else tuple(keys)
    if kind == "dict" and spec[1] is dict and all(type(key) is str for key in keys):
        return tuple(keys)
    return None


def parts_of_arguments(
    spec: Spec, given: tuple[Any, ...], is_lifted: bool = False
) -> Iterator[tuple[Path, Any]]:
    """The objects and dicts among the arguments of a call, and among what these hold.

    Args:
        spec: of ``(args, kwargs)``.
        given: that, made of ``spec``.
        is_lifted: the call is one of ``(entry, args, kwargs)``.

    Yields:
        The numbers of the children that lead there, and the object.
    """
    path: Path = ()
    if is_lifted:  # what is in the entry is state
        spec, given, path = spec[3][0], given[0][1:], (0,)
    start = len(path)
    for n, (part, items) in enumerate(zip(spec[3][start:], given, strict=True), start):
        # The function gets other containers of these, made for the call.
        of_call = items if type(items) is tuple else tuple(items.values())
        for k, (child, item) in enumerate(zip(part[3], of_call, strict=True)):
            yield from _parts(child, item, (*path, n, k))


def _parts(spec: Spec, item: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if spec[0] not in _HOLDING:
        return
    if names_of(spec) is not None:
        yield path, item
    kind, children = spec[0], spec[3]
    if all(child[0] in ("tensor", "const", "again") for child in children):
        return
    if kind in ("sequence", "namedtuple"):
        held = list(tuple.__iter__(item) if raw.is_a(item, tuple) else list.__iter__(item))
    elif kind == "dict":
        held = list(dict.values(item))
    else:
        own = names_of(spec)
        if own is None:
            return
        held = [(raw.attributes(item) or {})[name] for name in own]
    for n, (child, value) in enumerate(zip(children, held, strict=True)):
        yield from _parts(child, value, (*path, n))


def mask_of(spec: Spec, read: Mapping[Path, Read], path: Path = ()) -> Mask:
    """Which parts of a tree matter, given what was read of its objects and dicts."""
    if spec[0] not in _HOLDING:
        return None
    masks = [mask_of(child, read, (*path, n)) for n, child in enumerate(spec[3])]
    whole = ("all", tuple(masks)) if any(mask is not None for mask in masks) else None
    names, found = names_of(spec), read.get(path)
    if names is None or found is None:
        return whole
    kept = [n for n, name in enumerate(names) if name in found]
    if len(kept) == len(names):
        return whole
    return "read", spec[1], tuple(names[n] for n in kept), tuple(masks[n] for n in kept), names


def leave_out(spec: Spec, given: Any, mask: Mask, poison: object) -> None:
    """Take out of static arguments what does not matter, or put ``poison`` in its place."""
    if mask is None or spec[0] not in _HOLDING:
        return
    kind, children = spec[0], spec[3]
    own: Any = given
    if kind not in ("sequence", "namedtuple", "dict"):
        own = raw.attributes(given)
    held = list(own if kind in ("sequence", "namedtuple") else own.values())
    if mask[0] == "all":
        for n, child in enumerate(mask[1]):
            leave_out(children[n], held[n], child, poison)
        return
    names = names_of(spec) or ()
    for name, child in zip(mask[2], mask[3], strict=True):
        leave_out(children[names.index(name)], own[name], child, poison)
    for name in set(names) - set(mask[2]):
        if poison is None:
            del own[name]
        else:
            own[name] = poison


def narrowed(call: Call, mask: Mask) -> Call | None:
    """A call without what does not matter; ``None``: it is of another kind than the mask."""
    leaves = iter(call.leaves)
    kept: list[torch.Tensor] = []
    spec = _narrowed(call.spec, mask, leaves, kept)
    return None if spec is None else replace(call, leaves=kept, spec=spec)


def _narrowed(
    spec: Spec, mask: Mask, leaves: Iterator[torch.Tensor], kept: list[torch.Tensor]
) -> Spec | None:
    if mask is None:
        kept += [next(leaves) for _ in range(count_tensors(spec))]
        return spec
    if spec[0] not in _HOLDING:
        return None
    children = spec[3]
    if mask[0] == "all":
        masks = dict(enumerate(mask[1]))
        if len(masks) != len(children):
            return None
    else:
        _, cls, names, of_names, all_names = mask
        if spec[1] is not cls or names_of(spec) != all_names:
            return None
        masks = {all_names.index(n): child for n, child in zip(names, of_names, strict=True)}
    found: dict[int, Spec] = {}
    tensors: dict[int, list[torch.Tensor]] = {}
    for n, child in enumerate(children):
        if n not in masks:
            for _ in range(count_tensors(child)):
                next(leaves)
            continue
        tensors[n] = []
        part = _narrowed(child, masks[n], leaves, tensors[n])
        if part is None:
            return None
        found[n] = part
    kept += [tensor for n in masks for tensor in tensors[n]]
    parts = tuple(found[n] for n in masks)
    if mask[0] == "all":
        return (*spec[:3], parts, *spec[4:])
    return "read", spec[1], mask[2], parts, (spec[0], mask[4])


class ObjectArguments:
    """Knows, for one callable, which arguments are taken apart, and which of their parts matter.

    An object of the program is compared by identity at first: a configuration is the same one in
    each call. Where a call comes with another object of the same class, objects of that class are
    taken apart from then on: their tensors are inputs, and the rest of them belongs to the key as
    far as a graph depends on it.

    Attributes:
        classes: the classes whose objects are taken apart.
        counters: places in the arguments to which calls only add a number.
        no_counters: those with numbers that calls change, and use for more.
    """

    def __init__(self) -> None:
        self.classes: tuple[type, ...] = ()
        self.counters: frozenset[Counter] = frozenset()
        self.no_counters: frozenset[Counter] = frozenset()
        self._given_up: list[type] = []
        #: The object of each class that was met last.
        self._met: list[tuple[type, weakref.ref[Any]]] = []
        self._masks: list[Mask] = []
        #: Their hashes: a key holds objects.
        self._keys: set[int] = set()

    def forget(self) -> None:
        """Start anew."""
        self.__init__()  # type: ignore[misc]

    def taken_apart(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[torch.Tensor], Spec, str | None]:
        """See :func:`~gfxgraph.call.key.taken_apart`."""
        found = taken_apart(args, kwargs, self.classes)
        if found[2] is not None and self.classes:
            by_identity = taken_apart(args, kwargs)
            if by_identity[2] is None:
                self._give_up(self.classes)
                return by_identity
        return found

    def learn(self, call: Call) -> bool:
        """Take objects of more classes apart, if this call shows that it would help."""
        learned = False
        for item in objects_in(call.spec):
            if not self._may_learn() or not can_be_apart(item):
                continue
            if _has(self._given_up, type(item)):
                continue
            last = next((ref for cls, ref in self._met if cls is type(item)), None)
            if last is not None and last() is not item:
                self.classes += (type(item),)
                learned = True
            with suppress(TypeError):  # of a class without weak references
                kept = [pair for pair in self._met if pair[0] is not type(item)]
                self._met = [*kept[-_MAX_CLASSES:], (type(item), weakref.ref(item))]
        return learned

    def _may_learn(self) -> bool:
        """Whether there is room: a program that makes classes would have them kept for ever."""
        return len(self.classes) + len(self._given_up) < _MAX_CLASSES

    def learn_counters(self, places: Collection[Counter]) -> bool:
        """These may be counters; or they were taken for such, and are none; whether that is new."""
        before = self.counters
        self.no_counters |= before & set(places)
        self.counters = (before | set(places)) - self.no_counters
        return self.counters != before

    def take_apart(self, items: Iterable[object]) -> bool:
        """Take objects like these apart from now on; whether that changes anything."""
        classes = {
            id(cls): cls
            for cls in [type(item) for item in items if can_be_apart(item)]
            if self._may_learn() and not _has((*self._given_up, *self.classes), cls)
        }
        self.classes += tuple(classes.values())
        return bool(classes)

    def give_up(self, call: Call) -> bool:
        """Compare the objects of a call by identity from now on; whether that changes anything."""
        return self._give_up([cls for cls in self.classes if _holds(call.spec, cls)])

    def _give_up(self, classes: Sequence[type]) -> bool:
        self._given_up += classes
        self.classes = tuple(cls for cls in self.classes if not _has(classes, cls))
        return bool(classes)

    def mask(self, spec: Spec, read: Mapping[Path, Read]) -> Mask:
        """Which parts of a call matter, given what was read of its objects and dicts."""
        mask = None if _has_again(spec) else mask_of(spec, read)
        return None if mask is None or _holds_unseen(spec, mask) else mask

    def narrow(self, call: Call, mask: Mask) -> Call:
        """A call without what does not matter."""
        found = narrowed(call, mask)
        assert found is not None  # the mask was made of this call
        return found

    def know(self, mask: Mask, key: Any) -> None:
        """There is a graph for all calls that look so without what does not matter."""
        if mask in self._masks:
            self._masks.remove(mask)
        self._masks = [mask, *self._masks[: _MAX_MASKS - 1]]
        self._keys.add(hash(key))

    def narrowed(self, call: Call) -> Iterator[Call]:
        """The call cut down to the parts that matter, for each graph whose calls look like it."""
        for mask in self._masks:
            found = narrowed(call, mask)
            if found is not None:
                yield found

    def is_known(self, key: Any) -> bool:
        """Whether there was a graph of that key."""
        return hash(key) in self._keys


class NoObjects(ObjectArguments):
    """All of each argument matters, and objects are compared by identity."""

    def learn(self, call: Call) -> bool:
        """Nothing is learned."""
        return False

    def take_apart(self, items: Iterable[object]) -> bool:
        """Nothing is."""
        return False

    def mask(self, spec: Spec, read: Mapping[Path, Read]) -> Mask:
        """All of it."""
        return None


# So many classes are remembered, and so many ways to read arguments.
_MAX_CLASSES = 64
_MAX_MASKS = 8


def _has(classes: Sequence[type], cls: type) -> bool:
    """A class may have a metaclass with ``__eq__`` of its own."""
    return any(cls is other for other in classes)


def _holds(spec: Spec, cls: type) -> bool:
    if spec[0] in ("tensor", "const", "again"):
        return False
    return spec[1] is cls or any(_holds(child, cls) for child in spec[3])


def _holds_unseen(spec: Spec, mask: Mask) -> bool:
    """Whether what matters holds an object whose state nobody sees: a lock, an event, a file."""
    count = itertools.repeat(torch.empty(0), count_tensors(spec))
    narrower = _narrowed(spec, mask, count, [])
    return narrower is None or any(
        not isinstance(item, _SEEN) and (is_closed(type(item).__module__) or not can_be_apart(item))
        for item in objects_in(narrower)
    )


_SEEN = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    torch.nn.Module,
)


def _has_again(spec: Spec) -> bool:
    if spec[0] in ("tensor", "const"):
        return False
    return spec[0] == "again" or any(map(_has_again, spec[3]))
