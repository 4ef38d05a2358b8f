"""Functions that write to tensors of their own: they are captured while no other call goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from ..graph.locks import LOCK, Gate
from .entries import Entries

__all__ = ["Writers"]


class Writers:
    """Lets one thread capture alone, where the function writes to tensors of its own.

    Attributes:
        gate: every first call passes it, until it is known whether the function writes.
        writes: whether the function writes to tensors of its own.
    """

    def __init__(self, entries: Entries) -> None:
        self.gate = Gate()
        self.writes = False
        self._entries = entries

    def passing(self) -> AbstractContextManager[None]:
        """A call goes on inside, and none while another thread captures alone."""
        return self.gate.passing() if self.writes else nullcontext()

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """No other thread calls the function, where it writes; gives whether that is so."""
        if not self.writes:
            yield True
            return
        try:
            with self.gate.alone() as is_free:
                self._entries.pause(True)
                time.sleep(2 * sys.getswitchinterval())  # who is about to replay gets there
                with LOCK:  # and is done
                    pass
                yield is_free
        finally:
            self._entries.pause(False)
