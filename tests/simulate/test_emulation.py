"""``enable(emulate=True)``: code that says ``cuda`` on a machine without a GPU."""

from __future__ import annotations

import copy
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

import gfxgraph
from gfxgraph.errors import ArgumentError, CaptureForbidden, DeviceError
from tests.helpers.devices import HAS_GPU
from tests.simulate.pieces import PIECES, end_of
from tests.simulate.snippets import of_page

without_gpu = pytest.mark.skipif(HAS_GPU, reason="a GPU is there: nothing is emulated")


@pytest.fixture
def emulated() -> Iterator[None]:
    """The device, emulated where there is none."""
    gfxgraph.enable(emulate=not HAS_GPU)
    yield
    gfxgraph.disable()


@pytest.mark.parametrize("name", PIECES)
def test_a_piece_of_common_code_ends_as_on_a_gpu(name: str, emulated: None) -> None:
    assert end_of(name) == PIECES[name][1]


def _graph(function):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


@without_gpu
def test_disable_takes_the_device_away_and_leaves_its_tensors_usable() -> None:
    gfxgraph.enable(emulate=True)
    model = torch.nn.Linear(2, 2).cuda()
    x = torch.ones(2, device="cuda")
    graph, y = _graph(lambda: x * 2)
    gfxgraph.disable()
    assert not torch.cuda.is_available()
    assert torch.zeros(2).device.type == "cpu"
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(2, device="cuda")
    graph.replay()
    assert y.tolist() == [2.0, 2.0]
    assert (model.weight + 1).device.type == "cuda"


@without_gpu
def test_every_name_of_torch_is_put_back() -> None:
    def names():
        modules = (torch, torch.cuda, torch.cuda.graphs, torch.cuda.memory, torch.cuda.streams)
        more = (torch._C, torch.accelerator, torch.autograd, torch.serialization, threading.Thread)
        return [dict(vars(module)) for module in (*modules, *more)]

    gfxgraph.enable(emulate=True)
    gfxgraph.disable()  # what is imported on first use is there now
    before = names()
    gfxgraph.enable(emulate=True)
    gfxgraph.disable()
    for now, then in zip(names(), before, strict=True):
        assert {k for k in now.keys() | then.keys() if now.get(k) is not then.get(k)} == set()


@without_gpu
def test_it_can_be_enabled_again_and_again() -> None:
    for _ in range(3):
        gfxgraph.enable(emulate=True)
        gfxgraph.enable(emulate=True)
        gfxgraph.enable()
        assert torch.ones(1, device="cuda").is_cuda
        gfxgraph.disable()
    assert not torch.cuda.is_available()


def test_the_argument_has_to_be_a_bool() -> None:
    for value in ("yes", 1, None):
        with pytest.raises(ArgumentError, match=r"enable\(emulate="):
            gfxgraph.enable(emulate=value)  # type: ignore[arg-type]
    assert not gfxgraph.is_enabled()


@pytest.mark.gpu
def test_a_machine_with_a_gpu_does_not_emulate() -> None:
    with pytest.raises(DeviceError, match="not needed"):
        gfxgraph.enable(emulate=True)
    assert not gfxgraph.is_enabled()


@without_gpu
def test_it_does_not_end_inside_of_a_capture(emulated: None) -> None:
    def body():
        with pytest.raises(DeviceError, match="inside of a capture"):
            gfxgraph.disable()
        return torch.ones(2, device="cuda")

    graph, ones = _graph(body)
    graph.replay()
    assert ones.tolist() == [1.0, 1.0]


@without_gpu
def test_it_ends_on_the_thread_that_began_it(emulated: None) -> None:
    errors: list[Exception] = []

    def end() -> None:
        try:
            gfxgraph.disable()
        except DeviceError as error:
            errors.append(error)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert "another thread" in str(errors[0])
    assert torch.ones(1, device="cuda").is_cuda


@without_gpu
def test_a_thread_that_began_it_and_ended_does_not_hold_it() -> None:
    thread = threading.Thread(target=lambda: gfxgraph.enable(emulate=True))
    thread.start()
    thread.join()
    gfxgraph.disable()
    gfxgraph.enable(emulate=True)
    assert torch.ones(1, device="cuda").is_cuda
    gfxgraph.disable()
    assert not torch.cuda.is_available()


def test_programs_that_do_not_emulate_load_nothing_of_it() -> None:
    code = (
        "import sys, gfxgraph; gfxgraph.enable(); gfxgraph.health_check();"
        "print([n for n in sys.modules if n.startswith('gfxgraph.simulate')])"
    )
    assert _python(code).strip() == "[]"


@without_gpu
def test_outputs_are_poison_until_the_first_replay(emulated: None) -> None:
    x = torch.ones(2, device="cuda")
    graph, (y, n) = _graph(lambda: (x * 2, x.long() + 1))
    assert y.isnan().all()
    assert n.tolist() == [torch.iinfo(torch.long).min] * 2
    graph.replay()
    assert y.tolist() == [2.0, 2.0]
    assert n.tolist() == [2, 2]


