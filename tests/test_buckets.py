"""Buckets: any size is padded to the next one, replayed, and cut to what was asked for."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
