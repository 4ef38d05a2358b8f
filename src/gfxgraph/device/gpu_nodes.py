"""What drivers tell of graphs: CUDA's through cuda-bindings, HIP's through HIP itself.

No AMD GPU has run the second part: it follows HIP's headers.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from functools import cache
from typing import Any, Protocol

import torch

from ..errors import DeviceError, MissingPackageError
from .nodes import Node

__all__ = ["CaptureNodes", "Driver", "driver_of_graphs", "nodes_of"]

# By the numbers of cudaGraphNodeType and hipGraphNodeType, which agree up to 11.
_TYPES = (
    "kernel",
    "memcpy",
    "memset",
    "host",
    "child graph",
    "empty",
    "event wait",
    "event record",
    "semaphore signal",
    "semaphore wait",
    "memory alloc",
    "memory free",
)
_OF_CUDA = ("batch of memory operations", "conditional")
_OF_HIP = ("memcpy from symbol", "memcpy to symbol")
_ACTIVE = 1  # of cudaStreamCaptureStatus and hipStreamCaptureStatus
_KERNEL, _MEMCPY, _MEMSET, _CHILD, _ALLOC = 0, 1, 2, 4, 10
_MEMORY_TYPES = {1: "host", 2: "device", 3: "array", 4: "unified"}
_COPY_KINDS = {0: ("host", "host"), 1: ("host", "device"), 2: ("device", "host")}
_COPY_KINDS[3] = ("device", "device")


class Driver(Protocol):
    """What a driver tells of graphs. Graphs, nodes and streams are handles."""

    def version(self) -> int:
        """Its version, as a number of its own kind."""

    def nodes(self, graph: int) -> list[int]:
        """The nodes of a graph."""

    def count(self, graph: int) -> int:
        """How many nodes it has."""

    def edges(self, graph: int) -> list[tuple[int, int]]:
        """Pairs of nodes, of which the second waits for the first."""

    def type(self, node: int) -> tuple[int, str]:
        """Its number of the type of a node, and the word for it."""

    def describe(self, node: int, type: int) -> tuple[str, dict[str, Any]]:
        """The name of a node, and what else is known of it."""

    def child(self, node: int) -> int:
        """The graph of a node that is one."""

    def capture(self, stream: int) -> tuple[int, list[int]]:
        """The graph into which a stream captures, 0: none, and what its next node waits for."""


def nodes_of(driver: Driver, graph: int) -> list[Node]:
    """The nodes of a graph, in the order of the driver.

    Raises:
        DeviceError: the driver does not tell.
    """
    handles = driver.nodes(graph)
    position = {handle: n for n, handle in enumerate(handles)}
    after: list[list[int]] = [[] for _ in handles]
    for first, second in driver.edges(graph):
        if first not in position or second not in position:
            raise DeviceError("the driver tells of an edge between nodes that the graph has not.")
        after[position[second]].append(position[first])
    found = []
    for n, handle in enumerate(handles):
        number, word = driver.type(handle)
        name, details = driver.describe(handle, number)
        children = nodes_of(driver, driver.child(handle)) if number == _CHILD else ()
        waits_for = tuple(sorted(set(after[n])))
        found.append(Node(word, _demangled(name), waits_for, details, tuple(children), handle))
    return found


class CaptureNodes:
    """The nodes of the capture of a stream; see :class:`~gfxgraph.device.nodes.NodesOfCapture`.

    Raises:
        DeviceError: the driver does not tell.
        MissingPackageError: there is no cuda-bindings.
    """

    def __init__(self, stream: int, current: Callable[[], int]) -> None:
        self._driver, self._stream, self._current = driver_of_graphs(), stream, current
        self._graph, _ = self._driver.capture(stream)

    def count(self) -> int:
        """See there."""
        return self._driver.count(self._valid())

    def _valid(self) -> int:
        """The graph. An error that ends a capture may free it before the end."""
        graph, _ = self._driver.capture(self._stream)
        if not graph or graph != self._graph:
            raise DeviceError("the capture is no longer valid, so that its nodes are not known.")
        return graph

    def newest(self) -> list[int]:
        """See there."""
        graph, nodes = self._driver.capture(self._current())
        return nodes if graph == self._graph else []

    def read(self) -> list[Node]:
        """See there."""
        return nodes_of(self._driver, self._valid())


@cache
def driver_of_graphs() -> Driver:
    """The driver of this build of torch.

    Raises:
        DeviceError: HIP is not loaded, or lacks a function.
        MissingPackageError: there is no cuda-bindings.
    """
    if torch.version.hip:
        return Hip(_loaded("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"))
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MissingPackageError(
            "The driver of CUDA is asked through cuda-bindings, which is not installed: "
            f"pip install cuda-bindings~={(torch.version.cuda or '12.9').split('.')[0]}.0"
        ) from error
    return Cuda(driver)


class Cuda:
    """CUDA's driver, as ``cuda.bindings.driver`` has it."""

    def __init__(self, bindings: Any) -> None:
        self.bindings = self._cu = bindings
        # Since CUDA 12.3 edges may carry data, for which the older functions refuse to answer.
        # In cuda-bindings 13 they go without a number.
        if not hasattr(bindings, "cuFuncGetParamInfo"):
            raise DeviceError(
                "this cuda-bindings is too old to tell of kernels: pip install -U cuda-bindings, "
                "of the major version of the driver, from 12.4 on."
            )
        self._edges = self._newest("cuGraphGetEdges", "_v2")
        self._capture = self._newest("cuStreamGetCaptureInfo", "_v3")

    def _newest(self, name: str, version: str) -> Any:
        return getattr(self._cu, name + version, None) or getattr(self._cu, name)

    def ask(self, function: Any, *args: Any) -> Any:
        """What a function of the bindings gives; an error of it is a DeviceError."""
        try:
            error, *found = function(*args)
        except RuntimeError as missing:  # from the bindings: an older driver lacks it
            raise DeviceError(f"{function.__name__}() of the CUDA driver: {missing}") from missing
        if int(error):
            raise DeviceError(f"{function.__name__}() of the CUDA driver: {error}.")
        return found

    def version(self) -> int:
        """See :class:`Driver`."""
        return int(self.ask(self._cu.cuDriverGetVersion)[0])

    def nodes(self, graph: int) -> list[int]:
        """See :class:`Driver`."""
        count = self.count(graph)
        if not count:
            return []
        nodes, _ = self.ask(self._cu.cuGraphGetNodes, self._cu.CUgraph(graph), count)
        return [int(node) for node in nodes[:count]]

    def count(self, graph: int) -> int:
        """See :class:`Driver`."""
        return int(self.ask(self._cu.cuGraphGetNodes, self._cu.CUgraph(graph))[-1])

    def edges(self, graph: int) -> list[tuple[int, int]]:
        """See :class:`Driver`."""
        count = int(self.ask(self._edges, self._cu.CUgraph(graph))[-1])
        if not count:
            return []
        first, second, *_ = self.ask(self._edges, self._cu.CUgraph(graph), count)
        return [(int(a), int(b)) for a, b in zip(first, second, strict=True)][:count]

    def type(self, node: int) -> tuple[int, str]:
        """See :class:`Driver`."""
        (found,) = self.ask(self._cu.cuGraphNodeGetType, self._cu.CUgraphNode(node))
        return int(found), _word(int(found), _OF_CUDA)

    def describe(self, node: int, type: int) -> tuple[str, dict[str, Any]]:
        """See :class:`Driver`."""
        cu, at = self._cu, self._cu.CUgraphNode(node)
        if type == _KERNEL:
            return self._describe_kernel(self.ask(cu.cuGraphKernelNodeGetParams, at)[0])
        if type == _MEMCPY:
            (copy,) = self.ask(cu.cuGraphMemcpyNodeGetParams, at)
            return "", {
                "bytes": copy.WidthInBytes * max(1, copy.Height) * max(1, copy.Depth),
                "from": _MEMORY_TYPES.get(int(copy.srcMemoryType), "unknown"),
                "to": _MEMORY_TYPES.get(int(copy.dstMemoryType), "unknown"),
            }
        if type == _MEMSET:
            (fill,) = self.ask(cu.cuGraphMemsetNodeGetParams, at)
            return "", _of_memset(fill)
        if type == _ALLOC:
            (alloc,) = self.ask(cu.cuGraphMemAllocNodeGetParams, at)
            return "", {"bytes": int(alloc.bytesize)}
        return "", {}

    def _describe_kernel(self, params: Any) -> tuple[str, dict[str, Any]]:
        cu, sizes = self._cu, list[int]()
        # A kernel of a library that is loaded late has no function yet.
        by_function = bool(int(params.func))
        kernel = params.func if by_function else params.kern
        size_of = cu.cuFuncGetParamInfo if by_function else cu.cuKernelGetParamInfo
        (name,) = self.ask(cu.cuFuncGetName if by_function else cu.cuKernelGetName, kernel)
        with suppress(DeviceError):  # it has no other way to say how many there are
            while True:
                sizes.append(int(self.ask(size_of, kernel, len(sizes))[1]))
        return name.decode() if isinstance(name, bytes) else str(name), {
            "grid": [params.gridDimX, params.gridDimY, params.gridDimZ],
            "block": [params.blockDimX, params.blockDimY, params.blockDimZ],
            "shared_bytes": params.sharedMemBytes,
            "parameter_bytes": sizes,
        }

    def child(self, node: int) -> int:
        """See :class:`Driver`."""
        found = self.ask(self._cu.cuGraphChildGraphNodeGetGraph, self._cu.CUgraphNode(node))
        return int(found[0])

    def capture(self, stream: int) -> tuple[int, list[int]]:
        """See :class:`Driver`."""
        found = self.ask(self._capture, self._cu.CUstream(stream))
        status, _, graph, nodes, *_, count = found
        if int(status) != _ACTIVE:
            return 0, []
        return int(graph), [int(node) for node in (nodes or ())[: int(count)]]


