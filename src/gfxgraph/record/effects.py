"""Finds writes to outside tensors, and undoes them.

A tensor is *outside* if an operation takes it before any operation of the run has made it: weights,
caches, closures, inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch._ops import OpOverload

from ..device.asserts import may_assert, require_taken
from ..device.operators import (
    is_composite,
    is_in_python,
    may_write,
    run_composite,
    run_in_python,
    written_tensors,
)
from ..device.overrides import UnwrappedDispatchMode
from .gradients import Gradients
from .storages import is_whole

_is_gone: Callable[[int], Any] = torch.UntypedStorage._expired
_weak_tensor: Any = torch._C._WeakTensorRef  # type: ignore[attr-defined]
_STRIDED = torch.strided
_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})

__all__ = [
    "KnownTensors",
    "OutsideTensors",
    "Same",
    "StorageNames",
    "UndoLog",
    "Unexpected",
    "asked",
    "nobody_else_holds",
    "overwrite",
    "replaced_tensors",
    "storage_key",
    "tensors_in",
]


def storage_key(tensor: torch.Tensor) -> int:
    """A key of the memory of ``tensor``, valid as long as the memory lives.

    Two tensors share memory if they have the same key; a sparse tensor shares none.
    """
    owner: Any = tensor.untyped_storage() if tensor.layout is torch.strided else tensor
    return owner._cdata  # type: ignore[no-any-return]


class StorageNames:
    """Names the memory of tensors by :func:`storage_key`; no name comes twice while this lives.

    Args:
        device_type: what ``tensor.device.type`` is on the device. Default: nobody asks for
            ``elsewhere``.

    Attributes:
        elsewhere: names of memory that is not on the device.
    """

    def __init__(self, device_type: str | None = None) -> None:
        self.elsewhere: set[int] = set()
        # ``tensor.is_cuda``, which takes an eighth of the time of ``tensor.device.type``.
        self._is_on_device = device_type and attrgetter(f"is_{device_type}")
        # As long as somebody holds one, the number of a freed storage is not given to another.
        # What a StorageWeakRef holds, without such an object for each.
        self._storages: dict[int, Any] = {}
        self._others: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._storages)

    def newest(self, count: int) -> list[int]:
        """The names of dense tensors that were given last."""
        return list(itertools.islice(reversed(self._storages), count))

    def freed(self, keys: Iterable[int]) -> list[int]:
        """Those of these names whose memory is gone; of others than dense tensors, none."""
        storages = self._storages
        return [key for key in keys if key in storages and _is_gone(storages[key])]

    def __call__(self, tensor: torch.Tensor) -> int:
        """The name of the memory of ``tensor``."""
        if tensor.layout is not _STRIDED:
            return self._of_other(tensor)
        storage: Any = tensor.untyped_storage()
        key: int = storage._cdata
        if key not in self._storages:
            self._storages[key] = storage._weak_ref()
            self._locate(key, tensor)
        return key

    def _of_other(self, tensor: Any) -> int:
        key: int = tensor._cdata
        if key not in self._others:
            self._others[key] = _weak_tensor(tensor)
        self._locate(key, tensor)  # anew: it may get other memory
        return key

    def _locate(self, key: int, tensor: torch.Tensor) -> None:
        if self._is_on_device:
            if self._is_on_device(tensor):
                self.elsewhere.discard(key)
            else:
                self.elsewhere.add(key)

    def __del__(self, free: Callable[[int], Any] = torch.UntypedStorage._free_weak_ref) -> None:
        for held in self._storages.values():
            free(held)


class UndoLog:
    """Outside regions that runs write to, and the values to restore.

    A region is a view of memory; regions may overlap, so they are restored last first. Arrays on
    such memory that a run got are put back as well, although it should only read them.

    Attributes:
        gradients: the tensors to whose gradients runs may add, and which those were.
    """

    def __init__(self) -> None:
        self.gradients = Gradients()
        self._written_through = ""
        self._lent: dict[int, tuple[Any, Any, str]] = {}
        self._regions: dict[tuple[Any, ...], tuple[torch.Tensor, torch.Tensor | None]] = {}

    def __len__(self) -> int:
        return len(self._regions)

    def add(self, tensor: torch.Tensor, keep_value: bool) -> None:
        """Add the region of ``tensor``, with its present value if ``keep_value``."""
        region = (
            storage_key(tensor),
            tensor.dtype,
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
        )
        if region not in self._regions:
            where = _without_overlap(tensor.detach())
            # Where memory was freed there is nothing to keep, and nothing to read.
            keep_value &= is_whole(where)
            self._regions[region] = (where, where.clone() if keep_value else None)

    def lend(self, array: Any, what: str) -> None:
        """Add an array of NumPy that ``what`` gives to a run."""
        self._lent.setdefault(array.ctypes.data, (array, array.copy(), what))

    @property
    def lends(self) -> bool:
        """Whether a run got an array."""
        return bool(self._lent)

    def written_through(self) -> str:
        """What gave an array that a run has written to all the same; that is put back."""
        for array, kept, what in self._lent.values():
            if array.tobytes() != kept.tobytes():
                array[...] = kept
                self._written_through = what
        return self._written_through

    def undo(self) -> None:
        """Restore the values."""
        self.written_through()
        with torch.no_grad():
            for where, value in reversed(self._regions.values()):
                if value is not None and is_whole(where):
                    where.copy_(value)
        self.gradients.restore()

    def regions(self) -> list[torch.Tensor]:
        """Aliases of the regions."""
        return [where for where, _ in self._regions.values()]


class OutsideTensors(UnwrappedDispatchMode):
    """Finds the outside tensors that operations on this thread use.

    Attributes:
        found: storage key -> an alias of the first tensor seen on that storage; holding it keeps
            the memory alive.
    """

    # Operators such as flex_attention pass through whole.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[int, torch.Tensor] = {}
        self._name = StorageNames()
        self._inside: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.lift_fresh.default:  # torch.tensor(2.0): made in this run
            self._inside.add(self._name(args[0]))
        for tensor in tensors_in(args, kwargs):
            key = self._name(tensor)
            if key not in self._inside and key not in self.found:
                self.found[key] = tensor.detach()
        result = func(*args, **(kwargs or {}))
        self._inside.update({self._name(t) for t in tensors_in(result)} - self.found.keys())
        return result


class Unexpected(BaseException):
    """A run is about to do something unexpected; the user's handlers do not catch this."""


