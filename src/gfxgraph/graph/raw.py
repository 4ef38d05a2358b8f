"""Reads and writes of the user's objects that run no code of the user's.

A class may override how its instances are read (``__getitem__``, ``keys``, ``__getattr__``), how
they look (``__class__``, ``__repr__``, ``__len__``) and how they compare. Asking through such
methods changes the process that we only want to look at, so every question goes to the base class
in C.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from ..interpose.codes import address

__all__ = [
    "C_DATA",
    "MISSING",
    "Pairs",
    "attributes",
    "base_of_dict",
    "class_with",
    "classes",
    "contents",
    "dict_of",
    "differences",
    "getter_of_attributes",
    "getter_of_attributes_of",
    "has_plain_keys",
    "has_usual_attributes",
    "has_weak_references",
    "is_a",
    "is_mutable",
    "is_scalar",
    "is_slot",
    "keeps",
    "length",
    "looks_up_plainly",
    "module_of",
    "mro",
    "name_of",
    "namespace",
    "next_of_set",
    "put_back",
    "slots",
    "token",
    "written_as",
]

Pairs: TypeAlias = list[tuple[Any, Any]]
"""Keys and values in order; of a list its positions, of a set each item twice."""

MISSING: Any = type("_Missing", (), {})()
"""There is nothing at that key."""
# None of these asks a metaclass, which may override how its classes compare and what they hold.
_derives: Any = type.__subclasscheck__
mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
"""A class and its bases, in the order of lookups: the same tuple until the bases change."""
namespace: Callable[[type], Any] = type.__dict__["__dict__"].__get__
"""The attributes of a class itself, without those of its bases."""
_module: Any = type.__dict__["__module__"]
_name: Any = type.__dict__["__qualname__"]
_flags: Any = type.__dict__["__flags__"]


def classes(item: object) -> tuple[type, ...]:
    """The class of ``item`` and its bases, whatever ``item.__class__`` says."""
    return mro(type(item))


def is_mutable(cls: type) -> bool:
    """Whether attributes of a class can be set: it was made by a class statement."""
    flags = _flags.__get__(cls)
    return bool(flags & _HEAP) and not flags & _IMMUTABLE


def is_a(item: object, *kinds: type) -> bool:
    """Whether the class of ``item`` is, or derives from, one of ``kinds``."""
    cls = type(item)
    for kind in kinds:  # noqa: SIM110  any() takes twice as long, and this is asked all the time
        if cls is kind or _derives(kind, cls):
            return True
    return False


def is_scalar(item: object) -> bool:
    """Whether ``item`` can be compared and shown; an instance of a subclass may override that."""
    kind = type(item)
    return (
        kind is str
        or kind is int
        or kind is float
        or kind is bool
        or item is None
        or kind is bytes
        or kind is complex
    )


def name_of(cls: type) -> str:
    """The qualified name of a class."""
    return str(_name.__get__(cls))


def dict_of(cls: type) -> dict[str, Any]:
    """The dict behind :func:`namespace`."""
    (inner,) = gc.get_referents(namespace(cls))
    return inner  # type: ignore[no-any-return]


def class_with(space: dict[Any, Any]) -> type | None:
    """The class whose attributes stand in ``space``; ``None``: it is a dict of its own."""
    if type(space) is not dict:
        return None
    if "__module__" not in space and ("__doc__" not in space or "__name__" in space):
        return None  # every class has one of the two, and a module its name
    # Not by gc.get_referrers(), which finds no class that was there at a gc.freeze().
    todo, met = [object], {id(object)}
    while todo:
        cls = todo.pop()
        if dict_of(cls) is space:
            return cls
        below = [sub for sub in type.__subclasses__(cls) if id(sub) not in met]
        met.update(map(id, below))
        todo += below
    return None


def module_of(cls: type) -> str:
    """The name of the module in which a class was made; ``""`` where that is no string."""
    if type(cls) is _CLASS_OF_ARRAYS and name_of(cls).endswith("_Array_" + str(_length(cls))):
        # `c_char * 16` is made once in a process. It names whose code did that: torch's, or ours.
        return ctypes.__name__
    try:
        name = _module.__get__(cls)
    except AttributeError:
        return ""
    return name if type(name) is str else ""


_CLASS_OF_ARRAYS: Any = type(ctypes.Array)


def _length(cls: type) -> Any:
    return next((namespace(c)["_length_"] for c in mro(cls) if "_length_" in namespace(c)), None)


def attributes(item: object) -> dict[str, Any] | None:
    """The ``__dict__`` of ``item``; ``None``: it has none, or hides it."""
    if is_a(item, threading.local):  # that of this thread
        local: Any = item
        return threading.local.__getattribute__(local, "__dict__")  # type: ignore[no-any-return]
    for cls in mro(type(item)) or ():  # a type of an extension that is not ready has none
        slot = namespace(cls).get("__dict__")
        if type(slot) in (types.GetSetDescriptorType, types.MemberDescriptorType):
            found = slot.__get__(item)
            return found if type(found) is dict else None
    return None


def has_weak_references(item: object) -> bool:
    """Whether anything refers weakly to ``item``."""
    return bool(weakref.getweakrefcount(item))


def getter_of_attributes(item: object) -> Callable[[Any], Any] | None:
    """Gives the ``__dict__`` of instances of the class of ``item``; ``None``: as :func:`attributes`
    has to find out."""
    return None if is_a(item, threading.local) else getter_of_attributes_of(type(item))


def getter_of_attributes_of(cls: type) -> Callable[[Any], Any] | None:
    """The same for a class, which is not ``threading.local``."""
    for base in mro(cls):
        slot = namespace(base).get("__dict__")
        if slot is not None:
            usual = type(slot) in (types.GetSetDescriptorType, types.MemberDescriptorType)
            return slot.__get__ if usual else None
    return None


def has_usual_attributes(cls: type) -> bool:
    """Whether to ask an instance of ``cls`` for its ``__dict__`` runs no code of the program."""
    for name, kind in (
        ("__dict__", types.GetSetDescriptorType),
        ("__getattribute__", types.WrapperDescriptorType),
    ):
        found = _found(cls, name)
        if type(found) is not kind:
            return False
    return True


def is_slot(cls: type, name: str) -> bool:
    """Whether instances of ``cls`` keep an attribute in a slot."""
    return type(_found(cls, name)) is types.MemberDescriptorType


def keeps(cls: type, names: Iterable[str]) -> bool:
    """Whether an instance of ``cls`` gives these attributes without code of the program."""
    if type(_found(cls, "__getattribute__")) is not types.WrapperDescriptorType:
        return False
    return all(is_slot(cls, name) or not _decides(_found(cls, name)) for name in names)


def _found(cls: type, name: str) -> Any:
    return next((namespace(base)[name] for base in mro(cls) if name in namespace(base)), MISSING)


def _decides(item: object) -> bool:
    """Whether it answers for instances that have an attribute of its name, as a property does."""
    spaces = list(map(namespace, mro(type(item))))
    return any(name in space for space in spaces for name in ("__set__", "__delete__"))


def slots(item: object) -> dict[str, Any]:
    """Name -> descriptor, for each ``__slots__`` attribute that the classes of ``item`` declare."""
    found: dict[str, Any] = {}
    for cls in mro(type(item)):
        if _flags.__get__(cls) & _HEAP or cls is C_DATA:
            for name, slot in list(namespace(cls).items()):  # another thread may add one
                if type(slot) is types.MemberDescriptorType and slot.__objclass__ is cls:
                    found.setdefault(f"{name_of(cls)}.{name}" if name in found else name, slot)
    return found


_IMMUTABLE = 1 << 8
_HEAP = 1 << 9  # made by a class statement; from Python 3.13 on also many classes made in C
# The base of all objects of ctypes. A pointer keeps what it points to in `_objects`.
C_DATA: type = ctypes.Structure.__mro__[1]


def contents(item: Any) -> Pairs:
    """The items of a dict, list, deque or set, copied at once: other threads may change it."""
    if is_a(item, OrderedDict):
        return [(key, dict.get(item, key)) for key in list(OrderedDict.__iter__(item))]
    if is_a(item, dict):
        return list(dict.items(item))
    if is_a(item, set):
        return [(value, value) for value in list(set.__iter__(item))]
    if is_a(item, list):
        return list(enumerate(list.__iter__(item)))
    return list(enumerate(deque.__iter__(item)))


def token(key: Any) -> Any:
    """Identifies a key that is alive: by value if it is plain, else by the object."""
    return (type(key), key) if is_scalar(key) else address(key)


def has_plain_keys(pairs: Pairs) -> bool:
    """Whether looking up the keys runs no code of a class."""
    return all(is_scalar(key) for key, _ in pairs)


def written_as(key: Any) -> str:
    """``key`` for a message."""
    return repr(key) if is_scalar(key) else f"<{name_of(type(key))}>"


def length(item: Any) -> int:
    """How many items a dict, list, deque, set, tuple or frozenset holds."""
    kinds = (dict, list, deque, set, tuple, frozenset)
    base: Any = next(kind for kind in kinds if is_a(item, kind))
    return base.__len__(item)  # type: ignore[no-any-return]


def base_of_dict(item: Any) -> Any:
    """The class in C whose methods write to a dict."""
    return OrderedDict if is_a(item, OrderedDict) else dict


def looks_up_plainly(item: Any) -> bool:
    """Whether ``item[key]`` of a dict or list runs no code of a class that overrides it."""
    for cls in classes(item):
        if cls is dict or cls is list or cls is OrderedDict or cls is types.MappingProxyType:
            return True
        if "__getitem__" in namespace(cls) or "__missing__" in namespace(cls):
            return False
    return False


def put_back(item: Any, held: Pairs, now: Pairs) -> None:
    """Let ``item``, which holds ``now``, hold ``held``; what is the same is not touched."""
    if is_a(item, dict):
        _put_back_dict(item, held, now)
    elif is_a(item, set):
        before, after = ({token(value): value for value, _ in pairs} for pairs in (held, now))
        for value in _only(after, before):
            set.discard(item, value)
        for value in _only(before, after):
            set.add(item, value)
    else:
        base: Any = list if is_a(item, list) else deque
        if len(held) == len(now):
            for (position, value), (_, other) in zip(held, now, strict=True):
                if value is not other:
                    base.__setitem__(item, position, value)
        else:
            base.clear(item)
            base.extend(item, [value for _, value in held])


def _only(some: dict[Any, Any], others: dict[Any, Any]) -> Iterator[Any]:
    return (value for key, value in some.items() if key not in others)


def _put_back_dict(item: Any, held: Pairs, now: Pairs) -> None:
    base = base_of_dict(item)
    before, after = ({token(key): (key, value) for key, value in pairs} for pairs in (held, now))
    for key, _ in _only(after, before):
        base.__delitem__(item, key)
    for key, value in held:
        if after.get(token(key), _NOTHING)[1] is not value:
            base.__setitem__(item, key, value)
    kept = [token(key) for key, _ in now if token(key) in before]
    kept += [name for name in before if name not in after]
    if kept != list(before):
        for key, value in held:
            base.__delitem__(item, key)
            base.__setitem__(item, key, value)


_NOTHING = (None, MISSING)


def next_of_set(item: Any) -> int:
    """From where on ``pop()`` looks for an item of a set; 0 for other objects, or if unknown.

    Each ``pop()`` moves it, and nothing in Python tells of it or puts it back.
    """
    if _NEXT_OF_SET is None or not is_a(item, set):
        return 0
    return ctypes.c_ssize_t.from_address(id(item) + _NEXT_OF_SET).value


def _where_next_is() -> int | None:
    """How far into a set that number is: found out with one whose number is known."""
    if sys.implementation.name != "cpython":
        return None
    probe, size = {0, 8, 16}, ctypes.sizeof(ctypes.c_ssize_t)
    words = (ctypes.c_ssize_t * (set.__sizeof__(probe) // size)).from_address(id(probe))
    seen = [list(words)]
    for _ in range(2):
        probe.pop()
        seen.append(list(words))
    found = [n for n, values in enumerate(zip(*seen, strict=True)) if values == (0, 1, 2)]
    return found[0] * size if len(found) == 1 else None


_NEXT_OF_SET = _where_next_is()


def differences(held: Pairs, now: Pairs, ordered: bool = True) -> list[Any]:
    """The keys whose value is another object, or that came or went, or stand elsewhere."""
    if len(held) == len(now) and all(
        key is other and value is another
        for (key, value), (other, another) in zip(held, now, strict=True)
    ):
        return []
    before, after = ({token(key): (key, value) for key, value in pairs} for pairs in (held, now))
    found = [
        (after.get(name) or before[name])[0]
        for name in after | before
        if before.get(name, _NOTHING)[1] is not after.get(name, _NOTHING)[1]
    ]
    if not found and ordered:
        places = zip(before, after, strict=True)
        found = [after[name][0] for old, name in places if old != name]
    return found
