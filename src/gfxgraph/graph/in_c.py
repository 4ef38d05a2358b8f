"""State that objects keep in C, where no attribute, item or name leads to it.

A ``BytesIO`` has bytes, a queue has items, an exception has arguments. What such an object holds is
read where there is a way that runs no code of the program, and compared in each call. Where there
is none, nobody can see whether it has changed: the function that reads it stays eager.
"""

from __future__ import annotations

import _queue
import _thread
import abc
import builtins
import collections
import contextvars
import ctypes
import datetime
import decimal
import functools
import gc
import io
import itertools
import json
import json.scanner
import operator
import re
import struct
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import torch

from ..interpose.codes import address
from ..interpose.modules import loaded
from . import raw
from .one_shots import is_entropy, is_one_shot, place_of
from .saved_state import MAX_BYTES, bytes_of_record, kind_of, names_of_fields, plain_array

__all__ = [
    "ASKED",
    "HIDDEN",
    "OF_LOCKS",
    "Kept",
    "Reader",
    "asked_in_python",
    "asks_for_local_time",
    "base_in_c",
    "errors_of_numpy",
    "is_array",
    "is_converted",
    "is_function",
    "is_hidden",
    "is_lock",
    "is_number",
    "kept_answer",
    "layout_of",
    "names_a_function",
    "only_reads",
    "reader_of",
    "settings_of",
    "state_of_generator",
    "subclasses_of",
    "writes",
]

Reader: TypeAlias = Callable[[], Any]
"""Gives what an object holds: plain values, objects, and tuples of both."""

ASKED: dict[str, str] = {
    "_asyncio": "current_task get_running_loop",
    "_decimal": "getcontext",
    "_locale": "getencoding nl_langinfo",
    "_signal": "getsignal siginterrupt",
    "_socket": "getdefaulttimeout",
    "_thread": "_count get_ident get_native_id",
    "_tracemalloc": "get_traceback_limit is_tracing",
    "faulthandler": "is_enabled",
    "gc": "get_debug get_threshold",
    "resource": "getrlimit",
    "sys": "_is_gil_enabled get_asyncgen_hooks get_coroutine_origin_tracking_depth "
    "get_int_max_str_digits getdlopenflags getrecursionlimit getswitchinterval "
    "is_stack_trampoline_active",
}
"""Functions in C, by module, that read what the process has, and change nothing: a guard asks
again."""
HIDDEN: dict[str, str] = {
    "_ctypes": "get_errno get_last_error",
    "_locale": "localeconv setlocale strcoll strxfrm",
    "_signal": "getitimer sigpending",
    "_tracemalloc": "_get_object_traceback get_traced_memory get_tracemalloc_memory",
    "_weakref": "getweakrefcount getweakrefs",
    "gc": "get_count get_freeze_count get_objects get_referents get_referrers get_stats "
    "is_finalized is_tracked isenabled",
    "sys": "_current_exceptions _current_frames _debugmallocstats getallocatedblocks getrefcount "
    "getprofile getsizeof gettrace getunicodeinternedsize",
    "time": "mktime tzset",
}
"""The same for those whose answers nobody can compare."""

OF_LOCKS = (
    *("__enter__", "__exit__", "acquire", "acquire_lock", "release", "release_lock"),
    *("_acquire_restore", "_release_save", "_at_fork_reinit", "_recursion_count"),
)
"""Methods of locks that give what they give whenever they return."""

