"""What executables of graphs cost: updated in place, put into one, uploaded early, used in turn.

``PYTHONPATH=src python3 -m benchmarks.runs.executables [--out FILE]``. Transformer blocks in half
precision, captured by hand. Needs a GPU of NVIDIA and cuda-bindings. Times are medians.

- ``start``: a new executable, with and without ``cuGraphUpload`` before its first launch, against
  one that was updated in place.
- ``composition``: graphs that are replayed in turn, against ``gfxgraph.compose``; and one of them
  replaced, against building the whole again.
- ``two in turn``: a loop whose inputs come from pinned memory. One executable, whose input is
  copied on the stream of the replay; against two that take turns, where the next input is copied
  on another stream while the other one runs.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import gfxgraph
from benchmarks.lib.models import Block
from benchmarks.lib.report import about, arguments, failure, write
from benchmarks.lib.timing import timed
from gfxgraph.device import current_device

TIMES = 15


def main() -> int:
    """Measure, print, write JSON."""
    options = arguments(__doc__, "executables.json").parse_args()
    if gfxgraph.device_type() != "cuda" or current_device().tier != "driver":
        print("executables needs a GPU and its driver", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    result: dict[str, Any] = {
        **about("executables", options.commit, "cuda-bindings"),
        "times": TIMES,
    }
    parts = {"start": _start, "composition": _composition, "two in turn": _two_in_turn}
    with torch.no_grad():
        for name, part in parts.items():
            try:
                result[name] = part()
            except Exception as error:  # a part that this driver cannot do is a row
                result[name] = failure(error)
            print(name, result[name], flush=True)
            write(options.out, result)
    return 0


def _net(blocks: int) -> torch.nn.Module:
    return torch.nn.Sequential(*[Block() for _ in range(blocks)]).cuda().half().eval()


def _input() -> torch.Tensor:
    return torch.randn(1, 64, 768, device="cuda", dtype=torch.half)


def _captured(call: Callable[[], torch.Tensor]) -> tuple[gfxgraph.BridgedCUDAGraph, torch.Tensor]:
    graph = gfxgraph.BridgedCUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        output = call()
    return graph, output


def _ms(values: list[float]) -> float:
    return round(1000 * statistics.median(values[1:]), 4)


def _start() -> list[dict[str, Any]]:
    return [_start_of(blocks) for blocks in (12, 48)]


def _start_of(blocks: int) -> dict[str, Any]:
    from cuda.bindings import driver

    net, x = _net(blocks), _input()
    for _ in range(3):
        net(x)
    kept, _ = _captured(lambda: net(x))
    kept.replay()
    kept.replay()
    row: dict[str, list[float]] = {}
    equal = True

    def add(name: str, call: Callable[[], Any]) -> Any:
        found, seconds = timed(call)
        row.setdefault(name, []).append(seconds)
        return found

    executables = current_device().executables()
    last = None  # the memory of what the executable does
    for _ in range(TIMES + 1):
        new, output = add("capture", lambda: _captured(lambda: net(x)))
        add("instantiate", new.instantiate)
        add("first launch", new.replay)
        expected = output.clone()
        add("later launch", new.replay)
        new.instantiate()
        raw = driver.CUgraphExec(new.raw_cuda_graph_exec())
        stream = driver.CUstream(torch.cuda.current_stream().cuda_stream)
        add("upload", lambda raw=raw, stream=stream: driver.cuGraphUpload(raw, stream))
        add("first launch after upload", new.replay)
        target, graph = kept.raw_cuda_graph_exec(), new.raw_cuda_graph()
        why = add("update", lambda t=target, g=graph: executables.update(t, g))
        output.zero_()
        add("first launch after update", kept.replay)
        equal = equal and not why and torch.equal(output, expected)
        last = new
    assert last is not None
    return {"blocks": blocks, "equal": equal, "ms": {k: _ms(v) for k, v in row.items()}}


def _composition() -> list[dict[str, Any]]:
    return [_composed(2, 12), _composed(4, 3), _composed(8, 1)]


def _composed(count: int, blocks: int) -> dict[str, Any]:
    nets, x = [_net(blocks) for _ in range(count)], _input()
    graphs: dict[str, Any] = {}
    y = x
    for n, net in enumerate(nets):
        net(y)
        graphs[str(n)], y = _captured(lambda net=net, y=y: net(y))
        graphs[str(n)].replay()
    after = {str(n): [str(n - 1)] for n in range(1, count)}

    def in_turn() -> None:
        for graph in graphs.values():
            graph.replay()

    whole = gfxgraph.compose(graphs, after)
    build = timed(whole.replay)[1]
    expected = y.clone()
    y.zero_()
    whole.replay()
    row: dict[str, Any] = {"graphs": count, "blocks": blocks, "equal": torch.equal(y, expected)}
    row["in turn"], row["composed"] = _call(in_turn), _call(whole.replay)
    row["build and launch ms"] = round(1000 * build, 4)
    wide = gfxgraph.compose(graphs)  # wrong results, which nobody reads: what may overlap does
    wide.replay()
    row["side by side"] = _call(wide.replay)
    last = str(count - 1)
    before = nets[-2](x) if count > 1 else x
    replaced, rebuilt, results = [], [], set()
    keep = []
    for _ in range(TIMES + 1):
        new, output = _captured(lambda before=before: nets[-1](before))
        new.replay()
        keep.append((new, output))
        found, seconds = timed(lambda new=new: whole.replace(last, new))
        results.add(found.result)
        replaced.append(seconds)
        whole.replay()
        whole.reset()
        rebuilt.append(timed(whole.replay)[1])
    later = [timed(whole.replay)[1] for _ in range(TIMES + 1)]
    row["replace ms"], row["build again ms"] = _ms(replaced), round(_ms(rebuilt) - _ms(later), 4)
    row["replace"] = sorted(results)
    return row


def _call(call: Callable[[], Any]) -> dict[str, float]:
    """Microseconds of the host until a call returns, and until the device is done."""
    host, whole = [], []
    for _ in range(100):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        host.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - start)
    return {"host us": round(1e3 * _ms(host), 1), "end to end us": round(1e3 * _ms(whole), 1)}


def _two_in_turn() -> list[dict[str, Any]]:
    rows = []
    for blocks in (1, 12):
        for megabytes in (0.1, 2.0, 20.0):
            rows.append(_pipelined(blocks, megabytes))
    return rows


def _pipelined(blocks: int, megabytes: float) -> dict[str, Any]:
    """A loop of 100 calls, whose input has so many megabytes and is read by the first kernel."""
    net, rows = _net(blocks), max(64, round(megabytes * 1e6 / 2 / 768))
    hosts = [torch.randn(1, rows, 768, dtype=torch.half).pin_memory() for _ in range(4)]

    def call(x: torch.Tensor) -> torch.Tensor:
        small: torch.Tensor = net(x.view(-1, 64, 768).mean(0, keepdim=True) if rows > 64 else x)
        return small

    rows -= rows % 64
    hosts = [host[:, :rows] for host in hosts]
    hosts = [host.contiguous().pin_memory() for host in hosts]
    slots = []
    for _ in range(2):
        x = hosts[0].cuda()
        call(x)
        slots.append((x, *_captured(lambda x=x: call(x))))
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    copied, done = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
    got = [torch.empty_like(slots[0][2]) for _ in range(4)]

    def one(steps: int, wait: bool) -> None:
        x, graph, output = slots[0]
        for n in range(steps):
            x.copy_(hosts[n % 4], non_blocking=True)
            graph.replay()
            got[n % 4].copy_(output)
            if wait:
                main.synchronize()

    def two(steps: int, wait: bool) -> None:
        def stage(n: int) -> None:
            with torch.cuda.stream(side):
                side.wait_event(done[n % 2])
                slots[n % 2][0].copy_(hosts[n % 4], non_blocking=True)
                copied[n % 2].record(side)

        stage(0)
        for n in range(steps):
            _, graph, output = slots[n % 2]
            main.wait_event(copied[n % 2])
            graph.replay()
            done[n % 2].record(main)
            stage(n + 1)
            got[n % 4].copy_(output)
            if wait:
                main.synchronize()

    one(8, False)
    torch.cuda.synchronize()
    expected = [value.clone() for value in got]
    two(8, False)
    torch.cuda.synchronize()
    found: dict[str, Any] = {
        "blocks": blocks,
        "input MB": round(hosts[0].nbytes / 1e6, 2),
        "equal": all(torch.equal(a, b) for a, b in zip(got, expected, strict=True)),
    }
    for name, way in (("one", one), ("two", two)):
        for wait in (False, True):
            seconds = [timed(way, 100, wait)[1] / 100 for _ in range(7)]
            key = f"{name}, {'waits for each' if wait else 'runs on'}: us"
            found[key] = round(1e3 * _ms(seconds), 1)
    return found


if __name__ == "__main__":
    sys.exit(main())
