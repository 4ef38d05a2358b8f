"""Finds the line of the user's code at which something happens."""

from __future__ import annotations

import dis
import functools
import importlib.util
import inspect
import linecache
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MethodType,
    TracebackType,
)
from typing import Any

import typing_extensions

from ..errors import GfxGraphError, SettingError
from ..settings import traceback as setting

__all__ = [
    "CLOSED",
    "LineFinder",
    "Source",
    "asked_by_the_user",
    "global_names",
    "instruction_of",
    "is_ours",
    "is_own_file",
    "is_raised_by_code",
    "is_the_users",
    "is_users_file",
    "leave_out_ours",
    "name_of",
    "users_instruction",
    "users_line",
    "users_line_of",
]

CLOSED = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "triton", "tqdm"}
"""Packages whose code is not looked into: what it reads is not a program's own state."""

_QUALNAME: Any = type.__dict__["__qualname__"]
_WITHOUT_FILE = "<string>"
_CAN_BE_THROWN_INTO = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_OURS = (f"{Path(__file__).parents[1]}/", "<gfxgraph>")
# Found without importing it: lint reads source where torch may not even be installed.
# Under a command, frames of typer are on the stack, and they are as little the user's.
_FOUND = filter(None, map(importlib.util.find_spec, ("torch", "typer", "click")))
_OTHERS = [folder for found in _FOUND for folder in found.submodule_search_locations or ()]
_NOT_THE_USERS = (
    *_OURS,
    *(f"{folder}/" for folder in _OTHERS),
    str(Path(typing_extensions.__file__)),  # around what torch calls deprecated
    "<eval_with_key>",  # what torch.fx generates
    "<frozen",
    _WITHOUT_FILE,
)
_STDLIB = sysconfig.get_path("stdlib") + "/"
_SITE = (sysconfig.get_path("purelib") + "/", sysconfig.get_path("platlib") + "/")
# These are part of gfxgraph, and yet play the user.
_THE_USERS = tuple(
    str(Path(__file__).parents[1] / part) for part in ("demo", "measure/experiments/functions.py")
)


@dataclass(frozen=True)
class Source:
    """A line of the user's code.

    Attributes:
        file: its path; ``None`` where there is no Python line of the user.
        line: its number, from 1.
        function: the function that it is in.
    """

    file: str | None = None
    line: int = 0
    function: str = ""

    @property
    def text(self) -> str:
        """The line itself, without indentation."""
        return linecache.getline(self.file, self.line).strip() if self.file else ""

    def __str__(self) -> str:
        if self.file is None:
            return "(no line of Python)"
        text = f": {self.text}" if self.text else ""
        return f"{self.file}:{self.line}, in {self.function}{text}"


def name_of(fn: Any) -> str:
    """What reasons and reports call a function, a module or a method."""
    if type(fn) is MethodType:
        return name_of(fn.__func__)
    if type(fn) in (FunctionType, BuiltinFunctionType):
        return str(fn.__qualname__)
    # What functools.wraps() has set; no code of the object is asked.
    name = inspect.getattr_static(fn, "__qualname__", None)
    return name if type(name) is str else str(_QUALNAME.__get__(type(fn)))


@functools.lru_cache(maxsize=4096)
def global_names(code: CodeType) -> frozenset[str]:
    """The global names that a function and the functions in it look up."""
    inner = (const for const in code.co_consts if type(const) is CodeType)
    return frozenset(code.co_names).union(*map(global_names, inner))


def is_raised_by_code(error: BaseException) -> bool:
    """Whether ``error`` is one that code has raised: not an interrupt from the keyboard."""
    if isinstance(error, (Exception, SystemExit)):
        return True
    # Ctrl-C comes at any instruction, and not at the one of a statement `raise`.
    return instruction_of(error) == "RAISE_VARARGS"


def instruction_of(error: BaseException) -> str:
    """The name of the instruction at which it was raised; empty: nobody knows."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    code, at = trace.tb_frame.f_code, trace.tb_lasti
    if at >= 0:
        return dis.opname[code.co_code[at]]
    # Before its first instruction, up to Python 3.10. In a generator throw() may have raised it.
    return "" if code.co_flags & _CAN_BE_THROWN_INTO else "RESUME"


def users_line(within: CodeType | None = None) -> Source:
    """The innermost line of the calling stack that is the user's; see :func:`is_users_file`.

    Args:
        within: only lines that a call of this code has called. Default: all.
    """
    return _line_of(sys._getframe(1), within)


def users_instruction() -> tuple[CodeType, int] | None:
    """The innermost code on the calling stack that is the user's, and the offset where it is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_the_users(frame.f_code):
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lasti)