_LOCKS: tuple[type, ...] = (_thread.LockType, _thread.RLock)
# Nothing in these changes, or it is found elsewhere: as an attribute, an item, code that runs.
_FOUND_ELSEWHERE: tuple[type, ...] = (
    *(int, float, complex, str, bytes, bool, range, slice, type, tuple, frozenset, super, property),
    *(dict, list, set, collections.deque, staticmethod, classmethod, object),
    *(type(None), type(...), type(NotImplemented), type({}.keys()), type({}.values())),
    *(type({}.items()), types.MappingProxyType, types.FunctionType, types.BuiltinFunctionType),
    *(types.MethodType, types.MethodDescriptorType, types.WrapperDescriptorType),
    *(types.MethodWrapperType, types.ClassMethodDescriptorType, types.GetSetDescriptorType),
    *(types.MemberDescriptorType, types.ModuleType, types.CodeType, types.CellType),
    *(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FrameType),
    *(types.GenericAlias, types.SimpleNamespace, weakref.ref, re.Pattern),
    *(functools.partial, functools._lru_cache_wrapper, decimal.Decimal),
    *(operator.attrgetter, operator.itemgetter, operator.methodcaller, datetime.date),
    *(datetime.time, datetime.timedelta, datetime.tzinfo, type(type.__dict__["__doc__"])),
    collections._tuplegetter,  # type: ignore[attr-defined]
    # Functions of pybind11 2 hold a capsule; Python names the class since 3.13.
    *(types.UnionType, type(datetime.datetime_CAPI)),
    *filter(None, (getattr(json.scanner, "c_make_scanner", None),)),
    *filter(None, (getattr(json.encoder, "c_make_encoder", None),)),
    *(weakref.ProxyType, weakref.CallableProxyType),  # a call of theirs is refused
    ctypes._CFuncPtr,  # type: ignore[attr-defined]  # code in C, which nobody looks into
    _thread._local,
)
_TYPING = ("typing", "_typing")
_NUMBERS = ("generic", "dtype", "ufunc")
_LAYOUT = ("shape", "strides", "dtype", "ndim", "size", "nbytes", "itemsize")


def base_in_c(cls: type) -> type | None:
    """The class in C whose instances hold what those of ``cls`` hold in C; ``None``: ``object``."""
    # Python has left some classes of iterators unfinished (that of `co_positions()`).
    found = next((base for base in raw.mro(cls) or (cls,) if _is_in_c(base)), object)
    return None if found is object else found


def _may_hide(cls: type) -> bool:
    known = _hiding.get(address(cls))
    if known is None or known[0]() is not cls:
        base = base_in_c(cls)
        hides = base is not None and not any(
            cls is kind or kind in (raw.mro(cls) or ())
            for kind in _FOUND_ELSEWHERE
            if kind is not object
        )
        if base is not None and hides:
            modules = [raw.module_of(base)]
            if modules == ["pybind11_builtins"]:
                # The base of what others have made with it, or what a function of C++ is made of.
                modules = list(map(raw.module_of, raw.mro(cls)))
                hides = not raw.name_of(base).startswith("pybind11_detail_function_record")
            hides = (
                hides
                and modules[0] not in _TYPING
                and not any(module.partition(".")[0] in ("torch", "triton") for module in modules)
            )
        known = _hiding[address(cls)] = weakref.ref(cls), hides
    return known[1]


# By id: a metaclass may override how a class is hashed.
_hiding: dict[int, tuple[weakref.ref[type], bool]] = {}


def _is_in_c(cls: type) -> bool:
    if not raw.is_mutable(cls):
        return True
    of_slots = types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType
    return any(
        type(part) in of_slots
        and part.__objclass__ is cls
        and name not in ("__dict__", "__weakref__")
        for name, part in raw.namespace(cls).items()
    )


def is_hidden(item: Any) -> bool:
    """Whether ``item`` may hold something in C that is found in no other way."""
    if not _may_hide(type(item)):
        return False
    if is_lock(item) or is_entropy(item):
        return False
    kind = kind_of(item)
    if kind is not None and kind.draws:  # it is advanced by replays, or not at all
        return False
    numpy = loaded("numpy")
    if numpy is not None and raw.is_a(item, *(getattr(numpy, name) for name in _NUMBERS)):
        return raw.is_a(item, numpy.void) or kind is not None  # a dtype with names of fields
    return True


