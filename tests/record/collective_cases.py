"""What each rank does in ``test_collectives.py``, and the program that a rank runs.

A case takes the rank, the world size and the device, and returns what the test looks at. All ranks
run the same cases in the same order; in many of them they do not do the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import faulthandler
import json
import sys
import threading
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import all_reduce as bound_early

import gfxgraph
from gfxgraph.device import current_device
from gfxgraph.errors import CaptureError
from gfxgraph.record.collectives import number_sent

CASES = {}


def case(fn):
    CASES[fn.__name__] = fn
    return fn


def rows(rank, device, size=4):
    """Other values in each rank."""
    return torch.arange(float(size), device=device) + 10 * rank


def total(world, device, size=4):
    """The sum of ``rows`` of all ranks."""
    return sum(rows(rank, device, size) for rank in range(world))


def issued():
    """Collectives that this rank has issued in the default group."""
    return dist.group.WORLD._get_sequence_number_for_group()


def outcome(fn, results, expected, since=None):
    stats = fn.stats()
    return {
        "right": [bool(torch.equal(a, b)) for a, b in zip(results, expected, strict=True)],
        "captures": stats.captures,
        "replays": stats.replays,
        "refused": list(stats.refused.values()),
        "fallbacks": list(stats.fallbacks),
        "issued": None if since is None else issued() - since,
    }


def summed(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


@case
def all_ranks_do_the_same(rank, world, device):
    f, since = gfxgraph.graphed(summed), issued()
    results = [f(rows(rank, device)) for _ in range(4)]
    return outcome(f, results, [total(world, device) * 2 + 1] * 4, since)


@case
def held_in_graphs(rank, world, device):
    """Nobody sends anything but the calls, also where the recorded run hears that it captures."""
    f, since = gfxgraph.graphed(summed, collectives="inside"), number_sent(dist.group.WORLD)
    results = [f(rows(rank, device) + n) for n in range(4)]
    sent = number_sent(dist.group.WORLD) - since
    expected = [(total(world, device) + world * n) * 2 + 1 for n in range(4)]
    return outcome(f, results, expected) | {"sent": sent}


@case
def refused_where_that_was_asked_for(rank, world, device):
    f, since = gfxgraph.graphed(summed, collectives="refuse"), issued()
    results = [f(rows(rank, device)) for _ in range(4)]
    return outcome(f, results, [total(world, device) * 2 + 1] * 4, since)


def raise_where_it_captures(x):
    """No graph can hold this."""
    stack = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    if stack or current_device().is_capturing():
        raise RuntimeError("not in a graph")


@case
def one_rank_cannot_capture(rank, world, device):
    @gfxgraph.graphed
    def f(x):
        if rank == 1:
            raise_where_it_captures(x)
        return summed(x)

    since = issued()
    results = [f(rows(rank, device)) for _ in range(5)]
    return outcome(f, results, [total(world, device) * 2 + 1] * 5, since)


@case
def one_rank_has_another_shape(rank, world, device):
    @gfxgraph.graphed
    def f(x):
        y = x.sum()
        dist.all_reduce(y)
        return y

    since, results, expected = issued(), [], []
    for n in range(4):
        size = 4 if rank != 1 else 4 + n  # a new key in each call
        x = torch.ones(size, device=device)
        results.append(f(x))
        expected.append(torch.tensor(float(4 * (world - 1) + 4 + n), device=device))
    return outcome(f, results, expected, since)


@case
def one_rank_resets(rank, world, device):
    f, since, results = gfxgraph.graphed(summed), issued(), []
    for n in range(5):
        if rank == 1 and n == 2:
            f.reset()
        results.append(f(rows(rank, device)))
    return outcome(f, results, [total(world, device) * 2 + 1] * 5, since)


@case
def one_rank_does_not_use_us(rank, world, device):
    f, since = gfxgraph.graphed(summed), issued()
    results = [(f if rank == 0 else summed)(rows(rank, device)) for _ in range(4)]
    return outcome(f, results, [total(world, device) * 2 + 1] * 4, since)


def _kinds(rank, world, device):
    """Functions that issue something, and what comes out of ``rows``."""
    group = dist.group.WORLD
    left, right = (rank - 1) % world, (rank + 1) % world

    def early(x):
        y = x + 0
        bound_early(y)
        return y

    def waits(x):
        y = x + 0
        dist.all_reduce(y, async_op=True).wait()
        return y

    def waits_later(x):
        y, z = x + 0, x + 1
        works = [dist.all_reduce(t, async_op=True) for t in (y, z)]
        w = x * 3  # meanwhile
        for work in reversed(works):
            work.wait()
        return y + z - w + x * 3

    def into_its_argument(x):
        dist.all_reduce(x)
        return x + 1

    def is_asked_for(x):
        y = x + 0
        dist.all_reduce(y)
        return y + 1 if y.sum() > 0 else y - 1

    def asks_its_work(x):
        y = x + 0
        work = dist.all_reduce(y, async_op=True)
        work.wait()
        while not work.is_completed():  # NCCL's is not yet, where the host is faster
            pass
        return y * int(work.is_completed())

    undone = []

    def leaves_it_undone(x):
        y = x + 0
        undone.append(dist.all_reduce(y, async_op=True))
        return x + 1

    def functional_sum(x):
        return functional.all_reduce(x, "sum", group) + 0

    def operator(x):
        op = torch.ops._c10d_functional
        return op.wait_tensor(op.all_reduce(x, "sum", group.group_name)) + 0

    def gathers(x):
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x)
        return torch.stack(parts).sum(0)

    def gathers_objects(x):
        parts = [None] * world
        dist.all_gather_object(parts, rank)
        return x * 0 + sum(parts)

    def into_one(x):
        out = x.new_empty(world * 4)
        dist.all_gather_into_tensor(out, x)
        return out.view(world, 4).sum(0)

    def from_first(x):
        y = x + 0
        dist.broadcast(y, 0)
        return y

    def barrier(x):
        dist.barrier()
        return x + 1

    def to_the_right(x):
        y = torch.empty_like(x)
        ops = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return y

    def one_by_one(x):
        y = x + 0
        if rank == 0:
            dist.send(y, 1)
        elif rank == 1:
            dist.recv(y, 0)
        return y

    def together(x):
        y, z = x + 0, x + 1
        on_gpu = None if device == "cpu" else torch.device(device)
        with dist._coalescing_manager(device=on_gpu):
            dist.all_reduce(y)
            dist.all_reduce(z)
        return y + z

    sums = total(world, device)
    return {
        "early": (early, sums),
        "waits": (waits, sums),
        "waits_later": (waits_later, 2 * sums + world),
        "into_its_argument": (into_its_argument, sums + 1),
        "is_asked_for": (is_asked_for, sums + 1),
        "asks_its_work": (asks_its_work, sums),
        "leaves_it_undone": (leaves_it_undone, rows(rank, device) + 1),
        "functional_sum": (functional_sum, sums),
        "operator": (operator, sums),
        "gathers": (gathers, sums),
        "gathers_objects": (gathers_objects, torch.full_like(sums, sum(range(world)))),
        "into_one": (into_one, sums),
        "from_first": (from_first, rows(0, device)),
        "barrier": (barrier, rows(rank, device) + 1),
        "to_the_right": (to_the_right, rows(left, device)),
        "one_by_one": (one_by_one, rows(0 if rank == 1 else rank, device)),
        "together": (together, 2 * sums + world),
    }


def _issued_kinds(rank, world, device, which):
    found = {}
    for name, (fn, expected) in _kinds(rank, world, device).items():
        if which(name):
            f = gfxgraph.graphed(fn)
            results = [f(rows(rank, device)) for _ in range(3)]
            found[name] = outcome(f, results, [expected] * 3)
    return found


_WHOLE = ("gathers_objects", "asks_its_work", "leaves_it_undone")


@case
def whatever_is_issued(rank, world, device):
    return _issued_kinds(rank, world, device, lambda name: name not in _WHOLE)


@case
def what_stays_whole(rank, world, device):
    return _issued_kinds(rank, world, device, lambda name: name in _WHOLE)


@case
def a_tensor_that_is_spread(rank, world, device):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = init_device_mesh(torch.device(device).type, (world,))

    def f(x):
        spread = DTensor.from_local(x, mesh, [Shard(0)])
        return spread.redistribute(mesh, [Replicate()]).to_local() * 2

    expected = torch.cat([rows(r, device) for r in range(world)]) * 2
    graphed = gfxgraph.graphed(f)
    return outcome(graphed, [graphed(rows(rank, device)) for _ in range(3)], [expected] * 3)


@case
def a_sharded_model(rank, world, device):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def make():
        torch.manual_seed(0)
        return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(2))).to(device)

    plain, model = make(), make()
    for layer in model:
        fully_shard(layer, mesh=init_device_mesh(torch.device(device).type, (world,)))
    fully_shard(model, mesh=init_device_mesh(torch.device(device).type, (world,)))
    x = rows(rank, device)[None]
    graphed = gfxgraph.graphed(model)
    with torch.no_grad():
        results = [graphed(x) for _ in range(3)]
        found = outcome(graphed, results, results)
        found["right"] = [bool(torch.allclose(y, plain(x))) for y in results]
    return found


@case
def buffers_sent_from_code_in_cpp(rank, world, device):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.register_buffer("shift", torch.full((4,), float(rank)))

        def forward(self, x):
            return x * 2 + self.shift

    ids = [rank] if device != "cpu" else None
    model = torch.nn.parallel.DistributedDataParallel(Model().to(device), device_ids=ids)

    @gfxgraph.graphed
    def f(x):
        model.require_forward_param_sync = True  # as in training; else only the first call sends
        return model(x)

    results = []
    with torch.no_grad():
        model.module.shift.fill_(rank + 1.0)  # the forward sends that of the first rank
        since = issued()
        for _ in range(3):
            results.append(f(rows(rank, device)))
    return outcome(f, results, [rows(rank, device) * 2 + 1] * 3, since)


@case
def only_one_path_issues(rank, world, device):
    @gfxgraph.graphed
    def f(x):
        y = x * 2
        if x.sum() > 0:
            dist.all_reduce(y)
        return y

    since, results, expected = issued(), [], []
    for sign in (-1, -1, 1, 1, -1, 1):
        if rank == 1 and sign < 0:  # this rank takes the quiet path more often
            f(-rows(rank, device) - 1)
        x = sign * (rows(rank, device) + 1)
        results.append(f(x))
        expected.append(x * 2 if sign < 0 else (total(world, device) + world) * 2)
    return outcome(f, results, expected, since)


@case
def a_new_path_after_a_collective(rank, world, device):
    """A replay that cannot go on has sent something, and the eager run after it does not again."""

    @gfxgraph.graphed
    def f(x):
        y = x * 2
        dist.all_reduce(y)
        z = functional.all_reduce(y + 1, "sum", dist.group.WORLD)
        if z.sum() > 1000:
            z = z - 1
        dist.all_reduce(z)
        return y + z

    since, results, expected = issued(), [], []
    for factor in (1, 1, 1000, 1000, 1):
        x = rows(rank, device) * factor
        y = total(world, device) * 2 * factor
        z = (y + 1) * world
        results.append(f(x))
        expected.append(y + (z - 1 if z.sum() > 1000 else z) * world)
    return outcome(f, results, expected, since)


@case
def a_count_that_nobody_sees(rank, world, device):
    """Issues in every third call, by a number in memory of C."""
    count = ctypes.c_int(0)

    @gfxgraph.graphed
    def f(x):
        count.value += 1
        y = x * 2
        if count.value % 3 == 0:
            dist.all_reduce(y)
        return y

    since = issued()
    f(rows(rank, device))  # the warm-up runs of this rank come to three
    return {
        "issued": issued() - since,
        "captures": f.stats().captures,
        "refused": list(f.stats().refused.values()),
    }


@case
def an_error_that_is_caught(rank, world, device):
    @gfxgraph.graphed
    def f(x):
        y = x * 2
        try:
            dist.all_reduce(y)
        except RuntimeError:
            y = y * 0
        return y

    conditional = gfxgraph.ConditionalGraph().add_branch("f", f.__wrapped__)
    if rank == 0:
        conditional.capture(rows(rank, device))
    results = [conditional.run("f", rows(rank, device)) for _ in range(2)]
    return {
        "right": [bool(torch.equal(y, total(world, device) * 2)) for y in results],
        "failed": conditional.failed_branches,
    }


@case
def a_pool(rank, world, device):
    def f(x):
        y = x * 2
        dist.all_reduce(y)
        return y

    pool = gfxgraph.ShapeBucketPool(f, [4, 8])
    since = issued()
    if rank == 0:  # the others do not
        pool.capture(torch.ones(3, 2, device=device))
    results = [pool(torch.ones(3, 2, device=device)) for _ in range(3)]
    expected = torch.full((3, 2), 2.0 * world, device=device)
    return outcome(pool, results, [expected] * 3, since)


@case
def branches_by_name(rank, world, device):
    graph = gfxgraph.ConditionalGraph().add_branch("sum", summed).add_branch("own", torch.sin)
    since = issued()
    if rank == 0:
        graph.capture(rows(rank, device))
    results = [graph.run("sum", rows(rank, device)) for _ in range(3)]
    return {
        "right": [bool(torch.equal(y, total(world, device) * 2 + 1)) for y in results],
        "failed": graph.failed_branches,
        "issued": issued() - since,
        "others": len(graph.stats()["own"].graphs),
    }


@case
def a_block_with_its_function(rank, world, device):
    x = rows(rank, device)
    since = issued()
    if rank == 0:
        graph = gfxgraph.BridgedCUDAGraph()
        with graph.capture(model_fn=summed):
            summed(x)
        results = [graph.replay() for _ in range(3)]
    else:
        results = [summed(x) for _ in range(3)]
    return {
        "right": [bool(torch.equal(y, total(world, device) * 2 + 1)) for y in results],
        "issued": issued() - since,
        "fallbacks": gfxgraph.stats()["fallbacks"],
    }


@case
def a_block_of_sizes(rank, world, device):
    x = rows(rank, device)
    since = issued()
    graph = gfxgraph.BridgedCUDAGraph()
    with graph.capture(dynamic_shapes=True, buckets=[2, 4], model_fn=summed):
        summed(x)
    results = [graph.replay(batch_size=4) for _ in range(3)]
    return {
        "right": [bool(torch.equal(y, total(world, device) * 2 + 1)) for y in results],
        "issued": issued() - since,
    }


@case
def a_low_level_capture(rank, world, device):
    """On the emulated device it is refused; nothing waits, also where only one rank tries."""
    x = rows(rank, device)
    since, graph = issued(), gfxgraph.BridgedCUDAGraph()
    said, caught = "", ""
    if device == "cpu" and rank == 0:
        try:
            with graph.capture():
                summed(x)
        except CaptureError as error:
            said = error.rule
        try:
            with graph.capture():
                try:
                    summed(x)
                except RuntimeError:
                    x + 1
        except CaptureError as error:
            caught = error.rule
    return {
        "said": said,
        "caught": caught,
        "issued": issued() - since,
        "right": [bool(torch.equal(summed(x), total(world, device) * 2 + 1))],
    }


@case
def compiled(rank, world, device):
    def body(x):
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    f = gfxgraph.graphed(torch.compile(body, backend="aot_eager"))
    results = [f(rows(rank, device)) for _ in range(3)]
    return outcome(f, results, [total(world, device) * 2 + 1] * 3)


@case
def asked_to_compile(rank, world, device):
    f = gfxgraph.graphed(summed, compile={"backend": "aot_eager"})
    since = issued()
    results = [f(rows(rank, device)) for _ in range(3)]
    return outcome(f, results, [total(world, device) * 2 + 1] * 3, since)


@case
def raising(rank, world, device):
    f = gfxgraph.graphed(summed, fallback="raise", collectives="refuse")
    try:
        f(rows(rank, device))
    except CaptureError as error:
        return {"rule": error.rule, "line": error.line > 0, "text": str(error)}
    return {}


@case
def verified_and_checked_by_one_rank(rank, world, device):
    if rank != 0:
        return {}
    since = issued()
    report = gfxgraph.check(summed, rows(rank, device))
    kinds = _kinds(rank, world, device)
    checked = {}
    for name in ("functional_sum", "gathers", "to_the_right", "is_asked_for"):
        found = gfxgraph.check(kinds[name][0], rows(rank, device))
        checked[name] = [found.verdict, [h.rule for h in found.hazards]]
    try:
        gfxgraph.verify(summed, rows(rank, device))
        verified = "it was"
    except CaptureError as error:
        verified = error.rule
    return {
        "hazards": [(h.rule, h.line > 0, h.effect) for h in report.hazards],
        "verdict": report.verdict,
        "verified": verified,
        "checked": checked,
        "issued": issued() - since,
    }


@case
def run_between_two_graphs(rank, world, device):
    @gfxgraph.no_graph
    def reduce(y):
        dist.all_reduce(y)

    def f(x):
        y = x * 2
        reduce(y)
        return y + 1

    graphed, since = gfxgraph.graphed(f), issued()
    results = [graphed(rows(rank, device)) for _ in range(3)]
    return outcome(graphed, results, [total(world, device) * 2 + 1] * 3, since)


@case
def a_group_made_inside(rank, world, device):
    def f(x):
        group = dist.new_group(list(range(world)))
        y = x * 2
        dist.all_reduce(y, group=group)
        return y + 1

    graphed = gfxgraph.graphed(f)
    results = [graphed(rows(rank, device)) for _ in range(2)]
    return outcome(graphed, results, [total(world, device) * 2 + 1] * 2)


class _Done(dist.Work):
    def wait(self, timeout=None):
        return True


class _GroupInPython(dist.ProcessGroup):
    """Passes on to a real one: torch's dispatcher does not see its methods."""

    def __init__(self, real):
        super().__init__(real.rank(), real.size())
        self.real, self.calls = real, 0

    def allreduce(self, tensors, opts=None):
        self.calls += 1
        self.real.allreduce(tensors).wait()
        return _Done()

    def getBackendName(self):
        return "python"


