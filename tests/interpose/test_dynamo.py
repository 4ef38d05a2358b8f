"""What the user has compiled stays compiled, and is compiled in graphs."""

from __future__ import annotations

import contextlib
import gc
import inspect
import logging
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.device import current_device
from gfxgraph.device.overrides import ThreadDispatchMode
from gfxgraph.graph.liveness import InputLiveness
from gfxgraph.interpose.dynamo import Uncompiled, compiled_code, without_graphs_of_inductor
from tests.helpers.devices import HAS_GPU, region
from tests.helpers.unseen import Unseen

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Function:
    """A function that is to be compiled, and counts how often it runs as compiled code."""

    def __init__(self):
        self._runs = Unseen()  # a count that is seen would keep it from a graph
        self.made = []

        def work(x):
            return x.sin() * 2 + 1

        self.compiled = torch.compile(work, backend=self._backend, dynamic=False)

    def _backend(self, graph, example_inputs):
        def run(*args):
            self._runs.value += 1
            return graph.forward(*args)

        self.made.append(weakref.ref(run))
        return run

    @property
    def runs(self):
        return self._runs.value

    def __call__(self, x):
        return self.compiled(x)

    def runs_compiled(self, x):
        before = self.runs
        self.compiled(x)
        return self.runs == before + 1


def by_graphed(function, x):
    compiled = function.compiled
    graph = gfxgraph.graphed(lambda x: compiled(x) - 1)
    for _ in range(3):  # what the backend keeps of a compilation may have to settle
        graph(x)
    assert graph.stats().captures == 1


def by_buckets(function, x):
    compiled = function.compiled
    pool = gfxgraph.ShapeBucketPool(lambda x: compiled(x) - 1, [4, 8])
    pool.capture(x)
    pool(x[:3])
    assert pool.stats().captures == 2 and not pool.stats().fallbacks


def by_capturing(function, x):
    with region(gfxgraph.BridgedCUDAGraph()):
        function(x)


def by_watching_what_it_reads(function, x):
    seen = InputLiveness()
    seen.start()
    function(x)
    seen.stop(lambda address: False)


WAYS = [
    by_graphed,
    by_buckets,
    by_watching_what_it_reads,
    lambda function, x: gfxgraph.check(function, x),
    lambda function, x: gfxgraph.verify(function, x),
    pytest.param(
        by_capturing,
        marks=pytest.mark.skipif(HAS_GPU, reason="a GPU captures under no mode"),
    ),
]


@pytest.mark.parametrize("look", WAYS)
@torch.no_grad()
def test_what_was_looked_at_runs_compiled_afterwards(device, look):
    function, x = Function(), torch.randn(4, 8, device=device)
    assert function.runs_compiled(x)
    look(function, x)
    assert function.runs_compiled(x)
    assert function.runs_compiled(torch.randn(5, 2, 2, device=device)), "new kinds as well"


def test_a_count_of_graph_breaks_leaves_other_functions_compiled(device):
    function, x = Function(), torch.randn(4, device=device)
    gfxgraph.graph_breaks(lambda x: function(x) * 2, x)
    assert function.runs_compiled(x)


def test_inside_it_runs_as_it_is_and_is_noticed():
    function, x = Function(), torch.randn(4)
    with Uncompiled() as outer:
        x.sin()
        with Uncompiled() as inner:
            assert not inner.asked
            assert not function.runs_compiled(x)
        assert inner.asked and outer.asked
        assert not function.runs_compiled(x), "still inside of the outer one"
    assert function.runs_compiled(x)


def test_functions_that_are_marked_not_to_be_compiled_are_not_taken_for_compiled_ones():
    apart = torch.compiler.disable(torch.sin)
    with Uncompiled() as uncompiled:
        apart(torch.randn(4))
    assert not uncompiled.asked


def test_other_threads_run_compiled_meanwhile():
    function, x = Function(), torch.randn(4)
    answers = []
    with Uncompiled() as uncompiled:
        thread = threading.Thread(target=lambda: answers.append(function.runs_compiled(x)))
        thread.start()
        thread.join()
    assert answers == [True] and not uncompiled.asked


def test_the_stance_that_the_user_has_set_counts_as_before():
    function, x = Function(), torch.randn(4)
    frames = torch._dynamo.eval_frame
    own = frames._stance
    with torch.compiler.set_stance("force_eager"):
        with Uncompiled():
            function(x)
        assert not function.runs_compiled(x)
        with Uncompiled(), torch.compiler.set_stance("default"):
            pass
    assert frames._stance is own or frames._stance.stance == own.stance == "default"
    with Uncompiled():
        pass
    assert frames._stance is own
    assert function.runs_compiled(x)


def test_a_caller_that_is_compiled_replays_between_two_regions(device):
    inner, x = Function(), torch.randn(4, device=device)
    of_inner = inner.compiled
    graph = gfxgraph.graphed(lambda x: of_inner(x) - 1)
    regions = []

    def backend(module, inputs):
        regions.append(module)
        return module.forward

    def outer(x):
        y = x.cos() + 1
        y = graph(y)
        return y.sin()

    compiled = torch.compile(outer, backend=backend)
    with torch.no_grad():
        for _ in range(3):
            expected = (torch.sin(x.cos() + 1) * 2).sin()
            torch.testing.assert_close(compiled(x), expected)
    stats = graph.stats()
    assert stats.captures == 1 and stats.replays == 2 and not stats.fallbacks
    assert len(regions) == 2 and inner.runs_compiled(torch.randn(3, device=device))


