"""Places: where Python keeps a value that a graph was captured for.

A place says in two ways whether it still holds that value: :meth:`Place.holds` asks, and
:meth:`Place.term` is the same question as a Python expression, of which the guard of a graph makes
one function (:mod:`~gfxgraph.graph.guard`). Neither runs code of the program.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import os
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import torch

from ..interpose.codes import address
from ..interpose.source import CLOSED
from . import raw, words
from .containers import Container, item_at, put_at
from .one_shots import Identity

__all__ = [
    "Attributes",
    "Bases",
    "Bind",
    "Content",
    "Item",
    "Length",
    "Live",
    "Local",
    "Parts",
    "Place",
    "Referent",
    "TypeOf",
    "Whereabouts",
    "alike",
    "equal",
    "weakly",
]


class Bind:
    """Gives objects the names by which an expression knows them.

    Attributes:
        names: name -> object.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self._bound: dict[int, str] = {}

    def __call__(self, item: object) -> str:
        """The name of ``item``."""
        name = self._bound.setdefault(address(item), f"v{len(self._bound)}")
        self.names[name] = item
        return name

    def known(self, item: object) -> str | None:
        """The name of an object that has one."""
        return self._bound.get(address(item))


def equal(now: object, before: object) -> bool:
    """Whether both are plain values that are equal; 0.0 is not -0.0."""
    if type(now) is not type(before) or not raw.is_scalar(now):
        return False
    if type(now) in (float, complex):
        return now == before and str(now) == str(before)
    return now == before


def alike(now: object, before: object, is_made: bool = True) -> bool:
    """Whether both are one object, equal plain values, or tuples of such.

    ``is_made``: so are lists, which were made for the answer. Any other list may be written to.
    """
    if now is before:
        return True
    if type(now) is tuple or (type(now) is list and is_made):
        one: Any = now
        other: Any = before
        if type(other) is not type(one) or len(one) != len(other):
            return False
        return all(alike(a, b, is_made) for a, b in zip(one, other, strict=True))
    if type(now) is Identity:
        return type(before) is Identity and now.item is before.item
    return equal(now, before)


class Place:
    """One place.

    Attributes:
        path: how it is reached, for messages.
        identity: what tells it from other places.
        where: file and line of the code that read it; ``("", 0)``: not known.
        number: how many places were known before it in its run.
        stored: whether the run wrote to it before it read it, if it read it at all.
        counts: whether only instructions read it that add a constant, and store the sum there.
    """

    where: tuple[str, int] = ("", 0)
    number = 0
    stored = False
    counts = False
    identity: Any

    def __init__(self, path: str, identity: Any, within: Any = None) -> None:
        self.path, self.identity, self._within = path, identity, within

    @property
    def inside(self) -> dict[Any, Any] | None:
        """The dict that has to change before the place holds something else, if it is watched.

        Global variables change all the time, in scripts and notebooks, so they are not worth
        watching, but for those of torch and the like.
        """
        space: dict[Any, Any] = self._within
        if raw.is_a(space, type):
            space = raw.dict_of(self._within)
        if not raw.is_a(space, dict):
            return None
        if dict.__contains__(space, "__builtins__"):
            name = dict.get(space, "__name__")
            is_closed = type(name) is str and name.partition(".")[0] in CLOSED
            return space if is_closed else None
        return space

    def holds(self) -> bool:
        """Whether it holds what it held. A subclass says this or :meth:`changes`."""
        return not self.changes()

    def changes(self) -> list[str]:
        """Names of what is different."""
        return [] if self.holds() else [self.path]

    def put_back(self) -> None:
        """Let it hold again what it held, after a run of ours, as far as that can be."""

    def described(self, name: str) -> str:
        """``name`` with the line that read it."""
        file, line = self.where
        return f"{name} (read in {os.path.basename(file)}:{line})" if file else name

    def term(self, bind: Bind) -> str:
        """An expression that is true while the place holds what it held."""
        return f"{bind(self.holds)}()"

    def words(self) -> list[words.Word] | None:
        """The words in memory that stay while it holds what it held; ``None``: it has to be asked.

        The place keeps the objects alive in which they stand.
        """
        return None


