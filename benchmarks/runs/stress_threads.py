"""Many threads call the same graphed functions, and every result is compared with eager.

``PYTHONPATH=src python3 -m benchmarks.runs.stress_threads --threads 8 --calls 1000000``, on a GPU
or, where there is none, on the emulated device. Functions of every kind are called in random order:
plain, branching, writing in place, random, bucketed, per instance, of a ``ConditionalGraph``; now
and then a thread releases all graphs of one (``reset()``) or collects garbage. Exit status 1 if a
result is wrong, a call raises, or a thread stands still; then all stacks are printed.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import logging
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gfxgraph

# Up to torch 2.11 no thread can draw from the default generator of a GPU while another captures;
# torch raises this in eager code too, before anything is drawn.
_NO_DRAWS = "Offset increment outside graph capture"

Check = Callable[[], "str | None"]

# Calls of each case at the end: more than it has graphs.
_ALONE = 40


class Case:
    """A graphed function, the same for all threads or one for each, and how to judge a call.

    Args:
        name: what the report calls it.
        make: makes the call of a thread: a function that calls both and says what is wrong.
        graphs: the graphed callables behind it, which can be reset.
    """

    def __init__(
        self, name: str, make: Callable[[Stream], Check], graphs: Callable[[], list[Any]]
    ) -> None:
        self.name, self.make, self.graphs = name, make, graphs


class Stream:
    """Random arguments of one thread, on the device."""

    def __init__(self, device: str, seed: int) -> None:
        self.device = device
        self.random = random.Random(seed)
        self.seed = seed
        self._numbers = torch.Generator(device).manual_seed(seed)

    def numbers(self, *shape: int) -> torch.Tensor:
        """Normal numbers; of mixed sign, now and then all of one."""
        x = torch.randn(*shape, device=self.device, generator=self._numbers)
        way = self.random.randrange(4)
        return x.abs() if way == 0 else -x.abs() if way == 1 else x


def same(got: Any, expected: Any) -> str | None:
    """``None``, or how two results differ."""
    if isinstance(expected, (tuple, list)):
        return next(filter(None, map(same, got, expected)), None)
    if got.shape != expected.shape:
        return f"shape {tuple(got.shape)} instead of {tuple(expected.shape)}"
    if torch.allclose(got, expected, rtol=1e-3, atol=1e-3, equal_nan=True):
        return None
    return f"{got.flatten()[:4].tolist()} instead of {expected.flatten()[:4].tolist()}"


def replays(graph: Any) -> int:
    """How often the graphs of a callable were replayed so far."""
    stats = graph.stats()
    rows = stats.values() if isinstance(stats, dict) else [stats]
    return sum(row.replays for row in rows)


def of_function(
    name: str, fn: Callable[..., Any], shapes: list[tuple[int, ...]], **options: Any
) -> Case:
    """A function without state that all threads share."""
    graph = gfxgraph.graphed(fn, **options)

    def make(stream: Stream) -> Check:
        def check() -> str | None:
            x = stream.numbers(*stream.random.choice(shapes))
            kept = x.clone()
            got = graph(x)
            return same(got, fn(kept)) or same(x, kept)

        return check

    return Case(name, make, lambda: [graph])


def masked(x: torch.Tensor) -> torch.Tensor:
    """Reads data: a boolean mask."""
    return x[x > 0].sum() + x


def item(x: torch.Tensor) -> torch.Tensor:
    """Reads data: yes or no."""
    return x * 2 if (x.sum() > 0).item() else x - 1


def number(x: torch.Tensor) -> torch.Tensor:
    """Reads data: a number, another one in nearly each call."""
    return x * 2 if x.sum().item() > 0 else x - 1


def items(x: torch.Tensor) -> torch.Tensor:
    """Reads data three times; each number decides how it goes on."""
    if x.sum() > 0:
        x = x * 2
    if x[0].sum() > 1:
        x = x - 3
    return x + 1 if x.amax() > 2 else x.tanh()


def writes_after_branch(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Writes to an argument before and after it reads data."""
    total.add_(x)
    if x.sum() > 0:
        total.mul_(0.5)
    return total * 2


