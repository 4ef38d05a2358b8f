"""Whether whole calls of pipelines, policies and models with caches become graphs, and are right.

``PYTHONPATH=src python3 -m benchmarks.runs.whole_calls [--out FILE] [--commit C] [--only NAME]``:
each is made twice with the same random weights; one is graphed, its twin stays eager. After each of
six calls with fresh inputs the outputs and all visible state of the two are compared. On a machine
without a GPU the graphs are emulated.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import itertools
import statistics
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn

import gfxgraph
from benchmarks.lib.report import about, arguments, failure, shortened, write
from benchmarks.lib.timing import timed
from gfxgraph.graph.compare import difference

DEVICE = gfxgraph.device_type()
CALLS = 6

Made = tuple[Callable[..., Any], Any, Callable[[], tuple[Any, ...]]]
"""A function, what holds its state, and what makes arguments."""

CASES: dict[str, Callable[[], Made]] = {}


def case(make: Callable[[], Made]) -> Callable[[], Made]:
    """A whole call to try."""
    CASES[make.__name__] = make
    return make


# ---- diffusers


def _unet(**changes: Any) -> Any:
    from diffusers import UNet2DConditionModel

    how = {
        "block_out_channels": (8, 16),
        "layers_per_block": 1,
        "sample_size": 8,
        "in_channels": 4,
        "out_channels": 4,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": 16,
        "norm_num_groups": 2,
        "attention_head_dim": 2,
    }
    return UNet2DConditionModel(**(how | changes))


def _vae(**changes: Any) -> Any:
    from diffusers import AutoencoderKL

    how = {
        "block_out_channels": [8, 8],
        "in_channels": 3,
        "out_channels": 3,
        "down_block_types": ["DownEncoderBlock2D"] * 2,
        "up_block_types": ["UpDecoderBlock2D"] * 2,
        "latent_channels": 4,
        "norm_num_groups": 2,
    }
    return AutoencoderKL(**(how | changes))


def _pipeline(pipe: Any, make: Callable[[], tuple[Any, ...]], **fixed: Any) -> Made:
    names = fixed.pop("names")
    pipe = pipe.to(DEVICE)
    pipe.set_progress_bar_config(disable=True)
    for part in pipe.components.values():
        if isinstance(part, nn.Module):
            part.eval()

    def call(*args: Any) -> Any:
        return pipe(**dict(zip(names, args, strict=True)), **fixed).images

    return call, pipe, make


def _stable_diffusion(scheduler: Callable[[], Any], **more: Any) -> Made:
    from diffusers import StableDiffusionPipeline

    pipe = StableDiffusionPipeline(
        vae=_vae(),
        text_encoder=None,
        tokenizer=None,
        unet=_unet(),
        scheduler=scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return _pipeline(
        pipe,
        lambda: (_random(1, 4, 8, 8), _random(1, 3, 16), _random(1, 3, 16)),
        names=("latents", "prompt_embeds", "negative_prompt_embeds"),
        num_inference_steps=4,
        guidance_scale=7.5,
        output_type="pt",
        **more,
    )


def _of_diffusers(name: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import diffusers

        return getattr(diffusers, name)(**options)

    return make


_SCHEDULERS = {
    "ddim": _of_diffusers("DDIMScheduler", clip_sample=False, set_alpha_to_one=False),
    "euler": _of_diffusers("EulerDiscreteScheduler"),
    "pndm": _of_diffusers("PNDMScheduler", skip_prk_steps=True),
    "dpm_solver": _of_diffusers("DPMSolverMultistepScheduler"),
    "unipc": _of_diffusers("UniPCMultistepScheduler"),
    "heun": _of_diffusers("HeunDiscreteScheduler"),
    "ancestral": _of_diffusers("EulerAncestralDiscreteScheduler"),
}
for _name, _scheduler in _SCHEDULERS.items():
    CASES[f"stable_diffusion_{_name}"] = functools.partial(_stable_diffusion, _scheduler)


@case
def stable_diffusion_img2img() -> Made:
    from diffusers import StableDiffusionImg2ImgPipeline

    pipe = StableDiffusionImg2ImgPipeline(
        vae=_vae(),
        text_encoder=None,
        tokenizer=None,
        unet=_unet(),
        scheduler=_SCHEDULERS["ddim"](),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return _pipeline(
        pipe,
        lambda: (_random(1, 4, 8, 8), _random(1, 3, 16), _random(1, 3, 16)),
        names=("image", "prompt_embeds", "negative_prompt_embeds"),
        num_inference_steps=4,
        strength=0.75,
        output_type="pt",
    )


@case
def stable_diffusion_xl() -> Made:
    from diffusers import StableDiffusionXLPipeline

    unet = _unet(
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 2),
        projection_class_embeddings_input_dim=64,
        use_linear_projection=True,
    )
    pipe = StableDiffusionXLPipeline(
        vae=_vae(sample_size=16),
        text_encoder=None,
        text_encoder_2=None,
        tokenizer=None,
        tokenizer_2=None,
        unet=unet,
        scheduler=_SCHEDULERS["euler"](),
        force_zeros_for_empty_prompt=True,
        add_watermarker=False,
    )
    return _pipeline(
        pipe,
        lambda: (
            _random(1, 4, 8, 8),
            *(_random(1, 3, 16) for _ in range(2)),
            *(_random(1, 16) for _ in range(2)),
        ),
        names=(
            "latents",
            "prompt_embeds",
            "negative_prompt_embeds",
            "pooled_prompt_embeds",
            "negative_pooled_prompt_embeds",
        ),
        num_inference_steps=4,
        output_type="pt",
        height=16,
        width=16,
    )


@case
def latent_consistency() -> Made:
    from diffusers import LatentConsistencyModelPipeline

    pipe = LatentConsistencyModelPipeline(
        vae=_vae(),
        text_encoder=None,
        tokenizer=None,
        unet=_unet(time_cond_proj_dim=8),
        scheduler=_of_diffusers("LCMScheduler")(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return _pipeline(
        pipe,
        lambda: (_random(1, 4, 8, 8), _random(1, 3, 16)),
        names=("latents", "prompt_embeds"),
        num_inference_steps=3,
        output_type="pt",
    )


def _unconditional(pipeline: str, scheduler: str, **fixed: Any) -> Made:
    import diffusers

    unet = diffusers.UNet2DModel(
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=8,
        in_channels=3,
        out_channels=3,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    pipe = getattr(diffusers, pipeline)(unet=unet, scheduler=getattr(diffusers, scheduler)())
    return _pipeline(pipe, lambda: (), names=(), num_inference_steps=4, **fixed)


@case
def ddpm() -> Made:
    return _unconditional("DDPMPipeline", "DDPMScheduler", output_type="pt")


@case
def ddim_pipeline() -> Made:
    return _unconditional("DDIMPipeline", "DDIMScheduler", output_type="pt")


@case
def dit() -> Made:
    from diffusers import DiTPipeline, DiTTransformer2DModel

    transformer = DiTTransformer2DModel(
        sample_size=8,
        num_layers=2,
        patch_size=4,
        attention_head_dim=8,
        num_attention_heads=2,
        in_channels=4,
        out_channels=8,
        attention_bias=True,
        activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000,
        norm_type="ada_norm_zero",
        norm_elementwise_affine=False,
    )
    pipe = DiTPipeline(transformer=transformer, vae=_vae(), scheduler=_SCHEDULERS["ddim"]())
    return _pipeline(
        pipe,
        lambda: (),
        names=(),
        class_labels=[1],
        num_inference_steps=3,
        output_type="np",
    )


@case
def flux() -> Made:
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8],
    )
    vae = _vae(sample_size=32, latent_channels=1, shift_factor=0.0609, scaling_factor=1.5)
    pipe = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
        transformer=transformer,
        vae=vae,
    )
    return _pipeline(
        pipe,
        lambda: (_random(1, 16, 4), _random(1, 5, 32), _random(1, 32)),
        names=("latents", "prompt_embeds", "pooled_prompt_embeds"),
        num_inference_steps=3,
        height=16,
        width=16,
        output_type="pt",
    )


@case
def stable_diffusion_3() -> Made:
    from diffusers import (
        FlowMatchEulerDiscreteScheduler,
        SD3Transformer2DModel,
        StableDiffusion3Pipeline,
    )

    transformer = SD3Transformer2DModel(
        sample_size=8,
        patch_size=1,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        caption_projection_dim=32,
        joint_attention_dim=32,
        pooled_projection_dim=64,
        out_channels=4,
    )
    pipe = StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=_vae(shift_factor=0.06, scaling_factor=1.5),
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
        text_encoder_3=None,
        tokenizer_3=None,
    )
    return _pipeline(
        pipe,
        lambda: (
            _random(1, 4, 8, 8),
            *(_random(1, 5, 32) for _ in range(2)),
            *(_random(1, 64) for _ in range(2)),
        ),
        names=(
            "latents",
            "prompt_embeds",
            "negative_prompt_embeds",
            "pooled_prompt_embeds",
            "negative_pooled_prompt_embeds",
        ),
        num_inference_steps=3,
        height=16,
        width=16,
        output_type="pt",
    )


# ---- transformers: models that return caches, models with recurrent state, detectors

_SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_KEYS = {"num_key_value_heads": 2, "head_dim": 8}
_PAIR = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 100,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
_DECODERS: dict[str, dict[str, Any]] = {
    "llama": _SMALL | _KEYS,
    "mistral": _SMALL | _KEYS,
    "qwen2": _SMALL | {"num_key_value_heads": 2},
    "qwen3": _SMALL | _KEYS,
    "gemma2": _SMALL | _KEYS,
    "gemma3_text": _SMALL | _KEYS,
    "phi3": _SMALL | {"num_key_value_heads": 2},
    "olmo2": _SMALL | {"num_key_value_heads": 2},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100},
    "gpt_neox": _SMALL,
    "opt": _SMALL | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100, "state_size": 8},
    "cohere": _SMALL | {"num_key_value_heads": 2},
    "granite": _SMALL | {"num_key_value_heads": 2},
    "starcoder2": _SMALL | {"num_key_value_heads": 2},
    "falcon_h1": _SMALL
    | _KEYS
    | {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16},
    # Recurrent: the state is an attribute of the layers, or part of the result.
    "recurrent_gemma": _SMALL
    | {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8, "head_dim": 8},
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100, "context_length": 32},
}
_PAIRS: dict[str, dict[str, Any]] = {
    "bart": _PAIR,
    "marian": _PAIR,
    "t5": {
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 100,
        "decoder_start_token_id": 0,
    },
}


def _tokens() -> torch.Tensor:
    return torch.randint(3, 90, (1, 6), device=DEVICE)


def _decoder(name: str, how: dict[str, Any]) -> Made:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(name, **how)
    model = AutoModelForCausalLM.from_config(config).to(DEVICE).eval()
    return functools.partial(model, use_cache=True), model, lambda: (_tokens(),)


def _encoder_decoder(name: str, how: dict[str, Any]) -> Made:
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    config = AutoConfig.for_model(name, **how)
    model = AutoModelForSeq2SeqLM.from_config(config).to(DEVICE).eval()

    def call(tokens: torch.Tensor, decoded: torch.Tensor) -> Any:
        return model(input_ids=tokens, decoder_input_ids=decoded, use_cache=True)

    return call, model, lambda: (_tokens(), _tokens())


for _name, _how in _DECODERS.items():
    CASES[f"{_name}_with_cache"] = functools.partial(_decoder, _name, _how)
for _name, _how in _PAIRS.items():
    CASES[f"{_name}_with_cache"] = functools.partial(_encoder_decoder, _name, _how)


@case
def yolos() -> Made:
    from transformers import YolosConfig, YolosForObjectDetection

    config = YolosConfig(
        **{k: v for k, v in _SMALL.items() if k.startswith(("hidden", "inter", "num"))},
        image_size=[32, 32],
        patch_size=8,
        num_detection_tokens=5,
    )
    model = YolosForObjectDetection(config).to(DEVICE).eval()
    return model, model, lambda: (_random(1, 3, 32, 32),)


# ---- torchvision: detectors


def _detector(name: str, **options: Any) -> Made:
    from torchvision.models import detection

    make = getattr(detection, name)
    model = make(weights=None, weights_backbone=None, num_classes=5, **options).to(DEVICE).eval()

    def call(image: torch.Tensor) -> Any:
        return model([image])

    return call, model, lambda: (torch.rand(3, 64, 64, device=DEVICE),)


_SIZE = {"min_size": 64, "max_size": 64}
_DETECTORS: dict[str, dict[str, Any]] = {
    "fasterrcnn_mobilenet_v3_large_320_fpn": _SIZE,
    "fasterrcnn_resnet50_fpn": _SIZE,
    "maskrcnn_resnet50_fpn": _SIZE | {"box_detections_per_img": 3},
    "keypointrcnn_resnet50_fpn": _SIZE | {"box_detections_per_img": 3},
    "retinanet_resnet50_fpn": _SIZE,
    "fcos_resnet50_fpn": _SIZE,
    "ssdlite320_mobilenet_v3_large": {},
    "ssd300_vgg16": {},
}
for _name, _how in _DETECTORS.items():
    CASES[_name] = functools.partial(_detector, _name, **_how)


# ---- LeRobot: a step of a robot, which takes an action from a queue and fills it now and then


def _policy(name: str, kind: str, sees: int = 32, **options: Any) -> Made:
    from lerobot.configs.types import FeatureType, PolicyFeature

    folder = f"lerobot.policies.{name}"
    config = getattr(importlib.import_module(f"{folder}.configuration_{name}"), f"{kind}Config")
    policy_class = getattr(importlib.import_module(f"{folder}.modeling_{name}"), f"{kind}Policy")
    shape = (3, sees, sees)
    policy = policy_class(
        config(
            input_features={
                "observation.image": PolicyFeature(type=FeatureType.VISUAL, shape=shape),
                "observation.state": PolicyFeature(type=FeatureType.STATE, shape=(4,)),
            },
            output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(4,))},
            device=DEVICE,
            **options,
        )
    )
    policy = policy.to(DEVICE).eval()
    policy.reset()

    language = {
        "observation.language.tokens": torch.ones(1, 4, dtype=torch.long, device=DEVICE),
        "observation.language.attention_mask": torch.ones(1, 4, dtype=torch.bool, device=DEVICE),
    }

    def step(image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        seen = {"observation.image": image, "observation.state": state}
        action: torch.Tensor = policy.select_action(seen | language)
        return action

    return step, policy, lambda: (torch.rand(1, *shape, device=DEVICE), _random(1, 4))


_ACT: dict[str, Any] = {
    "chunk_size": 4,
    "n_action_steps": 2,
    "dim_model": 32,
    "n_heads": 4,
    "dim_feedforward": 64,
    "n_encoder_layers": 1,
    "latent_dim": 8,
    "n_vae_encoder_layers": 1,
    "pretrained_backbone_weights": None,
}
_POLICIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "act": ("act", "ACT", _ACT),
    "act_ensembling": (
        "act",
        "ACT",
        _ACT | {"n_action_steps": 1, "temporal_ensemble_coeff": 0.01},
    ),
    "diffusion_policy": (
        "diffusion",
        "Diffusion",
        {
            "sees": 96,
            "horizon": 8,
            "n_action_steps": 2,
            "down_dims": (16, 32),
            "diffusion_step_embed_dim": 16,
            "n_groups": 4,
            "num_inference_steps": 4,
            "num_train_timesteps": 20,
            "spatial_softmax_num_keypoints": 4,
            "pretrained_backbone_weights": None,
            "noise_scheduler_type": "DDIM",
        },
    ),
    "vqbet": (
        "vqbet",
        "VQBeT",
        {
            "sees": 96,
            "n_obs_steps": 2,
            "n_action_pred_token": 2,
            "action_chunk_size": 2,
            "pretrained_backbone_weights": None,
            "vqvae_embedding_dim": 16,
            "vqvae_enc_hidden_dim": 16,
            "gpt_block_size": 32,
            "gpt_input_dim": 32,
            "gpt_output_dim": 32,
            "gpt_hidden_dim": 32,
            "gpt_n_layer": 1,
            "gpt_n_head": 2,
        },
    ),
    "tdmpc": (
        "tdmpc",
        "TDMPC",
        {
            "sees": 64,
            "horizon": 3,
            "n_action_repeats": 1,  # the first call differs: with 2, six calls have no replay
            "latent_dim": 16,
            "mlp_dim": 16,
            "state_encoder_hidden_dim": 16,
            "image_encoder_hidden_dim": 8,
            "cem_iterations": 2,
            "n_gaussian_samples": 16,
            "n_pi_samples": 4,
            "n_elites": 4,
        },
    ),
}
for _name, (_folder, _kind, _options) in _POLICIES.items():
    CASES[f"lerobot_{_name}"] = functools.partial(_policy, _folder, _kind, **_options)


@case
def lerobot_smolvla() -> Made:
    from lerobot.policies.smolvla import smolvlm_with_expert as parts
    from transformers import SmolVLMConfig

    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    text = {k: v for k, v in (_SMALL | _KEYS).items() if not k.endswith("_id")}
    config = SmolVLMConfig(
        vision_config=vision, text_config=text | {"model_type": "llama"}, scale_factor=2
    )
    config.text_config.pad_token_id = 0
    tokenizer = types.SimpleNamespace(fake_image_token_id=5, global_image_token_id=6)
    # What it would read from the hub.
    with (
        mock.patch.object(parts.AutoConfig, "from_pretrained", lambda *_, **__: config),
        mock.patch.object(
            parts.AutoProcessor,
            "from_pretrained",
            lambda *_, **__: types.SimpleNamespace(tokenizer=tokenizer),
        ),
    ):
        return _policy(
            "smolvla",
            "SmolVLA",
            chunk_size=4,
            n_action_steps=2,
            max_state_dim=8,
            max_action_dim=8,
            resize_imgs_with_padding=(32, 32),
            num_steps=3,
            num_vlm_layers=2,
            tokenizer_max_length=4,
        )


# ---- functions with state of their own


class Stateful(nn.Module):
    """Keeps what a step of a controller keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, 8)
        self.hidden = torch.zeros(2, 8)
        self.steps = 0
        self.features: torch.Tensor | None = None

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.hidden = fn(self.hidden)
        return super()._apply(fn, recurse)


