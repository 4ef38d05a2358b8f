"""What imports, class statements, contexts of decimal and readers of CSV read may change later."""

from __future__ import annotations

import builtins
import csv
import decimal
import functools
import importlib
import importlib.machinery
import sys
import types

import pytest
import torch
from torch.utils._pytree import tree_map

import gfxgraph
from tests.helpers.processes import printed

KEEP = []
SPEC = importlib.machinery.ModuleSpec


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    real_import, real_class = builtins.__import__, builtins.__build_class__
    prec = decimal.DefaultContext.prec
    for name in ("im_a", "im_a.b", "im_c", "im_c.b"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    limit = csv.field_size_limit()
    yield
    csv.field_size_limit(limit)
    builtins.__import__, builtins.__build_class__ = real_import, real_class
    decimal.DefaultContext.prec = prec


def put(name, value):
    """A module of this name, with the attribute ``v``; as if it were a package."""
    module = types.ModuleType(name)
    module.v, module.__path__ = value, []
    sys.modules[name] = module
    KEEP.append(module)  # a module that goes takes its names with it, which is noticed
    return module


def relative(names, change, line="from .b import v"):
    """A function that imports from the package that ``names`` say."""
    for outer, value in (("im_a", 2.0), ("im_c", 9.0)):
        put(outer, 1.0).b = put(f"{outer}.b", value)
    space = {"__builtins__": builtins, **names}
    exec(f"def f(x):\n    {line}\n    return x * v", space)
    return space["f"], lambda: change(space)


def called(function):
    """``function`` reads the module ``im_a``, which is replaced."""
    put("im_a", 2.0)
    return function, lambda: put("im_a", 5.0)


def missing():
    del sys.modules["im_a"]

    def f(x):
        try:
            return x * __import__("im_a").v
        except ImportError:
            return x * 3

    return f, lambda: put("im_a", 5.0)


def fallback(change):
    put("im_a", 1.0), put("im_a.b", 2.0), put("im_c.b", 9.0)

    def f(x):
        try:
            from im_a import b
        except ImportError:
            return x * 3
        return x * b.v

    return f, change


def later():
    f, _ = fallback(None)
    del sys.modules["im_a.b"]
    return f, lambda: put("im_a.b", 5.0)


def inner():
    put("im_a", 1.0).b = put("im_a.b", 2.0)
    f = lambda x: x * __import__("im_a.b", fromlist=["b"]).v  # noqa: E731
    return f, lambda: put("im_a.b", 5.0)


def other_import():
    real = builtins.__import__

    def f(x):
        import math

        return x * math.floor(2.5)

    def other(name, *args):
        return types.SimpleNamespace(floor=lambda _: 9) if name == "math" else real(name, *args)

    return f, lambda: setattr(builtins, "__import__", other)


def other_class():
    real = builtins.__build_class__

    def f(x):
        class Q:
            v = 2.0

        return x * Q.v

    def other(*args):
        cls = real(*args)
        cls.v = 7.0
        return cls

    return f, lambda: setattr(builtins, "__build_class__", other)


def context(make):
    return lambda x: x * float(make().divide(1, 3)), lambda: setattr(
        decimal.DefaultContext, "prec", 2
    )


def limit_of_csv(make):
    def f(x):
        try:
            return x * len(*next(make(["1234"])))
        except csv.Error:
            return x * 9

    return f, lambda: csv.field_size_limit(2)


KEPT = decimal.Context()
CASES = {
    "call": lambda: called(lambda x: x * __import__("im_a").v),
    "call_in_python": lambda: called(lambda x: x * importlib.__import__("im_a").v),
    "call_by_keyword": lambda: called(lambda x: x * __import__(name="im_a").v),
    "call_spread": lambda: called(lambda x: x * __import__(*("im_a",)).v),
    "call_partial": lambda: called(lambda x: x * functools.partial(__import__, "im_a")().v),
    "call_map": lambda: called(lambda x: x * next(map(__import__, ["im_a"])).v),
    "call_tree": lambda: called(lambda x: x * tree_map(__import__, ["im_a"])[0].v),
    "call_missing": missing,
    "call_inner": inner,
    "package": lambda: relative(
        {"__package__": "im_a", "__name__": "im_a.m"}, lambda s: s.update(__package__="im_c")
    ),
    "spec": lambda: relative(
        {"__spec__": SPEC("im_a.m", None), "__name__": "im_a.m"},
        lambda s: s.update(__spec__=SPEC("im_c.m", None)),
    ),
    "name_of_spec": lambda: relative(
        {"__spec__": SPEC("im_a.m", None), "__name__": "im_a.m"},
        lambda s: setattr(s["__spec__"], "name", "im_c.m"),
    ),
    "name": lambda: relative({"__name__": "im_a.m"}, lambda s: s.update(__name__="im_c.m")),
    "path": lambda: relative(
        {"__name__": "im_a.b"},
        lambda s: s.update(__path__=[]),
        "from . import __name__ as n; v = 2.0 if n == 'im_a' else 5.0",
    ),
    "module_relative": lambda: relative(
        {"i": importlib},
        lambda s: put("im_a.b", 5.0),
        "v = i.import_module('.b', package='im_a').v",
    ),
    "fallback": lambda: fallback(lambda: put("im_a.b", 5.0)),
    "fallback_renamed": lambda: fallback(lambda: setattr(sys.modules["im_a"], "__name__", "im_c")),
    "fallback_later": later,
    "other_import": other_import,
    "other_class": other_class,
    "context": lambda: context(decimal.Context),
    "csv": lambda: limit_of_csv(csv.reader),
    "csv_by_name": lambda: limit_of_csv(lambda rows: csv.DictReader(rows, "a")),
    "class_of_context": lambda: context(lambda: type(KEPT)()),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_read_and_changes_is_noticed(name):
    f, change = CASES[name]()
    graph = gfxgraph.graphed(f)
    x = torch.ones(2)
    for n in range(6):
        if n == 3:
            change()
        assert graph(x).tolist() == f(x).tolist(), n
    assert graph.stats().captures or name == "call_tree"


def test_modules_that_a_function_imports_are_read_once():
    """Usual code stays a graph."""

    def f(x):
        import xml.sax.handler
        from os import path
        from xml.dom import minidom

        import torch.nn.functional as F

        scale = len(path.basename("a/b")) + bool(minidom) + bool(xml.sax.handler)
        return F.relu(x) * scale

    graph = gfxgraph.graphed(f)
    for _ in range(4):
        assert graph(torch.ones(2)).tolist() == [3.0, 3.0]
    assert graph.stats().replays >= 2


IMPORTED_MEANWHILE = """
import torch
import gfxgraph
from tests.helpers.processes import printed

device = gfxgraph.device_type()
table = torch.randn(5, 3, device=device)

def function(rows):  # torch asks for the classes that it takes apart
    return torch.vmap(lambda row: table.index_select(0, row).sum())(rows)

graph, rows = gfxgraph.graphed(function), torch.tensor([[0, 1], [2, 3]], device=device)
for _ in range(4):
    assert torch.equal(graph(rows), function(rows))
print(graph.stats().captures, len(graph.stats().refused))
"""


def test_a_module_that_the_capture_imports_is_no_reason_to_refuse(device):
    # In a new process the emulated device imports Dynamo, which registers such classes.
    assert printed(IMPORTED_MEANWHILE) == "1 0"
