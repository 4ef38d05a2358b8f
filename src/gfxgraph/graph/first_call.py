"""The state that a first call found, for the capture that follows it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch

from .device_state import DeviceState
from .host_state import Stood
from .one_shots import Found, OneShots
from .stores import Stores

__all__ = ["as_of_now", "one_shots_before", "raise_if_moved"]


def as_of_now(
    regions: Sequence[torch.Tensor], generators: Sequence[torch.Generator], found: Found
) -> Callable[[str], AbstractContextManager[None]]:
    """Save the state that decides which path a call takes, beside its arguments.

    A capture after the call enters the context manager that is returned. Inside, the saved state
    is back, so that the capture takes the path of the call; afterwards the state is that of after
    the call again. The capture also knows which iterators the call advanced. The context manager
    takes what the call did that is not put back, such as "writes to its arguments".

    Args:
        regions: memory that the call may write to.
        generators: random generators that it may draw from.
        found: generators and iterators that it may advance.
    """
    one_shots, stood = OneShots(found), Stood(found)
    state = DeviceState(regions, generators)

    @contextmanager
    def put_back(doubt: str = "") -> Iterator[None]:
        one_shots.doubt = doubt
        with torch.no_grad():
            after = state.now()
            state.put_back(*before)
        outer = _of_the_call.one_shots, _of_the_call.stood
        _of_the_call.one_shots, _of_the_call.stood = one_shots, stood
        try:
            yield
        finally:
            _of_the_call.one_shots, _of_the_call.stood = outer
            with torch.no_grad():
                state.put_back(*after)

    with torch.no_grad():
        before = state.now()
    return put_back


class _OfTheCall(threading.local):
    one_shots: OneShots | None = None
    stood: Stood | None = None


_of_the_call = _OfTheCall()


def one_shots_before() -> OneShots | None:
    """Positions of iterators before the caller's own run; ``None``: there was no such run."""
    return _of_the_call.one_shots


def raise_if_moved(stores: Stores | None = None) -> None:
    """Raise if the caller's own run advanced state that no replay advances.

    Such a function is not run again.

    Args:
        stores: what a recorded run has met. Default: there was none yet, and what another thread
            may have advanced does not count.

    Raises:
        CaptureError: it did.
    """
    error = None if _of_the_call.stood is None else _of_the_call.stood.error(stores)
    if error is not None:
        raise error
