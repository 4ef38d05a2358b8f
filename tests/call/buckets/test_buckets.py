"""Buckets: any size is padded to the next one, replayed, and cut to what was asked for."""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
import os
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gfxgraph
from gfxgraph.call.buckets.traffic import padded_work
from gfxgraph.device import current_device
from gfxgraph.errors import ArgumentError, MemoryCapError
from tests.helpers.models import Attention, rows, same_net
from tests.helpers.threads import on_threads

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


TWO = {"input_ids": {0: "batch", 1: "seq"}, "attention_mask": {0: "batch", 1: "seq"}}


@torch.no_grad()
def test_a_call_of_any_size_gives_the_rows_asked_for(device):
    model = same_net(device)
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
def test_a_mask_hides_padding_also_where_the_example_fills_its_bucket(device):
    torch.manual_seed(0)
    model = Attention().to(device).eval()
    ids = torch.randint(0, 50, (4, 16), generator=torch.Generator().manual_seed(1)).to(device)
    mask = torch.ones_like(ids)
    pool = gfxgraph.ShapeBucketPool(model, {"batch": [2, 4], "seq": [8, 16]}, dims=TWO)
    pool.capture(ids, mask)
    for count, length in [(4, 16), (2, 8), (3, 5), (1, 9), (3, 5)]:
        parts = ids[:count, :length], mask[:count, :length]
        torch.testing.assert_close(pool(*parts), model(*parts), rtol=1e-4, atol=1e-5)
    assert pool.stats().captures == 4 and not pool.stats().fallbacks


@torch.no_grad()
def test_rows_that_are_written_where_elements_share_a_place_are_followed(device):
    def second_is_half(x):
        highest = x.amax(-1, keepdim=True).expand_as(x)
        highest[1].fill_(0.5)
        return highest + x

    pool = gfxgraph.ShapeBucketPool(second_is_half, [4, 8])
    for count in (3, 2, 4, 3):
        x = torch.randn(count, 3, device=device)
        torch.testing.assert_close(pool(x), second_is_half(x))
    assert pool.stats().replays and not pool.stats().fallbacks


@torch.no_grad()
def test_attention_without_a_mask_is_refused(device):
    torch.manual_seed(0)
    mix = nn.MultiheadAttention(16, 2, batch_first=True).to(device).eval()

    def seen(x):
        return mix(x, x, x, need_weights=False)[0]

    pool = gfxgraph.ShapeBucketPool(seen, {"seq": [8, 16]}, dims={"x": {1: "seq"}})
    for length in (5, 5, 9):
        x = torch.randn(2, length, 16, device=device)
        torch.testing.assert_close(pool(x), seen(x), rtol=1e-4, atol=1e-5)
    refused = pool.stats().refused
    assert len(refused) == 2 and pool.stats().captures == 0
    assert all("rows influence each other" in reason for reason in refused.values())


@torch.no_grad()
def test_a_function_that_decides_by_its_data_is_refused_with_the_line(device):
    def largest(x):
        return x * 2 if float(x.sum()) > 0 else x * 3

    pool = gfxgraph.ShapeBucketPool(largest, [4, 8])
    for count in (3, 3, 4, 7):
        x = rows(device, count)
        for sign in (1, -1):
            torch.testing.assert_close(pool(x * sign), largest(x * sign))
    refused = pool.stats().refused
    assert len(refused) == 2 and all("float(x.sum()) > 0" in why for why in refused.values())


@torch.no_grad()
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_images_keep_their_memory_format(device, memory_format):
    torch.manual_seed(0)
    model = nn.Conv2d(3, 8, 3).to(device, memory_format=memory_format).eval()
    seen = []

    def convolved(x):
        seen.append(x.is_contiguous(memory_format=memory_format))
        return model(x)

    images = torch.randn(8, 3, 9, 9, device=device).contiguous(memory_format=memory_format)
    pool = gfxgraph.ShapeBucketPool(model, [2, 4, 8])
    pool.capture(images)
    for count in (3, 8, 1, 4, 3):
        torch.testing.assert_close(pool(images[:count]), model(images[:count]))
    assert pool.stats().captures == 3 and not pool.stats().fallbacks
    gfxgraph.ShapeBucketPool(convolved, [4])(images[:3])
    assert all(seen)


