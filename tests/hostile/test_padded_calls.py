"""Padded calls: what the function can ask of its arguments, and what the caller of the result."""

from __future__ import annotations

import collections
import contextlib
import decimal
import functools
import logging
import os
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import gfxgraph
from tests.helpers.sampled import sampled

pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = (3, 1, 2, 4, 7, 3, 1, 7, 3, 7)


def rows(number: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(size, 4, generator=generator).to(gfxgraph.device_type())


def agree(
    fn: Any, arguments: Any, replays: int = 1, mode: Any = torch.inference_mode, **options: Any
) -> None:
    """Call by call, a function with buckets gives what it gives without."""
    fast = gfxgraph.graphed(fn, buckets=[4, 8], **options)
    with mode():
        for number, size in enumerate(SIZES):
            expected, got = fn(*arguments(number, size)), fast(*arguments(number, size))
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    assert fast.stats().replays >= replays


IS_ONE = {
    "is": lambda x, y: x * y + (x is y),
    "set": lambda x, y: x * y + len({x, y}),
}


@pytest.mark.parametrize("name", IS_ONE)
def test_a_tensor_that_comes_twice_is_one_tensor_in_a_padded_call(device, name):
    def later(number, size):
        x = rows(number, size)
        return (x, x) if number > 4 else (x, rows(number + 50, size))

    agree(IS_ONE[name], later)


def test_a_tensor_that_is_padded_in_two_ways_is_one_all_the_same(device):
    def twice(number, size):
        x = rows(number, size)
        return x, x

    agree(lambda x, y: x * 2 + (x is y), twice, 0, dims={"x": {0: "batch"}})
    agree(lambda x, y: x * 2 + (x is y), twice, 0, pad={"x": 1.0})


def test_a_container_that_comes_twice_is_taken_in_a_padded_call(device):
    def twice(number, size):
        held = [rows(number, size)]
        return held, held if number % 2 else [rows(number + 50, size)]

    agree(lambda one, other: one[0] * (2 if one is other else 3), twice)


def test_a_parameter_stays_a_parameter_in_a_padded_call(device):
    def parameters(number, size):
        x = rows(number, size)
        return (torch.nn.Parameter(x, requires_grad=False) if number % 2 else x,)

    agree(lambda x: x * (2 if isinstance(x, torch.nn.Parameter) else 3), parameters)


def test_what_requires_grad_does_so_in_a_padded_call(device):
    def later(number, size):
        return (rows(number, size).requires_grad_(number > 4),)

    agree(lambda x: x * (2 if x.requires_grad else 3), later, mode=torch.no_grad)


ATTRIBUTES = {
    "getattr": lambda x: x * getattr(x, "scale", 1.0),
    "vars": lambda x: x * (2 + len(vars(x))),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_a_tensor_count_in_buckets_of_all_sizes(device, name):
    def later(number, size):
        x = rows(number, size)
        if number > 7:
            x.scale = 5.0
        return (x,)

    agree(ATTRIBUTES[name], later)


def test_an_object_that_the_function_knows_is_no_copy_in_a_padded_call(device):
    known = SimpleNamespace(a=1)
    fast = gfxgraph.graphed(lambda x: (x * 2, known), buckets=[4, 8])
    with torch.inference_mode():
        assert all(fast(rows(0, size))[1] is known for size in SIZES)


def test_results_of_a_padded_call_share_what_they_share_in_eager(device):
    def shared(x):
        y = x * 2
        return y, (x + 1, y), y.view(-1, 2, 2), y[:, 0]

    one = gfxgraph.graphed(lambda x: shared(x)[:2], buckets=[4, 8])
    views = gfxgraph.graphed(shared, buckets=[4, 8])
    pieces = gfxgraph.graphed(lambda x: shared(x)[:2], buckets=[2], larger="split")
    with torch.inference_mode():
        for size in SIZES:
            for fast in (one, pieces):
                y, (_, same) = fast(rows(0, size))
                assert y is same
            y, (_, same), view, column = views(rows(0, size))
            y.zero_()
            assert y is same and not view.any() and not column.any()
    assert one.stats().replays and views.stats().replays and pieces.stats().replays


def test_views_of_a_result_that_would_lie_otherwise_are_not_padded(device):
    def transposed(x):
        y = (x * 2).t().contiguous()
        return y, y[:2]

    fast = gfxgraph.graphed(transposed, buckets=[4, 8])
    with torch.inference_mode():
        for size in SIZES:
            y, view = fast(rows(0, size))
            y.zero_()
            assert y.is_contiguous() and not view.any()


def test_a_result_with_gaps_lies_in_memory_as_in_eager(device):
    def gaps(x):
        return (x * 3)[:, ::2], (x * 2)[:, :1].expand(-1, 3)

    fast = gfxgraph.graphed(gaps, buckets=[4, 8])
    with torch.inference_mode():
        for size in (3, 2, 4, 7, 3, 2, 7, 3, 7):
            expected = [t.stride() for t in gaps(rows(0, size))]
            assert [t.stride() for t in fast(rows(0, size))] == expected
    assert fast.stats().replays


STORED_BY_SOME = {
    "attribute": "s.rows = len(x)",
    "setattr": "setattr(s, 'rows', len(x))",
    "item": "s.table['rows'] = len(x)",
    "update": "s.table.update(rows=len(x))",
    "set": "s.seen.add(len(x))",
    "dict of attributes": "vars(s)['rows'] = len(x)",
    "global": "global rows; rows = len(x)",
    "method": "s.keep(len(x))",
    "class": "type(s).rows = len(x)",
    "class by its name": "Kept.rows = len(x)",
    "module": "settings.rows = len(x)",
    "layer": "s.layer.rows = len(x)",
    "weight": "s.layer.weight.rows = len(x)",
    "tensor": "s.tensor.rows = len(x)",
    "slot": "s.slot.rows = len(x)",
    "environment": "os.environ['GFXGRAPH_TEST_ROWS'] = str(len(x))",
    "directory": "os.chdir('/')",
    "log": "logging.getLogger('odd').error('odd')",
    "print": "print('odd')",
}
SET_BY_SOME: dict[str, tuple[str, Any, Any]] = {
    "grad mode": ("torch.set_grad_enabled(True)", torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast": (
        "torch.set_autocast_enabled('cpu', True)",
        lambda: torch.is_autocast_enabled("cpu"),
        lambda value: torch.set_autocast_enabled("cpu", value),
    ),
    "default device": (
        "torch.set_default_device('cpu')",
        lambda: torch._C._len_torch_function_stack(),
        lambda value: torch.set_default_device(None),
    ),
    "default dtype": (
        "torch.set_default_dtype(torch.float64)",
        torch.get_default_dtype,
        torch.set_default_dtype,
    ),
    "printing": (
        "torch.set_printoptions(precision=7)",
        lambda: torch._tensor_str.PRINT_OPTS.precision,
        lambda value: torch.set_printoptions(precision=value),
    ),
    "anomalies": (
        "torch.autograd.set_detect_anomaly(True)",
        torch.is_anomaly_enabled,
        torch.autograd.set_detect_anomaly,
    ),
    "decimal": (
        "decimal.getcontext().prec = 5",
        lambda: decimal.getcontext().prec,
        lambda value: setattr(decimal.getcontext(), "prec", value),
    ),
}
DELETED_BY_SOME = {
    "attribute": "if hasattr(s, 'old'): del s.old",
    "slot": "if hasattr(s.slot, 'old'): del s.slot.old",
    "item": "s.table.pop('old', None)",
    "variable": "forget()",
    "missing item": "s.missing[len(x)]",
}
KEPT_BY_SOME = {
    "item": "if len(x) not in s.table: s.table[len(x)] = len(x)",
    "setdefault": "s.table.setdefault(len(x), 3)",
    "set": "if len(x) not in s.seen: s.seen.add(len(x))",
    "attribute": "if not hasattr(s, 'rows'): s.rows = len(x)",
    "function": "s.cached(len(x))",
}


class Slot:
    __slots__ = ("old", "rows")


class Kept:
    def __init__(self) -> None:
        self.table: dict[Any, Any] = {}
        self.seen: set[int] = set()
        self.cached = functools.lru_cache(lambda rows: rows + 1)
        self.layer = torch.nn.Linear(2, 2)
        self.tensor = torch.zeros(2)
        self.slot = Slot()

    def keep(self, rows: int) -> None:
        self.rows = rows


def in_odd_calls(line: str) -> tuple[Any, dict[str, Any]]:
    """A function that does something else where it is given an odd number of rows."""
    space = {"__name__": __name__, "os": os, "logging": logging, "torch": torch, "s": Kept()}
    space["decimal"] = decimal
    space |= {"Kept": type("Kept", (Kept,), {}), "settings": ModuleType("settings")}
    space["s"].__class__ = space["Kept"]
    text = f"def fn(x):\n    if len(x) % 2:\n        {line}\n    return x * 2"
    exec(compile(text, __file__, "exec"), space)
    return space["fn"], space


def stored(space: dict[str, Any], take: bool = False) -> Any:
    """What such a function has stored; ``take``: and no more of it."""
    s = space["s"]
    places = (s, s.layer, s.layer.weight, s.tensor, space["settings"])
    spaces = [space, *map(vars, places)]
    found = [item.get("rows") for item in (*spaces, vars(space["Kept"]))]
    found += [dict(s.table), set(s.seen), getattr(s.slot, "rows", None)]
    if take:
        s.table.clear()
        s.seen.clear()
        for item in spaces:
            item.pop("rows", None)
        for item in (s.slot, space["Kept"]):
            if hasattr(item, "rows"):
                del item.rows
    return found


@pytest.mark.parametrize("beside", sampled(["alone", "thread"], 2))
@pytest.mark.parametrize("name", STORED_BY_SOME)
@torch.no_grad()
def test_what_calls_of_some_sizes_do_is_done_in_each(
    device, name, beside, monkeypatch, tmp_path, caplog, capfd
):
    end = threading.Event()
    if beside == "thread":
        threading.Thread(target=end.wait, daemon=True).start()
    (fn, own), (twin, expected) = (in_odd_calls(STORED_BY_SOME[name]) for _ in range(2))
    pool = gfxgraph.ShapeBucketPool(fn, [4, 8])
    monkeypatch.chdir(tmp_path)

    def done(call: Any, space: dict[str, Any]) -> Any:
        os.environ.pop("GFXGRAPH_TEST_ROWS", None)
        os.chdir(tmp_path)
        caplog.clear()
        result = call(x)
        told = (os.environ.get("GFXGRAPH_TEST_ROWS"), os.getcwd(), capfd.readouterr().out)
        logged = [record for record in caplog.records if record.name == "odd"]
        return result.tolist(), stored(space, take=True), told, len(logged)

    try:
        for number, size in enumerate((2, 4, 3, 3, 3, 6, 7, 7)):
            x = rows(number, size)
            assert done(pool, own) == done(twin, expected)
    finally:
        end.set()
        os.environ.pop("GFXGRAPH_TEST_ROWS", None)


@pytest.mark.parametrize("beside", ["alone", "thread"])
@pytest.mark.parametrize("name", SET_BY_SOME)
@torch.no_grad()
def test_what_calls_of_some_sizes_set_is_set_in_each(device, name, beside):
    end = threading.Event()
    if beside == "thread":
        threading.Thread(target=end.wait, daemon=True).start()
    line, read, write = SET_BY_SOME[name]
    fn, _ = in_odd_calls(line)
    pool = gfxgraph.ShapeBucketPool(fn, [4, 8])
    before = read()
    try:
        for number, size in enumerate((2, 4, 3, 3, 3, 6, 7, 7)):
            x, found = rows(number, size), []
            for call in (pool, fn):
                call(x)
                found.append(read())
                write(before)
            assert found[0] == found[1]
    finally:
        write(before)
        end.set()


@pytest.mark.parametrize("name", KEPT_BY_SOME)
@torch.no_grad()
def test_a_cache_that_calls_of_some_sizes_fill_is_filled_by_them(device, name):
    (fn, own), (twin, expected) = (in_odd_calls(KEPT_BY_SOME[name]) for _ in range(2))
    pool = gfxgraph.ShapeBucketPool(fn, [4, 8])
    for number, size in enumerate((2, 4, 3, 3, 3, 6, 7, 7, 5, 1, 2, 4, 6)):
        x = rows(number, size)
        assert torch.equal(pool(x), twin(x))
        assert stored(own) == stored(expected)
    assert "may do something else" in " ".join(pool.stats().fallbacks)


READ_BY_SOME: dict[str, tuple[str, Any]] = {
    "attribute": ("return x * s.factor", lambda s: setattr(s, "factor", 5)),
    "flag": ("return x * (3 if s.flag else 2)", lambda s: setattr(s, "flag", True)),
    "error": ("assert not s.flag", lambda s: setattr(s, "flag", True)),
    "item": ("return x * s.table.get('k', 2)", lambda s: s.table.update(k=5)),
    "tensor": ("return x * 2 + s.tensor.sum()", lambda s: s.tensor.fill_(1)),
    "another tensor": ("return x * 2 + s.tensor[0]", lambda s: setattr(s, "tensor", s.other)),
    "function": ("return s.helper(x)", lambda s: setattr(s, "helper", lambda x: x * 5)),
    "environment": (
        "return x * int(os.environ.get('GFXGRAPH_TEST_ROWS', 2))",
        lambda s: os.environ.update(GFXGRAPH_TEST_ROWS="5"),
    ),
    "data": ("return x * (3 if float(s.tensor[0]) else 2)", lambda s: s.tensor.fill_(1)),
}


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("name", READ_BY_SOME)
@torch.no_grad()
def test_what_only_calls_of_some_sizes_read_is_never_stale(device, name, captured, monkeypatch):
    monkeypatch.delenv("GFXGRAPH_TEST_ROWS", raising=False)
    line, change = READ_BY_SOME[name]
    fn, space = in_odd_calls(line)
    s = space["s"]
    s.factor, s.flag, s.helper, s.other = 2, False, lambda x: x * 2, torch.ones(2, device=device)
    s.tensor = torch.zeros(2, device=device)
    pool = gfxgraph.ShapeBucketPool(fn, [4, 8])
    if captured:
        pool.capture(rows(0, 5))

    def outcome(call: Any, x: torch.Tensor) -> Any:
        try:
            return call(x).tolist()
        except AssertionError:
            return "raised"

    for number, size in enumerate((2, 3, 3, 4, 7, 7, 0, 3, 3, 7, 7, 2, 4)):
        if not size:
            change(s)
            continue
        x = rows(number, size)
        expected = outcome(fn, x)
        assert outcome(pool, x) == expected


@torch.no_grad()
def test_what_only_two_sizes_together_do_is_seen(device):
    class Held:
        flag = False

    def fn(x):
        if x.shape[:2] == (3, 5) and Held.flag:
            return x * 3
        return x * 2

    many = gfxgraph.graphed(
        fn, buckets={"batch": [4, 8], "seq": [4, 8]}, dims={"x": {0: "batch", 1: "seq"}}
    )
    for sizes in ((3, 4), (2, 5), (3, 5), (3, 5), (0, 0), (3, 5), (3, 5), (2, 5)):
        Held.flag |= sizes == (0, 0)
        if all(sizes):
            x = torch.ones(*sizes, 2, device=device)
            assert torch.equal(many(x), fn(x))


@torch.no_grad()
def test_what_only_the_whole_of_some_calls_reads_is_seen_where_they_are_cut(device):
    held = SimpleNamespace(flag=False)

    def fn(x):
        return x * (3 if len(x) == 13 and held.flag else 2)

    pool = gfxgraph.ShapeBucketPool(fn, [4, 8], larger="split")
    for size in (8, 12, 13, 13, 0, 13, 12, 13):
        held.flag |= not size
        if size:
            x = rows(size, size)
            assert torch.equal(pool(x), fn(x))


@pytest.mark.parametrize("beside", sampled(["alone", "thread"], 2))
@pytest.mark.parametrize("name", DELETED_BY_SOME)
@torch.no_grad()
def test_what_runs_with_made_arguments_delete_is_there_again(device, name, beside):
    end = threading.Event()
    if beside == "thread":
        threading.Thread(target=end.wait, daemon=True).start()

    def made() -> tuple[Any, Any]:
        fn, space = in_odd_calls(DELETED_BY_SOME[name])
        s, variable = space["s"], 1
        s.old = s.slot.old = s.table["old"] = 1
        s.missing = collections.defaultdict(list)

        def forget():
            nonlocal variable
            with contextlib.suppress(NameError):
                del variable

        def shown():
            try:
                held = variable
            except NameError:
                held = None
            return hasattr(s, "old"), hasattr(s.slot, "old"), dict(s.table), dict(s.missing), held

        space["forget"] = forget
        return fn, shown

    (fn, own), (twin, expected) = made(), made()
    pool = gfxgraph.ShapeBucketPool(fn, [4, 8])
    try:
        for number, size in enumerate((2, 2, 4, 6, 8, 3, 3, 7)):
            x = rows(number, size)
            assert torch.equal(pool(x), twin(x))
            assert own() == expected()
    finally:
        end.set()


@torch.no_grad()
def test_what_one_bucket_watches_says_nothing_of_another(device):
    held = SimpleNamespace(flag=False)

    def fn(x):
        if len(x) > 4:
            return x * (2 if held.flag else 2.0)  # so its guard watches the flag
        return x * (3 if len(x) == 2 and held.flag else 2)

    pool = gfxgraph.ShapeBucketPool(fn, [4, 8])
    for number, size in enumerate((3, 3, 8, 8, 6, 6, 2, 2, 2, 0, 2, 2, 6, 3)):
        held.flag |= not size
        if size:
            x = rows(number, size)
            assert torch.equal(pool(x), fn(x))


REPLACED_BY_SOME = {
    "gradient": "s.layer.weight.grad = None",
    "class": "s.__class__ = Kept.__bases__[0]",
    "attributes": "s.__dict__ = dict(vars(s), old=2)",
}


@pytest.mark.parametrize("name", REPLACED_BY_SOME)
@torch.no_grad()
def test_what_runs_with_made_arguments_replace_is_there_again(device, name):
    def made() -> tuple[Any, Any]:
        fn, space = in_odd_calls(REPLACED_BY_SOME[name])
        s = space["s"]
        s.old, s.layer.weight.grad = 1, torch.ones(2, 2)
        return fn, lambda: (s.old, s.layer.weight.grad is None, type(s) is space["Kept"])

    (fn, own), (twin, expected) = made(), made()
    pool = gfxgraph.ShapeBucketPool(fn, [4, 8])
    for number, size in enumerate((2, 2, 4, 6, 8, 3, 3, 7)):
        x = rows(number, size)
        assert torch.equal(pool(x), twin(x))
        assert own() == expected()


@torch.no_grad()
def test_what_calls_of_some_sizes_do_to_an_argument_is_done_to_each(device):
    def fn(held):
        if len(held["x"]) == 3:
            held["out"] = 1
        return held["x"] * 2

    pool = gfxgraph.ShapeBucketPool(fn, [4, 8])
    for number, size in enumerate((2, 2, 4, 3, 3, 3, 6, 3)):
        own, other = {"x": rows(number, size)}, {"x": rows(number, size)}
        assert torch.equal(pool(own), fn(other))
        assert list(own) == list(other)


def _in_a_method(factor):
    class Model:
        scaled = factor

    model = Model()
    return lambda x: x * model.scaled(x.shape[0])


CACHED = {
    "called": lambda factor: lambda x: x * factor(x.shape[0]),
    "with keywords": lambda factor: lambda x: x * factor(n=x.shape[0]),
    "a method": _in_a_method,
    "partial": lambda factor: lambda x: x * functools.partial(factor, x.shape[0])(),
    "map": lambda factor: lambda x: x * sum(map(factor, [x.shape[0]])),
}


@pytest.mark.parametrize("maxsize", sampled([None, 32], 2))
@pytest.mark.parametrize("name", CACHED)
def test_calls_with_made_sizes_leave_no_entry_in_a_cache_in_c(device, name, maxsize):
    scales = {"graphed": 2.0, "eager": 2.0}

    def function(of):
        def factor(*given, n=None):
            return scales[of] * (given[-1] if n is None else n)

        return CACHED[name](functools.lru_cache(maxsize=maxsize)(factor))

    fast, slow = gfxgraph.graphed(function("graphed"), buckets=[4, 8]), function("eager")
    for number, size in enumerate((3, 8, 1, 2, 4, 5, 7, 6, 3, 8, 4)):
        if number in (1, 4):
            scales.update(graphed=2.0 + number, eager=2.0 + number)
        x = rows(number, size)
        assert torch.equal(fast(x), slow(x))