@case
def a_group_written_in_python(rank, world, device):
    group = _GroupInPython(dist.group.WORLD)
    dist.distributed_c10d._world.pg_map[group] = ("python", None)

    def f(x):
        y = x * 2
        group.allreduce([y]).wait()
        return y + 1

    graphed = gfxgraph.graphed(f)
    results = [graphed(rows(rank, device)) for _ in range(3)]
    found = outcome(graphed, results, [total(world, device) * 2 + 1] * 3)
    del dist.distributed_c10d._world.pg_map[group]
    return found | {"calls": group.calls}


@case
def coalescing_by_a_run_of_ours(rank, world, device):
    """What is refused in the middle of it leaves nothing for later collectives to end up in."""

    def f(x):
        y = x * 2
        with dist._coalescing_manager():
            dist.all_reduce(y)
        return y + 1

    graph = gfxgraph.ConditionalGraph().add_branch("f", f)
    if rank == 0:
        graph.capture(rows(rank, device))
    results = [graph.run("f", rows(rank, device)) for _ in range(2)]
    return {
        "right": [bool(torch.equal(y, total(world, device) * 2 + 1)) for y in results],
        "left": len(dist.distributed_c10d._world.pg_coalesce_state),
    }


class _All(dist.Work):
    """Work that is over when all of it is."""

    def __init__(self, works):
        super().__init__()
        self.works = works

    def wait(self, timeout=None):
        return all(work.wait() for work in self.works)