class _Dim3(ctypes.Structure):
    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint))


class _KernelParams(ctypes.Structure):
    _fields_ = (
        ("block", _Dim3),
        ("extra", c_void_p),
        ("func", c_void_p),
        ("grid", _Dim3),
        ("kernel_params", c_void_p),
        ("shared_bytes", c_uint),
    )


class _MemsetParams(ctypes.Structure):
    _fields_ = (
        ("dst", c_void_p),
        ("elementSize", c_uint),
        ("height", c_size_t),
        ("pitch", c_size_t),
        ("value", c_uint),
        ("width", c_size_t),
    )


_End = c_size_t * 8  # an array, a position of three numbers, a pointer with three


class _MemcpyParams(ctypes.Structure):
    _fields_ = (("src", _End), ("dst", _End), ("extent", c_size_t * 3), ("kind", c_int))


class Hip:
    """HIP's runtime, as ``libamdhip64`` has it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._hip = library
        try:
            for name in _FUNCTIONS_OF_HIP:
                getattr(library, name).restype = c_int
            library.hipKernelNameRefByPtr.restype = c_char_p
        except AttributeError as error:
            raise DeviceError(f"This HIP cannot tell of graphs: {error}.") from error

    def _ask(self, name: str, *args: Any) -> None:
        error = getattr(self._hip, name)(*args)
        if error:
            raise DeviceError(f"{name}() of HIP: error {error}.")

    def version(self) -> int:
        """See :class:`Driver`."""
        found = c_int()
        self._ask("hipRuntimeGetVersion", byref(found))
        return found.value

    def nodes(self, graph: int) -> list[int]:
        """See :class:`Driver`."""
        count = c_size_t(self.count(graph))
        found = (c_void_p * count.value)()
        if count.value:
            self._ask("hipGraphGetNodes", c_void_p(graph), found, byref(count))
        return _handles("hipGraphGetNodes", found[:], count.value)

    def count(self, graph: int) -> int:
        """See :class:`Driver`."""
        count = c_size_t()
        self._ask("hipGraphGetNodes", c_void_p(graph), None, byref(count))
        return count.value

    def edges(self, graph: int) -> list[tuple[int, int]]:
        """See :class:`Driver`."""
        count = c_size_t()
        self._ask("hipGraphGetEdges", c_void_p(graph), None, None, byref(count))
        first, second = (c_void_p * count.value)(), (c_void_p * count.value)()
        if count.value:
            self._ask("hipGraphGetEdges", c_void_p(graph), first, second, byref(count))
        ends = (_handles("hipGraphGetEdges", found[:], count.value) for found in (first, second))
        return list(zip(*ends, strict=True))

    def type(self, node: int) -> tuple[int, str]:
        """See :class:`Driver`."""
        found = c_int()
        self._ask("hipGraphNodeGetType", c_void_p(node), byref(found))
        return found.value, _word(found.value, _OF_HIP)

    def describe(self, node: int, type: int) -> tuple[str, dict[str, Any]]:
        """See :class:`Driver`. HIP does not tell the sizes of parameters and allocations."""
        if type == _KERNEL:
            kernel = _KernelParams()
            self._ask("hipGraphKernelNodeGetParams", c_void_p(node), byref(kernel))
            # Of one that a program loaded as a module it is none, and what would tell its name
            # ends the process for the others.
            name = self._hip.hipKernelNameRefByPtr(c_void_p(kernel.func), None)
            return (name or b"").decode(), {
                "grid": [kernel.grid.x, kernel.grid.y, kernel.grid.z],
                "block": [kernel.block.x, kernel.block.y, kernel.block.z],
                "shared_bytes": kernel.shared_bytes,
            }
        if type == _MEMCPY:
            copy = _MemcpyParams()
            self._ask("hipGraphMemcpyNodeGetParams", c_void_p(node), byref(copy))
            width, height, depth = copy.extent
            source, target = _COPY_KINDS.get(copy.kind, ("unknown", "unknown"))
            size = width * max(1, height) * max(1, depth)
            return "", {"bytes": size, "from": source, "to": target}
        if type == _MEMSET:
            fill = _MemsetParams()
            self._ask("hipGraphMemsetNodeGetParams", c_void_p(node), byref(fill))
            return "", _of_memset(fill)
        return "", {}

    def child(self, node: int) -> int:
        """See :class:`Driver`."""
        graph = c_void_p()
        self._ask("hipGraphChildGraphNodeGetGraph", c_void_p(node), byref(graph))
        return _handles("hipGraphChildGraphNodeGetGraph", [graph.value], 1)[0]

    def capture(self, stream: int) -> tuple[int, list[int]]:
        """See :class:`Driver`."""
        status, number, graph = c_int(), c_ulonglong(), c_void_p()
        nodes, count = ctypes.POINTER(c_void_p)(), c_size_t()
        out = map(byref, (status, number, graph, nodes, count))
        self._ask("hipStreamGetCaptureInfo_v2", c_void_p(stream), *out)
        if status.value != _ACTIVE:
            return 0, []
        (found,) = _handles("hipStreamGetCaptureInfo_v2", [graph.value], 1)
        if count.value > self.count(found) or (count.value and not nodes):
            raise _nonsense("hipStreamGetCaptureInfo_v2", f"{count.value} nodes that are not there")
        waits_for = nodes[: count.value] if count.value else []
        return found, _handles("hipStreamGetCaptureInfo_v2", waits_for, count.value)


_FUNCTIONS_OF_HIP = (
    "hipRuntimeGetVersion",
    "hipGraphGetNodes",
    "hipGraphGetEdges",
    "hipGraphNodeGetType",
    "hipGraphKernelNodeGetParams",
    "hipGraphMemcpyNodeGetParams",
    "hipGraphMemsetNodeGetParams",
    "hipGraphChildGraphNodeGetGraph",
    "hipStreamGetCaptureInfo_v2",
)


def _loaded(*names: str) -> ctypes.CDLL:
    """The library that torch has loaded: a second copy would not know its graphs."""
    for name in names:
        try:
            return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:
            continue
    raise DeviceError(f"none of {', '.join(names)} is loaded, so HIP cannot tell of its graphs.")


def _handles(name: str, found: Sequence[int | None], count: int) -> list[int]:
    """The first ``count`` of the handles that ``name`` gave."""
    handles = [handle or 0 for handle in found[:count]]
    if len(handles) != count or not all(handles):
        raise _nonsense(name, f"{count} handles, of which {sum(map(bool, handles))} are there")
    return handles


def _nonsense(name: str, what: str) -> DeviceError:
    return DeviceError(f"{name}() of HIP says that there are {what}.")


def _of_memset(fill: Any) -> dict[str, Any]:
    size = fill.elementSize * fill.width * max(1, fill.height)
    return {"bytes": size, "value": fill.value, "element_bytes": fill.elementSize}


def _word(number: int, further: tuple[str, ...]) -> str:
    words = (*_TYPES, *further)
    return words[number] if number < len(words) else f"type {number}"


def _demangled(name: str) -> str:
    """The name as C++ writes it; some compilers add to it after a dot."""
    demangle = getattr(torch._C, "_demangle", None)
    return str(demangle(name)) if demangle is not None and name.startswith("_Z") else name
