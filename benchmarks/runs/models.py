"""Whether the graphs of many architectures give what eager execution gives, and what they gain.

``PYTHONPATH=src python3 -m benchmarks.runs.models [--out FILE] [--commit C] [--only NAME]``: timm's
classifiers and families of transformers with random weights, each called with fresh inputs. On a
machine without a GPU the graphs are emulated, and times mean nothing.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

import gfxgraph
from benchmarks.lib.report import about, arguments, failure, shortened, write
from benchmarks.lib.timing import timed
from gfxgraph.graph.compare import difference

DEVICE = gfxgraph.device_type()
CALLS = 4

TIMM = (
    "beit_base_patch16_224",
    "cait_xxs24_224",
    "coat_tiny",
    "convmixer_768_32",
    "convnext_atto",
    "crossvit_9_240",
    "deit3_small_patch16_224",
    "densenet121",
    "edgenext_xx_small",
    "efficientnet_b0",
    "eva02_tiny_patch14_224",
    "ghostnet_100",
    "levit_128s",
    "maxvit_nano_rw_256",
    "mixer_s32_224",
    "mobilenetv3_small_100",
    "poolformer_s12",
    "regnety_002",
    "resnet18",
    "resnext50_32x4d",
    "swin_tiny_patch4_window7_224",
    "vgg11",
    "vit_tiny_patch16_224",
    "xcit_nano_12_p16_224",
)

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 200,
}
SMALL_PAIR = {  # an encoder and a decoder
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}
KEYS = {"num_key_value_heads": 2, "head_dim": 16}

# Family -> class of the model, changes of its configuration, names of its inputs.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("AutoModel", SMALL, "tokens"),
    "roberta": ("AutoModel", SMALL, "tokens"),
    "electra": ("AutoModel", SMALL | {"embedding_size": 32}, "tokens"),
    "deberta-v2": ("AutoModel", SMALL, "tokens"),
    "distilbert": (
        "AutoModel",
        {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4},
        "tokens",
    ),
    "gpt2": ("AutoModelForCausalLM", {"n_embd": 64, "n_layer": 2, "n_head": 4}, "tokens"),
    "llama": ("AutoModelForCausalLM", SMALL | KEYS, "tokens"),
    "mistral": ("AutoModelForCausalLM", SMALL | KEYS | {"sliding_window": 8}, "tokens"),
    "qwen3": ("AutoModelForCausalLM", SMALL | KEYS, "tokens"),
    "qwen3_moe": (
        "AutoModelForCausalLM",
        SMALL | KEYS | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        "tokens",
    ),
    "gemma3_text": ("AutoModelForCausalLM", SMALL | KEYS | {"sliding_window": 8}, "tokens"),
    "t5": (
        "AutoModel",
        {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16},
        "both",
    ),
    "bart": ("AutoModel", SMALL_PAIR, "both"),
    "vit": ("AutoModel", SMALL, "image"),
    "dinov2": ("AutoModel", SMALL, "image"),
    "clip_vision_model": ("AutoModel", SMALL, "image"),
    "wav2vec2": ("AutoModel", SMALL, "sound"),
    "whisper": ("AutoModel", SMALL_PAIR | {"max_source_positions": 50}, "spectrum"),
}


def inputs(kind: str, size: int, random: torch.Generator) -> dict[str, torch.Tensor]:
    """Arguments of one call."""
    if kind == "image":
        return {"pixel_values": torch.randn(2, 3, size, size, generator=random)}
    if kind == "sound":
        return {"input_values": torch.randn(2, 4000, generator=random)}
    ids = torch.randint(5, 190, (2, 16), generator=random)
    if kind == "spectrum":
        spectrum = torch.randn(2, 80, 100, generator=random)
        return {"input_features": spectrum, "decoder_input_ids": ids}
    both = {"decoder_input_ids": ids.flip(0)} if kind == "both" else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **both}


def of_timm() -> Iterator[tuple[str, Callable[[], nn.Module], str, int]]:
    """Name, how to make it, kind of input and size of images."""
    try:
        import timm
    except ImportError:
        return
    for name in TIMM:
        cfg = timm.get_pretrained_cfg(name)
        size = cfg.input_size[-1] if cfg is not None else 224

        def make(name: str = name) -> nn.Module:
            model: nn.Module = timm.create_model(name, pretrained=False)
            return model

        yield f"timm {name}", make, "image", size


def of_transformers() -> Iterator[tuple[str, Callable[[], nn.Module], str, int]]:
    """The same of transformers."""
    try:
        import transformers
    except ImportError:
        return
    for family, (cls, changes, kind) in TRANSFORMERS.items():

        def make(family: str = family, cls: str = cls, changes: Any = changes) -> nn.Module:
            config = transformers.AutoConfig.for_model(family, **changes)
            model: nn.Module = getattr(transformers, cls).from_config(config)
            return model

        yield f"transformers {family}", make, kind, 224


@torch.inference_mode()
def judged(make: Callable[[], nn.Module], kind: str, size: int, is_timm: bool) -> dict[str, Any]:
    """How the graph of a model compares with eager execution."""
    torch.manual_seed(0)
    model = make().to(DEVICE).eval()
    fast = gfxgraph.graphed(model)
    random = torch.Generator().manual_seed(0)
    worst, differs, times = 0.0, "", {"eager": [], "graph": []}
    for _ in range(CALLS):
        given = {name: t.to(DEVICE) for name, t in inputs(kind, size, random).items()}
        args = tuple(given.values()) if is_timm else ()
        kwargs: dict[str, Any] = {} if is_timm else dict(given)
        if hasattr(getattr(model, "config", None), "use_cache"):
            kwargs["use_cache"] = False  # else they return a cache, an object; see llm_decode.py
        results = {}
        for way, call in (("eager", model), ("graph", fast)):
            results[way], seconds = timed(call, *args, **kwargs)
            times[way].append(1000 * seconds)
        pairs = zip(*(tensors_of(results[way]) for way in ("graph", "eager")), strict=True)
        for got, expected in pairs:
            if got.is_floating_point():
                worst = max(worst, float((got - expected).abs().max()))
            differs = differs or difference(got, expected, True) or ""
    stats = fast.stats()
    return {
        "graphs": stats.captures,
        "replays": stats.replays,
        "why eager": [shortened(reason) for reason in stats.fallbacks],
        "largest difference": worst,
        "differs": differs,
        "folded or between graphs": [
            shortened(line) for row in stats.graphs for line in row.report
        ],
        "eager ms": round(statistics.median(times["eager"][1:]), 3),
        "graph ms": round(statistics.median(times["graph"][1:]), 3),
    }


def tensors_of(result: Any) -> list[torch.Tensor]:
    """The tensors of a result, whatever its class."""
    from gfxgraph.call.signature import flatten

    return flatten(result)[0]


def main() -> None:
    """The command."""
    parser = arguments(__doc__, "models.json")
    parser.add_argument("--only", default="", help="part of the names")
    options = parser.parse_args()
    found = about("models", options.commit, "timm", "transformers") | {"models": {}}
    for name, make, kind, size in (*of_timm(), *of_transformers()):
        if options.only not in name:
            continue
        try:
            row = judged(make, kind, size, name.startswith("timm"))
        except Exception as error:  # the table says what became of each
            row = failure(error)
        found["models"][name] = row
        print(name, json.dumps(row)[:400], flush=True)
        write(options.out, found)


if __name__ == "__main__":
    main()
