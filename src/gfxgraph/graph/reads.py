"""What Python state the executed code of a run has read, as places that a guard can watch.

While a run is recorded, each instruction is looked at when it is about to run: which variable,
attribute, item or content does it read (:mod:`~gfxgraph.graph.bytecode`), and does that belong to
an object that was there before the run? Then it is a place, and the value that stands in it is
part of what the graph was captured for. Nothing is asked of an object but by the base classes in
C, so no code of the program runs (:mod:`~gfxgraph.graph.raw`).
"""

from __future__ import annotations

import abc
import collections
import contextvars
import functools
import gc
import inspect
import itertools
import operator
import sys
import threading
import types
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from ..errors import CaptureError, one_line
from ..interpose.source import CLOSED
from . import bytecode, raw
from .age import Since
from .containers import Container, Slots
from .frames import NOTHING, Stack
from .guard import REGISTRIES
from .lift import Counted, Slot, Unread, slots_of
from .listening import OPEN_IN_TORCH, QUIET, hear_again, is_closed, listening
from .locks import no_garbage_collection
from .places import Attributes, Bases, Content, Item, Length, Live, Parts, Place, TypeOf, weakly
from .repeats import OWN, Repeats
from .saved_state import is_stateful, kind_of
from .torch_settings import OTHERS, READERS

__all__ = ["Reads"]

_OURS = __name__.partition(".")[0]
_MISSING = Item.MISSING
_UNKNOWN: Any = type("_Unknown", (), {})()
# Nothing stands behind such values.
_LEAVES = frozenset(
    (int, bool, float, complex, str, bytes, type(None), range, slice, type(Ellipsis))
)
_TORCH_LEAVES = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)
# What of ours looks on while a function runs.
_WATCHING = tuple(
    f"{_OURS}.{room}."
    for room in ("record", "interpose", "device", "simulate", "compiling", "graph")
)
_MAX_ITEMS = 4096
_MAX_NESTED = 3

_MODULE = torch.nn.Module
# Dynamo adds this attribute to the class of modules when it first compiles anything, and asks
# whether it is false. It is there before a graph counts the attributes of that class.
_FIRST_COMPILATION = "___needs_generation_tag_patch"
# What C code is given as a whole, and does not look into.
_NOT_PLAIN = (torch.Tensor, _MODULE, type, types.ModuleType, types.FunctionType)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def _codes_of_module(*names: str) -> frozenset[types.CodeType]:
    found = (raw.namespace(_MODULE).get(name) for name in names)
    return frozenset(f.__code__ for f in found if type(f) is types.FunctionType)


_CALL_OF_MODULE = _codes_of_module("_wrapped_call_impl")
# By name: torch's own part in a call of a module, and what is called whenever an object goes.
_QUIET_CODES = _codes_of_module("__init__", "_call_impl", "__setattr__", "__delattr__") | frozenset(
    part.__code__
    for member in vars(weakref.finalize).values()
    for part in (member, getattr(member, "fget", None), getattr(member, "fset", None))
    if type(part) is types.FunctionType
)
_SETATTR_OF_MODULE = raw.namespace(_MODULE)["__setattr__"]
_GETATTR_OF_MODULE = _codes_of_module("__getattr__")


class Reaches(Protocol):
    """State in Python that is put back without what was read."""

    def reaches(self, item: Any, key: Any) -> bool: ...


