"""Functions whose rows depend on one another or do not, called with many sizes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.hostile.hostile_twins import DEVICE, t

_SIZES = (1, 3, 2, 4, 5, 8, 1, 7)


def rows(n: int) -> Any:
    """A matrix of another number of rows in each call."""
    return (t(n, _SIZES[n % len(_SIZES)], 3),)


def _conv(x: Any) -> Any:
    return F.conv1d(x.t()[None], torch.ones(1, 3, 3, device=DEVICE), padding=1)[0].t()


def _rnn() -> Any:
    torch.manual_seed(0)
    net = torch.nn.GRU(3, 4).to(DEVICE)
    return lambda x: net(x)[1]


#: name -> a function of one matrix with any number of rows.
ROWS: dict[str, Any] = {
    "pointwise": lambda x: x.sin() * 2,
    "a layer": lambda x, w=t(99, 3, 3): x @ w,
    "a sum over columns": lambda x: x.sum(-1),
    "layer norm": lambda x: F.layer_norm(x, (3,)),
    "the mean over rows": lambda x: x - x.mean(0),
    "the sum over rows": lambda x: x.sum(0),
    "the sum over everything": lambda x: x.sum(),
    "the maximum over rows": lambda x: x.amax(0),
    "the minimum over rows": lambda x: x.amin(0),
    "softmax over rows": lambda x: x.softmax(0),
    "cumsum over rows": lambda x: x.cumsum(0),
    "cummax over rows": lambda x: x.cummax(0).values,
    "a flip of the rows": lambda x: x.flip(0),
    "a roll of the rows": lambda x: x.roll(1, 0),
    "sorted rows": lambda x: x.sort(0).values,
    "the last row": lambda x: x[-1],
    "the first row": lambda x: x[0],
    "all but the last row": lambda x: x[:-1],
    "differences of rows": lambda x: x[1:] - x[:-1],
    "scores between rows": lambda x: x @ x.t(),
    "attention between rows": lambda x: (x @ x.t()).softmax(-1) @ x,
    "distances between rows": lambda x: torch.cdist(x, x),
    "the number of rows": lambda x: x * x.shape[0],
    "one over the number of rows": lambda x: x / len(x),
    "a branch on the number of rows": lambda x: x * 2 if x.shape[0] == 1 else x * 3,
    "a branch on an even number of rows": lambda x: x * 2 if x.shape[0] % 2 else x * 3,
    "the size as a value": lambda x: (x * 2, x.shape[0]),
    "the size in text": lambda x: (x * 2, f"{x.shape[0]} rows"),
    "the size as a tensor": lambda x: torch.full((1,), float(x.shape[0]), device=DEVICE),
    "positions": lambda x: x + torch.arange(x.shape[0], device=DEVICE)[:, None],
    "positions from the end": lambda x: x + torch.arange(x.shape[0], 0, -1, device=DEVICE)[:, None],
    "a mask of positions": lambda x: (
        x * (torch.arange(len(x), device=DEVICE) < len(x) - 1)[:, None]
    ),
    "the argmax of a column": lambda x: x[:, 0].argmax(),
    "the top rows": lambda x: x[:, 0].topk(1).indices,
    "a histogram": lambda x: torch.histc(x, 4, -2, 2),
    "the norm of everything": lambda x: x / x.norm().clamp(min=1),
    "the standard deviation": lambda x: x / (x.std(0, correction=0) + 1),
    "a median": lambda x: x.median(0).values,
    "a convolution over rows": _conv,
    "an FFT over rows": lambda x: torch.fft.fft(x, dim=0).abs(),
    "an interpolation": lambda x: F.interpolate(x.t()[None], size=4)[0],
    "a reshape across rows": lambda x: x.reshape(-1),
    "a reshape to columns": lambda x: x.reshape(3, -1),
    "the transposed": lambda x: x.t(),
    "a repeat": lambda x: x.repeat(2, 1),
    "a stack of itself": lambda x: torch.stack([x, x * 2]),
    "a concatenation with a row": lambda x: torch.cat([torch.zeros(1, 3, device=DEVICE), x]),
    "a concatenation of columns": lambda x: torch.cat([x, x * 2], 1),
    "random noise": lambda x: x + torch.rand_like(x),
    "dropout": lambda x: F.dropout(x, 0.5),
    "one random number": lambda x: x + torch.rand((), device=DEVICE),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "an all() over rows": lambda x: x * (x > -3).all(),
    "an any() over rows": lambda x: x * (x > 1.5).any(),
    "a product over rows": lambda x: x.prod(0),
    "a zero padding it sees": lambda x: (x == 0).sum(),
    "logical rows": lambda x: (x > 0).any(-1),
    "an index by rows": lambda x: x[torch.arange(len(x), device=DEVICE)],
    "an expanded first row": lambda x: x + x[:1],
    "an expanded last row": lambda x: x + x[-1:],
    "a gather between rows": lambda x: x[x[:, 0].argsort(stable=True)],
    "in place": lambda x: x.mul_(2),
    "in place in a row": lambda x: (x[0].fill_(5), x + 1)[1],
    "itself": lambda x: x,
    "a constant": lambda x: torch.ones(3, device=DEVICE),
    "masked": lambda x: x[x > 0],
    "a read": lambda x: x * float(x.sum() > 0),
    "a list of rows": lambda x: list(x),
    "a sum of rows in Python": lambda x: sum(x),
    "an empty slice": lambda x: x[:0],
    "a dict": lambda x: {"a": x * 2, "b": x.sum(-1)},
    "a batched product": lambda x: torch.bmm(x[:, :, None], x[:, None]),
    "an einsum over rows": lambda x: torch.einsum("ij,ik->jk", x, x),
    "a covariance": lambda x: torch.cov(x.t(), correction=0),
    "a kernel density": lambda x: (-(x[:, None] - x[None]).square().sum(-1)).exp().mean(1),
    "a nan fill": lambda x: x.nan_to_num().sum(-1),
    "a clamp by the largest": lambda x: x.clamp(max=x.max() / 2),
    "a GRU over rows": _rnn(),
}


def _stateful(make: Any) -> Any:
    return make


def _counting_rows() -> Any:
    from types import SimpleNamespace

    s = SimpleNamespace(seen=torch.zeros((), device=DEVICE))

    def fn(x: Any) -> Any:
        s.seen.add_(x.shape[0])
        return x * 2

    return fn, s


def _keeping_rows() -> Any:
    from types import SimpleNamespace

    s = SimpleNamespace(last=torch.zeros(3, device=DEVICE))

    def fn(x: Any) -> Any:
        s.last.copy_(x[-1])
        return x * 2

    return fn, s


def _summing_rows() -> Any:
    from types import SimpleNamespace

    s = SimpleNamespace(total=torch.zeros(3, device=DEVICE))

    def fn(x: Any) -> Any:
        s.total.add_(x.sum(0))
        return x + s.total

    return fn, s


STATEFUL: dict[str, Any] = {
    "rows that are counted": _counting_rows,
    "the last row kept": _keeping_rows,
    "rows that are summed up": _summing_rows,
}
