"""The functions and arguments that command lines name."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import torch

from ..errors import ArgumentError, one_line
from ..interpose.signatures import require_fit
from ..interpose.source import is_raised_by_code, users_line_of
from .report import within

__all__ = ["arguments", "fit", "load", "made"]

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

_WORDS = {"true": True, "false": False, "none": None}
_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<shape>|\d+(,\d+)*)\](:(?P<how>meta|\d+))?")


def load(target: str) -> Any:
    """The callable that ``module:callable`` names, also from the current directory.

    With ``()`` at its end, the result of calling it.

    Raises:
        ArgumentError: there is no such thing, it is not callable, it is a class, or it fails.
    """
    module, colon, path = target.partition(":")
    if not module or not colon or not path:
        raise ArgumentError(f"{target!r}: expected module:callable, such as my_policy:model.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with _explaining(f"{target!r} cannot be loaded"):
        found: Any = importlib.import_module(module)
        for name in path.removesuffix("()").split("."):
            found = getattr(found, name)
    if path.endswith("()"):
        with _explaining(f"{target!r} failed"):
            found = found()
    elif inspect.isclass(found):
        raise ArgumentError(
            f"{target!r} is a class: name an object of it, a function, or '{target}()' to make one."
        )
    if not callable(found):
        raise ArgumentError(f"{target!r} is not callable: its type is {type(found).__name__}.")
    return found


def made(target: str) -> Arguments:
    """The arguments that the function ``module:function`` returns.

    Either a tuple of them, or ``(args, kwargs)``, a tuple and a dict.

    Raises:
        ArgumentError: the function is not there, fails, or returns something else.
    """
    function = load(target)
    with _explaining(f"{target!r} failed"):
        found = function()
    match found:
        case (tuple() as args, dict() as kwargs):
            return args, kwargs
        case tuple() as args:
            return args, {}
    raise ArgumentError(
        f"{target!r} returned {type(found).__name__}, expected a tuple of arguments or "
        "(args, kwargs)."
    )


def arguments(specs: Iterable[str]) -> Arguments:
    """Arguments for specs such as ``float32[4,8]``, ``3`` or ``mask=bool[4,8]``.

    Raises:
        ArgumentError: a spec is malformed.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for spec in specs:
        name, equals, value = spec.partition("=")
        if not equals:
            args.append(_value(spec))
        elif name in kwargs:
            raise ArgumentError(f"{spec!r}: {name} came twice; expected one value for each name.")
        elif not name.isidentifier():
            raise ArgumentError(f"{spec!r}: expected one name=spec, such as mask=bool[4,8].")
        else:
            kwargs[name] = _value(value)
    return tuple(args), kwargs


def fit(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Check that ``fn`` takes these arguments.

    Raises:
        ArgumentError: they are too many, too few, or have other names.
    """
    require_fit(fn, args, kwargs, "The arguments do not fit")


def _value(spec: str) -> Any:
    if spec.lower() in _WORDS:
        return _WORDS[spec.lower()]
    for number in (int, float):
        with suppress(ValueError):
            return number(spec)
    match = _TENSOR.fullmatch(spec.replace(" ", ""))
    if match is None:
        raise ArgumentError(
            f"{spec!r}: expected a tensor such as float32[4,8], a number, true, false or none."
        )
    dtype = getattr(torch, match["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"{spec!r}: torch has no dtype {match['dtype']!r}.")
    shape = [int(size) for size in match["shape"].split(",") if size]
    try:
        return _tensor(dtype, shape, match["how"] or "")
    except (RuntimeError, TypeError, ValueError) as error:
        problem = str(error).partition("\n")[0]
        raise ArgumentError(f"{spec!r} cannot be made: {problem}") from error


def _tensor(dtype: torch.dtype, shape: list[int], how: str) -> torch.Tensor:
    if how == "meta":
        return torch.empty(shape, dtype=dtype, device="meta")
    numbers = dtype.is_floating_point or dtype.is_complex
    if how and (numbers or dtype == torch.bool):
        raise ValueError(f"only integers take a range, not {dtype}.")
    if numbers:
        return torch.randn(shape).to(dtype)
    high = int(how or 2)
    most = torch.iinfo(dtype).max + 1 if how else 2
    if not 0 < high <= most:
        raise ValueError(f"a range of {dtype} goes from 1 to {most}.")
    return torch.randint(high, shape).to(dtype)


@contextmanager
def _explaining(problem: str) -> Iterator[None]:
    """Turn any error of the user's code into an :class:`ArgumentError` with its line."""
    try:
        yield
    except BaseException as error:
        if not is_raised_by_code(error):
            raise
        where = users_line_of(error)
        ours = where.file in (None, __file__, importlib.__file__)
        place = "" if ours else f" ({within(str(where.file))}:{where.line})"
        raise ArgumentError(f"{problem}: {one_line(error)}{place}") from error
