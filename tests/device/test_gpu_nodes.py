"""The nodes of graphs as drivers tell them. A library in C stands for CUDA and for HIP."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

import pytest
import torch

from gfxgraph.device import gpu_nodes
from gfxgraph.device.gpu import GpuDevice
from gfxgraph.device.gpu_nodes import CaptureNodes, Hip, nodes_of
from gfxgraph.errors import DeviceError, MissingPackageError
from tests.helpers.driver_of_graphs import MORE, NULL_HANDLES, compiled_library, hip_is_loaded
from tests.helpers.paths import ROOT

KERNEL = "void at::native::wait<float>(float)"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The path of the compiled library, in a folder of its own."""
    return compiled_library(tmp_path_factory.mktemp("driver") / "libcuda.so.1")


@pytest.fixture
def hip(library, monkeypatch):
    """HIP is the driver of this torch."""
    with hip_is_loaded(library, monkeypatch) as loaded:
        yield Hip(loaded)


@pytest.fixture
def misbehave(library):
    """Makes a function of the library misbehave until the end of the test."""
    loaded, changed = ctypes.CDLL(str(library)), []

    def change(function, how):
        changed.append(function)
        loaded.misbehave(function.encode(), how)

    yield change
    for function in changed:
        loaded.misbehave(function.encode(), 0)


def test_hip_tells_types_names_dependencies_and_sizes(hip):
    found = nodes_of(hip, 1)
    kernel = {"grid": [3, 2, 1], "block": [128, 1, 1], "shared_bytes": 64}
    assert [(n.type, n.name, n.after, n.details) for n in found] == [
        ("kernel", KERNEL, (), kernel),
        ("memcpy", "", (0,), {"bytes": 4096, "from": "host", "to": "device"}),
        ("memset", "", (0,), {"bytes": 1024, "value": 7, "element_bytes": 4}),
        ("child graph", "", (1, 2), {}),
        ("memory alloc", "", (3,), {}),
        ("host", "", (4,), {}),
    ]
    (child,) = found[3].children
    # A kernel of a module has no name there.
    assert (child.type, child.name, child.after, child.details) == ("kernel", "", (), kernel)


def test_a_capture_of_hip_tells_its_nodes_while_it_is_valid(hip):
    class Kept:
        def raw_cuda_graph(self):
            return 1

    assert [node.handle for node in GpuDevice().nodes(Kept())] == [11, 12, 13, 14, 15, 16]
    nodes = CaptureNodes(5, lambda: 5)
    assert (nodes.count(), nodes.newest(), len(nodes.read())) == (6, [16], 6)
    assert CaptureNodes(5, lambda: 6).newest() == []  # a stream that is not part of it
    for stream in (6, 7):
        with pytest.raises(DeviceError, match="no longer valid"):
            CaptureNodes(stream, lambda: 5).count()


def test_an_error_of_the_driver_names_the_function(hip):
    with pytest.raises(DeviceError, match=r"hipGraphGetNodes\(\) of HIP: error 1"):
        nodes_of(hip, 3)


FUNCTIONS = [
    ("hipGraphGetNodes", lambda hip: nodes_of(hip, 1)),
    ("hipGraphGetEdges", lambda hip: nodes_of(hip, 1)),
    ("hipGraphNodeGetType", lambda hip: nodes_of(hip, 1)),
    ("hipGraphKernelNodeGetParams", lambda hip: nodes_of(hip, 1)),
    ("hipGraphChildGraphNodeGetGraph", lambda hip: nodes_of(hip, 1)),
    ("hipStreamGetCaptureInfo_v2", lambda hip: hip.capture(5)),
    ("hipRuntimeGetVersion", lambda hip: hip.version()),
]


