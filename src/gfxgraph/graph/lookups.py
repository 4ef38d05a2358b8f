"""What objects hold and what names lead to, found without running code of the program.

:class:`Lookups` knows the objects that were there before a run, and does what Python would do for
an attribute, an item or a name. Each place that is asked on the way is kept.
"""

from __future__ import annotations

import _queue
import abc
import builtins
import collections
import contextvars
import functools
import gc
import itertools
import operator
import struct
import sys
import threading
import types
import typing
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from ..interpose.codes import address
from ..interpose.source import CLOSED, users_line
from . import bytecode, heard, in_c, raw
from .age import Since
from .containers import Container, Slots
from .guard import REGISTRIES
from .lift import Counted, Unread
from .listening import is_closed, is_quiet
from .places import (
    Attributes,
    Bases,
    Content,
    Item,
    Length,
    Live,
    Local,
    Parts,
    Place,
    TypeOf,
    alike,
    weakly,
)
from .repeats import Repeats
from .static_objects import StaticObjects
from .stores import Stores
from .torch_settings import OTHERS, PRECISIONS, READERS, SETTINGS, TELLS_WHO_WATCHES, WRITERS

__all__ = [
    "CHANGING",
    "C_FUNCTIONS",
    "DEEP",
    "DESCRIPTORS",
    "HOLLOW",
    "LEAVES",
    "MAX_NESTED",
    "MISSING",
    "MODULE",
    "NOT_PLAIN",
    "UNKNOWN",
    "Lookups",
    "Super",
    "inside",
    "is_bound_getter",
    "is_iterator_in_c",
    "package_of",
    "parts_of",
    "readers_among",
]

_OURS = __name__.partition(".")[0]
MISSING = Item.MISSING
"""There is nothing at that key."""
UNKNOWN: Any = type("_Unknown", (), {})()
"""Nobody knows what it is, without running code of the program."""
LEAVES = frozenset(
    map(
        address,
        (int, bool, float, complex, str, bytes, type(None), range, type(Ellipsis)),
    )
)
"""Addresses of classes; nothing stands behind their values. A class itself is not asked for its
hash, which a metaclass may define."""
_TORCH_LEAVES = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)

HOLLOW = LEAVES | set(
    map(
        address,
        (
            torch.Tensor,
            torch.nn.Parameter,
            torch.dtype,
            torch.device,
            types.ModuleType,
            type,
            type(UNKNOWN),
        ),
    )
)
"""The same for those in which C code finds no other object of the program."""

