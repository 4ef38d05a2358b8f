"""Notes the plain numbers that a run computes with, since they may follow an argument's size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

from ..device.operators import is_composite, run_composite
from ..device.overrides import UnwrappedDispatchMode
from ..interpose.source import Source, users_line

__all__ = ["Numbers"]

# Their numbers set the length of the result alone; each element depends on its position.
_LENGTHS = frozenset({"aten::arange"})
# A host constant with more elements is a table, which a size may well cut.
_MAX_CONSTANT = 16
_NUMBERS = frozenset((bool, int, float, complex))


class Numbers(UnwrappedDispatchMode):
    """Notes the numbers that operators are given, but for sizes, dimensions and indices.

    Attributes:
        found: for each operator that ran: the operator, its numbers, and the user's line.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[Any, tuple[Any, ...], Source]] = []

    def __enter__(self) -> Numbers:
        self.found = []
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, OpOverload) and is_composite(func):
            return run_composite(func, args, kwargs, self)
        self.found.append((func, tuple(_numbers(func, args, kwargs)), users_line()))
        return func(*args, **kwargs)

    def difference(self, other: Numbers) -> str | None:
        """Where another run of the same operators was given other numbers.

        ``None``: nowhere, or it ran other operators, which no comparison of numbers can judge.
        """
        if [func for func, *_ in self.found] != [func for func, *_ in other.found]:
            return None
        for (func, ours, where), (_, theirs, _) in zip(self.found, other.found, strict=True):
            if ours != theirs:
                return f"{func} at {where}"
        return None


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
