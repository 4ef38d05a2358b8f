"""Some cases in ``make test``, the others in ``make test-long``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def sampled(
    cases: Iterable[Any],
    share: int,
    marks: Callable[[Any], list[Any]] = lambda case: [],
) -> list[Any]:
    """Parameters: one in ``share`` runs in ``make test``, with more ``marks`` of a case."""
    return [
        pytest.param(case, marks=[*([pytest.mark.long] if n % share else []), *marks(case)])
        for n, case in enumerate(cases)
    ]
