"""Finds work on several streams of a function that nothing orders.

The rules are those of simulate/races.py, which the emulated device applies to captures. Here they
see an eager run on any device, so also on a GPU, which does not refuse a race.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ...device.operators import ALLOCATIONS, is_view, written_tensors
from ...interpose.patch import intercept
from ...interpose.source import Source, users_line
from ...record.effects import storage_key
from ...simulate.races import Clock, Uses

__all__ = ["Disorder", "disorder_in"]


@dataclass(frozen=True)
class Disorder:
    """Work that nothing orders.

    Attributes:
        what: what is missing.
        where: the user's line.
    """

    what: str
    where: Source


def disorder_in(call: Callable[[], Any]) -> list[Disorder]:
    """What is not ordered in a run of ``call``, one for each line; the run is eager."""
    order = _Order()
    with order.seen(), order:
        call()
    return order.end()


class _Order(TorchDispatchMode):
    """Sees each operation, and which others its stream has waited for."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._origin = torch.cuda.current_stream().stream_id
        self._clocks: dict[int, Clock] = {self._origin: {self._origin: 1}}
        self._events: dict[int, tuple[Any, Clock]] = {}  # by id; the event lives as long
        self._uses = Uses()
        self._known: set[int] = set()
        self._forks: dict[int, Source] = {}
        self._found: dict[Source, Disorder] = {}

    @contextmanager
    def seen(self) -> Iterator[None]:
        """See the events of this thread; streams wait through them."""
        with (
            intercept(torch.cuda.Event, "record", self._record),
            intercept(torch.cuda.Event, "wait", self._wait),
        ):
            yield

    def end(self) -> list[Disorder]:
        """All that was found; work that nothing waits for among it."""
        joined = self._clocks[self._origin]
        for stream, clock in self._clocks.items():
            if clock.get(stream, 0) > joined.get(stream, 0):
                self._add("the side stream is not joined", self._forks[stream])
        return list(self._found.values())

    def _add(self, what: str, where: Source) -> None:
        self._found.setdefault(where, Disorder(what, where))

    def _clock(self, stream: Any) -> Clock:
        stream = torch.cuda.current_stream() if stream is None else stream
        return self._clocks.setdefault(stream.stream_id, {})

    def _record(self, original: Any, event: Any, stream: Any = None) -> Any:
        self._events[id(event)] = event, dict(self._clock(stream))
        return original(event, stream)

    def _wait(self, original: Any, event: Any, stream: Any = None) -> Any:
        clock = self._clock(stream)
        if not clock:
            waits = torch.cuda.current_stream() if stream is None else stream
            self._forks.setdefault(waits.stream_id, users_line())
        for name, count in self._events.get(id(event), (None, {}))[1].items():
            clock[name] = max(clock.get(name, 0), count)
        return original(event, stream)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not isinstance(func, torch._ops.OpOverload):
            return result
        given = _of_device((args, kwargs))
        made = [t for t in _of_device(result) if storage_key(t) not in set(map(storage_key, given))]
        stream = torch.cuda.current_stream().stream_id
        clock = self._clocks.setdefault(stream, {})
        looks = is_view(func) or torch.Tag.inplace_view in func.tags
        if not looks and (given or made) and func._schema.name not in ALLOCATIONS:
            self._work(stream, clock, given, list(written_tensors(func, args, kwargs)))
        for tensor in made:
            self._uses.made(storage_key(tensor), stream, clock.get(stream, 0))
        self._known |= set(map(storage_key, made))
        return result

    def _work(
        self, stream: int, clock: Clock, given: list[torch.Tensor], written: list[torch.Tensor]
    ) -> None:
        where = users_line()
        self._forks.setdefault(stream, where)
        for key in set(map(storage_key, given)) - self._known:  # it was there before
            self._uses.made(key, self._origin, 1)
            self._known.add(key)
        other = self._uses.conflict(stream, clock, given, _of_device(written))
        if other is not None and self._origin not in clock:
            self._add("the side stream does not wait for what came before", where)
        elif other is not None:
            self._add("it uses what another stream makes or changes, and does not wait", where)
        clock[stream] = clock.get(stream, 0) + 1


def _of_device(tree: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor) and t.is_cuda]