class Reads:
    """The places that the recorded run has read.

    Args:
        roots: name -> object: the function, and objects among its arguments.
        fresh: what belongs to the run although it was made before: its static inputs.
        repeats: calls of modules that read what earlier ones have read.

    Attributes:
        places: by what they are a place of.
        no_hooks: hooks of modules that had none, which torch counts.
        asks_settings: whether settings of torch may have been asked for.
        failed: why not all was seen; ``""``: it was.
        hears_all: whether instructions that read nothing matter as well now.
    """

    def __init__(
        self,
        roots: dict[str, object],
        fresh: Sequence[object] = (),
        repeats: Repeats | None = None,
    ) -> None:
        self.places: dict[Any, Place] = {}
        self.no_hooks: dict[int, Container] = {}
        self.asks_settings = False
        self.failed = ""
        self.hears_all = False
        self._fresh = set(map(id, fresh))
        self._known: dict[int, tuple[Any, str]] = {}
        self._functions: dict[types.CodeType, list[types.FunctionType]] = {}
        # What was found, and the places that were asked.
        self._types: dict[tuple[type, str], tuple[Any, list[Any]]] = {}
        self._repeats = repeats
        # What the calls that run have read, for the next ones.
        self._read_now: list[Any] = [] if repeats is None else repeats.read
        self._since: Since | None = None
        self._frames: dict[int, _Frame] = {}
        self._now: _Frame | None = None
        self._collecting: _Frame | None = None
        self._stack = Stack()
        # Whether the instruction only counts; and whether one has.
        self._counting = self._has_counted = False
        self._read_whole: set[int] = set()
        self._sets: Counter[Any] = Counter()
        # Dicts from which something was taken: where it stands afterwards is another matter.
        self._taken_from: set[int] = set()
        self.roots = roots

    def recording(self) -> AbstractContextManager[None]:
        """See what this thread reads inside."""
        return _Recording(self._recording())

    @contextmanager
    def _recording(self) -> Iterator[None]:
        for name, root in self.roots.items():
            self._know(root, name)
        try:
            # Callbacks of a collection are not what the function does.
            with no_garbage_collection():
                self._since = Since()
                if self._repeats is not None:
                    self._repeats.start()
                with listening(self):
                    yield
        finally:
            # Nothing of the run's own is to live on.
            self._since = None
            for part in (
                self._read_whole,
                self._frames,
                self._known,
                self._functions,
                self._types,
                self._sets,
                self._read_now,
            ):
                part.clear()
            if self._repeats is not None:
                self._repeats.clear()
            self._now = None

    def require_seen(self) -> None:
        """Raise if not all that the run reads is, or was, seen.

        Raises:
            CaptureError: it is not.
        """
        if self.failed:
            raise CaptureError(
                f"what it reads in Python could not be seen, so a later change could not be seen "
                f"either: {self.failed}",
                transient=True,
            )

    def settle(self) -> None:
        """Forget what looked on: its replacements are gone, and what was there before is back."""
        for key, place in self.places.items():
            if isinstance(place, Item) and _is_ours(place.value):
                self.places[key] = Item.of(place.path, place.container, place.key)

    def changes(self) -> list[str]:
        """Names of places that hold something else by now."""
        of_hooks = (c.name(key) for c in self.no_hooks.values() for key in c.changes())
        return [name for place in self.places.values() for name in place.changes()] + [*of_hooks]

    def put_back(self, python: Reaches) -> tuple[list[str], list[Slot]]:
        """Put back what the run has changed and ``python`` does not know.

        Returns:
            Names of it, and the places over which the function may be lifted; none: it cannot be.
        """
        changed = [
            place
            for place in self.places.values()
            if isinstance(place, (Item, Content, TypeOf, Parts))
            and not place.holds()
            and not (
                (isinstance(place, Item) and python.reaches(place.container, place.key))
                or (isinstance(place, Content) and python.reaches(place.container.item, None))
            )
        ]
        names = [name for place in changed for name in place.changes()]
        items: list[tuple[Container, Any]] = []
        for place in changed:
            keys = place.container.changes() if isinstance(place, Content) else []
            place.put_back()
            if isinstance(place, Content):
                items += [(place.container, key) for key in keys]
            elif isinstance(place, Item):
                items.append((place.as_it_was(), place.key))
        is_all = all(isinstance(place, (Item, Content)) for place in changed)
        return names, self.slots([items]) if is_all else []

    def slots(self, changed: Iterable[list[tuple[Container, Any]] | None]) -> list[Slot]:
        """The places that a run has changed, as far as graphs can store them again.

        Args:
            changed: containers as they were before the run, with the keys; ``None``: more than
                these has changed.
        """
        found: list[tuple[Container, Any]] = []
        for part in changed:
            if part is None:
                return []
            found += part
        return slots_of(found, self.places, self._taken_from) or []

    # Frames.

    def enter(self, frame: types.FrameType) -> bool:
        """``frame`` begins to run; gives whether its instructions matter."""
        if self.skips:
            return False
        code = frame.f_code
        if not code.co_flags & inspect.CO_OPTIMIZED and id(frame.f_back) not in self._frames:
            return False  # the body of a module; that of a class and what eval() runs matter
        if code in _QUIET_CODES or self._collecting is not None or _is_for_us(frame):
            return False
        try:
            if code in _CALL_OF_MODULE:
                module = frame.f_locals["self"]
                if self._is_state(module):
                    self._call_of_module(module)
                    if self._repeats is not None:
                        self._repeats.begin(frame, self.places, self.no_hooks, self._is_state)
                return False
            if code in _GETATTR_OF_MODULE:
                variables = frame.f_locals
                self._attribute(variables["self"], variables["name"])
                return False
            self._frames[id(frame)] = _Frame(frame)
            self._begin(frame)
        except Exception as error:
            self._fail(error)
        return True

    @property
    def skips(self) -> bool:
        """Whether a call runs that nobody has to look at."""
        return self._repeats is not None and self._repeats.skipped is not None

    def sees(self, frame: types.FrameType | None) -> bool:
        """Whether the instructions of ``frame`` are looked at."""
        known = self._frames.get(id(frame))
        return known is not None and known.frame is frame

    def awaits(self, frame: types.FrameType) -> bool:
        """Whether it matters when ``frame`` is done."""
        return self._repeats is not None and self._repeats.runs(frame)

    def instruction(self, frame: types.FrameType, offset: int) -> None:
        """The instruction at ``offset`` is about to run."""
        known = self._frames.get(id(frame))
        if known is None or known.frame is not frame:
            return
        if known is self._collecting:
            self._collect(None)
        step = known.steps.get(offset)
        if step is None:
            return
        try:
            self._now = known
            value = _STEPS[step[0]](self, known, *step[1:])
            if value is _UNKNOWN:
                known.made.pop(offset, None)
            else:
                known.made[offset] = value
        except Exception as error:
            self._fail(error)

    def leave(self, frame: types.FrameType, value: object) -> None:
        """``frame`` returns or yields ``value``."""
        if self._repeats is not None:
            self._repeats.end(frame)
            if self._repeats.skipped is not None:
                return
        was_seen = self.sees(frame)
        if was_seen and self._frames.pop(id(frame)) is self._collecting:
            self._collect(None)
        caller = frame.f_back
        if value is None:
            return
        known = None if caller is None else self._frames.get(id(caller))
        if known is None or known.frame is not caller:
            if was_seen:
                self._content(value, "the result", _MAX_NESTED)
            return
        if self._stack.is_known:
            return  # what comes of it is seen there; C code between the two may give something else
        offset = known.starts.get(known.frame.f_lasti)
        step = None if offset is None else known.steps.get(offset)
        if (
            step is not None
            and offset is not None
            and step[0] in ("call", "spread", "attribute", "item")
        ):
            known.made[offset] = value

    def unwind(self, frame: types.FrameType) -> None:
        """An exception leaves ``frame``."""
        if self._repeats is not None:
            self._repeats.end(frame, failed=True)

    def _collect(self, frame: _Frame | None) -> None:
        """Finalizers run until the next instruction of ``frame``; ``None``: they are done."""
        self._collecting, self.hears_all = frame, frame is not None

    def _fail(self, error: Exception) -> None:
        self.failed = self.failed or one_line(error)

    def _begin(self, frame: types.FrameType) -> None:
        code = frame.f_code
        if code.co_argcount and code not in self._functions:
            # Who is called through C, as operators and `for` do, is found in its class.
            first = frame.f_locals.get(code.co_varnames[0])
            for name in _names_in(type(first), code) or (code.co_name,):
                self._lookup(type(first), name)
        for function in self._functions.get(code, ()):
            self._place_of_parts(function)
            for part in (function.__defaults__, function.__kwdefaults__):
                if part:
                    self._know(part, self._path(function))
                    self._content(part, self._path(function), 1)

    def _place_of_parts(self, function: types.FunctionType) -> None:
        self._place(("parts", id(function)), lambda: Parts(self._path(function), function))

    # Knowing: an object is state if a place led to it, or if it was there before the run.

    def _know(self, value: Any, path: str) -> Any:
        if id(value) in READERS:
            self.asks_settings = True
        for name, getter in OTHERS.get(id(value), ()):
            self._live(("setting", name), getter, name)
        if type(value) in _LEAVES or raw.is_a(value, *_TORCH_LEAVES) or id(value) in self._known:
            return value
        if id(value) in self._fresh:
            return value
        if _package(type(value)) == _OURS:
            # It changes with every call; what matters is the function inside.
            self._know((raw.attributes(value) or {}).get("__wrapped__"), path)
            return value
        self._known[id(value)] = value, path
        kind = type(value)
        if raw.is_a(value, torch.Tensor):
            self.places[("tensor", id(value))] = Attributes(path, value)
        elif kind is types.FunctionType:
            self._functions.setdefault(value.__code__, []).append(value)
            self._know(value.__dict__.get("__wrapped__"), path)
        elif kind is types.MethodType:
            self._know(value.__func__, path)
            self._know(value.__self__, path)
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
                self._content(found, path, 1)
        elif raw.is_a(value, tuple, frozenset):
            base: Any = tuple if raw.is_a(value, tuple) else frozenset
            if base.__len__(value) <= _MAX_ITEMS:
                for n, item in enumerate(base.__iter__(value)):
                    self._know(item, f"{path}[{n}]")
        return value

    def _is_state(self, item: Any) -> bool:
        if id(item) in self._known:
            return True
        if _package(type(item)) == _OURS:  # it looks on
            return False
        if gc.is_tracked(item) and id(item) not in self._fresh and not self._is_made(item):
            self._know(item, raw.name_of(item if raw.is_a(item, type) else type(item)))
            return id(item) in self._known
        return False

    def _is_made(self, item: Any) -> bool:
        is_known = id(item) in self._known or not gc.is_tracked(item)
        return not is_known and self._since is not None and self._since.made(item)

    def _held(self, value: Any, path: str) -> Any:
        """Know the value of a place as state, unless the run itself has made it."""
        if value is _MISSING:
            return value
        if self._is_made(value):
            self._read_now.append(OWN)
            return value
        return self._know(value, path)

    def _path(self, item: Any) -> str:
        found = self._known.get(id(item))
        return found[1] if found is not None else raw.name_of(type(item))

    def _place(self, key: Any, make: Callable[[], Place]) -> Place:
        self._read_now.append(key)
        place = self.places.get(key)
        if place is None:
            place = self.places[key] = make()
            place.counts = self._counting
            if self._now is not None:
                place.where = self._now.where()
        elif place.counts:
            place.counts = self._counting
        return place

    def _read(self, container: Any, key: Any, path: str) -> Any:
        """The value at ``key``, which is a place from now on."""
        if not raw.is_scalar(key):
            self._content(container, self._path(container), 0)
            return _UNKNOWN
        if container is _MODULE and key == "__init__":
            return raw.namespace(_MODULE)[key]  # torch replaces it when it first compiles
        place = self._place(
            ("item", id(container), raw.token(key)), lambda: Item.of(path, container, key)
        )
        value = place.read()  # type: ignore[attr-defined]
        # What the run has put there is known for what it is: the collector does not know arrays.
        return value if place.stored else self._held(value, path)

    def _content(self, item: Any, path: str, depth: int) -> None:
        """All that ``item`` holds was read, if it is a container; and what is in there."""
        if raw.is_a(item, Unread):
            return
        self._special(item)
        while type(item) in _VIEWS:
            (inner,) = gc.get_referents(item)
            item = self._know(inner, path) if self._is_state(item) else inner
        if raw.is_a(item, tuple, frozenset):
            base: Any = tuple if raw.is_a(item, tuple) else frozenset
            inner = list(base.__iter__(item)) if base.__len__(item) <= _MAX_ITEMS else []
        elif raw.is_a(item, dict, list, deque, set):
            if raw.length(item) > _MAX_ITEMS:
                self._content_of_state(item, path, by_length=True)
                return
            self._content_of_state(item, path)
            inner = [value for _, value in raw.contents(item)]
        else:
            kind = kind_of(item) if is_stateful(item) else None
            # Generators are advanced by replays, or not at all.
            if kind is not None and not kind.draws and self._is_state(item):
                self._live(("buffer", id(item)), lambda: kind.read(item), self._path(item))
            return
        if depth:
            for value in inner:
                self._content(value, path, depth - 1)

    def _content_of_state(self, item: Any, path: str, by_length: bool = False) -> None:
        if not self._is_state(item):
            return
        path = self._path(item)
        if by_length:
            self._place(("length", id(item)), lambda: Length(path, item))
            return
        place = self._place(("content", id(item)), lambda: Content(path, Container(path, item)))
        for key, value in place.held:  # type: ignore[attr-defined]
            self._held(value, place.name(key))  # type: ignore[attr-defined]

    # Static lookups.

    def _lookup(self, cls: type, name: str) -> Any:
        """What stands in a class or its bases; each class that was asked is a place."""
        known = self._types.get((cls, name))
        if known is not None:
            self._read_now += known[1]
            if self._has_counted and not self._counting:
                for key in known[1]:
                    if key in self.places:
                        self.places[key].counts = False
            return known[0]
        read_before = len(self._read_now)
        self._place_of_bases(cls)
        found: Any = _MISSING
        for base in raw.mro(cls):
            space = raw.namespace(base)
            if not raw.is_mutable(base):
                found = space.get(name, _MISSING)
            elif _package(base) in CLOSED and name not in space:
                self._place_of_members(base)  # few add to the classes of torch: one question
            else:
                path = f"{raw.name_of(base)}.{name}"
                found = self._read(base, name, path)
            if found is not _MISSING:
                break
        self._types[cls, name] = found, self._read_now[read_before:]
        return found

    def _place_of_bases(self, cls: type) -> None:
        if raw.is_mutable(cls) and _package(cls) not in CLOSED:
            self._place(("bases", id(cls)), lambda: Bases(f"{raw.name_of(cls)}.__bases__", cls))

    def _place_of_members(self, cls: type) -> None:
        space = raw.dict_of(cls)
        if cls is _MODULE and _FIRST_COMPILATION not in space:
            setattr(cls, _FIRST_COMPILATION, True)
        self._place(("length", id(space)), lambda: Length(raw.name_of(cls), space))

    def _special(self, item: Any) -> None:
        """An operation with ``item`` calls what its class may get: ``__bool__``, ``__eq__``."""
        cls = type(item)
        if raw.is_mutable(cls) and _package(cls) not in CLOSED and self._is_state(item):
            self._place_of_bases(cls)
            for base in raw.mro(cls):
                if raw.is_mutable(base) and _package(base) not in CLOSED:
                    self._place_of_members(base)

    def _attribute(self, item: Any, name: str, generic: bool = False) -> Any:
        """The value of an attribute, found without running any code of the program."""
        if type(item) is _Super:
            return self._attribute_of_super(item, name)
        if type(item) is Counted:
            item.use()
            return _UNKNOWN
        if raw.is_a(item, types.ModuleType):
            return self._attribute_of_space(item, name)
        if raw.is_a(item, type):
            return self._attribute_of_class(item, name)
        cls = type(item)
        is_state = self._is_state(item)
        path = f"{self._path(item)}.{name}"
        if cls is types.FunctionType or cls is types.MethodType:
            return self._attribute_of_function(item, name, path)
        overridden = self._lookup(cls, "__getattribute__")
        if type(overridden) is types.FunctionType and not generic:
            return _UNKNOWN
        if is_state and raw.is_mutable(cls):
            self._place(("type", id(item)), lambda: TypeOf(f"{self._path(item)}.__class__", item))
        if raw.is_a(item, threading.local):
            if name not in (raw.attributes(item) or {}):
                self._live(("local", id(item), name), lambda: _get_local(item, name), path)
                return _bound(self._lookup(cls, name), item, cls)
            return self._live(("local", id(item), name), lambda: _get_local(item, name), path)
        found = self._lookup(cls, name)
        kind = type(found)
        if kind is types.MemberDescriptorType:
            owner = weakly(item)

            def get() -> Any:
                try:
                    return found.__get__(owner())
                except (AttributeError, TypeError):  # not set; or its object is gone
                    return _MISSING

            return self._live(("slot", id(item), name), get, path) if is_state else get()
        if kind is types.GetSetDescriptorType:
            return self._getset(item, found, name, path, is_state)
        if kind is collections._tuplegetter and raw.is_a(item, tuple):  # type: ignore[attr-defined]
            return tuple.__getitem__(item, found.__reduce__()[1][0])
        if raw.is_mutable(kind):  # it may become a descriptor
            self._special(found)
        if found is not _MISSING and _sets(kind):
            return _UNKNOWN  # a property: its code is seen when it runs
        own = raw.attributes(item)
        if own is not None:
            if is_state and raw.is_a(item, _MODULE) and name not in own and _holds(own, name):
                # One question for all its children, which an attribute of that name would hide.
                self._place(("length", id(own)), lambda: Length(self._path(item), own))
            value = self._in_space(own, name, path, is_state)
            if value is not _MISSING:
                return value
        if found is not _MISSING:
            return _bound(found, item, cls)
        if raw.is_a(item, _MODULE) and own is not None:
            held: list[Any] = [own.get(registry) for registry in REGISTRIES]
            registries = [registry for registry in held if raw.is_a(registry, dict)]
            for key, registry in zip(REGISTRIES, held, strict=True):
                if raw.is_a(registry, dict) and dict.__contains__(registry, name):
                    if is_state:
                        self._read(own, key, f"{self._path(item)}.{key}")
                    return self._in_space(registry, name, path, is_state)
            for registry in registries if is_state else ():
                self._read(registry, name, path)
        if type(self._lookup(cls, "__getattr__")) in _C_FUNCTIONS and raw.is_a(item, dict):
            return self._item_of(item, name)  # class D(dict): __getattr__ = dict.__getitem__
        return _UNKNOWN

    def _in_space(self, space: dict[str, Any], name: str, path: str, is_state: bool) -> Any:
        if not is_state:
            return dict.get(space, name, _MISSING)
        if ("length", id(space)) in self.places and _holds(space, name) and name not in space:
            return _MISSING
        return self._read(space, name, path)

    def _attribute_of_super(self, item: _Super, name: str) -> Any:
        cls = item.of if raw.is_a(item.of, type) else type(item.of)
        bases = list(raw.mro(cls))
        if item.after not in bases:
            return _UNKNOWN
        for base in bases[bases.index(item.after) + 1 :]:
            space = raw.namespace(base)
            if raw.is_mutable(base) and not (_package(base) in CLOSED and name not in space):
                value = self._read(base, name, f"{raw.name_of(base)}.{name}")
            else:
                value = space.get(name, _MISSING)
            if value is not _MISSING:
                return _bound(value, item.of, cls)
        return _UNKNOWN

    def _attribute_of_space(self, module: types.ModuleType, name: str) -> Any:
        self._isinstance(None, [module])
        if name == "__dict__":
            return self._know(module.__dict__, _name_of_module(module))
        value = self._read(module.__dict__, name, f"{_name_of_module(module)}.{name}")
        if value is _MISSING:
            value = self._lookup(type(module), name)
            return _UNKNOWN if value is _MISSING else _bound(value, module, type(module))
        return value

    def _attribute_of_class(self, cls: Any, name: str) -> Any:
        if name == "__dict__":
            if raw.is_mutable(cls):
                self._know(raw.dict_of(cls), raw.name_of(cls))
            return raw.namespace(cls)
        if name in ("__mro__", "__bases__"):
            self._place_of_bases(cls)
            return raw.namespace(type)[name].__get__(cls)
        if name in ("__name__", "__qualname__", "__module__") and raw.is_mutable(cls):
            get = functools.partial(raw.namespace(type)[name].__get__, cls)
            return self._live((name, id(cls)), get, f"{raw.name_of(cls)}.{name}")
        found = self._lookup(cls, name)
        if found is not _MISSING:
            return _bound(found, None, cls)
        found = self._lookup(type(cls), name)
        return _UNKNOWN if found is _MISSING else _bound(found, cls, type(cls))

    def _attribute_of_function(self, item: Any, name: str, path: str) -> Any:
        if type(item) is types.MethodType:
            if name in ("__func__", "__self__"):
                return getattr(item, name)
            item = item.__func__
        if type(item) is not types.FunctionType:
            return _UNKNOWN
        if name in ("__defaults__", "__kwdefaults__", "__code__", "__closure__", "__globals__"):
            if self._is_state(item):
                self._place(("parts", id(item)), lambda: Parts(path, item))
            return getattr(item, name)
        if name in ("__name__", "__qualname__", "__doc__", "__annotations__"):
            get = functools.partial(getattr, item, name)
            value = self._live((name, id(item)), get, path) if self._is_state(item) else get()
            return value
        if self._is_state(item):
            return self._or_unknown(self._read(item.__dict__, name, path))
        return item.__dict__.get(name, _UNKNOWN)

    def _getset(self, item: Any, found: Any, name: str, path: str, is_state: bool) -> Any:
        if name == "__dict__":
            own = raw.attributes(item)
            return (
                _UNKNOWN
                if own is None
                else (self._know(own, self._path(item)) if is_state else own)
            )
        if name == "__class__":
            return type(item)
        if raw.is_a(item, torch.Tensor):
            if name in ("grad", "is_leaf", "grad_fn", "_backward_hooks") and is_state:
                return self._live((name, id(item)), lambda: found.__get__(item), path)
            return _UNKNOWN
        return _UNKNOWN

    def _live(self, key: Any, get: Callable[[], Any], path: str) -> Any:
        """What a function in C gives, asked again by the guard."""
        place = self._place(key, lambda: Live(path, key, get))
        value = place.read()  # type: ignore[attr-defined]
        return self._held(value, path)

    @staticmethod
    def _or_unknown(value: Any) -> Any:
        return _UNKNOWN if value is _MISSING else value

    def _call_of_module(self, module: Any) -> None:
        """What torch's own code reads when it calls a module."""
        path = self._path(module)
        self._attribute(module, "forward")
        self._attribute(module, "_compiled_call_impl")
        self._attribute(module, "_call_impl")
        own = raw.attributes(module) or {}
        for hooks in _HOOKS:
            held = own.get(hooks)
            if raw.is_a(held, dict):
                self._read(own, hooks, f"{path}.{hooks}")
                self._know(held, f"{path}.{hooks}")
                if held:
                    self._content(held, f"{path}.{hooks}", 0)
                else:
                    self._read_now.append(id(held))
                    self.no_hooks[id(held)] = Container(f"{path}.{hooks}", held, None, "hooks")

    # Steps: what an instruction reads, and the value that it makes.

    def _value(self, frame: _Frame, operand: bytecode.Operand) -> Any:
        if operand is None:
            return _UNKNOWN
        kind, what, *slots = operand
        if kind == "local":
            return frame.locals.get(what, _UNKNOWN)
        if kind == "const":
            return what
        if kind == "made":
            value = frame.made.get(what, _UNKNOWN)
            return self._on_stack(frame, *slots) if value is _UNKNOWN else value
        if kind == "slot":
            return self._on_stack(frame, what, *slots)
        if kind == "super":
            return frame.super()
        return _UNKNOWN

    def _on_stack(self, frame: _Frame, *slots: int) -> Any:
        """Give the value of the first slot that has one, such as a result of C code."""
        found = (self._stack.at(frame.frame, slot) for slot in slots)
        return next((value for value in found if value is not NOTHING), _UNKNOWN)

    def _global(self, frame: _Frame, name: str) -> Any:
        space = frame.frame.f_globals
        if not frame.frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            own = frame.locals
            if own is not space and name in own:
                return own[name]
        value = self._read(space, name, name)
        if value is _MISSING:
            value = self._read(frame.frame.f_builtins, name, name)
        return self._or_unknown(value)

    def _cell(self, frame: _Frame, name: str) -> Any:
        value = frame.locals.get(name, _UNKNOWN)
        code = frame.frame.f_code
        if name in code.co_freevars:
            for function in self._functions.get(code, ()):
                cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
                if cell_value(cell) is value:
                    self._read(cell, 0, name)
        return value

    def _attribute_step(self, frame: _Frame, base: bytecode.Operand, name: str) -> Any:
        item = self._value(frame, base)
        if item is _UNKNOWN:
            return _UNKNOWN
        return self._attribute(item, name)

    def _store(self, frame: _Frame, kind: str, *operands: Any) -> Any:
        """What is stored somewhere was not read there: what asks for it later asks for that."""
        known = len(self.places)
        self._uncounted(frame, kind, *operands)
        item = self._value(frame, operands[0]) if kind in ("attribute", "item") else None
        if kind in ("attribute", "item") and not self._stores_plainly(item, kind):
            return _UNKNOWN
        key = self._value(frame, operands[1]) if kind == "item" else operands[-1]
        self._mark_stored(known, item, key, kind)
        if kind == "attribute" and raw.is_a(item, _MODULE) and self._is_state(item):
            # What is a parameter by now is stored elsewhere, or not at all.
            own = raw.attributes(item) or {}
            for name in REGISTRIES:
                registry: Any = own.get(name)
                if raw.is_a(registry, dict) and not dict.__contains__(registry, key):
                    self._read(registry, key, f"{self._path(item)}.{key}")
        return _UNKNOWN

    def _count(self, frame: _Frame, *step: Any) -> Any:
        """A constant is added to what is read, and the sum is stored there."""
        self._has_counted = True
        return self._uncounted(frame, *step)

    def _uncounted(self, frame: _Frame, kind: str, *operands: Any) -> Any:
        """What such an instruction asks for does not depend on the number."""
        self._counting = True
        try:
            return _STEPS[kind](self, frame, *operands)
        finally:
            self._counting = False

    def _mark_stored(self, known: int, item: Any, key: Any, kind: str) -> None:
        for identity in itertools.islice(reversed(self.places), len(self.places) - known):
            place = self.places[identity]
            if kind == "cell":
                place.stored = isinstance(place, Item) and type(place.container) is types.CellType
            elif kind == "global" or not raw.is_a(item, type):
                is_there = isinstance(place, Live) or (
                    isinstance(place, Item) and not raw.is_a(place.container, type)
                )
                place.stored = is_there and identity[-1] in (key, raw.token(key))
            else:
                place.stored = identity == ("item", id(item), raw.token(key))

    def _stores_plainly(self, item: Any, kind: str) -> bool:
        """Whether no code of the program runs when something is stored in ``item``."""
        name = "__setattr__" if kind == "attribute" else "__setitem__"
        if item is _UNKNOWN:
            return False
        found = self._lookup(type(item), name)
        return found is _SETATTR_OF_MODULE or type(found) is types.WrapperDescriptorType

    def _item(self, frame: _Frame, base: bytecode.Operand, key: bytecode.Operand) -> Any:
        item, at = self._value(frame, base), self._value(frame, key)
        if item is _UNKNOWN:
            return _UNKNOWN
        return self._item_of(item, at)

    def _item_of(self, item: Any, at: Any) -> Any:
        kind = type(item)
        if kind is tuple or self._is_tuple(item):
            return tuple.__getitem__(item, at) if _is_index(at, len(item)) else _UNKNOWN
        if kind is types.MappingProxyType:
            (inner,) = gc.get_referents(item)
            if self._is_state(item):
                self._know(inner, self._path(item))
            return self._item_of(inner, at)
        self._special(item)
        if not raw.is_a(item, dict, list, deque):
            self._content(item, self._path(item), 0)
            return _UNKNOWN
        if at is _UNKNOWN or not raw.is_scalar(at):
            self._content(item, self._path(item), 1)
            return _UNKNOWN
        if raw.is_a(item, dict):
            if not self._is_state(item):
                return self._or_unknown(dict.get(item, at, _MISSING))
            return self._or_unknown(
                self._read(item, at, f"{self._path(item)}[{raw.written_as(at)}]")
            )
        if not _is_index(at, raw.length(item)):
            return _UNKNOWN
        if raw.is_a(item, deque) or not self._is_state(item):
            self._content(item, self._path(item), 0)
            base: Any = deque if raw.is_a(item, deque) else list
            return base.__getitem__(item, at)
        if at < 0:
            self._place(("length", id(item)), lambda: Length(self._path(item), item))
            at += raw.length(item)
        return self._or_unknown(self._read(item, at, f"{self._path(item)}[{at}]"))

    def _is_tuple(self, item: Any) -> bool:
        """Whether indexing it is that of a tuple."""
        if not raw.is_a(item, tuple):
            return False
        return self._lookup(type(item), "__getitem__") is raw.namespace(tuple)["__getitem__"]

    def _delete(self, frame: _Frame, base: bytecode.Operand, key: bytecode.Operand) -> Any:
        self._taken_from.add(id(self._value(frame, base)))
        return self._item(frame, base, key)

    def _contains(self, frame: _Frame, base: bytecode.Operand, key: bytecode.Operand) -> Any:
        item, at = self._value(frame, base), self._value(frame, key)
        if raw.is_a(item, dict) and at is not _UNKNOWN and raw.is_scalar(at):
            if self._is_state(item):
                self._read(item, at, f"{self._path(item)}[{raw.written_as(at)}]")
        elif item is not _UNKNOWN:
            self._content(item, self._path(item), 0)
        return _UNKNOWN

    def _is(self, frame: _Frame, *both: bytecode.Operand) -> Any:
        """A counter is a number to who compares it with other objects than ``None``."""
        values = [self._value(frame, operand) for operand in both]
        for value in values:
            if type(value) is Counted and None not in values:
                value.use()
        return _UNKNOWN

    def _content_step(self, frame: _Frame, *bases: bytecode.Operand) -> Any:
        for base in bases:
            item = self._value(frame, base)
            if item is not _UNKNOWN:
                self._content(item, self._path(item), 1)
        return _UNKNOWN

    def _length(self, frame: _Frame, base: bytecode.Operand) -> Any:
        return self._len(frame, [self._value(frame, base)])

    def _import(self, frame: _Frame, name: str, outer: bool) -> Any:
        module = self._read(sys.modules, name, f"sys.modules[{name!r}]")
        if outer:
            module = self._read(sys.modules, name.partition(".")[0], name.partition(".")[0])
        return self._or_unknown(module)

    def _match(
        self,
        frame: _Frame,
        on: bytecode.Operand,
        of: bytecode.Operand,
        names: bytecode.Operand,
        count: int,
    ) -> Any:
        item, cls = self._value(frame, on), self._value(frame, of)
        if item is _UNKNOWN or not raw.is_a(cls, type):
            return _UNKNOWN
        self._isinstance(frame, [item, cls])
        by_place = self._attribute_of_class(cls, "__match_args__") if count else ()
        by_name = names[1] if names is not None and names[0] == "const" else ()
        if raw.is_a(item, cls):
            for name in (*(by_place if type(by_place) is tuple else ())[:count], *by_name):
                self._attribute(item, name)
        return _UNKNOWN

    def _spread(
        self,
        frame: _Frame,
        fn: bytecode.Operand,
        args: bytecode.Operand,
        keywords: bytecode.Operand,
    ) -> Any:
        given = [self._value(frame, operand) for operand in (args, keywords)]
        for item in given:
            if item is not _UNKNOWN:
                self._content(item, self._path(item), 1)
        function = self._value(frame, fn)
        frame.used(fn, args, keywords)
        args_given = given[0] if type(given[0]) in (tuple, list) else ()
        return self._called(
            frame, function, list(args_given), has_keywords=given[1] is not _UNKNOWN
        )

    def _call(
        self,
        frame: _Frame,
        fn: bytecode.Operand,
        args: tuple[bytecode.Operand, ...],
        names: tuple[str, ...],
    ) -> Any:
        function = self._value(frame, fn)
        given = [self._value(frame, operand) for operand in args]
        frame.used(fn, *args)
        positional = given[: len(given) - len(names)]
        return self._called(frame, function, positional, bool(names), given)

    def _called(
        self,
        frame: _Frame,
        function: Any,
        positional: list[Any],
        has_keywords: bool,
        given: Sequence[Any] = (),
    ) -> Any:
        if function is _UNKNOWN:
            for item in given:
                if item is not _UNKNOWN:
                    self._content(item, self._path(item), 1)
            return _UNKNOWN
        kind = type(function)
        if kind is types.FunctionType:
            self._run_by_name(function, given)
            return _UNKNOWN
        if kind is functools.partial:
            own = raw.namespace(functools.partial)
            inner, before = (own[part].__get__(function) for part in ("func", "args"))
            given = [*before, *given]
            return self._called(frame, inner, [*before, *positional], has_keywords, given)
        if kind is types.MethodType and type(function.__func__) is types.FunctionType:
            if _is_apply(function, function.__self__):
                for part in ("forward", "setup_context"):
                    self._lookup(function.__self__, part)
            self._run_by_name(function.__func__, given)
            return _UNKNOWN
        if id(function) not in _STORING and not frame.is_of_torch():
            for item in given:
                if type(item) is Counted:  # id(), operator.is_() and their like do not ask it
                    item.use()
        if function is gc.collect and self._since is not None:  # finalizers run in it
            self._since.look()
            self._collect(frame)
            hear_again()
        if id(function) in _GETTERS:
            return self._live(("getter", id(function)), function, f"{function.__name__}()")
        known = _DOORS.get(id(function)) if not has_keywords else None
        if known is not None:
            return known(self, frame, positional)
        owner: Any = getattr(function, "__self__", None) if kind in _C_FUNCTIONS else None
        if owner is not None and raw.is_a(owner, dict, list, deque, set):
            return self._method_of_container(owner, function.__name__, positional)
        if raw.is_a(function, type):
            for part in ("__new__", "__init__"):
                if raw.is_mutable(function):
                    self._run_by_name_of(self._lookup(function, part))
        if raw.is_a(owner, contextvars.ContextVar):
            return self._variable(owner, function.__name__)
        if (
            kind is types.MethodWrapperType
            and function.__name__
            in (
                "__getattribute__",
                "__setattr__",
                "__delattr__",
            )
            and positional
            and type(positional[0]) is str
        ):
            value = self._attribute(owner, positional[0], generic=True)
            return value if function.__name__ == "__getattribute__" else _UNKNOWN
        if raw.is_a(function, weakref.ref):
            return self._live(("weak", id(function)), function, self._path(function))
        if raw.is_a(function, operator.attrgetter, operator.itemgetter):
            if positional and positional[0] is not _UNKNOWN and self._is_state(positional[0]):
                self._getter(function, positional[0])
            return _UNKNOWN
        if kind is functools._lru_cache_wrapper and self._is_state(function):
            # It may answer without running: then what it keeps is what was read.
            self._live(("cache", id(function)), lambda: _kept(function), self._path(function))
            return _UNKNOWN
        is_of_python = type(self._lookup(kind, "__call__")) is types.FunctionType
        for item in () if is_of_python else (owner, *given, *positional):
            if item is not _UNKNOWN:
                self._attributes(item) if kind in _C_FUNCTIONS else None
                self._content(item, self._path(item), _MAX_NESTED)
        if any(raw.is_a(item, *_READERS) for item in given):  # as map(attrgetter("scale"), items)
            self._everything(*given)
        return _UNKNOWN

    def _everything(self, *items: Any) -> None:
        """C code may read what it likes of ``items``, and of what they hold."""
        todo = [(item, _MAX_NESTED) for item in items if item is not _UNKNOWN]
        seen: set[int] = set()
        for item, depth in todo:  # which grows meanwhile
            if raw.is_a(item, *_C_FUNCTIONS):
                item = item.__self__
            if type(item) in _LEAVES or raw.is_a(item, *_NOT_PLAIN):
                continue
            if id(item) in self._read_whole:
                self._read_now.append(OWN)  # not what another call has read
                continue
            if id(item) in seen or len(seen) > _MAX_ITEMS:
                continue
            seen.add(id(item))
            is_state = self._is_state(item)
            if is_state:
                self._read_whole.add(id(item))
            inner: list[Any] = []
            if raw.is_a(item, dict, list, deque, set):
                self._content(item, self._path(item), 0)
                if raw.length(item) <= _MAX_ITEMS:
                    inner += [value for _, value in raw.contents(item)]
            elif raw.is_a(item, tuple, frozenset):
                inner += list(_members(item))
            self._attributes(item)
            if is_state:
                own = raw.attributes(item)
                inner += [value for _, value in raw.contents(own)] if own else []
                inner += [value for _, value in Slots(item, raw.slots(item)).read()]
            if depth:
                todo += [(value, depth - 1) for value in inner]

    def _run_by_name_of(self, found: Any) -> None:
        """Defaults of a function that C code is about to call."""
        if type(found) is staticmethod:
            found = found.__func__
        if type(found) is types.FunctionType:
            self._place_of_parts(found)

    def _attributes(self, item: Any) -> None:
        """C code was given ``item``: all its attributes count as read, if it is a plain object."""
        if raw.is_a(item, *_NOT_PLAIN) or not self._is_state(item):
            return
        own = raw.attributes(item)
        if own:
            self._know(own, self._path(item))
            self._content(own, self._path(item), 0)
        for name in raw.slots(item):
            self._attribute(item, name.rpartition(".")[2])
        for base in raw.mro(type(item)):
            if raw.is_mutable(base) and _package(base) not in CLOSED:
                space, path = raw.dict_of(base), raw.name_of(base)
                self._know(space, path)
                self._content(space, path, 0)

    def _run_by_name(self, function: types.FunctionType, given: Sequence[Any]) -> None:
        """A function in Python is about to be called; the code of some is not looked at."""
        if function.__globals__.get("__name__") == "inspect":
            for item in given:
                self._run_by_name_of(item)
                if raw.is_a(item, type):
                    self._attribute_of_class(item, "__dict__")
                    self._content(raw.namespace(item), raw.name_of(item), 0)
        if is_closed(str(function.__globals__.get("__name__", ""))):
            for item in given:
                if item is not _UNKNOWN:
                    self._content(item, self._path(item), _MAX_NESTED)

    def _variable(self, variable: contextvars.ContextVar[Any], method: str) -> Any:
        """Read a context variable. If the run has set it, its value is no state."""
        key = ("variable", id(variable))
        sets = self._sets[variable]
        self._sets[variable] += {"set": 1, "reset": -1}.get(method, 0)
        if sets > 0:
            self._read_now.append(OWN)
            return variable.get(_UNKNOWN) if method == "get" else _UNKNOWN
        value = self._live(key, functools.partial(_value_of, variable), self._path(variable))
        return self._or_unknown(value) if method == "get" else _UNKNOWN

    def _method_of_container(self, owner: Any, name: str, positional: list[Any]) -> Any:
        if not self._is_state(owner):
            if (
                name == "get"
                and positional
                and raw.is_scalar(positional[0])
                and raw.is_a(owner, dict)
            ):
                return self._or_unknown(dict.get(owner, positional[0], _MISSING))
            return _UNKNOWN
        if name in _TAKING and raw.is_a(owner, dict):
            self._taken_from.add(id(owner))
        by_key = ("get", "__getitem__", "setdefault", "pop", "__contains__")
        if (
            raw.is_a(owner, dict)
            and name in by_key
            and positional
            and positional[0] is not _UNKNOWN
        ):
            value = self._item_of(owner, positional[0])
            if value is _UNKNOWN and name == "get":
                return positional[1] if len(positional) > 1 else _UNKNOWN
            return value if name != "__contains__" else _UNKNOWN
        self._content(owner, self._path(owner), 1)
        return _UNKNOWN

    def _getter(self, function: Any, item: Any) -> None:
        """What ``operator.attrgetter`` and ``itemgetter`` read: their names are in their repr."""
        names = function.__reduce__()[1]
        for name in names:
            value = item
            if raw.is_a(function, operator.attrgetter):
                for part in name.split("."):
                    value = self._attribute(value, part) if value is not _UNKNOWN else value
            else:
                self._item_of(item, name)

    # C functions that read by name.

    def _getattr(self, frame: _Frame, args: list[Any]) -> Any:
        if len(args) < 2 or args[0] is _UNKNOWN or type(args[1]) is not str:
            return _UNKNOWN
        return self._attribute(args[0], args[1])

    def _hasattr(self, frame: _Frame, args: list[Any]) -> Any:
        self._getattr(frame, args)
        return _UNKNOWN

    def _setattr(self, frame: _Frame, args: list[Any]) -> Any:
        known = len(self.places)
        self._getattr(frame, args)
        if len(args) > 1 and self._stores_plainly(args[0], "attribute"):
            self._mark_stored(known, args[0], args[1], "attribute")
        return _UNKNOWN

    def _generic_getattr(self, frame: _Frame, args: list[Any]) -> Any:
        if len(args) < 2 or args[0] is _UNKNOWN or type(args[1]) is not str:
            return _UNKNOWN
        return self._attribute(args[0], args[1], generic=True)

    def _vars(self, frame: _Frame, args: list[Any]) -> Any:
        if not args or args[0] is _UNKNOWN:
            return _UNKNOWN
        if raw.is_a(args[0], types.ModuleType):
            return self._attribute_of_space(args[0], "__dict__")
        if raw.is_a(args[0], type):
            return self._attribute_of_class(args[0], "__dict__")
        self._isinstance(frame, args)
        own = raw.attributes(args[0])
        if own is None:
            return _UNKNOWN
        return self._know(own, self._path(args[0])) if self._is_state(args[0]) else own

    def _type(self, frame: _Frame, args: list[Any]) -> Any:
        if len(args) != 1 or args[0] is _UNKNOWN:
            return _UNKNOWN
        self._isinstance(frame, args)
        return type(args[0])

    def _isinstance(self, frame: _Frame | None, args: list[Any]) -> Any:
        item = args[0] if args else _UNKNOWN
        if type(item) is Counted and frame is not None and not frame.is_of_torch():
            item.use()
        may_change = raw.is_mutable(type(item)) or raw.is_a(item, types.ModuleType)
        if item is not _UNKNOWN and may_change and self._is_state(item):
            self._place(("type", id(item)), lambda: TypeOf(f"{self._path(item)}.__class__", item))
            self._place_of_bases(type(item))
        classes = args[1] if len(args) > 1 else ()
        for cls in classes if type(classes) is tuple else (classes,):
            self._class_checked(cls)
        return _UNKNOWN

    def _class_checked(self, cls: Any) -> None:
        """A metaclass may answer what is an instance of ``cls``."""
        if not raw.is_a(cls, type) or type(cls) is type:
            return
        self._lookup(type(cls), "__instancecheck__")
        if raw.is_mutable(type(cls)):
            self._place_of_members(type(cls))
        if raw.is_a(cls, abc.ABCMeta) and _package(cls) not in (*CLOSED, *QUIET, "collections"):
            self._live(("abc",), abc.get_cache_token, "abc.ABC.register()")

    def _issubclass(self, frame: _Frame, args: list[Any]) -> Any:
        if len(args) == 2 and raw.is_a(args[0], type):
            self._place_of_bases(args[0])
            for cls in args[1] if type(args[1]) is tuple else (args[1],):
                self._class_checked(cls)
        return _UNKNOWN

    def _callable(self, frame: _Frame, args: list[Any]) -> Any:
        if args and args[0] is not _UNKNOWN:
            self._lookup(type(args[0]), "__call__")
        return _UNKNOWN

    def _len(self, frame: _Frame, args: list[Any]) -> Any:
        item = args[0] if args else _UNKNOWN
        if item is _UNKNOWN or type(item) in _LEAVES or raw.is_a(item, tuple, torch.Tensor):
            return _UNKNOWN
        if not raw.is_a(item, dict, list, deque, set):
            self._content(item, self._path(item), 0)
        elif self._is_state(item):
            self._special(item)
            self._place(("length", id(item)), lambda: Length(self._path(item), item))
        return _UNKNOWN

    def _super(self, frame: _Frame, args: list[Any]) -> Any:
        if not args:
            return frame.super()
        if len(args) == 2 and raw.is_a(args[0], type) and args[1] is not _UNKNOWN:
            return _Super(args[0], args[1])
        return _UNKNOWN

    def _globals(self, frame: _Frame, args: list[Any]) -> Any:
        return self._know(frame.frame.f_globals, "globals()")


