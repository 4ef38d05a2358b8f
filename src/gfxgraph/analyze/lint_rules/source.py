"""A file as the rules see it: syntax tree, full names, parents of nodes."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, TypeVar, cast

from ..report import Severity

__all__ = [
    "Function",
    "LintRule",
    "Mark",
    "Source",
    "assigned",
    "blocks",
    "children",
    "loaded",
    "short",
]

_MODULE = re.compile(r"(?:Module|Model|Net|Policy|Pipeline|Head|Mixin|PreTrained\w*)$")
_LEAVES = {int, str, type(None)}.union(
    *(kind.__subclasses__() for kind in (ast.expr_context, ast.operator, ast.unaryop, ast.boolop))
)
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
        words: the rule skips files whose text has none of these.
        check: finds the places in a file.
    """

    id: str
    title: str
    severity: Severity
    why: str
    remedy: str
    bad: str
    good: str
    words: frozenset[str]
    check: Callable[[Source], Iterable[Mark]]


@dataclass(eq=False)
class Source:
    """The syntax tree of a file, with the questions that rules ask about it.

    Attributes:
        text: the source.
        tree: its syntax tree.
        name: the name of its module, from the outermost package.
        packaged: the file is a module of a package, whose public names others import.
        memo: what rules have found out together.
    """

    text: str
    tree: ast.Module
    name: str = ""
    packaged: bool = False
    memo: dict[str, Any] = field(default_factory=dict, repr=False)

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
    def _methods(self) -> dict[ast.AST, dict[str, Function]]:
        return {}

    def function(self, name: str, container: ast.ClassDef | ast.Module) -> Function | None:
        """The function of this name that is defined directly in a class, or in the module."""
        if container not in self._methods:
            self._methods[container] = {
                one.name: one for one in reversed(container.body) if isinstance(one, Function)
            }
        return self._methods[container].get(name)

    @cached_property
    def _imports(self) -> list[ast.Import | ast.ImportFrom]:
        """All imports of the file, also those in functions: no expression is looked into."""
        found: list[ast.Import | ast.ImportFrom] = []
        todo: list[ast.AST] = [self.tree]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.append(node)
                continue
            todo += blocks(node)
        return found

    @cached_property
    def _imported(self) -> dict[str, str]:
        """Local name -> full name, for all imports of the file."""
        names: dict[str, str] = {}
        for plain in (one for one in self._imports if isinstance(one, ast.Import)):
            for alias in plain.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        for node in (one for one in self._imports if isinstance(one, ast.ImportFrom)):
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

    def family(self, cls: ast.ClassDef | None) -> list[ast.ClassDef]:
        """The class and its bases in the file."""
        found = [cls] if cls else []
        for one in found:  # which grows
            names = {base.id for base in one.bases if isinstance(base, ast.Name)}
            bases = [self.classes[name] for name in names if name in self.classes]
            found += [base for base in bases if base not in found]
        return found

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        """The classes at the top of the file, also those in conditions, by name."""
        found: dict[str, ast.ClassDef] = {}
        todo = list(reversed(self.tree.body))
        while todo:
            one = todo.pop()
            if isinstance(one, ast.ClassDef):
                found.setdefault(one.name, one)
            elif isinstance(one, ast.If | ast.Try):
                todo += [inner for inner in children(one) if isinstance(inner, ast.stmt)]
        return found

    def is_module(self, cls: ast.ClassDef) -> bool:
        """Whether objects of the class are called as modules of torch are."""
        for one in self.family(cls):
            if any(isinstance(f, Function) and f.name == "forward" for f in one.body):
                return True
            if any(_MODULE.search(ast.unparse(base)) for base in one.bases):
                return True
        return False

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
    for value in node.__dict__.values():
        kind = type(value)
        if kind is list:
            found += [one for one in value if isinstance(one, ast.AST)]
        elif kind not in _LEAVES and isinstance(value, ast.AST):
            found.append(value)
    return found


def blocks(node: ast.AST) -> list[ast.AST]:
    """The statements, handlers and cases directly in a statement, without its expressions."""
    found: list[ast.AST] = []
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        inside = getattr(node, name, None)
        if type(inside) is list:
            found += inside
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
