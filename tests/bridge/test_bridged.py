"""``BridgedCUDAGraph``, ``enable()``, ``stats()`` and health: torch's graph class, made safe."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gfxgraph
import hipgraph_bridge
from gfxgraph import BridgedCUDAGraph
from gfxgraph.device import current_device
from gfxgraph.device.gpu import GpuDevice, _driver_version
from gfxgraph.errors import (
    ArgumentError,
    CaptureError,
    DeadTensorError,
    DeviceError,
    MemoryCapError,
    SettingError,
)
from tests.helpers.devices import region, works_afterwards
from tests.helpers.processes import printed
from tests.helpers.sampled import sampled
from tests.helpers.threads import on_threads

GPU = torch.cuda.is_available()
gpu = pytest.mark.gpu


# ---- the low-level surface


def test_it_is_a_graph_of_torch_and_the_second_import_name_is_the_same():
    assert issubclass(BridgedCUDAGraph, torch.cuda.CUDAGraph) or not GPU
    assert hipgraph_bridge.BridgedCUDAGraph is BridgedCUDAGraph


def test_capture_replay_and_pool_work_as_in_torch(device):
    x = torch.zeros(3, device=device)
    one, two = BridgedCUDAGraph(), BridgedCUDAGraph()
    with region(one):
        y = x + 1
    with region(two, pool=one.pool(), capture_error_mode="thread_local"):
        z = y * 2
    for n in range(3):
        x.fill_(n)
        one.replay()
        two.replay()
        assert y.tolist() == [n + 1.0] * 3 and z.tolist() == [2 * (n + 1.0)] * 3
    assert two.pool() == one.pool()
    stats = gfxgraph.stats()
    assert stats["capture_count"] == 2 and stats["replay_count"] == 6
    assert stats["avg_replay_us"] > 0


def test_a_graph_with_keep_graph_is_instantiated_by_hand(device):
    x = torch.zeros(3, device=device)
    graph = BridgedCUDAGraph(keep_graph=True)
    with region(graph):
        y = x + 1
    graph.instantiate()
    graph.replay()
    assert y.tolist() == [1.0] * 3
    if GPU:
        assert graph.raw_cuda_graph() and graph.raw_cuda_graph_exec()


def test_a_graph_can_be_dumped(device, tmp_path):
    x = torch.zeros(3, device=device)
    graph = BridgedCUDAGraph(keep_graph=True)
    graph.enable_debug_mode()
    with region(graph):
        x + 1
    graph.debug_dump(str(tmp_path / "graph.dot"))
    assert "digraph" in (tmp_path / "graph.dot").read_text()


def test_after_a_reset_it_captures_again(device):
    x = torch.zeros(3, device=device)
    graph = BridgedCUDAGraph()
    for n in range(2):
        with region(graph):
            y = x + n
        graph.replay()
        assert y.tolist() == [float(n)] * 3
        graph.reset()
    with pytest.raises(RuntimeError, match="preceding successful capture"):
        graph.replay()


def test_errors_of_low_level_use_are_raised_to_the_caller(device):
    graph = BridgedCUDAGraph()
    for call in (graph.replay, graph.pool, graph.capture_end):
        with pytest.raises(RuntimeError):
            call()
    with pytest.raises(ArgumentError, match="capture_error_mode='lax'"):
        graph.capture_begin(capture_error_mode="lax")
    other = BridgedCUDAGraph()
    with region(graph), pytest.raises(CaptureError, match="already capturing"):
        other.capture_begin()
    assert works_afterwards(device)


@gpu
def test_a_capture_on_the_default_stream_is_refused_and_leaves_nothing():
    with pytest.raises(RuntimeError, match="non-default stream"):
        BridgedCUDAGraph().capture_begin()
    assert works_afterwards("cuda")


# ---- what goes wrong


def refused(device):
    torch.rand(3, device=device).sum().item()


def raises(device):
    torch.rand(3, device=device)
    raise ValueError("from the region")


def interrupts(device):
    torch.rand(3, device=device)
    raise KeyboardInterrupt


def runs_out_of_memory(device):
    torch.empty(1 << 50, device=device)


FAILURES = {
    "a host read": (refused, RuntimeError),
    "an error": (raises, (ValueError, RuntimeError)),
    "an interrupt": (interrupts, (KeyboardInterrupt, RuntimeError)),
    "out of memory": (runs_out_of_memory, RuntimeError),
}


@pytest.mark.parametrize("name", FAILURES)
def test_after_a_failed_capture_the_process_captures_again(device, name):
    what, error = FAILURES[name]
    for _ in range(3):
        graph = BridgedCUDAGraph()
        with pytest.raises(error), region(graph):
            what(device)
        assert works_afterwards(device)


@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_capture_leaves_the_graphs_of_the_same_pool_alone(device, name):
    what, error = FAILURES[name]
    x = torch.zeros(3, device=device)
    graph = BridgedCUDAGraph()
    with region(graph):
        y = x + 1
    with pytest.raises(error), region(BridgedCUDAGraph(), pool=graph.pool()):
        what(device)
    x.fill_(4.0)
    graph.replay()
    assert y.tolist() == [5.0] * 3


@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_pool_takes_captures_after_one_into_it_failed(device, name, is_first):
    what, error = FAILURES[name]
    x, pool = torch.zeros(3, device=device), current_device().pool_handle()
    graphs = []
    if not is_first:
        graphs.append(BridgedCUDAGraph())
        with region(graphs[0], pool=pool):
            x + 2
    for _ in range(3):
        graphs.append(BridgedCUDAGraph())
        with pytest.raises(error), region(graphs[-1], pool=pool):
            what(device)
        graphs.append(BridgedCUDAGraph())
        with region(graphs[-1], pool=pool):
            y = x + 1
        x.fill_(4.0)
        graphs[-1].replay()
        assert y.tolist() == [5.0] * 3
        assert works_afterwards(device)


def test_a_graph_that_is_dropped_during_another_capture_does_not_end_it(device):
    x = torch.ones(3, device=device)
    old = BridgedCUDAGraph()
    with region(old):
        x * 3
    graph = BridgedCUDAGraph()
    with region(graph):
        y = x + 1
        del old
        gc.collect()
        y = y * 2
    graph.replay()
    assert y.tolist() == [4.0] * 3


def test_a_graph_whose_capture_failed_can_capture_into_the_same_pool(device):
    graph, pool = BridgedCUDAGraph(), current_device().pool_handle()
    for _ in range(3):
        with pytest.raises(RuntimeError), region(graph, pool=pool):
            refused(device)
    with region(graph, pool=pool):
        y = torch.ones(3, device=device) + 1
    graph.replay()
    assert y.tolist() == [2.0] * 3


@gpu
def test_pinned_memory_can_be_allocated_after_a_capture_that_failed():
    for _ in range(3):
        with pytest.raises(RuntimeError), region(BridgedCUDAGraph()):
            refused("cuda")
        assert torch.empty(1 << 16, pin_memory=True).is_pinned()


@gpu
def test_memory_of_a_pool_is_given_back_after_captures_that_failed():
    def fail():
        with pytest.raises(RuntimeError), region(BridgedCUDAGraph()):
            torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
            refused("cuda")

    fail()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for _ in range(5):
        fail()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before


def test_a_callable_captures_on_after_one_of_its_captures_failed(device):
    def reads_the_device_of_two(x):
        return x.sum().item() if x.numel() == 2 else x * 2

    graph = gfxgraph.graphed(reads_the_device_of_two, branching="off")
    for size in (1, 2, 3, 2, 4, 1):
        graph(torch.ones(size, device=device))
    stats = graph.stats()
    assert stats.captures == 3 and stats.replays == 1 and sum(stats.fallbacks.values()) == 2


@gpu
def test_an_unjoined_side_stream_fails_the_capture_and_nothing_else():
    x = torch.zeros(3, device="cuda")
    with pytest.raises(RuntimeError, match="unjoined"), region(BridgedCUDAGraph()):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x + 1
    assert works_afterwards("cuda")
    assert gfxgraph.stats()["capture_failures"] == 1


def test_a_graph_dropped_in_mid_capture_ends_the_capture(device):
    kind = current_device()
    for _ in range(3):
        with kind.set_stream(kind.new_stream(0)):
            graph = BridgedCUDAGraph()
            graph.capture_begin()
            torch.rand(3, device=device)
            del graph
            gc.collect()
        assert works_afterwards(device)


def test_reset_in_mid_capture_ends_the_capture(device):
    kind = current_device()
    with kind.set_stream(kind.new_stream(0)):
        graph = BridgedCUDAGraph()
        graph.capture_begin()
        torch.rand(3, device=device)
        graph.reset()
    assert works_afterwards(device)


@pytest.mark.long
def test_a_process_that_exits_in_mid_capture_exits_cleanly():
    code = """
