"""``experiment("streams")`` finds work of several streams that nothing orders, and its line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import gfxgraph
from gfxgraph.errors import ArgumentError
from gfxgraph.measure.experiments.order import disorder_in
from gfxgraph.measure.experiments.streams import a_gpu

pytestmark = pytest.mark.usefixtures("one_thread")

HERE = Path(__file__).name
HAS_GPU = gfxgraph.device_type() == "cuda"


@pytest.fixture
def gpu():
    """Streams; on a machine without a GPU emulated ones."""
    if not HAS_GPU and (torch.version.cuda or torch.version.hip):
        pytest.skip("this build of torch cannot emulate a GPU")


@pytest.fixture
def streams(gpu):
    with a_gpu(), torch.no_grad():
        yield torch.ones(4, device="cuda"), torch.cuda.Stream()


def found_in(call):
    return [(one.what, one.where.line) for one in disorder_in(call)]


def line_of(words):
    """The line of this file that ends with a comment of these words."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if line.endswith(f"# {words}"))
    return number


def test_streams_finds_each_wrong_fork_and_no_right_one(device, gpu):
    report = gfxgraph.experiment("streams", seconds=0.5)
    assert report.holds is True, str(report)
    assert {row["case"]: row["found"] for row in report.rows} == {
        "in turn": 0,
        "fork and join": 0,
        "no wait before": 1,
        "no join after": 1,
        "used too early": 1,
    }
    serial, right, *wrong = report.rows
    assert serial["branches"] == 1 and right["branches"] == 2
    assert right["chain"] < serial["chain"] and right["equal"] and serial["equal"]
    assert not any(row["captured"] for row in wrong[:2])  # CUDA refuses these
    assert any("used_too_early" in note for note in report.notes)
    if HAS_GPU:
        assert right["overlap"] > 0.1 > serial["overlap"]


def test_a_fork_that_is_joined_is_in_order(streams):
    x, side = streams

    def act():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            a = x.sin()
        b = x.cos()
        torch.cuda.current_stream().wait_stream(side)
        return a + b

    assert found_in(act) == []


def test_waiting_for_an_event_does_not_cover_what_came_after_it(streams):
    x, side = streams

    def act():
        event = torch.cuda.Event()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            a = x.sin()
            event.record()
            b = x.cos()
        torch.cuda.current_stream().wait_event(event)
        c = a + 1
        c = b + 1  # not covered
        torch.cuda.current_stream().wait_stream(side)
        return c

    ((what, line),) = found_in(act)
    assert "does not wait" in what and line == line_of("not covered")


def test_a_write_beside_a_read_is_found(streams):
    x, side = streams

    def act():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.sin()
        x.add_(1)  # written beside
        torch.cuda.current_stream().wait_stream(side)

    ((_, line),) = found_in(act)
    assert line == line_of("written beside")


def test_two_halves_of_one_tensor_are_no_conflict(streams):
    x, side = streams

    def act():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x[:2].add_(1)
        x[2:].add_(1)
        torch.cuda.current_stream().wait_stream(side)

    assert found_in(act) == []


class Forks(nn.Module):
    """A module that forks, right or wrong."""

    def __init__(self, joins=True):
        super().__init__()
        self.scale, self.joins = nn.Parameter(torch.ones(4)), joins

    def forward(self, x):
        side, here = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(here)  # forked here
        with torch.cuda.stream(side):
            a = (x * self.scale).sin()
        b = x.cos()
        if self.joins:
            here.wait_stream(side)
            return a + b
        return b


def test_streams_inspects_the_users_module_and_leaves_it_where_it_is(device, gpu):
    model = Forks().to(device)
    report = gfxgraph.experiment("streams", model, torch.ones(4, device=device))
    assert report.holds is True and report.rows[0]["branches"] == 2
    assert model.scale.device.type == device and torch.cuda.is_available() == HAS_GPU
    wrong = gfxgraph.experiment(
        "streams", Forks(joins=False).to(device), torch.ones(4, device=device)
    )
    assert wrong.holds is False
    assert f"{HERE}:{line_of('forked here')}" in wrong.conclusion


def test_streams_of_a_function_without_any_says_so(device, gpu):
    report = gfxgraph.experiment("streams", torch.relu, torch.ones(4, device=device))
    assert report.holds is None and "forks nothing" in report.conclusion


def test_streams_of_a_function_whose_calls_differ_says_that_it_cannot_be_compared(device, gpu):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(4))

        def forward(self, x):
            self.steps += 1
            return x + self.steps

    report = gfxgraph.experiment("streams", Counts().to(device), torch.ones(4, device=device))
    assert report.holds is None and "cannot be compared" in report.conclusion


def test_what_is_not_on_the_emulated_device_is_told(gpu):
    if HAS_GPU:
        pytest.skip("there is a GPU")
    weight = torch.ones(4)
    with pytest.raises(
        ArgumentError, match=r"raises on the emulated device.*has to be an argument"
    ):
        gfxgraph.experiment("streams", lambda x: x @ weight, torch.ones(4))
    assert not torch.cuda.is_available()
