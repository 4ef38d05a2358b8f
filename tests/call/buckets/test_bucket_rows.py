"""Padding never reaches a row that is kept: functions that mix rows, and functions that do not.

Each runs at all sizes up to its bucket, twice, on data of both signs, and has to give what eager
execution gives. The verdict is part of each case: a graph, or eager execution and the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gfxgraph
from tests.helpers.sampled import sampled

GRAPH = "graph"
MIXES = "rows influence each other"
SIZE = "depends on the size"
WIDTH = 6


@dataclass
class Case:
    """A function, what it is called with, and whether calls of any size may share its graphs.

    Attributes:
        make: makes the function, given the device.
        verdict: ``GRAPH``, or a part of the reason.
        args: makes arguments for a size.
        buckets: see the pool.
        options: more of the pool.
        zeros: whether ``capture`` gets zeros, else what a call gets.
        graphs: so many buckets may have one all the same.
    """

    name: str
    make: Callable[[str], Callable[..., Any]]
    verdict: str
    args: Callable[..., tuple[Any, ...]]
    buckets: Any = field(default_factory=lambda: [3, 6])
    options: dict[str, Any] = field(default_factory=dict)
    zeros: bool = True
    graphs: int = 0


CASES: list[Case] = []


def floats(n, device, generator):
    x = torch.randn(n, WIDTH, generator=generator) * 2
    return ((x - 1.5 if n % 2 else x).to(device),)  # hardly a positive number in some calls


def positive(n, device, generator):
    return (floats(n, device, generator)[0].abs() + 0.1,)


def ids(n, device, generator):
    return (torch.randint(0, 11, (n, 5), generator=generator).to(device),)


def sequence(n, device, generator):
    return (torch.randn(2, n, WIDTH, generator=generator).to(device),)


def two(n, device, generator):
    return floats(n, device, generator) + floats(n, device, generator)


def masked(n, device, generator):
    (x,) = sequence(n, device, generator)
    mask = torch.rand(2, n, generator=generator) < 0.7
    mask[:, 0] = True
    return x, mask.long().to(device)


def bool_masked(n, device, generator):
    x, mask = masked(n, device, generator)
    return x, mask.bool()


def ignored(n, device, generator):
    x, mask = bool_masked(n, device, generator)
    return x, ~mask


def with_lengths(n, device, generator):
    (x,) = sequence(n, device, generator)
    return x, torch.randint(1, n + 1, (2,), generator=generator).to(device)


def case(verdict, args=floats, name=None, made=False, **more):
    """Put a function into the list; ``made``: it is called with the device and makes the one."""

    def add(fn):
        make = fn if made else lambda device: fn
        options = more.pop("options", {})
        CASES.append(Case(name or fn.__name__, make, verdict, args, options=options, **more))
        return fn

    return add


SEQ = {"buckets": {"seq": [4, 8]}, "options": {"dims": {"x": {1: "seq"}}}}
MASKED = {"buckets": {"seq": [4, 8]}, "options": {"dims": {"x": {1: "seq"}, "mask": {1: "seq"}}}}

# ---- rows of a batch, each for itself

for label, fn in {
    "twice": lambda x: x * 2,
    "itself": lambda x: x,
    "a view": lambda x: x[:, 2:4],
    "expanded": lambda x: x[:, None].expand(-1, 3, -1),
    "transposed": lambda x: x.T,
    "flattened": lambda x: x.reshape(-1, 2, 3).transpose(1, 2).reshape(len(x), -1),
    "softmax of a row": lambda x: x.softmax(-1),
    "norm of a row": lambda x: x / x.norm(dim=1, keepdim=True),
    "sorted row": lambda x: x.sort(1).values,
    "largest of a row": lambda x: x.topk(2, 1),
    "running sum of a row": lambda x: x.cumsum(1),
    "argmax of a row": lambda x: x.argmax(1),
    "FFT of a row": lambda x: torch.fft.rfft(x).abs(),
    "row against row": lambda x: torch.einsum("ni,nj->nij", x, x),
    "one hot of the argmax": lambda x: x.argmax(1)[:, None] == torch.arange(WIDTH, device=x.device),
    "distances of all to all": lambda x: torch.cdist(x, x),
    "a dict": lambda x: {"a": x + 1, "b": [x.sum(1), 7]},
    "places": lambda x: x + torch.arange(len(x), device=x.device)[:, None],
    "new zeros": lambda x: x.new_zeros(x.shape[0], 2).add_(x[:, :2]),
    "filled": lambda x: torch.full((x.shape[0], 1), 3.0, device=x.device) * x,
    "cat with itself": lambda x: torch.cat([x, x * 2], 1),
    "split and stacked": lambda x: torch.stack(x.chunk(2, 1), 1),
    "indexed columns": lambda x: x[:, torch.tensor([3, 1], device=x.device)],
    "written in place": lambda x: x.clone().mul_(3).relu_(),
    "column set": lambda x: torch.zeros_like(x).index_copy_(
        1, torch.arange(2, device=x.device), x[:, :2]
    ),
    "where": lambda x: torch.where(x > 0, x, x.exp()),
    "layer norm": lambda x: F.layer_norm(x, (WIDTH,)),
    "group norm": lambda x: F.group_norm(x, 2),
    "interpolated rows": lambda x: F.interpolate(x[:, None], scale_factor=2, mode="linear"),
    "convolved rows": lambda x: F.conv1d(x[:, None], torch.ones(2, 1, 3, device=x.device)),
    "median of a row": lambda x: x.median(1).values,
    "nothing of it": lambda x: torch.ones(3, device=x.device),
    "sizes that even out": lambda x: x * (len(x) - len(x) + 1),
    "distance to columns": lambda x: torch.cdist(
        x[:, None], torch.ones(1, 1, WIDTH, device=x.device)
    ),
    "gathered": lambda x: x.gather(1, (x[:, :2] > 0).long()),
    "scattered in a row": lambda x: torch.zeros_like(x).scatter_add_(1, (x > 0).long(), x),
    "counts in a row": lambda x: (x > 0).sum(1),
}.items():
    case(GRAPH, name=label)(fn)

case(GRAPH, positive, "logarithm")(lambda x: x.log().sum(1))
case(GRAPH, two, "two arguments")(lambda x, y: (x * y).sum(1))
case(GRAPH, two, "row of one with row of the other")(lambda x, y: F.cosine_similarity(x, y))


@case(GRAPH, made=True)
def mlp(device):
    layers = [nn.Linear(WIDTH, 16), nn.GELU(), nn.Dropout(), nn.LayerNorm(16), nn.Linear(16, 3)]
    return nn.Sequential(*layers).to(device).eval()


@case(GRAPH, made=True)
def batch_norm_in_evaluation(device):
    return nn.BatchNorm1d(WIDTH).to(device).eval()


@case(GRAPH, ids, made=True)
def embedded(device):
    return nn.Embedding(11, 4).to(device)


@case(GRAPH, ids, made=True, zeros=False)
def bag_of_words(device):
    return nn.EmbeddingBag(11, 4).to(device)


def batches(n, device, generator):
    return (torch.randn(n, 5, WIDTH, generator=generator).to(device),)


@case(GRAPH, batches, made=True)
def lstm(device):
    return nn.LSTM(WIDTH, 4, batch_first=True).to(device).eval()


@case(GRAPH, batches, made=True)
def gru(device):
    return nn.GRU(WIDTH, 4, batch_first=True, bidirectional=True).to(device).eval()


@case(GRAPH, batches, made=True)
def attention_within_each_row_of_the_batch(device):
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True).to(device).eval()
    return lambda x: attention(x, x, x)


@case(GRAPH, batches, made=True)
def transformer(device):
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(device).eval()


def images(n, device, generator):
    return (torch.randn(n, 3, 8, 8, generator=generator).to(device),)


@case(GRAPH, images, made=True)
def convolutions(device):
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*layers).to(device).eval()


# ---- rows of a batch that meet

for label, (fn, why) in {
    "mean": (lambda x: x - x.mean(0), MIXES),
    "mean of all": (lambda x: x - x.mean(), MIXES),
    "sum": (lambda x: x / x.sum(0), MIXES),
    "variance": (lambda x: x / x.var(0, unbiased=False), MIXES),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), MIXES),
    "norm over all": (lambda x: F.layer_norm(x, x.shape), MIXES),
    "softmax over rows": (lambda x: x.softmax(0), MIXES),
    "maximum": (lambda x: x - x.amax(0), MIXES),
    "maximum alone": (lambda x: x.amax(0), MIXES),
    "minimum, clamped": (lambda x: x + x.amin(0).clamp(max=0), MIXES),
    "sum alone": (lambda x: x.sum(), MIXES),
    "argmax over rows": (lambda x: x.argmax(0), MIXES),
    "nearest neighbour": (lambda x: torch.cdist(x, x).topk(1, largest=True).indices, MIXES),
    "logits": (lambda x: (x @ x.T).softmax(1).sum(1), MIXES),
    "attention over the batch": (lambda x: (x @ x.T).softmax(1) @ x, MIXES),
    "sorted": (lambda x: x.sort(0).values, MIXES),
    "largest of all": (lambda x: x.topk(1, 0).values, MIXES),
    "flipped": (lambda x: x.flip(0), MIXES),
    "rolled": (lambda x: x.roll(1, 0), MIXES),
    "last row": (lambda x: x[-1], MIXES),
    "last row to all": (lambda x: x + x[-1:], MIXES),
    "differences": (lambda x: torch.cat([x[1:], x[-1:]]) - x, MIXES),
    "running sum backwards": (lambda x: x.flip(0).cumsum(0).flip(0), MIXES),
    "FFT over rows": (lambda x: torch.fft.fft(x, dim=0).abs(), MIXES),
    "median": (lambda x: x - x.median(0).values, MIXES),
    "any": (lambda x: x * (x > 2).any(0), MIXES),
    "count of positive": (lambda x: x + (x > 0).sum(0), MIXES),
    "mean above a threshold": (lambda x: torch.where(x > 50, x.mean(0), x), MIXES),
    "mean of what is large": (lambda x: x + F.relu(x.mean(0) - 40), MIXES),
    "logsumexp": (lambda x: x - x.logsumexp(0), MIXES),
    "ranks": (lambda x: x.argsort(0).argsort(0), MIXES),
    "bins of a sum": (
        lambda x: x + torch.bucketize(x.sum(0), torch.tensor([1e4, 1e5], device=x.device)),
        MIXES,
    ),
    "third row": (lambda x: torch.where(x > 50, x[2:3].sum(0), x), MIXES),
    "mean as bool": (lambda x: (x > 0) | (x.mean(0) > 70), MIXES),
    "lerp": (lambda x: torch.lerp(x, x.mean(0), torch.zeros(WIDTH, device=x.device)), MIXES),
    "last set to zero": (
        lambda x: x.index_fill(0, torch.tensor(len(x) - 1, device=x.device), 0.0),
        MIXES,
    ),
    "rows in two": (lambda x: x.reshape(WIDTH, -1).T.reshape(-1, WIDTH).contiguous(), MIXES),
    "rolled flat": (lambda x: x.roll(1), MIXES),
    "half of the rows": (lambda x: x[: (len(x) + 1) // 2], "no dynamic dimension|shape|dimension"),
    "histogram": (lambda x: x + torch.histc(x, 4, -3, 3).sum(), MIXES),
    "scattered over rows": (
        lambda x: (
            x + torch.zeros(2, WIDTH, device=x.device).index_add(0, (x[:, 0] > 0).long(), x)[0]
        ),
        MIXES,
    ),
    "convolved over rows": (
        lambda x: F.conv1d(x.T[None], torch.ones(1, WIDTH, 3, device=x.device), padding=1)[0, 0],
        MIXES,
    ),
    "interpolated over rows": (
        lambda x: (
            F.interpolate(x.T[None], size=len(x) * 2 // 2, mode="linear")[0].T
            + F.interpolate(x.T[None], size=3, mode="linear")[0].mean()
        ),
        MIXES,
    ),
    "size as a number": (lambda x: x / len(x), MIXES),
    "size as a tensor": (lambda x: x * torch.tensor(float(len(x)), device=x.device), MIXES),
    "size in the result": (lambda x: {"rows": x + 1, "count": len(x)}, SIZE),
    "shape in the result": (lambda x: (x + 1, x.shape), SIZE),
    "larger than two": (lambda x: (x + 1, len(x) > 2), SIZE),
    "one row alone": (lambda x: x * 2 if x.shape[0] == 1 else x * 3, MIXES),
    "two rows alone": (lambda x: x * 2 if x.shape[0] == 2 else x * 3, MIXES),
    "squeezed": (lambda x: x[:, :1].squeeze(), "dimensions|shape"),
    "places over the size": (
        lambda x: x + torch.arange(len(x), device=x.device)[:, None] / len(x),
        MIXES,
    ),
    "places from the end": (
        lambda x: x + torch.arange(len(x), 0, -1, device=x.device)[:, None],
        MIXES,
    ),
    "linspace": (lambda x: x + torch.linspace(0, 1, len(x), device=x.device)[:, None], MIXES),
    "identity matrix": (lambda x: torch.eye(len(x), device=x.device) @ x + x.sum(0) * 0, MIXES),
    "argument in place": (lambda x: x.mul_(2), "writes to an argument"),
    "argument in place, another result": (lambda x: x.add_(1) * 0 + 5, "writes to an argument"),
    "random": (lambda x: x + torch.rand_like(x), "random numbers"),
    "random of one kind": (lambda x: x + torch.rand((), device=x.device), "random numbers"),
    "dropout": (lambda x: F.dropout(x, 0.5), "random numbers"),
    "decides by data": (lambda x: x * 2 if x.sum() > 0 else x, "the host decides"),
    "unique": (lambda x: x + x.round().unique().numel(), "the host decides|cannot be captured"),
    "standardised by the largest": (lambda x: x / x.abs().amax(), MIXES),
    "cumulative largest": (lambda x: x.flip(0).cummax(0).values.flip(0), MIXES),
    "first row, from the end": (lambda x: x - x[-len(x)] + x[len(x) - 1], MIXES),
    "outer product": (lambda x: torch.einsum("ni,mj->nij", x, x), MIXES),
    "covariance": (lambda x: x @ torch.cov(x.T, correction=0), MIXES),
    "power iteration": (lambda x: x @ (x.T @ x), MIXES),
    "pairs": (lambda x: F.pairwise_distance(x, x.flip(0)), MIXES),
}.items():
    case(why, name=label)(fn)

for rows in (4, 5, 17):
    case(MIXES, name=f"{rows} rows alone", buckets=[3, 20], graphs=2)(
        lambda x, rows=rows: x * 2 if len(x) == rows else x * 3
    )
case(MIXES, ids, "counts of tokens")(
    lambda x: (
        x
        + torch.zeros(11, device=x.device)
        .index_add(0, x.flatten(), torch.ones(x.numel(), device=x.device))
        .sum()
    )
)
case(MIXES, ids, "largest token")(lambda x: x - x.max())
case(MIXES, ids, "last token of all")(lambda x: x[-1, -1] + x)
case(MIXES, two, "contrastive")(lambda x, y: (x @ y.T).log_softmax(1).diagonal())
case(MIXES, two, "weighted mean")(lambda x, y: (x * y.softmax(0)).sum(0) + x)


@case(MIXES, made=True)
def batch_norm_in_training(device):
    return nn.BatchNorm1d(WIDTH).to(device).train()


@case(MIXES, batches, made=True)
def batch_second(device):
    attention = nn.MultiheadAttention(WIDTH, 2).to(device).eval()  # takes the rows for the tokens
    return lambda x: attention(x, x, x)[0]


@case(MIXES, batches, made=True)
def instance_statistics_over_the_batch(device):
    return lambda x: F.instance_norm(x.permute(1, 2, 0)).permute(2, 0, 1)


class Remembers(nn.Module):
    """A buffer, and a function of the module and its argument."""

    def __init__(self, run, *shape):
        super().__init__()
        self.register_buffer("memory", torch.zeros(shape))
        self.run = run

    def forward(self, x):
        return self.run(self, x)


@case(SIZE + "|writes outside", made=True)
def counts_rows(device):
    def run(module, x):
        module.memory.add_(x.shape[0])
        return x * 2

    return Remembers(run).to(device)


@case(GRAPH, made=True)
def counts_calls(device):
    def run(module, x):
        module.memory.add_(1)
        return x * 2

    return Remembers(run).to(device)


@case("writes outside|written outside", made=True)
def remembers_the_sum(device):
    def run(module, x):
        module.memory.copy_(x.sum(0))
        return x * 2

    return Remembers(run, WIDTH).to(device)


@case("writes outside|written outside", made=True)
def keeps_the_rows(device):
    def run(module, x):
        module.memory[: len(x)] = x
        return x + module.memory[0]

    return Remembers(run, 8, WIDTH).to(device)


@case(MIXES, made=True)
def mixes_with_weights_that_are_still_zero(device):
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Parameter(torch.zeros(WIDTH))
            self.out = nn.Parameter(torch.zeros(WIDTH, WIDTH))

        def forward(self, x):
            return x + x.mean(0) * self.gate + x.softmax(0) @ self.out

    return Gated().to(device)


def tokens_and_mask(n, device, generator):
    (x,), (_, mask) = ids(2, device, generator), masked(n, device, generator)
    return x.repeat(1, n)[:, :n], mask


@case(
    GRAPH,
    tokens_and_mask,
    made=True,
    buckets={"seq": [4, 8]},
    options={"dims": {"input_ids": {1: "seq"}, "mask": {1: "seq"}}},
    zeros=False,
)
def a_mask_is_no_index(device):
    table = nn.Embedding(11, WIDTH).to(device)
    return lambda input_ids, mask: attended_additive(table(input_ids), mask)


# ---- sequences without a mask

for label, (fn, why) in {
    "twice": (lambda x: x * 2, GRAPH),
    "a layer": (lambda x: F.layer_norm(x, (WIDTH,)).relu(), GRAPH),
    "positions": (lambda x: x + torch.arange(x.shape[1], device=x.device)[:, None], GRAPH),
    "running sum": (lambda x: x.cumsum(1), GRAPH),
    "running maximum": (lambda x: x.cummax(1).values, GRAPH),
    "causal attention": (
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        GRAPH,
    ),
    "causal attention by hand": (
        lambda x: (
            (x @ x.mT)
            .masked_fill(
                ~torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril(),
                float("-inf"),
            )
            .softmax(-1)
            @ x
        ),
        GRAPH,
    ),
    "causal convolution": (
        lambda x: F.conv1d(F.pad(x.mT, (2, 0)), torch.ones(WIDTH, WIDTH, 3, device=x.device)).mT,
        GRAPH,
    ),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), MIXES),
    "mean": (lambda x: x.mean(1), MIXES),
    "sum": (lambda x: x.sum(1), MIXES),  # right with zeros, which nobody can see in operations
    "maximum": (lambda x: x.amax(1), MIXES),
    "argmax": (lambda x: x.argmax(1), MIXES),
    "last": (lambda x: x[:, -1], MIXES),
    "last added": (lambda x: x + x[:, -1:], MIXES),
    "backwards": (lambda x: x.flip(1), MIXES),
    "running sum backwards": (lambda x: x.flip(1).cumsum(1).flip(1), MIXES),
    "convolution": (
        lambda x: F.conv1d(x.mT, torch.ones(WIDTH, WIDTH, 3, device=x.device), padding=1).mT,
        MIXES,
    ),
    "alternating": (
        lambda x: x * (1 - 2 * (torch.arange(x.shape[1], 0, -1) % 2)).to(x)[:, None],
        MIXES,
    ),
    "length": (lambda x: x / x.shape[1] ** 0.5, MIXES),
    "norm over the sequence": (lambda x: F.layer_norm(x, x.shape[1:]), MIXES),
    "FFT": (lambda x: torch.fft.fft(x, dim=1).real, MIXES),
}.items():
    case(why, sequence, f"sequence: {label}", **{k: dict(v) for k, v in SEQ.items()})(fn)


@case(GRAPH, sequence, made=True, buckets={"seq": [4, 8]}, options={"dims": {"x": {1: "seq"}}})
def all_states_of_an_lstm(device):
    lstm = nn.LSTM(WIDTH, 4, batch_first=True).to(device).eval()
    return lambda x: lstm(x)[0]


@case(MIXES, sequence, made=True, buckets={"seq": [4, 8]}, options={"dims": {"x": {1: "seq"}}})
def last_state_of_an_lstm(device):
    lstm = nn.LSTM(WIDTH, 4, batch_first=True).to(device).eval()
    return lambda x: lstm(x)[1][0]


@case(MIXES, sequence, made=True, buckets={"seq": [4, 8]}, options={"dims": {"x": {1: "seq"}}})
def lstm_in_both_directions(device):
    lstm = nn.LSTM(WIDTH, 4, batch_first=True, bidirectional=True).to(device).eval()
    return lambda x: lstm(x)[0]


@case(
    GRAPH, with_lengths, buckets={"seq": [4, 8]}, options={"dims": {"x": {1: "seq"}}}, zeros=False
)
def row_at_a_length(x, lengths):
    return x[torch.arange(2, device=x.device), (lengths - 1).clamp(min=0)]


@case(
    MIXES, with_lengths, buckets={"seq": [4, 8]}, options={"dims": {"x": {1: "seq"}}}, zeros=False
)
def row_before_a_length_that_may_be_zero(x, lengths):
    return x[torch.arange(2, device=x.device), lengths - 1]


@case(
    MIXES, with_lengths, buckets={"seq": [4, 8]}, options={"dims": {"x": {1: "seq"}}}, zeros=False
)
def mean_of_the_whole_beside_lengths(x, lengths):
    return x.mean(1) + lengths[:, None]


# ---- sequences with a mask


def pooled(x, mask):
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def attended(x, mask):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask.bool()[:, None])


def attended_additive(x, mask):
    bias = (1.0 - mask.to(x.dtype))[:, None] * torch.finfo(x.dtype).min
    return ((x @ x.mT) + bias).softmax(-1) @ x


def attended_minus_ten_thousand(x, mask):
    return ((x @ x.mT) - (1.0 - mask.to(x.dtype))[:, None] * 10000).softmax(-1) @ x


for fn in (pooled, attended, attended_additive, attended_minus_ten_thousand):
    case(GRAPH, masked, **{k: dict(v) for k, v in MASKED.items()})(fn)
    case(GRAPH, bool_masked, f"{fn.__name__}, bool", **{k: dict(v) for k, v in MASKED.items()})(
        lambda x, mask, fn=fn: fn(x, mask.long())
    )

for label, fn in {
    "ignored": lambda x, mask: x.mean(1) + 0 * mask.sum(1, keepdim=True),
    "inverted": lambda x, mask: pooled(x, 1 - mask),
    "inverted attention": lambda x, mask: attended(x, mask == 0),
    "maximum of zeros": lambda x, mask: (x * mask[..., None]).amax(1),
    "mean over the length": lambda x, mask: (x * mask[..., None]).mean(1),
    "last, masked": lambda x, mask: x[:, -1] * mask[:, :1],
    "position from the end": lambda x, mask: x[:, -1:] + x * mask[..., None],
    "part of the mask": lambda x, mask: x * mask.float().mean(1)[:, None, None],
}.items():
    case(f"{MIXES}|{SIZE}", masked, f"mask: {label}", **{k: dict(v) for k, v in MASKED.items()})(fn)

case(GRAPH, masked, "mask: maximum of what counts", **{k: dict(v) for k, v in MASKED.items()})(
    lambda x, mask: x.masked_fill(mask[..., None] == 0, float("-inf")).amax(1)
)
case(GRAPH, masked, "mask: last that counts", **{k: dict(v) for k, v in MASKED.items()})(
    lambda x, mask: x[torch.arange(2, device=x.device), mask.cumsum(1).argmax(1)]
)
case(GRAPH, masked, "mask: positions by counting", **{k: dict(v) for k, v in MASKED.items()})(
    lambda x, mask: x + mask.cumsum(1)[..., None]
)


@case(
    GRAPH,
    ignored,
    made=True,
    buckets={"seq": [4, 8]},
    options={"dims": {"x": {1: "seq"}, "ignored_mask": {1: "seq"}}, "pad": {"ignored_mask": 1}},
    zeros=False,
)
def key_padding_mask_that_is_padded_with_true(device):
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True).to(device).eval()
    return lambda x, ignored_mask: attention(
        x, x, x, key_padding_mask=ignored_mask, need_weights=False
    )[0]


@case(
    MIXES,
    ignored,
    made=True,
    buckets={"seq": [4, 8]},
    options={"dims": {"x": {1: "seq"}, "ignored_mask": {1: "seq"}}},
)
def key_padding_mask_that_is_padded_with_false(device):
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True).to(device).eval()
    return lambda x, ignored_mask: attention(
        x, x, x, key_padding_mask=ignored_mask, need_weights=False
    )[0]


@case(
    MIXES,
    bool_masked,
    buckets={"seq": [4, 8]},
    options={"dims": {"x": {1: "seq"}, "mask": {1: "seq"}}, "pad": "last"},
)
def mask_padded_with_its_last_value(x, mask):
    return pooled(x, mask.long())


def same(got, expected, size):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, equal_nan=True, msg=f"{size}")


def sizes_of(case):
    sizes = case.buckets.values() if isinstance(case.buckets, dict) else [case.buckets]
    return range(1, max(map(max, sizes)) + 1)


@torch.no_grad()
@pytest.mark.parametrize("first", ["capture", "calls"])
@pytest.mark.parametrize("case", sampled(CASES, 10, of_long=13), ids=lambda case: case.name)
def test_no_row_that_is_kept_sees_the_padding(device, case, first):
    torch.manual_seed(0)
    eager = case.make(device)
    torch.manual_seed(0)
    fn = case.make(device)
    pool = gfxgraph.ShapeBucketPool(fn, case.buckets, **case.options)
    generator = torch.Generator().manual_seed(1)
    sizes = [*sizes_of(case)] * 2
    if first == "capture":
        example = case.args(sizes[-1], device, generator)
        if case.zeros:
            example = tuple(torch.ones_like(a) if a.dtype is torch.bool else a * 0 for a in example)
        pool.capture(*example)
    for turn, size in enumerate(sizes):
        args = case.args(size, device, generator)
        torch.manual_seed(turn)
        given = [a.clone() for a in args]
        try:
            expected = eager(*given)
        except ValueError as error:  # batch norm of a single row
            with pytest.raises(ValueError, match=str(error).partition(",")[0]):
                pool(*args)
            continue
        torch.manual_seed(turn)
        mine = [a.clone() for a in args]
        same(pool(*mine), expected, size)
        same(mine, given, size)
    if isinstance(fn, nn.Module):
        same(list(fn.buffers()), list(eager.buffers()), "state")
    stats = pool.stats()
    if case.verdict == GRAPH:
        assert not stats.refused and stats.replays and stats.captures == 2, stats.refused
    else:
        reasons = " ".join(stats.refused.values())
        assert len(stats.graphs) <= case.graphs and stats.refused
        assert any(part in reasons for part in case.verdict.split("|")), reasons
