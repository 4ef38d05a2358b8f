"""The file of recipes: JSON, checked field by field, from which nothing is imported or executed.

The dataclasses here are the schema. :func:`read` takes a file apart that may come from anywhere;
whatever does not fit the schema is an error that names the place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import secrets
import stat
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RecipeError

__all__ = ["FORMAT", "VERSION", "File", "Function", "Modes", "Recipe", "Tensor", "read", "write"]

FORMAT = "gfxgraph recipes"
VERSION = 1

# Bytes of a file, items of one list, characters of one text.
_MAX_FILE, _MAX_ITEMS, _MAX_TEXT = 16 << 20, 10_000, 100_000
_MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True)
class Tensor:
    """A tensor among the arguments, without its data.

    Attributes:
        shape: its sizes.
        dtype: such as ``"float32"``.
        device: such as ``"cuda:0"``.
        strides: ``None``: it is contiguous, or nobody asks.
        requires_grad: whether it does.
        is_inference: whether it was made in inference mode.
        is_mask: whether it says which elements count.
    """

    shape: list[int]
    dtype: str
    device: str
    strides: list[int] | None
    requires_grad: bool
    is_inference: bool
    is_mask: bool


@dataclass(frozen=True)
class Modes:
    """The modes of torch that a call was made in.

    Attributes:
        grad: whether gradients were on.
        inference: whether inference mode was.
        autocast: the dtype of autocast, ``None``: it was off.
        others: modes that are compared and not set.
    """

    grad: bool
    inference: bool
    autocast: str | None
    others: list[str]


@dataclass(frozen=True)
class Recipe:
    """A kind of call, and what is known of its graph.

    Attributes:
        key: of the graph, for people to read.
        arguments: the tree of arguments, see :mod:`.arguments`.
        tensors: those among the arguments.
        modes: of torch.
        replays: how often the graph was replayed.
        bytes: that it takes on the device.
        launch_us: microseconds that the host took to launch its first replay.
        report: what was folded into it.
    """

    key: str
    arguments: Any
    tensors: list[Tensor]
    modes: Modes
    replays: int
    bytes: int
    launch_us: float
    report: list[str]


@dataclass(frozen=True)
class Function:
    """A callable, and the recipes of its graphs.

    Attributes:
        name: its module and its qualified name.
        number: which of the callables of that name it is, in the order in which they were made.
        code: a digest of its bytecode, and of the classes of its modules.
        parameters: a digest of the names, shapes and dtypes of its parameters and buffers.
        options: those of ``graphed``, as text.
        asks_layout: whether it asks how its arguments lie in memory.
        draws: whether it draws random numbers on the device.
        recipes: of its graphs.
    """

    name: str
    number: int
    code: str
    parameters: str
    options: dict[str, str]
    asks_layout: bool
    draws: bool
    recipes: list[Recipe]


@dataclass(frozen=True)
class File:
    """All recipes of a process, and the versions and the device that they are for."""

    format: str
    version: int
    environment: dict[str, str]
    functions: list[Function]


def write(path: Path, found: File) -> None:
    """Write a file, which appears whole or not at all.

    Raises:
        RecipeError: it cannot be written.
    """
    text = json.dumps(dataclasses.asdict(found), allow_nan=False)
    if len(text) >= _MAX_FILE:
        raise RecipeError(
            f"recipes take {len(text) >> 20} MiB, more than {_MAX_FILE >> 20}: save them before so "
            "many kinds of calls were captured, or lower max_graphs."
        )
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        # Of a link, the link is replaced: whoever made it says nothing about where it leads.
        before = path.lstat() if os.path.lexists(path) else None
        if before is not None and stat.S_ISLNK(before.st_mode):
            before = None
        elif before is not None and not stat.S_ISREG(before.st_mode):
            raise ValueError("it is no regular file")
        try:
            with open(temporary, "x", encoding="utf-8") as file:
                if before is not None:
                    os.chmod(temporary, stat.S_IMODE(before.st_mode))
                file.write(f"{text}\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            raise
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"recipes cannot be written to {path}: {error}. Give the path of a file in a directory "
            "that exists and that this process may write to."
        ) from error


def read(path: Path) -> File | None:
    """Read a file that may hold anything; ``None``: there is none.

    Raises:
        RecipeError: it cannot be read, or is no file of recipes.
    """
    data = _bytes_of(path)
    if data is None:
        return None
    try:
        found = json.loads(
            data.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_without_doubles
        )
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise RecipeError(f"{path} is no file of recipes: {error}. {_REMEDY}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise RecipeError(f"{path} is no file of recipes: it has no format {FORMAT!r}. {_REMEDY}")
    if found.get("version") != VERSION:
        raise RecipeError(
            f"{path} has version {str(found.get('version'))[:20]} of the format, expected "
            f"{VERSION}. {_REMEDY}"
        )
    try:
        file: File = _checked(File, found, "file")
    except ValueError as error:
        raise RecipeError(f"{path} is no file of recipes: {error}. {_REMEDY}") from error
    return file


_REMEDY = "Remove it; save_recipes() writes a new one."


def _bytes_of(path: Path) -> bytes | None:
    try:
        # A pipe of that name must not let the start of a service wait.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise RecipeError(f"{path} is no file: expected one that save_recipes() has made.")
            data = file.read(_MAX_FILE + 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if isinstance(error, RecipeError):
            raise
        raise RecipeError(f"recipes cannot be read from {path}: {error}") from error
    if len(data) > _MAX_FILE:
        raise RecipeError(f"{path} has more than {_MAX_FILE >> 20} MiB. {_REMEDY}")
    return data


def _refuse(constant: str) -> None:
    raise ValueError(f"it holds {constant}")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a name twice")
    return found


def _checked(kind: Any, value: Any, place: str) -> Any:
    """``value`` as a ``kind`` of the schema.

    Raises:
        ValueError: it is none; the text names the place.
    """
    if kind is Any:
        return value  # the tree of arguments, which is checked where it is taken apart
    if dataclasses.is_dataclass(kind):
        return _checked_fields(kind, value, place)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType or origin is typing.Union:
        return None if value is None else _checked(parts[0], value, place)
    if origin is list and type(value) is list and len(value) <= _MAX_ITEMS:
        return [_checked(parts[0], v, f"{place}[{n}]") for n, v in enumerate(value)]
    if origin is dict and type(value) is dict and len(value) <= _MAX_ITEMS:
        return {
            _checked(str, name, place): _checked(parts[1], v, f"{place}.{name[:40]}")
            for name, v in value.items()
        }
    if origin is not None:
        raise ValueError(f"{place} is {_shown(value)}, expected a {origin.__name__}")
    fits = type(value) is kind or (kind is float and type(value) is int)
    if fits and kind is str:
        fits = len(value) <= _MAX_TEXT
    elif fits and kind in (int, float):
        fits = math.isfinite(value) and 0 <= value <= _MAX_NUMBER
    if not fits:
        what = "number from 0" if kind in (int, float) else kind.__name__
        raise ValueError(f"{place} is {_shown(value)}, expected a {what}")
    return kind(value)


def _checked_fields(kind: Any, value: Any, place: str) -> Any:
    hints = typing.get_type_hints(kind)
    if type(value) is not dict:
        raise ValueError(f"{place} is {_shown(value)}, expected an object")
    wrong = sorted(hints.keys() ^ value.keys())
    if wrong:
        what = "lacks" if wrong[0] in hints else "has the unknown field"
        raise ValueError(f"{place} {what} {wrong[0][:40]!r}")
    found = {name: _checked(hint, value[name], f"{place}.{name}") for name, hint in hints.items()}
    return kind(**found)


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"a {type(value).__name__} of {len(value)} items"
    if isinstance(value, int) and value.bit_length() > 128:  # Python may refuse to print it
        return f"an int of {value.bit_length()} bits"
    return repr(value)[:60]
