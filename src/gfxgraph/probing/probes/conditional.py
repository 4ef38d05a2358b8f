"""Conditional nodes: the device decides which part of a graph runs, and how often."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from .cuda import Cuda
from .driver import _ints
from .here import Here, probe


def _conditional(
    cuda: Cuda, made: Any, p: torch.Tensor, kind: str, size: int
) -> tuple[ctypes.c_ulonglong, list[Any]]:
    """A node whose condition is the number in ``p``: its handle and the graphs of its bodies."""
    handle = cuda("cuGraphConditionalHandleCreate", made, cuda.context, 0, 0)
    number = ctypes.c_ulonglong(int(handle))
    decided = cuda.kernel(made, [], "decide", number, p)
    params = cuda.api.CUgraphNodeParams()
    params.type = cuda.api.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
    params.conditional.handle, params.conditional.size = handle, size
    kinds = cuda.api.CUgraphConditionalNodeType
    params.conditional.type = getattr(kinds, f"CU_GRAPH_COND_TYPE_{kind}")
    params.conditional.ctx = cuda.context
    cuda("cuGraphAddNode", made, [decided], None, 1, params)
    return number, list(params.conditional.phGraph_out)[:size]


def _at(cuda: Cuda, executable: Any, p: torch.Tensor, value: int, out: torch.Tensor) -> int:
    """What a launch gives that begins with 0."""
    p.fill_(value)
    out.zero_()
    torch.cuda.synchronize()
    cuda.run(executable)
    return int(out.item())


@probe
def conditional_if(here: Here) -> None:
    """A part runs or not."""
    cuda, p, out = here.cuda, _ints(0), _ints(0)
    made = cuda.graph()
    _, (body,) = _conditional(cuda, made, p, "IF", 1)
    cuda.kernel(body, [], "add", out, 5)
    executable = cuda.executable(made)
    found = [_at(cuda, executable, p, value, out) for value in (1, 0, 1)]
    here.equal("conditions 1, 0, 1 give", found, [5, 0, 5])


@probe
def conditional_else(here: Here) -> None:
    """One of two parts runs."""
    cuda, p, out = here.cuda, _ints(0), _ints(0)
    made = cuda.graph()
    _, (yes, no) = _conditional(cuda, made, p, "IF", 2)
    cuda.kernel(yes, [], "add", out, 5)
    cuda.kernel(no, [], "add", out, 7)
    executable = cuda.executable(made)
    found = [_at(cuda, executable, p, value, out) for value in (1, 0)]
    here.equal("conditions 1, 0 give", found, [5, 7])


@probe
def conditional_while(here: Here) -> None:
    """A part runs again and again until it says no."""
    cuda, p, out = here.cuda, _ints(0), _ints(0)
    made = cuda.graph()
    number, (body,) = _conditional(cuda, made, p, "WHILE", 1)
    added = cuda.kernel(body, [], "add", out, 1)
    cuda.kernel(body, [added], "count_down", number, p)
    executable = cuda.executable(made)
    found = [_at(cuda, executable, p, value, out) for value in (5, 0, 100)]
    here.equal("loops of 5, 0, 100 rounds give", found, [5, 0, 100])


@probe
def conditional_switch(here: Here) -> None:
    """A number picks one of many parts, or none."""
    cuda, p, out = here.cuda, _ints(0), _ints(0)
    made = cuda.graph()
    _, bodies = _conditional(cuda, made, p, "SWITCH", 3)
    for n, body in enumerate(bodies):
        cuda.kernel(body, [], "add", out, 10 + n)
    executable = cuda.executable(made)
    found = [_at(cuda, executable, p, value, out) for value in (0, 2, 1, 3)]
    here.equal("cases 0, 2, 1, 3 give", found, [10, 12, 11, 0])