_WITHOUT_SPECIALS = CLOSED | {_OURS}
MAX_ITEMS = 4096
MAX_NESTED = 3
DEEP = sys.maxsize
"""Code in C looks into what it is given as deep as that goes."""
NAMES = ("__name__", "__qualname__", "__module__")
"""Attributes that name a class. CPython does not keep them in its ``__dict__``."""
_MAX_WALKED = 200_000
# A longer container is not compared in each call: who reads all of it stays eager.
_MAX_COMPARED = 65_536
MODULE = torch.nn.Module
"""Whose lookups are in Python, and known here."""
# Dynamo adds this attribute to the class of modules when it first compiles anything, and asks
# whether it is false. It is there before a graph counts the attributes of that class.
_FIRST_COMPILATION = "___needs_generation_tag_patch"
NOT_PLAIN = (torch.Tensor, MODULE, type, types.ModuleType, types.FunctionType)
"""What C code is given as a whole, and does not look into."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_ALL: dict[str, dict[Any, Any]] = {
    f"torch.nn.modules.module.{name}": held
    for name in (f"_global{hooks}" for hooks in _HOOKS)
    if type(held := getattr(torch.nn.modules.module, name, None)) is OrderedDict
}
_SETATTR_OF_MODULE = raw.namespace(MODULE)["__setattr__"]
_GETATTR_OF_MODULE = raw.namespace(MODULE)["__getattr__"]
# What a function of `inspect` names that asks who has called it, or what error is handled.
_LOOKS_AROUND = frozenset({"_getframe", "currentframe", "exc_info", "exception"})
_GETITEM_OF_TUPLE = raw.namespace(tuple)["__getitem__"]
_OF_TENSORS = (
    *("grad", "_grad", "is_leaf", "grad_fn", "_grad_fn", "retains_grad", "output_nr", "_base"),
    *("_backward_hooks", "_post_accumulate_grad_hooks"),
)
_ONLY_READING = (
    *("get", "items", "keys", "values", "copy", "count", "index"),
    *("__getitem__", "__contains__", "__len__", "__iter__"),
)
# They move items, and compare or show none.
_SHALLOW = frozenset(
    (
        *("get", "items", "keys", "values", "copy", "__getitem__", "__len__", "__iter__"),
        *("setdefault", "update", "pop", "popitem", "clear", "move_to_end", "__reversed__"),
        *("append", "appendleft", "extend", "extendleft", "insert", "popleft", "reverse"),
        *("rotate", "add", "discard", "__setitem__", "__delitem__", "__init__"),
    )
)
_TAKING = ("pop", "popitem", "clear", "move_to_end", "__delitem__")
_VIEWS: Any = (type({}.keys()), type({}.values()), type({}.items()), types.MappingProxyType)
CHANGING = (dict, list, deque, set)
"""Containers that are places."""
C_FUNCTIONS: tuple[type, ...] = (
    types.BuiltinFunctionType,
    type(_queue.SimpleQueue().get),  # bound methods that know the class in which they are
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
)
"""The kinds of functions in C."""
_GETTERS = operator.attrgetter, operator.itemgetter, operator.methodcaller
# Functions in C that a class may have in the place of a method, and which do not get its instance.
_IN_CLASSES = types.BuiltinFunctionType, types.MethodWrapperType, functools.partial, *_GETTERS


DESCRIPTORS: tuple[type, ...] = (property, staticmethod, classmethod)
"""Those in C that hold functions, and can be initialized once more."""

STAND_INS: set[int] = set()
"""Addresses of classes of ours whose objects stand for a callable, ``__wrapped__``, which has the
attributes that they do not have."""


def behind(item: Any, name: Any) -> Any:
    """The object that has the attribute ``name`` of ``item``, or gets it."""
    while address(type(item)) in STAND_INS:
        own = raw.attributes(item) or {}
        if name in own or any(name in raw.namespace(base) for base in raw.mro(type(item))[:-1]):
            break
        item = own["__wrapped__"]
    return item


class Lookups:
    """The objects that a run knows, and the places that it has read.

    Args:
        fresh: what belongs to the run although it was made before: its static inputs.
        given: what the run is given beside these; what it reads of that are places, too.

    Attributes:
        places: by what they are a place of.
        no_hooks: hooks of modules that had none, which torch counts.
        asks_settings: whether settings of torch may have been asked for.
        asks_who_watches: whether it may have been asked which modes are on, or who traces.
        stores: where the run has stored something.
    """

    def __init__(
        self,
        fresh: Sequence[object],
        given: StaticObjects,
        outside: Callable[[], int] | None = None,
        stores: Stores | None = None,
    ) -> None:
        self.places: dict[Any, Place] = {}
        self._repeats = Repeats(outside)
        # What all frames that run the same code find: in global variables, classes and cells.
        self._common: set[int] = set()
        self._asking_for: tuple[str, int] | None = None  # the line, where it is not that of now
        self.no_hooks: dict[int, Container] = {}
        # What gives the settings that may have been asked for.
        self._settings: dict[str, Callable[[], Any]] = {}
        # What those of torch were when the run began.
        self._settings_before: dict[str, Any] = {}
        self.asks_settings = self.asks_who_watches = False
        self._settings_met: dict[tuple[Any, ...], int] = {}
        self._fresh = set(map(address, fresh))
        self._stored: set[int] = set()
        self.stores = Stores() if stores is None else stores
        self._stores_in_arguments = False
        self._given = given
        self._known: dict[int, tuple[Any, str]] = {}
        self._functions: dict[int, tuple[types.CodeType, list[types.FunctionType]]] = {}
        self._types: dict[tuple[int, str], tuple[type, Any]] = {}
        self._spaces: dict[int, tuple[Any, Any]] = {}
        self._ways: dict[tuple[int, str], Way] = {}
        self._members: dict[tuple[int, str], _Member] = {}
        # Classes whose methods have begun to run, with the code of these.
        self._callees: dict[tuple[int, int], tuple[type, types.CodeType]] = {}
        # Classes, and their special methods that are methods in C of other objects.
        self._methods_in_c: dict[int, tuple[type, list[Any]]] = {}
        self._since: Since | None = None
        # Whether the instruction only counts; and whether one has.
        self._counting = self._has_counted = False
        #: What code in C has read of an object, of what came with it, and of what these lead to.
        self._read_whole: dict[int, tuple[Any, ...]] = {}
        self._sets: Counter[Any] = Counter()
        # Of containers that the run has changed what they held, and how many.
        self._before: dict[int, tuple[Content, Length]] = {}
        # Dicts from which something was taken: where it stands afterwards is another matter.
        self._taken_from: set[int] = set()
        # Attributes that objects have in C, and that are set: what they were, and where.
        self._set_in_c: dict[tuple[int, str], SetInC | InitializedInC] = {}

    def where(self, of_program: bool = False) -> tuple[str, int]:
        """File and line of the code that reads now; ``("", 0)``: none does.

        ``of_program``: of what has called torch, where that is code of torch.
        """
        return "", 0

    def _functions_with(self, code: types.CodeType) -> list[types.FunctionType]:
        """Those that are known."""
        return self._functions.get(address(code), (code, []))[1]

    def _place_of_parts(self, function: Any) -> None:
        if self._is_made(function):
            return  # each call makes a new one, and nothing outside of it can change that
        self._place(("parts", address(function)), lambda: Parts(self._path(function), function))

    def _know(self, value: Any, path: str) -> Any:
        at = address(value)
        if at in self._known or address(type(value)) in LEAVES:
            return value
        if at in READERS:
            self.asks_settings = True
        if at in WRITERS:
            self.stores.sets_settings = True
        if at in TELLS_WHO_WATCHES:
            self.asks_who_watches = True
        for name, getter in OTHERS.get(at, ()):
            self._setting(name, getter)
        if at in self._fresh or raw.is_a(value, *_TORCH_LEAVES):
            return value
        if package_of(type(value)) == _OURS:
            # It changes with every call; what matters is the function inside.
            self._know((raw.attributes(value) or {}).get("__wrapped__"), path)
            return value
        self._known[at] = value, path
        if at in self.stores.when_met:
            self.stores.when_met.pop(at)()
        kind = type(value)
        for name, getter in in_c.settings_of(value):
            self._setting(name, getter)
        if raw.is_a(value, torch.Tensor):
            self.places[("tensor", address(value))] = Attributes(path, value)
        elif kind is types.FunctionType:
            code = value.__code__
            for name, getter in OTHERS.get(address(code), ()):  # one that torch has made of it
                self._setting(name, getter)
            self._functions.setdefault(address(code), (code, []))[1].append(value)
            self._know(value.__dict__.get("__wrapped__"), path)
        elif kind is types.MethodType:
            self._know(value.__func__, path)
            self._know(value.__self__, path)
        elif raw.is_a(value, types.BuiltinFunctionType, types.MethodWrapperType):
            self._know(value.__self__, path)  # the collector may not know it
        elif kind is staticmethod or kind is classmethod:
            self._know(value.__func__, path)
        elif raw.is_a(value, property):
            own = raw.namespace(property)
            for part in ("fget", "fset", "fdel"):
                self._know(own[part].__get__(value), path)
        elif kind is functools.cached_property:
            self._know(value.func, path)
        elif kind is functools._lru_cache_wrapper:
            self._know(value.__wrapped__, path)
        elif raw.is_a(value, functools.partial):
            own = raw.namespace(functools.partial)
            for part in ("func", "args", "keywords"):
                found = own[part].__get__(value)
                self._know(found, path)
                self._content(found, 1, path)
        elif raw.is_a(value, tuple, frozenset) and raw.length(value) <= MAX_ITEMS:
            for n, item in enumerate(_members(value)):
                self._know(item, f"{path}[{n}]")
        return value

    def _setting(self, name: str, getter: Callable[[], Any]) -> None:
        key = ("setting", name)
        self._live(key, getter, name)
        self._settings[name] = getter
        place = self.places[key]
        if isinstance(place, Live):  # in a region of autocast that the run has entered, say
            place.value = self._settings_before.get(name, place.value)

    def _is_state(self, item: Any) -> bool:
        at = address(item)
        if at in self._known:
            return True
        if at in self._given.objects:  # made by the run; the collector may not know it
            self._know(item, raw.name_of(type(item)))
            return True
        if not gc.is_tracked(item) or at in self._fresh or self._is_made(item):
            return False
        if package_of(type(item)) != _OURS:  # which looks on
            self._know(item, raw.name_of(item if raw.is_a(item, type) else type(item)))
            return at in self._known
        return False

    def _is_made(self, item: Any) -> bool:
        at = address(item)
        if at in self._known or at in self._given.objects or not gc.is_tracked(item):
            return False
        return self._since is not None and self._since.made(item)

    def _held(self, value: Any, path: str) -> Any:
        """Know the value of a place as state, unless the run itself has made it."""
        if value is MISSING:
            return value
        if self._is_made(value):
            if type(value) is not tuple or not all(map(raw.is_scalar, value)):
                self._repeats.doubts += 1  # the run has put it there, and may change what is in it
            return value
        return self._know(value, path)

    def _path(self, item: Any) -> str:
        found = self._known.get(address(item))
        return found[1] if found is not None else raw.name_of(type(item))

    def _place(self, key: Any, make: Callable[[], Place]) -> Place:
        place = self.places.get(key)
        return self._read_new(key, make()) if place is None else self._read_again(place)

    def _read_new(self, key: Any, place: Place) -> Place:
        self.places[key] = place
        place.number = len(self.places) - 1
        place.counts = self._counting
        place.where = self._asking_for or self.where()
        self._repeats.read.append(place)
        return place

    def _read_again(self, place: Place) -> Place:
        if place.counts:
            place.counts = self._counting
        self._repeats.read.append(place)
        return place

    def _read(self, container: Any, key: Any, path: str) -> Any:
        """The value at ``key``, which is a place from now on."""
        if not raw.is_scalar(key):
            self._content(container, 0)
            return UNKNOWN
        container = self._owner_of(container)
        if container is MODULE and key == "__init__":
            return raw.namespace(MODULE)[key]  # torch replaces it when it first compiles
        if address(container) in self._before and raw.is_a(container, list):
            self._content_of(container, self._path(container))
        identity = ("item", address(container), raw.token(key))
        place = self.places.get(identity)
        if place is None:
            place = Item.of(path, container, key, identity)
            value = place.value
            whole = self.places.get(("content", address(container)))
            if isinstance(whole, Content):
                # All was read, so what stands there now is that, or what the run has put there.
                self._repeats.read.append(whole)
                if value is whole.held_at(key):
                    return self._held(value, path)
                self._repeats.doubts += 1
                return value
            self._read_new(identity, place)
        else:
            self._read_again(place)
            value = place.read()  # type: ignore[attr-defined]
        # What the run has put there is known for what it is: the collector does not know arrays.
        if place.stored:
            self._repeats.doubts += 1
            return value
        return self._held(value, path)

    def _content(self, item: Any, depth: int, path: str = "") -> None:
        """All that ``item`` holds was read, if it is a container; and what is in there.

        ``path``: how that is reached which has no other name; default: that of ``item``.
        """
        todo = [(item, depth, path)]
        seen: dict[int, int] = {}
        for item, depth, path in todo:  # which grows meanwhile
            is_open = address(type(item)) not in HOLLOW and not raw.is_a(item, Unread)
            if is_open and seen.get(address(item), -1) < depth:
                seen[address(item)] = depth
                todo += self._content_of_one(item, depth, path)
            if len(seen) > _MAX_WALKED:
                self._refuse(f"more than {_MAX_WALKED:,} objects that {self._path(item)} leads to")
                return

    def _content_of_one(self, item: Any, depth: int, path: str) -> Iterable[tuple[Any, int, str]]:
        """The same for one object; gives what is to be looked at as well."""
        self._special(item)
        while raw.is_a(item, *_VIEWS):
            path = path or self._path(item)
            (inner,) = gc.get_referents(item)
            item = self._know(inner, path) if self._is_state(item) else inner
        is_changing = raw.is_a(item, *CHANGING)
        if not is_changing and not raw.is_a(item, tuple, frozenset):
            return self._content_in_c(item, depth)
        is_long = raw.length(item) > _MAX_COMPARED
        if is_changing and self._is_state(item):
            if raw.is_a(item, collections.defaultdict):
                self._attribute(item, "default_factory")
            owner = self._owner_of(item)
            path_of_owner = self._path(item) if owner is item else raw.name_of(owner)
            if is_long:
                self._refuse(f"all of {path_of_owner}, which has more than {_MAX_COMPARED:,} items")
            else:
                self._content_of(owner, path_of_owner)
        if not depth or is_long:
            return ()
        path = path or self._path(item)
        return [(value, depth - 1, path) for value in inside(item)]

    def _write(self, *items: Any) -> None:
        """Code in C writes ``items`` in a text, and all that they hold, however deep: with the
        names of classes, functions and modules."""
        todo = [(item, "") for item in items]
        met: set[int] = set()
        for item, path in todo:  # which grows meanwhile
            is_nothing = address(type(item)) in LEAVES
            if is_nothing or item is UNKNOWN or address(item) in met:
                continue
            met.add(address(item))
            self._note_name(item)
            self._content(item, 0, path)
            path = path or self._path(item)
            todo += [(part, path) for part in _written(item)]

    def _note_name(self, item: Any) -> None:
        """Code in C writes the name of ``item``, or that of its class."""
        if raw.is_a(item, types.FunctionType):
            self._attribute(item, "__qualname__")
        elif in_c.is_number(item):
            self._live(*heard.of_text())
        named = item if raw.is_a(item, type) else type(item)
        if raw.is_mutable(named) and not self._is_made(named) and package_of(named) not in CLOSED:
            for name in NAMES:
                self._attribute_of_class(named, name)

    def _content_in_c(self, item: Any, depth: int) -> Iterable[tuple[Any, int, str]]:
        """The run reads the state that ``item``, which is no container, keeps in C."""
        if in_c.is_array(item) or in_c.is_number(item):
            self._calculates()
        if raw.is_a(item, types.BuiltinFunctionType, types.MethodWrapperType):
            if depth and not raw.is_a(item.__self__, *NOT_PLAIN):
                self._is_state(item)  # the collector may not know its owner
                return [(item.__self__, depth - 1, "")]  # it reads its owner when it is called
        elif raw.is_a(item, functools.partial):
            if self._is_state(item):
                self._place_of_parts(item)
            return [(part, depth - 1, "") for part in parts_of(item) if depth]
        elif raw.is_a(item, types.SimpleNamespace):
            own = raw.attributes(item) or {}
            own = self._know(own, self._path(item)) if self._is_state(item) else own
            return [(own, depth, self._path(item))]
        elif type(item) is functools._lru_cache_wrapper:  # of which code in C may ask for all
            if self._is_state(item):
                return [(value, depth - 1, "") for value in self._cached(item) if depth]
        elif type(item) is slice:
            return [(part, depth, "") for part in (item.start, item.stop, item.step)]
        elif raw.is_a(item, *_OF_TYPES):
            if self._is_state(item):  # the collector may not know its arguments
                for part in gc.get_referents(item):
                    self._know(part, self._path(item))
            return [(part, depth - 1, "") for part in gc.get_referents(item) if depth]
        elif type(item) is types.CellType:
            return (
                [(self._read(item, 0, self._path(item)), depth, "")] if self._is_state(item) else ()
            )
        elif in_c.is_hidden(item) and self._is_state(item):
            read = in_c.reader_of(item)
            if read is None:
                self._hidden(_named(self._path(item), type(item)))
                return ()
            self._live(("buffer", address(item)), read, self._path(item))
            if in_c.is_array(item):  # such as the mask of one
                return [(self._know(raw.attributes(item) or {}, self._path(item)), 1, "")]
            if depth and raw.is_a(item, BaseException):
                return [(item.args, depth - 1, f"{self._path(item)}.args")]
        return ()

    def _cached(self, cache: Any) -> list[Any]:
        """A cache may answer without running: then what it keeps is what was read."""
        kept = in_c.Kept(cache)
        self._repeats.doubts += 1  # it asks which objects it is given
        self._live(("cache", address(cache)), kept.now, self._path(cache))
        return [self._know(value, self._path(cache)) for value in kept.values()]

    def _calculates(self) -> None:
        """Code of NumPy calculates. What it does about errors, it asks nobody else for."""
        for name, getter in in_c.errors_of_numpy():
            self._setting(name, getter)
        self._may_warn()

    def _may_warn(self) -> None:
        """Code in C may warn of something."""

    def _hidden(self, what: str) -> None:
        """The run reads ``what``, of which nobody can see whether it changes."""

    def _refuse(self, what: str) -> None:
        """The run reads ``what``, which is not seen, or too much to be compared in each call."""

    def _by_descriptor(self, item: Any, found: Any) -> None:
        """Code in C, or code that is not looked at, gives an attribute of what was there before."""
        if not raw.is_a(found, property):
            if not raw.is_mutable(type(found)):  # as a field of a structure of ctypes
                self._content(item, 0)
            return
        get = raw.namespace(property)["fget"].__get__(found)
        if type(get) is types.FunctionType:
            if is_closed(str(get.__globals__.get("__name__", ""))):
                if in_c.is_array(item):  # such as the mask of one, or its memory
                    self._content(item, 0)
                self._closed_reads(item, get, MAX_NESTED)
        elif raw.is_a(get, operator.attrgetter, operator.itemgetter):
            self._getter(get, item)
        elif get is not None:
            self._called_by_c(get, item)
            if not raw.is_a(item, *NOT_PLAIN) and _is_open(item):
                self._attributes(item)
                self._content(item, 1)

    def _closed_reads(self, item: Any, function: types.FunctionType, depth: int) -> None:
        """A method whose code is not looked at is about to run with ``item``: what its code names
        of that is read, unless it is stored there first."""
        if raw.is_a(item, *NOT_PLAIN) or not function.__code__.co_argcount:
            return
        if address(type(item)) in LEAVES or not self._is_state(item):
            return
        first = "local", function.__code__.co_varnames[0]
        steps = list(bytecode.read(function.__code__).steps.values())
        stores = [s[2:] for s in steps if s[:2] == ("store", "attribute")]
        stored = {name for base, name in stores if base is not None and base[:2] == first}
        reads = [s[1:] for s in steps if s[0] == "attribute"]
        found = [name for base, name in reads if base is not None and base[:2] == first]
        for name in dict.fromkeys(found):
            value = UNKNOWN if name in stored else self._attribute(item, name)
            if type(value) is types.MethodType and type(value.__func__) is types.FunctionType:
                if depth and is_closed(str(value.__func__.__globals__.get("__name__", ""))):
                    self._closed_reads(item, value.__func__, depth - 1)
            elif raw.is_a(value, *CHANGING):
                self._content(value, 0)

    def _content_of(self, item: Any, path: str) -> None:
        before, _ = self._before.get(address(item), (None, None))
        place = self._place(
            ("content", address(item)), lambda: before or self._content_before(item, path)
        )
        for key, value in place.held:  # type: ignore[attr-defined]
            self._held(value, place.name(key))  # type: ignore[attr-defined]

    def _content_before(self, item: Any, path: str) -> Content:
        """All that a container held before the run, which may have stored something in it since."""
        content = Content(path, Container(path, item))
        if address(item) in self._stored:
            for place in list(self.places.values()):
                if isinstance(place, Item) and place.container is item:
                    content.held_before(place.key, place.value)
        return content

    def _owner_of(self, container: Any) -> Any:
        """The class in place of the dict behind it, in which nobody may write."""
        if type(container) is not dict:
            return container
        known = self._spaces.get(address(container))
        if known is None:
            owner = raw.class_with(container)
            known = container, container if owner is None else owner
            self._spaces[address(container)] = known
        return known[1]

    def _lookup(self, cls: type, name: str) -> Any:
        """What stands in a class or its bases; each class that was asked is a place."""
        known = self._types.get((address(cls), name))
        # A number that is more than counted is a place that is asked for again.
        if known is not None and (self._counting or not self._has_counted):
            return known[1]
        self._place_of_bases(cls)
        found: Any = MISSING
        for base in raw.mro(cls):
            space = raw.namespace(base)
            if not raw.is_mutable(base):
                found = space.get(name, MISSING)
            elif package_of(base) in CLOSED and name not in space:
                self._place_of_members(base)  # few add to the classes of torch: one question
            else:
                path = f"{raw.name_of(base)}.{name}"
                found = self._read(base, name, path)
            if found is not MISSING:
                self._descriptor(found, base)
                break
        self._types[address(cls), name] = cls, found
        return self._is_for_all(found)

    def _descriptor(self, found: Any, base: type | None = None) -> None:
        """What stands in the class ``base`` may give an attribute by functions that it holds."""
        if raw.is_a(found, *DESCRIPTORS) and (base is None or package_of(base) not in CLOSED):
            self._place_of_parts(found)

    def _place_of_bases(self, cls: type) -> None:
        if raw.is_mutable(cls) and package_of(cls) not in CLOSED:
            self._place(
                ("bases", address(cls)), lambda: Bases(f"{raw.name_of(cls)}.__bases__", cls)
            )

    def _place_of_members(self, cls: type) -> None:
        space = raw.dict_of(cls)
        if cls is MODULE and _FIRST_COMPILATION not in space:
            setattr(cls, _FIRST_COMPILATION, True)
        self._place(("length", address(space)), lambda: Length(raw.name_of(cls), space, cls))

    def _special(self, item: Any) -> None:
        """An operation with ``item`` calls what its class has, or may get: ``__bool__``,
        ``__eq__``."""
        self._place_of_class(item)
        self._special_of(type(item))

    def _place_of_class(self, item: Any) -> None:
        """Watch the class of ``item``, if a program can assign another one."""
        if raw.is_mutable(type(item)) and self._is_state(item):
            self._place_of_dict(item)

    def _place_of_dict(self, item: Any) -> None:
        """Watch which dict the attributes of ``item`` lie in, and its class."""
        if type(item) is not types.ModuleType:  # which keeps both
            path = f"{self._path(item)}.__class__"
            self._place(("type", address(item)), lambda: TypeOf(path, item))

    def _special_of(self, cls: type) -> None:
        """The same for an object of the class ``cls``."""
        if not raw.is_mutable(cls) or package_of(cls) in _WITHOUT_SPECIALS or self._is_made(cls):
            return
        self._place_of_bases(cls)
        for base in raw.mro(cls):
            if raw.is_mutable(base) and package_of(base) not in CLOSED:
                self._place_of_members(base)
        if address(cls) not in self._methods_in_c:
            self._methods_in_c[address(cls)] = cls, _methods_in_c(cls)
        for method in self._methods_in_c[address(cls)][1]:
            self._called_by_c(method)

    def _called_by_c(self, function: Any, *given: Any) -> None:
        """Code in C calls ``function``, as a getter of a property with what is ``given``. Without
        that, nobody sees with what."""
        self._content(function, DEEP)
        if given or not raw.is_a(function, *_GETTERS):
            self._refuse(self._by_readers([function, *given]))
        else:
            self._refuse(f"what code in C gives to an operator.{raw.name_of(type(function))}")

    def _attribute(self, item: Any, name: str, generic: bool = False) -> Any:
        """The value of an attribute, found without running any code of the program."""
        item = behind(item, name)
        if type(item) is Super:
            return self._attribute_of_super(item, name)
        if type(item) is super:  # one that was kept
            if self._is_state(item):
                self._place_of_parts(item)
            own = raw.namespace(super)
            of = own["__self__"].__get__(item)
            return self._attribute_of_super(Super(own["__thisclass__"].__get__(item), of), name)
        if type(item) is Counted:
            item.use()
            return UNKNOWN
        if type(item) is types.FrameType:
            self._attribute_of_frame(item, name)
        if name == "requires_grad_" and raw.is_a(item, torch.Tensor) and self._is_state(item):
            self._repeats.stop()  # what is asked of a tensor is no place
        way = self._ways.get((address(item), name))
        if way is not None and way.holds():
            self._repeats.read.append(way)
            return way.value
        if name == "fp32_precision":  # objects of torch.backends give it; these are asked for more
            for setting, getter in PRECISIONS:
                self._setting(setting, getter)
        if address(item) in self._fresh:
            self._attribute_of_input(item, name)
        if not self._has_counted and not self._is_state(item):
            value = self._attribute_of_made(item, name)
            if value is not MISSING:
                return value
        if raw.is_a(item, types.ModuleType):
            return self._attribute_of_space(item, name)
        if raw.is_a(item, type):
            return self._attribute_of_class(item, name)
        cls = type(item)
        is_state = self._is_state(item)
        path = f"{self._path(item)}.{name}"
        if cls is types.FunctionType or cls is types.MethodType:
            return self._attribute_of_function(item, name, path)
        if cls is types.CellType and name == "cell_contents":
            return self._or_unknown(self._read(item, 0, path))
        overridden = self._lookup(cls, "__getattribute__")
        if raw.is_a(overridden, *_IN_CLASSES):
            self._called_by_c(overridden)
            return UNKNOWN
        if type(overridden) is types.FunctionType and not generic:
            if is_state and is_closed(str(overridden.__globals__.get("__name__", ""))):
                self._content(item, 1)
            return UNKNOWN
        self._place_of_class(item)
        found = self._lookup(cls, name)
        if is_state and name in _OF_FRAMES and address(cls) in _WITH_FRAMES:
            self._hidden(f"how far a frame has come: {path}")
        if type(found) is types.MemberDescriptorType:
            return self._in_slot(item, found, name, path, is_state)
        if type(found) is types.GetSetDescriptorType:
            return self._getset(item, found, name, path, is_state)
        return self._attribute_beside(item, found, name, path, is_state, generic)

    def _attribute_of_frame(self, frame: types.FrameType, name: str) -> None:
        """Those of the callers are not the function's, and nothing tells of their changes."""
        back = frame.f_back if name == "f_back" else None
        if _is_of_caller(frame) or (back is not None and _is_of_caller(back)):
            self._hidden(f"the frames of its callers: {name}")

    def _in_slot(self, item: Any, found: Any, name: str, path: str, is_state: bool) -> Any:
        """What a slot holds."""
        owner = weakly(item)

        def get() -> Any:
            try:
                return found.__get__(owner())
            except (AttributeError, TypeError):  # not set; or its object is gone
                return MISSING

        def put(value: Any) -> None:
            if value is MISSING:
                found.__delete__(owner())
            else:
                found.__set__(owner(), value)

        if is_state:
            return self._live(("slot", address(item), name), get, path, put)
        # A slice is no place, but what it holds may be.
        return get() if self._is_made(item) else self._held(get(), path)

    def _attribute_beside(
        self, item: Any, found: Any, name: str, path: str, is_state: bool, generic: bool
    ) -> Any:
        """An attribute whose class has ``found`` under this name; that may be nothing."""
        cls, kind = type(item), type(found)
        if kind is collections._tuplegetter and raw.is_a(item, tuple):  # type: ignore[attr-defined]
            return tuple.__getitem__(item, found.__reduce__()[1][0])
        if raw.is_mutable(kind):  # it may become a descriptor
            self._special(found)
        if raw.is_a(found, functools.cached_property):
            get = (raw.attributes(found) or {}).get("func")
            if type(get) is not types.FunctionType:
                self._called_by_c(get, item)
        if found is not MISSING and _sets(kind):
            self._by_descriptor(item, found)  # of a property: its code is seen when it runs
            return UNKNOWN
        if raw.is_a(item, threading.local):
            place = self._place(("local", address(item), name), lambda: Local(path, item, name))
            value = self._held(place.read(), path)  # type: ignore[attr-defined]
            return _bound(found, item, cls) if value is MISSING else value
        own = raw.attributes(item)
        if own is not None:
            if is_state and not raw.is_mutable(cls):  # of the others it was asked with their class
                self._place_of_dict(item)
            if is_state and raw.is_a(item, MODULE) and name not in own and _holds(own, name):
                # One question for all its children, which an attribute of that name would hide.
                self._place(("length", address(own)), lambda: Length(self._path(item), own))
            # An object of ours is no state, but what the program sets of it is.
            value = self._in_space(own, name, path, is_state or package_of(cls) == _OURS)
            if value is not MISSING:
                if not generic:
                    self._keep_way(item, name, own, own, value)
                return value
        if found is not MISSING:
            value = _bound(found, item, cls)
            if (kind is types.FunctionType or found is None) and own is not None and not generic:
                self._keep_way(item, name, own, None, value)
            return value
        if raw.is_a(item, MODULE) and own is not None:
            # Another `__getattr__` is seen when it runs, and that of torch when it is called.
            if self._lookup(cls, "__getattr__") is not _GETATTR_OF_MODULE:
                return UNKNOWN
            value, registry = self._registered(item, name, own, is_state)
            if registry is not None:
                if not generic:
                    self._keep_way(item, name, own, registry, value)
                return value
        get = self._lookup(cls, "__getattr__")
        if type(get) in C_FUNCTIONS and raw.is_a(item, dict):
            return self._item_of(item, name)  # class D(dict): __getattr__ = dict.__getitem__
        self._special(item)
        return UNKNOWN

    def _child_of_module(self, module: Any, name: str) -> None:
        """Note the registries that ``nn.Module.__getattr__`` reads."""
        way = self._ways.get((address(module), name))
        own = raw.attributes(module)
        if way is not None and way.holds() and way.space is not way.own:
            self._repeats.read.append(way)
            return
        if own is not None:
            self._registered(module, name, own, self._is_state(module))

    def _registered(
        self, module: Any, name: str, own: dict[str, Any], is_state: bool
    ) -> tuple[Any, Any]:
        """A child, parameter or buffer, and the registry that holds it; ``None``: none does."""
        path = f"{self._path(module)}.{name}"
        held: list[Any] = [own.get(registry) for registry in REGISTRIES]
        for key, registry in zip(REGISTRIES, held, strict=True):
            if raw.is_a(registry, dict) and dict.__contains__(registry, name):
                if is_state:
                    self._read(own, key, f"{self._path(module)}.{key}")
                return self._in_space(registry, name, path, is_state), registry
        for key, registry in zip(REGISTRIES, held, strict=True) if is_state else ():
            if raw.is_a(registry, dict):
                self._read(own, key, f"{self._path(module)}.{key}")
                self._read(registry, name, path)
        return UNKNOWN, None

    def _forget_lookups(self) -> None:
        """A class is about to change: what was found in classes may be something else then."""
        self._types.clear()
        self._ways.clear()
        self._members.clear()
        self._callees.clear()
        self._methods_in_c.clear()
        self._repeats.stop()

    def _attribute_of_made(self, item: Any, name: str) -> Any:
        """The value of an attribute of what the run has made, where its class says how to find it;
        :data:`MISSING`: it does not."""
        cls = type(item)
        member = self._members.get((address(cls), name))
        if member is None:
            member = self._members[address(cls), name] = self._member(item, cls, name)
        if member.get is None:
            return MISSING
        own = member.get(item) or {}
        # Of another object, maybe, whose `__dict__` it shares.
        if address(own) in self._known or (self._given and own in self._given):
            value = self._read(own, name, f"{self._path(own)}.{name}")
        else:
            value = own.get(name, MISSING)
        if value is not MISSING:
            return value
        found = member.found
        return found if found is MISSING or found is UNKNOWN else _bound(found, item, cls)

    def _attribute_of_input(self, item: Any, name: str) -> None:
        """An attribute of a tensor of the call, which its static input may not have."""
        if not raw.is_a(item, torch.Tensor):
            return
        if name in _NEVER_OF_INPUTS:
            what = f"asks for the attribute {name} of a tensor, which a static input never has"
            self._given.refuse(what, self.where())
        elif name == "__dict__" or self._lookup(type(item), name) is MISSING:
            self._given.asks_attributes = True

    def _member(self, item: Any, cls: type, name: str) -> _Member:
        odd = _Member(cls, None, MISSING)
        if raw.is_a(item, *_WITH_OTHER_LOOKUPS):
            return odd
        if type(self._lookup(cls, "__getattribute__")) is types.FunctionType:
            return odd
        found = self._lookup(cls, name)
        kind = type(found)
        if kind is types.GetSetDescriptorType and cls is torch.Tensor and name[:2] != "__":
            return _Member(cls, lambda item: None, UNKNOWN)
        if raw.is_mutable(kind) or (found is not MISSING and _sets(kind)):
            return odd
        return _Member(cls, raw.getter_of_attributes(item), found)

    def _keep_way(
        self, item: Any, name: str, own: dict[str, Any], space: dict[str, Any] | None, value: Any
    ) -> None:
        """Remember where an attribute of a known object was found."""
        is_made = space is not None and self._is_made(value)
        if address(item) in self._known and not self._counting and not is_made:
            get = raw.getter_of_attributes(item)
            if get is not None:
                self._ways[address(item), name] = Way(
                    item, name, get, own, space, value, len(self.places)
                )

    def _in_space(self, space: dict[str, Any], name: str, path: str, is_state: bool) -> Any:
        if not is_state and address(space) not in self._known:
            return dict.get(space, name, MISSING)
        if ("length", address(space)) in self.places and _holds(space, name) and name not in space:
            return MISSING
        return self._read(space, name, path)

    def _attribute_of_super(self, item: Super, name: str) -> Any:
        cls = item.of if raw.is_a(item.of, type) else type(item.of)
        bases = list(raw.mro(cls))
        self._place_of_class(item.of)
        at = next((n for n, base in enumerate(bases) if base is item.after), None)
        if at is None:
            return UNKNOWN
        for base in bases[at + 1 :]:
            space = raw.namespace(base)
            if raw.is_mutable(base) and not (package_of(base) in CLOSED and name not in space):
                value = self._read(base, name, f"{raw.name_of(base)}.{name}")
            else:
                value = space.get(name, MISSING)
            if value is not MISSING:
                self._descriptor(value, base)
                return _bound(value, item.of, cls)
        return UNKNOWN

    def _attribute_of_space(self, module: types.ModuleType, name: str) -> Any:
        self._class_asked(module)
        if name == "__dict__":
            return self._know(module.__dict__, _name_of_module(module))
        if type(module) is not types.ModuleType and _sets(type(self._lookup(type(module), name))):
            return UNKNOWN  # a property
        value = self._read(module.__dict__, name, f"{_name_of_module(module)}.{name}")
        self._is_for_all(value)
        if value is not MISSING:
            self._keep_way(module, name, module.__dict__, module.__dict__, value)
            return value
        if type(module) is not types.ModuleType and package_of(type(module)) in CLOSED:
            # Closed code in the class of the module gives it, as that of the settings of Dynamo.
            key, path = ("attribute", address(module), name), f"{_name_of_module(module)}.{name}"
            return self._or_unknown(
                self._live(key, functools.partial(getattr, module, name, MISSING), path)
            )
        own = self._read(module.__dict__, "__getattr__", f"{_name_of_module(module)}.__getattr__")
        self._content(own, DEEP)  # a method in C reads its owner
        return _bound(self._lookup(type(module), name), module, type(module))

    def _attribute_of_class(self, cls: Any, name: str) -> Any:
        if name == "__dict__":
            if raw.is_mutable(cls):
                self._know(raw.dict_of(cls), raw.name_of(cls))
            return raw.namespace(cls)
        if name in ("__mro__", "__bases__", "__base__"):
            self._place_of_bases(cls)
            return raw.namespace(type)[name].__get__(cls)
        if name in NAMES and raw.is_mutable(cls):
            own = raw.namespace(type)[name]
            get, put = (functools.partial(f, cls) for f in (own.__get__, own.__set__))
            return self._live((name, address(cls)), get, f"{raw.name_of(cls)}.{name}", put)
        found = self._lookup(cls, name)
        if found is not MISSING:
            self._special(found)  # it may become a descriptor
            if raw.is_mutable(type(cls)):
                self._lookup(type(cls), name)  # it may get a property of that name
            return _bound(found, None, cls)
        found = self._lookup(type(cls), name)
        if found is MISSING:
            self._lookup(type(cls), "__getattr__")
        if raw.is_mutable(cls) and type(found) in _DATA_IN_C:
            return self._or_unknown(self._live(*_asked(cls, found, name, raw.name_of(cls))))
        if raw.is_a(found, property):
            self._by_descriptor(cls, found)
        return _bound(found, cls, type(cls))

    def _attribute_of_function(self, item: Any, name: str, path: str) -> Any:
        if type(item) is types.MethodType:
            if name in ("__func__", "__self__"):
                return getattr(item, name)
            item = item.__func__
        if type(item) is not types.FunctionType:
            return UNKNOWN
        if name in ("__defaults__", "__kwdefaults__", "__code__", "__closure__", "__globals__"):
            if self._is_state(item):
                self._place(("parts", address(item)), lambda: Parts(path, item))
                return self._held(getattr(item, name), path)
            return getattr(item, name)
        if name in ("__name__", "__qualname__", "__doc__", "__annotations__"):
            get = functools.partial(getattr, item, name)
            if not self._is_state(item):
                return get()
            put = functools.partial(setattr, item, name)
            return self._live((name, address(item)), get, path, put)
        if not self._is_state(item):
            return item.__dict__ if name == "__dict__" else item.__dict__.get(name, UNKNOWN)
        if name == "__dict__":
            return self._dict_of_attributes(item, item.__dict__)
        found = raw.namespace(types.FunctionType).get(name)
        if type(found) in _DATA_IN_C:
            return self._or_unknown(self._live(*_asked(item, found, name, self._path(item))))
        self._place_of_dict(item)
        return self._or_unknown(self._read(item.__dict__, name, path))

    def _getset(self, item: Any, found: Any, name: str, path: str, is_state: bool) -> Any:
        if name == "__dict__":
            own = raw.attributes(item)
            if own is None:
                return UNKNOWN
            return self._dict_of_attributes(item, own) if is_state else own
        if name == "__class__":
            self._place_of_class(item)
            return type(item)
        if is_state and raw.is_a(item, *_VIEWS):
            for inner in gc.get_referents(item):
                self._know(inner, path)
        if is_state and name in _OF_TENSORS and raw.is_a(item, torch.Tensor):
            put = functools.partial(_put, found, item) if name == "grad" else None
            return self._live((name, address(item)), lambda: _got(found, item), path, put)
        if is_state and not raw.is_a(item, *NOT_PLAIN) and _is_open(item):
            return self._data_in_c(item, found, name)
        return UNKNOWN

    def _data_in_c(self, item: Any, found: Any, name: str) -> Any:
        """Read an attribute that a descriptor in C gives, of an object from before the run."""
        if name == "base" and in_c.is_array(item):  # which nobody can change
            return self._know(found.__get__(item), f"{self._path(item)}.{name}")
        read = in_c.layout_of(item, name) or in_c.state_of_generator(item, name)
        if read is not None:
            path = f"{self._path(item)}.{name}"
            self._live(("attribute", address(item), name), read, path)
        elif in_c.is_hidden(item):
            asked = _asked(item, found, name, self._path(item))
            is_of_python = package_of(found.__objclass__) in sys.stdlib_module_names
            if is_of_python and alike(asked[1](), asked[1]()):
                return self._or_unknown(self._live(*asked))
            self._content(item, 0)
        return UNKNOWN

    def _live(
        self,
        key: Any,
        get: Callable[[], Any],
        path: str,
        put: Callable[[Any], object] | None = None,
    ) -> Any:
        """The answer of a function in C; the guard asks again. ``put`` changes it."""
        place = self._place(key, lambda: Live(path, key, get, put))
        value = place.read()  # type: ignore[attr-defined]
        return self._held(value, path)

    @staticmethod
    def _or_unknown(value: Any) -> Any:
        return UNKNOWN if value is MISSING else value

    def _call_of_module(self, module: Any) -> None:
        """What torch's own code reads when it calls a module."""
        path = self._path(module)
        self._lookup(type(module), "__call__")
        for name in ("forward", "_compiled_call_impl", "_call_impl"):
            self._attribute(module, name)
        own = raw.attributes(module) or {}
        for name, of_all in _HOOKS_OF_ALL.items():
            if of_all:
                self._content(self._know(of_all, name), 1, name)
            elif address(of_all) not in self.no_hooks:
                self.no_hooks[address(of_all)] = Container(name, of_all, None, "hooks")
        self._repeats.read.append(_NO_HOOKS_OF_ALL)
        self._hooks(own, _HOOKS, path)

    def _modules_of(self, module: Any) -> None:
        """What ``nn.Module.named_modules`` reads of a module before it goes into its children."""
        for name in ("__hash__", "__eq__"):
            self._lookup(type(module), name)
        children = self._attribute(module, "_modules")
        self._content(children, 0)
        for child in dict.values(children) if raw.is_a(children, dict) else ():
            if child is not None:
                self._attribute(child, "named_modules")

    def _hooks(self, own: dict[str, Any], names: Iterable[str], path: str) -> Empty:
        """Note the hooks of a module with these attributes; gives those of which there are none."""
        none: list[tuple[str, Any]] = []
        for name in names:
            held = own.get(name)
            if not raw.is_a(held, dict):
                continue
            known = self.no_hooks.get(address(held))
            if known is None or known.item is not held or held:
                self._read(own, name, f"{path}.{name}")
                self._know(held, f"{path}.{name}")
                if held:
                    self._content(held, 0)
                    continue
                self.no_hooks[address(held)] = Container(f"{path}.{name}", held, None, "hooks")
            none.append((name, held))
        found = Empty(own, none)
        self._repeats.read.append(found)
        return found

    def _stores_plainly(self, item: Any, kind: str) -> bool:
        """Whether no code of the program runs when something is stored in ``item``."""
        name = "__setattr__" if kind == "attribute" else "__setitem__"
        if item is UNKNOWN:
            return False
        found = self._lookup(type(item), name)
        return found is _SETATTR_OF_MODULE or type(found) is types.WrapperDescriptorType

    def _item_of(self, item: Any, at: Any) -> Any:
        kind = type(item)
        if at is not UNKNOWN and not raw.is_scalar(at):
            self._content(at, DEEP)  # it may get an ``__eq__`` or an ``__index__``
        is_tuple = kind is tuple or (
            raw.is_a(item, tuple) and self._lookup(kind, "__getitem__") is _GETITEM_OF_TUPLE
        )
        if is_tuple:
            self._is_state(item)  # the collector may not know what it holds
            return tuple.__getitem__(item, at) if _is_index(at, len(item)) else UNKNOWN
        if kind is types.MappingProxyType:
            (inner,) = gc.get_referents(item)
            if self._is_state(item):
                self._know(inner, self._path(item))
            return self._item_of(inner, at)
        self._special(item)
        if raw.is_a(item, type):
            given = self._lookup(item, "__class_getitem__")
            if raw.is_a(given, *_IN_CLASSES):
                self._called_by_c(given)
        if not raw.is_a(item, dict, list, deque):
            self._lookup(kind, "__getitem__")
            self._content(item, 0)
            return UNKNOWN
        if at is UNKNOWN or not raw.is_scalar(at):
            self._content(item, 1)
            return UNKNOWN
        if raw.is_a(item, dict):
            if not self._is_state(item):
                return dict.get(item, at, UNKNOWN)
            value = self._read(item, at, f"{self._path(item)}[{raw.written_as(at)}]")
            if value is MISSING and raw.is_a(item, collections.defaultdict):
                self._note_line(item, at)
                self._called_by_c(self._attribute(item, "default_factory"))
            return self._or_unknown(value)
        if not _is_index(at, raw.length(item)):
            if self._is_state(item):
                self._length_of(item)
            return UNKNOWN
        if raw.is_a(item, deque) or not self._is_state(item):
            self._content(item, 0)
            base: Any = deque if raw.is_a(item, deque) else list
            return base.__getitem__(item, at)
        if at < 0:
            self._length_of(item)
            at += raw.length(item)
        return self._or_unknown(self._read(item, at, f"{self._path(item)}[{at}]"))

    def _by_readers(self, items: Sequence[Any]) -> str:
        """Note what ``attrgetter`` and the like read when C code calls them.

        Returns:
            What cannot be told; ``""``: everything was noted.
        """
        found = self._gather(items)
        readers = [item for item in readers_among(found) if type(item) is not str]
        if not readers:
            return ""
        names = [str.__str__(item) for item in found if raw.is_a(item, str)]
        names = list(dict.fromkeys([*names, *"".join(names)]))  # code in C may go through a text
        # What other code in C makes of names, such as `map(str.lower, names)`, is not known.
        known = set(map(address, readers))
        is_unnamed = not names or any(
            raw.is_a(item, *C_FUNCTIONS, type, itertools.accumulate) and address(item) not in known
            for item in found
        )
        others = [item for item in found if address(type(item)) not in LEAVES]
        others += [reader.__self__ for reader in readers if type(reader) is types.MethodWrapperType]
        if len(found) > MAX_ITEMS:
            return "what thousands of objects give to operator.attrgetter() or the like"
        if any(type(item) is types.GeneratorType for item in found):
            return "what a generator gives to operator.attrgetter() or the like"
        known = set(map(address, others))
        for item in others:  # which grows: reduce(getattr, names, item)
            for reader in readers:
                by_name = reader is getattr or reader is hasattr or _gets(reader)
                if by_name and is_unnamed and raw.is_a(item, *NOT_PLAIN):
                    return f"{reader.__name__}() with names that are not known"
                if by_name and is_unnamed:
                    self._attributes(item)
                for value in self._values_by(reader, item, names) if item is not reader else ():
                    is_new = value is not UNKNOWN and address(value) not in known
                    if is_new and address(type(value)) not in LEAVES and len(others) < MAX_ITEMS:
                        known.add(address(value))
                        others.append(value)
        return ""

    def _values_by(self, reader: Any, item: Any, names: list[str]) -> list[Any]:
        """Return the values that ``reader`` reads from ``item``."""
        if raw.is_a(reader, operator.attrgetter, operator.itemgetter):
            return self._getter(reader, item)
        if raw.is_a(reader, operator.methodcaller):
            names = _names_by(reader)
        elif is_bound_getter(reader):
            return [self._by_getter(reader.__self__, item)]
        elif reader is vars or reader is dir:
            return [self._namespace_of(item)]
        return [self._attribute(item, name) for name in names]

    def _namespace_of(self, item: Any) -> Any:
        """All names that a class, a module or an object has."""
        for base in raw.mro(item) if raw.is_a(item, type) else ():
            if raw.is_mutable(base) and package_of(base) not in CLOSED:
                self._content_of(base, raw.name_of(base))
        own = None if raw.is_a(item, type) else raw.attributes(item)
        if own is None or not self._is_state(item):
            return UNKNOWN
        self._content(self._know(own, self._path(item)), 0)
        return own

    def _by_getter(self, descriptor: Any, item: Any) -> Any:
        """What a descriptor in C gives that is asked itself."""
        if not raw.is_a(item, descriptor.__objclass__):
            return UNKNOWN
        name, is_state = descriptor.__name__, self._is_state(item)
        path = f"{self._path(item)}.{name}"
        if raw.is_a(descriptor, types.MemberDescriptorType):
            return self._in_slot(item, descriptor, name, path, is_state)
        if raw.is_a(item, types.FunctionType):
            return self._attribute_of_function(item, name, path)
        if raw.is_a(item, type):
            return self._attribute_of_class(item, name)
        return self._getset(item, descriptor, name, path, is_state)

    def _gather(self, items: Sequence[Any]) -> list[Any]:
        """``items``, what they hold, and what code in C goes through; no more than can be told."""
        found = [item for item in items if item is not UNKNOWN]
        known = set(map(address, found))
        for item in found:  # which grows meanwhile
            if item is _BUILTINS:  # in a space that code was evaluated in
                continue
            is_method = type(item) is types.MethodType
            for part in (*_reached(item), *parts_of(item), *([item.__func__] if is_method else ())):
                if address(part) not in known:
                    known.add(address(part))
                    found.append(part)
            if len(found) > MAX_ITEMS:
                break
        return found

    def _everything(self, *items: Any, is_pickled: bool = False) -> None:
        """Code in C may read what it likes of ``items``, and of all that these lead to."""
        todo = [item for item in items if item is not UNKNOWN]
        seen: set[int] = set()
        whole: list[int] = []
        read = self._repeats.read
        before = len(read)
        for item in todo:  # which grows meanwhile
            if raw.is_a(item, *C_FUNCTIONS):
                item = getattr(item, "__self__", None)
            is_module = is_pickled and raw.is_a(item, MODULE)
            if address(type(item)) in LEAVES or (raw.is_a(item, *NOT_PLAIN) and not is_module):
                continue
            if address(item) in seen:
                continue
            known = self._read_whole.get(address(item))
            if known is not None:  # with all that it leads to
                seen.add(address(item))
                read += known
                continue
            if len(seen) > _MAX_WALKED:
                self._refuse(f"more than {_MAX_WALKED:,} objects that {self._path(item)} leads to")
                return
            seen.add(address(item))
            self._note_name(item)
            if self._is_state(item) and not is_pickled:
                whole.append(address(item))
            if is_pickled or raw.is_a(item, *CHANGING):
                self._content(item, 0)
            if is_module:
                self._own_attributes(item)
            self._attributes(item)
            if not raw.is_a(item, *CHANGING) or raw.length(item) <= MAX_ITEMS:
                todo += _reached(item)
            todo += parts_of(item)
            todo += inside(raw.attributes(item))
            todo += [value for _, value in Slots(item, raw.slots(item)).read()]
        self._read_whole |= dict.fromkeys(whole, tuple(dict.fromkeys(read[before:])))

    def _run_by_name_of(self, found: Any) -> None:
        """Defaults of a function that C code is about to call."""
        if type(found) is staticmethod:
            found = found.__func__
        if type(found) is types.FunctionType:
            self._place_of_parts(found)

    def _dict_of_attributes(self, item: Any, own: dict[str, Any]) -> dict[str, Any]:
        """The ``__dict__`` of an object; it is no place, and the collector may not know it."""
        self._place_of_dict(item)
        self._know(own, self._path(item))
        return own

    def _own_attributes(self, item: Any) -> None:
        """All that stands in the ``__dict__`` of ``item`` was read."""
        own = raw.attributes(item)
        if own is not None and self._is_state(item):
            self._place_of_dict(item)
            self._content(self._know(own, self._path(item)), 0)

    def _attributes(self, item: Any) -> None:
        """C code was given ``item``: all its attributes count as read, if it is a plain object."""
        if address(type(item)) in HOLLOW or raw.is_a(item, *NOT_PLAIN) or not self._is_state(item):
            return
        self._own_attributes(item)
        for name in raw.slots(item):
            self._attribute(item, name.rpartition(".")[2])
        for base in raw.mro(type(item)):
            if raw.is_mutable(base) and package_of(base) not in CLOSED:
                self._know(raw.dict_of(base), raw.name_of(base))
                self._content_of(base, raw.name_of(base))

    def _run_by_name(self, function: types.FunctionType, given: Sequence[Any]) -> None:
        """A function in Python is about to be called; the code of some is not looked at."""
        if function.__globals__.get("__name__") == "inspect":
            self._repeats.doubts += not _LOOKS_AROUND.isdisjoint(function.__code__.co_names)
            for item in given:
                self._attributes(item)
                self._run_by_name_of(item)
                if raw.is_a(item, type):
                    self._attribute_of_class(item, "__dict__")
                    self._content(raw.namespace(item), 0, raw.name_of(item))
        if is_closed(str(function.__globals__.get("__name__", ""))):
            if not is_quiet(str(function.__globals__.get("__name__", ""))):
                self._everything(*given)
            for item in given:
                self._content(item, DEEP)

    def _hand_out(self, *items: Any) -> None:
        """What is given to code that is not looked at may be read as a whole, and compared."""
        if not self._given:
            return
        if any(item is UNKNOWN for item in items):
            self._given.hand_out_all()
        todo = list(items)
        seen: set[int] = set()
        for item in todo:  # which grows meanwhile
            if address(item) in seen or address(type(item)) in HOLLOW:
                continue
            seen.add(address(item))
            if item in self._given:
                self._given.hand_out(item)
            elif type(item) is types.MethodType:
                todo.append(item.__self__)
            elif raw.is_a(item, *_SEEN_WHEN_RUN):
                todo += self._kept_by(item) if self._is_made(item) else []
            elif len(seen) > MAX_ITEMS:
                self._given.hand_out_all()
                return
            elif self._is_made(item) or raw.is_a(item, *CHANGING, tuple, frozenset, *_VIEWS):
                todo += gc.get_referents(item)

    def _kept_by(self, item: Any) -> list[Any]:
        """What a class, a module or a function holds that its code need not read."""
        if raw.is_a(item, type):
            return [*raw.namespace(item).values(), *raw.mro(item)[1:], type(item)]
        if raw.is_a(item, types.ModuleType):
            return list((raw.attributes(item) or {}).values())
        if raw.is_a(item, types.FunctionType):
            held = item.__closure__, item.__defaults__, item.__kwdefaults__, item.__dict__
            return [part for part in held if part]
        return []

    def _variable(self, variable: contextvars.ContextVar[Any], method: str) -> Any:
        """Read a context variable. If the run has set it, its value is no state."""
        key = ("variable", address(variable))
        sets = self._sets[variable]
        if sets > 0 or method != "get":
            self._repeats.doubts += 1
        self._sets[variable] += {"set": 1, "reset": -1}.get(method, 0)
        if sets > 0:
            return variable.get(UNKNOWN) if method == "get" else UNKNOWN
        value = self._live(key, functools.partial(_value_of, variable), self._path(variable))
        return self._or_unknown(value) if method == "get" else UNKNOWN

    def is_the_same(self, item: Any) -> bool:
        """See :class:`~gfxgraph.graph.repeats.Known`."""
        at = address(item)
        return at in self._known or at in self._fresh or at in self._given.objects

    def is_given(self, item: Any) -> bool:
        """See :class:`~gfxgraph.graph.repeats.Known`."""
        at = address(item)
        return at in self._fresh or at in self._given.objects

    def settings(self) -> tuple[Any, ...]:
        """See :class:`~gfxgraph.graph.repeats.Known`."""
        asked = self._asked_settings()
        if not self.asks_settings:
            return asked
        # One number in place of all of them, in the key of each frame.
        now = tuple(setting.read() for setting in SETTINGS)
        return self._settings_met.setdefault(now, len(self._settings_met)), *asked

    def _asked_settings(self) -> tuple[Any, ...]:
        return tuple(get() for get in self._settings.values())

    def is_made(self, item: Any) -> bool:
        """See :class:`~gfxgraph.graph.repeats.Known`."""
        return not gc.is_tracked(item) or self._is_made(item)

    def _is_for_all(self, value: Any) -> Any:
        """``value`` is what all frames that run the same code find."""
        if address(value) in self._common:
            return value
        self._common.add(address(value))
        if type(value) in (staticmethod, classmethod):
            self._common.add(address(value.__func__))
        elif raw.is_a(value, types.ModuleType) or raw.is_mutable(type(value)):
            self._common.add(address(raw.attributes(value)))
        for part in parts_of(value):
            self._is_for_all(part)
        return value

    def _is_of_run(self, item: Any) -> bool:
        """Whether only what the run has made itself can be changed in ``item``."""
        return not self.is_the_same(item) and self.is_made(item)

    def _is_everywhere(self, item: Any) -> bool:
        """Whether ``item`` holds global variables: nobody reads again those that are known."""
        if type(item) is dict:
            return address(item) in self._common and dict.__contains__(item, "__name__")
        return raw.is_a(item, types.ModuleType)

    def _is_stored(self, item: Any) -> None:
        """Something is stored in ``item``: no argument of a call may be that, if it is state."""
        self._repeats.doubts += not self._is_of_run(item)
        if self._is_everywhere(item) or (raw.is_a(item, torch.Tensor) and self._is_state(item)):
            self._repeats.stop()
        if self._given.is_container(item) or item in self._given:
            self._stores_in_arguments = True
        elif item is not None and item is not UNKNOWN and self._is_state(item):
            own = raw.attributes(item)
            self._stored |= {address(item)} if own is None else {address(item), address(own)}

    def _note_line(self, container: Any, key: Any = None) -> None:
        """Something is stored in a container or an object, by the code that runs now."""
        self.stores.note(container, key, self.where(of_program=True))
        if type(key) is str and (address(container), key) not in self._set_in_c:
            setter = _setter_in_c(type(container), key)
            if setter is not None and self._is_state(container):
                path = f"{self._path(container)}.{key}"
                self._set_in_c[address(container), key] = SetInC(path, container, setter)

    def _initialized(self, item: Any) -> None:
        """``__init__`` in C is called of an object that may have been there before."""
        key = address(item), "__init__"
        if raw.is_a(item, *_ALL_OF_INIT) and self._is_state(item) and key not in self._set_in_c:
            self._set_in_c[key] = InitializedInC(self._path(item), item)

    def may_not_be_given(self) -> frozenset[int]:
        """Numbers of objects outside that may be no arguments: the run stores to one of both."""
        stores = self._stores_in_arguments or self._given.stores  # code in C, maybe
        read = [key[1] for key in self.places if len(key) > 1] if stores else []
        return frozenset((*self._stored, *read))

    def _keep_as_it_was(self, item: Any) -> None:
        """A container is about to be changed. Who reads it later has read what it holds now: all
        else comes from what the run does itself."""
        if address(item) in self._before or not raw.is_a(item, *CHANGING):
            return
        if raw.length(item) <= MAX_ITEMS and self._is_state(item):
            path = self._path(item)
            self._before[address(item)] = Content(path, Container(path, item)), Length(path, item)

    def _length_of(self, item: Any) -> None:
        _, before = self._before.get(address(item), (None, None))
        self._place(("length", address(item)), lambda: before or Length(self._path(item), item))

    def _method_of_container(self, owner: Any, name: str, positional: list[Any]) -> Any:
        is_dict = raw.is_a(owner, dict)
        depth = 1 if name in _SHALLOW else DEEP
        if not self._is_state(owner):
            for item in (*positional, *((owner,) if depth == DEEP else ())):
                self._content(item, depth)
            is_plain = is_dict and name == "get" and positional and raw.is_scalar(positional[0])
            return dict.get(owner, positional[0], UNKNOWN) if is_plain else UNKNOWN
        if name not in _ONLY_READING:
            self._keep_as_it_was(owner)
            self._is_stored(owner)
            self.stores.note_method(owner, name, positional, self.where(of_program=True))
        if name in _TAKING and is_dict:
            self._taken_from.add(address(owner))
        by_key = ("get", "__getitem__", "setdefault", "pop", "__contains__")
        has_key = bool(positional) and positional[0] is not UNKNOWN
        if has_key:
            self._special(positional[0])  # it may get an ``__eq__``
        if is_dict and name in by_key and has_key:
            value = self._item_of(owner, positional[0])
            if value is UNKNOWN and name == "get":
                return positional[1] if len(positional) > 1 else UNKNOWN
            return value if name != "__contains__" else UNKNOWN
        for item in positional:
            self._content(item, depth)
        if raw.is_a(owner, collections.defaultdict):
            self._attribute(owner, "default_factory")  # of a copy
        self._content(owner, depth)
        return UNKNOWN

    def _getter(self, function: Any, item: Any) -> list[Any]:
        """What ``operator.attrgetter`` and ``itemgetter`` read: their names are in their repr."""
        found = []
        for name in function.__reduce__()[1]:
            value = item
            if raw.is_a(function, operator.attrgetter):
                *before, last = name.split(".")
                for part in before:
                    if value is not UNKNOWN and self._runs_code(value, part):
                        self._refuse(f"what code gives that operator.attrgetter({name!r}) calls")
                    value = UNKNOWN if value is UNKNOWN else self._attribute(value, part)
                value = UNKNOWN if value is UNKNOWN else self._attribute(value, last)
            else:
                value = self._item_of(item, name)
            found.append(value)
        return found

    def _runs_code(self, item: Any, name: str) -> bool:
        """Whether code may run where an attribute is asked for, so that nobody knows what comes."""
        cls = type(item)
        asks = [self._lookup(cls, part) for part in ("__getattribute__", "__getattr__")]
        if any(type(f) is types.FunctionType and f is not _GETATTR_OF_MODULE for f in asks):
            return True
        found = self._lookup(cls, name)
        has_get = any("__get__" in raw.namespace(base) for base in raw.mro(type(found)))
        plain = (types.FunctionType, *C_FUNCTIONS, *_DATA_IN_C)
        return found is not MISSING and has_get and not raw.is_a(found, *plain)

    def _class_checked(self, cls: Any) -> None:
        """A metaclass may answer what is an instance of ``cls``."""
        cls = _ORIGIN.get(address(type(cls)), _itself)(cls)
        if not raw.is_a(cls, type) or type(cls) is type:
            return
        self._lookup(type(cls), "__instancecheck__")
        if raw.is_mutable(type(cls)):
            self._place_of_members(type(cls))
        if raw.is_a(cls, abc.ABCMeta):
            self._registered_classes()

    def _hook_asked(self, cls: Any, kind: Any) -> None:
        """A hook of an abstract class may have answered whether ``kind`` derives from it. It is not
        asked again, until somebody empties the cache of the class."""
        cls = _ORIGIN.get(address(type(cls)), _itself)(cls)
        if not raw.is_a(cls, abc.ABCMeta) or not raw.is_mutable(cls) or self._is_made(kind):
            return
        hook = next(
            space["__subclasshook__"]
            for space in map(raw.namespace, raw.mro(cls))
            if "__subclasshook__" in space
        )
        if type(hook) is not types.ClassMethodDescriptorType:  # that of ``object``
            path = f"what {raw.name_of(cls)} knows of {raw.name_of(kind)}"
            self._live(("abc", address(cls), address(kind)), in_c.kept_answer(cls, kind), path)

    def _registered_classes(self) -> None:
        """Which classes are registered with an abstract one, of the program or of Python."""
        self._live(("abc",), abc.get_cache_token, REGISTERED)

    def _class_asked(self, item: Any, classes: Any = ()) -> None:
        """Somebody asks for the class of ``item``, or whether it is one of ``classes``."""
        may_change = raw.is_mutable(type(item)) or raw.is_a(item, types.ModuleType)
        if item is not UNKNOWN and may_change and self._is_state(item):
            self._place(
                ("type", address(item)), lambda: TypeOf(f"{self._path(item)}.__class__", item)
            )
            self._place_of_bases(type(item))
        for cls in each_class(classes):
            self._class_checked(cls)
            if item is not UNKNOWN:
                self._hook_asked(cls, type(item))
            if item in self._given and not (type(cls) is type or type(cls) is abc.ABCMeta):
                self._hand_out(item)  # a protocol asks for attributes


