"""Settings of Python and NumPy that a function may change, and that no replay changes."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from ..interpose.modules import loaded
from .torch_settings import Setting

__all__ = ["PYTHON_SETTINGS"]

# Not the flags: each inexact operation sets one.
_OF_DECIMAL = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _decimal() -> Any:
    module = loaded("decimal")
    if module is None:
        return None
    context = module.getcontext()
    traps = tuple(sorted((signal.__name__, bool(on)) for signal, on in context.traps.items()))
    return tuple(getattr(context, name) for name in _OF_DECIMAL), traps


def _set_decimal(value: Any) -> None:
    module = loaded("decimal")
    if value is None or module is None:
        return
    context, traps = module.getcontext(), dict(value[1])
    for name, number in zip(_OF_DECIMAL, value[0], strict=True):
        setattr(context, name, number)
    for signal in context.traps:
        context.traps[signal] = traps[signal.__name__]


class _Filters:
    """The list of warning filters, and what it holds."""

    def __init__(self) -> None:
        self.item = warnings.filters
        self.held = list(warnings.filters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Filters) and self.item is other.item and self.held == other.held

    __hash__ = None  # type: ignore[assignment]


def _set_filters(value: _Filters) -> None:
    # Another list is that of somebody's catch_warnings(), who puts his own back.
    if warnings.filters is not value.item:
        return
    warnings.filters[:] = value.held  # type: ignore[index]
    tell = getattr(warnings, "_filters_mutated", None)
    if tell is not None:  # else what was shown once under other filters is not shown again
        tell()


def _numpy() -> Any:
    numpy = loaded("numpy")
    return None if numpy is None else tuple(sorted(numpy.geterr().items()))


def _set_numpy(value: Any) -> None:
    numpy = loaded("numpy")
    if value is not None and numpy is not None:
        numpy.seterr(**dict(value))


PYTHON_SETTINGS = [
    Setting("decimal.getcontext()", _decimal, _set_decimal),
    Setting("warnings.filters", _Filters, _set_filters, settles=True),
    Setting("numpy.seterr()", _numpy, _set_numpy),
    Setting("sys.setrecursionlimit()", sys.getrecursionlimit, sys.setrecursionlimit),
]
