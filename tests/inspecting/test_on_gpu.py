"""What the driver of a GPU tells of graphs."""

from __future__ import annotations

import inspect
import sys

import pytest
import torch

import gfxgraph
from gfxgraph.device.gpu import _plain_graph
from gfxgraph.errors import CaptureError
from tests.helpers.devices import region

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("no_grad")]


def line_of(text):
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"# {text}"))


def captured(graph, fn, *args):
    fn(*args)  # loads the kernels
    torch.cuda.synchronize()
    with region(graph):
        result = fn(*args)
    return result


@pytest.mark.parametrize("kept", [False, True])
def test_kernels_and_copies_have_names_sizes_and_lines_and_replays_are_right(kept):
    gfxgraph.enable(debug=True)
    x, target = torch.rand(1000, device="cuda"), torch.empty(1000, device="cuda")

    def act(x):
        y = x * 2 + 1  # kernels
        target.copy_(y)  # copy
        return y

    graph = gfxgraph.BridgedCUDAGraph(keep_graph=kept)
    y = captured(graph, act, x)
    (found,) = gfxgraph.inspect(graph)
    kernels = found.of_type("kernel")
    assert len(kernels) >= 2 and all(node.name and node.details["grid"][0] for node in kernels)
    assert [node.line for node in kernels[:2]] == [line_of("kernels")] * 2
    if torch.version.cuda:
        assert all(node.details["parameter_bytes"] for node in kernels)
        assert "elementwise_kernel" in kernels[0].name and kernels[0].name.startswith("void at::")
        (copy,) = found.of_type("memcpy")
        assert copy.details["bytes"] == 4000 and copy.line == line_of("copy")
    assert found.branches == 1 and found.depth == len(found)
    x.fill_(3.0)
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == target.tolist() == [7.0] * 1000


def test_a_graph_of_torchs_own_class_needs_keep_graph():
    x, plain = torch.rand(10, device="cuda"), _plain_graph()
    kept, dropped = plain(keep_graph=True), plain()
    for graph in (kept, dropped):
        captured(graph, lambda: x * 2)
    assert len(gfxgraph.inspect(kept)[0]) == 1 and gfxgraph.inspect(kept)[0].lines == {}
    with pytest.raises(CaptureError, match="keep_graph=True"):
        gfxgraph.inspect(dropped)
    with pytest.raises(CaptureError, match="keep_graph=True"):
        gfxgraph.inspect(plain(keep_graph=True))


def test_a_graph_that_was_changed_after_its_capture_has_no_lines():
    driver = pytest.importorskip("cuda.bindings.driver")
    gfxgraph.enable(debug=True)
    x = torch.rand(10, device="cuda")
    graph = gfxgraph.BridgedCUDAGraph(keep_graph=True)
    captured(graph, lambda: x * 2)
    assert len(gfxgraph.inspect(graph)[0].lines) == 1
    raw = driver.CUgraph(graph.raw_cuda_graph())
    error, _ = driver.cuGraphAddEmptyNode(raw, None, 0)
    assert not int(error)
    (found,) = gfxgraph.inspect(graph)
    assert found.types == {"kernel": 1, "empty": 1} and found.lines == {}


def test_an_error_that_ends_a_capture_leaves_the_process_able_to_capture():
    gfxgraph.enable(debug=True)
    x = torch.rand(10, device="cuda")
    graph = gfxgraph.BridgedCUDAGraph()
    before = sys.gettrace()
    with pytest.raises(RuntimeError), region(graph):
        y = x * 2
        y.sum().item()
        y = y + 1  # a line after the capture has become invalid
    assert sys.gettrace() is before
    another = gfxgraph.BridgedCUDAGraph()
    captured(another, lambda: x * 2)
    assert len(gfxgraph.inspect(another)[0]) == 1


def test_compiled_kernels_are_listed():
    pytest.importorskip("triton")
    gfxgraph.enable(debug=True)

    def act(x):
        return (x.sin() * 2 + x.cos()).relu()

    x = torch.rand(1000, device="cuda")
    step = gfxgraph.graphed(act, compile=True)
    for _ in range(3):
        step(x)
    (found,) = gfxgraph.inspect(step)
    assert any("triton" in node.name for node in found) or torch.version.hip
    assert len(found) < 4