_STORING = frozenset(map(id, (setattr, object.__setattr__)))
_TAKING = ("pop", "popitem", "clear", "move_to_end", "__delitem__")
_VIEWS: Any = (type({}.keys()), type({}.values()), type({}.items()), types.MappingProxyType)
_GETTERS = frozenset(map(id, (sys.getrecursionlimit, sys.getswitchinterval)))


class _Recording(AbstractContextManager[None]):
    """Ends in our code: that of ``contextlib`` would be taken for the program's."""

    def __init__(self, inner: AbstractContextManager[None]) -> None:
        self._inner = inner

    def __enter__(self) -> None:
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)


class _Super:
    """What ``super()`` gives: attributes of ``of`` that are found after the class ``after``."""

    def __init__(self, after: Any, of: Any) -> None:
        self.after, self.of = after, of


class _Frame:
    """A frame that is looked at."""

    __slots__ = ("frame", "made", "starts", "steps")

    def __init__(self, frame: types.FrameType) -> None:
        self.frame = frame
        self.steps, self.starts = bytecode.read(frame.f_code)
        #: Offset -> what the instruction there has made last.
        self.made: dict[int, Any] = {}

    @property
    def locals(self) -> Any:
        return self.frame.f_locals

    def used(self, *operands: bytecode.Operand) -> None:
        """Nothing of ours is to hold what a call takes: who else does is asked elsewhere."""
        for operand in operands:
            if operand is not None and operand[0] == "made":
                self.made.pop(operand[1], None)

    def is_of_torch(self) -> bool:
        """Whether it is of torch, which asks what is set as the attribute of a module."""
        return str(self.frame.f_globals.get("__name__", "")).startswith("torch.")

    def where(self) -> tuple[str, int]:
        return self.frame.f_code.co_filename, self.frame.f_lineno or 0

    def super(self) -> Any:
        variables, code = self.locals, self.frame.f_code
        first = variables.get(code.co_varnames[0], _UNKNOWN) if code.co_argcount else _UNKNOWN
        cls = variables.get("__class__", _UNKNOWN)
        return _UNKNOWN if first is _UNKNOWN or cls is _UNKNOWN else _Super(cls, first)