class Item(Place):
    """The item of a dict, list, class or cell at a plain key; or that there is none."""

    MISSING: ClassVar[Any] = raw.MISSING

    def __init__(
        self, path: str, container: Any, key: Any, value: Any, identity: Any = None
    ) -> None:
        identity = identity or ("item", address(container), raw.token(key))
        super().__init__(path, identity, container)
        self.container, self.key, self.value = container, key, value

    @classmethod
    def of(cls, path: str, container: Any, key: Any, identity: Any = None) -> Item:
        """The place, with the value of now; ``identity``: where that was made before."""
        return cls(path, container, key, item_at(container, key), identity)

    def read(self) -> Any:
        """What it holds now."""
        return item_at(self.container, self.key)

    def holds(self) -> bool:
        """See :meth:`Place.holds`."""
        now = item_at(self.container, self.key)
        return now is self.value or equal(now, self.value)

    def as_it_was(self) -> Container:
        """The container, which holds here what it held."""
        is_named = raw.is_a(self.container, type, dict)
        return Container(self.path, self.container, (self.key,) if is_named else None)

    def put_back(self) -> None:
        """See :meth:`Place.put_back`."""
        put_at(self.container, self.key, self.value)

    def term(self, bind: Bind) -> str:
        """See :meth:`Place.term`."""
        container, value = self.container, self.value
        key = repr(self.key) if type(self.key) in (str, int) else bind(self.key)
        if type(container) is types.CellType:
            if value is self.MISSING:
                return super().term(bind)
            read = f"{bind(container)}.cell_contents"
        else:
            if raw.is_a(container, type):
                container = raw.namespace(container)
            elif not raw.looks_up_plainly(container):
                return super().term(bind)
            if value is self.MISSING:
                return f"{key} not in {bind(container)}"
            read = f"{bind(container)}[{key}]"
        if not _is_one_object(value):
            return f"({read} is {bind(value)} or {bind(equal)}({read}, {bind(value)}))"
        return f"{read} is {bind(value)}"

    def words(self) -> list[words.Word] | None:
        """See :meth:`Place.words`."""
        cell = self.container
        if type(cell) is not types.CellType or not _is_one_object(self.value):
            return None
        return words.of_cell(cell, self.value)


class Content(Place):
    """All that a container holds.

    Attributes:
        container: what it held.
    """

    def __init__(self, path: str, container: Container) -> None:
        # An OrderedDict keeps its order elsewhere.
        within = None if raw.is_a(container.item, OrderedDict) else container.item
        super().__init__(path, ("content", address(container.item)), within)
        self.container = container
        self._by_key: dict[Any, Any] | None = None

    @property
    def held(self) -> raw.Pairs:
        """What it held."""
        return self.container.held

    def held_at(self, key: Any) -> Any:
        """The value that it held at ``key``, or :attr:`Item.MISSING`."""
        if self._by_key is None:
            self._by_key = {raw.token(name): value for name, value in self.held}
        return self._by_key.get(raw.token(key), Item.MISSING)

    def held_all_before(self, held: raw.Pairs) -> None:
        """It held ``held``, and not what it holds."""
        self.container.held, self._by_key = held, None

    def held_before(self, key: Any, value: Any) -> None:
        """At ``key`` it held ``value`` (:attr:`Item.MISSING`: nothing), and not what it holds."""
        others = [(name, held) for name, held in self.held]
        at = next(
            (n for n, (name, _) in enumerate(others) if raw.token(name) == raw.token(key)), None
        )
        if at is None:
            at = len(others)
        others[at : at + 1] = [] if value is Item.MISSING else [(key, value)]
        self.container.held, self._by_key = others, None

    def name(self, key: Any) -> str:
        """How an item is reached."""
        return self.container.name(key)

    def holds(self) -> bool:
        """See :meth:`Place.holds`."""
        return not self.container.changes()

    def changes(self) -> list[str]:
        """See :meth:`Place.changes`."""
        return list(map(self.container.name, self.container.changes()))

    def put_back(self) -> None:
        """See :meth:`Place.put_back`."""
        self.container.restore()

    def term(self, bind: Bind) -> str:
        """See :meth:`Place.term`. An equal scalar in place of another is no change: ask again."""
        held, item = self.container.held, self.container.item
        base = next((kind for kind in _ORDERED if raw.is_a(item, kind)), None)
        is_hashed = base is OrderedDict and not raw.has_plain_keys(held)
        if base is None or is_hashed or self.container.names is not None:
            return super().term(bind)
        name, same = bind(item), bind(operator.is_)
        parts = {base.__iter__: 0 if raw.is_a(item, dict) else 1}
        if raw.is_a(item, dict):
            parts[base.values] = 1
        terms = [f"{bind(base.__len__)}({name}) == {len(held)}"]
        for get, at in parts.items():
            then = [pair[at] for pair in held]
            terms.append(f"all(map({same}, {bind(get)}({name}), {bind(then)}))")
        return f"({' and '.join(terms)} or {super().term(bind)})"

    def words(self) -> list[words.Word] | None:
        """See :meth:`Place.words`."""
        held, item = self.container.held, self.container.item
        values = [value for _, value in held]
        # Where calls write, the container itself knows what counts as a change.
        if not raw.is_a(item, list) or self.container.lifted:
            return None
        if not all(map(_is_one_object, values)):
            return None
        return words.of_list(item, values)


