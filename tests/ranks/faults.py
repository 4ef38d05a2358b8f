"""What each of four ranks does in ``test_faults.py``, and the program that starts them.

In each case one rank is at fault. A case takes the rank, the number of ranks, and what becomes of
collectives; it returns what the test looks at.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import socket
import sys
import time
import traceback
import types
from pathlib import Path

import torch
import torch.distributed as dist

import gfxgraph
from gfxgraph.device import current_device
from gfxgraph.device.emulated import current_capture
from gfxgraph.record.collectives import number_sent

FAULTY = 2
PATIENCE = 2.0
# Of Gloo: how long eager execution waits for a rank that is gone.
_TIMEOUT = 5.0
CASES = {}


def case(fn):
    CASES[fn.__name__] = fn
    return fn


def rows(rank, size=4):
    """Other values in each rank."""
    return torch.arange(float(size)) + 10 * rank


def total(world, size=4):
    return sum(rows(rank, size) for rank in range(world))


def summed(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def ran(fn, rank, expected, before=lambda call: None, given=rows, calls=5):
    """Call ``fn`` some times; what came out."""
    results = []
    for call in range(calls):
        before(call)
        results.append(fn(given(rank)))
    return told(fn, [torch.equal(result, expected) for result in results])


def told(fn, right):
    stats = fn.stats()
    return {
        "right": right,
        "replays": stats.replays,
        "fallbacks": list(stats.fallbacks),
        "cut": [len(row.report) for row in stats.graphs],
    }


def is_watched():
    return bool(torch.utils._python_dispatch._get_current_dispatch_mode_stack())


@case
def nothing(rank, world, how):
    return ran(gfxgraph.graphed(summed, collectives=how), rank, total(world) * 2 + 1)


def _raises_where(rank, world, how, is_there, error):
    @gfxgraph.graphed(collectives=how)
    def f(x):
        if rank == FAULTY and is_there():
            raise error
        return summed(x)

    return ran(f, rank, total(world) * 2 + 1)


@case
def raises_in_warm_up(rank, world, how):
    error = ValueError("not in a warm-up")
    return _raises_where(
        rank, world, how, lambda: is_watched() and not current_device().is_capturing(), error
    )


@case
def raises_in_capture(rank, world, how):
    error = ValueError("not in a capture")
    return _raises_where(rank, world, how, lambda: current_device().is_capturing(), error)


@contextlib.contextmanager
def as_on_a_gpu():
    """A run that is recorded hears that it captures, and what goes into a graph counts as sent."""
    device, group, counted = type(current_device()), dist.ProcessGroup, []
    is_emulated_capture, hold = device.is_capturing, device.hold_call
    number = group._get_sequence_number_for_group

    def is_capturing(self):
        try:
            return torch.cuda.is_current_stream_capturing() is True
        except RuntimeError:  # a build without CUDA has no such function, until one is put there
            return False

    def hold_call(self, *args):
        counted.append(args)
        return hold(self, *args)

    def counts(self):
        return number(self) + len(counted) * (self is dist.group.WORLD)

    group._get_sequence_number_for_group = counts  # for good: no count goes back
    device.is_capturing, device.hold_call = is_capturing, hold_call
    try:
        yield
    finally:
        device.is_capturing, device.hold_call = is_emulated_capture, hold


@case
def raises_as_on_a_gpu(rank, world, how):
    """In the recorded run, and in the capture alone; then nobody does."""
    with as_on_a_gpu():
        since = number_sent(dist.group.WORLD)
        wheres = (current_device().is_capturing, lambda: current_capture() is not None)
        error = ValueError("not in a capture")
        found = [_raises_where(rank, world, how, where, error) for where in wheres]
        found.append(nothing(rank, world, how))
    sent = number_sent(dist.group.WORLD) - since
    return {"each": found, "right": [all(each["right"]) for each in found], "sent": sent}


@case
def out_of_memory(rank, world, how):
    error = torch.OutOfMemoryError("out of memory")
    return _raises_where(rank, world, how, lambda: current_device().is_capturing(), error)


@case
def has_another_shape(rank, world, how):
    @gfxgraph.graphed(collectives=how)
    def f(x):
        y = x.sum()
        dist.all_reduce(y)
        return y

    sizes, right = iter((4, 4, 7, 7, 4, 4, 5)), []
    for size in sizes:
        x = torch.ones(size if rank == FAULTY else 4)
        right.append(f(x).item() == 4.0 * (world - 1) + size)
    return told(f, right)


@case
def sends_another_shape(rank, world, how):
    """What the ranks send has the same number of elements, so that eager execution is right."""

    @gfxgraph.graphed(collectives=how)
    def f(x):
        y = (x * 2).view(2, 2) if rank == FAULTY else x * 2
        dist.all_reduce(y)
        return y.view(-1) + 1

    return ran(f, rank, total(world) * 2 + 1)


@case
def sends_another_shape_later(rank, world, how):
    """All have a graph with the collective for one kind of calls, when it shows in another."""

    @gfxgraph.graphed(collectives=how)
    def f(x):
        y = (x * 2).view(2, -1) if rank == FAULTY and x.numel() > 4 else x * 2
        dist.all_reduce(y)
        return y.view(-1) + 1

    sizes = (4, 4, 8, 8, 8, 4, 4, 4)
    right = [torch.equal(f(rows(rank, size)), total(world, size) * 2 + 1) for size in sizes]
    return told(f, right)


@case
def takes_another_branch(rank, world, how):
    @gfxgraph.graphed(collectives=how)
    def f(x):
        y = x * 2 if x.sum() > 100 else x + x
        dist.all_reduce(y)
        return y + 1

    return ran(f, rank, total(world) * 2 + 1)


@case
def rebinds_a_weight(rank, world, how):
    layer = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.eye_(layer.weight)

    @gfxgraph.graphed(collectives=how)
    def f(x):
        return summed(layer(x))

    def before(call):
        if call == 3 and rank == FAULTY:
            layer.weight = torch.nn.Parameter(torch.eye(4))

    return ran(f, rank, total(world) * 2 + 1, before, calls=8)


@case
def resets(rank, world, how):
    f = gfxgraph.graphed(summed, collectives=how)

    def before(call):
        if call == 3 and rank == FAULTY:
            f.reset()

    return ran(f, rank, total(world) * 2 + 1, before)


@case
def of_a_mesh(rank, world, how):
    """Rows and columns of two ranks each; nobody is at fault."""
    rows_of = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]

    def sums(x):
        y = x * 2
        dist.all_reduce(y, group=rows_of[rank // 2])
        dist.all_reduce(y, group=columns[rank % 2])
        return y + 1

    given = {"group": dist.group.WORLD} if how == "inside" else {}
    named = ran(gfxgraph.graphed(sums, collectives=how, **given), rank, total(world) * 2 + 1)
    found = ran(gfxgraph.graphed(sums, collectives=how), rank, total(world) * 2 + 1)
    return named | {"not_named": found}


@case
def of_groups_that_differ(rank, world, how):
    """One pair of ranks has sent more than the other, and sends where the other does not."""
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    for _ in range(3 if rank < 2 else 1):
        dist.all_reduce(torch.ones(1), group=pairs[rank // 2])

    def of_each_pair(x):
        y = x * 2
        dist.all_reduce(y, group=pairs[rank // 2])
        return y + 1

    def of_one_pair(x):
        return of_each_pair(x) if rank < 2 else x * 2 + 1

    given = {"group": dist.group.WORLD} if how == "inside" else {}
    of_pair = sum(rows(other) for other in range(world) if other // 2 == rank // 2) * 2 + 1
    expected = of_pair if rank < 2 else rows(rank) * 2 + 1
    both = ran(gfxgraph.graphed(of_each_pair, collectives=how, **given), rank, of_pair)
    return both | {
        "one": ran(gfxgraph.graphed(of_one_pair, collectives=how, **given), rank, expected)
    }


@case
def of_groups_that_are_gone(rank, world, how):
    """Gloo still sends in a group that was destroyed."""
    gone = dist.new_group(list(range(world)))
    dist.barrier()
    dist.destroy_process_group(gone)

    def sums(x):
        y = x * 2
        dist.all_reduce(y, group=gone)
        return y + 1

    def makes_a_group(x):
        group = dist.new_group(list(range(world)))
        y = x * 2
        dist.all_reduce(y, group=group)
        dist.destroy_process_group(group)
        return y + 1

    given = {"group": gone} if how == "inside" else {}
    each = [
        ran(gfxgraph.graphed(fn, collectives=how, **options), rank, total(world) * 2 + 1, calls=3)
        for fn, options in ((summed, given), (sums, {}), (sums, given), (makes_a_group, {}))
    ]
    return {"right": [right for of_one in each for right in of_one["right"]], "each": each}


@case
def raises_in_a_call(rank, world, how):
    """Before it sends anything, and this rank tries again."""
    flags = types.SimpleNamespace(raises=False)

    @gfxgraph.graphed(collectives=how)
    def f(x):
        if flags.raises:
            raise ValueError("once")
        return summed(x)

    right = [torch.equal(f(rows(rank)), total(world) * 2 + 1) for _ in range(3)]
    for call in range(4):
        flags.raises = call == 1 and rank == FAULTY
        with contextlib.suppress(ValueError):
            result = f(rows(rank, 8))
        if flags.raises:
            flags.raises = False
            result = f(rows(rank, 8))
        right.append(torch.equal(result, total(world, 8) * 2 + 1))
    return told(f, right)


@case
def stalls(rank, world, how):
    f = gfxgraph.graphed(summed, collectives=how)

    def before(call):
        if call == 3 and rank == FAULTY:
            time.sleep(PATIENCE * 1.5)

    return ran(f, rank, total(world) * 2 + 1, before, calls=6)


@case
def is_killed(rank, world, how):
    """The last one. The others have their result, or the error of eager execution."""
    group = dist.new_group([r for r in range(world) if r != FAULTY])
    f = gfxgraph.graphed(summed, collectives=how)
    right, errors = [], []
    for call in range(4):
        if call == 2 and rank == FAULTY:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            right.append(torch.equal(f(rows(rank)), total(world) * 2 + 1))
        except RuntimeError as error:
            errors.append([str(error), *getattr(error, "__notes__", ())])

    @gfxgraph.graphed(collectives=how)
    def without(x):
        y = x * 2
        dist.all_reduce(y, group=group)
        return y + 1

    expected = (total(world) - rows(FAULTY)) * 2 + 1
    again = ran(without, rank, expected)
    return told(f, right) | {"errors": errors, "again": again}


def main(rank, world, how, folder, port, names):
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=_TIMEOUT),
    )
    found = {}
    for name in names:
        began = time.monotonic()
        try:
            found[name] = CASES[name](rank, world, how)
        except Exception:
            found[name] = {"error": traceback.format_exc()}
            print(name, found[name]["error"], flush=True)
        if not rank:
            print(name, f"{time.monotonic() - began:.1f} s", flush=True)
        Path(folder, f"{rank}.json").write_text(json.dumps(found))


def start(world, body):
    """Run ``body`` with each rank, in processes of their own.

    Returns:
        What each ended with; of one that was killed, the signal as a negative number.
    """
    children = []
    for rank in range(world):
        child = os.fork()
        if not child:
            status = 1
            try:
                body(rank)
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)  # a group of which a rank is gone cannot be shut down
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    os.environ["GFXGRAPH_RANKS_TIMEOUT"] = str(PATIENCE)
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    gfxgraph.graphed(torch.sin)(torch.ones(2))  # loads once what each child would load
    how, folder, *names = sys.argv[1:]
    port = free_port()
    start(4, lambda rank: main(rank, 4, how, folder, port, names or list(CASES)))
