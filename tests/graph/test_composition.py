"""Graphs that are updated from another capture, and graphs that are put into one."""

from __future__ import annotations

import gc
import re

import pytest
import torch

import gfxgraph
from gfxgraph.device import current_device
from gfxgraph.errors import ArgumentError, CaptureError
from tests.helpers.devices import region
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.usefixtures("no_grad")

ONE_LAUNCH = current_device().kind == "cuda" and current_device().tier == "driver"


def captured(fn, *args, graph=None, pool=None):
    """A kept graph of a call, and its static output."""
    graph = gfxgraph.BridgedCUDAGraph(keep_graph=True) if graph is None else graph
    fn(*args)
    current_device().synchronize(0)
    with region(graph, pool=pool):
        output = fn(*args)
    return graph, output


def replayed(graph, output):
    graph.replay()
    current_device().synchronize(0)
    return output.tolist()


@pytest.fixture
def x(device):
    return torch.arange(4.0, device=device)


# ---- update


def test_a_graph_replays_what_another_one_has_captured(x, device):
    weights = [torch.full((4,), value, device=device) for value in (2.0, 5.0)]
    graph, first = captured(lambda: x * weights[0])
    other, second = captured(lambda: x * weights[1])
    assert replayed(graph, first) == [0, 2, 4, 6]
    assert replayed(other, second) == [0, 5, 10, 15]
    second.zero_()
    found = graph.update(other)
    assert found.result == ("updated" if ONE_LAUNCH else "rebuilt")
    assert bool(found.reason) == (found.result == "rebuilt")
    for value in (1.0, 3.0):
        x.fill_(value)
        assert replayed(graph, second) == [5 * value] * 4


def test_another_topology_is_rebuilt_and_the_reason_is_given(x):
    graph, first = captured(lambda: x * 2)
    other, second = captured(lambda: (x * 2).sin() + 1)
    replayed(graph, first), replayed(other, second)
    expected = second.tolist()
    found = graph.update(other)
    assert found.result == "rebuilt"
    assert ("TOPOLOGY_CHANGED" if ONE_LAUNCH else "executables") in found.reason
    second.zero_()
    assert replayed(graph, second) == expected


def test_a_graph_whose_random_numbers_are_not_known_is_rebuilt(x):
    graph, first = captured(lambda: x * 2)
    replayed(graph, first)
    other, second = captured(lambda: x * 3)
    found = graph.update(other)
    assert found == ("rebuilt", "the other graph was never replayed, so it may draw random numbers")
    assert replayed(graph, second) == [0, 3, 6, 9]


def test_random_numbers_go_on_after_an_update(x):
    graph, first = captured(lambda: torch.rand_like(x))
    other, second = captured(lambda: torch.rand_like(x))
    replayed(graph, first), replayed(other, second)
    assert graph.update(other) == ("rebuilt", "this graph draws random numbers")
    assert replayed(graph, second) != replayed(graph, second)


def test_an_updated_graph_does_not_go_back_to_its_own_capture(x):
    graph, _ = captured(lambda: x * 2)
    other, output = captured(lambda: x * 3)
    graph.instantiate(), graph.replay(), other.replay()
    graph.update(other)
    with pytest.raises(CaptureError, match=r"bring back what this graph did before"):
        graph.instantiate()
    assert replayed(graph, output) == [0, 3, 6, 9] and graph.holds(output)


def test_an_updated_graph_keeps_the_other_one_and_can_be_updated_again(x):
    graph, _ = captured(lambda: x * 2)
    graph.replay()
    for value in (3, 4, 5):
        other, output = captured(lambda value=value: x * value)
        other.replay()
        graph.update(other)
        del other
        gc.collect()
        assert replayed(graph, output) == [0, value, 2 * value, 3 * value]


@pytest.mark.parametrize("known", [False, True], ids=["another executable", "in place on a GPU"])
def test_a_graph_that_was_updated_from_a_released_one_is_not_replayed(known, x):
    graph, _ = captured(lambda: x * 2)
    other, _ = captured(lambda: x * 3)
    graph.replay()
    if known:
        other.replay()
    graph.update(other)
    other.reset()
    for _ in range(2):
        with pytest.raises(CaptureError, match="released, captured again or updated"):
            graph.replay()
        captured(lambda: x * 4, graph=other)  # another capture than the one that is meant
        with pytest.raises(CaptureError, match="released, captured again or updated"):
            graph.replay()
        other.reset()


def test_a_graph_whose_replays_can_be_compared_stays_alone(x):
    graph, _ = captured(lambda: x * 2)
    graph.replay()
    other = gfxgraph.BridgedCUDAGraph(keep_graph=True)

    def step(x):
        return x * 3

    step(x)
    with other.capture(model_fn=step):
        output = step(x)
    other.replay()
    found = graph.update(other)
    assert found.result == "rebuilt" and "compared with eager execution" in found.reason
    assert replayed(graph, output) == [0, 3, 6, 9]


def test_what_cannot_be_updated_says_so(x):
    graph, _ = captured(lambda: x * 2)
    with pytest.raises(ArgumentError, match="expected another"):
        graph.update(graph)
    with pytest.raises(ArgumentError, match="expected another"):
        graph.update(3)
    with pytest.raises(CaptureError, match="the other graph holds no capture"):
        graph.update(gfxgraph.BridgedCUDAGraph(keep_graph=True))
    plain, _ = captured(lambda: x * 2, graph=gfxgraph.BridgedCUDAGraph())
    with pytest.raises(CaptureError, match="this graph holds no capture of which"):
        plain.update(graph)


def test_inspect_shows_what_an_updated_graph_does(x):
    if current_device().tier == "torch":
        pytest.skip("the driver tells no nodes")
    graph, _ = captured(lambda: x * 2)
    other, _ = captured(lambda: (x * 2) + 1)
    graph.update(other)
    assert len(gfxgraph.inspect(graph)[0]) == 2


