"""Short pieces of common CUDA-graph code, each with its end: the same table for both devices.

``PYTHONPATH=src python -m tests.simulate.pieces --out FILE`` writes the ends as JSON: on a GPU if
there is one, else on the emulated one. An end is ``"equal"`` (the graph gave what eager execution
gives), ``"differs"``, or the error. The expected ends are those of CUDA, by torch's notes on CUDA
graphs, by CUDA's documentation of stream capture, or by measurements on a GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

import gfxgraph
from tests.helpers.devices import HAS_GPU

__all__ = ["PIECES", "captured", "end_of", "graph_of", "piece"]

REFUSED = "AcceleratorError"
PIECES: dict[str, tuple[Callable[[], Any], str]] = {}


def piece(expected: str = "equal") -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Enter a function that returns (what it got, what it should get)."""

    def enter(function: Callable[[], Any]) -> Callable[[], Any]:
        assert function.__name__ not in PIECES
        PIECES[function.__name__] = function, expected
        return function

    return enter


def captured(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Any, Any]:
    """Results of a replay with other inputs than those of the capture, and of eager execution."""
    static = [torch.zeros_like(t) for t in inputs]
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                function(*static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = function(*static)
        for held, given in zip(static, inputs, strict=True):
            held.copy_(given)
        graph.replay()
        torch.cuda.synchronize()
        return pytree.tree_map(torch.clone, out), function(*inputs)


def graph_of(body: Any, **options: Any) -> torch.cuda.CUDAGraph:
    """A graph of what ``body`` does."""
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, **options):
        body()
    return graph


def end_of(name: str) -> str:
    """Run a piece; the class of its error alone decides, so both devices may word it."""
    function, expected = PIECES[name]
    torch.manual_seed(0)
    try:
        got, want = function()
    except Exception as error:
        if expected in [cls.__name__ for cls in type(error).__mro__]:
            return expected
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    same = pytree.tree_map(_same, got, want)
    return "equal" if all(pytree.tree_leaves(same)) else "differs"


def _same(got: Any, want: Any) -> bool:
    if not isinstance(got, torch.Tensor):
        return bool(got == want)
    if got.device != want.device or got.dtype != want.dtype or got.shape != want.shape:
        return False
    return torch.allclose(
        got.float().cpu(), want.float().cpu(), rtol=1e-3, atol=1e-4, equal_nan=True
    )


def main() -> None:
    """Write the ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    gfxgraph.enable(emulate=not HAS_GPU)
    ends = {name: {"expected": PIECES[name][1], "end": end_of(name)} for name in PIECES}
    device = torch.cuda.get_device_name()
    report = {"device": device, "torch": torch.__version__, "pieces": ends}
    out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    wrong = [name for name, one in ends.items() if one["end"] != one["expected"]]
    print(f"{device}: {len(ends) - len(wrong)} of {len(ends)} as expected; not so: {wrong}")


# The pieces enter themselves when their files are imported; they need this one by its own name.
if __name__ == "__main__":
    from tests.simulate import pieces

    pieces.main()
else:
    from tests.simulate import (  # noqa: F401
        pieces_capture,
        pieces_device,
        pieces_layers,
        pieces_objects,
        pieces_streams,
    )
