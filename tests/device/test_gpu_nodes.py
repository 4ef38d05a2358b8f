"""The nodes of graphs as drivers tell them. A library in C stands for CUDA and for HIP."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gfxgraph.device import gpu_nodes
from gfxgraph.device.gpu import GpuDevice
from gfxgraph.device.gpu_nodes import CaptureNodes, Hip, nodes_of
from gfxgraph.errors import DeviceError, MissingPackageError
from tests.helpers.paths import ROOT

SOURCE = Path(__file__).parents[1] / "helpers" / "driver_of_graphs.c"
KERNEL = "void at::native::wait<float>(float)"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The path of the compiled library, in a folder of its own."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    command = [compiler, "-shared", "-fPIC", "-w", "-o", path, SOURCE, "-ldl"]
    subprocess.run(list(map(str, command)), check=True)
    return path


@pytest.fixture
def hip(library, monkeypatch):
    """HIP is the driver of this torch."""
    driver = Hip(ctypes.CDLL(str(library)))
    monkeypatch.setattr(torch.version, "hip", "7.2")
    gpu_nodes.driver_of_graphs.cache_clear()
    monkeypatch.setattr(gpu_nodes, "_loaded", lambda *names: ctypes.CDLL(str(library)))
    yield driver
    gpu_nodes.driver_of_graphs.cache_clear()


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


def test_without_cuda_bindings_the_error_says_what_to_install(monkeypatch):
    if torch.version.hip:
        pytest.skip("not on AMD")
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    gpu_nodes.driver_of_graphs.cache_clear()
    with pytest.raises(MissingPackageError, match="pip install cuda-bindings~="):
        gpu_nodes.driver_of_graphs()


TELLS = """
import ctypes, dataclasses, json, os
ctypes.CDLL(os.environ["LIBRARY"], mode=ctypes.RTLD_GLOBAL)
from cuda.bindings import driver
from gfxgraph.device.gpu_nodes import Cuda, nodes_of
cuda = Cuda(driver)
try:
    nodes_of(cuda, 3)
except Exception as error:
    said = repr(error)
nodes = [dataclasses.asdict(node) for node in nodes_of(cuda, 1)]
print(json.dumps([nodes, cuda.capture(5), cuda.capture(6), cuda.capture(7), said]))
"""


def test_cuda_tells_through_cuda_bindings(library):
    pytest.importorskip("cuda.bindings")
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    known = {"LIBRARY": str(library), "LD_LIBRARY_PATH": str(library.parent), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", TELLS],
        env={**os.environ, **known, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    nodes, capturing, other, ended, said = json.loads(done.stdout)
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
