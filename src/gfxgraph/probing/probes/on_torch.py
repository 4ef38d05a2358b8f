"""Graphs through PyTorch: written as its users write them, for a GPU or for the emulated one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .here import Absent, Here, Unprobed, probe


@probe
def torch_graph(here: Here) -> None:
    """``torch.cuda.graph`` around code."""
    with here.a_gpu():
        x, made = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(made):
            y = x * 2 + 1
        seen = []
        for value in (3, 4):
            x.fill_(value)
            made.replay()
            seen.append(y[0].item())
        here.equal("replays on new inputs give", seen, [7.0, 9.0])


@probe
def late_instantiation(here: Here) -> None:
    """The graph of a capture stays, and is instantiated when the program says so."""
    if here.device == "cpu":
        raise Absent("an emulated graph has no handle of a driver")
    if "keep_graph" not in (torch.cuda.CUDAGraph.__new__.__doc__ or "keep_graph"):
        raise Absent("this torch has no keep_graph")
    x, made = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(made):
        y = x + 1
    here.equal("the graph has a handle:", made.raw_cuda_graph() != 0, True)
    made.instantiate()
    x.fill_(4)
    made.replay()
    here.equal("a replay gives", y, [5.0] * 4)


@probe
def shared_pools(here: Here) -> None:
    """Graphs that never run at once share memory."""
    with here.a_gpu():
        x, first, second = (torch.ones(1024, device="cuda") for _ in range(3))
        graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
        with torch.cuda.graph(graphs[0]):
            first = (x * 2).sum()
        with torch.cuda.graph(graphs[1], pool=graphs[0].pool()):
            second = (x * 3).sum()
        here.equal("both say the same pool:", graphs[0].pool() == graphs[1].pool(), True)
        graphs[0].replay()
        here.equal("the first gives", first, 2048.0)
        graphs[1].replay()
        here.equal("the second gives", second, 3072.0)


@probe
def graphed_callables(here: Here) -> None:
    """``make_graphed_callables`` for inference."""
    with here.a_gpu():
        model = nn.Linear(8, 8).cuda().requires_grad_(False)
        x = torch.randn(4, 8, device="cuda")
        expected = model(x).clone()
        fast: Any = torch.cuda.make_graphed_callables(model, (torch.zeros(4, 8, device="cuda"),))
        here.equal("the first number of a call and of eager agree:",
                   bool(torch.allclose(fast(x), expected, atol=1e-3)), True)  # fmt: skip


@probe
def graphed_backward(here: Here) -> None:
    """``make_graphed_callables`` for forward and backward."""
    with here.a_gpu():
        torch.manual_seed(0)
        model: Any = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).cuda()
        x = torch.randn(4, 8, device="cuda")
        model(x).sum().backward()
        expected = model[0].weight.grad.clone()
        model.zero_grad()
        fast: Any = torch.cuda.make_graphed_callables(model, (torch.zeros(4, 8, device="cuda"),))
        fast(x).sum().backward()
        same = torch.allclose(model[0].weight.grad, expected, atol=1e-3)
        here.equal("gradients are those of eager:", bool(same), True)


@probe
def training_step(here: Here) -> None:
    """Forward, backward and optimizer in one graph."""
    with here.a_gpu():
        weight = torch.ones(4, device="cuda", requires_grad=True)
        x = torch.full((4,), 2.0, device="cuda")
        optimizer = torch.optim.SGD([weight], lr=0.1)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # warm-up, as torch's documentation has it
            for _ in range(3):
                optimizer.zero_grad(set_to_none=True)
                (weight * x).sum().backward()
                optimizer.step()
        torch.cuda.current_stream().wait_stream(side)
        made = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(made):
            (weight * x).sum().backward()
            optimizer.step()
        with torch.no_grad():
            weight.fill_(1.0)
        x.fill_(3.0)
        for _ in range(2):
            made.replay()
        here.equal("two steps of 0.1 * 3 from 1 give", weight, [0.4] * 4)


@probe
def warm_up(here: Here) -> None:
    """Libraries that are ready after a warm-up are captured."""
    with here.a_gpu(), torch.no_grad():
        x = torch.randn(2, 3, 8, 8, device="cuda")
        model = nn.Conv2d(3, 4, 3).cuda()

        def run() -> torch.Tensor:
            y: torch.Tensor = model(x).flatten(1) @ torch.ones(144, 5, device="cuda")
            return y

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                run()
        torch.cuda.current_stream().wait_stream(side)
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made):
            y = run()
        x.copy_(torch.randn(2, 3, 8, 8).cuda())
        made.replay()
        same = bool(torch.allclose(y, run(), atol=1e-2))
        here.equal("convolution and matmul on new input are those of eager:", same, True)


@probe
def generators(here: Here) -> None:
    """Each replay draws new random numbers, and a seed repeats them."""
    with here.a_gpu():
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made):
            drawn = torch.rand(8, device="cuda")
        torch.cuda.manual_seed(5)
        runs = []
        for _ in range(2):
            made.replay()
            runs.append(drawn.tolist())
        torch.cuda.manual_seed(5)
        made.replay()
        here.equal("two replays draw the same:", runs[0] == runs[1], False)
        here.equal("with the seed again:", drawn.tolist() == runs[0], True)


@probe
def own_generators(here: Here) -> None:
    """A generator of the program's own is drawn from in a graph."""
    with here.a_gpu():
        own, made = torch.Generator(device="cuda"), torch.cuda.CUDAGraph()
        own.manual_seed(7)
        expected = torch.rand(8, device="cuda", generator=own).tolist()
        made.register_generator_state(own)
        with torch.cuda.graph(made):
            drawn = torch.rand(8, device="cuda", generator=own)
        own.manual_seed(7)
        made.replay()
        here.equal("a replay draws what eager draws:", drawn.tolist() == expected, True)


