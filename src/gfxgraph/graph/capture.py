"""Safe capture: warm up, capture, replay once against eager, and leave no trace of it.

The caller has run the function once for real. Everything here happens on top of the state that
this call left behind, and is taken back: tensors written in place, the generator, Python
attributes. What is left is a graph.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..device import Device, PoolHandle
from ..errors import CaptureError, GfxGraphError, VerificationError
from ..record.effects import Effects, UndoLog, storage_key
from ..stats import tally
from .bridged import BridgedCUDAGraph
from .compare import Tolerance, difference
from .state import Guard, PythonState

__all__ = ["LOCK", "CapturedGraph", "being_busy", "busy", "capture"]

LOCK = threading.RLock()
"""Held while a graph is captured or replayed, by whatever thread.

A replay in one thread fails while another captures (torch's generator cannot do both), and two
captures at once are not allowed. A replay holds it for microseconds; a capture for its duration,
not for its warm-up.
"""

# torch keeps whether a dispatch mode is active in flags of the process: two threads that enter and
# leave modes at once can leave them set, and torch.compile disabled.
_WATCH_ONE_AT_A_TIME = threading.RLock()

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
        draws_random_numbers: whether a run advances the default generator.
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
    pool: PoolHandle,
    stream: Any,
    warmup: int,
    roots: dict[str, object],
    generators: tuple[torch.Generator, ...] = (),
    tolerance: Tolerance | None,
    before_launch: Callable[[], None],
) -> CapturedGraph:
    """Warm up, capture and verify ``function``, then take back what all that did.

    Args:
        function: runs on the static inputs and returns the static outputs.
        inputs: the static inputs.
        device: the kind of device.
        index: which one of them.
        pool: the memory pool to capture into.
        stream: the stream to warm up and to capture on.
        warmup: how many eager runs before the capture, at least 1.
        roots: the Python objects that the function reaches, by name.
        generators: generators beside the default one that the function draws from.
        tolerance: how far the first replay may be from eager; ``None``: do not compare.
        before_launch: makes the current stream wait for other graphs of the same memory pool.

    Raises:
        CaptureError: the function cannot be captured. The text says why; the error that was met
            first, if there was one, is its ``__cause__``.
        VerificationError: the first replay differs from eager execution.
    """
    log = UndoLog()
    states = [(g, g.get_state()) for g in generators]
    rng_state = device.rng_state(index)
    python_state = PythonState(roots)

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
                    function, log, rewind, warmup, roots, lambda: device.rng_state(index)
                )
            rewind()
            bytes_before = device.pool_bytes(pool)
            graph, outputs = _record(function, device, index, pool, stream, generators)
            rewind()
            if tolerance is not None:
                _verify(graph, outputs, log.regions(), eager, tolerance, before_launch)
    except BaseException as error:
        if graph is not None:
            graph.reset()
        python_state.restore()
        if isinstance(error, GfxGraphError) or not isinstance(error, Exception):
            raise
        raise CaptureError(f"warm-up failed: {_one_line(error)}") from error
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
        pool_bytes=device.pool_bytes(pool) - bytes_before,
        draws_random_numbers=eager.draws_random_numbers,
    )


def _warm_up(
    function: Callable[[], list[torch.Tensor]],
    log: UndoLog,
    rewind: Callable[[], None],
    warmup: int,
    roots: dict[str, object],
    rng_state: Callable[[], torch.Tensor],
) -> _WarmedUp:
    with _no_printing() as printed:
        # The first run is watched. Later ones run as they would without us: under the watching
        # mode torch.compile steps aside.
        before = rng_state()
        state = PythonState(roots)
        with _WATCH_ONE_AT_A_TIME, Effects(log, keep_values=True) as effects:
            outputs = function()
        draws = not torch.equal(before, rng_state())
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
        names = ", ".join(changes[:3]) + (" ..." if len(changes) > 3 else "")
        raise CaptureError(
            f"each call rebinds {names} in Python, which a replay would not do. Keep such state "
            "in a tensor that is written in place (copy_, add_), or outside."
        )
    return _WarmedUp(
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
        if generator.device.type == "cuda":
            graph.register_generator_state(generator)
    with LOCK:
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
    for what, got, expected in (
        ("output", outputs, eager.outputs),
        ("tensor written in place", written, eager.written),
    ):
        for n, pair in enumerate(zip(got, expected, strict=True)):
            found = difference(*pair, tolerance)
            if found is not None:
                tally.add("validation_failures")
                raise VerificationError(
                    f"the first replay differs from eager execution in {what} {n}: {found}"
                )


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

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return int(self._stream.write(text))
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
