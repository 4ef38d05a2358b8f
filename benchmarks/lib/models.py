"""Models that several programs measure."""

from __future__ import annotations

import torch


class Block(torch.nn.Module):
    """A pre-norm transformer block of width 768, as small language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(768), torch.nn.LayerNorm(768)
        self.qkv, self.out = torch.nn.Linear(768, 2304), torch.nn.Linear(768, 768)
        self.up, self.down = torch.nn.Linear(768, 3072), torch.nn.Linear(3072, 768)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, 12, 64).permute(2, 0, 3, 1, 4)
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(a.transpose(1, 2).reshape(b, n, 768))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Sum32(torch.nn.Module):
    """Reads 32 tensors; little work, so that the call itself is what is measured."""

    def forward(self, *xs: torch.Tensor) -> torch.Tensor:
        return torch.stack(xs).sum(0)
