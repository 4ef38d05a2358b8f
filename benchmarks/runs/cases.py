"""What a capture does with code as people write it, against what ``gfxgraph.check`` says of it.

``PYTHONPATH=src python3 -m benchmarks.runs.cases --out cases.json`` on a GPU runs each case of
``tests/cases/capture_cases.py`` with plain ``torch.cuda.graph``, without anything of gfxgraph, in
processes of its own: once with no run before the capture, and once after three runs on a side
stream. A graph is replayed twice with other inputs, and what it gives is compared with eager:
results, arguments that were written, printed text, and Python state. A difference counts as
``wrong``: the capture passed silently.

``PYTHONPATH=src python3 -m benchmarks.runs.cases --check cases.json`` on any machine asks
``gfxgraph.check`` about each case and compares. The exit status is 1 where they do not agree. The
table goes to standard output, in Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import sys
import time
import types
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree

from benchmarks.lib import by_hand
from benchmarks.lib.processes import fresh_processes, one_line, start_context
from benchmarks.lib.report import write
from tests.cases.capture_cases import CASES

WARM_UP = 3
CASE_S = 60.0


def results_of(value: Any) -> list[Any]:
    """Tensors as copies on the host, numbers as they are, what an object holds."""
    if isinstance(value, types.SimpleNamespace):
        value = vars(value)
    found = pytree.tree_leaves(value)
    return [v.detach().cpu().clone() if isinstance(v, torch.Tensor) else v for v in found]


def differ(got: list[Any], expected: list[Any]) -> str | None:
    """What is different; ``None`` if nothing is."""
    if len(got) != len(expected):
        return f"{len(got)} values, expected {len(expected)}"
    for a, b in zip(got, expected, strict=True):
        if isinstance(b, torch.Tensor):
            if a.shape != b.shape or not torch.allclose(
                a.float(), b.float(), rtol=1e-3, atol=1e-4, equal_nan=True
            ):
                return "other values"
        elif a != b:
            return f"{a!r:.40}, expected {b!r:.40}"
    return None


def give(arguments: tuple[Any, ...], others: tuple[Any, ...]) -> None:
    """Write the tensors of ``others`` into those of ``arguments``."""
    for mine, other in zip(arguments, others, strict=True):
        if isinstance(mine, torch.Tensor):
            mine.copy_(other)


def fresh_case(name: str) -> tuple[Any, ...]:
    """The function, its inputs and perhaps its state; the same each time."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return CASES[name].build("cuda")


def seed_device(seed: int) -> None:
    """For a call and its replay to draw the same numbers."""
    torch.cuda.manual_seed(seed)
    torch.cuda.synchronize()


def observed(call: Callable[[], Any], arguments: tuple[Any, ...]) -> list[Any]:
    """What a caller sees of a call: results, arguments, printed text."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result = call()
        torch.cuda.synchronize()
    return [*results_of(result), *results_of(arguments), printed.getvalue()]


def warm_up(fn: Any, arguments: tuple[Any, ...], runs: int) -> None:
    """As torch's documentation does it: on a side stream."""
    with contextlib.redirect_stdout(io.StringIO()):
        by_hand.warm_up(fn, arguments, runs)
    torch.cuda.synchronize()


