"""Tokens per second of a language model in batches of one: what settings of Inductor gain.

``PYTHONPATH=src python3 -m benchmarks.runs.tuned [--out FILE] [--commit C] [--seconds S]``: the
Llama of ``benchmarks.runs.decode``, 1.1 billion random weights in bfloat16: eager, a graph of the
step, one of the compiled step, one with the setting that was found best by hand, and
``compile="tuned"`` with so many seconds to search (default 80), then once more with what that left
on disk. Beside them the limit of the memory: each token reads all weights but the table of
embeddings. On a GPU all of it takes about five minutes. Inductor's cache is a new folder, unless
``TORCHINDUCTOR_CACHE_DIR`` is set. ``--tiny`` is for a machine without a GPU: times mean nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any

import torch

from benchmarks.lib.report import about, arguments, failure, write
from benchmarks.lib.timing import timed
from benchmarks.runs.decode import FULL, TINY, behind, of_graphs
from benchmarks.runs.decode_baseline import DEVICE, DYNAMIC, make_llama, measured, prompts, ways

BY_HAND = {"options": {"coordinate_descent_tuning": True}}
COPIED = 1 << 30 if DEVICE == "cuda" else 1 << 20


def limits(model: Any) -> dict[str, float]:
    """Tokens per second that reading the weights allows: as the device is specified, and copies."""
    embeddings = set(model.get_input_embeddings().parameters())
    size = sum(p.numel() * p.element_size() for p in set(model.parameters()) - embeddings)
    source = torch.empty(COPIED, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    seconds = min(timed(lambda: target.copy_(source))[1] for _ in range(10))
    found = {"GB a token": round(size / 1e9, 3)}
    found["tokens/s, as fast as a copy"] = round(2 * COPIED / seconds / size, 1)
    if DEVICE == "cuda":
        facts = torch.cuda.get_device_properties(0)
        clock, width = (getattr(facts, f"memory_{of}", 0) for of in ("clock_rate", "bus_width"))
        bandwidth = 2 * 1000 * clock * width / 8  # kHz, bits; two transfers a clock
        if bandwidth:
            found["tokens/s, as specified"] = round(bandwidth / size, 1)
    return found


def of_eager(model: Any, size: dict[str, int]) -> dict[str, Any]:
    """``model.generate``, for fewer tokens: each takes as long."""
    tokens = min(64, size["tokens"])
    ids, mask = prompts(1, size["prompt"])
    return measured(ways(model, ids, mask, tokens)[DYNAMIC], tokens, 1)[0]


def main() -> None:
    """The command."""
    parser = arguments(__doc__, "tuned.json")
    parser.add_argument("--tiny", action="store_true", help="sizes for a machine without a GPU")
    parser.add_argument("--seconds", type=float, default=80.0, help="of the search; default 80")
    options = parser.parse_args()
    size = TINY if options.tiny else FULL
    command = f"tuned --seconds {options.seconds:g}" + " --tiny" * options.tiny
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
        model = make_llama(size["layers"], size["hidden"])
        result: dict[str, Any] = {
            **about(command, options.commit, "transformers", "triton"),
            "model": f"Llama, {size['layers']} layers of {size['hidden']}, random weights",
            "new tokens": size["tokens"],
            "note": "Ways run in this order and share Inductor's cache, where they find kernels.",
            "limits": limits(model),
            "ways": {"eager": of_eager(model, size)},
        }
        tuned = {"mode": "tuned", "seconds": options.seconds}
        for way, how in (
            ("graph", False),
            ("compile=True", True),
            ("coordinate descent, by hand", BY_HAND),
            ('compile="tuned"', tuned),
            ('compile="tuned", from disk', tuned),
        ):
            try:
                found, text = of_graphs(model, size, 1, 3, how)
                _, mask = prompts(1, size["prompt"])
                text = text.to(mask.device)
                found["roundings from the most likely"] = behind(model, text, mask, size["tokens"])
            except Exception as error:  # the other ways are worth having
                found = failure(error)
            result["ways"][way] = found
            print(way, json.dumps(found), flush=True)
            write(options.out, result)
            torch.compiler.reset()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
