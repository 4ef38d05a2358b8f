"""How arguments lie in memory: by which strides torch lays out results, and what memory they share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import gfxgraph


def last(x: torch.Tensor) -> torch.Tensor:
    """``x``, a channel more, in memory as torch lays it out."""
    return torch.cat([x, x + 1], 1)


LAID_OUT: dict[str, Callable[[torch.Tensor], Any]] = {
    "as it is": last,
    "its strides": lambda x: x + last(x).stride()[1],
    "a branch": lambda x: last(x) * (2 if last(x).is_contiguous() else 3),
    "a view or a copy": lambda x: (y := last(x), y.reshape(len(x), -1).mul_(0))[0],
    "a convolution": lambda x: F.conv2d(x, x.new_ones(3, 1, 1, 1)),
    "pooled": lambda x: F.avg_pool2d(last(x), 2),
}


@pytest.mark.parametrize("name", LAID_OUT)
@torch.no_grad()
def test_the_stride_of_one_channel_is_part_of_the_key(device, name):
    fn = LAID_OUT[name]
    graphed = gfxgraph.graphed(fn)
    images = torch.arange(32.0, device=device).view(2, 4, 4, 1)
    first, second = images.reshape(2, 1, 4, 4), images.permute(0, 3, 1, 2)
    for x in first, first, second, second, first, second:
        got, expected = graphed(x), fn(x)
        assert torch.equal(got, expected) and got.stride() == expected.stride()
    assert graphed.stats().replays >= 2


IN_ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "multiplied": lambda x: torch.relu(x @ x.new_ones(3, 4)) * 2,
    "a branch": lambda x: (x + 1) * (2 if (x + 1).is_contiguous() else 3),
    "a view or a copy": lambda x: (y := x + 1, y.reshape(-1).mul_(0))[0],
}


@pytest.mark.parametrize("buckets", [[8], [4, 8]])
@pytest.mark.parametrize("name", IN_ROWS)
@torch.no_grad()
def test_a_transposed_argument_gets_no_bucket_of_others(device, name, buckets):
    fn = IN_ROWS[name]
    graphed = gfxgraph.graphed(fn, buckets=buckets)
    for n, is_transposed in (
        (5, 0),
        (5, 0),
        (5, 1),
        (8, 1),
        (8, 0),
        (3, 1),
        (5, 1),
        (1, 0),
        (1, 1),
    ):
        x = torch.randn(3, n, device=device).t() if is_transposed else torch.randn(n, 3).to(device)
        got, expected = graphed(x), fn(x)
        torch.testing.assert_close(got, expected)
        assert n == 1 or got.stride() == expected.stride()  # of one row, its stride says nothing
    assert graphed.stats().replays


def copied(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x, y = copy.deepcopy([a, b])
    x.add_(1)
    return x + y


SHARED = {
    "copied": copied,
    "an alias": lambda a, b: a * (2.0 if torch._C._is_alias_of(a, b) else 5.0),
}


@pytest.mark.parametrize("name", SHARED)
@torch.no_grad()
def test_arguments_that_share_memory_may_be_told_from_others(device, name):
    fn, outside = SHARED[name], torch.ones(3, device=device)
    of_two = gfxgraph.graphed(fn)
    of_one = gfxgraph.graphed(lambda a: fn(a, outside))
    for n in range(8):
        a = torch.full((3,), float(n), device=device)
        b = a[:] if n in (3, 4, 6) else a.clone()
        assert torch.equal(of_two(a, b), fn(a, b)), n
        c = outside[:] if n in (3, 4, 6) else a
        assert torch.equal(of_one(c), fn(c, outside)), n
    assert of_two.stats().captures
