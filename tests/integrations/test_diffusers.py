"""Pipelines, denoisers and schedulers of diffusers, unmodified, with tiny random weights."""

from __future__ import annotations

import copy
import gc
import inspect
import types
import weakref

import pytest
import torch

import gfxgraph
from gfxgraph.errors import ArgumentError, CaptureError
from tests.helpers.sampled import sampled

diffusers = pytest.importorskip("diffusers")

from gfxgraph.integrations.diffusers import denoise_loop, use_graphs  # noqa: E402

# Of diffusers: options that it would rather have otherwise, and its use of NumPy.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

STEPS = 3

UNET = {
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "cross_attention_dim": 16,
    "attention_head_dim": 4,
}
DIT = {
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "in_channels": 4,
    "out_channels": 8,
    "num_layers": 2,
    "sample_size": 8,
    "patch_size": 2,
    "norm_num_groups": 4,
    "num_embeds_ada_norm": 1000,
}
SD3 = {
    "sample_size": 8,
    "patch_size": 2,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 2,
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "joint_attention_dim": 16,
    "caption_projection_dim": 16,
    "pooled_projection_dim": 12,
    "pos_embed_max_size": 16,
}
FLUX = {
    "patch_size": 1,
    "in_channels": 16,
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 16,
    "pooled_projection_dim": 12,
    "axes_dims_rope": (4, 4, 8),
    "guidance_embeds": True,
}
SCHEDULERS = {
    "DDIM": {},
    "DDPM": {},
    "DEISMultistep": {},
    "DPMSolverMultistep": {},
    "DPMSolverMultistep sde": {"algorithm_type": "sde-dpmsolver++"},
    "EulerAncestralDiscrete": {},
    "EulerDiscrete": {},
    "FlowMatchEulerDiscrete": {},
    "HeunDiscrete": {},
    "LCM": {},
    "PNDM": {"skip_prk_steps": True},
    "UniPCMultistep": {},
}


def scheduler(name):
    """A scheduler by its name without ``Scheduler``; a second word tells variants apart."""
    options = SCHEDULERS.get(name, {})
    return getattr(diffusers, f"{name.split()[0]}Scheduler")(**options)


def unet(device):
    return diffusers.UNet2DConditionModel(**UNET).eval().to(device)


def vae():
    return diffusers.AutoencoderKL(
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4,
        norm_num_groups=4,
    ).eval()


def no_texts(*numbers):
    """No text encoders: the embeddings are given."""
    return {f"{part}{n}": None for n in numbers for part in ("text_encoder", "tokenizer")}


def pipeline(kind, device):
    if kind == "StableDiffusion":
        pipe = diffusers.StableDiffusionPipeline(
            unet=unet(device),
            vae=vae(),
            scheduler=diffusers.EulerDiscreteScheduler(steps_offset=1),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
            **no_texts(""),
        )
    elif kind == "DiT":
        transformer = diffusers.DiTTransformer2DModel(**DIT).eval()
        pipe = diffusers.DiTPipeline(transformer, vae(), diffusers.DDIMScheduler())
    elif kind == "StableDiffusion3":
        pipe = diffusers.StableDiffusion3Pipeline(
            transformer=diffusers.SD3Transformer2DModel(**SD3).eval(),
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
            vae=vae(),
            **no_texts("", "_2", "_3"),
        )
    else:
        pipe = diffusers.FluxPipeline(
            transformer=diffusers.FluxTransformer2DModel(**FLUX).eval(),
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
            vae=vae(),
            **no_texts("", "_2"),
        )
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(device)


