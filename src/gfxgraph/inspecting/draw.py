"""Draws graphs: in Graphviz's language, and as an image."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from html import escape

from ..stats import log
from .model import GraphNode, InspectedGraph, cut

__all__ = ["COLOURS", "colour_of", "dot_of", "svg_of"]

# Colours that people with any colour vision tell apart (Okabe and Ito); the type is in words too.
COLOURS = {
    "kernel": "#0072B2",
    "operator": "#0072B2",
    "memcpy": "#D55E00",
    "memset": "#E69F00",
    "host": "#CC79A7",
    "child graph": "#009E73",
    "memory alloc": "#56B4E9",
    "memory free": "#56B4E9",
}
_OTHER = "#767676"

# Characters that no XML may hold, nor UTF-8 encode.
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

# Graphviz takes minutes for graphs of thousands of nodes.
_MOST_FOR_DOT = 500
_PATIENCE_S = 20.0

_ROW, _LANE, _TOP, _LEFT = 22, 18, 44, 16
_WIDEST = 90


def colour_of(node: GraphNode) -> str:
    """The colour of its type."""
    return COLOURS.get(node.type, _OTHER)


def dot_of(graphs: Sequence[InspectedGraph]) -> str:
    """The graphs in DOT, each in a box of its own."""
    lines = ["digraph graphs {", '  node [shape=box, style=rounded, fontname="sans-serif"];']
    for n, graph in enumerate(graphs):
        lines += [f"  subgraph cluster_{n} {{", f"    label={_quoted(graph.name)};"]
        for node in graph:
            label = _quoted(f"{node.id}: {cut(node.title, 60)}\n{_said(node)}".strip())
            tip = _quoted(node.name or node.type)
            lines.append(
                f'    "{n}/{node.id}" [label={label}, tooltip={tip}, color="{colour_of(node)}"];'
            )
        lines += [f'    "{n}/{o}" -> "{n}/{node.id}";' for node in graph for o in node.after]
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def _said(node: GraphNode) -> str:
    """The type, where the title does not have it, and the line."""
    parts = [node.type if node.name else "", node.where]
    return ", ".join(part for part in parts if part)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{_NOT_IN_XML.sub("?", escaped)}"'


def svg_of(graphs: Sequence[InspectedGraph]) -> str:
    """The graphs as an SVG image: by Graphviz where it is there, else in lines and columns."""
    program = shutil.which("dot")
    if program is not None and sum(map(len, graphs)) <= _MOST_FOR_DOT:
        try:
            done = subprocess.run(
                [program, "-Tsvg"],
                input=dot_of(graphs).encode(),
                capture_output=True,
                check=True,
                timeout=_PATIENCE_S,
            )
            return done.stdout.decode()
        except (OSError, subprocess.SubprocessError) as error:
            log(logging.INFO, "drawn_without_graphviz", because=str(error))
    return "\n".join(_svg(graphs))


def _svg(graphs: Sequence[InspectedGraph]) -> Iterator[str]:
    lanes = max((graph.branches for graph in graphs), default=1)
    rows = sum(len(graph) + 2 for graph in graphs)
    text_at = _LEFT + lanes * _LANE
    height = _TOP + rows * _ROW
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{text_at + 8 * _WIDEST}" '
        f'height="{height}" role="img" font-family="sans-serif" font-size="13">'
    )
    yield f"<title>{_escaped('; '.join(graph.name for graph in graphs))}</title>"
    yield (
        "<style>svg{background:#fff}text{fill:#1a1a1a}.e{stroke:#767676;fill:none}"
        "@media(prefers-color-scheme:dark){svg{background:#161616}text{fill:#eee}}</style>"
    )
    top = _TOP
    for graph in graphs:
        yield f'<text x="{_LEFT}" y="{top - 18}" font-weight="bold">{_text(graph.name)}</text>'
        place = {
            node.id: (_LEFT + node.branch * _LANE, top + row * _ROW)
            for row, node in enumerate(graph)
        }
        for node in graph:
            for other in node.after:
                yield _edge(*place[other], *place[node.id])
        for node in graph:
            x, y = place[node.id]
            said = f"{node.id}" + (f" ({node.where})" if node.where else "") + f": {node.title}"
            yield (
                f'<g><title>{_escaped(node.name or node.type)}</title><circle cx="{x}" cy="{y}" '
                f'r="5" fill="{colour_of(node)}"/><text x="{text_at}" y="{y + 4}">{_text(said)}'
                "</text></g>"
            )
        top += (len(graph) + 2) * _ROW
    yield "</svg>\n"


def _edge(x: int, y: int, to_x: int, to_y: int) -> str:
    if x == to_x:
        path = f"M{x} {y}V{to_y}"
    else:  # aside at once where it leaves a branch, at the end where it joins one
        bend = to_y - _ROW if to_x < x else y
        path = f"M{x} {y}V{bend}L{to_x} {bend + _ROW}V{to_y}"
    return f'<path class="e" d="{path}"/>'


def _text(text: str) -> str:
    return _escaped(cut(text, _WIDEST))


def _escaped(text: str) -> str:
    return escape(_NOT_IN_XML.sub("?", text))
