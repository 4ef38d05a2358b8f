"""Bad input raises an ``ArgumentError`` that says what came, and what was expected."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.errors import ArgumentError
from tests.helpers.command import gfxgraph_command, importable


def double(x):
    return x * 2


def x():
    return torch.ones(3, 2, device=gfxgraph.device_type())


NO_DIMS = "expected argument name -> dimension -> name of the size"
NO_OUT_DIMS = "expected for each tensor of the result, in order, a mapping"
OF_SIZES = {
    "a list of dims": ({"buckets": {"b": [4]}, "dims": ["b"]}, NO_DIMS),
    "a number of dims": ({"buckets": [4], "dims": 3}, NO_DIMS),
    "a dimension by text": ({"buckets": {"b": [4]}, "dims": {"x": {"0": "b"}}}, NO_DIMS),
    "a dimension by bool": ({"buckets": {"b": [4]}, "dims": {"x": {True: "b"}}}, NO_DIMS),
    "dims of an argument": ({"buckets": {"b": [4]}, "dims": {"x": 0}}, NO_DIMS),
    "another name": (
        {"buckets": {"b": [4]}, "dims": {"y": {0: "b"}}},
        "dims names the argument 'y', which the function does not have: expected 'x'",
    ),
    "a number for a name": (
        {"buckets": {1: [4]}, "dims": {"x": {0: 1}}},
        "expected the name of a dimension, a string",
    ),
    "padding of another name": (
        {"buckets": [4], "pad": {"q": 0}},
        "pad names the argument 'q', which the function does not have: expected 'x'",
    ),
    "an unknown padding": ({"buckets": [4], "pad": "zzz"}, "pad='zzz': expected a number"),
    "one of an argument": ({"buckets": [4], "pad": {"x": []}}, "pad=[]: expected a number"),
    "no padding": ({"buckets": [4], "pad": None}, "pad=None: expected a number"),
    "a number of out_dims": ({"buckets": [4], "out_dims": 3}, NO_OUT_DIMS),
    "numbers as out_dims": ({"buckets": [4], "out_dims": [3]}, NO_OUT_DIMS),
    "out_dims by text": ({"buckets": [4], "out_dims": [{"0": "batch"}]}, NO_OUT_DIMS),
}


@pytest.mark.parametrize("make", [gfxgraph.graphed, gfxgraph.ShapeBucketPool])
@pytest.mark.parametrize("name", OF_SIZES)
def test_what_says_which_sizes_there_are_is_checked_at_once(make, name):
    options, message = OF_SIZES[name]
    with pytest.raises(ArgumentError) as caught:
        make(double, **options)
    assert message in str(caught.value)


def test_names_are_those_of_any_parameter():
    def fn(x, *more, key=None, **rest):
        return x

    for name in ("x", "more", "key", "others"):
        gfxgraph.ShapeBucketPool(fn, {"b": [4]}, dims={name: {0: "b"}})
    gfxgraph.ShapeBucketPool(nn.Linear(2, 2), [4], pad={"input": "zero"})


def verify(**options):
    return lambda: gfxgraph.verify(double, x(), **options)


CALLS = {
    "progress of a pool": (
        lambda: gfxgraph.ShapeBucketPool(double, [4]).capture(x(), progress=3),
        "capture(progress=3): expected a function",
    ),
    "progress of branches": (
        lambda: gfxgraph.ConditionalGraph().add_branch("a", double).capture(x(), progress=3),
        "capture(progress=3): expected a function",
    ),
    "an index on meta": (
        lambda: (
            gfxgraph.ConditionalGraph()
            .add_branch("a", double)
            .run(torch.zeros((), dtype=torch.long, device="meta"), x())
        ),
        "run(tensor on the meta device): it has no value",
    ),
    "warmup of branches": (
        lambda: gfxgraph.ConditionalGraph(warmup=0),
        "ConditionalGraph(warmup=0): expected a whole number from 1",
    ),
    "warmup of a pool": (
        lambda: gfxgraph.ShapeBucketPool(double, [4], warmup=0),
        "ShapeBucketPool(warmup=0): expected a whole number from 1",
    ),
    "warmup of graphed": (
        lambda: gfxgraph.graphed(double, warmup=0),
        "graphed(warmup=0): expected a whole number from 1",
    ),
    "a group": (
        lambda: gfxgraph.graphed(double, collectives="inside", group="ranks"),
        "graphed(group='ranks'): expected a torch.distributed.ProcessGroup that "
        'this rank is in, with collectives="inside"',
    ),
    "a large seed": (verify(seed=2**70), "expected a whole number from 0, below 2**63"),
    "inputs": (verify(inputs=3), "expected a tuple of arguments for each run, not int"),
    "kwargs": (verify(kwargs=3), "verify(kwargs=3): expected keyword arguments"),
    "keys of kwargs": (verify(kwargs={1: 2}), "expected keyword arguments"),
    "more inputs": (verify(inputs=[(1, 2)]), "inputs=): the function takes (x)"),
    "other keywords": (verify(kwargs={"q": 2}), "the function takes (x)"),
    "compiled": (verify(compiled="x"), "verify(compiled='x'): expected True or False"),
    "views": (verify(views="x"), "verify(views='x'): expected True or False"),
    "a class": (verify(candidate=nn.Linear), "takes a function, a module or a method"),
    "an infinite threshold": (verify(threshold=float("inf")), "expected a finite number from 0"),
    "debug": (lambda: gfxgraph.enable(debug="yes"), "enable(debug='yes'): expected True or False"),
    "validate": (lambda: gfxgraph.enable(validate="yes"), "enable(validate='yes')"),
    "compile": (lambda: gfxgraph.graphed(double, compile=None), "compile=None: expected True"),
    "a device by text": (lambda: gfxgraph.device_facts("a"), "expected the number of a device"),
    "a device too many": (lambda: gfxgraph.device_facts(1000), "expected the number of a device"),
    "a device below 0": (lambda: gfxgraph.device_facts(-1), "expected the number of a device"),
    "half a call": (
        lambda: gfxgraph.suggest_buckets({1: 0.5}, 2),
        "size 1 came 0.5 times; expected a whole number",
    ),
    "no sizes": (lambda: gfxgraph.suggest_buckets(None, 2), "expected sizes as they came"),
    "a number of sizes": (lambda: gfxgraph.suggest_buckets(3, 2), "expected sizes as they came"),
    "keep_graph": (
        lambda: gfxgraph.BridgedCUDAGraph("banana"),
        "BridgedCUDAGraph(keep_graph='banana'): expected True or False",
    ),
    "a generator": (
        lambda: gfxgraph.BridgedCUDAGraph().register_generator_state(3),
        "register_generator_state(3): expected a torch.Generator",
    ),
    "too many arguments": (
        lambda: gfxgraph.graph_breaks(double, 1, 2),
        "graph_breaks(double): the function takes (x)",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_input_says_what_was_expected(name):
    call, message = CALLS[name]
    with pytest.raises(ArgumentError) as caught:
        call()
    assert message in str(caught.value)


def test_a_seed_too_large_is_a_wrong_argument_of_the_command(tmp_path, monkeypatch):
    importable(tmp_path, monkeypatch, "bad_input_subject", "def double(x):\n    return x * 2\n")
    target = "bad_input_subject:double"
    assert gfxgraph_command("verify", target, "float32[2]", "--seed", "9" * 30).exit_code == 2
    result = gfxgraph_command("check", target, "x=1", "x=2")
    assert result.exit_code == 2 and "x came twice" in result.output


def test_a_platform_that_is_nested_too_deep_is_a_wrong_argument(tmp_path):
    file = tmp_path / "deep.json"
    file.write_text("[" * 200_000)
    result = gfxgraph_command("doctor", "--platform", str(file))
    assert result.exit_code == 2 and "nested too deep" in result.output
