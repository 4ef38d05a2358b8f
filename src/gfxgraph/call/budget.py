"""Whether the device has room for one more graph: what ``GFXGRAPH_VRAM_CAP`` allows."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Protocol

from ..errors import MemoryCapError
from ..graph.pool import GraphPool
from ..settings import from_environment
from ..stats import log

__all__ = ["admit", "register"]

_MIB = 2**20


class _Holder(Protocol):
    name: str

    def release_unused(self, all_or_none: bool) -> int: ...


_holders: weakref.WeakSet[_Holder] = weakref.WeakSet()


def register(holder: _Holder) -> None:
    """Ask ``holder`` to release graphs that were never replayed when another one needs room."""
    _holders.add(holder)


def admit(
    graph_pool: GraphPool,
    bytes_needed: Callable[[bool], int],
    allocated_before: int,
    holder: _Holder,
) -> None:
    """Make sure that another graph stays within the cap; unused graphs make room.

    Args:
        graph pool: where the next graph is captured.
        bytes_needed: what the device would hold more: at most, or exactly.
        allocated_before: what tensors held before the preparations, which will be gone again.
        holder: whose graph it is; its own unused graphs go first.

    Raises:
        MemoryCapError: there is no room.
    """
    cap = from_environment().vram_cap
    device, index = graph_pool.device, graph_pool.index

    def in_use() -> int:
        temporary = max(0, device.allocated(index) - allocated_before)
        return device.memory(index)[0] - temporary

    total = device.memory(index)[1]
    room = int(cap * total) - in_use()
    if bytes_needed(False) <= room or bytes_needed(True) <= room:
        return

    def missing() -> int:
        more = bytes_needed(True)  # none where the pool has room, whoever is over the cap
        return more and in_use() - device.cached(index) + more - int(cap * total)

    device.release_cached_memory()
    others = [other for other in _holders if other is not holder]
    for candidate in (holder, *others):
        if missing() <= 0:
            return
        # Memory of a pool is free when its last graph goes, so one of another's is no use.
        released = candidate.release_unused(all_or_none=candidate is not holder)
        if released:
            log(logging.INFO, "released_unused", of=candidate.name, graphs=released)
            device.release_cached_memory()
    if missing() > 0:
        more, used = bytes_needed(True), in_use() - device.cached(index)
        raise MemoryCapError(
            f"no room for its graph: it would take about {more / _MIB:.1f} MiB more, and "
            f"{used / _MIB:.1f} MiB of the {cap * total / _MIB:.1f} MiB are in use that "
            f"GFXGRAPH_VRAM_CAP={cap:g} allows. Raise the variable, or use fewer or smaller shapes."
        )
