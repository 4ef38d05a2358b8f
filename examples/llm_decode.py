"""A language model of transformers generates from graphs: one for the prompt, one for every token.

``model.generate`` launches each token's hundreds of kernels from Python, and a small batch keeps
the GPU busy for less time than that takes. ``Generator`` replays one graph for each token: the
key-value cache, its position, the choice of the token and the end of each row are in the graph, so
a replay needs nothing of the host, and the next one is launched while it runs. With ``--whole`` one
graph makes all tokens of a text.

The model has random weights, from a fixed seed, so the text means nothing; what can be seen is that
the tokens are the same and how long they take. Run it with ``python examples/llm_decode.py``; on a
GPU, ``--layers 16 --hidden 2048`` is a model of one billion parameters.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

import gfxgraph
from gfxgraph.integrations.transformers import Generator, GeneratorStats

HEAD = 64
VOCABULARY = 32_000


@dataclass(frozen=True)
class Found:
    """What :func:`main` found.

    Attributes:
        equal: the share of tokens that are the same; with weights of half precision, two tokens can
            be equally likely but for rounding, and what follows differs.
        eager_rate: tokens per second of ``model.generate``.
        graph_rate: tokens per second from graphs.
        stats: what the graphs did.
    """

    equal: float
    eager_rate: float
    graph_rate: float
    stats: GeneratorStats


def make_llama(device: str, layers: int, hidden: int) -> PreTrainedModel:
    """A Llama with random weights, in half precision on a GPU."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD,
        num_key_value_heads=max(1, hidden // HEAD // 4),
        max_position_embeddings=4096,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16 if device == "cuda" else torch.float32
        ).eval()
    model.generation_config.eos_token_id = None  # a text that means nothing has no end
    model.generation_config.pad_token_id = 0
    return model


def prompts(device: str, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Token ids and their mask; all rows but the first have padding on their left."""
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(1, VOCABULARY, (rows, length), generator=random)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, : row % length] = 0
    return (ids * mask).to(device), mask.to(device)


def timed(function: Callable[[], Tensor], device: str) -> tuple[Tensor, float]:
    """What the second call gives, and its seconds; the first one captures."""
    for _ in range(2):
        start = time.perf_counter()
        result = function()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    return result, seconds


def main(
    layers: int = 2,
    hidden: int = 128,
    rows: int = 2,
    prompt: int = 12,
    tokens: int = 64,
    whole: bool = False,
) -> Found:
    """Generate with ``model.generate`` and from graphs, and print what came out.

    Args:
        layers: of the model.
        hidden: its width, a multiple of 64.
        rows: how many texts at a time.
        prompt: tokens of a prompt.
        tokens: tokens to generate for each.
        whole: make them in one replay.
    """
    device = gfxgraph.device_type()
    model = make_llama(device, layers, hidden)
    print(f"{model.num_parameters() / 1e6:.1f} M parameters on {gfxgraph.device_facts().name}")
    ids, mask = prompts(device, rows, prompt)
    generate = Generator(model, max_length=prompt + tokens, whole=whole)
    expected, eager_s = timed(
        lambda: model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False),
        device,
    )
    got, graph_s = timed(lambda: generate(ids, mask, max_new_tokens=tokens), device)
    same = got[:, prompt:] == expected[:, prompt:]
    stats = generate.stats()
    found = Found(
        same.float().mean().item(), rows * tokens / eager_s, rows * tokens / graph_s, stats
    )
    print(f"{same.sum().item()} of {same.numel()} tokens are those of model.generate")
    print(f"{found.eager_rate:.0f} tokens/s eager, {found.graph_rate:.0f} tokens/s from graphs")
    print(
        f"{stats.captures} captures, {stats.prefill_replays} prompts, {stats.decode_replays} "
        f"tokens and {stats.whole_replays} texts replayed, {stats.eager_runs} eager, fallbacks: "
        f"{stats.fallbacks or 'none'}"
    )
    if device != "cuda":
        print("No GPU here: the graphs ran on the emulated device, where times mean nothing.")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Generate with a random Llama from graphs.")
    parser.add_argument("--layers", type=int, default=2, help="default 2")
    parser.add_argument("--hidden", type=int, default=128, help="a multiple of 64; default 128")
    parser.add_argument("--rows", type=int, default=2, help="texts at a time; default 2")
    parser.add_argument("--prompt", type=int, default=12, help="tokens of a prompt; default 12")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate; default 64")
    parser.add_argument("--whole", action="store_true", help="make all tokens in one replay")
    main(**vars(parser.parse_args()))