@torch.no_grad()
def test_the_dimensions_of_the_outputs_may_be_given(device):
    def transposed(x):
        return x.T.contiguous(), x.sum()

    known: dict = {"pad": "zero", "rows": "independent"}  # zeros leave a sum as it is
    pool = gfxgraph.ShapeBucketPool(transposed, [4, 8], out_dims=[{1: "batch"}, {}], **known)
    for count in (3, 3, 8, 5):
        torch.testing.assert_close(pool(rows(device, count)), transposed(rows(device, count)))
    assert pool.stats().captures == 2 and not pool.stats().refused
    for out_dims, message in [([{0: "batch"}, {}], "is not 'batch'"), ([{}], "for 1 tensors")]:
        wrong = gfxgraph.ShapeBucketPool(transposed, [4], out_dims=out_dims, **known)
        wrong.capture(rows(device, 4))
        assert message in next(iter(wrong.stats().refused.values()))
    with pytest.raises(ArgumentError, match="out_dims name"):
        gfxgraph.ShapeBucketPool(transposed, [4], out_dims=[{0: "rows"}])


@torch.no_grad()
def test_tensors_in_containers_and_keywords_are_padded_too(device):
    def scored(batch, *, weights):
        return [batch["x"] * batch["mask"][:, None], {"total": (batch["x"] * weights).sum(1)}]

    pool = gfxgraph.ShapeBucketPool(
        scored, [2, 4], dims={"batch": {0: "batch"}, "weights": {}}, pad={"batch": 0.0}
    )
    weights = torch.arange(8.0, device=device)
    for count in (1, 3, 3, 4, 1):
        batch = {"x": rows(device, count), "mask": torch.ones(count, device=device)}
        expected = scored(batch, weights=weights)
        torch.testing.assert_close(pool(batch, weights=weights), expected)
        torch.testing.assert_close(pool(batch, weights=weights), expected)
    assert pool.stats().captures == 2 and not pool.stats().refused


@torch.no_grad()
def test_one_tensor_for_two_arguments_has_graphs_of_its_own(device):  # the function may ask
    pool = gfxgraph.ShapeBucketPool(lambda x, y: x + 2 * y, [4, 8])
    for count in (3, 4, 4, 8):
        x = rows(device, count)
        torch.testing.assert_close(pool(x, x), x * 3)
        torch.testing.assert_close(pool(x, x.clone()), x * 3)
    assert pool.stats().captures == 4 and not pool.stats().fallbacks


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
    model = same_net(device)
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
    pool = gfxgraph.ShapeBucketPool(same_net(device), [4])
    assert pool(rows(device, 0)).shape == (0, 4)


@torch.no_grad()
def test_all_buckets_can_be_captured_before_the_first_call(device):
    model = same_net(device)
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
@pytest.mark.long
def test_threads_call_one_pool_with_mixed_sizes(device):
    model = same_net(device)
    pool = gfxgraph.ShapeBucketPool(model, [2, 4, 8])
    right, calls = [], 500

    def work(seed):
        with torch.no_grad():
            for n in range(calls):
                x = rows(device, 1 + (seed * 31 + n) % 8)
                torch.testing.assert_close(pool(x), model(x))
                right.append((seed, n))

    on_threads(work, range(8))
    assert len(right) == 8 * calls == sum(pool.stats().traffic.values())


def test_modes_by_turns_each_have_their_quick_way(device):
    model = same_net(device)
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
    pool = gfxgraph.ShapeBucketPool(same_net(device), [4])
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


# ---- a decorator, also of methods


