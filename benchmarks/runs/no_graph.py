"""Host time and end to end of a network whose attention runs eagerly between graphs.

``PYTHONPATH=src python3 -m benchmarks.runs.no_graph [--out FILE] [--rounds N]``. Each of 12 layers
calls a ``no_graph`` function, so a call is 13 graphs and 12 eager runs. One attention returns its
result, the other writes it to a tensor that it is given, as the engines do. For a comparison run
another tree in the same way (``PYTHONPATH=other/src:.``) in turn. The requirement: not above eager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, scaled_dot_product_attention

import gfxgraph
from benchmarks.lib.models import Block
from benchmarks.lib.report import about, arguments, failure, write
from benchmarks.lib.timing import in_turn

LAYERS, TOKENS = 12, 16


@gfxgraph.no_graph
def returned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention that makes its result."""
    return scaled_dot_product_attention(q, k, v)


@gfxgraph.no_graph
def written(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
    """Attention that writes its result to a tensor of the caller."""
    out.copy_(scaled_dot_product_attention(q, k, v))


class Layer(Block):
    """A block with one of the two."""

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.writes = writes

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, 12, 64).permute(2, 0, 3, 1, 4)
        if self.writes:
            a = torch.empty_like(q)
            written(q, k, v, a)
        else:
            a = returned(q, k, v)
        x = x + self.out(a.transpose(1, 2).reshape(b, n, 768))
        return x + self.down(gelu(self.up(self.norm2(x))))


def measured(rows: int, writes: bool, rounds: int, batch: int) -> dict[str, Any]:
    """Eager and graphed, in turn."""
    device = gfxgraph.device_type()
    dtype = torch.half if device == "cuda" else torch.float32
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[Layer(writes) for _ in range(LAYERS)]).to(device, dtype).eval()
    graph = gfxgraph.graphed(net, fallback="raise")
    x = torch.randn(rows, TOKENS, 768, device=device, dtype=dtype)
    ways: dict[str, Callable[[], Any]] = {"eager": lambda: net(x), "graphed": lambda: graph(x)}
    same = all(torch.equal(net(x), graph(x)) for _ in range(3))
    times = in_turn(ways, range(rounds), batch, warm_up=5)
    return {
        **times,
        "graphed / eager": {
            what: round(times["graphed"][what] / times["eager"][what], 3)
            for what in ("host_us", "end_to_end_us")
        },
        "bit-identical": same,
    }


def main() -> None:
    """Measure every case, print a table, write JSON."""
    parser = arguments(__doc__, "no_graph.json")
    parser.add_argument("--rounds", type=int, default=20, help="of 10 calls each; default 20")
    options = parser.parse_args()
    result: dict[str, Any] = {**about("no_graph", options.commit), "cases": {}}
    with torch.no_grad():
        for rows in (1, 16):
            for writes in (False, True):
                name = f"{rows} rows, attention {'writes' if writes else 'returns'}"
                try:
                    found = measured(rows, writes, options.rounds, 10)
                except gfxgraph.errors.GfxGraphError as error:
                    found = failure(error)
                result["cases"][name] = found
                write(options.out, result)
                print(name, found, flush=True)


if __name__ == "__main__":
    main()
