"""How gfxgraph gives the same where the machine does not have it."""

from __future__ import annotations

from typing import Any

import torch

from gfxgraph.device import current_device
from gfxgraph.probing.probes.here import Here, probe


@probe
def emulated_graph(here: Here) -> None:
    """gfxgraph's graph class captures, replays and resets on any device."""
    x, made = torch.zeros(4, device=here.device), here.gfxgraph.BridgedCUDAGraph()
    kind = current_device()
    with kind.on_stream(kind.new_stream(0), 0):
        made.capture_begin()
        copied = x.clone()
        filled = torch.full_like(x, 7)
        filled[:2].zero_()
        y = copied * 2 + filled
        made.capture_end()
    x.fill_(3)
    made.replay()
    here.equal("copy, fill and kernels replay:", y, [6.0, 6.0, 13.0, 13.0])
    made.reset()


@probe
def recapture(here: Here) -> None:
    """New inputs are copied in, and a number that changed is captured again."""
    scale = [2.0]
    fast = here.gfxgraph.graphed(lambda x: x * scale[0])
    found = []
    with torch.no_grad():
        for value in (2.0, 5.0):
            scale[0] = value
            for n in range(3):
                y = fast(torch.full((2,), float(n), device=here.device))
            found.append(y[0].item())
    here.equal("before and after the number changes:", found, [4.0, 10.0])
    here.equal("calls were replays:", fast.stats().replays > 0, True)


@probe
def graph_in_graph(here: Here) -> None:
    """A graphed function inside of another is part of its graph."""
    inner = here.gfxgraph.graphed(lambda x: x + 1)
    outer = here.gfxgraph.graphed(lambda x: inner(inner(x) * 10))
    with torch.no_grad():
        for value in (0.0, 1.0, 2.0):
            y = outer(torch.full((2,), value, device=here.device))
    here.equal("child, times 10, child gives", y, [31.0, 31.0])
    here.equal("calls were replays:", outer.stats().replays > 0, True)


@probe
def host_if(here: Here) -> None:
    """``gfxgraph.cond``, in an emulated graph or decided by the host."""
    cond = here.gfxgraph.cond
    fast = here.gfxgraph.graphed(lambda x: cond(x.sum() > 0, lambda: x + 5, lambda: x * 1))
    found = []
    with torch.no_grad():
        for value in (1.0, -1.0) * 3:
            found.append(fast(torch.full((2,), value, device=here.device))[0].item())
    here.equal("conditions 1, 0 give", found[-2:], [6.0, -1.0])
    here.equal("calls were replays:", fast.stats().replays > 0, True)


@probe
def host_while(here: Here) -> None:
    """``gfxgraph.while_loop``, in an emulated graph or decided by the host."""
    while_loop = here.gfxgraph.while_loop

    def loop(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        last: tuple[torch.Tensor, ...] = while_loop(
            lambda x, n: n > 0, lambda x, n: (x + 1, n - 1), x, n
        )
        return last[0]

    fast = here.gfxgraph.graphed(loop)
    found = []
    with torch.no_grad():
        for rounds in (3, 1, 3, 1, 3, 1):
            x = torch.zeros(2, device=here.device)
            found.append(fast(x, torch.tensor(rounds, device=here.device))[0].item())
    here.equal("loops of 3 and 1 rounds give", found[-2:], [3.0, 1.0])
    here.equal("calls were replays:", fast.stats().replays > 0, True)


@probe
def host_switch(here: Here) -> None:
    """``gfxgraph.switch``, in an emulated graph or decided by the host."""
    switch = here.gfxgraph.switch
    branches = [lambda x: x + 10, lambda x: x + 11, lambda x: x + 12]
    fast = here.gfxgraph.graphed(lambda x, n: switch(n, branches, x))
    found = []
    with torch.no_grad():
        for case in (0, 2, 1) * 3:
            x = torch.zeros(2, device=here.device)
            found.append(fast(x, torch.tensor(case, device=here.device))[0].item())
    here.equal("cases 0, 2, 1 give", found[-3:], [10.0, 12.0, 11.0])
    here.equal("calls were replays:", fast.stats().replays > 0, True)


@probe
def kept_alive(here: Here) -> None:
    """What a graph reads from outside lives as long as the graph."""
    weight = torch.full((2,), 3.0, device=here.device)

    def made_with(weight: torch.Tensor) -> object:
        return here.gfxgraph.graphed(lambda x: x * weight)

    fast = made_with(weight)
    del weight
    with torch.no_grad():
        for value in (1.0, 2.0, 4.0):
            y = fast(torch.full((2,), value, device=here.device))  # type: ignore[operator]
            torch.full((2,), -1.0, device=here.device)  # would reuse its memory
    here.equal("a replay after its owner let go gives", y, [12.0, 12.0])


@probe
def drawn(here: Here) -> None:
    """``gfxgraph.inspect`` draws the nodes, and what each waits for."""
    fast = here.gfxgraph.graphed(lambda x: (x + 1) * 2)
    _captured(here, fast)
    text = here.gfxgraph.inspect(fast).to_dot()
    here.equal("edges in the drawing:", text.count("->"), 1)


def _captured(here: Here, fast: Any) -> None:
    """Let ``fast`` capture a graph that keeps its nodes."""
    here.gfxgraph.enable(debug=True)
    try:
        with torch.no_grad():
            for _ in range(3):
                fast(torch.ones(4, device=here.device))
    finally:
        here.gfxgraph.disable()


@probe
def pool_of_a_graph(here: Here) -> None:
    """What is made in a capture lies in memory that the graph keeps."""
    fast = here.gfxgraph.graphed(lambda x: (torch.ones_like(x) * 3 + x).cumsum(0))
    with torch.no_grad():
        for value in (0.0, 1.0, 2.0):
            y = fast(torch.full((3,), value, device=here.device))
    here.equal("a replay with memory of its own gives", y, [5.0, 10.0, 15.0])
    here.equal("calls were replays:", fast.stats().replays > 0, True)


@probe
def collectives_between(here: Here) -> None:
    """A collective runs between two graphs."""
    dist: Any = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:

        def gathered(y: torch.Tensor) -> torch.Tensor:
            out = torch.zeros_like(y)
            dist.all_gather_into_tensor(out, y)
            return out

        between = here.gfxgraph.no_graph(gathered)
        fast = here.gfxgraph.graphed(lambda x: between(x * 2) + 1)
        with torch.no_grad():
            for value in (1.0, 2.0, 3.0, 4.0):
                y = fast(torch.full((2,), value, device=here.device))
        here.equal("graph, all_gather of one rank, graph gives", y, [9.0, 9.0])
        here.equal("calls were replays:", fast.stats().replays > 0, True)
    finally:
        dist.destroy_process_group()


@probe
def compiled_code(here: Here) -> None:
    """``gfxgraph.graphed(compile=True)`` captures compiled code."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).to(here.device).eval()
    fast = here.gfxgraph.graphed(model, compile=True)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(2, 8, device=here.device)
            y, expected = fast(x), model(x)
    same = bool(torch.allclose(y, expected, atol=1e-3))
    here.equal("the fourth call is as eager:", same, True)
    here.equal("calls were replays:", fast.stats().replays > 0, True)
