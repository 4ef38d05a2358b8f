"""``enable(emulate=True)``: code that says ``cuda`` on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gfxgraph
from tests.helpers.devices import HAS_GPU
from tests.simulate.pieces import PIECES, end_of

without_gpu = pytest.mark.skipif(HAS_GPU, reason="a GPU is there: nothing is emulated")


@pytest.fixture
def emulated() -> Iterator[None]:
    """The device, emulated where there is none."""
    gfxgraph.enable(emulate=not HAS_GPU)
    yield
    gfxgraph.disable()


@pytest.mark.parametrize("name", PIECES)
def test_a_piece_of_common_code_ends_as_on_a_gpu(name: str, emulated: None) -> None:
    assert end_of(name) == PIECES[name][1]
