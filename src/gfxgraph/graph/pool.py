"""The memory pool and the stream that several graphs share."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from ..device import Device, PoolHandle
from ..forking import in_child

__all__ = ["GraphPool"]


class GraphPool:
    """The memory pool and the stream that all graphs of one callable on one device share.

    Since they share memory, their replays must follow one another: when the caller's stream
    changes, the new one waits for the old one.

    Attributes:
        is_replaying: whether one of them is being replayed, from the copy of its inputs until its
            result is made. Read and written by who holds LOCK, which the same thread may take
            again: its own finalizers, signal handlers and ``no_graph`` functions run in between.
    """

    def __init__(self, device: Device, index: int) -> None:
        self.device = device
        self.index = index
        self.stream = device.capture_stream(index)
        self.last_stream: int | None = None
        self.graphs = 0
        self.is_replaying = False
        _graph_pools.add(self)
        #: Bytes of all memory that was made for inputs which graphs share.
        self.input_bytes = 0
        self._inputs: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._peak = self._overhead = 0
        self._moved = False
        self._bytes_elsewhere = 0
        self._elsewhere = 0
        self._segments: list[tuple[int, int]] = []
        self.renew_pool()

    def on_stream(self) -> AbstractContextManager[Any]:
        """Run on the stream of the captures, forked from the current one and joined to it."""
        return self.device.on_stream(self.stream, self.index)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """A graph is replayed inside, by hand; the caller holds LOCK."""
        before, self.is_replaying = self.is_replaying, True
        try:
            yield
        finally:
            self.is_replaying = before

    def pool(self, in_use: bool = False) -> PoolHandle:
        """The pool to capture into, asked under LOCK; one that no graph uses any more is gone.

        Args:
            in_use: whether graphs use it that are not counted yet.
        """
        if self.graphs <= self._elsewhere and not in_use:
            self.renew_pool()
        return self._pool

    def renew_pool(self) -> None:
        """Capture into another pool: torch can no longer use one in which a capture failed."""
        if self.graphs > self._elsewhere:
            self._bytes_elsewhere = self.held_bytes()
        self._pool = self.device.pool_handle()
        #: How many graphs there were then: theirs is an older pool. Where they go first, a pool
        #: is taken for unused that is not, which costs its memory no more than being shared.
        self._elsewhere = self.graphs
        #: Address and bytes of what the pool holds, as far as it was measured.
        self._segments = []

    def pool_bytes(self) -> int:
        """Bytes of the memory pool."""
        return self.device.pool_bytes(self._pool)

    def held_bytes(self) -> int:
        """Bytes of this pool and the older ones, as far as measured; asks nothing of the device.

        Where the graphs of an older pool are gone and others are not, it counts that pool as well.
        """
        if not self.graphs:
            return 0
        return self._bytes_elsewhere + sum(size for _, size in self._segments)

    def measure(self) -> int:
        """Look at the pool; by how many bytes it has grown since the last look."""
        before = sum(size for _, size in self._segments)
        self._segments = self.device.pool_segments(self._pool)
        return sum(size for _, size in self._segments) - before

    def shared_inputs(self, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Static inputs like these, on memory that all graphs of this graph pool use for theirs.

        A call fills them under the lock of its replay, so no graph finds what is another's. Where
        the first is the largest, the others take no memory of their own.
        """
        shared: list[torch.Tensor] = []
        with torch.inference_mode(False), torch.no_grad():
            for n, tensor in enumerate(like):
                first = next(m for m, other in enumerate(like) if other is tensor)
                if first < n or not _is_dense(tensor):
                    shared.append(shared[first] if first < n else tensor)
                    continue
                place = (n, tensor.dtype)
                buffer = self._inputs.get(place)
                if buffer is None or buffer.numel() < tensor.numel():
                    buffer = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
                    self._inputs[place] = buffer
                    self.input_bytes += buffer.untyped_storage().nbytes()
                shared.append(buffer.as_strided(tensor.shape, tensor.stride()))
        return shared

    def release_outputs(self, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The same tensors without a claim on their memory in the pool.

        A later graph of the pool may then have it for its own. The caller copies them under the
        lock of the replay that makes them.
        """
        return [
            self.device.non_owning_alias(self._pool, tensor) if self._holds(tensor) else tensor
            for tensor in outputs
        ]

    def _holds(self, tensor: torch.Tensor) -> bool:
        if tensor.layout is not torch.strided or tensor.device.type != self.device.type:
            return False
        address = tensor.untyped_storage().data_ptr()
        return any(0 <= address - start < size for start, size in self._segments)

    def bytes_for(self, peak_bytes: int, inputs: Sequence[torch.Tensor], exactly: bool) -> int:
        """Bytes that the device would hold more with another graph, judged by those so far.

        Args:
            peak_bytes: what eager execution takes at most for what it makes.
            inputs: the static inputs that it would share.
            exactly: look for what is free in the pool, which takes a while; else: at most.
        """
        free = self.device.free_pool_bytes(self._pool) if exactly and self.graphs else 0
        buffers = [
            max(0, _bytes(tensor) - _bytes(self._inputs.get((n, tensor.dtype))))
            for n, tensor in enumerate(inputs)
        ]
        return max(0, peak_bytes + self._overhead - free) + sum(buffers)

    def update_overhead(self, peak_bytes: int) -> None:
        """A graph was captured that takes so much in eager execution: the rest is workspaces."""
        if peak_bytes > self._peak:
            self._peak = peak_bytes
            self._overhead = max(0, sum(size for _, size in self._segments) - peak_bytes)

    def sync_to(self, stream: int) -> None:
        """Let ``stream``, the current one, wait for the stream that was used before.

        The caller holds LOCK until its work is launched: else another stream would wait for this
        one in vain.
        """
        if self.last_stream is not None and self.last_stream != stream:
            self.device.wait_stream_id(self.index, self.last_stream)
            self._moved = True
        self.last_stream = stream

    def release(self, static_inputs: list[torch.Tensor]) -> None:
        """A graph is gone, and its static inputs with it; the caller holds LOCK."""
        self.graphs -= 1
        if self._moved and self.last_stream is not None:
            # They were made on one stream and used on another: not to be used again before that.
            self.device.record_use(static_inputs, self.index, self.last_stream)
        if self.last_stream is not None and not self.device.is_capturing():
            # Nor are the constants of its recording, which were made on ours.
            with self.device.set_stream(self.stream):
                self.device.wait_stream_id(self.index, self.last_stream)


_graph_pools: weakref.WeakSet[GraphPool] = weakref.WeakSet()


def _forget() -> None:
    """No replay is under way in a child of fork()."""
    for graph_pool in list(_graph_pools):
        graph_pool.is_replaying = False


in_child(_forget)


def _is_dense(tensor: torch.Tensor) -> bool:
    return _bytes(tensor) == tensor.untyped_storage().nbytes()


def _bytes(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel() * tensor.element_size()
