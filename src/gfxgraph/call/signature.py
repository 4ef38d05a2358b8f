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
import struct
import sys
import types
import weakref
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from ..errors import ArgumentError

__all__ = [
    "NO_MATCH",
    "TOO_DEEP",
    "Condition",
    "Const",
    "Spec",
    "builder",
    "constants",
    "flatten",
    "matcher",
    "tensor_check",
    "without_objects",
]

NO_MATCH: Any = object()
"""What an attempt at a call returns when its graph does not fit, or may not be used any more."""

Spec = tuple[Any, ...]
"""``("tensor",)``, ``("const", Const)`` or ``(kind, class, keys, children, more)``."""

Condition = tuple["Callable[..., object] | dict[str, Any]", str, object]
"""A function and what to call it with (``""``: nothing), or a dict and a key; then the very object
that must be found."""

_TENSOR: Spec = ("tensor",)
TOO_DEEP = "a structure is nested in more than 100 containers: pass its tensors in fewer."
"""Why Python's parser, or its stack, does not take a tree."""

_VALUES = frozenset(
    (
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(...),
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.Size,
    )
)

_KEYS = (str, int, bool)


def _is_value(value: object) -> bool:
    return type(value) in _VALUES or isinstance(value, enum.Enum) or _is_numpy_scalar(value)


def _is_numpy_scalar(value: object) -> bool:
    if type(value).__module__ != "numpy":
        return False
    numpy: Any = sys.modules["numpy"]
    return isinstance(value, (numpy.number, numpy.bool_))


def _bits(value: float | complex) -> bytes:
    """Tells -0.0 from 0.0, and a nan from others."""
    return struct.pack("dd", value.real, value.imag)


def _whole(value: float | complex) -> bool:
    """Whether no part of it is zero, whose sign does not show in a comparison."""
    return bool(value.real and (value.imag or isinstance(value, float)))


