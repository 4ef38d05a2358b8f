"""``gfxgraph report`` shows what files say, names what it leaves out, and needs no network."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import gfxgraph
from gfxgraph.errors import ArgumentError, MissingPackageError
from gfxgraph.reporting.files import read
from tests.helpers.command import gfxgraph_command
from tests.helpers.paths import RESULTS, ROOT

needs_extra = pytest.mark.skipif(
    importlib.util.find_spec("vl_convert") is None,
    reason="needs pip install vl-convert-python",
)


class Page(HTMLParser):
    """The text of a page, its ids, its links, and whatever it would load or run."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.ids, self.links, self.loads = "", [], [], []
        self.words: list[str] = []
        self.skip = 0
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.skip += tag in ("style", "script")
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if tag == "a" else []
        self.words += [found["aria-label"]] if found.get("role") == "img" else []
        if tag in ("script", "iframe", "object", "embed"):
            self.loads.append(tag)
        for name, value in found.items():
            loaded = name in ("src", "srcset", "xlink:href") or (name == "href" and tag != "a")
            if loaded and not value.startswith("data:"):
                self.loads.append(value)
            if name.startswith("on"):
                self.loads.append(name)

    def handle_endtag(self, tag):
        self.skip -= tag in ("style", "script")

    def handle_data(self, data):
        self.text += "" if self.skip else data


def made(paths, tmp_path: Path) -> tuple[Page, str]:
    out = tmp_path / "report.html"
    gfxgraph.report(paths, out)
    html = out.read_text(encoding="utf-8")
    return Page(html), html


@pytest.fixture(scope="module")
def shown(written, tmp_path_factory) -> tuple[Page, str]:
    """The page of all files, read and as it is."""
    return made(written, tmp_path_factory.mktemp("page"))


@needs_extra
def test_a_page_has_what_each_file_says_and_loads_nothing(shown):
    page, html = shown
    for sentence in (
        "A graph is worth it: 4.49 times as fast as eager (4.45 to 4.53).",
        "prints runs eagerly because the function prints",
        "lint, sync: torch.cuda.synchronize()",
        "act(x=float32[1, 64]): compile differs from eager.",
        "its result is off by 0.5",
        "Eager is launch-bound: the device is idle for 82% of a call.",
        "NVIDIA H200",
        "of what they compute is padding",
    ):
        assert sentence in page.text, sentence
    assert "<script>alert" not in html and "<script>alert(1)</script>" in page.text
    assert page.loads == [] and not re.search(r"url\(|@import", html)
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


@needs_extra
def test_what_is_wrong_comes_before_what_is_refused(shown):
    page, _ = shown
    front = page.text[: page.text.index("What graphs gain")]
    wrong = [front.index(words) for words in ("compile differs from eager", "lint, sync")]
    assert max(wrong) < front.index("prints runs eagerly")


@needs_extra
def test_each_chart_says_its_figures_in_words_and_in_a_table(shown):
    page, html = shown
    assert len(page.words) >= html.count("<svg") > 5
    assert any("graph: 4.49 (4.45 to 4.53)" in words for words in page.words)
    assert all("µs" in words for words in page.words if "Latency" in words)
    for figure in re.findall(r"<figure.*?</figure>", html, re.DOTALL):
        assert "<table" in figure and "<figcaption>" in figure


@needs_extra
def test_times_of_an_emulated_device_are_no_gain(bench, tmp_path):
    import dataclasses

    dataclasses.replace(bench, emulated=True, device="AMD EPYC").to_json(tmp_path / "b.json")
    page, _ = made(tmp_path / "b.json", tmp_path)
    assert "No file has times of a graph and of eager on a device." in page.text
    assert "the times say nothing of a GPU" in page.text


@needs_extra
def test_a_figure_at_several_commits_becomes_a_history(bench, tmp_path):
    for commit in ("aaa1111", "bbb2222"):
        wrapped = {"commit": commit, "command": "gfxgraph bench x", "report": bench.to_dict()}
        (tmp_path / f"{commit}.json").write_text(json.dumps(wrapped))
    page, _ = made(tmp_path, tmp_path)
    assert any("aaa1111: 4.49, bbb2222: 4.49" in words for words in page.words)
    assert "gfxgraph bench x" in page.text


def left_out(path: Path) -> str:
    shown, ((file, reason),) = read([path])
    assert not shown and file == str(path)
    return reason


