"""Modules that stand for what an engine imports and does not call here. Imported in children."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

__all__ = ["stub"]


def stub(*names: str) -> None:
    """Let ``names``, and all that is in them, be found, with any attribute that is asked for."""
    sys.meta_path.insert(0, _Finder(set(names)))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self._names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        made = _Module(spec.name)
        made.__version__ = "99.0"
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Module(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        return _made(name)


class _Anything(type):
    def __getattr__(cls, name: str) -> Any:
        return _made(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], types.FunctionType):
            return args[0]  # it decorates
        return super().__call__()

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return object

    __ror__ = __or__

    def __iter__(cls) -> Any:
        return iter(())


def _made(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def decorate(self: Any, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args else self

    def schema(cls: type, *args: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()

    return _Anything(
        name,
        (),
        {
            "__getattr__": lambda self, name: _made(name),
            "__call__": decorate,
            "__get_pydantic_core_schema__": classmethod(schema),
        },
    )