@pytest.mark.parametrize("function, asks", FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_every_call_that_fails_is_an_error_with_its_name_and_number(function, asks, hip, misbehave):
    asks(hip)
    misbehave(function, 719)
    with pytest.raises(DeviceError, match=rf"{function}\(\) of HIP: error 719"):
        asks(hip)


@pytest.mark.parametrize("how", [NULL_HANDLES, MORE], ids=["null handles", "too many"])
@pytest.mark.parametrize("function, asks", FUNCTIONS[:2])
def test_handles_that_are_not_there_are_an_error_and_no_node(function, asks, how, hip, misbehave):
    misbehave(function, how)
    with pytest.raises(DeviceError, match=r"HIP says that there are|nodes that the graph has not"):
        asks(hip)


def test_a_child_graph_that_is_not_there_is_an_error(hip, misbehave):
    misbehave("hipGraphChildGraphNodeGetGraph", NULL_HANDLES)
    with pytest.raises(DeviceError, match=r"hipGraphChildGraphNodeGetGraph\(\) of HIP says"):
        nodes_of(hip, 1)


@pytest.mark.parametrize("how", [NULL_HANDLES, MORE], ids=["no list", "too many"])
def test_a_list_that_the_driver_does_not_have_is_not_read(how, hip, misbehave):
    misbehave("hipStreamGetCaptureInfo_v2", how)
    with pytest.raises(DeviceError, match="nodes that are not there"):
        hip.capture(5)


def test_the_tier_is_driver_while_the_runtime_answers_and_torch_while_it_does_not(hip, misbehave):
    assert GpuDevice().tier == "driver"
    misbehave("hipRuntimeGetVersion", 100)
    assert GpuDevice().tier == "torch"
    misbehave("hipRuntimeGetVersion", 0)
    assert GpuDevice().tier == "driver"


@pytest.mark.parametrize("function", ["hipRuntimeGetVersion", "hipGraphGetEdges"])
def test_a_runtime_that_lacks_a_function_is_named_and_torch_is_the_tier(
    function, tmp_path, monkeypatch
):
    older = compiled_library(tmp_path / "libamdhip64.so", f"-D{function}=of_a_later_version")
    with hip_is_loaded(older, monkeypatch) as loaded:
        with pytest.raises(DeviceError, match=f"This HIP cannot tell of graphs: .*{function}"):
            Hip(loaded)
        assert GpuDevice().tier == "torch"


def test_a_runtime_without_these_functions_is_named():
    with pytest.raises(DeviceError, match="This HIP cannot tell of graphs"):
        Hip(ctypes.CDLL(None))


def test_a_runtime_that_is_not_loaded_is_not_loaded_again(monkeypatch):
    if torch.version.hip:
        pytest.skip("it is")
    monkeypatch.setattr(torch.version, "hip", "7.2")
    gpu_nodes.driver_of_graphs.cache_clear()
    with pytest.raises(DeviceError, match=r"none of libamdhip64\.so"):
        gpu_nodes.driver_of_graphs()
    assert GpuDevice().tier == "torch"


def test_without_cuda_bindings_the_error_says_what_to_install(monkeypatch):
    if torch.version.hip:
        pytest.skip("not on AMD")
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    gpu_nodes.driver_of_graphs.cache_clear()
    with pytest.raises(MissingPackageError, match="pip install cuda-bindings~="):
        gpu_nodes.driver_of_graphs()
    assert GpuDevice().tier == "torch"


TELLS = """
import ctypes, dataclasses, json, os
library = ctypes.CDLL(os.environ["LIBRARY"], mode=ctypes.RTLD_GLOBAL)
from cuda.bindings import driver
from gfxgraph.device.gpu import GpuDevice
from gfxgraph.device.gpu_nodes import Cuda, nodes_of
cuda = Cuda(driver)
try:
    nodes_of(cuda, 3)
except Exception as error:
    said = repr(error)
tiers = [GpuDevice().tier]
library.misbehave(b"cuDriverGetVersion", 100)
tiers.append(GpuDevice().tier)
nodes = [dataclasses.asdict(node) for node in nodes_of(cuda, 1)]
print(json.dumps([nodes, cuda.capture(5), cuda.capture(6), cuda.capture(7), said, tiers]))
"""


def run_with(library, code):
    """What ``code`` prints where the library is the driver of CUDA."""
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    known = {"LIBRARY": str(library), "LD_LIBRARY_PATH": str(library.parent), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **known, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cuda_tells_through_cuda_bindings(library):
    pytest.importorskip("cuda.bindings")
    nodes, capturing, other, ended, said, tiers = json.loads(run_with(library, TELLS))
    kernel = {"grid": [3, 2, 1], "block": [128, 1, 1], "shared_bytes": 64}
    assert [(n["type"], n["name"], n["after"], n["details"]) for n in nodes] == [
        ("kernel", KERNEL, [], {**kernel, "parameter_bytes": [8, 9, 10]}),
        ("memcpy", "", [0], {"bytes": 4096, "from": "host", "to": "device"}),
        ("memset", "", [0], {"bytes": 1024, "value": 7, "element_bytes": 4}),
        ("child graph", "", [1, 2], {}),
        ("memory alloc", "", [3], {"bytes": 2048}),
        ("host", "", [4], {}),
    ]
    (child,) = nodes[3]["children"]
    assert child["name"] == "late_kernel" and child["details"]["parameter_bytes"] == [4]
    assert (capturing, other, ended) == ([1, [16]], [0, []], [0, []])
    assert "cuGraphGetNodes() of the CUDA driver" in said
    assert tiers == ["driver", "torch"]


CHANGES = """
import ctypes, json, os
library = ctypes.CDLL(os.environ["LIBRARY"], mode=ctypes.RTLD_GLOBAL)
library.calls.restype = ctypes.c_char_p
from gfxgraph.device.gpu import GpuDevice
from gfxgraph.errors import DeviceError
executables = GpuDevice().executables()
graph, nodes, executable = executables.compose([1, 2, 1], [[], [0], [0, 1]])
executables.replace(executable, nodes[1], 3)
executables.launch(executable, 5)
said = [executables.update(executable, 4)]
library.misbehave(b"cuGraphExecUpdate_v2", 910)
said.append(executables.update(executable, 4))
executables.destroy(graph, executable)
for function in ("cuGraphExecChildGraphNodeSetParams", "cuGraphInstantiateWithFlags"):
    library.misbehave(function.encode(), 801)
    try:
        executables.replace(executable, nodes[1], 3)
        executables.compose([1], [[]])
    except DeviceError as error:
        said.append(str(error))
    library.misbehave(function.encode(), 0)
print(json.dumps([library.calls().decode().splitlines(), said]))
"""


def test_cuda_puts_graphs_into_one_and_changes_its_executable(library):
    pytest.importorskip("cuda.bindings")
    calls, said = json.loads(run_with(library, CHANGES))
    assert calls[:9] == [
        "create 8",
        "add 81: graph 1 after",
        "add 82: graph 2 after 81",
        "add 83: graph 1 after 81 82",
        "instantiate 8 with 9",  # freed at a launch, and with the priorities of nodes
        "set 82 of 9 to 3",
        "launch 9 on 5",
        "update 9 from 4",
        "update 9 from 4",
    ]
    assert calls[9:11] == ["destroy executable 9", "destroy 8"]
    assert calls[-1] == "destroy 8"  # what could not be instantiated is not left behind
    assert said[0] == "" and "TOPOLOGY_CHANGED" in said[1]
    assert "cuGraphExecChildGraphNodeSetParams() of the CUDA driver" in said[2]
    assert "cuGraphInstantiate() of the CUDA driver" in said[3]


def test_executables_of_hip_are_left_as_they_are(hip):
    with pytest.raises(DeviceError, match="executables of HIP graphs are not changed"):
        GpuDevice().executables()
