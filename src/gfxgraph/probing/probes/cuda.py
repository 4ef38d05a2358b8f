"""CUDA's driver for probes: graphs made node by node, with kernels of a few lines."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from ...errors import DeviceError

__all__ = ["Cuda", "NotSupported"]

# cuda-bindings of CUDA 12 have the functions that take data of edges under names with a number;
# in those of CUDA 13 they go without.
_WITH_EDGES = {
    "cuGraphAddDependencies": "_v2",
    "cuGraphAddNode": "_v2",
    "cuGraphGetEdges": "_v2",
    "cuStreamGetCaptureInfo": "_v3",
    "cuStreamUpdateCaptureDependencies": "_v2",
}

_KERNELS = b"""
extern "C" __global__ void add(int* p, int v) { *p += v; }
extern "C" __global__ void scale(int* p, int v) { *p *= v; }
extern "C" __global__ void total(int* out, const int* a, const int* b) { *out = *a + *b; }
extern "C" __global__ void slow_set(int* p, int v) {
    long long end = clock64() + 20000000;
    while (clock64() < end) { }
    *p = v;
}
"""

_CONDITIONS = b"""
extern "C" __device__ __cudart_builtin__ void CUDARTAPI
cudaGraphSetConditional(unsigned long long handle, unsigned int value);
extern "C" __global__ void decide(unsigned long long handle, const int* p) {
    cudaGraphSetConditional(handle, *p);
}
extern "C" __global__ void count_down(unsigned long long handle, int* p) {
    *p -= 1;
    cudaGraphSetConditional(handle, *p > 0);
}
"""

_FROM_THE_DEVICE = b"""
extern "C" __device__ __cudart_builtin__ int CUDARTAPI cudaGraphLaunch(void* graph, void* stream);
extern "C" __global__ void launch_after(unsigned long long graph, int* status) {
    *status = cudaGraphLaunch((void*)graph, (void*)0x0100000000000000ull);
}
"""

_OVERLAPPING = b"""
__device__ unsigned long long now() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
extern "C" __global__ void first(int* p, unsigned long long* times) {
    asm volatile("griddepcontrol.launch_dependents;");
    long long end = clock64() + 20000000;
    while (clock64() < end) { }
    *p = 42;
    times[0] = now();
}
extern "C" __global__ void second(const int* p, int* out, unsigned long long* times) {
    times[1] = now();
    asm volatile("griddepcontrol.wait;");
    *out = *p;
}
"""

_SOURCES = {
    **dict.fromkeys(("add", "scale", "total", "slow_set"), _KERNELS),
    **dict.fromkeys(("decide", "count_down"), _CONDITIONS),
    "launch_after": _FROM_THE_DEVICE,
    **dict.fromkeys(("first", "second"), _OVERLAPPING),
}


class NotSupported(DeviceError):
    """The driver lacks a function, or says that it does not support it."""


class Cuda:
    """The driver; calling it calls one of its functions. What is made is freed with the process.

    Raises:
        ImportError: there is no cuda-bindings.
    """

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.api: Any = driver
        torch.zeros(1, device="cuda")  # its context becomes the current one
        torch.cuda.synchronize()
        self.context = self("cuCtxGetCurrent")

    def __call__(self, name: str, *args: Any) -> Any:
        """Call a function of the driver: its result, several as a tuple, or ``None``.

        Raises:
            NotSupported: it is not there.
            DeviceError: it reports an error.
        """
        function = getattr(self.api, name + _WITH_EDGES.get(name, "_v2"), None)
        if name not in _WITH_EDGES or function is None:
            function = getattr(self.api, name, None)
        if function is None:
            raise NotSupported(f"cuda-bindings has no {name}: pip install -U cuda-bindings")
        try:
            error, *found = function(*args)
        except RuntimeError as missing:  # from the bindings
            raise NotSupported(f"the driver has no {name}: {missing}") from missing
        if int(error):
            kind = NotSupported if error.name == "CUDA_ERROR_NOT_SUPPORTED" else DeviceError
            raise kind(f"{name}() of the driver: {error.name}")
        return found[0] if len(found) == 1 else tuple(found) or None

    def version(self) -> tuple[int, int]:
        """The version of CUDA that the driver has: ``(13, 0)``."""
        number = int(self("cuDriverGetVersion"))
        return number // 1000, number % 1000 // 10

    def graph(self) -> Any:
        """A new graph."""
        return self("cuGraphCreate", 0)

    def kernel(self, graph: Any, after: list[Any], name: str, *args: Any) -> Any:
        """Add a node that runs one of our kernels, with one thread."""
        params = self.kernel_params(name, *args)
        return self("cuGraphAddKernelNode", graph, after, len(after), params)

    def kernel_params(self, name: str, *args: Any) -> Any:
        """The parameters of such a node; arguments are tensors, numbers, or objects of ctypes."""
        params = self.api.CUDA_KERNEL_NODE_PARAMS()
        params.func = self.function(name)
        params.gridDimX = params.gridDimY = params.gridDimZ = 1
        params.blockDimX = params.blockDimY = params.blockDimZ = 1
        params.sharedMemBytes = 0
        params.kernelParams = arguments(*args)
        return params

    def function(self, name: str) -> Any:
        """One of our kernels, compiled for this GPU."""
        return self("cuModuleGetFunction", self._module(_SOURCES[name]), name.encode())

    @cache  # noqa: B019 - one driver a process
    def _module(self, source: bytes) -> Any:
        return self("cuModuleLoadData", _compiled(source))

    def launch_kernel(self, stream: Any, name: str, *args: Any) -> None:
        """Launch one of our kernels, or capture it."""
        given = arguments(*args)
        self("cuLaunchKernel", self.function(name), 1, 1, 1, 1, 1, 1, 0, stream, given, 0)

    def copy_params(self, target: int, source: int, size: int, host: bool = False) -> Any:
        """The parameters of a copy of ``size`` bytes to device memory, or to the host's."""
        params, kind = self.api.CUDA_MEMCPY3D(), self.api.CUmemorytype
        params.srcMemoryType, params.srcDevice = kind.CU_MEMORYTYPE_DEVICE, source
        if host:
            params.dstMemoryType, params.dstHost = kind.CU_MEMORYTYPE_HOST, target
        else:
            params.dstMemoryType, params.dstDevice = kind.CU_MEMORYTYPE_DEVICE, target
        params.WidthInBytes, params.Height, params.Depth = size, 1, 1
        return params

    def copy(
        self, graph: Any, after: list[Any], target: int, source: int, size: int, host: bool = False
    ) -> Any:
        """Add a node that copies; see :meth:`copy_params`."""
        made = self.copy_params(target, source, size, host)
        return self("cuGraphAddMemcpyNode", graph, after, len(after), made, self.context)

    def fill_params(self, target: int, value: int, count: int) -> Any:
        """The parameters of a node that sets ``count`` numbers of 4 bytes."""
        params = self.api.CUDA_MEMSET_NODE_PARAMS()
        params.dst, params.value, params.elementSize = target, value, 4
        params.width, params.height, params.pitch = count, 1, 0
        return params

    def fill(self, graph: Any, after: list[Any], target: int, value: int, count: int) -> Any:
        """Add such a node."""
        made = self.fill_params(target, value, count)
        return self("cuGraphAddMemsetNode", graph, after, len(after), made, self.context)

    def executable(self, graph: Any, flags: int = 0) -> Any:
        """Instantiate a graph."""
        return self("cuGraphInstantiate", graph, flags)

    def stream(self) -> Any:
        """A new stream."""
        return self("cuStreamCreate", self.api.CUstream_flags.CU_STREAM_NON_BLOCKING)

    def run(self, executable: Any, stream: Any = 0) -> None:
        """Launch, and wait."""
        self("cuGraphLaunch", executable, stream)
        torch.cuda.synchronize()

    def begin(self, stream: Any, mode: str = "RELAXED") -> None:
        """Begin a capture."""
        self("cuStreamBeginCapture", stream, self.mode(mode))

    def end(self, stream: Any) -> Any:
        """End a capture: its graph."""
        return self("cuStreamEndCapture", stream)

    def mode(self, name: str) -> Any:
        """A mode of captures."""
        return getattr(self.api.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{name}")


def arguments(*args: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Arguments of a kernel, as cuda-bindings takes them: values, and their types."""
    pairs: list[tuple[Any, Any]] = []
    for one in args:
        if isinstance(one, torch.Tensor):
            pairs.append((one.data_ptr(), ctypes.c_void_p))
        elif isinstance(one, int):
            pairs.append((one, ctypes.c_int))
        else:
            pairs.append((one.value, type(one)))
    values, types = zip(*pairs, strict=True)
    return values, types


@cache
def _compiled(source: bytes) -> bytes:
    """Machine code for this GPU."""
    from cuda.bindings import nvrtc

    def ask(name: str, *args: Any) -> Any:
        error, *found = getattr(nvrtc, name)(*args)
        if int(error):
            raise DeviceError(f"{name}() of NVRTC: {error.name}")
        return found[0] if found else None

    major, minor = torch.cuda.get_device_capability()
    program = ask("nvrtcCreateProgram", source, b"probe.cu", 0, [], [])
    ask("nvrtcCompileProgram", program, 1, [f"--gpu-architecture=sm_{major}{minor}".encode()])
    code = b" " * int(ask("nvrtcGetCUBINSize", program))
    ask("nvrtcGetCUBIN", program, code)
    return code
