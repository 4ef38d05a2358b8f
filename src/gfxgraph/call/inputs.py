"""Calls whose numbers are inputs of the graph: ``graphed(fn, inputs=["scale"])``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree

from ..device import current_device
from ..errors import ArgumentError
from .dispatch import Dispatcher
from .replay import FastPath
from .with_numbers import WithNumbers

__all__ = ["WithInputs", "check_names"]

_DTYPES: dict[type, torch.dtype] = {float: torch.float64, int: torch.int64}


class WithInputs(Dispatcher):
    """A dispatcher that puts numbers on the device before it looks for a graph.

    Args:
        names: the parameters that are inputs where they are numbers.
        args, kwargs: see :class:`~gfxgraph.call.dispatch.Dispatcher`.
    """

    def __init__(self, names: Iterable[str], *args: Any, **kwargs: Any) -> None:
        self._names = frozenset(names)
        self._positions: list[int] | None = None
        super().__init__(*args, **kwargs)

    @property
    def fast_path(self) -> FastPath:
        """The fast path, for numbers as for tensors."""
        return self._try

    @fast_path.setter
    def fast_path(self, value: FastPath) -> None:
        self._first = value

    def _try(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._first(*self._on_device(fn, args, kwargs))

    def __call__(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See :meth:`Dispatcher.__call__`."""
        return super().__call__(*self._on_device(fn, args, kwargs))

    def static_inputs(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """See :meth:`Graphed.static_inputs`."""
        return super().static_inputs(*self._on_device(fn, args, kwargs))

    def _on_device(
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        if isinstance(fn, WithNumbers):  # it was done before
            return fn, args, kwargs
        if self._positions is None:
            parameters = enumerate(_signature(fn).parameters.items())
            self._positions = [n for n, (k, p) in parameters if k in self._names and _by_place(p)]
        given, named = list(args), dict(kwargs)
        numbers: dict[int | str, Any] = {}
        device: torch.device | None = None
        places: list[tuple[Any, int | str]] = [(given, n) for n in self._positions if n < len(args)]
        places += [(named, name) for name in self._names if name in kwargs]
        for holder, key in places:
            number = holder[key]
            dtype = _DTYPES.get(type(number))
            if dtype is None or (dtype is torch.int64 and not -_END <= number < _END):
                continue
            device = device or _device_of(args, kwargs)
            holder[key] = torch.full((), number, dtype=dtype, device=device)
            numbers[key] = number
        tensors = [holder[key] for holder, key in places if key in numbers]
        return WithNumbers(fn, numbers, tensors), tuple(given), named


_END = 1 << 63


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Where the tensors among the arguments are."""
    kind = current_device().type
    for values in ((*args, *kwargs.values()), _pytree.tree_leaves((args, kwargs))):
        for value in values:
            if isinstance(value, torch.Tensor) and value.device.type == kind:
                return value.device
    return torch.device(kind)


def _by_place(parameter: inspect.Parameter) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return parameter.kind in kinds


def _signature(fn: Any) -> inspect.Signature:
    return inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)


def check_names(fn: Callable[..., Any], names: Iterable[str]) -> None:
    """Raise if ``fn`` has no parameters of these names.

    Raises:
        ArgumentError: it has not.
    """
    try:
        parameters = _signature(fn).parameters
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"graphed(inputs={sorted(names)}): the parameters of {fn!r} are not known. Wrap it in "
            "a function that names them."
        ) from error
    fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = [name for name, p in parameters.items() if p.kind not in fixed]
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    missing = [name for name in names if name not in known]
    if missing and not takes_any:
        raise ArgumentError(
            f"graphed(inputs={list(names)}): no parameter is called {missing[0]!r}. There are: "
            f"{', '.join(known)}."
        )
