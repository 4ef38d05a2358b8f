"""A server whose captures fail by real means: does it answer every request that follows?

``PYTHONPATH=src python3 -m benchmarks.runs.capture_failures [--failures N]``. The server captures
each batch size into one memory pool, as SGLang and vLLM do, and keeps the error of a size with the
code of the plugin (``serving/graphs.py``). In each round a capture is made to fail, and then
requests of all sizes are answered, from graphs or eagerly, and compared with eager execution. Some
rounds must not fail: another thread asks for events and allocates during the capture. Needs a GPU;
takes about a minute.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.lib.processes import one_line
from benchmarks.lib.report import about, arguments, write

SIZES = (32, 16, 8, 4, 2, 1)
WIDTH = 256


class Server:
    """A model, its static input, and a graph for each size."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH)
        ).cuda()
        self.static = torch.zeros(max(SIZES), WIDTH, device="cuda")
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()
        self.graphs: dict[int, Any] = {}
        self.outputs: dict[int, torch.Tensor] = {}

    def capture(self, size: int, disturb: Callable[[torch.Tensor], Any] = lambda x: None) -> Any:
        """What SGLang and vLLM do for one size; gives the record of the plugin."""
        from gfxgraph.serving.graphs import EngineGraphs, replays_of

        graphs = EngineGraphs.of(self, "a server", type(self).__name__)

        def drop() -> None:
            self.graphs.pop(size, None)
            self.outputs.pop(size, None)

        with (
            torch.no_grad(),
            graphs.capturing(
                f"size={size}",
                pool=lambda: self.pool,
                keep=lambda: True,
                counted=lambda: replays_of(self.graphs.get(size)),
                release=drop,
                give_up=drop,
            ),
        ):
            self.model(self.static[:size])
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                out = self.model(self.static[:size])
                disturb(out)
            self.graphs[size], self.outputs[size] = graph, out
        return next(one for one in graphs.sizes() if one.size == f"size={size}")

    @torch.no_grad()
    def answers(self, rows: int) -> tuple[bool, str]:
        """Answer a request; whether rightly, and how."""
        x = torch.randn(rows, WIDTH, device="cuda")
        size = min(size for size in SIZES if size >= rows)
        padded = torch.zeros(size, WIDTH, device="cuda")
        padded[:rows] = x
        expected = self.model(padded)[:rows]
        if size not in self.graphs:
            return torch.equal(self.model(padded)[:rows], expected), "eager"
        self.static[:size].copy_(padded)
        self.graphs[size].replay()
        return torch.allclose(self.outputs[size][:rows], expected, rtol=1e-4, atol=1e-5), "graph"


