"""What each of two ranks does in ``test_parallel.py``: the ways in which torch spreads a model."""

from __future__ import annotations

import datetime
import json
import os
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import gfxgraph

CASES = {}


def case(fn):
    CASES[fn.__name__] = fn
    return fn


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, width = x.shape
        h = self.norm1(x)

        def of_heads(y):
            return y.view(b, n, -1, width // self.heads).transpose(1, 2)

        a = nn.functional.scaled_dot_product_attention(
            of_heads(self.q(h)), of_heads(self.k(h)), of_heads(self.v(h))
        )
        x = x + self.out(a.transpose(1, 2).reshape(b, n, -1))
        return x + self.down(torch.relu(self.up(self.norm2(x))))


def blocks(count=2):
    """The same weights on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(count))).eval()


def in_parallel(model, world):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (world,))
    columns, rows = ColwiseParallel, RowwiseParallel
    for block in model:
        plan = {"q": columns(), "k": columns(), "v": columns(), "up": columns()}
        parallelize_module(block, mesh, plan | {"out": rows(), "down": rows()})
    return model


def compared(fn, eager, inputs):
    results = [fn(x) for x in inputs]
    stats = fn.stats()
    return {
        "right": [
            torch.allclose(y, eager(x), atol=1e-5) for x, y in zip(inputs, results, strict=True)
        ],
        "replays": stats.replays,
        "fallbacks": list(stats.fallbacks),
        "graphs": [row.report for row in stats.graphs],
    }


def inputs(count=4):
    torch.manual_seed(1)
    return [torch.randn(2, 5, 16) for _ in range(count)]


@case
def tensor_parallel(rank, world):
    model = in_parallel(blocks(), world)
    return compared(gfxgraph.graphed(model), blocks(), inputs())


@case
def tensor_parallel_inside(rank, world):
    model = in_parallel(blocks(), world)
    return compared(gfxgraph.graphed(model, collectives="inside"), blocks(), inputs())


@case
def weights_that_change(rank, world):
    """Written in place, bound anew, and given other memory."""
    model, eager = in_parallel(blocks(1), world), blocks(1)
    fn, (x, *_), right = gfxgraph.graphed(model), inputs(), []

    def calls():
        right.extend(torch.allclose(fn(x), eager(x), atol=1e-5) for _ in range(3))

    calls()
    for net in (model, eager):
        net[0].up.weight.mul_(2)
    calls()
    for net in (model, eager):
        net[0].up.weight = nn.Parameter(net[0].up.weight * 2, requires_grad=False)
    calls()
    local = model[0].down.weight.to_local()
    local.data = local * 3
    eager[0].down.weight.mul_(3)
    fresh = model(x)  # what torch makes of that
    right.extend(torch.allclose(fn(x), fresh) for _ in range(3))
    return {"right": right, "replays": fn.stats().replays, "fallbacks": list(fn.stats().fallbacks)}


@case
def sequence_parallel(rank, world):
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(16)
            self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

        def forward(self, x):
            return self.down(torch.relu(self.up(self.norm(x))))

    def net():
        torch.manual_seed(0)
        return Net().eval()

    mesh = init_device_mesh("cpu", (world,))
    model = parallelize_module(
        net(),
        mesh,
        {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(),
        },
    )
    given = [x[:, :4] for x in inputs()]

    def part(x):  # each rank has its part of the sequence
        return x[:, rank * 2 : rank * 2 + 2].contiguous()

    fn = gfxgraph.graphed(model)
    return compared_parts(fn, net(), given, part)


def compared_parts(fn, eager, given, part):
    results = [fn(part(x)) for x in given]
    stats = fn.stats()
    return {
        "right": [
            torch.allclose(y, eager(x), atol=1e-5) for x, y in zip(given, results, strict=True)
        ],
        "replays": stats.replays,
        "fallbacks": list(stats.fallbacks),
    }


@case
def fully_sharded(rank, world):
    from torch.distributed.fsdp import fully_shard

    model, mesh = blocks(), init_device_mesh("cpu", (world,))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return compared(gfxgraph.graphed(model), blocks(), inputs())


@case
def fully_sharded_and_kept_whole(rank, world):
    from torch.distributed.fsdp import fully_shard

    model = blocks()
    mesh = init_device_mesh("cpu", (world,))
    for block in model:
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    model(inputs()[0])  # gathers all
    fn = gfxgraph.graphed(model)
    found = compared(fn, blocks(), inputs())
    for part in model.modules():
        if hasattr(part, "reshard"):
            part.reshard()
    again = compared(fn, blocks(), inputs())
    return found | {"right": found["right"] + again["right"]}


@case
def data_parallel(rank, world):
    model = nn.parallel.DistributedDataParallel(blocks())
    return compared(gfxgraph.graphed(model), blocks(), inputs())


@case
def pipeline(rank, world):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stage_module = blocks(world)[rank]
    graph = gfxgraph.graphed(stage_module)

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = stage_module

        def forward(self, x):
            return graph(x)

    stage = PipelineStage(Stage(), rank, world, torch.device("cpu"))
    schedule, right = ScheduleGPipe(stage, 2), []
    eager = blocks(world)
    for x in inputs():
        given = (x,) if rank == 0 else ()
        result = schedule.eval(*given) if hasattr(schedule, "eval") else schedule.step(*given)
        right.append(result is None or torch.allclose(result, eager(x), atol=1e-5))
    stats = graph.stats()
    return {"right": right, "replays": stats.replays, "fallbacks": list(stats.fallbacks)}


@case
def pipeline_by_hand(rank, world):
    """One function on each rank, with its sends and receives inside."""
    block, eager = blocks(world)[rank], blocks(world)

    @gfxgraph.graphed
    def step(x):
        if rank:
            dist.recv(x, rank - 1)
        y = block(x)
        if rank < world - 1:
            dist.send(y, rank + 1)
        return y

    right = []
    for x in inputs():
        y = step(x.clone())
        right.append(rank < world - 1 or torch.allclose(y, eager(x), atol=1e-5))
    stats = step.stats()
    return {"right": right, "replays": stats.replays, "fallbacks": list(stats.fallbacks)}


@case
def shut_down_and_begun_again(rank, world):
    """The last one: a group goes while graphs with its collectives live."""

    def f(x):
        y = x * 2
        dist.all_reduce(y)
        return y

    fns = [gfxgraph.graphed(f), gfxgraph.graphed(f, collectives="inside")]
    x = torch.ones(3)
    right = [torch.equal(fn(x), x * 2 * world) for fn in fns for _ in range(3)]
    before = [len(fn.stats().graphs) for fn in fns]
    dist.barrier()
    dist.destroy_process_group()
    return {"right": right, "before": before, "after": [len(fn.stats().graphs) for fn in fns]}


def main(rank, world, folder, names):
    torch.set_grad_enabled(False)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=30),
    )
    found = {}
    for name in names:
        try:
            found[name] = CASES[name](rank, world)
        except Exception:
            found[name] = {"error": traceback.format_exc()}
            print(name, found[name]["error"], flush=True)
        Path(folder, f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.ranks.faults import start

    torch.set_num_threads(1)
    folder, *names = sys.argv[1:]
    ended = start(2, lambda rank: main(rank, 2, folder, names or list(CASES)))
    os._exit(any(ended))
