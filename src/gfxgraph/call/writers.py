"""Functions that write to tensors of their own: they are captured while no other call goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from ..graph.locks import LOCK, Gate, is_only_thread
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
        self._is_alone = False
        self._entries = entries

    def passing(self) -> AbstractContextManager[None]:
        """A call goes on inside, and none while another thread captures alone."""
        waits = self.writes or self._is_alone
        return self.gate.passing() if waits else nullcontext()

    @contextmanager
    def alone(self, always: bool = False) -> Iterator[bool]:
        """No other thread calls the function, where it writes; gives whether that is so.

        ``always``: it may write, since no call of it was seen yet.
        """
        if not self.writes and not always:
            yield True
            return
        self._is_alone = True
        try:
            with self.gate.alone() as is_free:
                self._entries.pause(True)
                if not is_only_thread():
                    time.sleep(2 * sys.getswitchinterval())  # who is about to replay gets there
                    with LOCK:  # and is done
                        pass
                yield is_free
        finally:
            self._is_alone = False
            self._entries.pause(False)
