"""How two graphs differ: nodes that came, went or changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, TypeAlias

from ..tables import Shown, counted, filled
from .model import GraphNode, InspectedGraph

__all__ = ["ChangedNode", "GraphDiff", "diff_of"]

# Where so many pairs of nodes look alike, they are compared place by place.
_MOST_COMPARED = 4_000_000


@dataclass(frozen=True)
class ChangedNode:
    """A node of one graph, and what became of it in the other.

    Attributes:
        before: the node of the first graph.
        after: the node of the second.
        changes: what differs -> the two values: ``name``, ``line``, ``waits for`` or a detail such
            as ``grid``.
    """

    before: GraphNode
    after: GraphNode
    changes: dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class GraphDiff(Shown):
    """How a second graph differs from a first.

    Attributes:
        name: of the graph.
        came: nodes that only the second has.
        went: nodes that only the first has.
        changed: nodes that both have, in which something differs.
        same: how many nodes are the same in both.
    """

    name: str
    came: tuple[GraphNode, ...]
    went: tuple[GraphNode, ...]
    changed: tuple[ChangedNode, ...]
    same: int

    @property
    def differs(self) -> bool:
        """Whether anything does."""
        return bool(self.came or self.went or self.changed)

    def to_dict(self) -> dict[str, Any]:
        """The differences as plain data."""
        return asdict(self)

    def _printed(self) -> list[str]:
        head = f"{counted(self.same, 'node')} the same, {len(self.changed)} changed, "
        lines = [head + f"{len(self.came)} came, {len(self.went)} went"]
        lines += [filled(f"- {_said(node)}") for node in self.went]
        lines += [filled(f"+ {_said(node)}") for node in self.came]
        for one in self.changed:
            ids = "" if one.before.id == one.after.id else f", before {one.before.id}"
            lines.append(filled(f"! {_said(one.after)}{ids}"))
            for what, (old, new) in one.changes.items():
                lines.append(filled(f"    {what}: {old} -> {new}"))
        return lines


def _said(node: GraphNode) -> str:
    where = f" ({node.where}: {node.source})" if node.file is not None else ""
    return f"node {node.id}: {node.title}{where}"


def diff_of(first: InspectedGraph, second: InspectedGraph) -> GraphDiff:
    """How ``second`` differs from ``first``.

    Nodes are matched by type, name and line, in their order: by the text of the line, since its
    number changes with every edit above it. What has no match is matched by type and line, and then
    by type and name: such nodes have changed.
    """
    pairs = list(_matched(first.nodes, second.nodes))
    new_id = {a.id: b.id for a, b in pairs}
    came = [node for node in second if node.id not in set(new_id.values())]
    went = [node for node in first if node.id not in new_id]
    changed = []
    for a, b in pairs:
        changes = dict(_changes(a, b, new_id))
        if changes:
            changed.append(ChangedNode(a, b, changes))
    name = second.name or first.name
    return GraphDiff(name, tuple(came), tuple(went), tuple(changed), len(pairs) - len(changed))


def _changes(
    a: GraphNode, b: GraphNode, new_id: dict[str, str]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    if a.name != b.name:
        yield "name", (a.name, b.name)
    if _line(a) != _line(b):
        yield "line", (f"{a.where} {a.source}".strip(), f"{b.where} {b.source}".strip())
    for what in dict.fromkeys((*a.details, *b.details)):
        old, new = a.details.get(what), b.details.get(what)
        if old != new:
            yield what, (old, new)
    # Nodes that came or went are told of already.
    waits = [new_id[other] for other in a.after if other in new_id]
    known = set(new_id.values())
    waits_now = [other for other in b.after if other in known]
    gone = len(waits) < len(a.after) or len(waits_now) < len(b.after)
    if not gone and sorted(waits) != sorted(waits_now):
        yield "waits for", (list(a.after), list(b.after))


def _matched(
    first: Sequence[GraphNode], second: Sequence[GraphNode], keys: Sequence[_Key] = ()
) -> Iterator[tuple[GraphNode, GraphNode]]:
    """Pairs of nodes that are the same one: by the first key, what is left by the next one."""
    key, *rest = keys or _KEYS
    for a, b, c, d, same in _runs(list(map(key, first)), list(map(key, second))):
        if same:
            yield from zip(first[a:b], second[c:d], strict=True)
        elif rest:
            yield from _matched(first[a:b], second[c:d], rest)


def _line(node: GraphNode) -> tuple[str, ...]:
    return () if node.file is None else (Path(node.file).name, node.function, node.source)


_Key: TypeAlias = Callable[[GraphNode], tuple[str, ...]]
_KEYS: tuple[_Key, ...] = (
    lambda node: (node.type, node.name, *_line(node)),
    lambda node: (node.type, *(_line(node) or (node.name,))),  # a line that runs another kernel
    lambda node: (node.type, node.name),  # a line that was edited
)


def _runs(first: Sequence[Any], second: Sequence[Any]) -> Iterator[tuple[int, int, int, int, bool]]:
    """Slices of both, in their order, and whether they are the same."""
    start, end = 0, 0
    shorter = min(len(first), len(second))
    while start < shorter and first[start] == second[start]:
        start += 1
    while end < shorter - start and first[-1 - end] == second[-1 - end]:
        end += 1
    yield 0, start, 0, start, True
    a, b = first[start : len(first) - end], second[start : len(second) - end]
    numbers: dict[Any, int] = {}
    old, new = ([numbers.setdefault(key, len(numbers)) for key in keys] for keys in (a, b))
    if sum(map(Counter(new).__getitem__, old)) > _MOST_COMPARED:
        for n in range(min(len(old), len(new))):
            yield start + n, start + n + 1, start + n, start + n + 1, old[n] == new[n]
        longer = start + min(len(old), len(new))
        yield longer, start + len(old), longer, start + len(new), False
    else:
        for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            yield i + start, j + start, k + start, m + start, tag == "equal"
    yield len(first) - end, len(first), len(second) - end, len(second), True
