"""``Generator(whole=True)`` gives what ``model.generate`` gives from a replay, or says why not."""

from __future__ import annotations

import logging
import re

import pytest
import torch

from gfxgraph.device import current_device
from gfxgraph.errors import ArgumentError, CaptureError
from tests.helpers.paths import ROOT
from tests.integrations.test_transformers import FAMILIES, NEW_ONLY, OLD, eager, make, prompt

transformers = pytest.importorskip("transformers")
integration = pytest.importorskip("gfxgraph.integrations.transformers")

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 128,
}
LENGTH = 64


def tiny(device, kind=None, **options):
    torch.manual_seed(0)
    kind = kind or transformers.LlamaForCausalLM
    model = kind(transformers.LlamaConfig(**TINY, **options)).eval().to(device)
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    return model


def whole(model, max_length=LENGTH, **options):
    return integration.Generator(model, max_length=max_length, whole=True, **options)


def is_that_of_generate(generate, ids, mask, **options):
    expected = eager(generate.model, ids, mask, do_sample=False, **options)
    got = generate(ids, mask, **options)
    assert got.equal(expected), options
    return got[:, ids.shape[1] :]


@pytest.fixture(scope="module")
def generate():
    """One generator for many texts, so that they share its graphs."""
    return whole(tiny("cuda" if torch.cuda.is_available() else "cpu"), fallback="raise")


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_that_ends_early_is_one_replay_for_each_family(device, family):
    model = make(*FAMILIES[family], device)
    if OLD and family in NEW_ONLY:
        pytest.skip("this version asks the device how long the text is")
    generate = whole(model, 128, fallback="raise")
    ids, mask = prompt(device, 3)
    free = is_that_of_generate(generate, ids, mask, max_new_tokens=40)
    ends = [free[row, at].item() for row, at in enumerate((25, 4, 11))]
    before = generate.stats()
    text = is_that_of_generate(generate, ids, mask, max_new_tokens=40, eos_token_id=ends)
    stats = generate.stats()
    assert text.shape[1] <= 26 and stats.captures == 2, "a graph of the prompt, a graph of the text"
    assert stats.whole_replays - before.whole_replays == 1 and not stats.decode_replays
    assert stats.prefill_replays - before.prefill_replays == 1 and not stats.fallbacks


@pytest.mark.parametrize("rows", [1, 3])
def test_texts_end_where_generate_ends_them(device, generate, rows):
    ids, mask = prompt(device, rows)
    free = is_that_of_generate(generate, ids, mask, max_new_tokens=50)
    captures = generate.stats().captures
    for at in ([0, 0, 0], [49, 3, 8], [3, 49, 8], [7, 7, 49], [12, 12, 12]):
        ends = [free[row, n].item() for row, n in enumerate(at[:rows])]
        for tokens in (1, 2, 13, 50):
            options = {"eos_token_id": ends, "pad_token_id": 5, "max_new_tokens": tokens}
            is_that_of_generate(generate, ids, mask, **options)
    first = free[:, 0].unique()
    text = is_that_of_generate(generate, ids, mask, max_new_tokens=50, eos_token_id=first)
    assert text.shape[1] == 1, "the first token of each row is the last"
    last = max(map(free[0].tolist().index, free[0].tolist()))
    for tokens in (last, last + 1, last + 2):
        end = free[0, last].item()
        is_that_of_generate(generate, ids[:1], mask[:1], max_new_tokens=tokens, eos_token_id=end)
    assert rows == 1 or generate.stats().captures - captures <= 2, "only those of a single row"


def test_a_processor_of_logits_is_refused_by_its_name(device, generate):
    ids, mask = prompt(device, 1)
    processors = [transformers.MinLengthLogitsProcessor(9, 1, device=device)]
    for given in (processors, transformers.LogitsProcessorList(processors), processors[0]):
        with pytest.raises(ArgumentError, match=r"\[MinLengthLogitsProcessor\].*model\.generate"):
            generate(ids, mask, max_new_tokens=3, logits_processor=given)
    expected = generate(ids, mask, max_new_tokens=3)
    assert generate(ids, mask, max_new_tokens=3, logits_processor=[]).equal(expected)


