"""One key of a graphed callable: a graph with its static inputs and outputs, or a refusal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch

from ..device import Device, PoolHandle
from ..graph.capture import LOCK, CapturedGraph
from ..graph.guard import Guard
from ..record.effects import storage_key
from .signature import MISS, Spec, builder

__all__ = ["Entry", "GraphRow", "Lane", "Refusal", "make_static", "miss", "shares_memory"]

Attempt = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""A function of the callable, its positional and its keyword arguments: the result or MISS."""


# Seconds to wait for another thread's capture before a call runs eagerly instead.
_PATIENCE = 5.0


# From so many inputs on it pays to keep autograd out of the copies: entering its guard costs
# 0.5 us, and autograd looks at each tensor (measured on an H200 with torch 2.11).
_MANY = 16


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


@dataclass(frozen=True)
class GraphRow:
    """A row of :class:`~gfxgraph.call.graphed.GraphedStats`.

    Attributes:
        key: shapes and dtypes of the tensors, and the other arguments.
        pool_bytes: bytes by which its capture made the memory pool grow.
        input_bytes: bytes of its static inputs.
        replays: how often it was replayed.
    """

    key: str
    pool_bytes: int
    input_bytes: int
    replays: int


class Refusal:
    """A key that runs eagerly, and why.

    Attributes:
        reason: why.
        kind: the class of the error that said so. Not the error itself: its traceback holds on to
            every tensor of the failed run.
        attempt: runs a call that fits the key eagerly.
        used: when it was last used, for the order of release.
    """

    def __init__(self, reason: str, kind: type[Exception], attempt: Attempt) -> None:
        self.reason = reason
        self.kind = kind
        self.attempt = attempt
        self.used = 0