def out_of_memory(out: torch.Tensor) -> None:
    """The process may have no more than it has; the capture asks for 256 MiB."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(
        min(1.0, (torch.cuda.memory_reserved() + (8 << 20)) / total)
    )
    torch.empty(256 << 20, dtype=torch.uint8, device="cuda")


def more_than_the_device_has(out: torch.Tensor) -> None:
    torch.empty(1 << 45, dtype=torch.uint8, device="cuda")


def reads_a_value(out: torch.Tensor) -> None:
    out.sum().item()


def waits_for_the_device(out: torch.Tensor) -> None:
    torch.cuda.synchronize()


def raises(out: torch.Tensor) -> None:
    raise KeyError("an error of the body")


def copies_to_the_host(out: torch.Tensor) -> None:
    out.cpu()


def work_is_not_joined(out: torch.Tensor) -> None:
    other = current = torch.cuda.current_stream()
    while other == current:  # torch gives the same streams again and again
        other = torch.cuda.Stream()
    other.wait_stream(current)
    with torch.cuda.stream(other):
        torch.add(out, 1)


def reads_a_value_and_goes_on(out: torch.Tensor) -> None:
    """Code that swallows the error: only the end of the capture tells."""
    try:
        out.sum().item()
    except RuntimeError:
        torch.add(out, 1)


FAILING = (
    *(out_of_memory, more_than_the_device_has, reads_a_value, waits_for_the_device, raises),
    *(copies_to_the_host, work_is_not_joined, reads_a_value_and_goes_on),
)


@contextmanager
def watchdog(allocates: bool) -> Iterator[Counter[str]]:
    """Another thread, which asks for an event all the time, as the watchdog of NCCL does."""
    said: Counter[str] = Counter()
    ended, begun = threading.Event(), threading.Event()

    def watch() -> None:
        stream = torch.cuda.Stream()
        sizes = random.Random(0)
        while not ended.is_set():
            try:
                with torch.cuda.stream(stream):
                    event = torch.cuda.Event()
                    event.record()
                    if allocates:
                        torch.empty(sizes.randrange(4 << 20, 64 << 20), device="cuda").zero_()
                event.query()
                said["asked"] += 1
            except RuntimeError as error:
                said[one_line(error)[:100]] += 1
            begun.set()
            time.sleep(0)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    begun.wait()
    try:
        yield said
    finally:
        ended.set()
        thread.join()


def main() -> None:
    parser = arguments(__doc__, "capture_failures.json")
    parser.add_argument("--failures", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("capture_failures: a GPU is needed.")
    import gfxgraph
    from gfxgraph.graph.native import NativeGraph

    gfxgraph.enable()
    NativeGraph.global_is_thread_local = True  # as the plugin does
    pick = random.Random(given.seed)
    server = Server()
    for size in SIZES:
        server.capture(size)
    rounds: dict[str, Counter[str]] = {}
    wrong: list[str] = []
    errors: dict[str, str] = {}
    answered: Counter[str] = Counter()
    reserved = []
    failures = 0

    def answer_all(after: str) -> None:
        for rows in (*SIZES, pick.randrange(1, 33), pick.randrange(1, 33)):
            right, how = server.answers(rows)
            answered[how] += 1
            if not right:
                wrong.append(f"{rows} rows ({how}) after {after}")
        drawn = torch.rand(64, device="cuda")  # the generator works, too
        if not 0 <= float(drawn.min()) < float(drawn.max()) < 1:
            wrong.append(f"random numbers after {after}")
        reserved.append(torch.cuda.memory_reserved())

    turn = 0
    while failures < given.failures and turn < 2 * given.failures:
        size = pick.choice(SIZES)
        server.graphs.pop(size, None)
        # Every fifth round another thread is busy, and the capture must succeed.
        if turn % 5 == 4:
            name = "another thread allocates" if turn % 10 == 9 else "another thread asks"
            with watchdog(allocates=turn % 10 == 9) as said:
                record = server.capture(size, lambda out: time.sleep(0.02))
            if record.state != "captured":
                wrong.append(f"{name}: {record.reason}")
            rounds.setdefault(name, Counter()).update(said)
        else:
            disturb = FAILING[turn % len(FAILING)] if turn % 2 else pick.choice(FAILING)
            name = disturb.__name__
            record = server.capture(size, disturb)
            torch.cuda.set_per_process_memory_fraction(1.0)
            if record.state != "failed":
                wrong.append(f"{name}: its capture did not fail")
            else:
                failures += 1
                errors.setdefault(name, record.reason)
        rounds.setdefault(name, Counter())[record.state] += 1
        answer_all(name)
        if turn % 3 == 2:  # the size is captured again
            if server.capture(size).state != "captured":
                wrong.append(f"a capture after {name}")
            answer_all(f"a new capture after {name}")
        turn += 1
    half = len(reserved) // 2
    found = about(f"capture_failures --failures {given.failures}", given.commit) | {
        "failures": failures,
        "requests": sum(answered.values()),
        "answered": dict(answered),
        "wrong": wrong,
        "rounds": {name: dict(count) for name, count in rounds.items()},
        "errors": errors,
        "reserved_mib": {
            "first": reserved[0] >> 20,
            "half": reserved[half] >> 20,
            "last": reserved[-1] >> 20,
        },
        "stats": {k: v for k, v in gfxgraph.stats().items() if isinstance(v, (int, float))},
    }
    write(given.out, found)
    print(found)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
