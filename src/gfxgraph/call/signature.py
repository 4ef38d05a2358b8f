"""The shape of a call: a tree of arguments, taken apart into its tensors and a :data:`Spec`."""

from __future__ import annotations

import dataclasses
import enum
import struct
import sys
import types
import weakref
from collections import OrderedDict, UserDict
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree

from ..errors import ArgumentError

__all__ = [
    "TENSOR",
    "TOO_DEEP",
    "Const",
    "Spec",
    "Weak",
    "bits",
    "constants",
    "flatten",
    "is_numpy_scalar",
    "is_whole",
    "without_objects",
]

Spec = tuple[Any, ...]
"""``("tensor",)``, ``("const", Const)`` or ``(kind, class, keys, children, more)``."""

TENSOR: Spec = ("tensor",)
"""The spec of a tensor."""

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
    return type(value) in _VALUES or isinstance(value, enum.Enum) or is_numpy_scalar(value)


def is_numpy_scalar(value: object) -> bool:
    """Whether it is a number of NumPy's, which is no array."""
    if type(value).__module__ != "numpy":
        return False
    numpy: Any = sys.modules["numpy"]
    return isinstance(value, (numpy.number, numpy.bool_))


def bits(value: float | complex) -> bytes:
    """Tells -0.0 from 0.0, and a nan from others."""
    return struct.pack("dd", value.real, value.imag)


def is_whole(value: float | complex) -> bool:
    """Whether no part of it is zero, whose sign does not show in a comparison."""
    return bool(value.real and (value.imag or isinstance(value, float)))


class Const:
    """A leaf that is not a tensor: equal by type and value if it is a value, else by identity."""

    __slots__ = ("_key", "value")

    def __init__(self, value: object) -> None:
        self.value = value
        cls = type(value)
        if cls is float or cls is complex:
            self._key: Any = (cls, bits(value))  # type: ignore[arg-type]
        elif cls in _VALUES:
            self._key = (cls, value)
        elif is_numpy_scalar(value):
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


class Weak(Const):
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
    if isinstance(item, torch.Tensor):
        leaves.append(item)
        return TENSOR
    if _is_value(item):
        return ("const", Const(item))
    if cls is tuple or cls is list:
        return ("sequence", cls, None, _flatten_all(item, leaves))
    if cls is slice or cls is range:  # ranges are equal that differ in their ends
        return ("slice", cls, _ENDS, _flatten_all((getattr(item, end) for end in _ENDS), leaves))
    if isinstance(item, tuple) and hasattr(cls, "_fields"):
        _refuse_attributes(item, ())
        return ("namedtuple", cls, None, _flatten_all(item, leaves))
    if isinstance(item, tuple) and hasattr(cls, "n_sequence_fields"):  # torch.return_types
        return ("structseq", cls, None, _flatten_all(item, leaves))
    if cls is dict or cls is OrderedDict:
        _refuse_attributes(item, ())
        return (
            "dict",
            cls,
            _keys(item),
            _flatten_all(item.values(), leaves),
            tuple(map(type, item)),
        )
    if isinstance(item, UserDict):
        return _flatten_mapping(item, leaves)
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return _flatten_dataclass(item, leaves)
    if cls is types.SimpleNamespace:
        names = tuple(vars(item))
        return ("namespace", cls, names, _flatten_all(vars(item).values(), leaves))
    if cls in _pytree.SUPPORTED_NODES:
        return _flatten_registered(item, leaves)
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


def _flatten_all(items: Iterable[Any], leaves: list[torch.Tensor]) -> tuple[Spec, ...]:
    return tuple([_flatten(item, leaves) for item in items])


def _flatten_dataclass(item: Any, leaves: list[torch.Tensor]) -> Spec:
    cls = type(item)
    names = tuple(f.name for f in dataclasses.fields(item) if _is_own(item, f.name))
    _refuse_attributes(item, names)
    if isinstance(item, dict):  # ModelOutput: a dict of those fields that are not None
        count = len(vars(item))
        return ("fields", cls, _keys(item), _flatten_all(item.values(), leaves), count)
    if not all(hasattr(item, name) for name in names) or isinstance(item, _CONTAINERS):
        raise ArgumentError(
            f"a {cls.__qualname__} lacks some of its fields, or holds more than these: "
            "a static one could not be made of them."
        )
    count = len(getattr(item, "__dict__", ()))
    return ("dataclass", cls, names, _flatten_all((getattr(item, n) for n in names), leaves), count)


def _flatten_registered(item: Any, leaves: list[torch.Tensor]) -> Spec:
    """An object of a class that is registered with ``torch.utils._pytree``."""
    cls = type(item)
    parts, context = _pytree.SUPPORTED_NODES[cls].flatten_fn(item)
    inside: list[torch.Tensor] = []
    known = _flatten(context, inside)
    if inside:
        raise ArgumentError(
            f"a {cls.__qualname__} keeps tensors in its context: return them among its "
            "children where it is registered."
        )
    return ("registered", cls, known, _flatten_all(parts, leaves))


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
        return spec if spec[1].is_value else ("const", Weak(spec[1]))
    return (*spec[:3], tuple(map(without_objects, spec[3])), *spec[4:])
