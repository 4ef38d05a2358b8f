"""Safe capture: warm up, capture, replay once against eager, and leave no trace of it.

The caller has run the function once for real. Everything here happens on top of the state that
this call left behind, and is taken back: tensors written in place, the generator, Python
attributes. What is left is a graph.
"""

from __future__ import annotations

import functools
import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..device import Device, PoolHandle
from ..errors import CaptureError, GfxGraphError, VerificationError
from ..record.effects import Effects, UndoLog, nobody_else_holds, storage_key
from ..stats import tally
from .bridged import BridgedCUDAGraph
from .compare import Tolerance, difference
from .guard import Guard
from .state import PythonState

__all__ = ["CAPTURING", "LOCK", "CapturedGraph", "being_busy", "busy", "capture"]

LOCK = threading.RLock()
"""Held while a graph is captured or replayed, by whatever thread.

A replay in one thread fails while another captures (torch's generator cannot do both). A replay
holds it until its work is launched; a capture for its duration, not for its warm-up.
"""

CAPTURING = threading.RLock()
"""Held from the first warm-up to the end of the verification. Never waited for: a thread that
cannot have it runs eagerly. Two warm-ups at once would rewind each other's generators, and torch
keeps whether a dispatch mode is active in flags of the process, which two threads can leave set.
"""

_local = threading.local()


def busy() -> bool:
    """Whether this thread is inside a run, a warm-up or a capture that we have started."""
    return getattr(_local, "busy", False)


@contextmanager
def being_busy() -> Iterator[None]:
    """Mark this thread as :func:`busy`."""
    before = busy()
    _local.busy = True
    try:
        yield
    finally:
        _local.busy = before


@dataclass
class CapturedGraph:
    """A graph that is ready to be replayed.

    Attributes:
        graph: the graph.
        outputs: the tensors that the function returned while it was captured.
        written: storages from outside that each replay writes, static inputs among them.
        outside: storages from outside that the graph uses, without the static inputs.
        guard: watches those, and keeps them alive.
        pool_bytes: bytes by which the memory pool grew.
        draws_random_numbers: whether a run advances a generator.
    """

    graph: BridgedCUDAGraph
    outputs: list[torch.Tensor]
    written: set[int]
    outside: set[int]
    guard: Guard
    pool_bytes: int
    draws_random_numbers: bool


@dataclass
class _WarmedUp:
    """What warming up found; ``outputs`` and ``written`` hold what eager execution gives."""

    first_outputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    written: list[torch.Tensor]
    outside: dict[int, torch.Tensor]
    state: PythonState
    draws_random_numbers: bool