@probe
def autocast(here: Here) -> None:
    """A region in mixed precision is captured."""
    with here.a_gpu(), torch.no_grad():
        a = torch.randn(16, 16, device="cuda")

        def run() -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                return a @ a

        for _ in range(2):
            run()
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made):
            y = run()
        a.copy_(torch.randn(16, 16).cuda())
        made.replay()
        here.equal("the result is", str(y.dtype), "torch.bfloat16")
        same = torch.allclose(y, run(), rtol=2e-2, atol=2e-2)
        here.equal("on new input it is that of eager:", bool(same), True)


def _compiled(here: Here, mode: str | None) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A function that torch has compiled, an input, and what eager gives."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU()).to(here.device).requires_grad_(False)
    x = torch.randn(4, 16, device=here.device)
    return torch.compile(model, mode=mode), x, model(x)


@probe
def reduce_overhead(here: Here) -> None:
    """torch.compile makes graphs by itself (cudagraph trees)."""
    if here.device == "cpu":
        raise Absent("cudagraph trees need a GPU; on the CPU this mode makes no graph")
    from torch._inductor.cudagraph_trees import get_container

    fast, x, expected = _compiled(here, "reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            y = fast(x).clone()
    here.equal("the result is that of eager:", bool(torch.allclose(y, expected, atol=1e-2)), True)
    manager = get_container(torch.cuda.current_device()).tree_manager
    here.equal("torch has a tree of graphs:", bool(manager and manager.roots), True)


@probe
def compiled_in_a_graph(here: Here) -> None:
    """Code that torch.compile has made is captured by hand."""
    if here.device == "cpu":
        raise Absent("compiled code for the CPU cannot be captured by torch.cuda.graph")
    fast, x, _ = _compiled(here, None)
    with torch.no_grad():
        for _ in range(2):
            fast(x)
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made):
            y = fast(x)
        x.copy_(torch.randn(4, 16))
        made.replay()
        here.equal("on new input a replay gives what a call gives:",
                   bool(torch.allclose(y, fast(x), atol=1e-3)), True)  # fmt: skip


@probe
def triton_kernels(here: Here) -> None:
    """A kernel of Triton is captured."""
    if here.device == "cpu":
        raise Absent("Triton has no kernels for the emulated device")
    try:
        import triton  # noqa: F401
    except ImportError as error:
        raise Unprobed("Triton is not installed: pip install triton") from error
    from .triton_kernel import doubled

    x = torch.ones(64, device="cuda")
    doubled(x)  # compiled before the capture
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made):
        y = doubled(x)
    x.fill_(4)
    made.replay()
    here.equal("a replay doubles:", y[:2], [8.0, 8.0])


@probe
def collectives(here: Here) -> None:
    """A collective of torch.distributed is in a graph."""
    if here.device == "cpu":
        raise Absent("the emulated device replays no collective")
    dist: Any = torch.distributed
    if not dist.is_nccl_available():
        raise Absent("this torch has no NCCL")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        x, out = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
        dist.all_gather_into_tensor(out, x)  # makes the communicator
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made, capture_error_mode="thread_local"):
            dist.all_gather_into_tensor(out, x)
        x.fill_(5)
        made.replay()
        here.equal("all_gather of one rank replays:", out, [5.0] * 4)
        del made  # before the group: its end would wait for the graph
    finally:
        dist.destroy_process_group()


@probe
def expandable_segments(here: Here) -> None:
    """Graphs lie in memory that grows by pages."""
    if here.device == "cpu":
        raise Absent("the allocator of the emulated device has no segments")
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    try:
        x, made = torch.ones(1 << 20, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(made):
            y = (x * 2).sum()
        x.fill_(3)
        made.replay()
        here.equal("a replay gives", y, 6.0 * (1 << 20))
        segments = torch.cuda.memory_snapshot()
        here.equal("segments that expand are there:",
                   any(one.get("is_expandable") for one in segments), True)  # fmt: skip
    finally:
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")


@probe
def memory_pools(here: Here) -> None:
    """A capture allocates from a pool of the program's own."""
    if here.device == "cpu":
        raise Absent("the emulated device refuses torch.cuda.MemPool")
    pool, x, made = torch.cuda.MemPool(), torch.ones(1024, device="cuda"), torch.cuda.CUDAGraph()
    handle: Any = pool.id
    with torch.cuda.graph(made, pool=handle):
        y = x * 2
    x.fill_(3)
    made.replay()
    here.equal("a replay gives", y[:2], [6.0, 6.0])
    inside = [
        one["address"] <= y.data_ptr() < one["address"] + one["total_size"]
        for one in torch.cuda.memory_snapshot(pool.id)
    ]
    here.equal("its result lies in that pool:", any(inside), True)


@probe
def timing_in_graphs(here: Here) -> None:
    """Events in a graph tell how long its parts take."""
    if here.device == "cpu":
        raise Absent("an emulated replay takes no time of a device")
    try:
        begin, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    except TypeError as error:
        raise Absent("torch.cuda.Event of this torch takes no external=True") from error
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made):
        begin.record()
        torch.cuda._sleep(10_000_000)
        end.record()
    made.replay()
    torch.cuda.synchronize()
    here.equal("between two events passed more than a millisecond:",
               begin.elapsed_time(end) > 1.0, True)  # fmt: skip
