"""Finds the places that hold the tensors a function reaches, so that they can be replaced there.

``graph/state.py`` walks objects too, for a different question: what may a call change, by what name
is it reached, and what must a guard watch? It follows generators, iterators and caches further
away. This walk stops four steps from a module, and its places can replace a tensor, also one in a
tuple, in defaults or in a ``functools.partial``.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..interpose.source import CLOSED, global_names
from .tensor import SimulatedTensor

__all__ = ["Place", "places", "swapped", "tensors_of"]

# Enough for a model of thousands of modules.
_MAX_OBJECTS = 200_000
# A longer container is data, not structure.
_MAX_ITEMS = 4096
# How far to search objects that are no modules.
_MAX_DEPTH = 4
_LEAVES = (int, float, bool, str, bytes, complex, type(None), torch.Tensor, torch.dtype, type)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_MISSING: Any = object()


class Place:
    """A holder of objects, and its first contents.

    Args:
        item: a dict, list, deque, closure cell or ``functools.partial``, or any object where
            ``names`` are its attributes.
        names: the keys that count; ``None``: all.
        is_state: it holds parameters or buffers.

    Attributes:
        held: the keys, and their first values.
    """

    def __init__(
        self, item: Any, names: tuple[str, ...] | None = None, *, is_state: bool = False
    ) -> None:
        self.item = item
        self.names = names
        self.is_state = is_state
        self.held = self._read()
        # Methods of the base class: a subclass may refuse them.
        self._dict: Any = OrderedDict if isinstance(item, OrderedDict) else dict

    def put(self, key: Any, value: Any) -> None:
        """Hold ``value`` at ``key``."""
        if isinstance(self.item, types.CellType):
            self.item.cell_contents = value
        elif isinstance(self.item, dict):
            self._dict.__setitem__(self.item, key, value)
        elif isinstance(self.item, functools.partial):
            partial: Any = self.item
            partial.__setstate__((partial.func, value, partial.keywords, vars(partial)))
        elif self.names is not None:
            setattr(self.item, key, value)
        else:
            self.item[key] = value

    def restore(self) -> None:
        """Restore the first contents."""
        now = self._read()
        if list(now) != list(self.held) and self.names is None:
            if isinstance(self.item, types.CellType):
                del self.item.cell_contents
            elif isinstance(self.item, dict):
                self._dict.clear(self.item)
                self._dict.update(self.item, self.held)
            else:
                self.item.clear()
                self.item.extend(self.held.values())
            return
        for key, value in self.held.items():
            if now.get(key, _MISSING) is not value:
                self.put(key, value)

    def _read(self) -> dict[Any, Any]:
        item = self.item
        if isinstance(item, types.CellType):
            try:
                return {0: item.cell_contents}
            except ValueError:  # a variable that is not bound yet
                return {}
        if isinstance(item, functools.partial):
            return {"args": item.args}
        if isinstance(item, dict):
            return {k: item[k] for k in (item if self.names is None else self.names) if k in item}
        if self.names is not None:
            return {name: getattr(item, name) for name in self.names if hasattr(item, name)}
        return dict(enumerate(item))


def places(objects: tuple[Any, ...]) -> Iterator[Place]:
    """All places that ``objects`` reach and that may hold tensors."""
    packages = {_package(part) for item in objects for part in (item, *_parts_of_root(item))}
    packages -= CLOSED
    todo = deque((item, 0) for item in objects)
    seen: dict[int, Any] = {}
    placed: dict[int, Place] = {}
    while todo and len(seen) < _MAX_OBJECTS:
        item, depth = todo.popleft()
        if isinstance(item, _LEAVES) or id(item) in seen or depth > _MAX_DEPTH:
            continue
        seen[id(item)] = item
        deeper = 0 if isinstance(item, torch.nn.Module) else depth + 1
        for found in _opened(item, packages):
            if not isinstance(found, Place):
                todo.append((found, deeper))
            elif found.names is not None or placed.setdefault(id(found.item), found) is found:
                yield found
                todo.extend((value, deeper) for value in found.held.values())


def _parts_of_root(item: Any) -> tuple[Any, ...]:
    owner = getattr(item, "__self__", None)
    return type(item), owner, type(owner), getattr(item, "func", None)


def _opened(item: Any, packages: set[str]) -> Iterator[Any]:
    """The places in ``item``, and objects outside of places to continue with."""
    if isinstance(item, types.MethodType):
        yield from (item.__func__, item.__self__)
    elif isinstance(item, functools.partial):
        yield from (item.func, Place(item), Place(item.keywords))
    elif isinstance(item, types.FunctionType):
        if _package(item) in packages:
            yield from _opened_function(item)
    elif isinstance(item, torch.nn.Module):
        yield from _opened_module(item)
        yield from _opened_object(item, packages)
    elif isinstance(item, (dict, list, deque, tuple)):
        if len(item) <= _MAX_ITEMS:
            yield from _opened_container(item)
    elif _package(type(item)) not in CLOSED or type(item) is types.SimpleNamespace:
        yield from _opened_object(item, packages)


def _opened_container(item: Any) -> Iterator[Any]:
    if isinstance(item, tuple):
        yield from item
    else:
        yield Place(item)
    if isinstance(getattr(item, "__dict__", None), dict):  # of a subclass
        yield Place(vars(item))


def _opened_function(function: Any) -> Iterator[Any]:
    yield Place(function, ("__defaults__",))
    yield from (function.__kwdefaults__, vars(function))
    yield from (Place(cell) for cell in function.__closure__ or ())
    space = function.__globals__
    names = (name for name in sorted(global_names(function.__code__)) if name in space)
    yield Place(
        space,
        tuple(name for name in names if not isinstance(space[name], (types.ModuleType, type))),
    )


def _opened_module(module: torch.nn.Module) -> Iterator[Any]:
    attributes = vars(module)
    for name in ("_parameters", "_buffers"):
        yield Place(attributes.get(name, {}), is_state=True)
    yield Place(attributes.get("_modules", {}))
    yield from (hook for name in _HOOKS for hook in attributes.get(name, {}).values())


def _opened_object(item: Any, packages: set[str]) -> Iterator[Any]:
    attributes = getattr(item, "__dict__", None)
    if isinstance(attributes, dict):
        yield Place(attributes)
    for cls in type(item).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        slots = (slots,) if isinstance(slots, str) else tuple(slots)
        if slots and _package(cls) not in CLOSED:
            yield Place(item, tuple(name for name in slots if not name.startswith("__")))
        if _package(cls) in packages:
            tensors = [n for n, v in vars(cls).items() if isinstance(v, torch.Tensor)]
            yield Place(cls, tuple(tensors))
            yield from (vars(cls).get(name) for name in ("forward", "__call__"))


def _package(item: Any) -> str:
    return str(getattr(item, "__module__", None) or "").partition(".")[0]


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """``value`` if it is a tensor, or the tensors of a tuple, which cannot be changed in place."""
    if isinstance(value, torch.Tensor):
        if not isinstance(value, SimulatedTensor):
            yield value
    elif isinstance(value, tuple) and len(value) <= _MAX_ITEMS:
        yield from itertools.chain.from_iterable(map(tensors_of, value))


def swapped(value: Any, swap: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with each of its tensors replaced by ``swap(tensor)``."""
    if isinstance(value, torch.Tensor):
        return swap(value)
    if not any(True for _ in tensors_of(value)):
        return value
    items = (swapped(item, swap) for item in value)
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
