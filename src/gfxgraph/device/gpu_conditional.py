"""Conditional nodes of CUDA graphs, added to a capture that is under way.

CUDA has them from 12.4 on, HIP has none. A kernel of one thread sets the handle of a node from a
tensor. The body of a node is captured on a stream of its own; it may hold kernels, copies, fills
and further conditional nodes ("Conditional Graph Nodes", CUDA Programming Guide).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from ctypes import c_int, c_uint64, c_void_p
from functools import cache, partial
from typing import Any

import torch

from ..errors import CaptureError, DeviceError
from .base import Body, Decision, PoolHandle
from .gpu_streams import own_stream

__all__ = ["add_conditional", "no_conditionals"]

# The first driver with conditional nodes, and the first with several bodies for one node.
_FIRST, _SEVERAL = 12040, 12080

_SOURCE = b"""
extern "C" __device__ __cudart_builtin__ void CUDARTAPI
cudaGraphSetConditional(unsigned long long handle, unsigned int value);

extern "C" __global__ void gfxgraph_set_flag(
    unsigned long long handle, const bool *flag, int wanted, int *turns, int limit)
{
    bool on = *flag == (wanted != 0);
    if (turns) {
        on = on && *turns < limit;
        *turns += on;
    }
    cudaGraphSetConditional(handle, on);
}

