"""What graphs hold: against eager's peak, for shapes of one callable, and for 1,000 of them.

``PYTHONPATH=src python3 -m benchmarks.runs.memory [--out FILE] [--commit C] [--parts P ...]
[--models M ...] [--shapes N] [--limit S] [--tiny]``. Each measurement has a process of its own,
which is ended after ``--limit`` seconds. The file is written after each, and what it holds already
stays if device, torch and commit are the same. *Held* is what the device has left less after a way
than before, whoever holds it. Without a GPU graphs are emulated, eager's peak is what the recorded
run had allocated at most, and times mean nothing.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.lib.models import TEN, Block, UNet, device
from benchmarks.lib.processes import fresh_processes, quiet, start_context
from benchmarks.lib.report import about, arguments, earlier, failure, shortened, write

ON_GPU = torch.cuda.is_available()
HITS = 300


def mib(count: float) -> float:
    """Bytes as MiB."""
    return round(count / 2**20, 3)


def free() -> int:
    """Bytes that the device has left."""
    gc.collect()
    if not ON_GPU:
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def held(make: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What it makes, and MiB that the device has less afterwards."""
    before = free()
    made = make()
    return made, {"held MiB": mib(before - free())} if ON_GPU else {}


def in_pools(graph: Any) -> dict[str, Any]:
    """What a graphed callable says of its memory."""
    stats = graph.stats()
    return {
        "graphs": len(stats.graphs),
        "pool MiB": mib(stats.pool_bytes),
        "inputs MiB": mib(stats.input_bytes),
        "why eager": [shortened(reason) for reason in stats.fallbacks],
    }


def of_model(name: str, tiny: bool) -> dict[str, Any]:
    """A graph of a model against a call of it."""
    import gfxgraph

    model, inputs = TEN[name](tiny)
    args = inputs()
    found: dict[str, Any] = {"what": TEN[name].__doc__}
    for _ in range(2):  # libraries are loaded, and have their workspaces
        model(*args)
    if ON_GPU:
        free()
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        model(*args)
        found["eager peak MiB"] = mib(torch.cuda.max_memory_allocated() - allocated)
        found["eager reserved MiB"] = mib(torch.cuda.max_memory_reserved() - reserved)

    def calls() -> Any:
        graph = gfxgraph.graphed(model)
        for _ in range(3):
            graph(*args)
        return graph

    graph, more = held(calls)
    found |= {**in_pools(graph), **more}
    if found["graphs"]:
        recorded = graph._dispatcher.entries.all()[0].captured.peak_bytes
        found["recorded peak MiB"] = mib(recorded)
        peak = found.setdefault("eager peak MiB", mib(recorded))
        found["pool to eager peak"] = round(found["pool MiB"] / peak, 3) if peak else None
    return found


def mlp() -> nn.Module:
    """Two layers of 256."""
    return nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)).to(device()).eval()


def of_shapes(name: str, tiny: bool) -> dict[str, Any]:
    """Eight shapes of one callable against eight callables, the largest first and last."""
    import gfxgraph

    sizes = [1, 2, 3, 4, 6, 8, 12, 16]
    if name == "MLP, 64 to 1,024 rows":
        model, shape = mlp(), lambda n: (64 * n, 256)
    elif name == "4 blocks of 768, 64 to 1,024 tokens":
        width = 64 if tiny else 768
        blocks = [Block(width) for _ in range(4)]
        model, shape = nn.Sequential(*blocks).to(device()).eval(), lambda n: (1, 64 * n, width)
    else:
        width, side = (8, 16) if tiny else (96, 64)
        model, shape = UNet(width).to(device()).eval(), lambda n: (n, 4, side, side)
    inputs = [torch.randn(*shape(n)).to(device()) for n in sizes]
    found: dict[str, Any] = {}

    def called(graph: Any, given: list[Tensor]) -> Any:
        for x in given:
            for _ in range(3):
                graph(x)
        return graph

    for x in inputs:
        model(x)
    for order in ("largest first", "largest last"):
        given = inputs[::-1] if order == "largest first" else inputs
        graph, more = held(lambda given=given: called(gfxgraph.graphed(model), given))
        found[f"one callable, {order}"] = {**in_pools(graph), **more}
        del graph
    graphs, more = held(lambda: [called(gfxgraph.graphed(model), [x]) for x in inputs])
    alone = [in_pools(graph) for graph in graphs]
    found["a callable each"] = {
        **{k: round(sum(row[k] for row in alone), 3) for k in ("graphs", "pool MiB", "inputs MiB")},
        "why eager": [reason for row in alone for reason in row["why eager"]],
        **more,
    }
    del graphs
    graph = called(gfxgraph.graphed(model), inputs[-1:])
    found["the largest alone"] = in_pools(graph)
    return found


