"""Kinds of calls in turn, which look alike at first sight: no graph answers for another."""

import gc
import random
import weakref

import pytest
import torch

import gfxgraph


def of(value):
    """A number for a value and its type."""
    if isinstance(value, torch.Tensor):
        return value.to(torch.float32).sum()
    if isinstance(value, (list, tuple)):
        return sum(n * of(item) for n, item in enumerate(value, 2)) + isinstance(value, list)
    if isinstance(value, dict):
        return sum(n * of(key) + of(item) for n, (key, item) in enumerate(value.items(), 2))
    return hash((type(value).__name__, repr(value))) % 1009


def mixed(x, *args, **kwargs):
    return x.float() * 3 + of(args) + of(kwargs)


def square(dtype=torch.float32):
    return (torch.rand(4, 4) * 9).to(dtype)


def alias(cut):
    x = torch.rand(4, 4)
    return x, cut(x)


KINDS = {
    "numbers": [lambda v=v: ((square(), v), {}) for v in (1, 1.0, True, 0.0, -0.0, 2, None)],
    "texts": [lambda v=v: ((square(), v), {}) for v in ("a", "b", "", b"a")],
    "dtypes": [lambda v=v: ((square(v),), {}) for v in (torch.float32, torch.float64, torch.int64)],
    "strides": [
        lambda: ((square().t(),), {}),
        lambda: ((torch.rand(4, 8)[:, ::2],), {}),
        lambda: ((torch.rand(4).expand(4, 4),), {}),
    ],
    "containers": [
        lambda: ((square(), [square(), square()]), {}),
        lambda: ((square(), (square(), square())), {}),
        lambda: ((square(), [square()]), {}),
        lambda: ((square(), [[square()]]), {}),
        lambda: ((square(), {"a": square()}), {}),
        lambda: ((square(), {"b": square()}), {}),
    ],
    "names": [
        lambda: ((square(),), {"a": 1.0, "b": 2.0}),
        lambda: ((square(),), {"b": 2.0, "a": 1.0}),
        lambda: ((square(),), {"a": 2.0, "b": 1.0}),
        lambda: ((square(), 1.0), {"b": 2.0}),
    ],
    "aliases": [
        lambda: (alias(lambda x: x), {}),
        lambda: (alias(lambda x: x[:]), {}),
        lambda: (alias(lambda x: x.t()), {}),
        lambda: ((square(), square()), {}),
    ],
}


def in_turn(makers, calls, **options):
    chosen = random.Random(7)
    graphed = gfxgraph.graphed(mixed, **options)
    with torch.no_grad():
        for _ in range(calls):
            args, kwargs = chosen.choice(makers)()
            assert torch.equal(graphed(*args, **kwargs), mixed(*args, **kwargs))
    return graphed


@pytest.mark.parametrize("name", KINDS)
def test_kinds_in_turn(name):
    assert in_turn(KINDS[name], 8 * len(KINDS[name])).stats().replays


@pytest.mark.long
@pytest.mark.parametrize("limit", [1, 8, 32])
def test_all_kinds_in_turn(limit):
    graphed = in_turn(
        [maker for makers in KINDS.values() for maker in makers], 600, max_graphs=limit
    )
    assert len(graphed.stats().graphs) <= limit


@pytest.mark.long
def test_a_thousand_kinds_leave_no_more_than_the_limit():
    graphed = in_turn([lambda n=n: ((torch.rand(n + 1, 1), 1), {}) for n in range(1000)], 1000)
    assert len(graphed.stats().graphs) <= 32


class Holder:
    def __init__(self):
        self.state, self.calls = torch.zeros(4), 0

    def step(self, x, k):
        self.calls += 1
        self.state = self.state * 0.5 + x.sum()
        return x, x[..., :1], {"k": k, "y": x + self.state[0] + of(k)}


@pytest.mark.parametrize("limit", [2, pytest.param(32, marks=pytest.mark.long)])
def test_kinds_that_were_evicted_store_what_they_write(limit):
    chosen, known, other = random.Random(3), Holder(), Holder()
    graphed = gfxgraph.graphed(other.step, max_graphs=limit)
    shape, k = (4,), 1
    with torch.no_grad():
        for _ in range(60):
            if chosen.random() < 0.4:
                shape, k = chosen.choice([(4,), (2, 4), (1,)]), chosen.choice([1, 1.0, "a"])
            x = torch.rand(shape)
            for expected, given in zip(known.step(x, k), graphed(x, k), strict=True):
                if isinstance(expected, dict):
                    assert given["k"] is expected["k"] or given["k"] == expected["k"]
                    expected, given = expected["y"], given["y"]
                assert torch.equal(expected, given)
            assert torch.equal(known.state, other.state) and known.calls == other.calls
    stats = graphed.stats()
    assert stats.replays and (stats.evictions or limit > 2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_comes_between_other_kinds():
    nested = torch.nested.nested_tensor([torch.rand(2), torch.rand(3)])
    graphed = gfxgraph.graphed(lambda x, other: x * 2)
    with torch.no_grad():
        for call in range(12):
            x, other = torch.rand(2 + call % 3), nested if call // 3 % 2 else 2.0
            assert torch.equal(graphed(x, other), x * 2)


@pytest.mark.long
def test_classes_of_arguments_are_not_kept():
    graphed, classes = gfxgraph.graphed(scaled), []
    with torch.no_grad():
        for call in range(4):
            cls = type("Scale", (), {"value": float(call)})
            classes.append(weakref.ref(cls))
            for _ in range(2):
                graphed(torch.rand(3), cls())
    del cls
    graphed.reset()
    gc.collect()
    assert [cls() for cls in classes] == [None] * 4


@pytest.mark.long
def test_of_classes_that_come_once_a_bounded_number_is_kept():
    graphed, classes = gfxgraph.graphed(scaled, max_graphs=4), []
    with torch.no_grad():
        for call in range(120):
            cls = type("Scale", (), {"value": float(call)})
            classes.append(weakref.ref(cls))
            for _ in range(2):
                graphed(torch.rand(3), cls())
    del cls
    gc.collect()
    assert sum(cls() is not None for cls in classes) < 90


class Unhashable(type):
    def __eq__(cls, other):
        return cls is other


class Scale(metaclass=Unhashable):
    value = 3.0


def scaled(x, scale):
    return x * (scale if isinstance(scale, float) else scale.value)


def test_a_class_that_cannot_be_hashed_comes_between_other_kinds():
    graphed, scale = gfxgraph.graphed(scaled), Scale()
    with torch.no_grad():
        for call in range(24):
            x, by = torch.rand(2 + call % 3), scale if call // 3 % 2 else 2.0
            assert torch.equal(graphed(x, by), scaled(x, by))
    assert graphed.stats().replays
