"""Notes the plain numbers that a run computes with, since they may follow an argument's size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeAlias

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
from ..interpose.source import Source, users_line
from .effects import storage_key, tensors_in

__all__ = ["Numbers", "makes"]

# Their numbers set the length of the result alone; each element depends on its position.
_LENGTHS = frozenset({"aten::arange"})
# A host constant with more elements is a table, which a size may well cut.
_MAX_CONSTANT = 16
_NUMBERS = frozenset((bool, int, float, complex))


# What they give is no question of the values that they are given.
_MAKE = frozenset(
    f"aten::{name}"
    for name in (
        *("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"),
        "lift_fresh",
    )
)
# A larger constant is not compared: the small sizes that are judged show what it does.
_MAX_MADE = 1 << 16


_Kept: TypeAlias = list[torch.Tensor | None]


class Numbers(UnwrappedDispatchMode):
    """Notes the numbers that operators are given, but for sizes, dimensions and indices.

    A number may come in a tensor as well: ``ones(n).sum()``, ``arange(n)[-1]``. So the values of
    a tensor that the run has computed, but not from its data, count as numbers where an operator
    takes it, unless all that the operator takes was made from nothing.

    Args:
        data: the arguments that carry a size.

    Attributes:
        found: for each operator that ran: the operator, its numbers, these tensors (``None``: one
            that is not compared), and the user's line if there are any.
    """

    supports_higher_order_operators = True

    def __init__(self, data: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[Any, tuple[Any, ...], _Kept, Source | None]] = []
        # Not where the run begins: a recording takes that for the function's own question.
        self._given = frozenset(map(storage_key, data))

    def __enter__(self) -> Numbers:
        self.found = []
        self._data, self._made, self._of_nothing = set(self._given), set[int](), set[int]()
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_op = isinstance(func, OpOverload)
        if is_op and is_composite(func):
            return run_composite(func, args, kwargs, self)
        given = tensors_in(args, kwargs)
        keys = list(map(storage_key, given))
        made = [t for t, key in zip(given, keys, strict=True) if key in self._made]
        kept: _Kept = []
        is_of_nothing = self._of_nothing.issuperset(keys)
        if made and not is_of_nothing:
            with outside_of_modes():
                kept = [t.detach().clone() if _is_compared(t) else None for t in made]
        numbers = tuple(_numbers(func, args, kwargs))
        self.found.append((func, numbers, kept, users_line() if numbers or kept else None))
        result = func(*args, **kwargs)
        changed = list(written_tensors(func, args, kwargs)) if is_op and may_write(func) else []
        is_data = not is_op or not (makes(func) or self._data.isdisjoint(keys))
        for tensor in (*tensors_in(result), *changed):
            key = storage_key(tensor)
            if is_data:
                self._data.add(key)
                self._made.discard(key)
                self._of_nothing.discard(key)
            elif not is_op or key in keys:  # of memory that was there
                if _fills(func) and _is_whole(tensor):
                    self._made.add(key)
                    self._data.discard(key)
                if not is_of_nothing:
                    self._of_nothing.discard(key)
            else:
                self._data.discard(key)  # memory that is used again
                is_open = _is_left_open(func)
                (self._made.discard if is_open else self._made.add)(key)
                of_nothing = not is_open and (is_of_nothing or makes(func))
                (self._of_nothing.add if of_nothing else self._of_nothing.discard)(key)
        return result

    def difference(self, other: Numbers) -> str | None:
        """Where another run of the same operators was given other numbers.

        ``None``: nowhere, or it ran other operators, which no comparison of numbers can judge.
        """
        if [func for func, *_ in self.found] != [func for func, *_ in other.found]:
            return None
        for (func, ours, made, here), (_, theirs, others, there) in zip(
            self.found, other.found, strict=True
        ):
            is_same = ours == theirs and len(made) == len(others)
            if not (is_same and all(map(_begin_alike, made, others))):
                return f"{func} at {here or there}"
        return None


@cache
def makes(op: OpOverload) -> bool:
    """Whether the values of the result depend on no tensor that is given."""
    return op._schema.name in _MAKE or _fills(op)


@cache
def _fills(op: OpOverload) -> bool:
    return op._schema.name in ("aten::fill_", "aten::zero_")


@cache
def _is_left_open(op: OpOverload) -> bool:
    """Whether nothing says which values the result has."""
    return torch.Tag.nondeterministic_seeded in op.tags or "empty" in op._schema.name


def _is_compared(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.numel() <= _MAX_MADE


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor takes up all of its memory."""
    return tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes()


def _begin_alike(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether two tensors of different sizes hold the same where both have elements."""
    if one is None or other is None:
        return True
    if one.dim() != other.dim() or one.dtype != other.dtype:
        return False
    if one.numel() == other.numel() and one.shape != other.shape and not one.is_complex():
        return _are_same(one.reshape(-1).sort()[0], other.reshape(-1).sort()[0])  # laid out anew
    differing = [
        d for d, sizes in enumerate(zip(one.shape, other.shape, strict=True)) if len({*sizes}) > 1
    ]
    corner = tuple(slice(0, min(sizes)) for sizes in zip(one.shape, other.shape, strict=True))
    if _are_same(one[corner], other[corner]):
        return True
    # Rows of several parts may lie in one dimension: [part 0 of all, part 1 of all, ...].
    return len(differing) == 1 and any(
        _begin_alike(*(t.unflatten(differing[0], (parts, -1)) for t in (one, other)))
        for parts in _divisors(one.shape[differing[0]], other.shape[differing[0]])
    )


def _divisors(one: int, other: int) -> list[int]:
    both = math.gcd(one, other)
    return [n for n in range(2, both + 1) if both % n == 0]


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = (one == other) | ((one != one) & (other != other))
    if one.is_floating_point() and one.numel():  # two sizes may be computed by two kernels
        size = torch.nan_to_num(one.double().abs(), posinf=0.0).amax()
        same |= (one.double() - other.double()).abs() <= 16 * torch.finfo(one.dtype).eps * size
    return bool(same.all())


def _numbers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    if func is torch.ops.aten.lift_fresh.default and args[0].numel() <= _MAX_CONSTANT:
        yield tuple(args[0].shape), repr(args[0].tolist())
        return
    for position, name in _places_of(func) if isinstance(func, OpOverload) else ():
        value = args[position] if position < len(args) else kwargs.get(name)
        if type(value) in _NUMBERS:
            yield name, repr(value)


@cache
def _places_of(op: OpOverload) -> tuple[tuple[int, str], ...]:
    """The position and the name of each argument that may be a number to compute with."""
    if op._schema.name in _LENGTHS:
        return ()
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(op._schema.arguments)
        if "int" not in str(argument.type).lower()
    )
