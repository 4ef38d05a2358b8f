"""Host time of a replay in several source trees, in one run on one core of one machine.

``PYTHONPATH=src python3 -m benchmarks.runs.host_time_trees NAME=SRC ... [--seconds N]`` compares
commits: ``git worktree add`` makes a tree of each, and ``SRC`` is its folder ``src``. Each tree has
a process of its own. All of them are on one core, and take turns of 60 calls, in another order each
time.

The clock of a shared machine changes within seconds, by more than the difference that is looked
for. Between two turns that follow one another it hardly does. So the ratio of two trees is the
median, over all rounds, of their ratio in one round.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.lib.report import ROOT, about, arguments, write

CALLS = 60
CORE = 5
JOBS = ("Linear", "32 inputs", "12 blocks")
OUTPUTS = ("view", "own")


def serve() -> None:
    """In the process of one tree: answer ``job:outputs`` lines with the median host time in us."""
    import gc

    import torch

    import gfxgraph
    from benchmarks.lib.models import Block, Sum32

    def inputs(count: int, *shape: int) -> list[torch.Tensor]:
        return [torch.randn(*shape, device="cuda") for _ in range(count)]

    made: dict[str, tuple[torch.nn.Module, list[torch.Tensor]]] = {
        "Linear": (torch.nn.Linear(64, 64), inputs(1, 8, 64)),
        "32 inputs": (Sum32(), inputs(32, 64)),
        "12 blocks": (torch.nn.Sequential(*[Block() for _ in range(12)]), inputs(1, 1, 16, 768)),
    }
    graphs = {}
    with torch.no_grad():
        for job, (module, xs) in made.items():
            module.cuda().eval().requires_grad_(False)
            for outputs in OUTPUTS:
                graph = gfxgraph.graphed(module, outputs=outputs, fallback="raise")
                graph(*xs), graph(*xs)
                graphs[f"{job}:{outputs}"] = graph, xs
        gc.collect()
        gc.freeze()
        gc.disable()
        print("ready", flush=True)
        for line in sys.stdin:
            graph, xs = graphs[line.strip()]
            times = []
            for _ in range(CALLS + CALLS // 2):
                start = time.perf_counter_ns()
                graph(*xs)
                times.append(time.perf_counter_ns() - start)
                torch.cuda.synchronize()
            print(statistics.median(times[CALLS // 2 :]) / 1000, flush=True)


def started(src: str) -> Any:
    """The process of a tree, ready to be asked."""
    command = ["taskset", "-c", str(CORE), sys.executable, __file__, "--serve"]
    path = os.pathsep.join([os.path.abspath(src), str(ROOT)])
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise SystemExit(f"{src}: it does not run; see above")
    return process


def main() -> None:
    """Measure, print and write."""
    parser = arguments(__doc__, "host_time_trees.json")
    parser.add_argument("trees", nargs="+", metavar="NAME=SRC")
    parser.add_argument("--seconds", type=float, default=120)
    given = parser.parse_args()
    trees = dict(tree.split("=", 1) for tree in given.trees)
    processes = {name: started(src) for name, src in trees.items()}
    rounds: dict[str, list[dict[str, float]]] = {f"{j}:{o}": [] for j in JOBS for o in OUTPUTS}
    end, turn = time.monotonic() + given.seconds, 0
    while time.monotonic() < end:
        for what, found in rounds.items():
            at = turn % len(trees)
            order = [*list(trees)[at:], *list(trees)[:at]][:: -1 if turn % 2 else 1]
            times = {}
            for name in order:
                processes[name].stdin.write(f"{what}\n")
                processes[name].stdin.flush()
                times[name] = float(processes[name].stdout.readline())
            found.append(times)
            turn += 1
    for process in processes.values():
        process.stdin.close()
    cases = {
        what: {
            name: {
                "median_us": round(statistics.median(r[name] for r in found), 2),
                "least_us": round(min(r[name] for r in found), 2),
                "ratio_to": {
                    other: round(statistics.median(r[name] / r[other] for r in found), 3)
                    for other in list(trees)[:n]
                },
            }
            for n, name in enumerate(trees)
        }
        for what, found in rounds.items()
    }
    command = f"host_time_trees {' '.join(f'{name}=...' for name in trees)}"
    head = about(f"{command} --seconds {given.seconds:g}", given.commit)
    rounds_of_each = min(map(len, rounds.values()))
    write(given.out, head | {"trees": list(trees), "rounds": rounds_of_each, "cases": cases})
    for what, rows in cases.items():
        print(what, *(f"{name} {list(row.values())}" for name, row in rows.items()), sep="\n  ")


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