REGISTERED = "abc.ABC.register()"
"""The path of the place that holds which classes are registered with abstract ones."""
_OF_TYPES = (types.GenericAlias, types.UnionType)
_UNIONS = (types.UnionType, type(typing.Union[int, str]))  # noqa: UP007
_ORIGIN = dict.fromkeys(
    map(address, (type(typing.Sequence), type(typing.Sequence[int]))),
    operator.attrgetter("__origin__"),
)
"""How a class of ``typing`` names the one that it stands for."""


def readers_among(items: Sequence[Any]) -> list[Any]:
    """What gives attributes or items to the code in C that calls it, and what may be names."""
    return [
        item
        for item in items
        if any(item is function for function in (getattr, hasattr, vars, dir))
        or raw.is_a(item, *_GETTERS, str)
        or _gets(item)
        or is_bound_getter(item)
    ]


def _gets(item: Any) -> bool:
    """Whether it is a method in C that gives the attribute of a name, maybe bound to an object."""
    kinds = types.WrapperDescriptorType, types.MethodWrapperType
    return raw.is_a(item, *kinds) and item.__name__ == "__getattribute__"


def is_bound_getter(item: Any) -> bool:
    """Whether it gives the slot of an object, as ``Class.slot.__get__`` does."""
    is_get = raw.is_a(item, types.MethodWrapperType) and item.__name__ == "__get__"
    return is_get and raw.is_a(item.__self__, *_DATA_IN_C)


