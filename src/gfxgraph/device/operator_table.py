"""Which ATen operators stream capture takes, as measured on a GPU.

``operators.json`` beside this file lists the operators that do not simply capture: the outcome, and
the condition on the arguments. ``benchmarks/runs/operators.py`` makes it from a run on a GPU.
Copies between host and device are decided here, from the devices of the arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch._ops import OpOverload

__all__ = [
    "CONDITIONS",
    "Behaviour",
    "Call",
    "Refusal",
    "capture_behaviour",
    "copies_host_scalar",
    "may_refuse",
    "measured_on",
    "refusal",
]

Behaviour: TypeAlias = Literal[
    "captures", "needs warm-up", "reads the device", "copies from the host", "fails"
]
"""``"needs warm-up"``: captures once it has run eagerly in the process, as gfxgraph lets it."""

Refusal: TypeAlias = Literal["host-read", "data-dependent-shape", "hidden-sync", "forbidden-call"]
"""Why an operator cannot be captured: a rule of the catalogue."""


@dataclass(slots=True)
class Call:
    """A call of an operator, as it reaches a dispatch mode below autograd.

    Attributes:
        func: the operator.
        args: its arguments; fake and meta tensors do as well.
        kwargs: its keyword arguments.
        on_host: whether a tensor is in the memory of the host.
    """

    func: OpOverload
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    on_host: Callable[[torch.Tensor], bool] = lambda tensor: tensor.device.type == "cpu"

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, also in lists."""
        return list(_tensors((*self.args, *self.kwargs.values())))

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument that may be given by position or by name."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)


_DATA = Path(__file__).with_name("operators.json")

_TABLES = ("operators", "by rule", "captured", "variants", "others")

_CAPTURES: tuple[Behaviour, ...] = ("captures", "needs warm-up")

_READS = frozenset({"aten::_local_scalar_dense", "aten::allclose", "aten::equal"})

# Operators that copy from the device to the host or back, as their arguments say.
_COPIES = frozenset({"aten::_to_copy", "aten::copy_", "aten::copy", "aten::_copy_from"})

# A number in a tensor of the host is an operand by value everywhere but here.
_COPY_HOST_SCALARS = _COPIES | {"aten::where", "aten::index_put", "aten::index_put_"}


def capture_behaviour(call: Call) -> Behaviour:
    """The outcome of ``call`` in a stream capture, including copies between host and device."""
    if call.func._schema.name in _COPIES:
        return _copy_behaviour(call)
    tensors = call.tensors
    if tensors and all(map(call.on_host, tensors)) and not call.kwargs.get("device"):
        return "captures"  # the device has no part in it
    behaviour = _looked_up(call)
    if behaviour in _CAPTURES:
        by_value = not copies_host_scalar(call)
        if any(call.on_host(t) and (t.ndim or not by_value) for t in tensors):
            return "copies from the host"
    return behaviour


def refusal(call: Call) -> Refusal | None:
    """Why a stream capture refuses ``call`` on tensors of the device; ``None``: it does not."""
    behaviour = _looked_up(call)
    if behaviour in _CAPTURES:
        return None
    if call.func._schema.name in _READS:
        return "host-read"
    if torch.Tag.dynamic_output_shape in call.func.tags or _has_mask(call):
        return "data-dependent-shape"
    return "forbidden-call" if behaviour == "fails" else "hidden-sync"


def may_refuse(func: OpOverload) -> bool:
    """Whether there are arguments for which :func:`refusal` gives a reason."""
    return any(behaviour not in _CAPTURES for behaviour, _ in _entries().get(str(func), ()))


def copies_host_scalar(call: Call) -> bool:
    """Whether the call copies a 0-dim tensor of the host; all others take it by value."""
    # x[mask] = 1.0 fills through the mask then.
    return call.func._schema.name in _COPY_HOST_SCALARS and not _has_mask(call)


def measured_on() -> dict[str, Any]:
    """Device, versions, date and counts of the measurement behind the table."""
    return {key: value for key, value in _data().items() if key not in _TABLES}


