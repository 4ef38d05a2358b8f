"""What code of torch and of Python sets while the function runs, and sets back."""

from __future__ import annotations

import contextlib
import decimal
import io
import json
import math
import sys
import unittest.mock
import warnings

import pytest
import torch
import torch.fx.traceback
import torch.utils.checkpoint as checkpoint
from torch.nn.utils import parametrize

import gfxgraph

LINEAR = torch.nn.Linear(4, 4)


def early_stop(x):
    with checkpoint.set_checkpoint_early_stop(False):
        return x * (2 if checkpoint._enable_checkpoint_early_stop else 3)


def debug(x):
    with checkpoint.set_checkpoint_debug_enabled(True):
        return x * (2 if checkpoint._checkpoint_debug_enabled else 3)


def meta_of_nodes(x):
    with torch.fx.traceback.preserve_node_meta():
        return x * (2 if torch.fx.traceback.should_preserve_node_meta else 3)


def caches_of_parametrizations(x):
    with parametrize.cached():
        return x * parametrize._cache_enabled


def filters_of_warnings(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x * len(warnings.filters)


def output(x):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        return x * (2 if sys.stdout is text else 3)


def precision(x):
    with decimal.localcontext() as context:
        context.prec = 3
        return x * decimal.getcontext().prec


def class_of_torch(x):
    with unittest.mock.patch.object(torch.nn.Linear, "forward", lambda self, x: x * 3):
        return LINEAR(x)


def function_of_torch(x):
    with unittest.mock.patch.object(torch.nn.functional, "linear", lambda x, w, b=None: x * 5):
        return LINEAR(x)


def function_in_c(x):
    with unittest.mock.patch("math.sqrt", lambda value: 100.0):
        return x * math.sqrt(4)


def class_of_python(x):
    with unittest.mock.patch.object(json.JSONEncoder, "item_separator", "xyz"):
        return x * len(json.JSONEncoder.item_separator)


def traced_by_fx(x):
    return torch.fx.symbolic_trace(torch.nn.Sequential(LINEAR))(x)


def traced_by_a_tracer(x):
    class Tracer(torch.fx.Tracer):
        pass

    root = torch.nn.Sequential(LINEAR)
    return torch.fx.GraphModule(root, Tracer().trace(root))(x)


def parameters_of_a_call(x):
    return torch.func.functional_call(LINEAR, {"weight": torch.eye(4)}, (x,))


CASES = [
    *(early_stop, debug, meta_of_nodes, caches_of_parametrizations, filters_of_warnings, output),
    *(precision, class_of_torch, function_of_torch, function_in_c, class_of_python),
    *(traced_by_fx, traced_by_a_tracer, parameters_of_a_call),
]
# fx keeps a logger, which nobody can compare.
EAGER = {traced_by_fx, traced_by_a_tracer}
# From Python 3.13 on, where the context of `decimal` is another object inside.
EITHER = {precision}


def around():
    """What stands around the calls."""
    return (
        *(checkpoint._enable_checkpoint_early_stop, checkpoint._checkpoint_debug_enabled),
        *(torch.fx.traceback.should_preserve_node_meta, parametrize._cache_enabled),
        *(("ignore", None, Warning, None, 0) in warnings.filters, sys.stdout),
        decimal.getcontext().prec,
        *(torch.nn.Module.__call__, torch.nn.Module.__getattr__, torch.nn.Linear.forward),
        *(torch.nn.functional.linear, math.sqrt, json.JSONEncoder.item_separator),
    )


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_what_stood_there_before_a_call_stands_there_after_it(fn):
    with torch.no_grad():
        expected = [fn(torch.full((2, 4), float(n))) for n in range(5)]
        before = around()
        fast = gfxgraph.graphed(fn)
        for n in range(5):
            assert torch.equal(fast(torch.full((2, 4), float(n))), expected[n])
            assert around() == before
    assert fn in EITHER or (fast.stats().replays > 0) == (fn not in EAGER)


def test_a_variable_of_torch_that_is_changed_between_calls_is_noticed(monkeypatch):
    def fn(x):
        with checkpoint.set_checkpoint_debug_enabled(True):
            inside = checkpoint._checkpoint_debug_enabled
        return x * (2 if inside else 3) * (5 if checkpoint._checkpoint_debug_enabled else 7)

    fast, x = gfxgraph.graphed(fn), torch.ones(3)
    for value in (None, None, True, True, None, False):
        monkeypatch.setattr(checkpoint, "_checkpoint_debug_enabled", value)
        assert torch.equal(fast(x), fn(x))
        assert checkpoint._checkpoint_debug_enabled is value
