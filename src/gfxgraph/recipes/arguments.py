"""The arguments of a call as plain JSON, without the data of its tensors; and arguments made of it.

A tree is ``["tensor"]``, ``["number", type]`` for a number that is an input of the graph,
``["value", type, text]``, ``["list" | "tuple" | "slice" | "range", items]``,
``["dict" | "OrderedDict", keys, items]``, or ``["read", names, read, items]`` for a dict of which
only some items matter.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import torch

from ..call.buckets.padding import is_mask
from ..call.entry import Entry
from ..call.key import conditions
from ..call.number_inputs import is_number
from ..call.signature import Const, Spec
from ..device import current_device
from .file import Modes, Recipe, Tensor

__all__ = ["Unsuitable", "bytes_needed", "made", "modes_now", "modes_of", "recipe_of", "under"]

_MAX_DEPTH = 50
# Characters of one value, which a text or a number in a file may have.
_MAX_VALUE = 10_000

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}
_LAYOUTS = {str(one): one for one in vars(torch).values() if isinstance(one, torch.layout)}
_FORMATS = {str(one): one for one in vars(torch).values() if isinstance(one, torch.memory_format)}

_KEYS = (str, int, bool)
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple", slice: "slice", range: "range"}
_DICTS: dict[type, str] = {dict: "dict", OrderedDict: "OrderedDict"}


class Unsuitable(Exception):
    """A call cannot be written down, or not be made of what was; the text says why."""


# From a key.


def recipe_of(key: Any, entry: Entry, names: Sequence[str]) -> Recipe:
    """The recipe of a graph.

    Args:
        key: of the graph.
        entry: the graph.
        names: for each tensor of its calls, what it is called.

    Raises:
        Unsuitable: its calls cannot be written down.
    """
    spec, tensors, *shared, values = key
    if any(one is not None for one in shared):
        raise Unsuitable("arguments share memory")
    row = entry.row()
    return Recipe(
        key=row.key[:1000],
        arguments=_written(spec, 0),
        tensors=[
            _tensor(tensor, is_inference, name)
            for tensor, is_inference, name in zip(
                tensors, entry.given_inference, names, strict=True
            )
        ],
        modes=modes_of([const.value for const in values]),
        replays=row.replays,
        bytes=row.private_bytes,
        launch_us=entry.counter.ns / max(1, entry.counter.timed) / 1000,
        report=[line[:1000] for line in row.report[:100]],
    )


def _tensor(found: Any, is_inference: bool, name: str) -> Tensor:
    shape, dtype, device, strides, behind, overlaps, requires_grad, conj, neg, cls, _ = found
    for wrong, what in (
        (cls is not torch.Tensor, f"is a {cls.__name__}"),
        (overlaps, "overlaps itself"),
        (conj or neg, "is a conjugate or negative view"),
        (behind, "is not aligned in memory"),
    ):
        if wrong:
            raise Unsuitable(f"the argument {name} {what}")
    marks = is_mask(name, torch.empty(0, dtype=dtype, device="meta"))
    return Tensor(
        [*map(int, shape)],
        str(dtype).removeprefix("torch."),
        str(device),
        None if strides is None else [*map(int, strides)],
        requires_grad,
        is_inference,
        marks,
    )


def _written(spec: Spec, depth: int) -> Any:
    kind, *more = spec
    if depth > _MAX_DEPTH:
        raise Unsuitable(f"arguments are nested in more than {_MAX_DEPTH} containers")
    if kind == "tensor":
        return ["tensor"]
    if kind == "const":
        return ["value", *_value(more[0])]
    if kind == "again":
        raise Unsuitable("an argument holds one container twice")
    cls, names, children = more[:3]
    items = [_written(child, depth + 1) for child in children]
    if kind == "namedtuple" and is_number(cls):
        return ["number"]
    if kind in ("sequence", "slice"):
        return [_SEQUENCES[cls], items]
    if kind == "dict":
        return [_DICTS[cls], [_key(name) for name in names], items]
    if kind == "read" and more[3][0] == "dict":
        return ["read", list(more[3][1]), list(names), items]
    raise Unsuitable(f"an argument is a {cls.__module__}.{cls.__qualname__}: no plain data")


def _key(name: Any) -> Any:
    if type(name) not in _KEYS:
        raise Unsuitable(f"an argument is a dict with a key that is a {type(name).__name__}")
    if (type(name) is str and len(name) > _MAX_VALUE) or (type(name) is int and abs(name) >> 63):
        raise Unsuitable("an argument is a dict with a key that is too long")
    return name


def _value(const: Const) -> list[str]:
    value = const.value
    cls = type(value)
    for name, (of, write, _) in _VALUES.items():
        if cls is of:
            text = write(value)
            if len(text) > _MAX_VALUE:
                raise Unsuitable(f"an argument is a {name} of more than {_MAX_VALUE} characters")
            return [name, text]
    raise Unsuitable(f"an argument is a {cls.__module__}.{cls.__qualname__}: no plain data")


def _complex(text: str) -> complex:
    real, imag = map(float.fromhex, text.split(" "))
    return complex(real, imag)


def _bool(text: str) -> bool:
    return {"True": True, "False": False}[text]


# By name: the class, how a value is written, how it is read. The text of a float is exact.
_VALUES: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "None": (type(None), str, {"None": None}.__getitem__),
    "bool": (bool, str, _bool),
    "int": (int, hex, lambda text: int(text, 16)),
    "float": (float, float.hex, float.fromhex),
    "complex": (complex, lambda c: f"{c.real.hex()} {c.imag.hex()}", _complex),
    "str": (str, str, str),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "...": (type(...), str, {"Ellipsis": ...}.__getitem__),
    "dtype": (torch.dtype, lambda d: str(d).removeprefix("torch."), _DTYPES.__getitem__),
    "device": (torch.device, str, torch.device),
    "layout": (torch.layout, str, _LAYOUTS.__getitem__),
    "memory_format": (torch.memory_format, str, _FORMATS.__getitem__),
}


# Modes.


def modes_of(values: Sequence[Any]) -> Modes:
    """The modes that the conditions of a call say, see :func:`~gfxgraph.call.key.conditions`."""
    grad, inference, autocast, *others = values
    dtype = None
    if autocast:
        # After the dtype of tensors, and the default devices where a mode asks for some.
        dtype = others.pop(7 if others[4] else 6)
    return Modes(
        bool(grad),
        bool(inference),
        None if dtype is None else str(dtype).removeprefix("torch."),
        [repr(value)[:200] for value in others],
    )


def modes_now(fn: Callable[..., Any]) -> Modes:
    """The modes in which ``fn`` would be called now."""
    return modes_of([value for *_, value in conditions(fn)])


def under(modes: Modes) -> AbstractContextManager[Any]:
    """Enters the modes that can be entered.

    Raises:
        Unsuitable: this torch does not know one.
    """
    kind = current_device().type
    turns = ExitStack()
    turns.enter_context(torch.inference_mode(modes.inference))
    turns.enter_context(torch.set_grad_enabled(modes.grad))
    dtype = None if modes.autocast is None else _known(_DTYPES, modes.autocast, "dtype")
    if torch.is_autocast_enabled(kind) or dtype is not None:
        turns.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
    return turns


# To arguments.


def bytes_needed(recipe: Recipe) -> dict[torch.device, int]:
    """Bytes that the tensors of a recipe take, by device.

    Raises:
        Unsuitable: one of them cannot be.
    """
    found: dict[torch.device, int] = {}
    for tensor in recipe.tensors:
        dtype = _known(_DTYPES, tensor.dtype, "dtype")
        shape, strides = tensor.shape, tensor.strides
        span = math.prod(shape)
        if strides is not None:
            if len(strides) != len(shape):
                raise Unsuitable("a tensor has not as many strides as dimensions")
            steps = zip(shape, strides, strict=True)
            span = 0 if 0 in shape else 1 + sum((n - 1) * step for n, step in steps)
        if len(shape) > 64:
            raise Unsuitable("a tensor has more than 64 dimensions")
        device = _device(tensor.device)
        size = max(span, math.prod(shape)) * dtype.itemsize
        found[device] = found.get(device, 0) + size
    return found


def made(recipe: Recipe) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of the kind of a recipe.

    Floats are 0.5 and integers 0, which lies within most tables, lengths and probabilities; masks
    let everything count.

    Raises:
        Unsuitable: there cannot be such arguments.
    """
    tensors = map(_tensor_like, recipe.tensors)
    try:
        args, kwargs = _made(recipe.arguments, tensors, 0)
        if type(args) is not tuple or type(kwargs) is not dict or not _are_names(kwargs):
            raise Unsuitable("its arguments are no tuple and dict")
    except Unsuitable:
        raise
    except StopIteration:
        raise Unsuitable("its arguments hold more tensors than it has") from None
    except (ArithmeticError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise Unsuitable(
            f"its arguments cannot be made: {type(error).__name__}: {error}"
        ) from error
    if next(tensors, None) is not None:
        raise Unsuitable("its arguments hold fewer tensors than it has")
    return args, kwargs


def _are_names(kwargs: dict[Any, Any]) -> bool:
    return all(type(name) is str for name in kwargs)


def free_bytes(device: torch.device) -> int:
    """Bytes that are free on a device, as far as anybody knows."""
    if device.type != "cpu":
        return current_device().facts(device.index or 0).memory_free
    try:  # what the system keeps of files counts as free; the count of free pages leaves it out
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if "MemAvailable" in line)
    except (OSError, StopIteration, ValueError):  # another system than Linux
        return 8 << 30


