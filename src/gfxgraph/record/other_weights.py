"""Runs with other values for weights that are all the same, behind which a difference may hide."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._ops import OpOverload

from ..device.operators import (
    is_composite,
    may_write,
    outside_of_modes,
    run_composite,
    written_tensors,
)
from ..device.overrides import UnwrappedDispatchMode
from .effects import replaced_tensors, storage_key, tensors_in

__all__ = ["OtherWeights"]

_TENSORS = (torch.Tensor, torch.nn.Parameter)


class OtherWeights(UnwrappedDispatchMode):
    """Gives operators other values for floats from outside that are all zero, or all the same.

    What is multiplied by zeros shows in no result, and nor does which row of equal ones is taken.
    Once such a weight is loaded or trained, it does. What the run writes to is left as it is.

    Args:
        made: tensors that are no weights: arguments with values of their own.
        known: by id: a tensor from outside, and whether it is of one number. Runs between which
            nobody writes to weights share it.

    Attributes:
        any: whether there was such a weight.
    """

    supports_higher_order_operators = True

    def __init__(
        self, made: Iterable[torch.Tensor], known: dict[int, tuple[torch.Tensor, bool]]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Not where the run begins: a recording takes that for the function's own question.
        self._made = frozenset(map(storage_key, made))
        self._known = known
        self.any = False

    def __enter__(self) -> OtherWeights:
        self._inside = set(self._made)
        #: By id, kept so that the id stays its own: what stands for a tensor from outside.
        self._stands_for: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._stands_for.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        if is_composite(func):
            return run_composite(func, args, kwargs, self)
        if func is torch.ops.aten.lift_fresh.default:  # torch.tensor(2.0): made in this run
            self._inside.add(storage_key(args[0]))
        if may_write(func):
            self._inside.update(map(storage_key, written_tensors(func, args, kwargs)))
        outside = [t for t in tensors_in(args, kwargs) if storage_key(t) not in self._inside]
        others = {id(t): other for t in outside if (other := self._other(t)) is not None}
        if others:
            args, kwargs = replaced_tensors(args, others), replaced_tensors(kwargs, others)
        result = func(*args, **kwargs)
        keys = set(map(storage_key, outside))
        for made in tensors_in(result):
            if storage_key(made) not in keys:
                self._inside.add(storage_key(made))
            else:  # its values are those of a size where it is a view of some rows
                self._stands_for.setdefault(id(made), (made, None))
        return result

    def _other(self, tensor: torch.Tensor) -> torch.Tensor | None:
        found = self._stands_for.get(id(tensor))
        if found is None:
            known = self._known.get(id(tensor))
            if known is None:
                with outside_of_modes():
                    known = self._known[id(tensor)] = tensor, _is_one_number(tensor)
            other = torch.empty_like(tensor) if known[1] else None  # outer modes see it made
            if other is not None:
                with outside_of_modes():
                    other.copy_(tensor + _pattern(tensor))
                self.any = True
            found = self._stands_for[id(tensor)] = (tensor, other)
        return found[1]


def _is_one_number(tensor: torch.Tensor) -> bool:
    """Whether a weight has one value in all places."""
    if type(tensor) not in _TENSORS or tensor.layout is not torch.strided or not tensor.numel():
        return False
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False  # it may be an index
    first = tensor[(0,) * tensor.dim()]
    return bool((tensor == first).all())


def _pattern(tensor: torch.Tensor) -> torch.Tensor:
    """From 0.25 to 0.75, no two neighbours alike."""
    places = torch.arange(tensor.numel(), device=tensor.device, dtype=torch.float32)
    return (0.25 + places.mul_(0.618).remainder_(1) / 2).view(tensor.shape).to(tensor.dtype)