def capture(
    function: Callable[[], list[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    *,
    device: Device,
    index: int,
    pool: Callable[[], PoolHandle],
    stream: Any,
    warmup: int,
    roots: dict[str, object],
    tolerance: Tolerance | None,
    before_launch: Callable[[], None],
    first_outputs: list[torch.Tensor] | None = None,
) -> CapturedGraph:
    """Warm up, capture and verify ``function``, then take back what all that did.

    Args:
        function: runs on the static inputs and returns the static outputs.
        inputs: the static inputs.
        device: the kind of device.
        index: which one of them.
        pool: gives the memory pool to capture into. Asked when the capture begins: until then
            another thread may release the last graph of a pool, which ends the pool.
        stream: the stream to warm up and to capture on.
        warmup: how many eager runs before the capture, at least 1.
        roots: the Python objects that the function reaches, by name.
        tolerance: how far the first replay may be from eager; ``None``: do not compare.
        first_outputs: what the first call gave for the same arguments. A function that writes
            nothing and draws nothing gives the same again, or it has seen that its arguments are
            static inputs now.
        before_launch: makes the current stream wait for other graphs of the same memory pool.

    Raises:
        CaptureError: the function cannot be captured. The text says why; the error that was met
            first, if there was one, is its ``__cause__``.
        VerificationError: the first replay differs from eager execution.
    """
    log = UndoLog()
    python_state = PythonState(roots)
    if torch.is_grad_enabled() and python_state.recorded():
        raise CaptureError(
            f"autograd records into {_some(python_state.recorded())}; a replay records nothing. "
            "Call it under torch.no_grad() or torch.inference_mode()."
        )
    generators = tuple(python_state.generators)
    states = [(g, g.get_state()) for g in generators]
    rng_state = device.rng_state(index)
    python_random = random.getstate()

    def rewind() -> None:
        log.undo()
        device.set_rng_state(rng_state, index)
        for generator, state in states:
            generator.set_state(state)

    graph: BridgedCUDAGraph | None = None
    try:
        with being_busy():
            with device.on_stream(stream, index):
                eager = _warm_up(
                    function,
                    log,
                    rewind,
                    warmup,
                    roots,
                    lambda: [device.rng_state(index), *(g.get_state() for g in generators)],
                )
            if random.getstate() != python_random:
                raise CaptureError(
                    "each call draws from Python's random module, which a replay would not do. "
                    "Draw outside of the function and pass the number.",
                    transient=True,  # it may have been another thread
                )
            if first_outputs is not None and not len(log) and not eager.draws_random_numbers:
                _compare("second run", "first", eager.first_outputs, first_outputs, tolerance)
            made = [
                t
                for t in eager.outside.values()
                if t.device.type == device.type and nobody_else_holds(t)
            ]
            if made:
                raise CaptureError(
                    f"the function uses a tensor of shape {tuple(made[0].shape)} that is made in "
                    "the call but not by it: on another thread, or by a library outside of torch. "
                    "A graph would hold that one for ever. Make it outside and pass it."
                )
            rewind()
            with LOCK:
                handle = pool()
                bytes_before = device.pool_bytes(handle)
                graph, outputs = _record(function, device, index, handle, stream, generators)
                pool_bytes = device.pool_bytes(handle) - bytes_before
            rewind()
            if tolerance is not None:
                _verify(graph, outputs, log.regions(), eager, tolerance, before_launch)
            changes = python_state.changes()
            if changes:
                raise CaptureError(
                    f"the second call still changed {_some(changes)} in Python; wait until it has "
                    "settled.",
                    transient=True,
                )
    except BaseException as error:
        if graph is not None:
            graph.reset()
        python_state.restore()
        random.setstate(python_random)
        if isinstance(error, GfxGraphError) or not isinstance(error, Exception):
            raise
        raise CaptureError(
            f"warm-up failed: {_one_line(error)}",
            # Up to torch 2.11 nobody can draw random numbers while another thread captures.
            transient="Offset increment outside graph capture" in str(error),
        ) from error
    finally:
        rewind()
    static = {storage_key(tensor) for tensor in inputs}
    outside = {key: t for key, t in eager.outside.items() if key not in static}
    return CapturedGraph(
        graph,
        outputs,
        written={storage_key(region) for region in log.regions()},
        outside=set(outside),
        guard=eager.state.guard(outside),
        pool_bytes=pool_bytes,
        draws_random_numbers=eager.draws_random_numbers,
    )


def _warm_up(
    function: Callable[[], list[torch.Tensor]],
    log: UndoLog,
    rewind: Callable[[], None],
    warmup: int,
    roots: dict[str, object],
    rng_state: Callable[[], list[torch.Tensor]],
) -> _WarmedUp:
    with _no_printing() as printed:
        # The first run is watched. Later ones run as they would without us: under the watching
        # mode torch.compile steps aside.
        before = rng_state()
        state = PythonState(roots)
        with Effects(log, keep_values=True) as effects:
            first_outputs = outputs = function()
        draws = not all(map(torch.equal, before, rng_state()))
        for _ in range(warmup - 1):
            rewind()
            state = PythonState(roots)
            outputs = function()
        changes = state.changes()
    if printed:
        raise CaptureError(
            f"the function prints ({''.join(printed).strip()[:60]!r}); a replay does not run "
            "Python. Remove the print, or keep it outside of the graphed function."
        )
    if changes:
        raise CaptureError(
            f"each call rebinds {_some(changes)} in Python, which a replay would not do. Keep "
            "such state in a tensor that is written in place (copy_, add_), or outside."
        )
    return _WarmedUp(
        first_outputs=first_outputs,
        outputs=[t.clone() for t in outputs],
        written=[region.clone() for region in log.regions()],
        outside=effects.outside,
        state=state,
        draws_random_numbers=draws,
    )


def _record(
    function: Callable[[], list[torch.Tensor]],
    device: Device,
    index: int,
    pool: PoolHandle,
    stream: Any,
    generators: tuple[torch.Generator, ...],
) -> tuple[BridgedCUDAGraph, list[torch.Tensor]]:
    graph = BridgedCUDAGraph()
    for generator in generators:
        if generator.device.type == device.type:
            graph.register_generator_state(generator)
    device.clear_library_workspaces()
    with device.on_stream(stream, index), _no_garbage_collection():
        # thread_local: other threads may go on allocating meanwhile.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        graph.owns_pool = True
        try:
            outputs = function()
            graph.capture_end()
        except Exception as error:
            graph.reset()
            if isinstance(error, CaptureError):
                raise
            raise CaptureError(f"capture failed: {_one_line(error)}") from error
        except BaseException:
            graph.reset()
            raise
    device.clear_library_workspaces()
    return graph, outputs


def _verify(
    graph: BridgedCUDAGraph,
    outputs: list[torch.Tensor],
    written: list[torch.Tensor],
    eager: _WarmedUp,
    tolerance: Tolerance,
    before_launch: Callable[[], None],
) -> None:
    with LOCK:
        before_launch()
        graph.launch()
        # Copied at once: another graph of the same memory pool may overwrite them.
        outputs, written = [t.clone() for t in outputs], [t.clone() for t in written]
    # Another thread may have drawn from the same generator in between.
    compare = functools.partial(
        _compare,
        "first replay",
        "eager execution",
        tolerance=tolerance,
        transient=eager.draws_random_numbers,
    )
    compare(outputs, eager.outputs)
    compare(written, eager.written, part="written tensor")


def _compare(
    what: str,
    other: str,
    got: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    tolerance: Tolerance | None,
    part: str = "output",
    transient: bool = False,
) -> None:
    if tolerance is None:
        return
    for n, pair in enumerate(zip(got, expected, strict=True)):
        found = difference(*pair, tolerance)
        if found is not None:
            tally.add("validation_failures")
            raise VerificationError(
                f"the {what} differs from {other} in {part} {n}: {found}", transient=transient
            )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection in the middle of a capture may free other graphs, which CUDA forbids there."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Listener:
    """Stands in for ``sys.stdout``: keeps what this thread prints, passes on what others print."""

    def __init__(self, stream: Any, heard: list[str]) -> None:
        self._stream = stream
        self._thread = threading.get_ident()
        self._heard = heard

    def write(self, text: str) -> Any:
        if threading.get_ident() != self._thread:
            return self._stream.write(text)
        self._heard.append(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _no_printing() -> Iterator[list[str]]:
    """Keep what is printed in warm-up runs, which the user did not ask for."""
    heard: list[str] = []
    before = sys.stdout
    sys.stdout = _Listener(before, heard)
    try:
        yield heard
    finally:
        sys.stdout = before
