"""``graphed(compile=)``: compiled code in the graph, or the reason why there is none."""

from __future__ import annotations

import copy
import gc
import inspect
import logging
import os
import random
import re
import shutil
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.errors import ArgumentError, CompileError, VerificationError
from gfxgraph.graph.compare import difference
from tests.helpers.devices import HAS_GPU
from tests.helpers.models import net
from tests.helpers.processes import printed
from tests.helpers.threads import on_threads

pytestmark = pytest.mark.usefixtures("fresh_compiler")

needs_inductor = pytest.mark.skipif(
    not HAS_GPU and shutil.which(os.environ.get("CXX", "g++")) is None,
    reason="Inductor needs a C++ compiler on a machine without a GPU",
)

BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=needs_inductor)]


class Backend:
    """Runs what Dynamo hands over as it is, and remembers it.

    Args:
        change: what becomes of each output; given the n-th tensor of a region.
    """

    def __init__(self, change=lambda tensor: tensor):
        self.regions = []
        self._change = change

    def __call__(self, graph, example_inputs):
        def run(*args):
            return tuple(map(self._change, graph.forward(*args)))

        self.regions.append(weakref.ref(run))
        self.shapes = [tuple(t.shape) for t in example_inputs if isinstance(t, torch.Tensor)]
        return run


def compiled_only(graph: Any) -> bool:
    stats = graph.stats()
    return (
        bool(stats.graphs)
        and all(row.compiled for row in stats.graphs)
        and not stats.not_compiled
        and not stats.fallbacks
    )


def why_not(graph: Any) -> str:
    stats = graph.stats()
    assert not any(row.compiled for row in stats.graphs) and not stats.fallbacks
    (reason,) = set(stats.not_compiled.values())
    return str(reason)


def same(graph: Any, fn: Any, *args: Any, times: int = 3, **kwargs: Any) -> None:
    for _ in range(times):
        found = difference(graph(*args, **kwargs), fn(*args, **kwargs), True)
        assert found is None, found


# ---- what is compiled


@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_a_module_is_compiled_and_replayed(device, backend):
    model = net(device)
    graph = gfxgraph.graphed(model, compile={"backend": backend})
    for _ in range(4):
        same(graph, model, torch.randn(4, 8, device=device), times=1)
    stats = graph.stats()
    assert compiled_only(graph) and stats.captures == 1 and stats.replays == 3
    assert stats.compile_s > 0 and gfxgraph.stats()["compile_failures"] == 0


def test_nothing_is_compiled_unless_asked_for(device):
    graph = gfxgraph.graphed(torch.relu)
    same(graph, torch.relu, torch.randn(4, device=device))
    stats = graph.stats()
    assert stats.compile_s == 0.0 and not stats.not_compiled and not stats.graphs[0].compiled


@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_several_regions_are_one_graph(device, backend):
    model = net(device)

    def broken(x):
        y = model(x)
        torch._dynamo.graph_break()
        z = y.sin() + x
        torch._dynamo.graph_break()
        return z * 2, {"y": y}

    graph = gfxgraph.graphed(broken, compile={"backend": backend})
    for _ in range(3):
        x = torch.randn(4, 8, device=device)
        (got, more), (expected, rest) = graph(x), broken(x)
        assert not difference(got, expected, True) and not difference(more["y"], rest["y"], True)
    assert compiled_only(graph)
    assert graph.stats().captures == 1 and graph.stats().graphs[0].paths == 1


@needs_inductor
def test_a_function_may_ask_for_the_limit_of_recursion_that_inductor_raises(device):
    unknown = random.random()  # no cache has this function: it is compiled

    def asks(x):
        return x * unknown + len(inspect.signature(difference).parameters)

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        graph = gfxgraph.graphed(asks, compile=True, fallback="raise")
        graph(torch.ones(3, device=device))
    finally:
        sys.setrecursionlimit(before)
    assert compiled_only(graph)


def test_regions_are_counted_by_the_backend_that_makes_them(device):
    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y + 1

    backend = Backend()
    graph = gfxgraph.graphed(broken, compile={"backend": backend})
    same(graph, broken, torch.randn(3, device=device))
    assert len(backend.regions) == 2 and compiled_only(graph)


