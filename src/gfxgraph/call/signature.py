"""The shape of a call: a tree of arguments, taken apart into its tensors and a :data:`Spec`."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import struct
import sys
import threading
import types
import weakref
from collections import OrderedDict, UserDict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.utils import _pytree

from ..errors import ArgumentError, CaptureError
from ..graph import raw
from ..graph.containers import Slots
from ..graph.lift import Counted, Unread
from .device_number import DeviceNumber

__all__ = [
    "TENSOR",
    "TOO_DEEP",
    "Arguments",
    "Const",
    "Given",
    "LeftOut",
    "Objects",
    "Spec",
    "Weak",
    "bits",
    "can_be_apart",
    "constants",
    "count_tensors",
    "flatten",
    "is_left_out",
    "is_numpy_scalar",
    "is_value",
    "is_whole",
    "more_than",
    "objects_in",
    "renumbered",
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


def is_value(value: object) -> bool:
    """Whether a leaf that is no tensor is compared by value."""
    return type(value) in _VALUES or isinstance(value, enum.Enum) or is_numpy_scalar(value)


def is_numpy_scalar(value: object) -> bool:
    """Whether it is a number of NumPy's, which is no array."""
    if type(value).__module__ != "numpy":
        return False
    numpy: Any = sys.modules["numpy"]
    return isinstance(value, (numpy.number, numpy.bool_))


def _is_array(value: object) -> bool:
    """Whether it is a NumPy array of numbers, of its own."""
    if type(value).__module__ != "numpy":
        return False
    numpy: Any = sys.modules["numpy"]
    if type(value) is not numpy.ndarray:
        return False
    array: Any = value
    return array.base is None and not array.dtype.hasobject and array.nbytes <= _MAX_ARRAY


