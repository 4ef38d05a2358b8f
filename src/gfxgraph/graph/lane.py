"""The memory pool and the stream that several graphs share."""

from __future__ import annotations

import torch

from ..device import Device, PoolHandle

__all__ = ["Lane"]


class Lane:
    """The memory pool and the stream that all graphs of one callable on one device share.

    Since they share memory, their replays must follow one another: when the caller's stream
    changes, the new one waits for the old one.
    """

    def __init__(self, device: Device, index: int) -> None:
        self.device = device
        self.index = index
        self.stream = device.capture_stream(index)
        self.last_stream: int | None = None
        self.graphs = 0
        self._moved = False
        self.renew_pool()

    def pool(self) -> PoolHandle:
        """The pool to capture into, asked under LOCK; one that no graph uses any more is gone."""
        if not self.graphs:
            self.renew_pool()
        return self._pool

    def renew_pool(self) -> None:
        """Capture into another pool: torch can no longer use one in which a capture failed."""
        self._pool = self.device.pool_handle()

    def follow(self, stream: int) -> None:
        """Let ``stream``, the current one, wait for the stream that was used before."""
        if self.last_stream is not None and self.last_stream != stream:
            self.device.wait_stream_id(self.index, self.last_stream)
            self._moved = True
        self.last_stream = stream

    def release(self, statics: list[torch.Tensor]) -> None:
        """A graph is gone, and its static inputs with it."""
        self.graphs -= 1
        if self._moved and self.last_stream is not None:
            # They were made on one stream and used on another: not to be used again before that.
            self.device.record_use(statics, self.index, self.last_stream)