class Doubler(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = nn.Parameter(torch.full((8,), factor))

    @gfxgraph.graphed(buckets=[2, 4, 8])
    def scaled(self, x, *, shift=0.0):
        return {"rows": x * self.factor + shift}


@torch.no_grad()
def test_graphed_with_buckets_answers_any_size_from_a_few_graphs(device):
    model = same_net(device)
    fast = gfxgraph.graphed(model, buckets=[2, 4, 8], larger="split")
    for count in (3, 1, 8, 5, 3, 1, 11):
        torch.testing.assert_close(fast(rows(device, count)), model(rows(device, count)))
    stats = fast.stats()
    assert stats.captures == 3 and not stats.fallbacks
    assert isinstance(stats, gfxgraph.PoolStats) and stats.asked == 32


@torch.no_grad()
def test_each_instance_has_buckets_of_its_own(device):
    two, three = Doubler(2.0).to(device), Doubler(3.0).to(device)
    for count in (3, 1, 3, 4, 1):
        x = rows(device, count)
        torch.testing.assert_close(two.scaled(x)["rows"], x * 2)
        torch.testing.assert_close(three.scaled(x, shift=1.0)["rows"], x * 3 + 1)
    assert two.scaled.stats().captures == three.scaled.stats().captures == 2
    two.factor.data = torch.full((8,), 5.0, device=device)
    torch.testing.assert_close(two.scaled(rows(device, 3))["rows"], rows(device, 3) * 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"larger": "split"}, "are for buckets="),
        ({"pad": "zero"}, "are for buckets="),
        ({"buckets": [2], "outputs": "view"}, "nothing to view"),
        ({"buckets": [2, 1]}, "ascending"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        gfxgraph.graphed(lambda x: x, **options)


def test_with_buckets_there_are_no_static_inputs_to_write_into(device):
    fast = gfxgraph.graphed(same_net(device), buckets=[2])
    with pytest.raises(ArgumentError, match="share their static inputs"):
        fast.static_inputs(rows(device, 2))


# ---- what a bucket is judged by


@torch.no_grad()
def test_dimensions_of_the_same_size_are_told_apart(device):
    def outer(x, y):
        return x[:, None] * y, y.unsqueeze(1).expand(-1, x.shape[0]).contiguous()

    dims = {"x": {0: "left"}, "y": {0: "right"}}
    pool = gfxgraph.ShapeBucketPool(outer, {"left": [2, 4], "right": [2, 4]}, dims=dims)
    for left, right in [(3, 3), (1, 2), (1, 1), (4, 4), (2, 4), (3, 1)]:
        x, y = rows(device, left, width=1)[:, 0], rows(device, right, width=1)[:, 0]
        for _ in range(2):
            torch.testing.assert_close(pool(x, y), outer(x, y))
    assert not pool.stats().fallbacks


@torch.no_grad()
def test_pieces_of_a_single_row_are_put_together(device):
    model = same_net(device)
    pool = gfxgraph.ShapeBucketPool(model, [1], larger="split")
    torch.testing.assert_close(pool(rows(device, 5)), model(rows(device, 5)))
    assert pool.stats().captures == 1 and pool.stats().replays == 5


@torch.no_grad()
def test_what_another_mode_of_the_module_does_is_judged_anew(device):
    model = nn.BatchNorm1d(8).to(device).train()
    pool = gfxgraph.ShapeBucketPool(model, [4])
    pool(rows(device, 3))
    assert "rows influence each other" in next(iter(pool.stats().fallbacks))
    model.eval()
    for _ in range(3):
        torch.testing.assert_close(pool(rows(device, 3)), model(rows(device, 3)))
    assert pool.stats().captures == 1 and pool.stats().replays == 2


@torch.no_grad()
def test_a_bucket_at_which_the_function_does_something_else_is_captured_the_long_way(device):
    counter = torch.zeros((), device=device)
    table = torch.arange(8.0, device=device)

    def by_size(x):
        if x.shape[0] == 2:
            counter.add_(1)  # writes
        if x.shape[0] == 3:
            return x + torch.rand_like(x) * 0  # draws
        if x.shape[0] == 5:
            return x * (table * 2)  # reads something else
        if x.shape[0] == 6 and float(table.sum()) > 0:  # asks the device
            return x + 1
        return x * 2

    pool = gfxgraph.ShapeBucketPool(by_size, [1, 2, 3, 4, 5, 6, 7], verify=False)
    pool.capture(rows(device, 7))
    assert float(counter) == 0 and not pool.stats().fallbacks
    state = torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()
    for count in (7, 6, 5, 4, 1):
        torch.testing.assert_close(pool(rows(device, count)), by_size(rows(device, count)))
    now = torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()
    assert torch.equal(state, now)
    pool(rows(device, 3))
    pool(rows(device, 2))
    assert float(counter) == 1 and pool.stats().captures == 7


@torch.no_grad()
def test_a_function_that_counts_in_python_at_some_size_stays_eager_there(device):
    class Counting:
        def __init__(self):
            self.calls, self.sizes = 0, set()

        def step(self, x):
            if x.shape[0] == 4:
                self.calls += 1
            if x.shape[0] == 2:
                self.sizes.add(len(self.sizes))
            return x * 2

    counting = Counting()
    pool = gfxgraph.ShapeBucketPool(counting.step, [2, 4, 8])
    pool.capture(rows(device, 8))
    assert counting.calls == 0 and not counting.sizes
    (eight, four, two) = pool.stats().fallbacks  # the first is judged by a call of two rows
    assert "sizes" in eight and "Counting.calls" in four and "Counting.sizes" in two
    for count in (4, 4, 2, 2, 2):
        torch.testing.assert_close(pool(rows(device, count)), rows(device, count) * 2)
    assert counting.calls == 2 and len(counting.sizes) == 3


@torch.no_grad()
def test_a_weight_that_is_replaced_is_found_in_all_buckets(device):
    model = same_net(device)
    pool = gfxgraph.ShapeBucketPool(model, [2, 4, 8])
    pool.capture(rows(device, 8))
    for _ in range(2):
        for count in (1, 4, 7, 2):
            torch.testing.assert_close(pool(rows(device, count)), model(rows(device, count)))
        model[0].weight.data = torch.randn(16, 8, device=device)
    assert pool.stats().recaptures == 3


@torch.no_grad()
def test_another_dtype_than_that_of_capture_is_refused(device):
    pool = gfxgraph.ShapeBucketPool(lambda x, scale: x * scale, [4], dims={"x": {0: "batch"}})
    half = torch.ones(3, 8, device=device, dtype=torch.float16)
    scale = torch.ones((), device=device)
    pool.capture(half, scale)
    with pytest.raises(ArgumentError, match=r"x is torch.float32, but capture\(\) was called with"):
        pool(rows(device, 3), scale)
    pool.capture(rows(device, 3), scale)
    torch.testing.assert_close(pool(rows(device, 3), scale), rows(device, 3))
    assert torch.equal(pool(half, scale), half.float())


# ---- memory


def wide(device):
    torch.manual_seed(0)
    layers = [nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)]
    return nn.Sequential(*layers).to(device).eval()