@torch.no_grad()
def test_each_kind_of_call_is_compiled_for_its_shapes_beyond_the_limit_of_dynamo(device):
    model, backend = net(device), Backend()
    graph = gfxgraph.graphed(model, compile={"backend": backend})
    sizes = range(1, 12)  # Dynamo would compile for 8 of them
    for size in sizes:
        same(graph, model, torch.randn(size, 8, device=device), times=2)
        assert (size, 8) in backend.shapes
    assert compiled_only(graph) and graph.stats().captures == len(sizes) == len(backend.regions)


def test_it_is_not_compiled_for_more_kinds_than_graphs_are_kept(device):
    backend = Backend()
    graph = gfxgraph.graphed(torch.sin, compile={"backend": backend}, max_graphs=2)
    for size in range(1, 6):
        same(graph, torch.sin, torch.randn(size, device=device), times=2)
    assert len(backend.regions) == 2 and "max_graphs is 2" in why_not(graph)


@torch.no_grad()
def test_a_rebound_weight_is_found_and_the_compiled_code_captured_again(device):
    model, backend = net(device), Backend()
    graph = gfxgraph.graphed(model, compile={"backend": backend})
    x = torch.randn(4, 8, device=device)
    same(graph, model, x)
    model[0].weight = nn.Parameter(torch.randn(16, 8, device=device))
    same(graph, model, x)
    model[1] = nn.ReLU()
    same(graph, model, x)
    assert graph.stats().recaptures == 2 and compiled_only(graph)
    assert len(backend.regions) == 2  # another weight is the same code, another module is not


@torch.no_grad()
def test_what_the_compiler_notes_on_a_buffer_is_no_change_of_it(device):
    model = nn.BatchNorm1d(8).to(device).eval()
    model.running_mean.note = "of the program"
    graph = gfxgraph.graphed(model, compile={"backend": "eager"})
    same(graph, model, torch.randn(4, 8, device=device))
    assert compiled_only(graph) and graph.stats().replays == 2


@torch.no_grad()
def test_weights_changed_in_place_are_seen_by_the_graph(device):
    model = net(device)
    graph = gfxgraph.graphed(model, compile={"backend": "aot_eager"})
    x = torch.randn(4, 8, device=device)
    same(graph, model, x)
    model[0].weight.mul_(-2)
    same(graph, model, x)
    assert graph.stats().captures == 1 and compiled_only(graph)


@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_what_the_function_writes_is_written_once_a_call(device, backend):
    cache = torch.zeros(6, 8, device=device)
    position = torch.zeros((), dtype=torch.long, device=device)

    def step(x):
        cache.index_copy_(0, position[None], x[None])
        position.add_(1)
        return cache.sum(0)

    graph = gfxgraph.graphed(step, compile={"backend": backend})
    xs = [torch.randn(8, device=device) for _ in range(6)]  # any further, and it is out of bounds
    for n, x in enumerate(xs):
        torch.testing.assert_close(graph(x), torch.stack(xs[: n + 1]).sum(0))
        assert position.item() == n + 1
    assert compiled_only(graph)


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers_are_those_of_eager_execution(device, backend):
    def noisy(x):
        return x + torch.randn_like(x) * torch.rand(4, 1, device=x.device)

    graph = gfxgraph.graphed(noisy, compile={"backend": backend})
    x = torch.randn(4, 8, device=device)
    for seed in range(4):
        torch.manual_seed(seed)
        got = [graph(x), graph(x)]
        torch.manual_seed(seed)
        torch.testing.assert_close(got, [noisy(x), noisy(x)])
    assert compiled_only(graph)


@torch.no_grad()
def test_modes_and_keywords_are_kinds_of_their_own(device):
    model = net(device)

    def scaled(x, *, factor=1.0, shift=None):
        y = model(x) * factor
        return y if shift is None else y + shift

    graph = gfxgraph.graphed(scaled, compile={"backend": "aot_eager"})
    x, shift = torch.randn(4, 8, device=device), torch.randn(8, device=device)
    same(graph, scaled, x)
    same(graph, scaled, x, factor=2.0)
    same(graph, scaled, x, shift=shift)
    with torch.inference_mode():
        same(graph, scaled, x)
    with torch.autocast(device, dtype=torch.bfloat16):
        same(graph, scaled, x)
        assert graph(x).dtype == torch.bfloat16
    assert graph.stats().captures == 5 and compiled_only(graph)


