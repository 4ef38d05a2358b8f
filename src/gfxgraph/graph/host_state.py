"""Random generators, iterators and buffers of the host that a run may advance.

A replay advances the generators of the device, as eager execution does. Everything else stands
still in a replay, so a function that advances it in each call cannot be a graph. Runs that nobody
asked for (warm-up, capture, the first replay) have to leave all of it as it was: what can be saved
is saved and put back; what cannot (an iterator) must not have moved in the caller's own run, or
the function does not run again.

Only classes of Python, NumPy and torch are asked, through methods in C that run no code of the
user's.
"""

from __future__ import annotations

import _random
import array
import csv
import gc
import io
import itertools
import os
import pickle
import random
import secrets
import sys
import types
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch

from ..device import Device
from ..errors import CaptureError
from . import raw

__all__ = [
    "Found",
    "HostState",
    "OneShots",
    "default_generators",
    "inner",
    "is_entropy",
    "is_stateful",
]

Found: TypeAlias = Sequence[tuple[str, Any]]
"""Paths and objects, as :class:`~gfxgraph.graph.state.PythonState` has met them."""

_Generator: type = torch._C.Generator
# A larger buffer is data: it is neither copied nor compared.
_MAX_BYTES = 1 << 20
_DEPTH = 32


# ---- what can be saved


class _Kind(NamedTuple):
    what: str
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]


def _read_random(item: Any) -> Any:
    own = raw.attributes(item) or {}
    return _random.Random.getstate(item), own.get("gauss_next")


def _write_random(item: Any, state: Any) -> None:
    _random.Random.setstate(item, state[0])
    own = raw.attributes(item)
    if own is not None:
        own["gauss_next"] = state[1]


def _numpy() -> Any:
    """NumPy's module of random numbers, if it is loaded."""
    return sys.modules.get("numpy.random")


def _bits(item: Any) -> Any:
    """The bit generator of a ``numpy.random.Generator``."""
    return _numpy().Generator.__dict__["bit_generator"].__get__(item)


def _is_of_numpy(bits: Any) -> bool:
    return raw.module_of(type(bits)).startswith("numpy.random.")


def _read_bits(bits: Any) -> bytes:
    return pickle.dumps(bits.state)


def _write_bits(bits: Any, state: bytes) -> None:
    bits.state = pickle.loads(state)


def _write_array(item: Any, state: bytes) -> None:
    numpy = sys.modules["numpy"]
    item[...] = numpy.frombuffer(state, dtype=item.dtype).reshape(item.shape)


def _write_bytearray(item: Any, state: bytes) -> None:
    item[:] = state


def _write_python_array(item: Any, state: bytes) -> None:
    del item[:]
    item.frombytes(state)


_TORCH = _Kind(
    "torch.Generator", lambda item: item.get_state(), lambda item, state: item.set_state(state)
)
_RANDOM = _Kind("random.Random", _read_random, _write_random)


def _kind(item: Any) -> _Kind | None:
    """How the state of ``item`` is saved; ``None``: it has none that we know."""
    cls = type(item)
    if raw.is_a(item, _Generator):
        return _TORCH
    if raw.is_a(item, _random.Random) and not raw.is_a(item, random.SystemRandom):
        return _RANDOM
    if cls is bytearray:
        return _Kind("bytearray", bytes, _write_bytearray) if len(item) <= _MAX_BYTES else None
    if cls is array.array:
        small = len(item) * item.itemsize <= _MAX_BYTES
        return _Kind("array.array", lambda a: a.tobytes(), _write_python_array) if small else None
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if cls is numpy.ndarray:
        plain = item.dtype.kind in "biufcSU" and item.nbytes <= _MAX_BYTES and item.flags.writeable
        return _Kind("numpy.ndarray", lambda a: a.tobytes(), _write_array) if plain else None
    module = _numpy()
    if module is None:
        return None
    if raw.is_a(item, module.BitGenerator) and _is_of_numpy(item):
        return _Kind("numpy.random.BitGenerator", _read_bits, _write_bits)
    if raw.is_a(item, module.Generator) and _is_of_numpy(_bits(item)):
        return _Kind(
            "numpy.random.Generator",
            lambda g: _read_bits(_bits(g)),
            lambda g, state: _write_bits(_bits(g), state),
        )
    if raw.is_a(item, module.RandomState):
        return _Kind(
            "numpy.random.RandomState",
            lambda r: pickle.dumps(module.RandomState.get_state(r, legacy=False)),
            lambda r, state: module.RandomState.set_state(r, pickle.loads(state)),
        )
    return None


# ---- what can only be looked at

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

