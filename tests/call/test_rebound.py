"""Large arguments that a graph reads where the caller has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import gfxgraph

pytestmark = pytest.mark.gpu
_SHAPE = (2048, 4096)  # 32 MiB


@pytest.fixture(autouse=True)
def _needs_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GFXGRAPH_REBIND", "1")
    pytest.importorskip("cuda.bindings")
    if not torch.cuda.is_available() or torch.version.hip:
        pytest.skip("needs CUDA")
    if not hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph_exec"):
        pytest.skip("this torch does not hand out executables")
    with torch.no_grad():
        yield


def _graphed(function: Callable[..., Any], *args: Any) -> Any:
    graphed = gfxgraph.graphed(function)
    graphed(*args)
    return graphed


def _says(graphed: Any) -> str:
    return "; ".join(graphed.stats().graphs[0].report)


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def test_a_large_argument_is_rebound_and_a_small_one_copied() -> None:
    x, y = torch.randn(_SHAPE, device="cuda"), torch.randn(4096, device="cuda")
    graphed = _graphed(lambda x, y: (x * 2, y + 1), x, y)
    assert _says(graphed) == "argument 0 (32 MiB): rebound, not copied"
    large, small = graphed(x + 1, y * 2)
    assert torch.equal(large, (x + 1) * 2)
    assert torch.equal(small, y * 2 + 1)


def test_the_caller_may_free_its_argument_while_the_replay_runs() -> None:
    graphed = _graphed(_double, torch.randn(_SHAPE, device="cuda"))
    results = []
    for n in range(50):
        results.append(graphed(torch.full(_SHAPE, float(n), device="cuda"))[0])
        torch.full(_SHAPE, -1.0, device="cuda")
    assert all(bool((row == 2 * n + 1).all()) for n, row in enumerate(results))


def test_launches_under_way_keep_the_argument_that_they_were_launched_with() -> None:
    slow = torch.randn(4096, 4096, device="cuda")

    def function(x: torch.Tensor) -> torch.Tensor:
        y = slow
        for _ in range(5):
            y = y @ slow
        return x[0] + 0 * y[0].nan_to_num(0, 0, 0)

    given = [torch.full(_SHAPE, float(n), device="cuda") for n in range(8)]
    graphed = _graphed(function, given[0])
    results = [graphed(x) for x in given]
    assert all(bool((row == n).all()) for n, row in enumerate(results))


def test_an_argument_of_another_alignment_is_copied_and_the_next_one_rebound() -> None:
    memory = torch.randn(2048 * 4096 + 1024, device="cuda")
    graphed = _graphed(_double, torch.randn(_SHAPE, device="cuda"))
    for start in (0, 1, 128, 3, 0):
        x = memory[start : start + 2048 * 4096].view(_SHAPE)
        assert torch.equal(graphed(x), x * 2 + 1)


def test_what_the_graph_writes_or_gives_back_is_copied() -> None:
    x = torch.randn(_SHAPE, device="cuda")
    assert "the function writes to it" in _says(_graphed(lambda x: x.add_(1), x.clone()))
    assert "the result shares memory" in _says(_graphed(lambda x: (x, x + 1), x))


def test_an_argument_given_as_the_static_input_is_read_there() -> None:
    x = torch.randn(_SHAPE, device="cuda")
    graphed = _graphed(_double, x)
    (static,), _ = graphed.static_inputs(x)
    static.copy_(x * 3)
    assert torch.equal(graphed(static), x * 3 * 2 + 1)
    assert "rebound" not in _says(graphed)


def test_without_the_variable_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFXGRAPH_REBIND", "0")
    assert not _says(_graphed(_double, torch.randn(_SHAPE, device="cuda")))
