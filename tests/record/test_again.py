"""What tells a frame that runs again from the first one, though its arguments look the same."""

from __future__ import annotations

import contextlib
import types
import weakref

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.graph import raw, repeats
from gfxgraph.record.again import Passages

pytestmark = pytest.mark.filterwarnings("ignore")

TIMES = 70  # two operations each: enough to be left out


def work(x):
    """A frame with many operations."""
    for _ in range(TIMES):
        x = x * 0.5 + 1.0
    return x


def work_and_fill(x, target):
    """The same; and then all elements of an argument are given another value."""
    x = work(x)
    target.fill_(1.0)
    return x


def take(box):
    """The same, with a list of which the frame keeps nothing."""
    x = box[0] * 1.0
    box.clear()
    for _ in range(TIMES):
        x = x * 0.5 + 1.0
    return x


def nothing():
    return None


def by_size(z, one, other):
    """Reads data, in a function of its own."""
    return (one - other, one + other)[int((z > 100).any())]


def a_part_is_filled(device):
    def fn(x):
        whole = x * 1.0
        first = work_and_fill(x, whole)
        twice = torch.cat([x, x])
        second = work_and_fill(x, twice[:2])
        return by_size(twice[2:], first, second)

    return fn


def who_hears_of_the_end(hold):
    """A callback writes while the second frame runs, which does not run in the first one."""

    def make(device):
        def fn(x):
            first, target = take(hold(x)[0]), torch.zeros(2, 4, device=device)
            box, heard = hold(x)
            _told = weakref.ref(heard, lambda _: target.add_(x))
            del heard
            second = take(box)
            return by_size(target, first, second)

        return fn

    return make


def of_a_tensor(x):
    made = x * 1.0
    return [made, nothing], made


def of_the_base_of_a_view(x):
    made = x * 1.0
    return [made[:], nothing], made


def of_a_gradient(x):
    made = x * 1.0
    made.grad = x * 2.0
    return [made, nothing], made.grad


def of_a_function(x):
    def made():
        return 0

    return [x * 1.0, made], made


class Dying:
    def __init__(self, told):
        self.told = told

    def __del__(self):
        self.told()


def annotations_end(device):
    def made(held):
        def inner():
            return 0

        inner.__annotations__ = {"held": held}
        return inner

    def fn(x):
        first, target = take([x * 1.0, made(None)]), torch.zeros(2, 4, device=device)
        second = take([x * 1.0, made(Dying(lambda: target.add_(x)))])
        return by_size(target, first, second)

    return fn


def autograd_packs(device):
    weight = nn.Parameter(torch.ones(2, 4, device=device))

    def layers(x):
        for _ in range(TIMES):
            x = x * weight * 0.5 + 1.0
        y = x.detach()
        del x
        return y

    def fn(x):
        target = torch.zeros(2, 4, device=device)

        def pack(saved):
            with torch.no_grad():
                target.add_(x, alpha=0.001)
            return saved

        with torch.enable_grad():
            first = layers(x * 1.0) + layers(x * 1.0) + layers(x * 1.0)
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
                second = layers(x * 1.0)
        return by_size(target, first, second)

    return fn


def copies_of_weights_are_kept(device):
    kind, layer = torch.device(device).type, nn.Linear(4, 4, bias=False, device=device)

    def layers(x):
        for _ in range(TIMES):
            x = nn.functional.linear(x, layer.weight) + 1.0
        return x

    def fn(x):
        constant = torch.ones_like(x)
        with torch.autocast(kind, dtype=torch.bfloat16, cache_enabled=True):
            layers(constant)
            first = layers(constant)
        with torch.autocast(kind, dtype=torch.bfloat16, cache_enabled=True):
            second = layers(constant)
            number = nn.functional.linear(constant, layer.weight).float().sum().item()
        return x + first.float() + second.float() + number

    return fn


CASES = {
    "a_part_is_filled": a_part_is_filled,
    **{
        hold.__name__: who_hears_of_the_end(hold)
        for hold in (of_a_tensor, of_the_base_of_a_view, of_a_gradient, of_a_function)
    },
    "annotations_end": annotations_end,
    "autograd_packs": autograd_packs,
    "copies_of_weights_are_kept": copies_of_weights_are_kept,
}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_what_the_second_frame_does_beside_is_not_missed(device, name):
    torch.manual_seed(0)
    eager = CASES[name](device)
    torch.manual_seed(0)
    graph = gfxgraph.graphed(CASES[name](device))
    for n, scale in enumerate((1, 1000, 1, 1000)):
        x = torch.full((2, 4), 0.1 * n + 5, device=device) * scale
        torch.testing.assert_close(graph(x.clone()), eager(x.clone()), msg=f"call {n}")
    assert graph.stats().replays, graph.stats()


@pytest.mark.parametrize("name", ["of_a_tensor", "of_a_function", "autograd_packs"])
@torch.no_grad()
def test_code_that_only_the_second_frame_runs_is_noticed_whoever_runs_it(device, name, monkeypatch):
    """Also where the key does not tell."""
    monkeypatch.setattr(raw, "has_weak_references", lambda item: False)
    monkeypatch.setattr(repeats, "_has_hooks_of_autograd", lambda ignored: False)
    test_what_the_second_frame_does_beside_is_not_missed(device, name)


@pytest.mark.parametrize("is_hook", [True, False])
def test_what_is_read_where_only_the_second_frame_looks_is_not_stale(device, is_hook):
    one, other = types.SimpleNamespace(k=1.0), types.SimpleNamespace(k=1.0)
    weight = nn.Parameter(torch.ones(2, 4, device=device))

    def layers(x, asked):
        x = x * weight * asked.__annotations__["of"].k
        y = x.detach()
        del x
        return y

    def fn(x):
        found = []

        def made(of):
            def inner():
                return 0

            inner.__annotations__ = {"of": of}
            return inner

        def pack(saved):
            found.append(other.k)
            return saved

        x = x * 1.0
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved)
        first = layers(x, made(one)) + layers(x, made(one))
        with hooks if is_hook else contextlib.nullcontext():
            second = layers(x, made(one if is_hook else other))
        return first + second + sum(found)

    graph, x = gfxgraph.graphed(fn), torch.ones(2, 4, device=device)
    for n in range(4):
        other.k = 1.0 if n < 2 else 3.0
        torch.testing.assert_close(graph(x), fn(x), msg=f"call {n}")


@torch.no_grad()
def test_parts_that_fill_the_same_of_their_memory_are_done_again(device, monkeypatch):
    found = []
    look_away = Passages.look_away
    monkeypatch.setattr(Passages, "look_away", lambda self: (found.append(1), look_away(self))[1])

    def fn(x):
        one, other = torch.cat([x, x]), torch.cat([x, x])
        return work_and_fill(x * 1.0, one[:2]) + work_and_fill(x * 1.0, other[:2]) + one[2:]

    graph, x = gfxgraph.graphed(fn), torch.ones(2, 4, device=device)
    torch.testing.assert_close(graph(x), fn(x))
    assert found
