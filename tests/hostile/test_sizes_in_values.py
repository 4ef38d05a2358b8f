"""Functions with buckets that compute with a size, where the first call of that size hides it.

What is multiplied by zeros shows in no result, and small sizes need not do what large ones do.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gfxgraph
from tests.helpers.sampled import sampled

pytestmark = pytest.mark.filterwarnings("ignore")


def repeated(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    for _ in range(x.shape[0] // 10):
        x = x + gate
    return x


# The number of rows goes into the result by way of `gate`.
GATED = {
    "a number": lambda x, gate: x + gate * (x.shape[0] // 10),
    "a number of some sizes": lambda x, gate: x + gate * (x.shape[0] < 10),
    "a branch": lambda x, gate: x + gate if x.shape[0] < 10 else x,
    "a loop": repeated,
    "a count of ones": lambda x, gate: x + gate * torch.ones_like(x[:, :1]).sum(),
    "a count above a threshold": lambda x, gate: (
        x + gate * F.relu(torch.ones_like(x[:, :1]).sum() - 10)
    ),
    "a mean": lambda x, gate: x + gate * (torch.ones_like(x).cumsum(0)[-1:] > 10),
    "arange": lambda x, gate: x + gate * torch.arange(x.shape[0], device=x.device)[-1],
    "addcmul": lambda x, gate: torch.addcmul(x, gate, gate, value=x.shape[0] // 10),
    "a power": lambda x, gate: x + gate ** (1 + x.shape[0] // 10),
    "lerp": lambda x, gate: torch.lerp(x, x + gate, x.shape[0] / 16),
    "full": lambda x, gate: x + gate * x.new_full((4,), x.shape[0] // 10),
    "a constant of the host": lambda x, gate: x + gate * torch.tensor(x.shape[0] // 10),
    "some of the rows": lambda x, gate: torch.cat(
        [
            x[: x.shape[0] // 2] + gate.expand_as(x)[x.shape[0] - x.shape[0] // 2 :],
            x[x.shape[0] // 2 :],
        ]
    ),
    "where it is positive": lambda x, gate: (
        x + (gate > 0) * torch.ones_like(x[:, :1]).sum().to(x.dtype)
    ),
    "a view of it": lambda x, gate: x + gate[..., :4] * (x.shape[0] // 10),
    "where": lambda x, gate: x + torch.where(torch.tensor(x.shape[0] > 10), gate, gate * 2),
}
ORDERS = {
    "from a size between": (12, 5, 9, 5, 3, 16, 12, 5, 14, 9, 14, 3),
    "from the largest": (16, 12, 5, 9, 5, 12, 9, 1, 1),
    "from a small one": (3, 12, 14, 16, 12, 9, 9, 5, 5),
}


def compared(pool: Any, fn: Any, calls: Any) -> None:
    for args in calls:
        torch.testing.assert_close(pool(*args), fn(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", sampled(ORDERS, 2))
@pytest.mark.parametrize("name", GATED)
@torch.no_grad()
def test_zeros_in_an_argument_hide_no_size(device, name, order):
    fn = GATED[name]
    pool = gfxgraph.graphed(fn, buckets={"rows": [8, 16]}, dims={"x": {0: "rows"}})
    for value in (0.0, 1.0, 0.5):
        gate = torch.full((4,), value, device=device)
        compared(pool, fn, [(torch.randn(n, 4, device=device), gate) for n in ORDERS[order]])


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
@pytest.mark.parametrize("name", sorted(GATED.keys() - {"addcmul", "a power"}))
@torch.no_grad()
def test_zeros_that_are_no_floats_hide_no_size(device, name, dtype):
    fn = GATED[name]
    pool = gfxgraph.graphed(fn, buckets={"rows": [8, 16]}, dims={"x": {0: "rows"}})
    for value in (0, 1, 2):
        gate = torch.full((4,), value, device=device, dtype=dtype)
        sizes = ORDERS["from a size between"]
        compared(pool, fn, [(torch.randn(n, 4, device=device), gate) for n in sizes])


@torch.no_grad()
def test_whole_numbers_that_are_indices_stay_within_the_table(device):
    table = torch.randn(3, 4, device=device)

    def fn(x, row):
        return x + F.embedding(row + 1, table) * (row + 1.5) + table.index_select(0, row.view(1))

    pool = gfxgraph.graphed(fn, buckets={"rows": [8, 16]}, dims={"x": {0: "rows"}})
    for row in (1, 0):
        row = torch.tensor(row, device=device)
        compared(pool, fn, [(torch.randn(n, 4, device=device), row) for n in (12, 5, 12, 5, 12)])
    assert not pool.stats().refused and pool.stats().replays >= 7


@pytest.mark.parametrize("order", sampled(ORDERS, 2))
@pytest.mark.parametrize("name", GATED)
@torch.no_grad()
def test_zeros_in_a_padded_argument_hide_no_size(device, name, order):
    def fn(x, gate):
        return GATED[name](x, gate)

    pool = gfxgraph.graphed(fn, buckets=[16])
    for value in (0.0, 1.0):
        sizes = ORDERS[order]
        calls = [(torch.randn(n, 4, device=device), torch.full((n, 1), value)) for n in sizes]
        compared(pool, fn, [(x, gate.to(device)) for x, gate in calls])


class Gated(nn.Module):
    def __init__(self, name: str, kind: str, shape: tuple[int, ...] = (4,)) -> None:
        super().__init__()
        self.fn = GATED[name]
        gate = torch.full(shape, 1.0 if kind == "ones" else 0.0)
        if kind == "of a layer":
            self.layer = nn.Linear(4, 4)
            nn.init.zeros_(self.layer.weight), nn.init.zeros_(self.layer.bias)
        self.gate = nn.Parameter(gate)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "of a layer":
            return x + self.layer(self.fn(x, torch.ones_like(x[0])) - x)
        if self.kind == "ones":
            return self.fn(x, self.gate - 1)
        return self.fn(x, self.gate)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("kind", sampled(["zeros", "ones", "of a layer"], 3))
@pytest.mark.parametrize("name", GATED)
@torch.no_grad()
def test_weights_of_one_number_hide_no_size(device, name, kind, captured):
    model = Gated(name, kind).to(device)
    pool = gfxgraph.ShapeBucketPool(model, [8, 16])
    if captured:
        pool.capture(torch.randn(16, 4, device=device))
    for _ in range(2):
        sizes = ORDERS["from a size between"]
        compared(pool, model, [(torch.randn(n, 4, device=device),) for n in sizes])
        for weight in model.parameters():
            weight.copy_(torch.rand_like(weight) + 0.5)


@torch.no_grad()
def test_a_row_of_equal_rows_is_taken_by_no_size(device):
    model = Gated("a number", "zeros", (32, 4)).to(device)
    model.fn = lambda x, table: x + table[x.shape[0]]
    pool = gfxgraph.ShapeBucketPool(model, [8, 16])
    for _ in range(2):
        sizes = ORDERS["from a size between"]
        compared(pool, model, [(torch.randn(n, 4, device=device),) for n in sizes])
        model.gate.copy_(torch.randn_like(model.gate))
    assert pool.stats().replays == 0 and pool.stats().refused


@torch.no_grad()
def test_zero_steps_hide_no_number(device):
    def noised(x, step):  # a step may be an index, so no other is made up
        return x + step.unsqueeze(-1) * (x.shape[0] // 10)

    for bucket, sizes in ((16, (12, 5, 9, 5, 12, 9)), (8, (20, 8, 20, 24))):
        pool = gfxgraph.graphed(noised, buckets=[bucket], larger="split")
        for step in (0, 3):
            calls = [(torch.randn(n, 4), torch.full((n,), step)) for n in sizes]
            compared(pool, noised, [(x.to(device), s.to(device)) for x, s in calls])
        reasons = " ".join((*pool.stats().refused.values(), *pool.stats().fallbacks))
        assert "a number that depends on the size of 'batch' goes into aten.mul" in reasons


@torch.no_grad()
def test_zeros_hide_no_size_where_calls_are_cut_into_pieces(device):
    model = Gated("a number", "zeros").to(device)
    pool = gfxgraph.ShapeBucketPool(model, [8], larger="split")
    for _ in range(2):
        compared(pool, model, [(torch.randn(n, 4, device=device),) for n in (20, 5, 20, 24, 8, 20)])
        model.gate.copy_(torch.rand_like(model.gate) + 0.5)


@torch.no_grad()
def test_zeros_hide_no_two_sizes(device):
    def fn(x, gate):
        return x + gate * (x.shape[0] * x.shape[1] > 60)

    pool = gfxgraph.graphed(
        fn, buckets={"rows": [4, 8], "seq": [8, 16]}, dims={"x": {0: "rows", 1: "seq"}}
    )
    sizes = ((7, 9), (3, 5), (5, 13), (8, 16), (7, 9), (5, 9), (5, 9), (5, 13), (3, 5), (8, 9))
    for value in (0.0, 1.0):
        gate = torch.full((4,), value, device=device)
        compared(pool, fn, [(torch.randn(*size, 4, device=device), gate) for size in sizes])


class Usual(nn.Module):
    """As layers are after `__init__`: weights of ones and of zeros, which the number of rows does
    not touch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.scale = nn.Parameter(torch.zeros(()))
        self.places = nn.Parameter(torch.zeros(1, 6, 16))
        self.register_buffer(
            "mask", torch.zeros(6, 6).masked_fill(~torch.ones(6, 6).tril().bool(), -1e9)
        )
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x + self.places, src_mask=self.mask)
        return x + self.scale * self.norm(y.transpose(1, 2)).transpose(1, 2)


@torch.no_grad()
def test_weights_as_layers_begin_with_are_no_reason_to_refuse(device):
    model = Usual().to(device).eval()
    pool = gfxgraph.ShapeBucketPool(model, [4, 16])
    for _ in range(2):
        sizes = (3, 9, 12, 3, 9, 12, 1, 1)
        compared(pool, model, [(torch.randn(n, 6, 16, device=device),) for n in sizes])
        model.scale.fill_(0.5)
    assert not pool.stats().refused and pool.stats().replays >= 9


@torch.no_grad()
def test_two_tensors_of_zeros_do_not_hide_each_other(device):
    weight = torch.zeros(3, 4, device=device)

    def fn(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return x + gate if x.shape[0] < 10 else x + weight[:1]

    pool = gfxgraph.graphed(fn, buckets={"rows": [16]}, dims={"x": {0: "rows"}})
    for value in (0.0, 1.0):
        gate = torch.full((4,), value, device=device)
        compared(pool, fn, [(torch.randn(n, 4, device=device), gate) for n in (13, 8, 8, 13, 8)])