def test_code_that_dynamo_made_lives_as_long_as_it_is_held():
    function = Function()
    function(torch.randn(4))
    (made,) = function.made
    held = compiled_code()
    torch.compiler.reset()
    gc.collect()
    assert made() is not None
    del held
    gc.collect()
    assert made() is None


def test_this_torch_has_what_is_replaced_and_has_it_again_afterwards():
    from torch._inductor.cudagraph_trees import CUDAGraphTreeManager as Trees

    before = Trees._run
    assert list(inspect.signature(before).parameters) == ["self", "new_inputs", "function_id"]
    assert "self.ids_to_funcs[function_id].model(new_inputs)" in inspect.getsource(before)
    with without_graphs_of_inductor(), without_graphs_of_inductor():
        assert Trees._run is not before
    assert Trees._run is before


# ---- on a GPU


def net():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Softmax(-1))
    return model.to("cuda").eval()


def launched(graph, x):
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        graph(x)
        torch.cuda.synchronize()
    return [event.name for event in profile.events()]


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@torch.no_grad()
def test_a_graph_holds_what_the_function_has_compiled(mode):
    model = net()
    compiled = torch.compile(model, mode=mode)
    graph = gfxgraph.graphed(lambda x: compiled(x) + 1)
    x = torch.randn(4, 8, device="cuda")
    first, expected = graph(x), model(x) + 1
    for _ in range(4):
        y = torch.randn(4, 8, device="cuda")
        torch.testing.assert_close(graph(y), model(y) + 1)
    stats = graph.stats()
    assert stats.captures == 1 and stats.replays == 4 and not stats.fallbacks
    assert not stats.graphs[0].report and not stats.not_compiled
    assert any("triton" in name for name in launched(graph, x))
    torch.testing.assert_close(first, expected)  # no run of ours has overwritten it
    for _ in range(4):
        torch.testing.assert_close(compiled(x).clone() + 1, expected)


@pytest.mark.gpu
@torch.no_grad()
def test_a_graph_keeps_the_code_that_it_replays():
    model = net()
    compiled = torch.compile(model)
    graph = gfxgraph.graphed(lambda x: compiled(x) + 1)
    x = torch.randn(4, 8, device="cuda")
    graph(x)
    torch.compiler.reset()
    gc.collect()
    for _ in range(3):
        x = torch.randn(4, 8, device="cuda")
        torch.testing.assert_close(graph(x), model(x) + 1)
    assert graph.stats().replays == 3


@torch.no_grad()
def test_what_cannot_be_captured_compiled_is_captured_as_it_is_and_told(
    device, caplog, monkeypatch
):
    if not HAS_GPU:  # go the way of a GPU, whose captures are under no mode
        monkeypatch.setattr(type(current_device()), "kind", "as a GPU")
    compiled = torch.compile(torch.nn.Linear(8, 8).to(device), backend="eager")

    def work(x):
        return compiled(x) + torch.tensor([1.0, 2.0, 3.0, 4.0], device=device)[:, None]

    graph = gfxgraph.graphed(work)
    with caplog.at_level(logging.WARNING, "gfxgraph"):
        graph(torch.randn(4, 8, device=device))
    for _ in range(3):
        x = torch.randn(4, 8, device=device)
        torch.testing.assert_close(graph(x), work(x))
    (reason,) = graph.stats().not_compiled.values()
    assert "capture failed" in reason and reason in caplog.text
    assert graph.stats().replays == 3 and gfxgraph.stats()["compile_failures"] == 1


CHECKS_IN_THREADS = """
import threading
import torch, torch._dynamo, gfxgraph

def f(x):
    for _ in range(20):
        x = x + 1
    return x

threads = [threading.Thread(target=gfxgraph.check, args=(f, torch.ones(2))) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
compiled = []

def backend(module, inputs):
    compiled.append(module)
    return module.forward

torch.compile(f, backend=backend)(torch.ones(2))
print("compiled", len(compiled))
"""


@pytest.mark.long
def test_threads_that_leave_their_modes_in_any_order_leave_no_flag_behind():
    """By the flags of torch's own modes nothing would be compiled any more (up to torch 2.10)."""
    source = str(Path(gfxgraph.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", CHECKS_IN_THREADS],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert "compiled 1" in done.stdout, done.stderr[-2000:]


def test_what_another_thread_compiles_under_a_mode_of_ours_is_compiled(device):
    """Dynamo would skip it for good (up to torch 2.10)."""
    compiled, results = [], []

    def backend(module, inputs):
        compiled.append(module)
        return module.forward

    theirs = torch.compile(lambda x: x * 3 - 1, backend=backend)

    def in_thread():
        results.append(theirs(torch.ones(2, device=device)))

    class Mode(ThreadDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
    assert len(compiled) == 1 and results[0].tolist() == [2.0, 2.0]


def test_a_replay_does_not_pass_by_a_mode_of_ours(device):
    class Mode(ThreadDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen = []
    fast, x = gfxgraph.graphed(lambda x: x * 2), torch.ones(2, device=device)
    with torch.no_grad():
        for _ in range(3):
            fast(x)
        for depth in (1, 2):
            with Mode(), Mode() if depth == 2 else contextlib.nullcontext():
                fast(x)
        fast(x)
    assert len(seen) >= 2 and fast.stats().replays == 3