def reader_of(item: Any) -> Reader | None:
    """Reads what ``item``, of which :func:`is_hidden` says that it holds something, holds.

    Returns:
        ``None``: there is no way to read it, or it is too much to be compared in each call.
    """
    if raw.is_a(item, BaseException):
        return functools.partial(_of_error, item, _parts_of_error(item))
    if raw.is_a(item, io.BytesIO):
        return _if_small(item, functools.partial(_of_stream, io.BytesIO, item))
    if raw.is_a(item, io.StringIO):
        return _if_small(item, functools.partial(_of_stream, io.StringIO, item))
    if raw.is_a(item, _queue.SimpleQueue):
        return functools.partial(_queue.SimpleQueue.qsize, item)
    if type(item) is contextvars.Context:
        return functools.partial(_of_context, item)
    if type(item) is contextvars.ContextVar:
        return functools.partial(contextvars.ContextVar.get, item, raw.MISSING)
    if type(item) is contextvars.Token:
        return lambda: (item.var, item.old_value)
    if raw.is_a(item, struct.Struct):
        return functools.partial(raw.namespace(struct.Struct)["format"].__get__, item)
    if type(item) is re.Match:
        return functools.partial(_of_match, item)
    if type(item) is memoryview:
        return _if_small(item, functools.partial(_of_view, item))
    numpy = loaded("numpy")
    if numpy is not None and raw.is_a(item, numpy.ndarray, numpy.void):
        data = plain_array(item) if raw.is_a(item, numpy.ndarray) else item
        is_plain = not data.dtype.hasobject and data.nbytes <= MAX_BYTES
        return functools.partial(_of_array, item) if is_plain else None
    kind = kind_of(item)
    if kind is not None:
        return functools.partial(kind.read, item)
    if is_one_shot(item):
        position = place_of(item)
        return None if position is None else functools.partial(place_of, item)
    return None


def _if_small(item: Any, read: Reader) -> Reader | None:
    with suppress(ValueError):  # closed, or released
        size = item.nbytes if type(item) is memoryview else len(read()[0])
        return read if size <= MAX_BYTES else None
    return read


def _or_missing(read: Callable[[Any], Any], item: Any) -> Any:
    try:
        return read(item)
    except ValueError:  # it was closed, or released
        return raw.MISSING


def _of_stream(cls: Any, item: Any) -> tuple[Any, ...]:
    return _or_missing(cls.getvalue, item), _or_missing(cls.tell, item)


def _of_view(item: memoryview) -> tuple[Any, ...]:
    if _or_missing(lambda view: view.nbytes, item) is raw.MISSING:
        return (raw.MISSING,)
    return item.tobytes(), item.format, item.shape


def _of_array(item: Any) -> tuple[Any, ...]:
    base = loaded("numpy").ndarray
    if not raw.is_a(item, base):  # a record
        return bytes_of_record(item)
    # For subclasses: their own attributes may run code of the program.
    array = plain_array(item)
    layout = array.shape, array.strides, array.dtype, names_of_fields(array.dtype)
    return array.tobytes(), array.flags.writeable, *layout


def _of_error(error: BaseException, parts: list[Any]) -> tuple[Any, ...]:
    return tuple(_or_none(part, error) for part in parts)


def _parts_of_error(error: BaseException) -> list[Any]:
    """Getters in C of an error's attributes, such as ``OSError.filename``."""
    kinds = types.MemberDescriptorType, types.GetSetDescriptorType
    return [
        part
        for cls in raw.mro(type(error))
        if not raw.is_mutable(cls)
        for name, part in raw.namespace(cls).items()
        if type(part) in kinds and name not in ("__context__", "__traceback__", "__dict__")
    ]


def _or_none(part: Any, error: BaseException) -> Any:
    try:
        return part.__get__(error)
    except AttributeError:  # it is not set
        return None