def _names_by(caller: Any) -> list[str]:
    """The attributes that an ``operator.methodcaller`` asks for."""
    name, *given = caller.__reduce__()[1]
    asks = name == "__getattribute__" and given and type(given[0]) is str
    return [name, given[0]] if asks else [name]


def _itself(item: Any) -> Any:
    return item


def each_class(classes: Any) -> Iterator[Any]:
    """The classes that ``isinstance`` asks: tuples and unions may hold others of these."""
    if type(classes) is tuple:
        for part in classes:
            yield from each_class(part)
    elif type(classes) in _UNIONS:
        yield from each_class(classes.__args__)
    else:
        yield classes


_WITH_FRAMES = frozenset(
    map(
        address,
        (types.FrameType, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType),
    )
)
_OF_FRAMES = frozenset(
    (
        *("f_lasti", "f_lineno", "f_locals"),
        *("gi_frame", "gi_running", "gi_suspended", "gi_yieldfrom"),
        *("cr_await", "cr_frame", "cr_running", "cr_suspended"),
        *("ag_await", "ag_frame", "ag_running", "ag_suspended"),
    )
)
# What these hold is seen where their code runs.
_SEEN_WHEN_RUN = (
    types.GeneratorType,
    types.CoroutineType,
    types.FunctionType,
    types.ModuleType,
    types.CodeType,
    types.FrameType,
    type,
)