def _is_one_object(value: object) -> bool:
    """Whether no other object is as good: of numbers and strings an equal one is."""
    return value is None or type(value) is bool or not raw.is_scalar(value)


# Whose items come in an order that stays while nothing changes.
_ORDERED: tuple[Any, ...] = (OrderedDict, dict, list, set)


class Length(Place):
    """How many items a container holds.

    Attributes:
        container: the container.
        owner: the class that has it as its attributes; else the container itself.
    """

    def __init__(self, path: str, container: Any, owner: Any = None) -> None:
        super().__init__(path, ("length", address(container)), container)
        self.container, self.owner = container, container if owner is None else owner
        self._length, self._own = raw.length(container), _own_length(container)
        # Of a dict with ordinary keys these, since to look at each name takes ten times as long.
        self._keys: list[Any] | None = None
        if raw.is_a(container, dict):
            keys = list(dict.__iter__(container))
            if all(type(key) is str for key in keys):
                self._keys, self._numbers = keys, list(map(address, keys))

    def is_as_long_as(self, other: Length) -> bool:
        """Whether both containers held equally many items."""
        return self._own == other._own

    def holds(self) -> bool:
        """See :meth:`Place.holds`."""
        if self._keys is not None:
            keys = dict.__iter__(self.container)
            if list(map(address, keys)) == self._numbers:
                return True
        return _own_length(self.container) == self._own

    def term(self, bind: Bind) -> str:
        """See :meth:`Place.term`."""
        base = next((kind for kind in _ORDERED if raw.is_a(self.container, kind)), None)
        if base is None:
            return super().term(bind)
        length = f"{bind(base.__len__)}({bind(self.container)})"
        return f"({length} == {self._length} or {super().term(bind)})"


def _own_length(container: Any) -> int:
    """Without the graphs of methods, which come and go in the attributes of their instance."""
    length = raw.length(container)
    if raw.is_a(container, dict):
        length -= sum(map(Container.is_ours, dict.__iter__(container), dict.values(container)))
    return length


def weakly(item: Any) -> Callable[[], Any]:
    """Gives ``item`` while it lives; what allows no weak references is kept.

    A guard must not keep an object whose graphs it guards. A tensor is kept:
    torch.utils.swap_tensors() refuses those that are referenced weakly.
    """
    if not raw.is_a(item, torch.Tensor):
        with suppress(TypeError):
            return weakref.ref(item)
    return lambda: item


class TypeOf(Place):
    """The class of an object, and the dict in which it has its attributes.

    Attributes:
        item: gives the object, while it lives.
    """

    def __init__(self, path: str, item: Any) -> None:
        super().__init__(path, ("type", address(item)))
        self.item, self._class = weakly(item), type(item)
        # Each thread has attributes of its own in one of these; the other's cannot be replaced.
        is_fixed = raw.is_a(item, threading.local, types.ModuleType)
        self._own = None if is_fixed else raw.attributes(item)

    def keep(self) -> None:
        """Keep the object, which the guard keeps anyhow: it is not asked whether it is gone."""
        item = self.item()
        self.item = lambda: item

    def changes(self) -> list[str]:
        """See :meth:`Place.changes`."""
        item = self.item()
        if type(item) is not self._class:
            return [self.path]
        if self._own is not None and raw.attributes(item) is not self._own:
            return [f"{self.path.removesuffix('__class__')}__dict__"]
        return []

    def put_back(self) -> None:
        """See :meth:`Place.put_back`."""
        item: Any = self.item()
        if item is None:  # it is gone
            return
        if type(item) is not self._class:
            object.__setattr__(item, "__class__", self._class)
        if self._own is not None and raw.attributes(item) is not self._own:
            object.__setattr__(item, "__dict__", self._own)

    def term(self, bind: Bind) -> str:
        """See :meth:`Place.term`."""
        item = self.item()
        name = bind.known(item)
        found = name or f"item := {bind(self.item)}()"
        term = f"type({found}) is {bind(self._class)}"
        if self._own is None:
            return term
        if raw.has_usual_attributes(self._class):
            return f"{term} and {name or 'item'}.__dict__ is {bind(self._own)}"
        return f"{term} and {super().term(bind)}"

    def words(self) -> list[words.Word] | None:
        """See :meth:`Place.words`."""
        item = self.item()
        is_usual = self._own is None or raw.has_usual_attributes(self._class)
        if item is None or not is_usual:
            return None
        ref = self.item if isinstance(self.item, weakref.ref) else None
        return words.of_object(item, self._class, self._own, ref)