@torch.no_grad()
def test_all_buckets_take_hardly_more_memory_than_the_largest(device):
    model, x = wide(device), rows(device, 256, width=512)
    largest = gfxgraph.ShapeBucketPool(model, [256])
    largest.capture(x)
    every = gfxgraph.ShapeBucketPool(model, [1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256])
    every.capture(x)
    one, many = largest.stats(), every.stats()
    assert many.pool_bytes + many.input_bytes <= 1.05 * (one.pool_bytes + one.input_bytes)
    rows_of = {row.key: row for row in many.graphs}
    small, large = rows_of["float32[16,512]"], rows_of["float32[256,512]"]
    assert small.input_bytes == 16 * 512 * 4 and small.private_bytes == 0
    assert large.private_bytes == large.pool_bytes + large.input_bytes > 256 * 512 * 4


@torch.no_grad()
def test_results_are_never_overwritten_though_all_graphs_share_their_memory(device):
    model = same_net(device)
    pool = gfxgraph.ShapeBucketPool(model, [1, 2, 4, 8])
    pool.capture(rows(device, 8))
    given = [rows(device, 1 + n % 8) for n in range(40)]
    results = [pool(x) for x in given]
    for x, result in zip(given, results, strict=True):
        torch.testing.assert_close(result, model(x))


def memory_now():
    """Bytes in use by what is alive, and all bytes."""
    gc.collect()
    current_device().release_cached_memory()
    in_use, total = current_device().memory(0)
    return in_use - current_device().cached(0), total


