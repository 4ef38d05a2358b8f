"""The examples say what is true of them, on the emulated device and on a GPU."""

from __future__ import annotations

import decoder
import flow_matching
import list_indexing
import pytest
import robot_policy
import torch

import gfxgraph

pytestmark = pytest.mark.usefixtures("one_thread")
TOLERANCE = 1e-5


def is_one_graph(found):
    """Whether all calls but the first were replays of one graph, and gave what eager gives."""
    assert found.check.verdict == "folds", found.check.hazards
    assert found.difference <= TOLERANCE
    stats = found.stats
    assert (stats.captures, stats.replays, stats.fallbacks) == (1, len(found.shapes) - 1, {})
    (row,) = stats.graphs
    assert row.paths == 1
    return all(line.endswith("folded") for line in row.report)


@pytest.mark.long
def test_a_flow_matching_policy_becomes_one_graph(device):
    given, drawn = flow_matching.main()
    assert is_one_graph(given)
    assert is_one_graph(drawn), "also where it draws the noise itself"


def test_a_robots_control_loop_replays_the_policys_own_method(device, capsys):
    assert robot_policy.main(chunks=3) <= TOLERANCE
    assert "1 graph, 2 replays, 1 eager call" in capsys.readouterr().out


def test_a_policy_that_indexes_with_lists_becomes_one_graph(device):
    assert is_one_graph(list_indexing.main())


@pytest.fixture(scope="module")
def decoded():
    """What the decoder's example finds: most likely tokens, drawn tokens."""
    return decoder.main()


@pytest.mark.long
def test_a_decoder_gives_the_tokens_of_eager(device, decoded):
    for found in decoded:
        assert found.check.verdict == "branches"
        assert found.difference == 0
        assert found.stats.replays and len(set(found.shapes)) > 1


@pytest.mark.long
def test_a_decoder_has_as_many_paths_as_its_texts_have_lengths(device, decoded):
    found = decoded[0]
    lengths = len(set(found.shapes))
    assert sum(row.paths for row in found.stats.graphs) == lengths
    assert found.stats.captures == found.stats.eager_calls == lengths
    assert found.stats.replays == 2 * len(found.shapes) - lengths and not found.stats.fallbacks


@pytest.mark.long
def test_a_decoder_reads_the_device_once_for_each_token(device, decoded):
    found = decoded[0]
    (read,) = (hazard for hazard in found.check.hazards if hazard.rule == "host-read")
    assert read.tainted and read.count == found.shapes[0][1], "the first prompt is checked"


@pytest.mark.long
def test_a_diffusion_pipeline_runs_from_a_graph_a_step_or_from_one(device):
    pytest.importorskip("diffusers")
    import diffusion

    stepwise, whole = diffusion.main()
    assert stepwise.difference <= 1e-3 and whole.difference <= 1e-3
    # On a GPU the example makes more images, to time them: all steps but the first are replays.
    images = whole.stats.replays + 1
    assert images >= 4
    assert (whole.stats.captures, stepwise.stats.captures) == (1, 1)
    assert stepwise.stats.replays == images * diffusion.STEPS - 1
    assert not stepwise.stats.fallbacks and not whole.stats.fallbacks


def test_times_are_printed_only_where_they_mean_something(device, capsys):
    found = list_indexing.main()
    printed = capsys.readouterr().out
    if device == "cuda":
        assert found.eager_ms > 0 and found.graph_ms > 0 and "ms eager" in printed
    else:
        assert found.eager_ms is None and " ms " not in printed and "mean nothing" in printed


def test_the_policy_takes_any_batch_and_half_precision(device):
    policy = flow_matching.make_policy(device).bfloat16()
    sample = gfxgraph.graphed(policy.sample_actions)
    for batch in (1, 3, 1, 3):
        inputs = flow_matching.observation(policy, seed=batch, batch=batch)
        actions = sample(*inputs)
        torch.testing.assert_close(actions, policy.sample_actions(*inputs), atol=0.02, rtol=0.02)
        assert actions.dtype == torch.bfloat16 and actions.isfinite().all()
    assert sample.stats().captures == sample.stats().replays == 2


def test_a_language_model_gives_the_tokens_of_generate_from_two_graphs(device):
    pytest.importorskip("transformers")
    import llm_decode

    found = llm_decode.main(layers=1, hidden=64, rows=2, tokens=16)
    stats = found.stats
    assert found.equal == 1 or (device == "cuda" and found.equal > 0.5)
    assert (stats.captures, stats.eager_runs, stats.fallbacks) == (2, 2, {})
    assert stats.decode_replays >= 2 * 15 and stats.prefill_replays == 2
