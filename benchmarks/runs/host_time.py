"""What a graphed call costs, against the alternatives, in one run on one GPU.

``PYTHONPATH=src python3 -m benchmarks.runs.host_time [--out FILE]``. Times are medians in
microseconds: host time is the time until a call returns (the device is idle when it starts), end to
end includes the wait for the device, and back to back is a call among 50 of which none is waited
for. Ways are measured in turn, round after round, so that drift hits all alike.
"""

from __future__ import annotations

import copy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import gfxgraph
from benchmarks.lib import by_hand
from benchmarks.lib.models import Block, Sum32
from benchmarks.lib.report import about, arguments, write
from benchmarks.lib.timing import back_to_back, in_turn

Ways = dict[str, Callable[[], Any]]


@dataclass
class Four:
    """Four tensors, as an observation has them."""

    image: torch.Tensor
    state: torch.Tensor
    goal: torch.Tensor
    mask: torch.Tensor


def of_four(given: Four) -> torch.Tensor:
    """Reads them; little work."""
    return torch.stack([given.image, given.state, given.goal, given.mask]).sum(0)


def ways_of(
    fn: Callable[..., Any],
    inputs: list[torch.Tensor],
    others: bool = True,
    compiled: bool = False,
    given: Callable[..., Any] | None = None,
) -> Ways:
    """The ways to call ``fn`` on ``inputs``.

    Args:
        fn: the function.
        inputs: its arguments.
        others: also those of torch that a user might take.
        compiled: graphs hold compiled code.
        given: makes the one argument of ``fn`` of the inputs; it is made before each call.
    """
    called = fn if given is None else lambda *tensors: fn(given(*tensors))
    compile_fn = torch.compile(called) if compiled else called
    graph, static, out = by_hand.captured(compile_fn, inputs)
    how: Any = {"fallback": "raise", "compile": compiled}
    args = inputs if given is None else [given(*inputs)]
    view = gfxgraph.graphed(fn, outputs="view", **how)
    own = gfxgraph.graphed(fn, **how)
    view(*args), own(*args)

    def hand_view() -> Any:
        torch._foreach_copy_(static, inputs)
        graph.replay()
        return out

    def hand_own() -> Any:
        torch._foreach_copy_(static, inputs)
        graph.replay()
        return out.clone()

    ways: Ways = {
        "eager": lambda: fn(*args),
        "by hand, view": hand_view,
        "graphed, view": lambda: view(*args),
        "by hand, own": hand_own,
        "graphed, own": lambda: own(*args),
    }
    if others:
        assert isinstance(fn, torch.nn.Module)
        samples = tuple(x.clone() for x in inputs)
        theirs = torch.cuda.make_graphed_callables(copy.deepcopy(fn), samples)
        ways["make_graphed_callables"] = lambda: theirs(*inputs)
        reduced = torch.compile(fn, mode="reduce-overhead")

        def compiled_call() -> Any:
            torch.compiler.cudagraph_mark_step_begin()
            return reduced(*inputs)

        ways["torch.compile reduce-overhead"] = compiled_call
    return ways


def transformer() -> torch.nn.Module:
    """12 blocks in half precision."""
    return torch.nn.Sequential(*[Block() for _ in range(12)]).half()


def import_seconds(rounds: int = 4) -> dict[str, float]:
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
    in_a_row: dict[str, dict[str, float]] = {}

    def measure(name: str, ways: Ways, rounds: int) -> None:
        cases[name] = in_turn(ways, range(rounds), 20, warm_up=50)
        kept = {way: call for way, call in ways.items() if way.startswith(("by hand", "graphed"))}
        in_a_row[name] = back_to_back(kept, range(rounds))

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda")

    with torch.no_grad():
        linear = torch.nn.Linear(64, 64).cuda().eval()
        measure("Linear 64, 1 input", ways_of(linear, [random(4, 64)]), 100)
        many = [random(4, 64) for _ in range(32)]
        measure("stack and sum, 32 inputs", ways_of(Sum32().cuda(), many), 100)
        four = ways_of(of_four, many[:4], others=False, given=Four)
        measure("stack and sum, a dataclass of 4", four, 100)
        net, tokens = transformer().cuda().eval(), random(1, 64, 768).half()
        measure("12-layer transformer, batch 1", ways_of(net, [tokens]), 40)
        compiled = ways_of(net, [tokens], others=False, compiled=True)
        measure("12-layer transformer, compiled", compiled, 40)
        deep = torch.nn.Sequential(*[Block(64) for _ in range(117)]).half().cuda().eval()
        ways = ways_of(deep, [random(1, 16, 64).half()], others=False)
        del ways["eager"]  # it takes most of the time, and says nothing here
        measure("117 blocks of 64, 1,404 weights", ways, 10)
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
                "back_to_back_us": in_a_row[name],
                "back_to_back_ratios": {
                    f"graphed {how} / by hand {how}": round(
                        in_a_row[name][f"graphed, {how}"] / in_a_row[name][f"by hand, {how}"], 3
                    )
                    for how in ("view", "own")
                },
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
        print("  back to back:", result["cases"][name]["back_to_back_ratios"])
    print("import:", result["import"])


if __name__ == "__main__":
    main()
