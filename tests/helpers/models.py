"""Small models and their inputs."""

from __future__ import annotations

import torch
from torch import nn


def net(device: str, outputs: int = 8) -> nn.Module:
    """Two layers over rows of 8 numbers."""
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, outputs)).to(device).eval()


def same_net(device: str) -> nn.Module:
    """Two layers over rows of 8 numbers, with the same weights each time."""
    torch.manual_seed(0)
    return net(device, outputs=4)


def rows(device: str, count: int, seed: int = 0, width: int = 8) -> torch.Tensor:
    """``count`` rows, the same for the same count and seed."""
    generator = torch.Generator().manual_seed(100 * seed + count)
    return torch.randn(count, width, generator=generator).to(device)


class Attention(nn.Module):
    """Rows of tokens that see one another where the mask lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.mix = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        y, _ = self.mix(x, x, x, key_padding_mask=attention_mask == 0, need_weights=False)
        return {"tokens": y, "pooled": (y * attention_mask[..., None]).sum(1)}
