"""The graph classes of :mod:`gfxgraph` under a second name."""

from gfxgraph import BridgedCUDAGraph

__all__ = ["BridgedCUDAGraph"]
