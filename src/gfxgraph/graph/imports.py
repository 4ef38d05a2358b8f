"""What an import reads: the table of modules, and the names of the package that it starts from.

The statement, ``__import__`` and :func:`importlib.import_module` read the same places.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

from ..interpose.codes import address
from . import raw
from .lookups import MISSING, UNKNOWN, Lookups, inside

__all__ = ["Imports", "is_import"]

_IMPORT: Any = builtins.__import__
_ALIKE: Any = getattr(importlib, "__import__", None)  # the same in Python
_OF_PACKAGE = ("__package__", "__name__", "__path__")
_OF_SPEC = ("name", "submodule_search_locations")
_OF_MESSAGE = ("__spec__", "__file__")


class Imports(Lookups):
    """See :class:`~gfxgraph.graph.reads.Reads`."""

    def _imported(
        self, name: str, names: Sequence[Any] = (), package: Any = MISSING, level: int = 0
    ) -> Any:
        """The module that an import gives.

        Args:
            name: how it is named.
            names: what is imported from it; none: the package around is what comes.
            package: the one that a relative import starts from.
            level: how many dots stand before the name.
        """
        whole = name
        if level > 0:
            if type(package) is not str:
                return UNKNOWN  # it is an error
            outer = package.rsplit(".", level - 1)[0]
            whole = f"{outer}.{name}" if name else outer
        module = self._module(whole)
        if module is MISSING:
            self._around(whole)
        if names:
            return self._is_for_all(module)
        first = name.partition(".")[0]
        end = len(whole) - len(name) + len(first) if first else len(whole)
        return self._is_for_all(module if end == len(whole) else self._module(whole[:end]))

    def _module(self, name: str) -> Any:
        self._common.add(address(sys.modules))
        return self._read(sys.modules, name, f"sys.modules[{name!r}]")

    def _around(self, name: str) -> None:
        """The packages around a module that is not there yet."""
        outer = name.rpartition(".")[0]
        while outer:
            module = self._module(outer)
            if raw.is_a(module, types.ModuleType):
                self._read(module.__dict__, "__path__", f"{outer}.__path__")
            outer = outer.rpartition(".")[0]

    def _package(self, space: Any) -> Any:
        """The package that a relative import starts from; :data:`MISSING`: there is none."""
        if not raw.is_a(space, dict):
            return MISSING
        self._common.add(address(space))
        package, name, path = (self._read(space, part, part) for part in _OF_PACKAGE)
        spec = self._read(space, "__spec__", "__spec__")
        parent: Any = MISSING
        if type(spec) is importlib.machinery.ModuleSpec:
            of_spec, places = (self._attribute(spec, part) for part in _OF_SPEC)
            if type(of_spec) is str:
                parent = of_spec.rpartition(".")[0] if places is None else of_spec
        elif spec is not None and spec is not MISSING:
            parent = self._attribute(spec, "parent")
        if package is not MISSING and package is not None:
            return package
        if spec is not MISSING and spec is not None:
            return parent
        return name.rpartition(".")[0] if path is MISSING and type(name) is str else name

    def _imported_from(self, module: Any, name: str) -> Any:
        """What ``from module import name`` gives: an attribute, or else a module of that name."""
        value = self._attribute(module, name)
        if value is not UNKNOWN and value is not MISSING:
            return value
        own = raw.attributes(module)
        if module is UNKNOWN or (own is not None and name in own):
            return value
        package = self._attribute(module, "__name__")
        if type(package) is not str:
            return value
        found = self._is_for_all(self._module(f"{package}.{name}"))
        if found is MISSING and raw.is_a(module, types.ModuleType):  # the error names its file
            for part in _OF_MESSAGE:
                self._attribute(module, part)
        return self._or_unknown(found)

    def _import_called(self, given: Sequence[Any], is_by_keyword: bool) -> Any:
        """``__import__`` is called with ``given``, the values of keywords at the end."""
        texts = [str.__str__(item) for item in given if raw.is_a(item, str)]
        if not texts or any(item is UNKNOWN for item in given):
            self._hidden("which module __import__() gives")
            return UNKNOWN
        spaces = [item for item in given if raw.is_a(item, dict)]
        lists = [item for item in given if raw.is_a(item, tuple, list)]
        names = [item for part in lists for item in inside(part)]
        level = next((item for item in given if type(item) is int), 0)
        for part in lists:
            self._content(part, 1)
        if level > 0 and is_by_keyword and len(spaces) > 1:  # `locals=` may come first
            self._hidden("which package __import__() starts from")
            return UNKNOWN
        package = self._package(next(iter(spaces), None)) if level > 0 else MISSING
        module = self._imported(texts[0], names, package, level)
        for name in names:
            if type(name) is str and module is not UNKNOWN and module is not MISSING:
                self._imported_from(module, name)
        return UNKNOWN if is_by_keyword else self._or_unknown(module)

    def _module_called(self, given: Sequence[Any]) -> Any:
        """:func:`importlib.import_module` is called with ``given``."""
        texts = [str.__str__(item) for item in given if raw.is_a(item, str)]
        if not texts or any(item is UNKNOWN for item in given):
            self._hidden("which module importlib.import_module() gives")
            return UNKNOWN
        dotted = next((text for text in texts if text.startswith(".")), texts[0])
        name = dotted.lstrip(".")
        package = next((text for text in texts if text is not dotted), MISSING)
        return self._or_unknown(self._imported(name, ("*",), package, len(dotted) - len(name)))

    def _imports_by_name(self, found: Sequence[Any]) -> None:
        """Code in C calls ``__import__`` with what is ``found`` in its arguments."""
        names = [str.__str__(item) for item in found if raw.is_a(item, str)]
        others = (types.GeneratorType, types.FunctionType, *_IN_C)
        is_known = not any(raw.is_a(item, *others) for item in found if not is_import(item))
        if not names or not is_known:
            self._refuse("which modules __import__() gives to code in C")
        for name in names:
            self._imported(name)


_IN_C = (types.BuiltinFunctionType, types.MethodDescriptorType, type)


def is_import(function: Any) -> bool:
    """Whether it is the function behind the statement ``import``, in C or in Python."""
    return function is _IMPORT or (function is _ALIKE and function is not None)