def test_prompts_of_other_lengths_share_the_graph_of_the_text(device, generate):
    is_that_of_generate(generate, *prompt(device, 1), max_new_tokens=3)
    captures = generate.stats().captures
    for length in (9, 16, 1, 3):
        is_that_of_generate(generate, *prompt(device, 1, length, length), max_new_tokens=20)
    assert generate.stats().captures == captures
    for length in (17, 40):
        is_that_of_generate(generate, *prompt(device, 1, length, length), max_new_tokens=20)
    assert generate.stats().captures == captures + 2, "two more lengths of padded prompts"


def test_nothing_of_a_text_reaches_the_next(device, generate):
    ids, mask = prompt(device, 3)
    expected = generate(ids, mask, max_new_tokens=30)
    kept = expected.clone()
    for session in generate._sessions.values():
        decoder = session.decoder
        for tensor in (decoder.token, decoder.slot, decoder.position, decoder.written):
            tensor.fill_(10**9)
        for layer in decoder.cache.layers:
            layer.keys.fill_(torch.nan)
            layer.values.fill_(torch.nan)
    assert generate(ids, mask, max_new_tokens=30).equal(expected)
    generate(ids + 1, mask, max_new_tokens=30)
    assert expected.equal(kept), "a text is not overwritten by the next"


def test_the_cache_holds_what_a_replay_for_each_token_leaves_in_it(device, generate):
    steps = integration.Generator(generate.model, max_length=LENGTH, check_every=1)
    ids, mask = prompt(device, 3)
    free = generate(ids, mask, max_new_tokens=30)[:, ids.shape[1] :]
    options = {"max_new_tokens": 30, "eos_token_id": [free[n, 4 + 6 * n].item() for n in range(3)]}
    assert generate(ids, mask, **options).equal(steps(ids, mask, **options))
    key = generate._key(ids)
    one, other = (which._sessions[key].decoder.cache.layers for which in (generate, steps))
    exact = {"rtol": 0, "atol": 0} if device == "cpu" else {}
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.keys, b.keys, **exact)
        torch.testing.assert_close(a.values, b.values, **exact)


