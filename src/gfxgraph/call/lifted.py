"""Calls of a function that writes to places in Python: their graphs hold these as well.

The graphs are those of ``lifted(entry, args, kwargs) -> (result, effects)``, see
:mod:`~gfxgraph.graph.lift`. A dispatcher of their own answers such calls: ``entry`` is part of its
key as arguments are, tensors in it are static inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..device import current_device
from ..errors import CaptureError
from ..graph.lift import Lift, Lifting
from ..interpose.interrupts import interrupt_in
from .builder import Answers
from .replay import NO_MATCH, FastPath
from .signature import Spec, count_tensors

__all__ = ["fast_path_of", "lifted_call", "state_on_host"]


class Lifted(Lifting):
    """One call of a function, with the state that it writes as argument and result.

    Args:
        fn: the function.
        lift: the places that it writes.
        entry: what those hold that it reads.

    Attributes:
        has_run: whether the call ran for its caller, so that the places hold what it has left.
    """

    def __init__(self, fn: Callable[..., Any], lift: Lift, entry: list[Any]) -> None:
        self.__wrapped__, self.lift, self._entry = fn, lift, entry
        self.has_run = False

    @property
    def __self__(self) -> Any:
        """The module that it belongs to, if it does."""
        return getattr(self.__wrapped__, "__self__", self.__wrapped__)

    def __call__(
        self, entry: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...]]:
        """Run the function; gives its result, and what it leaves in the places."""
        lift = self.lift
        if entry is self._entry:
            self.has_run = True
            before = lift.values()
            result = self.__wrapped__(*args, **kwargs)
            return result, lift.own(before)
        lift.begin(entry)
        try:
            result = self.__wrapped__(*args, **kwargs)
        except Exception as error:
            if interrupt_in(error) is None:
                lift.require_unused()
            raise
        return result, lift.end()


_NO_NUMBER = "a counter that each call advances holds something else than a whole number now"

_NO_ORDER = (
    "several keys that each call stores were taken out of their dict, and nobody knows in which "
    "order the function stores them"
)


def fast_path_of(lift: Lift, inner: Answers) -> FastPath:
    """The fast path of a callable that is lifted: it answers every call.

    Args:
        lift: the places that it writes.
        inner: answers the calls of the lifted function.
    """
    counts = any(slot.is_counter for slot in lift.slots.values())
    ordered = bool(lift.in_dicts)

    def fast_path(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if counts and not lift.counts():
            return inner.refused(_NO_NUMBER, CaptureError, fn, args, kwargs, ())
        if ordered and not lift.has_order():
            return inner.refused(_NO_ORDER, CaptureError, fn, args, kwargs, ())
        entry = lift.gather()
        lifted, given = Lifted(fn, lift, entry), (entry, args, kwargs)
        found = inner.fast_path(lifted, given, {})
        if found is NO_MATCH:
            found = inner(lifted, given, {})
        if not lifted.has_run:
            lift.store(found[1])
        return found[0]

    return fast_path


def lifted_call(
    lift: Lift, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The lifted function of a call, and what that is called with."""
    entry = lift.gather()
    return Lifted(fn, lift, entry), (entry, args, kwargs)


def state_on_host(leaves: Sequence[torch.Tensor], spec: Spec) -> str | None:
    """Why the state among the tensors of a lifted call cannot be an input of a graph.

    A static input lies on the device. An argument may be copied there; what the function keeps for
    itself is given to code for the host, which reads the address of the device as one of its own.
    """
    state = leaves[: count_tensors(spec[3][0][3][0])]
    device = current_device().type
    elsewhere = next((t.device for t in state if t.device.type != device), None)
    if elsewhere is None:
        return None
    return (
        f"each call reads and rebinds in Python a tensor on {elsewhere}; a graph can pass on only "
        f"what is on {device}. Keep it there, or move it out of the function"
    )