@pytest.mark.parametrize(
    "how", [{}, {"dynamic": False}], ids=["one for all buckets", "one a bucket"]
)
@torch.no_grad()
def test_buckets_share_one_compilation_unless_told_otherwise(device, how):
    model, backend = net(device), Backend()
    graph = gfxgraph.graphed(model, buckets=[4, 8, 16], compile={"backend": backend, **how})
    for size in (3, 16, 7, 5, 12, 4):
        same(graph, model, torch.randn(size, 8, device=device), times=2)
    stats = graph.stats()
    assert compiled_only(graph) and stats.captures == 3
    assert len(backend.regions) == (3 if how else 1)


class Policy:
    def __init__(self, device):
        self.net = net(device)

    @gfxgraph.graphed(compile={"backend": "aot_eager"})
    @torch.no_grad()
    def act(self, x):
        return self.net(x).tanh()


def test_each_instance_of_a_method_has_its_own_and_goes_without_the_garbage_collector(device):
    first, second = Policy(device), Policy(device)
    x = torch.randn(4, 8, device=device)
    for policy in (first, second):
        same(policy.act, lambda x, policy=policy: policy.net(x).tanh(), x)
        assert compiled_only(policy.act)
    gone = weakref.ref(first)
    gc.collect()
    gc.disable()
    try:
        del first, policy
        assert gone() is None
    finally:
        gc.enable()
    same(second.act, lambda x: second.net(x).tanh(), x)


@torch.no_grad()
def test_a_method_of_a_module_and_a_partial_are_compiled(device):
    import functools

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net(device)

        def sample(self, x, steps):
            for _ in range(steps):
                x = x + self.net(x)
            return x

    model, x = Model(), torch.randn(4, 8, device=device)
    for fn, args in ((model.sample, (x, 3)), (functools.partial(model.sample, steps=2), (x,))):
        graph = gfxgraph.graphed(fn, compile={"backend": "aot_eager"})
        same(graph, fn, *args)
        assert compiled_only(graph)


