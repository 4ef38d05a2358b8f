"""CUDA and HIP: the same torch calls; ``torch.version.hip`` tells which."""

from __future__ import annotations

import ctypes
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch._ops import OpOverload

from ..errors import DeviceError, MissingPackageError
from ..stats import log
from .base import Body, Decision, DeviceFacts, PoolHandle
from .gpu_conditional import add_conditional, no_conditionals
from .gpu_copies import copies_to
from .gpu_graphs import CudaExecutables, driver_of_executables
from .gpu_nodes import CaptureNodes, driver_of_graphs, nodes_of
from .gpu_parameters import CudaBinder, parameters_of
from .gpu_streams import own_stream
from .nodes import Node, Parameters, Place

try:
    from .._compiled import Copy
except ImportError:  # optional
    Copy = None  # type: ignore[assignment,misc]

__all__ = ["GpuDevice", "copy_with"]


class GpuDevice:
    """NVIDIA through CUDA, AMD through HIP."""

    type = "cuda"

    @property
    def kind(self) -> Literal["cuda", "hip", "emulated"]:
        """``"hip"`` on a ROCm build of torch, else ``"cuda"``."""
        return "hip" if torch.version.hip else "cuda"

    @property
    def tier(self) -> Literal["driver", "torch", "emulated"]:
        """``"driver"`` where cuda-bindings, or libamdhip64 itself, answers a call now."""
        try:
            driver_of_graphs().version()
        except (DeviceError, MissingPackageError) as error:
            log(logging.DEBUG, "driver_does_not_answer", because=str(error))
            return "torch"
        return "driver"

    def index(self, device: torch.device) -> int:
        """The index of ``device``, or of the current device where it names none."""
        return torch.cuda.current_device() if device.index is None else device.index

    def facts(self, index: int = 0) -> DeviceFacts:
        """The facts about GPU ``index``; see :class:`~gfxgraph.device.base.DeviceFacts`."""
        try:
            properties = torch.cuda.get_device_properties(index)
            free, total = torch.cuda.mem_get_info(index)
        except (RuntimeError, AssertionError) as error:
            raise DeviceError(
                f"GPU {index} does not answer: {error}. Check that the driver is loaded and that "
                "CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES shows the device."
            ) from error
        hip = self.kind == "hip"
        return DeviceFacts(
            vendor="amd" if hip else "nvidia",
            name=properties.name,
            # gcnArchName carries feature flags: gfx90a:sramecc+:xnack-
            arch=properties.gcnArchName.split(":")[0]
            if hip
            else f"sm_{properties.major}{properties.minor}",
            driver=_driver_version(hip),
            runtime=torch.version.hip if hip else torch.version.cuda,
            torch=torch.__version__,
            memory_total=total,
            memory_free=free,
        )

    def pool_handle(self) -> PoolHandle:
        """``torch.cuda.graph_pool_handle()``."""
        return torch.cuda.graph_pool_handle()

    def pool_bytes(self, pool: PoolHandle) -> int:
        """Bytes of the allocator's segments that belong to ``pool``."""
        return sum(segment["total_size"] for segment in _segments(pool))

    def free_pool_bytes(self, pool: PoolHandle) -> int:
        """Bytes of these segments in which no tensor lives."""
        return sum(s["total_size"] - s["active_size"] for s in _segments(pool))

    def in_pool(self, pool: PoolHandle, address: int) -> bool:
        """Whether ``address`` lies in a segment of ``pool``."""
        return any(0 <= address - s["address"] < s["total_size"] for s in _segments(pool))

    def pool_segments(self, pool: PoolHandle) -> list[tuple[int, int]]:
        """The allocator's segments that belong to ``pool``."""
        return [(segment["address"], segment["total_size"]) for segment in _segments(pool)]

    def non_owning_alias(self, pool: PoolHandle, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor on the bare address of ``tensor``."""
        construct = getattr(torch._C, "_construct_storage_from_data_pointer", None)  # private
        if construct is None or tensor.is_conj() or tensor.is_neg():
            return tensor
        storage = tensor.untyped_storage()
        bare = construct(storage.data_ptr(), tensor.device, storage.nbytes())
        with torch.inference_mode(tensor.is_inference()):
            made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            return made.set_(bare, tensor.storage_offset(), tensor.shape, tensor.stride())

    def memory(self, index: int) -> tuple[int, int]:
        """As the driver says; memory that torch's allocator keeps for later counts as used."""
        free, total = torch.cuda.mem_get_info(index)
        return total - free, total

    def allocated(self, index: int) -> int:
        """Bytes that torch's allocator has given out."""
        stats = torch.cuda.memory_stats_as_nested_dict(index)
        return int(stats["allocated_bytes"]["all"]["current"]) if stats else 0

    def cached(self, index: int) -> int:
        """The free part of torch's segments outside of private pools, which it gives back itself.

        It does so when the driver has no more. ``release_cached_memory()`` leaves those segments in
        which a tensor still lives.
        """
        return sum(
            segment["total_size"] - segment["allocated_size"]
            for segment in torch.cuda.memory_snapshot()
            if segment["device"] == index and tuple(segment["segment_pool_id"]) == (0, 0)
        )

    def release_cached_memory(self) -> None:
        """``torch.cuda.empty_cache()``, and the workspaces of cuBLAS or hipBLAS."""
        self.clear_library_workspaces()
        torch.cuda.empty_cache()

    def is_capturing(self) -> bool:
        """Whether the current stream is capturing."""
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

    def hold_call(
        self,
        call: Callable[..., Any],
        op: OpOverload | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call it: the backend puts its work into the capture."""
        return call(*args, **kwargs)

    def synchronize(self, index: int) -> None:
        """Wait for all work on GPU ``index``."""
        torch.cuda.synchronize(index)

    @property
    def stream_id(self) -> Callable[[int], int]:
        """torch's own function; it gives 0 for the default stream."""
        return torch._C._cuda_getCurrentRawStream

    def copy_bytes(self, index: int, size: int) -> Callable[[int, int, int], int] | None:
        """The CUDA driver's own copy, 1 to 1.5 us faster than an operator of torch (H200).

        The default stream is that of the current device, so where there are several, the current
        one must be ``index``. HIP has the same call; it was never tried, so it is not used.
        """
        function = None if torch.version.hip else _copy_of_driver()
        if function is None:
            return None
        return _where_current(index, copy_with(function, size))

    def copy_together(
        self, index: int, places: Sequence[tuple[int, int]]
    ) -> Callable[..., int] | None:
        """A kernel of our own, launched by the driver, where there is the compiled part."""
        start = copies_to(index, places)
        return None if start is None else _where_current(index, start)

    def launcher(self, index: int, graph: Any) -> tuple[Callable[[int], bool], int, int] | None:
        """CUDA's runtime, as torch does, so that profilers see the same. HIP's was never tried."""
        if torch.version.hip or not hasattr(graph, "raw_cuda_graph_exec"):
            return None
        if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
            return None  # a launch would keep Python's lock until the device is done
        major = str(torch.version.cuda).partition(".")[0]
        name = f"libcudart.so.{'11.0' if major == '11' else major}"
        try:
            launch = _loaded(name).cudaGraphLaunch
            is_idle = idle_by(ctypes.CDLL("libcuda.so.1"))
        except (OSError, AttributeError) as error:
            log(logging.DEBUG, "launches_left_to_torch", because=str(error))
            return None
        current = torch._C._cuda_getDevice
        address = cast(int, ctypes.cast(launch, ctypes.c_void_p).value)
        executable = int(graph.raw_cuda_graph_exec())
        return lambda stream: current() == index and is_idle(stream), address, executable

    def new_stream(self, index: int) -> torch.cuda.Stream:
        """A stream of torch's pool."""
        return torch.cuda.Stream(index)

    def capture_stream(self, index: int, purpose: str = "capture") -> torch.cuda.Stream:
        """See :func:`own_stream`."""
        return own_stream(index, purpose)

    def current_stream(self, index: int) -> torch.cuda.Stream:
        """The current stream of GPU ``index``."""
        return torch.cuda.current_stream(index)

    def set_stream(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        """Make ``stream`` and its GPU current."""
        return torch.cuda.stream(stream)

    @contextmanager
    def on_stream(self, stream: torch.cuda.Stream, index: int) -> Iterator[None]:
        """Run on ``stream``, forked from the current stream of GPU ``index`` and joined to it."""
        current = torch.cuda.current_stream(index)
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                yield
        finally:
            current.wait_stream(stream)

    def wait_stream_id(self, index: int, earlier: int) -> None:
        """Make the current stream wait for the stream with the raw handle ``earlier``."""
        torch.cuda.current_stream(index).wait_stream(_stream(earlier, index))

    def record_use(self, tensors: list[torch.Tensor], index: int, stream: int) -> None:
        """Tell the allocator that ``stream`` uses ``tensors``."""
        for tensor in tensors:
            tensor.record_stream(_stream(stream, index))

    def default_generator(self, index: int) -> torch.Generator:
        """The default generator of GPU ``index``."""
        torch.cuda.init()  # there are none before
        return torch.cuda.default_generators[index]

    def clear_library_workspaces(self) -> None:
        """Free the workspaces that cuBLAS or hipBLAS keep for each stream.

        A matrix product in a capture then allocates its workspace from the graph's own pool.
        Otherwise the graph would point at a workspace that cudagraph trees of ``torch.compile``
        free, and graphs of one stream would share one.
        """
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()

    def begin_empty_capture(self, stream: torch.cuda.Stream) -> bool:
        """See :class:`Device`.

        Where the driver refuses to end a capture, torch 2.11 skips its own clean-up: a later
        capture into the same pool raises "already recording to mempool_id", and random operations
        raise "Offset increment outside graph capture".
        """
        begin = _begin_of_driver()
        return begin is not None and begin(stream.cuda_stream, _RELAXED) == 0

    def executables(self) -> CudaExecutables:
        """Those of CUDA; HIP's are left as they are."""
        return driver_of_executables()

    def nodes(self, graph: Any) -> list[Node]:
        """As the driver tells them."""
        return nodes_of(driver_of_graphs(), graph.raw_cuda_graph())

    def nodes_of_capture(self, graph: Any, index: int) -> CaptureNodes:
        """As the driver tells them, which may be asked during a capture."""
        stream_id = self.stream_id
        return CaptureNodes(stream_id(index), lambda: stream_id(index))

    def no_conditionals(self, index: int) -> str:
        """See :func:`~gfxgraph.device.gpu_conditional.no_conditionals`."""
        return no_conditionals(index)

    def prepare_libraries(self, index: int) -> None:
        """The handle of cuBLAS of this thread; it stays."""
        with torch.cuda.device(index):
            torch.cuda.current_blas_handle()

    def add_conditional(
        self,
        index: int,
        decision: Decision,
        bodies: Sequence[Body],
        pool: PoolHandle,
    ) -> None:
        """See :class:`Device`."""
        add_conditional(index, decision, bodies, pool)

    def held_pool(self, index: int) -> PoolHandle:
        """A pool that nobody allocates from yet, and that counts one user."""
        pool = self.pool_handle()
        torch._C._cuda_beginAllocateCurrentThreadToPool(index, pool)
        torch._C._cuda_endAllocateToPool(index, pool)
        return pool

    def release_pool(self, pool: PoolHandle, index: int) -> None:
        """``torch._C._cuda_releasePool``."""
        torch._C._cuda_releasePool(index, pool)

    @property
    def binds_inputs(self) -> bool:
        """On CUDA, where torch hands out executables; HIP does not tell what kernels were given."""
        return not torch.version.hip and hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec")

    def parameters(self, graph: Any) -> list[Parameters]:
        """As the driver tells them."""
        return parameters_of(graph)

    def binder(
        self, graph: Any, nodes: Sequence[Parameters], places: Sequence[Place]
    ) -> CudaBinder:
        """Changes them through the driver."""
        return CudaBinder(graph, nodes, places)

    def end_allocation(self, pool: PoolHandle, index: int, release: bool) -> None:
        """End what ``capture_begin`` began in the allocator, when ``capture_end`` raised."""
        torch._C._cuda_endAllocateToPool(index, pool)
        if release:
            torch._C._cuda_releasePool(index, pool)

    def recover_generator(self, index: int, others: Sequence[torch.Generator] = ()) -> None:
        """Capture a single memset: only a capture that succeeds resets the generator.

        After a failed one the default generator still believes that it is captured, and every
        later random operation raises "Offset increment outside graph capture" (seen on torch 2.11
        with CUDA 13). So do ``others``, which the failed graph had registered.
        """
        with torch.cuda.stream(own_stream(index, "recover")):
            scratch = torch.empty(1, device=torch.device("cuda", index))
            graph = _plain_graph()()
            for generator in others:
                graph.register_generator_state(generator)
            graph.capture_begin(pool=self.pool_handle(), capture_error_mode="thread_local")
            try:
                scratch.zero_()
            finally:
                graph.capture_end()
        graph.reset()


def _segments(pool: PoolHandle) -> list[dict[str, Any]]:
    # Not memory_snapshot(pool) of newer torch: torch 2.11 drops a reference to the pool's numbers
    # that it does not own, and the process crashes later.
    return [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool)]


def _stream(handle: int, index: int) -> torch.cuda.Stream:
    if handle == 0:
        return torch.cuda.default_stream(index)
    return torch.cuda.ExternalStream(handle, device=index)


def _plain_graph() -> Any:
    """torch's own class, also while ``enable()`` replaces it."""
    current: Any = torch.cuda.CUDAGraph
    return next(c for c in current.__mro__ if c.__module__ == "torch.cuda.graphs")


@cache
def _copy_of_driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1").cuMemcpyDtoDAsync_v2
    except (OSError, AttributeError):
        return None


def copy_with(function: Any, size: int) -> Callable[[int, int, int], int]:
    """A function of two addresses and a stream that copies ``size`` bytes to the first one.

    It lets other threads run meanwhile: the driver waits where the queue of the device is full.

    Args:
        function: of the driver, as ctypes gives it. It takes the address to copy to, the one to
            copy from, how many bytes, and the stream.
        size: in bytes.
    """
    if Copy is not None:
        return Copy(cast(int, ctypes.cast(function, ctypes.c_void_p).value), size).start
    function.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    function.restype = ctypes.c_int
    return lambda to, at, stream: function(to, at, size, stream)


def _where_current(index: int, copy: Callable[..., int]) -> Callable[..., int]:
    """``copy``, which is begun only where GPU ``index`` is the current one: the default stream is
    that of the current one."""
    if torch.cuda.device_count() == 1:
        return copy
    current = torch._C._cuda_getDevice
    return lambda *given: copy(*given) if current() == index else -1


# CU_STREAM_CAPTURE_MODE_RELAXED and hipStreamCaptureModeRelaxed
_RELAXED = 2


def _loaded(name: str) -> ctypes.CDLL:
    """A library that is loaded: a second copy of the runtime would not know torch's streams.

    Raises:
        OSError: it is not.
    """
    return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)


def idle_by(driver: Any) -> Callable[[int], bool]:
    """A function that asks the driver whether all on a stream is done.

    Another thread may be capturing by hand, in the global mode of ``torch.cuda.graph``. There the
    question would end its capture, but for a thread that has said to be in the relaxed mode.

    Raises:
        AttributeError: the driver has no such functions.
    """
    query, exchange = driver.cuStreamQuery, driver.cuThreadExchangeStreamCaptureMode

    def is_idle(stream: int) -> bool:
        mode = ctypes.c_int(_RELAXED)
        if exchange(ctypes.byref(mode)):
            return False
        try:
            return query(ctypes.c_void_p(stream)) == 0  # type: ignore[no-any-return]
        finally:
            exchange(ctypes.byref(mode))

    return is_idle


@cache
def _begin_of_driver() -> Callable[[int, int], int] | None:
    """``cuStreamBeginCapture`` of the driver that torch has loaded, or HIP's."""
    names, symbol = ["libcuda.so.1"], "cuStreamBeginCapture_v2"
    if torch.version.hip:
        names = ["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"]
        symbol = "hipStreamBeginCapture"
    for name in names:
        try:
            begin = getattr(_loaded(name), symbol)
        except (OSError, AttributeError):
            continue
        begin.argtypes, begin.restype = (ctypes.c_void_p, ctypes.c_int), ctypes.c_int
        return cast("Callable[[int, int], int]", begin)
    return None


def _driver_version(hip: bool, root: Path = Path("/")) -> str | None:
    """The kernel driver's version, from the file in which it publishes it."""
    path, pattern = (
        ("sys/module/amdgpu/version", r"^(\S+)")
        if hip
        # "... UNIX Open Kernel Module for x86_64  580.159.03  Release Build ..."
        else ("proc/driver/nvidia/version", r"Kernel Module.*?\s(\d+\.[\d.]+)")
    )
    try:
        found = re.search(pattern, (root / path).read_text())
    except OSError:
        return None
    return found[1] if found else None
