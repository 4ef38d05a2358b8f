"""Loops that depend on data: by the host, a replay for each turn, and on the device.

``PYTHONPATH=src python3 -m benchmarks.runs.control_flow [--out FILE]``. Needs a GPU with
conditional nodes. Ways of 500 small steps until a value falls below a bound:

- eager, where the host reads the condition in each turn;
- one captured turn, replayed as often as the host says;
- ``gfxgraph.while_loop`` in one graph.

And of a loop of 40 turns in plain Python: eager, with ``branching="auto"``, whose report has the
times of both ways to decide, and with ``branching="device"``.

Then 1,000 replays of a graph with loops and branches while other tensors and graphs come and go,
each compared with eager execution bit for bit. ``--short`` makes 20 of them and measures nothing,
for ``compute-sanitizer``.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import gfxgraph
from benchmarks.lib.report import about, arguments, write

TURNS, PLAIN_TURNS, ROUNDS, REPLAYS = 500, 40, 15, 1000


def main() -> int:
    """Measure, print, write JSON."""
    parser = arguments(__doc__, "control_flow.json")
    parser.add_argument("--short", action="store_true", help="20 compared replays, no times")
    options = parser.parse_args()
    if gfxgraph.device_type() != "cuda":
        print("control_flow needs a GPU", file=sys.stderr)
        return 1
    result: dict[str, Any] = {**about("control_flow", options.commit, "cuda-bindings")}
    with torch.no_grad():
        result["pressure"] = _pressure(20 if options.short else REPLAYS)
        print(result["pressure"], flush=True)
        if not options.short:
            result["loop"] = {"turns": TURNS, **_loop()}
            print(result["loop"], flush=True)
            result["plain_loop"] = {"turns": PLAIN_TURNS, **_plain_loop()}
            print(result["plain_loop"], flush=True)
            write(options.out, result)
    return int(result["pressure"]["wrong"] > 0)


def _step(x: torch.Tensor, left: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x * 1.001).sin() + 0.1, left - 1


def _loop() -> dict[str, Any]:
    x = torch.randn(256, device="cuda")
    turns = torch.full((), TURNS, device="cuda")

    def eager() -> torch.Tensor:
        y, left = x, turns
        while bool(left > 0):
            y, left = _step(y, left)
        return y

    def on_device(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        return gfxgraph.while_loop(lambda y, left: left > 0, _step, x, turns)[0]

    static_x, static_left = x.clone(), turns.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        new_x, new_left = _step(static_x, static_left)
        static_x.copy_(new_x)
        static_left.copy_(new_left)
        goes_on = static_left > 0

    def replay_a_turn() -> torch.Tensor:
        static_x.copy_(x)
        static_left.copy_(turns)
        while True:
            graph.replay()
            if not bool(goes_on):
                return static_x.clone()

    graphed = gfxgraph.graphed(on_device)
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "eager": eager,
        "a replay for each turn": replay_a_turn,
        "while_loop": lambda: graphed(x, turns),
    }
    return {**_timed(ways), **_said(graphed)}


def _plain(x: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
    while left > 0:
        x, left = _step(x, left)
    return x


def _plain_loop() -> dict[str, Any]:
    x = torch.randn(256, device="cuda")
    turns = torch.full((), PLAIN_TURNS, device="cuda")
    auto = gfxgraph.graphed(_plain)
    device = gfxgraph.graphed(_plain, branching="device")
    ways = {
        "eager": lambda: _plain(x, turns),
        "branching='auto'": lambda: auto(x, turns),
        "branching='device'": lambda: device(x, turns),
    }
    return {**_timed(ways), "auto": _said(auto), **_said(device)}


def _timed(ways: dict[str, Callable[[], torch.Tensor]]) -> dict[str, Any]:
    """Medians in milliseconds, and whether all are equal to eager bit for bit."""
    results = {name: way() for name, way in ways.items() for _ in range(3)}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            results[name] = way()
            torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {
        "ms": {name: round(statistics.median(found), 4) for name, found in times.items()},
        "equal": all(torch.equal(one, results["eager"]) for one in results.values()),
    }


def _said(graphed: Any) -> dict[str, Any]:
    stats = graphed.stats()
    return {
        "graphs": [row.report for row in stats.graphs],
        "fallbacks": dict(stats.fallbacks),
    }


def _pressure(replays: int) -> dict[str, Any]:
    layer = torch.nn.Linear(64, 64, device="cuda")

    def fn(x: torch.Tensor) -> torch.Tensor:
        def body(x: torch.Tensor) -> torch.Tensor:
            def large(x: torch.Tensor) -> torch.Tensor:
                wide = x[:, None].expand(-1, 512).contiguous()  # memory of its own
                return layer(x * 0.5) * 0.5 + wide.mean(1) * 0.1

            return gfxgraph.cond(x.sum() > 0, large, lambda x: (x * 0.9).roll(1), x)

        (y,) = gfxgraph.while_loop(lambda x: x.norm() > 1, body, x, max_turns=30)
        return y * 2

    graph, others = gfxgraph.graphed(fn), []
    held: list[torch.Tensor] = []
    wrong = 0
    for n in range(replays + 1):
        x = torch.randn(64, device="cuda") * (1 + n % 7)
        held.append(torch.full((1 << (10 + n % 12),), float("nan"), device="cuda"))
        if n % 5 == 0:
            held.clear()
        if n % 50 == 10:
            torch.cuda.empty_cache()
            other = torch.cuda.CUDAGraph()
            with torch.cuda.graph(other):
                held.append(torch.full((4096,), float("nan"), device="cuda"))
            others.append(other)
        for other in others[-3:]:
            other.replay()
        got = graph(x)
        wrong += not torch.equal(got, fn(x))
    stats = graph.stats()
    return {
        "replays": stats.replays,
        "captures": stats.captures,
        "wrong": wrong,
        "fallbacks": dict(stats.fallbacks),
        "report": [row.report for row in stats.graphs],
    }


if __name__ == "__main__":
    sys.exit(main())
