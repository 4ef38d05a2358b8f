"""Finds the code that runs when a function is called, in the same file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from .source import Function, Source
from .torch_names import GRAPHED, TRAINING

__all__ = ["graphed_functions", "reached", "running_calls"]


def graphed_functions(source: Source) -> list[Function]:
    """The functions that are decorated with ``graphed``, or given to it by name."""
    found = [one for one in source.functions if source.decorated(one, GRAPHED)]
    for call in source.calls(GRAPHED):
        target = _named(source, call.args[0]) if call.args else None
        if target:
            found.append(target)
    return found


def reached(source: Source, roots: Iterable[ast.AST]) -> dict[ast.AST, ast.AST]:
    """Every function that the roots call, directly or through others, and the root that does."""
    origin = {root: root for root in roots}
    todo = list(origin)
    while todo:
        caller = todo.pop(0)
        for call in running_calls(source, caller):
            function = _named(source, call.func)
            if function and function not in origin and not TRAINING.search(function.name):
                origin[function] = origin[caller]
                todo.append(function)
    return origin


def running_calls(source: Source, tree: ast.AST) -> Iterator[ast.Call]:
    """The calls in a function or block that run in inference and while a graph is captured."""
    todo: list[ast.AST] = list(_body(tree))
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
        todo += ast.iter_child_nodes(node)


def _body(tree: ast.AST) -> Iterable[ast.AST]:
    """The code that runs when it is called, without decorators and defaults."""
    return tree.body if isinstance(tree, Function) else [tree]


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
            for cls in _family(source, source.owner(target)):
                method = source.function(name, cls)
                if method:
                    return method
    return None


def _family(source: Source, cls: ast.ClassDef | None) -> Iterator[ast.ClassDef]:
    """The class and its bases in the file."""
    todo = [cls] if cls else []
    seen: set[ast.ClassDef] = set()
    while todo:
        one = todo.pop(0)
        if one not in seen:
            seen.add(one)
            yield one
            names = {base.id for base in one.bases if isinstance(base, ast.Name)}
            todo += [other for other in source.nodes(ast.ClassDef) if other.name in names]
