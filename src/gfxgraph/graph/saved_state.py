"""How the state of random generators, buffers and the like is read and written.

Only classes of Python, NumPy and torch are asked, through methods in C that run no code of the
user's.
"""

from __future__ import annotations

import _random
import array
import contextvars
import ctypes
import mmap
import pickle
import random
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..device import generator_state
from ..interpose.codes import address
from ..interpose.modules import loaded
from . import raw
from .one_shots import STREAM, Identity, bits_of, is_entropy, is_of_numpy, is_one_shot, numpy_random

__all__ = ["MAX_BYTES", "RANDOM", "SETTING", "TORCH", "Kind", "is_stateful", "kind_of", "perturb"]

_Generator: type = torch._C.Generator
# A larger buffer is data.
MAX_BYTES = 1 << 20
"""The size of a buffer that is copied and compared."""


class Kind(NamedTuple):
    """How the state of one kind of object is read and written."""

    what: str
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]

    @property
    def draws(self) -> bool:
        """Whether it gives random numbers."""
        return self.what.startswith(("torch.", "random.", "numpy.random."))


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


def _read_map(item: mmap.mmap) -> tuple[int, bytes]:
    return item.tell(), item[:]


def _write_map(item: mmap.mmap, state: tuple[int, bytes]) -> None:
    item[:] = state[1]
    item.seek(state[0])


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


TORCH = Kind("torch.Generator", generator_state, lambda item, state: item.set_state(state))
RANDOM = Kind("random.Random", _read_random, _write_random)


_UNSET = object()


def _write_variable(variable: Any, state: Identity) -> None:
    token: Any = variable.set(state.item)
    if state.item is not _UNSET:
        return
    # Only a token of a time when it had no value takes the value away: this becomes one.
    before = token.old_value
    words = (ctypes.c_void_p * (type(token).__basicsize__ // _WORD)).from_address(id(token))
    place = words[_HEAD:].index(id(before)) + _HEAD
    words[place] = None
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(before))
    variable.reset(token)


_WORD = ctypes.sizeof(ctypes.c_void_p)
_HEAD = object.__basicsize__ // _WORD


SETTING = Kind("setting", lambda s: s.read(), lambda s, value: s.write(value))
_VARIABLE = Kind("contextvars.ContextVar", lambda v: Identity(v.get(_UNSET)), _write_variable)


def kind_of(item: Any) -> Kind | None:
    """How the state of ``item`` is saved; ``None``: it has none that we know."""
    cls = type(item)
    if raw.is_a(item, _Generator):
        return TORCH
    if raw.is_a(item, _random.Random) and not raw.is_a(item, random.SystemRandom):
        return RANDOM
    if cls is contextvars.ContextVar:
        return _VARIABLE
    if cls is memoryview:
        try:
            small = not item.readonly and item.c_contiguous and item.nbytes <= MAX_BYTES
        except ValueError:  # it was released
            return None
        return Kind("memoryview", bytes, _write_view) if small else None
    if cls is mmap.mmap:
        return Kind("mmap.mmap", _read_map, _write_map) if _is_open_map(item) else None
    if raw.is_a(item, *_C_DATA):
        known = ctypes.sizeof(item) <= MAX_BYTES and _is_number_of_c(cls)
        return Kind("ctypes object", bytes, _write_c_data) if known else None
    if cls is bytearray:
        return Kind("bytearray", bytes, _write_bytearray) if len(item) <= MAX_BYTES else None
    if cls is array.array:
        small = len(item) * item.itemsize <= MAX_BYTES
        return Kind("array.array", lambda a: a.tobytes(), _write_python_array) if small else None
    numpy = loaded("numpy")
    if numpy is None:
        return None
    if cls is numpy.ndarray or cls is numpy.memmap:
        plain = item.dtype.itemsize and not item.dtype.hasobject and item.nbytes <= MAX_BYTES
        plain = plain and item.flags.writeable
        return Kind("numpy.ndarray", lambda a: a.tobytes(), _write_array) if plain else None
    module = numpy_random()
    if module is None:
        return None
    if raw.is_a(item, module.BitGenerator) and is_of_numpy(item):
        return Kind("numpy.random.BitGenerator", _read_bits, _write_bits)
    if raw.is_a(item, module.Generator) and is_of_numpy(bits_of(item)):
        return Kind(
            "numpy.random.Generator",
            lambda g: _read_bits(bits_of(g)),
            lambda g, state: _write_bits(bits_of(g), state),
        )
    if raw.is_a(item, module.RandomState):
        return Kind(
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
    known = _by_class.get(address(cls))
    if known is None or known[0]() is not cls:
        buffer = _is_buffer(cls)
        # Of files, one can be read and the next cannot.
        stateful = buffer or raw.is_a(item, STREAM) or is_one_shot(item)
        stateful = stateful or kind_of(item) is not None
        known = _by_class[address(cls)] = weakref.ref(cls), stateful, buffer
    if not known[1] or (known[2] and not near):
        return False
    return is_one_shot(item) or kind_of(item) is not None


# By id: a metaclass may override how a class is hashed.
_by_class: dict[int, tuple[weakref.ref[type], bool, bool]] = {}


def _is_buffer(cls: type) -> bool:
    numpy = loaded("numpy")
    if cls is bytearray or cls is array.array or cls is memoryview or cls is mmap.mmap:
        return True
    if numpy is not None and (cls is numpy.ndarray or cls is numpy.memmap):
        return True
    return issubclass(cls, _C_DATA)


def _is_open_map(item: mmap.mmap) -> bool:
    """Whether it can be read and written, and is small."""
    try:
        with memoryview(item) as view:
            return not view.readonly and view.nbytes <= MAX_BYTES
    except ValueError:  # it was closed
        return False


def perturb(item: Any, kind: Kind) -> Any:
    """Leave a generator of the host at a state that no call has left behind; gives its state."""
    if kind is RANDOM:
        _random.Random.random(item)
    elif kind.what == "numpy.random.RandomState":
        numpy_random().RandomState.random_sample(item)
    elif kind.what == "numpy.random.Generator":
        bits_of(item).random_raw()
    elif kind.what == "numpy.random.BitGenerator":
        item.random_raw()
    return kind.read(item)