@case
def recurrent_cell() -> Made:
    class Cell(Stateful):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.hidden = self.cell(x, self.hidden)
            self.steps += 1
            return self.hidden * 2

    model = Cell().to(DEVICE)
    return model, model, lambda: (_random(2, 8),)


@case
def recurrent_lstm() -> Made:
    class Streamed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 8, num_layers=2, batch_first=True)
            self.state: tuple[torch.Tensor, torch.Tensor] | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, self.state = self.lstm(x, self.state)
            return y

    model = Streamed().to(DEVICE)
    return model, model, lambda: (_random(2, 3, 8),)


@case
def keeps_features() -> Made:
    class Keeps(Stateful):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.features = self.cell(x)
            return self.features.sum(1)

    model = Keeps().to(DEVICE)
    return model, model, lambda: (_random(2, 8),)


@case
def observation_window() -> Made:
    class Window(Stateful):
        def __init__(self) -> None:
            super().__init__()
            self.seen: deque[torch.Tensor] = deque(maxlen=3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            while len(self.seen) < 3:
                self.seen.append(x)
            self.seen.append(x)
            return self.cell(torch.stack(list(self.seen)).mean(0))

    model = Window().to(DEVICE)
    return model, model, lambda: (_random(2, 8),)


@case
def temporal_ensemble() -> Made:
    class Ensemble(Stateful):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            now = self.cell(x)
            self.hidden = 0.9 * self.hidden + 0.1 * now
            return {"action": self.hidden, "raw": now}

    model = Ensemble().to(DEVICE)
    return model, model, lambda: (_random(2, 8),)


@case
def streaming_convolution() -> Made:
    class Streaming(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(4, 4, 3)
            self.register_buffer("past", torch.zeros(1, 4, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.cat([self.past, x], dim=-1)
            self.past = x[..., -2:].clone()
            return self.conv(x)

    model = Streaming().to(DEVICE)
    return model, model, lambda: (_random(1, 4, 6),)


# ---- comparing


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


_PLAIN = (int, float, str, bool, bytes, complex, type(None), torch.dtype, torch.device, enum.Enum)


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """What differs between two worlds that should be alike."""
    todo = [(ours, theirs, path)]
    twins: dict[int, int] = {}
    while todo:
        a, b, at = todo.pop()
        if twins.setdefault(id(a), id(b)) != id(b) and not isinstance(a, _PLAIN):
            yield f"{at}: another object than elsewhere"
        if type(a).__qualname__ != type(b).__qualname__:
            yield f"{at}: {type(a).__name__} instead of {type(b).__name__}"
        elif isinstance(a, torch.Tensor):
            how = difference(a, b, True)
            if how is not None:
                yield f"{at}: {how}"
        elif isinstance(a, _PLAIN):
            if a != b and not (a != a and b != b):
                yield f"{at}: {a!r} instead of {b!r}"
        else:
            parts = list(_parts(a)), list(_parts(b))
            if [name for name, _ in parts[0]] != [name for name, _ in parts[1]]:
                yield f"{at}: {len(parts[0])} parts instead of {len(parts[1])}"
                continue
            todo += [
                (x, y, f"{at}.{name}")
                for (name, x), (_, y) in zip(*parts, strict=True)
                if id(x) not in twins or isinstance(x, (*_PLAIN, torch.Tensor))
            ]


def _parts(item: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(item, (type, types.FunctionType, types.MethodType, types.ModuleType)):
        return
    if isinstance(item, dict):
        yield from ((str(key), value) for key, value in item.items())
    elif isinstance(item, (list, tuple, deque)):
        yield from ((str(n), value) for n, value in enumerate(item))
    if type(item).__module__ == "numpy" and hasattr(item, "tolist"):
        yield "values", str(item.tolist())
        return
    for name, value in sorted(getattr(item, "__dict__", {}).items()):
        if not name.startswith("__gfxgraph") and not name.endswith("_hooks"):
            yield name, value


@dataclasses.dataclass
class Row:
    """What became of one case."""

    name: str
    graphs: int = 0
    replays: int = 0
    paths: int = 0
    stored: int = 0
    wrong: str = ""
    why: str = ""
    eager_ms: float = 0.0
    graph_ms: float = 0.0


def play(name: str) -> Row:
    """Call both twins; compare after each call."""
    torch.manual_seed(0)
    fn, state, arguments_of = CASES[name]()
    torch.manual_seed(0)
    twin, twins_state, _ = CASES[name]()
    graph, row = gfxgraph.graphed(fn), Row(name)
    times: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad():
        for n in range(CALLS):
            torch.manual_seed(n)
            args = arguments_of()
            copies = tuple(arg.clone() for arg in args)
            torch.manual_seed(100 + n)
            expected, eager_s = timed(twin, *copies)
            torch.manual_seed(100 + n)
            got, graph_s = timed(graph, *args)
            times[0].append(1000 * eager_s), times[1].append(1000 * graph_s)
            found = itertools.chain(
                differences(got, expected, "result"), differences(state, twins_state, "state")
            )
            row.wrong = row.wrong or next((f"call {n}: {text}" for text in found), "")
    stats = graph.stats()
    row.graphs, row.replays, row.stored = len(stats.graphs), stats.replays, len(stats.stored)
    row.paths = max((kind.paths for kind in stats.graphs), default=0)
    row.eager_ms, row.graph_ms = (round(statistics.median(t[3:]), 3) for t in times)
    reasons = [*stats.refused.values(), *stats.fallbacks, *stats.changed]
    if row.paths > 1:
        breaks = [line for line in stats.graphs[-1].report if not line.endswith("folded")]
        reasons += [f"{row.paths} ways of the data, none of them taken twice", *breaks]
    row.why = "" if stats.replays else shortened("; ".join(dict.fromkeys(reasons)))[:1000]
    graph.reset()
    return row


def main() -> None:
    """Play all, print a line each, write JSON."""
    parser = arguments(__doc__, "whole_calls.json")
    parser.add_argument("--only", default="", help="names that contain this")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    result = about(
        "whole_calls", options.commit, "transformers", "diffusers", "torchvision", "lerobot"
    )
    for name in CASES:
        if options.only not in name:
            continue
        try:
            row = play(name)
        except ImportError as error:
            print(f"{name:30} skipped: {error}", flush=True)
            skipped[name] = shortened(str(error))
            continue
        except Exception as error:  # of another version of a library
            row = Row(name, why=f"could not be played: {failure(error)['error']}")
        rows.append(dataclasses.asdict(row))
        verdict = row.wrong or (f"{row.replays} replays" if row.replays else row.why)
        print(f"{name:30} {row.eager_ms:9.2f} {row.graph_ms:9.2f} ms  {verdict}", flush=True)
        write(options.out, result | {"skipped": skipped, "rows": rows})
    good = sum(1 for row in rows if row["replays"] and not row["wrong"])
    wrong = sum(1 for row in rows if row["wrong"])
    print(f"{good} of {len(rows)} are graphs, {wrong} are wrong")


if __name__ == "__main__":
    main()
