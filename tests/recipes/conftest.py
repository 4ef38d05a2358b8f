"""Graphed callables that other tests have left take no part."""

from __future__ import annotations

import pytest

from gfxgraph.call.dispatch import owners


@pytest.fixture(autouse=True)
def no_other_callables():
    for dispatcher, _ in owners():
        dispatcher.reset()
