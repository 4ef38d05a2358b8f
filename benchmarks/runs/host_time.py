"""What a graphed call costs, against the alternatives, in one run on one GPU.

``PYTHONPATH=src python3 -m benchmarks.runs.host_time [--out FILE]``. Times are medians in
microseconds: host time is the time until a call returns (the device is idle when it starts), end to
end includes the wait for the device. Ways are measured in turn, round after round, so that drift
hits all alike.
"""

from __future__ import annotations

import copy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import gfxgraph
from benchmarks.lib import by_hand
from benchmarks.lib.models import Block, Sum32
from benchmarks.lib.report import about, arguments, write
from benchmarks.lib.timing import in_turn

Ways = dict[str, Callable[[], Any]]


def ways_of(fn: Callable[..., Any], inputs: list[torch.Tensor], compiled: bool = True) -> Ways:
    """Every way to call ``fn`` on ``inputs``."""
    graph, static, out = by_hand.captured(fn, inputs)
    view = gfxgraph.graphed(fn, outputs="view", fallback="raise")
    own = gfxgraph.graphed(fn, fallback="raise")
    view(*inputs), own(*inputs)

    def hand_view() -> Any:
        torch._foreach_copy_(static, inputs)
        graph.replay()
        return out

    def hand_own() -> Any:
        torch._foreach_copy_(static, inputs)
        graph.replay()
        return out.clone()

    ways: Ways = {
        "eager": lambda: fn(*inputs),
        "by hand, view": hand_view,
        "graphed, view": lambda: view(*inputs),
        "by hand, own": hand_own,
        "graphed, own": lambda: own(*inputs),
    }
    if isinstance(fn, torch.nn.Module):
        samples = tuple(x.clone() for x in inputs)
        theirs = torch.cuda.make_graphed_callables(copy.deepcopy(fn), samples)
        ways["make_graphed_callables"] = lambda: theirs(*inputs)
    if compiled:
        reduced = torch.compile(fn, mode="reduce-overhead")

        def compiled_call() -> Any:
            torch.compiler.cudagraph_mark_step_begin()
            return reduced(*inputs)

        ways["torch.compile reduce-overhead"] = compiled_call
    return ways


def transformer() -> torch.nn.Module:
    """12 blocks in half precision."""
    return torch.nn.Sequential(*[Block() for _ in range(12)]).half()


def import_seconds(rounds: int = 7) -> dict[str, float]:
    """Median time of ``import torch`` and of ``import torch, gfxgraph`` in fresh processes."""

    def once(modules: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)
        return time.perf_counter() - start

    once("torch, gfxgraph")
    pairs = [(once("torch"), once("torch, gfxgraph")) for _ in range(rounds)]
    torch_s = statistics.median(a for a, _ in pairs)
    both_s = statistics.median(b for _, b in pairs)
    return {"torch_s": round(torch_s, 3), "added_s": round(both_s - torch_s, 3)}


def ratios(case: dict[str, dict[str, float]], key: str) -> dict[str, float]:
    """What the issue asks for, from one case."""
    pairs = {
        "graphed view / by hand view": ("graphed, view", "by hand, view"),
        "graphed own / by hand own": ("graphed, own", "by hand, own"),
        "graphed view / reduce-overhead": ("graphed, view", "torch.compile reduce-overhead"),
        "graphed own / reduce-overhead": ("graphed, own", "torch.compile reduce-overhead"),
        "graphed view / make_graphed_callables": ("graphed, view", "make_graphed_callables"),
        "graphed own / eager": ("graphed, own", "eager"),
    }
    return {
        name: round(case[a][key] / case[b][key], 3)
        for name, (a, b) in pairs.items()
        if a in case and b in case
    }


def main() -> None:
    """Run every case, print a table, write JSON."""
    options = arguments(__doc__, "host_time.json").parse_args()
    torch.manual_seed(0)
    cases: dict[str, Any] = {}
    with torch.no_grad():
        linear = torch.nn.Linear(64, 64).cuda().eval()
        x = torch.randn(4, 64, device="cuda")
        cases["Linear 64, 1 input"] = in_turn(ways_of(linear, [x]), range(100), 20, warm_up=50)
        many = [torch.randn(4, 64, device="cuda") for _ in range(32)]
        cases["stack and sum, 32 inputs"] = in_turn(
            ways_of(Sum32().cuda(), many), range(100), 20, warm_up=50
        )
        net = transformer().cuda().eval()
        tokens = torch.randn(1, 64, 768, device="cuda", dtype=torch.half)
        cases["12-layer transformer, batch 1"] = in_turn(
            ways_of(net, [tokens]), range(40), 20, warm_up=50
        )
    facts = gfxgraph.device_facts()
    result = {
        **about("host_time", options.commit),
        "driver": facts.driver,
        "runtime": facts.runtime,
        "python": sys.version.split()[0],
        "import": import_seconds(),
        "cases": {
            name: {
                "times": case,
                "host_ratios": ratios(case, "host_us"),
                "end_to_end_ratios": ratios(case, "end_to_end_us"),
            }
            for name, case in cases.items()
        },
    }
    write(options.out, result)
    for name, case in cases.items():
        print(name)
        for way, times in case.items():
            print(f"  {way:32} host {times['host_us']:9.2f}  end {times['end_to_end_us']:9.2f} us")
        print("  host:", ratios(case, "host_us"))
        print("  end to end:", ratios(case, "end_to_end_us"))
    print("import:", result["import"])


if __name__ == "__main__":
    main()
