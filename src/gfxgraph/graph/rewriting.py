"""Rewrites functions so that their ``if`` and ``while`` become calls that a graph can hold.

Pure analysis of source: nothing here runs code of the user's. A :class:`Rewritten` has a function's
statements that branch, its *sites*, and compiles the function anew with some of them replaced:

- ``while``: the test and the body become functions of the names that the body assigns;
- ``for _ in range(n)`` that ends early with ``if ...: break``, and ``while ... and n < most`` that
  counts its turns: likewise, with a limit of turns;
- ``if``: each branch becomes a function; so does what follows, where a branch returns;
- ``a if test else b``: both become functions.

What replaces them asks first whether this thread wants it so; otherwise the statement runs as it
was written. The source counts only if compiling it gives the very code that runs.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import linecache
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal, TypeAlias

from ..errors import CaptureError

__all__ = ["HELPERS", "Rewritten", "Site"]

HELPERS = (
    "lowers",
    "loop",
    "choose",
    "turns",
    "both",
    "either",
    "negated",
    "compared",
    "item",
    "called",
)
"""Names of the functions that rewritten code calls; see ``lowering.py``."""

_PLACEHOLDER = "gfxgraph: "
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_FRAMES = frozenset({"locals", "vars", "dir", "eval", "exec", "super", "__class__"})
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
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


class Rewritten:
    """A function that can be compiled anew.

    Args:
        code: its code.

    Attributes:
        code: its code.
        sites: the places where it branches, outer ones first.
        compares: whether it asks with ``is`` if two objects are the same.

    Raises:
        CaptureError: its source is not known, or it is a generator.
    """

    def __init__(self, code: CodeType) -> None:
        self.code = code
        positions = getattr(code, "co_positions", None)
        if positions is None:
            raise CaptureError("Python tells the place of a test from 3.11 on")
        if code.co_flags & _GENERATORS:
            raise CaptureError(f"{code.co_name}() is a generator or a coroutine")
        #: Line, last line, column and last column of each instruction.
        self._positions: list[tuple[int | None, int | None, int | None, int | None]] = list(
            positions()
        )
        self._text = "".join(linecache.getlines(code.co_filename))
        function = self._parsed()[1]
        self.sites = [found.site for found in _sites_of(function)]
        self.compares = _Whole(function).compares

    def site_at(self, instruction: int) -> Site | None:
        """The innermost site that decides by what is read at this instruction.

        Args:
            instruction: its offset in bytes, as in ``frame.f_lasti``.
        """
        line, last_line, column, last_column = self._positions[instruction // 2]
        if line is None or last_line is None or column is None or last_column is None:
            return None
        found = [
            site
            for site in self.sites
            if any(
                (test[0], test[1]) <= (line, column)
                and (last_line, last_column) <= (test[2], test[3])
                for test in site.tests
            )
        ]
        fit = [site for site in found if not site.why] or found
        return fit[-1] if fit else None

    def inside(self, outer: Site) -> list[Site]:
        """The sites in the statement of another one that may be replaced."""
        return [site for site in self.sites if outer.number in site.within and not site.why]

    def compiled(self, chosen: Iterable[int], helpers: Mapping[str, Any]) -> CodeType:
        """The code of the function with some sites replaced.

        Args:
            chosen: numbers of these sites.
            helpers: the functions of :data:`HELPERS`.

        Raises:
            CaptureError: Python cannot compile it.
        """
        tree, function = self._parsed()
        found = {id(one.node): one for one in _sites_of(function) if one.site.number in chosen}
        _Replace(found).replace(function)
        ast.fix_missing_locations(tree)
        code = _find(_compile(tree, self.code.co_filename), self.code)
        if code is None or code.co_freevars != self.code.co_freevars:
            raise CaptureError(f"{self.code.co_name}() cannot be compiled anew")
        return _with_helpers(code, helpers)

    def _parsed(self) -> tuple[ast.Module, ast.FunctionDef | ast.Lambda]:
        code, name = self.code, f"{self.code.co_name}()"
        try:
            tree = ast.parse(self._text)
            same = _find(_compile(tree, code.co_filename), code)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise CaptureError(f"the source of {name} cannot be parsed: {error}") from error
        if same is None or same != code:
            raise CaptureError(f"the source of {name} is not there, or is not what runs")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
                first = node.decorator_list[0] if node.decorator_list else node
                if first.lineno == code.co_firstlineno:
                    return tree, node
        raise CaptureError(f"the source of {name} is not a function's")


def _compile(tree: ast.Module, file: str) -> CodeType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a placeholder is called, which is a string
        code: CodeType = compile(tree, file, "exec", dont_inherit=True)
    return code


def _find(code: CodeType, like: CodeType) -> CodeType | None:
    """The function in ``code`` that has the name and the line of ``like``."""
    for const in code.co_consts:
        if type(const) is CodeType:
            if (const.co_name, const.co_firstlineno) == (like.co_name, like.co_firstlineno):
                return const
            found = _find(const, like)
            if found is not None:
                return found
    return None


def _with_helpers(code: CodeType, helpers: Mapping[str, Any]) -> CodeType:
    def replaced(const: Any) -> Any:
        if type(const) is CodeType:
            return _with_helpers(const, helpers)
        if type(const) is str and const.startswith(_PLACEHOLDER):
            return helpers.get(const.removeprefix(_PLACEHOLDER), const)
        return const

    return code.replace(co_consts=tuple(map(replaced, code.co_consts)))


@dataclass
class _Found:
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


def _sites_of(function: Any) -> list[_Found]:
    """The sites of a function, outer ones first, in the order of the source."""
    found: list[_Found] = []
    whole = _Whole(function)

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
            if not isinstance(child, (*_INNER, *_COMPREHENSIONS)):
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
    whole: _Whole,
    in_loop: bool,
    rest: Sequence[ast.stmt] | None,
) -> _Found | None:
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
    one = _Found(Site(number, kind, node.lineno, tuple(map(_range, tests)), within, ""), node)
    try:
        if whole.why:
            raise _Unfit(whole.why)
        if isinstance(node, ast.IfExp):
            _require_expressions([node])
        elif isinstance(node, ast.If):
            _fit_choice(one, whole, in_loop, rest)
        else:
            one.leaves, one.first = leaves, first
            _fit_loop(one, whole)
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


def _turn(one: _Found) -> list[ast.stmt]:
    """The statements of a turn, without the ``if ...: break``."""
    body: list[ast.stmt] = one.node.body
    if one.leaves is not None:
        body = body[1:] if one.first else body[:-1]
    return [
        statement for statement in body if one.counter is None or statement is not one.counter.adds
    ]


def _tests(one: _Found) -> list[ast.expr]:
    """The operands of the test of ``while``, without one that counts."""
    test = getattr(one.node, "test", ast.Constant(True))
    tests = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    counts = None if one.counter is None else one.counter.asks
    return [t for t in tests if t is not counts and not _is_true(t)]


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _counter(one: _Found, whole: _Whole) -> _Counter | None:
    """How a loop counts its turns, if nothing but its test asks for that."""
    for statement in _turn(one):
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
        for test in _tests(one):
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


def _fit_loop(one: _Found, whole: _Whole) -> None:
    node, turn = one.node, _turn(one)
    if node.orelse:
        raise _Unfit("it has an `else`")
    if isinstance(node, ast.For):
        _require_range(node, whole)
    else:
        one.counter = _counter(one, whole)
        turn = _turn(one)
    _require_statements(turn)
    tests = _tests(one)
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


def _require_range(node: ast.For, whole: _Whole) -> None:
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


def _fit_choice(one: _Found, whole: _Whole, in_loop: bool, rest: Sequence[ast.stmt] | None) -> None:
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


def _fit_return(one: _Found, whole: _Whole, rest: Sequence[ast.stmt] | None) -> None:
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


class _Whole:
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
            if isinstance(scope, (*_INNER, *_COMPREHENSIONS)) and scope is not self._function:
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
            if not isinstance(child, (*_INNER, *_COMPREHENSIONS)):
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


# What takes their place.


class _Replace(ast.NodeTransformer):
    """Replaces the sites of one function, inner ones first."""

    def __init__(self, found: dict[int, _Found]) -> None:
        self._found = found

    def replace(self, function: Any) -> None:
        function.body = self._block(function.body)

    def _block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """A block of the function itself, where an ``if`` may swallow what follows."""
        done: list[ast.stmt] = []
        for n, statement in enumerate(statements):
            one = self._found.get(id(statement))
            if one is not None and one.rest is not None:
                del self._found[id(statement)]
                assert isinstance(statement, ast.If)
                rest = [*statement.orelse, *statements[n + 1 :]]
                yes, no = self._block(statement.body), self._block(rest)
                return [*done, *_returned(one, yes, no)]
            replaced = self.visit(statement)
            done += replaced if isinstance(replaced, list) else [replaced]
        return done

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (*_INNER, *_COMPREHENSIONS)):
            return node
        one = self._found.get(id(node))
        self.generic_visit(node)
        if one is None or one.rest is not None:
            return node
        if isinstance(node, ast.IfExp):
            return _chosen_value(one)
        replaced = _chosen(one) if isinstance(node, ast.If) else _looped(one)
        asks = _call("lowers", one)
        return ast.copy_location(ast.If(asks, replaced, [one.node]), node)


def _looped(one: _Found) -> list[ast.stmt]:
    node, carry = one.node, one.carry
    tests = [_test(test, one) for test in _tests(one)]
    ends = None if one.leaves is None else _call("negated", one, _test(one.leaves, one))
    if ends is not None and one.first:
        tests.append(ends)
    goes_on: ast.expr = ast.Constant(True)
    if tests:
        goes_on = functools.reduce(lambda a, b: _both("both", one, a, b), tests)
    last = ends if ends is not None and not one.first else ast.Constant(None)
    limit: ast.expr = ast.Constant(None)
    if isinstance(node, ast.For):
        assert isinstance(node.iter, ast.Call)
        of_range = [node.iter.func, ast.Constant(0), node.iter.args[0]]
        limit = _call("turns", one, *of_range, ast.Constant(1), ast.Constant(False))
    elif one.counter is not None:
        counter = one.counter
        counted = [ast.Constant(None), _load(counter.name), counter.most]
        limit = _call(
            "turns", one, *counted, ast.Constant(counter.step), ast.Constant(counter.reaches)
        )
    given = _tuple([_load(name) for name in carry])
    return [
        _function("_gfxgraph_goes_on", carry, [], goes_on, node),
        _function("_gfxgraph_turn", carry, _turn(one), _tuple([given, last]), node),
        _assign(
            carry,
            _call(
                "loop",
                one,
                _load("_gfxgraph_goes_on"),
                _load("_gfxgraph_turn"),
                _tuple([ast.Constant(name) for name in carry]),
                _tuple([_load(name) for name in carry]),
                ast.Constant(one.leaves is not None and not one.first),
                limit,
            ),
            node,
        ),
    ]


def _chosen(one: _Found) -> list[ast.stmt]:
    node, names = one.node, one.carry
    gives = [_tuple([_load(name) for name in names]) for _ in range(2)]
    return [
        _function("_gfxgraph_yes", one.given, node.body, gives[0], node),
        _function("_gfxgraph_no", one.given, node.orelse, gives[1], node),
        _assign(names, _choice(one, _load("_gfxgraph_yes"), _load("_gfxgraph_no")), node),
    ]


def _returned(one: _Found, yes: list[ast.stmt], no: list[ast.stmt]) -> list[ast.stmt]:
    node = one.node
    parts: list[ast.stmt] = [
        _function("_gfxgraph_yes", one.given, yes, None, node),
        _function("_gfxgraph_no", one.given, no, None, node),
        ast.copy_location(
            ast.Return(_choice(one, _load("_gfxgraph_yes"), _load("_gfxgraph_no"))), node
        ),
    ]
    asks = _call("lowers", one)
    kept = ast.copy_location(ast.If(node.test, yes, []), node)
    return [ast.copy_location(ast.If(asks, parts, [kept, *no]), node)]


def _chosen_value(one: _Found) -> ast.expr:
    node = one.node
    asks = _call("lowers", one)
    choice = _choice(one, _lambda(node.body), _lambda(node.orelse))
    return ast.copy_location(ast.IfExp(asks, choice, node), node)


def _choice(one: _Found, yes: ast.expr, no: ast.expr) -> ast.expr:
    given = _tuple([_load(name) for name in one.given])
    test = _test(one.node.test, one)
    return _call("choose", one, test, yes, no, given)


def _test(node: ast.expr, one: _Found) -> ast.expr:
    """A test whose value may stay on the device."""
    if isinstance(node, ast.BoolOp):
        name = "both" if isinstance(node.op, ast.And) else "either"
        parts = [_test(value, one) for value in node.values]
        return functools.reduce(lambda a, b: _both(name, one, a, b), parts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _call("negated", one, _test(node.operand, one))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        word = _COMPARISONS.get(type(node.ops[0]))
        sides = [node.left, node.comparators[0]]
        if word is not None and any(map(_is_number_of, sides)):
            return _call(
                "compared", one, ast.Constant(word), *(_number(side, one) for side in sides)
            )
    return _number(node, one)


_COMPARISONS = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}


def _is_number_of(node: ast.expr) -> bool:
    """Whether this is ``t.item()``, ``float(t)``, ``int(t)`` or ``bool(t)``."""
    if not isinstance(node, ast.Call) or node.keywords:
        return False
    if isinstance(node.func, ast.Attribute):
        return node.func.attr == "item" and not node.args
    plain = len(node.args) == 1 and not isinstance(node.args[0], ast.Starred)
    return isinstance(node.func, ast.Name) and node.func.id in ("float", "int", "bool") and plain


def _number(node: ast.expr, one: _Found) -> ast.expr:
    if not _is_number_of(node):
        return node
    assert isinstance(node, ast.Call)
    if isinstance(node.func, ast.Attribute):
        return _call("item", one, node.func.value)
    return _call("called", one, node.func, node.args[0])


def _both(name: str, one: _Found, left: ast.expr, right: ast.expr) -> ast.expr:
    return _call(name, one, _lambda(left), _lambda(right))


def _call(name: str, one: _Found, *args: ast.expr) -> ast.expr:
    number = ast.Constant(one.site.number)
    called = ast.Call(ast.Constant(_PLACEHOLDER + name), [number, *args], [])
    return ast.copy_location(called, one.node)


def _load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _tuple(items: list[ast.expr]) -> ast.expr:
    return ast.Tuple(items, ast.Load())


def _lambda(body: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Lambda(_arguments(()), body), body)


def _arguments(names: Sequence[str]) -> ast.arguments:
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


def _function(
    name: str, names: Sequence[str], body: Sequence[ast.stmt], gives: ast.expr | None, like: ast.AST
) -> ast.stmt:
    statements = list(body)
    if gives is not None:
        statements.append(ast.copy_location(ast.Return(gives), like))
    more: dict[str, Any] = {"type_params": []} if "type_params" in ast.FunctionDef._fields else {}
    made = ast.FunctionDef(name, _arguments(names), statements, [], **more)
    return ast.copy_location(made, like)


def _assign(names: Sequence[str], value: ast.expr, like: ast.AST) -> ast.stmt:
    target = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
    return ast.copy_location(ast.Assign([target], value), like)
