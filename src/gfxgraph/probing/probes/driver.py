"""Graphs made node by node, and what can be changed in them: each row asks the CUDA driver."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ...device.gpu_nodes import driver_of_graphs, nodes_of
from ...errors import DeviceError
from .cuda import Cuda, arguments
from .here import Absent, Here, Unprobed, probe

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_kept: list[Any] = []  # callbacks, which the driver may call until the process ends


def _ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def _callback(function: Any) -> Any:
    """A function of Python as an address in C."""
    _kept.append(_CALLBACK(lambda _: function()))
    return ctypes.cast(_kept[-1], ctypes.c_void_p).value


def _adding(cuda: Cuda, p: torch.Tensor, by: int = 1) -> tuple[Any, Any]:
    """A graph of one kernel, and its node."""
    graph = cuda.graph()
    return graph, cuda.kernel(graph, [], "add", p, by)


@probe
def graph(here: Here) -> None:
    """A graph is made, holds nodes, and is destroyed."""
    cuda = here.cuda
    made = cuda.graph()
    here.equal("nodes of a new graph:", int(cuda("cuGraphGetNodes", made)[-1]), 0)
    cuda("cuGraphAddEmptyNode", made, [], 0)
    here.equal("after one is added:", int(cuda("cuGraphGetNodes", made)[-1]), 1)
    executable = cuda.executable(made)
    cuda("cuGraphExecDestroy", executable)
    cuda("cuGraphDestroy", made)


@probe
def launch(here: Here) -> None:
    """Launches are work of a stream: in order with what is before and after."""
    cuda, p = here.cuda, _ints(0)
    executable, stream = cuda.executable(_adding(cuda, p)[0]), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        cuda("cuGraphLaunch", executable, stream.cuda_stream)
        p.mul_(10)
        cuda("cuGraphLaunch", executable, stream.cuda_stream)
    torch.cuda.synchronize()
    here.equal("launch, times 10, launch gives", p, [11])


@probe
def kernel_node(here: Here) -> None:
    """Two kernels, of which one waits for the other."""
    cuda, p = here.cuda, _ints(2)
    made, first = _adding(cuda, p, 3)
    cuda.kernel(made, [first], "scale", p, 5)
    cuda.run(cuda.executable(made))
    here.equal("(2 + 3) * 5 gives", p, [25])


@probe
def memcpy_node(here: Here) -> None:
    """Copies on the device, and from it to pinned memory."""
    cuda, source, target = here.cuda, _ints(1, 2, 3), _ints(0, 0, 0)
    pinned = torch.zeros(3, dtype=torch.int32, pin_memory=True)
    made = cuda.graph()
    first = cuda.copy(made, [], target.data_ptr(), source.data_ptr(), 12)
    cuda.copy(made, [first], pinned.data_ptr(), target.data_ptr(), 12, host=True)
    executable = cuda.executable(made)
    cuda.run(executable)
    source.add_(10)
    torch.cuda.synchronize()
    cuda.run(executable)
    here.equal("the second launch copies", target, [11, 12, 13])
    here.equal("and to the host", pinned, [11, 12, 13])


@probe
def memset_node(here: Here) -> None:
    """Memory is filled."""
    cuda, p = here.cuda, _ints(1, 2, 3)
    made = cuda.graph()
    cuda.fill(made, [], p.data_ptr(), 7, 2)
    cuda.run(cuda.executable(made))
    here.equal("two of three numbers are filled:", p, [7, 7, 3])


@probe
def host_node(here: Here) -> None:
    """A function of the host runs between two nodes, at each launch."""
    cuda, p, seen = here.cuda, _ints(0), []
    pinned = torch.zeros(1, dtype=torch.int32, pin_memory=True)
    made, first = _adding(cuda, p)
    copied = cuda.copy(made, [first], pinned.data_ptr(), p.data_ptr(), 4, host=True)
    params = cuda.api.CUDA_HOST_NODE_PARAMS()
    params.fn = cuda.api.CUhostFn(_callback(lambda: seen.append(pinned.item())))
    params.userData = 0
    cuda("cuGraphAddHostNode", made, [copied], 1, params)
    executable = cuda.executable(made)
    for _ in range(3):
        cuda.run(executable)
    here.equal("the host saw at three launches", seen, [1, 2, 3])


@probe
def empty_node(here: Here) -> None:
    """A node that does nothing joins two branches."""
    cuda, a, b, out = here.cuda, _ints(0), _ints(0), _ints(0)
    made = cuda.graph()
    branches = [cuda.kernel(made, [], "slow_set", a, 1), cuda.kernel(made, [], "slow_set", b, 2)]
    joined = cuda("cuGraphAddEmptyNode", made, branches, 2)
    cuda.kernel(made, [joined], "total", out, a, b)
    cuda.run(cuda.executable(made))
    here.equal("what waits for both slow branches sees", out, [3])


@probe
def event_nodes(here: Here) -> None:
    """One graph records an event, another one, on another stream, waits for it."""
    cuda, p, out = here.cuda, _ints(0), _ints(0)
    event = cuda("cuEventCreate", 0)
    records, waits = cuda.graph(), cuda.graph()
    slow = cuda.kernel(records, [], "slow_set", p, 5)
    cuda("cuGraphAddEventRecordNode", records, [slow], 1, event)
    waited = cuda("cuGraphAddEventWaitNode", waits, [], 0, event)
    cuda.copy(waits, [waited], out.data_ptr(), p.data_ptr(), 4)
    first, second = cuda.executable(records), cuda.executable(waits)
    cuda("cuGraphLaunch", first, cuda.stream())
    cuda("cuGraphLaunch", second, cuda.stream())
    torch.cuda.synchronize()
    here.equal("a graph on another stream sees what the slow one wrote:", out, [5])


@probe
def clone(here: Here) -> None:
    """A copy of a graph is changed, and the original is not."""
    cuda, p = here.cuda, _ints(0)
    made, node = _adding(cuda, p)
    copy = cuda("cuGraphClone", made)
    same = cuda("cuGraphNodeFindInClone", node, copy)
    cuda("cuGraphKernelNodeSetParams", same, cuda.kernel_params("add", p, 100))
    cuda.run(cuda.executable(copy))
    cuda.run(cuda.executable(made))
    here.equal("the changed copy adds 100, the original 1:", p, [101])


@probe
def child_graph(here: Here) -> None:
    """A graph is a node of another."""
    cuda, p = here.cuda, _ints(0)
    child, made = _adding(cuda, p)[0], cuda.graph()
    first = cuda("cuGraphAddChildGraphNode", made, [], 0, child)
    scaled = cuda.kernel(made, [first], "scale", p, 10)
    cuda("cuGraphAddChildGraphNode", made, [scaled], 1, child)
    cuda.run(cuda.executable(made))
    here.equal("child, times 10, child gives", p, [11])


@probe
def exec_update(here: Here) -> None:
    """An executable takes over another graph of the same shape, and no other."""
    cuda, p = here.cuda, _ints(0)
    executable = cuda.executable(_adding(cuda, p)[0])
    cuda("cuGraphExecUpdate", executable, _adding(cuda, p, 7)[0])
    cuda.run(executable)
    here.equal("after the update a launch adds", p, [7])
    other, node = _adding(cuda, p, 9)
    cuda.kernel(other, [node], "add", p, 9)
    here.refused(
        "a graph with a node more is",
        lambda: cuda("cuGraphExecUpdate", executable, other),
        DeviceError,
    )
    cuda.run(executable)
    here.equal("and then it still adds 7:", p, [14])


@probe
def kernel_params(here: Here) -> None:
    """The arguments of a kernel change in the executable."""
    cuda, p, other = here.cuda, _ints(0), _ints(0)
    made, node = _adding(cuda, p)
    executable = cuda.executable(made)
    cuda.run(executable)
    params = cuda.kernel_params("add", other, 7)
    cuda("cuGraphExecKernelNodeSetParams", executable, node, params)
    cuda.run(executable)
    here.equal("another address and number:", [p, other], [[1], [7]])


@probe
def copy_params(here: Here) -> None:
    """The addresses of a copy, and the value of a memset, change in the executable."""
    cuda, a, b, target, filled = here.cuda, _ints(1), _ints(2), _ints(0), _ints(0)
    made = cuda.graph()
    copied = cuda.copy(made, [], target.data_ptr(), a.data_ptr(), 4)
    fill = cuda.fill(made, [], filled.data_ptr(), 3, 1)
    executable = cuda.executable(made)
    cuda.run(executable)
    here.equal("before:", [target, filled], [[1], [3]])
    params = cuda.copy_params(target.data_ptr(), b.data_ptr(), 4)
    cuda("cuGraphExecMemcpyNodeSetParams", executable, copied, params, cuda.context)
    params = cuda.fill_params(filled.data_ptr(), 4, 1)
    cuda("cuGraphExecMemsetNodeSetParams", executable, fill, params, cuda.context)
    cuda.run(executable)
    here.equal("after:", [target, filled], [[2], [4]])


@probe
def node_enabled(here: Here) -> None:
    """A node of an executable is switched off, and on again."""
    cuda, p = here.cuda, _ints(0)
    made, node = _adding(cuda, p)
    executable, seen = cuda.executable(made), []
    for enabled in (1, 0, 1):
        cuda("cuGraphNodeSetEnabled", executable, node, enabled)
        cuda.run(executable)
        seen.append(p.item())
    here.equal("on, off, on gives", seen, [1, 1, 2])


@probe
def kernel_attributes(here: Here) -> None:
    """A kernel node has a priority, which another takes over."""
    cuda, p = here.cuda, _ints(0)
    made, node = _adding(cuda, p)
    other = cuda.kernel(made, [node], "add", p, 1)
    priority = cuda.api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PRIORITY
    _, highest = cuda("cuCtxGetStreamPriorityRange")
    value = cuda.api.CUkernelNodeAttrValue()
    value.priority = highest
    cuda("cuGraphKernelNodeSetAttribute", node, priority, value)
    cuda("cuGraphKernelNodeCopyAttributes", other, node)
    found = cuda("cuGraphKernelNodeGetAttribute", other, priority).priority
    here.equal("the priority that was copied:", int(found), int(highest))
    cuda.run(cuda.executable(made))
    here.equal("a launch gives", p, [2])


@probe
def user_objects(here: Here) -> None:
    """An object lives until the last graph that holds it is gone."""
    cuda, p, gone = here.cuda, _ints(0), []
    made, _ = _adding(cuda, p)
    destroy = cuda.api.CUhostFn(_callback(lambda: gone.append("gone")))
    item = cuda("cuUserObjectCreate", 0, destroy, 1, 1)  # no synchronisation by the destructor
    cuda("cuGraphRetainUserObject", made, item, 1, 1)  # the graph takes our reference
    executable = cuda.executable(made)
    cuda("cuGraphDestroy", made)
    cuda.run(executable)
    here.equal("with the executable alive:", list(gone), [])
    cuda("cuGraphExecDestroy", executable)
    end = time.monotonic() + 10
    while not gone and time.monotonic() < end:
        torch.cuda.synchronize()
        time.sleep(0.01)
    here.equal("afterwards:", gone, ["gone"])


@probe
def upload(here: Here) -> None:
    """What a launch needs goes to the device ahead of it."""
    cuda, p = here.cuda, _ints(0)
    executable, stream = cuda.executable(_adding(cuda, p)[0]), cuda.stream()
    cuda("cuGraphUpload", executable, stream)
    cuda("cuStreamSynchronize", stream)
    here.equal("an upload runs nothing:", p, [0])
    cuda.run(executable, stream)
    here.equal("the launch after it gives", p, [1])


def _allocating(cuda: Cuda, out: torch.Tensor, free: bool) -> Any:
    """A graph that allocates, fills, copies to ``out``, and frees or not."""
    params, pool = cuda.api.CUDA_MEM_ALLOC_NODE_PARAMS(), cuda.api.CUmemPoolProps()
    pool.allocType = cuda.api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    pool.location.type = cuda.api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    pool.location.id = torch.cuda.current_device()
    params.poolProps, params.bytesize = pool, 1 << 20
    made = cuda.graph()
    allocated = cuda("cuGraphAddMemAllocNode", made, [], 0, params)
    address = int(params.dptr)
    filled = cuda.fill(made, [allocated], address, 6, 4)
    copied = cuda.copy(made, [filled], out.data_ptr(), address, 16)
    if free:
        cuda("cuGraphAddMemFreeNode", made, [copied], 1, address)
    return made


@probe
def instantiate_flags(here: Here) -> None:
    """Memory that a graph allocates and does not free is freed by its next launch."""
    cuda, out = here.cuda, _ints(0, 0, 0, 0)
    made = _allocating(cuda, out, free=False)
    flag = cuda.api.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
    executable = cuda.executable(made, int(flag))
    here.equal("its flags:", int(cuda("cuGraphExecGetFlags", executable)), int(flag))
    cuda.run(executable)
    out.zero_()
    torch.cuda.synchronize()
    cuda.run(executable)
    here.equal("the second launch gives", out, [6, 6, 6, 6])
    cuda("cuGraphExecDestroy", executable)
    cuda("cuGraphDestroy", made)


@probe
def instantiate_params(here: Here) -> None:
    """Instantiation uploads at once, and says whether it went well."""
    cuda, p = here.cuda, _ints(0)
    params, stream = cuda.api.CUDA_GRAPH_INSTANTIATE_PARAMS(), cuda.stream()
    params.flags = int(cuda.api.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
    params.hUploadStream = stream
    executable = cuda("cuGraphInstantiateWithParams", _adding(cuda, p)[0], params)
    success = cuda.api.CUgraphInstantiateResult.CUDA_GRAPH_INSTANTIATE_SUCCESS
    here.equal("the result is", int(params.result_out), int(success))
    cuda.run(executable, stream)
    here.equal("a launch gives", p, [1])


@probe
def dot(here: Here) -> None:
    """The driver draws a graph in the language of Graphviz."""
    cuda, p = here.cuda, _ints(0)
    made, node = _adding(cuda, p)
    cuda.kernel(made, [node], "scale", p, 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.dot"
        cuda("cuGraphDebugDotPrint", made, os.fsencode(path), 1)
        text = path.read_text(errors="replace")
    here.equal("edges in the drawing:", text.count("->"), 1)
    here.equal("it names both kernels:", "add" in text and "scale" in text, True)


@probe
def inspect_nodes(here: Here) -> None:
    """The nodes of a graph are read back: types, names, sizes, and what each waits for."""
    cuda, p = here.cuda, _ints(0)
    made, node = _adding(cuda, p)
    cuda.fill(made, [node], p.data_ptr(), 0, 1)
    found = nodes_of(driver_of_graphs(), int(made))
    here.equal("nodes:", [one.type for one in found], ["kernel", "memset"])
    here.equal("the first is", found[0].name, "add")
    here.equal("the second waits for", list(found[1].after), [0])


@probe
def edit(here: Here) -> None:
    """Nodes and edges are taken out of a graph."""
    cuda, p = here.cuda, _ints(0)
    made, first = _adding(cuda, p)
    middle = cuda.kernel(made, [first], "scale", p, 10)
    last = cuda.kernel(made, [middle], "add", p, 1)
    cuda("cuGraphDestroyNode", middle)
    cuda("cuGraphAddDependencies", made, [first], [last], None, 1)
    here.equal("nodes left:", int(cuda("cuGraphGetNodes", made)[-1]), 2)
    cuda.run(cuda.executable(made))
    here.equal("without the middle one a launch gives", p, [2])


def _programmatic(cuda: Cuda) -> Any:
    """The annotation of an edge between kernels that may overlap."""
    if torch.cuda.get_device_capability() < (9, 0):
        raise Absent("the GPU is older than compute capability 9.0, which kernels need to overlap")
    data = cuda.api.CUgraphEdgeData()
    data.from_port, data.to_port, data.type = 1, 0, 1  # programmatic
    return data


def _edges(cuda: Cuda, made: Any) -> list[list[int]]:
    """Port and type of each edge."""
    *_, count = cuda("cuGraphGetEdges", made)
    found = cuda("cuGraphGetEdges", made, count)
    return [[int(one.from_port), int(one.type)] for one in found[2][: int(count)]]


@probe
def edge_data(here: Here) -> None:
    """An edge says when the kernel before it lets the next one begin."""
    cuda, p, out = here.cuda, _ints(0), _ints(0)
    times = torch.zeros(2, dtype=torch.int64, device="cuda")
    data, made = _programmatic(cuda), cuda.graph()
    first = cuda.kernel(made, [], "first", p, times)
    second = cuda.kernel(made, [], "second", p, out, times)
    cuda("cuGraphAddDependencies", made, [first], [second], [data], 1)
    here.equal("port and type of the edge:", _edges(cuda, made), [[1, 1]])
    cuda.run(cuda.executable(made))
    here.equal("the second kernel reads", out, [42])


@probe
def programmatic_launch(here: Here) -> None:
    """A captured kernel begins before the one that it waits for has ended."""
    cuda, p, out = here.cuda, _ints(0), _ints(0)
    times = torch.zeros(2, dtype=torch.int64, device="cuda")
    _programmatic(cuda)
    stream = cuda.stream()
    attribute = cuda.api.CUlaunchAttribute()
    ids = cuda.api.CUlaunchAttributeID
    attribute.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config = cuda.api.CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = 1
    config.blockDimX = config.blockDimY = config.blockDimZ = 1
    config.hStream, config.attrs, config.numAttrs = stream, [attribute], 1
    cuda.begin(stream)
    cuda.launch_kernel(stream, "first", p, times)
    cuda("cuLaunchKernelEx", config, cuda.function("second"), arguments(p, out, times), 0)
    made = cuda.end(stream)
    here.equal("port and type of the captured edge:", _edges(cuda, made), [[1, 1]])
    cuda.run(cuda.executable(made), stream)
    here.equal("the second kernel reads", out, [42])
    ended, began = times.tolist()
    here.equal("and it began before the first had ended:", began < ended, True)


@probe
def alloc_nodes(here: Here) -> None:
    """A graph allocates memory, uses it, and frees it, at each launch."""
    cuda, out = here.cuda, _ints(0, 0, 0, 0)
    made = _allocating(cuda, out, free=True)
    executable = cuda.executable(made)
    for _ in range(2):
        out.zero_()
        torch.cuda.synchronize()
        cuda.run(executable)
    here.equal("the second launch gives", out, [6, 6, 6, 6])
    cuda("cuGraphExecDestroy", executable)
    cuda("cuGraphDestroy", made)


@probe
def graph_memory(here: Here) -> None:
    """The memory that graphs reserve is counted, and given back."""
    cuda, out = here.cuda, _ints(0, 0, 0, 0)
    device = cuda("cuCtxGetDevice")
    reserved = cuda.api.CUgraphMem_attribute.CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT

    def count() -> int:
        return int(cuda("cuDeviceGetGraphMemAttribute", device, reserved))

    made = _allocating(cuda, out, free=True)
    executable = cuda.executable(made)
    cuda.run(executable)
    here.equal("after a launch some is reserved:", count() > 0, True)
    cuda("cuGraphExecDestroy", executable)
    cuda("cuGraphDestroy", made)
    cuda("cuDeviceGraphMemTrim", device)
    here.equal("after trim:", count(), 0)


@probe
def external_semaphores(here: Here) -> None:
    """A graph waits for, or signals, a semaphore of another API."""
    cuda = here.cuda
    if not hasattr(cuda.api, "cuGraphAddExternalSemaphoresSignalNode"):
        raise Absent("cuda-bindings has no cuGraphAddExternalSemaphoresSignalNode")
    raise Unprobed("the driver has it; a probe needs a semaphore of another API, such as Vulkan's")


@probe
def memory_operations(here: Here) -> None:
    """A node writes a number to memory without a kernel."""
    cuda, p = here.cuda, _ints(0, 0)
    ops = []
    for n, value in enumerate((8, 9)):
        one = cuda.api.CUstreamBatchMemOpParams()
        one.operation = cuda.api.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WRITE_VALUE_32
        one.writeValue.operation = cuda.api.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WRITE_VALUE_32
        one.writeValue.address, one.writeValue.value = p.data_ptr() + 4 * n, value
        ops.append(one)
    params = cuda.api.CUDA_BATCH_MEM_OP_NODE_PARAMS()
    params.ctx, params.count, params.paramArray, params.flags = cuda.context, 2, ops, 0
    made = cuda.graph()
    cuda("cuGraphAddBatchMemOpNode", made, [], 0, params)
    cuda.run(cuda.executable(made))
    here.equal("two writes give", p, [8, 9])


@probe
def device_launch(here: Here) -> None:
    """A kernel of one graph launches another graph."""
    cuda, p, status = here.cuda, _ints(0), _ints(-1)
    flag = int(cuda.api.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
    launched = cuda.executable(_adding(cuda, p)[0], flag)
    stream, made = cuda.stream(), cuda.graph()
    cuda("cuGraphUpload", launched, stream)
    cuda.kernel(made, [], "launch_after", ctypes.c_ulonglong(int(launched)), status)
    launching = cuda.executable(made, flag)
    cuda("cuGraphUpload", launching, stream)
    cuda("cuStreamSynchronize", stream)
    for _ in range(2):
        cuda.run(launching, stream)
    here.equal("the status on the device:", status, [0])
    here.equal("two launches from kernels add", p, [2])
