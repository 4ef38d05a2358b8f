"""The page of a report: one file with all nodes, to search and to filter."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from .draw import COLOURS
from .model import InspectedGraph

__all__ = ["page_of"]

_TEMPLATE = Path(__file__).with_name("page.html")


def page_of(name: str, about: str, graphs: Sequence[InspectedGraph]) -> str:
    """The page.

    Args:
        name: what was inspected.
        about: one line about the machine.
        graphs: the graphs to show.
    """
    data = {"graphs": list(map(_data_of, graphs)), "colours": COLOURS}
    # Inside of a script only "<" could end it, or begin a comment.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    values = {"name": escape(name), "about": escape(about), "data": text}
    page = _TEMPLATE.read_text(encoding="utf-8")
    # In one go: a value may look like a mark.
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: values[mark[1]], page)


def _data_of(graph: InspectedGraph) -> dict[str, Any]:
    summary = (
        f"{len(graph)} nodes, {graph.branches} side by side at most, the longest chain has "
        f"{graph.depth}"
    )
    keys = ("id", "type", "name", "title", "after", "branch", "details", "where", "file", "line")
    nodes = [{key: getattr(node, key) for key in (*keys, "function", "source")} for node in graph]
    return {"name": graph.name, "note": graph.note, "summary": summary, "nodes": nodes}
