"""Dicts that carry objects of a call: to put one in and take it out asks nothing of it."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch

import gfxgraph


class Cache:
    def __init__(self):
        self.k = None

    def update(self, x):
        self.k = x if self.k is None else torch.cat([self.k, x])
        return self.k


class Output(OrderedDict):
    """As results of transformers are."""

    def __getitem__(self, key):
        return dict(self.items())[key] if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self):
        return tuple(self[key] for key in self.keys())


class Plain(dict):
    pass


class Made(dict):
    def __init__(self, **parts):
        super().__init__(**parts)


CARRIED = {
    "the keywords of a dict": lambda y, cache: dict(y=y, cache=cache)["y"],
    "a dict": lambda y, cache: dict({"y": y, "cache": cache})["y"],
    "a class of dicts": lambda y, cache: Plain(y=y, cache=cache)["y"],
    "an ordered dict": lambda y, cache: OrderedDict({"y": y, "cache": cache})["y"],
    "items": lambda y, cache: dict(Plain(y=y, cache=cache).items())["y"],
    "its own __init__": lambda y, cache: Made(y=y, cache=cache).get("y"),
    "values": lambda y, cache: next(iter(Plain(y=y, cache=cache).values())),
    "a model output": lambda y, cache: Output(y=y, cache=cache)[0],
    "by name": lambda y, cache: Output(y=y, cache=cache)["y"],
    "a tuple of a generator": lambda y, cache: Output(y=y, cache=cache).to_tuple()[0],
}


@pytest.mark.parametrize("name", CARRIED)
def test_a_dict_that_carries_a_cache_does_not_ask_which_one_it_is(name):
    def fn(x, cache):
        return CARRIED[name](cache.update(x).sum(0), cache) * 2

    graph, x = gfxgraph.graphed(fn), torch.ones(1, 2)
    for _ in range(3):
        mine, other = Cache(), Cache()
        for n in range(3):
            with torch.no_grad():
                assert torch.equal(graph(x + n, mine), fn(x + n, other))
                assert torch.equal(mine.k, other.k)
    assert graph.stats().replays == 5, graph.stats().fallbacks


CACHE = Cache()
TABLE = {CACHE: 3.0}
ASKED = {
    "a key": lambda x, cache: x * dict({cache: 2.0}, **{}).get(CACHE, 5.0),
    "pairs": lambda x, cache: x * dict([(cache, 2.0)]).get(CACHE, 5.0),
    "keys of a view": lambda x, cache: x * dict({cache: 2.0}.items()).get(CACHE, 5.0),
    "a table": lambda x, cache: x * dict(TABLE).get(cache, 5.0),
    "from keys": lambda x, cache: x * dict.fromkeys([cache], 2.0).get(CACHE, 5.0),
}


@pytest.mark.parametrize("name", ASKED)
def test_keys_of_a_dict_are_compared(name):
    def fn(x, cache):
        cache.n = 1  # takes it apart
        return ASKED[name](x, cache)

    graph, x = gfxgraph.graphed(fn), torch.ones(1, 2)
    for cache in (CACHE, Cache(), CACHE, Cache(), CACHE):
        with torch.no_grad():
            assert torch.equal(graph(x, cache), fn(x, cache))


def test_a_class_that_exec_makes_without_a_name_is_the_programs():
    space: dict[str, type] = {}
    exec("class Size:\n  def __len__(self): return 5", space)
    size = space["Size"]()
    graph, x = gfxgraph.graphed(lambda x: x * len(size)), torch.ones(2)
    for n in (7, 5, 9):
        space["Size"].__len__ = lambda self, n=n: n
        for _ in range(3):
            assert torch.equal(graph(x), x * n)
    assert graph.stats().replays == 6


@pytest.mark.parametrize("fast", [True, False])
def test_attention_to_itself_has_the_bits_of_eager_execution(fast):
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
        graph, x = gfxgraph.graphed(attention), torch.randn(2, 5, 8)
        with torch.no_grad():
            for _ in range(3):
                assert torch.equal(graph(x, x, x)[0], attention(x, x, x)[0])
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
    assert graph.stats().replays == 2
