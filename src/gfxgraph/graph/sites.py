"""Finds where a function branches, and which of these statements could be functions.

Pure analysis of source: nothing here runs code of the user's. A body that becomes a function has to
mean there what it means where it stands: which names go in and out is found here.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

__all__ = ["SCOPES", "Found", "Site", "Whole", "sites_of", "tests_of", "turn_of"]

_FRAMES = frozenset({"locals", "vars", "dir", "eval", "exec", "super", "__class__"})
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (*_INNER, *_COMPREHENSIONS)
#: What a body that becomes a function of its own may consist of.
_STATEMENTS = (
    ast.Assign,
    ast.AnnAssign,
    ast.Assert,
    ast.AugAssign,
    ast.Expr,
    ast.For,
    ast.If,
    ast.Pass,
    ast.While,
    ast.With,
)
_NOT_IN_FUNCTIONS = (ast.Await, ast.Yield, ast.YieldFrom)

_Range: TypeAlias = "tuple[int, int, int, int]"


class _Unfit(Exception):
    """Why a statement stays as it is."""


@dataclass(frozen=True)
class Site:
    """A place where a function branches.

    Attributes:
        number: which one of its function, from 0.
        kind: the keyword.
        line: where it is.
        tests: ranges of source (line, column, last line, last column) that decide.
        within: numbers of the sites around it.
        why: why it has to stay as it is; empty: it may be replaced.
    """

    number: int
    kind: Literal["if", "while", "for"]
    line: int
    tests: tuple[_Range, ...]
    within: tuple[int, ...]
    why: str


@dataclass
class Found:
    """A site in a tree.

    Attributes:
        site: what is known of it.
        node: the statement or expression.
        carry: of a loop, the names that go from turn to turn; of an ``if``, those that it gives.
        given: of an ``if``, the names that its branches are given.
        leaves: of a loop, where it ends early: the test of ``if ...: break``.
        first: whether that comes first in a turn.
        counter: of a loop that counts its turns, how.
        rest: of an ``if`` that returns, what follows in its block.
    """

    site: Site
    node: Any
    carry: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    leaves: ast.expr | None = None
    first: bool = False
    counter: _Counter | None = None
    rest: Sequence[ast.stmt] | None = None


@dataclass
class _Counter:
    """``while ... and name < most: ...; name += step``.

    Attributes:
        name: the name.
        step: what is added in each turn, an int from 1.
        most: where it ends.
        reaches: whether ``<=`` stands for ``<``.
        adds: the statement that counts.
        asks: the comparison.
    """

    name: str
    step: int
    most: ast.expr
    reaches: bool
    adds: ast.stmt
    asks: ast.expr


def sites_of(function: Any) -> list[Found]:
    """The sites of a function, outer ones first, in the order of the source."""
    found: list[Found] = []
    whole = Whole(function)

    # An `if` that returns takes in what follows, if nothing but other ones stands around it.
    rest: dict[int, Sequence[ast.stmt]] = {}
    blocks: list[Sequence[ast.stmt]] = [function.body]
    for block in blocks:
        for n, node in enumerate(block):
            if id(node) not in rest:
                rest[id(node)] = block[n + 1 :]
                if isinstance(node, ast.If):
                    blocks.append([*node.orelse, *block[n + 1 :]])

    def visit(node: ast.AST, within: tuple[int, ...], in_loop: bool) -> None:
        if isinstance(node, (ast.If, ast.While, ast.For, ast.IfExp)):
            one = _site(node, len(found), within, whole, in_loop, rest.get(id(node)))
            if one is not None:
                found.append(one)
                within = (*within, one.site.number)
        in_loop = in_loop or isinstance(node, (ast.While, ast.For))
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, SCOPES):
                visit(child, within, in_loop)

    for statement in function.body:
        visit(statement, (), in_loop=False)
    for one in found:
        inside = {id(node) for taken in one.rest or () for node in ast.walk(taken)}
        for other in found:
            if id(other.node) in inside:
                within = (*other.site.within, one.site.number)
                other.site = dataclasses.replace(other.site, within=within)
    return found


def _site(
    node: Any,
    number: int,
    within: tuple[int, ...],
    whole: Whole,
    in_loop: bool,
    rest: Sequence[ast.stmt] | None,
) -> Found | None:
    kind: Literal["if", "while", "for"]
    if isinstance(node, (ast.If, ast.IfExp)):
        kind, tests = "if", [node.test]
    else:
        leaves, first = _leaves(node)
        kind = "while" if isinstance(node, ast.While) else "for"
        tests = [node.test] if kind == "while" else []
        tests += [leaves] if leaves is not None else []
    if not tests:
        return None
    one = Found(Site(number, kind, node.lineno, tuple(map(_range, tests)), within, ""), node)
    try:
        if whole.why:
            raise _Unfit(whole.why)
        if isinstance(node, ast.IfExp):
            _require_expressions([node])
        elif isinstance(node, ast.If):
            _fit_choice(one, whole, in_loop, rest)
        else:
            one.leaves, one.first = leaves, first
            _fit_loop(one, whole, in_loop)
    except _Unfit as unfit:
        one.site = dataclasses.replace(one.site, why=str(unfit))
    return one


def _range(node: ast.expr) -> _Range:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _leaves(node: ast.While | ast.For) -> tuple[ast.expr | None, bool]:
    """The test of the ``if ...: break`` at the end or at the beginning of a turn; which one."""
    for at, first in ((0, True), (-1, False)):
        one = node.body[at]
        if (
            isinstance(one, ast.If)
            and len(one.body) == 1
            and isinstance(one.body[0], ast.Break)
            and not one.orelse
        ):
            return one.test, first and len(node.body) > 1
    return None, False


def turn_of(one: Found) -> list[ast.stmt]:
    """The statements of a turn, without the ``if ...: break``."""
    body: list[ast.stmt] = one.node.body
    if one.leaves is not None:
        body = body[1:] if one.first else body[:-1]
    return [
        statement for statement in body if one.counter is None or statement is not one.counter.adds
    ]


def tests_of(one: Found) -> list[ast.expr]:
    """The operands of the test of ``while``, without one that counts."""
    test = getattr(one.node, "test", ast.Constant(True))
    tests = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    counts = None if one.counter is None else one.counter.asks
    return [t for t in tests if t is not counts and not _is_true(t)]


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _counter(one: Found, whole: Whole) -> _Counter | None:
    """How a loop counts its turns, if nothing but its test asks for that."""
    for statement in turn_of(one):
        if not (
            isinstance(statement, ast.AugAssign)
            and isinstance(statement.op, ast.Add)
            and isinstance(statement.target, ast.Name)
            and isinstance(statement.value, ast.Constant)
            and type(statement.value.value) is int
            and statement.value.value > 0
        ):
            continue
        name, step = statement.target.id, statement.value.value
        for test in tests_of(one):
            if not (
                isinstance(test, ast.Compare)
                and len(test.ops) == 1
                and isinstance(test.ops[0], (ast.Lt, ast.LtE))
                and isinstance(test.left, ast.Name)
                and test.left.id == name
                and name in whole.begin_with_an_int
            ):
                continue
            most = test.comparators[0]
            if _loads(ast.walk(most)) & _assigned(one.node.body):
                continue
            counter = _Counter(name, step, most, isinstance(test.ops[0], ast.LtE), statement, test)
            apart = whole.loaded_outside(statement, test.left)
            if name not in apart:
                return counter
    return None


def _fit_loop(one: Found, whole: Whole, in_loop: bool) -> None:
    node, turn = one.node, turn_of(one)
    if node.orelse:
        raise _Unfit("it has an `else`")
    if isinstance(node, ast.For):
        _require_range(node, whole)
    else:
        # Around it, a loop would go on counting where this one has ended.
        one.counter = None if in_loop else _counter(one, whole)
        turn = turn_of(one)
    _require_statements(turn)
    tests = tests_of(one)
    _require_expressions(tests if one.leaves is None else [*tests, one.leaves])
    assigned = _assigned(turn)
    used = _Used()
    for test in tests:
        used.expression(test)
    if one.leaves is not None and one.first:
        used.expression(one.leaves)
    used.block(turn)
    if one.leaves is not None and not one.first:
        used.expression(one.leaves)
    whole.require_free(assigned, node)
    one.carry = tuple(sorted(assigned & (used.first | whole.loaded_outside(node))))
    if not one.carry:
        raise _Unfit("it assigns no name that is used again")


def _require_range(node: ast.For, whole: Whole) -> None:
    fits = (
        isinstance(node.target, ast.Name)
        and isinstance(node.iter, ast.Call)
        and isinstance(node.iter.func, ast.Name)
        and node.iter.func.id == "range"
        and len(node.iter.args) == 1
        and not node.iter.keywords
        and not isinstance(node.iter.args[0], ast.Starred)
    )
    if not fits:
        raise _Unfit("it is no `for name in range(n)`")
    assert isinstance(node.target, ast.Name)
    if node.target.id in whole.loads():
        raise _Unfit(f"{node.target.id}, the number of the turn, is used")


def _fit_choice(one: Found, whole: Whole, in_loop: bool, rest: Sequence[ast.stmt] | None) -> None:
    node = one.node
    _require_expressions([node.test])
    if any(isinstance(part, ast.Return) for part in _within([node])):
        _fit_return(one, whole, rest)
        return
    _require_statements([*node.body, *node.orelse])
    assigned = _assigned([*node.body, *node.orelse])
    whole.require_free(assigned, node)
    used, other = _Used(), _Used()
    used.block(node.body)
    other.block(node.orelse)
    first = used.first | other.first
    after = whole.loaded_outside(node) | (first if in_loop else set())
    one.carry = tuple(sorted(assigned & after))
    if not one.carry:
        raise _Unfit("it assigns no name that is used again")
    both = used.surely & other.surely
    one.given = tuple(sorted(assigned & (first | (set(one.carry) - both))))


def _fit_return(one: Found, whole: Whole, rest: Sequence[ast.stmt] | None) -> None:
    """``if test: return a`` and what follows, at the level of the function."""
    node = one.node
    if rest is None:
        raise _Unfit("it returns from inside of another statement")
    otherwise = [*node.orelse, *rest]
    for block in (node.body, otherwise):
        if not block or not isinstance(block[-1], ast.Return):
            raise _Unfit("it returns in one branch, and what follows does not end with `return`")
        _require_statements(block, ast.Return)
    assigned = _assigned([*node.body, *otherwise])
    first: set[str] = set()
    for block in (node.body, otherwise):
        used = _Used()
        used.block(block)
        first |= used.first
    whole.require_free(assigned, *node.body, *otherwise)
    one.given = tuple(sorted(assigned & first))
    one.rest = rest


# What statements do with names.


class Whole:
    """The function that sites are in."""

    def __init__(self, function: Any) -> None:
        self._function = function
        names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        self.why = ""
        if names & _FRAMES:
            self.why = f"its function uses {min(names & _FRAMES)}"
        self._declared = {
            name
            for node in ast.walk(function)
            if isinstance(node, (ast.Global, ast.Nonlocal))
            for name in node.names
        }
        #: Names to which it assigns an int somewhere.
        self.begin_with_an_int = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and type(node.value.value) is int
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self.compares = any(
            isinstance(op, (ast.Is, ast.IsNot)) and not isinstance(side, ast.Constant)
            for node in ast.walk(function)
            if isinstance(node, ast.Compare)
            for op, side in zip(node.ops, node.comparators, strict=True)
        )

    def loads(self) -> set[str]:
        """Names that code loads or deletes."""
        return _loads(ast.walk(self._function))

    def loaded_outside(self, *nodes: ast.AST) -> set[str]:
        """Names that code outside of ``nodes`` loads or deletes."""
        inside = {id(part) for node in nodes for part in ast.walk(node)}
        return _loads(part for part in ast.walk(self._function) if id(part) not in inside)

    def require_free(self, assigned: set[str], *nodes: ast.AST) -> None:
        """Raise if other scopes see the names that are assigned in ``nodes``."""
        if assigned & self._declared:
            raise _Unfit(f"it assigns {min(assigned & self._declared)}, which is no local name")
        inside = {id(part) for node in nodes for part in ast.walk(node)}
        for scope in ast.walk(self._function):
            if isinstance(scope, SCOPES) and scope is not self._function:
                own = {part.arg for part in ast.walk(scope) if isinstance(part, ast.arg)}
                shared = assigned & (_loads(ast.walk(scope)) - own)
                if shared and id(scope) not in inside:
                    raise _Unfit(f"it assigns {min(shared)}, which a function inside uses")


def _loads(nodes: Iterable[ast.AST]) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def _within(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """These and what is in them, without the bodies of functions inside."""
    for node in nodes:
        yield node
        if not isinstance(node, _INNER):
            yield from _within(ast.iter_child_nodes(node))


def _assigned(statements: Sequence[ast.stmt]) -> set[str]:
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, SCOPES):
                visit(child)

    for statement in statements:
        visit(statement)
    return found


def _require_statements(statements: Sequence[ast.stmt], *more: type[ast.stmt]) -> None:
    """Raise if these could not be the body of a function; it may hold ``more`` kinds."""
    for node in _within(statements):
        if isinstance(node, ast.stmt) and not isinstance(node, (*_STATEMENTS, *more)):
            if isinstance(node, (ast.Break, ast.Continue)) and _is_in_loop(node, statements):
                continue
            raise _Unfit(f"there is {_keyword(node)} inside")
    _require_expressions(statements)


def _is_in_loop(node: ast.AST, statements: Sequence[ast.stmt]) -> bool:
    loops = [s for s in _within(statements) if isinstance(s, (ast.While, ast.For))]
    return any(node in _within(loop.body) for loop in loops)


def _require_expressions(nodes: Iterable[ast.AST]) -> None:
    for node in _within(nodes):
        if isinstance(node, (*_NOT_IN_FUNCTIONS, ast.NamedExpr)):
            raise _Unfit(f"there is {_keyword(node)} inside")
        if isinstance(node, ast.comprehension) and node.is_async:
            raise _Unfit("there is `async` inside")


def _keyword(node: ast.AST) -> str:
    word = {
        "FunctionDef": "def",
        "ClassDef": "class",
        "NamedExpr": ":=",
        "Delete": "del",
        "ImportFrom": "import",
        "YieldFrom": "yield",
        "TryStar": "try",
    }.get(type(node).__name__, type(node).__name__.lower())
    return f"`{word}`"


class _Used:
    """Which names are loaded before they are surely assigned, in the order of evaluation.

    Attributes:
        first: these.
        surely: those that are assigned in any case.
    """

    def __init__(self, surely: Iterable[str] = (), first: set[str] | None = None) -> None:
        self.surely = set(surely)
        self.first: set[str] = set() if first is None else first

    def expression(self, node: ast.AST) -> None:
        self.first |= _loads(ast.walk(node)) - self.surely

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            if node.value is not None:
                self.expression(node.value)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                self.expression(target)  # of `a[i] = b` it loads both
                if node.value is not None:
                    self.surely |= _stores(target)
        elif isinstance(node, ast.AugAssign):
            self.expression(node.value)
            self.first |= _stores(node.target) - self.surely
            self.expression(node.target)
        elif isinstance(node, ast.With):
            for item in node.items:
                self.expression(item.context_expr)
                if item.optional_vars is not None:
                    self.expression(item.optional_vars)
                    self.surely |= _stores(item.optional_vars)
            inner = self._inner()  # it may leave by an error that is swallowed
            inner.block(node.body)
        elif isinstance(node, ast.If):
            self.expression(node.test)
            body, orelse = self._inner(), self._inner()
            body.block(node.body)
            orelse.block(node.orelse)
            self.surely |= body.surely & orelse.surely
        elif isinstance(node, (ast.For, ast.While)):
            inner = self._inner()
            if isinstance(node, ast.For):
                self.expression(node.iter)
                self.expression(node.target)
                inner.surely |= _stores(node.target)
            else:
                self.expression(node.test)
            inner.block(node.body)
            self._inner().block(node.orelse)
        else:
            self.expression(node)

    def _inner(self) -> _Used:
        return _Used(self.surely, self.first)


def _stores(target: ast.AST) -> set[str]:
    return {
        node.id
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
