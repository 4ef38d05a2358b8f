"""Objects and dicts as arguments: a graph depends on what is read of them, and on nothing else."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import operator
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree

import gfxgraph
from tests.helpers.sampled import sampled
from tests.hostile.hostile_arguments import CASES as READ_UNSEEN
from tests.hostile.hostile_identity import CASES as IDENTITY

HOSTILE = READ_UNSEEN | IDENTITY


class Request:
    """What a server passes around: a tensor, what to do with it, and much that nobody reads."""

    served = 0

    def __init__(self, x: torch.Tensor, n: int, **more: Any) -> None:
        self.x, self.scale, self.number = x, 2.0, n
        self.text, self.lock, self.tail = f"request {n}", threading.Lock(), x.new_ones(n + 1)
        vars(self).update(more)

    @property
    def scaled(self) -> torch.Tensor:
        return self.x * self.scale

    def twice(self) -> torch.Tensor:
        return self.x * 2


class Fallback(Request):
    def __getattr__(self, name: str) -> Any:
        return 3.0 if name == "bias" else vars(self)["number"]


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    number: int
    scale: float = 2.0


class Case:
    """One call after the other, of a function, with arguments made for each."""

    def __init__(self, fn: Callable[..., Any], make: Callable[[int], tuple[Any, ...]]) -> None:
        self.fn, self.make = fn, make

    def run(self, calls: int, **options: Any) -> gfxgraph.GraphedStats:
        graph = gfxgraph.graphed(self.fn, **options)
        for n in range(calls):
            given, twin = self.make(n), self.make(n)
            got, expected = graph(*given), self.fn(*twin)
            for one, other in zip(
                pytree.tree_leaves(got), pytree.tree_leaves(expected), strict=True
            ):
                same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
                assert same, f"call {n}"
        return graph.stats()


def tensor(device: str, n: int) -> torch.Tensor:
    return torch.linspace(-1, 1, 8, device=device) + n


def with_record(device, n):
    return (Record(tensor(device, n), n),)


def with_request(device, n, **more):
    return (Request(tensor(device, n), n, **more),)


def with_dict(device, n):
    return ({"x": tensor(device, n), "scale": 2.0, "number": n, "text": str(n)},)


def collected(requests):
    found = []
    for request in requests:
        found.append(request)
    return found


ONE_GRAPH: dict[str, tuple[Callable[..., Any], Callable[..., tuple[Any, ...]]]] = {
    "attributes": (lambda r: r.x * r.scale, with_request),
    "a property": (lambda r: r.scaled, with_request),
    "a method": (lambda r: r.twice(), with_request),
    "getattr": (lambda r: getattr(r, "x") + getattr(r, "bias", 1.0), with_request),  # noqa: B009
    "hasattr": (lambda r: r.x * (2 if hasattr(r, "mask") else 3), with_request),
    "attrgetter": (lambda r: operator.attrgetter("x")(r) * 2, with_record),
    "__getattr__": (lambda r: r.x * r.bias, lambda d, n: (Fallback(tensor(d, n), n),)),
    "is None": (lambda r: r.x + 1 if r is not None else None, with_request),
    "a class attribute": (lambda r: r.x + r.served, with_request),
    "isinstance": (lambda r: r.x + isinstance(r, Request), with_request),
    "a list of requests": (
        lambda rs: sum(r.x for r in rs),
        lambda d, n: ([Request(tensor(d, n), n), Request(tensor(d, n + 1), n)],),
    ),
    "enumerated requests": (
        lambda rs: sum(r.x * k for k, r in enumerate(rs)),
        lambda d, n: ([Request(tensor(d, n), n), Request(tensor(d, n + 1), n)],),
    ),
    "requests in requests": (
        lambda r: r.x * r.inner.scale,
        lambda d, n: with_request(d, n, inner=Request(tensor(d, n), n)),
    ),
    "collected in a list": (
        lambda rs: collected(rs)[0].x + 1,
        lambda d, n: ([Request(tensor(d, n), n)],),
    ),
    "a record": (lambda r: r.x * r.scale, with_record),
    "a namespace": (
        lambda r: r.x * r.scale,
        lambda d, n: (types.SimpleNamespace(x=tensor(d, n), scale=2.0, number=n),),
    ),
    "a dict": (lambda b: b["x"] * b["scale"], with_dict),
    "get": (lambda b: b["x"] * b.get("scale") + b.get("bias", 1.0), with_dict),
    "in": (lambda b: b["x"] * 2 if "mask" not in b else b["mask"], with_dict),
    "a dict in a list": (lambda bs: bs[0]["x"] + 1, lambda d, n: ([with_dict(d, n)[0]],)),
    "a keyword": (
        lambda x, b: x + b["scale"],
        lambda d, n: (tensor(d, n), with_dict(d, n)[0]),
    ),
}


@pytest.mark.parametrize("name", ONE_GRAPH)
@torch.no_grad()
def test_what_is_not_read_is_not_in_the_key(device, name):
    fn, make = ONE_GRAPH[name]
    stats = Case(fn, functools.partial(make, device)).run(8)
    assert stats.replays >= 5 and len(stats.graphs) == 1, stats


def takes_turns(name, values):
    def make(device, n):
        return with_request(device, n, **{name: values[n % len(values)]})

    return make


SEVERAL_GRAPHS: dict[str, tuple[Callable[..., Any], Callable[..., tuple[Any, ...]]]] = {
    "a value": (lambda r: r.x * r.scale, takes_turns("scale", [1.0, 2.0, 3.0])),
    "a type": (lambda r: r.x * (2 if type(r.scale) is int else 3), takes_turns("scale", [2, 2.0])),
    "the sign of zero": (
        lambda r: r.x * 0 + torch.copysign(torch.ones_like(r.x), torch.tensor(r.scale)),
        takes_turns("scale", [0.0, -0.0]),
    ),
    "a shape": (lambda r: r.tail * 2, lambda d, n: with_request(d, n % 2)),
    "whether it is there": (
        lambda r: r.x * (2 if hasattr(r, "mask") else 3),
        lambda d, n: with_request(d, n, **({"mask": n} if n % 2 else {})),
    ),
    "an item of a dict": (
        lambda b: b["x"] * b["number"],
        lambda d, n: ({"x": tensor(d, n), "number": n % 2},),
    ),
    "a key of a dict": (
        lambda b: b["x"] * (2 if "mask" in b else 3),
        lambda d, n: ({"x": tensor(d, n), **({"mask": 1} if n % 2 else {})},),
    ),
    "how many items": (
        lambda b: b["x"] * len(b),
        lambda d, n: ({"x": tensor(d, n), **({"mask": 1} if n % 2 else {})},),
    ),
    "how many attributes": (
        lambda r: r.x * len(vars(r)),
        lambda d, n: (types.SimpleNamespace(x=tensor(d, n), **({"mask": 1} if n % 2 else {})),),
    ),
    "all items": (
        lambda b: sum(v for v in b.values() if not isinstance(v, str)),
        lambda d, n: ({"x": tensor(d, n), "more": n % 2},),
    ),
    "torch's own code": (
        lambda b: b["x"] * sum(pytree.tree_leaves(b["more"])),
        lambda d, n: ({"x": tensor(d, n), "more": {"a": {"b": {"c": {"d": [n % 2, 1]}}}}},),
    ),
    "an equal dict": (
        lambda b: b["x"] * (2 if b["more"] == {"a": {"b": 1}} else 3),
        lambda d, n: ({"x": tensor(d, n), "more": {"a": {"b": n % 2}}},),
    ),
    "a copy": (
        lambda b: copy.deepcopy(b)["more"]["a"] * b["x"],
        lambda d, n: ({"x": tensor(d, n), "more": {"a": n % 2}},),
    ),
    "attributes of a record as a dict": (
        lambda r: dataclasses.asdict(r)["number"] * r.x,
        lambda d, n: (Record(tensor(d, n), n % 2),),
    ),
    "keywords from a dict": (
        lambda b: (lambda x, n: x * n)(**b),
        lambda d, n: ({"x": tensor(d, n), "n": n % 2},),
    ),
    "another class": (
        lambda r: r.x * (2 if isinstance(r, Fallback) else 3),
        lambda d, n: ((Fallback if n % 2 else Request)(tensor(d, n), n),),
    ),
    "a result": (lambda b: {**b}, lambda d, n: ({"x": tensor(d, n), "n": n % 2},)),
    "part of a result": (
        lambda b: (b["x"] + 1, b["more"]["n"]),
        lambda d, n: ({"x": tensor(d, n), "more": {"n": n % 2}},),
    ),
}


@pytest.mark.parametrize("name", SEVERAL_GRAPHS)
@torch.no_grad()
def test_what_is_read_is_in_the_key(device, name):
    fn, make = SEVERAL_GRAPHS[name]
    stats = Case(fn, functools.partial(make, device)).run(14)
    assert stats.replays >= 4 and len(stats.graphs) >= 2, stats


KNOWN: dict[Any, float] = {}
DEFAULT = Request(torch.ones(8), 0)


class Weighed(Request):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weighed) and self.number % 2 == other.number % 2

    def __hash__(self) -> int:
        return self.number % 2


def remembers(request):
    KNOWN[request] = 5.0
    return request


AS_ITSELF: dict[str, tuple[Callable[..., Any], Callable[..., tuple[Any, ...]]]] = {
    "a key of a dict": (
        lambda r: r.x * KNOWN.get(r, 1.0),
        lambda d, n: (remembers(with_request(d, n)[0]) if n % 3 == 2 else with_request(d, n)[0],),
    ),
    "in a list": (
        lambda r: r.x * (2 if r in [DEFAULT] else 3),
        lambda d, n: (DEFAULT,) if n % 3 == 2 else with_request(d, n),
    ),
    "is": (
        lambda r: r.x * (2 if r is DEFAULT else 3),
        lambda d, n: (DEFAULT,) if n % 3 == 2 else with_request(d, n),
    ),
    "==": (
        lambda r: r.x * (2 if r == DEFAULT else 3),
        lambda d, n: (DEFAULT,) if n % 3 == 2 else with_request(d, n),
    ),
    "__eq__": (
        lambda r: r.x * (2 if r == KNOWN.get("weighed") else 3),
        lambda d, n: (Weighed(tensor(d, n), n),),
    ),
    "__hash__": (lambda r: r.x * hash(r), lambda d, n: (Weighed(tensor(d, n), n),)),
    "id": (lambda r: r.x * (2 if id(r) == id(DEFAULT) else 3), takes_turns("scale", [1.0])),
    "the same one twice": (
        lambda a, b: a.x * (2 if a is b else 3),
        lambda d, n: (
            with_request(d, n) * 2 if n % 2 else (*with_request(d, n), *with_request(d, n))
        ),
    ),
    "a result": (lambda r: (r.x + 1, r.number), with_request),
    "a changed attribute": (
        lambda r: setattr(r, "scale", r.scale + 1) or r.x * r.scale,
        with_request,
    ),
}


@pytest.mark.parametrize("name", sampled(AS_ITSELF, 3))
@torch.no_grad()
def test_an_object_that_is_asked_for_itself_is_compared_by_identity(device, name):
    fn, make = AS_ITSELF[name]
    vars(DEFAULT)["x"] = tensor(device, 0)
    KNOWN.clear()
    Case(fn, functools.partial(make, device)).run(14)


@torch.no_grad()
def test_an_attribute_that_the_call_sets_is_set(device):
    def fn(request):
        request.seen = True
        return request.x + 1

    graph = gfxgraph.graphed(fn)
    for n in range(12):
        (request,) = with_request(device, n)
        assert torch.equal(graph(request), request.x + 1) and request.seen


@torch.no_grad()
def test_one_configuration_for_all_calls_is_not_looked_into(device):
    config = Request(tensor(device, 0), 1)
    graph = gfxgraph.graphed(lambda x, config: x * config.scale)
    for n in range(4):
        graph(tensor(device, n), config)
    config.scale = 5.0
    assert torch.equal(graph(tensor(device, 1), config), tensor(device, 1) * 5)
    assert graph.stats().recaptures == 1


@torch.no_grad()
def test_an_object_with_a_destructor_is_never_made_again(device):
    gone = []

    class Slot:
        def __init__(self, x):
            self.x = x

        def __del__(self):
            gone.append(1)

    graph = gfxgraph.graphed(lambda slot: slot.x + 1)
    for n in range(12):
        graph(Slot(tensor(device, n)))
    graph.reset()
    assert len(gone) <= 12


@torch.no_grad()
def test_requests_are_not_kept_alive(device):
    import gc
    import weakref

    graph = gfxgraph.graphed(lambda r: r.x * r.scale)
    (first,) = with_request(device, 0)
    (second,) = with_request(device, 1)
    alive = [weakref.ref(first), weakref.ref(second)]
    graph(first), graph(second)
    del first, second
    graph(*with_request(device, 2))
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


@torch.no_grad()
def test_static_inputs_are_those_that_are_read(device):
    graph = gfxgraph.graphed(lambda b: b["x"] * 2)
    batch = {"x": tensor(device, 0), "number": 1, "tail": torch.ones(3, device=device)}
    graph(batch)
    (static,), _ = graph.static_inputs(batch)
    static["x"].copy_(tensor(device, 5))
    assert static["tail"] is batch["tail"] and static["number"] == 1
    assert torch.equal(graph(static), tensor(device, 5) * 2)
    assert graph.stats().replays == 1


@torch.no_grad()
def test_a_written_tensor_of_an_object_is_written(device):
    def fn(batch):
        batch["x"].add_(1)
        return batch["x"] * 2

    graph = gfxgraph.graphed(fn)
    for n in range(5):
        batch = {"number": n, "tail": torch.ones(n + 1, device=device), "x": tensor(device, n)}
        assert torch.equal(graph(batch), (tensor(device, n) + 1) * 2)
        assert torch.equal(batch["x"], tensor(device, n) + 1)
    assert graph.stats().replays == 4


@torch.no_grad()
def test_a_replay_that_is_compared_is_given_all_of_the_request(device, monkeypatch):
    from gfxgraph.call import validation

    monkeypatch.setattr(validation, "_every", 1)
    stats = Case(lambda b: b["x"] * b["scale"], functools.partial(with_dict, device)).run(6)
    assert stats.replays == 5


@torch.no_grad()
def test_calls_that_hold_state_take_requests_apart_too(device):
    class Counting:
        def __init__(self):
            self.last = None

        def __call__(self, request):
            before, self.last = self.last, request.x * 2
            return request.x if before is None else before + request.x

    graphed, eager = Counting(), Counting()
    graph = gfxgraph.graphed(graphed)
    for n in range(10):
        request, twin = *with_request(device, n), *with_request(device, n)
        assert torch.equal(graph(request), eager(twin))
        assert torch.equal(graphed.last, eager.last)
    assert graph.stats().replays >= 4


@torch.no_grad()
def test_calls_of_all_kinds_in_turn_find_their_graph(device):
    fn = lambda r: r.x * r.scale if r.scale > 1 else r.tail.sum() + r.x  # noqa: E731
    make = takes_turns("scale", [1.0, 2.0, 3.0])
    graph = gfxgraph.graphed(fn)
    for n in itertools.chain(range(9), range(9)):
        (request,), (twin,) = make(device, n), make(device, n)
        assert torch.equal(graph(request), fn(twin))
    assert graph.stats().replays >= 9


@pytest.mark.parametrize("name", sampled(HOSTILE, 4, of_long=7))
@torch.no_grad()
def test_what_is_read_where_nobody_looks_is_in_the_key(device, name):
    fn, make = HOSTILE[name]
    for values in ((1, 1, 1, 1, 2, 1, 2), (2, 2, 2, 1, 2, 1, 1), (1, 2, 1, 2, 3, 1, 2)):
        graph = gfxgraph.graphed(fn)
        for n, value in enumerate(values):
            x = tensor(device, n)
            assert torch.equal(graph(make(x, n, value)), fn(make(x, n, value))), (values, n)


@pytest.mark.parametrize(
    "fn, part",
    [
        (lambda b: b, lambda out: out),
        (lambda b: {"y": b["x"] + 1, "info": b["info"]}, lambda out: out["info"]),
        (lambda b: (b["x"] * 2, b["tokens"]), lambda out: out[1]),
        (lambda b: {**b, "x": b["x"] * 2}, lambda out: out["tokens"]),
    ],
)
@torch.no_grad()
def test_a_container_of_the_arguments_that_is_returned_is_the_callers_own(device, fn, part):
    graph = gfxgraph.graphed(fn)
    for n in range(6):
        batch = {"x": tensor(device, n), "info": {"a": 1}, "tokens": [1]}
        assert part(graph(batch)) is part(fn(batch))
    assert graph.stats().replays == 5 and not graph.stats().fallbacks


@torch.no_grad()
def test_an_event_that_is_set_between_the_calls_is_noticed(device):
    event = threading.Event()
    graph = gfxgraph.graphed(lambda r: r.x * 0 if r.cancel.is_set() else r.x * 2)
    for n in range(8):
        if n == 5:
            event.set()
        request = types.SimpleNamespace(x=tensor(device, n), cancel=event)
        assert torch.equal(graph(request), request.x * (0 if n >= 5 else 2))
    assert graph.stats().replays >= 4


class Doubling(dict):  # type: ignore[type-arg]
    """Its items are others for code in Python than for the interpreter."""

    def __getitem__(self, name: str) -> Any:
        found = dict.__getitem__(self, name)
        return found * 2 if isinstance(found, torch.Tensor) else found


@torch.no_grad()
@pytest.mark.parametrize("make", [with_record, with_request])
def test_attributes_are_those_that_the_interpreter_finds_in_whatever_dict(device, make):
    graph = gfxgraph.graphed(lambda r: r.x * r.scale)
    for n in range(8):
        ((one,), (twin,)) = make(device, n), make(device, n)
        if n >= 4:
            one.__dict__ = Doubling(one.__dict__)
        assert torch.equal(graph(one), twin.x * twin.scale)
    assert graph.stats().replays