class Entry:
    """A captured graph with its static inputs and outputs.

    Everything that can be done before a call is done here: which tensors are copied where, how the
    result is built, what is watched. A call checks, copies, launches and builds.
    """

    def __init__(
        self,
        key: str,
        captured: CapturedGraph,
        lane: Lane,
        statics: list[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        out_spec: Spec,
        own_outputs: bool,
    ) -> None:
        self.used = 0
        self._key = key
        self._lane = lane
        self._captured: CapturedGraph | None = captured
        self._counter = captured.graph.counter
        self._statics = statics
        self._guard = captured.guard
        self._input_bytes = sum(s.numel() * s.element_size() for s in statics)
        self._copy = _copier(statics, leaves)
        with LOCK:
            lane.graphs += 1

        inputs = set(map(storage_key, statics))
        # Memory that a call's arguments may not share, because the graph writes to one of the two.
        self._touched = captured.written - inputs
        if captured.written & inputs:
            self._touched = self._touched | captured.outside

        def hand_out(output: torch.Tensor) -> Any:
            if storage_key(output) in inputs:  # the next call's copies would overwrite each other
                return output.clone
            # What lives outside (a cache that the function returns) is itself in eager, too.
            if not own_outputs or storage_key(output) in captured.outside:
                return output
            return output.clone

        self._build: Callable[[], Any] | None = builder(
            out_spec, [hand_out(o) for o in captured.outputs]
        )
        write_back = [
            (n, static)
            for n, static in enumerate(statics)
            if storage_key(static) in captured.written
        ]
        #: Replays for tensors that fit. A closure, since it is the path of every call and looks
        #: up each of these names in one step.
        self.replay = self._make_replay(captured, write_back)
        #: Recognises a call and replays; whoever keeps this entry sets it.
        self.attempt: Attempt = miss

    def _make_replay(
        self, captured: CapturedGraph, write_back: list[tuple[int, torch.Tensor]]
    ) -> Callable[..., Any]:
        lane, index, counter = self._lane, self._lane.index, self._counter
        stream_id, is_capturing = lane.device.stream_id, lane.device.is_capturing
        guard = self._guard
        launch, memory_holds = captured.graph.launch, guard.memory_holds
        # A replay that changes nothing but its own outputs can be thrown away, so it may be
        # launched before it is known that every weight is still in its place.
        look_first = bool(captured.written) or captured.draws_random_numbers
        touched = self._touched

        below_autograd = getattr(torch._C, "_AutoDispatchBelowAutograd", None)  # private to torch
        if len(self._statics) < _MANY:
            below_autograd = None

        def replay(fn: Any, args: Any, kwargs: Any, leaves: Sequence[torch.Tensor]) -> Any:
            # Never for ever: the thread that captures may wait for this one.
            if not LOCK.acquire(False) and not LOCK.acquire(True, _PATIENCE):
                return MISS
            scope = None
            try:
                if below_autograd is not None:
                    scope = below_autograd()
                    scope.__enter__()
                build = self._build
                if build is None:  # released meanwhile
                    return MISS
                stream = stream_id(index)
                if stream and is_capturing():
                    return MISS
                if stream != lane.last_stream:
                    lane.follow(stream)
                if look_first:
                    if not guard.places_hold() and guard.changes():
                        return MISS
                    if (touched and self.overlaps(leaves)) or (
                        write_back and shares_memory(leaves)
                    ):
                        return MISS
                self._copy(leaves)
                # Asked while the device copies: a graph may not be launched onto memory that is
                # gone. That a weight was replaced by another may be found out after the launch.
                if memory_holds and not memory_holds():
                    return MISS
                launch()
                if write_back:
                    with torch.no_grad():
                        for n, static in write_back:
                            leaves[n].copy_(static)
                # Asked while the device replays.
                if not look_first and not guard.places_hold() and guard.changes():
                    return MISS
                counter.replays += 1
                return build()
            finally:
                if scope is not None:
                    scope.__exit__(None, None, None)
                LOCK.release()

        return replay

    def build(self) -> Any:
        """The result as it is now."""
        return None if self._build is None else self._build()

    def overlaps(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Whether one of ``leaves`` shares memory that the graph writes, or writes to it."""
        return any(storage_key(leaf) in self._touched for leaf in leaves)

    def stale(self) -> list[str]:
        """What was rebound or moved since the capture.

        Raises:
            DeadTensorError: see ``Guard.check_alive``.
        """
        self._guard.check_alive()
        return self._guard.changes()

    def static_inputs(self) -> list[torch.Tensor]:
        """The static inputs; from now on a call may pass them, and they are not copied."""
        statics = self._statics

        def copy_others(leaves: Sequence[torch.Tensor]) -> None:
            others = [(s, leaf) for s, leaf in zip(statics, leaves, strict=True) if leaf is not s]
            ours = set(map(storage_key, statics))
            # A static input that stands in another's place is read before it is written.
            others = [
                (s, leaf.clone() if storage_key(leaf) in ours else leaf) for s, leaf in others
            ]
            for static, leaf in others:
                _copy_one(static, leaf)

        self._copy = copy_others
        return statics

    def row(self) -> GraphRow:
        """What ``stats()`` shows of it."""
        pool_bytes = 0 if self._captured is None else self._captured.pool_bytes
        return GraphRow(self._key, pool_bytes, self._input_bytes, self._counter.replays)

    def release(self) -> int:
        """Let go of the graph and its memory.

        Returns:
            How often it was replayed.
        """
        with LOCK:
            if self._captured is not None:
                self._captured.graph.reset()
                self._lane.release(self._statics)
            self._captured = self._build = None
            self._statics = []
            self._guard = Guard({}, ())
            self._copy = _nothing
            self.attempt = self.replay = miss
        return self._counter.replays


def miss(*args: Any) -> Any:
    """The attempt of what cannot answer any call."""
    return MISS


def shares_memory(leaves: Sequence[torch.Tensor]) -> bool:
    """Whether two of ``leaves`` live on one storage."""
    filled = [storage_key(leaf) for leaf in leaves if leaf.numel()]
    return len(set(filled)) < len(filled)


def make_static(leaf: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A static input for ``leaf``: same shape and dtype, on ``device``, with what it holds now.

    Strides are kept where the tensor fills its memory once (so channels-last stays channels-last);
    an expanded or sliced tensor becomes dense.
    """
    # Never an inference tensor: it is written in whatever mode the caller is in.
    with torch.inference_mode(False), torch.no_grad():
        static = torch.empty_like(leaf, device=device, requires_grad=False)
        return static.copy_(leaf)


def _copy_one(static: torch.Tensor, leaf: torch.Tensor) -> None:
    # From pageable memory the driver has taken the data when the call returns, whether we wait
    # or not. From pinned memory it has not, so wait, as eager `.to(device)` does.
    with torch.no_grad():
        static.copy_(leaf, non_blocking=not leaf.is_cuda and not leaf.is_pinned())


def _nothing(leaves: Sequence[torch.Tensor]) -> None:
    pass


def _copier(
    statics: list[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> Callable[[Sequence[torch.Tensor]], None]:
    """A function that copies tensors like ``leaves`` into ``statics``, one launch a dtype."""
    groups: dict[torch.dtype, list[int]] = {}
    alone: list[int] = []
    for n, (static, leaf) in enumerate(zip(statics, leaves, strict=True)):
        if not leaf.numel():
            continue
        if leaf.device == static.device and not leaf.requires_grad:
            groups.setdefault(static.dtype, []).append(n)
        else:
            alone.append(n)
    if not groups and not alone:
        return _nothing
    if not alone and len(groups) == 1 and len(next(iter(groups.values()))) == len(statics):
        return functools.partial(torch._foreach_copy_, statics)

    picks = [
        ([statics[n] for n in members], itemgetter(*members, members[0]))
        for members in groups.values()
    ]

    def copy_groups(sources: Sequence[torch.Tensor]) -> None:
        for targets, pick in picks:
            # itemgetter gives a tuple from two names on, hence the one too many
            torch._foreach_copy_(targets, pick(sources)[:-1])
        for n in alone:
            _copy_one(statics[n], sources[n])

    return copy_groups