@contextlib.contextmanager
def sending_at_the_end():
    """Gloo sends what is coalesced at the end of that, as NCCL does."""
    group, backend, waiting = dist.ProcessGroup, torch._C._distributed_c10d.Backend, []
    names = ("_start_coalescing", "_end_coalescing", "allreduce_coalesced", "send", "recv")
    plain = {name: getattr(group, name) for name in names}
    before = [(group, name, vars(group)[name]) for name in names]  # these bind to an object
    before.append((backend, "supports_coalescing", vars(backend)["supports_coalescing"]))

    def end(self, device):
        return _All([plain[name](self, *args) for name, args in waiting.pop()])

    def later(name):
        def method(self, *args):
            if not waiting:
                return plain[name](self, *args)
            return waiting[-1].append((name, args))

        return method

    backend.supports_coalescing = property(lambda self: True)
    group._start_coalescing = lambda self, device: waiting.append([])
    group._end_coalescing = end
    for name in names[2:]:
        setattr(group, name, later(name))
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@case
def coalesced_and_sent_at_the_end(rank, world, device):
    def f(x):
        y, z = x + 0, x + 1
        with dist._coalescing_manager(device=torch.device(device), async_ops=True) as work:
            dist.all_reduce(y)
            dist.all_reduce(z)
        w = x * 3  # meanwhile
        work.wait()
        return y + z + w if y.sum() > 0 else y

    graph = gfxgraph.graphed(f)
    with sending_at_the_end() if device == "cpu" else contextlib.nullcontext():
        results = [graph(sign * rows(rank, device)) for sign in (1, 1, -1, -1, 1)]
        point_to_point = _issued_kinds(rank, world, device, lambda kind: kind == "to_the_right")
    y = total(world, device)
    one, other = 2 * y + world + 3 * rows(rank, device), -y
    found = outcome(graph, results, [one, one, other, other, one])
    return found | {"point to point": point_to_point}