# Bytes of a NumPy array that each replay copies.
_MAX_ARRAY = 1 << 24


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
            number: Any = value
            self._key = (cls, number.dtype.str, number.tobytes())
        else:
            self._key = (id(cls), id(value))

    @property
    def is_value(self) -> bool:
        """Whether it is compared by value."""
        return is_value(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        value = self.value
        if type(value) is int and value.bit_length() > _MAX_WRITTEN:  # Python may refuse to
            return f"<an int of {value.bit_length()} bits>"
        return repr(value) if self.is_value else f"<{type(value).__name__}>"


# Bits of a number that is written out.
_MAX_WRITTEN = 1024


class Array(Const):
    """A NumPy array that a result holds; each one gets a copy, so it stays what it was here."""

    __slots__ = ()

    def __init__(self, value: Any) -> None:
        self.value = value.copy("K")
        how = value.dtype.str, value.shape, value.strides, value.flags.writeable
        self._key = (type(value), *how, value.tobytes("A"))

    @property
    def is_value(self) -> bool:
        """It is compared by what it holds."""
        return True

    def copy(self) -> Any:
        """An array like it."""
        array: Any = self.value
        return array.copy("K")


class Weak(Const):
    """Equal to ``const`` as long as its object lives, to which it holds a weak reference."""

    __slots__ = ()

    def __init__(self, const: Const) -> None:
        self.value, self._key = weakref.ref(const.value), const._key


class Given:
    """Stands for something of the call, in what is to be stored after a replay.

    Attributes:
        where: the number of a tensor, among those of the call; or the way that leads from the
            arguments to something else, see :mod:`~gfxgraph.call.held`.
    """

    def __init__(self, where: int | tuple[Any, ...]) -> None:
        self.where = where


given = functools.lru_cache(maxsize=None)(Given)


class Objects:
    """Lets :func:`flatten` take objects of any class apart, and see what is one object.

    Args:
        there: objects that were there before, which are given as they are.
        refused: containers of the arguments, which a copy would not be.
    """

    def __init__(self, there: Iterable[object] = (), refused: Iterable[object] = ()) -> None:
        self._there = {id(item): item for item in there}
        self._refused = {id(item): item for item in refused}
        self._inputs: dict[int, Given] = {}
        self._numbers: dict[int, int | None] = {}
        self._next = itertools.count()
        self._arrays: set[int] = set()
        self._met: list[object] = []

    def inputs_are(
        self, inputs: Sequence[torch.Tensor], ways: Mapping[int, tuple[Any, ...]] | None = None
    ) -> None:
        """From now on these tensors are those of the call.

        ``ways`` lead to what else is of the call, by number. Default: nothing is.
        """
        self._inputs = {number: given(way) for number, way in (ways or {}).items()}
        self._inputs |= {id(tensor): given(n) for n, tensor in reversed(list(enumerate(inputs)))}

    def is_of_call(self, item: object) -> bool:
        """Whether ``item`` is a tensor of the call, or a container or an object among these."""
        return id(item) in self._inputs

    def met(self) -> list[object]:
        """The objects that were taken apart, and arrays that are to be copied."""
        return [item for item in self._met if _is_plain(item) or id(item) in self._arrays]

    def containers(self) -> list[object]:
        """The containers and objects that were taken apart; an empty tuple is one for all."""
        found = [item for item in self._met if type(item) is not tuple or item]
        return [item for item in found if id(item) in self._numbers]  # the others are leaves

    def known(self, item: Any) -> Spec | None:
        """The spec of what is known already."""
        if type(item) is Counted:
            item.use()
            raise ArgumentError("a counter that is used for more than counting")
        if id(item) in self._refused:
            raise ArgumentError(
                f"a {type(item).__qualname__} that existed before the call: a replay would "
                "return a copy of it."
            )
        if id(item) in self._inputs:
            return ("const", Const(self._inputs[id(item)]))
        if id(item) in self._there:
            return ("const", Const(item))
        number = self._numbers.get(id(item), -1)
        if number is None:
            raise ArgumentError(f"a {type(item).__qualname__} holds itself.")
        return None if number < 0 else ("again", number)

    def takes(self, item: Any) -> bool:
        """Whether an object of a class that nobody has registered is taken apart."""
        return _is_plain(item)

    def leaf(self, item: Any) -> Spec | None:
        """The spec of what is neither a tensor nor a value and cannot be taken apart, if any."""
        return ("const", Array(item)) if _is_array(item) else None

    def begin(self, item: Any) -> None:
        """``item`` is being taken apart."""
        self._met.append(item)
        self._numbers[id(item)] = None

    def end(self, item: Any, spec: Spec) -> None:
        """It was; or it turned out to be a leaf."""
        if spec[0] != "const":
            self._numbers[id(item)] = next(self._next)
            return
        del self._numbers[id(item)]
        if isinstance(spec[1], Array):
            if id(item) in self._arrays:
                raise ArgumentError("a numpy.ndarray that comes twice: return it once.")
            self._arrays.add(id(item))


class Arguments(Objects):
    """Lets :func:`flatten` take arguments of some classes apart.

    Where these hold what cannot be taken apart, a lock or a file, that is compared by identity.

    Args:
        classes: see :func:`can_be_apart`. Default: all.
    """

    def __init__(self, classes: Collection[type] | None = None) -> None:
        super().__init__()
        self._classes = None if classes is None else {id(cls): cls for cls in classes}
        self._depth = 0

    def takes(self, item: Any) -> bool:
        """Whether it is of one of the classes."""
        if self._classes is None:
            return _is_plain(item)
        return id(type(item)) in self._classes

    def known(self, item: Any) -> Spec | None:
        """The spec of what was met before, unless it is the same to everybody."""
        return None if isinstance(item, (tuple, slice, range)) else super().known(item)

    def leaf(self, item: Any) -> Spec | None:
        """Compare what cannot be taken apart by identity, inside an object."""
        return ("const", Const(item)) if self._depth else None

    def begin(self, item: Any) -> None:
        """``item`` is being taken apart."""
        super().begin(item)
        self._depth += self.takes(item)
        if self._classes and len(self._met) > _MAX_OBJECTS:
            raise ArgumentError(f"it reaches more than {_MAX_OBJECTS} objects.")

    def end(self, item: Any, spec: Spec) -> None:
        """It was; or it turned out to be a leaf."""
        super().end(item, spec)
        self._depth -= self.takes(item)


# Of an argument; one that reaches more is no record of a request, but a part of the program.
_MAX_OBJECTS = 512


def can_be_apart(item: object) -> bool:
    """Whether ``item`` is nothing but its attributes, so that an object like it can be made."""
    cls = type(item)
    return (
        _is_plain(item)
        and _base_of(cls) is object
        and raw.has_usual_attributes(cls)
        and not raw.slots(item)
        and not any("__del__" in raw.namespace(base) for base in raw.mro(cls))
        and raw.attributes(item) is not None
    )


def flatten(tree: Any, objects: Objects | None = None) -> tuple[list[torch.Tensor], Spec]:
    """The tensors of ``tree`` and its spec.

    Trees are made of tuples, lists, dicts, slices, ranges, NamedTuples, dataclasses,
    ``SimpleNamespace``, transformers' ``ModelOutput`` and ``BatchEncoding``, and whatever is
    registered with ``torch.utils._pytree``. With ``objects`` also of objects of other classes,
    whose state is their attributes and their items.

    Raises:
        ArgumentError: a leaf holds data that can be neither copied nor compared, such as a NumPy
            array; or the tree is nested too deep to be taken apart.
    """
    leaves: list[torch.Tensor] = []
    try:
        return leaves, _flatten(tree, leaves, objects)
    except RecursionError as error:
        raise ArgumentError(TOO_DEEP) from error


def _flatten(item: Any, leaves: list[torch.Tensor], objects: Objects | None) -> Spec:
    if objects is None:
        return _taken_apart(item, leaves, None)
    known = objects.known(item)
    if known is not None:
        return known
    if isinstance(item, torch.Tensor) or is_value(item):
        return _taken_apart(item, leaves, objects)
    objects.begin(item)
    spec = _taken_apart(item, leaves, objects)
    objects.end(item, spec)
    return spec


def _taken_apart(item: Any, leaves: list[torch.Tensor], objects: Objects | None) -> Spec:
    cls = type(item)
    if isinstance(item, torch.Tensor):
        leaves.append(item)
        return TENSOR
    if is_value(item):
        return ("const", Const(item))
    if cls is tuple or cls is list:
        return ("sequence", cls, None, _flatten_all(item, leaves, objects))
    kind: Any = type(cls)
    if kind is not type and kind.__eq__ is not object.__eq__:
        raise ArgumentError(f"the metaclass of {cls.__qualname__} says which classes are equal.")
    if cls is slice or cls is range:  # ranges are equal that differ in their ends
        ends = [getattr(item, end) for end in _ENDS]
        return ("slice", cls, _ENDS, _flatten_all(ends, leaves, objects))
    if isinstance(item, tuple) and hasattr(cls, "_fields"):
        _refuse_attributes(item, ())
        return ("namedtuple", cls, None, _flatten_all(item, leaves, objects))
    if isinstance(item, tuple) and hasattr(cls, "n_sequence_fields"):  # torch.return_types
        if cls.n_fields > cls.n_sequence_fields:
            raise ArgumentError(f"a {cls.__module__}.{cls.__qualname__} has more than its items.")
        return ("structseq", cls, None, _flatten_all(item, leaves, objects))
    if cls is dict or cls is OrderedDict:
        _refuse_attributes(item, ())
        keys = _keys(item)
        children = _flatten_all(item.values(), leaves, objects)
        return ("dict", cls, keys, children, tuple(map(type, item)))
    if isinstance(item, UserDict):
        return _flatten_mapping(item, leaves, objects)
    if dataclasses.is_dataclass(item) and _keeps_fields(item):
        return _flatten_dataclass(item, leaves, objects)
    if cls is types.SimpleNamespace:
        names = tuple(vars(item))
        return ("namespace", cls, names, _flatten_all(vars(item).values(), leaves, objects))
    if cls in _pytree.SUPPORTED_NODES:
        return _flatten_registered(item, leaves, objects)
    if cls is DeviceNumber:
        raise ArgumentError(
            "a number that is an input (inputs=), which a replay would return as that of another "
            "call. Return a tensor that is made of it."
        )
    if isinstance(item, _OF_VALUES):
        raise ArgumentError(
            f"a {cls.__module__}.{cls.__qualname__} may hold more than its value: pass a plain "
            f"{next(known for known in _OF_VALUES if isinstance(item, known)).__name__}."
        )
    if objects is not None and objects.takes(item):
        return _flatten_object(item, leaves, objects)
    if isinstance(item, (list, tuple, dict)) and vars(item) is not item:
        _refuse_attributes(item, ())  # nobody looks whether they change
    leaf = None if objects is None else objects.leaf(item)
    if leaf is not None:
        return leaf
    if objects is not None and cls is weakref.ReferenceType and objects.is_of_call(item()):
        raise ArgumentError(
            "a weak reference to an argument, which a replay gets another copy of. Keep the "
            "argument itself, or make the reference outside."
        )
    if hasattr(item, "__dict__") or callable(item) or isinstance(item, torch.Generator):
        return ("const", Const(item))
    raise ArgumentError(
        f"a {cls.__module__}.{cls.__qualname__} is neither a tensor nor a constant: give its data "
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
    more = [
        name for name in (*getattr(item, "__dict__", ()), *raw.slots(item)) if name not in known
    ]
    if more:
        raise ArgumentError(
            f"a {type(item).__qualname__} has attributes that are no fields ({more}): a static one "
            "could not have them. Make them fields."
        )


def _flatten_all(
    items: Iterable[Any], leaves: list[torch.Tensor], objects: Objects | None
) -> tuple[Spec, ...]:
    return tuple([_flatten(item, leaves, objects) for item in items])


def _keeps_fields(item: Any) -> bool:
    """Whether a dataclass gives what it was given; else it is like an object of any other class."""
    if isinstance(item, (dict, type)):
        return not isinstance(item, type)
    return raw.keeps(type(item), [field.name for field in dataclasses.fields(item)])


def _flatten_dataclass(item: Any, leaves: list[torch.Tensor], objects: Objects | None) -> Spec:
    cls = type(item)
    names = tuple(f.name for f in dataclasses.fields(item) if _is_own(item, f.name))
    _refuse_attributes(item, names)
    if isinstance(item, dict):  # ModelOutput: a dict of those fields that are not None
        count = len(vars(item))
        return ("fields", cls, _keys(item), _flatten_all(item.values(), leaves, objects), count)
    if not all(hasattr(item, name) for name in names) or isinstance(item, _CONTAINERS):
        raise ArgumentError(
            f"a {cls.__qualname__} lacks some of its fields, or holds more than these: "
            "a static one could not be made of them."
        )
    count = len(getattr(item, "__dict__", ()))
    children = _flatten_all((getattr(item, n) for n in names), leaves, objects)
    return ("dataclass", cls, names, children, count)


def _flatten_registered(item: Any, leaves: list[torch.Tensor], objects: Objects | None) -> Spec:
    """An object of a class that is registered with ``torch.utils._pytree``."""
    cls = type(item)
    parts, context = _pytree.SUPPORTED_NODES[cls].flatten_fn(item)
    inside: list[torch.Tensor] = []
    known = _flatten(context, inside, None)
    if inside:
        raise ArgumentError(
            f"a {cls.__qualname__} keeps tensors in its context: return them among its "
            "children where it is registered."
        )
    children = _flatten_all(parts, leaves, objects)
    return ("registered", cls, known, children, more_than(item, parts))


def more_than(item: Any, parts: Iterable[Any]) -> tuple[Any, ...]:
    """The attributes of ``item`` that are none of its parts: their values, or what they are."""
    known = set(map(id, parts))
    return tuple(
        (name, Const(value) if is_value(value) else id(type(value)))
        for name, value in (raw.attributes(item) or {}).items()
        if id(value) not in known
    )


def _flatten_object(item: Any, leaves: list[torch.Tensor], objects: Objects) -> Spec:
    """An object that is nothing but its items and its attributes."""
    base = _base_of(type(item))
    items = [] if base is object or base is types.SimpleNamespace else raw.contents(item)
    if base not in _KEYED:
        items = [(None, value) for _, value in items]
    held = list((raw.attributes(item) or {}).items())
    in_slots = Slots(item, raw.slots(item)).read()
    keys = tuple(key for key, _ in items), tuple(k for k, _ in held), tuple(k for k, _ in in_slots)
    if not all(type(key) in (*_KEYS, type(None)) or isinstance(key, enum.Enum) for key in keys[0]):
        raise ArgumentError(f"a {type(item).__qualname__} has keys that are no plain values.")
    size = item.maxlen if base is deque else None
    children = _flatten_all([value for _, value in (*items, *held, *in_slots)], leaves, objects)
    return ("object", type(item), keys, children, (base, size))


_BASES = (OrderedDict, dict, list, set, deque, types.SimpleNamespace, object)
_KEYED = (OrderedDict, dict)
_NO_DATA = (torch.nn.Module, threading.Thread, BaseException, torch.Tensor)


def _base_of(cls: type) -> Any:
    return next(base for base in raw.mro(cls) if base in _BASES)


def _is_plain(item: Any) -> bool:
    """Whether an object has no state but items, ``__dict__`` and slots."""
    cls: Any = type(item)
    known = _plain_classes.get(cls)
    if known is None:
        known = _plain_classes[cls] = _is_plain_class(cls)
    return known


#: Weakly: a class that a program makes for some calls holds what its attributes hold.
_plain_classes: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _is_plain_class(cls: Any) -> bool:
    if any(issubclass(cls, kind) for kind in (*_NO_DATA, type, types.ModuleType)):
        return False
    base = _base_of(cls)
    own = raw.mro(cls)[: raw.mro(cls).index(base)]
    if cls is object or not all(map(raw.is_mutable, own)):
        return False
    words = sum(
        1
        for part in own
        for slot in raw.namespace(part).values()
        if type(slot) is types.MemberDescriptorType and slot.__objclass__ is part
    )
    for name in ("__dictoffset__", "__weakrefoffset__"):
        words += getattr(cls, name) > 0 and not getattr(base, name)
    is_all = cls.__basicsize__ == base.__basicsize__ + struct.calcsize("P") * words
    return is_all and cls.__new__ is base.__new__


class LeftOut(Unread):
    """Stands in a static mapping for an attribute that is no plain value.

    Attributes:
        used: what was said of those that the newest run has used.
    """

    used: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        self.__dict__["name"] = name

    def _use(self, *args: Any, **kwargs: Any) -> Any:
        why = f"the function uses the attribute {self.name}, which is no plain value"
        self.used.append(why)
        raise TypeError(f"gfxgraph: {why}")


left_out = functools.lru_cache(maxsize=None)(LeftOut)


def is_left_out(value: object) -> bool:
    """Whether a static mapping has no such attribute."""
    return type(value) is LeftOut or not is_value(value)


def _flatten_mapping(item: Any, leaves: list[torch.Tensor], objects: Objects | None) -> Spec:
    """A ``UserDict``: its items, and the plain values among its attributes.

    Of other attributes, such as what a tokenizer leaves in a ``BatchEncoding``, only the names
    matter: a function that asks for more fails in warm-up.
    """
    if raw.slots(item):
        raise ArgumentError(f"a {type(item).__qualname__} has __slots__ beside its items.")
    attributes = vars(item)
    data = attributes.get("data")
    if type(data) is not dict:
        raise ArgumentError(f"a {type(item).__qualname__} does not keep its items in a dict.")
    more = tuple(
        (name, Const(left_out(name) if is_left_out(value) else value))
        for name, value in attributes.items()
        if name != "data"
    )
    children = _flatten_all(data.values(), leaves, objects)
    return ("mapping", type(item), _keys(data), children, (tuple(map(type, data)), more))


def count_tensors(spec: Spec) -> int:
    """How many tensors a tree of ``spec`` has."""
    if spec[0] in ("const", "again"):
        return 0
    return 1 if spec[0] == "tensor" else sum(map(count_tensors, spec[3]))


def constants(spec: Spec) -> list[Const]:
    """The leaves of ``spec`` that are not tensors."""
    if spec[0] in ("tensor", "again"):
        return []
    if spec[0] == "const":
        return [spec[1]]
    return [c for child in spec[3] for c in constants(child)]


def renumbered(spec: Spec, kept: Sequence[int]) -> Spec:
    """A result of calls of whose tensors only those with these numbers are inputs.

    Raises:
        CaptureError: it holds another one.
    """
    if spec[0] == "const" and isinstance(spec[1].value, Given):
        where = spec[1].value.where
        if type(where) is not int:
            return spec
        if where not in kept:
            raise CaptureError("result: holds a tensor of an argument that was not seen to be read")
        return ("const", Const(given(kept.index(where))))
    if spec[0] in ("tensor", "const", "again"):
        return spec
    return (*spec[:3], tuple(renumbered(child, kept) for child in spec[3]), *spec[4:])


def objects_in(spec: Spec) -> list[object]:
    """The leaves of ``spec`` that are compared by identity."""
    return [const.value for const in constants(spec) if not const.is_value]


def without_objects(spec: Spec) -> Spec:
    """Equal to ``spec`` as long as its objects live, those compared by identity; it holds none.

    Raises:
        TypeError: one is of a class without weak references.
    """
    if spec[0] in ("tensor", "again"):
        return spec
    if spec[0] == "const":
        return spec if spec[1].is_value else ("const", Weak(spec[1]))
    return (*spec[:3], tuple(map(without_objects, spec[3])), *spec[4:])