@torch.no_grad()
def test_threads_get_their_own_results(device):
    model = net(device)
    graph = gfxgraph.graphed(model, compile={"backend": "aot_eager"})
    wrong: list[object] = []

    def work(seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        try:
            with torch.no_grad():
                for n in range(30):
                    x = torch.randn(1 + (n + seed) % 3, 8, generator=random).to(device)
                    wrong.extend(filter(None, [difference(graph(x), model(x), True)]))
        except Exception as error:
            wrong.append(error)

    on_threads(work, range(4))
    assert not wrong
    assert graph.stats().replays > 0 and not graph.stats().not_compiled


def test_what_a_graph_uses_of_compiled_code_outlives_a_reset_of_the_compiler(device):
    backend = Backend()
    graph = gfxgraph.graphed(torch.sin, compile={"backend": backend})
    x = torch.randn(4, device=device)
    same(graph, torch.sin, x)
    torch.compiler.reset()
    gc.collect()
    (region,) = backend.regions
    assert region() is not None
    same(graph, torch.sin, x)
    graph.reset()
    torch.compiler.reset()
    gc.collect()
    assert region() is None


def test_after_a_reset_it_is_compiled_anew(device):
    graph = gfxgraph.graphed(torch.sin, compile={"backend": "aot_eager"})
    x = torch.randn(4, device=device)
    same(graph, torch.sin, x)
    graph.reset()
    assert graph.stats().compile_s == 0.0
    same(graph, torch.sin, x)
    assert compiled_only(graph) and graph.stats().compile_s > 0


def test_a_copy_compiles_as_the_original_does(device):
    graph = copy.deepcopy(gfxgraph.graphed(net(device), compile={"backend": "aot_eager"}))
    with torch.no_grad():
        same(graph, graph.__wrapped__, torch.randn(4, 8, device=device))
    assert compiled_only(graph)


# ---- what is not compiled, and why


def fails(graph, example_inputs):
    raise RuntimeError("no compiler on this machine")


@torch.no_grad()
def test_where_compiling_fails_the_graph_is_that_of_the_function_as_it_is(device, caplog):
    model = net(device)
    graph = gfxgraph.graphed(model, compile={"backend": fails})
    with caplog.at_level(logging.WARNING, "gfxgraph"):
        for size in (2, 3):
            same(graph, model, torch.randn(size, 8, device=device))
    assert "no compiler on this machine" in why_not(graph)
    assert graph.stats().replays == 4 and gfxgraph.stats()["compile_failures"] == 2
    assert [record.event for record in caplog.records] == ["not_compiled"]  # told once


@pytest.mark.long
@pytest.mark.skipif(HAS_GPU, reason="there Inductor makes kernels without a C++ compiler")
def test_without_a_compiler_for_inductor_there_is_a_graph_all_the_same(tmp_path):
    code = (
        "import torch, gfxgraph\n"
        "graph, x = gfxgraph.compile(torch.sin), torch.randn(3)\n"
        "for _ in range(3): torch.testing.assert_close(graph(x), torch.sin(x))\n"
        "(reason,) = graph.stats().not_compiled.values()\n"
        "assert 'torch.compile failed' in reason and 'compiler' in reason, reason\n"
        "assert graph.stats().replays == 2\n"
    )
    nothing = {"CXX": str(tmp_path / "nothing"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    printed(code, **nothing)


def test_where_compiling_fails_it_is_an_error_if_asked_for(device):
    graph = gfxgraph.graphed(torch.sin, compile={"backend": fails}, fallback="raise")
    with pytest.raises(CompileError, match="no compiler on this machine") as caught:
        graph(torch.randn(4, device=device))
    assert caught.value.__cause__ is not None


def test_code_that_must_be_one_region_and_is_not_is_a_failure(device):
    def broken(x):
        torch._dynamo.graph_break()
        return x.sin()

    graph = gfxgraph.graphed(broken, compile={"backend": "eager", "fullgraph": True})
    same(graph, broken, torch.randn(4, device=device))
    assert "torch.compile failed: Unsupported" in why_not(graph)


def test_what_a_compiler_prints_is_not_the_function_printing(device):
    def prints(graph, example_inputs):
        print("a table of the graph")
        return graph.forward

    graph = gfxgraph.graphed(torch.sin, compile={"backend": prints})
    same(graph, torch.sin, torch.randn(4, device=device))
    assert compiled_only(graph)


def test_a_function_that_prints_runs_eagerly_as_without_compile(device, capsys):
    def says(x):
        print("called")
        return x * 2

    graph = gfxgraph.graphed(says, compile={"backend": "eager"})
    same(graph, says, torch.randn(4, device=device), times=2)
    assert "prints" in next(iter(graph.stats().fallbacks)) and not graph.stats().graphs
    assert capsys.readouterr().out == "called\n" * 4


def test_dynamo_that_is_off_is_noticed(device):
    graph = gfxgraph.graphed(torch.sin, compile={"backend": "eager", "disable": True})
    same(graph, torch.sin, torch.randn(4, device=device))
    assert "made nothing of it" in why_not(graph)


@pytest.mark.parametrize("change", [lambda t: t * 1.01, lambda t: t + 0.01, lambda t: t.flip(0)])
@torch.no_grad()
def test_a_wrong_compilation_is_found_and_never_answers_a_call(device, change):
    model = net(device)
    graph = gfxgraph.graphed(model, compile={"backend": Backend(change)})
    for _ in range(3):
        same(graph, model, torch.randn(4, 8, device=device), times=1)
    reason = why_not(graph)
    assert "the compiled function differs from eager execution in output 0" in reason
    assert gfxgraph.stats()["validation_failures"] == 1


def test_a_wrong_compilation_of_what_is_written_is_found(device):
    total = torch.zeros(4, device=device)

    def add(x):
        total.add_(x)
        return x * 2

    def forgets(graph, example_inputs):
        def run(*args):
            kept = [arg.clone() for arg in args]
            results = graph.forward(*args)
            for arg, values in zip(args, kept, strict=True):
                arg.copy_(values)
            return results

        return run

    graph = gfxgraph.graphed(add, compile={"backend": forgets})
    for n in range(1, 4):
        graph(torch.ones(4, device=device))
        assert total.tolist() == [float(n)] * 4
    assert "compiled function differs from eager execution in written tensor 0" in why_not(graph)


def test_rounding_at_other_places_is_allowed_and_verify_says_how_much(device):
    def rounds(t):
        return t * (1 + 2e-4)

    x = torch.ones(4, device=device)
    graph = gfxgraph.graphed(torch.exp, compile={"backend": Backend(rounds)}, verify=1e-3)
    graph(x)
    assert compiled_only(graph)
    graph = gfxgraph.graphed(torch.exp, compile={"backend": Backend(rounds)}, verify=1e-5)
    same(graph, torch.exp, x)
    assert "allowed 2.72e-05" in why_not(graph)


def test_a_wide_result_may_be_as_coarse_as_what_it_was_made_in(device):
    def half(x):
        return torch.exp(x.bfloat16()).float()

    def same_but(error):
        backend = Backend(lambda t: t * (1 + error) if t.dtype == torch.float32 else t)
        graph = gfxgraph.graphed(half, compile={"backend": backend})
        graph(torch.ones(4, device=device))
        return compiled_only(graph)

    assert same_but(4e-3), "the last bit of bfloat16"
    assert not same_but(0.2)


def test_a_wrong_compilation_that_draws_leaves_the_graph_of_the_function(device):
    def noisy(x):
        return x + torch.rand_like(x)

    graph = gfxgraph.graphed(noisy, compile={"backend": Backend(lambda t: t + 1)})
    for seed in range(3):
        x = torch.zeros(4, device=device)
        torch.manual_seed(seed)
        got = graph(x)
        torch.manual_seed(seed)
        assert torch.equal(got, noisy(x))
    assert "differs from eager execution" in why_not(graph)
    assert graph.stats().replays == 2 and not graph.stats().fallbacks


def test_a_wrong_compilation_is_an_error_if_asked_for(device):
    backend = Backend(lambda t: t + 1)
    graph = gfxgraph.graphed(torch.sin, compile={"backend": backend}, fallback="raise")
    with pytest.raises(VerificationError, match="compiled function"):
        graph(torch.randn(4, device=device))


def test_a_function_whose_data_decides_becomes_branches_uncompiled(device):
    def work(x):
        if x.sum() > 0:
            return x * 2
        return x - 1

    backend = Backend()
    graph = gfxgraph.graphed(work, compile={"backend": backend})
    for sign in (1, -1, 1, -1):
        same(graph, work, sign * torch.ones(4, device=device))
    assert graph.stats().graphs[0].paths == 2
    assert re.search(r"compiled code cannot be cut there: .*test_compiled\.py:\d+", why_not(graph))
    assert not backend.regions  # it is known before anything is compiled


@pytest.mark.usefixtures("compiled_loops")
def test_a_function_that_reads_constants_of_the_device_is_compiled_and_folded(device):
    def integrate(x):
        time, dt = torch.ones((), device=x.device), torch.full((), -0.25, device=x.device)
        while time >= -dt / 2:
            x = x + dt * x
            time = time + dt
        return x

    graph = gfxgraph.graphed(integrate, compile={"backend": "eager"})
    same(graph, integrate, torch.randn(4, device=device))
    assert compiled_only(graph)
    assert any("folded" in line for line in graph.stats().graphs[0].report)


def test_what_cannot_be_a_graph_at_all_runs_eagerly_as_without_compile(device):
    def work(x):
        work.calls += 1
        return x * 2

    work.calls = 0
    graph = gfxgraph.graphed(work, compile={"backend": "eager"})
    x = torch.ones(4, device=device)
    for n in range(3):
        before = work.calls
        assert torch.equal(graph(x), x * 2)
        assert work.calls == before + 1 or n == 0
    stats = graph.stats()
    assert not stats.graphs and "work.calls" in next(iter(stats.fallbacks))


@pytest.mark.gpu
@torch.no_grad()
def test_a_graph_whose_replays_are_compared_holds_compiled_code():
    model = net("cuda")
    gfxgraph.enable(validate=True)
    graph = gfxgraph.graphed(model, compile={"backend": "aot_eager"})
    same(graph, model, torch.randn(4, 8, device="cuda"))
    assert compiled_only(graph)


@pytest.mark.gpu
@torch.no_grad()
def test_a_replay_launches_the_kernels_of_inductor():
    model = net("cuda")
    graph = gfxgraph.graphed(model, compile=True)
    x = torch.randn(4, 8, device="cuda")
    same(graph, model, x)
    assert compiled_only(graph)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        graph(x)
        torch.cuda.synchronize()
    assert any("triton" in event.name for event in profile.events())


@pytest.mark.gpu
@torch.no_grad()
def test_constants_of_the_host_are_in_compiled_code_what_they_are_in_eager():
    table = [0.5, 1.5, 2.5, 3.5] * 16

    def work(x):
        scale = torch.tensor(0.1, device=x.device)
        return x * scale + torch.tensor(table, device=x.device)

    graph = gfxgraph.graphed(work, compile=True)
    for _ in range(3):
        same(graph, work, torch.randn(64, device="cuda"), times=1)
    assert graph.stats().replays == 2


# ---- what is taken


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("reduce-overhead", "asks Inductor for graphs of its own"),
        ({"mode": "reduce-overhead"}, 'use mode="default"'),
        ({"backend": "cudagraphs"}, "asks Inductor for graphs of its own"),
        ({"options": {"triton.cudagraphs": True}}, "Leave it out"),
        ("fastest", "fastest"),
        ({"backend": "fastest"}, "fastest"),
        ({"speed": 3}, "speed"),
        ({"options": {"no_such_option": 1}}, "no_such_option"),
        (3, "expected True, False, a mode"),
        ({3: 4}, "expected True, False, a mode"),
        ("", "expected True, False, a mode"),
        ({"mode": ""}, "expected True, False, a mode"),
        ({"options": 3}, "expected a dict of settings"),
    ],
)
def test_what_torch_compile_would_not_take_is_an_error_at_once(given, says):
    with pytest.raises(ArgumentError, match=re.escape(says)):
        gfxgraph.graphed(torch.sin, compile=given)


def test_graphs_of_inductor_are_off_whatever_the_mode_and_the_configuration():
    from gfxgraph.call.compiled import Compile

    for given in (True, "max-autotune", {"options": {"max_autotune": True}}):
        patches = Compile.of(given).backend().keywords["config_patches"]
        assert patches["triton.cudagraphs"] is False
        assert patches.get("max_autotune", False) is (given is not True)


def test_what_the_user_gave_is_left_as_it_was():
    given = {"options": {"max-autotune": True}}
    gfxgraph.graphed(torch.sin, compile=given)
    assert given == {"options": {"max-autotune": True}}


# ---- gfxgraph.compile


@needs_inductor
@torch.no_grad()
def test_compile_keeps_the_faster_graph_and_says_so(device, caplog):
    model = net(device)
    with caplog.at_level(logging.INFO, "gfxgraph"):
        graph = gfxgraph.compile(model)
        same(graph, model, torch.randn(4, 8, device=device))
    (row,) = graph.stats().graphs
    (record,) = (r for r in caplog.records if getattr(r, "event", "") == "measured")
    verdict = record.fields["because"]
    if HAS_GPU:
        of_compiled, as_it_is = map(float, re.findall(r"([\d.]+) us", verdict))
        assert row.compiled == (of_compiled < as_it_is)
    else:
        assert row.compiled and "not timed" in verdict
    assert record.fields["kept"] == ("compiled" if row.compiled else "as it is")
    told = row.report if row.compiled else [graph.stats().not_compiled[row.key]]
    assert verdict in told[0]


@pytest.mark.parametrize("times", [[2.0, 1.0], [1.0, 2.0]])
@torch.no_grad()
def test_each_bucket_has_the_graph_that_was_faster(device, monkeypatch, times):
    from gfxgraph.call import faster
    from gfxgraph.call.compiled import Compile

    def slow_or_fast(*entries):
        assert all(entry.captured.time_call("replay") > 0 for entry in entries)
        return times

    monkeypatch.setattr(faster, "_call_us", slow_or_fast)
    model, how = net(device), Compile.of({"backend": "aot_eager"}, measure=True)
    graph = gfxgraph.graphed(model, compile=how, buckets=[2, 4, 8])
    for size in (3, 1, 7):
        same(graph, model, torch.randn(size, 8, device=device))
    stats = graph.stats()
    assert len(stats.graphs) == 3 and not stats.refused
    assert all(row.compiled == (times[0] < times[1]) for row in stats.graphs)


@pytest.mark.parametrize("fallback", ["eager", "raise"])
@torch.no_grad()
def test_a_kind_of_call_that_is_faster_eagerly_has_no_graph(device, monkeypatch, fallback):
    from gfxgraph.call import faster
    from gfxgraph.call.compiled import Compile

    def times(compiled, plain):
        assert plain.captured.time_call("eager") > 0
        return [3.0, 2.0, 1.0]

    monkeypatch.setattr(faster, "_call_us", times)
    model, how = net(device), Compile.of({"backend": "aot_eager"}, measure=True)
    graph = gfxgraph.graphed(model, compile=how, fallback=fallback)
    for _ in range(3):
        same(graph, model, torch.randn(4, 8, device=device))
    stats = graph.stats()
    if fallback == "raise":  # a graph was asked for
        assert stats.replays and not stats.refused
    else:
        assert not stats.graphs
        assert list(stats.refused.values()) == [
            "a graph would be slower: 1.0 us a call eagerly; as a graph, 3.0 us a call compiled, "
            "2.0 us as it is"
        ]


@pytest.mark.gpu
@needs_inductor
@torch.no_grad()
def test_compile_leaves_a_function_eager_that_only_moves_memory():
    def fn(x):
        return x + 1

    graph = gfxgraph.compile(fn)
    x = torch.randn(64 << 20, device="cuda")  # a graph copies it in and out
    for _ in range(3):
        same(graph, fn, x)
    stats = graph.stats()
    assert not stats.graphs, [row.report for row in stats.graphs]
    (reason,) = stats.refused.values()
    assert "a graph would be slower" in reason


@needs_inductor
@torch.no_grad()
def test_compile_without_measuring_keeps_the_compiled_code(device):
    model = net(device)
    graph = gfxgraph.compile(model, measure=False, buckets=[4, 8])
    for size in (3, 8):
        same(graph, model, torch.randn(size, 8, device=device))
    assert compiled_only(graph)


def test_measuring_takes_back_what_replays_write_and_draw(device):
    from gfxgraph.call.compiled import Compile

    position = torch.zeros((), dtype=torch.long, device=device)
    table = torch.arange(4.0, device=device)

    def step(x):
        y = x + table[position] + torch.rand_like(x)
        position.add_(1)
        return y

    graph = gfxgraph.graphed(step, compile=Compile.of({"backend": "aot_eager"}, measure=True))
    x = torch.zeros(3, device=device)
    torch.manual_seed(3)
    got = [graph(x) for _ in range(4)]
    torch.manual_seed(3)
    assert position.item() == 4
    torch.testing.assert_close(got, [n + torch.rand_like(x) for n in range(4)])
    assert len(graph.stats().graphs) == 1 and not graph.stats().fallbacks


def test_compile_takes_the_options_of_graphed_but_compile():
    with pytest.raises(ArgumentError, match="always compiles"):
        gfxgraph.compile(torch.sin, compile=True)
    with pytest.raises(ArgumentError, match="warmup"):
        gfxgraph.compile(torch.sin, warmup=0)
    with pytest.raises(ArgumentError, match="graphs of its own"):
        gfxgraph.compile(torch.sin, mode="reduce-overhead")
    with pytest.raises(ArgumentError, match=r"backend=.*graphed\(compile="):
        gfxgraph.compile(torch.sin, backend="eager")
    with pytest.raises(ArgumentError, match="True or False"):
        gfxgraph.compile(torch.sin, measure="yes")


@needs_inductor
@torch.no_grad()
def test_compile_is_a_decorator_too(device):
    @gfxgraph.compile(measure=False)
    def work(x):
        return x.sin() + 1

    same(work, work.__wrapped__, torch.randn(4, device=device))
    assert compiled_only(work)


def test_compile_is_a_function_whatever_rooms_of_the_package_were_imported():
    code = (
        "import importlib, pkgutil, gfxgraph\n"
        "for room in pkgutil.iter_modules(gfxgraph.__path__):\n"
        "    if room.ispkg: importlib.import_module('gfxgraph.' + room.name)\n"
        "assert callable(gfxgraph.compile), gfxgraph.compile\n"
    )
    printed(code)
