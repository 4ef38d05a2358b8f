"""The calls that the graph runners of SGLang and vLLM make, with our graph class and with torch's.

``PYTHONPATH=src python3 -m benchmarks.runs.runners [--rounds N]``. For each runner it makes the
calls of that runner: the largest size first, one memory pool, two eager runs before a capture. Both
classes capture the same model. Then it compares the results of replays bit for bit, the memory of
the pools and of the device, and the host time of a step (in turn, in another order each round; the
ratio is the median of the ratios of a round). Needs a GPU; takes about a minute.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from benchmarks.lib.report import about, arguments, failure, write

SIZES = (64, 32, 16, 8, 4, 2, 1)
WIDTH, HEADS, LAYERS = 512, 8, 4
LIMIT = 1.03


class Classes(NamedTuple):
    """What ``torch.cuda`` holds when a runner asks it."""

    graph: Any
    context: Any


class Model(torch.nn.Module):
    """Blocks whose attention can run outside of a graph: it writes into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        make = torch.nn.Linear
        self.qkv = torch.nn.ModuleList(make(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.out = torch.nn.ModuleList(make(WIDTH, WIDTH) for _ in range(LAYERS))
        self.up = torch.nn.ModuleList(make(WIDTH, 2 * WIDTH) for _ in range(LAYERS))
        self.down = torch.nn.ModuleList(make(2 * WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(
        self, x: torch.Tensor, attended: torch.Tensor, outside: Callable[[Any], Any]
    ) -> torch.Tensor:
        """``outside`` is given each attention, and runs it where the runner wants it."""
        for layer in range(LAYERS):
            qkv = self.qkv[layer](x)

            def attention(qkv: torch.Tensor = qkv) -> None:
                q, k, v = qkv.view(len(qkv), 3, HEADS, -1).permute(1, 2, 0, 3)
                y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
                attended[: len(qkv)].copy_(y.transpose(0, 1).reshape(len(qkv), WIDTH))

            outside(attention)
            x = x + self.out[layer](attended[: len(qkv)])
            x = x + self.down[layer](torch.nn.functional.gelu(self.up[layer](x)))
        return x


class Runner:
    """The graphs of all sizes, captured with one of the two classes."""

    def __init__(self, model: Model, classes: Classes) -> None:
        self.model, self.classes = model, classes
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()
        self.static = torch.zeros(max(SIZES), WIDTH, device="cuda")
        self.attended = torch.zeros(max(SIZES), WIDTH, device="cuda")
        self.outputs: dict[int, torch.Tensor] = {}
        self.replays: dict[int, Callable[[], None]] = {}
        self.kept: list[Any] = []
        with torch.no_grad():
            for size in SIZES:
                for _ in range(2):
                    torch.cuda.synchronize()
                    self.run(size, lambda attention: attention())
                torch.cuda.synchronize()
                self.capture(size)

    def run(self, size: int, outside: Callable[[Any], Any]) -> torch.Tensor:
        return self.model(self.static[:size], self.attended, outside)

    def capture(self, size: int) -> None:
        raise NotImplementedError


class SglangFull(Runner):
    """``FullCudaGraphBackend``: one graph, ``torch.cuda.graph`` with a pool and a stream."""

    def capture(self, size: int) -> None:
        graph = self.classes.graph()
        with self.classes.context(cuda_graph=graph, pool=self.pool, stream=self.stream):
            self.outputs[size] = self.run(size, lambda attention: attention())
        self.replays[size] = lambda: graph.replay()


class VllmManager(Runner):
    """``CudaGraphManager``: on the current stream, the output in a buffer of all sizes."""

    def capture(self, size: int) -> None:
        buffer = vars(self).setdefault("buffer", torch.empty_like(self.static))
        graph = self.classes.graph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with (
            torch.cuda.stream(self.stream),
            self.classes.context(graph, self.pool, stream=torch.cuda.current_stream()),
        ):
            buffer[:size] = self.run(size, lambda attention: attention())
        self.outputs[size] = buffer[:size]
        self.replays[size] = lambda: graph.replay()


class Pieces(Runner):
    """A graph a segment by ``capture_begin`` and ``capture_end``, attention between them."""

    keep_graph = False

    def begin(self, graph: Any) -> None:
        graph.capture_begin(pool=self.pool, capture_error_mode="global")

    def made(self) -> Any:
        return self.classes.graph()

    def stored(self, graph: Any) -> Callable[[], None]:
        self.kept.append(graph)
        return graph.replay

    def capture(self, size: int) -> None:
        steps: list[Callable[[], None]] = []
        graph = None

        def outside(attention: Callable[[], None]) -> None:
            nonlocal graph
            graph.capture_end()
            steps.append(self.stored(graph))
            attention()
            steps.append(attention)
            graph = self.made()
            self.begin(graph)

        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            graph = self.made()
            self.begin(graph)
            self.outputs[size] = self.run(size, outside)
            graph.capture_end()
            steps.append(self.stored(graph))

        def replay() -> None:
            for step in steps:
                step()

        self.replays[size] = replay


class SglangBreakable(Pieces):
    """``BreakableCUDAGraphCapture`` of SGLang: ``seg.replay()`` of each segment."""

    def stored(self, graph: Any) -> Callable[[], None]:
        return lambda: graph.replay()


class SglangDedup(Pieces):
    """The same with ``keep_graph=True``, ``raw_cuda_graph()`` and ``instantiate()``."""

    def made(self) -> Any:
        return self.classes.graph(keep_graph=True)

    def stored(self, graph: Any) -> Callable[[], None]:
        assert graph.raw_cuda_graph()
        graph.instantiate()
        assert graph.raw_cuda_graph_exec()
        return super().stored(graph)


class VllmBreakable(Pieces):
    """``BreakableCUDAGraphCapture`` of vLLM: bound ``replay`` methods are stored."""

    def begin(self, graph: Any) -> None:
        graph.capture_begin(pool=self.pool)


class VllmWrapper(Runner):
    """``CUDAGraphWrapper``: a ``torch.cuda.graph`` a piece, without collecting garbage."""

    def capture(self, size: int) -> None:
        steps: list[Callable[[], None]] = []
        context: Any = nullcontext()

        def open_piece() -> None:
            nonlocal context
            graph = self.classes.graph()
            context = self.classes.context(
                graph, pool=self.pool, stream=torch.cuda.current_stream()
            )
            context.__enter__()
            steps.append(lambda: graph.replay())

        def outside(attention: Callable[[], None]) -> None:
            context.__exit__(None, None, None)
            attention()
            steps.append(attention)
            open_piece()

        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            open_piece()
            self.outputs[size] = self.run(size, outside)
            context.__exit__(None, None, None)

        def replay() -> None:
            for step in steps:
                step()

        self.replays[size] = replay


RUNNERS = (SglangFull, SglangBreakable, SglangDedup, VllmManager, VllmBreakable, VllmWrapper)


def memory_of(make: Callable[[], Runner]) -> tuple[Runner, dict[str, int]]:
    """A runner, and what its captures have added to the pool and to the device."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    runner = make()
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    segments = torch.cuda.memory_snapshot()
    pool = sum(
        s["total_size"] for s in segments if tuple(s["segment_pool_id"]) == tuple(runner.pool)
    )
    return runner, {"pool": pool, "device": free - torch.cuda.mem_get_info()[0]}


def results_are_equal(ours: Runner, theirs: Runner) -> bool:
    for size in (*SIZES, *reversed(SIZES)):
        x = torch.randn(size, WIDTH, device="cuda")
        for runner in (ours, theirs):
            runner.static[:size].copy_(x)
            runner.replays[size]()
        torch.cuda.synchronize()
        if not torch.equal(ours.outputs[size], theirs.outputs[size]):
            return False
    return True


def host_times(ours: Runner, theirs: Runner, size: int, rounds: int) -> dict[str, float]:
    """Median microseconds of a step until it is launched, and the ratio; also of the replay alone.

    A step of every engine copies its inputs first; here it is one.
    """
    x = torch.randn(size, WIDTH, device="cuda")

    def step(runner: Runner) -> Callable[[], None]:
        static, replay = runner.static[:size], runner.replays[size]

        def whole() -> None:
            static.copy_(x)
            replay()

        return whole

    found = _compared({"ours": step(ours), "torch": step(theirs)}, rounds)
    alone = _compared({"ours": ours.replays[size], "torch": theirs.replays[size]}, rounds)
    return found | {f"replay_{name}": value for name, value in alone.items()}


def _compared(ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    ratios = []
    for _ in range(rounds):
        for name in random.sample(sorted(ways), 2):
            call, times = ways[name], []
            for _ in range(20):
                torch.cuda.synchronize()
                start = time.perf_counter_ns()
                call()
                times.append((time.perf_counter_ns() - start) / 1000)
            found[name].append(statistics.median(times))
        ratios.append(found["ours"][-1] / found["torch"][-1])
    medians = {f"{name}_us": round(statistics.median(times), 2) for name, times in found.items()}
    return medians | {"ratio": round(statistics.median(ratios), 4)}


def compare(kind: type[Runner], ours: Classes, theirs: Classes, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Model().cuda().eval().requires_grad_(False)
    # Once for nothing: the first runner also pays for modules that are loaded and workspaces.
    for classes in (theirs, ours):
        kind(model, classes)
    of_torch, torch_memory = memory_of(lambda: kind(model, theirs))
    of_ours, our_memory = memory_of(lambda: kind(model, ours))
    times = {str(size): host_times(of_ours, of_torch, size, rounds) for size in (1, 64)}
    memory = {
        what: {
            "ours": our_memory[what],
            "torch": torch_memory[what],
            "ratio": round(our_memory[what] / torch_memory[what], 4) if torch_memory[what] else 1.0,
        }
        for what in our_memory
    }
    row: dict[str, Any] = {
        "equal": results_are_equal(of_ours, of_torch),
        "memory": memory,
        "host_time": times,
    }
    row["within"] = {
        "memory": memory["pool"]["ratio"] <= LIMIT,
        "host_time": all(one["ratio"] <= LIMIT for one in times.values()),
    }
    return row


def main() -> None:
    parser = arguments(__doc__, "runners.json")
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("runners: a GPU is needed.")
    theirs = Classes(torch.cuda.CUDAGraph, torch.cuda.graph)
    import gfxgraph

    gfxgraph.enable()
    ours = Classes(torch.cuda.CUDAGraph, torch.cuda.graph)
    assert ours.graph is not theirs.graph
    found = about("runners", given.commit) | {"sizes": SIZES, "limit": LIMIT, "runners": {}}
    for kind in RUNNERS:
        try:
            row = compare(kind, ours, theirs, given.rounds)
        except Exception as error:
            row = failure(error)
        found["runners"][kind.__name__] = row
        write(given.out, found)
        print(kind.__name__, row, flush=True)


if __name__ == "__main__":
    main()
