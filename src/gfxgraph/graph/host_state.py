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
import contextvars
import ctypes
import pickle
import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ..device import Device, generator_state
from ..errors import CaptureError
from ..interpose.modules import loaded
from . import raw
from .one_shots import (
    STREAM,
    Found,
    OneShots,
    bits_of,
    is_entropy,
    is_of_numpy,
    is_one_shot,
    numpy_random,
)
from .torch_settings import SETTINGS

__all__ = ["HostState", "default_generators", "is_stateful"]

_Generator: type = torch._C.Generator
# A larger buffer is data: it is neither copied nor compared.
_MAX_BYTES = 1 << 20


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
    if len(item) * item.itemsize == len(state):
        with memoryview(item) as view:  # also where others look at it
            view.cast("B")[:] = state
        return
    del item[:]
    item.frombytes(state)


def _write_view(item: memoryview, state: bytes) -> None:
    item.cast("B")[:] = state


def _write_c_data(item: Any, state: bytes) -> None:
    ctypes.memmove(ctypes.addressof(item), state, len(state))


_C_DATA: tuple[type, ...] = (
    ctypes.Array,
    ctypes.Structure,
    ctypes.Union,
    ctypes._SimpleCData,
)


def _is_number_of_c(cls: Any) -> bool:
    """Whether objects of ``cls`` hold numbers alone: a pointer has an owner that is not seen."""
    if issubclass(cls, ctypes._SimpleCData):
        return cls._type_ in "?cbBhHiIlLqQfdgu"
    if issubclass(cls, ctypes.Array):
        return _is_number_of_c(cls._type_)
    is_record = issubclass(cls, (ctypes.Structure, ctypes.Union))
    fields = [field for base in cls.__mro__ for field in vars(base).get("_fields_", ())]
    return is_record and all(_is_number_of_c(field[1]) for field in fields)


_TORCH = _Kind("torch.Generator", generator_state, lambda item, state: item.set_state(state))
_RANDOM = _Kind("random.Random", _read_random, _write_random)