def request(kind, seed, device, **more):
    """The arguments of a call: other embeddings, noise and guidance for each seed."""
    random = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(*shape, generator=random).to(device)

    call = {
        "guidance_scale": 3.3 + seed,
        "num_inference_steps": STEPS,
        "output_type": "latent",
        "generator": random,
    }
    if kind == "DiT":
        call |= {"class_labels": [seed], "output_type": "pt"}
    else:
        call |= {"prompt_embeds": drawn(1, 6, 16)}
    if kind in ("StableDiffusion3", "Flux"):
        call |= {"pooled_prompt_embeds": drawn(1, 12)}
    if kind == "StableDiffusion3":
        call |= {"negative_pooled_prompt_embeds": drawn(1, 12)}
    if kind in ("StableDiffusion", "StableDiffusion3"):
        call |= {"negative_prompt_embeds": drawn(1, 6, 16)}
    if kind == "Flux":
        call |= {"height": 32, "width": 32}
    return call | more


def run(pipe, kind, seed, device, **more):
    return pipe(**request(kind, seed, device, **more)).images


def same(got, expected):
    """Bit for bit; on a GPU, where other kernels may be chosen, as well as the dtype can tell."""
    near = 0.0 if got.device.type == "cpu" else 0.05 if got.dtype == torch.bfloat16 else 1e-3
    torch.testing.assert_close(got, expected, rtol=near, atol=near)


# One graph a step


@pytest.mark.parametrize("kind", ["StableDiffusion", "DiT", "StableDiffusion3", "Flux"])
def test_a_pipeline_replays_its_denoiser_and_gives_what_it_gave(device, kind):
    pipe = pipeline(kind, device)
    expected = [run(pipe, kind, seed, device) for seed in range(3)]
    with use_graphs(pipe) as graphs:
        for seed in range(3):
            same(run(pipe, kind, seed, device), expected[seed])
        (stats,) = graphs.stats().values()
    assert (stats.captures, stats.replays) == (1, 3 * STEPS - 1), "timesteps, prompts are inputs"
    assert not stats.fallbacks
    assert not expected[0].equal(expected[1])


def test_undo_gives_the_modules_their_own_forward_back(device):
    pipe = pipeline("StableDiffusion", device)
    signature = inspect.signature(pipe.unet.forward)
    graphs = use_graphs(pipe)
    assert list(graphs.stats()) == ["unet"]
    assert "forward" in vars(pipe.unet) and inspect.signature(pipe.unet.forward) == signature
    graphs.undo()
    assert "forward" not in vars(pipe.unet) and not graphs.stats()["unet"].graphs
    graphs.undo()
    with use_graphs(pipe), pytest.raises(ZeroDivisionError), use_graphs(pipe, "vae"):
        raise ZeroDivisionError
    assert "forward" not in vars(pipe.unet) and "forward" not in vars(pipe.vae)


@pytest.mark.long
def test_a_scheduler_is_changed_without_another_graph(device):
    pipe = pipeline("StableDiffusion", device)
    names = ("EulerDiscrete", "EulerAncestralDiscrete", "LCM", "UniPCMultistep", "DDIM")

    def images():
        for name in names:
            pipe.scheduler = scheduler(name)
            yield run(pipe, "StableDiffusion", 1, device)

    expected = list(images())
    with use_graphs(pipe) as graphs:
        for got, image in zip(images(), expected, strict=True):
            same(got, image)
        stats = graphs.stats()["unet"]
    assert stats.captures == 2, "timesteps are floats, or integers"
    assert stats.replays == 5 * STEPS - 2


def test_modules_inside_of_components_are_graphed_by_name(device):
    pipe = pipeline("StableDiffusion", device)
    expected = [run(pipe, "StableDiffusion", seed, device, output_type="pt") for seed in (0, 1)]
    with use_graphs(pipe, "unet", "vae.decoder") as graphs:
        for seed in (0, 1):
            got = run(pipe, "StableDiffusion", seed, device, output_type="pt")
            torch.testing.assert_close(got, expected[seed], rtol=1e-4, atol=1e-5)
        assert graphs.stats()["vae.decoder"].replays == 1


@pytest.mark.long
def test_other_sizes_and_no_guidance_are_graphs_of_their_own(device):
    pipe = pipeline("StableDiffusion", device)
    ways = [{}, {"guidance_scale": 1.0}, {"height": 32, "width": 16}, {"num_images_per_prompt": 2}]
    expected = [run(pipe, "StableDiffusion", 0, device, **way) for way in ways]
    with use_graphs(pipe, max_graphs=2) as graphs:
        for way, image in zip(ways, expected, strict=True):
            same(run(pipe, "StableDiffusion", 0, device, **way), image)
        stats = graphs.stats()["unet"]
    assert stats.captures == 4 and stats.evictions == 2 and stats.replays == 4 * (STEPS - 1)


