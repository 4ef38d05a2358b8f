"""What a call does to the containers among its arguments, seen cheaply, and done again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

__all__ = ["Mutations"]

_CONTAINERS = (list, dict, set, deque)
# These have other watchers, or no state.
_OTHERS = (torch.Tensor, torch.nn.Module, FunctionType, ModuleType, type)


class Mutations:
    """The containers among the arguments of a call, with what they held before it.

    Args:
        args: the arguments. Looked at are tuples, lists, dicts, sets and deques in each other, the
            attributes of the objects and tensors in there, and the bytes of arrays up to 1 MiB.
        were_empty: it is after the call, before which they held nothing.
    """

    def __init__(self, args: Any, were_empty: bool = False) -> None:
        self._before = [
            (item, type(item)() if were_empty else _held(item)) for item in _containers(args)
        ]
        self._after: dict[int, Any] = {}

    def happened(self) -> bool:
        """Whether one of them holds other objects by now."""
        return any(not _same(held, _held(item)) for item, held in self._before)

    def take_back(self) -> None:
        """Let the changed ones hold what they held before, and keep what they hold now."""
        for number, (item, held) in enumerate(self._before):
            now = _held(item)
            if not _same(held, now):
                self._after[number] = now
                _fill(item, held)
        self._before = []

    def repeat(self, args: Any, change: Callable[[Any], Any]) -> None:
        """Let the containers of ``args`` hold what was kept, each after ``change``."""
        found = list(_containers(args))
        for number, held in self._after.items():
            if number < len(found):
                _fill(found[number], change(held))


def _containers(tree: Any) -> Iterator[Any]:
    todo, seen = [tree], set()
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        kind = type(item)
        if kind in _CONTAINERS:
            yield item
            todo += item.values() if kind is dict else item
        elif kind is bytearray or _is_array(item):
            yield item
        elif kind is torch.Tensor or kind is torch.nn.Parameter:
            yield vars(item)
        elif isinstance(item, tuple):
            todo += item
        elif not isinstance(item, _OTHERS) and type(getattr(item, "__dict__", None)) is dict:
            yield item.__dict__


def _is_array(item: Any) -> bool:
    if type(item).__module__ != "numpy" or type(item).__name__ != "ndarray":
        return False
    return bool(item.dtype.kind != "O" and item.nbytes <= _MOST and item.flags.writeable)


_MOST = 1 << 20


def _held(item: Any) -> Any:
    if type(item) is bytearray:
        return bytes(item)
    if _is_array(item):
        return item.copy()
    return dict(item) if type(item) is dict else list(item)


def _same(before: Any, now: Any) -> bool:
    if _is_array(before):
        return bool(before.shape == now.shape and before.tobytes() == now.tobytes())
    if len(before) != len(now):
        return False
    if type(before) is bytes:
        return bool(before == now)
    if type(before) is dict:
        return all(
            key is other and value is another
            for (key, value), (other, another) in zip(before.items(), now.items(), strict=True)
        )
    return all(one is other for one, other in zip(before, now, strict=True))


def _fill(item: Any, held: Any) -> None:
    if type(item) is bytearray:
        item[:] = held
        return
    if _is_array(item):
        item[...] = held
        return
    item.clear()
    if type(item) in (dict, set):
        item.update(held)
    else:
        item.extend(held)
