"""Rules about Triton kernels."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .source import LintRule, Mark, Source, short

__all__ = ["RULES"]

_KERNEL = frozenset(
    {
        "triton.jit",
        "triton.autotune",
        "triton.heuristics",
        "triton.runtime.jit",
        "triton.runtime.jit.jit",
    }
)
_BACKWARD = re.compile(r"bwd|backward|(?:^|_)d[qkvwxb](?:_|$)")  # inference does not run them
_TL = "triton.language."
_MASK_POSITION = {"load": 1, "store": 2}
_CLAMPED = {"where", "minimum", "clamp"}
_OPAQUE = {"load", "make_block_ptr", "make_tensor_descriptor"}  # no offsets, or bounds of its own


@dataclass(frozen=True)
class _Value:
    """The facts about a value in a kernel.

    Attributes:
        offsets: the lanes, program ids and loops that it runs over unclamped, as text.
        compared: for a truth value, the offsets that it compares with something.
    """

    offsets: frozenset[str] = frozenset()
    compared: frozenset[str] = frozenset()

    def __or__(self, other: _Value) -> _Value:
        return _Value(self.offsets | other.offsets, self.compared | other.compared)

    @property
    def is_mask(self) -> bool:
        return bool(self.compared) and not self.offsets


_NOTHING = _Value()


def _unclamped_offsets(source: Source) -> Iterator[Mark]:
    for function in source.functions:
        if source.decorated(function, _KERNEL) and not _BACKWARD.search(function.name):
            run = _Run(source)
            run.block(function.body)
            for call, pointer in run.found.items():
                what = f"{short(call.func)}({short(pointer)}, ...) with a mask, in {function.name}"
                yield Mark(call, f"{what}: the offsets are not clamped")


@dataclass
class _Run:
    """One walk through a kernel in the order of its statements, with the value of each name."""

    source: Source
    names: dict[str, _Value] = field(default_factory=dict)
    found: dict[ast.Call, ast.expr] = field(default_factory=dict)

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.If(test=test, body=body, orelse=orelse):
                self._look(test)
                before = dict(self.names)
                self.block(body)
                after, self.names = self.names, before
                self.block(orelse)
                for name, value in after.items():
                    self.names[name] = self.names.get(name, _NOTHING) | value
            case ast.For(target=target, iter=over, body=body):
                self._look(over)
                rounds = _Value(frozenset({f"loop:{statement.lineno}"}))
                self._bind(target, rounds | self._value(over))
                self._loop(body)
            case ast.While(test=test, body=body):
                self._look(test)
                self._loop(body)
            case ast.With(body=body):
                self.block(body)
            case ast.Assign(targets=targets, value=value):
                self._look(value)
                for one in targets:
                    self._assign(one, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._look(value)
                self._assign(target, value)
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                self._look(value)
                held = ast.copy_location(ast.Name(name, ast.Load()), target)
                self.names[name] = self._value(ast.BinOp(held, op, value))
            case _:
                self._look(statement)

    def _loop(self, body: Sequence[ast.stmt]) -> None:
        before = dict(self.names)
        self.block(body)
        if self.names != before:
            self.block(body)  # once more, with the values of the first round

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            held = [self._value(one) for one in value.elts]
            for one, part in zip(target.elts, held, strict=False):
                self._bind(one, part)
        elif isinstance(target, ast.Tuple):
            self._bind(target, _NOTHING)
        else:
            self._bind(target, self._value(value))

    def _bind(self, target: ast.expr, value: _Value) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self.names[node.id] = value

    def _look(self, tree: ast.AST) -> None:
        """Note the masked accesses in the tree whose offsets are not clamped."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                pointer, mask = self._access(node)
                if pointer and mask and self._beyond(pointer, mask):
                    self.found[node] = pointer

    def _access(self, call: ast.Call) -> tuple[ast.expr | None, ast.expr | None]:
        """The pointer and the mask of a call of ``tl.load`` or ``tl.store``."""
        position = _MASK_POSITION.get(self._operator(call))
        if position is None:
            return None, None
        given = dict(enumerate(call.args)) | {key.arg: key.value for key in call.keywords}
        return given.get(0, given.get("pointer")), given.get(position, given.get("mask"))

    def _beyond(self, pointer: ast.expr, mask: ast.expr) -> bool:
        """Whether the pointer runs over the very offsets that the mask holds back."""
        compared = self._value(mask).compared
        # A bound such as min(start + BLOCK, n) holds the program id; the mask is for the lanes.
        lanes = {offset for offset in compared if offset.startswith("lane:")}
        return bool(self._value(pointer).offsets & (lanes or compared))

    def _operator(self, call: ast.Call) -> str:
        name = self.source.dotted(call.func)
        return name.removeprefix(_TL) if name.startswith(_TL) else ""

    def _value(self, node: ast.expr) -> _Value:
        match node:
            case ast.Name(id=name):
                return self.names.get(name, _NOTHING)
            case ast.Call():
                return self._call(node)
            case ast.Compare():
                both = self._all([node.left, *node.comparators])
                return _Value(compared=both.offsets | both.compared)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(self._value(left), op, self._value(right))
            case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner):
                return self._value(inner)
            case ast.Attribute(value=inner, attr="T"):
                return self._value(inner)
            case ast.BoolOp(values=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
                return self._all(parts)
            case ast.IfExp(body=body, orelse=orelse):
                return self._all([body, orelse])
        return _NOTHING

    def _binary(self, left: _Value, op: ast.operator, right: _Value) -> _Value:
        both = left | right
        match op:
            case ast.Mod():
                return _Value(compared=both.compared)
            case ast.BitAnd() if not (left.offsets and right.offsets):  # offs & (N - 1) wraps
                return _Value(compared=both.compared)
            case ast.Mult() if left.is_mask != right.is_mask:  # offs * mask is 0 where masked
                return _NOTHING
        return both

    def _call(self, call: ast.Call) -> _Value:
        operator = self._operator(call)
        given = self._all([*call.args, *(key.value for key in call.keywords)])
        # Rows and columns may be the same range: the line distinguishes them.
        if operator == "arange":
            return _Value(frozenset({f"lane:{call.lineno}:{ast.unparse(call)}"}))
        if operator == "program_id":
            return _Value(frozenset({f"program:{ast.unparse(call)}"}))
        if operator in _CLAMPED:
            return _Value(compared=given.compared)
        if operator in _OPAQUE:
            return _NOTHING
        if operator:
            return given
        if isinstance(call.func, ast.Attribute) and not self.source.dotted(call.func):
            return self._value(call.func.value) | given  # offs.to(tl.int64)
        return _NOTHING  # a helper, which may clamp

    def _all(self, nodes: Sequence[ast.expr]) -> _Value:
        value = _NOTHING
        for node in nodes:
            value |= self._value(node)
        return value


_HEAD = """\
import triton
import triton.language as tl

@triton.jit
def add_one(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
"""

RULES = (
    LintRule(
        id="triton-unclamped-offset",
        title="a masked access of a Triton kernel computes addresses out of range",
        severity="warning",
        why="RDNA2 (gfx103x) validates the addresses of masked lanes too: an address beyond the "
        "mapped memory faults, although its lane neither loads nor stores.",
        remedy="Clamp the offsets: offs_safe = tl.where(mask, offs, 0), then "
        "tl.load(ptr + offs_safe, mask=mask).",
        bad=_HEAD
        + "    tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) + 1, mask=mask)\n",
        good=_HEAD
        + "    safe = tl.where(mask, offs, 0)\n"
        + "    tl.store(out_ptr + safe, tl.load(x_ptr + safe, mask=mask) + 1, mask=mask)\n",
        words=frozenset({"triton"}),
        check=_unclamped_offsets,
    ),
)