_C_FUNCTIONS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
)
# What reads attributes or items for C code that it is given to.
_READERS = (operator.attrgetter, operator.methodcaller, functools.partial, *_C_FUNCTIONS)
_DOORS: dict[int, Callable[..., Any]] = {
    id(getattr): Reads._getattr,
    id(hasattr): Reads._hasattr,
    id(setattr): Reads._setattr,
    id(delattr): Reads._hasattr,
    id(vars): Reads._vars,
    id(type): Reads._type,
    id(isinstance): Reads._isinstance,
    id(issubclass): Reads._issubclass,
    id(callable): Reads._callable,
    id(len): Reads._len,
    id(super): Reads._super,
    id(globals): Reads._globals,
    id(object.__getattribute__): Reads._generic_getattr,
}
_STEPS: dict[str, Callable[..., Any]] = {
    "global": Reads._global,
    "cell": Reads._cell,
    "attribute": Reads._attribute_step,
    "item": Reads._item,
    "contains": Reads._contains,
    "content": Reads._content_step,
    "length": Reads._length,
    "call": Reads._call,
    "spread": Reads._spread,
    "import": Reads._import,
    "match": Reads._match,
    "store": Reads._store,
    "counting": Reads._count,
    "is": Reads._is,
    "delete": Reads._delete,
}