_ENTROPY: dict[int, str] = {
    id(function): name
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
    return id(item) in _ENTROPY


def is_stateful(item: Any, near: bool = True) -> bool:
    """Whether a run may advance ``item`` without rebinding anything.

    Args:
        item: any object.
        near: count also buffers, and functions that draw from the operating system.
    """
    if is_entropy(item):
        return near
    cls = type(item)
    known = _by_class.get(id(cls))
    if known is None or known[0]() is not cls:
        buffer = _is_buffer(cls)
        stateful = buffer or _is_one_shot(item) or _kind(item) is not None
        known = _by_class[id(cls)] = weakref.ref(cls), stateful, buffer
    if not known[1] or (known[2] and not near):
        return False
    return _is_one_shot(item) or _kind(item) is not None


# By id: a metaclass may override how a class is hashed.
_by_class: dict[int, tuple[weakref.ref[type], bool, bool]] = {}


def _is_buffer(cls: type) -> bool:
    numpy = sys.modules.get("numpy")
    return cls is bytearray or cls is array.array or (numpy is not None and cls is numpy.ndarray)


def _is_one_shot(item: Any) -> bool:
    """Whether it can be advanced, and not be put back."""
    if is_entropy(item) or raw.is_a(item, random.SystemRandom):
        return True
    if raw.is_a(item, type):
        return False
    numpy = _numpy()
    if numpy is not None:
        if raw.is_a(item, numpy.BitGenerator) and not _is_of_numpy(item):
            return True
        if raw.is_a(item, numpy.Generator) and not _is_of_numpy(_bits(item)):
            return True
    for cls in raw.classes(item):
        method = raw.namespace(cls).get("__next__")
        if method is not None:
            if type(method) is types.FunctionType:
                return False  # what it advances are its attributes
            return not raw.is_a(item, io.IOBase) or _can_be_read(item)
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
    """What an iterator in C refers to: other iterators, the data, the variables of its frame.

    Of a method in C it is the object that it is bound to.
    """
    if raw.is_a(item, *_BOUND):
        return [item.__self__]
    known = _ITERATORS_WITH_LENGTH | _SEQUENCES | _COMPOSITES | {_READER, *_FRAMES}
    return gc.get_referents(item) if type(item) in known else []


class _Invisible(Exception):
    pass


def _position(item: Any, depth: int = 0) -> Any:
    """Something that differs once ``item`` was advanced.

    Raises:
        _Invisible: there is no way to see it.
    """
    kind = type(item)
    if depth > _DEPTH:
        raise _Invisible
    if kind in _ITERATORS_WITH_LENGTH:
        return item.__length_hint__(), _identities(item)
    if kind in _SEQUENCES:
        return _reduced(item, depth)
    if kind is itertools.count:
        if any(type(part) not in (int, float) for part in gc.get_referents(item)):
            raise _Invisible
        return repr(item)
    if kind is _READER:
        own: Any = item.line_num
    elif kind in _FRAMES:
        frame = item.gi_frame if kind is types.GeneratorType else None
        if kind is not types.GeneratorType:
            raise _Invisible
        own = -1 if frame is None else frame.f_lasti
    elif kind in _COMPOSITES:
        own = None
        for part in gc.get_referents(item):
            if kind is _CALLABLE and raw.is_a(part, *_BOUND):
                if not is_stateful(part.__self__):
                    raise _Invisible  # such as the matches of a regular expression
                own = _position(part.__self__, depth + 1) if _is_one_shot(part.__self__) else None
    elif raw.module_of(kind) == "_io" and raw.is_a(item, io.IOBase):
        try:
            return None if item.closed else item.tell()
        except (OSError, ValueError):
            raise _Invisible from None
    else:
        raise _Invisible
    parts = [_part(part, depth) for part in gc.get_referents(item)]
    return own, parts


def _part(part: Any, depth: int) -> Any:
    if type(part) in (list, dict, set):
        return id(part), len(part)
    if _is_one_shot(part):
        return id(part), _position(part, depth + 1)
    return id(part)


def _identities(item: Any) -> list[int]:
    return [id(part) for part in gc.get_referents(item)]


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
        if _is_one_shot(part):  # made for the answer: it has no identity
            return _position(part, depth + 1) if depth < _DEPTH else None
        return id(part)

    return shown(parts, depth)


class OneShots:
    """Iterators and other things that can be advanced and not be put back, as they are now."""

    def __init__(self, found: Found) -> None:
        self._items: dict[int, tuple[str, Any, Any]] = {}
        for path, item in found:
            if _is_one_shot(item):
                try:
                    position = _position(item)
                except _Invisible:
                    position = _Invisible
                self._items[id(item)] = path, item, position

    def __len__(self) -> int:
        return len(self._items)

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
                    "advances it. A replay would not. Read it outside of the function and pass "
                    "what it gives."
                )
            if before is None or key not in before._items:
                raise CaptureError(
                    f"it is not known yet whether a call advances {path}, a {_class(item)}",
                    transient=True,
                )
            if before._items[key][2] != position:
                raise CaptureError(_advances(path, item))

    def check_unmoved(self) -> None:
        """Raise if any of it is elsewhere than it was.

        Raises:
            CaptureError: a run advanced it.
        """
        for path, item, position in self._items.values():
            if position is not _Invisible and _position(item) != position:
                raise CaptureError(_advances(path, item))

    def moved(self) -> list[str]:
        """Names of what is elsewhere than it was, or calls for new numbers each time."""
        return [
            path
            for key, (path, item, position) in self._items.items()
            if key in _ENTROPY or (position is not _Invisible and _position(item) != position)
        ]


