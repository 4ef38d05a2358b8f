"""What torch.compile and a graph gain, alone and together, on four models.

``PYTHONPATH=src python3 -m benchmarks.runs.compiled [--out FILE] [--commit C] [--only MODEL]
[--skip WAY] [--limit SECONDS]``. Each model has a process of its own, which is ended when its share
of the time is over: what it has told by then is kept, and ``max-autotune`` comes last. Times are
medians in microseconds: host time is the time until a call returns (the device is idle when it
starts), end to end includes the wait for the device. Without a GPU the models are smaller, the
graphs are emulated, and times mean nothing.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import gfxgraph
from benchmarks.lib.models import Block
from benchmarks.lib.report import ROOT, about, arguments, failure, shortened, write
from benchmarks.lib.timing import for_seconds, in_turn, timed
from gfxgraph.call.signature import flatten

DEVICE = gfxgraph.device_type()
ON_GPU = DEVICE == "cuda"

Call = Callable[..., Any]
Made = tuple[Call, Callable[[], tuple[torch.Tensor, ...]]]
"""A function, and what makes fresh arguments for it."""

MODELS = ("mlp", "transformer", "minilm", "flow_matching")
WAYS = (
    "eager",
    "torch.compile default",
    "torch.compile reduce-overhead",
    "graph",
    "compile + graph",
    "gfxgraph.compile",
    "torch.compile max-autotune",
)
SECONDS_OF_TIMING = 6.0 if ON_GPU else 0.5


def mlp() -> Made:
    """8 layers of 1024 and GELU, 64 rows, float32."""
    width, layers = (1024, 8) if ON_GPU else (64, 2)
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*parts).to(DEVICE).eval(), lambda: (torch.randn(64, width, device=DEVICE),)


def transformer() -> Made:
    """12 pre-norm blocks of width 768, 64 tokens, half precision."""
    blocks, dtype = (12, torch.half) if ON_GPU else (1, torch.float32)
    model = nn.Sequential(*[Block() for _ in range(blocks)]).to(DEVICE, dtype).eval()
    return model, lambda: (torch.randn(1, 64, 768, device=DEVICE, dtype=dtype),)


def minilm() -> Made:
    """The sentence encoder all-MiniLM-L6-v2, 8 texts of 64 tokens, float32."""
    rows, tokens = (8, 64) if ON_GPU else (1, 8)
    from gfxgraph.demo.encoder import SentenceEncoder

    model = SentenceEncoder().to(DEVICE)

    def inputs() -> tuple[torch.Tensor, ...]:
        ids = torch.randint(1000, 20000, (rows, tokens), device=DEVICE)
        return ids, torch.arange(tokens, device=DEVICE).expand(rows, tokens) < tokens - 2

    return model, inputs


def flow_matching() -> Made:
    """The policy of examples/flow_matching.py, whose loop asks the device whether to go on."""
    sys.path.insert(0, str(ROOT / "examples"))
    from flow_matching import FlowConfig, make_policy, observation

    small = FlowConfig(cameras=1, image_size=32, vision_layers=1, layers=1, num_steps=3)
    policy = make_policy(DEVICE, FlowConfig() if ON_GPU else small)
    seeds = iter(range(10**9))
    return policy.sample_actions, lambda: observation(policy, next(seeds))


def way(name: str, fn: Call) -> Call:
    """``fn`` called that way."""
    if name == "eager":
        return fn
    if name == "graph":
        return gfxgraph.graphed(fn)
    if name == "compile + graph":
        return gfxgraph.graphed(fn, compile=True)
    if name == "gfxgraph.compile":
        return gfxgraph.compile(fn)
    compiled = torch.compile(fn, mode=name.rpartition(" ")[2], dynamic=False)

    def step(*args: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*args)

    return step if ON_GPU else compiled


def made_ready(call: Call, fn: Call, inputs: Callable[[], tuple[torch.Tensor, ...]]) -> Any:
    """How long the first three calls take, and how far they are from eager."""
    given = [inputs() for _ in range(3)]
    expected = [flatten(fn(*args))[0] for args in given]
    got, largest = [], 0.0
    seconds = 0.0
    for args in given:
        tensors, more = timed(lambda args=args: [t.clone() for t in flatten(call(*args))[0]])
        got.append(tensors)
        seconds += more
    for tensors, others in zip(got, expected, strict=True):
        for tensor, other in zip(tensors, others, strict=True):
            largest = max(largest, float((tensor - other).abs().max()))
    magnitude = max(float(t.abs().max()) for tensors in expected for t in tensors)
    found = {
        "first 3 calls s": round(seconds, 3),
        "largest difference": largest,
        "largest magnitude": round(magnitude, 3),
    }
    if isinstance(call, gfxgraph.Graphed):
        stats = call.stats()
        found["compile s"] = round(stats.compile_s, 3)
        found["compiled"] = [row.compiled for row in stats.graphs]
        found["not compiled"] = [shortened(r) for r in stats.not_compiled.values()]
        found["why eager"] = [shortened(r) for r in stats.fallbacks]
        found["report"] = [line for row in stats.graphs for line in row.report if "us a" in line]
    return found


@torch.no_grad()
def child(model: str, skip: list[str]) -> None:
    """Print a line of JSON for each thing that is known of a model: way -> facts."""
    torch.manual_seed(0)
    if not ON_GPU:
        torch.set_num_threads(1)
    fn, inputs = {"mlp": mlp, "transformer": transformer, "minilm": minilm}.get(
        model, flow_matching
    )()

    def ready(names: list[str]) -> dict[str, Call]:
        calls = {}
        for name in names:
            torch.compiler.reset()
            try:
                call = way(name, fn)
                tell({name: made_ready(call, fn, inputs)})
                calls[name] = call
            except Exception as error:  # the table says what became of each
                tell({name: failure(error)})
        return calls

    names = [name for name in WAYS if not any(part in name for part in skip)]
    calls, args = ready(names[:-1] if names[-1] == WAYS[-1] else names), inputs()

    def tell_times(calls: dict[str, Call]) -> None:
        ways = {name: functools.partial(call, *args) for name, call in calls.items()}
        rounds = for_seconds(SECONDS_OF_TIMING)
        tell(in_turn(ways, rounds, 5, warm_up=10))

    tell_times(calls)
    if names[-1] == WAYS[-1]:
        last = ready([WAYS[-1]])
        if last:
            tell_times({"eager": fn, **last})


def tell(rows: dict[str, Any]) -> None:
    """To the parent."""
    print("ROW " + json.dumps(rows), flush=True)


def of_child(model: str, skip: list[str], limit: float) -> dict[str, Any]:
    """Way -> facts of a model, as far as its process came within ``limit`` seconds."""
    command = [sys.executable, "-m", "benchmarks.runs.compiled", "--child", model]
    command += [part for name in skip for part in ("--skip", name)]
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False
        )
        text, end = done.stdout, f"exit status {done.returncode}"
        if done.returncode:
            end += ": " + (done.stderr.strip().splitlines() or [""])[-1][:300]
    except subprocess.TimeoutExpired as error:
        raw = error.stdout or b""
        text = raw.decode() if isinstance(raw, bytes) else raw
        end = f"ended after {limit:.0f} s"
    rows: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith("ROW "):
            for name, facts in json.loads(line.removeprefix("ROW ")).items():
                rows.setdefault(name, {}).update(facts)
    return {"process": end, "s": round(time.perf_counter() - start, 1), "ways": rows}


def main() -> None:
    """The command."""
    parser = arguments(__doc__, "compiled.json" if ON_GPU else "compiled_emulated.json")
    parser.add_argument("--only", action="append", choices=MODELS, help="may be repeated")
    parser.add_argument("--skip", action="append", default=[], help="part of a way; repeatable")
    parser.add_argument("--limit", type=float, default=340.0, help="seconds for all models")
    parser.add_argument("--child", choices=MODELS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.skip)
        return
    found = about("compiled", options.commit) | {"limit s": options.limit, "models": {}}
    models = options.only or MODELS
    until = time.perf_counter() + options.limit
    for n, model in enumerate(models):
        share = max(1.0, until - time.perf_counter()) / (len(models) - n)
        found["models"][model] = of_child(model, options.skip, share)
        write(options.out, found)
        print(model, json.dumps(found["models"][model], indent=1), flush=True)


if __name__ == "__main__":
    main()
