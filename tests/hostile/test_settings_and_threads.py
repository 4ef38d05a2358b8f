"""Settings of the process that a call changes, and what a call writes beside another thread."""

from __future__ import annotations

import collections
import csv
import faulthandler
import functools
import gc
import logging
import socket
import sys
import threading
import tracemalloc
import warnings
import weakref

import pytest
import torch
from torch.utils._pytree import tree_map

import gfxgraph

LOGGER = logging.getLogger("of the program")


def _filters():
    return [one[0] for one in warnings.filters][:1]


_ORDER = torch._C._get_sdp_priority_order()

# What the call does, what tells of it, and what takes it back.
SETTINGS = {
    "dtype of autocast": (
        lambda: torch.set_autocast_dtype("cpu", torch.float16),
        lambda: torch.get_autocast_dtype("cpu"),
        lambda: torch.set_autocast_dtype("cpu", torch.bfloat16),
    ),
    "denormals": (
        lambda: torch.set_flush_denormal(True),
        lambda: (torch.tensor([1e-310], dtype=torch.float64) * 1).item() == 0,
        lambda: torch.set_flush_denormal(False),
    ),
    "anomalies": (
        lambda: torch.autograd.set_detect_anomaly(True),
        torch.is_anomaly_enabled,
        lambda: torch.autograd.set_detect_anomaly(False),
    ),
    "repeated warnings": (
        lambda: torch.set_warn_always(True),
        torch.is_warn_always_enabled,
        lambda: torch.set_warn_always(False),
    ),
    "fast path of attention": (
        lambda: torch.backends.mha.set_fastpath_enabled(False),
        torch.backends.mha.get_fastpath_enabled,
        lambda: torch.backends.mha.set_fastpath_enabled(True),
    ),
    "accumulation in half precision": (
        lambda: torch._C._set_cublas_allow_fp16_accumulation(True),
        torch._C._get_cublas_allow_fp16_accumulation,
        lambda: torch._C._set_cublas_allow_fp16_accumulation(False),
    ),
    "reduction of attention in half precision": (
        lambda: torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True),
        torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
        lambda: torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False),
    ),
    "order of attention": (
        lambda: torch._C._set_sdp_priority_order(_ORDER[::-1]),
        torch._C._get_sdp_priority_order,
        lambda: torch._C._set_sdp_priority_order(_ORDER),
    ),
    "mkldnn": (
        lambda: torch.backends.mkldnn.set_flags(False),
        torch._C._get_mkldnn_enabled,
        lambda: torch.backends.mkldnn.set_flags(True),
    ),
    "a filter of warnings": (
        lambda: warnings.simplefilter("error"),
        _filters,
        lambda: warnings.simplefilter("default"),
    ),
    "another filter of warnings": (
        lambda: warnings.filterwarnings("error", "nobody says this"),
        _filters,
        lambda: warnings.simplefilter("default"),
    ),
    "level of a logger": (
        lambda: LOGGER.setLevel(10),
        lambda: LOGGER.level,
        lambda: LOGGER.setLevel(30),
    ),
    "all loggers": (
        lambda: logging.disable(30),
        lambda: logging.root.manager.disable,
        lambda: logging.disable(0),
    ),
    "warnings to loggers": (
        lambda: logging.captureWarnings(True),
        lambda: warnings.showwarning.__module__,
        lambda: logging.captureWarnings(False),
    ),
    "collections": (gc.disable, gc.isenabled, gc.enable),
    "thresholds of collections": (
        lambda: gc.set_threshold(900, 9, 9),
        gc.get_threshold,
        functools.partial(gc.set_threshold, *gc.get_threshold()),
    ),
    "limit of recursion": (
        lambda: sys.setrecursionlimit(5000),
        sys.getrecursionlimit,
        functools.partial(sys.setrecursionlimit, 3000),
    ),
    "interval of threads": (
        lambda: sys.setswitchinterval(0.01),
        sys.getswitchinterval,
        lambda: sys.setswitchinterval(0.005),
    ),
    "timeout of sockets": (
        lambda: socket.setdefaulttimeout(3),
        socket.getdefaulttimeout,
        lambda: socket.setdefaulttimeout(None),
    ),
    "stacks of threads": (
        lambda: threading.stack_size(1 << 20),
        threading.stack_size,
        lambda: threading.stack_size(0),
    ),
    "fields of csv": (
        lambda: csv.field_size_limit(77),
        csv.field_size_limit,
        lambda: csv.field_size_limit(131072),
    ),
    "dialects of csv": (
        lambda: csv.register_dialect("ours", delimiter=";"),
        lambda: "ours" in csv.list_dialects(),
        lambda: "ours" in csv.list_dialects() and csv.unregister_dialect("ours"),
    ),
    "traces of memory": (tracemalloc.start, tracemalloc.is_tracing, tracemalloc.stop),
    "handlers of faults": (faulthandler.disable, faulthandler.is_enabled, faulthandler.enable),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_each_call_changes_is_changed_by_each_call(device, name):
    change, now, put_back = SETTINGS[name]

    def fn(x):
        change()
        return x * 2

    before, called, graphed = now(), gfxgraph.graphed(fn), []
    x = torch.ones(2, device=device)
    try:
        put_back()
        fn(x)
        expected = now()
        for _ in range(4):
            put_back()
            assert torch.equal(called(x), torch.full_like(x, 2.0))
            graphed.append(now())
    finally:
        put_back()
        if name == "handlers of faults" and not before:
            faulthandler.disable()
    assert graphed == [expected] * 4
    stats = called.stats()
    assert not stats.replays and stats.fallbacks


