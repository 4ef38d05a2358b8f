"""Iterators and other things that a run can advance and nobody can put back.

A list iterator, a counter, a generator function that is half through: before a function that
reaches one runs again, it must be known that the caller's own run left it where it was. Their
places are read through methods in C that run no code of the user's.
"""

from __future__ import annotations

import _io
import csv
import gc
import hashlib
import hmac
import itertools
import os
import random
import secrets
import sys
import types
import uuid
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from ..errors import CaptureError
from ..interpose.codes import address
from ..interpose.modules import loaded
from . import raw

__all__ = [
    "STREAM",
    "Found",
    "Identity",
    "OneShots",
    "bits_of",
    "inner",
    "is_entropy",
    "is_of_numpy",
    "is_one_shot",
    "numpy_random",
    "place_of",
]


Found: TypeAlias = Sequence[tuple[str, Any]]
"""Paths and objects, as :class:`~gfxgraph.graph.state.PythonState` has met them."""

_REMEDY = "Read it outside of the function and pass what it gives."


def _classes_of_hashes() -> set[type]:
    found = set()
    for name in hashlib.algorithms_guaranteed:
        with suppress(ValueError):  # not every OpenSSL has each of them
            found.add(type(hashlib.new(name, usedforsecurity=False)))
    return found


_DEPTH = 32

_EMPTY: tuple[Any, ...] = (
    iter([]),
    iter(()),
    iter(range(0)),
    iter(range(1 << 70)),
    iter(""),
    iter("\u1234"),
    iter(b""),
    iter(bytearray()),
    iter({}),
    iter({}.items()),
    iter({}.values()),
    reversed({}),
    reversed({}.items()),
    reversed({}.values()),
    iter(set()),
    reversed([]),
    itertools.repeat(0, 0),
)
_ITERATORS_WITH_LENGTH = frozenset(map(type, _EMPTY))
# Those that hide their place, and tell it when they are pickled (itertools: up to Python 3.13).
_SEQUENCES = frozenset(
    {
        type(iter(type("_", (), {"__getitem__": 0})())),
        reversed,
        itertools.combinations,
        itertools.combinations_with_replacement,
        itertools.cycle,
        itertools.permutations,
        itertools.product,
        type(itertools.tee(())[0]),
    }
)
_CALLABLE: type = type(iter(int, 0))
_COMPOSITES = (
    frozenset({zip, map, filter, enumerate, _CALLABLE})
    | {cls for cls in vars(itertools).values() if isinstance(cls, type)}
) - {itertools.count, itertools.repeat, *_SEQUENCES}
_BOUND = (types.BuiltinMethodType, types.MethodWrapperType)
_FRAMES = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_READER = type(csv.reader(()))
_OWN_LISTS = (itertools.cycle, _READER)
_HASHES = (hmac.HMAC, *_classes_of_hashes())
STREAM: type = _io._IOBase  # of all files, also those in C

_ENTROPY: dict[int, str] = {
    address(function): name
    for name, function in {
        "os.urandom": os.urandom,
        "random.SystemRandom": random.SystemRandom,
        "uuid.uuid1": uuid.uuid1,
        "uuid.uuid4": uuid.uuid4,
        **{
            f"secrets.{name}": getattr(secrets, name)
            for name in secrets.__all__
            if name != "compare_digest"
        },
    }.items()
}


def is_entropy(item: Any) -> bool:
    """Whether it is a function that gives something else each time."""
    return address(item) in _ENTROPY


def is_one_shot(item: Any) -> bool:
    """Whether it can be advanced, and not be put back."""
    if is_entropy(item) or raw.is_a(item, random.SystemRandom):
        return True
    if raw.is_a(item, type):
        return False
    if any(type(item) is kind for kind in _HASHES):
        return True
    numpy = numpy_random()
    if numpy is not None:
        if raw.is_a(item, numpy.BitGenerator) and not is_of_numpy(item):
            return True
        if raw.is_a(item, numpy.Generator) and not is_of_numpy(bits_of(item)):
            return True
    for cls in raw.classes(item):
        method = raw.namespace(cls).get("__next__")
        if method is not None:
            if type(method) is types.FunctionType:
                return False  # what it advances are its attributes
            return not raw.is_a(item, STREAM) or _can_be_read(item)
    return type(item) is types.CoroutineType


