"""Real model code from transformers, unmodified, through ``graphed``."""

from __future__ import annotations

import copy

import pytest
import torch

import gfxgraph

transformers = pytest.importorskip("transformers")


SMALL = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def tiny_llama(device: str, **options):
    config = transformers.LlamaConfig(**SMALL, max_position_embeddings=64, **options)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval().to(device)


@torch.no_grad()
def greedy(model, step, prompt, count, device):
    cache = transformers.StaticCache(config=model.config, max_cache_len=32)
    out = model(prompt, past_key_values=cache, use_cache=True)
    token = out.logits[:, -1:].argmax(-1)
    tokens = [token]
    for n in range(count):
        position = torch.tensor([[prompt.shape[1] + n]], device=device)
        logits = step(token, position, cache)
        token = logits[:, -1:].argmax(-1)
        tokens.append(token)
    return torch.cat(tokens, 1)


def test_a_decode_step_on_a_static_cache_gives_the_tokens_of_eager(device):
    model = tiny_llama(device)

    def step(token, position, cache):
        return model(token, position_ids=position, past_key_values=cache, use_cache=True).logits

    graph = gfxgraph.graphed(step)
    prompt = torch.randint(97, (1, 5), device=device)
    expected = greedy(model, step, prompt, 12, device)
    assert greedy(model, graph, prompt, 12, device).equal(expected)
    stats = graph.stats()
    assert stats.captures == 1 and stats.replays == 11 and not stats.fallbacks, stats.fallbacks


@pytest.mark.long
def test_a_sliding_window_is_right_whether_or_not_it_can_be_a_graph(device):
    config = transformers.MistralConfig(**SMALL, sliding_window=8)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().to(device)

    def step(token, position, cache):
        return model(token, position_ids=position, past_key_values=cache, use_cache=True).logits

    graph = gfxgraph.graphed(step)
    prompt = torch.randint(97, (1, 5), device=device)
    expected = greedy(model, step, prompt, 14, device)
    assert greedy(model, graph, prompt, 14, device).equal(expected)


@pytest.mark.parametrize("family", ["Bert", "Qwen3", "GPT2", "ViT", "T5Encoder"])
def test_a_forward_of_transformers_is_captured_as_it_is(device, family):
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4}
    ids = {"input_ids": torch.randint(50, (2, 8), device=device)}
    if family == "Bert":
        config = transformers.BertConfig(vocab_size=50, **small, **heads)
        model = transformers.BertModel(config)
    elif family == "Qwen3":
        config = transformers.Qwen3Config(
            vocab_size=50, **small, **heads, num_key_value_heads=2, head_dim=8, use_cache=False
        )
        model = transformers.Qwen3Model(config)
    elif family == "GPT2":
        config = transformers.GPT2Config(
            vocab_size=50, n_embd=32, n_layer=2, n_head=4, use_cache=False
        )
        model = transformers.GPT2Model(config)
    elif family == "ViT":
        config = transformers.ViTConfig(**small, **heads, image_size=32, patch_size=8)
        model = transformers.ViTModel(config)
        ids = {"pixel_values": torch.randn(2, 3, 32, 32, device=device)}
    else:
        config = transformers.T5Config(
            vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
        )
        model = transformers.T5EncoderModel(config)
    model = model.eval().to(device)
    graph = gfxgraph.graphed(copy.copy(model))
    with torch.inference_mode():
        for _ in range(3):
            fresh = {
                name: x.roll(1, -1) if x.dtype == torch.int64 else torch.randn_like(x)
                for name, x in ids.items()
            }
            got, expected = graph(**fresh), model(**fresh)
            assert type(got) is type(expected)
            torch.testing.assert_close(got[0], expected[0], rtol=1e-4, atol=1e-4)
            ids = fresh
    stats = graph.stats()
    assert stats.captures == 1 and stats.replays == 2 and not stats.fallbacks, stats.fallbacks