def captured(name: str, runs: int) -> dict[str, Any]:
    """What plain ``torch.cuda.graph`` does with a case after ``runs`` eager runs."""
    fn, arguments_of, *state = fresh_case(name)
    arguments = arguments_of(0)
    torch.cuda.synchronize()
    try:
        warm_up(fn, arguments, runs)
    except Exception as error:
        return {"outcome": "eager raises", "error": one_line(error)}
    graph = torch.cuda.CUDAGraph()
    try:
        with contextlib.redirect_stdout(io.StringIO()), torch.cuda.graph(graph):
            out = fn(*arguments)
    except Exception as error:
        cause = error.__context__
        return {
            "outcome": "fails",
            "error": one_line(error),
            "first": one_line(cause) if cause is not None else "",
        }
    got = []
    for seed in (1, 2):
        give(arguments, arguments_of(seed))
        seed_device(seed)

        def replay() -> Any:
            graph.replay()
            return out

        got.append(observed(replay, arguments))
    left = [s() for s in state]

    # The same calls, eagerly, on an object of its own.
    fn, arguments_of, *state = fresh_case(name)
    arguments = arguments_of(0)
    warm_up(fn, arguments, runs)
    for seed, mine in zip((1, 2), got, strict=True):
        give(arguments, arguments_of(seed))
        seed_device(seed)
        different = differ(mine, observed(lambda: fn(*arguments), arguments))
        if different:
            return {"outcome": "wrong", "error": f"replay {seed}: {different}"}
    if left != [s() for s in state]:
        return {
            "outcome": "wrong",
            "error": f"Python state {left}, expected {[s() for s in state]}",
        }
    return {"outcome": "captures"}


def gpu_case(connection: Connection, name: str, runs: int) -> None:
    """One case in this process, which has done nothing before."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with torch.no_grad():
            found = captured(name, runs)
    except BaseException as error:
        found = {"outcome": "cannot be measured", "error": one_line(error)}
    connection.send(found)
    os._exit(0)


def facts(connection: Connection) -> None:
    """What the machine is."""
    connection.send(
        {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "runtime": torch.version.cuda or torch.version.hip,
            "python": sys.version.split()[0],
            "date": time.strftime("%Y-%m-%d"),
        }
    )
    os._exit(0)


def run_on_gpu(out: Path, names: list[str], workers: int, method: str, limit: float) -> int:
    """Measure the cases and write ``out``; what is not reached in ``limit`` seconds says so."""
    start = time.monotonic()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    context = start_context(method)
    ((_, about),) = fresh_processes(context, facts, [()], 1, 120)
    if isinstance(about, str):
        print(f"nothing can be measured here: {about}", file=sys.stderr)
        return 1
    nothing = {"outcome": "not reached", "error": ""}
    cases: dict[str, dict[str, Any]] = {n: {"cold": nothing, "warm": nothing} for n in names}
    items = [(name, runs) for runs in (WARM_UP, 0) for name in names]
    # What takes long begins first.
    items.sort(key=lambda i: i[0] != "compiled_inside")
    for (name, runs), answer in fresh_processes(context, gpu_case, items, workers, CASE_S):
        found = {"outcome": answer, "error": ""} if isinstance(answer, str) else answer
        cases[name]["warm" if runs else "cold"] = found
        # Written each time: whatever happens, what was measured is there.
        seconds = round(time.monotonic() - start, 1)
        write(out, {"about": about, "seconds": seconds, "cases": cases})
        if seconds > limit:
            break
    for when in ("warm", "cold"):
        counts = Counter(c[when]["outcome"] for c in cases.values())
        print(f"{when}: " + ", ".join(f"{n} {what}" for what, n in counts.most_common()))
    print(f"{time.monotonic() - start:.0f} s")
    return 0


def check_against(path: Path, names: list[str]) -> int:
    """Print the page; 1 if a verdict or a line is not as measured."""
    from benchmarks.tables.cases import page

    text, disagree = page(json.loads(path.read_text(encoding="utf-8")), names)
    print(text, end="")
    return int(disagree)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="measure on the GPU and write this")
    parser.add_argument("--check", type=Path, help="compare gfxgraph.check with this")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=140, help="for all cases on the GPU")
    parser.add_argument("--only", default="", help="regular expression for cases")
    parser.add_argument("--start-method", choices=("forkserver", "spawn"), default="forkserver")
    options = parser.parse_args()
    names = [name for name in CASES if re.search(options.only, name)]
    if options.out:
        return run_on_gpu(
            options.out, names, options.workers, options.start_method, options.seconds
        )
    if options.check:
        return check_against(options.check, names)
    parser.error("one of --out and --check")


if __name__ == "__main__":
    sys.exit(main())