@without_gpu
def test_streams_that_race_in_a_capture_are_refused(emulated: None) -> None:
    x, side = torch.ones(2, device="cuda"), torch.cuda.Stream()

    def body():
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y * 3
        y.add_(1)
        torch.cuda.current_stream().wait_stream(side)
        return z

    with pytest.raises(CaptureForbidden, match="replays race"):
        _graph(body)


@without_gpu
def test_streams_may_read_the_same_tensor(emulated: None) -> None:
    x, side = torch.ones(2, device="cuda"), torch.cuda.Stream()

    def body():
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y * 3
        w = y + 1
        torch.cuda.current_stream().wait_stream(side)
        return z + w

    graph, out = _graph(body)
    graph.replay()
    assert out.tolist() == [9.0, 9.0]


@without_gpu
def test_work_on_the_default_stream_is_not_in_the_graph_and_warns(emulated: None) -> None:
    x = torch.ones(2, device="cuda")

    def body():
        with torch.cuda.stream(torch.cuda.default_stream()):
            return x * 3

    with pytest.warns(UserWarning, match="not in the graph"):
        graph, y = _graph(lambda: (x + 1, body())[1])
    assert y.tolist() == [3.0, 3.0]
    x.fill_(2)
    graph.replay()
    assert y.tolist() == [3.0, 3.0]


@without_gpu
def test_a_refused_capture_leaves_the_device_usable(emulated: None) -> None:
    x, side = torch.ones(2, device="cuda"), torch.cuda.Stream()
    for _ in range(2):
        with pytest.raises(CaptureForbidden), torch.cuda.stream(side):
            _graph(lambda: x.sum().item())
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    graph, y = _graph(lambda: x + 1)
    graph.replay()
    assert y.tolist() == [2.0, 2.0]
    assert gfxgraph.stats()["capture_failures"] == 2


@without_gpu
def test_backward_is_refused_on_the_device_and_not_on_the_host(emulated: None) -> None:
    weight = torch.ones(2, device="cuda", requires_grad=True)
    with pytest.raises(DeviceError, match="Backward does not run"):
        weight.sum().backward()
    on_host = torch.ones(2, requires_grad=True)
    (on_host * 3).sum().backward()
    assert on_host.grad is not None
    assert on_host.grad.tolist() == [3.0, 3.0]


def test_copies_of_modules_compute_the_same(emulated: None) -> None:
    model, x = torch.nn.Linear(3, 2).cuda(), torch.randn(4, 3, device="cuda")
    again = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.nn.Linear(3, 2, device="cuda")
    loaded.load_state_dict(torch.load(file, map_location="cuda"))
    assert again.weight is not model.weight
    with torch.no_grad():
        for other in (again, loaded):
            assert torch.equal(other(x), model(x))


@without_gpu
def test_files_do_not_depend_on_the_emulation(emulated: None) -> None:
    file = io.BytesIO()
    torch.save({"w": torch.ones(2, device="cuda"), "m": torch.nn.Linear(2, 2).cuda().weight}, file)
    gfxgraph.disable()
    file.seek(0)
    loaded = torch.load(file)
    assert type(loaded["w"]) is torch.Tensor
    assert type(loaded["m"]) is torch.nn.Parameter


@without_gpu
def test_check_undoes_what_it_wrote_on_the_device(emulated: None) -> None:
    model = torch.nn.BatchNorm1d(2).cuda()
    x = torch.ones(3, 2, device="cuda")
    report = gfxgraph.check(model, x)
    assert report.verdict == "captures"
    assert model.running_mean is not None
    assert model.running_mean.tolist() == [0.0, 0.0]
    assert gfxgraph.check(lambda t: t.add_(1), x).verdict == "captures"
    assert x.sum().item() == 6
    found = gfxgraph.check(lambda t: t.sum().item(), x)
    assert "host-read" in [hazard.rule for hazard in found.hazards]
    assert torch.ones(1, device="cuda").is_cuda


@without_gpu
def test_graphed_runs_eagerly_and_says_why(emulated: None) -> None:
    double = gfxgraph.graphed(lambda x: x * 2)
    for value in (1.0, 3.0):
        assert double(torch.full((2,), value, device="cuda")).tolist() == [2 * value] * 2
    assert "emulate=True" in str(gfxgraph.stats()["fallbacks"])


def test_the_machine_is_healthy(emulated: None) -> None:
    assert gfxgraph.health_check()["ok"]


def _python(code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@without_gpu
def test_the_variable_reaches_processes_that_import_gfxgraph() -> None:
    code = "import gfxgraph, torch; print(torch.ones(1).cuda().device)"
    assert _python(code, GFXGRAPH_EMULATE="1").strip() == "cuda:0"


@pytest.mark.long
@without_gpu
def test_run_emulate_runs_a_script_and_what_it_starts(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import subprocess, sys, torch\n"
        "print(torch.ones(1, device='cuda').device, *sys.argv[1:], flush=True)\n"
        "code = 'import gfxgraph, torch; print(torch.cuda.device_count())'\n"
        "subprocess.run([sys.executable, '-c', code], check=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "gfxgraph", "run", "--emulate", str(script), "--its", "own"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["cuda:0 --its own", "1"]


@without_gpu
def test_the_snippets_of_the_page_run() -> None:
    snippets = of_page("docs/emulate.md")
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, "docs/emulate.md", "exec"), {})
        gfxgraph.disable()