def _looked_up(call: Call) -> Behaviour:
    for behaviour, condition in _entries().get(str(call.func), ()):
        if condition is None or condition(call):
            return behaviour
    return "captures"


def _copy_behaviour(call: Call) -> Behaviour:
    """Of a copy: ``_to_copy(source, device=...)`` or ``copy_(target, source)``."""
    tensors = list(_tensors(call.args))
    source = tensors[-1]
    device = call.kwargs.get("device")
    if len(tensors) > 1:
        to_host = call.on_host(tensors[0])
    else:
        to_host = torch.device(device).type == "cpu" if device else call.on_host(source)
    if call.on_host(source) == to_host:
        return "captures"
    non_blocking = call.argument(2, "non_blocking") is True
    if not to_host:
        return "captures" if non_blocking and source.is_pinned() else "copies from the host"
    # To the host without waiting: into pinned memory, which a graph can write.
    return "captures" if non_blocking else "reads the device"


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


# --- conditions: what makes one call of an operator fail and another not --------------------------


def _has_mask(call: Call) -> bool:
    indices = call.argument(1, "indices")
    return isinstance(indices, (list, tuple)) and any(
        isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices
    )


def _mask_index(call: Call) -> bool:
    """An index is a mask, which has to be counted; a number of the host needs no counting."""
    value = call.argument(2, "values")
    by_value = isinstance(value, torch.Tensor) and value.ndim == 0 and call.on_host(value)
    return _has_mask(call) and not by_value


def _no_output_size(call: Call) -> bool:
    """The size of the result is not given."""
    return call.kwargs.get("output_size") is None


def _no_limits(call: Call) -> bool:
    """The limits of a histogram are equal: it looks for them in the data."""
    return _not_empty(call) and bool(call.argument(2, "min", 0) == call.argument(3, "max", 0))


def _not_empty(call: Call) -> bool:
    """There is something to compute."""
    return call.tensors[0].numel() > 0


def _batch(call: Call) -> bool:
    """There is more than one matrix."""
    return _not_empty(call) and call.args[0].ndim > 2


def _not_square(call: Call) -> bool:
    """The matrices are not empty and not square."""
    shape = call.args[0].shape
    return _not_empty(call) and len(shape) > 1 and shape[-1] != shape[-2]


def _sorter(call: Call) -> bool:
    """The indices that sort are given, and checked."""
    return _not_empty(call) and call.kwargs.get("sorter") is not None


def _checked_lengths(call: Call) -> bool:
    """The lengths of the segments are given, and checked."""
    return call.kwargs.get("lengths") is not None and not call.kwargs.get("unsafe", False)


def _same_shapes(call: Call) -> bool:
    """The shapes do not tell already that two tensors differ."""
    return bool(call.args[0].shape == call.args[1].shape)


def _value_on_the_device(call: Call) -> bool:
    """The value to fill with is on the device."""
    value = call.args[-1]
    return isinstance(value, torch.Tensor) and value.ndim == 0 and not call.on_host(value)


def _many_test_elements(call: Call) -> bool:
    """So many that ``isin`` sorts, by its own formula."""
    elements, tests = call.args[0].numel(), call.args[1].numel()
    return bool(tests >= 10.0 * elements**0.145)


def _long_slices(call: Call) -> bool:
    """Slices of more elements than ``mode`` sorts in one block: 2048."""
    x = call.args[0]
    return bool(x.ndim) and int(x.shape[call.argument(1, "dim", -1)]) > 2048


CONDITIONS: dict[str, Callable[[Call], bool]] = {
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
        _long_slices,
    )
}
"""The conditions, by their names in the data."""


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_DATA.read_text(encoding="utf-8"))
    return data


@cache
def _entries() -> dict[str, tuple[tuple[Behaviour, Callable[[Call], bool] | None], ...]]:
    return {
        name: tuple((behaviour, CONDITIONS[when] if when else None) for behaviour, when in entries)
        for name, entries in _data()["operators"].items()
    }
