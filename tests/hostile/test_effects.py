"""What a call writes in Python is after each replay what eager execution leaves there.

Each case makes a function twice: one is graphed and one stays eager. After each of eight calls the
results, the arguments and all state that is visible are the same: values, types, order, which are
one object, and which tensors share memory.
"""

from __future__ import annotations

import inspect
import operator
import sys
import threading
from collections import deque
from typing import Any

import pytest
import torch

import gfxgraph
from tests.helpers.devices import HAS_GPU
from tests.helpers.processes import printed
from tests.helpers.sampled import sampled
from tests.hostile.hostile_writes import CASES, compare

# Why the rest is not seen: docs/internals/limits.md.
NOT_SEEN = {
    "a class that notes who asks for its attributes notes gfxgraph": ("getattribute_override",),
    "the counts of functools.lru_cache": ("lru_cache_by_counter",),
    "finalizers of what runs of ours have made": ("own_object_with_finalizer",),
}
REASONS = {name: reason for reason, names in NOT_SEEN.items() for name in names}


# What a run has written beside another thread may be that thread's, so these are not put back.
BESIDE_A_THREAD = (
    # From Python 3.12 on the call is seen, and runs eagerly.
    *(("error_of_a_compressor_swallowed",) if sys.version_info < (3, 12) else ()),
    "hook_of_a_weight_replaced",
    *("lock_left_held", "lock_taken_once_more_in_each_call"),
)


def expected(name: str) -> list[Any]:
    """The marks of a case that is known to differ."""
    if name not in REASONS:
        return []
    return [pytest.mark.xfail(strict=not HAS_GPU, reason=REASONS[name])]


def expected_beside_a_thread(name: str) -> list[Any]:
    """The same while another thread is alive."""
    if name in BESIDE_A_THREAD:
        return [pytest.mark.xfail(strict=not HAS_GPU, reason="docs/internals/limits.md")]
    return expected(name)


@pytest.mark.parametrize("name", sampled(CASES, 24, expected, of_long=23))
def test_what_a_call_writes_is_what_eager_execution_leaves(device, name):
    found, graph = compare(name, device=device)
    graph.reset()
    assert found is None


@torch.no_grad()
def test_a_call_that_only_takes_from_a_queue_needs_no_graph(device):
    """As ``select_action`` of a robot's policy: one call of eight runs the model."""

    class Policy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.actions = deque(maxlen=8)

        def forward(self, x):
            if not self.actions:
                self.actions.extend((x[:, None] * torch.ones(8, 1, device=x.device)).unbind())
            return self.actions.popleft()

    policy, twin = Policy().to(device), Policy().to(device)
    graph = gfxgraph.graphed(policy)
    for n in range(48):
        x = torch.full((1,), float(n), device=device)
        assert torch.equal(graph(x), twin(x))
        assert list(map(float, policy.actions)) == list(map(float, twin.actions))
    stats = graph.stats()
    (reason,) = stats.fallbacks
    assert stats.captures == len(stats.graphs) == 1 and stats.replays >= 3
    assert "gives the device no work" in reason and not stats.thrashing
    graph.reset()


@pytest.mark.long
@pytest.mark.parametrize("name", sampled(CASES, 40, expected_beside_a_thread, of_long=25))
def test_so_it_is_while_another_thread_is_alive(name):
    """It could meet what runs of ours put into places, so these are other things then."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        found, graph = compare(name)
    finally:
        done.set()
        thread.join()
    graph.reset()
    assert found is None


@pytest.mark.long
def test_a_counter_that_is_no_number_any_more_is_a_fallback_that_is_counted():
    # A process of its own: counters are counted in replays where no other thread is alive.
    code = """
import torch, gfxgraph

class Counts:
    n = 0

    def step(self, x):
        self.n += 1
        return x * 2

owner, x = Counts(), torch.ones(2, device=gfxgraph.device_type())
graph = gfxgraph.graphed(owner.step)
for _ in range(4):
    graph(x)
assert graph.stats().replays == 2 and owner.n == 4
owner.n = 0.5
graph(x)
assert owner.n == 1.5
print(*graph.stats().fallbacks)
"""
    assert "a whole number" in printed(code)


def _counting(how):
    class Counts:
        total = 0

        def __init__(self):
            self.n, self.held, self.note = 0, {"k": 0}, None

    owner = Counts()

    def attribute(x):
        owner.n += 1
        return x * 2

    def item(x):
        owner.held["k"] -= 2
        return x * 2

    def of_the_class(x):
        Counts.total += 1
        return x * 2

    def and_a_plain_value(x):
        owner.n = owner.n + 1
        owner.note = "seen"
        return x * 2

    def and_used(x):
        owner.n += 1
        return x * owner.n

    def and_used_before(x):
        y = x * Counts.total
        Counts.total += 1
        return y

    def and_used_as_it_is_stored(x):
        now = owner.n = owner.n + 1
        return x * now

    def and_shown(x):
        owner.n += 1
        return x * len(str(vars(owner)))

    def and_an_index(x):
        owner.n += 1
        return x * list(range(99))[owner.n]

    def and_asked_for_by_inspect(x):
        owner.n += 1
        return x * dict(inspect.getmembers(owner))["n"]

    def and_asked_for_by_a_methodcaller(x):
        owner.n += 1
        return x * operator.methodcaller("__getattribute__", "n")(owner)

    def and_set_where_the_data_says_so(x):
        owner.n += 1
        if x.sum() > 7:
            owner.n = 0
        return x * 2

    def and_set_before_where_the_data_says_so(x):
        if x.sum() > 7:
            owner.n = 0
        owner.n += 1
        return x * 2

    def and_set_to_what_another_place_holds(x):
        owner.n += 1
        if x.sum() > 7:
            owner.n = owner.held["k"] + 1
        return x * 2

    return owner, locals()[how]


ONLY_COUNTS = ("attribute", "item", "of_the_class", "and_a_plain_value")
SETS = (
    "and_set_where_the_data_says_so",
    "and_set_before_where_the_data_says_so",
    "and_set_to_what_another_place_holds",
)
USES = (
    "and_asked_for_by_inspect",
    "and_asked_for_by_a_methodcaller",
    "and_used",
    "and_used_before",
    "and_used_as_it_is_stored",
    "and_shown",
    "and_an_index",
)


@pytest.mark.parametrize("how", [*ONLY_COUNTS, *USES, *SETS])
def test_a_counter_counts_in_replays_also_while_another_thread_is_alive(device, how):
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        (owner, fn), (twin, eager) = _counting(how), _counting(how)
        graph = gfxgraph.graphed(fn)
        for n in (0, 1, 2, 5, 3, 4, 6):
            x = torch.full((2,), float(n), device=device)
            assert torch.equal(graph(x), eager(x))
            assert vars(owner) == vars(twin) and type(owner).total == type(twin).total
        stats = graph.stats()
        if how not in SETS:
            assert (stats.replays >= 5) == (how in ONLY_COUNTS)
            assert (stats.thrashing == ()) == (how in ONLY_COUNTS)
        assert not any("argument owner" in reason for reason in stats.thrashing)
    finally:
        done.set()
        thread.join()
