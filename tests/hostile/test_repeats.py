"""Frames of which nothing is looked at, because they run as others did, hide nothing."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.graph import reads, session
from tests.helpers.sampled import sampled
from tests.hostile import hostile_in_c, hostile_python, hostile_python_more, hostile_repeats
from tests.hostile.hostile_twins import Shown, silent_differences, t
from tests.hostile.test_python_state import modules_as_before, outcome

__all__ = ["modules_as_before"]

pytestmark = pytest.mark.filterwarnings("ignore")


def marks(name: str) -> list[Any]:
    """To collect garbage takes long in a process that has run many tests."""
    return [pytest.mark.long] if "collected_in" in name else []


@pytest.mark.parametrize("name", sampled(hostile_repeats.CASES, 30, marks, of_long=23))
@torch.no_grad()
def test_what_a_frame_reads_that_runs_as_others_did_is_never_stale(device, name):
    at = count = 0
    while at <= count:  # each change by itself: the frames are as alike as they were
        with torch.device(device):
            fn, changes = hostile_repeats.CASES[name]()
        graph, count = gfxgraph.graphed(fn), len(changes) - 1
        for n in range(4):
            if n == 2:
                with torch.device(device):
                    changes[at]()
            x = torch.randn(2, 4, device=device)
            expected, got = outcome(fn, x), outcome(graph, x)
            if isinstance(expected, type):
                assert got is expected
            else:
                torch.testing.assert_close(
                    got, expected, equal_nan=True, msg=f"change {at}, call {n}"
                )
        at += 1


@pytest.mark.parametrize("name", sampled(hostile_repeats.ARGUMENTS, 3))
@torch.no_grad()
def test_what_is_read_of_an_argument_by_a_later_frame_is_that_of_the_call(device, name):
    fn, _ = hostile_repeats._arguments(hostile_repeats.ARGUMENTS[name])()
    graph = gfxgraph.graphed(fn)
    for n in range(14):
        x, items = t(n, 2, 4).to(device), hostile_repeats.arguments_of(n)
        torch.testing.assert_close(graph(x, items), fn(x, items), msg=f"call {n}")


@pytest.mark.parametrize("name", hostile_repeats.EFFECTS)
def test_what_a_frame_writes_that_runs_as_others_did_is_written_once(device, name):
    def make() -> Any:
        with torch.device(device):
            fn, show, layers = hostile_repeats.EFFECTS[name]()
        own = Shown(show)
        own.layers = layers  # not shown
        return fn, own

    def between(own: Any, n: int) -> None:
        if n in (4, 6):
            own.layers[-1].a = own.layers[1].b = float(n)

    found = silent_differences(make, lambda n: (t(n, 2, 4),), calls=9, between=between)
    assert not found, "\n".join(found)


PURE = {
    f"{room.__name__.rpartition('.')[2]}.{name}": case
    for room in (hostile_repeats, hostile_python, hostile_python_more, hostile_in_c)
    for name, case in room.CASES.items()
    if name != "collected_in_the_second"  # it collects all garbage of the process, again and again
}


def recorded(fn: Any, x: torch.Tensor, repeats: bool) -> dict[Any, str] | None:
    """What a capture guards; ``None``: there is none."""
    found: list[Any] = []
    record = session.CaptureSession.record

    def watched(self: Any, *args: Any, **options: Any) -> Any:
        self.repeats = self.repeats and repeats
        given = record(self, *args, **options)
        found.append(self.reads)
        return given

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.CaptureSession, "record", watched)
        try:
            gfxgraph.graphed(fn, fallback="raise")(x)
        except Exception:
            return None
    reads = found[-1]
    places = {key: place.path for key, place in reads.places.items()}
    return places | {("hooks", key): held.path for key, held in reads.no_hooks.items()}


@pytest.mark.parametrize("name", sampled(PURE, 80, marks, of_long=25))
@torch.no_grad()
def test_no_place_is_missing_where_frames_are_left_out(device, name, modules_as_before):
    with torch.device(device):
        fn, _ = PURE[name]()
    x = torch.randn(2, 4, device=device)
    try:
        without, left_out = recorded(fn, x, repeats=False), recorded(fn, x, repeats=True)
        if without is not None and left_out is not None and without.keys() <= left_out.keys():
            return
        # Some places are others in each capture.
        runs = [recorded(fn, x, repeats) for repeats in (False, True, False, True, False)]
        assert (runs[3] is None) is (runs[4] is None)
        if any(run is None for run in runs):
            return
        always = runs[0].keys() & runs[2].keys() & runs[4].keys()
        missing = always - runs[1].keys() | always - runs[3].keys()
        assert not missing, [runs[0][key] for key in missing]
    finally:
        with contextlib.suppress(ValueError, KeyError):  # nothing has changed
            getattr(fn, "undo", lambda: None)()


@torch.no_grad()
def test_more_layers_with_dropout_are_asked_and_not_looked_at(device, monkeypatch):
    """``torch._VF``, where it is, answers by ``__getattr__``."""
    looked_at: list[str] = []
    begin = reads.Reads._begin
    monkeypatch.setattr(
        reads.Reads, "_begin", lambda self, frame: (looked_at.append(1), begin(self, frame))[1]
    )
    counts = []
    for layers in (4, 4, 8):  # what is imported at first counts as well
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval().to(device)
        graph, x = gfxgraph.graphed(model), torch.randn(2, 3, 8, device=device)
        looked_at.clear()
        torch.testing.assert_close(graph(x), model(x))
        counts.append(len(looked_at))
    assert counts[1] == counts[2]
