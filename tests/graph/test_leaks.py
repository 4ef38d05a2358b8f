"""A callable that meets a new object in each call keeps none of them, and does not grow."""

from __future__ import annotations

import gc
import os
import random
import sys
import traceback
import tracemalloc
import types
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.call.builder import Builder
from gfxgraph.call.first_call import FirstCalls
from gfxgraph.errors import CaptureError
from gfxgraph.graph.guard import _Registrations
from tests.helpers.sampled import sampled

# Graphs are made for so many objects before it is clear that each call brings another one.
_ON_TRIAL = 8


class Request:
    """What a service is asked: some data, and a tensor."""

    def __init__(self, scale: float = 2.0) -> None:
        self.scale = scale
        self.payload = bytearray(50_000)


def by_scale(x: torch.Tensor, request: Request) -> torch.Tensor:
    """Can be captured."""
    return x * request.scale


def printing(x: torch.Tensor, request: Request) -> torch.Tensor:
    """Cannot be captured."""
    print(end="")
    return x * float(x.sum()) + request.scale


def counting(x: torch.Tensor, request: Request) -> torch.Tensor:
    """Rebinds an attribute of its argument in each call."""
    request.count = getattr(request, "count", 0) + 1
    return x + request.count


def branching(x: torch.Tensor, request: Request) -> torch.Tensor:
    """Becomes several graphs."""
    return x * request.scale if x.sum() > 0 else -x


FUNCTIONS = [by_scale, printing, counting, branching]


@pytest.mark.parametrize("fn", sampled(FUNCTIONS, 3))
@pytest.mark.parametrize("options", [{}, {"branching": "off"}, {"buckets": [2, 4]}])
def test_objects_that_are_arguments_once_do_not_live_on(device, fn, options):
    graph = gfxgraph.graphed(fn, **options)
    living: weakref.WeakSet[Request] = weakref.WeakSet()
    for n in range(200):
        x = torch.ones(4, 2, device=device)
        request = Request(n % 3)
        living.add(request)
        graph(x, request)
        del request
        if n > 2 * _ON_TRIAL:  # at once: nothing waits for the garbage collector
            assert len(living) <= _ON_TRIAL
    graph.reset()
    gc.collect()
    assert not living


@pytest.mark.long
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_two_thousand_requests_take_no_memory(device, fn):
    graph = gfxgraph.graphed(fn)
    x = torch.ones(4, 2, device=device)
    with torch.no_grad():
        for n in range(200):
            graph(x, Request(n % 3))
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for n in range(2000):
                graph(x, Request(n % 3))
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    assert grown < 100_000  # one request is 50,000 bytes


@pytest.mark.long
def test_numbers_and_texts_that_differ_in_each_call_take_no_memory(device):
    graph = gfxgraph.graphed(lambda x, factor, name: x * float(x.sum()) + factor, branching="off")
    x = torch.ones(4, 2, device=device)

    def work(start: int, stop: int) -> None:
        for n in range(start, stop):
            graph(x, n, "x" * 1000 + str(n))

    tracemalloc.start()
    try:
        work(0, 200)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        work(200, 600)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 200_000  # the texts alone are 400,000


@pytest.mark.long
def test_an_object_is_not_mistaken_for_one_that_is_gone(device):
    """It may get the number of that one."""
    graph = gfxgraph.graphed(lambda x, r: r.call(x))
    numbers = set()
    x = torch.ones(2, device=device)
    for n in range(300):
        request = Request(n)
        # The odd ones cannot be captured, the even ones can.
        request.call = (lambda x: x + float(x.sum())) if n % 2 else (lambda x: x * 2)
        numbers.add(id(request))
        expected = [3.0, 3.0] if n % 2 else [2.0, 2.0]
        assert graph(x, request).tolist() == expected == graph(x, request).tolist()
        del request
    assert len(numbers) < 300  # numbers were used again


@pytest.mark.long
@pytest.mark.full
def test_objects_without_weak_references_are_kept_in_a_bounded_number(device):
    class Slots:
        __slots__ = ("scale",)

        def __call__(self) -> None: ...

    graph = gfxgraph.graphed(lambda x, s: x * float(x.sum()), branching="off", max_graphs=4)
    counted: list[int] = []
    x = torch.ones(2, device=device)
    for _ in range(100):
        graph(x, Slots())
        counted.append(sum(type(item) is Slots for item in gc.get_objects()))
    assert max(counted[10:]) <= 4 + 1


def test_a_refused_object_is_known_again_as_long_as_it_lives(device):
    class Closes(Request):
        """It cannot be taken apart, so what is written there cannot be stored again."""

        def __del__(self) -> None:
            pass

    graph = gfxgraph.graphed(counting)
    request, x = Closes(), torch.ones(2, device=device)
    for n in range(30):
        assert graph(x, request).tolist() == [2.0 + n] * 2
    stats = graph.stats()
    assert stats.eager_calls == 30 and len(stats.refused) == 1
    assert sum(stats.fallbacks.values()) == 30  # refused once, and remembered