@case
def a_replay_that_is_compared(rank, world, device):
    """A graph of a group of several ranks does not come to be by ``validate`` either."""
    gfxgraph.enable(validate=True, validate_every=1)
    f, since = gfxgraph.graphed(summed), issued()
    results = [f(rows(rank, device)) for _ in range(4)]
    x = rows(rank, device)
    if rank == 0:
        graph = gfxgraph.BridgedCUDAGraph()
        with graph.capture(model_fn=summed):
            summed(x)
        results += [graph.replay() for _ in range(2)]
    else:
        results += [summed(x) for _ in range(2)]
    gfxgraph.disable()
    return outcome(f, results, [total(world, device) * 2 + 1] * 6, since)


@case
def what_another_thread_issues(rank, world, device):
    group = dist.new_group(list(range(world)))
    done = threading.Event()

    def work():
        if device != "cpu":
            torch.cuda.set_device(rank)
        for _ in range(200):
            dist.all_reduce(torch.ones(2, device=device), group=group)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    found: set[str] = set()
    graphs = 0
    while graphs < 5 or not done.is_set():
        f = gfxgraph.graphed(lambda x: x.sin())
        f(rows(rank, device))
        f(rows(rank, device))
        graphs += f.stats().captures
        found.update(reason for reason in f.stats().refused.values() if "collective" in reason)
    thread.join()
    return {"refused": list(found)}