@pytest.mark.parametrize(
    ("way", "tokens"),
    [
        ({}, 1),
        pytest.param({}, 4, marks=pytest.mark.long),
        pytest.param({"whole": True}, 1, marks=pytest.mark.long),
        pytest.param({"whole": True}, 4, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_captures_stay_inside_of_a_cache_that_is_full(device, way, tokens):
    model = tiny(device)
    ids, mask = prompt(device, 2)
    length = ids.shape[1] + tokens
    generate = integration.Generator(model, max_length=length, fallback="raise", **way)
    is_that_of_generate(generate, ids, mask, max_new_tokens=tokens)
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    is_that_of_generate(generate, ids[:, -3:], mask[:, -3:], max_new_tokens=length - 3)
    assert not generate.stats().fallbacks


@pytest.mark.long
def test_weights_that_change_are_used_and_models_are_kept_apart(device, generate):
    ids, mask = prompt(device, 3)
    other = whole(tiny(device), ids.shape[1] + 20, fallback="raise")  # the text fills the cache
    for change in ("none", "in place", "rebound"):
        weight = other.model.lm_head.weight
        if change == "in place":
            weight.data.neg_()
        if change == "rebound":
            other.model.lm_head.weight = torch.nn.Parameter(torch.randn_like(weight))
        changed = is_that_of_generate(other, ids, mask, max_new_tokens=20)
        text = is_that_of_generate(generate, ids, mask, max_new_tokens=20)
        assert text.equal(changed) == (change == "none")


def test_drawn_tokens_take_a_replay_each_and_the_reason_is_counted(device, caplog):
    generate = whole(tiny(device))
    ids, mask = prompt(device, 3)
    with caplog.at_level(logging.WARNING, "gfxgraph"):
        for seed in (1, 2):
            options = {"max_new_tokens": 12, "do_sample": True, "seed": seed}
            assert generate(ids, mask, **options).equal(eager(generate.model, ids, mask, **options))
    ((reason, count),) = generate.stats().fallbacks.items()
    assert "random numbers" in reason and count == 2 and generate.stats().decode_replays
    assert caplog.text.count("a replay a token") == 1, "logged once"
    is_that_of_generate(generate, ids, mask, max_new_tokens=12)
    generate.fallback = "raise"
    with pytest.raises(CaptureError, match="random numbers"):
        generate(ids, mask, max_new_tokens=4, do_sample=True)


def test_a_device_without_conditional_nodes_takes_a_replay_for_each_token(device, monkeypatch):
    kind = type(current_device())
    monkeypatch.setattr(kind, "no_conditionals", lambda *_: "HIP has no conditional nodes")
    generate = whole(tiny(device))
    ids, mask = prompt(device, 3)
    free = is_that_of_generate(generate, ids, mask, max_new_tokens=20)
    is_that_of_generate(generate, ids, mask, max_new_tokens=20, eos_token_id=free[:, 5])
    stats = generate.stats()
    ((reason, count),) = stats.fallbacks.items()
    assert "HIP has no conditional nodes" in reason and count == 2
    assert stats.decode_replays and not stats.whole_replays
    generate.fallback = "raise"
    with pytest.raises(CaptureError, match="HIP"):
        generate(ids, mask, max_new_tokens=4)


@pytest.mark.long
def test_what_no_turn_of_a_loop_can_do_is_named(device):
    class AddsConstant(transformers.LlamaForCausalLM):
        def forward(self, *args, **options):
            out = super().forward(*args, **options)
            out.logits = out.logits * torch.tensor([-2.0], device=out.logits.device)
            return out

    generate = whole(tiny(device, AddsConstant))
    ids, mask = prompt(device)
    for _ in range(2):
        is_that_of_generate(generate, ids, mask, max_new_tokens=12)
    ((reason, count),) = generate.stats().fallbacks.items()
    assert "the host decides while_loop()" in reason and "in forward: out.logits" in reason
    assert count == 2 and generate.stats().decode_replays


@pytest.mark.long
def test_a_turn_that_changes_python_is_done_again_in_each_turn(device):
    class Counts(transformers.LlamaForCausalLM):
        calls = 0

        def forward(self, *args, **options):
            self.calls += 1
            return super().forward(*args, **options)

    generate = whole(tiny(device, Counts))
    ids, mask = prompt(device, 1)
    generate(ids, mask, max_new_tokens=8)
    before = generate.model.calls
    generate(ids, mask, max_new_tokens=8)
    assert generate.model.calls - before == 8
    assert any("calls" in reason for reason in generate.stats().fallbacks)


@pytest.mark.long
def test_a_model_in_double_precision_is_answered_from_graphs(device):
    generate = whole(tiny(device).double(), fallback="raise")
    is_that_of_generate(generate, *prompt(device, 1), max_new_tokens=12)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"whole": 1}, "whole=1: expected True or False"),
        ({"whole": True, "compile": True}, "compile= with whole=True"),
    ],
    ids=str,
)
def test_an_option_of_the_wrong_kind_is_refused(generate, options, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        integration.Generator(generate.model, max_length=8, **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0: expected a whole number from 1"),
        ({"pad_token_id": [1, 2]}, r"pad_token_id=\[1, 2\]: expected one token id"),
        ({"eos_token_id": torch.tensor([0.5])}, "eos_token_id=.*expected a token id or several"),
        ({"streamer": 1}, "streamer=.*not supported"),
        ({"stopping_criteria": []}, "stopping_criteria=.*not supported"),
    ],
    ids=str,
)
def test_an_argument_of_the_wrong_kind_is_refused(device, generate, options, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        generate(prompt(device)[0], **{"max_new_tokens": 4} | options)


def test_the_example_of_the_page_runs_and_prints_what_it_says(device, capsys):
    page = (ROOT / "docs" / "generation.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(example, "docs/generation.md", "exec"), {})
    printed = capsys.readouterr().out
    if device == "cpu" and not OLD:
        (said,) = re.findall(r"```\n(torch.Size.*?), \.\.\.\n```", page)
        assert printed.startswith(said)
    assert "decode_replays=0, whole_replays=3" in printed
