"""A node of a graph, as a device describes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

__all__ = ["Binder", "Node", "NodesOfCapture", "Parameters", "Place"]


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


@dataclass(frozen=True)
class Parameters:
    """What a node of a graph was given.

    Attributes:
        node: the node.
        data: its parameters as bytes, one behind the other, each from a multiple of 8 on.
        sizes: bytes of each.
        is_buffer: whether the kernel was given all of them as one buffer.
    """

    node: Node
    data: bytes
    sizes: tuple[int, ...] = ()
    is_buffer: bool = False


class Place(NamedTuple):
    """A place in the parameters of a node that holds an address in an input of the graph.

    Attributes:
        node: the position of the node.
        offset: where it is in ``data`` of its :class:`Parameters`, in bytes.
        number: of the input.
        distance: bytes from the beginning of the input to the address.
    """

    node: int
    offset: int
    number: int
    distance: int


class Binder(Protocol):
    """Lets later launches of a graph read its inputs elsewhere."""

    def __call__(self, addresses: dict[int, int]) -> bool:
        """Put the addresses of all inputs, by number, where the graph has them.

        Launches that are already under way or wait for their turn are not affected.

        Returns:
            Whether that worked; else nobody knows where the graph would read.
        """


class NodesOfCapture(Protocol):
    """Looks at the nodes of a capture that is under way."""

    def count(self) -> int:
        """How many there are."""

    def newest(self) -> Sequence[int]:
        """Handles of those that the next node of the current stream will wait for."""

    def read(self) -> list[Node]:
        """All of them, in the order of the driver."""
