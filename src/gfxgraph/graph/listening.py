"""Tells of each instruction of Python that a thread is about to run.

From Python 3.12 on ``sys.monitoring`` tells of instructions, before that ``sys.settrace``, which
is left alone where a debugger or a coverage tool uses it.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ..forking import in_child
from ..interpose.codes import address
from ..interpose.dynamo import opaque
from ..interpose.interrupts import let_in, waiting
from . import bytecode
from .heard import is_heard

__all__ = [
    "OPEN_IN_TORCH",
    "QUIET",
    "Listener",
    "end_listening",
    "hear_again",
    "is_closed",
    "is_quiet",
    "listening",
]

_OURS = __name__.partition(".")[0]
OPEN_IN_TORCH = (
    "torch.nn.functional",
    "torch.nn.modules",
    "torch.nn.utils",
    "torch.nn.parameter",
    "torch.distributions",
    "torch.optim",
    "torch.utils.data",
)
"""The parts of torch whose code reads objects of the program."""
QUIET = frozenset(
    [
        "abc",
        "ast",
        "atexit",
        "dis",
        "gc",
        "importlib",
        "inspect",
        "io",
        "linecache",
        "logging",
        "re",
        "sre_compile",
        "sre_parse",
        "tokenize",
        "traceback",
        "types",
        "typing",
        "typing_extensions",
        "warnings",
        "threading",
    ]
)
"""Packages that no function's result depends on, or that are listened to elsewhere."""


@functools.lru_cache(maxsize=4096)
def is_closed(name: str) -> bool:
    """Whether the code of a module is not looked at."""
    package = name.partition(".")[0]
    if package == "torch":
        return not name.startswith(OPEN_IN_TORCH)
    return package in ("numpy", "triton", _OURS) or is_quiet(name)


def is_quiet(name: str) -> bool:
    """Whether a module is of a package in :data:`QUIET`."""
    return name.partition(".")[0] in QUIET