def _advances(path: str, item: Any) -> str:
    return (
        f"each call advances {path}, a {_class(item)}, which a replay would not do. Advance it "
        "outside of the function and pass what it gives."
    )


def _class(item: Any) -> str:
    return raw.written_as(item).strip("<>")


# ---- the snapshot


class _Source:
    """Something with a state, and the state to go back to."""

    def __init__(self, path: str, item: Any, kind: _Kind) -> None:
        self.path, self.item, self.kind = path, item, kind
        self.saved = self.now()

    def now(self) -> Any:
        return self.kind.read(self.item)

    def is_at(self, state: Any) -> bool:
        now = self.now()
        if isinstance(state, torch.Tensor):
            return torch.equal(now, state)
        return bool(now == state)

    def rewind(self) -> None:
        if not self.is_at(self.saved):
            self.kind.write(self.item, self.saved)


def default_generators(device: Device, index: int) -> list[torch.Generator]:
    """The default generator of the device, and that of the host where it is another."""
    own = device.default_generator(index)
    return [own] if own is torch.default_generator else [own, torch.default_generator]


class HostState:
    """The states of all random generators and buffers that a run may advance, and the way back.

    Args:
        device: the device whose generators a replay advances.
        index: which one of its kind.
        found: what the function reaches.
    """

    def __init__(self, device: Device, index: int, found: Found = ()) -> None:
        self._device = device
        self._drawn: dict[int, _Source] = {}  # a replay advances them, too
        self._of_host: dict[int, _Source] = {}  # torch's, of which no replay draws
        self._still: list[_Source] = []  # a replay does not know them
        self._one_shots = OneShots(found)
        self._after: dict[int, torch.Tensor] = {}
        self._used: dict[int, torch.Generator] = {}
        self._reason: str | None = None
        own, *others = default_generators(device, index)
        self._defaults = frozenset({own._cdata, torch.default_generator._cdata})  # type: ignore[attr-defined]
        self._add("the default generator", own)
        for generator in others:
            self._add("the default generator of the CPU", generator)
        hidden = getattr(random.getstate, "__self__", None)
        if type(hidden) is random.Random:
            self._still.append(_Source("Python's random module", hidden, _RANDOM))
        numpy = _numpy()
        if numpy is not None:
            everybodys = getattr(numpy.get_state, "__self__", None)
            kind = _kind(everybodys)
            if kind is not None:
                self._still.append(_Source("NumPy's global generator", everybodys, kind))
        self._globals = len(self._still)
        known = {id(source.item) for source in self._still}
        for path, item in found:
            if raw.is_a(item, _Generator):
                self._add(path, item)
            elif id(item) not in known:
                known.add(id(item))
                kind = _kind(item)
                if kind is not None:
                    self._still.append(_Source(path, item, kind))

    @property
    def generators(self) -> tuple[torch.Generator, ...]:
        """The user's own generators of the device."""
        return tuple(
            source.item for key, source in self._drawn.items() if key not in self._defaults
        )

    @property
    def used(self) -> tuple[torch.Generator, ...]:
        """Those of the user's own generators that recorded runs drew from."""
        return tuple(
            g for key, g in self._used.items() if key in self._drawn.keys() - self._defaults
        )

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but the generators that every process has."""
        return (
            self._of_torch_keys() <= self._defaults
            and len(self._still) == self._globals
            and not len(self._one_shots)
        )

    def check_one_shots(self, before: OneShots | None) -> None:
        """See :meth:`OneShots.check`."""
        self._one_shots.check(before)

    def rewind(self) -> None:
        """Put back what was advanced."""
        for source in self._still:
            source.rewind()
        for _, source in self._of_torch():
            source.rewind()

    def draws(self) -> bool:
        """Whether a generator of the device was advanced since."""
        return not all(source.is_at(source.saved) for source in self._drawn.values())

    def has_moved(self) -> bool:
        """Whether anything was advanced since."""
        sources = (*self._still, *(source for _, source in self._of_torch()))
        return not all(source.is_at(source.saved) for source in sources)

    def moved(self) -> list[str]:
        """What was advanced since, and would not be in a replay."""
        still = [source.path for source in self._still if not source.is_at(source.saved)]
        return [*still, *self._one_shots.moved()]

    def states(self) -> list[torch.Tensor]:
        """Where the generators of the device are now."""
        return [source.now() for source in self._drawn.values()]

    def elsewhere(self, expected: list[torch.Tensor]) -> str | None:
        """The first generator of the device that is not where it should be."""
        for source, state in zip(self._drawn.values(), expected, strict=False):
            if not source.is_at(state):
                return source.path
        return None

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """A run in which nothing may be advanced but generators of the device.

        Raises:
            CaptureError: something was; it is put back where that can be.
        """
        # From another state than the last call left behind: who seeds in each call shows, too.
        perturbed = [_perturb(source) for source in self._still]
        try:
            yield
        finally:
            moved = [
                source
                for source, state in zip(self._still, perturbed, strict=True)
                if not source.is_at(state)
            ]
            for source in self._still:
                source.rewind()
        for source in moved:
            raise CaptureError(_does(source), transient=source.path in ("Python's random module",))
        self._one_shots.check_unmoved()

    def check_still(self) -> None:
        """Raise if anything was advanced but generators of the device.

        Raises:
            CaptureError: something was.
        """
        for source in self._still:
            if not source.is_at(source.saved):
                raise CaptureError(_does(source), transient=True)
        self._one_shots.check_unmoved()

    # What a recording tells of.

    def begin(self) -> None:
        """A run that is recorded begins."""
        self._reason = None
        self._after = {key: source.now() for key, source in self._of_torch()}

    def will_draw(self, generator: torch.Generator | None = None) -> None:
        """An operation may be about to draw from ``generator``, or from a default one."""
        if generator is not None:
            self._add("a torch.Generator that it uses", generator)
            self._used[generator._cdata] = generator  # type: ignore[attr-defined]
        for key, source in self._moved():
            self._reason = self._reason or (
                f"each call sets the state of {source.path} (manual_seed or set_state), which a "
                "replay would not do. Set it outside of the function, or pass a generator."
            )
            self._after[key] = source.now()

    def drew(self, repeats: bool) -> None:
        """An operation has drawn, or the host has done something.

        Args:
            repeats: whether each replay does that as well, whatever generator it was.
        """
        for key, source in self._moved():
            if not repeats and key in self._of_host:
                self._reason = self._reason or _does(source)
            self._after[key] = source.now()

    def end(self) -> None:
        """A run that was recorded has ended.

        Raises:
            CaptureError: it used a generator in a way that a replay does not repeat.
        """
        self.will_draw()
        self._after = {}
        if self._reason is not None:
            raise CaptureError(self._reason)

    def _of_torch_keys(self) -> frozenset[int]:
        return frozenset(key for key, _ in self._of_torch())

    def _of_torch(self) -> Iterator[tuple[int, _Source]]:
        yield from self._drawn.items()
        yield from self._of_host.items()

    def _moved(self) -> list[tuple[int, _Source]]:
        after = self._after
        return [(k, s) for k, s in self._of_torch() if k in after and not s.is_at(after[k])]

    def _add(self, path: str, generator: torch.Generator) -> None:
        key: int = generator._cdata  # type: ignore[attr-defined]
        group = self._drawn if generator.device.type == self._device.type else self._of_host
        if key not in group:
            group[key] = source = _Source(path, generator, _TORCH)
            if self._after:
                self._after[key] = source.saved


def _does(source: _Source) -> str:
    draws = "Generator" in source.kind.what or "andom" in source.kind.what
    path = source.path
    if path[0].islower():
        path = f"{path}, a {source.kind.what}"
    return (
        f"each call {'draws from' if draws else 'writes to'} {path}, which a replay would not do. "
        f"{'Draw' if draws else 'Write'} outside of the function and pass the "
        f"{'number' if draws else 'value'}."
    )


def _perturb(source: _Source) -> Any:
    """Leave ``source`` at a state that no call has left behind; gives that state."""
    item, kind = source.item, source.kind
    if kind is _RANDOM:
        _random.Random.random(item)
    elif kind.what == "numpy.random.RandomState":
        _numpy().RandomState.random_sample(item)
    elif kind.what == "numpy.random.Generator":
        _bits(item).random_raw()
    elif kind.what == "numpy.random.BitGenerator":
        item.random_raw()
    return source.now()
