"""Which Python code a call has run, and on which objects.

A function can write to what no walk from it finds: in hooks, properties, methods of submodules,
decorated helpers. Before a function runs a second time for our sake, the state of all code that its
first run has executed is compared and put back as well.

From Python 3.12 on ``sys.monitoring`` tells which code starts to run, before that ``sys.settrace``,
which is left alone where a debugger or a coverage tool uses it.
"""

from __future__ import annotations

import dis
import gc
import inspect
import logging
import re
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from ..forking import in_child, new_lock
from ..interpose.codes import address, per_code
from ..interpose.dynamo import frames_compiled, is_guard, opaque
from ..interpose.source import CLOSED
from ..record.journal import inside_no_graph
from ..stats import log
from . import raw
from .in_c import is_array

__all__ = ["Executed", "executed_now"]

_OURS = __name__.partition(".")[0]
_DEPTH_OF_CALLBACKS = 24
_IMPORT = "importlib._bootstrap"
# Methods that change a container.
_CHANGES = frozenset({"add", "clear", "discard", "pop", "remove", "update"})


class Executed:
    """The code that ran while :meth:`listening`, without that of closed packages.

    Attributes:
        packages: the packages that the code is of.
        spaces: code -> the global variables that it sees.
    """

    def __init__(self) -> None:
        self.packages: set[str] = set()
        self.spaces: dict[types.CodeType, dict[str, Any]] = {}
        # The first arguments of methods; weakly: what a call makes goes when the call is done
        # with it. By number, as the others.
        self._owners: dict[int, Callable[[], Any]] = {}
        # What variables of enclosing functions held.
        self._held: dict[int, tuple[str, Any]] = {}
        # Frames of code that binds such variables, and their functions.
        self._frames: list[types.FrameType] = []
        self._functions: dict[int, tuple[str, Any]] = {}

    def roots(self) -> list[tuple[str, Any]]:
        """Names and objects that the code may have written to, as far as they live."""
        owners = [owner() for owner in list(self._owners.values())]
        return [
            *self._functions.values(),
            *self._held.values(),
            *(
                (raw.name_of(owner if raw.is_a(owner, type) else type(owner)), owner)
                for owner in owners
                if owner is not None
            ),
        ]

    def changed_at(self, path: str) -> list[str]:
        """The lines that change what is reached by ``path``, as far as they name it themselves."""
        name = re.split(r"\W+", path.rstrip("]'\""))[-1]
        found: dict[str, None] = {}
        for code in self.spaces:
            named: dict[int, set[Any]] = {}
            line = 0
            for step in dis.get_instructions(code):
                line = step.starts_line if type(step.starts_line) is int else line
                line = getattr(step, "line_number", None) or line  # from Python 3.13 on
                named.setdefault(line, set()).add(step.argval if type(step.argval) is str else None)
            file = Path(code.co_filename).name
            lines = (n for n, names in named.items() if name in names and names & _CHANGES)
            found |= dict.fromkeys(f"{file}:{n}" for n in lines)
        return list(found)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Learn what this thread runs inside; nothing where Dynamo compiles meanwhile."""
        ident = threading.get_ident()
        outer = _listeners.get(ident)
        _listeners[ident], compiled = self, frames_compiled()
        try:
            with _started():
                yield
        finally:
            if frames_compiled() != compiled:  # then most of it was the compiler
                for part in (self.packages, self.spaces, self._owners, self._held, self._frames):
                    part.clear()
            if outer is None:
                _listeners.pop(ident, None)
            else:
                _listeners[ident] = outer
                outer.learn(self)
            # Only a frame that has ended tells of its function, with the variables themselves.
            for frame in self._frames:
                for part in gc.get_referents(frame):
                    if type(part) is types.FunctionType and part.__code__ is frame.f_code:
                        self._functions[address(part)] = part.__qualname__, part
            self._frames.clear()

    def learn(self, other: Executed) -> None:
        """Add what ``other`` has learnt, without holding any object of the caller's."""
        self.packages |= other.packages
        self.spaces |= other.spaces
        known = {**self._owners, **other._owners}
        for key, (_, value) in other._held.items():
            if is_array(value):  # resize() refuses one that is referenced weakly
                continue
            with suppress(TypeError):  # a list, or another class without weak references
                known[key] = weakref.ref(value)
        self._owners = {key: owner for key, owner in known.items() if owner() is not None}

    @contextmanager
    def known(self) -> Iterator[None]:
        """Let :class:`~gfxgraph.graph.state.PythonState` of this thread look there as well."""
        outer, _known.executed = _known.executed, self
        try:
            yield
        finally:
            _known.executed = outer

    def met(self, frame: types.FrameType) -> None:
        """``frame`` begins to run."""
        code = frame.f_code
        # Not the body of a module; and what a no_graph function does is its own.
        if not code.co_flags & inspect.CO_OPTIMIZED or inside_no_graph():
            return
        if code not in self.spaces:
            if _is_no_doing(frame):
                return
            self.spaces[code] = frame.f_globals
            self.packages.add(_package(frame))
        if not code.co_argcount and not code.co_freevars:
            return
        variables = frame.f_locals
        for name in code.co_freevars:
            value = variables.get(name)
            if not raw.is_scalar(value) and not raw.is_a(value, torch.Tensor):
                self._held[address(value)] = name, value
        if code.co_freevars and _binds_outside(code):
            self._frames.append(frame)
        first = variables.get(code.co_varnames[0]) if code.co_argcount else None
        if first is None or raw.is_a(first, torch.Tensor):
            return
        if is_array(first):
            self._held[address(first)] = raw.name_of(type(first)), first
            return
        known = self._owners.get(address(first))
        if known is None or known() is not first:
            try:
                self._owners[address(first)] = weakref.ref(first)
            except TypeError:  # a number, a list; or an object with slots alone
                if raw.slots(first):
                    self._held[address(first)] = raw.name_of(type(first)), first


