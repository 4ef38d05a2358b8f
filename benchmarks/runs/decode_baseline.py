"""Tokens per second of ``model.generate``, in a process that has not imported gfxgraph.

``python3 -m benchmarks.runs.decode_baseline '{"layers": 2, ...}'`` prints a line of JSON for each
way; ``benchmarks.runs.decode`` runs it and takes the model and the prompts from here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM, LlamaConfig, StaticCache

from benchmarks.lib.timing import timed

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEAD = 64
VOCABULARY = 32_000
DYNAMIC, STATIC = "eager, dynamic cache", "eager, static cache"
COMPILED, KEPT = "compiled, static cache", "compiled, one static cache kept"


def make_llama(layers: int, hidden: int) -> Any:
    """A Llama with random weights in bfloat16; the same in every process on this device."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD,
        num_key_value_heads=max(1, hidden // HEAD // 4),
        max_position_embeddings=4096,
    )
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model.generation_config.eos_token_id = None  # a text that means nothing has no end
    model.generation_config.pad_token_id = 0
    ids, mask = prompts(1, 4)
    model.generate(ids, attention_mask=mask, max_new_tokens=2)  # libraries are loaded here
    return model


def prompts(rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Token ids and their mask; all rows but the first have padding on their left."""
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(1, VOCABULARY, (rows, length), generator=random)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, : row % length] = 0
    return (ids * mask).to(DEVICE), mask.to(DEVICE)


def measured(call: Callable[[], Tensor], tokens: int, runs: int) -> tuple[dict[str, Any], Tensor]:
    """Tokens per second, the median of ``runs`` calls, seconds of the call before; the text."""
    taken = []
    for _ in range(1 + runs):
        text, seconds = timed(call)
        taken.append(seconds)
    seconds = statistics.median(taken[1:] or taken)
    return {
        "tokens/s": round(len(text) * tokens / seconds, 1),
        "ms a step": round(1000 * seconds / tokens, 4),
        "first call s": round(taken[0], 2),
        "runs": runs,
    }, text


def ways(model: Any, ids: Tensor, mask: Tensor, tokens: int) -> dict[str, Callable[[], Tensor]]:
    """All ways of ``model.generate``.

    What transformers compiles is the step of a token, in the mode ``reduce-overhead`` (that of its
    ``CompileConfig``): all that ``cache_implementation="static"`` asks for on a GPU. Each call
    makes a new cache there, for which graphs are recorded anew; not so with a cache that is kept.
    """
    kept = StaticCache(config=model.config, max_cache_len=ids.shape[1] + tokens)

    def generate(**how: Any) -> Tensor:
        text: Tensor = model.generate(
            ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, **how
        )
        return text

    def with_kept_cache() -> Tensor:
        kept.reset()
        return generate(past_key_values=kept)

    return {
        DYNAMIC: generate,
        STATIC: lambda: generate(cache_implementation="static", disable_compile=True),
        COMPILED: lambda: generate(cache_implementation="static"),
        KEPT: with_kept_cache,
    }


def measure_all(size: dict[str, int]) -> Iterator[dict[str, Any]]:
    """A row for each way, and the tokens that came out."""
    model, tokens = make_llama(size["layers"], size["hidden"]), size["tokens"]
    plan = [
        (size["rows"], DYNAMIC, 1),
        (1, DYNAMIC, 3),
        (1, STATIC, 1),
        (1, COMPILED, 3),
        (1, KEPT, 3),
    ]
    in_float32 = [(1, DYNAMIC, 0), (1, STATIC, 0), (size["rows"], DYNAMIC, 0)]
    for rows, way, runs in [*plan, *in_float32]:
        if runs == 0:
            model.float()
            vars(model).pop("_cache", None)  # transformers 5.5 keeps a static one, in bfloat16
        ids, mask = prompts(rows, size["prompt"])
        found, text = measured(ways(model, ids, mask, tokens)[way], tokens, runs)
        if way in (COMPILED, KEPT):  # none on a CPU
            found["frames compiled"] = counters["frames"]["ok"]
        dtype = str(model.dtype).removeprefix("torch.")
        yield {"rows": rows, "dtype": dtype, "way": way, "found": found, "text": text.tolist()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("size", type=json.loads, help="JSON: layers, hidden, prompt, tokens, rows")
    for row in measure_all(parser.parse_args().size):
        print(json.dumps(row), flush=True)
    if "gfxgraph" in sys.modules:
        sys.exit("gfxgraph was imported: what it does on import is part of these times.")
