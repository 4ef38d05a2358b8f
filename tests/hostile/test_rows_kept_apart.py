"""Functions with buckets whose rows are kept apart by values alone, which may be others later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import gfxgraph

pytestmark = pytest.mark.filterwarnings("ignore")

Rows = Callable[[torch.Tensor], torch.Tensor]


def agree(graphed: Any, fn: Any, *calls: tuple[torch.Tensor, ...]) -> None:
    for args in calls:
        torch.testing.assert_close(graphed(*args), fn(*args), rtol=1e-4, atol=1e-4)


def pool(fn: Any, name: str = "x") -> Any:
    return gfxgraph.graphed(fn, buckets={"rows": [4, 8]}, dims={name: {0: "rows"}})


# ---- values between, which no made input makes others than zero


def above(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x - 1000)


MIXED: dict[str, Rows] = {
    "gram": lambda x: (above(x) @ above(x).t()).sum(1),
    "linear attention": lambda x: (above(x) @ above(x).t()) @ x,
    "einsum": lambda x: torch.einsum("ij,kj->i", above(x), above(x)),
    "linear": lambda x: F.linear(above(x), above(x)).sum(1),
    "addmm": lambda x: torch.addmm(x[:, :1] * 0, above(x), above(x).t()).sum(1),
    "bmm": lambda x: torch.bmm(above(x)[None], above(x).t()[None]).mean(2)[0],
    "bilinear": lambda x: F.bilinear(above(x), above(x).flip(0), x.new_ones(2, 2, 2)),
    "a diagonal": lambda x: (above(x) @ above(x).t()).flip(1).diagonal(),
    "mse_loss": lambda x: x + F.mse_loss(above(x), above(x) * 0),
    "huber_loss": lambda x: x + F.huber_loss(above(x), above(x) * 0),
    "dist": lambda x: x + torch.dist(above(x), above(x) * 0),
    "cumprod": lambda x: above(x).flip(0).cumprod(0).flip(0),
    "prod": lambda x: x + above(x).prod(0),
    "mean": lambda x: x + above(x).mean(0),
    "equal ids": lambda x: (x == 2000).float() @ (x == 2000).float().t() @ x,
    "a threshold that few pass": lambda x: (F.relu(x - 2) @ F.relu(x - 2).t()) @ x,
}


@pytest.mark.parametrize("name", MIXED)
@torch.no_grad()
def test_zeros_between_hide_no_row_that_meets_others(device, name):
    small = torch.ones(3, 2, device=device)
    large = torch.tensor([[1.0], [2.0], [3.0]], device=device) * 2000 * small
    agree(pool(MIXED[name]), MIXED[name], *[(small,)] * 3, (large,), (large[:2],), (large,))


# ---- zeros of other rows, which made inputs seldom have

NONE: dict[str, Rows] = {
    "bool": lambda x: x + (~x.bool()).sum(0),
    "copied to bool": lambda x: (
        x + (~torch.empty_like(x, dtype=torch.bool).copy_(x)).float().mean(0)
    ),
    "bool, as a mean": lambda x: x + x.bool().float().mean(0),
    "count_nonzero": lambda x: x + x.count_nonzero(0) / (x * 0 + 1).count_nonzero(0),
    "all": lambda x: x + x.all(0),
    "searchsorted": lambda x: (
        x + torch.searchsorted(x[:, 0].abs().cumsum(0), (x[:, 0] == 0) * 10.0)[:, None]
    ),
    "bucketize": lambda x: (
        x + torch.bucketize((x[:, 0] == 0) * 10.0, x[:, 0].abs().cumsum(0))[:, None]
    ),
}


@pytest.mark.parametrize("name", NONE)
@torch.no_grad()
def test_rows_that_become_zero_hide_nothing(device, name):
    ones = torch.ones(3, 2, device=device)
    last = torch.tensor([[1.0, 1.0], [1.0, 2.0], [0.0, 0.0]], device=device)
    agree(pool(NONE[name]), NONE[name], *[(ones,)] * 3, (last,), (last[1:],), (last,))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@torch.no_grad()
def test_a_mask_that_is_padded_with_its_last_row_is_data(device, dtype):
    def fn(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + above(x) * mask.float().mean()

    both = {"x": {0: "rows"}, "mask": {0: "rows"}}
    graphed = gfxgraph.graphed(fn, buckets={"rows": [4]}, dims=both)
    small, large = torch.ones(3, 2, device=device), torch.full((3, 2), 2000.0, device=device)
    ones, some = (torch.tensor(m, device=device).to(dtype) for m in ([1, 1, 1], [1, 0, 0]))
    agree(graphed, fn, *[(small, ones)] * 3, (large, some), (large, some))


# ---- sizes that come in tensors

COUNTED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "arange": lambda x, limit: x * (torch.arange(len(x), device=x.device)[-1] + 1 < limit),
    "arange, reversed": lambda x, limit: (
        x * (torch.arange(len(x), device=x.device).flip(0)[:, None] + 1 < limit)
    ),
    "linspace": lambda x, limit: (
        x * (torch.linspace(0, 3, len(x), device=x.device)[:, None] < limit - 1)
    ),
    "new_ones": lambda x, limit: x * (x.new_ones(len(x)).sum() < limit),
    "zeros_like": lambda x, limit: x * ((torch.zeros_like(x[:, 0]) + 1).sum() < limit),
    "full": lambda x, limit: x * (torch.full((len(x),), 1.0, device=x.device).sum() < limit),
    "eye": lambda x, limit: x * (torch.eye(len(x), device=x.device).sum() < limit),
    "empty, filled": lambda x, limit: x * (x.new_empty(len(x)).fill_(1).sum() < limit),
    "ones, written to": lambda x, limit: x * (x.new_ones(len(x)).mul_(1).sum() < limit),
    "a cumulated sum": lambda x, limit: x * (x.new_ones(len(x)).cumsum(0)[-1] < limit),
    "one element, expanded": lambda x, limit: x * (x.new_ones(1).expand(len(x)).sum() < limit),
    "an argument, expanded": lambda x, limit: x * ((limit * 0 + 1).expand(len(x)).sum() < limit),
    "values of the data": lambda x, limit: x * ((x[:, 0] * 0 + 1).sum() < limit),
}


@pytest.mark.parametrize("name", COUNTED)
@torch.no_grad()
def test_a_size_in_a_tensor_is_a_size(device, name):
    fn, x = COUNTED[name], torch.ones(3, 2, device=device)
    high, low = torch.tensor(100.0, device=device), torch.tensor(3.5, device=device)
    agree(pool(fn), fn, *[(x, high)] * 3, (x, low), (x, low), (x[:2], low))


# ---- values from outside

Outside = tuple[
    Callable[[torch.Tensor], torch.Tensor],
    Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    Callable[[torch.Tensor], torch.Tensor],
]


def corner(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return t[: len(x), : len(x)]


def scores(x: torch.Tensor) -> torch.Tensor:
    return x @ x.t()


def attend(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(x[None], x[None], x[None], attn_mask=mask)[0]


def causal(fill: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: t.new_full((8, 8), fill).triu(1)


def lower(t: torch.Tensor) -> torch.Tensor:
    return t.new_ones(8, 8).tril().bool()


# What is outside at first, the function, and the change to it.
OUTSIDE: dict[str, Outside] = {
    "attention, bool": (lower, lambda x, t: attend(x, corner(x, t)), lambda t: t.fill_(True)),
    "attention, -inf": (
        causal(-torch.inf),
        lambda x, t: attend(x, corner(x, t)),
        lambda t: t.zero_(),
    ),
    "scores plus -inf": (
        causal(-torch.inf),
        lambda x, t: (scores(x) + corner(x, t)).softmax(-1) @ x,
        lambda t: t.zero_(),
    ),
    "scores plus -1e9": (
        causal(-1e9),
        lambda x, t: (scores(x) + corner(x, t)).softmax(-1) @ x,
        lambda t: t.zero_(),
    ),
    "scores, filled": (
        lambda t: ~lower(t),
        lambda x, t: scores(x).masked_fill(corner(x, t), -1e9).softmax(-1) @ x,
        lambda t: t.fill_(False),
    ),
    "scores, filled where it is not": (
        lower,
        lambda x, t: scores(x).masked_fill(~corner(x, t), -1e9).softmax(-1) @ x,
        lambda t: t.fill_(True),
    ),
    "scores, where": (
        lower,
        lambda x, t: torch.where(corner(x, t), scores(x), -1e9).softmax(-1) @ x,
        lambda t: t.fill_(True),
    ),
    "a product": (
        lambda t: t.new_ones(8, 8).tril(),
        lambda x, t: (scores(x) * corner(x, t)) @ x,
        lambda t: t.fill_(1),
    ),
    "mixing": (lambda t: torch.eye(8).to(t), lambda x, t: corner(x, t) @ x, lambda t: t.fill_(1)),
    "a convolution": (
        lambda t: torch.nn.init.dirac_(t.new_empty(2, 2, 3)),
        lambda x, t: F.conv1d(x.t(), t, padding=1).t(),
        lambda t: t.fill_(1),
    ),
    "a gate": (
        lambda t: t.new_full((1,), -1e9),
        lambda x, t: x + t.sigmoid() * x.mean(0),
        lambda t: t.zero_(),
    ),
    "weights of rows": (
        lambda t: torch.eye(8)[0].to(t),
        lambda x, t: x * t[: len(x)].sum(),
        lambda t: t.fill_(1),
    ),
    "a flag": (
        lambda t: t.new_zeros(8, dtype=torch.bool),
        lambda x, t: x * (1 + t[: len(x)].any()),
        lambda t: t[3].fill_(True),
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
@torch.no_grad()
def test_a_change_in_place_of_what_keeps_rows_apart_is_seen(device, name):
    make, fn, change = OUTSIDE[name]
    t = make(torch.ones((), device=device)).clone()
    x = torch.arange(6.0, device=device).view(3, 2)
    graphed = pool(lambda x: fn(x, t))
    for changes in (False, True):
        if changes:
            change(t)
        agree(graphed, lambda x: fn(x, t), *[(x,)] * 3, (x[:2],), (x,))


@pytest.mark.parametrize("name", OUTSIDE)
@torch.no_grad()
def test_an_argument_without_a_size_may_let_rows_meet_in_another_call(device, name):
    make, fn, change = OUTSIDE[name]
    t = make(torch.ones((), device=device)).clone()
    other = t.clone()
    change(other)
    x = torch.arange(6.0, device=device).view(3, 2)
    agree(pool(fn), fn, *[(x, t)] * 3, (x, other), (x[:2], other), (x, t), (x, other))


@torch.no_grad()
def test_weights_that_keep_nothing_apart_may_change_without_another_capture(device):
    weight, bias = torch.randn(2, 2, device=device), torch.zeros(2, device=device)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.linear(x, weight, bias), (2,), weight[0], bias)

    graphed, x = pool(fn), torch.randn(3, 2, device=device)
    agree(graphed, fn, *[(x,)] * 3)
    weight.mul_(2)
    bias.add_(1)
    agree(graphed, fn, *[(x,)] * 2)
    assert graphed.stats().captures == 1 and not graphed.stats().refused


def rotary(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(len(x), device=x.device).float()[:, None]
    return x * (places * torch.tensor([1.0, 0.1], device=x.device)).cos()


APART: dict[str, Rows] = {
    "a causal mask": lambda x: (
        scores(x).masked_fill(x.new_ones(len(x), len(x)).triu(1).bool(), -torch.inf).softmax(-1) @ x
    ),
    "a causal mask of positions": lambda x: attend(
        x,
        torch.arange(len(x), device=x.device)[None]
        <= torch.arange(len(x), device=x.device)[:, None],
    ),
    "a causal mask of floats": lambda x: (
        (scores(x) + x.new_full((len(x), len(x)), -1e9).triu(1)).softmax(-1) @ x
    ),
    "positions": lambda x: x + torch.arange(len(x), device=x.device)[:, None].float().sin(),
    "rotary": rotary,
    "a buffer": lambda x: x.new_zeros(len(x), 4).index_copy(
        1, torch.tensor([0, 1], device=x.device), x
    ),
    "the identity": lambda x: torch.eye(len(x), device=x.device).tril() @ x,
    "is_causal": lambda x: F.scaled_dot_product_attention(
        x[None], x[None], x[None], is_causal=True
    )[0],
}


CONTEXT = torch.arange(40.0).view(1, 5, 8).sin()


def of_a_context(name: str, device: Any) -> Callable[..., torch.Tensor]:
    """A model whose rows keep apart, and are given one context for all of them."""
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).to(device).eval()
    decoder = torch.nn.TransformerDecoderLayer(8, 2, 16, batch_first=True).to(device).eval()
    project = torch.nn.Linear(8, 8).to(device)
    experts = torch.randn(3, 8, 4, device=device)

    def attended(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        of_each = c.expand(len(x), -1, -1)
        return attention(x, of_each, of_each)[0]

    def first(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        turned = c.transpose(0, 1).expand(-1, len(x), -1).contiguous()
        return x + project(turned).transpose(0, 1)

    return {
        "attention": attended,
        "a decoder": lambda x, c: decoder(x, c.expand(len(x), -1, -1)),
        "queries": lambda x, c: decoder(c.repeat(len(x), 1, 1), x),
        "the sequence first": first,
        "experts": lambda x, c: torch.einsum("nd,edf->nef", x[:, 0], experts) + c[0, 0, 0],
        "a condition": lambda x, c: x * c[:, :1].sin() + c[:, 1:2].cos(),
    }[name]


@pytest.mark.parametrize(
    "name",
    ["attention", "a decoder", "queries", "the sequence first", "experts", "a condition"],
)
@torch.no_grad()
def test_a_context_that_all_rows_share_is_no_reason_to_refuse(device, name):
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        fn = of_a_context(name, device)
        graphed, context = pool(fn), CONTEXT.to(device)
        calls = [(torch.randn(n, 5, 8, device=device), context) for n in (3, 6, 3, 6, 5, 1, 8, 1)]
        agree(graphed, fn, *calls)
        assert graphed.stats().replays and not graphed.stats().refused, graphed.stats().refused
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@torch.no_grad()
def test_a_mask_of_features_for_each_row_is_padded(device):
    def fn(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = x.sum(-1).masked_fill(mask, -torch.inf).softmax(-1)
        return (scores[..., None] * x).sum(1)

    both = {"x": {0: "rows"}, "mask": {0: "rows"}}
    graphed = gfxgraph.graphed(fn, buckets={"rows": [4, 8]}, dims=both)
    ignored = torch.arange(5, device=device) > 2
    agree(
        graphed,
        fn,
        *[
            (torch.randn(n, 5, 8, device=device), ignored.expand(n, 5).contiguous())
            for n in (3, 6, 5, 3, 6, 5, 8, 1, 5, 1)
        ],
    )
    assert graphed.stats().replays and not graphed.stats().refused, graphed.stats().refused


@pytest.mark.parametrize("name", APART)
@torch.no_grad()
def test_what_keeps_rows_apart_in_any_case_is_padded(device, name):
    graphed = pool(APART[name])
    calls = [(torch.randn(n, 2, device=device),) for n in (3, 6, 5, 3, 6, 5, 1, 8, 5)]
    agree(graphed, APART[name], *calls)
    assert graphed.stats().replays and not graphed.stats().refused, graphed.stats().refused


# ---- indices


def places(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(len(x), device=x.device)


def longer(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, torch.zeros_like(x[:1])])


BEHIND: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index": lambda x, k: longer(x)[places(x) + k],
    "gather": lambda x, k: longer(x).gather(0, (places(x) + k)[:, None].expand(-1, 2)),
    "index_select": lambda x, k: longer(x).index_select(0, places(x) + k),
    "embedding": lambda x, k: F.embedding(places(x) + k, longer(x)),
    "take": lambda x, k: longer(x).take((places(x) + k) * 2),
}


@pytest.mark.parametrize("name", BEHIND)
@torch.no_grad()
def test_an_index_that_may_lead_behind_the_padding_is_refused(device, name):
    of_argument = BEHIND[name]

    def of_data(x: torch.Tensor) -> torch.Tensor:
        return of_argument(x, (x[:, 0] > 1000).long())

    small = torch.ones(3, 2, device=device)
    large = torch.tensor([[1.0, 1.0], [2000.0, -5.0], [2000.0, 4000.0]], device=device)
    by_data, by_argument = pool(of_data), pool(of_argument)
    agree(by_data, of_data, *[(small,)] * 3, (large,), (large[1:],))
    none, one = (torch.tensor(k, device=device) for k in (0, 1))
    agree(by_argument, of_argument, *[(large, none)] * 3, (large, one), (large[:2], one))
    assert by_data.stats().refused and by_argument.stats().refused


LOOKED_UP: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "the last token": lambda x, n: x[places(x), n - 1],
    "the last token, gathered": lambda x, n: x.gather(1, (n - 1)[:, None, None].expand(-1, 1, 8)),
    "rows": lambda x, n: x[(n - 1).clamp(min=0)],
    "rows, selected": lambda x, n: x.index_select(0, (n - 1).clamp(min=0)),
    "a class": lambda x, n: x.log_softmax(-1).gather(-1, n[:, None, None].expand(-1, 5, 1)),
}


@pytest.mark.parametrize("name", LOOKED_UP)
@torch.no_grad()
def test_a_place_for_each_row_is_looked_up_in_a_bucket(device, name):
    fn, both = LOOKED_UP[name], {"x": {0: "rows"}, "n": {0: "rows"}}
    graphed = gfxgraph.graphed(fn, buckets={"rows": [4, 8]}, dims=both)
    calls = [
        (torch.randn(n, 5, 8, device=device), torch.ones(n, dtype=torch.long, device=device))
        for n in (3, 6, 5, 3, 6, 5, 8, 1, 5)
    ]
    others = [(x, torch.arange(len(x), device=device) % min(len(x), 5) + 1) for x, _ in calls]
    agree(graphed, fn, *calls, *others)
    assert graphed.stats().replays and not graphed.stats().refused, graphed.stats().refused


SCHEDULE = torch.arange(1000.0) ** 1.5
"""As of the noise of a diffusion model, by time."""

BY_TIME: dict[str, tuple[bool, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "each row its own": (True, lambda s, t: s[(t * 999).long()] * t),
    "gathered": (True, lambda s, t: s.gather(0, (t * 999).long())),
    "taken": (True, lambda s, t: s.take((t * 999).long()) + s.take((t > 0.5).long())),
    "embedded": (True, lambda s, t: F.embedding((t * 999).long(), s[:, None])),
    "interpolated": (
        True,
        lambda s, t: torch.lerp(s[(t * 998).long()], s[(t * 998).long() + 1], t),
    ),
    "the latest of all": (False, lambda s, t: s[(t.amax() * 999).long()] + t),
    "the sum of all": (False, lambda s, t: s[(t.sum().clamp(0, 1) * 999).long()] + t),
    "added up": (True, lambda s, t: s[(t * 999).long()].cumsum(0)),
    "by the size": (False, lambda s, t: s[((t * 900).long() + len(t))]),
    "a row of another time": (False, lambda s, t: t[(t * 0.999 * len(t)).long()]),
    "sorted": (False, lambda s, t: s[(t * 999).long().sort()[0]]),
}


@pytest.mark.parametrize("buckets", [[4, 8], [32]])
@pytest.mark.parametrize("name", BY_TIME)
@torch.no_grad()
def test_a_function_that_makes_indices_of_its_data_is_judged_by_data_of_that_range(
    device, name, buckets
):
    keeps_apart, by_time = BY_TIME[name]
    schedule = SCHEDULE.to(device)

    def fn(t: torch.Tensor) -> torch.Tensor:
        return by_time(schedule, t)

    graphed = gfxgraph.graphed(fn, buckets={"rows": buckets}, dims={"t": {0: "rows"}})
    agree(graphed, fn, *((torch.rand(n, device=device),) for n in (3, 3, 3, 7, 5, 8, 1, 6)))
    assert bool(graphed.stats().replays) == keeps_apart, graphed.stats().refused


# ---- negative indices, which count back from the end of the padding

NEARLY_ALL = torch.tensor([0, 1, 0, 1, 0, 0, 0, -2, 0, 0])
BACK: dict[str, tuple[bool, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "an index that is given": (False, lambda x, i, t: x[i]),
    "looked up": (False, lambda x, i, t: x + x[t[i]]),
    "looked up by data": (False, lambda x, i, t: x[t[(x[:, 0] * 9).round().long()]]),
    "computed": (False, lambda x, i, t: x[-2 * (i // 7)]),
    "taken": (False, lambda x, i, t: x[:, 0] + x[:, 0].take(t[i])),
    "written": (False, lambda x, i, t: x.index_put((t[i],), x.new_zeros(()))),
    "clamped to negative ones": (False, lambda x, i, t: x[t[i].clamp(0, -1) * 2]),
    "one of two": (False, lambda x, i, t: x[torch.where(i < 7, i, -2)]),
    "a difference": (False, lambda x, i, t: x[i % 3 - 3 * (i // 7)]),
    "changed in place": (False, lambda x, i, t: x[t[i].abs().mul_(-1)]),
    "filled": (False, lambda x, i, t: x.index_fill(0, t[i], 0.0)),
    "clamped": (True, lambda x, i, t: x[t[i].clamp(min=0)]),
    "of a table without negative ones": (True, lambda x, i, t: x[t.abs()[i]]),
    "the rest of a division": (True, lambda x, i, t: x[t[i] % 2]),
    "selected, where none is negative": (True, lambda x, i, t: x.index_select(0, t[i].abs())),
}


@pytest.mark.parametrize("name", BACK)
@torch.no_grad()
def test_an_index_that_may_count_back_from_the_end_is_refused(device, name):
    keeps_apart, of_table = BACK[name]
    table = NEARLY_ALL.to(device)

    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return of_table(x, i, table)

    graphed = gfxgraph.graphed(
        fn, buckets={"rows": [4, 8]}, dims={"x": {0: "rows"}, "i": {0: "rows"}}
    )
    x = torch.rand(6, 2, device=device) / 2
    few, some = (torch.tensor(i, device=device) for i in ([1, 0, 2], [1, 2, 0, 1, 2, 0]))
    agree(graphed, fn, (x[:3], few), (x[:3], few), (x, some), (x, some))
    x[0, 0] = 7 / 9
    back = few * 0 + (-2 if name == "an index that is given" else 7)
    agree(graphed, fn, (x[:3], back), (x[:3], back))
    assert bool(graphed.stats().refused) != keeps_apart, graphed.stats().refused
    assert bool(graphed.stats().replays) == keeps_apart


# ---- indices that are all the same in the first call, of tables that are

Tables = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
INDEXED: dict[str, Callable[[torch.Tensor, torch.Tensor, Tables], torch.Tensor]] = {
    "one hot": lambda x, i, t: x + F.one_hot(i, 6).float() @ t[3],
    "one hot, times zeros": lambda x, i, t: x + F.one_hot(i, 6).float() @ t[0],
    "a class that is hidden": lambda x, i, t: x.scatter(1, i[:, None], 0.0),
    "a class that is hidden in place": lambda x, i, t: x.clone().scatter_(1, i[:, None], 0.0),
    "an element that is written": lambda x, i, t: x.index_put((places(x), i), t[1][0]),
    "a loss for each row": lambda x, i, t: F.cross_entropy(x, i, reduction="none"),
    "a sum of embeddings": lambda x, i, t: F.embedding_bag(i[:, None].expand(-1, 3), t[3]),
    "a largest of zeros": lambda x, i, t: F.embedding_bag(i[:, None], t[0], mode="max"),
    "bags with an end": lambda x, i, t: F.embedding_bag(
        i, t[3], torch.arange(len(x) + 1, device=x.device), include_last_offset=True
    ),
    "columns": lambda x, i, t: x + t[3].t()[:, i].t(),
    "columns of zeros": lambda x, i, t: x + t[0].t()[:, i].t(),
    "between dimensions": lambda x, i, t: t[3].expand(2, 3, 6, 5)[0, :, i, 1:],
}
MEETING: dict[str, Callable[[torch.Tensor, torch.Tensor, Tables], torch.Tensor]] = {
    "a bag": lambda x, i, t: x + F.embedding_bag(i[None], t[0], mode="sum"),
    "the mean of a bag": lambda x, i, t: x + F.embedding_bag(i[None], t[0], mode="mean"),
    "the largest of a bag": lambda x, i, t: x + F.embedding_bag(i[None], t[3], mode="max"),
    "one hot": lambda x, i, t: x + (F.one_hot(i, 6) * t[1]).sum(),
    "the largest one hot": lambda x, i, t: x + F.one_hot(i, 6).float().amax(0)[:5],
    "a mean loss": lambda x, i, t: x + F.nll_loss(t[1].expand(len(i), 6), i),
    "zeros among zeros": lambda x, i, t: x + t[1].scatter(0, i, 0.0).sum(),
    "zeros in place": lambda x, i, t: x + t[1].clone().scatter_(0, i, 0.0)[:5],
    "the largest scattered": lambda x, i, t: x + t[1].scatter_reduce(0, i, t[1][i], "amax")[:5],
    "written": lambda x, i, t: x + t[1].index_put((i,), t[1][0])[:5],
    "written to one of two": lambda x, i, t: x + t[2].index_put((i * 0, i), t[2][0, 0]).sum(),
    "filled": lambda x, i, t: x + t[1].index_fill(0, i, 0.0)[:5],
    "copied": lambda x, i, t: x + t[1].index_copy(0, i, t[1][i])[:5],
    "added": lambda x, i, t: x + t[1].index_add(0, i, t[1][i])[:5],
    "put": lambda x, i, t: x + t[1].put(i, t[1][i])[:5],
    "columns": lambda x, i, t: x + t[2][:, i].amax(1).sum(),
    "taken": lambda x, i, t: x + t[2].take(i).amax(),
    "taken into": lambda x, i, t: x + torch.take(t[2], i, out=t[1].new_empty(len(i))).amax(),
    "selected": lambda x, i, t: x + t[2].index_select(1, i).amin(),
    "gathered": lambda x, i, t: x + t[1].gather(0, i).amin(),
    "embedded": lambda x, i, t: x + F.embedding(i, t[0]).amax(),
}


QUICK = "one hot", "a sum of embeddings", "between dimensions"


@pytest.mark.parametrize(
    ("name", "keeps_apart", "pad"),
    [
        pytest.param(name, kept, pad, marks=() if is_quick else pytest.mark.long)
        for cases, kept in ((INDEXED, True), (MEETING, False))
        for name in cases
        for pad in ("last", "zero")
        for is_quick in [pad == "last" and (name in QUICK or (not kept and len(name) < 9))]
    ],
)
@torch.no_grad()
def test_an_index_that_is_the_same_in_all_rows_hides_nothing(device, name, keeps_apart, pad):
    if name == "bags with an end" and device == "cpu":
        pytest.skip("without data torch gives one result too many")
    of_tables = (INDEXED if keeps_apart else MEETING)[name]
    shapes = (6, 5), (6,), (3, 6), (6, 5)
    tables = *(torch.zeros(shape, device=device) for shape in shapes[:3]), torch.rand(6, 5)
    tables = tuple(table.to(device) for table in tables)

    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return of_tables(x, i, tables)

    graphed = gfxgraph.graphed(
        fn, buckets={"rows": [4, 8]}, dims={"x": {0: "rows"}, "i": {0: "rows"}}, pad=pad
    )

    width = 6 if "class" in name or "loss" in name or "element" in name else 5

    def called_with(*indices: list[int]) -> None:
        calls = ((torch.randn(len(i), width), torch.tensor(i)) for i in indices)
        agree(graphed, fn, *((x.to(device), i.to(device)) for x, i in calls))

    called_with([0, 0, 0], [0, 0, 0], [0, 0], [2, 3, 2], [4, 4, 4])
    for table in tables:
        table.copy_(torch.rand(table.shape))
    called_with([1, 2, 3], [5, 5, 4], [0, 1, 0], [5, 3], [1, 2, 3, 0, 5], [4, 3, 2, 1, 0, 5])
    assert bool(graphed.stats().replays) == keeps_apart, graphed.stats().refused


# ---- indices along a dimension for which the call has a mask

Pick = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def mixed(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = (x @ x.mT).masked_fill(~mask[:, None], torch.finfo(x.dtype).min)
    return scores.softmax(-1) @ x


ALONG: dict[str, tuple[bool, Pick]] = {
    "an index that is given": (False, lambda x, mask, i: x[places(x), i]),
    "after attention": (False, lambda x, mask, i: mixed(x, mask)[places(x), i]),
    "the length of a mask": (False, lambda x, mask, i: x[places(x), mask.sum(1) - 1]),
    "that, after attention": (False, lambda x, mask, i: mixed(x, mask)[places(x), mask.sum(1) - 1]),
    "behind the padding": (
        False,
        lambda x, mask, i: torch.cat([x, x[:, :1] * 0], 1)[places(x), mask.sum(1)],
    ),
    "written": (False, lambda x, mask, i: x.index_put((places(x), i), x.new_zeros(()))),
    "clamped": (True, lambda x, mask, i: x[places(x), (mask.sum(1) - 1).clamp(min=0)]),
    "clamped, after attention": (
        True,
        lambda x, mask, i: mixed(x, mask)[places(x), (mask.sum(1) - 1).clamp(min=0)],
    ),
    "the last that counts": (
        True,
        lambda x, mask, i: x[
            places(x), (mask * torch.arange(mask.shape[1], device=x.device)).argmax(1)
        ],
    ),
    "gathered": (True, lambda x, mask, i: x.gather(1, i.abs()[:, None, None].expand(-1, 1, 2))),
}


@pytest.mark.parametrize("name", ALONG)
@torch.no_grad()
def test_an_index_may_not_count_back_along_a_dimension_with_a_mask(device, name):
    is_padded, fn = ALONG[name]
    both = {0: "rows", 1: "seq"}
    graphed = gfxgraph.graphed(
        fn,
        buckets={"rows": [4], "seq": [8]},
        dims={"x": both, "mask": both, "i": {0: "rows"}},
    )
    for lengths, index in ([3, 5], [0, 1]), ([1, 4], [2, 3]), ([2, 5], [1, 1]), ([0, 3], [-2, 2]):
        x = torch.randn(2, 5, 2, device=device)
        counts = torch.arange(5) < torch.tensor(lengths)[:, None]
        mask = (counts | (torch.arange(5) == 1) if "attention" in name else counts).to(device)
        i = torch.tensor(index, device=device)
        torch.testing.assert_close(graphed(x, mask, i), fn(x, mask, i), rtol=1e-4, atol=1e-4)
    assert bool(graphed.stats().replays) == is_padded, graphed.stats().refused


# ---- numbers that stand for minus infinity

FAR = torch.finfo(torch.float32).min
HIDDEN: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "filled": lambda x, hidden: x.masked_fill(hidden, FAR),
    "filled with less": lambda x, hidden: x.masked_fill(hidden, -1e9),
    "added": lambda x, hidden: x + torch.where(hidden, FAR, 0.0),
    "chosen": lambda x, hidden: torch.where(hidden, FAR, x),
}


@pytest.mark.parametrize("name", HIDDEN)
@torch.no_grad()
def test_a_number_far_above_the_others_hides_no_row_that_meets_others(device, name):
    hidden = torch.tensor([False, False, False, True], device=device)

    def meets(x: torch.Tensor) -> torch.Tensor:
        shares = HIDDEN[name](x, hidden).softmax(1)
        return torch.where(shares > 0.9, shares.mean(0), shares)

    def keeps_apart(x: torch.Tensor) -> torch.Tensor:
        return HIDDEN[name](x, hidden).softmax(1) * 2

    sizes = (0.1, 0.1, 0.1, 20.0, 20.0)
    for fn in meets, keeps_apart:
        graphed = pool(fn)
        agree(graphed, fn, *((torch.randn(3, 4, device=device) * size,) for size in sizes))
        assert bool(graphed.stats().replays) == (fn is keeps_apart), graphed.stats().refused
