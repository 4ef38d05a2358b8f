"""Calls from the state that first calls have left, in which caches are filled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..interpose.source import name_of
from ..verifying.bench import Bench
from ..verifying.inputs import Inputs

__all__ = ["settled"]


@contextmanager
def settled(fn: Callable[..., Any], inputs: Sequence[Inputs]) -> Iterator[Bench]:
    """Calls of ``fn`` after one with each of the inputs; at the end all is as it was before.

    A first call may make what others only read, such as a table of positions. Measured calls would
    make it again if they began without it.

    Raises:
        Exception: any error of ``fn``.
    """
    first = Bench(fn, name_of(fn), list(inputs), 0, None)
    with first.all_put_back():
        first.prepare()
        for given in inputs:
            args, kwargs, _ = given.make()
            first.eager(*args, **kwargs)
        state = Bench(fn, name_of(fn), list(inputs), 0, None)
        with state.all_put_back():
            state.prepare()
            yield state
