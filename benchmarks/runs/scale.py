"""What a call costs as more is known: kinds of calls, paths, instances and threads.

``PYTHONPATH=src python3 -m benchmarks.runs.scale [--out FILE]``. Microseconds of the host for a
call that a graph answers, the least of several rounds, and of all calls in turn. Threads replay
graphs of their own; there the calls of all threads a second are given. Takes some minutes.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import gfxgraph
from benchmarks.lib.report import about, arguments, write

ROUNDS = 7


def least_us(call: Callable[[], Any], calls: int) -> float:
    """Of a call, in the round of ``calls`` that took least."""
    device = gfxgraph.device_type()
    found = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - start) / calls * 1e6)
        if device == "cuda":
            torch.cuda.synchronize()
    return round(min(found), 2)


def in_turn(calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """A function that makes the next of the calls."""
    turn = itertools.cycle(calls)
    return lambda: next(turn)()


def values(*shape: int) -> torch.Tensor:
    """The same on every device."""
    torch.manual_seed(0)
    return torch.randn(*shape).to(gfxgraph.device_type())


def of_kinds(count: int) -> dict[str, Any]:
    """A function that has met calls of so many shapes."""
    graph = gfxgraph.graphed(lambda x: x + 1, max_graphs=2 * count)
    inputs = [values(n + 1) for n in range(count)]
    calls = [lambda x=x: graph(x) for x in inputs]  # type: ignore[misc]
    for call in calls:
        for _ in range(3):
            call()
    before = graph.stats()
    found = {"one": least_us(calls[-1], 300), "in turn": least_us(in_turn(calls), max(300, count))}
    return found | {"eager calls": graph.stats().eager_calls - before.eager_calls}


def of_instances(count: int) -> dict[str, Any]:
    """A graphed method of so many instances."""

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(values(4))

        @gfxgraph.graphed
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    policies, x = [Policy() for _ in range(count)], values(4)
    calls = [lambda policy=policy: policy(x) for policy in policies]  # type: ignore[misc]
    for call in calls * 3:
        call()
    return {"one": least_us(calls[-1], 300), "in turn": least_us(in_turn(calls), max(300, count))}


def of_paths(count: int) -> dict[str, Any]:
    """A function whose data has taken so many ways."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * (int(x[0].item()) + 1)

    graph = gfxgraph.graphed(fn)
    inputs = [torch.full((4,), float(n)).to(gfxgraph.device_type()) for n in range(count)]
    calls = [lambda x=x: graph(x) for x in inputs]  # type: ignore[misc]
    for call in calls:  # a path that never comes again would end it
        for _ in range(3):
            call()
    before = graph.stats()
    found = {"one": least_us(calls[-1], 300), "in turn": least_us(in_turn(calls), max(300, count))}
    return found | {"eager calls": graph.stats().eager_calls - before.eager_calls}


def of_threads(count: int) -> dict[str, Any]:
    """So many threads, each with a function of its own."""
    graphs = [gfxgraph.graphed(nn.Linear(8, 8).to(gfxgraph.device_type())) for _ in range(count)]
    x, calls = values(2, 8), 2000 // count

    def work(graph: Callable[[torch.Tensor], Any], often: int) -> None:
        with torch.no_grad():
            for _ in range(often):
                graph(x)

    for graph in graphs:
        work(graph, 3)
    rates = []
    for _ in range(ROUNDS):
        workers = [threading.Thread(target=work, args=(graph, calls)) for graph in graphs]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        rates.append(count * calls / (time.perf_counter() - start))
        if gfxgraph.device_type() == "cuda":
            torch.cuda.synchronize()
    return {"calls a second": round(max(rates))}


CURVES: dict[str, tuple[Callable[[int], dict[str, Any]], tuple[int, ...]]] = {
    "kinds of calls": (of_kinds, (1, 32, 1000)),
    "paths": (of_paths, (1, 8, 64)),
    "instances": (of_instances, (1, 32, 1000)),
    "threads": (of_threads, (1, 2, 8)),
}


@torch.no_grad()
def main() -> None:
    """Measure all curves."""
    options = arguments(__doc__, "scale.json").parse_args()
    torch.set_num_threads(1)
    curves: dict[str, Any] = {}
    for name, (measure, counts) in CURVES.items():
        curves[name] = {}
        for count in counts:
            curves[name][str(count)] = measure(count)
            print(name, count, curves[name][str(count)], flush=True)
        write(options.out, {**about("scale", options.commit), "curves": curves})


if __name__ == "__main__":
    main()
