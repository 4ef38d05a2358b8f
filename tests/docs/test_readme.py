"""What the README and the pages show is what was measured."""

from __future__ import annotations

import re

import pytest

from benchmarks.tables import alternatives, figures, memory, pictures, readme
from tests.docs.blocks import masked
from tests.helpers.paths import ROOT

DOCS = ROOT / "docs"


@pytest.mark.parametrize(
    "table", [readme, figures, alternatives, memory], ids=lambda table: table.PAGE.name
)
def test_the_figures_are_those_of_the_results(table):
    text = table.PAGE.read_text(encoding="utf-8")
    assert table.page(text) == text, "run PYTHONPATH=src python3 -m benchmarks.tables"


def test_the_readme_stays_short():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100 and len(text.split()) <= 700


@pytest.mark.parametrize("name", pictures.made())
def test_a_picture_is_that_of_the_results(name):
    drawn = (DOCS / "assets" / name).read_text(encoding="utf-8")
    assert drawn == pictures.made()[name], "run PYTHONPATH=src python3 -m benchmarks.tables"


def test_the_picture_of_check_is_what_check_prints():
    (drawn,) = pictures.of_check().values()
    shown = (DOCS / "assets" / "check.svg").read_text(encoding="utf-8")
    assert masked(words_of(drawn), False) == masked(words_of(shown), False)


def words_of(svg: str) -> str:
    """The text of a picture."""
    return "\n".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg)).replace("&#160;", " ")


def test_the_pictures_ask_no_other_host():
    for path in (DOCS / "assets").glob("*.svg"):
        asked = re.findall(r"(?:href|src)=|url\((?!#)|@import", path.read_text(encoding="utf-8"))
        assert not asked, path


@pytest.mark.parametrize("name", ["lerobot", "diffusers", "transformers"])
def test_the_figures_of_a_library_are_those_of_the_models(name):
    """Each number of a table of measurements stands on docs/models.md."""
    models = set(re.findall(r"[\d.,]+\d|\d", (DOCS / "models.md").read_text(encoding="utf-8")))
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    section = page.partition("## What was measured")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert rows
    for row in rows:
        for number in re.findall(r"(?<![\w.])\d[\d.,]*(?= ms|,| \||$)", row.partition("|")[2]):
            assert number.rstrip(",") in models | {"1"}, (row, number)
