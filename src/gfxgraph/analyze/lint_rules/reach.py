"""Finds the code that runs when a function is called, in the same file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from .source import Function, Source, children
from .torch_names import GRAPHED, TRAINING

__all__ = ["graphed_functions", "reached_calls"]


def graphed_functions(source: Source) -> list[Function]:
    """The functions that are decorated with ``graphed``, or given to it by name."""
    found = [one for one in source.functions if source.decorated(one, GRAPHED)]
    for call in source.calls(GRAPHED):
        target = _named(source, call.args[0]) if call.args else None
        if target:
            found.append(target)
    return found


def reached_calls(
    source: Source, roots: Iterable[ast.AST]
) -> Iterator[tuple[ast.Call, ast.AST, ast.AST]]:
    """Each call in the roots and the functions that they reach, with what it is in and its root."""
    origin = {root: root for root in roots}
    seen: set[ast.Call] = set()
    todo = list(origin)
    for caller in todo:  # which grows
        for call in _running_calls(caller):
            if call in seen:
                continue
            seen.add(call)
            yield call, caller, origin[caller]
            function = _named(source, call.func)
            if function and function not in origin and not TRAINING.search(function.name):
                origin[function] = origin[caller]
                todo.append(function)


def _running_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls in a function or block that run in inference and while a graph is captured."""
    # Without decorators and defaults, which do not run when it is called.
    todo: list[ast.AST] = list(tree.body if isinstance(tree, Function) else [tree])
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Raise):
            continue  # an error may say what the device holds
        if isinstance(node, ast.Assert):
            todo.append(node.test)
            continue
        if isinstance(node, ast.If):
            todo += [node.test, *_branches(node)]
            continue
        if isinstance(node, ast.Call):
            yield node
        todo += children(node)


def _branches(branch: ast.If) -> list[ast.stmt]:
    test = ast.unparse(branch.test)
    if "capturing" in test:  # is_current_stream_capturing(): the author knows
        return []
    if re.match(r"(?:.* and )?self\.training\b", test):
        return branch.orelse
    return [*branch.body, *branch.orelse]


def _named(source: Source, target: ast.expr) -> Function | None:
    """The function of the file that ``name`` or ``self.name`` stands for."""
    match target:
        case ast.Name(id=name):
            return source.function(name, source.tree)
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
            for cls in source.family(source.owner(target)):
                method = source.function(name, cls)
                if method:
                    return method
    return None
