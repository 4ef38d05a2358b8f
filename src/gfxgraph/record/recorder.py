"""One run of a function, remembered: what a capture would meet, and what came out there."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import torch
import torch.utils._pytree as pytree
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from ..device.operators import written_tensors
from ..interpose.source import Source, users_line
from .effects import UndoLog, tensors_in
from .explain import explain
from .interceptor import Dependence, Interceptor, Point

_DONE_IN_EACH_CALL = ("no-graph", "seed")

__all__ = ["Event", "Note", "Recorder", "Recording"]


@dataclass
class Event:
    """A point that a capture cannot hold, and the result of this run there.

    Attributes:
        point: what it is.
        where: the user's line.
        varying: whether what comes out may be something else in the next call.
        writes: whether it writes to a tensor that it was given.
        result: what came out, each tensor copied. A tensor that is one of the arguments is
            ``Same(n)``: the n-th of them.
        given: of a constant, what came from the host.
        call: in which call of a function of torch, counted from the start; ``None``: in none.
        sources: storage keys of the tensors from outside that it depends on.
    """

    point: Point
    where: Source
    varying: bool
    writes: bool
    result: Any
    given: Any
    call: int | None
    sources: frozenset[int]

    @property
    def folds(self) -> bool:
        """Whether the result can be put in its place."""
        return not self.varying and not self.writes

    @property
    def is_of_the_host(self) -> bool:
        """Whether it is a constant into which nothing went that was on the device before."""
        return self.folds and self.point.kind == "constant" and not self.sources

    def same_outcome(self, other: Event) -> bool:
        """Whether another run of the same point gave the same."""
        return _same(self.result, other.result)

    def was_given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a constant is made of the same again; asked without waiting for the device."""
        return _same(self.given, (args, kwargs))


@dataclass(frozen=True)
class Same:
    """Stands for a result that is an argument itself: the n-th tensor of the call."""

    position: int


@dataclass(frozen=True)
class Note:
    """Something that a capture can hold and that a report mentions.

    Attributes:
        rule: id in the catalogue.
        what: the API or the operator.
        where: the user's line.
    """

    rule: str
    what: str
    where: Source


@dataclass
class Recording:
    """The effects and operations of one run.

    Attributes:
        events: the points that a capture cannot pass, in order.
        notes: what else a report mentions, in order, with how often.
        outside: storage key -> an alias, for each tensor from outside that was used; holding it
            keeps the memory alive.
        operations: operations of the device.
        writes: (storage key, number of events before) of each write to a tensor from outside.
        draws: number of events before the first random number of the device; ``None``: none.
        peak_bytes: bytes of the device that what the run made took at most, at one time.
        dtypes: of what it made there.
        compiles: whether it called a function that is to be compiled; in this run it was not.
        layout: the first call that asked how an argument lies in memory (its strides).
        views: the first call whose effect depends on that: a view that not every layout has, a
            write, an argument that is given back.
        asks_capturing: whether it asked for a capture, and may go another way in one.
        unseen: tensors among what it returned that no operation used or made.
    """

    events: list[Event] = field(default_factory=list)
    notes: dict[Note, int] = field(default_factory=dict)
    outside: dict[int, torch.Tensor] = field(default_factory=dict)
    originals: dict[int, weakref.ref[torch.Tensor]] = field(default_factory=dict)
    operations: int = 0
    writes: list[tuple[int, int]] = field(default_factory=list)
    draws: int | None = None
    peak_bytes: int = 0
    dtypes: set[torch.dtype] = field(default_factory=set)
    compiles: bool = False
    layout: Note | None = None
    views: Note | None = None
    asks_capturing: bool = False
    unseen: list[torch.Tensor] = field(default_factory=list)

    def breaks(self) -> list[Event]:
        """The points at which a graph has to end and the host takes over."""
        return [event for event in self.events if not event.folds]

    def calls_that_fold(self) -> frozenset[int] | None:
        """The calls in which something folds, if nothing else has to be seen to repeat the run."""
        calls = frozenset(event.call for event in self.events if event.call is not None)
        return calls if all(event.folds and event.call for event in self.events) else None

    def written_before_the_last_break(self) -> set[int]:
        """Storage keys of what a call may have written when it turns out to take a new path."""
        last = max((n for n, event in enumerate(self.events) if not event.folds), default=-1)
        return {key for key, before in self.writes if before <= last}

    def sources_of_folds(self) -> set[int]:
        """Storage keys of the tensors from outside whose values were taken for constant."""
        return {key for event in self.events if event.folds for key in event.sources}


class Generators(Protocol):
    """Learns which generators a run draws from."""

    def will_draw(self, generator: torch.Generator | None) -> None: ...
    def drew(self, repeats: bool) -> None: ...


