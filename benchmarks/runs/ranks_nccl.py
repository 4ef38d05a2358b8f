"""Two ranks, NCCL on two GPUs: graphs cut at collectives, graphs that hold them, and eager.

``PYTHONPATH=src python3 -m benchmarks.runs.ranks_nccl [--out FILE] [--rounds N]``. With fewer than
two GPUs it runs over Gloo with emulated graphs, which shows that it runs, and no times to go by.

- ``tensor parallel``: a stack of blocks of a transformer, spread with ``parallelize_module`` and by
  hand with ``all_reduce``: eager, split and inside, equal and timed in turn;
- ``pipeline``: two stages, whose sends and receives are inside of what is graphed;
- ``one collective``: each kind alone, in both modes: is it in a graph, are results those of eager;
- ``agreement``: what a call with a graph that holds one ``all_reduce`` costs;
- ``one rank ...``: in each mode, what the ranks do when one is at fault, and for how long;
- ``shut down``: seconds of ``destroy_process_group()`` while such graphs live;
- ``without collectives``: the host time of a replay, before and after there is a group;
- ``one rank is killed``: in processes of its own, what the other sees, and when; also in eager.

It takes at most 200 seconds: each set of processes is killed after its time, and what it had found
by then is in the file.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from benchmarks.lib.report import about, arguments, failure, shortened, write
from benchmarks.lib.timing import in_turn, synchronize

WORLD, CALLS = 2, 6
MODES = ("split", "inside")
FAULTS = ("cannot capture", "sends another shape", "resets", "stalls")
# Seconds until a set of ranks is killed: the one that measures, and those of which a rank is.
LIMIT, LIMIT_KILLED = 110.0, 30.0
# Seconds until a collective fails, and to agree in; shorter where a rank is killed.
TIMEOUT, TIMEOUT_KILLED, PATIENCE = 20.0, 8.0, 5.0
# The watchdog of NCCL ends collectives that take too long, and leaves the process alive (2). It
# waits four times the pause before it does so; the synchronous collectives of torch 2.11 give no
# work that a host could wait for instead (TORCH_NCCL_BLOCKING_WAIT).
_WATCHDOG = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "250",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}


class Block(nn.Module):
    """A block of a transformer, whose heads and hidden units ranks can share."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.head = width, width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.add_up: Callable[[Tensor], Tensor] = lambda x: x

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        h = self.norm1(x)
        q, k, v = (p(h).view(b, n, -1, self.head).transpose(1, 2) for p in (self.q, self.k, self.v))
        a = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.add_up(self.out(a.transpose(1, 2).reshape(b, n, -1)))
        return x + self.add_up(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


class Rank:
    """This rank, and what it measures."""

    def __init__(self, rank: int, folder: Path, port: int, rounds: int, commit: str) -> None:
        import gfxgraph

        self.port = port

        self.gfxgraph, self.rank, self.folder, self.rounds = gfxgraph, rank, folder, rounds
        self.is_real = torch.cuda.device_count() >= WORLD
        self.device = torch.device("cuda", rank) if self.is_real else torch.device("cpu")
        if self.is_real:
            torch.cuda.set_device(self.device)
        self.dtype = torch.half if self.is_real else torch.float32
        self.width, self.heads, self.layers = (2048, 16, 24) if self.is_real else (64, 4, 2)
        self.found: dict[str, Any] = about("ranks_nccl", commit)

    def begin(self, timeout: float = TIMEOUT) -> None:
        """Meet the other rank."""
        backend = "nccl" if self.is_real else "gloo"
        self.found["backend"] = backend
        dist.init_process_group(
            backend,
            init_method=f"tcp://127.0.0.1:{self.port}",
            rank=self.rank,
            world_size=WORLD,
            timeout=timedelta(seconds=timeout),
        )

    def keep(self, name: str, case: Callable[[], Any]) -> None:
        """Measure a case, and write what is known so far."""
        try:
            self.found[name] = case()
        except Exception as error:
            self.found[name] = failure(error)
        write(self.folder / f"{self.rank}.json", self.found)

    def stack(self) -> nn.Sequential:
        """The same weights on both ranks."""
        torch.manual_seed(0)
        with self.device:  # on the host it would take seconds
            blocks = [Block(self.width, self.heads) for _ in range(self.layers)]
        return nn.Sequential(*blocks).to(self.dtype).eval()

    def x(self, seed: int = 1) -> Tensor:
        """One token of each of four sequences would be too small to see anything."""
        torch.manual_seed(seed)
        return torch.randn(4, 16, self.width, device=self.device, dtype=self.dtype)

    # Cases.

    def spread(self) -> nn.Sequential:
        """The stack as torch spreads it."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        model, mesh = self.stack(), init_device_mesh(self.device.type, (WORLD,))
        for block in model:
            columns = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
            parallelize_module(
                block, mesh, columns | {"out": RowwiseParallel(), "down": RowwiseParallel()}
            )
        return model

    def by_hand(self) -> nn.Sequential:
        """The stack with the part of each weight that this rank has."""

        def add_up(x: Tensor) -> Tensor:
            dist.all_reduce(x)
            return x

        model = self.stack()
        for block in model:
            for linear in (block.q, block.k, block.v, block.up):
                linear.weight = nn.Parameter(linear.weight.chunk(WORLD, 0)[self.rank].clone())
            for linear in (block.out, block.down):
                linear.weight = nn.Parameter(linear.weight.chunk(WORLD, 1)[self.rank].clone())
            block.add_up = add_up
        return model

    def tensor_parallel(self, make: Callable[[], nn.Sequential]) -> dict[str, Any]:
        """Eager against graphs that are cut at collectives, and graphs that hold them."""
        model, whole, x = make(), self.stack(), self.x()
        graphs = {how: self.gfxgraph.graphed(model, collectives=how) for how in MODES}
        results = {how: [graph(self.x(n)) for n in range(CALLS)] for how, graph in graphs.items()}
        eager = [model(self.x(n)) for n in range(CALLS)]
        ways: dict[str, Callable[[], Any]] = {"eager": lambda: model(x)}
        ways |= {how: (lambda graph=graph: graph(x)) for how, graph in graphs.items()}
        dist.barrier()
        return {
            "times": in_turn(ways, range(self.rounds), 10, warm_up=3),
            "bit-identical": {
                how: all(map(torch.equal, found, eager)) for how, found in results.items()
            },
            "from one rank": float((eager[0] - whole(self.x(0))).abs().max()),
            **{how: self.told(graph) for how, graph in graphs.items()},
        }

    def pipeline(self) -> dict[str, Any]:
        """Two stages, each with its receive and its send."""
        stage = self.stack()[self.rank :: WORLD]
        graph: Any = None

        def step(x: Tensor) -> Tensor:
            if self.rank:
                dist.recv(x, self.rank - 1)
            y = stage(x)
            if self.rank < WORLD - 1:
                dist.send(y, self.rank + 1)
            return y

        graph = self.gfxgraph.graphed(step)
        same = [torch.equal(graph(self.x(n)), step(self.x(n))) for n in range(CALLS)]
        ways = {"eager": lambda: step(self.x()), "split": lambda: graph(self.x())}
        dist.barrier()
        times = in_turn(ways, range(self.rounds), 10, warm_up=3)
        return {"times": times, "bit-identical": all(same), "split": self.told(graph)}

    def kinds(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """Functions that issue one collective each, most of them in the classic way."""
        from torch.distributed import _functional_collectives as functional

        other, world = 1 - self.rank, dist.group.WORLD

        def all_reduce(x: Tensor) -> Tensor:
            y = x * 2
            dist.all_reduce(y)
            return y + 1

        def waits_later(x: Tensor) -> Tensor:
            y = x * 2
            work = dist.all_reduce(y, async_op=True)
            z = x * 3
            work.wait()
            return y + z

        def all_gather_into_tensor(x: Tensor) -> Tensor:
            out = x.new_empty(WORLD * x.numel())
            dist.all_gather_into_tensor(out, x.flatten() + 1)
            return out * 2

        def all_gather(x: Tensor) -> Tensor:
            parts = [torch.empty_like(x) for _ in range(WORLD)]
            dist.all_gather(parts, x + 1)
            return torch.stack(parts)

        def reduce_scatter_tensor(x: Tensor) -> Tensor:
            out = x.new_empty(x.numel() // WORLD)
            dist.reduce_scatter_tensor(out, x.flatten() + 1)
            return out * 2

        def broadcast(x: Tensor) -> Tensor:
            y = x * 2
            dist.broadcast(y, 0)
            return y + 1

        def all_to_all_single(x: Tensor) -> Tensor:
            out = torch.empty_like(x)
            dist.all_to_all_single(out, x + 1)
            return out * 2

        def functional_sum(x: Tensor) -> Tensor:
            return functional.all_reduce(x * 2, "sum", world) + 1

        def coalesced(x: Tensor) -> Tensor:
            y, z = x * 2, x * 3
            with dist._coalescing_manager(device=self.device if self.is_real else None):
                dist.all_reduce(y)
                dist.all_reduce(z)
            return y + z

        def batch_isend_irecv(x: Tensor) -> Tensor:
            y = torch.empty_like(x)
            ops = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, y, other)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            return y + 1

        def send_and_recv(x: Tensor) -> Tensor:
            y = x * 2
            dist.send(y, other) if self.rank == 0 else dist.recv(y, other)
            return y + 1

        def barrier(x: Tensor) -> Tensor:
            dist.barrier()
            return x + 1

        kinds = (all_reduce, waits_later, all_gather_into_tensor, all_gather, broadcast)
        kinds += (reduce_scatter_tensor, all_to_all_single, functional_sum, coalesced)
        kinds += (batch_isend_irecv, send_and_recv, barrier)
        return {kind.__name__: kind for kind in kinds}

    def keep_collectives(self, names: list[str]) -> None:
        """Measure each collective alone in both modes."""
        for name in names:
            for how in MODES:
                what = f"one collective, {name}, {how}"
                self.keep(what, lambda name=name, how=how: self.one_collective(name, how))

    def one_collective(self, name: str, how: str) -> dict[str, Any]:
        """A graph of a function with one collective."""
        kind = self.kinds()[name]
        graph = self.gfxgraph.graphed(kind, collectives=how)
        results = [graph(self.x(n)) for n in range(4)]
        same = [torch.equal(y, kind(self.x(n))) for n, y in enumerate(results)]
        return {"right": all(same), **self.told(graph)}

    def rounds_of_agreement(self) -> dict[str, Any]:
        """What it costs to agree, and how: the first two rounds are over the store."""
        from gfxgraph.call.agreement import Agreement

        store = dist.distributed_c10d._get_default_store()
        agreement, times = Agreement("measured", range(WORLD), self.rank, store, PATIENCE), []
        dist.barrier()
        for _ in range(1000):
            start = time.perf_counter()
            agreed = agreement.decide("replays graph 1").agreed
            times.append((time.perf_counter() - start) * 1e6)
        synchronize()
        return {
            "agreed": agreed,
            "in memory": agreement._shared is not None,
            "first_us": [round(t) for t in times[:4]],
            "median_us": round(statistics.median(times[4:]), 1),
            "p99_us": round(sorted(times[4:])[-10], 1),
        }

    def agreement(self) -> dict[str, Any]:
        """Calls that do next to nothing but agree."""
        x, all_reduce = self.x()[:1, :1], self.kinds()["all_reduce"]
        ways: dict[str, Callable[[], Any]] = {"eager": lambda: all_reduce(x)}
        graphs = {how: self.gfxgraph.graphed(all_reduce, collectives=how) for how in MODES}
        ways |= {how: (lambda graph=graph: graph(x)) for how, graph in graphs.items()}
        times = in_turn(ways, range(self.rounds), 20, warm_up=8)
        return {"times": times, **{how: self.told(graph) for how, graph in graphs.items()}}

    def at_fault(self, how: str, fault: str) -> dict[str, Any]:
        """The second rank is at fault."""
        from gfxgraph.device import current_device

        def f(x: Tensor) -> Tensor:
            if fault == "cannot capture" and self.rank and current_device().is_capturing():
                raise ValueError("not in a capture")
            y = x * 2
            if fault == "sends another shape" and self.rank:
                y = y.flatten()
            dist.all_reduce(y)
            return y.view(x.shape)

        graph, right = self.gfxgraph.graphed(f, collectives=how), []
        start = time.perf_counter()
        for call in range(2 * CALLS):
            if fault == "resets" and self.rank and call == CALLS:
                graph.reset()
            if fault == "stalls" and self.rank and call == CALLS:
                time.sleep(PATIENCE * 1.4)
            x = self.x(call)  # another in each call: the result of one shows in no other
            right.append(torch.equal(graph(x), x * 2 * WORLD))
        synchronize()
        seconds = round(time.perf_counter() - start, 3)
        return {"right": all(right), "seconds": seconds, **self.told(graph)}

    def shut_down(self) -> dict[str, Any]:
        """Graphs with collectives of both kinds are alive."""

        def f(x: Tensor) -> Tensor:
            y = x * 2
            dist.all_reduce(y)
            return y

        graphs = [self.gfxgraph.graphed(f, collectives=how) for how in MODES]
        for graph in graphs:
            for _ in range(3):
                graph(self.x())
        synchronize()
        dist.barrier()
        alive = [len(graph.stats().graphs) for graph in graphs]
        start = time.perf_counter()
        dist.destroy_process_group()
        return {"graphs": alive, "seconds": round(time.perf_counter() - start, 3)}

    def without_collectives(self) -> dict[str, Any]:
        """The host time of a replay."""
        linear = nn.Linear(64, 64, device=self.device, dtype=self.dtype)
        x = torch.randn(8, 64, device=self.device, dtype=self.dtype)
        graph = self.gfxgraph.graphed(linear)
        graph(x)
        return in_turn({"replay": lambda: graph(x)}, range(self.rounds), 50, warm_up=20)["replay"]

    def is_killed(self, how: str) -> dict[str, Any]:
        """The second rank ends in the middle; what the first one sees in ``how``, or in eager."""

        def f(x: Tensor) -> Tensor:
            y = x * 2
            dist.all_reduce(y)
            return y

        graph = f if how == "eager" else self.gfxgraph.graphed(f, collectives=how)
        calls: list[Any] = []
        found = self.found[f"one rank is killed, {how}"] = {"calls": calls}
        for call in range(CALLS):
            if call == CALLS // 2 and self.rank:
                os.kill(os.getpid(), signal.SIGKILL)
            calls.append(["did not end"])
            write(self.folder / f"{self.rank}.json", self.found)
            x = self.x(call)  # what an aborted collective leaves may be the result of another call
            start = time.perf_counter()
            try:
                y = graph(x)
                returned = round(time.perf_counter() - start, 2)
                synchronize()
                said = "right" if torch.equal(y, x * 2 * WORLD) else "wrong"
            except RuntimeError as error:
                returned, said = None, failure(error)["error"][:120]
            calls[-1] = [said, returned, round(time.perf_counter() - start, 2)]
            if how != "eager":
                found |= self.told(graph)
            write(self.folder / f"{self.rank}.json", self.found)
        return found

    def told(self, graph: Any) -> dict[str, Any]:
        """Captures, replays, and why not."""
        stats = graph.stats()
        reasons = [shortened(" ".join(reason.split()))[:400] for reason in stats.fallbacks]
        return {"captures": stats.captures, "replays": stats.replays, "reasons": reasons}


def take_part(rank: int, folder: Path, port: int, rounds: int, commit: str, killed: str) -> None:
    """What a rank does."""
    one = Rank(rank, folder, port, rounds, commit)
    with torch.no_grad():
        if killed:
            one.begin(TIMEOUT_KILLED)
            one.keep(f"one rank is killed, {killed}", lambda: one.is_killed(killed))
            os._exit(0)  # a group of which a rank is gone cannot be shut down
        one.keep("without collectives, no group", one.without_collectives)
        one.begin()
        one.keep("without collectives, in a group", one.without_collectives)
        kinds = list(one.kinds())
        one.keep_collectives(kinds[:-3])
        one.keep("rounds of agreement", one.rounds_of_agreement)
        one.keep("agreement", one.agreement)
        one.keep("tensor parallel, by hand", lambda: one.tensor_parallel(one.by_hand))
        one.keep("tensor parallel, DTensor", lambda: one.tensor_parallel(one.spread))
        one.keep("pipeline", one.pipeline)
        for fault in FAULTS:
            for how in MODES:
                what = f"one rank {fault}, {how}"
                one.keep(what, lambda fault=fault, how=how: one.at_fault(how, fault))
        one.keep("shut down", one.shut_down)
        one.begin()  # at last what goes to one rank, and what no graph of NCCL can hold
        one.keep_collectives(kinds[-3:])


def free_port() -> int:
    """A port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def run_ranks(rounds: int, commit: str, killed: str = "") -> tuple[list[dict[str, Any]], list[str]]:
    """What each rank found, and how it ended."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environ = os.environ | {"GFXGRAPH_RANKS_TIMEOUT": str(PATIENCE)}
        environ.setdefault("OMP_NUM_THREADS", "1")
        environ |= _WATCHDOG if killed else {}
        told = [str(free_port()), str(rounds), commit or "-", killed or "-"]
        command = [sys.executable, "-m", "benchmarks.runs.ranks_nccl", "--rank"]
        ranks = [
            subprocess.Popen([*command, f"{rank},{folder},{','.join(told)}"], env=environ)
            for rank in range(WORLD)
        ]
        until = time.monotonic() + (LIMIT_KILLED if killed else LIMIT)
        ended: list[str] = []
        for rank in ranks:
            try:
                ended.append(str(rank.wait(max(0.1, until - time.monotonic()))))
            except subprocess.TimeoutExpired:
                ended.append("killed, its time was over")
        for rank in ranks:
            rank.kill()
            rank.wait()
        files = [folder / f"{rank}.json" for rank in range(WORLD)]
        return [json.loads(f.read_text()) if f.is_file() else {} for f in files], ended


def main() -> None:
    """Start the ranks, and put together what they found."""
    parser = arguments(__doc__, "ranks_nccl.json")
    parser.add_argument("--rounds", type=int, default=10, help="of 10 calls each; default 10")
    parser.add_argument("--rank", default="", help="for the ranks that this starts")
    options = parser.parse_args()
    if options.rank:
        rank, folder, port, rounds, commit, killed = options.rank.split(",")
        given = commit.strip("-"), killed.strip("-")
        take_part(int(rank), Path(folder), int(port), int(rounds), *given)
        return
    head = ("command", "commit", "device", "torch", "backend")
    result: dict[str, Any] = dict.fromkeys(head) | {"ended": {}, "cases": {}}
    for killed in ("", "eager", *MODES):
        found, ended = run_ranks(options.rounds, options.commit, killed)
        for row in found:
            result |= {name: row.pop(name) for name in head if name in row}
        result["ended"][killed or "measuring"] = ended
        for name in dict.fromkeys((*found[0], *found[1])):
            result["cases"][name] = rows = [rank.get(name) for rank in found]
            print(name, json.dumps(rows), flush=True)
        print(f"{killed or 'measuring'} ended", ended, flush=True)
        write(options.out, result)


if __name__ == "__main__":
    main()
