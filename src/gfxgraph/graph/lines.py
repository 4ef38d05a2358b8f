"""Finds the line of the user's code that made each node of a capture."""

from __future__ import annotations

import linecache
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, TypeVar

from ..device.nodes import Node, NodesOfCapture
from ..errors import DeviceError
from ..interpose.dynamo import is_compiled
from ..interpose.source import Source, is_the_users

__all__ = ["LinesOfNodes", "runs_functions"]

# A recording refuses calls of it by the program, and ours are none of those.
_set_trace: Any = sys.settrace

_Function = TypeVar("_Function", bound=Callable[..., Any])
_runs_functions: set[CodeType] = set()


def runs_functions(function: _Function) -> _Function:
    """A decorator for what runs a function in captures of ours, directly."""
    assert isinstance(function, FunctionType)
    _runs_functions.add(function.__code__)
    return function


# Those that trace captures by hand, in any thread, and what `sys.settrace` was before the first.
_by_hand: weakref.WeakSet[LinesOfNodes] = weakref.WeakSet()
_settrace_before: Any = sys.settrace


def _settrace(function: Any) -> Any:
    """Stands for ``sys.settrace`` while one of them traces: what is set for a while would hide."""
    hook = sys.gettrace()
    for lines in tuple(_by_hand):
        if hook is lines.hook:
            lines.forget()
    return _settrace_before(function)


def _watch_settrace() -> None:
    """Put :func:`_settrace` in place while it is needed."""
    global _settrace_before
    if _by_hand and sys.settrace is not _settrace:
        _settrace_before, sys.settrace = sys.settrace, _settrace
    elif not _by_hand and sys.settrace is _settrace:
        sys.settrace = _settrace_before


@dataclass(frozen=True)
class _Quoted(Source):
    """A line with the text that it had at the end of the capture: files are edited."""

    text: str = ""


class _Made(NamedTuple):
    """Nodes from ``first`` up to ``end`` were made at ``where``; ``newest`` is among the last."""

    first: int
    end: int
    where: Source
    newest: Sequence[int]


class LinesOfNodes:
    """Traces this thread, and counts the nodes before and after each line.

    A line that nobody can prove stays unknown: where the program itself changes the trace function,
    where the driver does not list the nodes in the order in which they were made, and where a node
    was not made on the stream that was current then.

    Args:
        nodes: looks at the capture.
        of_calls: whether it is a capture of ours, of a function that is called now: lines of those
            who call it made nothing.
    """

    def __init__(self, nodes: NodesOfCapture, of_calls: bool = False) -> None:
        self._nodes = nodes
        self._made: list[_Made] = []
        self._count = nodes.count()
        self._last = Source()
        self._is_open = True
        self._before: Any = sys.gettrace()
        # Frames that run already are only traced if they have a trace function of their own.
        self._frames: list[tuple[FrameType, Any]] = []
        self._callers: list[FrameType] = []
        self._of_calls = of_calls
        # Bound once: each look-up makes a new method, and end() compares.
        self.hook, self._step = self._call, self._line

    def begin(self) -> None:
        """Begin to trace, at the user's line that called this."""
        running: list[FrameType] = []
        callers: list[FrameType] = []
        found, frame = running, sys._getframe(1).f_back
        while frame is not None:
            if is_the_users(frame.f_code):
                found.append(frame)
            elif self._of_calls and frame.f_code in _runs_functions:
                found = callers
            frame = frame.f_back
        if self._of_calls and found is running:  # what calls the function is not known
            running, callers = [], running
        self._callers = callers
        self._frames = [(frame, frame.f_trace) for frame in running]
        for frame in running:
            frame.f_trace = self._step
        self._last = self._line_of(sys._getframe(1))
        if not self._of_calls:  # a recording refuses it in what is called
            _by_hand.add(self)
            _watch_settrace()
        _set_trace(self.hook)

    def forget(self) -> None:
        """Tell no line: some nodes were made while another trace function was set, or none."""
        self._is_open = False
        self._made.clear()

    def end(self) -> list[Node]:
        """End to trace; gives all nodes of the capture.

        Raises:
            DeviceError: the driver does not tell.
        """
        if self._is_open:
            self._look()
        self._is_open = False
        if sys.gettrace() is self.hook:
            _set_trace(self._before)
        else:  # the program's own, or this is another thread
            self._made.clear()
        _by_hand.discard(self)
        _watch_settrace()
        for frame, trace in self._frames:
            if frame.f_trace is self._step:
                frame.f_trace = trace
        self._frames.clear()
        self._callers.clear()
        try:
            return self._nodes.read()
        finally:
            del self._nodes  # its memory is not to wait for the garbage collector, as we do

    def of(self, nodes: Sequence[Node]) -> list[Source]:
        """The line of each node, without a file where it is not known."""
        found = [Source()] * len(nodes)
        position = {node.handle or n + 1: n for n, node in enumerate(nodes)}
        for file in {made.where.file for made in self._made}:
            linecache.checkcache(file)  # it may hold what was there before a reload
        for made in self._made:
            newest = [position.get(handle, len(nodes)) for handle in made.newest]
            if any(at >= made.end for at in newest):
                return [Source()] * len(nodes)  # they are in another order
            if any(at >= made.first for at in newest):
                line = made.where
                quoted = _Quoted(line.file, line.line, line.function, line.text)
                found[made.first : made.end] = [quoted] * (made.end - made.first)
        return found

    def _look(self) -> None:
        """Note what was made since the last time."""
        try:
            count = self._nodes.count()
            newest = self._nodes.newest() if count != self._count else ()
        except DeviceError:  # end() meets it again; here the program would get it
            self._is_open = False
            return
        if count != self._count:
            self._made.append(_Made(self._count, count, self._last, newest))
            self._count = count

    def _call(self, frame: FrameType, event: str, value: object) -> Any:
        if not self._is_open:  # the capture was ended on another thread
            if sys.gettrace() is self.hook:
                _set_trace(self._before)
            return None
        if not is_the_users(frame.f_code):
            return None
        self._look()
        self._last = self._line_of(frame)  # a generator goes on in the middle of a line
        return self._step

    def _line(self, frame: FrameType, event: str, value: object) -> Any:
        if not self._is_open:  # Python 3.10 still tells of the line after the end
            return None
        if sys.gettrace() is not self.hook:  # set past `sys.settrace`; of this frame we are told
            self.forget()
            return None
        self._look()
        self._last = self._line_of(frame.f_back if event == "return" else frame)
        return self._step

    def _line_of(self, frame: FrameType | None) -> Source:
        """The innermost line of this stack that is the user's, and not of compiled code."""
        while frame is not None:
            if is_the_users(frame.f_code) and not is_compiled(frame.f_code):
                if any(frame is caller for caller in self._callers):
                    break
                return Source(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            frame = frame.f_back
        return Source()
