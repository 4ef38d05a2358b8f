"""``enable(validate=True)``: replays that are compared with eager execution, some of them.

A compared call replays first, and that is taken back: what a graph writes is known. Then the
function runs for its caller. So whatever it does, it does once, and what is left behind is that of
eager execution, also where the replay is right.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..errors import ArgumentError
from ..forking import new_lock
from ..graph.compare import Tolerance, difference
from ..graph.device_state import DeviceState
from ..graph.host_state import default_generators
from ..graph.locks import LOCK, inside_gfxgraph, turn_if_free
from ..interpose.interrupts import own_handlers
from .entry import Entry, Refusal
from .replay import NO_MATCH, FastPath
from .signature import Objects, flatten

__all__ = [
    "compare",
    "compare_every",
    "differs",
    "due",
    "every",
    "fast_path",
    "holders",
    "is_due",
    "register",
    "take",
]

# Seconds to wait for another thread's capture before the comparison is left to a later replay.
_PATIENCE = 5.0


class Holder(Protocol):
    """An owner of graphs, whose calls take another way while they are compared."""

    def validation_changed(self) -> None:
        """Comparing was turned on or off."""


_lock = new_lock()
_holders: weakref.WeakSet[Holder] = weakref.WeakSet()
_every = 0


def every() -> int:
    """How often replays are compared; 0: never."""
    return _every


def register(holder: Holder) -> None:
    """Tell ``holder`` when comparing is turned on or off, as long as it lives."""
    with _lock:
        _holders.add(holder)


def holders() -> list[Holder]:
    """All that are told."""
    with _lock:
        return list(_holders)


def compare_every(number: int) -> None:
    """Compare the first replay of each graph and every one of ``number``; 0: none."""
    global _every
    with _lock:
        changed, _every = bool(_every) != bool(number), number
    for holder in holders() if changed else ():
        holder.validation_changed()


def due(entry: Entry) -> bool:
    """Whether the next replay of ``entry`` is one to compare: its first, and every Nth."""
    return is_due(entry.replays, entry.compared_at)


def is_due(replays: int, compared_at: int | None) -> bool:
    """Whether to compare the next one after so many replays, the last compared being that."""
    number = _every
    if not number:
        return False
    return compared_at is None or (replays + 1) // number > compared_at // number


def fast_path(entry: Entry | Refusal) -> FastPath:
    """The fast path of ``entry``, without the calls that are to be compared."""
    if not _every or isinstance(entry, Refusal):
        return entry.fast_path
    return functools.partial(_unless_due, entry)


def _unless_due(entry: Entry, fn: Any, args: Any, kwargs: Any) -> Any:
    return NO_MATCH if due(entry) else entry.fast_path(fn, args, kwargs)


@dataclass(frozen=True)
class Comparison:
    """A call that was answered by both.

    Attributes:
        result: what the replay gave; where it differs, or stores something in its arguments, what
            eager execution gave.
        difference: what differs; ``None``: nothing.
    """

    result: Any
    difference: str | None


def compare(
    entry: Entry,
    leaves: Sequence[torch.Tensor],
    tolerance: Tolerance,
    replay: Callable[[], Any],
    run: Callable[[], Any],
) -> Comparison | None:
    """Replay, take that back, run for the caller, and compare.

    Other threads wait with their captures until it is done, and with replays until the replay was
    taken back; where the function has state, until it has run.

    Args:
        entry: the graph.
        leaves: the tensors of the call.
        tolerance: see :func:`~gfxgraph.graph.compare.difference`; ``False`` stands for ``True``.
        replay: gives the result of a replay, or ``NO_MATCH`` where that could not be.
        run: calls the function.

    Returns:
        ``None``: it could not be compared, and nothing was done.
    """
    # The function runs for its caller inside.
    with turn_if_free(all_leave=False) as is_ours, ExitStack() as turns:
        captured = entry.captured
        if captured is None or not is_ours:
            return None
        alone = ExitStack()
        turns.enter_context(alone)
        if not take(alone, LOCK, _PATIENCE) or entry.captured is not captured:
            return None
        steps = [segment.step for segment in captured.root.everything() if segment.step]
        is_done_twice = any(step.point.rule in ("collective", "no-graph") for step in steps)
        if is_done_twice or captured.collectives:
            entry.compared_at = entry.replays + 1
            return None  # what the host does between the graphs would be done twice
        given = [leaves[n] for n in entry.written_inputs]
        state = _State(entry, [*captured.regions, *given])
        result = replay()
        if result is NO_MATCH:
            return None
        entry.compared_at = entry.replays
        with torch.no_grad():
            outputs, spec = flatten(result, Objects() if entry.stores else None)
            got = [output.clone() for output in outputs]
            after = state.now()
        state.put_back()
        if not state.is_any:
            alone.close()
        with inside_gfxgraph(), own_handlers():
            expected = run()
        with torch.no_grad():
            allowed = True if tolerance is False else tolerance
            objects = Objects() if entry.stores else None
            found = _result_differs(got, spec, expected, objects, allowed, captured.slack)
            found = found or state.differs(after, allowed, captured.slack)
        if found is None:
            entry.in_doubt = False
            return Comparison(expected if entry.stores else result, None)
        entry.uncount()
        if state.is_any and not entry.in_doubt and threading.active_count() > 1:
            # Another thread may have drawn or written meanwhile; the next call shows it.
            entry.in_doubt, entry.compared_at = True, None
            found = None
    return Comparison(expected, found)


def take(turns: ExitStack, lock: Any, patience: float = 0.0) -> bool:
    """Hold ``lock`` until ``turns`` ends; whether it could be had within so many seconds."""
    taken = lock.acquire(timeout=patience) if patience else lock.acquire(blocking=False)
    if taken:
        turns.callback(lock.release)
    return bool(taken)


class _State:
    """The state that a replay and a run may change: memory outside, and generators."""

    def __init__(self, entry: Entry, regions: list[torch.Tensor]) -> None:
        captured = entry.captured
        assert captured is not None
        generators = list(captured.generators)
        # Of a tree nobody knows whether another path than the last draws.
        if captured.draws_random_numbers or captured.root.step is not None:
            graph_pool = entry.graph_pool
            generators += default_generators(graph_pool.device, graph_pool.index)
        # Compiled code may draw the same numbers in another order.
        self._compares_generators = not captured.slack
        self._state = DeviceState(regions, generators)
        self.is_any = bool(regions or generators)
        self.now = self._state.now
        with torch.no_grad():
            self._before = self.now()

    def put_back(self) -> None:
        """Undo what was changed since."""
        with torch.no_grad():
            self._state.put_back(*self._before)

    def differs(
        self,
        after: tuple[list[torch.Tensor], list[torch.Tensor]],
        tolerance: Tolerance,
        least: float,
    ) -> str | None:
        """How what is there now differs from what a replay left."""
        now, random = self.now()
        for replayed, region in zip(after[0], now, strict=True):
            found = difference(replayed, region, tolerance, least)
            if found is not None:
                return f"a tensor of shape {tuple(region.shape)} that it writes: {found}"
        if self._compares_generators and not all(map(torch.equal, after[1], random)):
            return "the state of a random generator"
        return None


def _result_differs(
    got: list[torch.Tensor],
    spec: Any,
    expected: Any,
    objects: Objects | None,
    tolerance: Tolerance,
    least: float,
) -> str | None:
    try:
        tensors, expected_spec = flatten(expected, objects)
    except ArgumentError as error:
        return f"the result: {error}"
    if spec != expected_spec:
        return "the structure or a plain value of the result"
    return differs(got, tensors, tolerance, least)


def differs(
    got: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    tolerance: Tolerance,
    least: float = 0.0,
) -> str | None:
    """How the tensors of two results differ."""
    for n, pair in enumerate(zip(got, expected, strict=True)):
        found = difference(*pair, tolerance, least)
        if found is not None:
            return f"output {n}: {found}"
    return None
