"""The blocks of code that are captured with torch's own API."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from .source import Source
from .torch_names import CAPTURE

__all__ = ["Capture", "begins_capture", "captures", "graph_of"]


@dataclass(frozen=True)
class Capture:
    """A block of code that is captured.

    Attributes:
        call: what begins it.
        graph: the graph that it is captured into, as text.
        body: what is captured.
        first: number of the first line of the statement that begins it.
        last: number of its last line.
    """

    call: ast.Call
    graph: str
    body: Sequence[ast.stmt]
    first: int
    last: int


def captures(source: Source) -> list[Capture]:
    """The blocks under ``torch.cuda.graph`` and those between capture_begin and capture_end."""
    found = []
    for call in source.nodes(ast.Call):
        statement = source.statement(call)
        if source.dotted(call.func) in CAPTURE:
            graph = graph_of(call)
            body = statement.body if isinstance(statement, ast.With) else []
        elif begins_capture(source, call) and isinstance(call.func, ast.Attribute):
            graph = call.func.value
            body = _until_end(source, statement, graph)
        else:
            continue
        if graph and body:
            last = body[-1].end_lineno or body[-1].lineno
            found.append(Capture(call, ast.unparse(graph), body, statement.lineno, last))
    return found


def begins_capture(source: Source, call: ast.Call) -> bool:
    """Whether it is ``graph.capture_begin()``; other libraries have functions of that name."""
    function = call.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "capture_begin"
        and not source.dotted(function)
    )


def graph_of(call: ast.Call) -> ast.expr | None:
    """The graph that a call of ``torch.cuda.graph`` captures into."""
    given = [*call.args, *(key.value for key in call.keywords if key.arg == "cuda_graph")]
    return given[0] if given else None


def _until_end(source: Source, begin: ast.stmt, graph: ast.expr) -> list[ast.stmt]:
    """The statements beside ``graph.capture_begin()`` up to the one with ``capture_end()``."""
    end = f"{ast.unparse(graph)}.capture_end("
    body: list[ast.stmt] = []
    for statement in _following(source, begin):
        body.append(statement)
        if end in ast.unparse(statement):
            return body
    return []


def _following(source: Source, statement: ast.stmt) -> list[ast.stmt]:
    """The statements after this one in the same block."""
    for _, block in ast.iter_fields(source.parent(statement)):
        if isinstance(block, list) and statement in block:
            return block[block.index(statement) + 1 :]
    return []
