"""The statistics of a callable with buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...tables import fields
from ..stats import GraphedStats

__all__ = ["PoolStats"]


@dataclass(frozen=True)
class PoolStats(GraphedStats):
    """The statistics of a callable with buckets; see :class:`~gfxgraph.GraphedStats` for the rest.

    Attributes:
        traffic: how often each size came, a tuple in the order of ``dims``.
        asked: elements of the dynamic dimensions that calls asked for (rows, or rows x length).
        computed: elements that were computed for them, padding included.
        dims: the names of the dynamic dimensions.
    """

    traffic: dict[tuple[int, ...], int]
    asked: int
    computed: int
    dims: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The statistics as plain data, for JSON; ``traffic`` is a list of sizes and calls."""
        traffic = [{"size": list(size), "calls": calls} for size, calls in self.traffic.items()]
        return super().to_dict() | {"traffic": traffic}

    def _printed(self) -> list[str]:
        sizes = ", ".join(f"{'x'.join(map(str, s))}: {n}" for s, n in self.traffic.items())
        of_sizes = (f"calls of {'x'.join(self.dims)}", sizes), ("padding", f"{self.padding:.1%}")
        return super()._printed() + fields(of_sizes)

    @property
    def padding(self) -> float:
        """Share of what was computed that nobody asked for, 0.0 to 1.0."""
        return 1 - self.asked / self.computed if self.computed else 0.0
