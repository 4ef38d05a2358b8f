"""A graph is replayed only while all Python state that the function has read is as it was."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import re
import sys
import threading
import zlib
from fractions import Fraction

import numpy as np
import pytest
import torch

import gfxgraph
from gfxgraph.errors import CaptureError
from tests.helpers.sampled import sampled
from tests.hostile import (
    hostile_closed,
    hostile_in_c,
    hostile_python,
    hostile_python_more,
    hostile_reached,
)

CASES = (
    hostile_python.CASES
    | hostile_python_more.CASES
    | hostile_in_c.CASES
    | {f"closed_{name}": case for name, case in hostile_closed.CASES.items()}
    | {f"reached_{name}": case for name, case in hostile_reached.CASES.items()}
)
# What nobody can see, so that these must not be graphs; and iterators that are left alone.
EAGER = (
    *("context_run", "ctypes_pointer", "iter_with_sentinel", "tensor_storage_bytes"),
    *("weak_proxy", "generator_frame_read"),
    "cache_of_autocast",  # a capture turns it off, so its runs differ from the first call
    "closed_limit_of_csv",  # the same function sets it
    *("exception_raised_again", "reached_error_with_attributes"),  # which writes its traceback
    *(("map_getattr",) if sys.version_info >= (3, 12) else ()),  # of names that C code makes
    *hostile_in_c.EAGER,
    *(f"closed_{name}" for name in hostile_closed.EAGER),
    *(f"reached_{name}" for name in hostile_reached.EAGER),
)


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


# A tensor of the host of one element times one of a GPU is an error.
ON_A_HOST = ("reached_tensor_of_an_attribute",)


@pytest.mark.parametrize("name", sampled(CASES, 30, of_long=23))
@torch.no_grad()
def test_what_was_read_and_changes_is_never_stale(device, name, modules_as_before):
    if device != "cpu" and name in ON_A_HOST:
        pytest.skip("it is an error on a GPU")
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
        assert bool(graph.stats().replays) != (name in EAGER)
    finally:
        getattr(fn, "undo", lambda: None)()


@pytest.mark.parametrize("name", sampled(hostile_reached.UNREAD, 4, of_long=7))
@torch.no_grad()
def test_what_was_not_read_may_change_in_each_call(device, name):
    with torch.device(device):
        fn, change = hostile_reached.UNREAD[name]()
    graph = gfxgraph.graphed(fn)
    for n in range(6):
        if n:
            with torch.device(device):
                change()
        x = torch.randn(2, 4, device=device)
        torch.testing.assert_close(graph(x), fn(x))
    assert graph.stats().replays == 5 and not graph.stats().changed


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


@torch.no_grad()
def test_what_nobody_can_see_is_named_with_the_line_and_a_remedy(device):
    packer = zlib.compressobj()

    def fn(x):
        return x * len(packer.copy().flush())

    graph = gfxgraph.graphed(fn)
    x = torch.ones(2, 4, device=device)
    graph(x), graph(x)
    (reason,) = graph.stats().fallbacks
    assert "packer, a zlib.Compress" in reason and "pass the value as an argument" in reason
    assert f"test_python_state.py:{fn.__code__.co_firstlineno + 1}" in reason
    (hazard,) = gfxgraph.check(fn, torch.ones(2, 4)).hazards
    assert hazard.rule == "hidden-state" and hazard.line == fn.__code__.co_firstlineno + 1
    with pytest.raises(CaptureError, match="packer"):
        gfxgraph.graphed(fn, fallback="raise")(x)


@torch.no_grad()
def test_what_functions_of_cpp_are_made_of_is_no_state(device):
    def fn(x):
        return x if torch._C._get_tracing_state() else x * 2  # as torchvision's detectors ask

    graph, x = gfxgraph.graphed(fn), torch.ones(2, 4, device=device)
    for _ in range(3):
        assert torch.equal(graph(x), x * 2)
    assert graph.stats().replays == 2


@torch.no_grad()
@pytest.mark.parametrize("make", [threading.Lock, threading.RLock, multiprocessing.RLock])
def test_a_lock_that_is_only_held_is_no_state(device, make):
    lock = make()

    def fn(x):
        lock.acquire()
        lock.release()
        with lock:
            return x * 2

    graph = gfxgraph.graphed(fn)
    x = torch.ones(2, 4, device=device)
    for _ in range(3):
        graph(x)
    assert graph.stats().replays == 2


@torch.no_grad()
def test_what_is_made_in_the_call_and_what_never_changes_is_no_state(device):
    pattern, when = re.compile("(a+)b"), datetime.date(2020, 1, 2)

    def fn(x):
        packer = zlib.compressobj()
        size = len(packer.compress(b"abc") + packer.flush())
        found = np.linspace(0, 1, 3).sum() + float(Fraction(1, 2) + when.day)
        text = json.dumps(json.loads('{"a": 1}'))
        return x * size * float(found) * len(pattern.match("aab").group(1)) * len(text)

    graph = gfxgraph.graphed(fn)
    x = torch.ones(2, 4, device=device)
    for _ in range(3):
        torch.testing.assert_close(graph(x), fn(x))
    assert graph.stats().replays == 2


@torch.no_grad()
def test_a_setting_that_is_read_where_the_call_has_changed_it_for_a_while_makes_a_graph(device):
    layer = torch.nn.Linear(4, 4, device=device)
    kind = torch.device(device).type
    before = torch.get_autocast_dtype(kind)

    @torch.autocast(kind, dtype=torch.float16 if before is torch.bfloat16 else torch.bfloat16)
    def fn(x):
        with torch.autocast(kind, enabled=False):
            y = layer(x)
        return y + layer(x), torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    graph, x = gfxgraph.graphed(fn), torch.randn(2, 4, device=device)
    for _ in range(3):
        for got, expected in zip(graph(x), fn(x), strict=True):
            assert torch.equal(got, expected) if isinstance(got, torch.Tensor) else got == expected
    assert graph.stats().replays == 2 and not graph.stats().fallbacks