import torch, gfxgraph
from gfxgraph.device import current_device
kind = current_device()
kind.set_stream(kind.new_stream(0)).__enter__()
graph = gfxgraph.BridgedCUDAGraph()
graph.capture_begin()
torch.rand(3, device=kind.type)
print("capturing", kind.is_capturing())
"""
    assert "capturing True" in printed(code)


def test_a_replay_after_a_captured_tensor_was_freed_is_an_error(device):
    x = torch.ones(1000, device=device)
    kept = torch.ones(1000, device=device)
    graph = BridgedCUDAGraph()
    with region(graph, check_input_liveness=True):
        y = x + kept
    graph.replay()
    assert y.sum().item() == 2000
    del x
    if not GPU:
        # The emulated graph itself holds what it reads, so nothing can dangle there.
        graph.replay()
        return
    with pytest.raises(DeadTensorError, match=r"shape \(1000,\)"):
        graph.replay()


# ---- enable


@pytest.mark.parametrize("level", ["", "error"])
def test_disable_ends_the_log_of_debug(monkeypatch, level):
    monkeypatch.setenv("HGB_LOG_LEVEL", level)
    log = logging.getLogger("gfxgraph")
    gfxgraph.enable(debug=True)
    try:
        assert log.level == logging.DEBUG
    finally:
        gfxgraph.disable()
    assert log.level == (logging.ERROR if level else logging.WARNING)


def test_enable_swaps_the_class_and_disable_puts_it_back():
    before = torch.cuda.CUDAGraph, torch.cuda.graph
    gfxgraph.disable()
    assert not gfxgraph.is_enabled() and gfxgraph.stats()["enabled_at"] is None
    gfxgraph.enable()
    gfxgraph.enable(debug=True)
    assert gfxgraph.is_enabled() and gfxgraph.stats()["enabled_at"] > 0
    assert torch.cuda.CUDAGraph is torch.cuda.graphs.CUDAGraph is BridgedCUDAGraph
    gfxgraph.disable()
    gfxgraph.disable()
    assert (torch.cuda.CUDAGraph, torch.cuda.graph) == before
    assert torch.cuda.graphs.CUDAGraph is before[0] and torch.cuda.graphs.graph is before[1]


def test_code_that_uses_torchs_class_is_counted_when_enabled(device):
    gfxgraph.enable()
    x = torch.zeros(3, device=device)
    graph = torch.cuda.CUDAGraph()
    with region(graph):
        y = x + 1
    graph.replay()
    assert y.tolist() == [1.0] * 3 and isinstance(graph, BridgedCUDAGraph)
    assert gfxgraph.stats()["capture_count"] == gfxgraph.stats()["replay_count"] == 1


@gpu
def test_torchs_own_ways_work_as_before_and_are_counted():
    gfxgraph.enable()
    x = torch.randn(4, 8, device="cuda")
    linear = nn.Linear(8, 8).cuda()
    with torch.no_grad():
        linear(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = linear(x)
        graph.replay()
        torch.testing.assert_close(y, linear(x))
        assert gfxgraph.stats()["capture_count"] == 1

    module = torch.cuda.make_graphed_callables(nn.Linear(8, 8).cuda(), (x,))
    (module(x).sum()).backward()
    assert module.weight.grad is not None
    counted = gfxgraph.stats()
    assert counted["capture_count"] == 3 and counted["replay_count"] == 3


@gpu
@pytest.mark.parametrize("validate", [False, True])
def test_reduce_overhead_works_as_before_and_is_counted(validate):
    gfxgraph.enable(validate=validate)
    torch.compiler.reset()
    linear = nn.Linear(8, 8).cuda()
    compiled = torch.compile(lambda x: linear(x).relu() * 2, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(4, 8, device="cuda")
            torch.testing.assert_close(compiled(x).clone(), linear(x).relu() * 2)
    stats = gfxgraph.stats()
    assert stats["capture_count"] >= 1 and stats["replay_count"] >= 3


@gpu
def test_a_capture_that_fails_inside_torchs_context_leaves_the_stream():
    gfxgraph.enable()
    before = torch.cuda.current_stream()
    with pytest.raises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.ones(3, device="cuda").sum().item()
    assert torch.cuda.current_stream() == before and works_afterwards("cuda")


@gpu
def test_clearing_the_libraries_workspaces_does_not_pull_them_from_under_a_graph():
    linear = nn.Linear(2048, 2048, dtype=torch.half).cuda()
    graph = gfxgraph.graphed(linear)
    with torch.no_grad():
        x = torch.randn(16, 2048, device="cuda", dtype=torch.half)
        graph(x), graph(x)
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        held = [torch.full((1 << 22,), 7, dtype=torch.int32, device="cuda") for _ in range(64)]
        for _ in range(5):
            x = torch.randn(16, 2048, device="cuda", dtype=torch.half)
            torch.testing.assert_close(graph(x), linear(x), rtol=1e-2, atol=1e-2)
        assert all(bool((h == 7).all()) for h in held)


@gpu
def test_warm_up_makes_the_handles_that_libraries_make_lazily():
    code = """
