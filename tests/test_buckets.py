"""Buckets: any size is padded to the next one, replayed, and cut to what was asked for."""

from __future__ import annotations

import dataclasses
import itertools
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gfxgraph
from gfxgraph.call.traffic import padded_work
from gfxgraph.errors import ArgumentError

# ---- buckets chosen from traffic


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(st.integers(1, 40), st.integers(1, 50), min_size=1, max_size=8),
    st.integers(1, 8),
)
def test_no_other_choice_of_so_many_buckets_pads_less(histogram, count):
    chosen = gfxgraph.suggest_buckets(histogram, count=count)
    assert chosen == sorted(set(chosen)) and len(chosen) == min(count, len(histogram))
    assert chosen[-1] == max(histogram)
    others = itertools.combinations(sorted(histogram), len(chosen) - 1)
    best = min(padded_work(histogram, [*other, max(histogram)]) for other in others)
    assert padded_work(histogram, chosen) == best


def test_sizes_may_come_one_by_one_and_many():
    sizes = [n % 977 + 1 for n in range(0, 97700, 13)]
    chosen = gfxgraph.suggest_buckets(iter(sizes), count=16)
    assert len(chosen) == 16 and chosen[-1] == max(sizes)
    even = [max(sizes) * n // 16 for n in range(1, 17)]
    assert padded_work(sizes, chosen) <= padded_work(sizes, even)


@pytest.mark.parametrize(
    ("sizes", "count", "message"),
    [
        ([], 3, "no sizes"),
        ([4, 0], 3, "0 is no size"),
        ([4, -2], 3, "-2 is no size"),
        ([1.5], 3, "1.5 is no size"),
        ([4], 0, "count=0"),
        ([4], True, "count=True"),
    ],
)
def test_what_is_no_size_is_refused(sizes, count, message):
    with pytest.raises(ArgumentError, match=message):
        gfxgraph.suggest_buckets(sizes, count=count)


# ---- any size


def net(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(device).eval()


def rows(device, count, width=8):
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, width, generator=generator).to(device)


class Attention(nn.Module):
    """Rows of tokens that see one another where the mask lets them."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.mix = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, input_ids, attention_mask):
        x = self.embed(input_ids)
        y, _ = self.mix(x, x, x, key_padding_mask=attention_mask == 0, need_weights=False)
        return {"tokens": y, "pooled": (y * attention_mask[..., None]).sum(1)}


TWO = {"input_ids": {0: "batch", 1: "seq"}, "attention_mask": {0: "batch", 1: "seq"}}


@torch.no_grad()
def test_a_call_of_any_size_gives_the_rows_asked_for(device):
    model = net(device)
    pool = gfxgraph.ShapeBucketPool(model_fn=model, buckets=[1, 4, 8])
    for count in [3, 1, 8, 5, 4, 2, 7, 3, 1]:
        x = rows(device, count)
        got = pool(x)
        assert got.shape == (count, 4)
        torch.testing.assert_close(got, model(x))
    stats = pool.stats()
    assert stats.captures == 3 and not stats.fallbacks
    assert stats.asked == 34 and stats.computed == 4 + 1 + 8 + 8 + 4 + 4 + 8 + 4 + 1
    assert stats.padding == pytest.approx(1 - 34 / 42)
    assert pool.suggest(2) == gfxgraph.suggest_buckets([3, 1, 8, 5, 4, 2, 7, 3, 1], count=2)


@torch.no_grad()
def test_two_dimensions_a_mask_and_a_dict_of_outputs(device):
    torch.manual_seed(0)
    model = Attention().to(device).eval()
    pool = gfxgraph.ShapeBucketPool(model, {"batch": [2, 4], "seq": [8, 16]}, dims=TWO)
    generator = torch.Generator().manual_seed(1)
    for count, length in itertools.product([1, 2, 3, 4], [3, 8, 11, 16]):
        ids = torch.randint(0, 50, (count, length), generator=generator).to(device)
        mask = torch.ones_like(ids)
        got = pool(ids, attention_mask=mask)
        expected = model(ids, mask)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    stats = pool.stats()
    assert stats.captures == 4 and not stats.fallbacks
    assert stats.dims == ("batch", "seq") and stats.traffic[3, 11] == 1
    assert pool.suggest(1, "seq") == [16]


@torch.no_grad()
def test_a_model_that_mixes_rows_is_refused_with_the_reason(device):
    model = nn.BatchNorm1d(8).to(device).train()
    twin = nn.BatchNorm1d(8).to(device).train()
    pool = gfxgraph.ShapeBucketPool(model, [4, 8])
    for count in (3, 5, 4, 7):
        torch.testing.assert_close(pool(rows(device, count)), twin(rows(device, count)))
    (first, second) = pool.stats().fallbacks
    assert "changes the rows asked for" in first and "rows influence each other" in second
    torch.testing.assert_close(model.running_mean, twin.running_mean)
    assert int(model.num_batches_tracked) == 4


@torch.no_grad()
def test_what_the_comparison_writes_is_taken_back(device):
    seen = torch.zeros((), device=device)

    def counted(x):
        seen.add_(1)
        return x * 2

    pool = gfxgraph.ShapeBucketPool(counted, [4])
    for count in (1, 2, 3, 4):
        torch.testing.assert_close(pool(rows(device, count)), rows(device, count) * 2)
    assert int(seen) == 4


@torch.no_grad()
@pytest.mark.parametrize(
    ("pad", "wrong"),
    [("last", False), (1.0, False), (lambda t, dim, size: torch.ones(size, 8).to(t), True)],
)
def test_what_to_pad_with_is_a_choice(device, pad, wrong):
    def normalised(x):
        return x / x.abs().amin(1, keepdim=True)

    pool = gfxgraph.ShapeBucketPool(normalised, [4], pad=pad)
    torch.testing.assert_close(pool(rows(device, 3)), normalised(rows(device, 3)))
    assert bool(pool.stats().fallbacks) == wrong  # the function does not keep the rows


@torch.no_grad()
def test_an_output_without_the_dimension_comes_whole(device):
    table = torch.arange(5.0, device=device)

    def both(x):
        return x + 1, table * 2, "name"

    pool = gfxgraph.ShapeBucketPool(both, [4])
    for _ in range(2):
        got, same, name = pool(rows(device, 3))
        assert got.shape == (3, 8) and name == "name"
        torch.testing.assert_close(same, table * 2)


# ---- above the largest, and none


@torch.no_grad()
def test_above_the_largest_bucket_a_call_runs_eagerly_in_pieces_or_not_at_all(device):
    model = net(device)
    eager = gfxgraph.ShapeBucketPool(model, [2, 4])
    split = gfxgraph.ShapeBucketPool(model, [2, 4], larger="split")
    for pool, count in itertools.product((eager, split), (9, 11, 8)):
        torch.testing.assert_close(pool(rows(device, count)), model(rows(device, count)))
    assert eager.stats().fallbacks == {"batch is above the largest bucket": 3}
    assert not split.stats().fallbacks and split.stats().captures == 2
    assert split.stats().traffic == eager.stats().traffic == {(9,): 1, (11,): 1, (8,): 1}
    assert split.stats().asked == 28 and split.stats().computed == (4 + 4 + 2) + 12 + 8
    with pytest.raises(ArgumentError, match="batch 9 is above the largest bucket, 4"):
        gfxgraph.ShapeBucketPool(model, [2, 4], larger="error")(rows(device, 9))


@torch.no_grad()
def test_no_rows_give_no_rows(device):
    pool = gfxgraph.ShapeBucketPool(net(device), [4])
    assert pool(rows(device, 0)).shape == (0, 4)


@torch.no_grad()
def test_all_buckets_can_be_captured_before_the_first_call(device):
    model = net(device)
    pool = gfxgraph.ShapeBucketPool(model, [1, 4, 16])
    order = []

    def progress(todo):
        order.extend(todo)
        return todo

    pool.capture(rows(device, 5), progress=progress)
    assert order == [(16,), (4,), (1,)] and pool.stats().captures == 3
    for count in (1, 2, 9, 16):
        torch.testing.assert_close(pool(rows(device, count)), model(rows(device, count)))
    assert pool.stats().captures == 3
    pool.reset()
    assert pool.stats().captures == 0


@torch.no_grad()
def test_threads_call_one_pool_with_mixed_sizes(device):
    model = net(device)
    pool = gfxgraph.ShapeBucketPool(model, [2, 4, 8])
    right, calls = [], 100

    def work(seed):
        with torch.no_grad():
            for n in range(calls):
                x = rows(device, 1 + (seed * 31 + n) % 8)
                torch.testing.assert_close(pool(x), model(x))
                right.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == 4 * calls and sum(pool.stats().traffic.values()) == 4 * calls


def test_modes_by_turns_each_have_their_quick_way(device):
    model = net(device)
    pool = gfxgraph.ShapeBucketPool(model, [4])
    x = rows(device, 3)
    for _ in range(3):
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                torch.testing.assert_close(pool(x), model(x))
    stats = pool.stats()
    assert stats.captures == 2 and stats.replays == 4 and stats.traffic == {(3,): 6}


# ---- bad input


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ([4, 2], "ascending"),
        ([2, 2], "ascending"),
        ([0, 2], "0 is no size"),
        ([-1], "-1 is no size"),
        ([], "empty"),
        ([2.5], "2.5 is no size"),
        ([2**40], "is no size"),
        (list(range(1, 6000)), "5999 combinations"),
        ("124", "list of sizes"),
        (8, "list of sizes"),
        ({}, "at least one dimension"),
        ({"seq": [4]}, "say which dimensions"),
    ],
)
def test_buckets_that_are_none_are_refused(buckets, message):
    with pytest.raises(ArgumentError, match=message):
        gfxgraph.ShapeBucketPool(lambda x: x, buckets)


def test_arguments_that_do_not_fit_are_refused(device):
    pool = gfxgraph.ShapeBucketPool(lambda x, y: x + y, [4])
    with pytest.raises(ArgumentError, match="'batch' is 3 in y and 2 in x"):
        pool(rows(device, 2), rows(device, 3))
    with pytest.raises(ArgumentError, match="no argument has a dynamic dimension"):
        pool(torch.tensor(1.0), 2)
    with pytest.raises(ArgumentError, match="expected the same names"):
        gfxgraph.ShapeBucketPool(lambda x: x, {"batch": [4]}, dims={"x": {0: "rows"}})
    short = gfxgraph.ShapeBucketPool(lambda x: x, {"seq": [4]}, dims={"x": {1: "seq"}})
    with pytest.raises(ArgumentError, match="x has 1 dimensions"):
        short(torch.zeros(3, device=device))
    with pytest.raises(ArgumentError, match="larger='never'"):
        gfxgraph.ShapeBucketPool(lambda x: x, [4], larger="never")
    with pytest.raises(ArgumentError, match="pad="):
        gfxgraph.ShapeBucketPool(lambda x: x, [4], pad=None)(rows(device, 3))


def test_the_statistics_are_plain_data(device):
    pool = gfxgraph.ShapeBucketPool(net(device), [4])
    with torch.no_grad():
        pool(rows(device, 3))
    assert dataclasses.asdict(pool.stats())["traffic"] == {(3,): 1}


@torch.no_grad()
def test_a_function_that_prints_prints_once_a_call(device, capsys):
    def says(x):
        print("here")
        return x * 2

    pool = gfxgraph.ShapeBucketPool(says, [4])
    for _ in range(3):
        pool(rows(device, 3))
    assert capsys.readouterr().out == "here\n" * 3
