"""Compiles functions anew with ``if`` and ``while`` as calls that a graph can hold.

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
import functools
import inspect
import linecache
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType
from typing import Any

from ..errors import CaptureError
from .sites import SCOPES, Found, Site, Whole, sites_of, tests_of, turn_of

__all__ = ["Rewritten"]

_PLACEHOLDER = "gfxgraph: "
_GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


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
        self.sites = [found.site for found in sites_of(function)]
        self.compares = Whole(function).compares

    def site_at(self, instruction: int) -> Site | None:
        """The innermost site that decides by what is read at this instruction.

        Args:
            instruction: its offset in bytes, as in ``frame.f_lasti``.
        """
        line, last_line, column, last_column = self._positions[instruction // 2]
        if line is None or last_line is None or column is None or last_column is None:
            return None
        at = line, column, last_line, last_column
        found = [
            site
            for site in self.sites
            if at in site.statements
            or any(
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
            helpers: name -> function, for what the code calls in their place.

        Raises:
            CaptureError: Python cannot compile it.
        """
        tree, function = self._parsed()
        found = {id(one.node): one for one in sites_of(function) if one.site.number in chosen}
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


# What takes their place.


class _Replace(ast.NodeTransformer):
    """Replaces the sites of one function, inner ones first."""

    def __init__(self, found: dict[int, Found]) -> None:
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
        if isinstance(node, SCOPES):
            return node
        one = self._found.get(id(node))
        self.generic_visit(node)
        if one is None or one.rest is not None:
            return node
        if isinstance(node, ast.IfExp):
            return _chosen_value(one)
        replaced = _chosen(one) if isinstance(node, ast.If) else _looped(one)
        at = int(one.first)  # behind the `if ...: break`
        one.node.body = [*one.node.body[:at], _ran(one, 1), *one.node.body[at:]]
        if isinstance(node, ast.If):
            node.orelse = [_ran(one, 0), *node.orelse]
        asks = _call("lowers", one)
        return ast.copy_location(ast.If(asks, replaced, [one.node]), node)


def _looped(one: Found) -> list[ast.stmt]:
    node, carry = one.node, one.carry
    tests = [_test(test, one) for test in tests_of(one)]
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
        _function("_gfxgraph_turn", carry, turn_of(one), _tuple([given, last]), node),
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


def _chosen(one: Found) -> list[ast.stmt]:
    node, names = one.node, one.carry
    gives = [_tuple([_load(name) for name in names]) for _ in range(2)]
    return [
        _function("_gfxgraph_yes", one.given, node.body, gives[0], node),
        _function("_gfxgraph_no", one.given, node.orelse, gives[1], node),
        _assign(names, _choice(one, _load("_gfxgraph_yes"), _load("_gfxgraph_no")), node),
    ]


def _returned(one: Found, yes: list[ast.stmt], no: list[ast.stmt]) -> list[ast.stmt]:
    node = one.node
    parts: list[ast.stmt] = [
        _function("_gfxgraph_yes", one.given, yes, None, node),
        _function("_gfxgraph_no", one.given, no, None, node),
        ast.copy_location(
            ast.Return(_choice(one, _load("_gfxgraph_yes"), _load("_gfxgraph_no"))), node
        ),
    ]
    asks = _call("lowers", one)
    kept = ast.copy_location(ast.If(node.test, [_ran(one, 1), *yes], []), node)
    return [ast.copy_location(ast.If(asks, parts, [kept, _ran(one, 0), *no]), node)]


def _ran(one: Found, way: int) -> ast.stmt:
    """Notes which way the statement took."""
    noted = ast.Expr(_call("ran", one, ast.Constant(way)))
    return ast.copy_location(noted, one.node)


def _chosen_value(one: Found) -> ast.expr:
    node = one.node
    asks = _call("lowers", one)
    choice = _choice(one, _lambda(node.body), _lambda(node.orelse))
    for way, name in enumerate(("orelse", "body")):
        both = _tuple([_call("ran", one, ast.Constant(way)), getattr(node, name)])
        setattr(node, name, ast.Subscript(both, ast.Constant(1), ast.Load()))
    return ast.copy_location(ast.IfExp(asks, choice, node), node)


def _choice(one: Found, yes: ast.expr, no: ast.expr) -> ast.expr:
    given = _tuple([_load(name) for name in one.given])
    test = _test(one.node.test, one)
    return _call("choose", one, test, yes, no, given)


def _test(node: ast.expr, one: Found) -> ast.expr:
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


def _number(node: ast.expr, one: Found) -> ast.expr:
    if not _is_number_of(node):
        return node
    assert isinstance(node, ast.Call)
    if isinstance(node.func, ast.Attribute):
        return _call("item", one, node.func.value)
    return _call("called", one, node.func, node.args[0])


def _both(name: str, one: Found, left: ast.expr, right: ast.expr) -> ast.expr:
    return _call(name, one, _lambda(left), _lambda(right))


def _call(name: str, one: Found, *args: ast.expr) -> ast.expr:
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
