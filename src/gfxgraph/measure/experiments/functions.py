"""The functions that experiments run for want of another; their lines count as a user's."""

from __future__ import annotations

import random

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F

__all__ = [
    "TransformerBlocks",
    "blocks",
    "calls_of_lengths",
    "first_stage",
    "first_stage_that_draws",
    "forked",
    "in_turn",
    "not_forked",
    "not_joined",
    "second_stage",
    "summed",
    "summed_that_draws",
    "used_too_early",
]

_WIDTH, _HEADS, _BLOCKS = 64, 4, 3
_LENGTHS = (5, 9, 16, 5, 12, 3, 9, 14, 5, 16)
_STEPS = 4


class _Block(nn.Module):
    """A transformer block whose positions see those before them."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.mix, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.wide, self.narrow = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.mix(self.before(x)).view(batch, length, 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, _WIDTH))
        narrow: torch.Tensor = self.narrow(F.gelu(self.wide(self.after(x))))
        return x + narrow


class TransformerBlocks(nn.Sequential):
    """A few transformer blocks; takes and gives ``[batch, length, 64]``."""

    def __init__(self) -> None:
        super().__init__(*(_Block() for _ in range(_BLOCKS)))


def blocks(device: str) -> tuple[nn.Module, torch.Tensor]:
    """The blocks on ``device``, and an argument; the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model, x = TransformerBlocks(), torch.randn(2, 16, _WIDTH)
    return model.to(device).eval().requires_grad_(False), x.to(device)


def calls_of_lengths(device: str) -> list[tuple[torch.Tensor]]:
    """Arguments for the blocks, of various lengths."""
    generator = torch.Generator().manual_seed(0)
    calls = [torch.randn(2, length, _WIDTH, generator=generator) for length in _LENGTHS]
    return [(x.to(device),) for x in calls]


# For `streams`: two chains of matrix products, and their sum.


def _chain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    for _ in range(_STEPS):
        x = (x @ weight).tanh()
    return x


def in_turn(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Both chains on the current stream."""
    return _chain(x, weight) + _chain(-x, weight)


def forked(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """One chain on a side stream, which waits first, and is waited for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        a = _chain(x, weight)
    b = _chain(-x, weight)
    torch.cuda.current_stream().wait_stream(side)
    return a + b


def not_forked(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Wrong: the side stream does not wait for what came before."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        a = _chain(x, weight)
    b = _chain(-x, weight)
    torch.cuda.current_stream().wait_stream(side)
    return a + b


def not_joined(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Wrong: nothing waits for the side stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _chain(x, weight)
    return _chain(-x, weight)


def used_too_early(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Wrong: the sum does not wait for the side stream; what comes after it does."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        a = _chain(x, weight)
    b = _chain(-x, weight) + a
    torch.cuda.current_stream().wait_stream(side)
    return b


# For `ranks`: two stages, between which the ranks add up their results.


def first_stage(x: torch.Tensor) -> torch.Tensor:
    """What each rank does before they exchange anything."""
    return (x * 2).sin()


def first_stage_that_draws(x: torch.Tensor) -> torch.Tensor:
    """The same, but a graph cannot hold it: it draws from Python's generator."""
    return (x * 2).sin() + 0 * random.random()


def summed(x: torch.Tensor) -> torch.Tensor:
    """Both stages, with the exchange inside."""
    y = first_stage(x)
    dist.all_reduce(y)
    return second_stage(y)


def summed_that_draws(x: torch.Tensor) -> torch.Tensor:
    """The same, but a graph cannot hold it."""
    y = first_stage_that_draws(x)
    dist.all_reduce(y)
    return second_stage(y)


def second_stage(x: torch.Tensor) -> torch.Tensor:
    """What each rank does with the sum."""
    return x.cos() + 1
