"""A graph as ``inspect`` reports it: nodes in order, their branches, counts."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..device.nodes import Node
from ..interpose.source import Source
from ..tables import Shown, counted, filled, table

__all__ = ["GraphNode", "InspectedGraph", "cut", "graph_of"]

# So many nodes, kernels and lines are printed; a page and JSON have all.
_MOST_PRINTED = 40
_MOST_COUNTED = 12
_WIDTH_OF_NAME = 44


@dataclass(frozen=True)
class GraphNode:
    """One node of a graph.

    Attributes:
        id: its number in the order in which the nodes were made, from 0; in a child graph with the
            number of the node that holds it before: ``"3.0"``.
        type: such as ``"kernel"``, ``"memcpy"``, ``"memset"``, ``"host"``, ``"memory alloc"``; on
            the emulated device ``"operator"``.
        name: the kernel in C++, or the operator; empty for nodes of other types.
        after: ids of the nodes that it waits for.
        branch: the number of its branch: a chain of nodes in which each waits for the one before.
            Nodes of two branches may run at the same time, unless one waits for the other.
        details: what the driver tells: ``grid``, ``block``, ``shared_bytes``, ``parameter_bytes``
            of a kernel, ``bytes``, ``from``, ``to`` of a copy, ``bytes``, ``value`` of a memset; on
            the emulated device the ``results`` of the operator.
        file: the user's file whose line made it; ``None``: not known.
        line: the line there, from 1.
        function: the function that the line is in.
        source: the text of that line.
    """

    id: str
    type: str
    name: str
    after: tuple[str, ...]
    branch: int
    details: dict[str, Any]
    file: str | None = None
    line: int = 0
    function: str = ""
    source: str = ""

    @property
    def title(self) -> str:
        """Its short name, or its type."""
        return _short(self.name) if self.name else self.type

    @property
    def where(self) -> str:
        """Such as ``"model.py:12"``; empty where the line is not known."""
        return "" if self.file is None else f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True)
class InspectedGraph(Shown):
    """One graph.

    Attributes:
        name: the function, the arguments, and which graph it is where a call has several.
        nodes: all of its nodes, each after those that it waits for.
        note: what the host does after this graph, in a call of several graphs; else ``""``.
    """

    name: str
    nodes: tuple[GraphNode, ...]
    note: str = ""

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[GraphNode]:
        return iter(self.nodes)

    def __getitem__(self, id: str | int) -> GraphNode:
        """The node with this id.

        Raises:
            KeyError: there is none.
        """
        return self._by_id[str(id)]

    @cached_property
    def _by_id(self) -> dict[str, GraphNode]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def before(self) -> dict[str, tuple[str, ...]]:
        """Of each node, the ids of those that wait for it."""
        found: dict[str, list[str]] = {node.id: [] for node in self.nodes}
        for node in self.nodes:
            for other in node.after:
                found[other].append(node.id)
        return {id: tuple(ids) for id, ids in found.items()}

    @property
    def types(self) -> dict[str, int]:
        """Type -> how many nodes have it, the most frequent first."""
        return dict(Counter(node.type for node in self.nodes).most_common())

    @property
    def kernels(self) -> dict[str, int]:
        """Name of a kernel or operator -> how many nodes run it, the most frequent first."""
        return dict(Counter(node.name for node in self.nodes if node.name).most_common())

    @property
    def lines(self) -> dict[str, int]:
        """``"file:line"`` -> how many nodes it made, in the order of the graph."""
        made = Counter(f"{node.file}:{node.line}" for node in self.nodes if node.file is not None)
        return dict(made)

    @property
    def branches(self) -> int:
        """How many branches there are side by side, at most."""
        return 1 + max((node.branch for node in self.nodes), default=-1)

    @cached_property
    def depth(self) -> int:
        """The number of nodes in the longest chain of nodes that wait for each other."""
        depth: dict[str, int] = {}
        for node in self.nodes:
            depth[node.id] = 1 + max((depth[other] for other in node.after), default=0)
        return max(depth.values(), default=0)

    def of_type(self, *types: str) -> list[GraphNode]:
        """The nodes of these types, such as ``of_type("memcpy", "memset", "host")``."""
        return [node for node in self.nodes if node.type in types]

    def _printed(self) -> list[str]:
        types = ", ".join(f"{count} {type}" for type, count in self.types.items())
        known = sum(self.lines.values())
        lines = [
            filled(self.name),
            filled(
                f"{counted(len(self.nodes), 'node')}"
                + (f" ({types})" if types else "")
                + f", {counted(self.branches, 'branch')}, the longest chain has {self.depth}; "
                + f"the line is known of {known}"
            ),
        ]
        lines += [filled(self.note)] if self.note else []
        if len(self.nodes) > _MOST_PRINTED:
            lines += ["", *_counts("kernel", {_short(n): c for n, c in self.kernels.items()})]
            lines += ["", *_counts("line", self.lines)]
        rows = [
            (n.id, n.type, str(n.branch), " ".join(n.after), cut(n.title, _WIDTH_OF_NAME), n.where)
            for n in self.nodes[:_MOST_PRINTED]
        ]
        if rows:
            lines += ["", *table(("node", "type", "branch", "after", "name", "line"), rows)]
        if len(self.nodes) > _MOST_PRINTED:
            rest = len(self.nodes) - _MOST_PRINTED
            lines.append(f"... and {counted(rest, 'node')} more: to_html() and to_json() have all.")
        return lines


def graph_of(
    name: str, nodes: Sequence[Node], lines: Sequence[Source], note: str = ""
) -> InspectedGraph:
    """A graph as it is reported.

    Args:
        name: what to call it.
        nodes: as the device gives them.
        lines: of each the user's line.
        note: see :class:`InspectedGraph`.
    """
    flat = {id: (node, waits_for, line) for id, node, waits_for, line in _flat(nodes, lines)}
    order = _in_order({id: waits_for for id, (_, waits_for, _) in flat.items()})
    branches = _branches({id: flat[id][1] for id in order})
    made = []
    for id in order:
        node, waits_for, line = flat[id]
        where = (line.file, line.line, line.function, line.text)
        made.append(
            GraphNode(id, node.type, node.name, waits_for, branches[id], node.details, *where)
        )
    return InspectedGraph(name, tuple(made), note)


def _flat(
    nodes: Sequence[Node], lines: Sequence[Source], of: str = ""
) -> Iterator[tuple[str, Node, tuple[str, ...], Source]]:
    """The id of each node, the node, the ids of those it waits for, and its line.

    The first nodes of a child graph wait for the node that holds it, whose line made them too.
    """
    for n, (node, line) in enumerate(zip(nodes, lines, strict=True)):
        id = f"{of}.{n}" if of else str(n)
        after = tuple(f"{of}.{other}" if of else str(other) for other in node.after)
        yield id, node, after or ((of,) if of else ()), line
        yield from _flat(node.children, [line] * len(node.children), id)


def _in_order(waits_for: Mapping[str, Sequence[str]]) -> list[str]:
    """The ids, each after those that it waits for, else as they are."""
    position = {id: n for n, id in enumerate(waits_for)}
    ids = list(waits_for)
    missing = {id: len(others) for id, others in waits_for.items()}
    followers: dict[str, list[str]] = {id: [] for id in ids}
    for id, others in waits_for.items():
        for other in others:
            followers[other].append(id)
    ready = [position[id] for id, count in missing.items() if not count]
    order = []
    while ready:
        id = ids[heapq.heappop(ready)]
        order.append(id)
        for follower in followers[id]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, position[follower])
    return order


def _branches(waits_for: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The branch of each node, given in their order.

    A node continues the lowest branch that ends in a node that it waits for. A branch that nothing
    can continue is free for another.
    """
    followers = Counter(other for others in waits_for.values() for other in others)
    ends: dict[int, str] = {}  # branch -> its last node
    found: dict[str, int] = {}
    for id, others in waits_for.items():
        own = sorted(found[other] for other in others if ends.get(found[other]) == other)
        free = (number for number in range(len(ends) + 1) if number not in ends)
        found[id] = own[0] if own else next(free)
        ends[found[id]] = id
        for other in others:
            followers[other] -= 1
            if not followers[other] and ends.get(found[other]) == other:
                del ends[found[other]]
    return found


def _counts(what: str, counts: Mapping[str, int]) -> list[str]:
    most = sorted(counts.items(), key=lambda item: -item[1])[:_MOST_COUNTED]
    if not most:
        return []
    rows = [(cut(name, 80), count) for name, count in most]
    more = len(counts) - len(most)
    return [*table((what, "nodes"), rows), *([f"... and {more} more"] if more else [])]


def cut(text: str, width: int) -> str:
    """``text``, without its end where it is longer."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def _short(name: str) -> str:
    """A kernel's name without what all of them have: result, arguments, torch's namespace."""
    if name.endswith(")"):
        depth = 0
        for n in range(len(name) - 1, -1, -1):
            depth += (name[n] == ")") - (name[n] == "(")
            if not depth:
                name = name[:n] or name
                break
    name = re.sub(r"^(void|int|bool|float) ", "", name)
    return re.sub(r"at::native::|\(anonymous namespace\)::|at::cuda::|std::", "", name)