class _Value:
    """What a variable holds, compared by identity."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Value) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]


_UNSET = object()


def _write_variable(variable: Any, state: _Value) -> None:
    variable.set(None if state.value is _UNSET else state.value)


_SETTING = _Kind("setting", lambda s: s.read(), lambda s, value: s.write(value))
_VARIABLE = _Kind("contextvars.ContextVar", lambda v: _Value(v.get(_UNSET)), _write_variable)


def _kind(item: Any) -> _Kind | None:
    """How the state of ``item`` is saved; ``None``: it has none that we know."""
    cls = type(item)
    if raw.is_a(item, _Generator):
        return _TORCH
    if raw.is_a(item, _random.Random) and not raw.is_a(item, random.SystemRandom):
        return _RANDOM
    if cls is contextvars.ContextVar:
        return _VARIABLE
    if cls is memoryview:
        try:
            small = not item.readonly and item.c_contiguous and item.nbytes <= _MAX_BYTES
        except ValueError:  # it was released
            return None
        return _Kind("memoryview", bytes, _write_view) if small else None
    if raw.is_a(item, *_C_DATA):
        known = ctypes.sizeof(item) <= _MAX_BYTES and _is_number_of_c(cls)
        return _Kind("ctypes object", bytes, _write_c_data) if known else None
    if cls is bytearray:
        return _Kind("bytearray", bytes, _write_bytearray) if len(item) <= _MAX_BYTES else None
    if cls is array.array:
        small = len(item) * item.itemsize <= _MAX_BYTES
        return _Kind("array.array", lambda a: a.tobytes(), _write_python_array) if small else None
    numpy = loaded("numpy")
    if numpy is None:
        return None
    if cls is numpy.ndarray:
        plain = item.dtype.kind in "biufcSU" and item.nbytes <= _MAX_BYTES and item.flags.writeable
        return _Kind("numpy.ndarray", lambda a: a.tobytes(), _write_array) if plain else None
    module = numpy_random()
    if module is None:
        return None
    if raw.is_a(item, module.BitGenerator) and is_of_numpy(item):
        return _Kind("numpy.random.BitGenerator", _read_bits, _write_bits)
    if raw.is_a(item, module.Generator) and is_of_numpy(bits_of(item)):
        return _Kind(
            "numpy.random.Generator",
            lambda g: _read_bits(bits_of(g)),
            lambda g, state: _write_bits(bits_of(g), state),
        )
    if raw.is_a(item, module.RandomState):
        return _Kind(
            "numpy.random.RandomState",
            lambda r: pickle.dumps(module.RandomState.get_state(r, legacy=False)),
            lambda r, state: module.RandomState.set_state(r, pickle.loads(state)),
        )
    return None


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
        # Of files, one can be read and the next cannot.
        stateful = buffer or raw.is_a(item, STREAM) or is_one_shot(item)
        stateful = stateful or _kind(item) is not None
        known = _by_class[id(cls)] = weakref.ref(cls), stateful, buffer
    if not known[1] or (known[2] and not near):
        return False
    return is_one_shot(item) or _kind(item) is not None


# By id: a metaclass may override how a class is hashed.
_by_class: dict[int, tuple[weakref.ref[type], bool, bool]] = {}


def _is_buffer(cls: type) -> bool:
    numpy = loaded("numpy")
    if cls is bytearray or cls is array.array or cls is memoryview:
        return True
    return issubclass(cls, _C_DATA) or (numpy is not None and cls is numpy.ndarray)


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


def still_sources(found: Found = ()) -> tuple[tuple[_Source, ...], tuple[_Source, ...]]:
    """What no replay advances: what belongs to the whole process, and what is in ``found``."""
    sources = [_Source(setting.name, setting, _SETTING) for setting in SETTINGS]
    hidden = getattr(random.getstate, "__self__", None)
    if type(hidden) is random.Random:
        sources.append(_Source("Python's random module", hidden, _RANDOM))
    numpy = numpy_random()
    if numpy is not None:
        everybodys = getattr(numpy.get_state, "__self__", None)
        kind = _kind(everybodys)
        if kind is not None:
            sources.append(_Source("NumPy's global generator", everybodys, kind))
    known = {id(source.item) for source in sources}
    own = []
    for path, item in found:
        if id(item) not in known and not raw.is_a(item, _Generator):
            known.add(id(item))
            kind = _kind(item)
            if kind is not None:
                own.append(_Source(path, item, kind))
    return tuple(sources), tuple(own)


class Stood:
    """What no replay advances, as it is now, to see later what a run has advanced."""

    def __init__(self, found: Found = ()) -> None:
        self._everybodys, self._own = still_sources(found)

    def error(self) -> CaptureError | None:
        """Why a function that has run meanwhile cannot be captured; ``None``: nothing moved."""
        for source in (*self._own, *self._everybodys):
            if not source.is_at(source.saved):
                # Another thread may have drawn from what belongs to nobody.
                return CaptureError(_does(source), transient=source in self._everybodys)
        return None


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
        self._one_shots = OneShots(found)
        self._after: dict[int, torch.Tensor] = {}
        self._used: dict[int, torch.Generator] = {}
        self._states_met: list[torch.Tensor] = []
        self._is_copy = False
        self._reason: CaptureError | None = None
        self._everybodys, own_sources = still_sources(found)
        self._still = [*self._everybodys, *own_sources]
        own, *others = default_generators(device, index)
        self._defaults = frozenset({own._cdata, torch.default_generator._cdata})  # type: ignore[attr-defined]
        self._add("the default generator", own)
        for generator in others:
            self._add("the default generator of the CPU", generator)
        for path, item in found:
            if raw.is_a(item, _Generator):
                self._add(path, item)

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
            and len(self._still) == len(self._everybodys)
            and not len(self._one_shots)
        )

    def refuse_one_shots(self, why: str) -> None:
        """Raise if there is anything that cannot be put back."""
        self._one_shots.refuse(why)

    def check_one_shots(self, before: OneShots | None) -> None:
        """See :meth:`OneShots.check`."""
        self._one_shots.check(before)

    def rewind(self) -> None:
        """Put back what was advanced."""
        for source in self._still:
            source.rewind()
        for _, source in self._of_torch():
            source.rewind()
        self._one_shots.rewind()

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
            # Another thread may have drawn from what belongs to nobody.
            raise CaptureError(_does(source), transient=source in self._everybodys)
        self._one_shots.check_unmoved()

    def check_still(self) -> None:
        """Raise if anything was advanced but generators of the device.

        Raises:
            CaptureError: something was.
        """
        for source in self._still:
            if not source.is_at(source.saved):
                raise CaptureError(_does(source), transient=source in self._everybodys)
        self._one_shots.check_unmoved()

    # What a recording tells of.

    def begin(self) -> None:
        """A run that is recorded begins."""
        self._reason = None
        self._is_copy = False
        self._after = {key: source.now() for key, source in self._of_torch()}
        self._states_met = list(self._after.values())

    def will_draw(self, generator: torch.Generator | None = None) -> None:
        """An operation may be about to draw from ``generator``, or from a default one."""
        if generator is not None:
            self._add("a torch.Generator that it uses", generator)
            self._used[generator._cdata] = generator  # type: ignore[attr-defined]
        for key, source in self._moved():
            self._reason = self._reason or CaptureError(
                f"each call sets the state of {source.path} (manual_seed or set_state), which a "
                "replay would not do. Set it outside of the function, or pass a generator.",
                transient=key in self._defaults,  # another thread may have drawn from it
            )
            self._after[key] = source.now()

    def drew(self, repeats: bool) -> None:
        """An operation has drawn, or the host has done something.

        Args:
            repeats: whether each replay does that as well, whatever generator it was.
        """
        for key, source in self._moved():
            if not repeats and key in self._of_host:
                self._reason = self._reason or CaptureError(
                    _does(source), transient=key in self._defaults
                )
            self._after[key] = state = source.now()
            self._states_met.append(state)

    def end(self) -> None:
        """A run that was recorded has ended.

        Raises:
            CaptureError: it used a generator in a way that a replay does not repeat.
        """
        self.will_draw()
        self._after, self._states_met = {}, []
        if self._reason is not None:
            raise self._reason
        if self._is_copy:
            raise CaptureError(
                "it draws from a generator at the state of another one, as a copy that is made in "
                "each call would be; a replay would not make it. Use the other one itself.",
                transient=True,  # both may have been given the same seed
            )

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
                # Made in the call, it would be taken for the same in each; a copy of another one's
                # state is not.
                if any(torch.equal(source.saved, s) for s in self._states_met):
                    self._is_copy = True


def _does(source: _Source) -> str:
    draws = "Generator" in source.kind.what or "andom" in source.kind.what
    path = source.path
    if source.kind is _SETTING:
        return (
            f"each call changes {path}, which holds for the whole process and which a replay "
            "would not change. Set it outside of the function."
        )
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
        numpy_random().RandomState.random_sample(item)
    elif kind.what == "numpy.random.Generator":
        bits_of(item).random_raw()
    elif kind.what == "numpy.random.BitGenerator":
        item.random_raw()
    return source.now()
