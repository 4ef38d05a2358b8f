"""What a replay costs the host, counted: bytecodes of Python, and calls from Python into C.

No clock is read, so the numbers are the same on every machine. A change that makes them larger
makes each call of each user slower: it has to be worth that. What the emulated device does in place
of a launch is left out.
"""

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.graph import words

SOURCE = Path(gfxgraph.__file__).parent
LEFT_OUT = (SOURCE / "device", SOURCE / "interpose", SOURCE / "graph" / "device_state.py")


@dataclass
class Counts:
    bytecodes: int = 0
    calls: int = 0


def counts_of(call):
    """Of one call: what runs in gfxgraph's own files, and in code that it has generated."""
    found = Counts()

    def is_ours(frame):
        name = frame.f_code.co_filename
        if name.startswith("<gfxgraph>"):
            return True
        path = Path(name)
        if any(path.is_relative_to(out) for out in LEFT_OUT) or "launch" in frame.f_code.co_name:
            return False
        return path.is_relative_to(SOURCE)

    def trace(frame, event, arg):
        if not is_ours(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False

        def count(frame, event, arg):
            found.bytecodes += event == "opcode"
            return count

        return count

    def profile(frame, event, arg):
        found.calls += event == "c_call" and is_ours(frame)

    sys._getframe().f_trace_opcodes = True  # from Python 3.12 on settrace() looks whether one asks
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def replayed(model, *args):
    """Counts of a call that is a replay."""
    graph = gfxgraph.graphed(model)
    with torch.no_grad():
        for _ in range(4):
            graph(*args)
        before = graph.stats().replays
        found = counts_of(lambda: graph(*args))
        assert graph.stats().replays == before + 2, "not a replay"
    return found


def layers(count):
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(count)]).to(gfxgraph.device_type())


def ones(*shape):
    return torch.ones(*shape, device=gfxgraph.device_type())


CALLS = {
    "one input": lambda: (layers(1), ones(2, 4)),
    "32 inputs": lambda: (lambda *xs: torch.stack(xs).sum(0), *ones(32, 4)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_replay_is_that_many_bytecodes_and_calls(name):
    """On Python 3.11: 237 and 14, 232 and 9. Other versions have other bytecodes."""
    found = replayed(*CALLS[name]())
    assert 0 < found.bytecodes < 300 and 0 < found.calls < 20


@pytest.mark.parametrize("compiled", [True, False])
def test_the_number_of_weights_adds_nothing_to_a_replay(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(words, "Words", None)
    few, many = (replayed(layers(n), ones(2, 4)) for n in (16, 200))
    assert few == many


def test_a_call_of_another_kind_costs_the_same_however_many_kinds_are_known():
    def in_turn(kinds):
        graph = gfxgraph.graphed(lambda x: x + 1, max_graphs=64)
        inputs = [ones(n + 1) for n in range(kinds)]
        for _ in range(4):
            for x in inputs:
                graph(x)
        turn = itertools.cycle(inputs)
        before = graph.stats().replays
        found = counts_of(lambda: graph(next(turn)))
        assert graph.stats().replays == before + 2
        return found

    few, many = in_turn(12), in_turn(40)
    assert few == many and few.bytecodes < 900


def test_sizes_that_buckets_answer_leave_nothing_behind_in_the_dispatcher():
    graph = gfxgraph.graphed(lambda x: x + 1, buckets=[8, 64])
    for n in range(40):
        graph(ones(n + 1, 2))
    assert graph.stats().replays and len(graph._dispatcher._likely) == 0