class Const:
    """A leaf that is not a tensor: equal by type and value if it is a value, else by identity."""

    __slots__ = ("_key", "value")

    def __init__(self, value: object) -> None:
        self.value = value
        cls = type(value)
        if cls is float or cls is complex:
            self._key: Any = (cls, _bits(value))  # type: ignore[arg-type]
        elif cls in _VALUES:
            self._key = (cls, value)
        elif _is_numpy_scalar(value):
            self._key = (cls, value.tobytes())  # type: ignore[attr-defined]
        else:
            self._key = (cls, id(value))

    @property
    def is_value(self) -> bool:
        """Whether it is compared by value."""
        return _is_value(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return repr(self.value) if self.is_value else f"<{type(self.value).__name__}>"


class _Weak(Const):
    """Equal to ``const`` as long as its object lives, to which it holds a weak reference."""

    __slots__ = ()

    def __init__(self, const: Const) -> None:
        self.value, self._key = weakref.ref(const.value), const._key


def flatten(tree: Any) -> tuple[list[torch.Tensor], Spec]:
    """The tensors of ``tree`` and its spec.

    Trees are made of tuples, lists, dicts, slices, ranges, NamedTuples, dataclasses,
    ``SimpleNamespace``, transformers' ``ModelOutput`` and ``BatchEncoding``, and whatever is
    registered with ``torch.utils._pytree``.

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

    def children(items: Iterable[Any]) -> tuple[Spec, ...]:
        return tuple([_flatten(i, leaves) for i in items])

    if isinstance(item, torch.Tensor):
        leaves.append(item)
        return _TENSOR
    if _is_value(item):
        return ("const", Const(item))
    if cls is tuple or cls is list:
        return ("sequence", cls, None, children(item))
    if cls is slice or cls is range:  # ranges are equal that differ in their ends
        return ("slice", cls, _ENDS, children(getattr(item, end) for end in _ENDS))
    if isinstance(item, tuple) and hasattr(cls, "_fields"):
        _refuse_attributes(item, ())
        return ("namedtuple", cls, None, children(item))
    if isinstance(item, tuple) and hasattr(cls, "n_sequence_fields"):  # torch.return_types
        return ("structseq", cls, None, children(item))
    if cls is dict or cls is OrderedDict:
        _refuse_attributes(item, ())
        return ("dict", cls, _keys(item), children(item.values()), tuple(map(type, item)))
    if isinstance(item, UserDict):
        return _flatten_mapping(item, leaves)
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        names = tuple(f.name for f in dataclasses.fields(item) if _is_own(item, f.name))
        _refuse_attributes(item, names)
        if isinstance(item, dict):  # ModelOutput: a dict of those fields that are not None
            count = len(vars(item))
            return ("fields", cls, _keys(item), children(item.values()), count)
        if not all(hasattr(item, name) for name in names) or isinstance(item, _CONTAINERS):
            raise ArgumentError(
                f"a {cls.__qualname__} lacks some of its fields, or holds more than these: "
                "a static one could not be made of them."
            )
        count = len(getattr(item, "__dict__", ()))
        return ("dataclass", cls, names, children(getattr(item, n) for n in names), count)
    if cls is types.SimpleNamespace:
        names = tuple(vars(item))
        return ("namespace", cls, names, children(vars(item).values()))
    if cls in _pytree.SUPPORTED_NODES:
        parts, context = _pytree.SUPPORTED_NODES[cls].flatten_fn(item)
        inside: list[torch.Tensor] = []
        known = _flatten(context, inside)
        if inside:
            raise ArgumentError(
                f"a {cls.__qualname__} keeps tensors in its context: return them among its "
                "children where it is registered."
            )
        return ("registered", cls, known, children(parts))
    if isinstance(item, _OF_VALUES):
        raise ArgumentError(
            f"a {cls.__module__}.{cls.__qualname__} may hold more than its value: pass a plain "
            f"{next(known for known in _OF_VALUES if isinstance(item, known)).__name__}."
        )
    if isinstance(item, (list, tuple, dict)) and vars(item) is not item:
        _refuse_attributes(item, ())  # nobody looks whether they change
    if hasattr(item, "__dict__") or callable(item) or isinstance(item, torch.Generator):
        return ("const", Const(item))
    raise ArgumentError(
        f"a {cls.__module__}.{cls.__qualname__} is neither a tensor nor a constant: pass its data "
        "as a tensor."
    )


_ENDS = ("start", "stop", "step")
_CONTAINERS = (list, tuple, dict, set, torch.nn.Module)
_OF_VALUES = (int, float, complex, str, bytes)


def _keys(item: Any) -> tuple[Any, ...]:
    keys = tuple(item)
    if not all(type(key) in _KEYS or isinstance(key, enum.Enum) for key in keys):
        raise ArgumentError(
            "a dict with keys other than strings, integers and enums: rename its keys."
        )
    return keys


def _is_own(item: Any, name: str) -> bool:
    """Whether an object has this attribute itself; a default value is its class's."""
    return name in getattr(item, "__dict__", ()) or isinstance(
        getattr(type(item), name, None), types.MemberDescriptorType
    )


def _refuse_attributes(item: Any, known: tuple[str, ...]) -> None:
    more = [name for name in getattr(item, "__dict__", ()) if name not in known]
    if more:
        raise ArgumentError(
            f"a {type(item).__qualname__} has attributes that are no fields ({more}): a static one "
            "could not have them. Make them fields."
        )


class _Unequal(int):
    """A number in which equal specs may differ: a static mapping has fewer attributes."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Unequal)

    def __hash__(self) -> int:
        return 0


def _flatten_mapping(item: Any, leaves: list[torch.Tensor]) -> Spec:
    """A ``UserDict``: its items, and the plain values among its attributes.

    Other attributes, such as what a tokenizer leaves in a ``BatchEncoding``, are none of the static
    one's: a function that asks for them fails in warm-up.
    """
    attributes = vars(item)
    data = attributes.get("data")
    if type(data) is not dict:
        raise ArgumentError(f"a {type(item).__qualname__} does not keep its items in a dict.")
    more = tuple(
        (name, Const(value))
        for name, value in attributes.items()
        if name != "data" and _is_value(value)
    )
    children = tuple([_flatten(value, leaves) for value in data.values()])
    key_types = tuple(map(type, data))
    count = _Unequal(len(attributes))
    return ("mapping", type(item), _keys(data), children, (key_types, more, count))


def constants(spec: Spec) -> list[Const]:
    """The leaves of ``spec`` that are not tensors."""
    if spec[0] == "tensor":
        return []
    if spec[0] == "const":
        return [spec[1]]
    return [c for child in spec[3] for c in constants(child)]


def without_objects(spec: Spec) -> Spec:
    """Equal to ``spec`` as long as its objects live, those compared by identity; it holds none.

    Raises:
        TypeError: one is of a class without weak references.
    """
    if spec[0] == "tensor":
        return spec
    if spec[0] == "const":
        return spec if spec[1].is_value else ("const", _Weak(spec[1]))
    return (*spec[:3], tuple(map(without_objects, spec[3])), *spec[4:])


def matcher(
    args: Spec,
    kwargs: Spec,
    check: Callable[..., bool] | None,
    conditions: Sequence[Condition],
    same: Sequence[int],
    then: Callable[[Any, tuple[Any, ...], dict[str, Any], Sequence[torch.Tensor]], Any],
) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
    """A function of ``(fn, args, kwargs)``: :data:`NO_MATCH`, or what ``then`` makes of a call.

    Args:
        args: spec of the tuple of positional arguments.
        kwargs: spec of the dict of keyword arguments.
        check: says of all tensors whether they fit, see :func:`tensor_check`; ``None`` if there
            are none.
        conditions: what else must hold.
        same: for each tensor, the number of the first one that is the same object. ``check`` is
            given each once, and sees by itself that these are different objects.
        then: called with all that and the tensors when they fit.
    """
    source = _Source()
    found: list[str] = []
    once = len(set(same)) == len(same)
    if once and all(child == _TENSOR for child in args[3]) and not kwargs[3]:
        source.line(f"if len(args) != {len(args[3])} or kwargs: return NO_MATCH")
        result = star = "args"
    else:
        source.match("args", args, found)
        source.match("kwargs", kwargs, found)
        result = "(" + "".join(f"{name}, " for name in found) + ")"
        star = "(" + "".join(f"{found[n]}, " for n in dict.fromkeys(same)) + ")"
        for name, first in zip(found, same, strict=True):
            if found[first] is not name:
                source.line(f"if {name} is not {found[first]}: return NO_MATCH")
    if check is not None:
        source.line(f"if not {source.name(check)}(*{star}): return NO_MATCH")
    for asked, name, expected in conditions:
        value = (
            f"{source.name(asked)}[{name!r}]"
            if isinstance(asked, dict)
            else f"{source.name(asked)}({name!r})"
            if name
            else f"{source.name(asked)}()"
        )
        source.line(f"if {value} is not {source.name(expected)}: return NO_MATCH")
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
        self._names: dict[str, Any] = {"NO_MATCH": NO_MATCH}

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
            lines += ["    except (AttributeError, LookupError):", "        return NO_MATCH"]
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
        _, cls, keys, children, *more = spec
        here = f"n{len(self._lines)}"
        self.line(f"{here} = {expression}")
        self.line(f"if type({here}) is not {self.name(cls)}: return NO_MATCH")
        if kind in ("sequence", "namedtuple", "structseq"):
            self.line(f"if len({here}) != {len(children)}: return NO_MATCH")
            if kind == "namedtuple" and cls.__dictoffset__:
                self.line(f"if {here}.__dict__: return NO_MATCH")
            parts = [f"{here}[{n}]" for n in range(len(children))]
        elif kind in ("dict", "mapping"):
            if cls is OrderedDict:
                self.line(f"if {here}.__dict__: return NO_MATCH")
            key_types = more[0]
            if kind == "mapping":
                key_types, attributes, count = more[0]
                self.line(f"if len({here}.__dict__) != {count}: return NO_MATCH")
                for name, const in attributes:
                    self._match_const(f"{here}.{name}", const)
                self.line(f"{here} = {here}.data")
                self.line(f"if type({here}) is not {self.name(dict)}: return NO_MATCH")
            self.line(f"if tuple({here}) != {self.name(keys)}: return NO_MATCH")
            if expression != "kwargs":  # 1, True and an enum may be equal as keys
                types_found = f"tuple(map(type, {here}))"
                self.line(f"if {types_found} != {self.name(key_types)}: return NO_MATCH")
            parts = [f"{here}_{n}" for n in range(len(children))]
            if parts:
                self.line(f"{', '.join(parts)}, = {here}.values()")
        elif kind == "fields":
            self.line(f"if tuple({here}) != {self.name(keys)}: return NO_MATCH")
            self.line(f"if len({here}.__dict__) != {more[0]}: return NO_MATCH")
            parts = [f"{here}[{self.name(key)}]" for key in keys]
        elif kind in ("dataclass", "slice"):
            if kind == "dataclass" and cls.__dictoffset__:
                self.line(f"if len({here}.__dict__) != {more[0]}: return NO_MATCH")
            parts = [f"{here}.{key}" for key in keys]
        elif kind == "namespace":
            self.line(f"if tuple({here}.__dict__) != {self.name(keys)}: return NO_MATCH")
            parts = [f"{here}.__dict__[{self.name(key)}]" for key in keys]
        else:
            flatten_fn = self.name(_pytree.SUPPORTED_NODES[cls].flatten_fn)
            self.line(f"{here}, {here}_context = {flatten_fn}({here})")
            self.match(f"{here}_context", keys, found)  # it holds no tensors
            self.line(f"if len({here}) != {len(children)}: return NO_MATCH")
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
        known = const.value
        value = self.name(known)
        cls = type(known)
        self.line(f"{here} = {expression}")
        if isinstance(const, _Weak):
            self.line(f"if {here} is not {value}(): return NO_MATCH")
            return
        if not const.is_value or known is None or cls is bool or isinstance(known, enum.Enum):
            self.line(f"if {here} is not {value}: return NO_MATCH")
            return
        differs = f"{here} != {value}"
        if _is_numpy_scalar(known):
            differs = f"{here}.tobytes() != {self.name(known.tobytes())}"  # type: ignore[attr-defined]
        elif isinstance(known, (float, complex)) and (known != known or not _whole(known)):
            differs = f"{self.name(_bits)}({here}) != {self.name(_bits(known))}"
        self.line(
            f"if {here} is not {value} and (type({here}) is not {self.name(cls)} or {differs}):"
            " return NO_MATCH"
        )

    def build(self, spec: Spec, leaves: Any) -> str:
        kind = spec[0]
        if kind == "tensor":
            return str(next(leaves))
        if kind == "const":
            return self.name(spec[1].value)
        _, cls, keys, children, *more = spec
        parts = [self.build(child, leaves) for child in children]
        listed = "".join(f"{part}, " for part in parts)
        if kind == "sequence":
            return f"[{listed}]" if cls is list else f"({listed})"
        make = self.name(cls)
        if kind == "namedtuple":
            return f"{make}._make(({listed}))"
        if kind == "structseq":
            return f"{make}(({listed}))"
        if kind == "slice":
            return f"{make}({listed})"
        if kind == "registered":
            unflatten = self.name(_pytree.SUPPORTED_NODES[cls].unflatten_fn)
            return f"{unflatten}([{listed}], {self.build(keys, leaves)})"
        if kind in ("dataclass", "namespace"):
            return f"{self.name(_make_object)}({make}, {self.name(keys)}, ({listed}))"
        pairs = "".join(
            f"{self.name(key)}: {part}, " for key, part in zip(keys, parts, strict=True)
        )
        if kind == "fields":
            return f"{make}(**{{{pairs}}})"
        if kind == "mapping":
            names = ("data", *(name for name, _ in more[0][1]))
            values = "".join(f"{self.name(const.value)}, " for _, const in more[0][1])
            made = f"{{{pairs}}}, {values}"
            return f"{self.name(_make_object)}({make}, {self.name(names)}, ({made}))"
        return f"{{{pairs}}}" if cls is dict else f"{make}({{{pairs}}})"


def _make_object(cls: type, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """Made without ``__init__``, which may have fields left out or checks that read the data."""
    made: Any = cls.__new__(cls) if cls is types.SimpleNamespace else object.__new__(cls)
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
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def modes() -> Any:
        return (
            torch.is_inference_mode_enabled(),
            torch._C._len_torch_dispatch_stack(),
            torch._C._functorch.peek_interpreter_stack() is None,
            torch._C._get_tracing_state() is None,
            *(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")),
        )

    modes_then = modes()
    expected = [describe(leaf) for leaf in leaves]

    def check(*tensors: Any) -> bool:
        once = len(set(map(id, tensors))) == len(tensors)
        return (
            once
            and modes() == modes_then
            and all(
                isinstance(tensor, torch.Tensor) and describe(tensor) == wanted
                for tensor, wanted in zip(tensors, expected, strict=True)
            )
        )

    return check
