"""Replaces attributes of other modules for as long as somebody needs it, and puts them back.

Every attribute has one *place*, which counts its users. Users come and go in any order, on several
threads. The last one to leave puts the original back. A replacement belongs to one thread unless it
says otherwise: a stand-in asks which thread it is on, and gives other threads the original. A child
of ``fork()`` has the replacements of the thread that it is a copy of, and those that last.

Other code may replace an attribute on top of ours. We leave its replacement alone, and our stand-in
below it passes calls on to the original. Such code may put our stand-in back after we have left: it
still passes calls on, and the next user of the place takes it out.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Callable
from types import BuiltinFunctionType, ClassMethodDescriptorType
from typing import Any, TypeVar

from .modules import loaded
from .opaque import opaque

__all__ = ["Claim", "Undoable", "find", "intercept", "override", "substitute"]

_MISSING: Any = object()

# The garbage collector may bring us here again on the same thread, wherever memory is allocated.
_lock = threading.RLock()
_places: dict[tuple[Any, ...], _Place] = {}


Self = TypeVar("Self", bound="Undoable")


class Undoable:
    """A context manager that ends with :meth:`undo`."""

    def undo(self) -> None:
        """Take it back."""
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.undo()


class Claim(Undoable):
    """One user of a replaced attribute.

    Attributes:
        ours: a handler, or a value.
        below: of a value, what it has replaced.
    """

    def __init__(self, place: _Place, ours: Any, everywhere: bool, lasts: bool) -> None:
        self.ours = ours
        self.below: Any = _MISSING
        self._place = place
        self._thread = None if lasts else threading.get_ident()
        self._claims = place.everywhere if everywhere else place.of_this_thread()

    @property
    def original(self) -> Any:
        """The value before our first replacement."""
        return self._place.original

    def undo(self) -> None:
        """Leave; the last one puts back what was there. Does nothing the second time."""
        with _lock:
            if self in self._claims:
                at = self._claims.index(self)
                del self._claims[at]
                self._place.users.discard(self)
                self._place.left(self, self._claims[at] if at < len(self._claims) else None)

    def survives_fork(self) -> bool:
        """Whether it lasts, or its thread is there: a child has only the thread that forked."""
        return self._thread in (None, threading.get_ident())


def find(path: str) -> tuple[Any, str] | None:
    """Where ``"module:Class.method"`` is: its owner and its name there.

    ``None`` if the module is not loaded or the owner is not in it; nothing is imported.
    """
    module, _, rest = path.partition(":")
    *parents, name = rest.split(".")
    owner: Any = loaded(module)
    for parent in parents:
        owner = getattr(owner, parent, None)
    return None if owner is None else (owner, name)


def intercept(
    owner: Any,
    name: str,
    handler: Callable[..., Any],
    *,
    everywhere: bool = False,
    lasts: bool = False,
) -> Claim:
    """Let calls of a function, a method or a class go to ``handler``.

    Args:
        owner: a module or a class.
        name: the attribute. It may be inherited, or may not exist yet.
        handler: called with the next callable and with the arguments of the call. The next callable
            is the handler that was there before on this thread, then those for all threads, then
            the original. The arguments of a method begin with the object; a property has no other.
        everywhere: take the calls of all threads. Default: only those of this one.
        lasts: whether it outlives its thread, also in children of ``fork()``.
    """
    key = id(owner), name, _Calls
    return _enter(key, lambda: _Calls(owner, name), handler, everywhere, lasts)


def substitute(owner: Any, name: str, value: Any, *, everywhere: bool = False) -> Claim:
    """Let users of an object, such as a stream, find ``value`` in an attribute of a module.

    Args:
        owner: the module.
        name: the attribute.
        value: what takes the place of the object.
        everywhere: for all threads. Default: for this one.
    """

    def place() -> _Place:
        for retired in _retired:
            if retired.owner is owner and retired.name == name and retired.stands_for_what_is_there:
                _retired.remove(retired)
                return retired
        return _Object(owner, name)

    return _enter((id(owner), name, _Object), place, value, everywhere)


def override(
    owner: Any,
    name: str,
    value: Any,
    *,
    get: Callable[[], Any] | None = None,
    put: Callable[[Any], None] | None = None,
    lasts: bool = False,
) -> Claim:
    """Let all threads find ``value``. Of several users the last one that is still inside decides.

    Args:
        owner: the object with the attribute or setting.
        name: its name.
        value: the value to set.
        get: reads a setting that is no plain attribute.
        put: writes it.
        lasts: whether it outlives its thread, also in children of ``fork()``.
    """

    def place() -> _Place:
        return _Setting(owner, name, get, put)

    return _enter((id(owner), name, _Setting), place, value, True, lasts)


def _enter(
    key: tuple[Any, ...],
    make: Callable[[], _Place],
    ours: Any,
    everywhere: bool,
    lasts: bool = False,
) -> Claim:
    with _lock:
        place = _places.get(key)
        if place is None or not (place.users or place.is_ours(place.get())):
            place = _places[key] = make()
        claim = Claim(place, ours, everywhere, lasts)
        place.users.add(claim)
        claim._claims.append(claim)
        try:
            place.entered(claim)
        except BaseException:
            claim.undo()
            raise
        return claim


class _Place:
    """An attribute, and its present users."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name  # the owner is kept: its id is a key
        self.users: set[Claim] = set()
        self.everywhere: list[Claim] = []
        self._local = threading.local()
        self._before = self.get()
        self.original = self._before
        if self._before is _MISSING:  # inherited, or a module makes it when it is asked for
            self.original = getattr(owner, name, _MISSING)
        self.ours = _MISSING
        self._installed = False

    def get(self) -> Any:
        """The value of the owner itself, not an inherited one."""
        return vars(self.owner).get(self.name, _MISSING)

    def put(self, value: Any) -> None:
        if value is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)

    def is_ours(self, value: Any) -> bool:
        """Whether this place put it there."""
        return value is not _MISSING and value is self.ours

    def of_this_thread(self) -> list[Claim]:
        """The claims of this thread, the innermost last."""
        claims: list[Claim] | None = getattr(self._local, "claims", None)
        if claims is None:
            claims = self._local.claims = []
        return claims

    def current(self) -> Any:
        """The value for this thread."""
        claims = getattr(self._local, "claims", None) or self.everywhere
        try:
            return claims[-1].ours
        except IndexError:  # another thread has just left
            return self.original

    def entered(self, claim: Claim) -> None:
        self._settle()

    def left(self, claim: Claim, above: Claim | None) -> None:
        self._settle()

    def _settle(self) -> None:
        while self._installed != bool(self.users):  # a collection may bring others meanwhile
            self._installed = bool(self.users)
            if self._installed and not self.is_ours(self.get()):
                self.put(self.ours)
            elif not self._installed and self.is_ours(self.get()):
                self.put(self._before)
                if not self.users:
                    self.forget()

    def forget(self) -> None:
        """Drop the state; the next user starts from the attribute."""
        for key in [key for key, place in _places.items() if place is self]:
            del _places[key]


