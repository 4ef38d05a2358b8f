"""Closed code that reads what a program can change: signatures, annotations, levels, registries.

Much code of Python, NumPy and torch is closed: its instructions are not looked at. Most of it
gives what follows from its arguments. Some reads attributes of these that no call names
(:mod:`inspect`), or tables that a program can add to (:mod:`logging`). Its frames are *heard*:
where code that is looked at has called one, it is looked at as well, or what it asks for is noted.
Torch calls the same functions all the time, and that does not matter.
"""

from __future__ import annotations

import functools
import logging
import sys
import types
from typing import Any

from torch import _tensor_str
from torch.utils import _pytree

from ..interpose.codes import address
from ..interpose.modules import loaded
from . import raw
from .in_c import Reader

__all__ = [
    "asked",
    "is_heard",
    "is_looked_at",
    "of_text",
    "options_of_numpy",
    "options_of_torch",
    "tables",
]

_HEARD = (
    *("abc", "dis", "importlib", "inspect", "linecache", "logging", "traceback", "types", "typing"),
    *("numpy.polynomial", "numpy.lib._function_base_impl", "numpy.lib._polynomial_impl"),
    *("numpy.lib.function_base", "numpy.lib.polynomial"),  # up to NumPy 1
    *("numpy._core.arrayprint", "numpy.core.arrayprint"),
    *("torch.fx.graph", "torch.fx.graph_module", "torch.fx.interpreter", "torch.fx.node"),
    *("torch._tensor_str", "torch.utils._pytree"),
)
_BOOTSTRAP = ("importlib._bootstrap", "importlib._bootstrap_external")
# Of these only some functions are looked at, by name.
_SOME: dict[str, frozenset[str]] = {
    "abc": frozenset(),
    "logging": frozenset(
        ["getLevelName", "getLevelNamesMapping", "getLogger", "getChild", "getHandlerByName"]
    ),
    "typing": frozenset(
        [
            "get_type_hints",
            "_eval_type",
            "_evaluate",
            "__instancecheck__",
            "__subclasscheck__",
            "_proto_hook",
            "_get_protocol_attrs",
            "_type_repr",
        ]
    ),
    "torch._tensor_str": frozenset(),
    "torch.utils._pytree": frozenset(),
    "numpy._core.arrayprint": frozenset(),
    "numpy.core.arrayprint": frozenset(),
    **dict.fromkeys(_BOOTSTRAP, frozenset(["_module_repr", "_module_repr_from_spec"])),
}


@functools.lru_cache(maxsize=4096)
def is_heard(name: str) -> bool:
    """Whether the frames of a module that is closed are told."""
    return name.startswith(tuple(f"{part}." for part in _HEARD)) or name in _HEARD


def is_looked_at(name: str, code: types.CodeType) -> bool:
    """Whether ``code`` of the module ``name`` is looked at where the program has called it."""
    if name in _SOME:
        return code.co_name in _SOME[name]
    if name.startswith("importlib.metadata"):  # it keeps what it finds
        return False
    if name.startswith("numpy."):  # the methods of its objects
        return code.co_varnames[:1] == ("self",)
    return True


def asked(frame: types.FrameType, name: str) -> tuple[Any, Reader, str] | None:
    """Return what a frame of the module ``name`` reads: its identity, a reader and its path."""
    method = frame.f_code.co_name
    if name == "logging" and method in _OF_LOGGERS:
        logger: Any = frame.f_locals.get("self")
        if raw.is_a(logger, logging.Logger):
            about, read = _OF_LOGGERS[method]
            path = f"logging.getLogger({raw.written_as(logger.name)})"
            return (about, address(logger)), functools.partial(read, logger), f"{path}.{about}"
    if name == "torch._tensor_str":
        return ("options", "torch"), options_of_torch, "torch.set_printoptions()"
    return of_text() if name.startswith("numpy.") and name.endswith(".arrayprint") else None


def of_text() -> tuple[Any, Reader, str]:
    """The options by which NumPy writes arrays and numbers in a text, as :func:`asked` gives it."""
    return ("asked", address(loaded("numpy").get_printoptions)), options_of_numpy, _OPTIONS


def tables(name: str, code: types.CodeType) -> list[tuple[str, Any]]:
    """Containers that ``code`` of the module ``name`` reads, with their paths."""
    if name == "torch.utils._pytree":
        return [("torch.utils._pytree.SUPPORTED_NODES", _pytree.SUPPORTED_NODES)]
    if name.startswith("importlib.metadata") or (name in _BOOTSTRAP and code.co_name == _FINDS):
        return [("sys.path", sys.path), ("sys.meta_path", sys.meta_path)]
    return []


_FINDS = "_find_spec"
_OPTIONS = "numpy.get_printoptions()"


def level(logger: logging.Logger) -> tuple[Any, ...]:
    """Return the settings that decide whether a logger handles a record."""
    own = logging.Logger
    level, has = own.getEffectiveLevel(logger), own.hasHandlers(logger)
    return level, has, logger.disabled, logger.manager.disable


def _handlers(logger: logging.Logger) -> tuple[Any, ...]:
    """Return the handlers that get the records of a logger, and their levels."""
    found: list[Any] = []
    at: logging.Logger | None = logger
    while at is not None:
        found += [part for handler in at.handlers for part in (handler, handler.level)]
        at = at.parent if at.propagate else None
    return logger.disabled, *found


def options_of_numpy() -> tuple[Any, ...]:
    """Return the options by which NumPy writes arrays and numbers in a text."""
    return tuple(loaded("numpy").get_printoptions().items())


def options_of_torch() -> tuple[Any, ...]:
    """Return the options by which torch writes tensors in a text."""
    return tuple(vars(_tensor_str.PRINT_OPTS).items())


_OF_LOGGERS: dict[str, tuple[str, Any]] = {
    **dict.fromkeys(("isEnabledFor", "getEffectiveLevel", "hasHandlers"), ("level", level)),
    "_log": ("handlers", _handlers),
}