BAD = {
    "empty": ("", "an empty file"),
    "truncated": ('{"schema": "gfxgraph.bench/1", "na', "the file ends within: it is truncated"),
    "no JSON": ("hello", "no JSON: Expecting value in line 1"),
    "of others": ('{"name": "x", "version": 1}', "of another program: objects with name, version"),
    "a number": ("3", "JSON of another program: numbers"),
    "an empty list": ("[]", "an empty list"),
    "a list of numbers": ("[1]", "JSON of another program: a list of numbers"),
    "newer": ('{"schema": "gfxgraph.bench/2"}', "newer gfxgraph (gfxgraph.bench/2"),
    "a newer doctor": (
        '{"schema": 2, "status": "ok", "platform": null, "findings": [], "health": null}',
        "newer gfxgraph (gfxgraph.doctor, schema 2",
    ),
    "a newer kind": ('{"schema": "gfxgraph.of/1"}', "which this version of gfxgraph does not read"),
    "a schema of others": ('{"schema": "x/1"}', "another program: its schema is 'x/1'"),
    "a version of many digits": (
        '{"schema": "gfxgraph.bench/' + "9" * 5000 + '"}',
        "has no version",
    ),
    "a number of many digits": ('{"a": ' + "9" * 5000 + "}", "more digits than Python reads"),
    "no version": ('{"schema": "gfxgraph.bench/x"}', "has no version"),
    "damaged": ('{"schema": "gfxgraph.bench/1"}', "damaged: 'name' is missing"),
    "deep results": (
        '{"command": "x", "torch": "2", "a": ' + '{"a": ' * 3000 + "1" + "}" * 3001,
        "nested too deeply",
    ),
    "deep": ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_shown_is_named_with_the_reason(name, tmp_path):
    text, reason = BAD[name]
    path = tmp_path / "a.json"
    path.write_text(text)
    assert reason in left_out(path)


WRONG = {
    "a text for a speedup": (("ways", 1, "speedup", "median"), "x", "expected a number, not 'x'"),
    "no finite time": (("ways", 0, "end_to_end_us", "p99"), float("inf"), "a finite number"),
    "NaN": (("ways", 1, "speedup", "low"), float("nan"), "expected a finite number, not nan"),
    "a huge number": (("ways", 0, "end_to_end_us", "p50"), 10**400, "expected a finite number"),
    "true for a time": (("ways", 0, "end_to_end_us", "p50"), True, "a number, not True"),
    "a list for a note": (("ways", 2, "note"), ["x"], r"expected a text, not ['x']"),
    "no ways": (("ways",), None, "not iterable"),
    "a way that is no object": (("ways", 0), 3, "damaged"),
    "a text for emulated": (("emulated",), "no", "expected true or false, not 'no'"),
    "a device that is none": (("device",), None, "expected a text, not None"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_report_with_a_wrong_value_is_left_out(name, bench, tmp_path):
    path, value, reason = WRONG[name]
    data = found = json.loads(bench.to_json())
    for key in path[:-1]:
        found = found[key]
    found[path[-1]] = value
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert reason in left_out(tmp_path / "a.json")


@needs_extra
@pytest.mark.parametrize(
    "text",
    ["</title></svg><script>x</script>", "{{ 7*7 }}", "\ud800", "\0", "\u2028", "\u202e", "'\"&"],
)
def test_text_of_a_file_is_shown_and_never_run(text, bench, tmp_path):
    data = bench.to_dict() | {"name": text, "verdict": text, "device": text}
    (tmp_path / "a.json").write_text(json.dumps(data))
    gfxgraph.report(tmp_path, tmp_path / "report.html", title=text)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    assert re.sub("[\ud800\0\u2028\u202e]", "\ufffd", text) in page.text and "49(" not in page.text
    assert page.loads == []


def test_of_several_reports_in_a_file_the_whole_ones_are_shown(bench, tmp_path):
    whole = {"model": "a model", "report": bench.to_dict()}
    cut = {"report": {"schema": "gfxgraph.bench/1"}}
    data = {
        "commit": "aaa1111",
        "runs": [whole, cut, 3, {"report": bench.to_dict() | {"schema": "x/1"}}],
    }
    (tmp_path / "a.json").write_text(json.dumps(data))
    ((_, (part,)),), left = read([tmp_path])
    assert part.title == "a model" and part.facts["commit"] == "aaa1111"
    assert [one.file.rpartition(", ")[2] for one in left] == ["run 2", "run 3", "run 4"]
    assert "damaged: 'name' is missing" in left[0].reason


def test_reports_in_a_list_need_no_wrapper_and_do_not_hide_each_other(bench, tmp_path):
    some = [bench.to_dict(), 3]
    for number, data in enumerate((some, {"commit": "aaa1111", "runs": some})):
        (tmp_path / f"{number}.json").write_text(json.dumps(data))
    (_, (listed,)), (_, (run,)) = (shown := read([tmp_path]))[0]
    assert listed.title == run.title and run.facts["commit"] == "aaa1111"
    assert [one.reason for one in shown[1]] == ["JSON of another program: numbers"] * 2


@needs_extra
def test_numbers_beyond_64_bits_are_drawn(bench, tmp_path):
    data = bench.to_dict()
    data["ways"][0]["end_to_end_us"]["p99"] = 10**30
    (tmp_path / "a.json").write_text(json.dumps(data))
    page = gfxgraph.report(tmp_path, tmp_path / ("a" * 250))
    assert "1,000,000,000,000,000," in page.path.read_text(encoding="utf-8"), (
        "also under the longest of names"
    )


def test_files_that_cannot_be_read_are_named_too(tmp_path):
    assert left_out(tmp_path / "none.json") == "there is no such file"
    assert left_out(tmp_path) == "a directory without files *.json"
    (tmp_path / "x.json").write_bytes(b"\xff\xfe{\x00}\x00")
    assert left_out(tmp_path / "x.json") == "no text in UTF-8"
    os.mkfifo(tmp_path / "pipe")
    assert left_out(tmp_path / "pipe") == "neither a file nor a directory"


@needs_extra
def test_the_other_files_are_shown_and_the_command_says_what_is_left_out(folder, tmp_path):
    (folder / "cut.json").write_text((folder / "1.json").read_text()[:500])
    out = tmp_path / "page.html"
    result = gfxgraph_command("report", folder, tmp_path / "none.json", "--out", out)
    assert result.exit_code == 1
    assert "5 files shown" in result.output and "cut.json: no JSON" in result.output
    page = Page(out.read_text(encoding="utf-8"))
    assert "cut.json is left out" in page.text and "none.json is left out" in page.text
    assert "4.49 times as fast" in page.text


@needs_extra
@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all files")
def test_a_file_that_may_not_be_read_does_not_hide_the_others(folder, tmp_path):
    (folder / "1.json").chmod(0)
    files = sorted(folder.glob("*.json"))
    result = gfxgraph_command("report", *files, "--out", tmp_path / "page.html")
    assert result.exit_code == 1 and "1.json: it may not be read" in result.output


def test_without_a_file_to_show_no_page_is_written(tmp_path):
    result = gfxgraph_command("report", tmp_path / "none.json", "--out", tmp_path / "page.html")
    assert result.exit_code == 2 and "there is no such file" in result.output
    assert not (tmp_path / "page.html").exists()
    with pytest.raises(ArgumentError, match="at least one"):
        gfxgraph.report([])
    with pytest.raises(ArgumentError, match="takes paths"):
        gfxgraph.report([3])
    with pytest.raises(ArgumentError, match="embedded null byte"):
        gfxgraph.report("x.json", "a\0b")
    with pytest.raises(ArgumentError, match="expected text, not NoneType"):
        gfxgraph.report("x.json", title=None)


@needs_extra
def test_a_page_that_cannot_be_written_leaves_what_was_there(folder, tmp_path):
    for out in (folder, tmp_path / "none" / "page.html", folder / "1.json", Path(os.devnull)):
        before = sorted(path.name for path in tmp_path.rglob("*"))
        with pytest.raises(ArgumentError, match=r"cannot be written|one of the files"):
            gfxgraph.report(folder, out)
        assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert Path(os.devnull).is_char_device()


@needs_extra
def test_a_link_to_a_page_stays_a_link(folder, tmp_path):
    (tmp_path / "link.html").symlink_to(tmp_path / "page.html")
    gfxgraph.report(folder, tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink() and (tmp_path / "page.html").is_file()


@needs_extra
def test_a_file_given_twice_is_shown_once(folder, tmp_path):
    page = gfxgraph.report([folder, folder / "1.json", str(folder)], tmp_path / "page.html")
    assert len(page.shown) == 5 and str(page).endswith("5 files shown.")


@pytest.mark.parametrize("package", ["jinja2", "vl_convert"])
def test_a_missing_package_is_named_with_the_command(package, folder, tmp_path, monkeypatch):
    if package == "vl_convert":
        pytest.importorskip("jinja2")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackageError, match=r"pip install (jinja2|vl-convert-python)"):
        gfxgraph.report(folder, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_the_committed_page_names_each_result_and_loads_nothing():
    page = Page((ROOT / "docs" / "results.html").read_text(encoding="utf-8"))
    first = json.loads((RESULTS / "bench.json").read_text(encoding="utf-8"))["runs"][0]["report"]
    words = first["verdict"].split(". ")[0]
    assert page.loads == [] and " times as fast as eager (" in words and words in page.text
    assert all(f"benchmarks/results/{path.name}" in page.text for path in RESULTS.glob("*.json"))


@needs_extra
def test_the_page_of_our_results_is_up_to_date_and_small(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    given = RESULTS.relative_to(ROOT)
    made = gfxgraph.report(given, tmp_path / "page.html", title="gfxgraph: measured")
    assert made.left_out == () and len(made.shown) == len(list(given.glob("*.json")))
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert len(html.encode()) < 3_000_000
    committed = (ROOT / "docs" / "results.html").read_text(encoding="utf-8")
    drawings = re.compile(r"<svg.*?</svg>", re.DOTALL)  # other versions of Vega draw otherwise
    assert drawings.sub("", html) == drawings.sub("", committed), "run make results"
