"""A generation that ends early: by ``generate``, a replay for each token, and one for all.

``PYTHONPATH=src python3 -m benchmarks.runs.generation [--out FILE] [--commit C] [--short]``: a
Llama of 4 layers of 512 with random weights, a prompt of 32 tokens, and at most 512 new ones, the
most likely each. A text ends with a token that the model gives early, after about 128 tokens; the
text of a batch, when each row has such a token. Ways, in turn:

- ``model.generate``, eager;
- a replay for each token, where the host asks after each whether the text has ended;
- the same, where it asks after every eighth, which is the default;
- one replay for all tokens, where the device decides: ``Generator(whole=True)``.

Each gives the median milliseconds of a request, tokens per second, replays of graphs, and what the
host launches or copies (kernels, graphs; on a GPU, seen by torch's profiler). All ways reach the
end tokens with the same text; behind them they may differ in half precision, where two of 32,000
random logits can be closer than rounding. ``--short`` is for a machine without a GPU: there graphs
are emulated, and times mean nothing.
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
FULL = {"layers": 4, "hidden": 512, "prompt": 32, "tokens": 512, "early": 128, "rounds": 15}
SHORT = {"layers": 2, "hidden": 64, "prompt": 8, "tokens": 24, "early": 12, "rounds": 2}
SETTINGS = (
    (1, torch.bfloat16),
    (4, torch.bfloat16),
    (1, torch.float16),
    (1, torch.float32),
    (4, torch.float32),
)

Way = Callable[[list[int]], Tensor]
"""Takes the end tokens; gives the new tokens."""


def ways_of(model: Any, rows: int, size: Mapping[str, int]) -> tuple[dict[str, Way], list[Any]]:
    """The ways, and the generators behind all but the first."""
    ids, mask = prompts(rows, size["prompt"])
    length, tokens = size["prompt"] + size["tokens"], size["tokens"]
    graphs = {
        EACH: Generator(model, max_length=length, check_every=1),
        EIGHTH: Generator(model, max_length=length),
        WHOLE: Generator(model, max_length=length, whole=True),
    }

    def eager(ends: list[int]) -> Tensor:
        text = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=tokens,
            do_sample=False,
            eos_token_id=ends or None,
            pad_token_id=0,
        )
        return text[:, size["prompt"] :]

    def of(generate: Generator) -> Way:
        def way(ends: list[int]) -> Tensor:
            text = generate(ids, mask, max_new_tokens=tokens, eos_token_id=ends, pad_token_id=0)
            return text[:, size["prompt"] :]

        return way

    return {EAGER: eager, **{name: of(one) for name, one in graphs.items()}}, [*graphs.values()]


def early_ends(texts: list[Tensor], early: int) -> list[int]:
    """For each row a token that comes first at ``early``, or before as late as can be.

    Up to there all texts are the same.
    """
    same = torch.stack([text.eq(texts[0]).all(0) for text in texts]).all(0)
    agreed = min(int(same.long().cumprod(0).sum()), early + 1)
    rows = texts[0][:, :agreed].tolist()
    return [max(dict.fromkeys(row), key=row.index) for row in rows]


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
    ways, generators = ways_of(model, rows, size)
    first = {name: timed(way, []) for name, way in ways.items()}  # graphs are captured here
    free = {name: text for name, (text, _) in first.items()}
    ends = early_ends(list(free.values()), size["early"])
    texts = {name: way(ends) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(size["rounds"]):
        for name, way in ways.items():
            texts[name], seconds = timed(way, ends)
            times[name].append(1000 * seconds)
    found: dict[str, Any] = {}
    for name, way in ways.items():
        before = gfxgraph.stats()["replay_count"]
        way(ends)
        ms = statistics.median(times[name])
        found[name] = {
            "ms": round(ms, 3),
            "tokens/s": round(1000 * texts[name].numel() / ms, 1),
            "replays": gfxgraph.stats()["replay_count"] - before,
            "launches": launches(lambda way=way: way(ends)),  # type: ignore[misc]
            "first call s": round(first[name][1], 2),
        }
    steps, whole = texts[EACH], texts[WHOLE]
    return {
        "ways": found,
        "end tokens": ends,
        "tokens of a row": {name: text.shape[1] for name, text in texts.items()},
        "equal to generate": {name: text.equal(texts[EAGER]) for name, text in texts.items()},
        "one replay equal to a replay a token": whole.equal(steps)
        and free[WHOLE].equal(free[EACH]),
        "against": {
            name: round(found[name]["ms"] / found[WHOLE]["ms"], 2) for name in ways if name != WHOLE
        },
        "why not": sorted({shortened(r) for one in generators for r in one.stats().fallbacks}),
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
        "model": f"Llama, {size['layers']} layers of {size['hidden']}, random weights",
        "prompt": size["prompt"],
        "new tokens at most": size["tokens"],
    }
    failed = False
    for rows, dtype in SETTINGS[-2:] if options.short else SETTINGS:
        model = make_llama(size["layers"], size["hidden"]).to(dtype)
        name = f"batch {rows}, {str(dtype).removeprefix('torch.')}"
        try:
            result[name] = found = measured(model, rows, size)
            equal = found["one replay equal to a replay a token"]
            failed |= not (
                equal and all(found["equal to generate"].values()) and not found["why not"]
            )
        except Exception as error:  # the other parts are worth having
            result[name] = failure(error)
            failed = True
        print(name, json.dumps(result[name], indent=1), flush=True)
        write(options.out, result)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
