"""A start with recipes of 16 sizes, against bare captures of the same sizes.

``PYTHONPATH=src python3 -m benchmarks.runs.recipes [--out FILE] [--rounds N]``. Runs on a GPU and
on the emulated device. Each start is a process of its own, since the first capture of a process
pays for what is made once. The requirement: a start with recipes takes at most 1.1 times the bare
captures, and the first 1,000 requests capture nothing.

Bare is, of the same sizes in the same order: each size called once through ``graphed``, which runs
it and captures it (``real calls``). On a GPU also three eager runs and a ``torch.cuda.graph`` of
each, in one pool (``by hand``), which compares nothing and watches nothing. What is made once for
a process is paid before the clock starts: the same model is captured for another size.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gfxgraph
from benchmarks.lib.by_hand import captured
from benchmarks.lib.models import Block
from benchmarks.lib.report import about, arguments, write
from benchmarks.lib.timing import synchronize

SIZES = tuple(range(1, 17))
REQUESTS = 1000
ALLOWED = 1.1


class Service:
    """Four transformer blocks, on a CPU four small layers; and a request of any size."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        device = gfxgraph.device_type()
        block, self.shape = (Block, (16, 768)) if device == "cuda" else (_Small, (64,))
        model = torch.nn.Sequential(*[block() for _ in range(4)]).to(device).eval()
        self.model = model.half() if device == "cuda" else model
        self.like = next(self.model.parameters())
        self.graphed = gfxgraph.graphed(self.model, fallback="raise")
        self.graphed(self.request(len(SIZES) + 1))

    def request(self, size: int) -> torch.Tensor:
        """The input of a batch."""
        return torch.randn(size, *self.shape, device=self.like.device, dtype=self.like.dtype)

    def real_calls(self, path: Path) -> None:
        """Capture by real calls; each comes again, since otherwise captures would stop."""
        for size in reversed(SIZES):
            self.graphed(self.request(size))
            self.graphed(self.request(size))
        assert self.graphed.stats().captures >= len(SIZES), self.graphed.stats()

    def recipes(self, path: Path) -> None:
        """Capture by recipes."""
        report = gfxgraph.load_recipes(path, progress=False)
        assert len(report.captured) >= len(SIZES), str(report)

    def by_hand(self, path: Path) -> None:
        """Capture with torch alone."""
        pool = torch.cuda.graph_pool_handle()
        self.kept = [captured(self.model, [self.request(n)], pool) for n in reversed(SIZES)]

    def save(self, path: Path) -> None:
        """What the start before has saved: the larger a size, the more it was used."""
        for size in SIZES:
            for _ in range(size + 1):
                self.graphed(self.request(size))
        gfxgraph.save_recipes(path)


class _Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.nn.functional.gelu(self.linear(self.norm(x)))


def one_start(how: str, path: Path) -> dict[str, Any]:
    """Seconds of a start in this process, and the captures of the requests after it."""
    with torch.no_grad():
        service = Service()
        start: Callable[[Path], None] = getattr(service, how)
        synchronize()
        begin = time.perf_counter()
        start(path)
        synchronize()
        seconds = time.perf_counter() - begin
        found: dict[str, Any] = {"seconds": seconds}
        if how == "recipes":
            before = gfxgraph.stats()["capture_count"]
            eager = service.graphed.stats().eager_calls
            for number in range(REQUESTS):
                service.graphed(service.request(SIZES[number % len(SIZES)]))
            found["captures"] = gfxgraph.stats()["capture_count"] - before
            found["eager_calls"] = service.graphed.stats().eager_calls - eager
    return found


def in_a_process(how: str, path: Path) -> dict[str, Any]:
    """The same, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.runs.recipes", "--start", how, "--file", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure each way to start, print a line for each, write JSON."""
    parser = arguments(__doc__, "recipes.json")
    parser.add_argument("--rounds", type=int, default=5, help="starts of each way; default 5")
    parser.add_argument("--start", default="", help="start once in this way, in this process")
    parser.add_argument("--file", type=Path, default=None, help="of recipes")
    options = parser.parse_args()
    if options.start:
        print(json.dumps(one_start(options.start, options.file)))
        return
    ways = ["real_calls", "recipes"] + ["by_hand"] * (gfxgraph.device_type() == "cuda")
    times: dict[str, list[float]] = {way: [] for way in ways}
    captures: list[int] = []
    result: dict[str, Any] = {
        **about("recipes", options.commit),
        "python": sys.version.split()[0],
        "sizes": len(SIZES),
        "requests": REQUESTS,
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "recipes.json"
        in_a_process("save", path)
        for number in range(options.rounds):
            for way in ways if number % 2 else reversed(ways):
                found = in_a_process(way, path)
                times[way].append(found["seconds"])
                captures += [found["captures"]] if way == "recipes" else []
            medians = {way: round(statistics.median(found), 4) for way, found in times.items()}
            against = {way: round(medians["recipes"] / medians[way], 3) for way in ways}
            result |= {
                "starts": number + 1,
                "seconds": medians,
                "recipes / other": against,
                "captures in the requests": max(captures),
                "holds": against["real_calls"] <= ALLOWED and max(captures) == 0,
            }
            write(options.out, result)
    print("\n".join(f"{way:12} {seconds:8.3f} s" for way, seconds in result["seconds"].items()))
    print(f"recipes / other: {result['recipes / other']}")
    print(f"captures in {REQUESTS} requests: {max(captures)}; holds: {result['holds']}")


if __name__ == "__main__":
    main()
