"""What a call writes in Python is after each replay what eager execution leaves there.

Each case makes a function twice: one is graphed and one stays eager. After each of eight calls the
results, the arguments and all state that is visible are the same: values, types, order, which are
one object, and which tensors share memory.
"""

from __future__ import annotations

import pytest

from tests.hostile.hostile_writes import CASES, compare

# Why the rest is not seen: docs/internals/limits.md.
NOT_SEEN = {
    "a class that notes who asks for its attributes notes gfxgraph": ("getattribute_override",),
    "the counts of functools.lru_cache": ("lru_cache_by_counter",),
    "finalizers of what runs of ours have made": ("own_object_with_finalizer",),
    "registrations that last": ("abc_register_or_type_attributes",),
    "the order of the variables of a module": ("global_order",),
}
REASONS = {name: reason for reason, names in NOT_SEEN.items() for name in names}


def marked(name: str) -> object:
    marks = [pytest.mark.xfail(strict=True, reason=REASONS[name])] if name in REASONS else []
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [marked(name) for name in CASES])
def test_what_a_call_writes_is_what_eager_execution_leaves(device, name):
    found, graph = compare(name, device=device)
    graph.reset()
    assert found is None
