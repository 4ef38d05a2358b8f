"""Host time of a replay with metrics off and on, in one run.

``PYTHONPATH=src python3 -m benchmarks.runs.metrics [--out FILE] [--rounds N]``. Needs
prometheus-client; runs on a GPU and on the emulated device. Off and on are measured in turn, round
after round: the device is idle when a call starts, and the time ends when the call returns. Who is
first alternates. The requirement: with metrics on, the median grows by 3 % at
most.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import torch

import gfxgraph
from benchmarks.lib.models import Block, Sum32
from benchmarks.lib.report import about, arguments, write
from benchmarks.lib.timing import synchronize
from gfxgraph.call import timing

ALLOWED = 1.03


def host_us(call: Callable[[], Any], times: int) -> list[float]:
    """Microseconds until each of so many calls returns, after some that are not counted.

    Python's interpreter adapts to the functions that it finds at a place, which takes some calls.
    """
    for _ in range(min(times, 100)):
        call()
    found = []
    for _ in range(times):
        synchronize()
        start = time.perf_counter_ns()
        call()
        found.append((time.perf_counter_ns() - start) / 1000)
    return found


def compared(call: Callable[[], Any], rounds: int, batch: int) -> dict[str, Any]:
    """Medians with metrics off and on, taken in turn; and how much a second "off" differs."""
    found: dict[str, list[float]] = {"off": [], "on": [], "off again": []}
    for _ in range(5):
        call()
    for number in range(rounds):
        names = list(found)
        for name in names if number % 2 else reversed(names):
            timing.switch(name == "on")
            found[name] += host_us(call, batch)
    timing.switch(False)
    medians = {name: statistics.median(times) for name, times in found.items()}
    means = {name: statistics.fmean(times) for name, times in found.items()}
    return {
        "host_us": {name: round(median, 3) for name, median in medians.items()},
        "mean_us": {name: round(mean, 3) for name, mean in means.items()},
        "calls": len(found["on"]),
        "on / off": round(medians["on"] / medians["off"], 4),
        "off again / off": round(medians["off again"] / medians["off"], 4),
        "holds": medians["on"] <= ALLOWED * medians["off"],
    }


def scrape_ms(times: int = 20) -> float:
    """The median of a scrape of the endpoint, over HTTP."""
    found = []
    with gfxgraph.metrics.serve(port=0) as server:
        for _ in range(times):
            start = time.perf_counter()
            with urlopen(server.url, timeout=30) as response:
                response.read()
            found.append(1000 * (time.perf_counter() - start))
    timing.switch(False)
    return round(statistics.median(found), 2)


def cases() -> dict[str, Callable[[], Any]]:
    """Calls that a replay answers."""
    device = gfxgraph.device_type()
    linear = gfxgraph.graphed(torch.nn.Linear(64, 64).to(device).eval(), fallback="raise")
    view = gfxgraph.graphed(
        torch.nn.Linear(64, 64).to(device).eval(), outputs="view", fallback="raise"
    )
    many = gfxgraph.graphed(Sum32().to(device), fallback="raise")
    net = torch.nn.Sequential(*[Block() for _ in range(12)]).to(device).eval()
    net = net.half() if device == "cuda" else net
    blocks = gfxgraph.graphed(net, fallback="raise")
    pool = gfxgraph.ShapeBucketPool(torch.nn.Linear(64, 64).to(device).eval(), buckets=[4, 8])
    x = torch.randn(4, 64, device=device)
    rows = x[:3].clone()
    inputs = [torch.randn(4, 64, device=device) for _ in range(32)]
    dtype = torch.half if device == "cuda" else torch.float32
    tokens = torch.randn(1, 64, 768, device=device, dtype=dtype)
    return {
        "Linear 64, own": lambda: linear(x),
        "Linear 64, view": lambda: view(x),
        "stack and sum, 32 inputs": lambda: many(*inputs),
        "ShapeBucketPool, 3 of 4 rows": lambda: pool(rows),
        "12-layer transformer, batch 1": lambda: blocks(tokens),
    }


def main() -> None:
    """Measure every case, print a table, write JSON."""
    parser = arguments(__doc__, "metrics.json")
    parser.add_argument("--rounds", type=int, default=30, help="of 200 calls each; default 30")
    options = parser.parse_args()
    torch.manual_seed(0)
    result: dict[str, Any] = {
        **about("metrics", options.commit, "prometheus-client"),
        "python": sys.version.split()[0],
        "timed": f"1 call of {timing.EVERY}",
        "cases": {},
    }
    with torch.no_grad():
        for name, call in cases().items():
            is_slow = "transformer" in name and gfxgraph.device_type() == "cpu"
            rounds, batch = (3, 10) if is_slow else (options.rounds, 200)
            found = result["cases"][name] = compared(call, rounds, batch)
            write(options.out, result)
            times = "  ".join(f"{way} {us:9.2f}" for way, us in found["host_us"].items())
            print(f"{name:32} {times}  on / off {found['on / off']}  {found['holds']}")
    result["scrape_ms"] = scrape_ms()
    result["holds"] = all(case["holds"] for case in result["cases"].values())
    write(options.out, result)
    print(f"a scrape: {result['scrape_ms']} ms; all hold: {result['holds']}")


if __name__ == "__main__":
    main()
