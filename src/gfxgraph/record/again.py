"""Remembers what the operations of a frame did, to leave them out when the frame runs again.

Where a frame in Python can only do what it did before (``graph/repeats.py``), it calls the same
operators, with tensors that are alike. What a :class:`~gfxgraph.record.recorder.Recorder` learns
from them is then known as well: which memory was made, and what its data depends on. That is so
only if

- the tensors that the frame is given lie as the others did: the same of them share memory, it was
  made by the run or is the same memory from outside, and its data depends on the same;
- nothing that was there before the run was written in between;
- the frame did nothing but compute: no event, no note, no write outside, no random number;
- all memory that it made and that is still there was found in its variables and its result.

At its end the variables and the result are compared with those of the first time, and so is which
code has begun in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from ..device.overrides import MODE_STACKS
from .provenance import Provenance
from .recorder import Recorder

__all__ = ["Begun", "Done", "Passages"]

# A frame with fewer operations is not worth it.
_MIN_OPERATIONS = 128

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _not_for_modes(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Keep torch function modes from seeing what ``function`` asks of tensors."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with torch._C.DisableTorchFunction():
            return function(*args, **kwargs)

    return call


class Begun(NamedTuple):
    """A frame that begins.

    Attributes:
        facts: of each tensor that it is given, how it lies and what it depends on.
        names: of their memory, in order.
        calls: of functions of torch, so far.
        operations: so far.
        known: how much memory was met so far.
        state: of the recording; a frame that only computes does not change it.
        outside: what has been done to data from outside.
    """

    facts: tuple[Any, ...]
    names: dict[int, int]
    calls: int
    operations: int
    known: int
    state: tuple[Any, ...]
    outside: tuple[Any, ...]


class Done(NamedTuple):
    """What a frame has done.

    Attributes:
        facts: those of :class:`Begun`.
        outside: what had been done to data from outside.
        calls: how many functions of torch it has called.
        operations: how many it took.
        found: of each tensor that was found at its end, where its memory is from.
        given: what the data depends on that was given to it, by the number of the memory.
        made: what the data depends on that it has made, likewise.
        peak: most bytes that were taken at one time, so far.
        alive: bytes that were taken at its end.
    """

    facts: tuple[Any, ...]
    outside: tuple[Any, ...]
    calls: int
    operations: int
    found: tuple[Any, ...]
    given: list[Provenance]
    made: list[Provenance]
    peak: int
    alive: int


class Passages:
    """The frames of a run that is recorded.

    Args:
        recorder: of the run.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        #: Whether the operations of now are not looked at.
        self.is_away = False

    @_not_for_modes
    def begin(self, given: Sequence[torch.Tensor]) -> Begun | None:
        """A frame begins that is ``given`` tensors; ``None``: it may be part of something else."""
        recorder = self._recorder
        if not self._is_whole():
            return None
        names: dict[int, int] = {}
        inside, undefined = recorder.inside, recorder.undefined
        facts: list[Any] = [_autocast_dtypes()]
        if not all(map(_has_memory, given)) or _makes_more():
            return None
        for tensor in given:
            name = recorder.name(tensor)
            number = names.setdefault(name, len(names))
            place = None if name in inside else name
            depends = recorder.provenance.joined((name,))
            if recorder.provenance.is_exposed(name):
                return None
            # What fills its memory takes from it what it depended on.
            size = tensor.untyped_storage().nbytes()
            facts.append(
                (number, place, size, depends, name in undefined, name in recorder.elsewhere)
            )
        return Begun(
            tuple(facts),
            names,
            recorder.calls,
            recorder.recording.operations,
            len(recorder.name),
            recorder.state(),
            self._outside(),
        )

    @property
    def operations(self) -> int:
        """How many there were so far."""
        return self._recorder.recording.operations

    def is_large(self, operations: int) -> bool:
        """Whether a frame that ends has done much; it began after so many ``operations``."""
        return self.operations - operations >= _MIN_OPERATIONS

    def only_computed(self, begun: Begun) -> bool:
        """Whether a frame that ends has done nothing but compute."""
        return self._is_whole() and self._recorder.state() == begun.state

    @_not_for_modes
    def done(self, begun: Begun, tensors: Sequence[torch.Tensor]) -> Done | None:
        """What a frame that ends has computed; ``None``: that cannot be done again unseen.

        Args:
            begun: its beginning.
            tensors: what is found at its end.
        """
        recorder = self._recorder
        if not all(map(_has_memory, tensors)):
            return None
        found, names = self._found(begun, tensors)
        new = recorder.name.newest(len(recorder.name) - begun.known)
        alive = set(new) - set(recorder.name.freed(new)) - recorder.outside.keys()
        if not alive <= names.keys() or not recorder.undefined.isdisjoint(names):
            return None
        made = list(names)[len(begun.names) :]
        if not (recorder.inside.issuperset(made) and set(new).issuperset(made)):
            return None
        if recorder.emulated and not recorder.elsewhere.isdisjoint(made):
            return None
        joined = recorder.provenance.joined
        return Done(
            begun.facts,
            self._outside(),
            recorder.calls - begun.calls,
            recorder.recording.operations - begun.operations,
            found,
            [joined((name,)) for name in begun.names],
            [joined((name,)) for name in made],
            recorder.recording.peak_bytes,
            recorder.bytes_alive(),
        )

    def does_it_again(self, begun: Begun, done: Done) -> bool:
        """Whether a frame that begins can only do what another has done, and as it ran before."""
        return begun.facts == done.facts and begun.outside == done.outside

    def look_away(self) -> None:
        """See no operations until :meth:`look_again`."""
        for _, pop, _ in MODE_STACKS:
            pop()
        self.is_away = True

    def look_again(self) -> None:
        """See operations again."""
        if self.is_away:
            self.is_away = False
            for (_, _, push), mode in zip(MODE_STACKS, self._recorder.modes, strict=True):
                push(mode)

    @_not_for_modes
    def did_it_again(self, begun: Begun, done: Done, tensors: Sequence[torch.Tensor]) -> bool:
        """Note what a frame has done while nobody looked; gives whether that is found."""
        recorder, provenance = self._recorder, self._recorder.provenance
        if not all(map(_has_memory, tensors)):
            return False
        found, names = self._found(begun, tensors)
        made = list(names)[len(begun.names) :]
        if found != done.found or not recorder.inside.isdisjoint(made):
            return False
        recorder.undefined.difference_update(names)  # as at the end of the first
        recorder.calls += done.calls
        recorder.recording.operations += done.operations
        for name, depends in zip(begun.names, done.given, strict=True):
            provenance.mark(name, depends)
        by_name = {recorder.name(tensor): tensor for tensor in tensors}
        for name, depends in zip(made, done.made, strict=True):
            provenance.give(name, depends)
            recorder.made(name, by_name[name])
        # It has taken as much more as it did before.
        more = max(0, recorder.bytes_alive() - done.alive)
        recording = recorder.recording
        recording.peak_bytes = max(recording.peak_bytes, done.peak + more)
        return True

    def _found(
        self, begun: Begun, tensors: Sequence[torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[int, int]]:
        """Where the memory of ``tensors`` is from, and the numbers of what was given and made."""
        recorder, names = self._recorder, dict(begun.names)
        found: list[Any] = []
        for tensor in tensors:
            name = recorder.name(tensor)
            if name in recorder.outside or name in recorder.inputs:
                found.append((name, "outside"))
            else:
                found.append((names.setdefault(name, len(names)), name in recorder.elsewhere))
        return tuple(found), names

    def _outside(self) -> tuple[Any, ...]:
        """What the run has done to data from outside."""
        recording = self._recorder.recording
        notes = sum(n for note, n in recording.notes.items() if note.rule != "random")
        calls = sum(event.point.kind == "call" for event in recording.events)
        moved = self._recorder.moved()
        return len(recording.writes), notes, calls, moved, recording.refused

    def _is_whole(self) -> bool:
        """Whether what runs is no part of a call of torch, and our modes alone look on."""
        modes = self._recorder.modes
        if self._recorder.call is not None or not modes or not self._recorder.only_records:
            return False
        return all(top() is mode for (top, _, _), mode in zip(MODE_STACKS, modes, strict=True))


# Those of vmap() have none of their own.
_has_memory: Callable[[torch.Tensor], bool] = torch._C._has_storage


def _makes_more() -> bool:
    """Whether operations may make what the program does not see: copies of weights, which
    ``torch.autocast`` uses again later, or tangents."""
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    if not torch.is_autocast_cache_enabled():
        return False
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def _autocast_dtypes() -> tuple[torch.dtype, ...]:
    return torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")