def _named(path: str, cls: type) -> str:
    """How an object is named in a message."""
    name = f"{raw.module_of(cls).lstrip('_')}.{raw.name_of(cls)}".removeprefix("builtins.")
    return f"a {name}" if path == raw.name_of(cls) else f"{path}, a {name}"


_DATA_IN_C = (types.GetSetDescriptorType, types.MemberDescriptorType)


def _asked(item: Any, found: Any, name: str, path: str) -> tuple[Any, Callable[[], Any], str]:
    """Asks what a descriptor in C gives: what identifies the place, the question, and its path."""
    owner = weakly(item)

    def get() -> Any:
        try:
            return found.__get__(owner())
        except (AttributeError, TypeError, ValueError):
            return MISSING

    return ("attribute", address(item), name), get, f"{path}.{name}"


def _methods_in_c(cls: type) -> list[Any]:
    """Special methods of a class that read their owners, as ``__len__ = staticmethod(a.__len__)``
    does."""
    found = [
        value.__func__ if type(value) is staticmethod else value
        for base in raw.mro(cls)
        if raw.is_mutable(base) and package_of(base) not in CLOSED
        for name, value in list(raw.namespace(base).items())
        if type(name) is str and name.startswith("__")
    ]
    return [value for value in found if raw.is_a(value, *_IN_CLASSES)]


