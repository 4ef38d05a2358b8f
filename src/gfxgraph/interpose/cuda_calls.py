"""Observes the calls of a function to ``torch.cuda`` and to generators.

Functions of torch are replaced meanwhile. Other threads get the original behaviour.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, NamedTuple

import torch

from ..forking import in_child
from .patch import find, intercept

__all__ = [
    "CLASSES",
    "DEFAULT",
    "IS_CAPTURING",
    "OBSERVED",
    "Answer",
    "Listener",
    "Observer",
    "attached",
    "listening",
    "observe",
    "torch_place",
]


class Answer(NamedTuple):
    """The result for the caller, in place of that of the original."""

    value: Any


Observer = Callable[[str, str, Any], object]
"""Called with the kind of a call, its name and a detail.

If it returns ``True``, the original is not called. With an :class:`Answer` it is not called either,
and the caller gets that.

| kind | detail |
| --- | --- |
| ``"synchronize"`` | the stream or event that is waited for, or ``None``: the device |
| ``"query"`` | the stream or event that is asked whether it is done, or when it was |
| ``"seed"`` | the arguments |
| ``"generator"`` | ``None``: a generator of the device is made |
| ``"stream"`` | the stream that becomes the current one |
| ``"default-stream"`` | the default stream, which becomes the current one; ``"stream"`` follows |
| ``"fork"`` | (waiting, waited for): the waiting stream becomes part of the capture |
| ``"join"`` | (waiting, waited for): the waiting stream is the first one, or was forked before |
| ``"hidden-sync"`` | ``None``: an operator of the user's, or a check of torch's, reads the device |
| ``"capture"`` | the arguments of what begins or replays a capture of the function's own |
| ``"assumed"`` | the value that was made up where only the shape of the data is known |
"""

# Call -> (kind, result where the original is not called).
OBSERVED: dict[str, tuple[str, Any]] = {
    "torch.cuda.synchronize": ("synchronize", None),
    "torch._C._cuda_synchronize": ("synchronize", None),
    "torch.cpu.synchronize": ("synchronize", None),
    "torch.accelerator.synchronize": ("synchronize", None),
    "torch.cuda.Stream.synchronize": ("synchronize", None),
    "torch.cuda.Stream.query": ("query", True),
    "torch.cuda.Event.synchronize": ("synchronize", None),
    "torch.cuda.Event.query": ("query", True),
    "torch.cuda.Event.elapsed_time": ("query", 0.0),
    "torch.cpu.Event.synchronize": ("synchronize", None),
    "torch.cpu.Event.query": ("query", True),
    **dict.fromkeys(
        (
            f"torch.{module}{name}"
            for module in ("", "random.", "cuda.", "cuda.random.")
            for name in (
                "manual_seed",
                "manual_seed_all",
                "seed",
                "seed_all",
                "set_rng_state",
                "set_rng_state_all",
                "get_rng_state",
                "get_rng_state_all",
                "initial_seed",
            )
        ),
        ("seed", None),
    ),
    "torch.cuda.set_stream": ("stream", None),
    "torch.accelerator.set_stream": ("stream", None),
    "torch.cuda.Stream.__enter__": ("stream", None),
    "torch.cuda.Stream.__exit__": ("stream", None),
    "torch.cuda.Stream.wait_stream": ("wait", None),
    "torch.cuda.Stream.wait_event": ("wait", None),
    "torch.cuda.Event.wait": ("wait", None),
    "torch.cuda.Stream.record_event": ("record", None),
    "torch.cuda.Event.record": ("record", None),
    "torch.cuda.CUDAGraph.capture_begin": ("capture", None),
    "torch.cuda.CUDAGraph.replay": ("capture", None),
}

# torch.cuda.is_current_stream_capturing() looks these up when it is called. Replacing them reaches
# also code that imported the function by name.
IS_CAPTURING = (
    "torch._C._cuda_isCurrentStreamCapturing",
    "torch.cuda.graphs._cuda_isCurrentStreamCapturing",
)


def torch_place(path: str, may_be_missing: bool = False) -> tuple[Any, str] | None:
    """Owner and name of the attribute at ``path``; ``None`` where this torch has no such thing.

    Args:
        path: such as ``"torch.cuda.Stream.query"``.
        may_be_missing: the owner suffices.
    """
    place = find(path.replace(".", ":", 1))
    return place if place is not None and (may_be_missing or hasattr(*place)) else None


class _Local(threading.local):
    listener: Listener | None = None


_local = _Local()
# The thread of a child of fork() may be a copy of a thread with a listener.
in_child(lambda: setattr(_local, "listener", None))


@contextmanager
def listening(observer: Observer, *, answer_capturing: bool = False) -> Iterator[None]:
    """Report the calls of this thread that matter to a capture to ``observer``.

    Args:
        observer: see :data:`Observer`.
        answer_capturing: ``torch.cuda.is_current_stream_capturing()`` says yes.
    """
    origin = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
    with attached(Listener(observer, origin, answer_capturing)):
        yield


@contextmanager
def attached(listener: Listener) -> Iterator[None]:
    """Pass the calls of this thread to ``listener``."""
    with ExitStack() as stack:
        for path in (*OBSERVED, *listener.more):
            place = torch_place(path, may_be_missing=path.startswith(_MAY_BE_MADE))
            if place is not None:
                handler = functools.partial(listener.call, path)
                stack.enter_context(intercept(*place, handler))
        stack.callback(setattr, _local, "listener", _local.listener)
        _local.listener = listener
        yield


# Python functions of torch.cuda that were imported by name end in these; a CPU build lacks them.
_MAY_BE_MADE = "torch._C._cuda_"

# Classes in C, whose constructors cannot be replaced.
CLASSES = ("torch.Generator", "torch.Stream", "torch.Event")


class Listener:
    """Reports the calls of one thread, and lets them through.

    Args:
        observer: see :data:`Observer`.
        origin: the current stream at the beginning; ``None``: not known.
        capturing: the answer to whether a capture is underway.
    """

    more: Iterable[str] = IS_CAPTURING  # more paths to replace
    observed: ClassVar = OBSERVED  # the calls that are reported

    def __init__(self, observer: Observer, origin: Any, capturing: bool) -> None:
        self.observer = observer
        self._capturing = capturing
        self._origin = 0 if origin is None else origin.stream_id
        self._members = {self._origin}  # streams that a capture begun on the first one takes in
        self._recorded: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._inside = False

    def call(self, path: str, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Handle this thread's call of ``original``, the function at ``path``."""
        if self._inside or path not in self.observed:
            return self.perform(path, original, args, kwargs)
        kind, unless_called = self.observed[path]
        self._inside = True  # calls of torch and of the observer are not the function's
        try:
            given = (*args, *kwargs.values())
            if kind not in ("record", "stream"):
                answer = self._report(kind, path, given)
                if answer:
                    return answer.value if isinstance(answer, Answer) else unless_called
            if kind == "stream" and not path.endswith("__exit__"):
                if given[0] is None:
                    return None
                if self._enter(path, given[0]):
                    return unless_called
            result = self.perform(path, original, args, kwargs)
            if path.endswith("__exit__"):
                self._enter(path, torch.cuda.current_stream())
            if kind == "record":
                self._remember(path, given, result)
            return result
        finally:
            self._inside = False

    def perform(
        self, path: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make the call."""
        if self._capturing and path in IS_CAPTURING:
            self.observer("capturing", "torch.cuda.is_current_stream_capturing()", ())
            return True
        return original(*args, **kwargs)

    def _report(self, kind: str, path: str, given: tuple[Any, ...]) -> Any:
        detail: Any = given
        if kind in ("synchronize", "query"):
            detail = given[0] if _is_method(path) else None
        elif kind == "wait":
            detail = self._wait(path, given)
            kind = "join" if detail[0].stream_id in self._members else "fork"
            if detail[1] is not None and detail[1].stream_id in self._members:
                self._members.add(detail[0].stream_id)
        answer = self.observer(kind, f"{path}()", detail)
        return answer if answer is True or isinstance(answer, Answer) else None

    def _wait(self, path: str, given: tuple[Any, ...]) -> tuple[Any, Any]:
        """The stream that waits, and the one that it waits for."""
        if path.endswith("wait_stream"):
            return given[0], given[1]
        if path.endswith("wait_event"):
            return given[0], self._recorded.get(given[1])
        stream = given[1] if len(given) > 1 else None
        return stream or torch.cuda.current_stream(), self._recorded.get(given[0])

    def _remember(self, path: str, given: tuple[Any, ...], result: Any) -> None:
        if path.endswith("record_event"):
            self._recorded[result] = given[0]
        else:
            stream = given[1] if len(given) > 1 else None
            self._recorded[given[0]] = stream or torch.cuda.current_stream()

    def _enter(self, path: str, stream: Any) -> bool:
        dropped = False
        if stream.stream_id == DEFAULT != self._origin:
            dropped = self.observer("default-stream", f"{path}()", stream) is True
        return (self.observer("stream", f"{path}()", stream) is True) or dropped


DEFAULT = 0
"""The id of the default stream."""


def _is_method(path: str) -> bool:
    return path.split(".")[-2][:1].isupper()


def observe(kind: str, what: str, detail: Any) -> None:
    """Report to the listener of this thread, if there is one."""
    if _local.listener is not None:
        _local.listener.observer(kind, what, detail)
