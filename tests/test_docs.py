"""Links between the pages lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The headings of ``page``, as links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_is_in_the_index():
    index = ROOT / "docs" / "index.md"
    links = re.findall(r"\]\(([^)#\s]+)\)", index.read_text(encoding="utf-8"))
    listed = {(index.parent / link).resolve() for link in links}
    assert {page for page in PAGES if page.parent != ROOT} - {index} <= listed


def test_the_map_and_the_walks_stay_short():
    page = ROOT / "docs" / "architecture.md"
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 150