def _of_context(context: contextvars.Context) -> tuple[Any, ...]:
    return tuple(context.items())


def _of_match(match: re.Match[Any]) -> tuple[Any, ...]:
    text = match.string
    return match.regs, text if raw.is_scalar(text) else bytes(text)


def _of_decimal(context: decimal.Context) -> tuple[Any, ...]:
    names = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
    return *(getattr(context, name) for name in names), *map(bool, context.traps.values())


def layout_of(item: Any, name: str) -> Reader | None:
    """Reads an attribute of an array that says how it lies in memory; ``None``: it is no such."""
    if not is_array(item):
        return None
    numpy: Any = loaded("numpy")
    get = numpy.ndarray.__dict__[name].__get__ if name in (*_LAYOUT, "flags") else None
    if get is None:
        return None
    return functools.partial(get, item) if name != "flags" else lambda: get(item).num


def state_of_generator(item: Any, name: str) -> Reader | None:
    """Reads the state of a generator of the host, if that is what the attribute ``name`` gives."""
    if name not in ("getstate", "get_state", "state", "__getstate__", "__reduce__"):
        return None
    kind = kind_of(item)
    is_of_host = kind is not None and kind.draws and not kind.what.startswith("torch.")
    return functools.partial(kind.read, item) if kind is not None and is_of_host else None


def settings_of(value: Any) -> list[tuple[str, Reader]]:
    """Settings of Python that decide what comes of ``value``: names and readers."""
    if address(value) in _WITH_DECIMAL or type(value) is decimal.Decimal or _makes_contexts(value):
        return [
            ("decimal.getcontext()", lambda: _of_decimal(decimal.getcontext())),
            ("decimal.DefaultContext", functools.partial(_of_decimal, _DEFAULT)),
        ]
    return errors_of_numpy() if value is not None and value is loaded("numpy") else []


def errors_of_numpy() -> list[tuple[str, Reader]]:
    """What NumPy does about errors in arithmetic, which its operators ask; none: it is not
    loaded."""
    return [] if loaded("numpy") is None else [("numpy.seterr()", _errors_of_numpy)]


def _errors_of_numpy() -> tuple[Any, ...]:
    """By content: what sets it and puts it back, as :func:`numpy.errstate` does, changes nothing
    in between."""
    global _errors
    numpy, known = loaded("numpy"), _errors
    variable = getattr(loaded("numpy._core.umath"), "_extobj_contextvar", None)
    if type(variable) is not contextvars.ContextVar:
        return *numpy.geterr().values(), numpy.geterrcall()
    state = variable.get(None)
    if state is not known[0]:
        _errors = known = state, (*numpy.geterr().values(), numpy.geterrcall())
    return known[1]


# What was asked last: the object of NumPy that stands for it, and what is in there.
_errors: tuple[Any, tuple[Any, ...]] = object(), ()


def _makes_contexts(value: Any) -> bool:
    """Whether it is a context of :mod:`decimal`, or a class of them: a new one begins as
    ``DefaultContext`` is."""
    if raw.is_a(value, type):
        return any(base is decimal.Context for base in raw.mro(value) or ())
    return raw.is_a(value, decimal.Context)


_DEFAULT = decimal.DefaultContext
_WITH_DECIMAL = frozenset(map(address, (decimal, decimal.Decimal, loaded("_decimal"))))


def is_lock(item: Any) -> bool:
    """Whether ``item`` is a lock of Python's own."""
    between = getattr(loaded("_multiprocessing"), "SemLock", None)
    return raw.is_a(item, *_LOCKS) or (type(between) is type and raw.is_a(item, between))


def is_array(item: Any) -> bool:
    """Whether ``item`` is an array of NumPy."""
    numpy = loaded("numpy")
    return numpy is not None and raw.is_a(item, numpy.ndarray)


