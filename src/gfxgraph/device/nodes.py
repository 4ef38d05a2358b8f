"""A node of a graph, as a device describes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Node", "NodesOfCapture"]


@dataclass(frozen=True)
class Node:
    """A node of a graph.

    Attributes:
        type: such as ``"kernel"``, ``"memcpy"``, ``"memset"``, ``"host"``, ``"child graph"``; on
            the emulated device ``"operator"``.
        name: of the kernel as it was compiled, or of the operator; else ``""``.
        after: positions of the nodes that it waits for, in the graph that it belongs to.
        details: what is known beside that, in values that JSON has.
        children: the nodes of a child graph.
        handle: tells it from the other nodes of the process; of the driver's.
    """

    type: str
    name: str
    after: tuple[int, ...]
    details: dict[str, Any]
    children: tuple[Node, ...] = ()
    handle: int = field(default=0, repr=False)


class NodesOfCapture(Protocol):
    """Looks at the nodes of a capture that is under way."""

    def count(self) -> int:
        """How many there are."""

    def newest(self) -> Sequence[int]:
        """Handles of those that the next node of the current stream will wait for."""

    def read(self) -> list[Node]:
        """All of them, in the order of the driver."""