@without_gpu
def test_an_operator_without_a_cpu_kernel_is_refused(emulated: None) -> None:
    @torch.library.custom_op("gfxgraph_tests::of_cuda", mutates_args=(), device_types="cuda")
    def of_cuda(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    of_cuda.register_fake(torch.empty_like)
    x = torch.ones(2, device="cuda")
    with pytest.raises(DeviceError, match="no kernel for the CPU"):
        of_cuda(x)
    with pytest.raises(CaptureForbidden, match="no kernel for the CPU"):
        _graph(lambda: of_cuda(x))


_FORKED = """
import os, torch, gfxgraph
gfxgraph.enable(emulate=True)
{before}
if os.fork() == 0:
    for call in ({calls}):
        try:
            call()
        except RuntimeError as error:
            print("forked subprocess" in str(error))
        else:
            print("done")
    print(torch.cuda.is_available(), torch.cuda.is_initialized(), torch.ones(1).item(), flush=True)
    os._exit(0)
os.wait()
"""


@without_gpu
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_child_of_fork_cannot_use_a_device_that_its_parent_uses() -> None:
    before = "x = torch.ones(2, device='cuda')"
    calls = (
        "lambda: x + 1, x.cpu, lambda: torch.ones(1, device='cuda'), torch.cuda.Stream, "
        "torch.cuda.current_device, torch.cuda.synchronize, lambda: repr(x)"
    )
    said = _python(_FORKED.format(before=before, calls=calls)).split()
    assert said == ["True"] * 7 + ["True", "False", "1.0"]


@without_gpu
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_child_of_fork_can_use_a_device_that_its_parent_does_not() -> None:
    calls = "lambda: torch.ones(1, device='cuda').item(), torch.cuda.synchronize"
    said = _python(_FORKED.format(before="torch.cuda.device_count()", calls=calls)).split()
    assert said == ["done", "done", "True", "True", "1.0"]


@without_gpu
def test_a_thread_from_before_is_told_that_it_has_no_device() -> None:
    begun, errors = threading.Event(), []

    def use() -> None:
        begun.wait()
        try:
            torch.ones(2, device="cuda")
        except DeviceError as error:
            errors.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    gfxgraph.enable(emulate=True)
    begun.set()
    thread.join()
    gfxgraph.disable()
    assert "began before" in errors[0]


@without_gpu
def test_it_begins_and_ends_inside_of_contexts() -> None:
    with torch.device("meta"):
        gfxgraph.enable(emulate=True)
        assert torch.zeros(1).is_meta
    assert torch.zeros(1).device.type == "cpu"
    assert torch.zeros(1, device=0).is_cuda
    with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
        gfxgraph.disable()
    gfxgraph.enable(emulate=True)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    gfxgraph.disable()


@without_gpu
@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.cuda.MemPool(),
        lambda: torch.cuda.memory._record_memory_history(),
        lambda: torch.cuda.cudart(),
        lambda: torch.cuda.Event(interprocess=True).ipc_handle(),
        lambda: torch.nn.DataParallel(torch.nn.Linear(3, 3).cuda())(torch.ones(1, 3).cuda()),
        lambda: torch.ones(2, device="cuda").__dlpack__(),
        lambda: torch.jit.trace(lambda x: x * 2, torch.ones(2, device="cuda")),
        lambda: torch.jit.script(torch.nn.Linear(3, 3)).cuda(),
    ],
)
def test_what_is_not_emulated_is_refused_by_name(call, emulated: None) -> None:
    with pytest.raises(DeviceError):
        call()


@without_gpu
def test_profilers_do_not_ask_for_events_of_the_device() -> None:
    code = (
        "import torch, gfxgraph; gfxgraph.enable(emulate=True)\n"
        "from torch.profiler import ProfilerActivity, profile\n"
        "x = torch.ones(2, device='cuda')\n"
        "with profile(activities=[ProfilerActivity.CUDA]) as p: x * 2\n"
        "with torch.autograd.profiler.profile(use_device='cuda'): x * 2\n"
        "print('aten::mul' in str(p.key_averages()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "True"
    assert "Failed to record" not in done.stderr


@without_gpu
@pytest.mark.parametrize("copied", ["x.copy_(host)", "x.cpu()", "host.cuda()", "x[host.long()]"])
def test_a_copy_of_pageable_memory_says_that_it_must_be_pinned(copied: str, emulated: None) -> None:
    x, host = torch.zeros(2, device="cuda"), torch.zeros(2)
    with pytest.raises(CaptureForbidden, match="must be pinned"):
        _graph(lambda: eval(copied, {"x": x, "host": host}))
    assert x.tolist() == [0.0, 0.0]
