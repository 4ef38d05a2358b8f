"""Python state that a function reaches: what it rebinds, and what a graph must watch.

A graph replays device work only. An attribute that the function rebinds in each call
(``self.position += 1``, ``self.cache = torch.cat(...)``) would stay what it was at capture, so such
a function may not become a graph; and what the *caller* rebinds later (a weight, a submodule, a
number of steps, a global) makes the graph stale.
"""

from __future__ import annotations

import argparse
import functools
import sys
import types
from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ..record.effects import storage_key
from .guard import REGISTRIES, Guard

__all__ = ["PythonState"]

# A walk over what a function reaches ends here: enough for a model of thousands of modules.
_MAX_OBJECTS = 200_000
# A longer container is data, not structure: neither walked nor watched.
_MAX_ITEMS = 4096
_SCALARS = (int, float, bool, str, bytes, complex, type(None))
_LEAVES = (*_SCALARS, torch.dtype, torch.device, torch.Size, types.ModuleType, type)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_MODULE_ATTRIBUTES = frozenset(vars(torch.nn.Module())) - {"training"}
# Their attributes are in C++.
_SCRIPTED = (torch.jit.ScriptModule, torch._C.ScriptMethod)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
# Code of these is not looked into: what it reads is not a program's own state.
_CLOSED = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "triton"}
_OPEN_CLASSES = (torch.nn.Module, types.SimpleNamespace, argparse.Namespace)
_OURS = __name__.partition(".")[0]
_MISSING: Any = object()