# ---- compose


@pytest.fixture
def chain(x):
    """Two graphs of which the second reads what the first writes, and the result."""
    first, y = captured(lambda: x * 2)
    second, z = captured(lambda: y + 1)
    return first, second, z


def test_graphs_run_in_the_order_that_is_asked_for(chain, x):
    first, second, z = chain
    whole = gfxgraph.compose({"b": second, "a": first}, after={"b": ["a"]})
    for value in (1.0, 2.0, 3.0):  # the first replay is in turn
        x.fill_(value)
        assert replayed(whole, z) == [2 * value + 1] * 4
    assert (whole.in_turn == "") == ONE_LAUNCH
    assert list(whole.graphs) == ["a", "b"] and whole.after == {"a": (), "b": ("a",)}


def test_a_graph_is_replaced_in_place(chain, x):
    first, second, z = chain
    whole = gfxgraph.compose({"a": first, "b": second}, after={"b": ["a"]})
    whole.replay(), whole.replay()
    other, _ = captured(lambda: z * 10)
    other.replay()
    longer, v = captured(lambda: (z * 10).sin() + z)
    longer.replay()
    third = gfxgraph.compose({"whole": second, "then": other}, after={"then": ["whole"]})
    third.replay(), third.replay()
    another, u = captured(lambda: z * 7)
    another.replay()
    found = third.replace("then", another)
    assert found.result == ("updated" if ONE_LAUNCH else "rebuilt")
    x.fill_(3.0)
    replayed(whole, z)
    assert replayed(third, u) == [49.0] * 4
    found = third.replace("then", longer)
    assert found.result == "rebuilt" and found.reason
    for _ in range(2):
        v.zero_()
        assert replayed(third, v) == pytest.approx(((z * 10).sin() + z).tolist())


def test_graphs_that_draw_random_numbers_stay_right(x):
    draw, r = captured(lambda: torch.rand_like(x))
    other, s = captured(lambda: r * 1)
    whole = gfxgraph.compose({"draw": draw, "copy": other}, after={"copy": ["draw"]})
    found = [replayed(whole, s) for _ in range(4)]
    assert len(set(map(tuple, found))) == 4
    assert whole.in_turn == "'draw' draws random numbers"


@pytest.mark.parametrize(
    "after, message",
    [
        ({"b": ["c"]}, "'c' is no graph"),
        ({"c": ["a"]}, "'c' is no graph"),
        ({"a": ["b"], "b": ["a"]}, "waits for '.' waits for"),
        ({"a": ["a"]}, "'a' waits for 'a'"),
    ],
    ids=["unknown", "unknown that waits", "circle", "itself"],
)
def test_an_order_that_cannot_be_says_why(after, message, chain):
    first, second, _ = chain
    with pytest.raises(ArgumentError, match=message):
        gfxgraph.compose({"a": first, "b": second}, after=after)


def test_what_cannot_be_composed_says_why(chain, x):
    first, second, _ = chain
    with pytest.raises(ArgumentError, match="expected names with graphs"):
        gfxgraph.compose({})
    with pytest.raises(ArgumentError, match="'a' is 3: expected a BridgedCUDAGraph"):
        gfxgraph.compose({"a": 3})
    with pytest.raises(ArgumentError, match="the same graph"):
        gfxgraph.compose({"a": first, "b": first}, after={"b": ["a"]})
    plain, _ = captured(lambda: x * 2, graph=gfxgraph.BridgedCUDAGraph())
    with pytest.raises(CaptureError, match="'b' holds no capture of which the graph is kept"):
        gfxgraph.compose({"a": first, "b": plain})
    whole = gfxgraph.compose({"a": first, "b": second}, after={"b": ["a"]})
    with pytest.raises(ArgumentError, match="unknown; expected one of a, b"):
        whole.replace("c", first)


def test_graphs_of_one_pool_need_an_order(x):
    first, _ = captured(lambda: x * 2)
    second, _ = captured(lambda: x * 3, pool=first.pool())
    with pytest.raises(ArgumentError, match="use one memory pool"):
        gfxgraph.compose({"a": first, "b": second})
    gfxgraph.compose({"a": first, "b": second}, after={"b": ["a"]})


@pytest.mark.parametrize("replays", [0, 2])
def test_a_released_graph_is_named(replays, chain):
    first, second, _ = chain
    whole = gfxgraph.compose({"a": first, "b": second}, after={"b": ["a"]})
    for _ in range(replays):
        whole.replay()
    first.reset()
    with pytest.raises(CaptureError, match="'a' of a composition was released"):
        whole.replay()


def test_a_composition_can_be_inspected(chain):
    if current_device().tier == "torch":
        pytest.skip("the driver tells no nodes")
    first, second, _ = chain
    report = gfxgraph.inspect(gfxgraph.compose({"a": first, "b": second}, after={"b": ["a"]}))
    assert [graph.name for graph in report] == ["a", "b"] and len(report[0]) == 1


def test_a_composition_that_is_dropped_during_a_capture_does_not_end_it(chain, x):
    first, second, _ = chain
    whole = gfxgraph.compose({"a": first, "b": second}, after={"b": ["a"]})
    whole.replay(), whole.replay()
    graph = gfxgraph.BridgedCUDAGraph()
    with region(graph):
        y = x * 2
        del whole
        gc.collect()
        y = y + 1
    assert replayed(graph, y) == [1, 3, 5, 7]


def test_the_code_of_the_page_runs(capsys):
    page = (ROOT / "docs" / "composing.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    exec("\n".join(blocks), {})
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 2
    assert all(("updated" if ONE_LAUNCH else "rebuilt") in line for line in shown)
