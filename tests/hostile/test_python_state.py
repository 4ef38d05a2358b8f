"""A graph is replayed only while all Python state that the function has read is as it was."""

from __future__ import annotations

import sys

import pytest
import torch

import gfxgraph
from tests.helpers.sampled import sampled
from tests.hostile import hostile_in_c, hostile_python, hostile_python_more

CASES = hostile_python.CASES | hostile_python_more.CASES | hostile_in_c.CASES
# What is not seen, with the reason; docs/limits.md names these kinds.
NOT_SEEN: dict[str, list[str]] = {}
EAGER = (
    *("context_run", "ctypes_pointer", "iter_with_sentinel", "tensor_storage_bytes"),
    *("weak_method", "weak_proxy"),
    *hostile_in_c.EAGER,
)
REASONS = {name: reason for reason, names in NOT_SEEN.items() for name in names}


def expected(name):
    """The marks of a case that is known to differ."""
    if name not in REASONS:
        return []
    return [pytest.mark.xfail(strict=True, reason=REASONS[name])]


def outcome(fn, x):
    """What a call gives, or the class of what it raises."""
    try:
        result = fn(x)
    except Exception as error:
        return type(error)
    return result if isinstance(result, tuple) else (result,)


@pytest.fixture
def modules_as_before():
    """Some cases make modules that come from no file; Dynamo looks at all of them."""
    before = set(sys.modules)
    yield
    for name in sys.modules.keys() - before:
        if getattr(sys.modules[name], "__spec__", None) is None:
            del sys.modules[name]


@pytest.mark.parametrize("name", sampled(CASES, 4, expected))
@torch.no_grad()
def test_what_was_read_and_changes_is_never_stale(device, name, modules_as_before):
    with torch.device(device):
        fn, change = CASES[name]()
    graph = gfxgraph.graphed(fn)
    try:
        for n in range(6):
            if n == 3:
                with torch.device(device):
                    change()
            x = torch.randn(2, 4, device=device)
            expected, got = outcome(fn, x), outcome(graph, x)
            if isinstance(expected, type):
                assert got is expected
            else:
                torch.testing.assert_close(got, expected)
        assert graph.stats().replays or name in EAGER
    finally:
        getattr(fn, "undo", lambda: None)()


class Config:
    scale = 2.0


@torch.no_grad()
def test_what_was_changed_is_named_with_the_line_that_reads_it(device, caplog):
    def fn(x):
        return x * Config.scale

    graph = gfxgraph.graphed(fn)
    x = torch.ones(2, 4, device=device)
    try:
        with caplog.at_level("INFO", logger="gfxgraph"):
            graph(x), graph(x)
            Config.scale = 3.0
            assert graph(x)[0, 0] == 3.0
    finally:
        Config.scale = 2.0
    line = fn.__code__.co_firstlineno + 1
    what = f"Config.scale (read in test_python_state.py:{line})"
    assert graph.stats().changed == {what: 1} and what in str(graph.stats())
    assert what in caplog.text