def test_a_filter_that_ends_with_the_call_is_none_of_these(device):
    def fn(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return x * 2

    called, x = gfxgraph.graphed(fn), torch.ones(2, device=device)
    for _ in range(3):
        assert torch.equal(called(x), x * 2)
    assert called.stats().replays


def test_a_logger_of_a_module_that_a_call_imports_is_none_of_these(device, tmp_path, monkeypatch):
    code = "import logging\nlogging.getLogger(__name__).setLevel(10)\nfactor = 3.0\n"
    (tmp_path / "imported_by_a_call.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))

    def fn(x):
        import imported_by_a_call

        return x * imported_by_a_call.factor

    called, x = gfxgraph.graphed(fn), torch.ones(2, device=device)
    for _ in range(3):
        assert torch.equal(called(x), x * 3)
    assert called.stats().replays


class Watched:
    """Something whose end is waited for."""


def test_a_finalizer_that_each_call_registers_is_there_for_each_call(device):
    hits, held = [], [Watched()]

    def fn(x):
        weakref.finalize(held[0], hits.append, 1)
        return x * 2

    called, x = gfxgraph.graphed(fn), torch.ones(2, device=device)
    for _ in range(4):
        called(x)
    held.clear()
    gc.collect()
    assert hits == [1] * 4


WRITES = {
    "append": lambda: (box := [], lambda: tree_map(box.append, [1, 2])),
    "extend": lambda: (box := [], lambda: tree_map(box.extend, [(1,), (2,)], is_leaf=_is_tuple)),
    "deque": lambda: (
        box := collections.deque(),
        lambda: tree_map(box.append, [1, 2]),
    ),
    "partial": lambda: (box := [], lambda: tree_map(functools.partial(box.insert, 0), [1, 2])),
    "item": lambda: (box := {}, lambda: tree_map(functools.partial(box.__setitem__, "a"), [1])),
    "a container": lambda: (
        box := {},
        lambda: torch.nn.Linear(2, 2).state_dict(destination=box),
    ),
}


def _is_tuple(item):
    return isinstance(item, tuple)


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "beside a thread"])
@pytest.mark.parametrize("name", WRITES)
def test_what_code_of_torch_writes_for_a_call_is_there_once(device, name, is_alone):
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    if not is_alone:
        other.start()
    try:
        found = []
        for wrap in (lambda fn: fn, gfxgraph.graphed):
            box, write = WRITES[name]()

            def fn(x, write=write):
                write()
                return x * 2

            called, x, after = wrap(fn), torch.ones(2, device=device), []
            for _ in range(5):
                box.clear()
                called(x)
                after.append(len(box))
            found.append(after)
    finally:
        done.set()
        if not is_alone:
            other.join()
    assert found[0] == found[1]
