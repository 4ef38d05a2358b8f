"""The traceback of an error in a graphed function shows the program's code, and none of ours."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import gfxgraph
from gfxgraph.call import dispatch
from gfxgraph.errors import ArgumentError, CaptureError
from gfxgraph.interpose.source import is_ours
from tests.helpers.models import rows

# Before Python 3.11 a plain `raise` brings back the frame in which it stands.
LEFT = 0 if sys.version_info >= (3, 11) else 1

pytestmark = pytest.mark.usefixtures("no_grad")


def ours(error: BaseException | None) -> list[str]:
    """The files of gfxgraph in a traceback."""
    assert error is not None
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.filename for frame in frames if is_ours(frame.filename)]


def functions(error: BaseException) -> list[str]:
    """The functions in a traceback without the first, which is the test, and without ours."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    return [frame.name for frame in frames if not is_ours(frame.filename)]


def refuses_three(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] == 3:
        raise ValueError("three rows")
    return x * 2


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return refuses_three(x)

    @gfxgraph.graphed
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return refuses_three(x)


def branch(x: torch.Tensor) -> torch.Tensor:
    return gfxgraph.ConditionalGraph().add_branch("only", refuses_three).run("only", x)


@pytest.mark.parametrize(
    "call",
    [
        gfxgraph.graphed(refuses_three),
        gfxgraph.graphed(Model()),
        Model().method,
        branch,
        gfxgraph.ShapeBucketPool(refuses_three, buckets=[1, 2]),
    ],
    ids=["function", "module", "method", "branch", "buckets"],
)
def test_an_error_of_the_program_shows_no_file_of_ours(device: str, call: Callable[..., Any]):
    for count in (3, 2, 3):  # without a graph, and with one
        if count == 2:
            call(rows(device, 2))
            continue
        with pytest.raises(ValueError, match="three rows") as raised:
            call(rows(device, count))
        assert len(ours(raised.value)) <= LEFT
        assert functions(raised.value)[-1] == "refuses_three"


def test_a_call_that_the_function_does_not_take_shows_the_line_of_the_call(device):
    with pytest.raises(TypeError, match="takes 1 positional") as raised:
        gfxgraph.graphed(refuses_three)(rows(device, 2), 5)
    assert len(ours(raised.value)) <= LEFT and functions(raised.value) == []


def test_errors_of_ours_show_the_line_of_the_call(device):
    def reads(x: torch.Tensor) -> float:
        return float(x.sum())

    call = gfxgraph.graphed(reads, fallback="raise", branching="off")
    with pytest.raises(CaptureError, match="reads") as raised:
        call(rows(device, 2))
    assert len(ours(raised.value)) <= LEFT and functions(raised.value) == []
    with pytest.raises(ArgumentError) as raised_by_run:
        gfxgraph.ConditionalGraph().add_branch("only", reads).run("other")
    assert len(ours(raised_by_run.value)) <= LEFT
    assert raised_by_run.value.__context__ is None


def test_what_an_error_follows_from_stays_without_our_frames(device):
    inner = gfxgraph.graphed(refuses_three)

    @gfxgraph.graphed
    def outer(x: torch.Tensor) -> torch.Tensor:
        try:
            return inner(x)
        except ValueError as error:
            raise LookupError("no such row") from error

    for _ in range(2):
        with pytest.raises(LookupError, match="no such row") as raised:
            outer(rows(device, 3))
        error, cause = raised.value, raised.value.__cause__
        assert functions(error) == ["outer"] and len(ours(error)) <= LEFT
        assert isinstance(cause, ValueError) and error.__context__ is cause
        assert functions(cause) == ["refuses_three"] and len(ours(cause)) <= LEFT


def test_functions_that_call_each_other_show_in_their_order(device):
    inner = gfxgraph.graphed(refuses_three)

    def between(x: torch.Tensor) -> Iterator[torch.Tensor]:
        yield inner(x + 1)

    @gfxgraph.graphed
    def outer(x: torch.Tensor) -> torch.Tensor:
        return next(between(x))

    with pytest.raises(ValueError, match="three rows") as raised:
        outer(rows(device, 3))
    assert functions(raised.value) == ["outer", "between", "refuses_three"]
    assert len(ours(raised.value)) <= 2 * LEFT


def test_a_function_between_two_graphs_may_raise(device):
    allowed = [True, True, True]

    @gfxgraph.no_graph
    def asks(x: torch.Tensor) -> torch.Tensor:
        if not allowed[0]:
            raise PermissionError("not now")
        return x + 1

    @gfxgraph.graphed
    def model(x: torch.Tensor) -> torch.Tensor:
        return asks(x * 2) * 3

    x = rows(device, 2)
    for _ in range(3):
        model(x)
    allowed[0] = False
    with pytest.raises(PermissionError, match="not now") as raised:
        model(x)
    assert len(ours(raised.value)) <= LEFT and functions(raised.value)[-1] == "asks"


def test_a_function_that_handles_the_error_of_another_is_captured(device):
    inner = gfxgraph.graphed(refuses_three)

    @gfxgraph.graphed
    def outer(x: torch.Tensor) -> torch.Tensor:
        try:
            return inner(x)
        except ValueError:
            return x * 5

    x = rows(device, 3)
    for _ in range(3):
        assert torch.equal(outer(x), x * 5)
    assert outer.stats().replays == 2


@pytest.mark.parametrize("value", ["full", "Full", "everything"])
def test_frames_of_ours_stay_where_the_setting_says_so_or_is_malformed(device, monkeypatch, value):
    monkeypatch.setenv("GFXGRAPH_TRACEBACK", value)
    with pytest.raises(ValueError, match="three rows") as raised:
        gfxgraph.graphed(refuses_three)(rows(device, 3))
    assert len(ours(raised.value)) > 2


def test_a_bug_of_ours_is_shown_where_it_is(device, monkeypatch):
    def broken() -> None:
        # As if it stood in a file of ours.
        exec(compile("raise AssertionError('a bug')", "<gfxgraph>", "exec"))

    monkeypatch.setattr(dispatch, "no_graph_now", broken)
    with pytest.raises(AssertionError, match="a bug") as raised:
        gfxgraph.graphed(refuses_three)(rows(device, 2))
    assert len(ours(raised.value)) > 2 and ours(raised.value)[-1] == "<gfxgraph>"