class Bases(Place):
    """The class and its bases, in the order of lookups."""

    def __init__(self, path: str, cls: type) -> None:
        super().__init__(path, ("bases", address(cls)))
        self._class, self._mro = cls, raw.mro(cls)

    def holds(self) -> bool:
        """See :meth:`Place.holds`."""
        return raw.mro(self._class) is self._mro

    def term(self, bind: Bind) -> str:
        """See :meth:`Place.term`."""
        if type(self._class) is type:  # no code of a metaclass answers
            return f"{bind(self._class)}.__mro__ is {bind(self._mro)}"
        return f"{bind(raw.mro)}({bind(self._class)}) is {bind(self._mro)}"

    def words(self) -> list[words.Word] | None:
        """See :meth:`Place.words`."""
        return words.of_bases(self._class, self._mro)


class Parts(Place):
    """The code and the default arguments of a function; what ``functools.partial`` or ``super``
    binds; or the functions of a property, a class method or a static method.

    Attributes:
        function: the function.
    """

    def __init__(self, path: str, function: Any) -> None:
        super().__init__(path, ("parts", address(function)))
        self.function: Any = function
        self._kind = next((k for k in _PARTS if raw.is_a(function, k)), types.FunctionType)
        self.renew()

    def renew(self) -> None:
        """Hold to what is there now."""
        self._parts = self._now()
        self._memory = _memory_of_parts(self.function, self._kind)
        self._held = None if self._memory is None else self._memory.raw

    def holds(self) -> bool:
        """See :meth:`Place.holds`."""
        if self._memory is not None:
            return bool(self._memory.raw == self._held)
        return all(map(operator.is_, self._now(), self._parts))

    def _now(self) -> tuple[Any, ...]:
        return _parts(self.function, self._kind)

    def put_back(self) -> None:
        """See :meth:`Place.put_back`."""
        function = self.function
        if self._kind is functools.partial:
            put_back: Any = raw.namespace(functools.partial)["__setstate__"]
            put_back(function, (*self._parts, raw.attributes(function)))
        elif self._kind is types.FunctionType:
            function.__code__, function.__defaults__, function.__kwdefaults__ = self._parts

    def term(self, bind: Bind) -> str:
        """See :meth:`Place.term`."""
        if self._memory is None:
            return super().term(bind)
        return f"{bind(self._memory)}.raw == {bind(self._held)}"

    def words(self) -> list[words.Word] | None:
        """See :meth:`Place.words`."""
        at = _place_of_parts(self._kind)
        if at is None:
            return None
        held = [0 if part is None else id(part) for part in self._parts]
        return words.of_range(id(self.function) + at, held)


# Other objects in C that run what they were made of, and can be initialized once more.
_PARTS: dict[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"),
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    super: ("__thisclass__", "__self__"),
}
_parts_of_function = operator.attrgetter("__code__", "__defaults__", "__kwdefaults__")


def _parts(item: Any, kind: type) -> tuple[Any, ...]:
    if kind is types.FunctionType:
        found: tuple[Any, ...] = _parts_of_function(item)
        return found
    own = raw.namespace(kind)
    return tuple(own[name].__get__(item) for name in _PARTS[kind])


def _memory_of_parts(item: Any, kind: type) -> Any:
    """Where CPython keeps the code and the defaults of a function; ``None``: not known.

    To ask the function for them calls all audit hooks of the process, in each call: a library on
    which torch depends has one, and then it takes ten times as long.
    """
    at = _place_of_parts(kind)
    if at is None:
        return None
    return (ctypes.c_char * (len(_PARTS.get(kind, "123")) * _WORD)).from_address(id(item) + at)


@functools.lru_cache(maxsize=8)
def _place_of_parts(kind: Any) -> int | None:
    def function(a: int = 1, *, b: int = 2) -> None: ...

    def put(item: Any, value: Any) -> None: ...

    def delete(item: Any) -> None: ...

    probe: Any = function
    if kind is functools.partial:
        probe = functools.partial(function, 1, b=2)
    elif kind is property:
        probe = property(function, put, delete)
    elif kind is super:
        probe = super(int, True)
    elif kind is not types.FunctionType:
        probe = kind(function)
    parts = list(map(id, _parts(probe, kind)))
    size = kind.__basicsize__ // _WORD
    words = list((ctypes.c_void_p * size).from_address(id(probe)))
    found = (n for n in range(size - len(parts) + 1) if words[n : n + len(parts)] == parts)
    return next((_WORD * n for n in found), None)


