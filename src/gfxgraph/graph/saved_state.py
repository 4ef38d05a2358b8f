"""How the state of random generators, buffers and the like is read and written.

Only classes of Python, NumPy and torch are asked, through methods in C that run no code of the
user's.
"""

from __future__ import annotations

import _random
import _thread
import array
import collections
import contextvars
import ctypes
import decimal
import gc
import mmap
import pickle
import random
import sys
import types
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from ..device import generator_state
from ..interpose.codes import address
from ..interpose.modules import loaded
from . import raw
from .locks import CAPTURING, LOCK, is_only_thread
from .one_shots import STREAM, Identity, bits_of, is_entropy, is_of_numpy, is_one_shot, numpy_random

__all__ = [
    "MAX_BYTES",
    "RANDOM",
    "SETTING",
    "TORCH",
    "Kind",
    "bytes_of_record",
    "held_in_c",
    "is_stateful",
    "kind_of",
    "names_of_fields",
    "perturb",
    "plain_array",
]

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

    @property
    def is_data(self) -> bool:
        """Whether it is memory of the program's."""
        return self.what in _DATA


_DATA = {"numpy.ndarray", "numpy.void", "ctypes object", "bytearray", "array.array"}


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


def plain_array(item: Any) -> Any:
    """The memory of an array as an array of NumPy's own class: no code of a subclass runs."""
    base = sys.modules["numpy"].ndarray
    return item if type(item) is base else base.view(item, base)


def names_of_fields(dtype: Any) -> Any:
    """The names of the fields of a structured dtype, with those further inside; ``None``: it has
    none. A program can assign others."""
    if dtype.subdtype is not None:
        return names_of_fields(dtype.base)
    names = dtype.names
    if names is None:
        return None
    return names, tuple(names_of_fields(dtype.fields[name][0]) for name in names)


def _name_fields(dtype: Any, state: Any) -> None:
    if dtype.subdtype is not None:
        _name_fields(dtype.base, state)
    elif state is not None:
        names, inner = state
        if dtype.names != names:
            dtype.names = names
        for name, held in zip(names, inner, strict=True):
            _name_fields(dtype.fields[name][0], held)


def _read_array(item: Any) -> tuple[Any, ...]:
    array = plain_array(item)
    has_objects = array.dtype.hasobject
    held = list(map(Identity, array.ravel().tolist())) if has_objects else array.tobytes()
    return held, array.shape, array.flags.writeable, names_of_fields(array.dtype)


def _write_array(item: Any, state: tuple[Any, ...]) -> None:
    held, shape, is_writeable, names = state
    numpy = sys.modules["numpy"]
    base: Any = numpy.ndarray
    with suppress(TypeError, ValueError):  # it has another dtype now
        _name_fields(base.dtype.__get__(item), names)
    with suppress(ValueError):  # other code refers to its memory
        _let_write(item, True)
        if base.shape.__get__(item) != shape:
            base.resize(item, shape, refcheck=False)
        array = plain_array(item)
        if array.dtype.hasobject:
            array.flat = [one.item for one in held]
        else:
            array[...] = numpy.frombuffer(held, dtype=array.dtype).reshape(shape)
        _let_write(item, is_writeable)


def _let_write(item: Any, is_writeable: bool) -> None:
    """Let an array be written, or no more. NumPy refuses to ask for what the memory of another
    library gives anyway."""
    if plain_array(item).flags.writeable != is_writeable:
        sys.modules["numpy"].ndarray.setflags(item, write=is_writeable)


def bytes_of_record(item: Any) -> tuple[bytes, Any, Any]:
    """What a record of NumPy holds, its dtype, and the names of its fields."""
    base: Any = sys.modules["numpy"].void
    dtype = base.dtype.__get__(item)
    return base.tobytes(item), dtype, names_of_fields(dtype)


def _write_record(item: Any, state: tuple[bytes, Any, Any]) -> None:
    numpy = sys.modules["numpy"]
    held, dtype, names = state
    _name_fields(dtype, names)
    with suppress(ValueError):  # it may only be read
        numpy.void.setfield(item, numpy.frombuffer(held, dtype)[0], dtype, 0)


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
    with suppress(ValueError):  # it was released
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


