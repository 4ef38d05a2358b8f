"""``Generator`` gives what ``model.generate`` gives, from graphs, or says why it cannot."""

from __future__ import annotations

import copy
import re
import shutil
import warnings
from collections import Counter

import pytest
import torch

import gfxgraph
from gfxgraph.errors import ArgumentError, CaptureError, VerificationError
from tests.helpers.sampled import sampled

transformers = pytest.importorskip("transformers")
integration = pytest.importorskip("gfxgraph.integrations.transformers")
decoding = pytest.importorskip("gfxgraph.integrations.transformers_decoding")

pytestmark = pytest.mark.usefixtures("one_thread")
OLD = tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 23)
"""Answers by ``generate`` some of what newer versions can have answered from graphs."""
NEW_ONLY = {"Bloom with biases for positions", "Llama with long RoPE"}
VOCABULARY = 97
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
WINDOW = 8
NEW_TOKENS = 64


def rope(kind: str, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, **more}}


LONG = rope(
    "longrope",
    short_factor=[1.0] * 8,
    long_factor=[3.0] * 8,
    original_max_position_embeddings=32,
)
FAMILIES = {
    "Llama": ("LlamaConfig", SMALL),
    "Qwen3": ("Qwen3Config", {**SMALL, "head_dim": 16}),
    "Qwen3-MoE": (
        "Qwen3MoeConfig",
        {**SMALL, "head_dim": 16, "num_experts": 4, "moe_intermediate_size": 32}
        | {"num_experts_per_tok": 2},
    ),
    "Mistral with a sliding window": ("MistralConfig", {**SMALL, "sliding_window": WINDOW}),
    "Gemma 3 with sliding and full layers": (
        "Gemma3TextConfig",
        {**SMALL, "head_dim": 16, "sliding_window": WINDOW}
        | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
    "Llama 4 with chunks and experts": (
        "Llama4TextConfig",
        {**SMALL, "head_dim": 16, "attention_chunk_size": 16, "intermediate_size_mlp": 64}
        | {"num_local_experts": 2},
    ),
    "GPT-2 with learned positions": (
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}
        | {"bos_token_id": 0, "eos_token_id": None},
    ),
    "Bloom with biases for positions": (
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4}
        | {"eos_token_id": None, "pad_token_id": None},
    ),
    "Llama with long RoPE": ("LlamaConfig", {**SMALL, **LONG}),
}
REFUSED = {
    "its RoPE is dynamic": (
        "LlamaConfig",
        {**SMALL, "max_position_embeddings": 32} | rope("dynamic"),
    ),
    "its cache has layers of the kind LinearAttention": (
        "Lfm2Config",
        {**SMALL, "layer_types": ["conv", "full_attention"], "block_ff_dim": 96},
    ),
    "overrides prepare_inputs_for_generation": (
        "MambaConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2},
    ),
    "it recomputes its cache where a text passes 32 tokens": (
        "Phi3Config",
        {**SMALL, "pad_token_id": 0, "original_max_position_embeddings": 32}
        | rope("longrope", short_factor=[1.0] * 8, long_factor=[3.0] * 8),
    ),
}


def make(config: str, options: dict, device: str):
    torch.manual_seed(0)
    made = getattr(transformers, config)(**options)
    model = transformers.AutoModelForCausalLM.from_config(made).eval().to(device)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture
def llama(device):
    return make("LlamaConfig", SMALL, device)