def is_number(item: Any) -> bool:
    """Whether ``item`` is a number of NumPy."""
    numpy = loaded("numpy")
    return numpy is not None and raw.is_a(item, numpy.generic)


def is_converted(item: Any) -> bool:
    """Whether code of the program makes a number of ``item``; Python warns of what some gives."""
    return not raw.is_a(item, torch.Tensor) and any(
        name in raw.namespace(base)
        for base in raw.mro(type(item))
        if raw.is_mutable(base)
        for name in _CONVERTING
    )


_CONVERTING = ("__int__", "__index__", "__trunc__", "__float__", "__complex__")


def is_function(item: Any) -> bool:
    """Whether ``item`` is a function that others than Python have made in C."""
    kind = type(item)
    if raw.is_mutable(kind):
        return False
    return raw.name_of(kind) in _OF_OTHERS or raw.module_of(kind).startswith("numpy")


def only_reads(function: Any) -> bool:
    """Whether a function in C writes to no Python object that it is given, as far as that is known:
    of those that are built in, and those of torch."""
    if type(function) is type:
        return address(function) in _BUILT_FROM
    if type(function) is types.MethodDescriptorType:
        return raw.module_of(function.__objclass__).startswith("torch")
    if type(function) is not types.BuiltinFunctionType:
        return False
    owner: Any = function.__self__
    if owner is builtins:
        return function.__name__ not in ("delattr", "eval", "exec", "next", "setattr")
    return raw.module_of(owner if raw.is_a(owner, type) else type(owner)).startswith("torch")


def writes(function: Any) -> bool:
    """Whether code in C that is called writes what it is given in a text."""
    if raw.is_a(function, type):
        return any(base is str for base in raw.mro(function))
    if raw.is_a(function, operator.methodcaller):
        return function.__reduce__()[1][0] in _WRITING
    return address(function) in _WRITERS or (
        raw.is_a(function, *_METHODS) and function.__name__ in _WRITING
    )


_WRITERS = frozenset(map(address, (repr, ascii, format, print, operator.mod)))
_METHODS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
)
_WRITING = (
    *("__format__", "__mod__", "__repr__", "__rmod__", "__str__", "format", "format_map"),
    *("writerow", "writerows"),
)


_BUILT_FROM = frozenset(
    map(
        address,
        (
            *(bool, int, float, complex, str, bytes, type, super, range, slice),
            *(list, tuple, set, frozenset, dict, enumerate, zip, reversed),
        ),
    )
)
_OF_OTHERS = (
    *("cython_function_or_method", "fused_cython_function", "instancemethod"),
    *("nb_func", "nb_method", "nb_bound_method"),
)


def asks_for_local_time(owner: Any, method: str, given: Sequence[Any], has_keywords: bool) -> bool:
    """Whether a method of dates asks for the time zone of the system."""
    if raw.is_a(owner, type) and any(base is datetime.date for base in raw.mro(owner)):
        return method == "fromtimestamp" and len(given) < 2 and not has_keywords
    if not raw.is_a(owner, datetime.datetime):
        return False
    without = datetime.datetime.__dict__["tzinfo"].__get__(owner) is None
    return (method == "timestamp" and without) or (
        method == "astimezone" and (without or not (given or has_keywords))
    )


def asked_in_python(function: types.FunctionType) -> Reader | None:
    """The answer of a function in Python or NumPy that asks for state of the process, as it is
    compared; ``None``: it is none of these."""
    module, name = str(function.__globals__.get("__name__", "")), function.__name__
    if module == "threading" and name in _OF_THREADS and vars(threading).get(name) is function:
        return (lambda: tuple(threading.enumerate())) if name == "enumerate" else function
    numpy = loaded("numpy")
    if numpy is None or not module.startswith("numpy.") or name not in _OF_NUMPY:
        return None
    if getattr(numpy, name, None) is not function:
        return None
    return lambda: _items_of(function())


