"""Models that the commands of ``gfxgraph`` measure: ``benchmarks.lib.targets:blocks``."""

from __future__ import annotations

import torch

from benchmarks.lib.models import Block

torch.manual_seed(0)

blocks = torch.nn.Sequential(*[Block() for _ in range(12)]).half().eval()
"""Small kernels: launches limit it."""

big = torch.nn.Sequential(*[torch.nn.Linear(8192, 8192) for _ in range(4)]).half().eval()
"""Large kernels: the device limits it."""

net = torch.nn.Sequential(
    *[part for _ in range(8) for part in (torch.nn.Linear(256, 256), torch.nn.GELU())]
)
net = net.half().eval()
"""For batches of many sizes."""
