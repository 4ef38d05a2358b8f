"""Tokens per second of a language model: eager, as transformers compiles it, and from graphs.

``PYTHONPATH=src python3 -m benchmarks.runs.decode [--out FILE] [--commit C] [--tiny]``: a Llama of
1.1 billion random weights in bfloat16, a prompt of 32 tokens and 512 new ones, the most likely
each. Nothing is fetched. ``model.generate`` runs in a process of its own, without gfxgraph. Whether
the tokens are the same is asked in float32, where hardly two of 32,000 random logits are as close
as rounding is, and in bfloat16, where many are. ``--tiny`` is for a machine without a GPU: there
graphs are emulated, transformers compiles nothing, and times mean nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from benchmarks.lib.report import ROOT, about, arguments, failure, shortened, write
from benchmarks.lib.timing import synchronize
from benchmarks.runs.decode_baseline import (
    COMPILED,
    DYNAMIC,
    KEPT,
    STATIC,
    make_llama,
    measured,
    prompts,
)
from gfxgraph.integrations.transformers import Generator

GRAPHS, COMPILED_GRAPHS = "graphs", "graphs of a compiled step"
BEHIND = "roundings from the most likely"
FULL = {"layers": 16, "hidden": 2048, "prompt": 32, "tokens": 512, "rows": 4}
TINY = {"layers": 2, "hidden": 128, "prompt": 16, "tokens": 16, "rows": 4}

Texts = dict[tuple[int, str, str], Tensor]
"""Rows, dtype and way -> prompt and new tokens."""


def of_generate(size: dict[str, int]) -> tuple[dict[tuple[int, str, str], Any], Texts]:
    """What each way of ``model.generate`` took and gave, by rows, dtype and way."""
    command = [sys.executable, "-m", "benchmarks.runs.decode_baseline", json.dumps(size)]
    found, texts = {}, {}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout or ():
            if not line.startswith("{"):  # not of ours
                print(line, end="")
                continue
            row = json.loads(line)
            key = (row["rows"], row["dtype"], row["way"])
            found[key], texts[key] = row["found"], torch.tensor(row["text"])
            print(*key, row["found"], flush=True)
    if child.returncode:
        print(f"{command} ended with {child.returncode}: the other ways are missing", flush=True)
    return found, texts


def of_graphs(
    model: Any, size: dict[str, int], rows: int, runs: int, compiled: Any = False
) -> tuple[dict[str, Any], Tensor]:
    """The same from graphs; ``compiled``: see ``compile`` of the generator."""
    tokens = size["tokens"]
    generate = Generator(
        model, max_length=size["prompt"] + tokens, compile=compiled, fallback="raise"
    )
    ids, mask = prompts(rows, size["prompt"])
    found, text = measured(lambda: generate(ids, mask, max_new_tokens=tokens), tokens, runs)
    stats = generate.stats()
    found |= {
        "captures": stats.captures,
        "replays": stats.prefill_replays + stats.decode_replays,
        "why eager": [shortened(r) for r in stats.fallbacks],
    }
    if runs:
        found |= step_alone(generate, ids, mask, tokens)
        (session,) = generate._sessions.values()
        (row,) = session.step.stats().graphs
        if row.tuned is not None:
            found["tuned"] = asdict(row.tuned)
    return found, text.cpu()


@torch.no_grad()
def step_alone(generate: Generator, ids: Tensor, mask: Tensor, tokens: int) -> dict[str, float]:
    """What a step costs the device, replayed again and again, and the host, with all its checks."""
    (session,) = generate._sessions.values()
    graph: Any = session.step
    (entry,) = graph._dispatcher.entries.all()
    found = {}
    for what, call, times in (
        ("replay alone, ms a step", entry.captured.root.launch, tokens - 1),
        # So few that no queue of the driver is full, and each call returns at once.
        ("host, ms a step", lambda: session.step(False, False, False), min(15, tokens - 1)),
    ):
        generate(ids, mask, max_new_tokens=1)  # the cache and its place, as a text begins
        synchronize()
        start = time.perf_counter()
        for _ in range(times):
            call()
        returned = time.perf_counter() - start
        synchronize()
        done = time.perf_counter() - start
        found[what] = round(1000 * (done if "alone" in what else returned) / times, 4)
    return found


@torch.no_grad()
def behind(model: Any, text: Tensor, mask: Tensor, tokens: int) -> float:
    """How far a token was from the most likely one at most, in roundings of the model's dtype.

    One eager forward of the whole text, without a cache, gives the logits that tokens are judged
    by.
    """
    mask = torch.cat([mask, torch.ones_like(text[:, mask.shape[1] :])], 1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    out = model(text, attention_mask=mask, position_ids=positions, use_cache=False)
    logits = out.logits[:, -tokens - 1 : -1].float()
    best = logits.amax(-1)
    chosen = logits.gather(-1, text[:, -tokens:, None])[..., 0]
    rounding = torch.finfo(model.dtype).eps * 2.0 ** best.abs().log2().floor()
    return round(float(((best - chosen) / rounding).max()), 2)


def compared(got: Tensor, expected: Tensor, tokens: int) -> dict[str, Any]:
    """How many new tokens are the same, and which is the first that is not."""
    same = (got == expected)[:, -tokens:]
    differing = [token for _, token in (~same).nonzero().tolist()]
    return {"equal": int(same.sum()), "of": same.numel(), "first": min(differing, default=None)}


def sections(size: dict[str, int]) -> Any:
    """Name and content of each part of the results."""
    found, texts = of_generate(size)
    model, tokens, many = make_llama(size["layers"], size["hidden"]), size["tokens"], size["rows"]
    for rows, dtype, compiled, runs in (
        (many, "bfloat16", False, 3),
        (1, "bfloat16", False, 3),
        (1, "bfloat16", True, 3),
        (1, "float32", False, 0),
        (many, "float32", False, 0),
    ):
        if dtype == "float32":
            model.float()
        way = COMPILED_GRAPHS if compiled else GRAPHS
        try:
            key = (rows, dtype, way)
            found[key], texts[key] = of_graphs(model, size, rows, runs, compiled)
        except Exception as error:  # the other parts are worth having
            found[key] = failure(error)
        print(*key, found[key], flush=True)
        if runs:
            for of in (key for key in texts if key[:2] == (rows, dtype)):
                _, mask = prompts(rows, size["prompt"])
                found[of][BEHIND] = behind(model, texts[of].to(mask.device), mask, tokens)
        yield section(found, texts, rows, dtype, tokens)


def section(
    found: dict[tuple[int, str, str], Any], texts: Texts, rows: int, dtype: str, tokens: int
) -> tuple[str, dict[str, Any]]:
    """What was found for a batch size and a dtype, and the comparisons."""
    of = {way: row for (n, kind, way), row in found.items() if (n, kind) == (rows, dtype)}
    words = {way: text for (n, kind, way), text in texts.items() if (n, kind) == (rows, dtype)}
    rate = of[GRAPHS].get("tokens/s")
    return f"batch {rows}, {dtype}", {
        "ways": of if dtype == "bfloat16" else {},
        "graphs against": {
            way: round(rate / row["tokens/s"], 2)
            for way, row in of.items()
            if rate and dtype == "bfloat16" and way != GRAPHS and "error" not in row
        },
        "tokens": {
            f"{one} / {other}": compared(words[one], words[other], tokens)
            for one in (GRAPHS, COMPILED_GRAPHS, STATIC)
            for other in (DYNAMIC, STATIC, COMPILED, KEPT)
            if one in words and other in words and one != other
            if one != STATIC or other == DYNAMIC
        },
    }


def main() -> None:
    """The command."""
    parser = arguments(__doc__, "decode.json")
    parser.add_argument("--tiny", action="store_true", help="sizes for a machine without a GPU")
    options = parser.parse_args()
    size = TINY if options.tiny else FULL
    result: dict[str, Any] = {
        **about("decode" + " --tiny" * options.tiny, options.commit, "transformers"),
        "model": f"Llama, {size['layers']} layers of {size['hidden']}, random weights",
        "prompt": size["prompt"],
        "new tokens": size["tokens"],
    }
    for name, content in sections(size):
        result[name] = content
        write(options.out, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