_OF_ERRORS = ("args", "__traceback__", "__context__", "__cause__", "__suppress_context__")


def _read_error(error: BaseException) -> Any:
    own = vars(BaseException)
    notes = (raw.attributes(error) or {}).get("__notes__")
    return (
        [Identity(own[name].__get__(error)) for name in _OF_ERRORS],
        list(map(Identity, notes)) if type(notes) is list else None,
    )


def _write_error(error: BaseException, state: Any) -> None:
    own, attributes = vars(BaseException), raw.attributes(error) or {}
    for name, held in zip(_OF_ERRORS, state[0], strict=True):
        own[name].__set__(error, held.item)
    if state[1] is None:
        attributes.pop("__notes__", None)
    elif type(attributes.get("__notes__")) is list:
        attributes["__notes__"][:] = [note.item for note in state[1]]


_FACTORY: Any = vars(collections.defaultdict)["default_factory"]


def _write_factory(item: Any, state: Identity) -> None:
    _FACTORY.__set__(item, state.item)


_OF_DECIMAL = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _read_decimal(context: decimal.Context) -> Any:
    signals = tuple(map(bool, context.flags.values())), tuple(map(bool, context.traps.values()))
    return *(getattr(context, name) for name in _OF_DECIMAL), *signals


def _write_decimal(context: decimal.Context, state: Any) -> None:
    *numbers, flags, traps = state
    for name, number in zip(_OF_DECIMAL, numbers, strict=True):
        setattr(context, name, number)
    for signals, held in ((context.flags, flags), (context.traps, traps)):
        for signal, value in zip(signals, held, strict=True):
            signals[signal] = value


def _read_context(context: contextvars.Context) -> dict[contextvars.ContextVar[Any], Identity]:
    return {variable: Identity(value) for variable, value in context.items()}


def _write_context(
    context: contextvars.Context, state: dict[contextvars.ContextVar[Any], Identity]
) -> None:
    for variable, now in _read_context(context).items():
        held = state.get(variable, Identity(_UNSET))
        if held != now:
            context.run(_write_variable, variable, held)


class _Taken:
    """How often a lock is taken. Where another thread may take it at any time, nobody knows."""

    def __init__(self, lock: Any) -> None:
        self.times = _times_taken(lock) if is_only_thread() else None

    def __eq__(self, other: object) -> bool:
        known = type(other) is _Taken and None not in (self.times, other.times)
        return not known or self.times == getattr(other, "times", None)

    __hash__ = None  # type: ignore[assignment]


def _times_taken(lock: Any) -> int:
    if type(lock) is _thread.LockType:
        return int(lock.locked())
    if not lock._is_owned():
        return 0
    state = lock._release_save()
    lock._acquire_restore(state)
    return int(state[0])


def _write_lock(lock: Any, state: _Taken) -> None:
    now = _Taken(lock).times
    if now is None or state.times is None:
        return
    for _ in range(now - state.times):
        lock.release()
    for _ in range(state.times - now):
        lock.acquire(False)


def _read_view(item: memoryview) -> bytes | None:
    try:
        return bytes(item)
    except ValueError:  # it was released
        return None


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


_ARRAY = Kind("numpy.ndarray", _read_array, _write_array)
_RECORD = Kind("numpy.void", bytes_of_record, _write_record)
_DTYPE = Kind("numpy.dtype", names_of_fields, _name_fields)
SETTING = Kind("setting", lambda s: s.read(), lambda s, value: s.write(value))
_VARIABLE = Kind("contextvars.ContextVar", lambda v: Identity(v.get(_UNSET)), _write_variable)
_OTHERS: dict[type, Kind] = {
    BaseException: Kind("exception", _read_error, _write_error),
    collections.defaultdict: Kind(
        "collections.defaultdict", lambda d: Identity(_FACTORY.__get__(d)), _write_factory
    ),
    decimal.Context: Kind("decimal.Context", _read_decimal, _write_decimal),
    contextvars.Context: Kind("contextvars.Context", _read_context, _write_context),
    _thread.LockType: Kind("lock", _Taken, _write_lock),
    _thread.RLock: Kind("lock", _Taken, _write_lock),
}


