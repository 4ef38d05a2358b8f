"""Rules about the use of graphs and graphed functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeAlias

from .captures import captures
from .source import Function, LintRule, Mark, Source, assigned, short
from .torch_names import CAPTURE, GRAPH, GRAPHED, MAKE_GRAPHED, PER_REQUEST

__all__ = ["RULES"]

_Views: TypeAlias = set[tuple[ast.AST | None, str]]
# Methods that make a graph; all others use it.
_MAKING = {"capture_begin", "capture_end", "register_generator_state"}


# ---------------------------------------------------------------------- wrapper-never-called


def _never_called(source: Source) -> Iterator[Mark]:
    for call in [*source.calls(GRAPHED | MAKE_GRAPHED), *_captured_graphs(source)]:
        if _is_raises(source, call) or _is_patched_in_place(source, call):
            continue
        match source.parent(call):
            case ast.Expr():
                yield Mark(call, f"the result of {short(call)} is discarded")
            case ast.Assign(targets=[target]) as statement if statement.value is call:
                yield from _unused_target(source, call, target)
    for function in source.functions:
        decorator = source.decorated(function, GRAPHED)
        if decorator and len(function.decorator_list) == 1:
            yield from _unused_function(source, function, decorator)
    yield from _unused_classes(source)


def _unused_classes(source: Source) -> Iterator[Mark]:
    """The classes that capture, and that nothing constructs or derives from."""
    owners = {source.owner(capture.call): None for capture in captures(source)}
    for cls in owners:
        if cls is None or source.is_test(cls) or cls.decorator_list:
            continue
        if not _is_used(source, cls.name, source.tree):
            what = f"{cls.name} captures a graph and is never constructed"
            certain = cls.name.startswith("_") or _is_script(source)
            yield Mark(cls, what, None if certain else "note", unless_named=cls.name)


def _captured_graphs(source: Source) -> Iterator[ast.Call]:
    """The calls that make a graph that is captured somewhere in the file."""
    into = {capture.graph for capture in captures(source)}
    for call in source.calls(GRAPH):
        targets = assigned(source.parent(call))
        if any(ast.unparse(one) in into for one in targets) and not source.is_test(call):
            yield call


def _is_raises(source: Source, node: ast.AST) -> bool:
    """Whether it is expected to raise: ``with pytest.raises(...)``."""
    return any(
        isinstance(outer, ast.With)
        and any("raises" in short(item, 200).lower() for item in outer.items)
        for outer in source.ancestors(node)
    )


def _is_patched_in_place(source: Source, call: ast.Call) -> bool:
    """``make_graphed_callables(module, ...)`` replaces the forward of the module itself."""
    if source.dotted(call.func) not in MAKE_GRAPHED:
        return False
    match call.args[:1]:
        case [ast.Lambda()]:
            return False
        case [ast.Name(id=name)]:
            return not any(one.name == name for one in source.functions)
    return True


def _unused_target(source: Source, call: ast.Call, target: ast.expr) -> Iterator[Mark]:
    what = f"{short(target)} is made and never used"
    scope = source.scope(call)
    match target:
        case ast.Name(id=name) if isinstance(scope, Function):
            if not _is_used(source, name, scope):
                yield Mark(call, what)
        case ast.Name(id=name) if source.owner(call) is None:
            yield from _unused_global(source, name, call, what)
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            cls = source.owner(call)
            overrides = name in PER_REQUEST or (cls and source.function(name, cls))
            if not overrides and not _is_attribute_used(source, name):
                private = name.startswith("_")
                yield Mark(call, what, None if private else "note", unless_named=name)


def _unused_function(source: Source, function: Function, decorator: ast.expr) -> Iterator[Mark]:
    name = function.name
    what = f"{name} is graphed and never called"
    container = source.parent(function)
    private = name.startswith("_") and not name.endswith("__")
    if isinstance(container, ast.ClassDef):
        if private and not _is_attribute_used(source, name):
            yield Mark(decorator, what, unless_named=name)
    elif isinstance(source.scope(function), ast.Module):
        yield from _unused_global(source, name, decorator, what)
    elif not _is_used(source, name, source.scope(function)):
        yield Mark(decorator, what)


def _unused_global(source: Source, name: str, node: ast.expr, what: str) -> Iterator[Mark]:
    exported = not name.startswith("_") and not _is_script(source)
    if not exported and not _is_used(source, name, source.tree):
        yield Mark(node, what, unless_named=name)


def _is_script(source: Source) -> bool:
    return not source.packaged and "__main__" in source.text


def _is_used(source: Source, name: str, scope: ast.AST) -> bool:
    """Whether a variable is read in its scope; capturing into it is not reading it."""
    for node in ast.walk(scope):
        match node:
            case ast.Name(id=other, ctx=ast.Load()) if other == name:
                if not _is_making(source, node):
                    return True
            case ast.Global(names=names) | ast.Nonlocal(names=names) if name in names:
                return True
            case ast.Constant(value=text) if text == name:  # in __all__, getattr or globals()
                return True
            case ast.Call(func=ast.Name(id="locals" | "globals" | "vars")):
                return True
    return False


def _is_attribute_used(source: Source, name: str) -> bool:
    return any(
        node.attr == name and isinstance(node.ctx, ast.Load) and not _is_making(source, node)
        for node in source.nodes(ast.Attribute)
    ) or any(node.value == name for node in source.nodes(ast.Constant))


def _is_making(source: Source, graph: ast.expr) -> bool:
    """Whether a graph is only captured into here: ``torch.cuda.graph(graph)``."""
    match source.parent(graph):
        case ast.Call() as call:
            return source.dotted(call.func) in CAPTURE and call.args[:1] == [graph]
        case ast.keyword(arg="cuda_graph"):
            return True
        case ast.Attribute(attr=attr):
            return attr in _MAKING
    return False


# ---------------------------------------------------------------------- outputs-kept-as-view


def _kept_views(source: Source) -> Iterator[Mark]:
    views = _view_callables(source)
    if not views:
        return
    for node in source.nodes(ast.Call) + source.nodes(ast.Assign) + _comprehensions(source):
        for value in _kept_values(source, node):
            call = _view_call(source, value, views)
            if call and _repeats(source, node, call):
                yield Mark(value, f"the view that {short(call.func)}() returns is kept")


def _view_callables(source: Source) -> _Views:
    """The callables with ``outputs="view"``, as text, and their scope or class."""
    found: _Views = set()
    for call in source.calls(GRAPHED):
        if any(ast.unparse(key) == "outputs='view'" for key in call.keywords):
            statement = source.statement(call)
            scope = source.scope(statement)
            for target in assigned(statement):
                of_self = isinstance(target, ast.Attribute)
                found.add((source.owner(call) if of_self else scope, ast.unparse(target)))
            if isinstance(statement, Function):
                is_method = isinstance(source.parent(statement), ast.ClassDef)
                found.add((None, f".{statement.name}") if is_method else (scope, statement.name))
    return found


def _is_view(source: Source, function: ast.expr, views: _Views) -> bool:
    if isinstance(function, ast.Attribute):
        own = (source.owner(function), ast.unparse(function))
        return own in views or (None, f".{function.attr}") in views
    if not isinstance(function, ast.Name):
        return False
    scopes = [one for one in source.ancestors(function) if isinstance(one, Function | ast.Module)]
    return next(
        ((scope, function.id) in views for scope in scopes if _binds(scope, function.id)), False
    )


def _binds(scope: ast.AST, name: str) -> bool:
    """Whether the scope gives the name a value, so that it does not mean an outer one."""
    for node in ast.walk(scope):
        match node:
            case ast.Name(id=other, ctx=ast.Store()) | ast.arg(arg=other) if other == name:
                return True
            case ast.FunctionDef(name=other) | ast.AsyncFunctionDef(name=other) if other == name:
                return True
    return False


def _comprehensions(source: Source) -> list[ast.AST]:
    return [*source.nodes(ast.ListComp), *source.nodes(ast.SetComp), *source.nodes(ast.DictComp)]


def _kept_values(source: Source, node: ast.AST) -> Iterator[ast.expr]:
    """The values that a container keeps after this."""
    match node:
        case ast.Call(func=ast.Attribute(attr="append" | "appendleft"), args=[value]):
            yield value
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))], value=value):
            if _is_container(source, name, node):  # of a tensor, it would be a copy
                yield value
        case ast.ListComp(elt=value) | ast.SetComp(elt=value) | ast.DictComp(value=value):
            yield value


def _is_container(source: Source, name: str, place: ast.AST) -> bool:
    value = source.last_value(name, place)
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) in {"dict", "list", "defaultdict"}
    return isinstance(value, ast.Dict | ast.List | ast.DictComp | ast.ListComp)


def _view_call(source: Source, value: ast.expr, views: _Views) -> ast.Call | None:
    """The call whose view ``value`` is, or is part of; the result of a method is a new tensor."""
    while isinstance(value, ast.Subscript | ast.Attribute):
        value = value.value
    if isinstance(value, ast.Name):
        bound = source.last_value(value.id, value)
        return _view_call(source, bound, views) if isinstance(bound, ast.Call) else None
    if isinstance(value, ast.Call) and _is_view(source, value.func, views):
        return value
    return None


def _repeats(source: Source, node: ast.AST, call: ast.Call) -> bool:
    """Whether both are in the same loop: the view is made anew each time it is kept."""
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp):
        return call in ast.walk(node)
    scope = source.scope(node)
    loops = [one for one in source.ancestors(node) if isinstance(one, ast.For | ast.While)]
    return any(source.scope(loop) is scope and call in ast.walk(loop) for loop in loops)


RULES = (
    LintRule(
        id="wrapper-never-called",
        title="a graph or a graphed function is made and never used",
        severity="warning",
        why="The code still runs eagerly: a wrapper does nothing until it is called in place of "
        "its function, and a graph does nothing until it is replayed.",
        remedy="Call the wrapper (fast = gfxgraph.graphed(model); fast(x)), or replay the graph.",
        bad="""\
import gfxgraph

def serve(model, x):
    gfxgraph.graphed(model)
    return model(x)
""",
        good="""\
import gfxgraph

def serve(model, x):
    fast = gfxgraph.graphed(model)
    return fast(x)
""",
        words=frozenset({"CUDAGraph", "capture_begin", "cuda.graph", "graphed"}),
        check=_never_called,
    ),
    LintRule(
        id="outputs-kept-as-view",
        title="a collection keeps results that the next call overwrites",
        severity="error",
        why='With outputs="view" every call returns the same memory: all collected tensors '
        "show the last result.",
        remedy='Clone the results (out.append(fast(x).clone())), or leave out outputs="view".',
        bad="""\
import gfxgraph

def collect(model, batches):
    fast = gfxgraph.graphed(model, outputs="view")
    return [fast(batch) for batch in batches]
""",
        good="""\
import gfxgraph

def collect(model, batches):
    fast = gfxgraph.graphed(model, outputs="view")
    return [fast(batch).clone() for batch in batches]
""",
        words=frozenset({"graphed"}),
        check=_kept_views,
    ),
)
