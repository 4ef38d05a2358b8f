"""Finds the addresses of inputs in a graph, by what changes when the inputs lie elsewhere.

A graph is captured again with each of some inputs at another address, and once more with all of
them where they were. An 8-byte word of a node's parameters that points into an input, and that has
moved exactly as far as the input did, is an address in that input. Nothing else may have changed,
but for what also changes when the inputs stay: addresses in the memory pool, and the padding of
structures, which nobody writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..device.nodes import Binder, Parameters, Place
from ..errors import CaptureError

__all__ = ["ALIGNED", "REBOUND", "Input", "NotProven", "Rebinding", "places_of"]

REBOUND = "rebound, not copied"
"""What the report of a graph says of an argument."""

ALIGNED = 512
"""Bytes. Kernels are chosen by alignment, so an input may only move by a multiple of this; torch's
allocator aligns to as much. An input moves by an odd multiple when addresses are looked for, which
shows a kernel that was given an address rounded to more."""

_WORD, _HALF = 8, 4
_FREE_OF_MEMORY = frozenset(("empty", "event wait", "event record"))
_KNOWN = frozenset(("kernel", "memcpy", "memset"))


class NotProven(Exception):
    """Why the inputs of a graph may not lie elsewhere."""


@dataclass(frozen=True)
class Rebinding:
    """The inputs that a graph can read elsewhere.

    Attributes:
        inputs: the static inputs that it reads otherwise.
        bind: takes an address for each of them, by position in ``inputs``.
    """

    inputs: list[torch.Tensor]
    bind: Binder

    def to_static_inputs(self) -> None:
        """Let the graph read its static inputs; the caller holds LOCK.

        Raises:
            CaptureError: the driver refuses.
        """
        if not self.bind({n: static.data_ptr() for n, static in enumerate(self.inputs)}):
            raise CaptureError(
                "the CUDA driver refuses to let a graph read its static inputs again",
                transient=True,
            )


@dataclass(frozen=True)
class Input:
    """An input that a graph was captured with at two addresses.

    Attributes:
        number: of the input.
        start: where it was in the graph itself.
        size: of its memory, in bytes.
        distance: how far it was moved, in bytes.
    """

    number: int
    start: int
    size: int
    distance: int


def places_of(
    graph: Sequence[Parameters],
    again: Sequence[Sequence[Parameters]],
    moved: Sequence[Parameters],
    inputs: Sequence[Input],
) -> list[Place]:
    """The places in the parameters of ``graph`` that hold addresses in ``inputs``.

    Args:
        graph: the parameters of its nodes.
        again: those of other captures of the same, in memory pools of their own.
        moved: those of a capture with each input moved by its distance.
        inputs: the inputs.

    Raises:
        NotProven: something depends on where the inputs lie, and it is not known how.
    """
    found: list[Place] = []
    for other in (*again, moved):
        if len(other) != len(graph):
            raise NotProven("two captures of it differ in their nodes")
    for position, one in enumerate(graph):
        others = [other[position] for other in again]
        for twin in (*others, moved[position]):
            if _all_but_data(twin) != _all_but_data(one):
                raise NotProven(f"two captures of it differ at {_name(one)}")
        _require_known(one)
        found += _places_of_node(position, one, others, moved[position], inputs)
    return found


def _all_but_data(one: Parameters) -> Parameters:
    return replace(one, node=replace(one.node, handle=0), data=bytes(len(one.data)))


def _name(one: Parameters) -> str:
    return f"a {one.node.type} node {one.node.name[:80]}".rstrip()


def _require_known(one: Parameters) -> None:
    type, details = one.node.type, one.node.details
    if type in _FREE_OF_MEMORY:
        return
    if type not in _KNOWN:
        raise NotProven(f"it has a {type} node, whose memory is not known")
    # What the host has there may be addresses.
    if type == "memcpy" and {details["from"], details["to"]} != {"device"}:
        raise NotProven(f"it copies from {details['from']} to {details['to']} memory")


def _places_of_node(
    position: int,
    one: Parameters,
    again: Sequence[Parameters],
    moved: Parameters,
    inputs: Sequence[Input],
) -> list[Place]:
    found: list[Place] = []
    for at in range(0, len(one.data), _WORD):
        word, after = _number(one, at), _number(moved, at)
        near = next((i for i in inputs if 0 <= word - i.start <= i.size), None)
        if word == after:
            if near is not None and word < near.start + near.size:
                raise NotProven(f"an address in an input did not move with it, in {_name(one)}")
        elif near is not None and after - word == near.distance:
            if one.node.type == "memset":
                raise NotProven("it writes to that input")
            found.append(Place(position, at, near.number, word - near.start))
        else:
            for half in (at, at + _HALF):
                end = half + _HALF
                if one.data[half:end] != moved.data[half:end] and not any(
                    one.data[half:end] != other.data[half:end] for other in again
                ):
                    raise NotProven(
                        "something other than an address depends on where an input lies, in "
                        f"{_name(one)}"
                    )
    return found


def _number(one: Parameters, at: int) -> int:
    return int.from_bytes(one.data[at : at + _WORD], "little")
