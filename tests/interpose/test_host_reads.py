"""What compiled code reads between its regions is the same in the capture as in the run before."""

from __future__ import annotations

import threading

import pytest
import torch

import gfxgraph
from gfxgraph.errors import CaptureError
from gfxgraph.interpose.host_reads import HostReads


@pytest.fixture
def reads(device):
    return HostReads(device)


def integrate(x, time):
    while time >= 0:
        x = x * 2 + time
        time = time - 0.25
    return x, float(time)


def test_what_was_read_is_given_again_whatever_the_tensors_hold_now(reads, device):
    with reads.remembered():
        _, end = integrate(torch.ones(3, device=device), torch.tensor(1.0, device=device))
    assert len(reads) == 7, "five times yes, one no, and the end"
    with reads.repeated():
        x, again = integrate(torch.ones(3, device=device), torch.tensor(-9.0, device=device))
    assert again == end == -0.25
    assert x.tolist() == [32 - 9 * 31 - 0.25 * 26] * 3, "five steps, from the time of now"


@pytest.mark.usefixtures("compiled_loops")
def test_between_regions_of_compiled_code_too_and_nothing_is_compiled_again(reads, device):
    regions = []

    def backend(graph, inputs):
        regions.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(integrate, backend=backend, dynamic=False)
    x, start = torch.ones(3, device=device), torch.tensor(1.0, device=device)
    expected = compiled(x, start)
    with reads.remembered():
        compiled(x, start)
    made = len(regions)
    assert made and len(reads) == 7, "how many regions is up to this Python's bytecode"
    with reads.repeated():
        x, end = compiled(x, start)
    assert torch.equal(x, expected[0]) and end == expected[1] and len(regions) == made


@pytest.mark.parametrize(
    ("second", "how"),
    [
        (
            lambda x: (bool(x[0]), x.tolist(), float(x[1])),
            "tolist.. where Tensor.__float__",
        ),
        (lambda x: bool(x[0]), "ended before Tensor.__float__"),
        (lambda x: (bool(x[0]), float(x[1]), x.tolist(), x[0].item()), "where the end was"),
    ],
)
def test_another_way_is_an_error(reads, device, second, how):
    x = torch.arange(2.0, device=device)
    with reads.remembered():
        assert (bool(x[0]), float(x[1]), x.tolist()) == (False, 1.0, [0.0, 1.0])
    with pytest.raises(CaptureError, match=how), reads.repeated():
        second(x)
    assert float(x[1]) == 1.0, "the methods are torch's again"


def test_a_list_that_the_function_changes_is_whole_the_next_time(reads, device):
    x = torch.arange(2, device=device)
    with reads.remembered():
        x.tolist()
    for _ in range(2):
        with reads.repeated():
            values = x.tolist()
            assert values == [0, 1]
            values.clear()


def test_other_threads_read_what_is_there(reads, device):
    x, seen = torch.tensor(1, device=device), []
    with reads.remembered():
        x.item()
    x.fill_(2)
    thread = threading.Thread(target=lambda: seen.append(x.item()))
    with reads.repeated():
        thread.start()
        thread.join()
        assert x.item() == 1
    assert seen == [2] and x.item() == 2


def test_nothing_of_it_stays_when_the_run_raises(reads):
    before = {name: getattr(torch.Tensor, name) for name in ("item", "__bool__", "tolist")}
    with pytest.raises(ZeroDivisionError), reads.remembered():
        1 / 0  # noqa: B018
    assert all(getattr(torch.Tensor, name) == method for name, method in before.items())
    assert "item" not in vars(torch.Tensor)


def integrating(device):
    """A tensor with the time to start at, a function that reads it, and its compiled graph."""
    start = torch.tensor(1.0, device=device)

    def policy(x):
        return integrate(x, start)[0]

    compile = {"backend": "aot_eager"}
    return start, policy, gfxgraph.graphed(policy, compile=compile, fallback="raise")


@pytest.mark.usefixtures("compiled_loops")
@torch.no_grad()
def test_a_graph_holds_compiled_code_with_the_reads_between_its_regions(device):
    _, policy, graph = integrating(device)
    for n in range(4):  # on the emulated device the graph holds what was not compiled
        x = torch.full((3,), float(n), device=device)
        torch.testing.assert_close(graph(x), policy(x))
    stats = graph.stats()
    assert stats.replays == 3 and all(row.compiled for row in stats.graphs)
    assert "Tensor.item(), folded" in stats.graphs[0].report[0]


@pytest.mark.usefixtures("compiled_loops")
@torch.no_grad()
def test_a_read_value_that_changes_is_read_again(device):
    start, policy, graph = integrating(device)
    for value in (1.0, 0.5):
        start.fill_(value)
        for _ in range(2):
            x = torch.randn(3, device=device)
            torch.testing.assert_close(graph(x), policy(x))
    assert graph.stats().recaptures == 1 and graph.stats().replays == 2
