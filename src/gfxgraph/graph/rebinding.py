"""Lets a graph read large inputs where the caller has them, instead of from copies.

What is proven, and how, is told in ``docs/internals/rebinding.md``.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from ..device.nodes import Parameters, Place
from ..errors import CaptureError, GfxGraphError, one_line
from ..record.effects import overwrite, storage_key
from .moved import ALIGNED, REBOUND, Input, NotProven, Rebinding, places_of
from .session import CaptureSession, Failed, other_values

__all__ = ["LEAST_BYTES", "prove"]

LEAST_BYTES = 8 << 20
"""Smaller inputs are copied. The host takes as long to change one node of a graph as the device
takes to copy some MiB (H200, ``benchmarks/results/rebinding.json``)."""

# And so many for each node that reads the input.
BYTES_A_NODE = 4 << 20

# Captures with the inputs where they are: what is never written differs between most of them.
_MOST_CAPTURES = 3


def prove(
    session: CaptureSession, numbers: Collection[int], draws: bool
) -> tuple[Rebinding | None, list[str]]:
    """Find out whether what was captured may read some of its inputs elsewhere.

    Args:
        session: of the capture, whose first replay is done.
        numbers: of the large inputs. The graph was captured with ``keep_graph=True`` for them.
        draws: whether the function draws random numbers.

    Returns:
        The inputs for which that is proven, and a line for each of ``numbers``.

    Raises:
        CaptureError: the driver refuses to take back a change.
    """
    static, copied = session.static_inputs, _copied(session, numbers)
    chosen, made = [n for n in numbers if n not in copied], None
    try:
        made = _proven(session, chosen, draws) if chosen else None
    except _Stuck:
        raise
    except NotProven as error:
        copied |= dict.fromkeys(chosen, str(error))
    except Failed as failed:
        copied |= dict.fromkeys(chosen, f"a second capture failed: {one_line(failed.explained)}")
    except (GfxGraphError, torch.OutOfMemoryError) as error:
        copied |= dict.fromkeys(chosen, one_line(error))
    return made, [_line(static[n], n, copied.get(n)) for n in numbers]


class _Stuck(CaptureError):
    """A graph reads memory that it should not, and cannot be changed."""


def _line(static: torch.Tensor, number: int, copied: str | None) -> str:
    size = static.numel() * static.element_size() >> 20
    how = REBOUND if copied is None else f"copied: {copied}"
    return f"argument {number} ({size} MiB): {how}"


def _copied(session: CaptureSession, numbers: Collection[int]) -> dict[int, str]:
    """Why some of the inputs are copied, whatever the graph does."""
    traced = session.traced
    assert traced is not None
    keys = list(map(storage_key, session.static_inputs))
    written = set(map(storage_key, session.written))
    given_back = set(map(storage_key, traced.last.outputs or ()))
    found = {}
    for n in numbers:
        if traced.root.step is not None or traced.root.graph is None:
            found[n] = "the function is not one graph"
        elif keys[n] in written:
            found[n] = "the function writes to it"
        elif keys[n] in given_back:
            found[n] = "the result shares memory with it"
        elif keys.count(keys[n]) > 1:
            found[n] = "it is given twice"
    return found


def _proven(session: CaptureSession, numbers: list[int], draws: bool) -> Rebinding:
    device, static = session.pool.device, list(session.static_inputs)
    traced = session.traced
    assert traced is not None and traced.root.graph is not None
    graph = traced.root.graph
    nodes = device.parameters(graph)
    elsewhere = list(static)
    inputs = []
    for position, n in enumerate(numbers):
        elsewhere[n] = _elsewhere(static[n])
        start = static[n].data_ptr()
        size = static[n].untyped_storage().nbytes() - (start - _start_of(static[n]))
        inputs.append(Input(position, start, size, elsewhere[n].data_ptr() - start))
    places = _places(session, nodes, static, elsewhere, inputs)
    for position, n in enumerate(numbers):
        used = len({place.node for place in places if place.number == position})
        if not used:
            raise NotProven(f"no node reads argument {n}")
        if inputs[position].size < used * BYTES_A_NODE:
            raise NotProven(f"{used} nodes read argument {n}, and to change them takes longer")
    made = Rebinding([static[n] for n in numbers], device.binder(graph, nodes, places))
    _try(session, made, numbers, elsewhere, draws)
    return made


def _start_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _elsewhere(static: torch.Tensor) -> torch.Tensor:
    """A tensor like ``static``, moved by an odd multiple of :data:`ALIGNED`."""
    with torch.inference_mode(False), torch.no_grad():
        behind = static.data_ptr() - _start_of(static)
        size = static.untyped_storage().nbytes() - behind
        memory = torch.empty(size + 2 * ALIGNED, dtype=torch.uint8, device=static.device)
        first = (static.data_ptr() + ALIGNED - memory.data_ptr()) % (2 * ALIGNED)
        made = torch.empty(0, dtype=static.dtype, device=static.device)
        offset = first // static.element_size()
        return made.set_(memory.untyped_storage(), offset, static.shape, static.stride())


def _places(
    session: CaptureSession,
    nodes: list[Parameters],
    static: list[torch.Tensor],
    elsewhere: list[torch.Tensor],
    inputs: list[Input],
) -> list[Place]:
    """Where the graph has addresses in the inputs.

    Raises:
        NotProven: see :func:`~gfxgraph.graph.moved.places_of`.
    """
    moved = session.captured_again(elsewhere)
    again: list[list[Parameters]] = []
    while True:
        again.append(session.captured_again(static))
        try:
            return places_of(nodes, again, moved, inputs)
        except NotProven:
            if len(again) == _MOST_CAPTURES:
                raise


def _try(
    session: CaptureSession,
    made: Rebinding,
    numbers: list[int],
    elsewhere: list[torch.Tensor],
    draws: bool,
) -> None:
    """Replay with the inputs elsewhere and other values in the static ones: the same comes out.

    Raises:
        NotProven: it does not.
    """
    static = list(session.static_inputs)
    session.rewind()
    expected = session.first_replay(session.written, draws)
    with torch.no_grad():
        for n in numbers:
            overwrite(elsewhere[n], static[n])
            overwrite(static[n], other_values(static[n]))
    session.rewind()
    try:
        if not made.bind({k: elsewhere[n].data_ptr() for k, n in enumerate(numbers)}):
            raise NotProven("the CUDA driver refuses to change the graph")
        with session.with_inputs(elsewhere):
            got = session.first_replay(session.written, draws)
    finally:
        try:
            made.to_static_inputs()
        except CaptureError as error:
            raise _Stuck(str(error), transient=True) from error
        with torch.no_grad():
            for n in numbers:
                overwrite(static[n], elsewhere[n])
    for part, others in zip(got, expected, strict=True):
        if not all(map(_same_bits, part, others)):
            raise NotProven("a replay with its arguments elsewhere gave something else")


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout is not torch.strided or one.is_quantized:
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)