@torch.no_grad()
@pytest.mark.long
def test_a_bucket_without_room_runs_eagerly_and_says_why(device, monkeypatch):
    if device != "cpu" and "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("other processes use the memory of this GPU")
    model, buckets = wide(device), [32, 64, 128, 4096, 8192, 16384]
    probe = gfxgraph.ShapeBucketPool(model, buckets[:3])
    probe.capture(rows(device, 8, width=512))
    in_use, total = memory_now()
    room = 4 * 4096 * 512 * 3  # less than what 4,096 rows take, more than 128
    probe.reset()
    monkeypatch.setenv("GFXGRAPH_VRAM_CAP", f"{(in_use + room) / total:.12f}")
    pool = gfxgraph.ShapeBucketPool(model, buckets)
    pool.capture(rows(device, 8, width=512))
    stats = pool.stats()
    assert {row.key for row in stats.graphs} <= {f"float32[{n},512]" for n in (32, 64, 128, 4096)}
    assert {f"float32[{n},512]" for n in (32, 64, 128)} <= {row.key for row in stats.graphs}
    assert {"float32[8192,512]", "float32[16384,512]"} <= stats.refused.keys()
    assert all("GFXGRAPH_VRAM_CAP" in reason for reason in stats.refused.values())
    assert not any(stats.fallbacks.values())  # nobody called so far
    # The allocator takes 2 MiB at a time for each graph, which no estimate knows.
    segments = 2 * 2**20 * len(stats.graphs)
    assert memory_now()[0] <= in_use + room + segments
    for count in (20, 100, 5000, 9000):
        x = rows(device, count, width=512)
        torch.testing.assert_close(pool(x), model(x), rtol=1e-4, atol=1e-4)
    monkeypatch.setenv("GFXGRAPH_VRAM_CAP", "1.0")
    pool.capture(rows(device, 8, width=512))  # there is room now
    assert len(pool.stats().graphs) == len(buckets)


@pytest.mark.long
@torch.no_grad()
def test_graphs_that_nobody_replayed_make_room(device, monkeypatch):
    def model(x):
        return x * 2 + 1

    unused, used = gfxgraph.graphed(model), gfxgraph.graphed(lambda x: model(x))
    large = torch.randn(2**17, 512, device=device)  # far more than what other tests left behind
    unused(large)
    for _ in range(2):
        used(rows(device, 64))
    in_use, total = memory_now()
    monkeypatch.setenv("GFXGRAPH_VRAM_CAP", f"{in_use / total:.12f}")
    pool = gfxgraph.ShapeBucketPool(model, [2**16])
    pool.capture(large[: 2**16])
    assert pool.stats().captures == 1 and not pool.stats().refused
    assert not unused.stats().graphs and unused.stats().evictions == 1
    assert used.stats().graphs and not used.stats().evictions
    assert torch.equal(unused(large), model(large))


def test_a_cap_of_nothing_leaves_everything_eager(device, monkeypatch):
    monkeypatch.setenv("GFXGRAPH_VRAM_CAP", "0.0")
    fast, strict = (
        gfxgraph.graphed(same_net(device)),
        gfxgraph.graphed(same_net(device), fallback="raise"),
    )
    with torch.no_grad():
        for _ in range(2):
            fast(rows(device, 3))
        assert fast.stats().captures == 0 and "GFXGRAPH_VRAM_CAP=0" in str(fast.stats().fallbacks)
        with pytest.raises(MemoryCapError, match="Raise the variable"):
            strict(rows(device, 3))


