"""What stream capture does with an ATen operator, as measured on a GPU.

``operators.json`` beside this file holds, for each operator that does not simply capture, what
happens and under which condition on its arguments; ``benchmarks/operators.py`` makes it from a run
on a GPU. Copies between host and device are decided here, from the devices of the arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch._ops import OpOverload

__all__ = ["CONDITIONS", "Behaviour", "capture_behaviour", "measured_on"]

Behaviour: TypeAlias = Literal[
    "captures", "needs warm-up", "reads the device", "copies from the host", "fails"
]
"""``"needs warm-up"``: captures once it has run eagerly in the process, as gfxgraph lets it."""

Condition: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], bool]

_DATA = Path(__file__).with_name("operators.json")

_TABLES = ("operators", "by rule", "captured", "variants", "others")

# Operators that copy from the device to the host or back, as their arguments say.
_COPIES = frozenset({"aten::_to_copy", "aten::copy_", "aten::copy", "aten::_copy_from"})

# A number in a tensor of the host is an operand by value everywhere but here.
_COPY_HOST_SCALARS = frozenset({"aten::where", "aten::index_put", "aten::index_put_"})


def capture_behaviour(
    func: OpOverload, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Behaviour:
    """What a stream capture does with this call of ``func``.

    Args:
        func: the operator, as it reaches a dispatch mode below autograd.
        args: its arguments. A tensor is on the device if its ``device.type`` is not ``"cpu"``;
            one that only says so is as good as a real one, no data is looked at.
        kwargs: its keyword arguments.
    """
    kwargs = kwargs or {}
    name = func._schema.name
    if name in _COPIES:
        return _copy_behaviour(args, kwargs)
    tensors = list(_tensors((*args, *kwargs.values())))
    if tensors and all(t.device.type == "cpu" for t in tensors) and not _device(kwargs):
        return "captures"  # the device has no part in it
    for behaviour, condition in _entries().get(str(func), ()):
        if condition is None or condition(args, kwargs):
            return behaviour
    if any(t.device.type == "cpu" and (t.ndim or name in _COPY_HOST_SCALARS) for t in tensors):
        return "copies from the host"
    return "captures"


def measured_on() -> dict[str, Any]:
    """Device, versions, date and counts of the measurement behind the table."""
    return {key: value for key, value in _data().items() if key not in _TABLES}


def _copy_behaviour(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Behaviour:
    """Of a copy: ``_to_copy(source, device=...)`` or ``copy_(target, source)``."""
    tensors = list(_tensors(args))
    source = tensors[-1]
    target = tensors[0].device if len(tensors) > 1 else _device(kwargs) or source.device
    if (source.device.type == "cpu") == (target.type == "cpu"):
        return "captures"
    if source.device.type == "cpu":
        pinned = _non_blocking(args, kwargs) and source.is_pinned()
        return "captures" if pinned else "copies from the host"
    # To the host without waiting: into pinned memory, which a graph can write.
    return "captures" if _non_blocking(args, kwargs) else "reads the device"


def _non_blocking(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True))


def _device(kwargs: dict[str, Any]) -> torch.device | None:
    device = kwargs.get("device")
    return torch.device(device) if device is not None else None


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


# --- conditions: what makes one call of an operator fail and another not --------------------------


def _mask_index(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """An index is a mask, which has to be counted."""
    indices = args[1] if len(args) > 1 else kwargs["indices"]
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)


def _no_output_size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The size of the result is not given."""
    return kwargs.get("output_size") is None


def _no_limits(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The limits of a histogram are equal: it looks for them in the data."""
    low = args[2] if len(args) > 2 else kwargs.get("min", 0)
    high = args[3] if len(args) > 3 else kwargs.get("max", 0)
    return bool(low == high)


def _not_empty(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """There is something to compute."""
    return next(_tensors((*args, *kwargs.values()))).numel() > 0


def _batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """There is more than one matrix."""
    return _not_empty(args, kwargs) and args[0].ndim > 2


def _not_square(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The matrices are not empty and not square."""
    shape = args[0].shape
    return _not_empty(args, kwargs) and len(shape) > 1 and shape[-1] != shape[-2]


def _sorter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The indices that sort are given, and checked."""
    return _not_empty(args, kwargs) and kwargs.get("sorter") is not None


def _checked_lengths(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The lengths of the segments are given, and checked."""
    return kwargs.get("lengths") is not None and not kwargs.get("unsafe", False)


def _same_shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The shapes do not tell already that two tensors differ."""
    return bool(args[0].shape == args[1].shape)


def _value_on_the_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """The value to fill with is on the device."""
    value = args[-1]
    return isinstance(value, torch.Tensor) and value.ndim == 0 and value.device.type != "cpu"


def _many_test_elements(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """So many that ``isin`` sorts; its own formula."""
    elements, tests = args[0].numel(), args[1].numel()
    return bool(tests >= 10.0 * elements**0.145)


CONDITIONS: dict[str, Condition] = {
    condition.__name__[1:].replace("_", " "): condition
    for condition in (
        _not_empty,
        _mask_index,
        _no_output_size,
        _no_limits,
        _batch,
        _not_square,
        _sorter,
        _checked_lengths,
        _same_shapes,
        _value_on_the_device,
        _many_test_elements,
    )
}
"""By the name that the data gives them."""


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_DATA.read_text(encoding="utf-8"))
    return data


@cache
def _entries() -> dict[str, tuple[tuple[Behaviour, Condition | None], ...]]:
    return {
        name: tuple((behaviour, CONDITIONS[when] if when else None) for behaviour, when in entries)
        for name, entries in _data()["operators"].items()
    }
