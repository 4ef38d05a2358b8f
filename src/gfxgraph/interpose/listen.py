"""Observes calls of a thread, through Python's profiler hook or through ``sys.monitoring``.

The hook is told of all calls and returns of the thread, of those in gfxgraph and torch as well.
From Python 3.12 on :func:`observing` asks ``sys.monitoring`` instead, which can be told which code
does not matter: recording a large model takes half the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from types import BuiltinFunctionType, CodeType, FrameType, MethodDescriptorType
from typing import Any, Protocol

from ..errors import CaptureError
from ..forking import in_child, new_lock
from .codes import address
from .frames import let_go_of_unpacked
from .interrupts import let_in, waiting
from .opaque import opaque

__all__ = ["CallObserver", "Listening", "observing"]

Observe = Callable[[FrameType, str, Any], object]


class CallObserver(Protocol):
    """Who is told of calls before they happen, and may raise to stop them."""

    @property
    def codes(self) -> Mapping[CodeType, object]:
        """The functions in Python of which to tell."""

    def looks_at(self, code: CodeType) -> bool:
        """Whether calls of functions in C matter that ``code`` makes."""

    def matters(self, function: Any, owner: Any) -> bool:
        """Whether to tell of a call of ``function``, which is in C and belongs to ``owner``."""

    def calls(self, frame: FrameType, function: Any, owner: Any) -> None:
        """``frame`` is about to call ``function``."""

    def begins(self, frame: FrameType) -> None:
        """``frame`` begins to run one of ``codes``."""


class Listening:
    """A context manager that observes this thread's calls of Python and C functions.

    ``observe`` runs before the call, and may raise to stop it. A profiler that is already there
    sees everything too, and is put back.

    Args:
        observe: called with a frame, ``"call"``, ``"return"``, ``"c_call"`` and so on, and its
            argument, as :func:`sys.setprofile` says. Its errors are raised in the program.

    Raises:
        CaptureError: a profiler is on that cannot be put back.
    """

    def __init__(self, observe: Observe) -> None:
        self._profiler: Any = None
        self._hook: Observe = observe
        self._tracer: tuple[Any] | None = None
        self._frames: dict[FrameType, Any] = {}  # with the trace functions that they had

    def __enter__(self) -> Listening:
        profiler: Any = sys.getprofile()
        self._profiler = profiler
        observe: Any = self._hook
        if callable(profiler):

            def both(frame: FrameType, event: str, value: Any) -> None:
                observe(frame, event, value)
                profiler(frame, event, value)

            self._hook = both
        elif profiler is not None and not hasattr(profiler, "enable"):
            raise CaptureError(
                f"a profiler is on ({type(profiler).__module__}.{type(profiler).__qualname__}) "
                "that could not be put back. Capture before it is started.",
                transient=True,
            )
        sys.setprofile(self._hook)
        return self

    def go_on_after_errors(self, frame: FrameType | None, until: FrameType | None) -> None:
        """Keep observing ``frame`` and its callers while an error passes through them.

        Python removes the hook when it raises. The frames up to ``until`` put it back when the
        error comes to them, before any ``except`` or ``finally`` of theirs runs.
        """
        if self._tracer is None:
            self._tracer = (sys.gettrace(),)
        while frame is not None and frame is not until:
            if frame not in self._frames:
                # Ours where it began after an earlier error.
                self._frames[frame] = None if frame.f_trace == self._go_on else frame.f_trace
            frame.f_trace, frame.f_trace_lines = self._go_on, False
            frame = frame.f_back
        sys.settrace(self._go_on)

    def _go_on(self, frame: FrameType, event: str, value: Any) -> Any:
        if self._hook is _nothing:  # a frame that began meanwhile
            return None
        if event == "exception" and sys.getprofile() is None:
            sys.setprofile(self._hook)
        # Whoever traced before goes on: new frames are his.
        outer = self._tracer[0] if event == "call" and self._tracer else self._frames.get(frame)
        if outer is not None:
            traced = outer(frame, event, value)
            return traced if event == "call" else self._go_on
        return self._go_on

    def __exit__(self, *exc_info: object) -> None:
        if self._tracer is not None and sys.gettrace() == self._go_on:
            sys.settrace(self._tracer[0])
        for frame, before in self._frames.items():
            frame.f_trace = before
        self._frames.clear()  # nothing is to wait for the garbage collector
        self._hook = _nothing
        if self._profiler is None or callable(self._profiler):
            sys.setprofile(self._profiler)
        else:  # cProfile, which before Python 3.12 is no Python function and has missed the block
            self._profiler.enable()


def _nothing(frame: FrameType, event: str, value: Any) -> None:
    """Ignore the call."""


@contextmanager
def _through_the_hook(observer: CallObserver) -> Iterator[Listening]:
    def observe(frame: FrameType, event: str, value: Any) -> None:
        if waiting:
            let_in(frame)
        if event == "c_call":
            try:
                if observer.matters(value, value.__self__):
                    observer.calls(frame, value, value.__self__)
            except BaseException:
                let_go_of_unpacked(frame)
                raise
        elif event == "call" and frame.f_code in observer.codes:
            observer.begins(frame)

    with Listening(observe) as listening:
        yield listening


if sys.version_info >= (3, 12):
    # The others belong to debuggers and profilers; what else listens here prefers 4, 3 and 1.
    _TOOLS = (5, 3, 4, 1, 2)
    _DISABLE, _MISSING = sys.monitoring.DISABLE, sys.monitoring.MISSING

    class _Monitor:
        """Tells the observers of each thread; one tool for all of them."""

        def __init__(self) -> None:
            self._observers: dict[int, list[CallObserver]] = {}
            #: Of code that has run: who looks at its calls, of all threads.
            self._looked_at: dict[int, tuple[CodeType, list[CallObserver]]] = {}
            self._tool: int | None = None
            self._begun = 0  # how many observers have begun
            self._lock = new_lock()

        def begin(self, observer: CallObserver) -> bool:
            """Tell ``observer`` of this thread; gives whether that is possible."""
            with self._lock:
                if self._tool is None and not self._take_tool():
                    return False
                self._observers.setdefault(get_ident(), []).append(observer)
                self._begun += 1
                self._looked_at.clear()
                sys.monitoring.restart_events()  # what mattered to nobody may matter to this one
                return True

        def end(self, observer: CallObserver) -> None:
            """Tell it no more."""
            with self._lock:
                observers = self._observers.get(get_ident(), [])
                # A child of fork() may have forgotten it.
                observers[:] = [other for other in observers if other is not observer]
                self._settle()

        def keep_only(self, ident: int) -> None:
            """Forget the other threads, which a child of ``fork()`` does not have."""
            for other in [other for other in self._observers if other != ident]:
                self._observers[other].clear()
            self._settle()

        def _take_tool(self) -> bool:
            monitoring = sys.monitoring
            tool = next((n for n in _TOOLS if monitoring.get_tool(n) is None), None)
            if tool is None:
                return False
            monitoring.use_tool_id(tool, "gfxgraph.calls")
            events = monitoring.events
            monitoring.register_callback(tool, events.CALL, self._call)
            monitoring.register_callback(tool, events.PY_START, self._start)
            monitoring.set_events(tool, events.CALL | events.PY_START)
            self._tool = tool
            return True

        def _settle(self) -> None:
            self._looked_at.clear()  # it holds who observed
            for ident in [ident for ident, held in self._observers.items() if not held]:
                del self._observers[ident]
            if not self._observers and self._tool is not None:
                monitoring, tool = sys.monitoring, self._tool
                self._tool = None
                monitoring.set_events(tool, 0)
                monitoring.register_callback(tool, monitoring.events.CALL, None)
                monitoring.register_callback(tool, monitoring.events.PY_START, None)
                monitoring.free_tool_id(tool)

        def _everybody(self) -> list[CallObserver]:
            return [observer for held in list(self._observers.values()) for observer in held]

        @opaque
        def _start(self, code: CodeType, offset: int) -> Any:
            begun = self._begun
            if not any(code in observer.codes for observer in self._everybody()):
                # Another thread may have begun to observe since this one was asked.
                return _DISABLE if begun == self._begun else None
            for observer in reversed(self._observers.get(get_ident(), ())):
                if code in observer.codes:
                    observer.begins(sys._getframe(1))
            return None

        @opaque
        def _call(self, code: CodeType, offset: int, function: Any, first: Any) -> Any:
            try:
                if waiting:
                    let_in(sys._getframe(1))
                known = self._looked_at.get(address(code))
                if known is None:
                    begun = self._begun
                    looking = [o for o in self._everybody() if o.looks_at(code)]
                    if begun != self._begun or not self._observers:
                        return None  # another thread has begun to observe, or the last has ended
                    known = self._looked_at[address(code)] = code, looking
                looking = known[1]
                if not looking:
                    return _DISABLE
                kind = type(function)
                if kind is MethodDescriptorType and first is not _MISSING:
                    owner = first
                elif kind is BuiltinFunctionType or issubclass(kind, BuiltinFunctionType):
                    owner = function.__self__
                else:
                    return None
                for observer in reversed(self._observers.get(get_ident(), ())):
                    if observer in looking and observer.matters(function, owner):
                        observer.calls(sys._getframe(1), function, owner)
            except BaseException:
                let_go_of_unpacked(sys._getframe(1), first)
                raise
            return None

    _monitor = _Monitor()
    in_child(lambda: _monitor.keep_only(get_ident()))

    @contextmanager
    def observing(observer: CallObserver) -> Iterator[Listening | None]:
        """Tell ``observer`` of the calls of this thread.

        Yields what has to know of errors that ``observer`` raises, if anything has.

        Raises:
            CaptureError: as :class:`Listening` does.
        """
        if not _monitor.begin(observer):
            with _through_the_hook(observer) as listening:
                yield listening
            return
        try:
            yield None
        finally:
            _monitor.end(observer)

else:
    observing = _through_the_hook
