"""Full names of the functions that make graphs, shared by the rules."""

from __future__ import annotations

import re

__all__ = ["CAPTURE", "GRAPH", "GRAPHED", "MAKE_GRAPHED", "PER_REQUEST", "TRAINING"]

GRAPHED = frozenset({"gfxgraph.graphed", "gfxgraph.call.graphed.graphed"})
MAKE_GRAPHED = frozenset(
    {"torch.cuda.make_graphed_callables", "torch.cuda.graphs.make_graphed_callables"}
)
CAPTURE = frozenset({"torch.cuda.graph", "torch.cuda.graphs.graph"})
GRAPH = frozenset(
    {
        "torch.cuda.CUDAGraph",
        "torch.cuda.graphs.CUDAGraph",
        "gfxgraph.BridgedCUDAGraph",
        "hipgraph_bridge.BridgedCUDAGraph",
    }
)

PER_REQUEST = frozenset(
    {"denoise_step", "forward", "predict_action_chunk", "sample_actions", "select_action"}
)
"""Methods that run once for each request or step."""

TRAINING = re.compile(r"loss|train(?!ed)|criterion|backward", re.IGNORECASE)
"""Classes and functions that inference does not use."""
