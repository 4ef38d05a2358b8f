"""What the plugin does without an engine, and what ``enable()`` does for hand-made captures."""

from __future__ import annotations

import logging

import pytest
import torch

import gfxgraph
from gfxgraph import BridgedCUDAGraph
from gfxgraph.graph.native import NativeGraph
from gfxgraph.serving import plugin, release_unused, sizes
from gfxgraph.serving.graphs import EngineGraphs, several_ranks
from gfxgraph.stats import BY_HAND, tally
from tests.helpers.devices import region
from tests.helpers.processes import python


@pytest.fixture
def cuda():
    """The device that ``torch.cuda.graph`` captures on, under ``enable()``."""
    gfxgraph.enable(emulate=not torch.cuda.is_available())
    yield "cuda"
    gfxgraph.disable()


def test_an_entry_point_that_is_off_imports_nothing_of_the_plugin_and_reads_nothing_else():
    code = """
import sys, torch, gfxgraph
from gfxgraph.serving.plugin import sglang, vllm
before = set(sys.modules)
sglang(); vllm()
assert set(sys.modules) == before, set(sys.modules) - before
assert not any("serving.graphs" in name or "gfxgraph.bridge" in name for name in before)
"""
    assert python("-c", code, GFXGRAPH_VRAM_CAP="80").returncode == 0


def test_a_malformed_switch_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setenv("SGLANG_RDNA2_KERNELS", "yes")
    with pytest.raises(gfxgraph.errors.SettingError, match="SGLANG_RDNA2_KERNELS='yes'"):
        plugin.sglang()
    plugin.vllm()  # it is no variable of vLLM


def test_the_line_is_told_once_a_process(monkeypatch, caplog):
    monkeypatch.setattr(plugin, "_told", set())
    assert plugin._activated("vLLM") and plugin._activated("vLLM")
    lines = [r for r in caplog.records if getattr(r, "event", "") == "serving"]
    assert len(lines) == 1 and lines[0].levelno == logging.WARNING
    assert lines[0].fields["switch_off"] == "SGLANG_DISABLE_GFXGRAPH=1"


def test_what_was_enabled_before_stays_as_it_is(monkeypatch):
    gfxgraph.enable(validate=True)
    monkeypatch.setenv("SGLANG_RDNA2_KERNELS", "1")
    assert plugin._activated("SGLang") and NativeGraph.check_liveness


def test_a_process_without_an_engine_has_no_sizes():
    assert sizes() == [] and release_unused() == [] and not several_ranks()


def test_several_ranks_keep_the_engines_error(monkeypatch):
    class Holder:
        pass

    monkeypatch.setattr("gfxgraph.serving.graphs.several_ranks", lambda: True)
    holder = Holder()
    graphs = EngineGraphs.of(holder, "SGLang", "Holder")
    calls = []
    with (
        pytest.raises(RuntimeError, match="in the capture"),
        graphs.capturing(
            "size=1",
            pool=lambda: None,
            keep=lambda: True,
            counted=lambda: 0,
            release=lambda: calls.append("release"),
            give_up=lambda: calls.append("give up"),
        ),
    ):
        NativeGraph.begun += 1
        raise RuntimeError("in the capture")
    assert not calls and not graphs.sizes()


# ---- captures by hand under enable()


def test_a_capture_whose_body_raises_counts_as_failed_and_its_error_goes_on(cuda):
    x = torch.ones(4, device=cuda)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(KeyError, match="of the body"), torch.cuda.graph(graph):
        x + 1
        raise KeyError("of the body")
    stats = gfxgraph.stats()
    assert (stats["capture_count"], stats["capture_failures"]) == (0, 1)
    assert tally.by_callable()[BY_HAND].capture_failures == 1
    with pytest.raises(RuntimeError):
        graph.replay()  # of a part of the body
    with torch.cuda.graph(graph):
        y = x + 1
    graph.replay()
    assert y.tolist() == [2.0] * 4 and gfxgraph.stats()["capture_count"] == 1


def test_the_end_of_an_invalid_capture_does_not_hide_the_error_of_the_body(cuda):
    x = torch.ones(4, device=cuda)
    with pytest.raises(KeyError, match="of the body"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        try:
            x.sum().item()  # invalidates the capture
        except RuntimeError:
            raise KeyError("of the body") from None
    assert gfxgraph.stats()["capture_failures"] == 1


def test_a_graph_that_is_alive_at_the_end_of_python_says_nothing():
    code = """
import torch
from gfxgraph import BridgedCUDAGraph
from gfxgraph.device import current_device
device = current_device()
x = torch.ones(3, device=device.type)
torch.captured, torch.capturing = BridgedCUDAGraph(), BridgedCUDAGraph()
with device.set_stream(device.new_stream(0)):
    torch.captured.capture_begin()
    y = x + 1
    torch.captured.capture_end()
    torch.capturing.capture_begin()
    z = x + 1
"""
    done = python("-c", code)
    assert done.returncode == 0 and "Exception" not in done.stderr, done.stderr


@pytest.mark.gpu  # an emulated graph holds what it reads
def test_health_names_what_a_graph_reads_and_was_freed(device):
    x, weight = torch.ones(4, device=device), torch.ones(4, device=device)
    graph = BridgedCUDAGraph()
    with region(graph, check_input_liveness=True):
        out = x * weight
    assert gfxgraph.health_check()["ok"]
    del weight
    health = gfxgraph.health_check()
    assert not health["ok"] and "torch.float32 of shape (4,)" in health["details"]
    del graph, out
    assert gfxgraph.health_check()["ok"]
