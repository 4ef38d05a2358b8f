"""Random runs of four ranks of which one may be at fault: none may hang, or be wrong.

``python tests/fuzz/ranks.py --runs 200 --seed 1``. Gloo and emulated graphs. Each run draws what
becomes of collectives, a function, a fault, the rank that is at fault, and the call in which it is.
Ranks that can go on take part in the next run; where one was killed, four new ones begin. The
program ends with 1 if a rank hung, was wrong, or ended otherwise than it should.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import signal
import sys
import tempfile
import time
import types
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import gfxgraph
from gfxgraph.device import current_device
from tests.ranks.faults import free_port, is_watched

WORLD = 4
# Seconds that a rank waits for the others, that it stalls, that Gloo waits, and until it hangs.
PATIENCE, STALL, TIMEOUT, LIMIT = 1.0, 1.5, 4.0, 60.0
FAULTS = (
    *("nothing",) * 3,
    "warm-up",
    "capture",
    "memory",
    "shape",
    "weight",
    "reset",
    "stall",
    "raises",
    "killed",
)


def added(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def added_twice(x):
    y = x * 2
    dist.all_reduce(y)
    z = y.sin()
    work = dist.all_reduce(z, async_op=True)
    y = y + 1
    work.wait()
    return y + z


def functionally(x):
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def gathered(x):
    out = x.new_empty(WORLD * x.numel())
    dist.all_gather_into_tensor(out, x * 2)
    return out.view(WORLD, -1).sum(0) + 1


def by_branch(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1 if y.flatten()[0] > 100 else y - 1


def into_its_argument(x):
    dist.all_reduce(x)
    return x * 2 + 1


FUNCTIONS = (added, added_twice, functionally, gathered, by_branch, into_its_argument)


def draw(number, seed):
    """What happens in a run, the same in all processes."""
    pick = random.Random(f"{seed}/{number}")
    return types.SimpleNamespace(
        how=pick.choice(("inside", "inside", "split")),
        function=pick.choice(FUNCTIONS),
        fault=pick.choice(FAULTS),
        rank=pick.randrange(1, WORLD),  # the first has torch's store
        call=pick.randrange(6),
        calls=pick.randrange(4, 9),
        values=[pick.randrange(40) for _ in range(9)],
    )


def take_part(rank, run):
    """One run of a rank; a sentence if it was wrong, "" if it was not."""
    is_faulty, fault = rank == run.rank, run.fault
    layer = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.eye_(layer.weight)
    flags = types.SimpleNamespace(raises=False)

    @gfxgraph.graphed(collectives=run.how)
    def f(x):
        if flags.raises:
            raise ValueError("once")
        if is_faulty and fault == "warm-up" and is_watched():
            raise ValueError("not in a warm-up")
        if is_faulty and fault in ("capture", "memory") and current_device().is_capturing():
            kind = ValueError if fault == "capture" else torch.OutOfMemoryError
            raise kind("not in a capture")
        y = layer(x) if fault == "weight" else x
        if is_faulty and fault == "shape" and run.function is not gathered:
            return run.function(y.view(2, 2)).view(-1)
        return run.function(y)

    for call in range(run.calls):
        x = torch.arange(4.0) + run.values[call]
        alone = torch.stack([(x + 10 * r) for r in range(WORLD)]).sum(0)
        now = is_faulty and call == run.call
        if now and fault == "weight":
            layer.weight = torch.nn.Parameter(torch.eye(4))
        elif now and fault == "reset":
            f.reset()
        elif now and fault == "stall":
            time.sleep(STALL)
        elif now and fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif now and fault == "raises":
            flags.raises = True
            with contextlib.suppress(ValueError):
                f(x + 10 * rank)
            flags.raises = False
        result = f(x + 10 * rank)
        expected = expected_of(run.function, alone)
        if not torch.allclose(result, expected):
            return f"call {call} gave {result.tolist()}, not {expected.tolist()}"
    return ""


def expected_of(function, total):
    if function is added_twice:
        return total * 2 + 1 + WORLD * (total * 2).sin()
    if function is by_branch:
        return total * 2 + (1 if total[0] * 2 > 100 else -1)
    return total * 2 + 1


def rank_of_a_set(rank, port, first, last, seed, folder):
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=TIMEOUT),
    )
    log = Path(folder, f"{rank}.jsonl")
    for number in range(first, last):
        run = draw(number, seed)
        began = time.monotonic()
        try:
            wrong = take_part(rank, run)
        except RuntimeError as error:
            wrong = "" if run.fault == "killed" else f"raised {error}"
        seconds = round(time.monotonic() - began, 2)
        with log.open("a") as file:
            print(json.dumps([number, wrong, seconds]), file=file)
        if wrong or (run.fault == "killed" and run.call < run.calls):
            return


def run_set(first, count, seed, folder):
    """Runs of four ranks from ``first`` on; how many came to an end, and what went wrong."""
    last = first
    while last < count:
        run = draw(last, seed)
        last += 1
        if run.fault == "killed" and run.call < run.calls:
            break
    port, children = free_port(), []
    for rank in range(WORLD):
        child = os.fork()
        if not child:
            status = 1
            try:
                rank_of_a_set(rank, port, first, last, seed, folder)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    ended, until = {}, time.monotonic() + LIMIT + 20.0 * (last - first)
    while len(ended) < WORLD and time.monotonic() < until:
        for rank, child in enumerate(children):
            if rank not in ended:
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    ended[rank] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    wrong = []
    for rank, child in enumerate(children):
        if rank not in ended:
            wrong.append(f"rank {rank} hangs in run {seen(folder, rank, first)}")
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    run = draw(last - 1, seed)
    for rank, status in ended.items():
        is_killed = run.fault == "killed" and rank == run.rank
        if status and not (is_killed and status == -signal.SIGKILL):
            wrong.append(f"rank {rank} ended with {status} in run {seen(folder, rank, first)}")
    return last, wrong


def seen(folder, rank, first):
    path = Path(folder, f"{rank}.jsonl")
    lines = path.read_text().splitlines() if path.exists() else []
    return max([first, *(json.loads(line)[0] + 1 for line in lines)])


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    os.environ["GFXGRAPH_RANKS_TIMEOUT"] = str(PATIENCE)
    os.environ.setdefault("HGB_LOG_LEVEL", "error")
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    gfxgraph.graphed(torch.sin)(torch.ones(2))  # loads once what each child would load
    wrong, began, longest, first = [], time.monotonic(), 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        while first < options.runs:
            first, new = run_set(first, options.runs, options.seed, folder)
            wrong += new
        for rank in range(WORLD):
            for line in Path(folder, f"{rank}.jsonl").read_text().splitlines():
                number, how, seconds = json.loads(line)
                longest = max(longest, seconds)
                if how:
                    run = draw(number, options.seed)
                    what = f"{run.how}, {run.function.__name__}, {run.fault} of rank {run.rank}"
                    wrong.append(f"run {number} ({what}), rank {rank}: {how}")
    for sentence in wrong:
        print(sentence)
    seconds = time.monotonic() - began
    hangs = sum("hangs" in sentence for sentence in wrong)
    print(f"{options.runs} runs, {hangs} hangs, {len(wrong)} findings, longest run {longest} s")
    print(f"seed {options.seed}, {seconds:.0f} s")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
