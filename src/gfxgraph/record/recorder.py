"""Records one run of a function: the points that a capture would meet, and their results."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, MappingProxyType
from typing import Any, Protocol

import torch
import torch.utils._pytree as pytree
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..device.asserts import require_taken
from ..device.operators import draws_in, written_tensors
from ..device.overrides import WithoutModes
from ..errors import CaptureError
from ..interpose.codes import address
from ..interpose.source import Source, users_instruction, users_line, users_line_of
from .effects import Same, UndoLog, tensors_in
from .exchanges import Collective
from .explain import explain
from .gradients import backward_passes, newest_node, reached
from .handed import is_size
from .interceptor import Interceptor, Point, draws
from .questions import Dependence
from .storages import is_whole

_ODD = "Part of it (a scale, a count) is on the host, and no copy between two graphs brings it."
_RAISES = "A replay would neither run it again nor know what the function does then."
_OF_ARGUMENT = (
    "A backward pass sets it in each call. Give the gradient back instead: return "
    "torch.autograd.grad(...), or call backward() outside."
)
_REBOUND = (
    "A backward pass sets it to another tensor. Let it add to one that is there before: "
    "zero_grad(set_to_none=False); or return torch.autograd.grad(...)."
)
_DONE_IN_EACH_CALL = ("collective", "no-graph", "seed")
_LEAVES = (int, float, bool, str, type(None), torch.dtype, torch.device)
_LISTS = (list, tuple)
_NO_DTYPE: frozenset[torch.dtype | None] = frozenset({None})
_NONE_KNOWN: frozenset[torch.dtype | None] = frozenset()

__all__ = ["Event", "Note", "Recorder", "Recording", "Same"]


@dataclass
class Event:
    """A point that a capture cannot pass, and its result in the run.

    Attributes:
        point: the point.
        where: the user's line.
        varying: whether the result may differ in the next call.
        writes: whether it writes to one of its arguments.
        result: the result, with copies of its tensors. A tensor that is one of the arguments is
            ``Same(n)``: the n-th of them.
        given: of a constant, the host data.
        call: number of the call of a torch function that it is in; ``None``: in none.
        sources: storage keys of the outside tensors that it depends on.
        there: of a ``no_graph`` function, the tensors that it was given and that the run has not
            made.
        at: the user's code in which it is, and the offset of the instruction.
    """

    point: Point
    where: Source
    varying: bool
    writes: bool
    result: Any
    given: Any
    call: int | None
    sources: frozenset[int]
    there: Sequence[torch.Tensor] = ()
    at: tuple[CodeType, int] | None = None

    @property
    def folds(self) -> bool:
        """Whether a graph can use the recorded result instead."""
        return not self.varying and not self.writes

    @property
    def is_of_the_host(self) -> bool:
        """Whether it is a constant that does not depend on data of the device."""
        return self.folds and self.point.kind == "constant" and not self.sources

    def same_outcome(self, other: Event) -> bool:
        """Whether the same point gave the same result in another run."""
        return _same(self.result, other.result)

    def was_given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a constant gets the same host data again; does not wait for the device."""
        return _same(self.given, (args, kwargs))