def _is_open(item: Any) -> bool:
    """Whether what ``item`` is in C is no matter of torch's."""
    base = in_c.base_in_c(type(item))
    return base is None or package_of(base) not in ("torch", "triton")


def _setter_in_c(cls: type, name: str) -> Any:
    """What sets the attribute ``name``, if it is in C, and nothing else knows what it was."""
    if name in _KNOWN_IN_C:
        return None
    for base in raw.mro(cls):
        found = raw.namespace(base).get(name)
        if found is not None:
            is_in_c = type(found) in (types.GetSetDescriptorType, types.MemberDescriptorType)
            is_known = raw.is_mutable(base) or package_of(base) == "torch"
            return found if is_in_c and not is_known else None
    return None


# See TypeOf and Parts.
_KNOWN_IN_C = ("__class__", "__dict__", "__code__", "__defaults__", "__kwdefaults__")


class SetInC:
    """An attribute in C that a run sets, such as the name of a function, and what it was.

    Attributes:
        path: how it is reached.
        where: the line that sets it.
    """

    def __init__(self, path: str, item: Any, setter: Any) -> None:
        self.path, self._item, self._setter = path, item, setter
        self._value, self.where = self._now(), users_line()

    def _now(self) -> Any:
        try:
            return self._setter.__get__(self._item)
        except (AttributeError, ValueError):
            return MISSING

    def put_back(self) -> bool:
        """Let it be what it was; gives whether it was anything else."""
        if alike(self._now(), self._value):
            return False
        with suppress(AttributeError, TypeError, ValueError):  # it can only be read
            if self._value is MISSING:
                self._setter.__delete__(self._item)
            else:
                self._setter.__set__(self._item, self._value)
        return True


