"""A graph as one writes it with torch alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def warm_up(fn: Callable[..., Any], arguments: Sequence[Any], runs: int = 3) -> None:
    """Run it on a side stream, as torch's documentation says."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(runs):
            fn(*arguments)
    torch.cuda.current_stream().wait_stream(stream)


def captured(
    fn: Callable[..., Any], inputs: Sequence[torch.Tensor], pool: Any = None
) -> tuple[Any, list[torch.Tensor], Any]:
    """The graph, its static inputs and its output, after a warm-up."""
    static = [x.clone() for x in inputs]
    warm_up(fn, static)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        out = fn(*static)
    return graph, static, out
