"""The rule about graphs that are captured again and again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeAlias

from .captures import begins_capture, graph_of
from .source import Function, LintRule, Mark, Source, assigned, loaded, short
from .torch_names import CAPTURE, GRAPHED, MAKE_GRAPHED, PER_REQUEST

__all__ = ["RULES"]

_Loop: TypeAlias = ast.For | ast.While
_MAKERS = CAPTURE | GRAPHED | MAKE_GRAPHED
# Inside one of these it is conditional: it happens if there is no graph yet.
_CONDITIONS = (ast.If, ast.IfExp, ast.BoolOp, ast.ExceptHandler, ast.Lambda)


def _captures_again(source: Source) -> Iterator[Mark]:
    for maker in _makers(source):
        where = "" if source.is_test(maker) else _repeats(source, maker)
        if where:
            name = maker.func if isinstance(maker, ast.Call) else maker
            yield Mark(maker, f"{short(name)} in {where}")


def _makers(source: Source) -> Iterator[ast.expr]:
    for call in source.nodes(ast.Call):
        if begins_capture(source, call) or source.dotted(call.func) in _MAKERS:
            yield call
    for function in source.functions:
        decorator = source.decorated(function, GRAPHED)
        if decorator and not isinstance(decorator, ast.Call):
            yield decorator


def _repeats(source: Source, maker: ast.expr) -> str:
    """The loop or function that repeats the making of a graph, in words; ``""``: none."""
    inner: ast.AST = maker
    for outer in source.ancestors(maker):
        if isinstance(outer, _CONDITIONS):
            return ""
        if isinstance(outer, _Loop) and inner in outer.body:
            return "" if _Round(source, outer, maker).is_fine() else "a loop"
        if isinstance(outer, Function):
            per_request = outer.name in PER_REQUEST and source.owner(outer)
            returns_early = any(
                isinstance(node, ast.Return) and node.lineno < maker.lineno
                for node in ast.walk(outer)
            )
            return f"{outer.name}()" if per_request and not returns_early else ""
        inner = outer
    return ""


class _Round:
    """One round of a loop that makes a graph."""

    def __init__(self, source: Source, loop: _Loop, maker: ast.expr) -> None:
        self.source = source
        self.loop = loop
        self.maker = maker
        self.graph = self._graph()

    def is_fine(self) -> bool:
        """Whether each round makes a graph of its own, for later or for a loop inside."""
        inside = [node for node in ast.walk(self.loop) if node is not self.loop]
        few = isinstance(self.loop, ast.For) and isinstance(self.loop.iter, ast.Tuple | ast.List)
        return (
            few  # kinds that are written out, each with its graph
            or bool(self.graph & self._keyed())
            or any(self._keeps(node) for node in inside)
            or any(isinstance(node, _Loop) and self._uses(node) for node in inside)
            or any(self._leaves(node) for node in inside)
        )

    def _graph(self) -> set[str]:
        """The names that the graph or wrapper has in the loop."""
        maker = self.maker
        if isinstance(maker, ast.Call):
            if begins_capture(self.source, maker):
                return loaded(maker.func)
            if self.source.dotted(maker.func) in CAPTURE:
                graph = graph_of(maker)
                return loaded(graph) if graph else set()
        statement = self.source.statement(maker)
        if isinstance(statement, Function):  # the maker is its decorator
            return {statement.name}
        return {target.id for target in assigned(statement) if isinstance(target, ast.Name)}

    def _keyed(self) -> set[str]:
        """The variables of the loop, and the names that are bound from them."""
        names = {node.id for target in assigned(self.loop) for node in _names(target)}
        for node in ast.walk(self.loop):
            if isinstance(node, ast.Assign) and loaded(node.value) & names and not self._has(node):
                names |= {one.id for target in assigned(node) for one in _names(target)}
        return names

    def _has(self, node: ast.AST) -> bool:
        return self.maker in ast.walk(node)

    def _keeps(self, node: ast.AST) -> bool:
        """Whether it hands the graph to something that outlives the round."""
        match node:
            case ast.Assign(targets=targets, value=value) if self._is_graph(value):
                return any(
                    isinstance(one, ast.Subscript)
                    or (isinstance(one, ast.Attribute) and bool(loaded(one) & self._keyed()))
                    for one in targets
                )
            case ast.Call() if node is not self.maker:
                return any(map(self._is_graph, [*node.args, *(key.value for key in node.keywords)]))
            case ast.Return(value=ast.expr() as value) | ast.Yield(value=ast.expr() as value):
                return self._is_graph(value)
        return False

    def _is_graph(self, value: ast.expr) -> bool:
        """Whether the value is the graph, or a tuple or list with it."""
        if isinstance(value, ast.Tuple | ast.List):
            return any(map(self._is_graph, value.elts))
        return value is self.maker or (isinstance(value, ast.Name) and value.id in self.graph)

    def _uses(self, loop: ast.AST) -> bool:
        """Whether a loop inside replays it, or calls it."""
        return not self._has(loop) and any(
            isinstance(node, ast.Call) and loaded(node.func) & self.graph for node in ast.walk(loop)
        )

    def _leaves(self, node: ast.AST) -> bool:
        """Whether the loop ends after the capture, and so only retries."""
        if not isinstance(node, ast.Break | ast.Return):
            return False
        for outer in self.source.ancestors(node):
            if outer is self.loop:
                return True
            if isinstance(outer, (*_CONDITIONS, ast.For, ast.While, Function)):
                return False
        return False


def _names(target: ast.expr) -> list[ast.Name]:
    return [node for node in ast.walk(target) if isinstance(node, ast.Name)]


RULES = (
    LintRule(
        id="capture-in-loop",
        title="a loop captures a graph again in each round",
        severity="warning",
        why="A capture takes as long as hundreds of replays: a graph for a single call is slower "
        "than eager execution.",
        remedy="Capture before the loop and replay in it. For several shapes keep the graphs in a "
        "dictionary, or let one gfxgraph.graphed function keep them.",
        bad="""\
import gfxgraph

def serve(model, requests):
    for request in requests:
        fast = gfxgraph.graphed(model)
        print(fast(request))
""",
        good="""\
import gfxgraph

def serve(model, requests):
    fast = gfxgraph.graphed(model)
    for request in requests:
        print(fast(request))
""",
        words=frozenset({"capture_begin", "cuda.graph", "graphed"}),
        check=_captures_again,
    ),
)
