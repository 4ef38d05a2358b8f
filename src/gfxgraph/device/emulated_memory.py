"""Memory pools of the emulated device: fixed addresses that graphs share and reuse.

A block of a pool has two faces. The user sees the *lent* tensor; when the last tensor on it dies,
the block goes back to the pool. A replay reads and writes the *internal* tensors. They keep the
memory alive but do not hold the block. So a later operation, or a later graph of the same pool, may
get the block and overwrite it, as on a GPU.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Sequence

import torch

from ..forking import new_lock
from .base import PoolHandle

__all__ = [
    "MemoryPool",
    "bytes_of_all_pools",
    "new_handle",
    "pool_of",
]

_ROUNDING = 512
_ALIGNMENT = 64

_handles = itertools.count(1)
_pools: weakref.WeakValueDictionary[PoolHandle, MemoryPool] = weakref.WeakValueDictionary()
_pools_lock = new_lock()


def new_handle() -> PoolHandle:
    """A handle that names no pool yet; the first capture with it makes the pool."""
    return (0, next(_handles))


def pool_of(handle: PoolHandle) -> MemoryPool:
    """The pool that ``handle`` names, made if there is none; it lives while a graph uses it."""
    with _pools_lock:
        pool = _pools.get(handle)
        if pool is None:
            pool = _pools[handle] = MemoryPool(handle)
        return pool


def bytes_of_all_pools() -> int:
    """Bytes that all pools of the process hold."""
    with _pools_lock:
        pools = list(_pools.values())
    return sum(pool.bytes() for pool in pools)


class _Block:
    """A piece of memory at a fixed address."""

    def __init__(self, size: int) -> None:
        try:
            raw = bytearray(size + _ALIGNMENT)
        except MemoryError as error:
            raise torch.OutOfMemoryError(
                f"the emulated device is out of memory: tried to allocate {size} bytes."
            ) from error
        start = -torch.frombuffer(raw, dtype=torch.uint8).data_ptr() % _ALIGNMENT
        self.size = size
        self.memory = memoryview(raw)[start : start + size]
        self.storage = torch.frombuffer(self.memory, dtype=torch.uint8).untyped_storage()


class MemoryPool:
    """Blocks at fixed addresses, given out best fit first and never split."""

    def __init__(self, handle: PoolHandle) -> None:
        self.handle = handle
        self._blocks: dict[int, _Block] = {}
        self._free: list[_Block] = []
        # Finalizers run on any thread and at any moment, also while this thread holds the lock:
        # they only append here, which needs no lock.
        self._returned: deque[_Block] = deque()
        self._lock = new_lock()

    def bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(size for _, size in self.segments())

    def segments(self) -> list[tuple[int, int]]:
        """Address and bytes of each block."""
        with self._lock:
            return [(address, block.size) for address, block in self._blocks.items()]

    def free_bytes(self) -> int:
        """Bytes of the blocks that are not lent."""
        with self._lock:
            return sum(block.size for block in (*self._free, *self._returned))

    def lend(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A poisoned tensor for the user; its block comes back when the last view of it dies."""
        count = _extent(size, stride)
        if count == 0:
            return torch.empty_strided(size, stride, dtype=dtype, device="cpu")
        block = self._take(count * dtype.itemsize)
        # A storage made from a buffer holds the buffer object, so both die together.
        owner = block.memory[: count * dtype.itemsize]
        weakref.finalize(owner, self._returned.append, block).atexit = False
        storage = torch.frombuffer(owner, dtype=torch.uint8).untyped_storage()
        _poison(_tensor_on(storage, dtype, 0, (count,), (1,)))
        return _tensor_on(storage, dtype, 0, size, stride)

    def internal(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor on the same memory that does not hold the block; ``None`` for other memory."""
        block = self._blocks.get(tensor.untyped_storage().data_ptr())
        if block is None:
            return None
        twin = _tensor_on(
            block.storage, tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()
        )
        # These bits are part of what the bytes mean, and are not in the metadata copied above.
        if tensor.is_conj():
            twin = twin.conj()
        if tensor.is_neg():
            twin = torch._neg_view(twin)
        return twin

    def _take(self, size: int) -> _Block:
        size = -(-size // _ROUNDING) * _ROUNDING
        with self._lock:
            while self._returned:
                self._free.append(self._returned.popleft())
            fitting = [block for block in self._free if block.size >= size]
            if fitting:
                block = min(fitting, key=lambda block: block.size)
                self._free.remove(block)
            else:
                block = _Block(size)
                self._blocks[block.storage.data_ptr()] = block
            return block


def _extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last that a tensor of this shape touches."""
    if 0 in size:
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))


def _tensor_on(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int | torch.SymInt,
    size: Sequence[int],
    stride: Sequence[int],
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, size, stride)


def _poison(tensor: torch.Tensor) -> None:
    """Fill with values that show at once that nothing has run: NaN, or the extreme integer."""
    dtype = tensor.dtype
    if dtype.is_complex:
        tensor.fill_(complex("nan+nanj"))
    elif dtype.is_floating_point:
        tensor.fill_(float("nan"))
    elif dtype is torch.bool:
        tensor.fill_(True)
    else:
        limits = torch.iinfo(dtype)
        tensor.fill_(limits.min or limits.max)