@case
def a_group_of_one_rank(rank, world, device):
    alone = [dist.new_group([r]) for r in range(world)][rank]

    @gfxgraph.graphed
    def f(x):
        y = x * 2
        dist.all_reduce(y, group=alone)
        return y + 1

    results = [f(rows(rank, device) + n) for n in range(4)]
    found = outcome(f, results, [(rows(rank, device) + n) * 2 + 1 for n in range(4)])
    dist.destroy_process_group(alone)
    found["after"] = len(f.stats().graphs)
    return found


@case
def a_function_without_collectives(rank, world, device):
    f = gfxgraph.graphed(lambda x: x.sin() * 2)
    x = rows(rank, device)
    results = [f(x) for _ in range(4)]
    before = dist.ProcessGroup.allreduce, torch.ops.c10d.allreduce_.default._op
    f(x[:2])
    found = outcome(f, results, [x.sin() * 2] * 4)
    after = dist.ProcessGroup.allreduce, torch.ops.c10d.allreduce_.default._op
    found["as_before"] = all(a is b for a, b in zip(before, after, strict=True))
    return found


@case
def a_low_level_capture_lives_when_the_group_goes(rank, world, device):
    """The last one: nothing is left to call with."""
    from torch.distributed import destroy_process_group

    x = rows(rank, device)
    graph = gfxgraph.BridgedCUDAGraph()
    alone = [dist.new_group([r]) for r in range(world)][rank]
    # Gloo cannot be captured.
    group, expected = (alone, x * 2) if device == "cpu" else (None, total(world, device) * 2)
    y = x + 0
    dist.all_reduce(y, group=group)  # makes the communicator
    with graph.capture():
        y = x * 2
        dist.all_reduce(y, group=group)
    graph.replay()
    right = bool(torch.equal(y, expected))
    dist.barrier()
    destroy_process_group()
    return {"right": right, "captured": graph._is_captured}


def main(rank, world, backend, folder, names):
    faulthandler.enable()
    torch.set_grad_enabled(False)
    device = "cpu" if backend == "gloo" else f"cuda:{rank}"
    if device != "cpu":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=60),
    )
    found = {}
    for name in names:
        print(name, flush=True)
        try:
            found[name] = CASES[name](rank, world, device)
        except Exception:
            found[name] = {"error": traceback.format_exc()}
            print(found[name]["error"], flush=True)
        Path(folder, f"{rank}.json").write_text(json.dumps(found))
        torch._dynamo.reset()
    # A thread of Gloo that lets go of a tensor while Python ends aborts the process.
    time.sleep(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
