"""What tells a stand-in for a size from an ``int``: see :mod:`~gfxgraph.record.answers`.

A stand-in notices what it is asked by its own methods, which Python's operators and many functions
in C call. Others look at the object itself. What is known to call methods stands here; with all
else, a run learns something unnoticed.
"""

from __future__ import annotations

import builtins
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
from .lookups import UNKNOWN

__all__ = ["asks_openly", "has_size", "is_plain", "is_seen_by_modes", "may_tell_apart"]

_GROUPS = (tuple, list, dict, set, frozenset)
_MAX_DEPTH = 4


def has_size(item: Any, depth: int = 0) -> bool:
    """Whether ``item`` is a stand-in, holds one, or is not known."""
    if item is UNKNOWN or type(item) is Size:
        return True
    if not raw.is_a(item, *_GROUPS):
        return False
    parts: Iterable[Any] = tuple.__iter__(item) if raw.is_a(item, tuple) else _values(item)
    return depth >= _MAX_DEPTH or any(has_size(part, depth + 1) for part in parts)


def _values(item: Any) -> list[Any]:
    if raw.is_a(item, frozenset):
        return list(frozenset.__iter__(item))
    return [part for pair in raw.contents(item) for part in pair]


# Operands whose operators ask a number by its methods.
_OPERANDS = (int, float, complex, str, tuple, list, torch.Tensor, type(None), slice)


def is_plain(items: Iterable[Any]) -> bool:
    """Whether an operator between these asks a stand-in among them by its methods."""
    return all(type(item) is Size or raw.is_a(item, *_OPERANDS) for item in items)


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
_CONTAINERS = frozenset(map(address, (*_GROUPS, OrderedDict, deque, str, object)))


def asks_openly(function: Any, given: Iterable[Any]) -> bool:
    """Whether code in C asks a stand-in by its methods alone, also what it calls for that."""
    if any(_is_called_in_c(item) and address(item) not in _ASKING for item in given):
        return False
    if address(function) in _ASKING or _is_of_torch(function):
        return True
    if raw.is_a(function, type):  # a class of the program's, which adds nothing in C
        bases = (base for base in raw.mro(function) if not raw.is_mutable(base))
        return raw.is_mutable(function) and all(address(base) in _CONTAINERS for base in bases)
    return address(_owner_in_c(function)) in _CONTAINERS


def _is_called_in_c(item: Any) -> bool:
    is_made = raw.is_a(item, types.FunctionType, types.MethodType, torch.nn.Module, torch.Tensor)
    return callable(item) and not is_made and item is not UNKNOWN


_SEEN_BY_MODES = frozenset(
    (
        *("builtins", "_operator", "itertools", "_functools", "functools", "_collections"),
        *("collections", "math", "types", "torch"),
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
