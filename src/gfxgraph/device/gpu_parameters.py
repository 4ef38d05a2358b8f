"""Reads the parameters of the nodes of a CUDA graph, and changes those of its executable.

Through ``libcuda`` itself: a call that changes a node takes 1 us, with the objects of cuda-bindings
it would take several. The nodes are those that cuda-bindings tells of.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_void_p, string_at
from functools import cache
from typing import Any

from ..errors import DeviceError
from .gpu_nodes import driver_of_graphs, nodes_of
from .nodes import Node, Parameters, Place

__all__ = ["CudaBinder", "parameters_of"]

_WORD = 8
# Of CUDA_MEMCPY3D and CUDA_MEMSET_NODE_PARAMS.
_BYTES_OF_COPY, _BYTES_OF_FILL = 200, 40
# What comes next in the list ``extra`` of a kernel.
_END, _BUFFER, _BYTES_OF_BUFFER = 0, 1, 2


class _Kernel(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS, of its second version."""

    _fields_ = (
        ("func", c_void_p),
        ("dimensions", c_uint * 7),
        ("params", c_void_p),
        ("extra", c_void_p),
        ("kern", c_void_p),
        ("ctx", c_void_p),
    )


@cache
def _driver() -> Any:
    """The driver that torch uses.

    Raises:
        DeviceError: it lacks a function.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
        for name in _FUNCTIONS:
            getattr(library, name).restype = c_int
        for name in ("cuFuncGetParamInfo", "cuKernelGetParamInfo"):
            getattr(library, name).argtypes = c_void_p, c_size_t, c_void_p, c_void_p
        library.cuGraphExecKernelNodeSetParams_v2.argtypes = c_void_p, c_void_p, c_void_p
        library.cuGraphExecMemcpyNodeSetParams.argtypes = (c_void_p,) * 4
    except (OSError, AttributeError) as error:
        raise DeviceError(f"this driver cannot change the parameters of graphs: {error}") from error
    return library


_FUNCTIONS = (
    "cuCtxGetCurrent",
    "cuFuncGetParamInfo",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphExecMemcpyNodeSetParams",
    "cuGraphKernelNodeGetParams_v2",
    "cuGraphMemcpyNodeGetParams",
    "cuGraphMemsetNodeGetParams",
    "cuKernelGetParamInfo",
)


def _ask(name: str, *args: Any) -> None:
    error = getattr(_driver(), name)(*args)
    if error:
        raise DeviceError(f"{name}() of the CUDA driver: error {error}.")


def parameters_of(graph: Any) -> list[Parameters]:
    """Those of all nodes of a ``torch.cuda.CUDAGraph`` with ``keep_graph=True``.

    Raises:
        DeviceError: the driver does not tell.
        MissingPackageError: there is no cuda-bindings.
    """
    return list(map(_parameters, nodes_of(driver_of_graphs(), graph.raw_cuda_graph())))


def _parameters(node: Node) -> Parameters:
    if node.type == "kernel":
        return _of_kernel(node)
    if node.type == "memcpy":
        return Parameters(node, _read("cuGraphMemcpyNodeGetParams", node, _BYTES_OF_COPY))
    if node.type == "memset":
        return Parameters(node, _read("cuGraphMemsetNodeGetParams", node, _BYTES_OF_FILL))
    return Parameters(node, b"")


def _read(name: str, node: Node, size: int) -> bytes:
    found = (c_char * size)()
    _ask(name, c_void_p(node.handle), found)
    return found.raw


def _of_kernel(node: Node) -> Parameters:
    kernel = _kernel(node)
    if not kernel.params and kernel.extra:
        address, size = _buffer(kernel.extra)
        return Parameters(node, _padded(string_at(address, size)), (size,), is_buffer=True)
    sizes = _sizes(kernel)
    if sizes and not kernel.params:
        raise DeviceError(f"the driver does not tell the parameters of the kernel {node.name}.")
    addresses = (c_void_p * len(sizes)).from_address(kernel.params) if sizes else ()
    parts = [
        _padded(string_at(address, size)) for address, size in zip(addresses, sizes, strict=True)
    ]
    return Parameters(node, b"".join(parts), tuple(sizes))


def _kernel(node: Node) -> _Kernel:
    kernel = _Kernel()
    _ask("cuGraphKernelNodeGetParams_v2", c_void_p(node.handle), byref(kernel))
    return kernel


def _sizes(kernel: _Kernel) -> list[int]:
    """Bytes of each of its parameters."""
    # A kernel of a library that is loaded late has no function yet.
    name = "cuFuncGetParamInfo" if kernel.func else "cuKernelGetParamInfo"
    found: list[int] = []
    offset, size = c_size_t(), c_size_t()
    with suppress(DeviceError):  # it has no other way to say how many there are
        while True:
            _ask(name, kernel.func or kernel.kern, len(found), byref(offset), byref(size))
            found.append(size.value)
    return found


def _buffer(extra: int) -> tuple[int, int]:
    """Address and bytes of the buffer in a list ``extra``."""
    address = size = 0
    for at in range(extra, extra + 6 * _WORD, 2 * _WORD):
        what = c_uint64.from_address(at).value
        if what == _END:
            break
        value = c_uint64.from_address(at + _WORD).value
        if what == _BUFFER:
            address = value
        elif what == _BYTES_OF_BUFFER:
            size = c_size_t.from_address(value).value
    if not address or not size:
        raise DeviceError("the driver does not tell the parameters of a kernel.")
    return address, size


def _padded(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // _WORD) * _WORD, b"\0")


class CudaBinder:
    """See :class:`~gfxgraph.device.nodes.Binder`.

    Args:
        graph: the graph, with ``keep_graph=True`` and instantiated: its nodes name those of the
            executable. It was launched before: changes made before the executable is on the device
            are reported to slow every later launch.
        nodes: the parameters of its nodes.
        places: where addresses of inputs are in there.

    Raises:
        DeviceError: the driver does not tell.
    """

    def __init__(self, graph: Any, nodes: Sequence[Parameters], places: Sequence[Place]) -> None:
        self._graph = graph  # which holds its executable
        exec_, driver = c_void_p(graph.raw_cuda_graph_exec()), _driver()
        context = c_void_p()
        _ask("cuCtxGetCurrent", byref(context))
        self._cells: list[tuple[c_uint64, int, int]] = []
        self._changes: list[tuple[Any, tuple[c_void_p, ...]]] = []
        self._kept: list[Any] = []
        self._bound: dict[int, int] | None = None
        for position in sorted({place.node for place in places}):
            found = nodes[position]
            data = (c_char * max(1, len(found.data))).from_buffer_copy(found.data or b"\0")
            self._cells += [
                (c_uint64.from_buffer(data, place.offset), place.number, place.distance)
                for place in places
                if place.node == position
            ]
            handle, args = c_void_p(found.node.handle), tuple[c_void_p, ...]()
            if found.node.type == "memcpy":
                change = driver.cuGraphExecMemcpyNodeSetParams
                args = (exec_, handle, c_void_p(ctypes.addressof(data)), context)
            else:
                kernel = self._kernel(found, data)
                change = driver.cuGraphExecKernelNodeSetParams_v2
                args = (exec_, handle, c_void_p(ctypes.addressof(kernel)))
            self._changes.append((change, args))
            self._kept.append(data)

    def _kernel(self, found: Parameters, data: Any) -> _Kernel:
        """What the driver takes for a kernel whose parameters lie in ``data``."""
        kernel, at = _kernel(found.node), ctypes.addressof(data)
        if found.is_buffer:
            size = c_size_t(found.sizes[0])
            extra = (c_void_p * 5)(_BUFFER, at, _BYTES_OF_BUFFER, ctypes.addressof(size), _END)
            kernel.params, kernel.extra = None, ctypes.addressof(extra)
            self._kept += [kernel, size, extra]
            return kernel
        starts = []
        for size_of_one in found.sizes:
            starts.append(at)
            at += -(-size_of_one // _WORD) * _WORD
        params = (c_void_p * len(starts))(*starts)
        kernel.params, kernel.extra = ctypes.addressof(params), None
        self._kept += [kernel, params]
        return kernel

    def __call__(self, addresses: dict[int, int]) -> bool:
        """See there."""
        if addresses == self._bound:
            return True
        self._bound = None  # until all is changed: an interrupt may come in between
        for cell, number, distance in self._cells:
            cell.value = addresses[number] + distance
        for change, args in self._changes:
            if change(*args):
                return False
        self._bound = addresses
        return True