_OF_THREADS = ("active_count", "current_thread", "enumerate", "get_native_id", "main_thread")
_OF_NUMPY = ("get_printoptions", "getbufsize", "geterr", "geterrcall")


def _items_of(given: Any) -> Any:
    return tuple(given.items()) if type(given) is dict else given


def subclasses_of(cls: type) -> Reader:
    """Reads which classes derive from ``cls``, and keeps none of them alive."""

    def now() -> tuple[Any, ...]:
        return tuple(map(weakref.ref, type.__subclasses__(cls)))

    return now


_caches_of: Any = vars(abc)["_get_dump"]


def kept_answer(cls: type, kind: type) -> Reader:
    """Reads whether the cache of an abstract class has an answer for ``kind``."""

    def now() -> tuple[bool, bool]:
        _, yes, no, _ = _caches_of(cls)
        return any(ref() is kind for ref in yes), any(ref() is kind for ref in no)

    return now


def names_a_function(function: Any, table: dict[str, str]) -> bool:
    """Whether a function in C stands in such a table."""
    module = getattr(function, "__self__", None)
    if type(function) is not types.BuiltinFunctionType or type(module) is not types.ModuleType:
        return False
    return function.__name__ in table.get(str(vars(module).get("__name__")), "").split()


_MAX_KEPT = 1024


class Kept:
    """The entries of a cache. They differ once somebody clears the cache and fills it again."""

    def __init__(self, cached: Any) -> None:
        self._cached, self._entries = cached, entries_of(cached)
        self._held = self._items()  # kept, so that nothing else gets their addresses

    def values(self) -> list[Any]:
        """Return the results that the cache holds."""
        if not any(map(_is_link, self._held[:1])):
            return self._held
        # A bounded cache refers to its results itself, and to its keys.
        parts, others = gc.get_referents(self._cached), (self._cached.__dict__, self._entries)
        return [part for part in parts if not any(part is other for other in others)]

    def now(self) -> tuple[int, ...]:
        """Its counts, or the addresses of what it holds: runs of ours change the first."""
        info, items = self._cached.cache_info(), self._items()
        return (info.currsize, *map(address, items)) if items else (info.misses, info.currsize)

    def _items(self) -> list[Any]:
        """The entries of the dict behind it, if they are not too many to ask in each call."""
        return list(self._entries.values()) if len(self._entries) <= _MAX_KEPT else []


class Entries:
    """The entries that a cache of ``functools`` has, to take out later what came to it.

    Attributes:
        path: name of the cache.
        cached: the cache.
    """

    def __init__(self, path: str, cached: Any) -> None:
        self.path, self.cached = path, cached
        self._misses = cached.cache_info().misses
        # Not the keys themselves, which would live as long as this does.
        self._keys = frozenset(map(address, entries_of(cached)))

    def has_missed(self) -> bool:
        """Whether it was asked meanwhile for what it did not hold."""
        return bool(self.cached.cache_info().misses > self._misses)

    def take_out_new(self) -> None:
        """Take out the entries that have come meanwhile.

        Nothing brings back what they have pushed out. Another thread whose entry goes as well
        computes the result again.
        """
        if self.has_missed():
            entries = entries_of(self.cached)
            for key in [key for key in entries if address(key) not in self._keys]:
                # A bounded cache expects that an entry may be gone.
                entries.pop(key, None)


def entries_of(cached: Any) -> dict[Any, Any]:
    """The dict behind a cache of ``functools``; empty where the cache keeps nothing."""
    own = cached.__dict__
    found = [part for part in gc.get_referents(cached) if type(part) is dict and part is not own]
    # A bounded cache refers to its results as well, and they may be dicts.
    of_links = (part for part in found if any(map(_is_link, itertools.islice(part.values(), 1))))
    return next(of_links, found[-1] if found else {})


def _is_link(item: Any) -> bool:
    return raw.name_of(type(item)).endswith("_lru_list_elem")