import torch, gfxgraph
def work(x):
    y = torch.fft.rfft(x).real
    z = torch.nn.functional.conv2d(x[None, None], x[None, None, :3, :3])
    with torch.autocast("cuda", dtype=torch.bfloat16):
        m = x @ x.t()
    return y, z, m
graph = gfxgraph.graphed(work, fallback="raise", warmup=1)
for _ in range(3):
    x = torch.randn(16, 16, device="cuda")
    torch.testing.assert_close(graph(x), work(x), rtol=1e-2, atol=1e-2)
print(graph.stats().replays)
"""
    assert printed(code) == "2"


@gpu
def test_replays_on_other_streams_wait_for_one_another():
    net = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(20)]).cuda()
    graph = gfxgraph.graphed(net)
    streams = [torch.cuda.Stream() for _ in range(4)]
    with torch.no_grad():
        inputs = [torch.randn(64, 1024, device="cuda") for _ in range(16)]
        expected = [net(x) for x in inputs]
        graph(inputs[0])
        torch.cuda.synchronize()
        got = []
        for n, x in enumerate(inputs):
            with torch.cuda.stream(streams[n % 4]):
                got.append(graph(x))
        torch.cuda.synchronize()
        torch.testing.assert_close(got, expected)


@gpu
def test_a_compiled_function_is_compiled_before_the_capture():
    torch.compiler.reset()
    linear = nn.Linear(8, 8).cuda()
    state = torch.zeros(8, device="cuda")

    def work(x):
        state.add_(1)
        return linear(x).relu() * 2 + state

    graph = gfxgraph.graphed(torch.compile(work))
    with torch.no_grad():
        for n in range(1, 5):
            x = torch.randn(4, 8, device="cuda")
            torch.testing.assert_close(graph(x), linear(x).relu() * 2 + n)
            assert state.tolist() == [float(n)] * 8
        linear.weight = nn.Parameter(torch.randn(8, 8, device="cuda"))
        x = torch.randn(4, 8, device="cuda")
        torch.testing.assert_close(graph(x), linear(x).relu() * 2 + 5)
    assert not graph.stats().fallbacks and graph.stats().replays == 3


@gpu
def test_threads_on_streams_of_torchs_pool_are_not_captured_by_each_other():
    net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)]).cuda().eval()
    graph = gfxgraph.graphed(net, max_graphs=12)
    wrong: list[object] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        try:
            with torch.no_grad():
                for n in range(150):
                    stream = torch.cuda.Stream() if seed % 2 else torch.cuda.default_stream()
                    with torch.cuda.stream(stream):
                        x = torch.randn(1 + (n * seed) % 8, 256, generator=generator).cuda()
                        got, expected = graph(x), net(x)
                        if not torch.allclose(got, expected, atol=1e-4):
                            wrong.append((seed, n))
                    if n % 50 == 10 + seed:
                        graph.reset()
        except RuntimeError as error:
            wrong.append(error)

    on_threads(work, range(8))
    assert not wrong and not graph.stats().fallbacks


# ---- other devices


@gpu
def test_with_the_gpu_hidden_everything_runs_emulated():
    code = """
