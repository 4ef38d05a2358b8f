"""``BridgedCUDAGraph``: torch's graph class with safe clean-up, counting and a log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch

from ..device import PoolHandle, current_device
from ..device.emulated import EmulatedGraph
from ..errors import ArgumentError, CaptureError
from ..stats import log, tally
from .liveness import InputLiveness

__all__ = ["BridgedCUDAGraph"]

if TYPE_CHECKING:
    _Base: Any = object
elif current_device().type == "cuda":
    _Base = torch.cuda.CUDAGraph
elif torch.version.cuda or torch.version.hip:
    # A GPU build with no GPU: torch's class cannot even be constructed there.
    _Base = EmulatedGraph
else:
    # In a CPU build torch's class is a placeholder; keep isinstance() true all the same.
    _Base = type("_Emulated", (EmulatedGraph, torch.cuda.CUDAGraph), {})

_MODES = ("global", "thread_local", "relaxed")

# Graphs whose capture failed, kept to the end: torch's allocator of pinned memory still holds a
# filter that points into them (seen on torch 2.11), and nothing in Python can take it back.
_failed: list[BridgedCUDAGraph] = []


class BridgedCUDAGraph(_Base):  # type: ignore[misc]
    """A CUDA or HIP graph; on a machine without a GPU, an emulated one.

    A subclass of :class:`torch.cuda.CUDAGraph` with the same methods and the same errors, and with
    three additions: a failed capture leaves the process able to capture and to draw random numbers
    again; a graph that is dropped in the middle of its capture ends the capture first (on HIP the
    process would abort); captures and replays are counted in :func:`gfxgraph.stats`.

    Args:
        keep_graph: keep the ``cudaGraph_t`` after the capture, so that it can be inspected or
            changed before :meth:`instantiate`. Default ``False``.
    """

    # Set by enable(): wait for the device after each replay, so that an error names the replay
    # that made it; and check the liveness of inputs also where the caller did not ask for it.
    synchronize_replays = False
    check_liveness = False

    def __init__(self, keep_graph: bool = False) -> None:
        # torch before 2.7 has no keep_graph.
        super().__init__(*((True,) if keep_graph else ()))
        self._capture_stream: Any = None
        self._capture_index = 0
        self._capture_pool: PoolHandle | None = None
        #: Whether a failed capture releases the pool: a pool that nobody uses cannot be used
        #: again, so one that the caller brought stays his.
        self.owns_pool = False
        self._liveness: InputLiveness | None = None
        self.counter = tally.replay_counter()

    def capture_begin(
        self,
        pool: PoolHandle | None = None,
        capture_error_mode: str = "global",
        check_input_liveness: bool = False,
    ) -> None:
        """Begin to capture the work of the current stream, which may not be the default stream.

        Args:
            pool: memory pool to share, from ``torch.cuda.graph_pool_handle()`` or another graph's
                :meth:`pool`. Default: a pool of its own.
            capture_error_mode: ``"global"`` (default) refuses unsafe calls in every thread,
                ``"thread_local"`` in this one, ``"relaxed"`` in none.
            check_input_liveness: remember the tensors from outside that the capture uses, without
                keeping them alive, and refuse to replay once one of them is gone. Default
                ``False``. Works on every torch, also where torch itself has no such argument.

        Raises:
            ArgumentError: ``capture_error_mode`` is none of the three.
            CaptureError: the current stream is capturing already.
        """
        if capture_error_mode not in _MODES:
            raise ArgumentError(
                f"capture_error_mode={capture_error_mode!r}: expected one of {', '.join(_MODES)}."
            )
        device = current_device()
        if device.is_capturing():
            # torch finds out only after it has begun to redirect the allocator.
            raise CaptureError(
                "capture_begin() while the current stream is already capturing: end that capture "
                "first, or run the function without its own graph inside it."
            )
        # A pool of our own making, where torch would make a private one: its name is needed to
        # release it when the capture fails.
        handle = cast(PoolHandle, getattr(pool, "id", pool)) or device.pool_handle()
        index = device.index(torch.device(device.type))
        stream = device.current_stream(index)
        try:
            super().capture_begin(pool=handle, capture_error_mode=capture_error_mode)
        except RuntimeError:
            device.recover_generator(index)
            raise
        self._capture_stream, self._capture_index, self._capture_pool = stream, index, handle
        self.owns_pool = pool is None
        self._liveness = None
        if check_input_liveness or self.check_liveness:
            self._liveness = InputLiveness()
            self._liveness.start()
        log(logging.DEBUG, "capture_begin", pool=handle, mode=capture_error_mode)

    def capture_end(self) -> None:
        """End the capture, on the stream on which it began.

        Raises:
            RuntimeError: as torch raises it: the capture was invalidated, or has unjoined work.
                The allocator, the generator and the streams are as before the capture then.
        """
        stream, device = self._capture_stream, current_device()
        if stream is None or device.current_stream(self._capture_index) != stream:
            super().capture_end()  # raises, and leaves a capture on the other stream as it is
            return
        if self._liveness is not None:
            self._liveness.stop(lambda a: device.in_pool(cast(PoolHandle, self._capture_pool), a))
        self._capture_stream = None
        try:
            super().capture_end()
        except BaseException as error:
            tally.add("capture_failures")
            log(logging.INFO, "capture_failed", error=str(error).partition("\n")[0])
            device.end_allocation(
                cast(PoolHandle, self._capture_pool), self._capture_index, self.owns_pool
            )
            device.recover_generator(self._capture_index)
            _failed.append(self)
            raise
        tally.add("capture_count")
        log(logging.DEBUG, "capture_end", pool=self._capture_pool)

    def replay(self) -> None:
        """Launch the captured work on the current stream.

        Raises:
            DeadTensorError: a tensor that the graph reads is gone; only after
                ``capture_begin(check_input_liveness=True)``.
            RuntimeError: as torch raises it: nothing was captured, or a capture is under way.
        """
        if self._liveness is not None:
            self._liveness.check()
        start = time.perf_counter_ns()
        super().replay()
        counter = self.counter
        counter.ns += time.perf_counter_ns() - start
        counter.timed += 1
        counter.replays += 1
        if self.synchronize_replays:
            current_device().synchronize(self._capture_index)

    @property
    def launch(self) -> Callable[[], None]:
        """:meth:`replay` without its counting and checks, for a caller that does its own."""
        native = getattr(torch._C, "_CUDAGraph", None)
        if isinstance(native, type) and isinstance(self, native) and hasattr(native, "replay"):
            return cast(Callable[[], None], native.replay.__get__(self))
        return cast(Callable[[], None], super().replay)

    def reset(self) -> None:
        """Drop the graph; a capture that is under way is ended first."""
        self._abandon()
        self._liveness = None
        super().reset()

    def _abandon(self) -> None:
        """End a capture whose graph nobody wants any more."""
        if self._capture_stream is None:
            return
        log(logging.INFO, "capture_abandoned", pool=self._capture_pool)
        with current_device().set_stream(self._capture_stream):
            try:
                self.capture_end()
            except RuntimeError as error:  # capture_end() has cleaned up
                log(logging.DEBUG, "abandoned_capture_was_invalid", error=str(error))

    def __del__(self) -> None:
        if getattr(self, "counter", None) is None:  # the constructor raised
            return
        if not sys.is_finalizing() or self._capture_stream is not None:
            self._abandon()
            tally.retire(self.counter)
        finalizer = getattr(super(), "__del__", None)
        if finalizer is not None:
            finalizer()