@pytest.mark.long
def test_a_timestep_that_is_a_number_is_an_input(device):
    model = unet(device)
    pipe = types.SimpleNamespace(unet=model)
    x, text = torch.randn(1, 4, 8, 8, device=device), torch.randn(1, 6, 16, device=device)
    with torch.no_grad():
        for numbers in ((1, 500, 999), (0.5, 500.0, 998.5)):
            expected = [model(x, t, encoder_hidden_states=text).sample for t in numbers]
            with use_graphs(pipe) as graphs:
                for t, output in zip(numbers, expected, strict=True):
                    same(model(x, t, text).sample, output)
                    same(model(sample=x, timestep=t, encoder_hidden_states=text).sample, output)
                stats = graphs.stats()["unet"]
            assert stats.captures == 2 and stats.replays == 4


class LowRank(torch.nn.Module):
    """What a LoRA puts in the place of a layer."""

    def __init__(self, layer, scale):
        super().__init__()
        self.layer, self.scale = layer, scale
        self.down = torch.nn.Linear(layer.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.scale * self.up(self.down(x))


@pytest.mark.long
def test_adapters_that_come_switch_and_go_are_captured_again(device):
    pipe = pipeline("StableDiffusion", device)
    attention = pipe.unet.mid_block.attentions[0].transformer_blocks[0].attn1
    plain = attention.to_q
    adapters = [LowRank(plain, scale).to(device) for scale in (1.0, 2.0)]
    processor = diffusers.models.attention_processor.AttnProcessor()

    def stronger():
        attention.to_q.scale = 4.0

    changes = [
        lambda: setattr(attention, "to_q", adapters[0]),
        lambda: setattr(attention, "to_q", adapters[1]),
        stronger,
        lambda: setattr(attention, "to_q", plain),
        lambda: pipe.unet.set_attn_processor(processor),
        lambda: pipe.unet.load_state_dict(unet(device).state_dict(), assign=True),
        lambda: pipe.to(torch.float64) and pipe.to(torch.float32),
    ]
    with use_graphs(pipe) as graphs:
        before = run(pipe, "StableDiffusion", 0, device)
        for count, change in enumerate(changes, 1):
            change()
            eager = diffusers.StableDiffusionPipeline.from_pipe(pipe, unet=copy.deepcopy(pipe.unet))
            eager.set_progress_bar_config(disable=True)
            got = run(pipe, "StableDiffusion", 0, device)
            same(got, run(eager, "StableDiffusion", 0, device))
            stats = graphs.stats()["unet"]
            assert stats.recaptures == count and not stats.fallbacks
            assert count > 4 or not got.equal(before)
            before = got


@pytest.mark.long
@pytest.mark.parametrize("kind", ["cache", "casting"])
def test_hooks_that_keep_state_or_move_weights_stay_eager_and_say_why(device, kind):
    pipe = pipeline("Flux", device)
    if kind == "cache":
        pipe.transformer.enable_cache(diffusers.FirstBlockCacheConfig(threshold=0.3))
    else:
        pipe.transformer.enable_layerwise_casting(torch.float16, torch.float32)
    expected = [run(pipe, "Flux", seed, device) for seed in range(2)]
    with use_graphs(pipe) as graphs:
        for seed in range(2):
            same(run(pipe, "Flux", seed, device), expected[seed])
        stats = graphs.stats()["transformer"]
    assert not stats.replays
    reasons = ("still changed", "each call rebinds", "Tensor.data = ...", "another thread is alive")
    assert all(any(part in reason for part in reasons) for reason in stats.fallbacks)


def test_a_deep_copy_runs_with_its_own_weights(device):
    model = unet(device)
    x, text = torch.randn(1, 4, 8, 8, device=device), torch.randn(1, 6, 16, device=device)
    with torch.no_grad(), use_graphs(types.SimpleNamespace(unet=model)) as graphs:
        original = model(x, 1, text).sample
        other = copy.deepcopy(model)
        other.conv_out.weight.zero_()
        assert not other(x, 1, text).sample.equal(original)
        same(model(x, 1, text).sample, original)
        assert graphs.stats()["unet"].replays == 1


def test_a_forward_that_is_not_the_modules_own_is_left_alone(device):
    pipe = types.SimpleNamespace(unet=unet(device), scheduler=scheduler("DDIM"))
    with use_graphs(pipe), pytest.raises(ArgumentError, match=r"use_graphs\(\) \(undo"):
        use_graphs(pipe)
    pipe.unet.forward = lambda *args, **kwargs: None
    with pytest.raises(ArgumentError, match="its forward was replaced before"):
        use_graphs(pipe)
    del pipe.unet.forward
    pipe.unet.compile()
    with pytest.raises(ArgumentError, match="compile_repeated_blocks"):
        use_graphs(pipe)
    pipe = types.SimpleNamespace(unet=unet(device))
    graphs = use_graphs(pipe)
    ours, pipe.unet.forward = pipe.unet.forward, lambda *args, **kwargs: None
    with pytest.raises(ArgumentError, match="'unet' was replaced after"):
        graphs.undo()
    pipe.unet.forward = ours
    graphs.undo()


def test_a_component_that_is_not_there_is_named(device):
    pipe = pipeline("StableDiffusion", device)
    for name in ("transformer", "vae.nothing", "scheduler"):
        with pytest.raises(ArgumentError, match=rf"'{name}'\): there is no module"):
            use_graphs(pipe, "unet", name)
    assert "forward" not in vars(pipe.unet), "all or none"
    with pytest.raises(ArgumentError, match="none of unet, transformer"):
        use_graphs(types.SimpleNamespace(vae=pipe.vae))


@pytest.mark.long
def test_graphs_go_with_their_pipeline(device):
    pipe = pipeline("StableDiffusion", device)
    use_graphs(pipe)
    loop = denoise_loop(pipe, STEPS)
    latents, text = noise_and_text(0, device)
    for _ in range(2):
        run(pipe, "StableDiffusion", 0, device)
        loop(latents, 2.0, encoder_hidden_states=text)
    gone = weakref.ref(pipe.unet)
    del pipe, loop
    gc.collect()
    assert gone() is None


# The whole loop as one graph


@torch.no_grad()
def by_hand(denoiser, scheduler, latents, scale, text, **step):
    """The loop as it is written in the pipelines."""
    scheduler.set_timesteps(STEPS, device=latents.device)
    latents = latents * getattr(scheduler, "init_noise_sigma", 1.0)
    for t in scheduler.timesteps:
        batch = torch.cat([latents] * 2)
        if hasattr(scheduler, "scale_model_input"):
            batch = scheduler.scale_model_input(batch, t)
        output = denoiser(batch, t, encoder_hidden_states=text, return_dict=False)[0]
        without, given = output.chunk(2)
        output = without + scale * (given - without)
        latents = scheduler.step(output, t, latents, return_dict=False, **step)[0]
    return latents


def noise_and_text(seed, device, dtype=torch.float32, batch=1):
    random = torch.Generator().manual_seed(seed)
    latents = torch.randn(batch, 4, 8, 8, generator=random)
    return latents.to(device, dtype), torch.randn(2 * batch, 6, 16, generator=random).to(
        device, dtype
    )


@pytest.mark.parametrize("name", sampled(SCHEDULERS, 4, of_long=11))
def test_the_loop_with_its_scheduler_is_one_graph(device, name):
    model = unet(device)
    loop = denoise_loop((model, scheduler(name)), STEPS)
    for seed in range(3):
        latents, text = noise_and_text(seed, device)
        torch.manual_seed(seed)
        expected = by_hand(model, scheduler(name), latents, 3.3 + seed, text)
        torch.manual_seed(seed)
        same(loop(latents, 3.3 + seed, encoder_hidden_states=text), expected)
    stats = loop.stats()
    assert (stats.captures, stats.replays) == (1, 2) and not stats.fallbacks
    assert stats.graphs[0].paths == 1


# DEIS computes with NumPy on what ``check`` takes to be on the device.
@pytest.mark.long
@pytest.mark.parametrize("name", sampled((n for n in SCHEDULERS if n[:4] != "DEIS"), 6, of_long=11))
def test_on_a_gpu_nothing_in_the_loop_would_need_the_host(name):
    loop = denoise_loop((unet("cpu"), scheduler(name)), 2)
    latents, text = noise_and_text(0, "cpu")
    with torch.no_grad():
        report = gfxgraph.check(
            loop._graph.__wrapped__, latents, torch.tensor(2.0), encoder_hidden_states=text
        )
    assert report.verdict in ("captures", "folds"), report.hazards


@pytest.mark.long
def test_the_loop_gives_what_the_pipeline_gives(device):
    pipe = pipeline("StableDiffusion", device)
    loop = denoise_loop(pipe, STEPS)
    for seed in range(2):
        call = request("StableDiffusion", seed, device)
        latents, _ = noise_and_text(seed, device)
        text = torch.cat([call["negative_prompt_embeds"], call["prompt_embeds"]])
        got = loop(latents, call["guidance_scale"], encoder_hidden_states=text)
        same(got, pipe(**call | {"latents": latents}).images)
    assert loop.stats().replays == 1


def test_the_loop_knows_how_transformers_are_called(device):
    latents, text = noise_and_text(0, device)
    pooled = torch.randn(2, 12, device=device)

    pipe = pipeline("StableDiffusion3", device)
    call = request("StableDiffusion3", 0, device, latents=latents, prompt_embeds=text[1:])
    call |= {"negative_prompt_embeds": text[:1], "pooled_prompt_embeds": pooled[1:]}
    expected = pipe(**call | {"negative_pooled_prompt_embeds": pooled[:1]}).images
    loop = denoise_loop(pipe, STEPS)
    for _ in range(2):
        got = loop(latents, 3.3, encoder_hidden_states=text, pooled_projections=pooled)
        same(got, expected)
    assert loop.stats().replays == 1

    pipe = pipeline("DiT", device)
    call = request("DiT", 7, device, output_type="pt")
    random = copy.deepcopy(call["generator"])
    expected = pipe(**call).images
    drawn = torch.randn(1, 4, 8, 8, generator=random).to(device)
    loop = denoise_loop(pipe, STEPS)
    for _ in range(2):
        got = loop(drawn, call["guidance_scale"], class_labels=torch.tensor([1000, 7]).to(device))
        with torch.no_grad():
            image = pipe.vae.decode(got / pipe.vae.config.scaling_factor).sample
        got = (image / 2 + 0.5).clamp(0, 1)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert loop.stats().replays == 1


def test_the_loop_of_flux_takes_its_guidance_as_a_condition(device):
    pipe = pipeline("Flux", device)
    # The shift by the number of tokens, and the sigmas, are those of its pipeline.
    mu = diffusers.pipelines.flux.pipeline_flux.calculate_shift(64)
    sigmas = torch.linspace(1.0, 1 / STEPS, STEPS).tolist()
    loop = denoise_loop(pipe, STEPS, schedule={"sigmas": sigmas, "mu": mu})
    for seed in range(3):
        call = request("Flux", seed, device)
        latents = torch.randn(1, 64, 16, device=device)
        expected = pipe(**call | {"latents": latents}).images
        image = pipe._prepare_latent_image_ids(1, 8, 8, device, torch.float32)
        got = loop(
            latents,
            guidance=torch.full([1], call["guidance_scale"], device=device),
            pooled_projections=call["pooled_prompt_embeds"],
            encoder_hidden_states=call["prompt_embeds"],
            txt_ids=torch.zeros(6, 3, device=device),
            img_ids=image,
        )
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert loop.stats().replays == 2


@pytest.mark.long
def test_guidance_is_an_input_and_rounds_like_a_number(device):
    for dtype in (torch.bfloat16, torch.float64):
        model = unet(device).to(dtype)
        loop = denoise_loop((model, scheduler("DDIM")), STEPS)
        for scale in (1.7, 3.3, 7.1):
            latents, text = noise_and_text(0, device, dtype)
            expected = by_hand(model, scheduler("DDIM"), latents, scale, text)
            same(loop(latents, scale, encoder_hidden_states=text), expected)
        assert loop.stats().captures == 1 and loop.stats().replays == 2
    latents, text = noise_and_text(1, device, torch.float64, batch=2)
    each = torch.tensor([2.0, 5.0], device=device).view(2, 1, 1, 1)
    got = [loop(latents, each, encoder_hidden_states=text) for _ in range(2)][1]
    for row in range(2):
        pick = [row, 2 + row]
        alone = loop.eager(
            latents[row : row + 1], float(each[row]), encoder_hidden_states=text[pick]
        )
        torch.testing.assert_close(got[row : row + 1], alone, rtol=1e-5, atol=1e-5)
    without = [loop(latents, encoder_hidden_states=text[:2]) for _ in range(2)][1]
    same(without, loop.eager(latents, encoder_hidden_states=text[:2]))


@pytest.mark.long
def test_the_scheduler_of_the_pipeline_is_left_alone(device):
    pipe = pipeline("StableDiffusion", device)
    pipe.scheduler.set_timesteps(7)
    before = dict(vars(pipe.scheduler))
    loop = denoise_loop(pipe, STEPS)
    latents, text = noise_and_text(0, device)
    expected = loop(latents, 2.0, encoder_hidden_states=text)
    pipe.scheduler.set_timesteps(9)
    same(loop(latents, 2.0, encoder_hidden_states=text), expected)
    assert loop.stats().replays == 1
    assert before.keys() == vars(pipe.scheduler).keys() and pipe.scheduler.step_index is None


@pytest.mark.long
def test_random_schedulers_draw_from_the_generator_they_are_given(device):
    model = unet(device)
    random = torch.Generator(device)
    name = "EulerAncestralDiscrete"
    loop = denoise_loop((model, scheduler(name)), STEPS, step={"generator": random})
    latents, text = noise_and_text(0, device)
    for seed in range(3):
        random.manual_seed(seed)
        expected = by_hand(model, scheduler(name), latents, 2.0, text, generator=random)
        random.manual_seed(seed)
        same(loop(latents, 2.0, encoder_hidden_states=text), expected)
    assert loop.stats().replays == 2


@pytest.mark.long
def test_what_the_loop_reaches_is_watched(device):
    model = unet(device)
    strength = 1.0

    def predict(denoiser, latents, timestep, text):
        return strength * denoiser(latents, timestep, text, return_dict=False)[0]

    loop = denoise_loop((model, scheduler("UniPCMultistep")), STEPS, predict=predict)
    latents, text = noise_and_text(0, device)

    def graph_and_eager():
        for _ in range(2):
            got = loop(latents, 2.0, text=text)
        same(got, loop.eager(latents, 2.0, text=text))
        return got

    first = graph_and_eager()
    strength = 0.5
    second = graph_and_eager()
    model.conv_out.weight = torch.nn.Parameter(2 * model.conv_out.weight.detach())
    third = graph_and_eager()
    assert not first.equal(second) and not second.equal(third)
    assert loop.stats().recaptures == 2 and loop.stats().replays == 3


class Loud(diffusers.UNet2DConditionModel):
    """A denoiser of the user's own, with a number on its class."""

    gain = 1.0

    def forward(self, *args, **kwargs):
        return (self.gain * super().forward(*args, **kwargs)[0],)


@pytest.mark.long
def test_numbers_on_the_denoisers_class_are_watched(device, monkeypatch):
    loop = denoise_loop((Loud(**UNET).eval().to(device), scheduler("DDIM")), STEPS)
    latents, text = noise_and_text(0, device)
    results = []
    for gain in (1.0, 0.5):
        monkeypatch.setattr(Loud, "gain", gain)
        results += [loop(latents, 2.0, encoder_hidden_states=text) for _ in range(2)]
        same(results[-1], loop.eager(latents, 2.0, encoder_hidden_states=text))
    assert not results[0].equal(results[-1])
    assert loop.stats().captures == 2 and loop.stats().replays == 2


@pytest.mark.long
@pytest.mark.parametrize("name", ["DDIM", "EulerDiscrete"])
def test_a_loop_made_in_inference_mode_is_a_graph(device, name):
    with torch.inference_mode():
        loop = denoise_loop((unet(device), scheduler(name)), STEPS)
        for seed in range(3):
            latents, text = noise_and_text(seed, device)
            got = loop(latents, 2.0, encoder_hidden_states=text)
            same(got, loop.eager(latents, 2.0, encoder_hidden_states=text))
    assert loop.stats().captures == 1 and loop.stats().replays == 2


@pytest.mark.long
def test_a_pipeline_with_graphs_can_also_be_one_loop(device):
    pipe = pipeline("StableDiffusion", device)
    latents, text = noise_and_text(0, device)
    expected = by_hand(pipe.unet, copy.deepcopy(pipe.scheduler), latents, 2.0, text)
    with use_graphs(pipe) as graphs:
        loop = denoise_loop(pipe, STEPS)
        for _ in range(2):
            same(loop(latents, 2.0, encoder_hidden_states=text), expected)
        assert loop.stats().replays == 1 and graphs.stats()["unet"].captures == 0


class Remembering(diffusers.DDIMScheduler):
    """Keeps its state where a copy of the scheduler does not reach."""

    def step(self, *args, **kwargs):
        self.memory.steps.append(1)
        return super().step(*args, **kwargs)


@pytest.mark.long
def test_state_that_no_copy_renews_stays_eager_and_says_why(device):
    kept = Remembering()
    kept.memory = types.SimpleNamespace(steps=[])
    loop = denoise_loop((unet(device), kept), STEPS)
    latents, text = noise_and_text(0, device)
    for _ in range(2):
        same(
            loop(latents, 2.0, encoder_hidden_states=text),
            loop.eager(latents, 2.0, encoder_hidden_states=text),
        )
    (reason,) = loop.stats().fallbacks
    assert "each call rebinds" in reason and "steps" in reason
    loop = denoise_loop((unet(device), kept), STEPS, fallback="raise")
    with pytest.raises(CaptureError, match="each call rebinds"):
        loop(latents, 2.0, encoder_hidden_states=text)


def test_schedulers_that_step_otherwise_are_refused(device):
    model = unet(device)
    with pytest.raises(ArgumentError, match=r"RePaintScheduler.*missing.*'original_image'"):
        denoise_loop((model, diffusers.RePaintScheduler()), STEPS)
    with pytest.raises(ArgumentError, match=r"ScoreSdeVeScheduler.*no attribute 'step'"):
        denoise_loop((model, diffusers.ScoreSdeVeScheduler()), STEPS)
    with pytest.raises(ArgumentError, match="unexpected keyword argument 'eta'"):
        denoise_loop((model, scheduler("EulerDiscrete")), STEPS, step={"eta": 0.5})


def test_what_no_loop_is_known_for_is_refused(device):
    with pytest.raises(ArgumentError, match=r"how to call a Linear is not known.*predict="):
        denoise_loop((torch.nn.Linear(2, 2), scheduler("DDIM")), STEPS)
    pipe = types.SimpleNamespace(unet=unet(device), scheduler=scheduler("DDIM"))
    pipe.controlnet = torch.nn.Linear(2, 2)
    with pytest.raises(ArgumentError, match="found unet and controlnet"):
        denoise_loop(pipe, STEPS)
    with pytest.raises(ArgumentError, match="found none"):
        denoise_loop(types.SimpleNamespace(scheduler=None), STEPS)
