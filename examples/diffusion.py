"""A diffusion pipeline, unmodified: its denoiser from a graph a step, and its loop as one graph.

``use_graphs`` lets the pipeline of diffusers replay a graph in each step: it is called as before,
the scheduler stays in Python. ``denoise_loop`` takes denoiser and scheduler and makes the whole
loop one graph, over the noise, the embeddings and the guidance scale.

Run it with ``python examples/diffusion.py``, with diffusers installed. The weights are random, from
a fixed seed, and the model is tiny: what a real one gains depends on the share of launches in it.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffusers
import torch
from torch import Tensor

import gfxgraph
from gfxgraph.integrations.diffusers import denoise_loop, use_graphs

STEPS = 8
WIDTH, WORDS = 32, 12
"""Of the embeddings of a prompt."""


@dataclass(frozen=True)
class Findings:
    """What came out of eager execution and of graphs.

    Attributes:
        difference: the largest difference between the two, over all calls.
        stats: what was captured and replayed.
    """

    difference: float
    stats: gfxgraph.GraphedStats


def make_pipeline(device: str) -> diffusers.StableDiffusionPipeline:
    """Stable Diffusion with a tiny UNet of random weights, which is given embeddings."""
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=8,
    )
    pipe = diffusers.StableDiffusionPipeline(
        unet=unet.eval(),
        vae=diffusers.AutoencoderKL(block_out_channels=(32,)).eval(),
        scheduler=diffusers.DPMSolverMultistepScheduler(steps_offset=1),
        text_encoder=None,
        tokenizer=None,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(device)


def request(seed: int, device: str) -> dict[str, Any]:
    """What a call of the pipeline is given: noise, embeddings, and how much they count."""
    random = torch.Generator().manual_seed(seed)
    latents = torch.randn(1, 4, 16, 16, generator=random)
    prompt, negative = torch.randn(2, 1, WORDS, WIDTH, generator=random)
    return {
        "latents": latents.to(device),
        "prompt_embeds": prompt.to(device),
        "negative_prompt_embeds": negative.to(device),
        "guidance_scale": 3.0 + seed,
        "num_inference_steps": STEPS,
        "output_type": "latent",
    }


def answers(
    what: str, fn: Callable[..., Tensor], calls: list[dict[str, Any]], runs: int = 10
) -> list[Tensor]:
    """The result of each call; how long one takes is printed, where times mean something."""
    found = [fn(**call) for call in calls]
    if gfxgraph.device_type() == "cuda":
        taken = []
        for n in range(runs):
            torch.cuda.synchronize()
            start = time.perf_counter()
            fn(**calls[n % len(calls)])
            torch.cuda.synchronize()
            taken.append(1000 * (time.perf_counter() - start))
        print(f"{what}: {statistics.median(taken):.2f} ms (median of {runs} calls)")
    return found


def main() -> list[Findings]:
    """The pipeline with a graph a step, and its loop as one graph, against eager execution."""
    warnings.filterwarnings("ignore", module="diffusers")
    device = gfxgraph.device_type()
    print(f"{STEPS} steps of a tiny UNet on {gfxgraph.device_facts().name}")
    if device != "cuda":
        print("No GPU here: the graphs run on the emulated device, where times mean nothing.")
    pipe = make_pipeline(device)
    calls = [request(seed, device) for seed in range(4)]

    def image(**call: Any) -> Tensor:
        return pipe(**call).images

    eager = answers("eager", image, calls)

    with use_graphs(pipe) as graphs:
        stepwise = answers("a graph a step", image, calls)
        step_stats = graphs.stats()["unet"]

    loop = denoise_loop(pipe, STEPS)

    def looped(**call: Any) -> Tensor:
        both = torch.cat([call["negative_prompt_embeds"], call["prompt_embeds"]])
        return loop(call["latents"], call["guidance_scale"], encoder_hidden_states=both)

    whole = answers("one graph", looped, calls)

    found = []
    for what, results, stats in (
        ("a graph a step", stepwise, step_stats),
        ("one graph", whole, loop.stats()),
    ):
        difference = max((a - b).abs().max().item() for a, b in zip(results, eager, strict=True))
        print(f"{what}: {stats.captures} captures, {stats.replays} replays, ", end="")
        print(f"fallbacks: {stats.fallbacks or 'none'}; differs by at most {difference:g}")
        found.append(Findings(difference, stats))
    return found


if __name__ == "__main__":
    main()