def kind_of(item: Any) -> Kind | None:
    """How the state of ``item`` is saved; ``None``: it has none that we know."""
    cls = type(item)
    if raw.is_a(item, _Generator):
        return TORCH
    if raw.is_a(item, _random.Random) and not raw.is_a(item, random.SystemRandom):
        return RANDOM
    if cls is contextvars.ContextVar:
        return _VARIABLE
    if raw.is_a(item, *_OTHERS):
        if item is LOCK or item is CAPTURING:  # a run of ours takes these itself
            return None
        return next(kind for base, kind in _OTHERS.items() if raw.is_a(item, base))
    if cls is memoryview:
        try:
            small = not item.readonly and item.c_contiguous and item.nbytes <= MAX_BYTES
        except ValueError:  # it was released
            return None
        return Kind("memoryview", _read_view, _write_view) if small else None
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
    if raw.is_a(item, numpy.ndarray):
        data = plain_array(item)
        is_seen = not data.dtype.hasobject or data.dtype.fields is None
        is_small = data.dtype.itemsize and data.nbytes <= MAX_BYTES
        return _ARRAY if is_small and is_seen else None
    if raw.is_a(item, numpy.void):
        dtype = numpy.void.dtype.__get__(item)
        is_seen = dtype.itemsize and not dtype.hasobject and dtype.itemsize <= MAX_BYTES
        return _RECORD if is_seen else None
    if raw.is_a(item, numpy.dtype):
        return None if names_of_fields(item) is None else _DTYPE
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


def held_in_c(item: Any) -> list[Any]:
    """The objects that ``item`` holds in C, where it may hold any of the program's."""
    if raw.is_a(item, BaseException):
        # Its arguments and attributes, its cause and its context.
        return [part for part in gc.get_referents(item) if not raw.is_a(part, *_LEFT_OUT)]
    if raw.is_a(item, collections.defaultdict):
        return [_FACTORY.__get__(item)]
    if type(item) is contextvars.ContextVar:  # of its values gc knows the default only
        return [item.get(None), *gc.get_referents(item)]
    if raw.is_a(item, weakref.ref):
        return [weakref.ref.__call__(item)]
    if raw.is_a(item, *_PROXIES):
        with suppress(ReferenceError):  # it is gone
            return [item.__reduce_ex__.__self__]
        return []
    numpy = loaded("numpy")
    if numpy is not None and raw.is_a(item, numpy.ndarray):
        data, base = plain_array(item), numpy.ndarray.base.__get__(item)
        held = list(data.ravel().tolist()) if data.dtype.hasobject else []
        # Whoever has a view can write to the rest of the memory, too. That of others, such as
        # memory that processes share, is not ours to put back.
        is_own = raw.is_a(base, numpy.ndarray) and numpy.ndarray.flags.__get__(base).owndata
        return [*held, base] if is_own and kind_of(base) is not None else held
    if raw.is_mutable(type(item)) or raw.is_a(item, *_PARTS_OF_CODE):
        return []
    if is_one_shot(item) or kind_of(item) is not None:  # whose parts are looked at as its state
        return []
    # Such as the dict of a view, the results of a cache, what is in a queue.
    return [part for part in gc.get_referents(item) if not raw.is_a(part, *_LEFT_OUT)]


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


_PROXIES = (weakref.ProxyType, weakref.CallableProxyType)
# Code finds classes and modules by their names.
_LEFT_OUT = (type, types.ModuleType, types.TracebackType)
# Frames and what leads to them hold whatever has run.
_PARTS_OF_CODE = (
    types.CodeType,
    types.FrameType,
    types.FunctionType,
    types.ModuleType,
    types.TracebackType,
    types.BuiltinFunctionType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)


def _is_buffer(cls: type) -> bool:
    numpy = loaded("numpy")
    if issubclass(cls, tuple(_OTHERS)):
        return True
    if cls is bytearray or cls is array.array or cls is memoryview or cls is mmap.mmap:
        return True
    if numpy is not None and issubclass(cls, (numpy.ndarray, numpy.void, numpy.dtype)):
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
