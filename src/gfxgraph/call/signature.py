"""The shape of a call: flatten a tree of arguments, recognise it again fast, build it anew.

Each tree is described by a :data:`Spec`. For a spec we write two small functions as source code and
compile them once: one that recognises a call and collects its tensors, one that builds a tree. A
call of 32 tensors in a dict is recognised in a few microseconds that way; walking the tree in
Python takes ten times as long.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
from collections import OrderedDict, UserDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from ..errors import ArgumentError

__all__ = [
    "MISS",
    "TOO_DEEP",
    "Condition",
    "Const",
    "Spec",
    "builder",
    "constants",
    "flatten",
    "matcher",
    "tensor_check",
]

MISS: Any = object()
"""What an attempt at a call returns when its graph does not fit, or may not be used any more."""

Spec = tuple[Any, ...]
"""``("tensor",)``, ``("const", Const)`` or ``(kind, class, keys, children)``."""

Condition = tuple["Callable[..., object] | dict[str, Any]", str, object]
"""A function and what to call it with (``""``: nothing), or a dict and a key; then the very object
that must be found."""

_TENSOR: Spec = ("tensor",)
TOO_DEEP = "a structure is nested in more than 100 containers: pass its tensors in fewer."
"""Why Python's parser, or its stack, does not take a tree."""

_VALUES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    slice,
    range,
    type(...),
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)


class Const:
    """A leaf that is not a tensor: equal by type and value if it is a value, else by identity."""

    __slots__ = ("_key", "value")

    def __init__(self, value: object) -> None:
        self.value = value
        if isinstance(value, (float, complex)):
            self._key: Any = (type(value), repr(value))  # tells -0.0 from 0.0, and nan equals nan
        elif isinstance(value, slice):
            parts = (value.start, value.stop, value.step)
            self._key = (slice, tuple(map(Const, parts)))
        elif isinstance(value, _VALUES):
            self._key = (type(value), value)
        else:
            self._key = (type(value), id(value))

    @property
    def is_value(self) -> bool:
        """Whether it is compared by value."""
        return isinstance(self.value, _VALUES)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return repr(self.value) if self.is_value else f"<{type(self.value).__name__}>"


def flatten(tree: Any) -> tuple[list[torch.Tensor], Spec]:
    """The tensors of ``tree`` and its spec.

    Trees are made of tuples, lists, dicts, NamedTuples, dataclasses, transformers' ``ModelOutput``
    and ``BatchEncoding``, and whatever is registered with ``torch.utils._pytree``.

    Raises:
        ArgumentError: a leaf holds data that can be neither copied nor compared, such as a NumPy
            array; or the tree is nested too deep to be taken apart.
    """
    leaves: list[torch.Tensor] = []
    try:
        return leaves, _flatten(tree, leaves)
    except RecursionError as error:
        raise ArgumentError(TOO_DEEP) from error


def _flatten(item: Any, leaves: list[torch.Tensor]) -> Spec:
    cls = type(item)

    def children(items: Any) -> tuple[Spec, ...]:
        return tuple(_flatten(i, leaves) for i in items)

    if isinstance(item, torch.Tensor):
        leaves.append(item)
        return _TENSOR
    if isinstance(item, _VALUES):
        return ("const", Const(item))
    if cls is tuple or cls is list:
        return ("sequence", cls, None, children(item))
    if isinstance(item, tuple) and hasattr(cls, "_fields"):
        return ("namedtuple", cls, None, children(item))
    if isinstance(item, tuple) and hasattr(cls, "n_sequence_fields"):  # torch.return_types
        return ("structseq", cls, None, children(item))
    if cls is dict or cls is OrderedDict or isinstance(item, UserDict):
        if not all(isinstance(key, (str, int)) and type(key) is not bool for key in item):
            raise ArgumentError(
                "a dict with keys other than strings and integers: rename its keys."
            )
        kind = "mapping" if isinstance(item, UserDict) else "dict"
        return (kind, cls, tuple(item), children(item.values()))
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        if isinstance(item, dict):  # ModelOutput: a dict of those fields that are not None
            return ("fields", cls, tuple(item), children(item.values()))
        names = tuple(f.name for f in dataclasses.fields(item))
        more = [name for name in getattr(item, "__dict__", ()) if name not in names]
        if more or not all(hasattr(item, name) for name in names):
            raise ArgumentError(
                f"a {cls.__qualname__} has attributes that are no fields ({more}), or lacks some: "
                "a static one could not have them. Make them fields."
            )
        return ("dataclass", cls, names, children(getattr(item, n) for n in names))
    if cls in _pytree.SUPPORTED_NODES:
        parts, context = _pytree.SUPPORTED_NODES[cls].flatten_fn(item)
        return ("registered", cls, context, children(parts))
    if hasattr(item, "__dict__") or callable(item) or isinstance(item, torch.Generator):
        return ("const", Const(item))
    raise ArgumentError(
        f"a {cls.__module__}.{cls.__qualname__} is neither a tensor nor a constant: pass its data "
        "as a tensor."
    )