@dataclass
class _Container:
    """A dict, list, set, deque, closure cell or class, and a shallow copy of what it held.

    Attributes:
        path: how it is reached.
        item: the container.
        names: of a namespace the names that count; ``None``: all.
        counted: what it holds of a module, if torch tells of additions: a guard looks at it only
            after one.
        shrinks: things are taken out of it as well, which nobody tells of.
    """

    path: str
    item: Any
    names: tuple[str, ...] | None = None
    counted: Literal["children", "hooks"] | None = None
    shrinks: bool = False
    held: dict[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.held = self.read()

    def read(self) -> dict[Any, Any]:
        """Key -> value, as of now."""
        item: Any = self.item
        if isinstance(item, types.CellType):
            try:
                return {0: item.cell_contents}
            except ValueError:  # a variable that is not bound yet
                return {}
        if isinstance(item, type):
            item = vars(item)
        if self.names is not None:
            return {name: item[name] for name in self.names if name in item}
        if isinstance(item, dict):
            return dict(item)
        if isinstance(item, (set, frozenset)):
            return dict.fromkeys(item)
        return dict(enumerate(item))

    def changes(self) -> list[Any]:
        """Keys whose value is another object by now, or that came or went."""
        now = self.read()
        return [
            key
            for key in now | self.held
            if now.get(key, _MISSING) is not self.held.get(key, _MISSING) and not self.is_ours(key)
        ]

    @staticmethod
    def is_ours(key: Any) -> bool:
        """Whether it names the graphs of a method, which come and go."""
        return isinstance(key, str) and key.startswith(f"__{_OURS}_")

    @property
    def has_length(self) -> bool:
        """Whether more or fewer items could matter, and nobody tells of them."""
        is_one = isinstance(self.item, (dict, list)) and self.path != ""
        return is_one and (self.shrinks or not self.counted)

    def restore(self) -> None:
        """Put back what it held."""
        if not self.changes():
            return
        item: Any = self.item
        if isinstance(item, types.CellType):
            item.cell_contents = self.held[0]
        elif isinstance(item, type):
            for name, value in self.held.items():
                setattr(item, name, value)
        elif self.names is not None:
            item.update(self.held)
        elif isinstance(item, dict):
            item.clear()
            item.update(self.held)
        else:
            item.clear()
            (item.update if isinstance(item, set) else item.extend)(
                self.held if isinstance(item, set) else self.held.values()
            )

    def name(self, key: Any) -> str:
        """How the item at ``key`` is reached."""
        if isinstance(self.item, types.CellType):
            return self.path
        if not self.path:  # a global
            return str(key)
        return f"{self.path}.{key}" if isinstance(key, str) else f"{self.path}[{key!r}]"


class PythonState:
    """The containers that ``roots`` reach, each with a shallow copy of what it holds now.

    Args:
        roots: name -> object: the function and the objects among its arguments.

    Attributes:
        generators: the random-number generators that were met.
    """

    def __init__(self, roots: dict[str, object]) -> None:
        self.generators: list[torch.Generator] = []
        #: Where there is TorchScript, whose state cannot be looked at.
        self.scripted: list[str] = []
        self._caches: list[tuple[str, Any, int]] = []
        self._containers: list[_Container] = []
        self._tensors: dict[int, tuple[str, torch.Tensor, torch.Tensor]] = {}
        self._open_packages = {
            _package(part)
            for root in roots.values()
            for part in (
                root,
                type(root),
                getattr(root, "__self__", None),
                getattr(root, "func", 0),
            )
        } - _CLOSED
        self._walk(roots)

    def changes(self, registries: bool = True) -> list[str]:
        """Names of what was rebound, added, removed or given other memory since.

        Args:
            registries: look also at the children of modules, of which there are many and whose
                registrations a guard counts.
        """
        containers = [c for c in self._containers if registries or not c.counted]
        found = [c.name(key) for c in containers for key in c.changes()]
        found += (
            f"{path}.data"
            for path, tensor, alias in self._tensors.values()
            if tensor.data_ptr() != alias.data_ptr() or tensor.shape != alias.shape
        )
        return found

    def changed(self) -> dict[str, Any]:
        """Name -> value of now, for what was rebound or added since."""
        return {
            container.name(key): now[key]
            for container in self._containers
            for now in (container.read(),)
            for key in container.changes()
            if key in now
        }

    def narrow(self, names: Container[str]) -> None:
        """Look only at the containers of what has these names."""
        self._tensors.clear()
        self._containers = [
            c for c in self._containers if any(c.name(key) in names for key in c.changes())
        ]

    def missed(self) -> list[str]:
        """Names of caches of ``functools`` that have computed something since."""
        return [f"{path}()" for path, c, misses in self._caches if c.cache_info().misses > misses]

    def recorded(self) -> list[str]:
        """Names of tensors into which autograd has recorded an operation."""
        return [path for path, tensor, _ in self._tensors.values() if tensor.grad_fn is not None]

    def names(self) -> dict[int, str]:
        """Names of the tensors that were met, by storage."""
        return {storage_key(alias): path for path, _, alias in self._tensors.values()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Name -> tensor, for the tensors that were met."""
        return {path: tensor for path, tensor, _ in self._tensors.values()}

    def restore(self) -> None:
        """Put everything back to what it was."""
        for container in self._containers:
            container.restore()
        for _, tensor, alias in self._tensors.values():
            if tensor.data_ptr() != alias.data_ptr() or tensor.shape != alias.shape:
                tensor.data = alias

    def guard(self, outside: dict[int, torch.Tensor], folded: dict[int, torch.Tensor]) -> Guard:
        """What must not change as long as a graph is replayed.

        Args:
            outside: the tensors that the graph reads from outside, by storage.
            folded: those of them whose values the graph takes for constant.
        """
        children, no_hooks = (
            [c for c in self._containers if c.counted == kind] for kind in ("children", "hooks")
        )
        guard = Guard(outside, children, no_hooks)
        for container in self._containers:
            if isinstance(container.item, (set, frozenset, deque)):
                continue  # queues and sets of the caller; no graph reads them by key
            for key, value in container.held.items():
                if isinstance(value, torch.Tensor):
                    if type(value) in _TENSORS and storage_key(value) in outside:
                        guard.watch(container.name(key), container.item, key, value)
                elif not container.counted and not container.is_ours(key):
                    guard.watch(container.name(key), container.item, key, value)
            if container.has_length:
                guard.watch_length(container.path, container.item)
        for path, tensor, alias in self._tensors.values():  # also those in tuples and defaults
            if storage_key(alias) in outside:
                guard.watch_memory(path, tensor)
        names = self.names()
        for key, tensor in folded.items():
            guard.watch_version(key, names.get(key, "a tensor from outside"), tensor)
        guard.complete()
        return guard

    def _walk(self, roots: dict[str, object]) -> None:
        seen: set[int] = set()
        todo: list[tuple[str, Any]] = list(roots.items())
        while todo and len(seen) < _MAX_OBJECTS:
            path, item = todo.pop()
            if isinstance(item, torch.Tensor):
                if type(item) in _TENSORS and item.layout is torch.strided:
                    self._tensors.setdefault(id(item), (path, item, item.detach()))
            elif not isinstance(item, _LEAVES) and id(item) not in seen:
                seen.add(id(item))
                todo += self._open(path, item)

    def _keep(self, container: _Container) -> Iterator[tuple[str, Any]]:
        self._containers.append(container)
        yield from ((container.name(key), value) for key, value in container.held.items())

    def _open(self, path: str, item: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(item, torch.Generator):
            self.generators.append(item)
        elif isinstance(item, functools._lru_cache_wrapper):
            self._caches.append((path, item, item.cache_info().misses))
            yield path, item.__wrapped__
        elif isinstance(item, _SCRIPTED):
            self.scripted.append(path)
        elif _package(type(item)) == _OURS:
            # Our own objects change with every call; what matters is the function inside.
            yield path, getattr(item, "__wrapped__", None)
        elif isinstance(item, types.MethodType):
            yield from ((path, item.__func__), (path, item.__self__))
        elif isinstance(item, functools.partial):
            yield from ((path, part) for part in (item.func, item.args, item.keywords))
        elif isinstance(item, types.FunctionType):
            # What runs in each call may change what it likes.
            if not hasattr(item, "__gfxgraph_no_graph__"):
                yield from self._open_function(path, item)
        elif isinstance(item, (dict, list, deque, set)):
            if len(item) <= _MAX_ITEMS:
                yield from self._keep(_Container(path, item))
        elif isinstance(item, (tuple, frozenset)):
            if len(item) <= _MAX_ITEMS:
                yield from ((f"{path}[{n}]", value) for n, value in enumerate(item))
        elif _package(type(item)) in _CLOSED and not isinstance(item, _OPEN_CLASSES):
            pass  # a lock, a logger, a stream
        elif isinstance(getattr(item, "__dict__", None), dict):
            yield from self._open_object(path, item)

    def _open_object(self, path: str, item: Any) -> Iterator[tuple[str, Any]]:
        attributes = vars(item)
        if isinstance(item, torch.nn.Module):
            for registry in REGISTRIES:
                shrinks = registry == "_modules" and isinstance(item, _LISTS)
                # model.fc.weight, not model._modules['fc']._parameters['weight']
                yield from self._keep(
                    _Container(path, attributes[registry], None, "children", shrinks)
                )
            for hooks in _HOOKS:
                found = attributes[hooks]
                yield from self._keep(
                    _Container(f"{path}.{hooks}", found, None, None if found else "hooks")
                )
            own = tuple(name for name in attributes if name not in _MODULE_ATTRIBUTES)
            yield from self._keep(_Container(path, attributes, own))
        else:
            yield from self._keep(_Container(path, attributes))
        for cls in type(item).__mro__:
            if _package(cls) in self._open_packages:
                numbers = tuple(
                    name
                    for name, value in vars(cls).items()
                    if isinstance(value, (int, float, complex, torch.Tensor))
                    and not name.startswith("__")
                )
                yield from self._keep(_Container(cls.__qualname__, cls, numbers))
                for name in ("forward", "__call__"):
                    yield path, vars(cls).get(name)
                for name, member in vars(cls).items():
                    if isinstance(member, functools._lru_cache_wrapper):
                        yield f"{path}.{name}", member

    def _open_function(self, path: str, function: Any) -> Iterator[tuple[str, Any]]:
        if _package(function) not in self._open_packages:
            return
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            yield from self._keep(_Container(name, cell))
        space = function.__globals__
        names = tuple(
            name
            for name in sorted(_names(code))
            if name in space and not isinstance(space[name], (types.ModuleType, type))
        )
        if names:
            yield from self._keep(_Container("", space, names))
        yield from ((path, part) for part in (function.__defaults__, function.__kwdefaults__))
        if vars(function):
            yield path, vars(function)


def _package(item: Any) -> str:
    return str(getattr(item, "__module__", None) or "").partition(".")[0]


def _names(code: types.CodeType) -> set[str]:
    """The global names that a function and the functions in it look up."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))