class Recorder(Interceptor):
    """Runs everything and remembers it.

    Args:
        log: learns what the run writes outside.
        keep_values: save each region before its first write, so that the run can be undone.
        off_stream: the rule by which work on the current stream is left out of a capture.
        names: names of tensors from outside, by storage key.
        generators: learns what is drawn from which generator.
        options: see :class:`Interceptor`.

    Attributes:
        recording: what the run did.
    """

    def __init__(
        self,
        device_type: str,
        inputs: Iterable[torch.Tensor],
        log: UndoLog,
        keep_values: bool,
        off_stream: Callable[[], str | None] = lambda: None,
        names: Mapping[int, str] = MappingProxyType({}),
        generators: Generators | None = None,
        **options: Any,
    ) -> None:
        super().__init__(device_type, inputs, **options)
        self._generators = generators
        self.recording = Recording(outside=self.outside, originals=self.provenance.originals)
        self._log = log
        self._keep_values = keep_values
        self._off_stream = off_stream
        self._names = names
        self._alive: dict[int, int] = {}
        self._alive_bytes = 0

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation that a capture can hold."""
        self.recording.operations += 1
        rule = self._off_stream()
        if rule is not None:
            self.met(rule, str(func))
        return func(*args, **kwargs)

    def event(
        self, point: Point, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run it, and remember what came out."""
        given = list(tensors_in((args, kwargs)))
        # A function of the user's may write to whatever it is given or reaches.
        if isinstance(func, OpOverload):
            writes = any(True for _ in written_tensors(func, args, kwargs))
        else:
            writes = point.rule == "no-graph"
        is_higher = isinstance(func, HigherOrderOperator)
        roots = None if is_higher else self.roots(point.depends)
        event = Event(
            point._replace(depends=()),  # not to keep the tensors of the run alive
            users_line(),
            varying=point.rule in _DONE_IN_EACH_CALL or roots is None or is_higher,
            writes=writes,
            result=None,
            given=None,
            call=self.call,
            sources=roots or frozenset(),
        )
        with self.quietly():
            if point.kind == "constant":
                event.given = _kept((args, kwargs), [])
            before = len(self.recording.events)
            result = func(*args, **kwargs)
            del self.recording.events[before:]
            with self._unseen():  # the host has made it: no operation has seen it yet
                event.result = _kept(result, given)
        self.recording.events.append(event)
        if not isinstance(func, OpOverload):
            self.drew(repeats=True)
        return result

    def rebinds(self, what: str) -> None:
        """Refuse, before it is done: no replay would do it."""
        raise explain("side-effect", what, users_line())

    def heard(self, kind: str, what: str, detail: Any) -> object:
        """A call of the host's that is no operation."""
        self.recording.asks_capturing |= kind == "capturing"
        return super().heard(kind, what, detail)

    def will_draw(self, generator: torch.Generator | None) -> None:
        """Pass it on."""
        if self._generators is not None:
            with self._unseen():
                self._generators.will_draw(generator)

    def drew(self, repeats: bool) -> None:
        """Pass it on."""
        if self._generators is not None:
            with self._unseen():
                self._generators.drew(repeats)

    @contextmanager
    def _unseen(self) -> Iterator[None]:
        with self.quietly(), _disable_current_modes(), torch._C.DisableTorchFunction():
            yield

    def called_compiled(self) -> None:
        """Keep it in mind."""
        self.recording.compiles = True

    def laid_out(self, how: Dependence, what: str) -> None:
        """Keep the first of each kind in mind."""
        if how == "place":
            return self.met("argument", what)
        if getattr(self.recording, how) is None:
            setattr(self.recording, how, Note("argument", what, users_line()))

    def made(self, tensor: torch.Tensor) -> None:
        """Add up what is alive; what died is only looked for when there seems to be a new peak."""
        key, peak = self.name(tensor), self.recording.peak_bytes
        dense = tensor.layout is torch.strided
        if key in self._alive or not dense or not self.on_device(tensor):
            return
        self.recording.dtypes.add(tensor.dtype)
        self._alive[key] = size = tensor.untyped_storage().nbytes()
        self._alive_bytes += size
        if self._alive_bytes > peak:
            self._alive = {k: s for k, s in self._alive.items() if self.name.lives(k)}
            self._alive_bytes = sum(self._alive.values())
            self.recording.peak_bytes = max(peak, self._alive_bytes)

    def has_seen(self, tensor: torch.Tensor) -> bool:
        """Whether an operation used or made the memory of ``tensor``."""
        key = self.name(tensor)
        return key in self.inside or key in self.outside or key in self.inputs

    def wrote(self, tensor: torch.Tensor) -> None:
        """Save what the tensor holds."""
        self._log.add(tensor, self._keep_values)
        key = self.name(tensor)
        self.recording.writes.append((key, len(self.recording.events)))
        is_input = key in self.inputs
        if is_input:
            self.laid_out("views", "a write")
        what = f"{self._names.get(key, 'a tensor')} of shape {tuple(tensor.shape)}"
        self.met("input-write" if is_input else "external-write", what)

    def met(self, rule: str, what: str, tensors: Iterable[torch.Tensor] = ()) -> None:
        """Make a note of it."""
        if rule == "random" and self.recording.draws is None:
            self.recording.draws = len(self.recording.events)
        if rule == "unknown-kernel":
            for tensor in tensors:
                if self.name(tensor) not in self.inside:
                    self._log.add(tensor, self._keep_values)  # it may write it
        if not self.quiet:
            note = Note(rule, what, users_line())
            self.recording.notes[note] = self.recording.notes.get(note, 0) + 1


def _kept(result: Any, given: list[torch.Tensor]) -> Any:
    """``result`` with copies of its tensors."""

    def keep(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value.copy() if type(value).__module__ == "numpy" else value
        for position, tensor in enumerate(given):
            if value is tensor:
                return Same(position)
        return value.detach().clone()

    return pytree.tree_map(keep, result)


def _same(ours: Any, theirs: Any) -> bool:
    leaves, spec = pytree.tree_flatten(ours)
    others, other_spec = pytree.tree_flatten(theirs)
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return spec == other_spec and all(map(_equal, leaves, others))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and _same_bits(a, b)
    if type(a).__module__ == "numpy":
        return type(a) is type(b) and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and (a == b or repr(a) == repr(b))  # nan is nan


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.equal(a, b)) or bool(
        torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
    )