def _is_ours(value: Any) -> bool:
    if type(value) is types.FunctionType:
        return str(value.__globals__.get("__name__", "")).startswith(f"{_OURS}.")
    return _package(type(value)) == _OURS


def cell_value(cell: types.CellType) -> Any:
    """What a variable holds; a mark of ours where it is not bound."""
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _names_in(cls: type, code: types.CodeType) -> list[str]:
    """The names by which a class made by the program knows functions with this code."""
    names = []
    for base in raw.mro(cls) if raw.is_mutable(cls) and _package(cls) not in CLOSED else ():
        for name, value in list(raw.namespace(base).items()) if raw.is_mutable(base) else ():
            parts = [value]
            if raw.is_a(value, property):
                own = raw.namespace(property)
                parts = [own[part].__get__(value) for part in ("fget", "fset", "fdel")]
            elif type(value) in (staticmethod, classmethod):
                parts = [value.__func__]
            if any(type(p) is types.FunctionType and p.__code__ is code for p in parts):
                names.append(str(name))
    return names


def _value_of(variable: contextvars.ContextVar[Any]) -> Any:
    """Give the value of a context variable, or its own default."""
    try:
        return variable.get()
    except LookupError:
        return _MISSING


def _is_apply(function: Any, owner: Any) -> bool:
    """Whether C code is about to call the ``forward`` of ``owner``."""
    is_one = raw.is_a(owner, type) and torch.autograd.Function in raw.mro(owner)
    return is_one and function.__name__ == "apply"