def _is_no_doing(frame: types.FrameType) -> bool:
    """Whether an import or the garbage collector has called it, or what calls it."""
    callbacks = [
        callback.__func__ if type(callback) is types.MethodType else callback
        for callback in list(gc.callbacks)
    ]
    codes = {item.__code__ for item in callbacks if type(item) is types.FunctionType}
    caller: types.FrameType | None = frame
    for _ in range(_DEPTH_OF_CALLBACKS):
        if caller is None:
            break
        if caller.f_code in codes or caller.f_globals.get("__name__") == _IMPORT:
            return True
        caller = caller.f_back
    return False


@per_code
def _binds_outside(code: types.CodeType) -> bool:
    """Whether it binds a variable of a function around it."""
    return bool(code.co_freevars) and any(
        step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars
        for step in dis.get_instructions(code)
    )


class _Known(threading.local):
    executed: Executed | None = None


_known = _Known()


def executed_now() -> Executed | None:
    """The code that the caller's own run executed; ``None``: no run, or nobody listened."""
    return _known.executed


# ---- who tells

# By thread, as the next one.
_listeners: dict[int, Executed] = {}
# How often it is inside.
_users: dict[int, int] = {}


def _keep_own() -> None:
    """In a child of ``fork()`` the other threads are not there to leave."""
    ident = threading.get_ident()
    for table in (_users, _listeners):
        for other in [key for key in table if key != ident]:
            del table[other]


in_child(_keep_own)


def _package(frame: types.FrameType) -> str:
    # Not the function's __module__, which functools.wraps takes from another one.
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_closed(frame: types.FrameType) -> bool:
    package = _package(frame)
    is_closed = package in CLOSED or package == _OURS
    return is_closed or is_guard(frame.f_code, frame.f_globals)


if sys.version_info >= (3, 12):
    _lock = new_lock()
    _tool: int | None = None

    @opaque
    def _on_start(code: types.CodeType, offset: int) -> Any:
        frame = sys._getframe(1)
        if _is_closed(frame):
            return sys.monitoring.DISABLE  # for good: it is never asked again
        listener = _listeners.get(threading.get_ident())
        if listener is not None:
            listener.met(frame)
        return None

    @contextmanager
    def _started() -> Iterator[None]:
        global _tool
        monitoring, ident = sys.monitoring, threading.get_ident()
        with _lock:
            _users[ident] = _users.get(ident, 0) + 1
            if _tool is None:
                free = (n for n in (4, 3) if monitoring.get_tool(n) is None)
                _tool = next(free, None)
                if _tool is not None:
                    monitoring.use_tool_id(_tool, _OURS)
                    monitoring.register_callback(_tool, monitoring.events.PY_START, _on_start)
            if _tool is not None:
                monitoring.set_events(_tool, monitoring.events.PY_START)
            else:
                log(logging.DEBUG, "not_listening", because="no tool of sys.monitoring is free")
        try:
            yield
        finally:
            with _lock:
                _users[ident] -= 1
                if not _users[ident]:
                    del _users[ident]
                if not _users and _tool is not None:
                    monitoring.set_events(_tool, 0)

else:
    from .listening import traced_by_others

    @opaque
    def _on_call(frame: types.FrameType, event: str, arg: object) -> None:
        listener = _listeners.get(threading.get_ident())
        if listener is not None and not _is_closed(frame):
            listener.met(frame)

    @contextmanager
    def _started() -> Iterator[None]:
        if traced_by_others() or sys.gettrace() not in (None, _on_call):
            log(logging.DEBUG, "not_listening", because="sys.settrace is in use")
            yield
            return
        before = sys.gettrace()
        sys.settrace(_on_call)
        try:
            yield
        finally:
            if sys.gettrace() is _on_call:
                sys.settrace(before)