_WORD = ctypes.sizeof(ctypes.c_void_p)


class Live(Place):
    """The answer of a function in C.

    Attributes:
        write: lets it give another value, ``MISSING``: none; ``None``: nobody can from here.
    """

    def __init__(
        self,
        path: str,
        identity: Any,
        get: Callable[[], Any],
        write: Callable[[Any], object] | None = None,
    ) -> None:
        super().__init__(path, identity)
        self.write = write
        #: Asks what it gives now.
        self.read, self.value = get, get()
        self._is_made = get() is not self.value

    def holds(self) -> bool:
        """See :meth:`Place.holds`."""
        return alike(self.read(), self.value, self._is_made)


class Referent(Live):
    """Whether the object of a weak reference is alive. The graph does not keep it alive."""

    def __init__(self, path: str, reference: weakref.ref[Any]) -> None:
        get = functools.partial(weakref.ref.__call__, reference)
        super().__init__(path, ("weak", address(reference)), get)
        self.value = self.value is not None

    def holds(self) -> bool:
        """See :meth:`Place.holds`."""
        return (self.read() is not None) is self.value


class Local(Live):
    """An attribute of a ``threading.local``, as this thread sees it."""

    def __init__(self, path: str, item: threading.local, name: str) -> None:
        self._item, self._name = item, name
        super().__init__(path, ("local", address(item), name), self._now, self._put)

    def _now(self) -> Any:
        return (raw.attributes(self._item) or {}).get(self._name, raw.MISSING)

    def put_back(self) -> None:
        """See :meth:`Place.put_back`."""
        self._put(self.value)

    def _put(self, value: Any) -> None:
        own = raw.attributes(self._item)
        if own is not None:
            put_at(own, self._name, value)


class Attributes(Place):
    """How a tensor lies in memory: shape, strides, dtype; and whether it requires grad.

    Attributes:
        tensor: the tensor.
        is_plain: whether torch's own guards know its kind.
    """

    def __init__(self, path: str, tensor: torch.Tensor) -> None:
        super().__init__(path, ("tensor", address(tensor)))
        self.tensor = tensor
        with torch._C.DisableTorchFunction():  # the modes of a recording count calls
            self.is_plain = type(tensor) in _PLAIN and tensor.layout is torch.strided
        self._then = self._now()

    def _now(self) -> Any:
        tensor = self.tensor
        with torch._C.DisableTorchFunction():
            kind = tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad
            if tensor.is_nested:  # it has no shape
                return type(tensor), *kind
            strides = tensor.stride() if tensor.layout is torch.strided else ()
            return type(tensor), *kind, tensor.shape, tensor.is_conj(), tensor.is_neg(), strides

    def holds(self) -> bool:
        """See :meth:`Place.holds`."""
        return bool(self._now() == self._then)

    def words(self) -> list[words.Word] | None:
        """See :meth:`Place.words`."""
        found = words.of_kind(self.tensor) if self.is_plain else None
        return found if self.holds() else None


class Whereabouts(Place):
    """Where the data of a tensor begins.

    Two questions say it together, which are asked at different times: has the storage of then its
    memory (:meth:`words_of_storage`), and is the tensor in there (:meth:`words`)? Both are about
    that storage for ever. Where the tensor is in another one, even with the same data, it is asked.
    """

    def __init__(self, path: str, tensor: torch.Tensor, data: int) -> None:
        super().__init__(path, ("data", address(tensor)))
        self._tensor, self._data, self._storage = tensor, data, words.storage_of(tensor)

    def holds(self) -> bool:
        """See :meth:`Place.holds`."""
        return self._tensor.data_ptr() == self._data

    def term(self, bind: Bind) -> str:
        """See :meth:`Place.term`."""
        return f"{bind(self._tensor.data_ptr)}() == {self._data}"

    def words_of_storage(self) -> list[words.Word] | None:
        """As :meth:`words`, but whether the memory is there."""
        if self._storage is None:
            return None
        return words.of_storage(self._tensor, self._data, self._storage)

    def words(self) -> list[words.Word] | None:
        """See :meth:`Place.words`; they say it together with :meth:`words_of_storage`."""
        if self._storage is None:
            return None
        found = words.of_view(self._tensor, self._storage)
        return found if self.holds() else None


_PLAIN = (torch.Tensor, torch.nn.Parameter)
