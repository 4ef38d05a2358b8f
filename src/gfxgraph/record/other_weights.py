"""Runs with other values for weights that are all the same, behind which a difference may hide."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

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

__all__ = ["KnownWeight", "OtherWeights"]

_TENSORS = (torch.Tensor, torch.nn.Parameter)


class KnownWeight(NamedTuple):
    """A tensor from outside.

    Attributes:
        tensor: the tensor.
        gets_others: whether it gets other values: it is all the same, or may be anything.
        number: which other values: for each tensor others, in all runs the same.
    """

    tensor: torch.Tensor
    gets_others: bool
    number: int


class OtherWeights(UnwrappedDispatchMode):
    """Gives operators other values for tensors from outside that are all zero, or all the same.

    A result does not show what was multiplied by zeros, or which of several equal rows was taken.
    It does once such a weight is loaded or trained. Tensors that the run writes to keep their
    values.

    Whole numbers and ``bool`` may be indices, so they get other values only where an operator
    that works element by element makes floats of them.

    Args:
        made: tensors that are no weights: arguments with values of their own.
        known: what is known of tensors from outside, by id. Runs between which nobody writes to
            them share it.
        floats_only: leave whole numbers and ``bool`` as they are.

    Attributes:
        any: whether there was such a weight.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        made: Iterable[torch.Tensor],
        known: dict[int, KnownWeight],
        floats_only: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Not where the run begins: a recording takes that for the function's own question.
        self._made = frozenset(map(storage_key, made))
        self._known, self._floats_only = known, floats_only
        self.any = False

    def __enter__(self) -> OtherWeights:
        self._inside = set(self._made)
        #: By id: a tensor of floats from outside, and what stands for it.
        self._others: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        #: By id: a tensor of whole numbers, and what it would be if weights were others.
        self._shadows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        #: Views that this run made of tensors from outside, kept for their ids.
        self._views: dict[int, torch.Tensor] = {}
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for kept in (self._others, self._shadows, self._views):
            kept.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        if is_composite(func):
            return run_composite(func, args, kwargs, self)
        if func is torch.ops.aten.lift_fresh.default:  # torch.tensor(2.0): made in this run
            self._inside.add(storage_key(args[0]))
        written = list(written_tensors(func, args, kwargs)) if may_write(func) else []
        for tensor in written:
            self._inside.add(storage_key(tensor))
            self._shadows.pop(id(tensor), None)
        outside: set[int] = set()
        floats: dict[int, torch.Tensor] = {}
        wholes: dict[int, torch.Tensor] = {}
        takes_wholes = not self._floats_only and _takes_no_index(func)
        for tensor in tensors_in(args, kwargs):
            key = storage_key(tensor)
            is_outside = key not in self._inside
            if is_outside:
                outside.add(key)
            if id(tensor) in self._shadows:  # it is, or depends on, a weight of whole numbers
                if takes_wholes:
                    wholes[id(tensor)] = self._shadows[id(tensor)][1]
            elif is_outside and self._is_one(tensor):
                if _is_float(tensor):
                    floats[id(tensor)] = self._made_for(tensor, self._others)
                elif takes_wholes:
                    wholes[id(tensor)] = self._made_for(tensor, self._shadows)
        if floats:
            args, kwargs = replaced_tensors(args, floats), replaced_tensors(kwargs, floats)
        if not wholes:
            return self._seen(func(*args, **kwargs), outside)
        others = replaced_tensors(args, wholes), replaced_tensors(kwargs, wholes)
        if any(map(_is_float, written)):
            return func(*others[0], **others[1])
        result = func(*args, **kwargs)
        if not written:
            shadow = func(*others[0], **others[1])
            results = tensors_in(result)
            if any(map(_is_float, results)):
                return self._seen(shadow, outside)
            pairs = zip(results, tensors_in(shadow), strict=True)
            self._shadows.update((id(made), (made, other)) for made, other in pairs)
        return self._seen(result, outside)

    def _seen(self, result: Any, outside: set[int]) -> Any:
        """Remember what an operator gives that was given memory from ``outside``."""
        for made in (result,) if isinstance(result, torch.Tensor) else tensors_in(result):
            key = storage_key(made)
            if key in outside:  # of some rows, perhaps, which are those of a size
                self._views[id(made)] = made
            else:
                self._inside.add(key)
        return result

    def _made_for(
        self, tensor: torch.Tensor, known: dict[int, tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        found = known.get(id(tensor))
        if found is None:
            self.any = True
            other = torch.empty_like(tensor)  # outer modes see it made
            with outside_of_modes():
                other.copy_(_other_values(tensor, self._known[id(tensor)].number))
            found = known[id(tensor)] = tensor, other
        return found[1]

    def _is_one(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor from outside is a weight of one number."""
        if id(tensor) in self._views:
            return False
        known = self._known.get(id(tensor))
        if known is None:
            with outside_of_modes():
                known = KnownWeight(tensor, _is_one_number(tensor), len(self._known))
            self._known[id(tensor)] = known
        return known.gets_others


# Others than those that work element by element.
_OF_WHOLES = (
    "_to_copy clone sum any all amax amin cumsum cat stack expand unsqueeze squeeze view "
    "_unsafe_view reshape permute transpose t slice select detach alias"
)
_TAKE_NO_INDEX = frozenset(f"aten::{name}" for name in _OF_WHOLES.split())


@cache
def _takes_no_index(op: OpOverload) -> bool:
    """Whether whole numbers that it is given are no places in memory."""
    return torch.Tag.pointwise in op.tags or op._schema.name in _TAKE_NO_INDEX


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _is_one_number(tensor: torch.Tensor) -> bool:
    """Whether a weight has one value in all places."""
    if type(tensor) not in _TENSORS or tensor.layout is not torch.strided or not tensor.numel():
        return False
    first = tensor[(0,) * tensor.dim()]
    return bool((tensor == first).all())


def _other_values(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """Larger ones, no two neighbours alike; of ``bool`` every third is the other one."""
    places = torch.arange(tensor.numel(), device=tensor.device, dtype=torch.float32)
    if tensor.dtype is torch.bool:
        others = places % 3 == min(2, tensor.numel() - 1)
        return tensor ^ others.view(tensor.shape)
    more = 0.25 + places.mul_(0.618).add_(0.37 * number).remainder_(1) / 2
    if not _is_float(tensor):
        more = 1 + (4 * more).floor_()
    return tensor + more.view(tensor.shape).to(tensor.dtype)