class InitializedInC:
    """An object in C that a run initializes once more, and what it was made of.

    Attributes:
        path: how it is reached.
        where: the line that does.
    """

    def __init__(self, path: str, item: Any) -> None:
        self.path, self._item = path, item
        self.where = users_line()
        self._kind = next(kind for kind in _ALL_OF_INIT if raw.is_a(item, kind))
        own = raw.namespace(self._kind)
        names = _ALL_OF_INIT[self._kind]
        self._parts = [own[name].__get__(item) for name in names]
        self._attributes = dict(raw.attributes(item) or {})

    def put_back(self) -> bool:
        """Let it be what it was. It is set in each call, also where it was that before."""
        if self._parts:
            raw.namespace(self._kind)["__init__"](self._item, *self._parts)
        own = raw.attributes(self._item)
        if own is not None:
            for name in own.keys() - self._attributes.keys():
                dict.__delitem__(own, name)
            dict.update(own, self._attributes)
        return True


# By class, the names of what `__init__` is given.
_ALL_OF_INIT: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel", "__doc__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    super: ("__thisclass__", "__self__"),
    struct.Struct: ("format",),
    types.ModuleType: (),
    types.SimpleNamespace: (),
}


class _Member(NamedTuple):
    """How attributes of a name are found in instances of a class that the run has made."""

    cls: type  # alive, so that its address stays its own
    get: Callable[[Any], Any] | None
    found: Any


