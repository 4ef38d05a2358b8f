"""The functions and arguments that command lines name."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import torch

from ..errors import ArgumentError, one_line
from ..interpose.signatures import require_fit
from ..interpose.source import is_raised_by_code, users_line_of
from ..simulate.tensor import local
from ..simulate.world import SimulatedCuda
from .report import within

__all__ = ["arguments", "fit", "load", "made", "simulated_gpu"]

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

_WORDS = {"true": True, "false": False, "none": None}
_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<shape>|\d+(,\d+)*)\](:(?P<how>meta|\d+))?")


def load(target: str) -> Any:
    """The callable that a target names, also from the current directory.

    ``module:name``, ``module:name.attribute``, ``module:make()``, ``module:Class(width=8).method``
    and ``path/file.py:name``: names, with calls whose arguments are plain values.

    Raises:
        ArgumentError: there is no such thing, it is not callable, it is a class, or it fails.
    """
    found = _found(target)
    if inspect.isclass(found):
        raise ArgumentError(
            f"{target!r} is a class: name an object of it, a function, or '{target}()' to make one."
        )
    if not callable(found):
        raise ArgumentError(f"{target!r} is not callable: its type is {type(found).__name__}.")
    return found


@contextmanager
def simulated_gpu() -> Iterator[None]:
    """While targets load, there is a GPU: a simulated one, where the machine has none.

    So a program that moves its model to the device when it is imported can be checked anywhere.
    """
    if torch.cuda.is_available() or local.world is not None:
        yield
        return
    world = SimulatedCuda(capturing=False)
    try:
        with world, torch.no_grad():
            yield
    finally:
        world.dissolve()


def _found(target: str) -> Any:
    """What a target names."""
    where, colon, path = target.partition(":")
    if ".py:" in target:  # a file, whose path may hold colons
        where, _, path = target.partition(".py:")
        where, colon = f"{where}.py", ":"
    if not where or not colon or not path:
        raise ArgumentError(
            f"{target!r}: expected module:callable or file.py:callable, such as my_policy:model."
        )
    try:
        steps = _steps(ast.parse(path.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        steps = []
    if not steps:
        raise ArgumentError(
            f"{target!r}: expected names and calls with plain values after the colon, such as "
            "Policy(scale=0.5).act."
        )
    if where.endswith(".py") and not Path(where).is_file():
        raise ArgumentError(f"{target!r}: there is no file {where!r}.")
    if not where.endswith(".py") and not _is_there(where.partition(".")[0]):
        raise ArgumentError(
            f"{target!r}: Python finds no module of that name, neither here nor installed. Install "
            f"its package, or name its file, such as src/{where.replace('.', '/')}.py:{path}."
        )
    with _explaining(f"{target!r} cannot be loaded"):
        module = _file(where) if where.endswith(".py") else _module(where)
        found = getattr(module, steps[0].id)  # type: ignore[attr-defined]
    with _explaining(f"{target!r} failed" if "(" in path else f"{target!r} cannot be loaded"):
        for step in steps[1:]:
            if isinstance(step, ast.Attribute):
                found = getattr(found, step.attr)
            elif isinstance(step, ast.Call):
                named = {str(key.arg): ast.literal_eval(key.value) for key in step.keywords}
                found = found(*map(ast.literal_eval, step.args), **named)
        return found


def _steps(node: ast.expr) -> list[ast.expr]:
    """A name, and the attributes and calls behind it, in this order; none: it is something else."""
    steps = [node]
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute(value=inner):
                node = inner
            case ast.Call(func=function, args=args, keywords=keywords):
                values = [*args, *(key.value for key in keywords)]
                if any(key.arg is None for key in keywords) or not all(map(_is_literal, values)):
                    return []
                node = function
            case _:
                return []
        steps.append(node)
    return steps[::-1]


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_there(name: str) -> bool:
    """Whether Python could import a module; of what is no name, importing it says why not."""
    _import_from(os.getcwd())
    return not name or name in sys.modules or importlib.util.find_spec(name) is not None


def _module(name: str) -> Any:
    _import_from(os.getcwd())
    return importlib.import_module(name)


def _file(path: str) -> Any:
    """The module in a file: as part of its packages, if it is in some."""
    file = Path(path).resolve()
    folder, name = file.parent, file.stem
    while (folder / "__init__.py").is_file():
        folder, name = folder.parent, f"{folder.name}.{name}"
    _import_from(str(folder))
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    if known is None and folder != file.parent:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # of a file that ends with .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_from(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def made(target: str) -> Arguments:
    """The arguments that the function ``module:function`` returns, or ``file.py:function``.

    Either a tuple of them, or ``(args, kwargs)``, a tuple and a dict.

    Raises:
        ArgumentError: the function is not there, fails, or returns something else.
    """
    found = _found(target)
    if callable(found) and not isinstance(found, tuple):
        with _explaining(f"{target!r} failed"):
            found = found()
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
