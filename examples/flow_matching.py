"""A flow-matching robot policy, written without a thought of graphs, becomes one graph.

Its sampler is driven by the device, as in many such policies: the time and its step are tensors,
``while time >= -dt / 2`` reads one of them in each step, and the attention mask is made from a
Python list in each call. A capture by hand fails at the first of these lines. gfxgraph sees that
none of them depends on the inputs and folds them: the loop, the vision encoder and the prefix
become a single graph. Drawing the noise inside works as well, from the same random numbers.

Run it with ``python examples/flow_matching.py``. The weights are random, from a fixed seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from side_by_side import Findings, side_by_side
from torch import Tensor, nn

import gfxgraph


@dataclass(frozen=True)
class FlowConfig:
    """The size of a :class:`FlowPolicy`."""

    cameras: int = 2
    image_size: int = 64
    patch_size: int = 16
    state_dim: int = 14
    action_dim: int = 14
    horizon: int = 16
    width: int = 128
    """Of the vision encoder and of the prefix."""
    expert_width: int = 96
    heads: int = 4
    head_dim: int = 32
    """The same in prefix and expert, so that the expert can attend to the prefix."""
    vision_layers: int = 2
    layers: int = 4
    """Of the prefix, and of the expert."""
    num_steps: int = 10


KeyValue = tuple[Tensor, Tensor]


class Block(nn.Module):
    """A transformer block; it may attend to keys and values of other tokens before its own."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * heads * head_dim)
        self.out = nn.Linear(heads * head_dim, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(
        self, x: Tensor, mask: Tensor | None = None, cached: KeyValue | None = None
    ) -> tuple[Tensor, KeyValue]:
        """The new tokens, and the keys and values of this block."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if cached is not None:
            k, v = torch.cat([cached[0], k], dim=2), torch.cat([cached[1], v], dim=2)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x)), (k, v)


class VisionEncoder(nn.Module):
    """Images to tokens, a token for each patch."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        patches = (config.image_size // config.patch_size) ** 2
        self.patch = nn.Conv2d(3, config.width, config.patch_size, config.patch_size)
        self.position = nn.Parameter(torch.randn(patches, config.width) * 0.02)
        self.blocks = nn.ModuleList(
            Block(config.width, config.heads, config.head_dim) for _ in range(config.vision_layers)
        )
        self.norm = nn.LayerNorm(config.width)

    def forward(self, images: Tensor) -> Tensor:
        """Tokens of ``images`` [batch, camera, 3, height, width], those of all cameras in a row."""
        x = self.patch(images.flatten(0, 1)).flatten(2).mT + self.position
        for block in self.blocks:
            x, _ = block(x)
        return self.norm(x).unflatten(0, images.shape[:2]).flatten(1, 2)


def embed_time(time: Tensor, width: int) -> Tensor:
    """Sines and cosines of ``time`` [batch], with periods from 0.004 to 4."""
    fraction = torch.linspace(0.0, 1.0, width // 2, device=time.device, dtype=torch.float64)
    period = 4e-3 * 1e3**fraction
    angle = time[:, None] * (2 * math.pi / period)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def block_mask(sizes: list[int], device: torch.device) -> Tensor:
    """Who attends to whom: tokens come in blocks, and see their own block and those before it."""
    number = torch.tensor([n for n, size in enumerate(sizes) for _ in range(size)], device=device)
    return number[None, :] <= number[:, None]


class FlowPolicy(nn.Module):
    """Images and the state of a robot to a chunk of actions, by integrating a velocity field."""

    def __init__(self, config: FlowConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or FlowConfig()
        width, heads = config.expert_width, (config.heads, config.head_dim)
        self.vision = VisionEncoder(config)
        self.prefix = nn.ModuleList(Block(config.width, *heads) for _ in range(config.layers))
        self.expert = nn.ModuleList(Block(width, *heads) for _ in range(config.layers))
        self.state_in = nn.Linear(config.state_dim, width)
        self.action_in = nn.Linear(config.action_dim, width)
        self.action_time = nn.Sequential(
            nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.norm = nn.LayerNorm(width)
        self.action_out = nn.Linear(width, config.action_dim)

    def embed_prefix(self, images: Tensor) -> list[KeyValue]:
        """The keys and values of the images, for each layer of the expert; once for all steps."""
        x, cache = self.vision(images), []
        for block in self.prefix:
            x, key_value = block(x)
            cache.append(key_value)
        return cache

    def velocity(self, cache: list[KeyValue], state: Tensor, x_t: Tensor, time: Tensor) -> Tensor:
        """Where the actions ``x_t`` [batch, horizon, action] go at ``time`` [batch]."""
        actions = self.action_in(x_t)
        when = embed_time(time, actions.shape[-1]).to(actions.dtype)
        when = when[:, None].expand_as(actions)
        actions = self.action_time(torch.cat([actions, when], dim=-1))
        x = torch.cat([self.state_in(state)[:, None], actions], dim=1)

        seen = cache[0][0].shape[2]
        mask = block_mask([seen, 1, actions.shape[1]], x.device)[seen:]
        for block, key_value in zip(self.expert, cache, strict=True):
            x, _ = block(x, mask, key_value)
        return self.action_out(self.norm(x[:, 1:]))

    @torch.no_grad()
    def sample_actions(self, images: Tensor, state: Tensor, noise: Tensor | None = None) -> Tensor:
        """A chunk of actions [batch, horizon, action].

        Args:
            images: [batch, camera, 3, height, width], from -1 to 1.
            state: [batch, state].
            noise: what the integration starts from; drawn where there is none.
        """
        device, config = state.device, self.config
        if noise is None:
            shape = (state.shape[0], config.horizon, config.action_dim)
            noise = torch.randn(shape, device=device, dtype=state.dtype)
        cache = self.embed_prefix(images)

        dt = torch.tensor(-1.0 / config.num_steps, device=device)
        time = torch.tensor(1.0, device=device)
        x_t = noise
        while time >= -dt / 2:
            v_t = self.velocity(cache, state, x_t, time.expand(state.shape[0]))
            x_t = x_t + dt * v_t
            time += dt
        return x_t


def make_policy(device: str, config: FlowConfig | None = None) -> FlowPolicy:
    """The policy with random weights, the same each time."""
    torch.manual_seed(0)
    return FlowPolicy(config).eval().to(device)


def observation(policy: FlowPolicy, seed: int, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Images, state and noise for one call of ``policy``."""
    config = policy.config
    random = torch.Generator().manual_seed(seed)
    size = (batch, config.cameras, 3, config.image_size, config.image_size)
    images = torch.rand(size, generator=random) * 2 - 1
    state = torch.randn(batch, config.state_dim, generator=random)
    noise = torch.randn(batch, config.horizon, config.action_dim, generator=random)
    like = policy.action_out.weight
    return images.to(like), state.to(like), noise.to(like)


def main() -> list[Findings]:
    """Once with noise that is given, once with noise that the policy draws itself."""
    policy = make_policy(gfxgraph.device_type())
    given = [observation(policy, seed) for seed in range(5)]
    drawn = [(images, state) for images, state, _ in given]
    found = []
    for what, calls in (("The noise is given", given), ("The noise is drawn", drawn)):
        print(f"{what}:")
        found.append(side_by_side(policy.sample_actions, calls))
    return found


if __name__ == "__main__":
    main()
