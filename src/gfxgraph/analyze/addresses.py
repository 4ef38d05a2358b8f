"""Where the documentation of this installation is, for reports that link to it."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

__all__ = ["docs_address", "rule_address"]


def docs_address() -> str | None:
    """The address of the folder ``docs``; ``None``: not known.

    It is what the package names as its documentation; else the place that pip has installed it
    from, at that commit.
    """
    try:
        found = metadata.distribution("gfxgraph")
    except metadata.PackageNotFoundError:  # it runs from its source
        here = Path(__file__).parents[3] / "docs"
        return here.as_uri() if (here / "rules.md").is_file() else None
    for entry in found.metadata.get_all("Project-URL") or []:
        label, _, address = entry.partition(",")
        if label.strip().lower() == "documentation":
            return str(address).strip().rstrip("/")
    return _installed_from(json.loads(found.read_text("direct_url.json") or "{}"))


def _installed_from(origin: dict[str, Any]) -> str | None:
    """The address for what pip writes down of an installation (PEP 610)."""
    url = str(origin.get("url", "")).removesuffix(".git").rstrip("/")
    parts = urlsplit(url)
    if parts.scheme == "file":
        here = Path(url2pathname(parts.path)) / "docs"
        return here.as_uri() if (here / "rules.md").is_file() else None
    commit = origin.get("vcs_info", {}).get("commit_id")
    if parts.scheme in ("http", "https") and commit:
        return f"{parts.scheme}://{parts.hostname}{parts.path}/blob/{commit}/docs"
    return None


def rule_address(docs: str, rule: str) -> str:
    """The address of a rule: of the site, of a repository, or of a folder."""
    is_file = "/blob/" in docs or docs.startswith("file:")
    return f"{docs}/rules.md#{rule}" if is_file else f"{docs}/rules.html#{rule}"
