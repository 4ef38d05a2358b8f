"""Observes all calls of a thread, through Python's profiler hook."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..errors import CaptureError

__all__ = ["Listening"]

Observe = Callable[[FrameType, str, Any], object]


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
        self._observe = observe
        self._profiler: Any = None
        self._hook: Observe = observe
        self._tracer: tuple[Any] | None = None
        self._frames: dict[FrameType, Any] = {}  # with the trace functions that they had

    def __enter__(self) -> Listening:
        profiler: Any = sys.getprofile()
        self._profiler = profiler
        observe: Any = self._observe
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
                self._frames[frame] = frame.f_trace
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
        self._observe = self._hook = _nothing
        if self._profiler is None or callable(self._profiler):
            sys.setprofile(self._profiler)
        else:  # cProfile, which before Python 3.12 is no Python function and has missed the block
            self._profiler.enable()


def _nothing(frame: FrameType, event: str, value: Any) -> None:
    """Ignore the call."""