def asked_by_the_user(packages: bool = False) -> bool:
    """Whether the call of torch that we handle stands in the user's code itself.

    Args:
        packages: count other packages than torch as well. Default: no package that is installed.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    if frame is None or not is_the_users(frame.f_code):
        return False
    return packages or not frame.f_code.co_filename.startswith(_SITE)


def _line_of(frame: FrameType | None, within: CodeType | None = None) -> Source:
    """The innermost line of this stack that is the user's, up to a call of ``within``."""
    while frame is not None and frame.f_code is not within:
        if is_the_users(frame.f_code):
            return Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return Source()


def users_line_of(error: BaseException) -> Source:
    """The innermost line of the user's in the traceback of ``error``."""
    found = Source()
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_the_users(frame.f_code):
            found = Source(frame.f_code.co_filename, line, frame.f_code.co_name)
    return found


def leave_out_ours(error: BaseException) -> None:
    """Take the frames of gfxgraph out of the traceback of ``error``, and of those it follows from.

    Call it in ``except``, before a plain ``raise``, which adds no frame. (Python 3.10 raises with
    the frame of that ``except`` nevertheless.) An error that code of ours has raised, and which is
    none of :mod:`gfxgraph.errors`, is a bug: its traceback is left alone. So are all of them with
    ``GFXGRAPH_TRACEBACK=full``, and where that variable is malformed.
    """
    try:
        if setting() == "full":
            return
    except SettingError:  # an error is on its way, which must not become another
        return
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        found = todo.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        todo += (found.__cause__, found.__context__)
        traces: list[TracebackType] = []
        trace = found.__traceback__
        while trace is not None:
            traces.append(trace)
            trace = trace.tb_next
        if not traces or _is_a_bug(found, traces[-1]):
            continue
        kept: TracebackType | None = None
        for trace in reversed(traces):
            if not is_ours(trace.tb_frame.f_code.co_filename):
                trace.tb_next, kept = kept, trace
        if traces[0] is not kept:
            traces[0].tb_next = kept  # what Python 3.10 goes on with
        found.__traceback__ = kept


def _is_a_bug(error: BaseException, innermost: TracebackType) -> bool:
    """Whether our own code has raised ``error``, without meaning to."""
    if isinstance(error, GfxGraphError) or not is_ours(innermost.tb_frame.f_code.co_filename):
        return False
    # f(*args, **kwargs) is how the program's function is called, which may not take them.
    return instruction_of(error) != "CALL_FUNCTION_EX"


class LineFinder:
    """Finds the user's line that changes something: it compares after each line.

    Args:
        changed: returns the names of what has changed so far.

    Attributes:
        found: name -> the first line after which it had changed.
        returned: the line at which the outermost function of the user's returned.
    """

    def __init__(self, changed: Callable[[], Iterable[str]]) -> None:
        self._changed = changed
        self._last = Source()
        self._depth = 0
        self.found: dict[str, Source] = {}
        self.returned = Source()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Trace this thread; a debugger sees nothing meanwhile."""
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:
        if not is_the_users(frame.f_code):
            return None
        self._depth += 1
        return self._line

    def _line(self, frame: FrameType, event: str, arg: object) -> Any:
        for name in self._changed():
            self.found.setdefault(name, self._last)
        if event == "return":
            self._depth -= 1
            if self._depth == 0:
                self.returned = self._last
        self._last = _line_of(frame.f_back if event == "return" else frame)
        return self._line


def is_the_users(code: CodeType) -> bool:
    """Whether this is the user's code; see :func:`is_users_file`."""
    if code.co_filename == _WITHOUT_FILE:  # of `python -c` and exec(), or made by dataclasses
        name = getattr(code, "co_qualname", code.co_name)
        return not name.startswith("__create_fn__" if sys.version_info >= (3, 11) else "__")
    return is_users_file(code.co_filename)


def is_ours(file: str) -> bool:
    """Whether this file is part of gfxgraph."""
    return file.startswith(_OURS) and not file.startswith(_THE_USERS)


def is_own_file(file: str) -> bool:
    """Whether the user has written this file: it belongs to no package that is installed."""
    return bool(file) and is_users_file(file) and not file.startswith(_SITE)


@functools.lru_cache(maxsize=4096)  # asked of each frame of a stack, for each operator of a run
def is_users_file(file: str) -> bool:
    """Whether code of this file is neither torch's nor ours nor Python's own."""
    if file.startswith(_NOT_THE_USERS):
        return file.startswith(_THE_USERS)
    return not file.startswith(_STDLIB) or file.startswith(_SITE)
