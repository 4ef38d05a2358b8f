"""The capture itself: as it is, following a recording, or in several graphs."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from ..compiling.rng import tell_if_compiled
from ..device import Device, PoolHandle
from ..errors import CaptureError
from ..interpose.cuda_calls import listening
from ..interpose.dynamo import frames_compiled
from ..interpose.source import users_line_of
from ..record.explain import explain
from ..record.recorder import Recording
from ..record.rules import RULES
from ..stats import log
from .locks import LOCK, no_garbage_collection, release_waiting
from .native import NativeGraph
from .segments import Failure, Graft, Segment, Tracer
from .warm_up import Run, WarmedUp, one_line, other_inputs, record_run, report_line

__all__ = [
    "Failed",
    "Traced",
    "capture_with_fallbacks",
    "trace",
]

# Operators that may become branches because a capture failed at them, before it is given up.
_MAX_FORCED = 8


@dataclass
class Traced:
    """A path that was captured, and how to undo it.

    ``launch_ns`` is what the host took to launch the newest :func:`~.first_replay.first_replay`; 0:
    it was not timed.
    """

    root: Segment
    last: Segment
    graft: Graft | None
    pool_bytes: int
    launch_ns: int = 0

    def undo(self) -> None:
        """Release it."""
        (self.root if self.graft is None else self.graft.child).reset()


def capture_with_fallbacks(
    this: Run, eager: WarmedUp, branching: bool, root: Segment | None
) -> Traced:
    """Capture as it is, or by folding and branching; an operator that fails becomes a branch.

    Args:
        this: what to capture.
        eager: what warming up found.
        branching: whether it may become several graphs.
        root: the tree so far, for another path.

    Raises:
        CaptureError: it cannot be captured.
    """
    # The emulated device captures under modes, where nothing runs compiled.
    if this.graph_pool.device.kind != "emulated" and (this.compiled or eager.recording.compiles):
        try:
            return trace_compiled(this, eager)
        except Failed as failed:
            this.graph_pool.renew_pool()
            if this.compiled or isinstance(failed.__cause__, torch.OutOfMemoryError):
                raise failed.explained from failed.__cause__
            this.rewind()
            this.not_compiled = str(failed.explained)
    first: Failed | None = None
    for _ in range(_MAX_FORCED):
        breaks = eager.recording.breaks()
        if breaks and not branching:
            raise explain(
                breaks[0].point.rule, breaks[0].point.what, breaks[0].where, 'branching="off".'
            )
        try:
            for only in _lighter_ways(this, eager.recording) if root is None else ():
                try:
                    return trace(this, None if only is None else eager, only=only)
                except Failed as failed:
                    if failed.cause_is_final and not only:
                        raise
                    log(logging.DEBUG, "captured_again", because=str(failed.explained))
                    this.graph_pool.renew_pool()
                    this.rewind()
            return trace(this, eager, root)
        except Failed as failed:
            this.graph_pool.renew_pool()
            # What is cut at one operator more goes another way than the tree so far: no reason.
            first = failed if first is None or root is None else first
            if failed.operator is None or not branching or failed.operator in this.forced:
                raise first.explained from first.__cause__
            this.forced.add(failed.operator)
        this.rewind()
        this.inputs[:] = this.given
        with this.graph_pool.device.on_stream(this.graph_pool.stream, this.graph_pool.index):
            eager.recording, _ = record_run(this, eager.varying)
    raise CaptureError(f"these operators cannot be captured: {', '.join(sorted(this.forced))}")


def trace_compiled(this: Run, eager: WarmedUp) -> Traced:
    """Capture what is compiled, which reads what it read in the last warm-up run."""
    for event in eager.recording.breaks():
        cut = f"the host takes over between two graphs: {report_line(event)}"
        raise Failed(None, CaptureError(cut), final=True)

    def function() -> list[torch.Tensor]:
        with eager.reads.repeated():
            return this.function()

    return trace(dataclasses.replace(this, function=function), None)


def _lighter_ways(this: Run, recording: Recording) -> Iterator[frozenset[int] | None]:
    """In which calls to see operations in a capture that may do; ``None``: as it is."""
    if recording.breaks():
        return
    if not recording.events and not this.not_compiled:
        yield None
    calls = recording.calls_that_fold()
    if calls:
        yield calls


class Failed(Exception):
    """A capture failed: at which operator, and the error that says so."""

    def __init__(self, operator: str | None, explained: CaptureError, final: bool) -> None:
        super().__init__(operator)
        self.operator = operator
        self.explained = explained
        self.cause_is_final = final


def trace(
    this: Run,
    eager: WarmedUp | None,
    root: Segment | None = None,
    only: frozenset[int] | None = None,
    listen: bool = True,
) -> Traced:
    """Capture, following the recording of ``eager``; as it is, without one.

    Args:
        this: what to capture.
        eager: what warming up found.
        root: the tree so far.
        only: the calls in which to see operations; the others run as fast as without us.
        listen: without, calls of the host that no graph can hold are let through, and fail.
    """
    this.rewind()
    graph_pool, device = this.graph_pool, this.graph_pool.device
    events = [] if eager is None else eager.recording.events
    # Nothing on the device reads the static inputs now. What found a way from there to the host
    # that no operation of torch shows brings other constants than before.
    confirms = events and all(e.folds for e in events) and any(e.is_of_the_host for e in events)

    def begin() -> NativeGraph:
        # A graph with nothing in it is gone again, and the pool with it if no other uses that.
        in_use = any(segment.graph for segment in tracer.new.everything())
        return _begin(device, graph_pool.pool(in_use), this.host.generators)

    with LOCK:
        release_waiting()
        # What was launched on other streams may still read the static inputs.
        graph_pool.follow(device.stream_id(graph_pool.index))
        this.inputs[:] = this.static_inputs
        in_use, _ = device.memory(graph_pool.index)
        device.clear_library_workspaces()
        tracer = Tracer(
            device.type,
            this.inputs,
            events,
            begin,
            root,
            varying=() if eager is None else eager.varying,
            forced=this.forced,
            only=only,
        )
        with (
            device.on_stream(graph_pool.stream, graph_pool.index),
            no_garbage_collection(),
            other_inputs(this) if confirms else nullcontext(),
            listening(tracer.observe) if listen else nullcontext(),
        ):
            try:
                tracer.start()
                compiled_before = frames_compiled()
                try:
                    with (
                        this.journal.playing(),
                        nullcontext() if eager is None else tracer.watching(),
                    ):
                        outputs = this.function()
                finally:  # it may be why the capture fails
                    tell_if_compiled(compiled_before, lambda: next(iter(this.roots), "a function"))
                last = tracer.finish(outputs)
            except BaseException as error:
                tracer.abandon()  # before this stream is joined, which a capture would refuse
                if not isinstance(error, Exception):
                    raise
                raise _failed(error, tracer.failure) from error
        device.clear_library_workspaces()
        # Where the device holds no more than before, the pool did not grow.
        grown = graph_pool.measure() if device.memory(graph_pool.index)[0] != in_use else 0
        return Traced(tracer.root, last, tracer.graft, grown)


def _begin(
    device: Device, pool: PoolHandle, generators: tuple[torch.Generator, ...]
) -> NativeGraph:
    graph = NativeGraph()
    for generator in generators:
        if generator.device.type == device.type:
            graph.register_generator_state(generator)
    # thread_local: other threads may go on allocating meanwhile.
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    graph.owns_pool = True
    return graph


def _failed(error: Exception, failure: Failure | None) -> Failed:
    """What is known about a capture that failed with ``error``."""
    if isinstance(error, CaptureError):
        return Failed(None, error, final=True)
    where = users_line_of(error) if failure is None else failure.where
    operator = None if failure is None else getattr(failure.func, "_name", None)
    explained = CaptureError(
        f"capture failed: {where}: {operator or 'the capture'}: {one_line(error)}"
    )
    explained.rule, explained.operation = "forbidden-call", operator
    explained.file, explained.line = where.file, where.line
    explained.remedy = RULES["forbidden-call"].remedy
    # An error of the function's own, or no memory: another way of capturing would not help.
    final = isinstance(error, torch.OutOfMemoryError)
    return Failed(operator, explained, final)