def _can_be_read(stream: Any) -> bool:
    """Whether a file can be read, so that it has a place that reading advances."""
    if raw.module_of(type(stream)) != "_io":
        return True
    try:
        return bool(stream.readable())
    except ValueError:  # closed
        return False


def inner(item: Any) -> list[Any]:
    """The objects that an iterator in C refers to: iterators, data, variables of its frame.

    Of a method in C it is the object that it is bound to.
    """
    if raw.is_a(item, *_BOUND):
        return [item.__self__]
    known = _ITERATORS_WITH_LENGTH | _SEQUENCES | _COMPOSITES | {_READER, *_FRAMES}
    if type(item) not in known:
        return []
    if type(item) in _OWN_LISTS:  # what they have met so far is not the program's
        return [part for part in gc.get_referents(item) if type(part) is not list]
    return gc.get_referents(item)


class _Invisible(Exception):
    pass


class Identity:
    """An object, by identity; held, since the address of one that goes is given to another."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __eq__(self, other: object) -> bool:
        return type(other) is Identity and other.item is self.item

    __hash__ = None  # type: ignore[assignment]


def _place(item: Any) -> Any:
    """See :func:`_position`; ``_Invisible`` where there is no way to see it."""
    try:
        return _position(item)
    except _Invisible:
        return _Invisible


def place_of(item: Any) -> Any:
    """Where an iterator stands, to be compared; ``None``: there is no way to see it."""
    position = _place(item)
    return None if position is _Invisible else position


def _has_moved(item: Any, position: Any) -> bool:
    """Whether it is elsewhere than ``position``, as far as that can be seen."""
    return position is not _Invisible and bool(_place(item) != position)


def _position(item: Any, depth: int = 0) -> Any:
    """Something that differs once ``item`` was advanced.

    Raises:
        _Invisible: there is no way to see it.
    """
    kind = type(item)
    if depth > _DEPTH:
        raise _Invisible
    if kind in _ITERATORS_WITH_LENGTH:
        try:
            left = item.__length_hint__()
        except TypeError:  # itertools.repeat without an end, which stands still
            left = None
        return left, list(map(Identity, gc.get_referents(item)))
    if kind in _SEQUENCES:
        return _reduced(item, depth)
    if kind is itertools.count:
        # From Python 3.12 on it refers to its class too.
        known = (int, float, type)
        if any(type(part) not in known for part in gc.get_referents(item)):
            raise _Invisible
        return repr(item)
    if kind in _HASHES:
        return item.digest() if item.digest_size else item.hexdigest(32)
    if kind is _READER:
        own: Any = item.line_num
    elif kind is types.GeneratorType:
        frame = item.gi_frame
        own = -1 if frame is None else frame.f_lasti
    elif kind in _COMPOSITES:
        own = None
        for part in gc.get_referents(item):
            if kind is _CALLABLE and raw.is_a(part, *_BOUND):
                if not is_one_shot(part.__self__):
                    raise _Invisible  # such as the matches of a regular expression
                own = _position(part.__self__, depth + 1)
    elif raw.module_of(kind) == "_io" and raw.is_a(item, STREAM):
        try:
            return None if item.closed else item.tell()
        except (OSError, ValueError):
            raise _Invisible from None
    else:
        raise _Invisible
    referents = gc.get_referents(item)
    if sys.version_info < (3, 11) and kind is types.GeneratorType and frame is not None:
        # Only from 3.11 on a generator refers to what its frame holds.
        others = (frame.f_globals, frame.f_builtins)
        referents += [p for p in gc.get_referents(frame) if not any(p is one for one in others)]
    return own, [_part(part, depth) for part in referents]


def _part(part: Any, depth: int) -> Any:
    if type(part) in (list, dict, set):
        return Identity(part), len(part)
    if type(part) is tuple:  # map() and zip() keep their iterators in one
        return [_part(p, depth + 1) for p in part] if depth < _DEPTH else None
    if is_one_shot(part):
        return Identity(part), _position(part, depth + 1)
    return Identity(part)


def _reduced(item: Any, depth: int) -> Any:
    """By what pickling would keep, which is its place in the data."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            reduce: Any = type(item).__reduce__
            parts = reduce(item)
    except TypeError:
        raise _Invisible from None

    def shown(part: Any, depth: int) -> Any:
        if type(part) is tuple:
            return [shown(p, depth + 1) for p in part]
        if raw.is_scalar(part):
            return part
        if is_one_shot(part):  # made for the answer: it has no identity
            return _position(part, depth + 1) if depth < _DEPTH else None
        return Identity(part)

    return shown(parts, depth)