@torch.no_grad()
@pytest.mark.parametrize("way", ["graphed", "pool", "branches"])
def test_a_capture_that_failed_leaves_no_tensors_for_the_garbage_collector(
    device, monkeypatch, way
):
    def model(x):
        return x * 2 + 1

    x = torch.randn(7, 1013, device=device)

    def tensors():
        found = (o for o in gc.get_objects() if type(o) is torch.Tensor)
        return sum(t.dim() == 2 and t.shape[1] == 1013 for t in found)

    monkeypatch.setenv("GFXGRAPH_VRAM_CAP", "0.0")
    gfxgraph.graphed(model)(x)  # the first in a process leaves some to it
    gc.collect()
    gc.disable()
    try:
        before = tensors()
        if way == "graphed":
            gfxgraph.graphed(model)(x)
        elif way == "pool":
            pool = gfxgraph.ShapeBucketPool(model, [8, 16])
            pool.capture(x)
            pool(x)
        else:
            gfxgraph.ConditionalGraph().add_branch("model", model).capture(x)
        assert tensors() == before
    finally:
        gc.enable()


# ---- autograd


def test_a_pool_of_a_module_runs_without_autograd_unless_an_argument_asks_for_it(device):
    model = same_net(device)
    pool = gfxgraph.ShapeBucketPool(model, [2, 4])
    pool.capture(rows(device, 4))
    assert torch.is_grad_enabled() and not pool.stats().refused
    for count in (3, 1, 3, 6):  # the last from no bucket
        y = pool(rows(device, count))
        assert not y.requires_grad
        torch.testing.assert_close(y, model(rows(device, count)))
    assert pool.stats().replays == 2 and pool.stats().captures == 2  # not the first 3 rows
    x = rows(device, 3).requires_grad_()
    pool(x).sum().backward()
    assert x.grad is not None and model[0].weight.grad is not None
    assert any("grad" in reason for reason in pool.stats().fallbacks)


def test_a_dataclass_that_holds_a_tensor_with_gradients_asks_for_them_too(device):
    @dataclasses.dataclass
    class Batch:
        x: torch.Tensor

    pool = gfxgraph.ShapeBucketPool(lambda batch: batch.x * 2, [4])
    x = rows(device, 3).requires_grad_()
    pool(Batch(x)).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 2.0))


# ---- calls in pieces


@torch.no_grad()
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda x: (x * 2, torch.ones(2, device=x.device)), None),
        (lambda x: {"rows": x, "table": torch.arange(3.0, device=x.device)}, None),
        (lambda x: (x * 2, x.amax(0)), "output 1 in pieces"),
        (lambda x: x.cumsum(0), "output 0 in pieces"),
        (lambda x: x - x[:1], "output 0 in pieces"),
        (lambda x: x.cummax(0), "output 0 in pieces"),
        (lambda x: x + torch.arange(len(x), device=x.device)[:, None], "output 0 in pieces"),
        (lambda x: x * 2 if len(x) <= 4 else x * 3, "output 0 in pieces"),
    ],
)
def test_pieces_are_compared_with_the_whole_before_they_are_an_answer(device, model, reason):
    # What is said of rows is said of padding; the pieces are compared all the same.
    pool = gfxgraph.ShapeBucketPool(model, [4], pad="last", larger="split", rows="independent")
    for count in (4, 11, 9, 11):
        torch.testing.assert_close(pool(rows(device, count)), model(rows(device, count)))
    if reason is None:
        assert not pool.stats().fallbacks and pool.stats().replays == 7  # not the first 3, 1 rows
    else:
        assert reason in " ".join(pool.stats().fallbacks)


@torch.no_grad()
def test_what_counts_its_calls_is_not_called_for_each_piece(device):
    seen = torch.zeros((), device=device)

    def counted(x):
        seen.add_(1)
        return x * 2

    pool = gfxgraph.ShapeBucketPool(counted, [4], larger="split")
    for _ in range(2):
        torch.testing.assert_close(pool(rows(device, 10)), rows(device, 10) * 2)
    assert int(seen) == 2 and "once for each piece" in " ".join(pool.stats().fallbacks)


# ---- rows that are known to be independent


