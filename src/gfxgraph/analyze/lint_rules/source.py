"""A file as the rules see it: syntax tree, full names, parents of nodes."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar, cast

from ..report import Severity

__all__ = ["Function", "LintRule", "Mark", "Source", "assigned", "children", "loaded", "short"]

_PLACELESS = (ast.expr_context, ast.operator, ast.unaryop, ast.boolop)
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.AST)

# Projects import these two from helper modules of their own, under the usual names.
_REEXPORTED = {"triton": "triton", "tl": "triton.language"}


@dataclass(frozen=True)
class Mark:
    """A place that a rule objects to.

    Attributes:
        node: the place.
        what: the finding there.
        severity: the severity, if it differs from that of the rule.
        unless_named: a name; if another linted file has it, this is no finding.
    """

    node: ast.expr | ast.stmt
    what: str
    severity: Severity | None = None
    unless_named: str = ""


@dataclass(frozen=True)
class LintRule:
    """A rule that reads source.

    Attributes:
        id: its name, in reports, SARIF and comments that suppress it.
        title: what the code does, in a few words.
        severity: of its findings, unless a mark says otherwise.
        why: why it matters in a graph.
        remedy: the code to write instead.
        bad: source of a file in which it finds something.
        good: source of a file that does the same and in which it finds nothing.
        words: the rule skips files whose text has no match for this.
        check: finds the places in a file.
    """

    id: str
    title: str
    severity: Severity
    why: str
    remedy: str
    bad: str
    good: str
    words: re.Pattern[str]
    check: Callable[[Source], Iterable[Mark]]


@dataclass(eq=False)
class Source:
    """The syntax tree of a file, with the questions that rules ask about it.

    Attributes:
        text: the source.
        tree: its syntax tree.
        packaged: the file is a module of a package, whose public names others import.
    """

    text: str
    tree: ast.Module
    packaged: bool = False

    @cached_property
    def _index(self) -> tuple[dict[type[ast.AST], list[ast.AST]], dict[ast.AST, ast.AST]]:
        by_type: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        parents: dict[ast.AST, ast.AST] = {}
        todo: list[ast.AST] = [self.tree]
        while todo:
            node = todo.pop()
            by_type[type(node)].append(node)
            inside = children(node)
            for child in inside:
                parents[child] = node
            inside.reverse()
            todo += inside
        return by_type, parents

    def nodes(self, kind: type[Node]) -> list[Node]:
        """All nodes of exactly this type, in the order of the source."""
        return cast("list[Node]", self._index[0].get(kind, []))

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and methods, nested ones too."""
        return [*self.nodes(ast.FunctionDef), *self.nodes(ast.AsyncFunctionDef)]

    @cached_property
    def _by_name(self) -> dict[str, list[Function]]:
        found: dict[str, list[Function]] = defaultdict(list)
        for function in self.functions:
            found[function.name].append(function)
        return found

    def function(self, name: str, container: ast.AST) -> Function | None:
        """The function of this name that is defined directly in a class, or in the module."""
        named = self._by_name.get(name, ())
        return next((one for one in named if self.parent(one) is container), None)

    @cached_property
    def _imported(self) -> dict[str, str]:
        """Local name -> full name, for all imports of the file."""
        names: dict[str, str] = {}
        for plain in self.nodes(ast.Import):
            for alias in plain.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        for node in self.nodes(ast.ImportFrom):
            for alias in node.names:
                origin = f"{'.' * node.level}{node.module or ''}.{alias.name}"
                names[alias.asname or alias.name] = _REEXPORTED.get(alias.name, origin)
        return names

    def dotted(self, node: ast.AST) -> str:
        """The full name of an imported name, ``"torch.cuda.graph"``; else ``""``."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._imported:
            return ""
        return ".".join([self._imported[node.id], *reversed(parts)])

    def calls(self, names: frozenset[str]) -> list[ast.Call]:
        """The calls of functions with these full names."""
        return [call for call in self.nodes(ast.Call) if self.dotted(call.func) in names]

    def decorated(self, function: Function, names: frozenset[str]) -> ast.expr | None:
        """The decorator of the function that has one of these full names."""
        for decorator in function.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            if self.dotted(target) in names:
                return decorator
        return None

    def parent(self, node: ast.AST) -> ast.AST:
        """The parent of the node; that of the tree is the tree."""
        return self._index[1].get(node, self.tree)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The ancestors of the node, innermost first; a decorator is outside of its function."""
        while node is not self.tree:
            inner, node = node, self.parent(node)
            if not (isinstance(node, Function) and inner in node.decorator_list):
                yield node

    def scope(self, node: ast.AST) -> Function | ast.Module:
        """The function whose body the node is in, or the module."""
        outer = (one for one in self.ancestors(node) if isinstance(one, Function))
        return next(outer, self.tree)

    def is_test(self, node: ast.AST) -> bool:
        """Whether the node is in a test; those capture in ways that other code should not."""
        tools = {origin.partition(".")[0] for origin in self._imported.values()}
        return not tools.isdisjoint({"pytest", "unittest"}) or any(
            isinstance(outer, Function) and outer.name.startswith("test")
            for outer in self.ancestors(node)
        )

    def owner(self, node: ast.AST) -> ast.ClassDef | None:
        """The class that the node is in."""
        outer = (one for one in self.ancestors(node) if isinstance(one, ast.ClassDef))
        return next(outer, None)

    def last_value(self, name: str, place: ast.AST) -> ast.expr | None:
        """The last value of a variable before a place in the same function."""
        line = self.statement(place).lineno
        found: ast.Assign | ast.AnnAssign | None = None
        for node in ast.walk(self.scope(place)):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno < line:
                names = {one.id for one in assigned(node) if isinstance(one, ast.Name)}
                if name in names and (found is None or node.lineno > found.lineno):
                    found = node
        return found.value if found else None

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that the node is in."""
        while not isinstance(node, ast.stmt):
            node = self.parent(node)
        return node


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly below, but for operators and contexts, which have no place.

    As ``ast.iter_child_nodes``, in a third of the time.
    """
    found: list[ast.AST] = []
    for value in vars(node).values():
        if type(value) is list:
            found += [one for one in value if isinstance(one, ast.AST)]
        elif isinstance(value, ast.AST) and not isinstance(value, _PLACELESS):
            found.append(value)
    return found


def assigned(node: ast.AST) -> list[ast.expr]:
    """The targets of an assignment, tuples taken apart; of anything else, none."""
    match node:
        case ast.Assign(targets=targets):
            todo = list(targets)
        case ast.AnnAssign(target=target, value=value) if value is not None:
            todo = [target]
        case ast.AugAssign(target=target) | ast.For(target=target) | ast.NamedExpr(target=target):
            todo = [target]
        case _:
            return []
    found: list[ast.expr] = []
    while todo:
        one = todo.pop()
        if isinstance(one, ast.Tuple | ast.List):
            todo += one.elts
        else:
            found.append(one)
    return found


def loaded(tree: ast.AST) -> set[str]:
    """The names that are read somewhere in the tree."""
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def short(node: ast.AST, width: int = 60) -> str:
    """The source of a node, on one line, cut at ``width`` characters."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= width else f"{text[: width - 3]}..."
