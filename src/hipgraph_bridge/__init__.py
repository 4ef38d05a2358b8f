"""The graph classes of :mod:`gfxgraph` under a second name."""

from gfxgraph import BridgedCUDAGraph, ConditionalGraph, ShapeBucketPool

__all__ = ["BridgedCUDAGraph", "ConditionalGraph", "ShapeBucketPool"]
