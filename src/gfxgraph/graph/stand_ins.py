"""What tells a stand-in for a size from an ``int``: see :mod:`~gfxgraph.record.answers`.

A stand-in notices what it is asked by its own methods, which Python's operators and many functions
in C call. Other functions look at the object itself, which no method notices. This file lists the
functions that are known to call methods. A run that calls any other one proves nothing.
"""

from __future__ import annotations

import builtins
import contextvars
import functools
import itertools
import math
import operator
import types
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

import torch

from ..interpose.codes import address
from ..record.answers import Size
from . import raw
from .listening import is_closed
from .lookups import UNKNOWN

__all__ = [
    "asks_openly",
    "calls_unseen",
    "has_size",
    "is_harmless",
    "is_plain",
    "is_seen_by_modes",
    "may_tell_apart",
    "tells_apart",
]

_GROUPS = (tuple, list, dict, set, frozenset)
_MAX_DEPTH = 4
_TENSORS = (torch.Tensor, torch.nn.Parameter)
# By their own classes: those that derive from these may ask otherwise.
_PLAIN = frozenset(
    map(
        address,
        (
            *(int, float, complex, bool, str, bytes, type(None), type(Ellipsis)),
            *(torch.dtype, torch.device, torch.layout, torch.memory_format),
        ),
    )
)
_OPERANDS = _PLAIN | set(map(address, (*_TENSORS, tuple, list, torch.Size, slice, Size)))
_OF_CODE = (types.FunctionType, types.MethodType, types.ModuleType, type)


def is_harmless(item: Any) -> bool:
    """Whether ``item`` tells nothing of a tensor or a size, whoever gets it."""
    return address(type(item)) in _PLAIN


def tells_apart(cls: Any) -> bool:
    """Whether ``isinstance`` may tell a stand-in from an ``int`` by this class."""
    if type(cls) is type:
        return cls is torch.SymInt
    # With an abstract class, any other can be registered.
    return not raw.is_a(cls, type) or raw.module_of(cls).partition(".")[0] not in _OF_ABSTRACT


_OF_ABSTRACT = ("numbers", "collections", "typing", "torch")


def has_size(item: Any, depth: int = 0) -> bool:
    """Whether ``item`` may be a stand-in, or give one to code in C."""
    if item is UNKNOWN or type(item) is Size:
        return True
    if raw.is_a(item, *_GROUPS):
        parts: Iterable[Any] = tuple.__iter__(item) if raw.is_a(item, tuple) else _values(item)
        return depth >= _MAX_DEPTH or any(has_size(part, depth + 1) for part in parts)
    # Who asks an object of the program's for an attribute gets the stand-in itself.
    is_known = is_harmless(item) or type(item) in _TENSORS or raw.is_a(item, *_OF_CODE)
    return not (is_known or raw.is_mutable(type(item)))


def _values(item: Any) -> list[Any]:
    if raw.is_a(item, frozenset):
        return list(frozenset.__iter__(item))
    return [part for pair in raw.contents(item) for part in pair]


def is_plain(items: Iterable[Any]) -> bool:
    """Whether an operator between these asks a stand-in among them by its methods."""
    return all(address(type(item)) in _OPERANDS for item in items)


_METHODS_OF_INT = frozenset(name for name in dir(int) if not name.startswith("_")) | {"__class__"}


def may_tell_apart(item: Any, name: str) -> bool:
    """Whether the attribute ``name`` of a stand-in may be another than that of an ``int``."""
    return type(item) is Size and name not in _METHODS_OF_INT