@torch.no_grad()
def test_what_is_asserted_is_not_judged(device):
    def padded_sum(x):
        return x.sum(0)

    asserted = gfxgraph.ShapeBucketPool(padded_sum, [4], pad="zero", rows="independent")
    judged = gfxgraph.graphed(padded_sum, buckets=[4], pad="zero")
    for pool in (asserted, judged):
        for count in (3, 2, 4, 3):
            torch.testing.assert_close(pool(rows(device, count)), rows(device, count).sum(0))
    assert asserted.stats().captures == 1 and asserted.stats().replays == 2  # not the first 2 rows
    (reason,) = judged.stats().refused.values()
    assert 'rows="independent"' in reason and "aten.sum" in reason and "return x.sum(0)" in reason
    noisy = gfxgraph.ShapeBucketPool(lambda x: x + torch.rand_like(x), [4], rows="independent")
    noisy(rows(device, 3)), noisy(rows(device, 3))
    assert noisy.stats().replays == 1
    with pytest.raises(ArgumentError, match="rows='yes'"):
        gfxgraph.ShapeBucketPool(padded_sum, [4], rows="yes")


@torch.no_grad()
def test_what_happens_at_one_size_only_is_found_when_that_size_comes(device):
    def odd(x):
        return x * 2 if len(x) == 17 else x * 3

    pool = gfxgraph.ShapeBucketPool(odd, [8, 32])
    pool.capture(rows(device, 32))
    assert pool.stats().captures == 2
    for count in (5, 16, 17, 16, 17, 5, 17):
        torch.testing.assert_close(pool(rows(device, count)), odd(rows(device, count)))
    (reason,) = pool.stats().refused.values()
    assert "'batch': 17" in reason and len(pool.stats().graphs) == 1


@torch.no_grad()
@pytest.mark.parametrize("first", [1, 2])
def test_a_bucket_in_which_nothing_meets_does_not_speak_for_the_larger_ones(device, first):
    def sees_the_third(x):
        return torch.where(x > 50, x[2:3].sum(0), x)  # nobody sees it in small numbers

    pool = gfxgraph.ShapeBucketPool(sees_the_third, [1, 2, 8])
    for count in (first, 3, 2):
        torch.testing.assert_close(pool(rows(device, count)), sees_the_third(rows(device, count)))
    (reason,) = pool.stats().refused.values()
    assert "rows influence each other" in reason and "aten." in reason
    assert {row.key for row in pool.stats().graphs} <= {"float32[1,8]", "float32[2,8]"}
    x = rows(device, 7) * 100
    torch.testing.assert_close(pool(x), sees_the_third(x))


# ---- copies


@torch.no_grad()
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_copies_and_pickles_of_a_pool_have_no_graphs_and_work(device, duplicate):
    pool = gfxgraph.ShapeBucketPool(same_net(device), [2, 4], rows="independent")
    x = rows(device, 3)
    for _ in range(3):
        pool(x)
    twin = duplicate(pool)
    assert twin.stats().captures == 0 and twin.buckets == pool.buckets
    for _ in range(3):
        torch.testing.assert_close(twin(x), pool(x))
    assert twin.stats().captures == 1 and twin.stats().replays == 2


@torch.no_grad()
def test_results_of_two_dynamic_dimensions_have_no_gaps(device):
    def fn(x):
        return x * 2, (x + 1).transpose(0, 1), x.sum(-1)

    pool = gfxgraph.ShapeBucketPool(
        fn, {"batch": [2, 4], "seq": [4, 8]}, dims={"x": {0: "batch", 1: "seq"}}
    )
    for shape in ((2, 2, 3), (3, 3, 3), (2, 4, 3), (4, 7, 3)):
        x = torch.randn(*shape, device=device)
        for _ in range(4):
            for got, expected in zip(pool(x), fn(x), strict=True):
                assert torch.equal(got, expected) and got.stride() == expected.stride()


@torch.no_grad()
def test_many_sizes_that_hardly_come_again_run_as_in_eager_execution(device):
    pool = gfxgraph.graphed(lambda x: x * 2, buckets=[256], fallback="raise")
    for count in range(1, 130):
        assert torch.equal(pool(rows(device, count)), rows(device, count) * 2)
    (reason,) = pool.stats().fallbacks
    assert "calls of this size are few" in reason
    before = pool.stats().replays
    for _ in range(14):  # 1 was such a call, 9 more are, and one is recorded
        assert torch.equal(pool(rows(device, 129)), rows(device, 129) * 2)
    assert pool.stats().replays == before + 4