import torch, gfxgraph
graph = gfxgraph.graphed(lambda x: x * 2, fallback="raise")
for n in range(3):
    assert graph(torch.full((2,), float(n))).tolist() == [2.0 * n] * 2
print(gfxgraph.device_type(), gfxgraph.health_check()["ok"], graph.stats().replays)
"""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    assert printed(code, **hidden) == "cpu True 2"


@gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_graphs_run_on_the_gpu_of_their_arguments_and_on_one_alone():
    graph = gfxgraph.graphed(lambda x, y: x.sin() + y.to(x.device))
    for n in range(6):
        where = f"cuda:{n % 2}"
        x, y = torch.randn(5, device=where), torch.randn(5, device=where)
        result = graph(x, y)
        assert str(result.device) == where
        torch.testing.assert_close(result, x.sin() + y)
        assert torch.cuda.current_device() == 0
    assert graph.stats().captures == 2 and graph.stats().replays == 4
    for _ in range(2):
        x, y = torch.randn(5, device="cuda:0"), torch.randn(5, device="cuda:1")
        torch.testing.assert_close(graph(x, y), x.sin() + y.to("cuda:0"))
    (reason,) = graph.stats().fallbacks
    assert "several devices" in reason


def test_facts_under_a_pretended_rocm(monkeypatch):
    # No AMD GPU: torch's answers are pretended, what is made of them is ours.
    properties = SimpleNamespace(name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-")
    monkeypatch.setattr(torch.version, "hip", "7.0.51831")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (3 << 30, 4 << 30))
    facts = GpuDevice().facts(0)
    assert (facts.vendor, facts.arch, facts.runtime) == ("amd", "gfx942", "7.0.51831")
    assert (facts.memory_free, facts.memory_total) == (3 << 30, 4 << 30)
    assert GpuDevice().kind == "hip" and GpuDevice().type == "cuda"


@pytest.mark.parametrize(
    ("hip", "path", "text", "version"),
    [
        (
            False,
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC",
            "535.54.03",
        ),
        (
            False,
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build",
            "580.95.05",
        ),
        (True, "sys/module/amdgpu/version", "6.10.5\n", "6.10.5"),
    ],
)
def test_the_drivers_version_is_read_where_the_driver_publishes_it(
    hip, path, text, version, tmp_path
):
    assert _driver_version(hip, tmp_path) is None
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text)
    assert _driver_version(hip, tmp_path) == version


def test_a_gpu_that_does_not_answer_is_a_device_error(monkeypatch):
    def gone(index):
        raise RuntimeError("no ROCm-capable device is detected")

    monkeypatch.setattr(torch.cuda, "get_device_properties", gone)
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES"):
        GpuDevice().facts(0)


# ---- health, log, import


def test_health_check_captures_and_replays(device):
    gc.collect()  # graphs of other tests, whose inputs are gone
    report = gfxgraph.health_check()
    assert set(report) == {
        "ok", "gpu", "arch", "rocm", "tier", "native_bridge",
        "vram_total_mb", "vram_free_mb", "details",
    }  # fmt: skip
    assert report["ok"] and report["gpu"]
    assert report["native_bridge"] == (report["tier"] == "driver")
    assert (report["tier"] != "emulated") == (report["arch"] != "emulated") == GPU
    assert 0 < report["vram_free_mb"] <= report["vram_total_mb"]


def test_device_facts_name_the_device(device):
    facts = gfxgraph.device_facts()
    if GPU:
        assert facts.vendor in ("nvidia", "amd") and facts.arch[:3] in ("sm_", "gfx")
        assert facts.runtime
    else:
        assert facts.vendor == "emulated" and facts.runtime is None
    assert facts.torch == torch.__version__


@pytest.mark.parametrize("event", ["capture_begin", "capture_failed", "capture_abandoned"])
def test_a_handler_of_the_log_that_raises_leaves_no_capture_open(device, caplog, event):
    def refuse(record):
        if getattr(record, "event", "") == event:
            raise ValueError("no room for the log")
        return True

    logger, x = logging.getLogger("gfxgraph"), torch.ones(2, device=device)
    caplog.set_level(logging.DEBUG, "gfxgraph")
    logger.addFilter(refuse)
    try:
        with pytest.raises((ValueError, RuntimeError)), gfxgraph.BridgedCUDAGraph().capture():
            x.sum().item()
    finally:
        logger.removeFilter(refuse)
    graph = gfxgraph.BridgedCUDAGraph()
    with graph.capture():
        y = x + 1
    graph.replay()
    assert y.tolist() == [2.0, 2.0]


def test_events_are_logged_with_fields(device, caplog):
    caplog.set_level(logging.DEBUG, logger="gfxgraph")
    graph = gfxgraph.graphed(lambda x: x.sum().item(), branching="off")
    graph(torch.ones(2, device=device)), graph(torch.ones(2, device=device))
    fallbacks = [r for r in caplog.records if getattr(r, "event", "") == "fallback"]
    assert len(fallbacks) == 1 and fallbacks[0].levelname == "WARNING"
    assert "reads a value from the device" in fallbacks[0].fields["reason"]
    assert "reason=" in fallbacks[0].getMessage()


def test_importing_is_light_and_starts_no_driver():
    code = """
