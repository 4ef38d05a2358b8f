"""An endpoint, and what is read from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import gfxgraph
from gfxgraph.call import timing
from tests.helpers.scrape import read

Scrape = Callable[..., "float | None"]


@pytest.fixture
def server() -> Iterator[gfxgraph.metrics.Server]:
    """An endpoint at a free port; calls are no longer timed after it."""
    with gfxgraph.metrics.serve(port=0) as server:
        yield server
    timing.switch(False)


@pytest.fixture
def value(server: gfxgraph.metrics.Server) -> Scrape:
    """Scrape, and give one sample: ``value("gfxgraph_replays_total", callable="f")``."""

    def value(name: str, **labels: str) -> float | None:
        return read(server.url).get((name, frozenset(labels.items())))

    return value
