"""Milliseconds for an image of Stable Diffusion: eager, a graph a step, the whole loop as one.

``PYTHONPATH=src python3 -m benchmarks.runs.denoising [--out FILE] [--commit C] [--tiny]``, where
diffusers is installed. Random weights, nothing is fetched: a tiny UNet in float32, and one of the
size of Stable Diffusion 1.5 in bfloat16 on latents of 64 x 64, with guidance. ``--tiny`` leaves the
large one out; without a GPU the graphs are emulated, and times mean nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import diffusers
import torch
from torch import Tensor

import gfxgraph
from benchmarks.lib.report import about, arguments, shortened, write
from benchmarks.lib.timing import timed
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
        image, seconds = timed(lambda given=given: call(**given).clone())
        images.append(image)
        taken.append(seconds)
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

    def keep(
        name: str,
        row: dict[str, Any],
        images: list[Tensor],
        stats: Any,
        expected: list[Tensor] = expected,
    ) -> None:
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

    # The guidance scale is a number in Python: each one has a graph of its own.
    alike = [given | {"guidance_scale": 3.0} for given in requests]
    same, whole = measured(image, alike)[1], gfxgraph.graphed(image)
    seconds = [timed(lambda: whole(**alike[0]))[1] for _ in range(2)]
    row, images = measured(whole, alike)
    row["first call s"] = round(sum(seconds), 3)
    keep("the whole pipeline, graphed", row, images, whole.stats(), same)
    found["the whole pipeline, graphed"]["stored"] = whole.stats().stored
    return found


def main() -> None:
    """The command."""
    warnings.filterwarnings("ignore", module="diffusers")
    parser = arguments(__doc__, "diffusion.json")
    parser.add_argument("--tiny", action="store_true", help="only the tiny one")
    options = parser.parse_args()
    command = "denoising" + " --tiny" * options.tiny
    found = about(command, options.commit, "diffusers") | {"models": {}}
    for name, (config, dtype) in MODELS.items():
        if options.tiny and config is not TINY:
            continue
        found["models"][name] = judged(config, dtype)
        print(name, json.dumps(found["models"][name], indent=1), flush=True)
        write(options.out, found)


if __name__ == "__main__":
    main()
