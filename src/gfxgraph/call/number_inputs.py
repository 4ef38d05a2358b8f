"""Numbers that are inputs of a graph: they change in each call, and only scale device work.

A Python number is part of the key of a call, so each value would have a graph of its own. One that
is an input lies in a tensor without dimensions on the device. While a graph is made the function
gets a :class:`~gfxgraph.call.device_number.DeviceNumber` in its place.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ..device import current_device
from ..errors import ArgumentError, CaptureError
from ..graph.locks import is_inside_gfxgraph
from ..interpose.signatures import signature_of
from ..interpose.source import name_of, users_line_of
from .device_number import LARGEST, DeviceNumber, on_device, taken_by_constructors
from .dispatch import Dispatcher
from .entry import Entry, Refusal

__all__ = ["NumberDispatcher", "check_inputs", "is_number"]


def check_inputs(fn: Callable[..., Any], names: Sequence[str]) -> None:
    """Raise unless each name is that of a parameter.

    Raises:
        ArgumentError: one is not.
    """
    signature = signature_of(fn)
    parameters = {} if signature is None else signature.parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in names:
        if name not in parameters or parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            raise ArgumentError(
                f"graphed(inputs=...) names the argument {name!r}, which {name_of(fn)} does not "
                f"have: expected {', '.join(map(repr, parameters)) or 'none'}."
            )


# torch.roll(x, n) takes it for a number, and then asserts that it is a list. x.expand(n, -1) counts
# its arguments.
_REFUSING = re.compile(
    rf"{DeviceNumber.__name__}|python_arg_parser|^\w+\(\) takes \d+ positional arguments? but"
)


class _Given(NamedTuple):
    """A number among the arguments of a call, on the device."""

    value: torch.Tensor


class _WithNumbers:
    """One call of a function, with numbers on the device among its arguments.

    Args:
        fn: the function.

    Attributes:
        known: the value of each such number of the caller's.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.__wrapped__ = fn
        self.known: dict[int, tuple[_Given, float]] = {}

    @property
    def __self__(self) -> Any:
        """The module that it belongs to, if it does."""
        return getattr(self.__wrapped__, "__self__", self.__wrapped__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function: for its caller with numbers, for a graph with those on the device."""
        given = [self._number(value) for value in args]
        named = {name: self._number(value) for name, value in kwargs.items()}
        on_device = any(type(value) is DeviceNumber for value in (*given, *named.values()))
        if not on_device:
            return self.__wrapped__(*given, **named)
        with taken_by_constructors():
            try:
                return self.__wrapped__(*given, **named)
            except (TypeError, RuntimeError) as error:
                if _REFUSING.search(str(error)):
                    raise _not_taken(error) from error
                raise

    def _number(self, value: Any) -> Any:
        if type(value) is not _Given:
            return value
        known = self.known.get(id(value))
        return DeviceNumber(value.value) if known is None else known[1]


def _not_taken(error: TypeError | RuntimeError) -> CaptureError:
    called = re.match(r"[\w.]+\(\)", str(error))
    return CaptureError(
        f"{users_line_of(error)}: {called[0] if called else 'a function'} of torch "
        f"{torch.__version__} takes plain numbers alone, and a number that is an input is none: "
        "leave it out of inputs=[...]"
    )


class NumberDispatcher(Dispatcher):
    """A dispatcher that hands some numbers among the arguments on as tensors.

    Args:
        numbers: the names of their parameters.
        args, kwargs: as for :class:`Dispatcher`.
    """

    def __init__(self, numbers: Sequence[str], *args: Any, **kwargs: Any) -> None:
        self._numbers = frozenset(numbers)
        self._positions: list[int] | None = None
        super().__init__(*args, **kwargs)

    def __call__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """See :meth:`Dispatcher.__call__`."""
        return super().__call__(*self._with_tensors(fn, args, kwargs))

    def static_inputs(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """See :meth:`Dispatcher.static_inputs`."""
        return super().static_inputs(*self._with_tensors(fn, args, kwargs))

    def kept_for(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Entry | Refusal | str:
        """See :meth:`Dispatcher.kept_for`."""
        return super().kept_for(*self._with_tensors(fn, args, kwargs))

    def prepare(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        unproven: bool = False,
    ) -> Exception | None:
        """See :meth:`Dispatcher.prepare`."""
        return super().prepare(*self._with_tensors(fn, args, kwargs), unproven)

    def _order_changed(self) -> None:
        super()._order_changed()
        inner, with_tensors = self.fast_path, self._with_tensors

        def fast_path(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return inner(*with_tensors(fn, args, kwargs))

        self.fast_path = fast_path

    def _with_tensors(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The call with numbers on the device."""
        if type(fn) is _WithNumbers or is_inside_gfxgraph():
            return fn, args, kwargs
        if self._positions is None:
            self._positions = [n for n, name in enumerate(_positional(fn)) if name in self._numbers]
        given, named, made = list(args), dict(kwargs), _WithNumbers(fn)
        device = _device_of((*args, *kwargs.values()))
        places: list[tuple[Any, Any]] = [(given, n) for n in self._positions if n < len(given)]
        places += [(named, name) for name in named.keys() & self._numbers]
        for holder, place in places:
            value = holder[place]
            if type(value) in LARGEST and abs(value) <= LARGEST[type(value)]:
                number = holder[place] = _Given(on_device(value, device))
                made.known[id(number)] = number, value
        return made, tuple(given), named


def _positional(fn: Callable[..., Any]) -> Iterable[str]:
    signature = signature_of(fn)
    for name, parameter in () if signature is None else signature.parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            break
        yield name


def _device_of(values: Iterable[Any]) -> torch.device:
    """The device of the first tensor that is where graphs run."""
    kind = current_device().type
    for value in values:
        if isinstance(value, torch.Tensor) and value.device.type == kind:
            return value.device
    return torch.device(kind)


def is_number(cls: type) -> bool:
    """Whether it is the class of the numbers on the device among the arguments of calls."""
    return cls is _Given
