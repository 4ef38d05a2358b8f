"""Some cases in ``make test``, the others in ``make test-long``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sampled(
    cases: Iterable[Any],
    share: int,
    marks: Callable[[Any], list[Any]] = lambda case: [],
    of_long: int = 1,
) -> list[Any]:
    """Parameters: one in ``share`` runs in ``make test``, with more ``marks`` of a case.

    Of the others one in ``of_long`` runs in ``make test-long``. What is left has the mark ``full``:
    it runs in ``make test-full``, and on a GPU.
    """
    found = []
    for n, case in enumerate(cases):
        own = marks(case)
        if n % share:
            own = [pytest.mark.long, *own]
            if n % of_long:
                own = [pytest.mark.full, *own]
        found.append(pytest.param(case, marks=own))
    return found