SHAPES = (
    "MLP, 64 to 1,024 rows",
    "4 blocks of 768, 64 to 1,024 tokens",
    "UNet, batches of 1 to 16",
)


def of_many(calls: int, count: int) -> dict[str, Any]:
    """What one callable holds, and what a hit costs, as it has seen more shapes.

    Args:
        calls: how often each shape comes, in a row.
        count: of shapes.
    """
    import gfxgraph

    graph = gfxgraph.graphed(mlp())
    hot = torch.randn(count + 1, 256).to(device())
    before = free()
    for _ in range(3):
        graph(hot)
    rows, start = [], time.perf_counter()
    steps = {1, 10, 32, 33, 100, 316, 1000, count}
    for seen in range(1, count + 1):
        x = torch.randn(seen, 256).to(device())
        for _ in range(calls):
            graph(x)
        graph(hot)
        if seen not in steps:
            continue
        seconds = time.perf_counter() - start
        stats, hits = graph.stats(), [host_us(lambda: graph(hot)) for _ in range(HITS)]
        after = graph.stats()
        rows.append(
            {
                "shapes seen": seen,
                **in_pools(graph),
                **({"held MiB": mib(before - free())} if ON_GPU else {}),
                "captures": stats.captures,
                "evictions": stats.evictions,
                "eager calls": stats.eager_calls,
                "hit us": round(statistics.median(hits), 2),
                "hits that were replays": after.replays - stats.replays,
                "s": round(seconds, 2),
            }
        )
        start = time.perf_counter() - seconds  # what was looked at does not count
    return {"max_graphs": 32, "hits of a row": HITS, "rows": rows}


def host_us(call: Callable[[], Any]) -> float:
    """Microseconds until a call returns; the device is idle when it starts."""
    if ON_GPU:
        torch.cuda.synchronize()
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1000


ENDS = {"hang": "ended after its time", "crash": "its process ended"}
MEASURE: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "models": of_model,
    "shapes of one callable": of_shapes,
    "many shapes": of_many,
}


@torch.no_grad()
def work(connection: Connection, part: str, what: Any, how: Any) -> None:
    """Send what was found."""
    quiet()
    if not ON_GPU:
        torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        connection.send(MEASURE[part](what, how))
    except Exception as error:  # the table says what became of each
        connection.send(failure(error))


def main() -> None:
    """The command."""
    parser = arguments(__doc__, "memory.json" if ON_GPU else None)
    parser.add_argument("--parts", nargs="*", choices=MEASURE, default=list(MEASURE))
    parser.add_argument("--models", nargs="*", choices=TEN, default=list(TEN))
    parser.add_argument("--shapes", type=int, help="that one callable sees; 1,000, tiny 50")
    parser.add_argument("--limit", type=float, default=200.0, help="of one measurement, seconds")
    parser.add_argument("--tiny", action="store_true", help="small models; times mean nothing")
    options = parser.parse_args()
    if options.out is None:
        parser.error("--out: without a GPU it must be named, since times mean nothing")
    shapes = options.shapes or (50 if options.tiny else 1000)
    items = [("models", name, options.tiny) for name in options.models]
    items += [("shapes of one callable", name, options.tiny) for name in SHAPES]
    items += [("many shapes", calls, shapes) for calls in (3, 1)]
    found = about("memory" + " --tiny" * options.tiny, options.commit, "timm", "transformers")
    found |= earlier(options.out, found) or {part: {} for part in MEASURE}
    items = [item for item in items if item[0] in options.parts]
    context = start_context("forkserver")
    if not ON_GPU:  # with a GPU nothing is imported before the fork that might start its driver
        context.set_forkserver_preload(["torch._dynamo", "gfxgraph.call.graphed", "transformers"])
    for (part, what, _), row in fresh_processes(context, work, items, 1, options.limit):
        if isinstance(row, str):
            row = {"error": ENDS[row]}
        name = f"{what} calls of each" if part == "many shapes" else what
        found[part][name] = row
        print(part, name, json.dumps(row), flush=True)
        write(options.out, found)


if __name__ == "__main__":
    main()