class OneShots:
    """Iterators and other things that can be advanced and not be put back, as they are now.

    Attributes:
        doubt: what the run after which they are compared has changed, so that another run may not
            go the same way; "" if nothing.
    """

    def __init__(self, found: Found) -> None:
        self.doubt = ""
        self._items: dict[int, tuple[str, Any, Any]] = {}
        for path, item in found:
            if is_one_shot(item):
                self._items[address(item)] = path, item, _place(item)

    def __len__(self) -> int:
        return len(self._items)

    def refuse(self, why: str) -> None:
        """Raise if there is any.

        Raises:
            CaptureError: there is; ``why`` says what may advance it.
        """
        for path, item, _ in self._items.values():
            raise CaptureError(
                f"it reaches {path}, a {_class(item)}, {why}, which may advance it. {_REMEDY}"
            )

    def check(self, before: OneShots | None) -> None:
        """Raise unless all of it stood still in a run of the caller's own.

        Args:
            before: what it was before that run; ``None``: there was none.

        Raises:
            CaptureError: something moved, or nobody can tell.
        """
        for key, (path, item, position) in self._items.items():
            what = _ENTROPY.get(key)
            if what is not None:
                raise CaptureError(
                    f"its code calls {what}(), which gives something else each time; a replay "
                    "would repeat one value. Draw outside of the function and pass the value."
                )
            if position is _Invisible:
                raise CaptureError(
                    f"it reaches {path}, a {_class(item)}, and nobody can see whether a call "
                    f"advances it. A replay would not. {_REMEDY}"
                )
            if before is None or key not in before._items:
                raise CaptureError(
                    f"it is not known yet whether a call advances {path}, a {_class(item)}",
                    transient=True,
                )
            if before._items[key][2] != position:
                # Perhaps in the first call only; it has not run again.
                raise CaptureError(_advances(path, item), transient=True)
            if before.doubt and not raw.is_a(item, STREAM):
                # Perhaps in the first call only, such as what is kept for later calls.
                raise CaptureError(
                    f"it reaches {path}, a {_class(item)}, and {before.doubt}: nobody can see "
                    f"whether a further run would advance it. {_REMEDY}",
                    transient=True,
                )

    def rewind(self) -> None:
        """Put files back to their places, which is all that can be put back."""
        for _, item, position in self._items.values():
            if raw.is_a(item, STREAM) and position is not None and _has_moved(item, position):
                item.seek(position)

    def check_unmoved(self) -> None:
        """Raise if any of it is elsewhere than it was.

        Raises:
            CaptureError: a run advanced it.
        """
        for path, item, position in self._items.values():
            if _has_moved(item, position):
                raise CaptureError(_advances(path, item))

    def moved(self) -> dict[str, bool]:
        """What is elsewhere than it was, or calls for new numbers each time.

        Returns:
            name -> whether random numbers come from it.
        """
        found = {
            path: key in _ENTROPY
            for key, (path, item, position) in self._items.items()
            if key in _ENTROPY or _has_moved(item, position)
        }
        # Not the iterators in it, which moved with it.
        return {
            path: is_random
            for path, is_random in found.items()
            if not any(path.startswith((f"{other}[", f"{other}.")) for other in found)
        }


def _advances(path: str, item: Any) -> str:
    return (
        f"each call advances {path}, a {_class(item)}, which a replay would not do. Advance it "
        "outside of the function and pass what it gives."
    )


def _class(item: Any) -> str:
    return raw.written_as(item).strip("<>")


def numpy_random() -> Any:
    """NumPy's module of random numbers, if it is loaded."""
    return loaded("numpy.random")


def bits_of(item: Any) -> Any:
    """The bit generator of a ``numpy.random.Generator``."""
    return numpy_random().Generator.__dict__["bit_generator"].__get__(item)


def is_of_numpy(bits: Any) -> bool:
    """Whether a bit generator is one of NumPy's own."""
    return raw.module_of(type(bits)).startswith("numpy.random.")
