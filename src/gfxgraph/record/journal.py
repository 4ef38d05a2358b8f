"""Repeats the results of ``no_graph`` functions, so that further runs need not call them again.

Such a function may count, send or write, so it runs once in each call of the user's: in the
caller's own run, and in each replay. Warm-up, capture and the first replay repeat its result.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ..device import generator_state
from ..errors import CaptureError
from .effects import storage_key, tensors_in

__all__ = ["Journal", "Judge", "inside_no_graph", "perform"]

Judge = Callable[[torch.Tensor, torch.Tensor], "str | None"]
"""Describes how a tensor differs from the one that it should equal; ``None``: it does not."""


@dataclass(frozen=True)
class _Given:
    """Stands for a result that is an argument itself: the n-th tensor of the call."""

    position: int


@dataclass
class _Call:
    """One call: its tensors before, those that it may have written, and its result.

    ``own`` are the tensors themselves; where the result is one of them, a repetition returns that
    of the next call. ``states`` are the generators after it. ``gives_views``: it returned a view of
    an argument. ``error``: it raised this instead of returning.
    """

    fn: Callable[..., Any]
    given: list[torch.Tensor]
    written: dict[int, torch.Tensor]
    result: Any
    own: list[torch.Tensor]
    states: list[tuple[torch.Generator, torch.Tensor]]
    gives_views: bool = False
    error: Exception | None = None

    def give(self, given: list[torch.Tensor]) -> Any:
        """Repeat the effects of the call on ``given`` and the generators, and return its result."""
        for generator, state in self.states:
            generator.set_state(state)
        for position, value in self.written.items():
            with _unseen():
                same = bool(self.given) and torch.equal(self.given[position], value)
            if not same:
                with torch.no_grad():
                    given[position].copy_(value)
        if self.error is not None:
            raise self.error

        def hand_out(value: Any) -> Any:
            if isinstance(value, _Given):
                return given[value.position]
            if not isinstance(value, torch.Tensor):
                return value
            same = next((n for n, tensor in enumerate(self.own) if tensor is value), None)
            return value.clone() if same is None else given[same]

        return pytree.tree_map(hand_out, self.result)


class _Local(threading.local):
    journal: Journal | None = None
    offered: Journal | None = None
    done: deque[_Call] | None = None
    inside = False


_local = _Local()


class Journal:
    """The calls of one run, in order.

    Args:
        copies: keep copies of the arguments, to compare them when the calls are repeated.
        generators: generators from which both the calls and the rest of the run may draw.
    """

    def __init__(self, copies: bool = True, generators: Sequence[torch.Generator] = ()) -> None:
        self._copies = copies
        self._generators = tuple(generators)
        self._calls: list[_Call] = []
        self._left: deque[_Call] | None = None
        self._last_given: list[list[torch.Tensor]] = []
        self._expected: list[list[torch.Tensor]] = []
        self._is_complete = False
        self._judge: Judge | None = None

    @classmethod
    def of_the_call(cls) -> Journal:
        """The journal of the caller's own run; an empty one if there was none."""
        return _local.offered or cls()

    @property
    def raised(self) -> bool:
        """Whether the last call raised an error."""
        return bool(self._calls) and self._calls[-1].error is not None

    @contextmanager
    def offered(self) -> Iterator[None]:
        """Captures inside repeat the calls."""
        before, _local.offered = _local.offered, self
        try:
            yield
        finally:
            _local.offered = before

    @contextmanager
    def playing(self, judge: Judge | None = None) -> Iterator[None]:
        """Remember the calls of the first run inside; repeat them in all further runs.

        Args:
            judge: compares the arguments of a repeated call with those of the run before; ``None``:
                no comparison.

        Raises:
            CaptureError: other functions are called, or with other tensors.
        """
        before, _local.journal = _local.journal, self
        self._left = deque(self._calls) if self._is_complete else None
        self._judge = judge
        if self._last_given:  # a capture calls nothing
            self._expected, self._last_given = self._last_given, []
        try:
            yield
            self._is_complete = True
        finally:
            _local.journal = before
            self._judge = None

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """The run inside begins with calls that were already made: they are not made again."""
        before, _local.done = _local.done, deque(self._calls)
        try:
            yield
        finally:
            _local.done = before

    def repeated(self, fn: Callable[..., Any], given: list[torch.Tensor]) -> Any:
        """The result of ``fn`` in the first run."""
        assert self._left is not None
        name = getattr(fn, "__qualname__", "a no_graph function")
        if not self._left or self._left[0].fn is not fn:
            raise CaptureError(
                f"{name}(), which is marked no_graph, is called in another order than in the "
                "call before, and may run only once in each call.",
                transient=True,
            )
        call = self._left.popleft()
        if call.gives_views:
            raise CaptureError(
                f"{name}(), which is marked no_graph, returns a view of its argument; a write to "
                "it would be lost. Let it return the argument itself, or a copy."
            )
        number = len(self._last_given)
        expected = self._expected[number] if number < len(self._expected) else call.given
        with _unseen():
            for tensor, before in zip(given, expected, strict=False):
                how: str | None = None
                if tensor.shape != before.shape or tensor.dtype != before.dtype:
                    how = f"its shape is {tuple(tensor.shape)}, it was {tuple(before.shape)}"
                elif self._judge is not None:
                    how = self._judge(tensor, before)
                if how is not None or len(given) != len(expected):
                    raise CaptureError(
                        f"{name}(), which is marked no_graph, is given another tensor than in the "
                        f"run before ({how}), and may run only once in each call.",
                        transient=True,
                    )
            self._last_given.append([_copy(tensor) for tensor in given])
        return call.give(given)

    def ran(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run ``fn``, and remember its result and the tensors that it may have written."""
        given = list(tensors_in((args, kwargs)))
        if not self._copies:  # in a replay: as little as possible
            if len(set(map(storage_key, given))) == len(given):
                # The function may keep its arguments, and the next replay overwrites them.
                own = list(map(_copy, given))
                args, kwargs = _exchanged((args, kwargs), given, own)
            else:
                own = given
            versions = [_version(tensor) for tensor in own]
            error, result = _outcome(fn, args, kwargs, own)
            result = _exchanged(result, own, given)
            changed = {
                position: _copy(tensor)
                for position, tensor in enumerate(own)
                if versions[position] is None or _version(tensor) != versions[position]
            }
            with torch.no_grad():
                for position, value in changed.items():
                    if own is not given:
                        given[position].copy_(value)
            states = self._states()
            self._calls.append(_Call(fn, [], changed, result, given, states, error=error))
            if error is not None:
                raise error
            return result
        with _unseen():
            before = list(map(_copy, given))
        error, result = _outcome(fn, args, kwargs, given)

        def keep(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            same = next((n for n, tensor in enumerate(given) if tensor is value), None)
            return _copy(value) if same is None else _Given(same)

        with _unseen():
            after = dict(enumerate(map(_copy, given)))
            self._last_given.append(before)
            kept = pytree.tree_map(keep, result)
            views = not {*map(storage_key, given)}.isdisjoint(
                storage_key(t) for t in tensors_in(result) if not any(t is g for g in given)
            )
            self._calls.append(_Call(fn, before, after, kept, [], self._states(), views, error))
        if error is not None:
            raise error
        return result

    def _states(self) -> list[tuple[torch.Generator, torch.Tensor]]:
        return [(generator, generator_state(generator)) for generator in self._generators]


def _exchanged(tree: Any, these: list[torch.Tensor], those: list[torch.Tensor]) -> Any:
    """``tree`` with each tensor of one list replaced by that of the other."""
    others = {id(one): other for one, other in zip(these, those, strict=True)}
    return pytree.tree_map_only(torch.Tensor, lambda t: others.get(id(t), t), tree)


def inside_no_graph() -> bool:
    """Whether this thread runs a ``no_graph`` function."""
    return _local.inside


def perform(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a ``no_graph`` function, or return its earlier result if this run repeats one."""
    journal = _local.journal
    if _local.inside or (journal is None and not _local.done):
        return fn(*args, **kwargs)
    if journal is None:
        return _run(fn, args, kwargs, list(tensors_in((args, kwargs))))
    if journal._left is not None:
        return journal.repeated(fn, list(tensors_in((args, kwargs))))
    return journal.ran(fn, args, kwargs)


def _outcome(
    fn: Callable[..., Any], args: Any, kwargs: Any, given: list[torch.Tensor]
) -> tuple[Exception | None, Any]:
    """The error that ``fn`` raised, or ``None``; and its result."""
    try:
        return None, _run(fn, args, kwargs, given)
    except Exception as error:  # raised again by the caller
        return error, None


def _run(fn: Callable[..., Any], args: Any, kwargs: Any, given: list[torch.Tensor]) -> Any:
    if _local.done:
        if _local.done[0].fn is fn:
            return _local.done.popleft().give(given)
        _local.done.clear()
    _local.inside = True
    try:
        return fn(*args, **kwargs)
    finally:
        _local.inside = False


@contextmanager
def _unseen() -> Iterator[None]:
    """Hide our own operations on tensors: they are none of the function's."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version