def adds(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Writes to an argument."""
    total.mul_(0.5).add_(x)
    return total + 1


def of_written_argument(name: str, fn: Callable[..., Any]) -> Case:
    """A function that writes to an argument, which each thread has for itself."""
    graph = gfxgraph.graphed(fn)

    def make(stream: Stream) -> Check:
        total = torch.zeros(4, 8, device=stream.device)
        twin = total.clone()

        def check() -> str | None:
            x = stream.numbers(4, 8)
            got, expected = graph(x, total), fn(x, twin)
            wrong = same(got, expected) or same(total, twin)
            total.copy_(twin)
            return wrong

        return check

    return Case(name, make, lambda: [graph])


def of_state(name: str, branches: bool) -> Case:
    """A function for each thread, with a tensor that it writes to."""
    graphs: list[Any] = []

    def function(state: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        def fn(x: torch.Tensor) -> torch.Tensor:
            state.mul_(0.5).add_(x)
            if branches and state.sum() > 0:
                state.sub_(0.25)
                return state * 2 - x
            return state + x

        return fn

    def make(stream: Stream) -> Check:
        state = torch.zeros(4, 8, device=stream.device)
        twin = state.clone()
        graph, eager = gfxgraph.graphed(function(state)), function(twin)
        graphs.append(graph)

        def check() -> str | None:
            x = stream.numbers(4, 8)
            wrong = same(graph(x), eager(x)) or same(state, twin)
            state.copy_(twin)
            return wrong

        return check

    return Case(name, make, lambda: list(graphs))


def of_generator(name: str, branches: bool) -> Case:
    """A function for each thread, with a generator of its own."""
    graphs: list[Any] = []

    def function(generator: torch.Generator) -> Callable[[torch.Tensor], torch.Tensor]:
        def fn(x: torch.Tensor) -> torch.Tensor:
            noise = torch.randn(x.shape, device=x.device, generator=generator)
            if branches and x.sum() > 0:
                return x + noise
            return x - 2 * noise

        return fn

    def make(stream: Stream) -> Check:
        mine, twin = (torch.Generator(stream.device).manual_seed(stream.seed) for _ in range(2))
        graph, eager = gfxgraph.graphed(function(mine)), function(twin)
        graphs.append(graph)

        def check() -> str | None:
            x = stream.numbers(4, 8)
            wrong = same(graph(x), eager(x))
            mine.set_state(twin.get_state())
            return wrong

        return check

    return Case(name, make, lambda: list(graphs))


def of_default_generator(name: str) -> Case:
    """Dropout: what is not dropped is doubled, and not all calls drop the same."""
    graph = gfxgraph.graphed(lambda x: nn.functional.dropout(x, 0.5))

    def make(stream: Stream) -> Check:
        def check() -> str | None:
            x = stream.numbers(16, 16)
            got = graph(x)
            kept = got != 0
            if not 40 < int(kept.sum()) < 216:
                return f"{int(kept.sum())} of 256 were kept"
            return same(got, torch.where(kept, 2 * x, 0))

        return check

    return Case(name, make, lambda: [graph])


def of_pool(name: str, device: str) -> Case:
    """A pool of buckets that all threads share."""
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
    pool = gfxgraph.ShapeBucketPool(model_fn=net, buckets=[2, 4, 8])

    def make(stream: Stream) -> Check:
        def check() -> str | None:
            x = stream.numbers(stream.random.randint(1, 9), 8)
            return same(pool(x), net(x))

        return check

    return Case(name, make, lambda: [pool])


class Scaled(nn.Module):
    """A module whose method has its own graphs in each instance."""

    def __init__(self, device: str, seed: int) -> None:
        super().__init__()
        self.factor = torch.full((8,), float(seed), device=device)

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        """The function."""
        return (x * self.factor).tanh() + x.sum()

    graphed = gfxgraph.graphed(plain)


def of_instances(name: str, device: str) -> Case:
    """Instances come and go."""

    def make(stream: Stream) -> Check:
        instance = Scaled(device, stream.seed)

        def check() -> str | None:
            nonlocal instance
            if stream.random.random() < 0.01:
                instance = Scaled(device, stream.random.randrange(100))
            x = stream.numbers(3, 8)
            return same(instance.graphed(x), instance.plain(x))

        return check

    return Case(name, make, list)


def of_conditional(name: str) -> Case:
    """Branches that the host picks, one of which reads data itself."""
    branches: dict[str, Callable[..., Any]] = {
        "double": lambda x: x * 2,
        "softmax": lambda x: x.softmax(-1),
        "item": item,
    }
    graph = gfxgraph.ConditionalGraph()
    for branch, fn in branches.items():
        graph.add_branch(branch, fn)

    def make(stream: Stream) -> Check:
        def check() -> str | None:
            x = stream.numbers(stream.random.choice((3, 5)), 8)
            which = stream.random.choice(list(branches))
            return same(graph.run(which, x), branches[which](x))

        return check

    return Case(name, make, lambda: [graph])


def cases(device: str) -> list[Case]:
    """All of them."""
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).to(device)
    shapes: list[tuple[int, ...]] = [(2, 8), (4, 8), (5, 8)]
    return [
        of_function("plain", net, shapes),
        of_function("views", lambda x: (x.t() @ x, x.amax(0)), shapes, max_graphs=2),
        of_function("mask", masked, shapes),
        of_function("item", item, shapes),
        of_function("number", number, [(4, 8)]),
        of_function("items", items, [(4, 8)]),
        of_function("bucketed", net, [(n, 8) for n in range(1, 10)], buckets=[2, 4, 8]),
        of_written_argument("in place", adds),
        of_written_argument("in place and branching", writes_after_branch),
        of_state("state", branches=False),
        of_state("state and branching", branches=True),
        of_generator("generator", branches=False),
        of_generator("generator and branching", branches=True),
        of_default_generator("default generator"),
        of_pool("pool", device),
        of_instances("instances", device),
        of_conditional("conditional"),
    ]


class Run:
    """All threads of one run, and what they found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = gfxgraph.device_type()
        wanted = options.only.split(",") if options.only else None
        self.cases = [c for c in cases(self.device) if wanted is None or c.name in wanted]
        self.calls = [0] * options.threads
        self.last = [time.monotonic()] * options.threads
        self.found: Counter[str] = Counter()
        self.by_case: Counter[str] = Counter()
        self.examples: list[str] = []
        self.resets = self.not_drawn = 0
        self.forgotten: Counter[str] = Counter()  # replays, whose counts a reset takes away
        self.afterwards: dict[str, int] = {}  # replays when no other thread was left
        self.stop = False
        self._lock = threading.Lock()
        self._deadline = time.monotonic() + (options.seconds or float("inf"))

    def work(self, number: int) -> None:
        """What one thread does."""
        stream = Stream(self.device, self.options.seed * 1000 + number)
        checks = [(case, case.make(stream)) for case in self.cases]
        share = -(-self.options.calls // self.options.threads)
        done: Counter[str] = Counter()
        if self.device == "cuda":
            torch.cuda.synchronize()  # what was made above is used on another stream
        own = torch.cuda.Stream() if self.device == "cuda" and number % 2 else None
        with torch.no_grad(), torch.cuda.stream(own) if own else contextlib.nullcontext():
            while self.calls[number] < share and not self.stop:
                case, check = stream.random.choice(checks)
                self._call(case, check)
                done[case.name] += 1
                self.calls[number] += 1
                self.last[number] = time.monotonic()
                if self.last[number] > self._deadline:
                    break
                if stream.random.random() < self.options.reset:
                    some = stream.random.choice(self.cases)
                    for graph in some.graphs():
                        with self._lock:
                            self.forgotten[some.name] += replays(graph)
                        graph.reset()
                    self.resets += 1
                if stream.random.random() < self.options.reset / 4:
                    gc.collect()
        with self._lock:
            self.by_case.update(done)

    def call_alone(self) -> None:
        """Call each case when all threads have ended: what they did keeps none from replaying."""
        stream = Stream(self.device, self.options.seed * 1000 - 1)
        for case in self.cases:
            check, before = case.make(stream), sum(map(replays, case.graphs()))
            for _ in range(_ALONE):
                self._call(case, check)
            self.afterwards[case.name] = sum(map(replays, case.graphs())) - before

    def _call(self, case: Case, check: Check) -> None:
        try:
            wrong = check()
            kind = "wrong"
        except Exception as error:
            if _NO_DRAWS in str(error):
                self.not_drawn += 1
                return
            kind, wrong = "errors", "".join(traceback.format_exception(error))
        if wrong is not None:
            with self._lock:
                self.found[kind] += 1
                self.found[f"{kind} of {case.name}"] += 1
                if len(self.examples) < 20:
                    self.examples.append(f"{case.name}: {wrong}")
                    print(self.examples[-1], file=sys.stderr, flush=True)

    def watch(self, threads: list[threading.Thread]) -> None:
        """Wait for all; if one does nothing for too long, print all stacks and exit."""
        patience = self.options.patience
        while any(thread.is_alive() for thread in threads):
            # Also when nobody can get at the interpreter any more: it is a thread of C.
            faulthandler.dump_traceback_later(2 * patience, exit=True)
            time.sleep(0.5)
            since = [
                time.monotonic() - last
                for thread, last in zip(threads, self.last, strict=True)
                if thread.is_alive()
            ]
            if max(since, default=0.0) > patience:
                faulthandler.dump_traceback(all_threads=True)
                sys.stderr.flush()
                raise SystemExit(1)
        faulthandler.cancel_dump_traceback_later()

    def report(self, seconds: float) -> dict[str, Any]:
        """What came out."""
        stats = gfxgraph.stats()
        reasons: Counter[str] = Counter()
        for reason, count in stats["fallbacks"].items():
            reasons[re.sub(r"\d[\d.e+-]*", "N", reason)[:200]] += count
        return {
            "torch": torch.__version__,
            "device": self.device,
            "threads": self.options.threads,
            "seed": self.options.seed,
            "seconds": round(seconds, 1),
            "calls": sum(self.calls),
            "wrong": self.found["wrong"],
            "errors": self.found["errors"],
            "standstills": 0,
            "not drawn during a capture": self.not_drawn,
            "resets": self.resets,
            "captures": stats["capture_count"],
            "replays": stats["replay_count"],
            "fallbacks": dict(reasons),
            "by case": {
                case.name: {
                    "calls": self.by_case[case.name],
                    "replays": sum(map(replays, case.graphs())) + self.forgotten[case.name],
                    "replays afterwards": self.afterwards[case.name],
                    "wrong": self.found[f"wrong of {case.name}"],
                    "errors": self.found[f"errors of {case.name}"],
                }
                for case in self.cases
            },
            "examples": self.examples,
        }


def inside(options: argparse.Namespace) -> int:
    """The run itself."""
    # Threads take turns often, so that races are met.
    sys.setswitchinterval(options.switch)
    torch.set_num_threads(1)
    logging.getLogger("gfxgraph").setLevel(logging.ERROR)
    run = Run(options)
    # What a first capture imports takes seconds, which are no standstill.
    gfxgraph.graphed(lambda x: x + 1)(torch.zeros(1, device=run.device))
    if run.device == "cuda":
        torch.cuda.synchronize()
    run.last = [time.monotonic()] * options.threads
    threads = [
        threading.Thread(target=run.work, args=(n,), daemon=True) for n in range(options.threads)
    ]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    run.watch(threads)
    seconds = time.monotonic() - start
    with torch.no_grad():
        run.call_alone()
    report = run.report(seconds)
    Path(options.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(bool(report["wrong"] or report["errors"]))


@contextlib.contextmanager
def place_for(path: str | None) -> Iterator[str]:
    """Where the report goes."""
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        yield f"{folder}/report.json"


def main() -> int:
    """Run in another process, which may stand still, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--calls", type=int, default=100_000, help="of all threads together")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so many; 0: do not")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reset", type=float, default=0.001, help="resets a call")
    parser.add_argument("--switch", type=float, default=1e-4, help="seconds of a thread's turn")
    parser.add_argument("--patience", type=float, default=120, help="seconds until a standstill")
    parser.add_argument("--only", help="names of cases, separated by commas")
    parser.add_argument("--json", help="where to write the report")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return inside(options)
    with place_for(options.json) as path:
        Path(path).unlink(missing_ok=True)
        command = [sys.executable, "-m", "benchmarks.runs.stress_threads", *sys.argv[1:]]
        status = subprocess.run([*command, "--json", path, "--inside"], check=False).returncode
        if Path(path).exists():
            report = json.loads(Path(path).read_text(encoding="utf-8"))
        else:
            report = {"standstills": 1, "seed": options.seed, "status of the process": status}
            Path(path).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))
    return int(status != 0 or bool(report["standstills"]))


if __name__ == "__main__":
    sys.exit(main())
