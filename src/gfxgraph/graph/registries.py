"""Where functions in C look up what they are given the name of.

A program can register error handlers of codecs, dialects of CSV files and filters of warnings. The
nodes of a ``torch.fx.Graph`` are a list in C.
"""

from __future__ import annotations

import codecs
import csv
import encodings
import functools
import operator
import pickletools
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

from ..interpose.codes import address
from . import raw
from .in_c import Reader, is_converted

__all__ = [
    "DIALECT",
    "filters",
    "looked_up",
    "loud_filters",
    "module_of",
    "names_in_pickle",
    "warns_in_c",
]

DIALECT = (
    *("delimiter", "doublequote", "escapechar", "lineterminator", "quotechar", "quoting"),
    *("skipinitialspace", "strict"),
)
"""What a dialect of CSV files is asked for."""
_ERRORS = (
    *("strict", "ignore", "replace", "backslashreplace", "xmlcharrefreplace", "namereplace"),
    *("surrogateescape", "surrogatepass"),
)
_OF_TEXTS: tuple[Any, ...] = (str, bytes, bytearray)
_CODING = ("encode", "decode")
_BY_NAME = ("lookup", "lookup_error")


def module_of(function: Any) -> str:
    """The module in C that a function stands in; ``""``: it is a method, or something else."""
    owner = getattr(function, "__self__", None)
    if type(function) is not types.BuiltinFunctionType or type(owner) is not types.ModuleType:
        return ""
    return str(vars(owner).get("__name__"))


def looked_up(
    function: Any, owner: Any, given: Sequence[Any]
) -> Iterator[tuple[Any, Reader | None, str]]:
    """What a call in C looks up: what identifies that, a reader, and its path.

    ``None`` in place of a reader: nobody can ask for it.
    """
    module = module_of(function)
    if module == "_codecs":
        yield from _of_codecs(given if function.__name__ in _BY_NAME else given[1:])
    elif any(function is kind for kind in _OF_TEXTS):
        yield from _of_codecs(given[1:])
    elif raw.is_a(owner, *_OF_TEXTS) and function.__name__ in _CODING:
        yield from _of_codecs(given)
    elif module == "_csv":
        yield from _of_csv(function.__name__, given)
    elif function is _NODES and given:
        read = functools.partial(_nodes_after, given[0])
        yield ("nodes", address(given[0])), read, "the nodes of a torch.fx.Graph"


def _of_codecs(given: Sequence[Any]) -> Iterator[tuple[Any, Reader | None, str]]:
    for name in given:
        if type(name) is not str or name in _ERRORS or _is_of_python(name):
            continue
        read = functools.partial(_handler, name)
        if read() is raw.MISSING:  # an encoding, which runs code of the program when it is asked
            yield ("codec", name), None, f"what codecs.register() knows as {name!r}"
        else:
            yield ("codec", name), read, f"codecs.lookup_error({name!r})"


@functools.lru_cache(maxsize=256)
def _is_of_python(encoding: str) -> bool:
    return encodings.search_function(encoding.lower()) is not None


def _handler(name: str) -> Any:
    try:
        return codecs.lookup_error(name)
    except LookupError:
        return raw.MISSING


def _of_csv(name: str, given: Sequence[Any]) -> Iterator[tuple[Any, Reader | None, str]]:
    if name == "list_dialects":
        yield ("csv", name), csv.list_dialects, "csv.list_dialects()"
    elif name == "reader" or (name == "field_size_limit" and not given):
        yield ("csv", "field_size_limit"), csv.field_size_limit, "csv.field_size_limit()"
    if name in ("get_dialect", "reader", "writer"):
        for text in given if name == "get_dialect" else given[1:]:
            if type(text) is str:
                yield ("csv", text), functools.partial(_dialect, text), f"csv.get_dialect({text!r})"


def _dialect(name: str) -> Any:
    try:
        return csv.get_dialect(name)
    except csv.Error:
        return raw.MISSING


def _nodes_after(root: Any) -> tuple[Any, ...]:
    return tuple(_NODES(root, False))


_NODES: Any = getattr(torch._C, "_NodeIter", None)


def filters() -> tuple[Any, ...]:
    """What decides whether a warning is shown, or raised."""
    return tuple(warnings.filters)


def loud_filters() -> tuple[Any, ...]:
    """What decides whether a warning of code in C is raised, or shown in each call.

    Libraries set filters when they are imported, and other threads set some for a while. Those
    that ignore warnings are alike to what is shown once, and so are those of their own classes.
    """
    found: list[Any] = []
    for item in tuple(warnings.filters):
        if not _may_be_of_c(item[2]):
            continue
        found.append(item)
        if all(map(operator.is_, item[1:], _OF_ALL)):
            break
    while found and type(found[-1][0]) is str and found[-1][0] in _QUIET:
        found.pop()
    return tuple(found)


def _may_be_of_c(category: Any) -> bool:
    if address(category) in _OF_C:
        return True
    return raw.name_of(category) in _OF_NUMPY if raw.is_a(category, type) else True


_OF_ALL = (None, Warning, None, 0)
_QUIET = ("ignore", "default", "module", "once")
# What code in C warns of, and the classes that a filter of that may name.
_OF_C = frozenset(
    address(base)
    for kind in (
        *(BytesWarning, DeprecationWarning, FutureWarning, PendingDeprecationWarning),
        *(RuntimeWarning, SyntaxWarning, UserWarning),
    )
    for base in kind.__mro__
)
_OF_NUMPY = ("ComplexWarning", "VisibleDeprecationWarning")


def warns_in_c(function: Any, given: Sequence[Any]) -> bool:
    """Whether a function in C may warn of what it is given."""
    if any(function is part for part in (eval, exec, compile)):  # of a text
        return True
    return any(function is part for part in (int, float, complex, operator.index)) and any(
        map(is_converted, given)
    )


def names_in_pickle(data: Any) -> list[str]:
    """The texts in a pickle, among them the names of modules and of what stands in them."""
    found: dict[str, None] = {}
    with suppress(ValueError):  # it is none
        for _, text, _ in pickletools.genops(data):
            if type(text) is str:
                found.update(dict.fromkeys((text, *text.split(" "))))
    return list(found)
