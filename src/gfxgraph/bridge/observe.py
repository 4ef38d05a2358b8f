"""Observes the calls of a function while a block of the caller's code runs."""

from __future__ import annotations

import inspect
import itertools
import traceback
from collections.abc import Callable
from types import FrameType, FunctionType, MethodType, TracebackType
from typing import Any

from ..call.suitable import describe
from ..errors import ArgumentError
from ..interpose.listen import Listening

__all__ = ["ObservedCalls"]


class ObservedCalls:
    """A context manager that sees the calls of a function on this thread.

    It uses Python's profiler hook. Hooks of a module would see modules only, and would make
    compiled modules compile again. A profiler that runs already sees everything too.

    Args:
        fn: a Python function, a bound method of one, or an object with a ``__call__`` in Python
            such as a module.

    Attributes:
        fn: the function.
        is_inside: whether a call is under way.
        count: how many calls there were, without recursive ones.
        args: the arguments of the last.
        kwargs: its keyword arguments.
        result: its result; ``None`` if it raised.

    Raises:
        ArgumentError: calls of ``fn`` do not run Python code of its own.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.count = 0
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.result: Any = None
        self._function, self._owners = _what_runs(fn)
        self._frame: FrameType | None = None
        self.is_inside = False
        self._failed_outside = False
        self._listening = Listening(self._observe)

    @property
    def is_all_there_was(self) -> bool:
        """Whether there was one call, and no error from the rest of the block."""
        return self.count == 1 and not self._failed_outside

    def __enter__(self) -> None:
        self._listening.__enter__()

    def __exit__(
        self,
        cls: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listening.__exit__(cls, error, trace)
        frames = [frame for frame, _ in traceback.walk_tb(trace)]
        self._failed_outside = error is not None and self._frame not in frames
        self._frame = None

    def _observe(self, frame: FrameType, event: str, value: Any) -> None:
        if frame is self._frame:
            if event == "return":  # with None where it raises
                self.result, self.is_inside = value, False
        elif event == "call" and frame.f_code is self._function.__code__ and not self.is_inside:
            self._begin(frame)

    def _begin(self, frame: FrameType) -> None:
        if not _has_closure_of(self._function, frame):
            return
        args, kwargs = _arguments(frame, self._function)
        for owner in self._owners:
            found = args.pop(0) if args else None
            # Each look-up of a bound graphed method creates a new object.
            if found is not owner and not (type(found) is type(owner) and found == owner):
                return
        self.args, self.kwargs, self.result = tuple(args), kwargs, None
        self._frame, self.is_inside = frame, True
        self.count += 1


def _what_runs(fn: Any) -> tuple[FunctionType, list[Any]]:
    """The function that a call of ``fn`` runs, and the objects that it gets before the
    arguments."""
    if isinstance(fn, FunctionType):
        return fn, []
    function: Any = None
    if isinstance(fn, MethodType):
        function, owner = fn.__func__, fn.__self__
    elif callable(fn):
        function, owner = type(fn).__call__, fn
    if not isinstance(function, FunctionType):
        raise ArgumentError(
            f"model_fn is a {describe(fn)}, whose calls Python cannot observe: make it a "
            "function, such as `def model_fn(x): return original(x)`, and call that one."
        )
    return function, [owner]


def _has_closure_of(function: FunctionType, frame: FrameType) -> bool:
    """Whether ``frame`` runs ``function`` itself, and not one that the same decorator made."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            held = cell.cell_contents
        except ValueError:  # nothing yet
            continue
        if frame.f_locals.get(name) is not held:
            return False
    return True


def _arguments(frame: FrameType, function: FunctionType) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of the call that ``frame`` begins, without those left to their defaults."""
    found = inspect.getargvalues(frame)
    values, positional = found.locals, found.args[: frame.f_code.co_argcount]
    rest = values[found.varargs] if found.varargs else ()
    defaults = dict(zip(positional[::-1], (function.__defaults__ or ())[::-1], strict=False))
    defaults.update(function.__kwdefaults__ or {})
    # Positional-only arguments stay positional.
    placed = positional if rest else positional[: frame.f_code.co_posonlyargcount]
    left = {name for name, value in defaults.items() if values[name] is value} - {*placed}
    first = list(itertools.takewhile(lambda name: name not in left, positional))
    kwargs = {name: values[name] for name in found.args[len(first) :] if name not in left}
    kwargs.update(values[found.keywords] if found.keywords else {})
    return [*(values[name] for name in first), *rest], kwargs