def constants(spec: Spec) -> list[Const]:
    """The leaves of ``spec`` that are not tensors."""
    if spec[0] == "tensor":
        return []
    if spec[0] == "const":
        return [spec[1]]
    return [c for child in spec[3] for c in constants(child)]


def matcher(
    args: Spec,
    kwargs: Spec,
    check: Callable[..., bool] | None,
    conditions: Sequence[Condition],
    then: Callable[[Any, tuple[Any, ...], dict[str, Any], Sequence[torch.Tensor]], Any],
) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
    """A function of ``(fn, args, kwargs)``: :data:`MISS`, or what ``then`` makes of a call.

    Args:
        args: spec of the tuple of positional arguments.
        kwargs: spec of the dict of keyword arguments.
        check: says of all tensors whether they fit, see :func:`tensor_check`; ``None`` if there
            are none.
        conditions: what else must hold.
        then: called with all that and the tensors when they fit.
    """
    source = _Source()
    found: list[str] = []
    if all(child == _TENSOR for child in args[3]) and not kwargs[3]:
        source.line(f"if len(args) != {len(args[3])} or kwargs: return MISS")
        result = star = "args"
    else:
        source.match("args", args, found)
        source.match("kwargs", kwargs, found)
        result = star = "(" + "".join(f"{name}, " for name in found) + ")"
    if check is not None:
        source.line(f"if not {source.name(check)}(*{star}): return MISS")
    for asked, name, expected in conditions:
        value = (
            f"{source.name(asked)}[{name!r}]"
            if isinstance(asked, dict)
            else f"{source.name(asked)}({name!r})"
            if name
            else f"{source.name(asked)}()"
        )
        source.line(f"if {value} is not {source.name(expected)}: return MISS")
    source.line(f"leaves = {result}")
    return source.compile(
        "match(fn, args, kwargs)", f"{source.name(then)}(fn, args, kwargs, leaves)"
    )


def builder(spec: Spec, leaves: Sequence[Any]) -> Callable[[], Any]:
    """A function without arguments that builds the tree of ``spec``.

    Args:
        spec: what to build.
        leaves: a tensor stands for itself; a function is called to make the tensor.
    """
    if spec == _TENSOR and not isinstance(leaves[0], torch.Tensor):
        return leaves[0]  # type: ignore[no-any-return]
    source = _Source()
    named = [
        source.name(leaf) + ("" if isinstance(leaf, torch.Tensor) else "()") for leaf in leaves
    ]
    return source.compile("build()", source.build(spec, iter(named)))


@functools.lru_cache(maxsize=1024)
def _code(text: str) -> types.CodeType:
    """Calls of one structure and other shapes have the same source."""
    return compile(text, "<gfxgraph>", "exec")