def _is_closed(frame: types.FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return is_closed(name) and not is_heard(name)


def _is_its_own(code: types.CodeType, frame: types.FrameType) -> bool:
    """Whether ``code`` is of the file of the module in which it runs, so that no copy of it runs
    elsewhere."""
    file = code.co_filename
    return file == frame.f_globals.get("__file__") or file.startswith("<frozen ")


class Listener(Protocol):
    """Who is told.

    Attributes:
        failed: why it could not be told of all; ``""``: it could.
        hears_all: whether to tell also of instructions that read nothing.
        left_out: a frame of which nothing matters but its end; ``None``: there is none.
        handled: which code has caught which errors, but for ``StopIteration``.
    """

    failed: str
    handled: list[tuple[types.CodeType, type]]
    hears_all: bool
    left_out: types.FrameType | None

    def is_quiet(self, code: types.CodeType) -> bool:
        """Whether it never matters that ``code`` ends; where it begins may matter."""

    def enter(self, frame: types.FrameType) -> bool:
        """``frame`` begins or goes on to run; gives whether its instructions matter."""

    def pass_over(self, frame: types.FrameType) -> None:
        """The same of one inside of what is left out, where nothing but that matters."""

    def sees(self, frame: types.FrameType | None) -> bool:
        """Whether the instructions of ``frame`` are looked at."""

    def instruction(self, frame: types.FrameType, offset: int) -> bool:
        """The instruction at ``offset`` is about to run.

        Gives whether it reads the same wherever its code runs with the same global variables, so
        that it need not be told again.
        """

    def leave(self, frame: types.FrameType, value: object) -> None:
        """``frame`` returns or yields ``value``."""


# What ends those that listen now.
_running: dict[int, Callable[[], None]] = {}


def _end_all() -> None:
    """In a child of ``fork()`` nobody listens: what it does is not what a capture has begun."""
    while _running:
        _running.popitem()[1]()


in_child(_end_all)


def end_listening(listener: Listener) -> None:
    """Tell it no more, whether its block has ended or not."""
    end = _running.pop(id(listener), None)
    if end is not None:
        end()


if sys.version_info >= (3, 12):
    _tools = (4, 3, 1, 5, 2)
    # The steps of some code, with the variables with which it runs: globals and builtins; none:
    # there are several.
    _Watched = tuple[types.CodeType, dict[int, bytecode.Step], tuple[Any, Any] | None]

    @contextmanager
    def listening(listener: Listener) -> Iterator[None]:
        """Tell ``listener`` of what this thread runs inside."""
        monitoring, ident = sys.monitoring, threading.get_ident()
        tool = next((n for n in _tools if monitoring.get_tool(n) is None), None)
        if tool is None:
            listener.failed = "no tool of sys.monitoring is free"
            yield
            return
        events, never = monitoring.events, monitoring.DISABLE
        watched: dict[int, _Watched] = {}

        def begin(code: types.CodeType, frame: types.FrameType) -> Any:
            return _begin(listener, tool, watched, code, frame)

        @opaque
        def start(code: types.CodeType, offset: int) -> Any:
            if threading.get_ident() != ident:
                return None
            if listener.left_out is None:
                return begin(code, sys._getframe(1))
            frame = sys._getframe(1)
            if not _is_closed(frame):
                listener.pass_over(frame)
            return None

        @opaque
        def thrown(code: types.CodeType, offset: int, error: BaseException) -> None:
            if threading.get_ident() == ident:  # a generator goes on with an error
                begin(code, sys._getframe(1))

        @opaque
        def instruction(code: types.CodeType, offset: int) -> Any:
            if listener.left_out is not None:
                return None
            _, steps, spaces = watched[address(code)]
            if offset not in steps and not listener.hears_all:
                return never  # it is not told again of this instruction
            if threading.get_ident() != ident:
                return None
            frame = sys._getframe(1)
            if waiting:  # not in contextlib, say, where a block of ours ends
                let_in(frame)
            is_settled = listener.instruction(frame, offset)
            return never if is_settled and spaces is not None else None

        @opaque
        def leave(code: types.CodeType, offset: int, value: object) -> Any:
            if threading.get_ident() != ident:
                return None
            frame = sys._getframe(1)
            if listener.left_out is not None and frame is not listener.left_out:
                return None
            if address(code) not in watched and (
                listener.is_quiet(code) or (_is_closed(frame) and _is_its_own(code, frame))
            ):
                return never
            listener.leave(frame, value)
            return None

        @opaque
        def unwind(code: types.CodeType, offset: int, error: BaseException) -> None:
            frame = sys._getframe(1)
            if threading.get_ident() == ident and listener.left_out in (None, frame):
                listener.leave(frame, None)

        @opaque
        def handled(code: types.CodeType, offset: int, error: BaseException) -> None:
            is_end = isinstance(error, StopIteration)
            if threading.get_ident() == ident and not (is_end or _is_closed(sys._getframe(1))):
                listener.handled.append((code, type(error)))

        callbacks = {
            events.EXCEPTION_HANDLED: handled,
            events.PY_START: start,
            events.PY_RESUME: start,
            events.PY_THROW: thrown,
            events.INSTRUCTION: instruction,
            events.PY_RETURN: leave,
            events.PY_YIELD: leave,
            events.PY_UNWIND: unwind,
        }

        with _told(listener, tool, callbacks, watched):
            yield

    def _begin(
        listener: Listener,
        tool: int,
        watched: dict[int, _Watched],
        code: types.CodeType,
        frame: types.FrameType,
    ) -> Any:
        monitoring, known = sys.monitoring, watched.get(address(code))
        if known is None and _is_closed(frame):
            return monitoring.DISABLE if _is_its_own(code, frame) else None
        if not listener.enter(frame):
            return None
        if known is None:
            # First this: another thread may run the same code.
            spaces = frame.f_globals, frame.f_builtins
            watched[address(code)] = code, bytecode.read(code).steps, spaces
            monitoring.set_local_events(tool, code, monitoring.events.INSTRUCTION)
        elif known[2] is not None and not (
            known[2][0] is frame.f_globals and known[2][1] is frame.f_builtins
        ):
            # A copy of the function, elsewhere. It may run in the middle of the other one, so
            # that from now on each instruction of both is told.
            watched[address(code)] = *known[:2], None
            monitoring.restart_events()
        return None

    @contextmanager
    def _told(
        listener: Listener,
        tool: int,
        callbacks: dict[int, Callable[..., Any]],
        watched: dict[int, _Watched],
    ) -> Iterator[None]:
        monitoring = sys.monitoring

        def end() -> None:
            for event in callbacks:  # first: then nobody is told, whatever comes in between
                monitoring.register_callback(tool, event, None)
            monitoring.set_events(tool, 0)
            for code, _, _ in list(watched.values()):
                monitoring.set_local_events(tool, code, 0)
            monitoring.free_tool_id(tool)

        monitoring.use_tool_id(tool, f"{_OURS}.reads")
        _running[id(listener)] = end
        try:
            for event, callback in callbacks.items():
                monitoring.register_callback(tool, event, callback)
            monitoring.set_events(tool, sum(callbacks) - monitoring.events.INSTRUCTION)
            monitoring.restart_events()
            yield
        finally:
            end_listening(listener)

    def hear_again() -> None:
        """Tell of instructions again that were left out, because they read nothing."""
        sys.monitoring.restart_events()

else:
    _SETTRACE = "sys.settrace is in use, by a debugger, a coverage tool or the function itself"

    class _Tracer:
        """What ``sys.settrace`` calls. Its methods are bound: closures would be a cycle."""

        def __init__(self, listener: Listener) -> None:
            self._listener: Listener | None = listener
            self._before = sys.gettrace()  # that of another room of ours, or none
            self._has_raised = False
            self._error: tuple[types.FrameType, Any] | None = None

        @property
        def is_over(self) -> bool:
            return self._listener is None

        def end(self) -> None:
            listener, self._listener = self._listener, None
            if sys.gettrace() == self.begin or (self._has_raised and sys.gettrace() is None):
                sys.settrace(self._before)
            elif listener is not None:
                listener.failed = _SETTRACE

        @opaque
        def begin(self, frame: types.FrameType, event: str, arg: object) -> Any:
            if self._listener is None:  # somebody has put it back who found it
                self.end()
                return None
            frame.f_trace_lines = False
            if self._listener.left_out is not None:
                if not _is_closed(frame):
                    self._listener.pass_over(frame)
                return None
            if _is_closed(frame) or not self._listener.enter(frame):
                tells = self._listener.left_out is frame or self._listener.sees(frame.f_back)
                return self.inside if tells else None
            frame.f_trace_opcodes = True
            return self.inside

        @opaque
        def inside(self, frame: types.FrameType, event: str, arg: object) -> Any:
            if self._listener is None:
                return None
            if waiting:
                let_in(frame)
            if event == "exception":
                kind = arg[0] if isinstance(arg, tuple) else None
                self._error = None if kind is StopIteration else (frame, kind)
                return self.inside
            if self._error is not None:
                if event == "opcode" and self._error[0] is frame:
                    self._listener.handled.append((frame.f_code, self._error[1]))
                self._error = None
            if event == "opcode":
                self._has_raised = True  # then Python takes the trace function away
                self._listener.instruction(frame, frame.f_lasti)
                self._has_raised = False
            elif event == "return":
                self._listener.leave(frame, arg)
            return self.inside

    def traced_by_others() -> bool:
        """Whether a debugger or a coverage tool has a trace function in this thread."""
        before = sys.gettrace()
        owner = getattr(before, "__self__", None)
        if isinstance(owner, _Tracer) and owner.is_over:  # in a child of fork()
            sys.settrace(None)
            return False
        is_ours = str(getattr(before, "__module__", "")).startswith(f"{_OURS}.")
        return before is not None and not is_ours

    @contextmanager
    def listening(listener: Listener) -> Iterator[None]:
        """Tell ``listener`` of what this thread runs inside."""
        if traced_by_others():
            listener.failed = _SETTRACE
            yield
            return
        tracer = _Tracer(listener)
        _running[id(listener)] = tracer.end
        sys.settrace(tracer.begin)
        try:
            yield
        finally:
            end_listening(listener)

    def hear_again() -> None:
        """Nothing was left out."""
