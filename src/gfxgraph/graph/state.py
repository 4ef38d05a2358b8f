"""Python state that a function reaches: what it rebinds, and what a graph must watch.

A graph replays device work only. An attribute that the function rebinds in each call
(``self.position += 1``, ``self.cache = torch.cat(...)``) would stay what it was at capture, so such
a function may not become a graph; and an attribute that the *caller* rebinds later (a weight, a
number of steps) makes the graph stale.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, MutableMapping
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch

from ..errors import DeadTensorError
from ..record.effects import storage_key

__all__ = ["Guard", "PythonState"]

# A walk over what a function reaches ends here: enough for a model of thousands of modules, and
# an end for functions that reach a data set.
_MAX_OBJECTS = 200_000
_SCALARS = (int, float, bool, str, bytes, complex, type(None))
_LEAVES = (*_SCALARS, torch.Tensor, torch.dtype, torch.device, types.ModuleType, type)


class PythonState:
    """The containers that ``roots`` reach, each with a shallow copy of what it holds now.

    Args:
        roots: name -> object: the function and the objects among its arguments.
    """

    def __init__(self, roots: dict[str, object]) -> None:
        self._mappings: list[tuple[str, MutableMapping[Any, Any], dict[Any, Any]]] = []
        self._sequences: list[tuple[str, Any, list[Any]]] = []
        self._cells: list[tuple[str, types.CellType, object]] = []
        self._globals: list[tuple[str, dict[str, Any], str, object]] = []
        self._watched_mappings: set[int] = set()
        self._walk(roots)

    def changes(self) -> list[str]:
        """Names of what was rebound, added or removed since."""
        found: list[str] = []
        for path, mapping, before in self._mappings:
            if not _same(mapping.values(), before.values()) or mapping.keys() != before.keys():
                found += (
                    f"{path}.{key}"
                    for key in [*mapping, *(k for k in before if k not in mapping)]
                    if mapping.get(key) is not before.get(key)
                )
        found += (path for path, items, held in self._sequences if not _same(items, held))
        found += (path for path, cell, value in self._cells if cell.cell_contents is not value)
        found += (path for path, space, name, value in self._globals if space[name] is not value)
        return found

    def restore(self) -> None:
        """Put everything back to what it was."""
        for _, mapping, before in self._mappings:
            if not _same(mapping.values(), before.values()) or mapping.keys() != before.keys():
                mapping.clear()
                mapping.update(before)
        for _, items, held in self._sequences:
            if not _same(items, held):
                items.clear()
                items.extend(held)
        for _, cell, value in self._cells:
            cell.cell_contents = value
        for _, space, name, value in self._globals:
            space[name] = value

    def guard(self, outside: dict[int, torch.Tensor]) -> Guard:
        """What must not change as long as a graph is replayed.

        Args:
            outside: the tensors that the graph reads from outside, by storage.

        Returns:
            A guard over those of them that have a place in a container, and over the plain
            numbers, flags and strings of the roots and of all modules.
        """
        guard = Guard(outside)
        for path, mapping, held in self._mappings:
            watch_scalars = id(mapping) in self._watched_mappings
            for key, value in held.items():
                if _reads(value, outside) or (
                    watch_scalars and isinstance(value, _SCALARS) and _is_public(key)
                ):
                    guard.watch(f"{path}.{key}", mapping, key, value)
        for path, items, before in self._sequences:
            for position, value in enumerate(before):
                if isinstance(items, list) and _reads(value, outside):
                    guard.watch(f"{path}[{position}]", items, position, value)
        for path, space, name, value in self._globals:
            if _reads(value, outside) or isinstance(value, _SCALARS):
                guard.watch(path, space, name, value)
        for path, cell, value in self._cells:
            if _reads(value, outside) or isinstance(value, _SCALARS):
                guard.watch(path, cell, None, value)
        guard.complete()
        return guard

    def _walk(self, roots: dict[str, object]) -> None:
        seen: set[int] = set()
        todo: list[tuple[str, object, bool]] = [(n, o, True) for n, o in roots.items()]
        while todo and len(seen) < _MAX_OBJECTS:
            path, item, is_root = todo.pop()
            if isinstance(item, _LEAVES) or id(item) in seen:
                continue
            seen.add(id(item))
            todo += ((p, o, False) for p, o in self._open(path, item, is_root))

    def _open(self, path: str, item: Any, is_root: bool) -> Iterator[tuple[str, object]]:
        if type(item).__module__.partition(".")[0] == __name__.partition(".")[0]:
            # Our own objects change with every call; what matters is the function inside.
            inner = vars(item).get("__wrapped__") if hasattr(item, "__dict__") else None
            yield from () if inner is None else ((path, inner),)
        elif isinstance(item, types.MethodType):
            # The instance of a method is as much a root as the method.
            yield from self._open(path, item.__func__, is_root)
            yield from self._open(path, item.__self__, is_root)
        elif isinstance(item, types.FunctionType):
            yield from self._open_function(path, item)
        elif isinstance(item, dict):
            self._mappings.append((path, item, dict(item)))
            yield from ((f"{path}[{key!r}]", value) for key, value in item.items())
        elif isinstance(item, (list, deque)):
            self._sequences.append((path, item, list(item)))
            yield from ((f"{path}[{n}]", value) for n, value in enumerate(item))
        elif isinstance(item, (tuple, set, frozenset)):
            yield from ((f"{path}[{n}]", value) for n, value in enumerate(item))
        elif isinstance(getattr(item, "__dict__", None), dict):
            attributes = vars(item)
            self._mappings.append((path, attributes, dict(attributes)))
            if is_root or isinstance(item, torch.nn.Module):
                self._watched_mappings.add(id(attributes))
            registries = ("_parameters", "_buffers", "_modules")
            for name, value in attributes.items():
                if name in registries and isinstance(item, torch.nn.Module):
                    # model.fc.weight, not model._modules['fc']._parameters['weight']
                    self._mappings.append((path, value, dict(value)))
                    yield from ((f"{path}.{key}", child) for key, child in value.items())
                else:
                    yield f"{path}.{name}", value

    def _open_function(self, path: str, function: Any) -> Iterator[tuple[str, object]]:
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # a variable that is not bound yet
                continue
            self._cells.append((name, cell, value))
            yield name, value
        space = function.__globals__
        for name in code.co_names:
            value = space.get(name)
            if name in space and not isinstance(value, (types.ModuleType, type)):
                self._globals.append((name, space, name, value))
                if not callable(value) or isinstance(value, torch.nn.Module):
                    yield name, value
        if vars(function):
            yield path, vars(function)


class Guard:
    """Watches memory and places, on the path of every replayed call.

    The questions are compiled into one expression each, some 40 ns a term, when the guard is
    complete.

    Args:
        outside: storage key -> a tensor on it, for all that the graph reads from outside. Holding
            them keeps their memory.

    Attributes:
        memory_holds: whether all watched tensors are where they were; ``None``: there are none.
        places_hold: whether all watched places hold what they held; ``None``: there are none.
    """

    def __init__(self, outside: dict[int, torch.Tensor]) -> None:
        self._places: list[_Place] = []
        self._memory: dict[int, tuple[str, torch.Tensor, int]] = {}
        self._unplaced = dict(outside)
        self.memory_holds: Callable[[], bool] | None = None
        self.places_hold: Callable[[], bool] | None = None

    def watch(self, path: str, container: Any, key: Any, value: object) -> None:
        """Watch that ``container[key]`` stays ``value``; a cell has no key."""
        self._places.append(_Place(path, container, key, value))
        if isinstance(value, torch.Tensor):
            self._unplaced.pop(storage_key(value), None)
            self._watch_memory(path, value)

    def complete(self) -> None:
        """Nothing more is to be watched, except the memory of tensors that no container holds."""
        for tensor in self._unplaced.values():
            self._watch_memory(f"a tensor of shape {tuple(tensor.shape)}", tensor)
        self._unplaced.clear()
        names: dict[str, Any] = {}
        terms = []
        for n, (_, tensor, address) in enumerate(self._memory.values()):
            names[f"a{n}"] = tensor.data_ptr
            terms.append(f"a{n}() == {address}")
        self.memory_holds = _predicate(terms, names)
        self._compile_places()

    def changes(self) -> list[str]:
        """Names of what was rebound or moved; not a scalar that is equal to the old one."""
        found: dict[str, None] = {}
        for place in self._places:
            now = place.read()
            if now is not place.value:
                if _equal_scalars(now, place.value):
                    place.value = now
                else:
                    found[place.path] = None
        self._compile_places()
        moved = (name for name, tensor, at in self._memory.values() if tensor.data_ptr() != at)
        return list(found | dict.fromkeys(moved))

    def check_alive(self) -> None:
        """Raise if the memory of a watched tensor was freed, so that nothing can be read there.

        Raises:
            DeadTensorError: a storage was resized to nothing, as offloading does.
        """
        dead = [
            name
            for name, tensor, address in self._memory.values()
            if address and tensor.numel() and not tensor.untyped_storage().nbytes()
        ]
        if dead:
            raise DeadTensorError(
                f"the graph reads {', '.join(dead[:5])}, whose memory was freed (storage resized "
                "to 0 bytes). Load the data back before the call."
            )

    def _watch_memory(self, name: str, tensor: torch.Tensor) -> None:
        self._memory.setdefault(id(tensor), (name, tensor, tensor.data_ptr()))

    def _compile_places(self) -> None:
        names: dict[str, Any] = {}
        terms = []
        for n, place in enumerate(self._places):
            names[f"c{n}"], names[f"v{n}"] = place.container, place.value
            # Keys are names and numbers, except in dicts of the user.
            names[f"k{n}"] = place.key
            read = ".cell_contents" if isinstance(place.container, types.CellType) else f"[k{n}]"
            terms.append(f"c{n}{read} is v{n}")
        self.places_hold = _predicate(terms, names)


_MISSING = object()


@dataclass
class _Place:
    path: str
    container: Any
    key: Any
    value: object

    def read(self) -> object:
        try:
            if isinstance(self.container, types.CellType):
                return self.container.cell_contents
            return self.container[self.key]
        except (LookupError, ValueError):
            return _MISSING


def _predicate(terms: list[str], names: dict[str, Any]) -> Callable[[], bool] | None:
    """A function that says whether all ``terms`` hold; what is gone does not hold."""
    if not terms:
        return None
    text = f"""def holds():
    try:
        return {" and ".join(terms)}
    except (LookupError, ValueError):
        return False
"""
    exec(compile(text, "<gfxgraph>", "exec"), names)
    return names.pop("holds")  # type: ignore[no-any-return]


def _same(now: Collection[Any], before: Collection[Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))


def _reads(value: object, outside: dict[int, torch.Tensor]) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and type(value) in (torch.Tensor, torch.nn.Parameter)
        and storage_key(value) in outside
    )


def _is_public(name: object) -> bool:
    # torch.nn.Module keeps its own flags under names with an underscore.
    return not str(name).startswith("_")


def _equal_scalars(now: object, before: object) -> bool:
    return type(now) is type(before) and isinstance(now, _SCALARS) and now == before
