"""Links between the pages lead to files and headings that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gfxgraph

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


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


def test_the_map_and_the_walks_stay_short():
    page = ROOT / "docs" / "architecture.md"
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 150


def nav(entries: list[Any]) -> Iterator[str]:
    """The pages of a part of mkdocs.yml's nav."""
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for part in entry.values():
                yield from [part] if isinstance(part, str) else nav(part)


def test_every_page_is_in_the_navigation():
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = [*nav(yaml.safe_load(text)["nav"])]
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.parent != ROOT}
    assert pages == set(listed) and len(listed) == len(set(listed))


def test_every_public_name_has_an_entry_in_the_api():
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "api").glob("*.md")]
    entries = set(re.findall(r"^::: gfxgraph\.([\w.]+)$", "\n".join(pages), re.MULTILINE))
    assert set(gfxgraph.__all__) - {"__version__"} <= entries