class _Calls(_Place):
    def __init__(self, owner: Any, name: str) -> None:
        super().__init__(owner, name)
        before = self._before
        if before is _MISSING:
            before = self.original
            if isinstance(owner, type):
                inherited = (vars(c)[name] for c in owner.__mro__[1:] if name in vars(c))
                before = next(inherited, _MISSING)
        self._base, wrap = _taken_apart(self, before, isinstance(owner, type))

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.call(args, kwargs)

        if callable(self._base) and not isinstance(before, type):
            functools.update_wrapper(call, self._base)
        # It may be called in the middle of what Dynamo looks at.
        self.ours = wrap(opaque(call))

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Pass a call to the handlers of this thread, then to those for all threads, then on."""
        claims = getattr(self._local, "claims", None)
        if not claims and not self.everywhere:
            return self.pass_on(*args, **kwargs)
        handlers = [claim.ours for claim in (*self.everywhere, *(claims or ()))]
        return self._next(handlers, args, kwargs)

    def _next(self, handlers: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not handlers:
            return self.pass_on(*args, **kwargs)

        def following(*args: Any, **kwargs: Any) -> Any:
            return self._next(handlers[:-1], args, kwargs)

        return handlers[-1](following, *args, **kwargs)

    def pass_on(self, *args: Any, **kwargs: Any) -> Any:
        if self._base is _MISSING:
            raise AttributeError(f"{self.owner!r} has no attribute {self.name!r}")
        return self._base(*args, **kwargs)


def _taken_apart(
    place: _Calls, before: Any, in_class: bool
) -> tuple[Any, Callable[[Callable[..., Any]], Any]]:
    """The callable that a call ends at, and how to make an attribute of its stand-in."""
    if isinstance(before, type):

        def stand_in(call: Callable[..., Any]) -> Any:
            return _StandIn(before.__name__, (), {"original": before, "make": staticmethod(call)})

        return before, stand_in
    if not in_class:
        return before, lambda call: call
    if isinstance(before, (staticmethod, classmethod)):
        return before.__func__, type(before)
    if isinstance(before, ClassMethodDescriptorType):
        return lambda cls, *args, **kwargs: before.__get__(None, cls)(*args, **kwargs), classmethod
    if isinstance(before, BuiltinFunctionType) or place.name == "__new__":
        return before, staticmethod  # does not bind
    if hasattr(type(before), "__set__") or isinstance(before, property):
        return lambda item: before.__get__(item, type(item)), functools.partial(_Descriptor, before)
    return before, lambda call: call


class _Descriptor:
    """Stands for a property or a slot; only reading it is replaced."""

    def __init__(self, before: Any, call: Callable[..., Any]) -> None:
        self._before, self._call = before, call

    def __get__(self, item: Any, cls: Any = None) -> Any:
        return self._before.__get__(None, cls) if item is None else self._call(item)

    def __set__(self, item: Any, value: Any) -> None:
        self._before.__set__(item, value)

    def __delete__(self, item: Any) -> None:
        self._before.__delete__(item)


class _StandIn(type):
    """Stands for a class; what it constructs depends on the thread."""

    original: type
    make: Callable[..., Any]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.make(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.original)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.original)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.original, name)


class _Object(_Place):
    def __init__(self, owner: Any, name: str) -> None:
        super().__init__(owner, name)
        self.ours = _Proxy(self)

    @property
    def stands_for_what_is_there(self) -> bool:
        """Whether the stand-in still fits the attribute."""
        return self.get() is self._before

    def forget(self) -> None:
        """Begin anew, but keep the proxy."""
        super().forget()
        _retired.append(self)


# Up to Python 3.13 print() does not hold sys.stdout while it writes to it: a proxy that another
# thread's print() has found must not be freed when we take it out.
_retired: deque[_Object] = deque(maxlen=64)


def _of_current(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: _Proxy, *args: Any) -> Any:
        return function(_current(self), *args)

    return method


class _Proxy:
    """Stands for an object that depends on the thread."""

    __slots__ = ("__weakref__", "_place")

    def __init__(self, place: _Place) -> None:
        object.__setattr__(self, "_place", place)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(_current(self))

    __getattr__ = _of_current(getattr)
    __setattr__ = _of_current(setattr)
    __delattr__ = _of_current(delattr)
    __dir__ = _of_current(dir)
    __repr__ = _of_current(repr)
    __bool__ = _of_current(bool)
    __hash__ = _of_current(hash)
    __iter__ = _of_current(iter)
    __next__ = _of_current(next)

    def __eq__(self, other: object) -> bool:
        return bool(_current(self) == (_current(other) if type(other) is _Proxy else other))

    def __enter__(self) -> Any:
        return _current(self).__enter__()

    def __exit__(self, *exc_info: Any) -> Any:
        return _current(self).__exit__(*exc_info)


def _current(proxy: Any) -> Any:
    place: _Place = object.__getattribute__(proxy, "_place")
    return place.current()


class _Setting(_Place):
    """A value for all threads: the attribute holds the value of the last user."""

    def __init__(
        self,
        owner: Any,
        name: str,
        get: Callable[[], Any] | None,
        put: Callable[[Any], None] | None,
    ) -> None:
        self._get, self._put = get, put
        super().__init__(owner, name)

    def get(self) -> Any:
        return super().get() if self._get is None else self._get()

    def put(self, value: Any) -> None:
        if self._put is None:
            super().put(value)
        else:
            self._put(value)

    def entered(self, claim: Claim) -> None:
        """Set the value of ``claim``, and remember the one below it."""
        claim.below = self.get()
        self.ours = claim.ours
        self.put(claim.ours)

    def left(self, claim: Claim, above: Claim | None) -> None:
        """Take out the value of ``claim``, wherever in the order it is by now."""
        if above is None:
            if self.get() is claim.ours:
                self.put(claim.below)
        elif above.below is claim.ours:
            above.below = claim.below
        if not self.users:
            self.forget()


def _after_fork_in_child() -> None:
    """Drop the claims of threads that do not exist in the child, the newest first."""
    for place in list(_places.values()):
        for claim in [claim for claim in place.users if not claim.survives_fork()]:
            claim.undo()
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _lock.acquire() and None,
        after_in_parent=lambda: _lock.release(),
        after_in_child=_after_fork_in_child,
    )
