"""Models that several programs measure. Nothing of gfxgraph is imported here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, Callable[[], tuple[Tensor, ...]]]
"""A module with random weights, and what makes fresh arguments for it, all of them tensors."""


class Block(nn.Module):
    """A pre-norm transformer block; by default of width 768, as small language models have it."""

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(a.transpose(1, 2).reshape(b, n, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Sum32(nn.Module):
    """Reads 32 tensors; little work, so that the call itself is what is measured."""

    def forward(self, *xs: Tensor) -> Tensor:
        return torch.stack(xs).sum(0)


class LlamaLayer(nn.Module):
    """Attention over a static cache with fewer heads of keys, and a gated MLP."""

    def __init__(self, width: int, kept: int) -> None:
        super().__init__()
        self.heads, self.kv_heads = width // 64, max(1, width // 256)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, width + 2 * 64 * self.kv_heads, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)
        self.register_buffer("keys", torch.zeros(1, self.kv_heads, kept, 64))
        self.register_buffer("values", torch.zeros(1, self.kv_heads, kept, 64))

    def forward(self, x: Tensor, place: Tensor, turned: tuple[Tensor, Tensor], mask: Tensor) -> Any:
        b, n, width = x.shape
        sizes = [width, 64 * self.kv_heads, 64 * self.kv_heads]
        parts = self.qkv(self.norm1(x)).split(sizes, -1)
        q, k, v = (part.view(b, n, -1, 64).transpose(1, 2) for part in parts)
        q, k = (
            t * turned[0] + torch.cat((-t[..., 32:], t[..., :32]), -1) * turned[1] for t in (q, k)
        )
        self.keys.index_copy_(2, place, k)
        self.values.index_copy_(2, place, v)
        again = self.heads // self.kv_heads
        keys, values = (t.repeat_interleave(again, 1) for t in (self.keys, self.values))
        a = nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        x = x + self.out(a.transpose(1, 2).reshape(b, n, width))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A step of decoding: token ids and their place give logits, and the cache is written."""

    def __init__(self, layers: int, width: int, words: int, kept: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList([LlamaLayer(width, kept) for _ in range(layers)])
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        places, rates = (torch.arange(n, dtype=torch.float32) for n in (kept, 32))
        angles = (places[:, None] / 10000 ** (rates / 32)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("places", torch.arange(kept))

    def forward(self, ids: Tensor, place: Tensor) -> Tensor:
        x, turned = self.embed(ids), (self.cos[place], self.sin[place])
        mask = (self.places <= place[:, None])[None, None]
        for layer in self.layers:
            x = layer(x, place, turned, mask)
        return self.head(self.norm(x))


class DiT(nn.Module):
    """A step of a diffusion transformer: blocks whose norms depend on the time."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(16, width), nn.Linear(width, 16)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.scales = nn.ModuleList([nn.Linear(width, 2 * width) for _ in range(layers)])
        self.register_buffer("rates", torch.exp(-math.log(10000) * torch.arange(128) / 128))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * self.rates
        time = self.time(torch.cat((angles.cos(), angles.sin()), -1))
        x = self.inside(x)
        for block, scale in zip(self.blocks, self.scales, strict=True):
            factor, shift = scale(nn.functional.silu(time))[:, None].chunk(2, -1)
            x = block(x * (1 + factor) + shift)
        return self.outside(x)


class UNet(nn.Module):
    """Convolutions down to a quarter of an image's size and up again, with skips."""

    def __init__(self, width: int) -> None:
        super().__init__()

        def stage(given: int, made: int) -> nn.Module:
            parts = (nn.Conv2d(given, made, 3, padding=1), nn.GroupNorm(8, made), nn.SiLU())
            return nn.Sequential(*parts, nn.Conv2d(made, made, 3, padding=1), nn.SiLU())

        one, two, four = width, 2 * width, 4 * width
        self.first, self.second, self.middle = stage(4, one), stage(one, two), stage(two, four)
        self.third, self.fourth = stage(four + two, two), stage(two + one, one)
        self.last = nn.Conv2d(one, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        large = self.first(x)
        small = self.second(nn.functional.avg_pool2d(large, 2))
        x = self.middle(nn.functional.avg_pool2d(small, 2))
        x = self.third(torch.cat((nn.functional.interpolate(x, scale_factor=2.0), small), 1))
        x = self.fourth(torch.cat((nn.functional.interpolate(x, scale_factor=2.0), large), 1))
        return self.last(x)


class Hidden(nn.Module):
    """An encoder of transformers as a function of token ids."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids)[0]


def device() -> str:
    """Where models of this process are."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _floats(model: nn.Module, *shape: int, dtype: torch.dtype = torch.half) -> Made:
    dtype = dtype if device() == "cuda" else torch.float32
    made = model.to(device(), dtype).eval()
    return made, lambda: (torch.randn(*shape).to(device(), dtype),)


def _ids(model: nn.Module, words: int, *shape: int) -> Made:
    made = _floats(model)[0]
    return made, lambda: (torch.randint(0, words, shape).to(device()),)


def mlp(tiny: bool) -> Made:
    """8 layers of 1024 and GELU, 64 rows, float32."""
    width, layers = (64, 2) if tiny else (1024, 8)
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU())]
    return _floats(nn.Sequential(*parts), 64, width, dtype=torch.float32)


def transformer(tiny: bool) -> Made:
    """12 pre-norm blocks of width 768, 64 tokens, float16."""
    width, layers = (64, 1) if tiny else (768, 12)
    return _floats(nn.Sequential(*[Block(width) for _ in range(layers)]), 1, 64, width)


def vit(tiny: bool) -> Made:
    """timm's vit_base_patch16_224, one image, float16."""
    return _of_timm("test_vit" if tiny else "vit_base_patch16_224", 160 if tiny else 224)


def decode(tiny: bool) -> Made:
    """A step of a Llama of 1.1 B, one token, a static cache of 1,024 places, float16."""
    layers, width, words, kept = (1, 256, 100, 16) if tiny else (16, 2048, 32_000, 1024)
    torch.set_default_dtype(torch.half if device() == "cuda" else torch.float32)
    try:
        with torch.device(device()):  # many processes make one at a time
            model, ids = _ids(Llama(layers, width, words, kept), words, 1, 1)
    finally:
        torch.set_default_dtype(torch.float32)
    place = torch.tensor([kept // 2], device=device())
    return model, lambda: (*ids(), place)


def encoder(tiny: bool) -> Made:
    """transformers' BertModel in its usual size, 8 texts of 128 tokens, float16."""
    from transformers import BertConfig, BertModel

    small = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(**(small | {"intermediate_size": 128} if tiny else {}))
    return _ids(Hidden(BertModel(config)), 30_000, *((2, 16) if tiny else (8, 128)))


def diffusion(tiny: bool) -> Made:
    """A step of a diffusion transformer, 12 blocks of 768, 2 times 256 tokens, float16."""
    layers, width, tokens = (1, 64, 16) if tiny else (12, 768, 256)
    model, latents = _floats(DiT(layers, width), 2, tokens, 16)

    def inputs() -> tuple[Tensor, ...]:
        (x,) = latents()
        return x, torch.rand(2).to(x)

    return model, inputs


def unet(tiny: bool) -> Made:
    """A small UNet of convolutions, latents of 2 times 64 x 64, float16."""
    return _floats(UNet(16 if tiny else 192), 2, 4, *((16, 16) if tiny else (64, 64)))


def resnet(tiny: bool) -> Made:
    """timm's resnet50, 8 images, float16."""
    return _of_timm("test_resnet" if tiny else "resnet50", 160 if tiny else 224, 8)


def swin(tiny: bool) -> Made:
    """timm's swin_tiny_patch4_window7_224, 8 images, float16."""
    return _of_timm("swin_tiny_patch4_window7_224", 224, 1 if tiny else 8)


def gpt2(tiny: bool) -> Made:
    """transformers' GPT2Model in its usual size without a cache, 2 texts of 512 tokens, float16."""
    from transformers import GPT2Config, GPT2Model

    small = {"n_embd": 64, "n_layer": 1, "n_head": 2} if tiny else {}
    config = GPT2Config(use_cache=False, **small)
    return _ids(Hidden(GPT2Model(config)), 50_000, *((2, 16) if tiny else (2, 512)))


def _of_timm(name: str, size: int, images: int = 1) -> Made:
    import timm

    return _floats(timm.create_model(name, pretrained=False), images, 3, size, size)


SIX = {make.__name__: make for make in (mlp, transformer, vit, decode, encoder, diffusion)}
"""Name -> what makes a model, smaller if asked for a tiny one; its docstring says what it is."""
TEN = SIX | {make.__name__: make for make in (unet, resnet, swin, gpt2)}