extern "C" __global__ void gfxgraph_set_index(
    unsigned long long handle, const int *index, int offset)
{
    cudaGraphSetConditional(handle, offset < 0 ? *index : *index == offset);
}
"""


@cache
def no_conditionals(index: int) -> str:
    """Why graphs of device ``index`` have no conditional nodes; empty: they do."""
    if torch.version.hip:
        return "HIP has no conditional nodes"
    try:
        from cuda.bindings import driver, nvrtc, runtime  # noqa: F401
    except ImportError:
        return "cuda-bindings is not installed"
    try:
        version = _driver_version()
        if version < _FIRST:
            have = f"{version // 1000}.{version % 1000 // 10}"
            return f"conditional nodes need CUDA 12.4, and the driver has {have}"
        _kernels(index)
    except DeviceError as error:
        return str(error).rstrip(".")
    return ""


def add_conditional(
    index: int, decision: Decision, bodies: Sequence[Body], pool: PoolHandle
) -> None:
    """Add conditional nodes to the capture of the current stream; see :class:`Device`."""
    if decision.kind == "while" or len(bodies) == 1 or _driver_version() >= _SEVERAL:
        _add(index, decision, bodies, pool)
        return
    # A body may write to the value before the next node reads it.
    decision = decision._replace(value=decision.value.clone())
    for number, body in enumerate(bodies):
        _add(index, decision, [body], pool, number)


def _add(
    index: int,
    decision: Decision,
    bodies: Sequence[Body],
    pool: PoolHandle,
    only: int | None = None,
) -> None:
    """Add one node; ``only``: the number of its body, where each has a node of its own."""
    from cuda.bindings import runtime

    stream = torch.cuda.current_stream(index)
    kinds = runtime.cudaGraphConditionalNodeType
    graph, _ = _capture(stream)
    (handle,) = _ask(runtime.cudaGraphConditionalHandleCreate, graph, 0, 0)
    turns = None
    if decision.limit is not None:
        turns = torch.zeros((), dtype=torch.int32, device=decision.value.device)
    set_handle = partial(_set, index, handle, decision, turns, only)
    set_handle(decision.value)
    graph, waits_for = _capture(stream)
    params = runtime.cudaGraphNodeParams()
    params.type = runtime.cudaGraphNodeType.cudaGraphNodeTypeConditional
    params.conditional.handle = handle
    params.conditional.size = len(bodies)
    params.conditional.type = {
        "while": kinds.cudaGraphCondTypeWhile,
        "if": kinds.cudaGraphCondTypeIf,
        "switch": kinds.cudaGraphCondTypeSwitch,
    }["if" if only is not None else decision.kind]
    (node,) = _ask(
        _newest("cudaGraphAddNode", "_v2"), graph, waits_for, None, len(waits_for), params
    )
    _ask(
        _newest("cudaStreamUpdateCaptureDependencies", "_v2"),
        stream.cuda_stream,
        [node],
        None,
        1,
        runtime.cudaStreamUpdateCaptureDependenciesFlags.cudaStreamSetCaptureDependencies,
    )
    for body, into in zip(bodies, list(params.conditional.phGraph_out)[: len(bodies)], strict=True):
        with _captured_into(into, index, pool):
            value = body()
            if value is not None:  # the body of a loop
                set_handle(value)


@contextmanager
def _captured_into(graph: Any, index: int, pool: PoolHandle) -> Iterator[None]:
    """Capture into the body ``graph``, with memory of ``pool``."""
    from cuda.bindings import runtime

    depth = _thread.depth
    # Bodies of nodes on two streams may run at the same time. With a stream for each of them,
    # torch's allocator keeps their memory apart as it does outside of bodies.
    outer = torch.cuda.current_stream(index).cuda_stream
    side = own_stream(index, f"bodies of stream {outer} in thread {threading.get_ident()}")
    relaxed = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
    _ask(runtime.cudaStreamBeginCaptureToGraph, side.cuda_stream, graph, None, None, 0, relaxed)
    _thread.depth += 1
    try:
        # torch's allocator lends memory of a pool by the number of the capture, and a body has
        # its own: it would get memory that others get as well while the graph still uses it.
        with nullcontext() if depth else _memory_of(index, pool), torch.cuda.stream(side):
            yield
    except BaseException:
        runtime.cudaStreamEndCapture(side.cuda_stream)  # the first error goes on
        raise
    finally:
        _thread.depth -= 1
    _ask(runtime.cudaStreamEndCapture, side.cuda_stream)


@contextmanager
def _memory_of(index: int, pool: PoolHandle) -> Iterator[None]:
    """Let this thread allocate from ``pool``."""
    torch._C._cuda_beginAllocateCurrentThreadToPool(index, pool)
    try:
        yield
    finally:
        torch._C._cuda_endAllocateToPool(index, pool)
        torch._C._cuda_releasePool(index, pool)  # it counts each beginning; its owner holds it


def _set(
    index: int,
    handle: Any,
    decision: Decision,
    turns: torch.Tensor | None,
    only: int | None,
    value: torch.Tensor,
) -> None:
    """Launch the kernel that sets ``handle`` by ``value``."""
    from cuda.bindings import driver

    flag, number = _kernels(index)
    if decision.kind == "switch":
        kernel, values = number, [int(handle), value.data_ptr(), -1 if only is None else only]
        types = [c_uint64, c_void_p, c_int]
    else:
        at = 0 if turns is None else turns.data_ptr()
        kernel = flag
        values = [int(handle), value.data_ptr(), not only, at, decision.limit or 0]
        types = [c_uint64, c_void_p, c_int, c_void_p, c_int]
    stream = torch.cuda.current_stream(index).cuda_stream
    _ask(
        driver.cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, (tuple(values), tuple(types)), 0
    )


def _capture(stream: torch.cuda.Stream) -> tuple[Any, list[Any]]:
    """The graph into which ``stream`` captures, and the nodes that its next one waits for."""
    found = _ask(_newest("cudaStreamGetCaptureInfo", "_v3"), stream.cuda_stream)
    status, _, graph, nodes, *_, count = found
    if int(status) != _ACTIVE:
        raise CaptureError("a conditional node needs a capture that is under way on this stream.")
    return graph, list((nodes or ())[: int(count)])


@cache
def _kernels(index: int) -> tuple[Any, Any]:
    """The kernels that set a handle, by a flag and by a number."""
    from cuda.bindings import driver, nvrtc, runtime

    major, minor = torch.cuda.get_device_capability(index)
    (program,) = _ask(nvrtc.nvrtcCreateProgram, _SOURCE, b"gfxgraph.cu", 0, None, None)
    options = [f"--gpu-architecture=sm_{major}{minor}".encode()]
    try:
        _ask(nvrtc.nvrtcCompileProgram, program, len(options), options)
    except DeviceError as error:
        (size,) = _ask(nvrtc.nvrtcGetProgramLogSize, program)
        text = bytes(size)
        _ask(nvrtc.nvrtcGetProgramLog, program, text)
        raise DeviceError(f"{error} {text.decode(errors='replace').strip()}") from error
    (size,) = _ask(nvrtc.nvrtcGetCUBINSize, program)
    code = bytes(size)
    _ask(nvrtc.nvrtcGetCUBIN, program, code)
    with torch.cuda.device(index):
        _ask(runtime.cudaSetDevice, index)  # a new thread has no context, which torch sets late
        # To load a module is refused in a capture, which this thread may have under way.
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        (before,) = _ask(driver.cuThreadExchangeStreamCaptureMode, relaxed)
        try:
            (module,) = _ask(driver.cuModuleLoadData, code)
        finally:
            _ask(driver.cuThreadExchangeStreamCaptureMode, before)
    names = (b"gfxgraph_set_flag", b"gfxgraph_set_index")
    flag, number = (_ask(driver.cuModuleGetFunction, module, name)[0] for name in names)
    return flag, number


@cache
def _driver_version() -> int:
    from cuda.bindings import driver

    return int(_ask(driver.cuDriverGetVersion)[0])


def _newest(name: str, version: str) -> Any:
    """The function that tells of the data of edges; in cuda-bindings 13 it has no number."""
    from cuda.bindings import runtime

    return getattr(runtime, name + version, None) or getattr(runtime, name)


def _ask(function: Any, *args: Any) -> Any:
    try:
        error, *found = function(*args)
    except RuntimeError as missing:  # from the bindings: an older driver lacks it
        raise DeviceError(f"{function.__name__}() of CUDA: {missing}") from missing
    if int(error):
        raise DeviceError(f"{function.__name__}() of CUDA: {error}.")
    return found


_ACTIVE = 1  # of cudaStreamCaptureStatus


class _Thread(threading.local):
    depth = 0
    """How many bodies are being captured, one inside of the other."""


_thread = _Thread()