@pytest.mark.long
def test_registries_of_modules_are_watched_as_long_as_a_graph_uses_them(device):
    gc.collect()
    before = dict(_Registrations.watched)
    x = torch.ones(2, 4, device=device)
    nets = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to(device) for _ in range(3)]
    with torch.no_grad():
        graphs = [gfxgraph.graphed(net) for net in (*nets, nets[0])]
        for graph in graphs:
            graph(x), graph(x)
        assert len(_Registrations.watched) > len(before)
        graphs[3].reset()  # another graph still watches the same net
        gc.collect()
        nets[0].append(nn.Tanh())
        assert torch.equal(graphs[0](x), nets[0](x))
        for graph in graphs:
            graph.reset()
    gc.collect()
    assert dict(_Registrations.watched) == before


def test_new_paths_of_a_function_that_reads_data_leave_nothing_behind(device):
    from gfxgraph.stats import tally

    graph = gfxgraph.graphed(lambda x: x * 2 if x.sum() > 0 else (-x if x[0] > -5 else x))
    gc.collect(), tally.snapshot()
    before = len(tally._live)
    for _ in range(3):
        for value in (1.0, -1.0, -9.0, 1.0):
            graph(torch.full((3,), value, device=device))
        graph.reset()
    gc.collect(), tally.snapshot()
    assert len(tally._live) == before


class Remembers:
    def __init__(self, device):
        self.h = torch.zeros(2, device=device)

    @gfxgraph.graphed
    def step(self, x):
        self.h = self.h * 0.5 + x
        return self.h


def test_what_is_stored_goes_with_its_object_and_not_with_the_collector(device):
    # The first capture of a process imports modules that keep an error, and frames of ours with it.
    gfxgraph.graphed(lambda x: x.sin())(torch.ones(2, device=device))
    gc.collect()
    gc.disable()
    try:
        owner = Remembers(device)
        for _ in range(4):
            owner.step(torch.ones(2, device=device))
        assert owner.step.stats().replays == 2
        owner.kept = Request()
        alive = weakref.ref(owner.kept)
        del owner
        assert alive() is None
    finally:
        gc.enable()


RUNS: list[int] = []


def raising(x):
    """The run that is recorded raises an error."""
    RUNS.append(len(RUNS))
    if len(RUNS) % 2 == 0:
        raise ValueError("not again")
    return x * 2


@dataclass(frozen=True)
class Fixed(Exception):
    """Takes no attribute, no traceback either."""

    text: str


def raising_what_is_frozen(x):
    RUNS.append(len(RUNS))
    if len(RUNS) % 2 == 0:
        raise Fixed("not again")
    return x * 2


def opening(x):
    with open(os.devnull) as file:
        return x * len(file.read())


def drawing(x):
    return x * random.random()


@pytest.mark.parametrize("fn", [raising, raising_what_is_frozen, opening, drawing])
def test_a_capture_that_fails_leaves_nothing_to_the_collector(device, fn):
    def left():
        return sum(type(item) in (types.FrameType, torch.Tensor) for item in gc.get_objects())

    def fail():
        RUNS.clear()
        graph = gfxgraph.graphed(fn)
        graph(torch.eye(3, device=device))
        assert not graph.stats().captures and graph.stats().fallbacks

    fail()  # which imports what is needed
    gc.collect()
    gc.disable()
    try:
        before = left()
        fail()
        assert left() == before
    finally:
        gc.enable()


def test_an_error_that_the_program_handles_keeps_its_traceback(device):
    graph = gfxgraph.graphed(opening)
    try:
        try:
            raise KeyError("first")
        except KeyError as cause:
            raise ValueError("second") from cause
    except ValueError as error:
        graph(torch.eye(3, device=device))
        assert graph.stats().fallbacks
        assert error.__traceback__ is not None and error.__cause__.__traceback__ is not None


def test_the_error_that_a_caller_asks_for_has_the_frames_that_lead_to_it(device):
    graph = gfxgraph.graphed(raising, fallback="raise")
    RUNS.clear()
    with pytest.raises(CaptureError, match="not again") as caught:
        graph(torch.eye(3, device=device))
    frames = traceback.extract_tb(caught.value.__cause__.__traceback__)
    assert frames[-1].name == "raising"


@torch.no_grad()
def test_no_collection_runs_while_a_graph_is_made(device):
    """It would go through all objects of the program, to find nothing."""
    runs_in = []

    def note(phase, info):
        frame = sys._getframe()
        while frame is not None:
            runs_in.append(frame.f_code)
            frame = frame.f_back

    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(50)]).to(device)
    graph, before = gfxgraph.graphed(model), gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(50, 1, 1)
    try:
        graph(torch.ones(1, 4, device=device))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(note)
    assert graph.stats().captures == 1
    assert FirstCalls.run.__code__ in runs_in  # around the caller's own run
    assert Builder.make.__code__ not in runs_in


class Tangle:
    """What a program makes that only the collector frees."""

    def __init__(self, value):
        self.itself, self.value = self, value


@torch.no_grad()
def test_many_first_calls_leave_the_collector_its_work(device):
    """A run ages the objects that it makes, so that Python would not look at them for long."""
    x = torch.ones(4, device=device)

    def fn(x):
        for _ in range(20):
            made = Tangle(list(map(list, [()] * 2000)))
        made.value = x * 2
        return made.value + 1

    def tangles():
        return sum(type(item) is Tangle for item in gc.get_objects())

    gc.collect()
    objects, most = len(gc.get_objects()), 0
    while most * 2000 < 4 * objects:
        graph = gfxgraph.graphed(fn)
        graph(x)
        graph.reset()
        if tangles() < most:
            break
        most = tangles()
    else:
        pytest.fail(f"{most} tangles")
