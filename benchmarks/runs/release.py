"""What the graphs of a server's sizes take, and what releasing each gives back.

``PYTHONPATH=src python3 -m benchmarks.runs.release [--out FILE]``. Captures a model for ten sizes,
the largest first, in one memory pool and in a pool for each; then resets the graphs, the smallest
first, and asks the device for its free memory each time. Needs a GPU.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

import gfxgraph
from benchmarks.lib.report import about, arguments, write

SIZES = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
WIDTH, LAYERS = 1024, 12


def free() -> int:
    """Bytes that the device has left, without what the allocator keeps for later."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def measured(in_one_pool: bool) -> list[dict[str, int]]:
    """By size: bytes that its capture took, and that its release gave back."""

    def layer() -> torch.nn.Module:
        up, down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        return torch.nn.Sequential(up, torch.nn.GELU(), down)

    model = torch.nn.Sequential(*[layer() for _ in range(LAYERS)]).cuda().half().eval()
    x = torch.randn(max(SIZES), WIDTH, device="cuda", dtype=torch.half)
    pool = torch.cuda.graph_pool_handle() if in_one_pool else None
    for size in SIZES:
        model(x[:size])
    graphs: dict[int, tuple[Any, torch.Tensor]] = {}
    rows = {size: {"size": size} for size in SIZES}
    for size in SIZES:
        before, graph = free(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = model(x[:size])
        graph.replay()
        graphs[size] = graph, result
        del graph, result
        rows[size]["captured"] = before - free()
    for size in reversed(SIZES):
        before = free()
        graphs.pop(size)[0].reset()
        rows[size]["released"] = free() - before
    return list(rows.values())


def main() -> int:
    """Measure, print, write JSON."""
    options = arguments(__doc__, "release.json").parse_args()
    if gfxgraph.device_type() != "cuda":
        print("release needs a GPU", file=sys.stderr)
        return 1
    gfxgraph.enable()
    result: dict[str, Any] = about("release", options.commit)
    result["model"] = f"{LAYERS} layers of {WIDTH}, {4 * WIDTH} wide inside, float16"
    with torch.no_grad():
        for name, in_one_pool in (("one pool", True), ("a pool each", False)):
            result[name] = measured(in_one_pool)
            print(name, *result[name], sep="\n")
            write(options.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