class _Source:
    """Source code of one function, and the objects that it names."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[str, Any] = {"MISS": MISS}

    def line(self, text: str) -> None:
        self._lines.append(text)

    def name(self, value: Any) -> str:
        name = f"_{len(self._names)}"
        self._names[name] = value
        return name

    def compile(self, signature: str, result: str) -> Callable[..., Any]:
        """The function that runs the lines and returns ``result``."""
        lines = [f"def {signature}:"]
        if self._lines:
            # An argument that lacks what it had (an attribute, a key) does not fit.
            lines += ["    try:", *(f"        {line}" for line in self._lines)]
            lines += ["    except (AttributeError, LookupError):", "        return MISS"]
        text = "\n".join([*lines, f"    return {result}"])
        try:
            code = _code(text)
        except (SyntaxError, MemoryError, RecursionError) as error:  # of Python's parser
            raise ArgumentError(TOO_DEEP) from error
        exec(code, self._names)
        # Taken out of its own globals: a function that holds itself waits for the garbage
        # collector, and with it the memory of every tensor that it names.
        return self._names.pop(signature.partition("(")[0])  # type: ignore[no-any-return]

    def match(self, expression: str, spec: Spec, found: list[str]) -> None:
        kind = spec[0]
        if kind == "tensor":
            found.append(expression)
            return
        if kind == "const":
            self._match_const(expression, spec[1])
            return
        _, cls, keys, children = spec
        here = f"n{len(self._lines)}"
        self.line(f"{here} = {expression}")
        self.line(f"if type({here}) is not {self.name(cls)}: return MISS")
        if kind in ("sequence", "namedtuple", "structseq"):
            self.line(f"if len({here}) != {len(children)}: return MISS")
            parts = [f"{here}[{n}]" for n in range(len(children))]
        elif kind in ("dict", "mapping", "fields"):
            self.line(f"if tuple({here}) != {self.name(keys)}: return MISS")
            parts = [f"{here}[{self.name(key)}]" for key in keys]
        elif kind == "dataclass":
            parts = [f"{here}.{key}" for key in keys]
        else:
            flatten_fn = self.name(_pytree.SUPPORTED_NODES[cls].flatten_fn)
            self.line(f"{here}, context = {flatten_fn}({here})")
            self.line(f"if context != {self.name(keys)}: return MISS")
            self.line(f"if len({here}) != {len(children)}: return MISS")
            parts = [f"{here}[{n}]" for n in range(len(children))]
        for part, child in zip(parts, children, strict=True):
            if child == _TENSOR:
                leaf = f"t{len(self._lines)}"
                self.line(f"{leaf} = {part}")
                found.append(leaf)
            else:
                self.match(part, child, found)

    def _match_const(self, expression: str, const: Const) -> None:
        here = f"c{len(self._lines)}"
        value = self.name(const.value)
        self.line(f"{here} = {expression}")
        if not const.is_value or const.value is None or isinstance(const.value, (bool, enum.Enum)):
            self.line(f"if {here} is not {value}: return MISS")
        elif isinstance(const.value, (float, complex)):
            text = self.name(repr(const.value))  # -0.0 is not 0.0
            self.line(f"if {here} is not {value} and repr({here}) != {text}: return MISS")
        else:
            self.line(
                f"if {here} is not {value} and "
                f"(type({here}) is not {self.name(type(const.value))} or {here} != {value}):"
                " return MISS"
            )

    def build(self, spec: Spec, leaves: Any) -> str:
        kind = spec[0]
        if kind == "tensor":
            return str(next(leaves))
        if kind == "const":
            return self.name(spec[1].value)
        _, cls, keys, children = spec
        parts = [self.build(child, leaves) for child in children]
        listed = "".join(f"{part}, " for part in parts)
        if kind == "sequence":
            return f"[{listed}]" if cls is list else f"({listed})"
        make = self.name(cls)
        if kind == "namedtuple":
            return f"{make}._make(({listed}))"
        if kind == "structseq":
            return f"{make}(({listed}))"
        if kind == "registered":
            unflatten = self.name(_pytree.SUPPORTED_NODES[cls].unflatten_fn)
            return f"{unflatten}([{listed}], {self.name(keys)})"
        if kind == "dataclass":
            return f"{self.name(_make_dataclass)}({make}, {self.name(keys)}, ({listed}))"
        pairs = "".join(
            f"{self.name(key)}: {part}, " for key, part in zip(keys, parts, strict=True)
        )
        if kind == "fields":
            return f"{make}(**{{{pairs}}})"
        return f"{{{pairs}}}" if cls is dict else f"{make}({{{pairs}}})"


def _make_dataclass(cls: type, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """Made without ``__init__``, which may have fields left out or checks that read the data."""
    made: Any = object.__new__(cls)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


def tensor_check(leaves: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A function of as many tensors: do they have the type, dtype, device, shape and strides?

    It also answers ``False`` when autocast or inference mode were switched on or off, or a
    dispatch mode is active. torch's own C++ guards where this torch has them; the same in Python
    elsewhere.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        guards = TensorGuards(*leaves, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        return guards.check
    except (ImportError, TypeError):  # a private interface: gone, or called differently
        return python_tensor_check(leaves)


def python_tensor_check(leaves: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """The same as :func:`tensor_check` without private parts of torch."""

    def describe(tensor: Any) -> Any:
        return (
            type(tensor),
            tensor.dtype,
            tensor.device,
            tensor.shape,
            tensor.stride(),
            tensor.requires_grad and torch.is_grad_enabled(),
        )

    def modes() -> Any:
        return (
            torch.is_inference_mode_enabled(),
            torch._C._len_torch_dispatch_stack(),
            *(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")),
        )

    modes_then = modes()
    expected = [describe(leaf) for leaf in leaves]

    def check(*tensors: Any) -> bool:
        return modes() == modes_then and all(
            isinstance(tensor, torch.Tensor) and describe(tensor) == wanted
            for tensor, wanted in zip(tensors, expected, strict=True)
        )

    return check
