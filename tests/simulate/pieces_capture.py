"""Pieces: captures, streams, events, pools, generators, memory and devices."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gfxgraph
from tests.simulate.pieces import captured, graph_of, piece


@piece()
def by_hand() -> Any:
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    static = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        out = static * 3
        graph.capture_end()
    static.fill_(2)
    graph.replay()
    return out, torch.full((4,), 6.0, device="cuda")


@piece("RuntimeError")
def by_hand_on_the_default_stream() -> Any:
    torch.cuda.CUDAGraph().capture_begin()


@piece()
def make_graphed_callables() -> Any:
    model = nn.Linear(4, 2).cuda().eval().requires_grad_(False)
    x = torch.randn(3, 4, device="cuda")
    graphed = torch.cuda.make_graphed_callables(model, (torch.zeros_like(x),), num_warmup_iters=2)
    with torch.no_grad():
        return graphed(x).clone(), nn.functional.linear(x, model.weight, model.bias)


@piece()
def pool_shared_by_two_graphs() -> Any:
    x, pool = torch.ones(8, device="cuda"), torch.cuda.graph_pool_handle()
    outs: list[torch.Tensor] = []
    graphs = [graph_of(lambda n=n: outs.append(x * n), pool=pool) for n in (2, 3)]
    x.fill_(5)
    for graph in graphs:
        graph.replay()
    return [out.tolist() for out in outs], [[10.0] * 8, [15.0] * 8]


@piece()
def pool_of_anothergraph_of() -> Any:
    x, outs = torch.ones(8, device="cuda"), []
    first = graph_of(lambda: outs.append(x + 1))
    second = graph_of(lambda: outs.append(outs[0] * 2), pool=first.pool())
    first.replay()
    second.replay()
    return (outs[1], first.pool()), (torch.full((8,), 4.0, device="cuda"), second.pool())


@piece()
def capturing_is_told() -> Any:
    found = [torch.cuda.is_current_stream_capturing()]
    x = torch.ones(2, device="cuda")
    graph_of(lambda: found.append((torch.cuda.is_current_stream_capturing(), x + 1)[0]))
    return [*found, torch.cuda.is_current_stream_capturing()], [False, True, False]


@piece()
def capture_after_a_failed_one() -> Any:
    x = torch.ones(3, device="cuda")
    try:
        graph_of(lambda: x.sum().item())
    except RuntimeError:
        return captured(lambda t: t * 2, torch.randn(3, device="cuda"))


@piece()
def error_of_the_body() -> Any:
    x = torch.ones(3, device="cuda")

    def body() -> None:
        x.add(1)
        raise KeyError("mine")

    try:
        graph_of(body)
    except KeyError:
        return torch.cuda.is_current_stream_capturing(), False


@piece("RuntimeError")
def replay_without_a_capture() -> Any:
    torch.cuda.CUDAGraph().replay()


@piece("RuntimeError")
def replay_after_reset() -> Any:
    x = torch.ones(3, device="cuda")
    graph = graph_of(lambda: x.add(1))
    graph.reset()
    graph.replay()


@piece()
def capture_after_reset() -> Any:
    x, outs = torch.ones(3, device="cuda"), []
    graph = graph_of(lambda: x.add(1))
    graph.reset()
    with torch.cuda.graph(graph):
        outs.append(x * 7)
    graph.replay()
    return outs[0], torch.full((3,), 7.0, device="cuda")


@piece("RuntimeError")
def capture_twice() -> Any:
    x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    for _ in range(2):
        with torch.cuda.graph(graph):
            x.add(1)


@piece()
def kept_graph_is_instantiated() -> Any:
    x, graph, outs = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph(keep_graph=True), []
    with torch.cuda.graph(graph):
        outs.append(x + 1)
    graph.instantiate()
    graph.replay()
    return outs[0], torch.full((3,), 2.0, device="cuda")


@piece()
def debug_dump() -> Any:
    # torch 2.11 writes no file of a graph that is not kept.
    x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph(keep_graph=True)
    graph.enable_debug_mode()
    with torch.cuda.graph(graph):
        x.add(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.dot"
        graph.debug_dump(str(path))
        return "digraph" in path.read_text(encoding="utf-8"), True


@piece()
def replays_add_up() -> Any:
    x = torch.zeros(2, device="cuda")
    graph = graph_of(lambda: x.add_(1))
    for _ in range(5):
        graph.replay()
    return x, torch.full((2,), 5.0, device="cuda")


@piece()
def nothing_runs_in_the_capture() -> Any:
    x = torch.zeros(2, device="cuda")
    graph_of(lambda: x.add_(1))
    return x, torch.zeros(2, device="cuda")


@piece()
def replay_inside_of_a_stream() -> Any:
    x, stream = torch.zeros(2, device="cuda"), torch.cuda.Stream()
    graph = graph_of(lambda: x.add_(1))
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.replay()
    torch.cuda.current_stream().wait_stream(stream)
    return x, torch.ones(2, device="cuda")


@piece()
def weights_are_read_at_their_addresses() -> Any:
    model, x, outs = nn.Linear(3, 3).cuda(), torch.ones(1, 3, device="cuda"), []
    graph = graph_of(lambda: outs.append(model(x)))
    with torch.no_grad():
        model.weight.zero_()
        model.bias.fill_(2)
    graph.replay()
    return outs[0], torch.full((1, 3), 2.0, device="cuda")


@piece()
def module_is_moved() -> Any:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).to("cuda")
    kinds = {t.device.type for t in (*model.parameters(), *model.buffers())}
    return (kinds, isinstance(model[0].weight, nn.Parameter)), ({"cuda"}, True)


@piece()
def module_is_moved_there_and_back() -> Any:
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    with torch.no_grad():
        before = model(x)
        on_device = model.cuda()(x.cuda()).cpu()
        return (on_device, model.cpu()(x)), (before, before)


@piece()
def device_context() -> Any:
    with torch.device("cuda"):
        made = torch.zeros(2), nn.Linear(2, 2).weight
    return [t.device for t in made], [torch.device("cuda", 0)] * 2


@piece()
def default_device() -> Any:
    torch.set_default_device("cuda")
    try:
        return torch.arange(3).device, torch.device("cuda", 0)
    finally:
        torch.set_default_device(None)


@piece()
def indices_of_devices() -> Any:
    x = torch.ones(2)
    found = [x.to(0), x.cuda(0), x.to("cuda:0"), torch.zeros(2, device=0)]
    return [t.device for t in found], [torch.device("cuda", 0)] * 4


@piece("RuntimeError")
def device_that_is_not_there() -> Any:
    torch.zeros(2, device="cuda:63")


@piece()
def autocast() -> Any:
    model, x = nn.Linear(4, 4).cuda(), torch.randn(2, 4, device="cuda")

    def function(t: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.float16):
            result: torch.Tensor = model(t)
        return result

    got, want = captured(function, x)
    return (got, got.dtype), (want, torch.float16)


@piece()
def inference_mode() -> Any:
    model, x = nn.Linear(4, 4).cuda(), torch.randn(2, 4, device="cuda")
    with torch.inference_mode():
        return captured(model, x)


@piece()
def memory_is_counted() -> Any:
    before = torch.cuda.memory_allocated()
    x = torch.zeros(1 << 18, device="cuda")
    more = torch.cuda.memory_allocated() - before
    del x
    return (more, torch.cuda.memory_allocated() - before), (1 << 20, 0)


@piece("TypeError")
def numpy_of_a_device_tensor() -> Any:
    torch.ones(2, device="cuda").numpy()


@piece()
def other_threads_have_the_device() -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(torch.ones(2, device="cuda") + 1))
    thread.start()
    thread.join()
    return found[0], torch.full((2,), 2.0, device="cuda")


@piece()
def loop_and_branch_on_the_device() -> Any:
    x, outs = torch.full((4,), 8.0, device="cuda"), []

    def halved(x: torch.Tensor) -> torch.Tensor:
        (y,) = gfxgraph.while_loop(lambda y: y.sum() > 5, lambda y: y / 2, x)
        return gfxgraph.cond(y[0] > 0, lambda y: y + 10, lambda y: y - 10, y)

    halved(x)
    with torch.no_grad():
        graph = graph_of(lambda: outs.append(halved(x)))
    found = []
    for value in (8.0, -1.0, 1.0):
        x.fill_(value)
        graph.replay()
        found.append(outs[0].tolist())
    return found, [[11.0] * 4, [-11.0] * 4, [11.0] * 4]


@piece()
def decode_loop() -> Any:
    model, cache = nn.Linear(8, 8).cuda(), torch.zeros(4, 8, device="cuda")
    token, position = torch.zeros(1, 8, device="cuda"), torch.zeros(1, device="cuda").long()

    def step() -> None:
        cache.index_copy_(0, position, model(token))
        token.copy_(cache.mean(0, keepdim=True))
        position.add_(1)

    graph = graph_of(step)
    with torch.no_grad():
        token.fill_(1)
        for _ in range(4):
            graph.replay()
        got = cache.clone()
        for held in (cache, token.fill_(1)):
            held.zero_() if held is cache else None
        position.zero_()
        for _ in range(4):
            step()
    return got, cache


@piece()
def runner_of_batch_sizes() -> Any:
    """As the runners of servers do: a graph a size, largest first, in one pool."""
    model, held = nn.Linear(4, 4).cuda(), torch.zeros(8, 4, device="cuda")
    graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
    pool, stream = None, torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for size in (8, 4, 2, 1):
            model(held[:size])
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                out = model(held[:size])
            graphs[size], pool = (graph, out), graph.pool()
    torch.cuda.synchronize()
    got, want = [], []
    with torch.no_grad():
        for n in (1, 3, 6, 8):
            x = torch.randn(n, 4, device="cuda")
            graph, out = graphs[min(size for size in graphs if size >= n)]
            held[:n].copy_(x)
            graph.replay()
            got.append(out[:n].clone())
            want.append(model(x))
    return got, want


@piece()
def partial_network() -> Any:
    first, last = nn.Linear(4, 4).cuda(), nn.Linear(4, 2).cuda()
    held, outs = torch.zeros(2, 4, device="cuda"), []
    graph = graph_of(lambda: outs.append(first(held).relu()))
    x = torch.randn(2, 4, device="cuda")
    with torch.no_grad():
        held.copy_(x)
        graph.replay()
        middle = outs[0] if outs[0].sum().item() >= 0 else -outs[0]
        return last(middle), last(first(x).relu())
