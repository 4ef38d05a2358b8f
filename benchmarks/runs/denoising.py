"""Milliseconds for an image of Stable Diffusion: eager, a graph a step, the whole loop as one.

``PYTHONPATH=src python3 benchmarks/denoising.py [--out FILE] [--commit C] [--tiny]``, where
diffusers is installed. Random weights, nothing is fetched: a tiny UNet in float32, and one of the
size of Stable Diffusion 1.5 in bfloat16 on latents of 64 x 64, with guidance. ``--tiny`` leaves the
large one out; without a GPU the graphs are emulated, and times mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import diffusers
import torch
from shortened import shortened
from torch import Tensor

import gfxgraph
from gfxgraph.integrations.diffusers import denoise_loop, use_graphs

DEVICE = gfxgraph.device_type()
STEPS, IMAGES, WORDS = 20, 3, 77

TINY = {
    "sample_size": 16,
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "cross_attention_dim": 32,
    "attention_head_dim": 8,
}
# Where this says nothing, the defaults of UNet2DConditionModel are those of Stable Diffusion 1.5.
FULL = {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8}
MODELS = {
    "tiny UNet, float32": (TINY, torch.float32),
    "UNet of Stable Diffusion 1.5, bfloat16": (FULL, torch.bfloat16),
}


def make_pipeline(config: dict[str, Any], dtype: torch.dtype) -> diffusers.StableDiffusionPipeline:
    """A pipeline that is given embeddings, and gives latents."""
    torch.manual_seed(0)
    with torch.device(DEVICE):
        unet = diffusers.UNet2DConditionModel(**config).to(dtype).eval()
    pipe = diffusers.StableDiffusionPipeline(
        unet=unet,
        vae=diffusers.AutoencoderKL(block_out_channels=(32,)).eval(),
        scheduler=diffusers.DPMSolverMultistepScheduler(steps_offset=1),
        text_encoder=None,
        tokenizer=None,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(DEVICE)


def request(pipe: Any, seed: int) -> dict[str, Any]:
    """What a call of the pipeline is given: noise, embeddings, and how much they count."""
    config, random = pipe.unet.config, torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random).to(DEVICE, pipe.unet.dtype)

    return {
        "latents": drawn(1, 4, config.sample_size, config.sample_size),
        "prompt_embeds": drawn(1, WORDS, config.cross_attention_dim),
        "negative_prompt_embeds": drawn(1, WORDS, config.cross_attention_dim),
        "guidance_scale": 3.0 + seed,
        "num_inference_steps": STEPS,
        "output_type": "latent",
    }


def measured(
    call: Callable[..., Tensor], requests: list[dict[str, Any]]
) -> tuple[dict[str, Any], list[Tensor]]:
    """Milliseconds for an image, the median; seconds of the first one; and all of them."""
    taken, images = [], []
    for given in (requests[0], *requests):
        synchronize()
        start = time.perf_counter()
        images.append(call(**given).clone())
        synchronize()
        taken.append(time.perf_counter() - start)
    return {
        "ms an image": round(1000 * statistics.median(taken[1:]), 3),
        "first call s": round(taken[0], 3),
    }, images[1:]


@torch.no_grad()
def judged(config: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """A UNet's images in three ways."""
    pipe = make_pipeline(config, dtype)
    requests = [request(pipe, seed) for seed in range(IMAGES)]

    def image(**given: Any) -> Tensor:
        latents: Tensor = pipe(**given).images
        return latents

    eager, expected = measured(image, requests)
    found = {
        "parameters": sum(p.numel() for p in pipe.unet.parameters()),
        "steps": STEPS,
        "eager": eager,
    }

    def keep(name: str, row: dict[str, Any], images: list[Tensor], stats: Any) -> None:
        differences = [float((a - b).abs().max()) for a, b in zip(images, expected, strict=True)]
        found[name] = row | {
            "times faster": round(eager["ms an image"] / row["ms an image"], 2),
            "largest difference": max(differences),
            "of latents up to": round(max(float(t.abs().max()) for t in expected), 2),
            "captures": stats.captures,
            "replays": stats.replays,
            "why eager": [shortened(r) for r in stats.fallbacks],
        }

    with use_graphs(pipe) as graphs:
        keep("a graph a step", *measured(image, requests), graphs.stats()["unet"])

    loop = denoise_loop(pipe, STEPS)

    def looped(**given: Any) -> Tensor:
        both = torch.cat([given["negative_prompt_embeds"], given["prompt_embeds"]])
        return loop(given["latents"], given["guidance_scale"], encoder_hidden_states=both)

    keep("one graph", *measured(looped, requests), loop.stats())
    return found


def synchronize() -> None:
    """Wait for the device, if there is one."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """The command."""
    warnings.filterwarnings("ignore", module="diffusers")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/diffusion.json"))
    parser.add_argument("--commit", default="")
    parser.add_argument("--tiny", action="store_true", help="only the tiny one")
    options = parser.parse_args()
    facts = gfxgraph.device_facts()
    found: dict[str, Any] = {
        "command": "python3 benchmarks/denoising.py" + " --tiny" * options.tiny,
        "commit": options.commit,
        "device": facts.name if DEVICE == "cuda" else "emulated",
        "torch": facts.torch,
        "diffusers": importlib.metadata.version("diffusers"),
        "models": {},
    }
    for name, (config, dtype) in MODELS.items():
        if options.tiny and config is not TINY:
            continue
        found["models"][name] = judged(config, dtype)
        print(name, json.dumps(found["models"][name], indent=1), flush=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
