"""Errors that come from outside: of signal handlers, and those that other threads send.

Python runs a signal handler between any two instructions of the main thread. An error that it
raises there would end a step of ours half done: a lock is taken that nobody releases, a function of
torch stays replaced. It may also be taken for a failure of what it has interrupted. So while a
function is captured each handler has a stand-in. The handler runs when it is due. Its error goes on
at once from the program's code, and from ours at the next point at which it does no harm.

An error that another thread sends (``PyThreadState_SetAsyncExc``) cannot be held back.
:func:`interrupt_in` knows it by where it was raised.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch

from ..forking import in_child
from .patch import intercept
from .source import instruction_of, is_ours, is_users_file

__all__ = [
    "held_back",
    "interrupt_in",
    "is_stand_in",
    "let_in",
    "own_handlers",
    "waiting",
]

waiting: list[BaseException] = []
"""The error that waits for a point at which it does no harm."""

# What handlers have raised since the outermost block began, and how many blocks there are.
_raised: list[BaseException] = []
_blocks = 0


class held_back:
    """Let errors of signal handlers wait while code of gfxgraph runs on the main thread.

    On other threads no handler runs, and nothing is done.

    Args:
        all_leave: raise at the end what handlers have raised inside, whatever has become of it.
            Default: only what still waits, since the function may catch an error of its own alarm.

    Raises:
        BaseException: the error of a handler, at the end.
    """

    def __init__(self, all_leave: bool = False) -> None:
        self._all_leave = all_leave
        self._is_main = threading.current_thread() is threading.main_thread()
        self._before = len(_raised)

    def __enter__(self) -> None:
        global _blocks
        if not self._is_main:
            return
        _blocks += 1
        try:
            if _blocks == 1:
                _stand_in()
        except BaseException:
            _blocks -= 1
            if not _blocks:
                _step_back()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        global _blocks
        if not self._is_main or not _blocks:  # none, in a child that was forked inside
            return
        try:
            if _blocks == 1:
                _step_back()
        finally:
            _blocks -= 1
            found = _raised[self._before :] if self._all_leave else list(waiting)
            if not _blocks:
                waiting.clear()
                _raised.clear()
        try:
            if found and error is not found[0]:
                raise found[0]
        finally:
            found.clear()  # its traceback holds this frame


@contextmanager
def own_handlers() -> Iterator[None]:
    """Answer with its own handlers a function that runs for its caller and asks for them."""
    with ExitStack() as stack:
        for name in ("getsignal", "signal") if _blocks else ():
            stack.enter_context(intercept(_signal, name, _with_the_programs))
        yield


def _with_the_programs(original: Callable[..., Any], *args: Any) -> Any:
    handler = original(*args)
    return handler.handler if isinstance(handler, _StandIn) else handler


def is_stand_in(handler: object) -> bool:
    """Whether a handler stands for one of the program's."""
    return type(handler) is _StandIn


def let_in(frame: FrameType | None = None) -> None:
    """Raise what waits, if this is the main thread.

    Args:
        frame: raise it only if its code is the program's. Default: raise it.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if waiting and is_main and (frame is None or not _is_ours(frame)):
        raise waiting.pop()


def interrupt_in(error: BaseException | None) -> BaseException | None:
    """The error from outside that is, or has led to, ``error``; ``None``: there is none."""
    seen: set[int] = set()
    is_caused = True  # and not only met while another error was handled, of before perhaps
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        is_raised = any(error is other for other in _raised) or (not _blocks and _is_raised(error))
        if is_raised or (is_caused and _is_sent(error)):
            return error
        is_caused = is_caused and error.__cause__ is not None
        error = error.__cause__ or error.__context__
    return None


# Signal handlers.


class _StandIn:
    """Stands for a signal handler of the program; outside of all blocks it only passes on."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        try:
            return self.handler(number, frame)
        except BaseException as error:
            if _blocks:
                _raised.append(error)
                # Who interrupts once more does not want to wait.
                if not waiting and _is_ours(frame):
                    waiting.append(error)
                    return None
            raise


_replaced: set[int] = set()

# Those of the module ``signal`` make enums, which takes twenty times as long.
_handler_of, _set_handler = _signal.getsignal, _signal.signal
_NUMBERS = sorted(map(int, signal.valid_signals()))


def _stand_in() -> None:
    for number in _NUMBERS:
        handler = _handler_of(number)
        if callable(handler):
            _replaced.add(number)
            if not isinstance(handler, _StandIn):
                _set_handler(number, _StandIn(handler))


def _step_back() -> None:
    try:
        for number in list(_replaced):
            handler = _handler_of(number)
            if isinstance(handler, _StandIn):
                _set_handler(number, handler.handler)
            _replaced.discard(number)
    finally:
        if _replaced:  # one that is back already has raised an error
            _step_back()


# Parts of torch that compile, or run what is the program's: whoever calls them copes with errors.
_RUNNING = tuple(
    str(Path(torch.__file__).parent / part)
    for part in ("nn/", "_inductor/", "_functorch/", "_dynamo/")
)
_ENTERED = str(Path(torch.__file__).parent / "_dynamo/eval_frame.py")


def _is_ours(frame: FrameType | None) -> bool:
    """Whether a frame belongs to gfxgraph, or to what that calls of Python's library or torch."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_ours(file):
            return True
        if is_users_file(file) or (file.startswith(_RUNNING) and file != _ENTERED):
            return False
        frame = frame.f_back
    return False


def _is_raised(error: BaseException) -> bool:
    """Whether ``error`` has passed through a signal handler, outside of all blocks."""
    codes = set()
    for number in _NUMBERS:
        handler = _handler_of(number)
        called: Any = handler if type(handler) in _CODED else vars(type(handler)).get("__call__")
        called = called.__func__ if type(called) is MethodType else called
        codes.add(called.__code__ if type(called) is FunctionType else None)
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


_CODED = (FunctionType, MethodType)


# Errors that other threads send.

# Python looks for them at such instructions, which raise nothing themselves.
_PAUSES = ("RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
# C code raises these without arguments.
_BARE = (StopIteration, StopAsyncIteration, MemoryError, EOFError)


def _is_sent(error: BaseException) -> bool:
    """Whether another thread has sent it, which has no argument then.

    Python looks for such errors after calls of C as well. There a bare error that is none of
    Python's own is taken for one that was sent.
    """
    name = instruction_of(error)
    if name.startswith(_PAUSES):
        return True
    is_bare = not error.args and not isinstance(error, _BARE)
    return name.startswith("CALL") and is_bare and type(error).__module__ != "_queue"


def _forget() -> None:
    """Nothing is underway in a child of ``fork()``."""
    global _blocks
    if _blocks:
        _step_back()
    _blocks = 0
    waiting.clear()
    _raised.clear()


in_child(_forget)
