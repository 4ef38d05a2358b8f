"""What the tests run on, and a capture that a test does by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gfxgraph import BridgedCUDAGraph
from gfxgraph.device import current_device

HAS_GPU = torch.cuda.is_available()
# Parts of such a torch look for the driver as soon as something is said to be on a GPU.
LACKS_DRIVER = torch.backends.cuda.is_built() and not HAS_GPU


@contextmanager
def region(graph: Any, **options: Any) -> Iterator[None]:
    """Capture what happens inside into ``graph``, on a stream of its own."""
    kind = current_device()
    with kind.on_stream(kind.new_stream(0), 0):
        graph.capture_begin(**options)
        try:
            yield
        finally:
            graph.capture_end()


def works_afterwards(device: str) -> bool:
    """A new capture works, random numbers can be drawn, and no capture is under way."""
    assert not current_device().is_capturing()
    drawn = torch.rand(64, device=device)
    static = torch.ones(4, device=device)
    graph = BridgedCUDAGraph()
    with region(graph):
        output = static * 2 + torch.rand_like(static) * 0
    static.fill_(3.0)
    graph.replay()
    return output.tolist() == [6.0] * 4 and 0 <= float(drawn.min()) < float(drawn.max()) < 1
