"""``check`` says without a GPU what becomes of a function in a graph."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import itertools
import json
import random
import sys
import types
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.errors import ArgumentError
from tests.helpers.command import gfxgraph_command


def x():
    return torch.randn(4, 8)


def plain(x):
    return torch.relu(x) @ x.mT


def driven_by_the_device(x):
    dt = torch.tensor(-0.25, device="cuda")
    t = torch.tensor(1.0, device="cuda")
    while t >= -dt / 2:
        x = x + dt * x
        t += dt
    return x


def branches_on_data(x):
    return x * 2 if x.sum() > 0 else x


def shape_of_data(x):
    return x[x > 0].sum()


def inverse(x):
    return torch.linalg.inv(x[:, :4])


def to_host(x):
    return x.cpu()


def list_index(x):
    return x[[0, 2]]


def prints(x):
    print("hello")
    return x


def synchronizes(x):
    torch.cuda.synchronize()
    return x * 2


def seeds(x):
    torch.manual_seed(3)
    return x + torch.rand_like(x)


def returns_an_object(x):
    return object()


def raises(x):
    raise KeyError("nothing here")


def unjoined_side_stream(x):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        return x * 2


CASES = [
    (plain, "captures", None, 0),
    (driven_by_the_device, "folds", "host-read", 3),
    (list_index, "folds", "host-constant", 1),
    (branches_on_data, "branches", "host-read", 1),
    (shape_of_data, "branches", "data-dependent-shape", 1),
    (inverse, "branches", "hidden-sync", 1),
    (to_host, "branches", "host-read", 1),
    (prints, "eager", "print", 1),
    (synchronizes, "folds", "synchronize", 1),
    (seeds, "branches", "seed", 1),
    (returns_an_object, "eager", "result", None),
    (raises, "eager", "raises", 1),
    (unjoined_side_stream, "eager", "side-stream", None),
]


@pytest.mark.parametrize(("fn", "verdict", "rule", "offset"), CASES)
def test_the_verdict_and_the_line_are_right(fn, verdict, rule, offset):
    report = gfxgraph.check(fn, x())
    assert report.verdict == verdict, report
    if rule is not None:
        hazard = next(h for h in report.hazards if h.rule == rule)
        assert hazard.why and hazard.remedy
        if offset is not None:
            assert hazard.file == __file__
            assert hazard.line == fn.__code__.co_firstlineno + offset
            assert hazard.source


@torch.no_grad()
@pytest.mark.parametrize(
    "fn", [plain, driven_by_the_device, list_index, branches_on_data, shape_of_data, inverse]
)
def test_what_is_said_to_capture_does_capture_on_the_emulated_device(fn, device):
    if fn is driven_by_the_device and device == "cpu":
        pytest.skip("says cuda")
    graph = gfxgraph.graphed(fn)
    for _ in range(2):
        graph(torch.eye(4, 8, device=device))
    assert graph.stats().replays == 1 and not graph.stats().fallbacks


def test_a_module_is_checked_and_left_as_it_was():
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    before = {
        name: (value, value.clone()) for name, value in net.state_dict(keep_vars=True).items()
    }
    assert gfxgraph.check(net, x()).verdict == "captures"
    for name, value in net.state_dict(keep_vars=True).items():
        assert value is before[name][0] and torch.equal(value, before[name][1])


def test_weights_may_be_on_meta():
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(8, 1 << 16), nn.ReLU(), nn.Linear(1 << 16, 8))
    assert gfxgraph.check(net, torch.randn(2, 8)).verdict == "captures"


def add_to(pointer):
    pointer.contents.value += 1


def test_state_that_is_rebound_in_python_is_found():
    class Counter:
        n = 0

        def __call__(self, x):
            self.n += 1
            return x + self.n

    counter = Counter()
    report = gfxgraph.check(counter, x())
    assert report.verdict == "eager" and report.hazards[-1].rule == "python-state"
    assert counter.n == 0


@pytest.mark.parametrize(
    ("state", "advance", "rule"),
    [
        (bytearray(1), lambda state: state.__setitem__(0, state[0] + 1), "python-state"),
        (ctypes.pointer(ctypes.c_int(0)), add_to, "python-state"),
        (itertools.count(), next, "python-state"),
        (random.Random(0), random.Random.random, "python-random"),
    ],
    ids=["bytes", "pointer", "iterator", "generator"],
)
def test_what_a_call_advances_is_named_as_what_it_is(state, advance, rule):
    def stepping(x):
        advance(state)
        return x + 1

    assert rule in {hazard.rule for hazard in gfxgraph.check(stepping, torch.ones(2)).hazards}


def test_what_is_no_function_is_refused():
    with pytest.raises(ArgumentError, match="check"):
        gfxgraph.check(3)


def test_the_command_prints_the_same_as_json_and_tells_by_its_status(tmp_path, monkeypatch):
    (tmp_path / "policy_to_check.py").write_text(
        "import torch\n"
        "def good(x):\n    return x * 2\n"
        "def bad(x):\n    print(x.shape)\n    return x\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    good = gfxgraph_command("check", "policy_to_check:good", "float32[4,8]", "--json")
    assert good.exit_code == 0 and json.loads(good.output)["verdict"] == "captures"
    bad = gfxgraph_command("check", "policy_to_check:bad", "float32[4,8]")
    assert bad.exit_code == 1 and "print" in bad.output and "policy_to_check.py:5" in bad.output
    for wrong in (["check", "nowhere:f"], ["check", "policy_to_check:bad", "float33[4]"]):
        result = gfxgraph_command(*wrong)
        assert result.exit_code == 2 and "Error" in result.output


def test_values_that_were_made_up_are_named():
    def branch(x):
        return x * 2 if x.sum() > 0 else x

    known = gfxgraph.check(branch, torch.ones(3))
    assert not known.assumed and "Made up" not in " ".join(known.basis)
    unknown = gfxgraph.check(branch, torch.ones(3, device="meta"))
    assert unknown.verdict == "branches" and unknown.assumed
    assert "Made up" in " ".join(unknown.basis)


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: int = 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    scale: int = 2


@dataclasses.dataclass(slots=True)
class Slotted:
    x: torch.Tensor
    scale: int = 2


class Named(NamedTuple):
    x: torch.Tensor
    scale: int = 2


class Mapping(collections.UserDict):
    pass


class Opaque:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


def scaled(item):
    return item.x * item.scale


def from_key(item):
    return item["x"] * 2


def written(item):
    item[0].add_(1)
    return item * 2


def appended(item):
    item.append(1)
    return item[0] * 2


def with_attribute(x):
    x.scale = 2
    return x


# What it is called with, made of a tensor; and the function.
ARGUMENTS = {
    "tensor": (lambda x: x, lambda x: x * 2),
    "dataclass": (Batch, scaled),
    "frozen dataclass": (Frozen, scaled),
    "dataclass with slots": (Slotted, scaled),
    "namedtuple": (Named, scaled),
    "namespace": (lambda x: types.SimpleNamespace(x=x, scale=2), scaled),
    "list of dataclasses": (lambda x: [Batch(x), Frozen(x + 1)], lambda a: a[0].x * a[1].x),
    "user dict": (lambda x: Mapping(x=x), from_key),
    "ordered dict": (lambda x: collections.OrderedDict(x=x), from_key),
    "deque": (lambda x: collections.deque([x]), lambda a: a[0] * 2),
    "nested": (
        lambda x: {"a": [Frozen(x)], "b": types.SimpleNamespace(c=Named(x))},
        lambda a: a["a"][0].x * a["b"].c.x,
    ),
    "object": (Opaque, lambda a: a.x * 2),
    "slice": (lambda x: (x, slice(0, 1)), lambda a: a[0][a[1]] * 2),
    "the same twice": (lambda x: [x, x], lambda a: a[0] * (2 if a[0] is a[1] else 3)),
    "expanded": (lambda x: x[:1].expand(4, 3), lambda x: x * 2),
    "expanded, written": (lambda x: x[:1].expand(4, 3), written),
    "list that is appended to": (lambda x: [x], appended),
    "sparse": (lambda x: x.to_sparse(), lambda x: x.to_dense() * 2),
    "attribute": (with_attribute, lambda x: x * x.scale),
    "array": (lambda x: (x, np.ones(3)), lambda a: a[0] * 2),
    "set": (lambda x: (x, {1}), lambda a: a[0] * 2),
    "keys": (lambda x: {1.5: x}, lambda a: a[1.5] * 2),
    "int of a class of its own": (lambda x: (x, type("I", (int,), {})(1)), lambda a: a[0] * 2),
    "offset": (lambda x: x, lambda x: x * (1 + x.storage_offset())),
    "stride": (lambda x: x, lambda x: x * x.stride(0)),
    "conjugate": (lambda x: torch.complex(x, x).conj(), lambda x: x * 2),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_check_and_graphed_agree_on_every_kind_of_argument(device, name):
    make, fn = ARGUMENTS[name]
    with torch.no_grad():
        graph = gfxgraph.graphed(fn)
        for _ in range(4):
            graph(make(torch.rand(2, 3, device=device)))
        replayed = bool(graph.stats().replays)
    report = gfxgraph.check(fn, make(torch.rand(2, 3)))
    assert replayed == (report.verdict != "eager"), (report.hazards, graph.stats().fallbacks)


def test_check_takes_what_transformers_give(device):
    transformers = pytest.importorskip("transformers")
    outputs = pytest.importorskip("transformers.modeling_outputs")
    encoding = transformers.BatchEncoding({"x": torch.rand(2, 3)})
    assert gfxgraph.check(from_key, encoding).verdict == "captures"
    assert gfxgraph.check(lambda e: e.x * 2, encoding).verdict == "captures"
    output = outputs.BaseModelOutput(last_hidden_state=torch.rand(2, 3))
    assert gfxgraph.check(lambda o: o.last_hidden_state * 2, output).verdict == "captures"