def _device(text: str) -> torch.device:
    kind = current_device().type
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise Unsuitable(f"a tensor is on {text[:40]!r}, which is no device") from error
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if device.type not in ("cpu", kind) or (device.type == kind and (device.index or 0) >= count):
        raise Unsuitable(f"a tensor is on {device}, which is not here")
    return device


def _tensor_like(tensor: Tensor) -> torch.Tensor:
    dtype, device = _known(_DTYPES, tensor.dtype, "dtype"), _device(tensor.device)
    with torch.inference_mode(tensor.is_inference), torch.no_grad():
        if tensor.strides is None:
            result = torch.empty(tensor.shape, dtype=dtype, device=device)
        else:
            result = torch.empty_strided(tensor.shape, tensor.strides, dtype=dtype, device=device)
        is_number = dtype.is_floating_point or dtype.is_complex
        result.fill_(1 if tensor.is_mask else 0.5 if is_number else 0)
    return result.requires_grad_(tensor.requires_grad)


def _made(tree: Any, tensors: Iterator[torch.Tensor], depth: int) -> Any:
    if type(tree) is not list or not tree or type(tree[0]) is not str or depth > _MAX_DEPTH:
        raise Unsuitable("its arguments are no tree of a recipe")
    kind, *more = tree
    if kind == "tensor" and not more:
        return next(tensors)
    if kind == "number" and not more:
        number = next(tensors)
        return 0.5 if number.is_floating_point() else 1
    if kind == "value" and len(more) == 2 and all(type(part) is str for part in more):
        if len(more[1]) > _MAX_VALUE:
            raise Unsuitable(f"an argument has more than {_MAX_VALUE} characters")
        return _known(_VALUES, more[0], "value")[2](more[1])
    for part in more:
        if type(part) is not list or len(part) > 100_000:
            raise Unsuitable("its arguments are no tree of a recipe")
    if kind in _SEQUENCES.values() and len(more) == 1:
        items = [_made(item, tensors, depth + 1) for item in more[0]]
        if kind in ("list", "tuple"):
            return items if kind == "list" else tuple(items)
        if len(items) == 3:
            return slice(*items) if kind == "slice" else range(*items)
    if kind in _DICTS.values() and len(more) == 2:
        return (dict if kind == "dict" else OrderedDict)(_pairs(more[0], more[1], tensors, depth))
    if kind == "read" and len(more) == 3:
        read = dict(_pairs(more[1], more[2], tensors, depth))
        _pairs_of(more[0], more[0])
        if not read.keys() <= set(more[0]):
            raise Unsuitable("its arguments read what is not there")
        return {name: read.get(name) for name in more[0]}
    raise Unsuitable(f"its arguments hold {kind[:40]!r}, which no recipe has")


def _pairs(
    keys: list[Any], items: list[Any], tensors: Iterator[torch.Tensor], depth: int
) -> list[tuple[Any, Any]]:
    return _pairs_of(keys, [_made(item, tensors, depth + 1) for item in items])


def _pairs_of(keys: list[Any], items: list[Any]) -> list[tuple[Any, Any]]:
    plain = all(type(key) in _KEYS for key in keys)
    if not plain or len(set(keys)) < len(keys) or len(keys) != len(items):
        raise Unsuitable("a dict among its arguments has wrong keys")
    return list(zip(keys, items, strict=True))


def _known(table: dict[str, Any], name: str, what: str) -> Any:
    if name not in table:
        raise Unsuitable(f"{name[:40]!r} is no {what} of torch {torch.__version__}")
    return table[name]
