"""Tokens per second of a language model: eager, as transformers compiles it, and from graphs.

``PYTHONPATH=src python3 benchmarks/decode.py [--out FILE] [--commit C] [--tiny]``: a Llama of 1.1
billion random weights in bfloat16, a prompt of 32 tokens and 512 new ones, the most likely each.
Nothing is fetched. Whether the tokens are the same is asked in float32, where no two of 32,000
random logits are as close as rounding is; and in bfloat16, where some are. ``--tiny`` is for a
machine without a GPU: there the graphs are emulated, nothing is compiled, and times mean nothing.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor
from transformers import StaticCache

import gfxgraph
from gfxgraph.integrations.transformers import Generator

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from llm_decode import make_llama, prompts

DEVICE = gfxgraph.device_type()
DYNAMIC, STATIC = "eager, dynamic cache", "eager, static cache"
COMPILED, KEPT = "compiled, static cache", "compiled, one static cache kept"
GRAPHS = "graphs"
FULL = {"layers": 16, "hidden": 2048, "prompt": 32, "tokens": 512}
TINY = {"layers": 2, "hidden": 128, "prompt": 16, "tokens": 16}
ROWS = 4

Way = Callable[[Tensor, Tensor, int], Tensor]
"""Of token ids, their mask and how many new ones: the prompt and what follows."""


def ways(model: Any, length: int) -> tuple[dict[str, Way], Generator]:
    """All ways to generate; ``length`` is that of the prompt and the new tokens.

    What transformers compiles is the step of a token, with ``CompileConfig``'s own mode
    ``reduce-overhead``: all that ``cache_implementation="static"`` asks for on a GPU. Each call
    makes a cache anew there, and its graphs are recorded anew; one that the caller keeps is not.
    """
    graphs = Generator(model, max_length=length, fallback="raise")
    kept = StaticCache(config=model.config, max_cache_len=length)

    def generate(**how: Any) -> Way:
        def call(ids: Tensor, mask: Tensor, tokens: int) -> Tensor:
            result: Tensor = model.generate(
                ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, **how
            )
            return result

        return call

    def with_kept_cache(ids: Tensor, mask: Tensor, tokens: int) -> Tensor:
        kept.reset()
        return generate(past_key_values=kept)(ids, mask, tokens)

    found: dict[str, Way] = {
        DYNAMIC: generate(),
        STATIC: generate(cache_implementation="static", disable_compile=True),
        GRAPHS: lambda ids, mask, tokens: graphs(ids, mask, max_new_tokens=tokens),
        COMPILED: generate(cache_implementation="static"),
        KEPT: with_kept_cache,
    }
    return found, graphs


def measured(call: Callable[[], Tensor], runs: int) -> tuple[dict[str, Any], Tensor]:
    """Tokens per second, the median of ``runs`` calls, seconds of the call before; the text."""
    taken = []
    for _ in range(1 + runs):
        synchronize()
        start = time.perf_counter()
        result = call()
        synchronize()
        taken.append(time.perf_counter() - start)
    seconds = statistics.median(taken[1:])
    tokens = result.shape[0] * NEW
    return {
        "tokens/s": round(tokens / seconds, 1),
        "ms a step": round(1000 * seconds / NEW, 4),
        "first call s": round(taken[0], 2),
        "runs": runs,
    }, result


@torch.no_grad()
def step_alone(graphs: Generator, ids: Tensor, mask: Tensor) -> dict[str, float]:
    """What a step costs the device, replayed again and again, and the host, with all its checks."""
    session = next(s for s in graphs._sessions.values() if s.decoder.token.shape[0] == len(ids))
    graph: Any = session.step
    (entry,) = graph._engine._keys.values()
    found = {}
    for what, call, times in (
        ("replay alone, ms a step", entry.captured.root.launch, NEW - 1),
        # So few that no queue of the driver is full, and each call returns at once.
        ("host, ms a step", lambda: session.step(False, False, False), 15),
    ):
        graphs(ids, mask, max_new_tokens=1)  # the cache and its place, as at the begin of a text
        synchronize()
        start = time.perf_counter()
        for _ in range(times):
            call()
        returned = time.perf_counter() - start
        synchronize()
        done = time.perf_counter() - start
        found[what] = round(1000 * (done if "alone" in what else returned) / times, 4)
    return found


def compared(got: Tensor, expected: Tensor) -> dict[str, Any]:
    """How many new tokens are the same, and where the first one is that is not."""
    same = (got == expected)[:, -NEW:]
    differing = (~same).nonzero().tolist()
    return {
        "equal": int(same.sum()),
        "of": same.numel(),
        "first that differs": min(token for _, token in differing) if differing else None,
    }


@torch.no_grad()
def behind(model: Any, text: Tensor, mask: Tensor) -> float:
    """How far a token was from the most likely one at most, in roundings of the model's dtype.

    One forward of the whole text, without a cache, gives the logits that each token was chosen by.
    """
    mask = torch.cat([mask, torch.ones_like(text[:, mask.shape[1] :])], 1)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    out = model(text, attention_mask=mask, position_ids=positions, use_cache=False)
    logits = out.logits[:, -NEW - 1 : -1].float()
    best = logits.amax(-1)
    chosen = logits.gather(-1, text[:, -NEW:, None])[..., 0]
    rounding = torch.finfo(model.dtype).eps * 2.0 ** best.abs().log2().floor()
    return round(float(((best - chosen) / rounding).max()), 2)


def of_a_batch(model: Any, rows: int, prompt: int, runs: dict[str, int]) -> dict[str, Any]:
    """How fast each way in ``runs`` is, and whether the tokens of the graphs are those of others.

    Args:
        model: what to run.
        rows: of the batch; all but the first have padding on their left.
        prompt: its tokens.
        runs: ways, and how often to measure each.
    """
    call_of, graphs = ways(model, prompt + NEW)
    ids, mask = prompts(DEVICE, rows, prompt)
    found: dict[str, Any] = {}
    texts = {}
    for name, times in runs.items():
        call = functools.partial(call_of[name], ids, mask, NEW)
        found[name], texts[name] = measured(call, times)
        if name == GRAPHS:
            stats = graphs.stats()
            found[name] |= step_alone(graphs, ids, mask)
            found[name] |= {
                "captures": stats.captures,
                "replays": stats.prefill_replays + stats.decode_replays,
                "why eager": list(stats.fallbacks),
            }
        print(rows, name, found[name], flush=True)
    rate = found[GRAPHS]["tokens/s"]
    found["graphs against"] = {
        name: round(rate / found[name]["tokens/s"], 2) for name in runs if name != GRAPHS
    }
    found["tokens against"] = tokens_of(texts)
    found["roundings from the most likely"] = {
        name: behind(model, text, mask) for name, text in texts.items()
    }
    return found


def tokens_of(texts: dict[str, Tensor]) -> dict[str, Any]:
    """The tokens of the graphs against those of each other way, and eager against eager."""
    others = [name for name in texts if name != GRAPHS]
    found = {name: compared(texts[GRAPHS], texts[name]) for name in others}
    if STATIC in texts:
        found[f"{STATIC}, and dynamic"] = compared(texts[STATIC], texts[DYNAMIC])
    return found


def tokens_only(model: Any, rows: int, prompt: int, names: Sequence[str]) -> dict[str, Any]:
    """The tokens of the graphs and of other ways, without times."""
    call_of, _ = ways(model, prompt + NEW)
    ids, mask = prompts(DEVICE, rows, prompt)
    return tokens_of({name: call_of[name](ids, mask, NEW) for name in names})


def synchronize() -> None:
    """Wait for the device, if there is one."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """The command."""
    global NEW
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/decode.json"))
    parser.add_argument("--commit", default="")
    parser.add_argument("--tiny", action="store_true", help="sizes for a machine without a GPU")
    options = parser.parse_args()
    size = TINY if options.tiny else FULL
    prompt, NEW = size["prompt"], size["tokens"]

    facts = gfxgraph.device_facts()
    model = make_llama(DEVICE, size["layers"], size["hidden"], torch.bfloat16)
    model.generate(*prompts(DEVICE, 1, prompt)[:1], max_new_tokens=2)  # libraries load here
    found: dict[str, Any] = {
        "command": "python3 benchmarks/decode.py" + " --tiny" * options.tiny,
        "commit": options.commit,
        "device": facts.name if DEVICE == "cuda" else "emulated",
        "torch": facts.torch,
        "transformers": importlib.metadata.version("transformers"),
        "model": f"Llama, {size['layers']} layers of {size['hidden']}, random weights, bfloat16",
        "parameters": model.num_parameters(),
        "prompt": prompt,
        "new tokens": NEW,
    }

    def keep(name: str, what: dict[str, Any]) -> None:
        found[name] = what
        print(name, json.dumps(what, indent=1), flush=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    # Compiling last: what Dynamo has compiled changes how graphs are captured.
    runs = {DYNAMIC: 1, GRAPHS: 3}
    keep("batch 4, left padding", of_a_batch(model, ROWS, prompt, runs))
    runs = {DYNAMIC: 3, STATIC: 1, GRAPHS: 3, COMPILED: 3, KEPT: 3}
    keep("batch 1", of_a_batch(model, 1, prompt, runs))
    model.float()
    keep("float32, batch 1", tokens_only(model, 1, prompt, (DYNAMIC, STATIC, GRAPHS)))
    keep("float32, batch 4", tokens_only(model, ROWS, prompt, (DYNAMIC, GRAPHS)))


NEW = 0
"""How many tokens each call generates; set by :func:`main`."""

if __name__ == "__main__":
    main()
