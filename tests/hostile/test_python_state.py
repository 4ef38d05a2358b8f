"""A graph is replayed only while all Python state that the function has read is as it was."""

from __future__ import annotations

import pytest
import torch

import gfxgraph
from tests.hostile.hostile_python import CASES


def outcome(fn, x):
    """What a call gives, or the class of what it raises."""
    try:
        result = fn(x)
    except Exception as error:
        return type(error)
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_what_was_read_and_changes_is_never_stale(device, name):
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
        assert graph.stats().replays
    finally:
        getattr(fn, "undo", lambda: None)()
