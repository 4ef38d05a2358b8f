"""Functions whose course depends on data that no operation shows to be read on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tests.hostile.hostile_twins import DEVICE, t

READS: dict[str, tuple[Callable[..., Any], Callable[[int], Any]]] = {}
OUTSIDE: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {}

on_the_cpu = DEVICE == "cpu"
torch.manual_seed(0)
NETS = {
    "lstm": nn.LSTM(3, 4).to(DEVICE),
    "gru": nn.GRU(3, 4).to(DEVICE),
    "rnn": nn.RNN(3, 4).to(DEVICE),
    "rnn with relu": nn.RNN(3, 4, nonlinearity="relu").to(DEVICE),
}


def places(n: int) -> Any:
    """A vector, and a place in it that a host tensor says."""
    return t(n, 6), torch.tensor([1 + n % 3])


def packed(n: int) -> Any:
    """Seven rows, and the sizes of the steps of a packed sequence."""
    return t(n, 7, 3), torch.tensor([3, 3, 1] if n % 2 else [3, 2, 2])


def written_part(x: torch.Tensor, at: torch.Tensor) -> Any:
    x = x * 2
    torch.tensor_split(x, at)[0].add_(1)
    return x


READS["tensor_split"] = lambda x, at: torch.tensor_split(x, at), places
READS["tensor_split by method"] = lambda x, at: x.tensor_split(at), places
READS["tensor_split by name"] = (
    lambda x, at: torch.tensor_split(x, tensor_indices_or_sections=at),
    places,
)
READS["tensor_split as an operator"] = lambda x, at: torch.ops.aten.tensor_split(x, at), places
READS["tensor_split into a number of parts"] = (
    lambda x, at: torch.tensor_split(x, at),
    lambda n: (t(n, 6), torch.tensor(1 + n % 3)),
)
READS["a part that is written"] = written_part, places
for name, net in NETS.items():
    READS[f"{name} of a packed sequence"] = (
        lambda x, sizes, net=net: net(PackedSequence(x, sizes))[0].data,
        packed,
    )
READS["a padded sequence"] = (
    lambda x, sizes: pad_packed_sequence(PackedSequence(x, sizes))[0],
    packed,
)
READS["lengths of a padded sequence"] = (
    lambda x, sizes: pad_packed_sequence(PackedSequence(x, sizes))[1],
    packed,
)
READS["lengths that are packed and padded"] = (
    lambda x, lengths: pad_packed_sequence(NETS["lstm"](pack_padded_sequence(x, lengths))[0])[0],
    lambda n: (t(n, 4, 2, 3), torch.tensor([4, 1 + n % 3])),
)
READS["lengths of ctc_loss"] = (
    lambda x, targets, of: F.ctc_loss(
        x.log_softmax(-1), targets, torch.tensor([6, 6]), of, reduction="none"
    ),
    lambda n: (t(n, 6, 2, 5), t(0, 2, 4).abs().long().clamp(1, 4), torch.tensor([1 + n % 3, 2])),
)
if on_the_cpu:
    READS["a quantized tensor"] = (
        lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, False).dequantize(),
        lambda n: (t(n, 3) * (1 + n),),
    )
    READS["the scale of a quantized tensor"] = (
        lambda x: x * torch.quantize_per_tensor_dynamic(x, torch.qint8, False).q_scale(),
        lambda n: (t(n, 3) * (1 + n),),
    )
    READS["a scale"] = (
        lambda x, scale: torch.quantize_per_tensor(
            x, scale, torch.tensor(0), torch.qint8
        ).dequantize(),
        lambda n: (t(n, 3), torch.tensor(0.1 + n)),
    )
    READS["parameters of a quantization"] = (
        lambda x: torch.choose_qparams_optimized(x, 4, 2, 0.5, 8),
        lambda n: (t(n, 4) * (1 + n),),
    )

OUTSIDE["tensor_split()"] = lambda x, own: torch.tensor_split(x, own.long())
OUTSIDE["tensor_split() of itself"] = lambda x, own: x * len(torch.tensor_split(own, own.long()))
OUTSIDE["tolist()"] = lambda x, own: x * own.tolist()[0]
OUTSIDE["item()"] = lambda x, own: x * own.item()
OUTSIDE["repr()"] = lambda x, own: x * float(repr(own)[8:9])
OUTSIDE["format()"] = lambda x, own: x * float(f"{own}"[8:9])
OUTSIDE["numpy()"] = lambda x, own: x * float(own.cpu().numpy()[0])
OUTSIDE["a copy of it"] = lambda x, own: x * own.data.tolist()[0]
OUTSIDE["its value"] = lambda x, own: x * own[0]
OUTSIDE["a sum"] = lambda x, own: x * (own + 1).sum().item()
OUTSIDE["a condition"] = lambda x, own: x * 2 if own > 2 else x * 3
OUTSIDE["a size"] = lambda x, own: x[: int(own)] * 2
OUTSIDE["a number to fill with"] = lambda x, own: x + torch.full_like(x, own[0])
OUTSIDE["its storage"] = lambda x, own: x + own.untyped_storage().tolist()[2]