def prompt(device: str, rows: int = 1, length: int = 12, seed: int = 1):
    """Token ids, each row but the last with padding of another length on its left."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=random)
    mask = torch.ones_like(ids)
    for row in range(rows - 1):
        mask[row, : 5 - 2 * row] = 0
    return (ids * mask).to(device), mask.to(device)


def eager(model, ids, mask=None, *, seed=None, **options):
    if seed is not None:
        torch.manual_seed(seed)
    return model.generate(ids, attention_mask=mask, **options)


def generator(model, max_length=128, **options):
    return integration.Generator(model, max_length=max_length, **options)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("family", sampled(FAMILIES, 4))
def test_the_most_likely_tokens_are_those_of_generate_and_each_is_a_replay(device, family, rows):
    model = make(*FAMILIES[family], device)
    generate = generator(model, fallback="raise")
    ids, mask = prompt(device, rows)
    expected = eager(model, ids, mask, max_new_tokens=NEW_TOKENS, do_sample=False)
    if OLD and family in NEW_ONLY:
        assert generator(model)(ids, mask, max_new_tokens=NEW_TOKENS).equal(expected)
        return
    for _ in range(2):
        before = generate.stats()
        assert generate(ids, mask, max_new_tokens=NEW_TOKENS).equal(expected)
    stats = generate.stats()
    assert expected.shape[1] == ids.shape[1] + NEW_TOKENS
    assert stats.captures == 2 and not stats.fallbacks, "a graph of the prompt, a graph of a step"
    assert stats.prefill_replays - before.prefill_replays == 1
    assert stats.decode_replays - before.decode_replays == NEW_TOKENS - 1
    assert stats.eager_runs == 2, "the first of each"


@pytest.mark.parametrize("reason", REFUSED)
def test_a_model_that_graphs_would_get_wrong_is_answered_by_generate(device, reason):
    model = make(*REFUSED[reason], device)
    generate = generator(model)
    ids, mask = prompt(device, 3)
    # Dynamic RoPE remembers in the model how long the texts before were.
    expected = eager(copy.deepcopy(model), ids, mask, max_new_tokens=NEW_TOKENS, do_sample=False)
    assert generate(ids, mask, max_new_tokens=NEW_TOKENS).equal(expected)
    ((said, count),) = generate.stats().fallbacks.items()
    if not (OLD and "LinearAttention" in reason):
        assert reason in said
    assert count == 1 and not generate.stats().captures
    assert any(said in key for key in gfxgraph.stats()["fallbacks"])
    with pytest.raises(CaptureError, match=re.escape(said)):
        generator(model, fallback="raise")(ids, mask, max_new_tokens=4)


@pytest.mark.skipif(OLD, reason="its forward asks the device how long the text is")
def test_a_long_rope_that_never_gets_long_is_answered_from_graphs(device):
    model = make(*REFUSED["it recomputes its cache where a text passes 32 tokens"], device)
    generate = generator(model, max_length=32, fallback="raise")
    ids, mask = prompt(device, 3)
    expected = eager(model, ids, mask, max_new_tokens=20, do_sample=False)
    assert generate(ids, mask, max_new_tokens=20).equal(expected)
    assert generate.stats().decode_replays


def test_a_forward_that_raises_with_a_cache_of_fixed_size_is_answered_by_generate(
    device, llama, monkeypatch
):
    def raises(*_, **__):
        raise ValueError("no room")

    ids, mask = prompt(device, 3)
    expected = eager(llama, ids, mask, max_new_tokens=8, do_sample=False)
    monkeypatch.setattr(decoding.Layer, "update", raises)
    generate = generator(llama)
    for _ in range(2):
        assert generate(ids, mask, max_new_tokens=8).equal(expected)
    ((said, count),) = generate.stats().fallbacks.items()
    assert said.endswith("raised ValueError: no room") and count == 2


def test_a_mistake_of_one_call_is_raised_and_does_not_keep_others_from_graphs(device, llama):
    if device == "cuda":
        pytest.skip("an index out of range ends the process's use of a GPU")
    generate = generator(llama, fallback="raise")
    ids, _ = prompt(device)
    with pytest.raises(IndexError):
        generate(ids + VOCABULARY, max_new_tokens=8)
    assert generate(ids, max_new_tokens=8).equal(eager(llama, ids, max_new_tokens=8))


def test_a_model_that_decodes_in_its_own_way_is_answered_by_generate(device):
    class Own(transformers.LlamaForCausalLM):
        def _update_model_kwargs_for_generation(self, outputs, model_kwargs, **options):
            outputs.logits[..., 5:] = -100
            return super()._update_model_kwargs_for_generation(outputs, model_kwargs, **options)

    model = Own(transformers.LlamaConfig(**SMALL)).eval().to(device)
    generate = generator(model)
    ids, mask = prompt(device)
    got = generate(ids, mask, max_new_tokens=8)
    assert (got[:, ids.shape[1] :] < 5).all()
    assert "overrides _update_model_kwargs_for_generation" in next(iter(generate.stats().fallbacks))


@pytest.mark.long
def test_experts_that_are_picked_on_the_host_are_answered_by_generate(device):
    model = make(*FAMILIES["Qwen3-MoE"], device)
    model.set_experts_implementation("eager")
    generate = generator(model)
    ids, mask = prompt(device, 3)
    expected = eager(model, ids, mask, max_new_tokens=16, do_sample=False)
    assert generate(ids, mask, max_new_tokens=16).equal(expected)
    reasons = " ".join(generate.stats().fallbacks)
    assert "nonzero" in reasons and "moe" in reasons, "the operation and the file"


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            {},
            {"top_k": 0},
            {"temperature": 0.7, "top_k": 5},
            {"temperature": 1.3, "top_k": 0, "top_p": 0.8},
            {"temperature": 0.9, "top_k": 40, "top_p": 0.9},
            {"top_k": 1000},
        ],
        4,
    ),
    ids=str,
)
def test_drawn_tokens_are_those_of_generate_from_the_same_seed(device, llama, options):
    generate = generator(llama, fallback="raise")
    ids, mask = prompt(device, 3)
    for seed in (1, 2, 1):
        got = generate(ids, mask, max_new_tokens=24, do_sample=True, seed=seed, **options)
        expected = eager(llama, ids, mask, max_new_tokens=24, do_sample=True, seed=seed, **options)
        assert got.equal(expected)


def test_other_seeds_and_other_calls_draw_other_tokens(device, llama):
    generate = generator(llama)
    ids, mask = prompt(device, 3)

    def drawn(seed=None):
        return generate(ids, mask, max_new_tokens=24, do_sample=True, seed=seed)

    assert drawn(1).equal(drawn(1)) and not drawn(1).equal(drawn(2))
    assert not drawn().equal(drawn())


def test_a_seed_and_verification_leave_the_generator_as_it_was(device, llama):
    generate = generator(llama)
    ids, mask = prompt(device, 3)
    torch.manual_seed(5)
    expected = torch.rand(3, device=device)
    torch.manual_seed(5)
    generate(ids, mask, max_new_tokens=4, do_sample=True, seed=1)
    assert torch.rand(3, device=device).equal(expected)


def test_temperature_top_k_and_top_p_change_without_another_graph(device, llama):
    generate = generator(llama)
    ids, mask = prompt(device, 3)
    for temperature, top_k, top_p in ((1.0, 5, 0.9), (0.3, 3, 0.5), (2.0, 20, 0.99)):
        options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        got = generate(ids, mask, max_new_tokens=16, do_sample=True, seed=3, **options)
        assert got.equal(
            eager(llama, ids, mask, max_new_tokens=16, do_sample=True, seed=3, **options)
        )
    assert generate.stats().captures == 2


def test_only_the_top_k_tokens_appear(device, llama):
    generate = generator(llama)
    ids, mask = prompt(device, 1)
    with torch.no_grad():
        allowed = llama(ids).logits[0, -1].topk(3).indices.tolist()
    seen = {
        generate(ids, mask, max_new_tokens=1, do_sample=True, top_k=3, seed=seed)[0, -1].item()
        for seed in range(60)
    }
    assert seen == set(allowed)


@pytest.mark.parametrize("check_every", sampled([3, 1, 8, 100], 4))
def test_rows_end_and_are_padded_as_generate_does(device, llama, check_every):
    ids, mask = prompt(device, 3)
    free = eager(llama, ids, mask, max_new_tokens=40, do_sample=False)[:, ids.shape[1] :]
    ends = [free[0, 4].item(), free[1, 9].item(), free[2, 20].item()]
    generate = generator(llama, check_every=check_every)
    for end in (ends[:1], ends[:2], ends):
        options = {"eos_token_id": end, "pad_token_id": 2, "max_new_tokens": 40}
        got = generate(ids, mask, **options)
        assert got.equal(eager(llama, ids, mask, do_sample=False, **options))
    assert got.shape[1] < ids.shape[1] + 40 and (got[:, -1] == 2).any()
    assert generate.stats().captures == 2, "other end tokens are no other graph"


def test_after_the_end_no_more_than_check_every_tokens_are_generated(device, llama):
    ids, mask = prompt(device, 1)
    end = eager(llama, ids, mask, max_new_tokens=3, do_sample=False)[0, -1].item()
    generate = generator(llama, check_every=4)
    generate(ids, mask, max_new_tokens=8)
    before = generate.stats().decode_replays
    got = generate(ids, mask, max_new_tokens=100, eos_token_id=end)
    assert got.shape[1] <= ids.shape[1] + 3
    assert generate.stats().decode_replays - before <= 4


def test_the_generation_config_decides_where_no_argument_does(device, llama):
    ids, mask = prompt(device, 3)
    end = eager(llama, ids, mask, max_new_tokens=5, do_sample=False)[0, -1].item()
    config = llama.generation_config
    config.do_sample, config.temperature, config.top_k = True, 0.6, 7
    config.eos_token_id = [end, 10**9]
    generate = generator(llama)
    got = generate(ids, mask, max_new_tokens=30, seed=4)
    assert got.equal(eager(llama, ids, mask, max_new_tokens=30, seed=4))
    longer = generate(ids, mask, max_new_tokens=30, do_sample=False, eos_token_id=-1)
    assert longer.shape[1] == ids.shape[1] + 30


def test_a_generation_config_that_asks_for_more_is_answered_by_generate(device, llama):
    llama.generation_config.repetition_penalty = 1.5
    ids, mask = prompt(device, 3)
    generate = generator(llama)
    got = generate(ids, mask, max_new_tokens=20)
    assert got.equal(eager(llama, ids, mask, max_new_tokens=20, do_sample=False))
    assert "repetition_penalty=1.5" in next(iter(generate.stats().fallbacks))
    llama.generation_config.repetition_penalty = 1.0
    before = generate.stats().decode_replays
    assert before == 0
    generate(ids, mask, max_new_tokens=20)
    assert generate.stats().decode_replays, "asked anew in each call"


@pytest.mark.long
def test_prompts_of_other_lengths_reuse_the_graphs(device, llama):
    generate = generator(llama)
    for length in (9, 16, 12, 3, 1):
        ids, _ = prompt(device, 1, length, seed=length)
        expected = eager(llama, ids, max_new_tokens=20, do_sample=False)
        assert generate(ids, max_new_tokens=20).equal(expected)
    assert generate.stats().captures == 2
    for length in (17, 40):
        ids, _ = prompt(device, 1, length, seed=length)
        expected = eager(llama, ids, max_new_tokens=20, do_sample=False)
        assert generate(ids, max_new_tokens=20).equal(expected)
    assert generate.stats().captures == 4, "two more buckets, the same step"


def test_a_prompt_longer_than_the_buckets_runs_eagerly_and_decodes_from_the_graph(device, llama):
    generate = generator(llama, prefill_buckets=[8])
    ids, mask = prompt(device, 3, 20)
    expected = eager(llama, ids, mask, max_new_tokens=20, do_sample=False)
    assert generate(ids, mask, max_new_tokens=20).equal(expected)
    stats = generate.stats()
    assert stats.captures == 1 and not stats.prefill_replays and stats.decode_replays >= 19


def test_the_padding_is_found_where_no_mask_is_given(device, llama):
    ids, mask = prompt(device, 3)
    got = generator(llama)(ids, max_new_tokens=10)
    assert got.equal(eager(llama, ids, mask, max_new_tokens=10, do_sample=False))


def test_weights_that_change_are_used(device, llama):
    generate = generator(llama)
    ids, mask = prompt(device, 3)
    generate(ids, mask, max_new_tokens=20)
    for change in ("in place", "rebound"):
        with torch.no_grad():
            new = torch.randn_like(llama.lm_head.weight)
            if change == "in place":
                llama.lm_head.weight.copy_(new)
            else:
                llama.lm_head.weight = torch.nn.Parameter(new)
        expected = eager(llama, ids, mask, max_new_tokens=20, do_sample=False)
        assert generate(ids, mask, max_new_tokens=20).equal(expected), change


def test_numbers_that_are_none_do_not_reach_the_next_call(device, llama):
    generate = generator(llama)
    ids, mask = prompt(device, 3)
    expected = generate(ids, mask, max_new_tokens=40)
    (session,) = generate._sessions.values()
    for layer in session.decoder.cache.layers:
        layer.values.fill_(torch.nan)
    assert generate(ids, mask, max_new_tokens=40).equal(expected)


@pytest.mark.long
def test_calls_in_inference_mode_and_under_autocast_do_not_spoil_others(device, llama):
    generate = generator(llama, fallback="raise")
    ids, mask = prompt(device, 3)
    expected = eager(llama, ids, mask, max_new_tokens=20, do_sample=False)
    with torch.inference_mode():
        assert generate(ids, mask, max_new_tokens=20).equal(expected)
    with torch.autocast(device, torch.bfloat16):
        assert generate(ids, mask, max_new_tokens=20).shape == expected.shape
    assert generate(ids, mask, max_new_tokens=20).equal(expected)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_half_precision_stays_within_its_tolerance(device, attention):
    model = make(*FAMILIES["Gemma 3 with sliding and full layers"], device).bfloat16()
    model.set_attn_implementation(attention)
    generate = generator(model, fallback="raise")
    ids, mask = prompt(device, 3)
    assert generate(ids, mask, max_new_tokens=40).shape == (3, 52)
    assert generate.stats().decode_replays >= 39


@pytest.mark.long
def test_logits_that_differ_from_those_of_generate_are_found_before_a_token_is_given(
    device, llama, monkeypatch
):
    # What a cache does that repeats its place: each step overwrites the same slot.
    def stuck(layer, keys, values, *_, **__):
        if not layer.is_initialized:
            layer.lazy_initialization(keys, values)
        layer.keys[:, :, : keys.shape[-2]] = keys
        layer.values[:, :, : keys.shape[-2]] = values
        return layer.keys, layer.values

    monkeypatch.setattr(decoding.Layer, "update", stuck)
    ids, mask = prompt(device, 3)
    expected = eager(llama, ids, mask, max_new_tokens=20, do_sample=False)
    generate = generator(llama)
    assert generate(ids, mask, max_new_tokens=20).equal(expected)
    assert "the logits are not those of model.generate" in next(iter(generate.stats().fallbacks))
    assert gfxgraph.stats()["validation_failures"] == 1
    with pytest.raises(VerificationError, match="of token 1"):
        generator(llama, fallback="raise")(ids, mask, max_new_tokens=20)
    unverified = generator(llama, verify=False)
    assert not unverified(ids, mask, max_new_tokens=20).equal(expected)


def test_a_text_longer_than_the_cache_is_refused(device, llama):
    generate = generator(llama, max_length=20)
    ids, _ = prompt(device, 1, 12)
    with pytest.raises(ArgumentError, match=r"12 tokens and max_new_tokens=9 make 21.*=20"):
        generate(ids, max_new_tokens=9)
    assert generate(ids, max_new_tokens=8).shape == (1, 20)


@pytest.mark.parametrize("argument", ["num_beams", "streamer", "inputs_embeds"])
def test_an_argument_that_graphs_do_not_do_is_refused(device, llama, argument):
    ids, _ = prompt(device)
    with pytest.raises(ArgumentError, match=rf"{argument}=.*not supported.*top_k.*model\.generate"):
        generator(llama)(ids, max_new_tokens=4, **{argument: 2})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"temperature": 0.0}, "temperature=0.0: expected a number above 0"),
        ({"top_k": -1}, "top_k=-1: expected a whole number from 0"),
        ({"top_p": 1.5}, "top_p=1.5: expected a number above 0, up to 1"),
        ({"max_new_tokens": 0}, "max_new_tokens=0: expected a whole number from 1"),
        ({"eos_token_id": "x"}, "eos_token_id='x': expected a token id or several"),
        ({"eos_token_id": range(99)}, "eos_token_id has 99 token ids, at most 32"),
        ({"attention_mask": torch.ones(1, 3)}, r"attention_mask has the shape \(1, 3\)"),
        ({"input_ids": torch.ones(1, 3)}, "input_ids: expected int64 token ids"),
        ({"input_ids": torch.ones(1, 0).long()}, "the prompt is empty"),
    ],
    ids=str,
)
def test_an_argument_of_the_wrong_kind_is_refused(device, llama, options, sentence):
    ids, _ = prompt(device)
    with pytest.raises(ArgumentError, match=sentence):
        generator(llama)(**{"input_ids": ids, "max_new_tokens": 4, "do_sample": True} | options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_length": 0}, "max_length=0: expected a whole number from 1"),
        ({"compile": "yes"}, "torch.compile says: Unrecognized mode=yes"),
        ({"whole": "yes"}, "whole='yes': expected True or False"),
        ({"check_every": 1.5}, "check_every=1.5: expected a whole number from 1"),
        ({"fallback": "never"}, "fallback='never': expected 'eager' or 'raise'"),
        ({"verify": -1}, "verify=-1: expected True, False or a tolerance from 0"),
        ({"prefill_buckets": [16, 8]}, "expected ascending lengths up to max_length=128"),
        ({"prefill_buckets": [256]}, "expected ascending lengths up to max_length=128"),
        ({"model": torch.nn.Linear(2, 2)}, "a language model of transformers, not Linear"),
    ],
    ids=str,
)
def test_an_option_of_the_wrong_kind_is_refused(llama, options, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        integration.Generator(**{"model": llama, "max_length": 128} | options)


@pytest.fixture
def forget_what_was_compiled():
    """Captures go another way in a process where Dynamo has compiled something."""
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.mark.long
@pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "g++", "clang++"))), reason="Inductor needs a compiler"
)
def test_a_compiled_step_gives_the_tokens_of_generate(device, forget_what_was_compiled):
    model = make("LlamaConfig", SMALL | {"num_hidden_layers": 1}, device)
    generate = generator(model, compile=True, fallback="raise")
    ids, mask = prompt(device, 3)
    expected = eager(model, ids, mask, max_new_tokens=NEW_TOKENS, do_sample=False)
    before = sum(torch._dynamo.utils.counters["frames"].values())
    for _ in range(2):
        assert generate(ids, mask, max_new_tokens=NEW_TOKENS).equal(expected)
    assert sum(torch._dynamo.utils.counters["frames"].values()) > before
    assert generate.stats().captures == 2 and generate.stats().decode_replays >= NEW_TOKENS


@pytest.mark.gpu
def test_a_compiled_step_is_fewer_kernels(device, llama, forget_what_was_compiled):
    def kernels(**options):
        generate = generator(llama, fallback="raise", **options)
        ids, mask = prompt(device, 1)
        generate(ids, mask, max_new_tokens=NEW_TOKENS)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            generate(ids, mask, max_new_tokens=NEW_TOKENS)
            torch.cuda.synchronize()
        return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in seen.events())

    plain = kernels()
    if not plain:
        pytest.skip("the profiler sees no kernels here")
    assert kernels(compile=True) < 0.7 * plain, "else the graph holds the step as it was"


@pytest.mark.gpu
def test_no_token_waits_for_the_device(device, llama):
    generate = generator(llama)
    ids, mask = prompt(device, 1)

    def waits(tokens, **options):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                generate(ids, mask, max_new_tokens=tokens, **options)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        lines = (one for one in told if "called a synchronizing" in str(one.message))
        return Counter(f"{one.filename}:{one.lineno}" for one in lines)

    generate(ids, mask, max_new_tokens=64)
    assert waits(64) == waits(2), "as many for 64 tokens as for 2: none for a token"
    asked = waits(64, eos_token_id=VOCABULARY + 1)  # an end that never comes
    asked -= waits(2, eos_token_id=VOCABULARY + 1)
    assert asked.total() == 63 // generate.check_every


@pytest.mark.long
def test_reset_forgets_everything_and_a_copy_of_the_model_is_another(device, llama):
    generate = generator(llama)
    ids, mask = prompt(device, 3)
    expected = generate(ids, mask, max_new_tokens=10)
    generate.reset()
    assert generate.stats().calls == generate.stats().captures == 0
    assert generate(ids, mask, max_new_tokens=10).equal(expected)
    assert generator(copy.deepcopy(llama))(ids, mask, max_new_tokens=10).equal(expected)


HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
TINY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
WITH_ACTIVATIONS = {
    "Mamba": {"state_size": 8},
    "Mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    "FalconMamba": {"state_size": 8},
    "Jamba": {
        **HEADS,
        "num_experts": 2,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "Bamba": {
        **HEADS,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
        "attn_layer_indices": [1],
        "mamba_chunk_size": 8,
    },
    "Lfm2": {**HEADS, "full_attn_idxs": [1]},
    "Qwen3Next": {
        **HEADS,
        "head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "layer_types": ["linear_attention", "full_attention"],
    },
}


@pytest.mark.parametrize("family", WITH_ACTIVATIONS)
@torch.no_grad()
def test_the_table_of_activations_is_what_it_was_and_the_results_are_right(device, family):
    kind = getattr(transformers, f"{family}Config", None)
    if kind is None:
        pytest.skip(f"this transformers has no {family}")
    table = transformers.activations.ACT2FN
    before = list(dict.items(table))
    config = kind(**TINY, **WITH_ACTIVATIONS[family])
    model = transformers.AutoModelForCausalLM.from_config(config).eval().to(device)
    graph = gfxgraph.graphed(lambda ids: model(input_ids=ids, use_cache=False).logits)
    for n in range(4):
        ids = torch.randint(1, 60, (1, 8), device=device)
        expected = model(input_ids=ids, use_cache=False).logits
        torch.testing.assert_close(graph(ids), expected, atol=1e-4, rtol=1e-4)
        assert list(dict.items(table)) == before, n
    assert isinstance(table["relu"](torch.ones(1)), torch.Tensor)
