"""What ``gfxgraph.check`` of a transformer of 3.5 billion parameters costs, without its weights.

``PYTHONPATH=src python3 -m benchmarks.runs.check_large [--out FILE]``: the decoder of transformers
with parameters on the meta device, prefill of 512 tokens and one step of decode on a static cache.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import gfxgraph
from benchmarks.lib.report import arguments, write


def main() -> None:
    """The command."""
    options = arguments(__doc__).parse_args()
    config = LlamaConfig(
        hidden_size=3072,
        intermediate_size=8192,
        num_hidden_layers=32,
        num_attention_heads=24,
        num_key_value_heads=8,
        vocab_size=64000,
        tie_word_embeddings=False,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
        cache = StaticCache(config, max_cache_len=1024)
        tokens, token = (torch.zeros(1, n, dtype=torch.int64) for n in (512, 1))

    def prefill(tokens: torch.Tensor) -> Any:
        return model(tokens, use_cache=False).logits

    def decode(token: torch.Tensor) -> Any:
        return model(token, past_key_values=cache).logits

    found: dict[str, Any] = {
        "commit": options.commit,
        "parameters": sum(p.numel() for p in model.parameters()),
        "torch": torch.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.processor() or platform.machine(),
        "command": "PYTHONPATH=src python3 -m benchmarks.runs.check_large",
    }
    for fn, argument in ((prefill, tokens), (decode, token)):
        start = time.perf_counter()
        report = gfxgraph.check(fn, argument)
        found[fn.__name__] = {
            "seconds": round(time.perf_counter() - start, 2),
            "verdict": report.verdict,
            "operations": report.operations,
            "hazards": [f"{h.rule}: {h.what}" for h in report.hazards],
        }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found["peak_gib"] = round(peak / 2**20, 2)
    print(json.dumps(found, indent=1))
    if options.out:
        write(options.out, found)


if __name__ == "__main__":
    main()