import sys, torch
before = set(sys.modules)
import gfxgraph
heavy = {"typer", "rich", "transformers", "torch._dynamo", "torch._inductor"} - before
print(sorted(heavy & set(sys.modules)), torch.cuda.is_initialized())
"""
    assert printed(code) == "[] False"


@pytest.mark.parametrize("value", sampled(["1", "0", ""], 3))
def test_the_environment_enables_on_import(value):
    is_enabled = printed("import gfxgraph; print(gfxgraph.is_enabled())", GFXGRAPH=value)
    assert is_enabled == str(value == "1")


# ---- GFXGRAPH_VRAM_CAP


def test_a_capture_by_hand_is_refused_before_it_begins_where_the_device_is_above_the_cap(
    device, monkeypatch
):
    x = torch.ones(4, device=device)
    graph = BridgedCUDAGraph()
    monkeypatch.setenv("GFXGRAPH_VRAM_CAP", "0.0")
    with pytest.raises(MemoryCapError, match=r"GFXGRAPH_VRAM_CAP=0 .*no capture was begun"):
        graph.capture_begin()
    with pytest.raises(MemoryCapError), graph.capture():
        x + 1
    assert not current_device().is_capturing()
    monkeypatch.setenv("GFXGRAPH_VRAM_CAP", "1.0")
    with region(graph):
        y = x + 1
    graph.replay()
    assert y.tolist() == [2.0] * 4


def test_without_the_variable_captures_by_hand_fill_the_device(device, monkeypatch):
    monkeypatch.delenv("GFXGRAPH_VRAM_CAP", raising=False)
    kind = type(current_device())
    monkeypatch.setattr(kind, "memory", lambda self, index=0: (99, 100))
    graph = BridgedCUDAGraph()
    with region(graph):
        y = torch.ones(4, device=device) + 1
    graph.replay()
    assert y.tolist() == [2.0] * 4


def test_a_malformed_cap_is_said_before_the_capture_begins(monkeypatch):
    monkeypatch.setenv("GFXGRAPH_VRAM_CAP", "80%")
    with pytest.raises(SettingError, match="GFXGRAPH_VRAM_CAP='80%'"):
        BridgedCUDAGraph().capture_begin()


# ---- copies


@torch.no_grad()
@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))]
)
def test_a_copy_of_a_graph_holds_no_capture(device, duplicate, sized):
    model, x = nn.Linear(4, 2).to(device), torch.ones(4, 4, device=device)
    options = {"dynamic_shapes": True, "buckets": [2, 4]} if sized else {}
    model(x)
    graph = BridgedCUDAGraph()
    with graph.capture(model_fn=model, **options):
        model(x)
    twin = duplicate(graph)
    with pytest.raises(RuntimeError):
        twin.replay()
    with twin.capture(model_fn=model, **options):
        model(x)
    torch.testing.assert_close(twin.replay(), graph.replay())