class KnownTensors(UnwrappedDispatchMode):
    """Lets a run read known outside tensors, and write to none of them.

    It is cheaper than a recording. If the run is about to do anything else, it raises
    :class:`Unexpected` first. Nobody called the function with these arguments, so what a kernel
    would stop the device for is an error as well (:func:`~gfxgraph.device.asserts.require_taken`).

    Args:
        known: storage keys of tensors that live on, which the run may read.
    """

    def __init__(self, known: Iterable[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._outside = frozenset(known)
        self._readable = set(self._outside)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        readable = self._readable
        if not isinstance(func, OpOverload):
            raise Unexpected(f"{func}")
        composite, writes, in_python, asserts = _facts(func)
        if composite:
            return run_composite(func, args, kwargs, self)
        if func is torch.ops.aten.lift_fresh.default:  # torch.tensor(2.0): made in this run
            readable.add(storage_key(args[0]))
        for value in (*args, *kwargs.values()):
            # Most arguments are tensors; searching lists takes longer.
            for tensor in (value,) if isinstance(value, torch.Tensor) else tensors_in(value):
                if storage_key(tensor) not in readable:
                    raise Unexpected(f"{func} reads a tensor of shape {tuple(tensor.shape)}")
        for tensor in written_tensors(func, args, kwargs) if writes else ():
            if storage_key(tensor) in self._outside:
                raise Unexpected(f"{func} writes to a tensor of shape {tuple(tensor.shape)}")
        result = asked(func, args, kwargs) if asserts or in_python else func(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            readable.add(storage_key(result))
        else:
            readable.update(map(storage_key, tensors_in(result)))
        return result


@cache
def _facts(op: OpOverload) -> tuple[bool, bool, bool, bool]:
    """Whether an operator is made of others, may write to arguments, is written in Python, and may
    stop a GPU."""
    return is_composite(op), may_write(op), is_in_python(op), may_assert(op)


def asked(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator with values that no caller has given, if the kernels take them.

    Raises:
        OutOfRange: they do not; see :func:`~gfxgraph.device.asserts.require_taken`.
    """
    require_taken(func, args, kwargs)
    if is_in_python(func):
        return run_in_python(func, args, kwargs, tensors_in(args, kwargs), _Asking())  # type: ignore[no-untyped-call]
    return func(*args, **kwargs)


class _Asking(UnwrappedDispatchMode):
    """Inside an operator of the program's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return asked(func, args, kwargs or {})


def nobody_else_holds(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is the last user of its storage."""
    storage = tensor.untyped_storage()
    # Two users: the tensor and the storage object of this function.
    return bool(torch._C._storage_Use_Count(storage._cdata) <= 2)


def overwrite(target: torch.Tensor, source: torch.Tensor) -> None:
    """``target.copy_(source)``, also for an expanded ``target``: its memory is written once."""
    for dim, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if stride == 0 and size > 1:
            target, source = target.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    target.copy_(source)


def _without_overlap(tensor: torch.Tensor) -> torch.Tensor:
    """One copy of the memory of an expanded tensor, which cannot be written back itself."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


@dataclass(frozen=True)
class Same:
    """Stands for a result that is an argument itself: the n-th tensor of the call."""

    position: int

    @classmethod
    def of(cls, tensor: torch.Tensor, given: Sequence[torch.Tensor]) -> Same | None:
        """The placeholder for ``tensor`` if ``given`` contains it, else ``None``."""
        return next((cls(n) for n, other in enumerate(given) if other is tensor), None)


def replaced_tensors(tree: Any, others: dict[int, torch.Tensor]) -> Any:
    """Replace tensors in an operator's arguments: ``others`` maps the id of a tensor to another."""
    if isinstance(tree, torch.Tensor):
        return others.get(id(tree), tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)([replaced_tensors(item, others) for item in tree])
    if isinstance(tree, dict):
        return {key: replaced_tensors(item, others) for key, item in tree.items()}
    return tree


def tensors_in(*trees: Any) -> list[torch.Tensor]:
    """The tensors in what an operator takes or returns: nested tuples, lists and dicts."""
    found: list[torch.Tensor] = []
    for tree in trees:
        kind = type(tree)
        flat = tree.values() if kind is dict else tree if kind in (tuple, list) else (tree,)
        for item in flat:
            if type(item) in _PLAIN:  # three times as fast as to ask whether it is a tensor
                continue
            if isinstance(item, torch.Tensor):
                found.append(item)
            elif isinstance(item, (tuple, list, dict)):
                return _nested_tensors(trees)
    return found


def _nested_tensors(trees: tuple[Any, ...]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    # Not by recursion: the results of a function may be nested deeper than Python's stack.
    todo: list[Iterator[Any]] = [iter(trees)]
    inside = {id(trees): None}  # a list may hold itself
    while todo:
        for item in todo[-1]:
            if type(item) in _PLAIN:
                continue
            if isinstance(item, torch.Tensor):
                found.append(item)
            elif isinstance(item, (tuple, list, dict)) and id(item) not in inside:
                inside[id(item)] = None
                todo.append(iter(item.values() if isinstance(item, dict) else item))
                break
        else:
            todo.pop()
            inside.popitem()
    return found
