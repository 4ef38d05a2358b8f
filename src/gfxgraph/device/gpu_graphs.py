"""Changes executables of CUDA graphs in place, and puts graphs into one, through cuda-bindings.

HIP has the same functions. They are not used: reports say that an update of an executable crashes
where memory is short (ROCm/rocm-systems#10021), and no AMD GPU was there to try them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_void_p
from functools import cache
from typing import Any

import torch

from ..errors import DeviceError
from .gpu_nodes import Cuda, driver_of_graphs

__all__ = ["CudaExecutables", "driver_of_executables"]


@cache
def driver_of_executables() -> CudaExecutables:
    """What changes executables on this build of torch.

    Raises:
        DeviceError: it is a build for HIP, or cuda-bindings or the driver is too old.
        MissingPackageError: there is no cuda-bindings.
    """
    if torch.version.hip:
        raise DeviceError("executables of HIP graphs are not changed.")
    found = driver_of_graphs()
    assert isinstance(found, Cuda)
    return CudaExecutables(found)


class _UpdateInfo(ctypes.Structure):
    _fields_ = (("result", c_int), ("node", c_void_p), ("from_node", c_void_p))


class CudaExecutables:
    """See :class:`~gfxgraph.device.base.Executables`."""

    def __init__(self, driver: Cuda) -> None:
        self._ask: Callable[..., Any] = driver.ask
        self._cu = driver.bindings
        try:
            self._update = ctypes.CDLL("libcuda.so.1").cuGraphExecUpdate_v2
        except (OSError, AttributeError) as error:
            raise DeviceError(f"this CUDA driver cannot update executables: {error}.") from error

    def update(self, executable: int, graph: int) -> str:
        """See there."""
        info = _UpdateInfo()
        # Not through cuda-bindings, which leaves out the reason where the driver refuses.
        error = self._update(c_void_p(executable), c_void_p(graph), byref(info))
        if not error:
            return ""
        try:
            why = self._cu.CUgraphExecUpdateResult(info.result).name
        except ValueError:  # of a newer driver
            why = f"result {info.result}"
        return f"cuGraphExecUpdate() of the CUDA driver: error {error}, {why}"

    def compose(
        self, graphs: Sequence[int], after: Sequence[Sequence[int]]
    ) -> tuple[int, list[int], int]:
        """See there."""
        cu, nodes = self._cu, list[Any]()
        (whole,) = self._ask(cu.cuGraphCreate, 0)
        try:
            for graph, earlier in zip(graphs, after, strict=True):
                waits_for = [nodes[n] for n in earlier]
                nodes += self._ask(
                    cu.cuGraphAddChildGraphNode, whole, waits_for, len(waits_for), cu.CUgraph(graph)
                )
            flags = cu.CUgraphInstantiate_flags
            (executable,) = self._ask(
                cu.cuGraphInstantiate,
                whole,
                # As torch does for each graph.
                flags.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
                | flags.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY,
            )
        except DeviceError:
            self._ask(cu.cuGraphDestroy, whole)
            raise
        return int(whole), list(map(int, nodes)), int(executable)

    def replace(self, executable: int, node: int, graph: int) -> None:
        """See there."""
        cu = self._cu
        set_child = cu.cuGraphExecChildGraphNodeSetParams
        self._ask(set_child, cu.CUgraphExec(executable), cu.CUgraphNode(node), cu.CUgraph(graph))

    def launch(self, executable: int, stream: int) -> None:
        """See there."""
        cu = self._cu
        self._ask(cu.cuGraphLaunch, cu.CUgraphExec(executable), cu.CUstream(stream))

    def destroy(self, graph: int, executable: int) -> None:
        """See there."""
        cu = self._cu
        self._ask(cu.cuGraphExecDestroy, cu.CUgraphExec(executable))
        self._ask(cu.cuGraphDestroy, cu.CUgraph(graph))
