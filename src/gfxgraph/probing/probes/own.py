"""What gfxgraph itself gives, on the GPU or with emulated graphs."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gfxgraph.probing.probes.here import Here, probe


def _replayed(here: Here, fast: Any, at_least: int = 1) -> None:
    """Prove that graphs answered."""
    count = fast.stats().replays
    here.equal(f"{at_least} or more replays:", count >= at_least, True)


@probe
def unmodified(here: Here) -> None:
    """A module as it is becomes a graph, and is compared with eager."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU()).to(here.device).eval()
    fast = here.gfxgraph.graphed(model)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(2, 8, device=here.device)
            y, expected = fast(x), model(x)
    same = bool(torch.allclose(y, expected, atol=1e-4))
    here.equal("the fourth call is as eager:", same, True)
    _replayed(here, fast, 2)


@probe
def never_stale(here: Here) -> None:
    """No call is answered with values that have become old."""

    def function(x: torch.Tensor) -> torch.Tensor:
        # What a graph takes as a constant and eager does not: memory that NumPy shares.
        return x + float(memory[0])

    memory = torch.zeros(1).numpy()
    fast = here.gfxgraph.graphed(function)
    found = []
    with torch.no_grad():
        for value in (0.0, 0.0, 0.0, 5.0):
            memory[0] = value
            found.append(fast(torch.ones(2, device=here.device))[0].item())
    here.equal("calls, of which the last meets another number, give", found, [1.0, 1.0, 1.0, 6.0])


@probe
def buckets(here: Here) -> None:
    """Any batch size is answered from a few graphs."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8).to(here.device).eval()
    pool = here.gfxgraph.ShapeBucketPool(model_fn=model, buckets=[2, 4, 8])
    with torch.no_grad():
        same = []
        for rows in (1, 3, 4, 7, 5, 8, 2, 6):
            x = torch.randn(rows, 8, device=here.device)
            same.append(bool(torch.allclose(pool(x), model(x), atol=1e-4)))
    here.equal("eight sizes are as eager:", all(same), True)
    stats = pool.stats()
    here.equal("graphs:", len(stats.graphs), 3)


@probe
def splits(here: Here) -> None:
    """A function that reads the device on the host becomes several graphs."""

    def branching(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y + 1 if y.sum() > 0 else y - 1

    fast = here.gfxgraph.graphed(branching)
    with torch.no_grad():
        inputs = [torch.full((2,), value, device=here.device) for value in (1.0, -1.0, 2.0)]
        for x in inputs * 2:  # both ways are learnt
            fast(x)
        found = [fast(x)[0].item() for x in inputs]
        expected = [branching(x)[0].item() for x in inputs]
    here.equal("both ways give", found, expected)
    _replayed(here, fast, 3)


@probe
def folding(here: Here) -> None:
    """Constants that a function makes on the host are part of the graph."""

    def steps(x: torch.Tensor) -> torch.Tensor:
        t, dt = torch.tensor(1.0, device=x.device), torch.tensor(-0.25, device=x.device)
        while t >= -dt / 2:
            x = x + dt * x
            t += dt
        return x

    fast = here.gfxgraph.graphed(steps)
    with torch.no_grad():
        for value in (1.0, 1.0, 2.0, 4.0):
            x = torch.full((2,), value, device=here.device)
            y = fast(x)
    here.equal("a loop over a tensor of time gives", y, [4 * 0.75**4] * 2)
    _replayed(here, fast)


@probe
def python_state(here: Here) -> None:
    """What a call stores in Python is stored again after each replay."""

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h, self.count = torch.zeros(2, device=here.device), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.h = self.h * 0.5 + x
            self.count += 1
            return self.h * 2

    cell = Cell()
    fast = here.gfxgraph.graphed(cell)
    with torch.no_grad():
        for _ in range(5):
            fast(torch.ones(2, device=here.device))
    here.equal("hidden state after five calls:", cell.h, [1.9375] * 2)
    here.equal("calls that the module counts:", cell.count, 5)
    _replayed(here, fast)


@probe
def host_functions(here: Here) -> None:
    """A function of the host runs between two graphs at each call."""
    seen: list[float] = []

    def note(y: torch.Tensor) -> None:
        seen.append(y[0].item())

    noted = here.gfxgraph.no_graph(note)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        noted(y)
        return y + 1

    fast = here.gfxgraph.graphed(function)
    with torch.no_grad():
        for value in (1.0, 2.0, 3.0, 4.0):
            y = fast(torch.full((2,), value, device=here.device))
    here.equal("the host saw", seen, [2.0, 4.0, 6.0, 8.0])
    here.equal("the last call gives", y, [9.0, 9.0])
    _replayed(here, fast)


@probe
def named_branches(here: Here) -> None:
    """The host picks one of several functions, each a graph, in one memory pool."""
    graph = here.gfxgraph.ConditionalGraph()
    graph.add_branch("double", lambda x: x * 2).add_branch("negate", lambda x: -x)
    x = torch.ones(2, device=here.device)
    with torch.no_grad():
        graph.capture(x)
        x.fill_(3)
        found = [graph.run(name, x)[0].item() for name in ("double", "negate", "double")]
    here.equal("double, negate, double give", found, [6.0, -3.0, 6.0])


@probe
def rebound_weights(here: Here) -> None:
    """A weight that was replaced is noticed, and captured again."""
    model = nn.Linear(2, 2, bias=False).to(here.device).eval()
    fast, x = here.gfxgraph.graphed(model), torch.ones(1, 2, device=here.device)
    found = []
    with torch.no_grad():
        for value in (1.0, 3.0):
            model.weight = nn.Parameter(torch.full((2, 2), value, device=here.device))
            gc.collect()
            for _ in range(3):
                y = fast(x)
            found.append(y[0, 0].item())
    here.equal("before and after give", found, [2.0, 6.0])
    _replayed(here, fast)


@probe
def recovery(here: Here) -> None:
    """A capture that fails leaves the process as it was, and the call runs eagerly."""
    unsafe = [True]

    def function(x: torch.Tensor) -> torch.Tensor:
        if unsafe[0] and here.device == "cuda":
            torch.cuda.synchronize()
        elif unsafe[0]:
            print(end="", flush=True)
        return x * 2

    fast = here.gfxgraph.graphed(function)
    with torch.no_grad():
        found = [fast(torch.full((2,), v, device=here.device))[0].item() for v in (1.0, 2.0)]
        here.equal("calls give", found, [2.0, 4.0])
        good = here.gfxgraph.graphed(lambda x: x + 1)
        for value in (1.0, 2.0, 5.0):
            y = good(torch.full((2,), value, device=here.device))
    here.equal("another function's graph gives", y, [6.0, 6.0])
    _replayed(here, good)


@probe
def recipes(here: Here) -> None:
    """What a process captured is written down, for the next start."""
    fast = here.gfxgraph.graphed(_named)
    with torch.no_grad():
        for _ in range(3):
            fast(torch.ones(2, device=here.device))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipes.json"
        saved = here.gfxgraph.save_recipes(path)
        fast.reset()
        loaded = here.gfxgraph.load_recipes(path, progress=False)
    here.equal("written and captured from the file:",
               [len(saved.saved), len(loaded.captured)], [1, 1])  # fmt: skip
    with torch.no_grad():
        for value in (3.0, 4.0):
            y = fast(torch.full((2,), value, device=here.device))
    here.equal("a call afterwards gives", y, [12.0, 12.0])
    _replayed(here, fast)


def _named(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@probe
def inspection(here: Here) -> None:
    """Each node of a graph has the user's line that made it."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).relu()

    fast = here.gfxgraph.graphed(function)
    here.gfxgraph.enable(debug=True)
    try:
        with torch.no_grad():
            for _ in range(3):
                fast(torch.ones(4, device=here.device))
    finally:
        here.gfxgraph.disable()
    text = here.gfxgraph.inspect(fast).to_json()
    here.equal("the line of the function is named:", "(x + 1).relu()" in text, True)