_BUILTINS = vars(builtins)
# What a tensor may have beside its data, and a static input never has.
_NEVER_OF_INPUTS = frozenset(("grad", "_grad", "_backward_hooks", "_post_accumulate_grad_hooks"))
# Attributes of these are not found as usual, or not in them.
_WITH_OTHER_LOOKUPS: tuple[type, ...] = (
    MODULE,
    types.ModuleType,
    type,
    threading.local,
    types.FunctionType,
    types.MethodType,
    types.CellType,
    tuple,
    Counted,
)


class Way:
    """How the value of an attribute of an object was found."""

    __slots__ = ("cls", "get", "item", "name", "number", "own", "passed", "space", "value")

    def __init__(
        self,
        item: Any,
        name: str,
        get: Callable[[Any], Any],
        own: dict[str, Any],
        space: dict[str, Any] | None,
        value: Any,
        number: int,
    ) -> None:
        #: ``space`` holds it; ``None``: the class does.
        self.item, self.name, self.cls, self.get = item, name, type(item), get
        self.own, self.space, self.value, self.number = own, space, value, number
        #: Registries of a module that were asked: with their names, up to ``space``.
        self.passed: list[tuple[str, Any]] = []
        if space is not own and space is not None:
            for name in REGISTRIES:
                self.passed.append((name, own.get(name)))
                if own.get(name) is space:
                    break

    def holds(self) -> bool:
        """Whether Python would find the same object there."""
        item, name, own, space = self.item, self.name, self.own, self.space
        if type(item) is not self.cls or self.get(item) is not own:
            return False
        if space is not None and dict.get(space, name, MISSING) is not self.value:
            return False
        if space is own:
            return True
        if name in own:
            return False
        for key, registry in self.passed:
            if own.get(key) is not registry:
                return False
            if registry is not space and dict.__contains__(registry, name):
                return False
        return True


class Empty:
    """The hooks of a module that has none.

    Attributes:
        own: the attributes of the module; ``None``: they are for all modules.
        hooks: their names among them, and the hooks.
    """

    __slots__ = ("hooks", "number", "own")

    def __init__(self, own: dict[str, Any] | None, hooks: Iterable[tuple[str, Any]]) -> None:
        self.own, self.hooks, self.number = own, list(hooks), 0

    def holds(self) -> bool:
        """Whether it has none now."""
        own = self.own
        for name, hooks in self.hooks:
            if dict.__len__(hooks) or (own is not None and own.get(name) is not hooks):
                return False
        return True


_NO_HOOKS_OF_ALL = Empty(None, _HOOKS_OF_ALL.items())


class Super:
    """What ``super()`` gives: attributes of ``of`` that are found after the class ``after``."""

    def __init__(self, after: Any, of: Any) -> None:
        self.after, self.of = after, of


def _value_of(variable: contextvars.ContextVar[Any]) -> Any:
    """Give the value of a context variable, or its own default."""
    try:
        return variable.get()
    except LookupError:
        return MISSING


def _holds(own: dict[str, Any], name: str) -> bool:
    """Whether a module with these attributes has a child, parameter or buffer of that name."""
    registries: list[Any] = [own.get(registry) for registry in REGISTRIES]
    return any(raw.is_a(held, dict) and dict.__contains__(held, name) for held in registries)


def parts_of(item: Any) -> Sequence[Any]:
    """What is always found in ``item``, and nowhere noted when it is read there."""
    kind = type(item)
    if raw.is_a(item, tuple, frozenset):
        return list(_members(item))
    if kind is types.MethodType:
        return (item.__self__,)
    if raw.is_a(item, functools.partial):
        own = raw.namespace(functools.partial)
        return [own[part].__get__(item) for part in ("func", "args", "keywords")]
    return ()


def is_iterator_in_c(item: Any) -> bool:
    """Whether it goes through something that it refers to, such as the iterator of a list."""
    kind = type(item)
    is_in_c = not raw.is_mutable(kind) and kind is not types.GeneratorType
    return is_in_c and "__next__" in raw.namespace(kind)


def _members(item: Any) -> Iterator[Any]:
    """Those of a tuple or a frozenset."""
    base: Any = tuple if raw.is_a(item, tuple) else frozenset
    return iter(base.__iter__(item))


def _is_of_caller(frame: types.FrameType | None) -> bool:
    """Whether none of the frames above ``frame``, in which we run a function, is ours."""
    if frame is None or _runs_functions(frame):
        return True
    while frame is not None and not _runs_functions(frame):
        frame = frame.f_back
    return frame is None


def _runs_functions(frame: types.FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return type(name) is str and name.startswith(_RUNNING)


_RUNNING = tuple(f"{_OURS}.{room}." for room in ("analyze", "call", "graph", "verifying"))


def inside(item: Any) -> list[Any]:
    """What a container holds."""
    if raw.is_a(item, *CHANGING):
        return [value for _, value in raw.contents(item)]
    return list(_members(item)) if raw.is_a(item, tuple, frozenset) else []


def _reached(item: Any) -> list[Any]:
    """What a container holds, or what C code goes through."""
    if raw.is_a(item, dict):
        return [*dict.keys(item), *inside(item)]
    is_through = raw.is_a(item, *_VIEWS) or is_iterator_in_c(item)
    return gc.get_referents(item) if is_through else inside(item)


def _written(item: Any) -> Sequence[Any]:
    """What code in C finds in ``item`` when it writes it in a text."""
    if raw.is_a(item, *CHANGING, tuple, frozenset):
        return [] if raw.length(item) > _MAX_COMPARED else inside(item)
    if raw.is_a(item, types.SimpleNamespace):
        return [raw.attributes(item)]
    if raw.is_a(item, BaseException):
        return [raw.namespace(BaseException)["args"].__get__(item)]
    if raw.is_a(item, types.BuiltinFunctionType, types.MethodWrapperType):
        return [item.__self__]  # which it reads when it is called
    if type(item) is types.MethodType:
        return [item.__func__, item.__self__]
    if raw.is_a(item, functools.partial):
        return parts_of(item)
    through = *_VIEWS, *_OF_TYPES, contextvars.ContextVar
    is_through = raw.is_a(item, *through) or is_iterator_in_c(item)
    return gc.get_referents(item) if is_through else []


def _sets(kind: type) -> bool:
    return any("__set__" in raw.namespace(base) for base in raw.mro(kind))


def _bound(found: Any, item: Any, cls: type) -> Any:
    """What an attribute lookup makes of ``found``, which stands in a class."""
    if found is MISSING:
        return UNKNOWN
    kind = type(found)
    if kind is types.FunctionType:
        return found if item is None else types.MethodType(found, item)
    if kind is staticmethod:
        return found.__func__
    if kind is classmethod:
        inner = found.__func__
        return types.MethodType(inner, cls) if type(inner) is types.FunctionType else UNKNOWN
    if kind in (types.MethodDescriptorType, types.WrapperDescriptorType):
        try:
            # Without the class, CPython 3.10 and 3.11 crash for some (re.Pattern.sub).
            return found if item is None else found.__get__(item, cls)
        except TypeError:
            return UNKNOWN
    if issubclass(kind, types.BuiltinFunctionType):
        return found
    if any("__get__" in raw.namespace(base) for base in raw.mro(kind)):
        return UNKNOWN
    return found


def _got(descriptor: Any, tensor: torch.Tensor) -> Any:
    """The value of an attribute of a tensor; no mode sees that it is asked for."""
    with torch._C.DisableTorchFunction():
        return descriptor.__get__(tensor)


def _put(descriptor: Any, tensor: torch.Tensor, value: Any) -> None:
    """Let an attribute of a tensor have another value."""
    with torch._C.DisableTorchFunction():
        descriptor.__set__(tensor, value)


def _is_index(at: Any, length: int) -> bool:
    return type(at) is int and -length <= at < length


def package_of(cls: type) -> str:
    """The package in which a class was made."""
    package = raw.module_of(cls).partition(".")[0]
    # That is what is said of classes that functions of `types` and `dataclasses` make, and of those
    # that `exec()` makes in a namespace without a name.
    if package == "types" and vars(types).get(raw.name_of(cls)) is not cls:
        return ""
    if package == "builtins" and raw.is_mutable(cls):
        return ""
    return package


def _name_of_module(module: types.ModuleType) -> str:
    name = module.__dict__.get("__name__")
    return name if type(name) is str else "a module"
