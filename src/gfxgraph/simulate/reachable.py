"""Finds the places that hold the tensors a function reaches, so that they can be replaced there.

``graph/state.py`` walks objects too, for a different question: what may a call change, by what name
is it reached, and what must a guard watch? It follows generators, iterators and caches further
away. This walk stops four steps from a module, and its places can replace a tensor, also one in a
tuple, in defaults or in a ``functools.partial``. No code of the program runs for it.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..graph import raw
from ..graph.containers import Slots, item_at, put_at
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
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_set_state: Any = functools.partial.__dict__["__setstate__"]


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

    def put(self, key: Any, value: Any) -> None:
        """Hold ``value`` at ``key``."""
        item = self.item
        if raw.is_a(item, functools.partial):
            state = item.func, value, item.keywords, raw.attributes(item)
            _set_state(item, state)
        elif type(item) is types.FunctionType:
            item.__defaults__ = value
        elif raw.is_a(item, deque):
            deque.__setitem__(item, key, value)
        elif type(item) is not types.CellType and not raw.is_a(item, dict, list, type):
            raw.slots(item)[key].__set__(item, value)
        else:
            put_at(item, key, value)

    def restore(self) -> None:
        """Restore the first contents."""
        now, item = self._read(), self.item
        if self.names is None and raw.is_a(item, dict, list, deque):
            raw.put_back(item, self.held, now)
            return
        values = dict(now)
        for key, value in self.held:
            if values.get(key, raw.MISSING) is not value:
                self.put(key, value)
        if type(item) is types.CellType and now and not self.held:
            del item.cell_contents

    def _read(self) -> raw.Pairs:
        item = self.item
        if raw.is_a(item, functools.partial):
            return [("args", item.args)]
        if type(item) is types.FunctionType:
            return [("__defaults__", item.__defaults__)]
        if self.names is None and raw.is_a(item, dict, list, deque):
            return raw.contents(item)
        if type(item) is not types.CellType and not raw.is_a(item, dict, type):
            item = Slots(item, raw.slots(item))
        pairs = [(name, item_at(item, name)) for name in self.names or ("",)]
        return [(name, value) for name, value in pairs if value is not raw.MISSING]


def places(objects: tuple[Any, ...]) -> Iterator[Place]:
    """All places that ``objects`` reach and that may hold tensors."""
    packages = {_package(part) for item in objects for part in (item, *_parts_of_root(item))}
    packages -= CLOSED
    todo = deque((item, 0) for item in objects)
    seen: dict[int, Any] = {}
    placed: dict[int, Place] = {}
    while todo and len(seen) < _MAX_OBJECTS:
        item, depth = todo.popleft()
        if raw.is_a(item, *_LEAVES) or id(item) in seen or depth > _MAX_DEPTH:
            continue
        seen[id(item)] = item
        deeper = 0 if raw.is_a(item, torch.nn.Module) else depth + 1
        for found in _opened(item, packages):
            if type(found) is not Place:
                todo.append((found, deeper))
            elif found.names is not None or placed.setdefault(id(found.item), found) is found:
                yield found
                todo.extend((value, deeper) for _, value in found.held)


def _parts_of_root(item: Any) -> tuple[Any, ...]:
    bound = (types.MethodType, types.BuiltinMethodType)
    owner = item.__self__ if raw.is_a(item, *bound) else None
    return type(item), owner, type(owner), item.func if raw.is_a(item, functools.partial) else None


def _opened(item: Any, packages: set[str]) -> Iterator[Any]:
    """The places in ``item``, and objects outside of places to continue with."""
    if type(item) is types.MethodType:
        yield from (item.__func__, item.__self__)
    elif raw.is_a(item, functools.partial):
        yield from (item.func, Place(item), Place(item.keywords))
    elif type(item) is types.FunctionType:
        if _package(item) in packages:
            yield from _opened_function(item)
    elif raw.is_a(item, torch.nn.Module):
        yield from _opened_module(item)
        yield from _opened_object(item, packages)
    elif raw.is_a(item, dict, list, deque, tuple):
        if raw.length(item) <= _MAX_ITEMS:
            yield from _opened_container(item)
    elif _package(type(item)) not in CLOSED or type(item) is types.SimpleNamespace:
        yield from _opened_object(item, packages)


def _opened_container(item: Any) -> Iterator[Any]:
    if raw.is_a(item, tuple):
        yield from tuple.__iter__(item)
    else:
        yield Place(item)
    attributes = raw.attributes(item)  # of a subclass
    if attributes is not None:
        yield Place(attributes)


def _opened_function(function: types.FunctionType) -> Iterator[Any]:
    yield Place(function, ("__defaults__",))
    yield from (function.__kwdefaults__, function.__dict__)
    yield from (Place(cell) for cell in function.__closure__ or ())
    space = function.__globals__
    names = (name for name in sorted(global_names(function.__code__)) if name in space)
    yield Place(
        space, tuple(name for name in names if not raw.is_a(space[name], types.ModuleType, type))
    )


def _opened_module(module: torch.nn.Module) -> Iterator[Any]:
    attributes = raw.attributes(module) or {}
    for name in ("_parameters", "_buffers"):
        yield Place(attributes.get(name, {}), is_state=True)
    yield Place(attributes.get("_modules", {}))
    yield from (hook for name in _HOOKS for hook in attributes.get(name, {}).values())


def _opened_object(item: Any, packages: set[str]) -> Iterator[Any]:
    attributes = raw.attributes(item)
    if attributes is not None:
        yield Place(attributes)
    slots = raw.slots(item).items()
    names = tuple(name for name, slot in slots if _package(slot.__objclass__) not in CLOSED)
    if names:
        yield Place(item, names)
    for cls in raw.mro(type(item)):
        if _package(cls) in packages:
            own = raw.namespace(cls)
            yield Place(cls, tuple(n for n, v in own.items() if raw.is_a(v, torch.Tensor)))
            yield from (own.get(name) for name in ("forward", "__call__"))


def _package(item: Any) -> str:
    """The package in which a class or a function was made, or the class of another object."""
    if raw.is_a(item, type):
        name: Any = raw.module_of(item)
    elif type(item) is types.MethodType:
        return _package(item.__func__)
    else:
        name = item.__module__ if type(item) is types.FunctionType else None
        own = raw.attributes(item) or {}
        name = name or own.get("__module__")  # of what functools.wraps() has made
    return name.partition(".")[0] if type(name) is str else ""


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """``value`` if it is a tensor, or the tensors of a tuple, which cannot be changed in place."""
    if raw.is_a(value, torch.Tensor):
        if not raw.is_a(value, SimulatedTensor):
            yield value
    elif raw.is_a(value, tuple) and tuple.__len__(value) <= _MAX_ITEMS:
        yield from itertools.chain.from_iterable(map(tensors_of, tuple.__iter__(value)))


def swapped(value: Any, swap: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with each of its tensors replaced by ``swap(tensor)``."""
    if raw.is_a(value, torch.Tensor):
        return swap(value)
    if not any(True for _ in tensors_of(value)):
        return value
    return tuple.__new__(type(value), (swapped(item, swap) for item in tuple.__iter__(value)))