def _kept(cached: Any) -> tuple[int, int]:
    """What tells that a cache was emptied or filled since."""
    info = cached.cache_info()
    return info.misses, info.currsize


def _get_local(item: threading.local, name: str) -> Any:
    own = raw.attributes(item)
    return _MISSING if own is None else own.get(name, _MISSING)


def _holds(own: dict[str, Any], name: str) -> bool:
    """Whether a module with these attributes has a child, parameter or buffer of that name."""
    registries: list[Any] = [own.get(registry) for registry in REGISTRIES]
    return any(raw.is_a(held, dict) and dict.__contains__(held, name) for held in registries)


def _members(item: Any) -> Iterator[Any]:
    """Those of a tuple or a frozenset."""
    base: Any = tuple if raw.is_a(item, tuple) else frozenset
    return iter(base.__iter__(item))


def _sets(kind: type) -> bool:
    return any("__set__" in raw.namespace(base) for base in raw.mro(kind))


def _bound(found: Any, item: Any, cls: type) -> Any:
    """What an attribute lookup makes of ``found``, which stands in a class."""
    kind = type(found)
    if kind is types.FunctionType:
        return found if item is None else types.MethodType(found, item)
    if kind is staticmethod:
        return found.__func__
    if kind is classmethod:
        inner = found.__func__
        return types.MethodType(inner, cls) if type(inner) is types.FunctionType else _UNKNOWN
    if kind in (types.MethodDescriptorType, types.WrapperDescriptorType):
        try:
            # Without the class, CPython 3.10 and 3.11 crash for some (re.Pattern.sub).
            return found if item is None else found.__get__(item, cls)
        except TypeError:
            return _UNKNOWN
    if kind is types.BuiltinFunctionType:
        return found
    if any("__get__" in raw.namespace(base) for base in raw.mro(kind)):
        return _UNKNOWN
    return found


def _is_index(at: Any, length: int) -> bool:
    return type(at) is int and -length <= at < length


def _package(cls: type) -> str:
    return raw.module_of(cls).partition(".")[0]


def _name_of_module(module: types.ModuleType) -> str:
    name = module.__dict__.get("__name__")
    return name if type(name) is str else "a module"


@functools.lru_cache(maxsize=4096)
def _watches(name: str) -> bool:
    """Whether a module of ours looks on while the function runs."""
    return name.startswith(_WATCHING)


def _is_for_us(frame: types.FrameType) -> bool:
    """Whether code of torch or of Python runs since what looks on has called it."""
    if str(frame.f_globals.get("__name__", "")).startswith(OPEN_IN_TORCH):
        return False  # called by a mode of ours for the function
    caller: types.FrameType | None = frame
    while caller is not None:
        name = str(caller.f_globals.get("__name__", ""))
        if _watches(name):
            return True
        if name.partition(".")[0] not in CLOSED:
            return False
        caller = caller.f_back
    return False
