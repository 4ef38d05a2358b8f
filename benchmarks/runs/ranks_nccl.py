"""Two ranks, NCCL on two GPUs: graphs cut at collectives, graphs that hold them, and eager.

``PYTHONPATH=src python3 -m benchmarks.runs.ranks_nccl [--out FILE] [--rounds N]``. With fewer than
two GPUs it runs over Gloo with emulated graphs, which shows that it runs, and no times to go by.

- ``tensor parallel``: a stack of blocks of a transformer, spread with ``parallelize_module`` and by
  hand with ``all_reduce``: eager, split and inside, equal and timed in turn;
- ``pipeline``: two stages, whose sends and receives are inside of what is graphed;
- ``one rank cannot capture``: in each mode, what the others do, and for how long;
- ``shut down``: seconds of ``destroy_process_group()`` while such graphs live;
- ``without collectives``: the host time of a replay, before and after there is a group;
- ``one rank is killed``: in processes of its own, what the other sees, and when.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
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
# Seconds: until a set of ranks is ended, until a collective fails, and to agree in.
LIMIT, TIMEOUT, PATIENCE = 240.0, 20.0, 10.0
MODES = ("split", "inside")


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

    def begin(self) -> None:
        """Meet the other rank."""
        backend = "nccl" if self.is_real else "gloo"
        self.found["backend"] = backend
        dist.init_process_group(
            backend,
            init_method=f"tcp://127.0.0.1:{self.port}",
            rank=self.rank,
            world_size=WORLD,
            timeout=timedelta(seconds=TIMEOUT),
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
        blocks = [Block(self.width, self.heads) for _ in range(self.layers)]
        return nn.Sequential(*blocks).to(self.device, self.dtype).eval()

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

    def one_cannot(self, how: str) -> dict[str, Any]:
        """The second rank raises in its capture."""
        from gfxgraph.device import current_device

        def f(x: Tensor) -> Tensor:
            if self.rank == 1 and current_device().is_capturing():
                raise ValueError("not in a capture")
            y = x * 2
            dist.all_reduce(y)
            return y

        graph, x, start = self.gfxgraph.graphed(f, collectives=how), self.x(), time.perf_counter()
        right = all(torch.equal(graph(x), x * 2 * WORLD) for _ in range(CALLS))
        synchronize()
        seconds = round(time.perf_counter() - start, 3)
        return {"right": right, "seconds": seconds, **self.told(graph)}

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
        """The second rank ends in the middle; what the first one sees."""

        def f(x: Tensor) -> Tensor:
            y = x * 2
            dist.all_reduce(y)
            return y

        graph, calls = self.gfxgraph.graphed(f, collectives=how), []
        for call in range(CALLS):
            if call == CALLS // 2 and self.rank:
                os.kill(os.getpid(), signal.SIGKILL)
            start = time.perf_counter()
            try:
                y = graph(self.x())
                synchronize()
                said = "right" if torch.equal(y, self.x() * 2 * WORLD) else "wrong"
            except RuntimeError as error:
                said = failure(error)["error"][:120]
            calls.append([said, round(time.perf_counter() - start, 2)])
            self.found[f"one rank is killed, {how}"] = {"calls": calls, **self.told(graph)}
            write(self.folder / f"{self.rank}.json", self.found)
        return {"calls": calls, **self.told(graph)}

    def told(self, graph: Any) -> dict[str, Any]:
        """Captures, replays, and why not."""
        stats = graph.stats()
        reasons = [shortened(reason.splitlines()[0])[:160] for reason in stats.fallbacks]
        return {"captures": stats.captures, "replays": stats.replays, "reasons": reasons}


def take_part(rank: int, folder: Path, port: int, rounds: int, commit: str, killed: str) -> None:
    """What a rank does."""
    one = Rank(rank, folder, port, rounds, commit)
    with torch.no_grad():
        if killed:
            one.begin()
            one.keep(f"one rank is killed, {killed}", lambda: one.is_killed(killed))
            os._exit(0)  # a group of which a rank is gone cannot be shut down
        one.keep("without collectives, no group", one.without_collectives)
        one.begin()
        one.keep("without collectives, in a group", one.without_collectives)
        one.keep("tensor parallel, by hand", lambda: one.tensor_parallel(one.by_hand))
        one.keep("tensor parallel, DTensor", lambda: one.tensor_parallel(one.spread))
        one.keep("pipeline", one.pipeline)
        for how in MODES:
            one.keep(f"one rank cannot capture, {how}", lambda how=how: one.one_cannot(how))
        one.keep("shut down", one.shut_down)


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
        if killed:  # an error instead of the end of the process
            environ |= {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
        told = [str(free_port()), str(rounds), commit or "-", killed or "-"]
        command = [sys.executable, "-m", "benchmarks.runs.ranks_nccl", "--rank"]
        ranks = [
            subprocess.Popen([*command, f"{rank},{folder},{','.join(told)}"], env=environ)
            for rank in range(WORLD)
        ]
        until = time.monotonic() + LIMIT
        ended: list[str] = []
        for rank in ranks:
            try:
                ended.append(str(rank.wait(max(1.0, until - time.monotonic()))))
            except subprocess.TimeoutExpired:
                ended.append("hangs")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    if ended and ended[-1] == "hangs":
                        rank.kill()
        for rank in ranks:
            rank.wait()
        files = [folder / f"{rank}.json" for rank in range(WORLD)]
        return [json.loads(f.read_text()) if f.is_file() else {} for f in files], ended


def main() -> None:
    """Start the ranks, and put together what they found."""
    parser = arguments(__doc__, "ranks_nccl.json")
    parser.add_argument("--rounds", type=int, default=20, help="of 10 calls each; default 20")
    parser.add_argument("--rank", default="", help="for the ranks that this starts")
    options = parser.parse_args()
    if options.rank:
        rank, folder, port, rounds, commit, killed = options.rank.split(",")
        given = commit.strip("-"), killed.strip("-")
        take_part(int(rank), Path(folder), int(port), int(rounds), *given)
        return
    (first, second), ended = run_ranks(options.rounds, options.commit)
    head = ("command", "commit", "device", "torch", "backend")
    result: dict[str, Any] = {name: first[name] for name in head if name in first}
    result |= {"ended": ended, "cases": {}}
    for name in (*first, *second):
        if name not in head:
            result["cases"][name] = [first.get(name), second.get(name)]
    for how in MODES:
        found, ended = run_ranks(options.rounds, options.commit, how)
        name = f"one rank is killed, {how}"
        result["cases"][name] = {"ended": ended, "first": found[0].get(name)}
        write(options.out, result)
    for name, rows in result["cases"].items():
        print(name, json.dumps(rows), flush=True)


if __name__ == "__main__":
    main()
