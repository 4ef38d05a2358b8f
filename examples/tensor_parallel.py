"""Two ranks share the blocks of a transformer, and graphs answer their calls.

``torchrun --nproc-per-node 2 examples/tensor_parallel.py [split|inside|refuse]``. On GPUs over
NCCL; without them over Gloo with emulated graphs.
"""

from __future__ import annotations

import os
import sys

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import gfxgraph


class Block(nn.Module):
    """The hidden units are spread over the ranks."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Each rank has a part of the sum; torch adds the parts up."""
        return x + self.down(self.up(self.norm(x)).relu())


def main(collectives: str = "split") -> None:
    """Compare graphs with eager execution."""
    has_gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpus else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpus else "cpu"
    if has_gpus:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).to(device).eval()
    mesh = init_device_mesh("cuda" if has_gpus else "cpu", (dist.get_world_size(),))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

    step = gfxgraph.graphed(model, collectives=collectives)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(8, 64, device=device)
            dist.broadcast(x, 0)
            torch.testing.assert_close(step(x), model(x))
    if dist.get_rank() == 0:
        stats = step.stats()
        print(f"{stats.captures} capture, {stats.replays} replays, equal to eager")
        for line in stats.graphs[0].report if stats.graphs else stats.fallbacks:
            print(line)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