@probe
def checking(here: Here) -> None:
    """Without a GPU a program says why a function cannot be one graph, and where."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x

    report = here.gfxgraph.check(function, torch.ones(4))
    here.equal("hazards that name a line:", [bool(one.line) for one in report.hazards], [True])


@probe
def interposed(here: Here) -> None:
    """Code that captures by hand goes on, with safe clean-up and counts."""
    with here.a_gpu():
        began = here.device == "cuda"
        if began:
            here.gfxgraph.enable()
        try:
            before = here.gfxgraph.stats()["replay_count"]
            x, made = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
            with torch.cuda.graph(made):
                y = x + 1
            x.fill_(2)
            made.replay()
            here.equal("a replay gives", y, [3.0] * 4)
            here.equal("replays counted:", here.gfxgraph.stats()["replay_count"] - before, 1)
        finally:
            if began:
                here.gfxgraph.disable()


@probe
def memory_cap(here: Here) -> None:
    """A graph that would exceed a limit of memory is not captured; the call runs eagerly."""
    fast = here.gfxgraph.graphed(lambda x: x * 2)
    before = os.environ.get("GFXGRAPH_VRAM_CAP")
    os.environ["GFXGRAPH_VRAM_CAP"] = "0.0"
    try:
        with torch.no_grad():
            for value in (1.0, 2.0, 3.0):
                y = fast(torch.full((2,), value, device=here.device))
    finally:
        if before is None:
            del os.environ["GFXGRAPH_VRAM_CAP"]
        else:
            os.environ["GFXGRAPH_VRAM_CAP"] = before
    here.equal("the call gives", y, [6.0, 6.0])
    here.equal("graphs:", fast.stats().captures, 0)
