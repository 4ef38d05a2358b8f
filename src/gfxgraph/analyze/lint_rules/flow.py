"""Follows data through a function: where Python waits for the device, without running it.

Each statement is looked at in order, and each name has a :class:`~.kinds.Value`. Functions and
methods of the same file are followed where they are called.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, TypeAlias

from .gates import NOT_DEVICE, is_training_only, sides, words
from .kinds import (
    FACTORIES,
    FACTS,
    FROM_DATA,
    HIDDEN,
    HOST,
    MASKS,
    NOTHING,
    PARTS,
    PYTHON,
    READS,
    SHAPES,
    TENSOR,
    TORCH_ONLY,
    UNKNOWN,
    Value,
    merged,
    of_annotation,
)
from .source import Function, Source, assigned, children, short
from .torch_names import TRAINING

__all__ = ["Effect", "Flow", "Found"]

Effect: TypeAlias = Literal["sync", "read", "branch", "shape", "hidden", "data"]

_LOSS = re.compile(r"loss|metric|accuracy|(?:^|_)(?:acc|log|logs|stats|info|debug)(?:_|$)", re.I)
_NOT_MODULES = re.compile(r"token|processor|transform|session|config|logger|metric|loss|callback")
_NOT_TENSORS = re.compile(r"model|module|generator|pipeline|processor|tokenizer|config|scheduler")
_KNOWN = {"last_hidden_state", "logits"}
_DTYPE = re.compile(r"dtype|torch\.(?:b?float|half|int|long|bool|uint|double|complex)|float|half")
_MODELS = re.compile(
    r"(?:^|_)(?:model|net|network|policy|actor|critic|backbone|encoder|decoder|unet|transformer)$"
)
# Modules of torch.nn that give more than a tensor, or are not called.
_TUPLES = {"GRU", "LSTM", "ModuleDict", "ModuleList", "MultiheadAttention", "Parameter", "RNN"}
_ON_TENSORS = {
    "abs", "argmax", "argmin", "bmm", "clamp", "cos", "cumsum", "einsum", "exp", "gather", "log",
    "matmul", "relu", "sigmoid", "sin", "softmax", "sqrt", "tanh", "topk", "where",
}  # fmt: skip
_JOINS = {"cat", "concat", "concatenate", "hstack", "stack", "vstack"}
_NOT_FOLLOWED = re.compile(
    r"^_?(?:un)?merge$|offload|_to_cpu|preprocess|prepare_(?:image|mask)|_onnx|validate|check_"
)
_HOST_NAME = re.compile(r"(?:^|_)(?:host|cpu|np|numpy)$")
_ATTRIBUTES = {"H", "T", "data", "grad", "imag", "mH", "mT", "real"}
_CACHES = re.compile(r"\b(?:lru_)?cache\b")
_PLAIN_CALLS = {
    "getattr", "hasattr", "id", "isinstance", "issubclass", "len", "range", "repr", "str", "type",
}  # fmt: skip
_PLAIN_CLASSES = {"bool", "float", "int", "numbers", "Integral", "Number", "Real", "str"}
_CONVERTS = {"bool", "complex", "float", "int"}
_NO_VALUES = ("torch.nn.Parameter", "torch.Generator", "torch.autograd", "torch.jit", "torch.utils")
_LIBRARIES = ("torch.", "einops.", "torchvision.ops.")
_DEPTH = 12


@dataclass(frozen=True)
class Found:
    """A place where Python waits for the device, or copies data to it.

    Attributes:
        effect: ``"sync"``: waits for all work; ``"read"``: reads data; ``"branch"``: a condition;
            ``"shape"``: a result whose shape depends on data; ``"hidden"``: an operator that
            reads; ``"data"``: data of the host is copied to the device.
        node: the place.
        what: what it is, and in which function.
        certain: whether it is known to be a tensor on the device.
        root: what is called, or the block.
    """

    effect: Effect
    node: ast.expr | ast.stmt
    what: str
    certain: bool
    root: ast.AST


@dataclass
class _Frame:
    """A function that is followed, with what its names hold."""

    function: Function | None
    owner: ast.ClassDef | None
    names: dict[str, Value] = field(default_factory=dict)
    local: dict[str, Function] = field(default_factory=dict)
    flags: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    returned: list[Value] = field(default_factory=list)


class Flow:
    """All that is found in a file.

    Args:
        source: the file.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.found: dict[tuple[int, str], Found] = {}
        self._root: ast.AST = source.tree
        self._where = ""
        self._muted = 0
        self._frame = _Frame(None, None)
        self._results: dict[Function, Value] = {}
        self._running: list[Function] = []
        self._tensors: dict[ast.ClassDef, dict[str, Value]] = {}
        self._made_by: dict[ast.ClassDef, list[ast.AST]] = {}
        self._set: dict[ast.ClassDef, set[str]] = {}
        self._nn: dict[ast.ClassDef, set[str]] = {}
        self._defaults = "set_default_device" in source.text

    # ------------------------------------------------------------------ roots

    def function(self, function: Function, owner: ast.ClassDef | None) -> None:
        """Follow a function that runs for each request."""
        if function not in self._results:
            self._root = function
            self._call(function, owner, {})

    def block(self, statements: Sequence[ast.stmt], owner: ast.ClassDef | None) -> None:
        """Follow statements that are captured."""
        self._where, self._frame = "a capture", _Frame(None, owner)
        for statement in statements:
            self._root = statement
            self._statement(statement)

    def _call(
        self, function: Function, owner: ast.ClassDef | None, given: dict[str, Value]
    ) -> Value:
        """Follow a function, once; gives what it returns."""
        if function in self._results or function in self._running or len(self._running) > _DEPTH:
            return self._results.get(function, UNKNOWN)
        if self._running and (TRAINING.search(function.name) or _is_set_up(function)):
            return UNKNOWN
        before, where = self._frame, self._where
        name = function.name
        root = getattr(self._root, "name", "a capture")
        self._where = name if self._root is function else f"{name}, which {root} calls"
        self._frame = _Frame(function, owner, self._parameters(function, owner, given))
        self._running.append(function)
        try:
            self._block(function.body)
        finally:
            self._running.pop()
            frame, self._frame, self._where = self._frame, before, where
        promised = of_annotation(function.returns)
        found = merged(frame.returned) if promised == UNKNOWN else promised
        self._results[function] = found
        return found

    def _parameters(
        self, function: Function, owner: ast.ClassDef | None, given: dict[str, Value]
    ) -> dict[str, Value]:
        shown = self._shown_to_be_tensors(function, self._modules(owner) if owner else set())
        names: dict[str, Value] = {}
        spec = function.args
        for one in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]:
            value = of_annotation(one.annotation)
            passed = given.get(one.arg, UNKNOWN)
            if passed.kind == "host" or value == UNKNOWN:
                value = passed if passed != UNKNOWN else value
            if value != PYTHON and _HOST_NAME.search(one.arg):
                value = HOST
            plain = value == UNKNOWN and one.annotation is None
            if plain and one.arg in shown and not _NOT_TENSORS.search(one.arg):
                value = TENSOR
            names[one.arg] = value
        for starred in (spec.vararg, spec.kwarg):
            if starred is not None:
                names[starred.arg] = UNKNOWN
        return names

    def _shown_to_be_tensors(self, function: Function, modules: set[str]) -> set[str]:
        """The names that are used as only tensors of torch are."""
        found: set[str] = set()
        other: set[str] = set()
        todo: list[ast.AST] = list(function.body)
        while todo:
            node = todo.pop()
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=attr) if attr in TORCH_ONLY:
                    found.add(name)
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="size" | "dim")):
                    found.add(name)
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="self"), attr=attr),
                    args=[ast.Name(id=name), *_],
                ) if attr in modules:
                    found.add(name)
                case ast.Call(func=ast.Attribute() as called, args=[ast.Name(id=name), *_]) if (
                    self._takes_tensors(called)
                ):
                    found.add(name)
                case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=name), _]):
                    other.add(name)
                case ast.Call(func=ast.Attribute(attr=attr), args=[data, *_]) if attr in FROM_DATA:
                    other |= {one.id for one in ast.walk(data) if isinstance(one, ast.Name)}
            todo += children(node)
        return found - other

    def _takes_tensors(self, called: ast.Attribute) -> bool:
        """Whether a function of torch takes tensors only."""
        if called.attr in FACTORIES or called.attr in _PLAIN_CALLS:
            return False
        name = self.source.dotted(called)
        return name.startswith("torch.nn.functional.") or (
            name.count(".") == 1 and name.startswith("torch.") and called.attr in _ON_TENSORS
        )

    # ------------------------------------------------------------------ statements

    def _block(self, statements: Sequence[ast.stmt]) -> bool:
        """Follow statements; whether what comes after them is reached."""
        return all(self._statement(one) for one in statements)

    def _statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.Return(value=value):
                if value is not None:
                    self._frame.returned.append(self._value(value))
                return False
            case ast.Raise() | ast.Continue() | ast.Break():
                return False
            case ast.Assign(targets=targets, value=value):
                self._assign(targets, value)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                promised = of_annotation(annotation)
                found = UNKNOWN if value is None else self._value(value)
                self._bind(target, promised if found == UNKNOWN else found)
            case ast.AugAssign(target=target, op=op, value=value):
                held = ast.copy_location(_loaded(target), target)
                new = self._operated(self._value(held), op, self._value(value))
                self._bind(target, new)
            case ast.If():
                return self._if(node)
            case ast.Match(subject=subject, cases=cases):
                self._value(subject)
                return self._either([partial(self._block, one.body) for one in cases])
            case (
                ast.For(target=target, iter=over, body=body, orelse=orelse)
                | ast.AsyncFor(target=target, iter=over, body=body, orelse=orelse)
            ):
                item = self._item(over)
                self._loop(body, lambda: self._bind_item(target, over, item))
                self._block(orelse)
            case ast.While(test=test, body=body, orelse=orelse):
                self._test(test)
                self._loop(body, lambda: None)
                self._test(test)
                self._block(orelse)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for one in items:
                    entered = self._value(one.context_expr)
                    if one.optional_vars is not None:
                        self._bind(one.optional_vars, entered)
                return self._block(body)
            case ast.Try() as tried:
                reached = self._either(
                    [
                        lambda: self._block([*tried.body, *tried.orelse]),
                        *(partial(self._block, one.body) for one in tried.handlers),
                    ]
                )
                return self._block(tried.finalbody) and reached
            case ast.Assert(test=test):
                self._test(test)
                self._narrow(test, True)
            case ast.Expr(value=value):
                self._value(value)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._frame.local[node.name] = node
            case ast.Delete() | ast.ClassDef() | ast.Import() | ast.ImportFrom():
                pass
        return True

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        aside = any(_LOSS.search(word) for one in targets for word in words(one))
        self._muted += aside
        found = self._value(value)
        if isinstance(value, ast.Tuple):
            parts = [self._value(one) for one in value.elts]
            for target in targets:
                if isinstance(target, ast.Tuple) and len(target.elts) == len(parts):
                    for one, part in zip(target.elts, parts, strict=True):
                        self._bind(one, part)
                else:
                    self._bind(target, found)
        else:
            for target in targets:
                self._bind(target, found)
                if isinstance(target, ast.Name):
                    self._frame.flags[target.id] = self._flag(value)
                if isinstance(target, ast.Subscript):
                    self._store(target, found)
        self._muted -= aside

    def _flag(self, value: ast.expr) -> tuple[bool, bool]:
        """What a variable says of a condition that it was set to."""
        if isinstance(value, ast.BoolOp | ast.Compare | ast.UnaryOp | ast.Attribute | ast.Name):
            return sides(value, self._frame.flags)
        return True, True

    def _store(self, target: ast.Subscript, value: Value) -> None:
        """``x[mask] = y``: a number is filled in, but a tensor takes the positions."""
        base, index = self._value(target.value), self._value(target.slice)
        masked = index.mask and index.is_tensor
        if masked and value.is_tensor and base.kind != "host":
            self._find("shape", target, f"{short(target)} = a tensor")

    def _bind(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name(id=name):
                self._frame.names[name] = value
            case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                self._frame.names[f"self.{attr}"] = value
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                for one in elts:
                    self._bind(one, value.one if value.kind != "nothing" else UNKNOWN)
            case ast.Starred(value=inner):
                self._bind(inner, value.several)

    def _bind_item(self, target: ast.expr, over: ast.expr, item: Value) -> None:
        match target, over:
            case ast.Tuple(elts=[first, second]), ast.Call(
                func=ast.Name(id="enumerate"), args=[inner, *_]
            ):
                self._bind(first, PYTHON)
                self._bind_item(second, inner, self._quietly(inner).one)
            case ast.Tuple(elts=elts), ast.Call(func=ast.Name(id="zip"), args=args) if len(
                elts
            ) == len(args):
                for one, inner in zip(elts, args, strict=True):
                    self._bind_item(one, inner, self._quietly(inner).one)
            case _:
                self._bind(target, item)

    def _quietly(self, node: ast.expr) -> Value:
        self._muted += 1
        found = self._value(node)
        self._muted -= 1
        return found

    def _item(self, over: ast.expr) -> Value:
        return self._value(over).one

    def _if(self, node: ast.If) -> bool:
        body, other = sides(node.test, self._frame.flags)
        if not body and not other:
            return True
        if _fills_cache(node):
            body = False
        self._test(node.test)
        ways: list[Callable[[], bool]] = []
        if body:
            ways.append(lambda: self._narrowed(node.test, True, node.body))
        if other:
            ways.append(lambda: self._narrowed(node.test, False, node.orelse))
        return self._either(ways)

    def _narrowed(self, test: ast.expr, holds: bool, body: list[ast.stmt]) -> bool:
        self._narrow(test, holds)
        fails = bool(body) and isinstance(body[-1], ast.Raise)
        self._muted += fails  # an error may say what the device holds
        reached = self._block(body)
        self._muted -= fails
        return reached

    def _narrow(self, test: ast.expr, holds: bool) -> None:
        """Learn from ``isinstance`` what a name holds."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                self._narrow(inner, not holds)
            case ast.BoolOp(op=ast.And(), values=values) if holds:
                for one in values:
                    self._narrow(one, holds)
            case ast.Call(
                func=ast.Name(id="isinstance"), args=[ast.Name() | ast.Attribute() as one, kind]
            ):
                self._bind(one, self._of_kind(one, words(kind), holds))
            case ast.Call(args=[ast.Name() as one]) as call if (
                self.source.dotted(call.func) == "torch.is_tensor"
            ):
                self._bind(one, TENSOR if holds else PYTHON)

    def _of_kind(self, one: ast.expr, kinds: set[str], holds: bool) -> Value:
        """What a name holds that is (not) of one of these classes."""
        if any(kind.endswith("Tensor") for kind in kinds):
            known = self._value(one)
            return (known if known.kind == "host" else TENSOR) if holds else PYTHON
        if not holds:
            return self._value(one)
        if "ndarray" in kinds:
            return HOST
        return PYTHON if kinds <= _PLAIN_CLASSES else UNKNOWN

    def _either(self, ways: Sequence[Callable[[], bool]]) -> bool:
        """Follow each way from here; what comes after is reached by those that do not leave."""
        before, ends = self._frame.names, []
        for way in ways:
            self._frame.names = dict(before)
            if way():
                ends.append(self._frame.names)
        if ends:
            names = {name for one in ends for name in one}
            self._frame.names = {
                name: merged(one.get(name, NOTHING) for one in ends) for name in names
            }
        else:
            self._frame.names = before
        return bool(ends) or not ways

    def _loop(self, body: list[ast.stmt], begin: Callable[[], None]) -> None:
        def once() -> bool:
            begin()
            self._block(body)
            return True

        # Twice: the second round sees what the first has bound.
        self._either([once, lambda: True])
        self._either([once, lambda: True])

    # ------------------------------------------------------------------ conditions

    def _test(self, test: ast.expr) -> None:
        """Evaluate a condition: a tensor that decides is read."""
        match test:
            case ast.BoolOp(op=op, values=values):
                for one in values:
                    body, other = sides(one, self._frame.flags)
                    self._test(one)
                    # What comes after runs only if this holds (does not hold).
                    if not (body if isinstance(op, ast.And) else other):
                        return
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                self._test(inner)
            case _:
                if self._value(test).is_tensor:
                    self._find("branch", test, f"{short(test)} decides")

    # ------------------------------------------------------------------ expressions

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Name(id=name):
                return self._frame.names.get(name, UNKNOWN)
            case ast.Constant(value=value):
                return NOTHING if value is None else PYTHON
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._called(node)
            case ast.Subscript():
                return self._subscript(node)
            case ast.BinOp(left=left, op=op, right=right):
                return self._operated(self._value(left), op, self._value(right))
            case ast.Compare():
                return self._compared(node)
            case ast.BoolOp(values=values):
                found = []
                for one in values[:-1]:
                    self._test(one)
                    found.append(self._quietly(one))
                found.append(self._value(values[-1]))
                return merged(found)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                self._test(inner)
                return PYTHON
            case ast.UnaryOp(operand=inner) | ast.Starred(value=inner) | ast.Await(value=inner):
                return self._value(inner)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                runs, otherwise = sides(test, self._frame.flags)
                self._test(test)
                ways = [one for one, does in ((body, runs), (orelse, otherwise)) if does]
                return merged([self._value(one) for one in ways])
            case ast.Tuple(elts=elts) | ast.List(elts=elts) | ast.Set(elts=elts):
                found = [self._value(one) for one in elts]
                return merged(found).several if found else PYTHON
            case ast.NamedExpr(target=target, value=value):
                found_value = self._value(value)
                self._bind(target, found_value)
                return found_value
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                self._comprehend(node.generators)
                return self._value(node.elt).several
            case ast.DictComp():
                self._comprehend(node.generators)
                self._value(node.value)
                return UNKNOWN
            case ast.Dict(values=values):
                for one in values:
                    self._value(one)
                return UNKNOWN
            case ast.Slice():
                for bound in (node.lower, node.upper, node.step):
                    if bound is not None and self._value(bound).is_tensor:
                        self._find("read", bound, f"{short(bound)} as the end of a slice")
                return PYTHON
            case ast.Yield(value=ast.expr() as value) | ast.YieldFrom(value=value):
                self._value(value)
                return UNKNOWN
            case ast.JoinedStr():
                return PYTHON
        return UNKNOWN

    def _comprehend(self, generators: list[ast.comprehension]) -> None:
        for one in generators:
            item = self._item(one.iter)
            self._bind_item(one.target, one.iter, item)
            for test in one.ifs:
                self._test(test)

    def _attribute(self, node: ast.Attribute) -> Value:
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                known = self._frame.names.get(f"self.{attr}")
                return known if known is not None else self._own(attr)
        if self.source.dotted(node):
            return UNKNOWN
        base = self._value(node.value)
        if base.kind in ("tensor", "host"):
            if node.attr in FACTS or node.attr.startswith("is_"):
                return PYTHON
            if base.many:
                return base.one if node.attr in ("values", "indices") else UNKNOWN
            return base if node.attr in _ATTRIBUTES or node.attr in _KNOWN else UNKNOWN
        if base.kind == "python":
            return PYTHON
        return TENSOR if node.attr in _KNOWN and not isinstance(node.value, ast.Call) else UNKNOWN

    def _own(self, attr: str) -> Value:
        """A buffer or parameter of the class, or a tensor that it keeps on the host."""
        owner = self._frame.owner
        if owner is None:
            return UNKNOWN
        if owner not in self._tensors:
            self._tensors[owner] = self._kept(owner)
        return self._tensors[owner].get(attr, UNKNOWN)

    def _kept(self, owner: ast.ClassDef) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for node in self._constructed(owner):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="register_buffer" | "register_parameter"),
                    args=[ast.Constant(value=str(name)), *_],
                ):
                    found.setdefault(name, TENSOR)
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)],
                    value=ast.Call(func=ast.Attribute(attr="Parameter")),
                ):
                    found.setdefault(name, TENSOR)
        return found

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self._value(node.value)
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return UNKNOWN  # of a dictionary
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for one in inside:
            index = self._value(one)
            if base.kind in ("host", "python") or base.many:
                continue
            if index.mask and index.is_tensor:
                if isinstance(node.ctx, ast.Load):
                    self._find("shape", node, f"{short(node)} takes a mask")
            elif base.is_tensor and isinstance(one, ast.List) and one.elts:
                if all(isinstance(self._constant(item), int) for item in one.elts):
                    self._find("data", node, f"{short(node)} copies its list of positions")
            elif base.is_tensor and index.is_host:
                self._find("data", node, f"{short(node)} takes positions on the host")
        if base.many:
            return base if isinstance(node.slice, ast.Slice) else base.one
        return base

    @staticmethod
    def _constant(node: ast.expr) -> object:
        if isinstance(node, ast.UnaryOp):
            node = node.operand
        return node.value if isinstance(node, ast.Constant) else None

    @staticmethod
    def _operated(left: Value, op: ast.operator, right: Value) -> Value:
        for whole in (TENSOR, HOST):
            both = [one for one in (left, right) if one.kind == whole.kind]
            if both and not any(one.many for one in (left, right)):
                logical = isinstance(op, (ast.BitAnd, ast.BitOr, ast.BitXor))
                mask = logical and all(one.mask or one.kind == "python" for one in (left, right))
                if whole == HOST and "unknown" in (left.kind, right.kind):
                    return UNKNOWN
                return replace(whole, mask=mask)
        if left.kind == right.kind == "python":
            return PYTHON
        return left if left.many and left == right else UNKNOWN

    def _compared(self, node: ast.Compare) -> Value:
        found = [self._value(one) for one in (node.left, *node.comparators)]
        ops = {type(op) for op in node.ops}
        if ops & {ast.Is, ast.IsNot}:
            return PYTHON
        if ops & {ast.In, ast.NotIn}:
            text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
            if found[-1].is_tensor and not text:
                self._find("branch", node, f"{short(node)} looks into a tensor")
            return PYTHON
        texts = [
            one
            for one in (node.left, *node.comparators)
            if isinstance(one, ast.Constant) and isinstance(one.value, str | None)
        ]
        if texts or any(one.many for one in found):
            return PYTHON
        if any(one.is_tensor for one in found):
            return Value("tensor", mask=True)
        if any(one.is_host for one in found):
            return Value("host", mask=True)
        return PYTHON if all(one.kind == "python" for one in found) else UNKNOWN

    # ------------------------------------------------------------------ calls

    def _called(self, call: ast.Call) -> Value:
        name = self.source.dotted(call.func)
        if name.startswith("numpy."):
            for one in call.args:
                self._value(one)
            return HOST
        if name.startswith(_LIBRARIES):
            return self._of_torch(call, name)
        match call.func:
            case ast.Name(id=called) if not name:
                return self._plain(call, called)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=attr):
                return self._own_method(call, attr)
            case ast.Attribute(attr=attr, value=receiver) if not name:
                return self._method(call, receiver, attr)
        for one in _given(call):
            self._value(one)
        return UNKNOWN

    def _of_torch(self, call: ast.Call, name: str) -> Value:
        short_name = name.rpartition(".")[2]
        given = [self._value(one) for one in _given(call)]
        first = given[0] if given else UNKNOWN
        if name.startswith("torch.cuda.") or name.startswith("torch.distributed."):
            if short_name == "synchronize":
                self._find("sync", call, short(call))
            return UNKNOWN
        if short_name == "synchronize":
            return UNKNOWN  # of another kind of device
        if short_name in FACTORIES and name.count(".") == 1:
            return self._made(call, short_name, first)
        if short_name.endswith("_like"):
            return first.one if first.kind in ("tensor", "host") else UNKNOWN
        if short_name in FACTS or short_name in ("is_tensor", "finfo", "iinfo", "isinstance"):
            return PYTHON
        if name.startswith(_NO_VALUES):
            return UNKNOWN
        if short_name in _JOINS and call.args and isinstance(call.args[0], ast.List | ast.Tuple):
            # One of them on the device means that all are.
            inside = [self._value(one) for one in call.args[0].elts]
            if any(one.kind == "tensor" for one in inside):
                return TENSOR
        self._reads_inside(call, short_name, given, call)
        kinds = {one.kind for one in given}
        kind = "tensor" if "tensor" in kinds else "host" if kinds & {"host"} else ""
        if not kind or (kind == "host" and "unknown" in kinds):
            return UNKNOWN
        if short_name in ("allclose", "equal", "is_nonzero"):
            return PYTHON
        many = short_name in PARTS and not (len(given) > 1 and short_name in ("max", "min"))
        many &= short_name not in ("max", "min") or len(given) > 1
        value = TENSOR if kind == "tensor" else HOST
        return replace(value, mask=short_name in MASKS, many=many)

    def _reads_inside(
        self, call: ast.Call, name: str, given: Sequence[Value], node: ast.expr
    ) -> None:
        """Find operators that read the device, or whose results depend on data."""
        if not any(one.is_tensor for one in given[:2]):
            return
        keys = {key.arg for key in call.keywords}
        sized = "output_size" in keys
        if name in SHAPES or (name == "where" and len(call.args) == 1 and not keys):
            self._find("shape", node, short(call))
        elif name in ("allclose", "equal", "is_nonzero"):
            self._find("read", node, short(call))
        elif name in HIDDEN:
            self._find("hidden", node, short(call))
        elif name == "repeat_interleave" and any(one.is_tensor for one in given[1:2] if not sized):
            self._find("shape", node, short(call))

    def _made(self, call: ast.Call, name: str, first: Value) -> Value:
        """A tensor that a factory makes: on the host, unless a device is given."""
        device = next((key.value for key in call.keywords if key.arg == "device"), None)
        if name in FROM_DATA and first.is_tensor:
            return first if name != "tensor" else TENSOR
        if any(key.arg is None for key in call.keywords):
            return UNKNOWN  # **kwargs, which may name a device
        if _is_empty(call):
            return UNKNOWN  # nothing is copied
        if device is None:
            return UNKNOWN if self._defaults else HOST
        where = ast.unparse(device)
        if re.search(r"\bcpu\b", where) or _HOST_NAME.search(where):
            return HOST
        if NOT_DEVICE.search(where.strip("'\"")):
            return UNKNOWN
        if isinstance(device, ast.Constant) and device.value is None:
            return UNKNOWN
        if isinstance(device, ast.Name | ast.Attribute) and self._value(device).kind == "host":
            return HOST
        if _is_device_of_host(self, device):
            return HOST
        if name in FROM_DATA and call.args and first.kind in ("python", "host", "unknown"):
            # A value that is not known may be a tensor on the device already.
            known = first.kind != "unknown" or name == "tensor"
            data = call.args[0]
            passed = isinstance(data, ast.Name) and data.id in self._parameter_names()
            if known and not (passed and first.kind == "python"):
                self._find("data", call, short(call))
        return TENSOR

    def _parameter_names(self) -> set[str]:
        function = self._frame.function
        if function is None:
            return set()
        spec = function.args
        return {one.arg for one in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]}

    def _plain(self, call: ast.Call, name: str) -> Value:
        local = self._frame.local.get(name)
        function = local or self.source.function(name, self.source.tree)
        if function is not None:
            return self._follow(call, function, self._frame.owner if local else None)
        given = [self._value(one) for one in _given(call)]
        first = given[0] if given else UNKNOWN
        if name in _CONVERTS and first.is_tensor and not _says_loss(call):
            self._find("read", call, short(call))
        if name in _CONVERTS:
            return PYTHON
        if name == "range" and any(one.is_tensor for one in given):
            self._find("read", call, f"{short(call)} counts to a tensor")
        if name == "print" and any(one.is_tensor for one in given):
            self._find("read", call, f"{short(call)} prints a tensor")
        if name in _PLAIN_CALLS or name == "print":
            return PYTHON
        if name in ("list", "tuple", "reversed", "sorted"):
            return first.several if first.kind in ("tensor", "host") else first
        if name in ("max", "min", "sum", "abs", "round") and given:
            return merged([one.one for one in given])
        if _MODELS.search(name) and any(one.kind == "tensor" for one in given):
            return TENSOR
        return UNKNOWN

    def _own_method(self, call: ast.Call, attr: str) -> Value:
        owner = self._frame.owner
        for cls in self.source.family(owner) if owner else ():
            method = self.source.function(attr, cls)
            if method is not None:
                return self._follow(call, method, owner)
        given = [self._value(one) for one in _given(call)]
        if owner is None or _NOT_MODULES.search(attr):
            return UNKNOWN
        if not self.source.is_module(owner):
            of_tensor = any(one.kind == "tensor" for one in given)
            return TENSOR if of_tensor and _MODELS.search(attr) else UNKNOWN
        if attr in self._modules(owner):
            return TENSOR
        is_part = attr in self._parts(owner) or _MODELS.search(attr)
        return TENSOR if is_part and any(one.kind == "tensor" for one in given) else UNKNOWN

    def _modules(self, owner: ast.ClassDef) -> set[str]:
        """The attributes that the constructor sets to modules of torch that give one tensor."""
        if owner not in self._nn:
            found: set[str] = set()
            for node in self._constructed(owner):
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                    name = self.source.dotted(node.value.func)
                    if name.startswith("torch.nn.") and name.rpartition(".")[2] not in _TUPLES:
                        found |= {
                            target.attr
                            for target in node.targets
                            if isinstance(target, ast.Attribute)
                        }
            self._nn[owner] = found
        return self._nn[owner]

    def _constructed(self, owner: ast.ClassDef) -> list[ast.AST]:
        """The nodes of the constructors of a class."""
        if owner not in self._made_by:
            found: list[ast.AST] = [
                made
                for cls in self.source.family(owner)
                for made in cls.body
                if isinstance(made, Function) and made.name in ("__init__", "__post_init__")
            ]
            for node in found:  # which grows
                found += children(node)
            self._made_by[owner] = found
        return self._made_by[owner]

    def _parts(self, owner: ast.ClassDef) -> set[str]:
        """The attributes that the constructor sets: modules, if they are called."""
        if owner not in self._set:
            self._set[owner] = {
                node.attr
                for node in self._constructed(owner)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            }
        return self._set[owner]

    def _follow(self, call: ast.Call, function: Function, owner: ast.ClassDef | None) -> Value:
        """Follow a function of the file with what it is given here."""
        names = [one.arg for one in [*function.args.posonlyargs, *function.args.args]]
        plain = [ast.unparse(one) for one in function.decorator_list]
        is_method = owner is not None and isinstance(call.func, ast.Attribute)
        if is_method and "staticmethod" not in plain:
            names = names[1:]
        given: dict[str, Value] = {}
        for name, one in zip(names, call.args, strict=False):
            given[name] = self._value(one)
        for one in call.args[len(names) :]:
            self._value(one)
        for key in call.keywords:
            found = self._value(key.value)
            if key.arg is not None:
                given[key.arg] = found
        if is_training_only(function):
            return UNKNOWN
        return self._call(function, owner, given)

    def _method(self, call: ast.Call, receiver: ast.expr, attr: str) -> Value:
        base = self._value(receiver)
        given = [self._value(one) for one in _given(call)]
        if attr == "synchronize":
            text = ast.unparse(receiver)
            if not NOT_DEVICE.search(text.rpartition(".")[2]):
                self._find("sync", call, short(call))
            return UNKNOWN
        if base.kind == "python" or (base.many and attr not in ("values", "indices")):
            return PYTHON if base.kind == "python" else UNKNOWN
        if attr == "to":
            return self._moved(call, base, given)
        if attr in READS and not call.args:
            return self._read(call, receiver, base, attr)
        if attr == "cuda":
            if base.is_host:
                self._find("data", call, short(call))
            return TENSOR if base.kind in ("host", "tensor") else UNKNOWN
        if base.kind not in ("tensor", "host"):
            return UNKNOWN
        if attr in FACTS or (attr.startswith("is_") and attr != "is_nonzero"):
            return PYTHON
        if attr.startswith("_") or attr == "pin_memory":
            return UNKNOWN
        if base.is_tensor:
            if attr == "new_tensor":
                self._find("data", call, short(call))
                return TENSOR
            self._reads_inside(call, attr, [base, *given], call)
            if attr in ("equal", "allclose", "is_nonzero"):
                return PYTHON
        if attr.startswith("new_") and any(key.arg == "device" for key in call.keywords):
            return UNKNOWN
        keys = {key.arg for key in call.keywords}
        many = attr in PARTS and (attr not in ("max", "min") or bool(call.args) or "dim" in keys)
        keeps = attr in {"view", "reshape", "flatten", "expand", "unsqueeze", "squeeze", "clone",
                         "contiguous", "repeat", "permute", "transpose", "detach"}  # fmt: skip
        return Value(base.kind, mask=attr in MASKS or (base.mask and keeps), many=many)

    def _read(self, call: ast.Call, receiver: ast.expr, base: Value, attr: str) -> Value:
        result = PYTHON if attr in ("item", "tolist") else HOST
        if base.kind == "host" or self.source.dotted(receiver) or _says_loss(receiver):
            return result
        text = ast.unparse(receiver)
        if "_cpu" in text or ("self." in text and base.kind == "unknown" and attr == "cpu"):
            return result
        if base.is_tensor or attr != "tolist":
            self._find("read", call, short(call), certain=base.is_tensor)
        return result

    def _moved(self, call: ast.Call, base: Value, given: Sequence[Value]) -> Value:
        """``x.to(...)``: to the host, to the device, or to another type."""
        places = [*call.args[:1], *(key.value for key in call.keywords if key.arg == "device")]
        waits = not any(key.arg == "non_blocking" for key in call.keywords)
        for place, text in ((one, ast.unparse(one)) for one in places):
            if text in ("'cpu'", "torch.device('cpu')", "torch.device(device='cpu')"):
                own = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value)
                if base.is_tensor and waits and not _says_loss(call):
                    self._find("read", call, short(call))
                elif base.kind == "unknown" and waits and not str(own).startswith("self"):
                    self._find("read", call, short(call), certain=False)
                return HOST if base.kind != "unknown" or waits else UNKNOWN
            if _DTYPE.search(text) and "device" not in text:
                continue
            if NOT_DEVICE.search(text.strip("'\"")) or _is_device_of_host(self, place):
                return base
            if base.is_host and (
                "device" in text or "cuda" in text or self._value(place).is_tensor
            ):
                self._find("data", call, short(call))
                return Value("tensor", mask=base.mask)
            if base.kind == "host":
                return UNKNOWN
        return base if base.kind != "unknown" else UNKNOWN

    def _find(
        self, effect: Effect, node: ast.expr | ast.stmt, what: str, certain: bool = True
    ) -> None:
        if not self._muted:
            place = (id(node), effect)
            said = f"{what} in {self._where}"
            self.found.setdefault(place, Found(effect, node, said, certain, self._root))


def _fills_cache(node: ast.If) -> bool:
    """Whether only the first call does it: ``if self.table is None: self.table = ...``."""
    asked: set[str] = set()
    for one in ast.walk(node.test):
        match one:
            case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
                asked.add(ast.unparse(left))
            case ast.Compare(ops=[ast.NotIn()], comparators=[kept]):
                asked.add(f"{ast.unparse(kept)}[")
            case ast.Call(
                func=ast.Name(id="hasattr"),
                args=[ast.Name(id="self"), ast.Constant(value=str(name))],
            ):
                asked.add("self." + name)
    asked = {one for one in asked if one.startswith(("self.", "cls.")) or one.endswith("[")}
    stored = {ast.unparse(target) for one in node.body for target in assigned(one)}
    return any(
        name.startswith(one) if one.endswith("[") else name == one
        for one in asked
        for name in stored
    )


def _is_set_up(function: Function) -> bool:
    """Whether it looks at inputs before the work, or is cached: it does not run in each call."""
    return bool(_NOT_FOLLOWED.search(function.name)) or any(
        _CACHES.search(ast.unparse(one)) for one in function.decorator_list
    )


def _is_device_of_host(flow: Flow, node: ast.expr) -> bool:
    """``x.device`` of a tensor on the host."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "device"
        and flow._value(node.value).kind == "host"
    )


def _is_empty(call: ast.Call) -> bool:
    """Whether a factory makes a tensor without elements."""
    match call.args[:1]:
        case [ast.Constant(value=0)] | [ast.List(elts=[]) | ast.Tuple(elts=[])]:
            return isinstance(call.args[0], ast.List | ast.Tuple) or "tensor" not in ast.unparse(
                call.func
            )
    return False


def _says_loss(node: ast.expr) -> bool:
    return any(_LOSS.search(word) for word in words(node))


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(key.value for key in call.keywords)]


def _loaded(target: ast.expr) -> ast.expr:
    match target:
        case ast.Name(id=name):
            return ast.Name(name, ast.Load())
        case ast.Attribute(value=value, attr=attr):
            return ast.Attribute(value, attr, ast.Load())
    return ast.Constant(0)