@dataclass(frozen=True)
class Note:
    """Something that a capture can hold, and that a report mentions.

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
    """The record of a run.

    Attributes:
        events: the points that a capture cannot pass, in order.
        notes: the notes in order, each with its count.
        outside: storage key -> an alias, for each outside tensor that was used; the alias keeps the
            memory alive.
        operations: operations of the device.
        writes: (storage key, number of events before) of each write to an outside tensor.
        draws: whether it may have moved a random generator: it set one, or had an operator that
            may draw.
        peak_bytes: most device bytes that tensors of the run took at one time.
        dtypes: dtypes of these tensors.
        kernels: each operator that ran on the device, with each dtype that it was given.
        compiles: whether it called a compiled function; that ran uncompiled.
        layout: the first call that asked for the strides of an argument.
        views: the first call whose effect depends on the strides: a view that not every layout has,
            a write, an argument that is returned.
        sharing: the first call whose effect depends on which tensors share memory.
        asks_capturing: whether it asked if a capture is underway, and may take another path in one.
        unseen: returned tensors that no operation used or made.
        host_reads: storage keys of the outside tensors in the memory of the host that it read
            there, and whose values are part of a graph.
        refused: the first thing that it did, or was about to do, and no replay would; and why.
        held: outside tensors, with the name and the value of what they were asked for.
        leaves: outside tensors that a backward pass reached, whose hooks it runs.
        autograd: whether autograd recorded an operation.
        differentiates: whether a backward pass ran.
        may_settle: whether a gradient from outside that was set was none before, as in the first
            run of all.
        decisions: of each ``cond``, ``switch`` and ``while_loop``, in order, why the host decides
            it; empty: the device does.
        collectives: those of groups of several ranks, in order.
        decided_at: where the device decides first; ``None``: nowhere.
    """

    events: list[Event] = field(default_factory=list)
    notes: dict[Note, int] = field(default_factory=dict)
    outside: dict[int, torch.Tensor] = field(default_factory=dict)
    originals: dict[int, weakref.ref[torch.Tensor]] = field(default_factory=dict)
    operations: int = 0
    writes: list[tuple[int, int]] = field(default_factory=list)
    draws: bool = False
    peak_bytes: int = 0
    dtypes: set[torch.dtype] = field(default_factory=set)
    kernels: set[tuple[Any, torch.dtype | None]] = field(default_factory=set)
    compiles: bool = False
    layout: Note | None = None
    views: Note | None = None
    sharing: Note | None = None
    asks_capturing: bool = False
    unseen: list[torch.Tensor] = field(default_factory=list)
    host_reads: set[int] = field(default_factory=set)
    refused: tuple[Note, str] | None = None
    held: list[tuple[torch.Tensor, str, Any]] = field(default_factory=list)
    leaves: list[torch.Tensor] = field(default_factory=list)
    autograd: bool = False
    differentiates: bool = False
    may_settle: bool = False
    decisions: list[str] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    decided_at: Source | None = None

    def breaks(self) -> list[Event]:
        """The points at which a graph ends and the host takes over."""
        return [event for event in self.events if not event.folds]

    def calls_that_fold(self) -> frozenset[int] | None:
        """The calls in which something folds, if seeing these suffices to repeat the run."""
        calls = frozenset(event.call for event in self.events if event.call is not None)
        return calls if all(event.folds and event.call for event in self.events) else None

    def written_before_the_last_break(self) -> set[int]:
        """Storage keys of memory that a call may have written before it takes a new path."""
        last = max((n for n, event in enumerate(self.events) if not event.folds), default=-1)
        return {key for key, before in self.writes if before <= last}

    def sources_of_folds(self) -> set[int]:
        """Storage keys of the outside tensors whose values count as constant."""
        folded = {key for event in self.events if event.folds for key in event.sources}
        return folded | self.host_reads


class Generators(Protocol):
    """Learns which generators a run draws from."""

    def will_draw(self, generator: torch.Generator | None) -> None: ...
    def drew(self, repeats: bool) -> None: ...


class Looks(Protocol):
    """Looks at what is around a ``no_graph`` function."""

    def met(self) -> None:
        """It is about to run, under the modes of the program."""

    def begins(self, what: str, given: Any) -> None:
        """It is about to run."""

    def ends(self, what: str, result: Any) -> None:
        """It has run."""


class Recorder(Interceptor):
    """Runs everything and records it.

    Args:
        log: gets the outside regions that the run writes.
        keep_values: save each region before its first write, so that the run can be undone.
        off_stream: the rule by which work on the current stream is left out of a capture.
        names: names of tensors from outside, by storage key.
        generators: learns which generators the run draws from.
        may_decide_on_device: whether a capture will follow, which may hold conditional nodes.
            Default ``False``.
        is_tried: whether nobody has called the function with these values: what a kernel would
            stop the device for is an error then. Default ``False``.
        options: see :class:`Interceptor`.

    Attributes:
        recording: the record of the run.
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
        may_decide_on_device: bool = False,
        is_tried: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(device_type, inputs, **options)
        #: Looks at what a ``no_graph`` function finds, is given and gives.
        self.around: Looks | None = None
        self.may_decide_on_device, self._is_tried = may_decide_on_device, is_tried
        #: Tensors that were written since a trial began; ``None``: there is none.
        self._written_on_trial: list[torch.Tensor] | None = None
        self._failed_on_trial = ""
        #: Names of what was made where operations may write to nothing else; ``None``: they may.
        self._made_here: set[int] | None = None
        #: Names of memory that may not be written to any more, and what is raised then.
        self._protected: dict[int, Callable[[], CaptureError]] = {}
        self._generators = generators
        self.recording = Recording(outside=self.outside, originals=self.provenance.originals)
        self._log = log
        self._keep_values = keep_values
        self._off_stream = off_stream
        self._names = names
        #: Operators by address, since they are hashed in Python, with dtypes that they got.
        self._kernels: dict[int, frozenset[torch.dtype | None]] = {}
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._alive_bytes = 0
        #: What gave the function an array on memory from outside.
        self._was_lent = ""
        self._moved: list[tuple[weakref.ref[torch.Tensor], str, Source]] = []
        self._held: list[tuple[weakref.ref[torch.Tensor], str, Any]] = []
        self._asked_generators = 0
        #: Of autograd: the node that was the newest before the run, unless that cannot be told.
        self._newest_before = -1
        self._differentiated_at: Source | None = None

    def operation(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Sequence[torch.Tensor],
    ) -> Any:
        """Run an operation that a capture can hold."""
        if self.is_on_trial and draws(func) and draws_in(func, args, kwargs):
            self._fail_on_trial(f"{func} draws random numbers")
        self.recording.operations += 1
        dtypes = {tensor.dtype for tensor in tensors} or _NO_DTYPE
        known = self._kernels.get(address(func), _NONE_KNOWN)
        if not dtypes <= known:
            self._kernels[address(func)] = known | dtypes
            self.recording.kernels.update((func, dtype) for dtype in dtypes)
        recording = self.recording
        if not recording.autograd and torch.is_grad_enabled():
            recording.autograd = any(tensor.requires_grad for tensor in tensors)
        rule = self._off_stream()
        if rule is not None:
            self.met(rule, str(func))
        self._require_unprotected(func, args, kwargs)
        if self._is_tried:
            require_taken(func, args, kwargs)
        result = self.run(func, args, kwargs)
        if self._made_here is not None:
            given = set(map(self.name, tensors))
            self._made_here.update(set(map(self.name, tensors_in(result))) - given)
        return result

    def uses(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See :meth:`Interceptor.uses`."""
        if self._is_tried:
            require_taken(func, args, kwargs)
        super().uses(func, args, kwargs)

    @contextmanager
    def only_computing(self) -> Iterator[set[int]]:
        """Inside, operations may write only to memory that they make; gives the names of that."""
        before, self._made_here = self._made_here, set()
        try:
            yield self._made_here
        finally:
            self._made_here = before

    def tells_apart(self, tensor: Any) -> None:
        """Raise if the tensor may be another one in the next call."""
        if self._protected and isinstance(tensor, torch.Tensor):
            with self.unseen():
                error = self._protected.get(self.name(tensor))
            if error is not None:
                raise error()

    def protect(self, names: set[int], error: Callable[[], CaptureError]) -> None:
        """See that nobody writes to memory from now on.

        Args:
            names: its names.
            error: makes the error that is raised then.
        """
        self._protected |= dict.fromkeys(names, error)
        if self._made_here is not None:
            self._made_here -= names

    @contextmanager
    def unprotected(self) -> Iterator[None]:
        """Inside, everything may be written to: what is done there, the function does not do."""
        before = self._made_here, self._protected
        self._made_here, self._protected = None, {}
        try:
            yield
        finally:
            self._made_here, self._protected = before

    def _require_unprotected(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: Iterable[torch.Tensor] = (),
    ) -> None:
        """Raise if an operation, or somebody who is ``given`` tensors, may write where none may."""
        if self._made_here is None and not self._protected:
            return
        with self.unseen():
            written = [*given]
            if isinstance(func, OpOverload):
                written += written_tensors(func, args, kwargs)
            names = set(map(self.name, written))
        for name in names & self._protected.keys():
            raise self._protected[name]()
        if self._made_here is not None and not names <= self._made_here:
            self._fail_on_trial(f"{func or 'a kernel'} may write to memory from before")

    @property
    def only_records(self) -> bool:
        """Whether operations are seen for the recording alone, and nothing else depends on it."""
        return not (
            self.quiet
            or self.handling
            or self._protected
            or self._made_here is not None
            or self.is_on_trial
            or self._uncompiled.asked
            or self._off_stream() is not None
        )

    def moved(self) -> int:
        """How many tensors from outside have got other memory or another shape."""
        return len(self._moved)

    def state(self) -> tuple[Any, ...]:
        """What stays as it is where operations only compute."""
        found = self.recording
        return (
            *(len(found.events), len(found.writes), sum(found.notes.values()), found.draws),
            *(found.refused, found.autograd, found.differentiates),
            *(found.layout, found.views, found.sharing),
            *(found.asks_capturing, len(found.leaves), len(found.host_reads)),
            *(len(found.decisions), found.decided_at, len(found.collectives)),
            *(len(self._held), len(self._moved), self._was_lent, self.data_reads),
            self._asked_generators,
        )

    @property
    def is_on_trial(self) -> bool:
        """Whether a capture is tried, in which nothing runs on the device."""
        return self._written_on_trial is not None

    @contextmanager
    def on_trial(self) -> Iterator[None]:
        """Record what the bodies of a conditional node would hold, which are captured inside.

        Raises:
            CaptureError: they hold what no body can.
        """
        self._written_on_trial, self._failed_on_trial = [], ""
        try:
            yield
        finally:
            written, self._written_on_trial = self._written_on_trial, None
        if self._failed_on_trial:  # the function may have caught the error
            raise CaptureError(self._failed_on_trial)
        with self.unseen():
            for tensor in written:
                self._save(tensor)

    def _fail_on_trial(self, what: str) -> None:
        """Raise, if a capture is tried.

        Raises:
            CaptureError: it is.
        """
        if self.is_on_trial:
            self._failed_on_trial = self._failed_on_trial or f"{users_line()}: {what}"
            raise CaptureError(self._failed_on_trial)

    def decided(self, name: str, reason: str) -> None:
        """Note who decides a ``cond``, ``switch`` or ``while_loop``, and why the host."""
        where = users_line()
        line = f"{where}: the host decides {name}(): {reason}" if reason else ""
        self.recording.decisions.append(line)
        if not reason:
            self.recording.decided_at = self.recording.decided_at or where

    def varies(self, result: Any) -> None:
        """What nobody has seen being made: it depends on what may change from call to call."""
        self._made_by_host((), result)

    def differentiates(self, roots: Any, is_recorded: bool) -> None:
        """A backward pass is about to run; note the leaves that it reaches."""
        self._fail_on_trial("a backward pass")
        with self.unseen():
            leaves, oldest = reached(roots)
            for leaf in leaves:
                is_wrapper = torch._C._functorch.is_functorch_wrapped_tensor(leaf)
                if not is_wrapper and self.name(leaf) not in self.inside:
                    self._log.gradients.meet(leaf)
        if self.quiet:
            return
        if 0 <= oldest < self._newest_before:
            self.refuse("hidden-state", "a backward pass through what autograd recorded outside")
        if is_recorded:  # its nodes may be of another thread, which counts by itself
            self._newest_before = -1
        self.recording.autograd = self.recording.differentiates = True
        self._differentiated_at = self._differentiated_at or users_line()

    def user_call(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Look at what it finds, is given and gives."""
        around = self.around
        if around is None or self.quiet:
            return super().user_call(fn, args, kwargs)
        what = f"{getattr(fn, '__qualname__', repr(fn))}()"
        around.met()
        with self.unseen():  # which takes modes off
            around.begins(what, (args, kwargs))
        result = super().user_call(fn, args, kwargs)
        with self.unseen():
            around.ends(what, result)
        return result

    def event(
        self, point: Point, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the point, and record its result."""
        self._fail_on_trial(point.what)
        self.recording.draws |= point.rule == "seed"
        given = list(tensors_in(args, kwargs))
        self.data_reads += point.kind != "constant"
        # A function of the user's may write to whatever it is given or reaches.
        if isinstance(func, OpOverload):
            writes = any(True for _ in written_tensors(func, args, kwargs))
        else:
            writes = point.rule == "no-graph"
        with self.unseen():  # tolist() reads without any operation
            for tensor in point.depends:
                self.provenance.see(self.name(tensor), tensor)
        is_higher = isinstance(func, HigherOrderOperator)
        provenance = None if is_higher else self.roots(point.depends)
        event = Event(
            point._replace(depends=()),  # not to keep the tensors of the run alive
            users_line(),
            varying=point.rule in _DONE_IN_EACH_CALL
            or provenance is None
            or is_higher
            or draws(func),
            writes=writes,
            result=None,
            given=None,
            call=self.call,
            sources=provenance or frozenset(),
            at=users_instruction(),
        )
        self._require_unprotected(func, args, kwargs, given if point.rule == "no-graph" else ())
        if point.rule == "no-graph":
            with self.unseen():
                event.there = list(filter(self.is_outside, given))
        with self.quietly():
            if point.kind == "constant":
                event.given = _kept((args, kwargs), [])
            before = len(self.recording.events)
            try:
                result = func(*args, **kwargs)
            except Exception as error:
                # No replay would run it again, should the function catch the error.
                what = f"{point.what} raises {type(error).__name__}"
                self._remember(Note(point.rule, what, event.where), _RAISES)
                raise
            del self.recording.events[before:]
            with self.unseen():  # the host made it, and no operation has seen it yet
                odd = None if event.folds else _not_plain(result)
                event.result = _kept(result, given)
        if odd is not None:
            self.refuse("forbidden-call", f"{point.what} gives a tensor that is {odd}", _ODD)
        self.recording.events.append(event)
        if not isinstance(func, OpOverload):
            self.drew(repeats=True)
        return result

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Intercept the calls of this thread.

        Raises:
            CaptureError: at the end, if the run did what cannot be seen before it happens.
        """
        self._newest_before = newest_node()
        try:
            with backward_passes(self.differentiates), super().watching():
                yield
        finally:
            self._look_back()
        if self.recording.refused is not None:
            note, more = self.recording.refused
            error = explain(note.rule, note.what, note.where, more)
            error.transient = self.recording.may_settle and more is _REBOUND
            raise error

    def _look_back(self) -> None:
        for moved, what, where in self._moved:
            if moved() is not None:
                self._remember(Note("side-effect", what, where), "The tensor is from outside.")
        self._moved.clear()
        for ref, name, value in self._held:
            tensor = ref()
            if tensor is not None:
                self.recording.held.append((tensor, name, value))
        self._held.clear()
        gradients, inputs = self._log.gradients, self.inputs
        self.recording.leaves = gradients.settle()
        where = self._differentiated_at or Source()
        for leaf, grad in gradients.changed():
            of_argument = self.name(leaf) in inputs
            more, is_first = (_OF_ARGUMENT, False) if of_argument else (_REBOUND, grad is None)
            what = f"Tensor.grad of {'an argument' if of_argument else 'a tensor from outside'}"
            self._remember(Note("side-effect", what, where), more)
            self.recording.may_settle |= is_first

    def _remember(self, note: Note, more: str = "") -> None:
        self.recording.refused = self.recording.refused or (note, more)

    def refuse(self, rule: str, what: str, more: str = "") -> None:
        """Refuse before it happens: no replay would do it.

        Raises:
            CaptureError: always.
        """
        self._fail_on_trial(what)
        note = Note(rule, what, users_line())
        self._remember(note, more)  # the function may catch the error
        self.met(rule, what)
        raise explain(rule, what, note.where, more)

    def moves(self, tensor: torch.Tensor, what: str) -> None:
        """Remember it: a view that the run has made is gone at the end, and does not matter."""
        self._moved.append((weakref.ref(tensor), what, users_line()))

    def lend(self, array: Any, what: str) -> Any:
        """Give an array that can only be read; what is written to it all the same is undone."""
        if type(array).__module__ != "numpy" or array.flags.owndata or not array.flags.writeable:
            return array
        if not self._keep_values:
            return array
        self._log.lend(array, what)
        self._was_lent = what
        lent = array.view()
        lent.flags.writeable = False
        return lent

    def takes(self, array: Any, what: str) -> None:
        """Refuse what could be written to the memory of an array that is to be read only."""
        flags: Any = getattr(array, "flags", None)
        if self._was_lent and not (getattr(flags, "owndata", True) or flags.writeable):
            self.refuse("side-effect", f"{what} of what {self._was_lent} gave")

    def reads_on_host(self, tensors: Iterable[torch.Tensor]) -> None:
        """Remember those from outside, for a guard."""
        for tensor in tensors:
            key = self.name(tensor)
            if key not in self.inside and key not in self.inputs:
                with self.unseen():
                    self.provenance.see(key, tensor)
                self.recording.host_reads.add(key)

    def refuse_writes_to_arrays(self, error: Exception) -> None:
        """Explain an error of the function that comes from an array that can only be read.

        Raises:
            CaptureError: it does.
        """
        if self._was_lent and isinstance(error, (TypeError, ValueError)):
            text = str(error).lower()
            if any(word in text for word in ("read-only", "readonly", "not writ")):
                what = f"a write through {self._was_lent}"
                raise explain("side-effect", what, users_line_of(error)) from error

    def holds(self, tensor: torch.Tensor, name: str, value: Any) -> None:
        """Remember it, for a guard; a tensor that the run has made is gone at the end."""
        self._held.append((weakref.ref(tensor), name, value))

    def observe(self, kind: str, what: str, detail: Any) -> object:
        """A call of the host's that is no operation."""
        self.recording.asks_capturing |= kind == "capturing"
        return super().observe(kind, what, detail)

    def will_draw(self, generator: torch.Generator | None) -> None:
        """Pass it on."""
        self._asked_generators += 1
        self.recording.draws = True
        if self._generators is not None and not self.is_on_trial:  # torch tells no state there
            with self.unseen():
                self._generators.will_draw(generator)

    def drew(self, repeats: bool) -> None:
        """Pass it on."""
        if self._generators is not None and not self.is_on_trial:
            with self.unseen():
                self._generators.drew(repeats)

    def takes_part(self, collective: Collective) -> None:
        """Record it."""
        self._fail_on_trial(collective.name)
        if collective.ranks:  # not the end of one
            self.recording.collectives.append(collective)

    def called_compiled(self) -> None:
        """Record it."""
        self.recording.compiles = True

    def laid_out(self, how: Dependence, what: str) -> None:
        """Record the first of each kind."""
        if how == "place":
            return self.met("argument", what)
        if getattr(self.recording, how) is None:
            setattr(self.recording, how, Note("argument", what, users_line()))

    def made(self, key: int, tensor: torch.Tensor) -> None:
        """Add up living memory; look for freed memory only when there seems to be a new peak.

        It may be too low by a 32nd. Most memory is freed soon, so the youngest is looked at first.
        """
        if (
            key in self._young
            or key in self._old
            or key in self.elsewhere
            or tensor.layout is not torch.strided
        ):
            return
        self.recording.dtypes.add(tensor.dtype)
        self._young[key] = size = tensor.untyped_storage().nbytes()
        self._alive_bytes += size
        peak = self.recording.peak_bytes
        least = peak + peak // 32
        if self._alive_bytes > least:
            self._forget_freed(self._young)
            self._old |= self._young
            self._young.clear()
        if self._alive_bytes > least:
            self._forget_freed(self._old)
            self.recording.peak_bytes = max(peak, self._alive_bytes)

    def bytes_alive(self) -> int:
        """Bytes that tensors of the run take now."""
        self._old |= self._young
        self._young.clear()
        self._forget_freed(self._old)
        return self._alive_bytes

    def _forget_freed(self, sizes: dict[int, int]) -> None:
        for key in self.name.freed(sizes):
            self._alive_bytes -= sizes.pop(key)

    def has_seen(self, tensor: torch.Tensor) -> bool:
        """Whether an operation used or made the memory of ``tensor``."""
        key = self.name(tensor)
        return key in self.inside or key in self.outside or key in self.inputs

    def wrote(self, tensor: torch.Tensor) -> None:
        """Save the data of the tensor, and note the write."""
        if self.is_on_trial and not self.on_device(tensor):
            self._fail_on_trial("a write to a tensor of the host")
        if is_traceable_wrapper_subclass(tensor):
            # What it holds is written below us, and no version tells of it.
            self.refuse("side-effect", f"a write to a {type(tensor).__name__} from outside")
        self._save(tensor)
        key = self.name(tensor)
        self.recording.writes.append((key, len(self.recording.events)))
        is_input = key in self.inputs
        if is_input:
            self.laid_out("views", "a write")
        what = f"{self._names.get(key, 'a tensor')} of shape {tuple(tensor.shape)}"
        self.met("input-write" if is_input else "external-write", what)

    def met(self, rule: str, what: str, tensors: Iterable[torch.Tensor] = ()) -> None:
        """Note it."""
        if rule == "unknown-kernel":
            tensors = list(tensors)
            self._require_unprotected(None, (), {}, tensors)
            for tensor in tensors:
                if self.name(tensor) not in self.inside:
                    self._save(tensor)  # it may write it
        if not self.quiet:
            note = Note(rule, what, users_line())
            self.recording.notes[note] = self.recording.notes.get(note, 0) + 1

    def _save(self, tensor: torch.Tensor) -> None:
        if self._written_on_trial is not None:  # a copy would be a part of the capture
            self._written_on_trial.append(tensor)
            return
        if not is_whole(tensor):
            self.refuse("side-effect", "a tensor whose storage holds less than its elements")
        self._log.add(tensor, self._keep_values)


def _not_plain(result: Any) -> str | None:
    """What a tensor in ``result`` is, if it is more than its shape and its data."""
    for tensor in tensors_in(result):
        if tensor.is_quantized:
            return "quantized"
        if tensor.is_nested:
            return "nested"
        if tensor.layout is not torch.strided:
            return "sparse"
    return None


def _kept(result: Any, given: list[torch.Tensor]) -> Any:
    """``result`` with copies of its tensors."""
    if type(result) in _LEAVES:
        return result
    if type(result) in _LISTS:  # perhaps a long one of numbers, and pytree is slow
        return type(result)([_kept(item, given) for item in result])
    if type(result) is dict:
        return {key: _kept(value, given) for key, value in result.items()}

    def keep(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value.copy() if type(value).__module__ == "numpy" else value
        return Same.of(value, given) or value.detach().clone()

    return (
        keep(result)
        if isinstance(result, torch.Tensor)
        else pytree.tree_map(keep, result, is_leaf=is_size)
    )


def _same(ours: Any, theirs: Any) -> bool:
    if type(ours) in _LEAVES:
        return _equal(ours, theirs)
    if type(ours) in _LISTS and type(ours) is type(theirs):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    leaves, spec = pytree.tree_flatten(ours)
    others, other_spec = pytree.tree_flatten(theirs)
    with WithoutModes():
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
