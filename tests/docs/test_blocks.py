"""Every code block of every page is run, and prints what the page shows."""

from __future__ import annotations

import logging
import sys

import pytest
import torch

from tests.docs.blocks import COLUMNS, Mismatch, Reader, blocks_of, commands_of, forget
from tests.helpers.paths import ROOT

OTHERWISE = {"docs/rules.md"}  # tests/analyze/test_rules.py runs each of its examples
LONG = {
    f"docs/{name}.md"
    for name in (
        "bench",
        "compile",
        "experiments",
        "generation",
        "parity",
        "report",
        "trace",
        "transformers",
    )
}
PAGES = [
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "```" in path.read_text(encoding="utf-8")
]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    """Pages write files where they are; a terminal has the columns that the pages show."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", COLUMNS)


@pytest.fixture
def process_as_before():
    """A page may give the log a handler and a level, and turn off grad mode."""
    log = logging.getLogger("gfxgraph")
    before = [*log.handlers], log.level
    with torch.enable_grad():
        yield
    log.handlers[:], log.level = before


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if name in LONG else [], id=name)
        for name in PAGES
        if name not in OTHERWISE
    ],
)
@pytest.mark.usefixtures("process_as_before")
def test_the_blocks_of_a_page_run(name, tmp_path, monkeypatch):
    """Pages show what comes without a GPU, from the pinned torch."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    reader = Reader(name)
    try:
        for block in blocks_of((ROOT / name).read_text(encoding="utf-8")):
            reader.read(block)
    finally:
        torch.set_num_threads(threads)
        forget(tmp_path)


@pytest.mark.parametrize("name", PAGES)
def test_every_block_says_what_it_is(name):
    """An indented block would be run by nobody."""
    text = (ROOT / name).read_text(encoding="utf-8")
    fenced = {
        n for b in blocks_of(text) for n in range(b.line - 1, b.line + b.body.count("\n") + 1)
    }
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if number in fenced or not line.startswith("    "):
            continue
        before = [text for text in lines[: number - 1] if text and not text.startswith(" ")]
        assert before and before[-1].startswith(("-", "*", "!!!", "???", "===", "1", ":::")), (
            f"{name}:{number} is code without a fence: {line!r}"
        )


def test_a_command_that_prints_something_else_is_found():
    page = "```console\n$ gfxgraph --version\n0.0.0\n```\n"
    with pytest.raises(Mismatch, match=r"page.md:2 shows"):
        Reader("page.md").read(next(blocks_of(page)))


@pytest.mark.parametrize(
    "line", ["gfxgraph bench f --wya graph", "gfxgraph benhc f", "make teest", "rm -r x"]
)
def test_a_command_that_does_not_exist_is_found(line):
    with pytest.raises(Mismatch):
        Reader("page.md").read(next(blocks_of(f"```sh\n{line}\n```\n")))


def test_a_value_in_a_comment_is_compared():
    reader = Reader("page.md")
    reader.read(next(blocks_of("```python\nprint(1 + 1)  # -> 2\n```\n")))
    with pytest.raises(Mismatch):
        reader.read(next(blocks_of("```python\nprint(1 + 1)  # -> 3\n```\n")))


def test_what_stands_after_a_command_is_what_it_prints():
    assert [*commands_of("$ a b\nx\n$ c\n")] == [("a b", "x\n"), ("c", "")]
