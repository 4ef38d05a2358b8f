"""Calls that copy a large argument against calls that let the graph read it where it is.

Needs an NVIDIA GPU. Times are medians of 200 calls, one at a time, in microseconds.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

import gfxgraph
from benchmarks.lib.report import about, arguments, write
from gfxgraph.call import rebound
from gfxgraph.graph import rebinding

_SIZES = tuple(2**n for n in (10, 14, 18, 20, 21, 22, 23, 24, 26, 28, 30))
_CALLS, _ADDRESSES = 200, 1000


def functions() -> dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype]]:
    """Functions of 2,048 rows of 4,096 numbers."""
    weight = torch.randn(4096, 4096, device="cuda")
    half = weight.bfloat16()
    norm = torch.nn.functional.layer_norm
    return {
        "pointwise": (lambda x: x * 2 + 1, torch.float32),
        "layer_norm and sum": (lambda x: norm(x, (4096,)).sum(-1), torch.float32),
        "matmul": (lambda x: x @ weight, torch.float32),
        "matmul in bfloat16": (lambda x: x @ half, torch.bfloat16),
    }


def at_random_addresses(function: Any, dtype: torch.dtype) -> dict[str, Any]:
    """How many calls differ from eager ones, in any bit, with the argument at random addresses."""
    chance = random.Random(0)
    memory = torch.randn(20_000 * 4096, device="cuda").to(dtype)
    graphed, size, wrong = gfxgraph.graphed(function), 2048 * 4096, 0
    graphed(memory[:size].view(2048, 4096).clone())
    step = 512 // memory.element_size()
    for _ in range(_ADDRESSES):
        start = chance.randrange(0, (memory.numel() - size) // step) * step
        x = memory[start : start + size].view(2048, 4096)
        wrong += not torch.equal(graphed(x), function(x))
    stats = graphed.stats()
    return {
        "calls": _ADDRESSES,
        "differ": wrong,
        "replays": stats.replays,
        "report": [line for row in stats.graphs for line in row.report],
    }


def timed(size: int, rebinds: bool) -> dict[str, Any]:
    """Median host time, and time until the device is done, of a call with so many bytes."""
    least = 0 if rebinds else sys.maxsize
    with (
        mock.patch.object(rebound, "LEAST_BYTES", least),
        mock.patch.object(rebinding, "BYTES_A_NODE", 0),
    ):
        # Reads little of it, so that the copy is what differs.
        graphed = gfxgraph.graphed(lambda x: x[:256] * 2)
        given = [torch.randn(size // 4, device="cuda") for _ in range(3)]
        for x in given:
            graphed(x)
        host, whole = [], []
        for n in range(_CALLS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            graphed(given[n % 3])
            host.append(time.perf_counter() - start)
            torch.cuda.synchronize()
            whole.append(time.perf_counter() - start)
    return {
        "host_us": round(statistics.median(host) * 1e6, 1),
        "end_to_end_us": round(statistics.median(whole) * 1e6, 1),
        "report": [line for row in graphed.stats().graphs for line in row.report],
    }


def main() -> None:
    """Measure, print and write the file."""
    os.environ["GFXGRAPH_REBIND"] = "1"
    options = arguments(__doc__, "rebinding.json").parse_args()
    found: dict[str, Any] = {**about("rebinding", options.commit), "random addresses": {}}
    with torch.no_grad():
        for name, function in functions().items():
            found["random addresses"][name] = at_random_addresses(*function)
            write(options.out, found)
        found["sizes"] = []
        for size in _SIZES:
            row = {"bytes": size, "copied": timed(size, False), "rebound": timed(size, True)}
            found["sizes"].append(row)
            write(options.out, found)
            print(row, flush=True)


if __name__ == "__main__":
    main()
