"""A generation that ends early: by ``generate``, a replay for each token, and one for all.

``PYTHONPATH=src python3 -m benchmarks.runs.generation [--out FILE] [--commit C] [--short]``: a
Llama of 4 layers of 512, a prompt of 32 tokens, and at most 512 new ones, the most likely each. Its
weights are random, but for a head that makes it count: after a token comes the next number, far
more likely than all others, so that no rounding changes a text. The first row ends after 128
tokens, each other one 16 earlier than the one before it. Ways, in turn:

- ``model.generate``, eager;
- a replay for each token, where the host asks after each whether the text has ended;
- the same, where it asks after every eighth, which is the default;
- one replay for all tokens, where the device decides: ``Generator(whole=True)``.

Each gives the median milliseconds of a request, tokens per second, replays of graphs, and what the
host launches or copies (kernels, graphs; on a GPU, seen by torch's profiler). ``--short`` is for a
machine without a GPU: there graphs are emulated, and times mean nothing.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import gfxgraph
from benchmarks.lib.report import about, arguments, failure, shortened, write
from benchmarks.lib.timing import timed
from benchmarks.runs.decode_baseline import make_llama, prompts
from gfxgraph.integrations.transformers import Generator

EAGER, EACH, EIGHTH, WHOLE = (
    "generate",
    "a replay a token, asked each",
    "a replay a token, asked each eighth",
    "one replay",
)
FULL = {
    "layers": 4,
    "hidden": 512,
    "prompt": 32,
    "tokens": 512,
    "rounds": 15,
    "early": 128,
    "apart": 16,
}
SHORT = {"layers": 2, "hidden": 64, "prompt": 8, "tokens": 24, "rounds": 2, "early": 12, "apart": 3}
SETTINGS = ((1, torch.bfloat16), (4, torch.bfloat16), (1, torch.float16), (4, torch.float32))

Way = Callable[[], Tensor]
"""Gives the new tokens."""


def make_model(size: Mapping[str, int], dtype: torch.dtype) -> Any:
    """The model, which counts."""
    model = make_llama(size["layers"], size["hidden"]).to(dtype)
    with torch.no_grad():
        numbers = model.get_input_embeddings().weight.normal_()
        model.get_output_embeddings().weight.copy_(numbers.roll(1, 0))
    return model


def ways_of(
    model: Any, rows: int, size: Mapping[str, int]
) -> tuple[dict[str, Way], dict[str, Generator]]:
    """The ways, and what is behind all but the first."""
    ids, mask = prompts(rows, size["prompt"])
    begin = 1 + 1000 * torch.arange(rows)
    ids[:, -1] = begin.to(ids.device)
    options = {
        "max_new_tokens": size["tokens"],
        "eos_token_id": (begin + size["early"] - size["apart"] * torch.arange(rows)).tolist(),
        "pad_token_id": 0,
    }
    length = size["prompt"] + size["tokens"]
    graphs = {
        EACH: Generator(model, max_length=length, check_every=1),
        EIGHTH: Generator(model, max_length=length),
        WHOLE: Generator(model, max_length=length, whole=True),
    }

    def eager() -> Tensor:
        text = model.generate(ids, attention_mask=mask, do_sample=False, **options)
        return text[:, size["prompt"] :]

    def of(generate: Generator) -> Way:
        return lambda: generate(ids, mask, **options)[:, size["prompt"] :]

    return {EAGER: eager, **{name: of(one) for name, one in graphs.items()}}, graphs


def launches(call: Callable[[], Any]) -> dict[str, int] | None:
    """What the host launches or copies in a call, by the function of CUDA; ``None``: no GPU."""
    if not torch.cuda.is_available():
        return None
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as seen:
        call()
        torch.cuda.synchronize()
    names = ("LaunchKernel", "GraphLaunch", "Memcpy", "Memset")
    found = Counter(
        event.name for event in seen.events() if any(f"uda{name}" in event.name for name in names)
    )
    found.update(e.name for e in seen.events() if e.name.startswith(("cuLaunch", "cuGraphLaunch")))
    return dict(found.most_common())


def measured(model: Any, rows: int, size: Mapping[str, int]) -> dict[str, Any]:
    """All ways, for one batch size and dtype."""
    ways, graphs = ways_of(model, rows, size)
    first = {name: timed(way) for name, way in ways.items()}  # graphs are captured here
    texts = {name: [text] for name, (text, _) in first.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(size["rounds"]):
        for name, way in ways.items():
            text, seconds = timed(way)
            texts[name].append(text)
            times[name].append(1000 * seconds)
    expected = texts[EAGER][0]
    found: dict[str, Any] = {}
    for name, way in ways.items():
        before = gfxgraph.stats()["replay_count"]
        way()
        ms = statistics.median(times[name])
        found[name] = {
            "ms": round(ms, 3),
            "tokens/s": round(1000 * expected.numel() / ms, 1),
            "replays": gfxgraph.stats()["replay_count"] - before,
            "launches": launches(way),
            "first call s": round(first[name][1], 2),
            "equal": all(text.equal(expected) for text in texts[name]),
        }
    return {
        "tokens of a row": expected.shape[1],
        "ways": found,
        "one replay against": {
            name: round(found[name]["ms"] / found[WHOLE]["ms"], 2) for name in ways if name != WHOLE
        },
        "why not": {
            name: [shortened(reason) for reason in one.stats().fallbacks]
            for name, one in graphs.items()
        },
    }


def main() -> int:
    """Measure, print, write JSON; status 1: tokens differ, or a way did not do what it says."""
    parser = arguments(__doc__, "generation.json")
    parser.add_argument("--short", action="store_true", help="sizes for a machine without a GPU")
    options = parser.parse_args()
    size = SHORT if options.short else FULL
    command = "generation" + " --short" * options.short
    result: dict[str, Any] = {
        **about(command, options.commit, "transformers", "cuda-bindings"),
        "model": f"Llama, {size['layers']} layers of {size['hidden']}, which counts",
        "prompt": size["prompt"],
        "new tokens at most": size["tokens"],
    }
    failed = False
    for rows, dtype in SETTINGS[:2] if options.short else SETTINGS:
        name = f"batch {rows}, {str(dtype).removeprefix('torch.')}"
        try:
            result[name] = found = measured(make_model(size, dtype), rows, size)
            failed |= any(found["why not"].values())
            failed |= not all(way["equal"] for way in found["ways"].values())
        except Exception as error:  # the other parts are worth having
            result[name] = failure(error)
            failed = True
        print(name, json.dumps(result[name], indent=1), flush=True)
        write(options.out, result)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