# Functions that ask a number by its methods, or hand it on as it is.
_ASKING = frozenset(
    address(getattr(owner, name))
    for owner, names in (
        (
            builtins,
            "abs all any bool dict divmod enumerate filter float format frozenset hash int "
            "isinstance iter len list map max min next pow print range reversed round set setattr "
            "slice sorted str sum tuple zip",
        ),
        (
            operator,
            "add sub mul floordiv mod truediv neg pos eq ne lt le gt ge index itemgetter",
        ),
        (math, "prod sqrt ceil floor log log2 exp gcd pow isqrt"),
        (itertools, "accumulate chain islice product repeat starmap zip_longest"),
        (functools, "reduce"),
        (torch, "Size"),
    )
    for name in names.split()
)
_CONTAINERS = frozenset(map(address, (*_GROUPS, OrderedDict, deque, str, contextvars.ContextVar)))
_BASES = _CONTAINERS | {address(object)}
# They call what they are given.
_CALLING = frozenset(
    (
        *("map", "filter", "sorted", "max", "min", "iter", "sort", "reduce", "partial"),
        *("cmp_to_key", "groupby", "starmap", "accumulate", "takewhile", "dropwhile"),
        *("filterfalse", "defaultdict"),
    )
)


def asks_openly(function: Any) -> bool:
    """Whether code in C asks a stand-in by its methods alone."""
    if address(function) in _ASKING or _is_of_torch(function):
        return True
    if raw.is_a(function, type):  # a class of the program's, which adds nothing in C
        bases = (base for base in raw.mro(function) if not raw.is_mutable(base))
        return raw.is_mutable(function) and all(address(base) in _BASES for base in bases)
    return address(_owner_in_c(function)) in _CONTAINERS


def calls_unseen(function: Any, given: Iterable[Any]) -> bool:
    """Whether code in C calls other code that nobody looks at, but for what asks openly."""
    return getattr(function, "__name__", "") in _CALLING and any(map(_is_unseen, given))


def _is_unseen(item: Any) -> bool:
    if item is UNKNOWN:
        return True
    if not callable(item) or type(item) in _TENSORS or raw.is_a(item, torch.nn.Module):
        return False
    function = item.__func__ if type(item) is types.MethodType else item
    if type(function) is types.FunctionType:
        module = str(function.__globals__.get("__name__", ""))
        return is_closed(module) and not module.startswith("torch.")
    return not (address(item) in _ASKING or _is_of_torch(item))


_SEEN_BY_MODES = frozenset(
    (
        *("builtins", "_operator", "itertools", "_functools", "functools", "_collections"),
        *("collections", "_contextvars", "math", "types", "torch"),
    )
)
_OF_TORCH = frozenset(
    f"torch._C._{part}" for part in ("nn", "fft", "linalg", "special", "sparse", "nested")
)
_OF_OVERRIDES = frozenset(
    address(getattr(torch._C, f"_has_torch_function{which}"))
    for which in ("", "_unary", "_variadic")
)


def is_seen_by_modes(function: Any) -> bool:
    """Whether torch's modes see what code in C asks of the tensors that it is given: that of torch
    which calls them first, and that which knows nothing of tensors."""
    owner: Any = getattr(function, "__self__", None)
    if _is_of_torch(function):
        return True
    if raw.is_a(owner, types.ModuleType):
        return str(owner.__name__) in _SEEN_BY_MODES
    if owner is None and raw.is_a(function, types.BuiltinFunctionType):
        return False
    cls = _owner_in_c(function)
    return cls is not None and raw.module_of(cls) in _SEEN_BY_MODES


def _is_of_torch(function: Any) -> bool:
    owner: Any = getattr(function, "__self__", None)
    if address(function) in _OF_OVERRIDES or raw.is_a(owner, torch.Tensor):
        return True
    if raw.is_a(owner, types.ModuleType):
        return str(owner.__name__) in _OF_TORCH
    if owner is None and raw.is_a(function, types.BuiltinFunctionType):
        return getattr(torch._C._VariableFunctions, function.__name__, None) is function
    return _owner_in_c(function) is torch._C.TensorBase


def _owner_in_c(function: Any) -> Any:
    """The class in C whose method it is, or which it makes; ``None``: there is none."""
    owner: Any = getattr(function, "__self__", None)
    if type(function) in (
        *(types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType),
    ):
        owner = function.__objclass__
    elif raw.is_a(function, type):
        owner = function
    if not raw.is_a(owner, type):
        # Functions of an extension may belong to an object that is no class's, such as a capsule.
        name, classes = getattr(function, "__name__", ""), raw.mro(type(owner))
        in_c = (c for c in classes if not raw.is_mutable(c) and name in raw.namespace(c))
        return next(in_c, None)
    return owner
