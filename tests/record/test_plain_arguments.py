"""``no_graph`` functions that are given tensors and numbers alone, as attention mostly is."""

from __future__ import annotations

import itertools

import pytest
import torch

import gfxgraph

# What the function does beside its result; some change what it is given.
EFFECTS = {
    "nothing": lambda q, k, kept: None,
    "writes": lambda q, k, kept: q.mul_(2),
    "writes through .data": lambda q, k, kept: q.data.mul_(2),
    "writes to a view": lambda q, k, kept: k[1:].zero_(),
    "keeps": lambda q, k, kept: kept.append(q),
    "keeps a view": lambda q, k, kept: kept.append(k[1:]),
    "writes to what it has kept": lambda q, k, kept: kept[-1].add_(1) if kept else kept.append(q),
    "sets an attribute": lambda q, k, kept: setattr(q, "note", 1),
    "gives it other memory": lambda q, k, kept: setattr(q, "data", k * 3),
    "resizes": lambda q, k, kept: q.resize_(2),
    "raises": lambda q, k, kept: [][0],
}
RESULTS = {
    "a new one": lambda q, k, s: q[:2] * s + k[:2],
    "an argument": lambda q, k, s: q,
    "an argument and a new one": lambda q, k, s: (k, q + s),
    "a view of an argument": lambda q, k, s: k[:2],
    "nothing": lambda q, k, s: None,
    "a number": lambda q, k, s: 2 if s else 3,
    "a parameter": lambda q, k, s: torch.nn.Parameter(q * s, requires_grad=False),
}
# How the two arguments lie in memory.
GIVEN = {
    "apart": lambda x: (x * 2, x + 3),
    "parts of one": lambda x: torch.cat([x * 2, x + 3]).view(2, -1).unbind(),
    "overlapping": lambda x: ((y := torch.cat([x * 2, x]))[:4], y[2:6]),
    "the same twice": lambda x: (y := x * 2, y),
}


def program(effect, result, given, is_late, is_read, wrap):
    calls, kept = itertools.count(), []

    def attend(q, k, scale=2.0):
        if not is_late or next(calls) > 4:
            effect(q, k, kept)
        return result(q, k, scale)

    if wrap is gfxgraph.graphed:
        attend = gfxgraph.no_graph(attend)

    def fn(x):
        q, k = given(x)
        try:
            found = attend(q, scale=3.0, k=k)
        except IndexError:
            return x - 1
        found = found[0] * found[1][:2].sum() if isinstance(found, tuple) else found
        y = x.sum() * (1.0 if found is None else found)
        return (y, q + 1, k * 2) if is_read else y

    return wrap(fn), kept


def values(result, kept):
    tensors = [*(result if isinstance(result, tuple) else [result]), *kept]
    return [t.clone() if isinstance(t, torch.Tensor) else t for t in tensors]


def _cases():
    for effect, result, given in itertools.product(EFFECTS, RESULTS, GIVEN):
        is_plain = result in ("a new one", "an argument") and given == "apart"
        long = effect != "nothing" and not is_plain
        marks = [pytest.mark.long] if long else []
        yield pytest.param(effect, result, given, marks=marks, id=f"{effect}-{result}-{given}")


@torch.no_grad()
@pytest.mark.parametrize("effect, result, given", list(_cases()))
def test_each_call_gives_and_leaves_what_eager_does(device, effect, result, given):
    for is_late, is_read in itertools.product([False, True], repeat=2):
        parts = EFFECTS[effect], RESULTS[result], GIVEN[given], is_late, is_read
        eager, theirs = program(*parts, wrap=lambda fn: fn)
        graph, ours = program(*parts, wrap=gfxgraph.graphed)
        for n in range(8):
            x = torch.arange(4.0, device=device) + n
            expected = values(eager(x.clone()), theirs)
            found = values(graph(x.clone()), ours)
            assert len(expected) == len(found)
            for one, other in zip(expected, found, strict=True):
                torch.testing.assert_close(other, one, rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("make", [torch.empty_like, lambda q: q.new_empty(q.shape)])
def test_a_function_may_be_given_memory_that_nobody_has_written_to(device, make):
    @gfxgraph.no_graph
    def attend(q, out):
        out.copy_(q * 2)

    @gfxgraph.graphed
    def fn(x):
        junk = [torch.full_like(x, float("nan")) for _ in range(3)]
        del junk  # the next memory of that size holds it
        q = x + 1
        out = make(q)
        attend(q, out)
        return out + 1

    for n in range(5):
        x = torch.full((1000,), float(n), device=device)
        assert torch.equal(fn(x), (x + 1) * 2 + 1)
    assert fn.stats().replays == 4 and not fn.stats().fallbacks


@torch.no_grad()
def test_a_part_that_was_written_is_compared_all_the_same(device):
    """Of memory that the function has filled in part, it may read that part."""
    calls = itertools.count()

    @gfxgraph.no_graph
    def attend(out):
        return out[0] * 2

    @gfxgraph.graphed
    def fn(x):
        out = torch.empty(2, device=device)
        out[0] = next(calls)
        return attend(out) + x

    for n in range(4):
        assert fn(torch.zeros(1, device=device)).item() == 2 * n


@torch.no_grad()
@pytest.mark.parametrize("second_is_plain", [True, False])
def test_what_a_function_leaves_is_kept_where_a_second_one_writes_to_it_and_the_path_changes(
    device, second_is_plain
):
    """The second function sends the call to a new path: the call runs again from what both left."""
    outcomes = iter([1, 1, 1, 2, 1, 2, 3, 1])

    def first(q):
        q.add_(1)

    def second(q):
        q = q if second_is_plain else q[0]
        q.mul_(2)
        return next(outcomes)

    def fn(x, first, second):
        q = x * 3
        first(q)
        y = q + 0
        number = second(q if second_is_plain else [q])
        return (y + q) * number if number != 2 else y - q

    hidden = [gfxgraph.no_graph(one) for one in (first, second)]
    graph = gfxgraph.graphed(lambda x: fn(x, *hidden))
    for n, number in enumerate([1, 1, 1, 2, 1, 2, 3, 1]):
        x = torch.full((3,), float(n), device=device)
        y, q = x * 3 + 1, (x * 3 + 1) * 2
        assert torch.equal(graph(x), (y + q) * number if number != 2 else y - q)
    assert graph.stats().replays
