"""What it takes until a graph uses another weight or another number: update against rebuild.

``PYTHONPATH=src python3 -m benchmarks.runs.update [--out FILE]``. Twelve transformer blocks in half
precision. Needs a GPU of NVIDIA and cuda-bindings. Each way is run several times and its result is
compared with eager execution bit for bit. Ways for a weight that is rebound:

- gfxgraph: the next call finds it, records, captures and compares;
- by hand: capture and instantiate a new graph;
- update of the executable (``cudaGraphExecUpdate``) from a new capture;
- parameters of single nodes (``cuGraphExecKernelNodeSetParams``), for all kernels of a new capture:
  it has its results elsewhere in memory, so they all differ;
- a copy of the new values to where the graph reads.

For a number: the same, then the parameter of the one node that has the number, and a number that
is an input on the device (``graphed(inputs=[...])``).
"""

from __future__ import annotations

import ctypes
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import gfxgraph
from benchmarks.lib.models import Block
from benchmarks.lib.report import about, arguments, failure, write

TIMES = 9


def main() -> int:
    """Measure, print a table, write JSON."""
    options = arguments(__doc__, "update.json").parse_args()
    if gfxgraph.device_type() != "cuda":
        print("update needs a GPU", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    result: dict[str, Any] = {
        **about("update", options.commit, "cuda-bindings"),
        "model": "12 transformer blocks, width 768, 64 tokens, float16",
        "times": TIMES,
        "ways": {},
    }
    with torch.no_grad():
        for what, ways in (("weight", _weight()), ("number", _number())):
            for name, measured in ways:
                result["ways"][f"{what}: {name}"] = measured
                print(f"{what}: {name:45s} {measured}", flush=True)
                write(options.out, result)
    return 0


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(*[Block() for _ in range(12)])

    def forward(self, x: torch.Tensor, scale: float = 0.5) -> torch.Tensor:
        return self.blocks(x) * scale


class _Captured:
    """A graph by hand, whose nodes stay readable."""

    def __init__(self, call: Callable[[], torch.Tensor]) -> None:
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(self.graph):
            self.result = call()

    def instantiate(self) -> _Captured:
        self.graph.instantiate()
        return self

    def replayed(self) -> torch.Tensor:
        self.graph.replay()
        return self.result.clone()


def _model() -> tuple[_Net, torch.Tensor]:
    net = _Net().cuda().half().eval()
    return net, torch.randn(1, 64, 768, device="cuda", dtype=torch.half)


def _row(
    prepare: Callable[[int], Any],
    change: Callable[[Any], Any],
    result: Callable[[Any], torch.Tensor],
    eager: Callable[[int], torch.Tensor],
) -> dict[str, Any]:
    """Times of ``change``, milliseconds, and whether what comes next is what eager gives."""
    taken, equal = [], True
    try:
        for turn in range(TIMES + 1):
            given = prepare(turn)
            torch.cuda.synchronize()
            start = time.perf_counter()
            changed = change(given)
            torch.cuda.synchronize()
            taken.append(1000 * (time.perf_counter() - start))
            equal = equal and torch.equal(result(changed), eager(turn))
    except Exception as error:  # a way that this driver does not have is a row
        return failure(error)
    ordered = taken[1:]  # the first one loads what is used for the first time
    return {
        "ms": round(statistics.median(ordered), 4),
        "min_ms": round(min(ordered), 4),
        "max_ms": round(max(ordered), 4),
        "equal": equal,
    }


def _weight() -> Iterator[tuple[str, dict[str, Any]]]:
    net, x = _model()
    layer = net.blocks[5].up
    weights = [torch.nn.Parameter(torch.randn_like(layer.weight) * 0.02) for _ in range(TIMES + 1)]
    fixed = layer.weight.detach().clone()

    def bind(turn: int) -> None:
        layer.weight = weights[turn]

    def eager(turn: int) -> torch.Tensor:
        bind(turn)
        return net(x)

    f = gfxgraph.graphed(net)
    f(x)
    f(x)

    def called(_: Any = None) -> torch.Tensor:
        result: torch.Tensor = f(x)
        return result

    # Each is called once more: what never comes again is not captured for long.
    again = _row(bind, called, lambda y: (called(), y)[1], eager)
    yield "gfxgraph captures again", {**again, "captures": f.stats().captures}
    kept: list[_Captured] = [_Captured(lambda: net(x)).instantiate()]

    def rebuilt(_: None) -> _Captured:
        kept[:] = [_Captured(lambda: net(x)).instantiate()]
        return kept[0]

    yield "capture and instantiate", _row(bind, rebuilt, _Captured.replayed, eager)
    yield (
        "of that, the capture",
        _row(
            bind,
            lambda _: _Captured(lambda: net(x)),
            lambda c: c.instantiate().replayed(),
            eager,
        ),
    )
    old = _Captured(lambda: net(x)).instantiate()
    alive = [old]

    def updated(_: None) -> _Captured:
        new = _Captured(lambda: net(x))
        _update(old.graph, new.graph)
        alive.append(new)  # the executable uses its memory now
        return new

    def run_old(new: _Captured) -> torch.Tensor:
        old.graph.replay()
        return new.result.clone()

    yield "capture and update of the executable", _row(bind, updated, run_old, eager)
    yield (
        "of that, the update",
        _row(
            lambda turn: (bind(turn), _Captured(lambda: net(x)))[1],
            lambda new: (_update(old.graph, new.graph), alive.append(new), new)[2],
            run_old,
            eager,
        ),
    )
    nodes = _Captured(lambda: net(x)).instantiate()
    counts: list[int] = []

    def set_nodes(new: _Captured) -> _Captured:
        counts.append(_set_all(nodes.graph, new.graph))
        alive.append(new)
        return new

    def run_nodes(new: _Captured) -> torch.Tensor:
        nodes.graph.replay()
        return new.result.clone()

    found = _row(
        lambda turn: (bind(turn), _Captured(lambda: net(x)))[1], set_nodes, run_nodes, eager
    )
    yield (
        "of that, the parameters of all kernel nodes, without the memsets",
        {**found, "nodes": counts[-1:]},
    )
    layer.weight = torch.nn.Parameter(fixed)
    copied = _Captured(lambda: net(x)).instantiate()
    place = layer.weight

    def copy(turn: int) -> None:
        place.copy_(weights[turn])

    def eager_of_copy(turn: int) -> torch.Tensor:
        copy(turn)
        return net(x)

    yield (
        "a copy to where the graph reads",
        _row(lambda turn: turn, copy, lambda _: copied.replayed(), eager_of_copy),
    )


def _number() -> Iterator[tuple[str, dict[str, Any]]]:
    net, x = _model()
    numbers = [0.5 + 0.0625 * n for n in range(TIMES + 1)]

    def eager(turn: int) -> torch.Tensor:
        return net(x, numbers[turn])

    f = gfxgraph.graphed(net, max_graphs=64)
    f(x, 3.0)
    f(x, 3.0)

    def called(number: float) -> tuple[float, torch.Tensor]:
        return number, f(x, number)

    again = _row(
        lambda turn: numbers[turn], called, lambda found: (called(found[0]), found[1])[1], eager
    )
    yield "gfxgraph captures again", {**again, "captures": f.stats().captures}
    g = gfxgraph.graphed(net, inputs=["scale"])
    g(x, 3.0)
    g(x, 3.0)
    yield (
        "an input on the device, with the replay",
        _row(lambda turn: numbers[turn], lambda n: g(x, n), lambda y: y, eager),
    )
    one = gfxgraph.graphed(net)
    one(x, 0.5)
    one(x, 0.5)
    yield (
        "for comparison: a replay in which nothing changes",
        _row(lambda _: None, lambda _: one(x, 0.5), lambda y: y, lambda _: net(x, 0.5)),
    )
    kept = _Captured(lambda: net(x, 3.0)).instantiate()
    state = [3.0]

    def patch(number: float) -> None:
        _patch(kept.graph, state[0], number)
        state[0] = number

    yield (
        "the parameter of the one node",
        _row(lambda turn: numbers[turn], patch, lambda _: kept.replayed(), eager),
    )


def _done(found: tuple[Any, ...]) -> Any:
    """What a call of the driver gives beside its status."""
    status, *rest = found
    if int(status) != 0:
        raise RuntimeError(f"the driver says {status!r}")
    return rest[0] if len(rest) == 1 else rest


def _update(executable: Any, graph: Any) -> None:
    from cuda.bindings import runtime

    _done(runtime.cudaGraphExecUpdate(executable.raw_cuda_graph_exec(), graph.raw_cuda_graph()))


def _kernels(graph: Any) -> list[tuple[Any, Any, list[bytes]]]:
    """Kernel nodes in order: the node, its parameters, and the bytes of each argument."""
    from cuda.bindings import driver

    raw = driver.CUgraph(graph.raw_cuda_graph())
    count = driver.cuGraphGetNodes(raw, 0)[-1]
    nodes, _ = _done(driver.cuGraphGetNodes(raw, count))
    kernel = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
    found = []
    for node in nodes:
        if _done(driver.cuGraphNodeGetType(node)) != kernel:
            continue
        params = _done(driver.cuGraphKernelNodeGetParams(node))
        found.append((node, params, _arguments(params)))
    return found


def _arguments(params: Any) -> list[bytes]:
    from cuda.bindings import driver

    if int(params.func):
        info: Callable[[int], Any] = lambda n: driver.cuFuncGetParamInfo(params.func, n)  # noqa: E731
    else:
        info = lambda n: driver.cuKernelGetParamInfo(params.kern, n)  # noqa: E731
    if not int(params.kernelParams):  # given as one buffer
        return []
    places = ctypes.cast(int(params.kernelParams), ctypes.POINTER(ctypes.c_void_p))
    found: list[bytes] = []
    while True:
        status, _, size = info(len(found))
        if int(status) != 0:
            return found
        found.append(ctypes.string_at(places[len(found)], size))


def _set(executable: Any, node: Any, params: Any, values: list[bytes]) -> None:
    from cuda.bindings import driver

    buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
    array = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
    params.kernelParams = ctypes.addressof(array)
    raw = driver.CUgraphExec(executable.raw_cuda_graph_exec())
    _done(driver.cuGraphExecKernelNodeSetParams(raw, node, params))


def _set_all(executable: Any, graph: Any) -> int:
    """Give the kernel nodes what those of ``graph`` have; how many were set."""
    from cuda.bindings import driver

    old, new = _kernels(executable), _kernels(graph)
    if len(old) != len(new):
        raise RuntimeError("the new capture has other kernels")
    raw = driver.CUgraphExec(executable.raw_cuda_graph_exec())
    for (node, _, _), (_, params, _) in zip(old, new, strict=True):
        _done(driver.cuGraphExecKernelNodeSetParams(raw, node, params))
    return len(old)


def _patch(executable: Any, old: float, number: float) -> None:
    """Replace a number in the arguments of the last kernel that has it, as float32."""
    from cuda.bindings import driver

    was, now = struct.pack("f", old), struct.pack("f", number)
    for node, params, values in reversed(_kernels(executable)):
        if sum(value.count(was) for value in values) == 1:
            changed = [value.replace(was, now) for value in values]
            _set(executable, node, params, changed)
            params.kernelParams = 0
            # The graph itself too, so that it is found the next time.
            buffers = [ctypes.create_string_buffer(value, len(value)) for value in changed]
            array = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
            params.kernelParams = ctypes.addressof(array)
            _done(driver.cuGraphKernelNodeSetParams(node, params))
            return
    raise RuntimeError(f"no kernel has the number {old} once")


if __name__ == "__main__":
    sys.exit(main())
