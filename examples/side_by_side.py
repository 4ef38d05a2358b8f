"""What the examples share: check a function, call it eagerly and from its graphs, and compare."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import gfxgraph

RUNS = 30
"""Each time is the median of so many calls."""


@dataclass(frozen=True)
class Findings:
    """What :func:`side_by_side` found.

    Attributes:
        check: what ``gfxgraph.check`` says of the function.
        difference: the largest difference between eager and graph, over all calls.
        shapes: the shape of the result of each call.
        stats: what the graphed function did for those calls.
        eager_ms: milliseconds of an eager call; ``None`` where the device is emulated.
        graph_ms: milliseconds of the same call from the graph.
    """

    check: gfxgraph.Report
    difference: float
    shapes: list[torch.Size]
    stats: gfxgraph.GraphedStats
    eager_ms: float | None = None
    graph_ms: float | None = None


def side_by_side(
    fn: Callable[..., torch.Tensor], calls: Sequence[tuple[Any, ...]], times: int = 1
) -> Findings:
    """Make each call eagerly and from graphs, both from the same seed, and print what came out.

    Args:
        fn: the function, as it was written.
        calls: the arguments of each call.
        times: how often each call is made, one time after the other.
    """
    report = gfxgraph.check(fn, *calls[0])
    print(f"{fn.__qualname__} on {gfxgraph.device_facts().name}")
    print(f"check says: {report.verdict}")
    for hazard in report.hazards:
        where = f"{Path(hazard.file or '?').name}:{hazard.line}"
        print(f"  {where}: {hazard.what}, {hazard.effect}, {hazard.count} in a call")

    graph = gfxgraph.graphed(fn)
    difference, shapes = 0.0, []
    for seed, args in enumerate(calls):
        for _ in range(times):
            torch.manual_seed(seed)
            expected = fn(*args)
            torch.manual_seed(seed)
            difference = max(difference, _apart(graph(*args), expected))
        shapes.append(expected.shape)
    stats = graph.stats()
    print(f"eager and graph differ by at most {difference:g} in {times * len(calls)} calls")
    print(
        f"{stats.captures} captures, {stats.replays} replays, {stats.eager_calls} eager calls, "
        f"{sum(row.paths for row in stats.graphs)} paths, fallbacks: {stats.fallbacks or 'none'}"
    )
    if gfxgraph.device_type() != "cuda":
        print("No GPU here: the graphs ran on the emulated device, where times mean nothing.")
        return Findings(report, difference, shapes, stats)
    eager_ms, graph_ms = _medians(fn, graph, calls)
    print(f"{eager_ms:.3f} ms eager, {graph_ms:.3f} ms from the graph (medians of {RUNS} calls)")
    return Findings(report, difference, shapes, stats, eager_ms, graph_ms)


def _apart(got: torch.Tensor, expected: torch.Tensor) -> float:
    if got.shape != expected.shape:
        return float("inf")
    return (got.double() - expected.double()).abs().max().item()


def _medians(
    fn: Callable[..., Any], graph: Callable[..., Any], calls: Sequence[tuple[Any, ...]]
) -> tuple[float, float]:
    """By turns, so that both see the same clock of the GPU; always a call that has its path."""
    taken: dict[Callable[..., Any], list[float]] = {fn: [], graph: []}
    for n in range(RUNS):
        for call, times in taken.items():
            torch.manual_seed(n % len(calls))
            torch.cuda.synchronize()
            start = time.perf_counter()
            call(*calls[n % len(calls)])
            torch.cuda.synchronize()
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(taken[fn]), statistics.median(taken[graph])
