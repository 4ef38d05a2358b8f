"""Pieces: layers and operators in a capture by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.simulate.pieces import PIECES, REFUSED, captured

Shape = tuple[int, ...]


def _layer(name: str, make: Callable[[], Any], *shapes: Shape, expected: str = "equal") -> None:
    def run() -> Any:
        function = make()
        if isinstance(function, nn.Module):
            function = function.cuda().eval()
        return captured(function, *(torch.randn(shape, device="cuda") for shape in shapes))

    PIECES[name] = run, expected


def _operator(name: str, function: Callable[..., Any], *shapes: Shape, end: str = "equal") -> None:
    _layer(name, lambda: function, *(shapes or ((4, 6),)), expected=end)


_layer("linear", lambda: nn.Linear(6, 3), (4, 6))
_layer("bilinear", lambda: nn.Bilinear(6, 5, 3), (4, 6), (4, 5))
_layer("conv1d", lambda: nn.Conv1d(3, 4, 3), (2, 3, 9))
_layer("conv2d", lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 8, 8))
_layer("conv3d", lambda: nn.Conv3d(1, 2, 3), (1, 1, 5, 5, 5))
_layer("conv_transpose", lambda: nn.ConvTranspose2d(3, 2, 2), (1, 3, 4, 4))
_layer("batch_norm", lambda: nn.BatchNorm2d(3), (2, 3, 4, 4))
_layer("layer_norm", lambda: nn.LayerNorm(6), (4, 6))
_layer("group_norm", lambda: nn.GroupNorm(2, 4), (2, 4, 5))
_layer("instance_norm", lambda: nn.InstanceNorm1d(4), (2, 4, 5))
_layer("rms_norm", lambda: nn.RMSNorm(6), (4, 6))
_layer("lstm", lambda: nn.LSTM(6, 4, 2), (5, 2, 6))
_layer("gru", lambda: nn.GRU(6, 4, batch_first=True), (2, 5, 6))
_layer("rnn", lambda: nn.RNN(6, 4), (5, 2, 6))
_layer("lstm_cell", lambda: nn.LSTMCell(6, 4), (2, 6))
_layer("gru_cell", lambda: nn.GRUCell(6, 4), (2, 6))
_layer("dropout_eval", lambda: nn.Dropout(0.5), (4, 6))
_layer("max_pool", lambda: nn.MaxPool2d(2), (1, 2, 4, 4))
_layer("adaptive_pool", lambda: nn.AdaptiveAvgPool2d(1), (1, 2, 4, 4))
_layer("upsample", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 4, 4))
_layer("pixel_shuffle", lambda: nn.PixelShuffle(2), (1, 4, 3, 3))
_layer("flatten", lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), (2, 3, 4))
_layer("encoder_layer", lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8))
_layer("decoder_layer", lambda: nn.TransformerDecoderLayer(8, 2, 16), (5, 2, 8), (4, 2, 8))


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
        return result


class _Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.embedding(x.abs().mul(10).long().clamp(max=31))
        return result


_layer("multihead_attention", _Attention, (2, 5, 8))
_layer("embedding", _Tokens, (2, 5))

for _name in ("relu", "gelu", "silu", "softmax", "log_softmax", "tanh", "sigmoid", "elu", "mish"):
    _operator(
        f"activation_{_name}",
        lambda x, name=_name: getattr(F, name)(x, *([-1] if "softmax" in name else [])),
    )
_heads = (2, 4, 5, 8)
_operator("attention", F.scaled_dot_product_attention, _heads, _heads, _heads)
_operator(
    "causal_attention",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    _heads,
    _heads,
    _heads,
)
_operator("matmul", torch.matmul, (3, 4), (4, 5))
_operator("einsum", lambda a, b: torch.einsum("bij,bjk->bik", a, b), (2, 3, 4), (2, 4, 5))
_operator("bmm", torch.bmm, (2, 3, 4), (2, 4, 5))
_operator("addmm", torch.addmm, (3, 5), (3, 4), (4, 5))
_operator("cat", lambda a, b: torch.cat([a, b], 1), (2, 3), (2, 4))
_operator("split", lambda x: torch.split(x, 3, dim=1))
_operator("views", lambda x: x.view(3, 8).t().contiguous()[2:5])
_operator("in_place", lambda x: x.clone().add_(1).mul_(2))
_operator("sort", lambda x: torch.sort(x, -1))
_operator("topk", lambda x: torch.topk(x, 2))
_operator("cumsum", lambda x: x.cumsum(0))
_operator("argmax", lambda x: x.argmax(-1))
_operator("gather", lambda x: x.gather(1, x.argsort(1)))
_operator("scatter", lambda x: torch.zeros_like(x).scatter_(1, x.argsort(1), x))
_operator("index_add", lambda x: torch.zeros_like(x).index_add_(0, x[:, 0].argsort(), x))
_operator("where", lambda x: torch.where(x > 0, x, -x))
_operator("masked_fill", lambda x: x.masked_fill(x < 0, 0.0))
_operator("masked_assignment", lambda x: _assigned(x))
_operator("full", lambda x: x + torch.full((6,), 2.0, device="cuda"))
_operator("arange", lambda x: x + torch.arange(6, device="cuda"))
_operator("scalar_of_the_host", lambda x: x * torch.tensor(2.0))
_operator("half", lambda x: (x.half() @ x.half().t()).float())
_operator("bfloat16", lambda x: x.bfloat16().sum(-1))
_operator("layer_norm_function", lambda x: F.layer_norm(x, (6,)))
_operator("fft", lambda x: torch.fft.rfft(x).abs())
_operator("one_hot", lambda x: F.one_hot(x.argmax(-1), 6))
_operator("triu", lambda x: x.triu() + x.tril())
_operator("roll", lambda x: x.roll(1, 0).flip(1))
_operator("interpolate", lambda x: F.interpolate(x[None, None], scale_factor=2.0))
_operator("kl_div", lambda x: F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="batchmean"))
_operator("repeat_interleave_number", lambda x: x.repeat_interleave(2, 0))

_operator("item", lambda x: x * x.sum().item(), end=REFUSED)
_operator("branch_on_data", lambda x: x if x.sum() > 0 else -x, end=REFUSED)
_operator("to_host", lambda x: x.cpu(), end="RuntimeError")
_operator("to_list", lambda x: x.sum(0).tolist(), end="RuntimeError")
_operator("printed", lambda x: print(x) or x, end=REFUSED)
_operator("nonzero", lambda x: x.nonzero(), end=REFUSED)
_operator("boolean_mask", lambda x: x[x > 0], end=REFUSED)
_operator("unique", lambda x: x.unique(), end=REFUSED)
_operator(
    "made_of_a_list", lambda x: x[:, 0] + torch.tensor([1.0] * 4, device="cuda"), end="RuntimeError"
)
_operator("moved_from_host", lambda x: x + torch.ones(6).cuda(), end="RuntimeError")
_operator("index_of_the_host", lambda x: x[torch.tensor([0, 1])], end="RuntimeError")
_operator("inverse", lambda x: torch.linalg.inv(_regular(x)), end=REFUSED)
_operator("equal", lambda x: x if torch.equal(x, x + 1) else -x, end=REFUSED)
_operator("repeat_by_tensor", lambda x: x.repeat_interleave(x[0].argsort()[:4], 0), end=REFUSED)
_operator("two_devices", lambda x: x + torch.ones(6), end="RuntimeError")


def _assigned(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[y < 0] = 1.0
    return y


def _regular(x: torch.Tensor) -> torch.Tensor:
    return x[:, :4] + 9 * torch.eye(4, device="cuda")
