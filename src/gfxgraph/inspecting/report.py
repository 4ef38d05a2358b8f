"""The report of ``inspect``: printed, as JSON, drawn, as a page, and compared."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

from ..errors import ArgumentError
from ..tables import Shown, counted
from .diff import GraphDiff, diff_of
from .draw import dot_of, svg_of
from .model import GraphNode, InspectedGraph
from .page import page_of

__all__ = ["SCHEMA", "InspectDiff", "InspectReport"]

SCHEMA = "gfxgraph.inspect/1"

_KINDS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("id", "type", "name", "function", "source"), str),
    **dict.fromkeys(("branch", "line"), int),
    "details": dict,
    "file": (str, type(None)),
}

_HEAD = {"name": str, "device": str, "emulated": bool, "torch": str, "gfxgraph": str}

StrPath: TypeAlias = "str | os.PathLike[str]"


@dataclass(frozen=True)
class InspectReport(Shown):
    """The result of :func:`gfxgraph.inspect`: one graph or several.

    Attributes:
        name: what was inspected.
        device: name of the device.
        emulated: whether the graphs are of the emulated device, whose nodes are operators.
        torch: version of torch.
        gfxgraph: version of gfxgraph.
        graphs: the graphs; of a function first those of the call that came least recently.
    """

    name: str
    device: str
    emulated: bool
    torch: str
    gfxgraph: str
    graphs: tuple[InspectedGraph, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.graphs)

    def __iter__(self) -> Iterator[InspectedGraph]:
        return iter(self.graphs)

    def __getitem__(self, number: int) -> InspectedGraph:
        return self.graphs[number]

    def _printed(self) -> list[str]:
        heads = f"{counted(len(self.graphs), 'graph')} on {self.device}, torch {self.torch}"
        pieces = [heads]
        for graph in self.graphs:
            pieces += ["", *graph._printed()]
        return pieces

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, with all nodes."""
        return {"schema": SCHEMA, **asdict(self)}

    def to_json(self, path: StrPath | None = None) -> str:
        """The report as JSON, also written to the file ``path`` if there is one.

        Raises:
            ArgumentError: the file cannot be written.
        """
        return _write(json.dumps(self.to_dict(), indent=1), path, "to_json")

    @classmethod
    def from_json(cls, path: StrPath) -> InspectReport:
        """A report that :meth:`to_json` has written.

        Raises:
            ArgumentError: the file cannot be read, or holds no such report.
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise ArgumentError(f"{path} cannot be read as JSON: {error}.") from error
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ArgumentError(f"{path}: expected a report of inspect, with schema {SCHEMA!r}.")
        try:
            graphs = tuple(_graph_of(one) for one in data["graphs"])
            given = {name: data[name] for name in _HEAD}
            for name, kind in _HEAD.items():
                if not isinstance(given[name], kind):
                    raise TypeError(f"{name} is {given[name]!r}")
            return cls(**given, graphs=graphs)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"{path}: a report of inspect, but damaged: {error!r}") from error

    def diff(self, newer: InspectReport) -> InspectDiff:
        """How the graphs of ``newer`` differ from these: the first from the first, and so on.

        Raises:
            ArgumentError: ``newer`` is no report.
        """
        if not isinstance(newer, InspectReport):
            raise ArgumentError(
                f"diff() takes the report of another inspect(), not {type(newer).__name__}."
            )
        none = InspectedGraph("", ())
        pairs = zip_longest(self.graphs, newer.graphs, fillvalue=none)
        return InspectDiff(tuple(diff_of(old, new) for old, new in pairs))

    def to_dot(self, path: StrPath | None = None) -> str:
        """The graphs in Graphviz's language DOT, also written to ``path`` if there is one.

        Raises:
            ArgumentError: the file cannot be written.
        """
        return _write(dot_of(self.graphs), path, "to_dot")

    def to_svg(self, path: StrPath | None = None) -> str:
        """The graphs as an SVG image, also written to ``path`` if there is one.

        Graphviz lays them out where its program ``dot`` is installed, and they have at most 500
        nodes. Otherwise each node has a line of its own, and each branch a column.

        Raises:
            ArgumentError: the file cannot be written.
        """
        return _write(svg_of(self.graphs), path, "to_svg")

    def to_html(self, path: StrPath | None = None) -> str:
        """A page with all nodes, to search and to filter, also written to ``path``.

        It is one file and loads nothing: no script, font or image from elsewhere.

        Raises:
            ArgumentError: the file cannot be written.
        """
        return _write(page_of(self.name, str(self).splitlines()[0], self.graphs), path, "to_html")


@dataclass(frozen=True)
class InspectDiff(Shown):
    """How the graphs of two reports differ, in pairs.

    Attributes:
        graphs: of each pair how it differs. Where one report has more graphs than the other, all
            nodes of those came or went.
    """

    graphs: tuple[GraphDiff, ...]

    @property
    def differs(self) -> bool:
        """Whether anything does."""
        return any(graph.differs for graph in self.graphs)

    def to_dict(self) -> dict[str, Any]:
        """The differences as plain data."""
        return asdict(self)

    def _printed(self) -> list[str]:
        pieces = [one for graph in self.graphs for one in ("", graph.name, *graph._printed())]
        return pieces[1:]


def _write(text: str, path: StrPath | None, what: str) -> str:
    """Write ``text`` to the file ``path``, if there is one, and give it.

    Raises:
        ArgumentError: the file cannot be written.
    """
    if path is not None:
        try:
            # A name may hold what UTF-8 cannot encode.
            data = text.rstrip("\n").encode("utf-8", "backslashreplace")
            Path(path).write_bytes(data + b"\n")
        except (OSError, TypeError, ValueError) as error:
            raise ArgumentError(
                f"{what}({str(path)!r}): the file cannot be written: {error}."
            ) from error
    return text


def _graph_of(data: Any) -> InspectedGraph:
    """A graph that was read.

    Raises:
        KeyError: something is missing, or a node waits for one that does not come before it.
        TypeError: something is of another type.
    """
    nodes: dict[str, GraphNode] = {}
    for one in data["nodes"]:
        given = {name: one[name] for name in get_type_hints(GraphNode)}
        node = GraphNode(**{**given, "after": tuple(given["after"])})
        for name, kind in _KINDS.items():
            if not isinstance(getattr(node, name), kind) or node.branch < 0:
                raise TypeError(f"{name} is {getattr(node, name)!r}")
        for other in node.after:
            nodes[other]
        nodes[node.id] = node
    return InspectedGraph(str(data["name"]), tuple(nodes.values()), str(data["note"]))
