"""Warming up: the runs before a capture, of which the first is recorded."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from ..device import Device
from ..errors import CaptureError, CompileError, one_line
from ..interpose.cuda_calls import listening
from ..interpose.host_reads import HostReads
from ..interpose.patch import substitute
from ..interpose.source import Source, users_line, users_line_of
from ..record.effects import UndoLog, Unexpected, overwrite, storage_key
from ..record.explain import explain
from ..record.journal import Journal, Judge
from ..record.recorder import Event, Recorder, Recording
from ..record.rules import RULES
from ..record.side_effects import side_effects
from .host_state import HostState
from .pool import GraphPool
from .state import PythonState

__all__ = [
    "Layout",
    "LayoutError",
    "Run",
    "Tensors",
    "WarmedUp",
    "cloned",
    "no_side_effects",
    "one_line",
    "other_inputs",
    "record_run",
    "report_line",
    "some",
    "warm_up",
]

Layout: TypeAlias = Literal["own", "aligned", "rows", "padded"]
"""How static inputs lie in memory: as the arguments do; at the beginning of memory of their own;
there and without the gaps of a slice; or as padded arguments do, for calls of any layout."""


class LayoutError(CaptureError):
    """What the function does depends on how its arguments lie in memory.

    ``draws``: since it draws random numbers, in an order that depends on that.
    """

    draws = False


Tensors: TypeAlias = tuple[list[torch.Tensor], list[torch.Tensor]]
"""Outputs, and what was written to tensors from outside."""


@dataclass
class WarmedUp:
    """What warming up found; ``outputs`` and ``written`` hold what eager execution gives.

    Of compiled code they hold what that gives, ``uncompiled`` what it should, and ``reads`` what it
    asked the device for. ``states`` is where that left the generators of the device.
    """

    first_outputs: list[torch.Tensor]
    uncompiled: Tensors | None
    reads: HostReads
    outputs: list[torch.Tensor]
    written: list[torch.Tensor]
    recording: Recording
    varying: set[int]
    state: PythonState
    draws_random_numbers: bool
    states: list[torch.Tensor]
    uncompiled_states: list[torch.Tensor]


@dataclass
class Run:
    """What all parts of one capture share; the arguments are those of :func:`capture`.

    ``inputs`` is the list that the function takes its arguments from. Runs find ``given`` there,
    tensors that nobody else uses. A capture finds ``static_inputs``, which may belong to other
    graphs too: whoever writes to those holds LOCK.
    ``not_compiled`` is why what the function itself has compiled is not in the graph.
    """

    function: Callable[[], list[torch.Tensor]]
    inputs: list[torch.Tensor]
    given: list[torch.Tensor]
    static_inputs: list[torch.Tensor]
    graph_pool: GraphPool
    roots: dict[str, object]
    log: UndoLog
    state: PythonState
    host: HostState
    rewind: Callable[[], None]
    forced: set[str]
    compiled: bool = False
    not_compiled: str = ""
    layout: Layout = "own"
    journal: Journal = dataclasses.field(default_factory=Journal)
    judge: Judge | None = None

    @property
    def written(self) -> list[torch.Tensor]:
        """What runs write to: regions outside, and inputs as a whole, wherever these are now."""
        places = dict(zip(map(storage_key, self.given), self.inputs, strict=True))
        return [places.get(storage_key(region), region) for region in self.log.regions()]


def warm_up(this: Run, warmup: int) -> WarmedUp:
    """Run ``warmup`` times, each from the state of the first.

    Raises:
        CaptureError: what the function does cannot be in a graph.
        CompileError: it is to be compiled, and has points at which the host takes over.
    """
    # The first run is watched, and nothing in it is compiled. Later ones run as they would
    # without us.
    state = PythonState(this.roots, search=False) if warmup == 1 else None
    unguarded = this.state.unguarded_now()
    with this.host.standing_still():
        recording, outputs = record_run(this, set())
    if this.state.changes():
        # It may take another way now: that is watched as well, before anything runs unwatched.
        this.rewind()
        state, unguarded = PythonState(this.roots, search=False), this.state.unguarded_now()
        recording, outputs = record_run(this, set())
        _refuse_changes(state, unguarded)
    first_outputs = outputs
    draws, states = this.host.draws(), this.host.states()
    varying = _changing(this, recording)
    if _must_record_again(recording, varying, this.graph_pool.device):
        # Only now it is known what changes from call to call.
        this.rewind()
        state = PythonState(this.roots, search=False) if warmup == 1 else None
        recording, outputs = record_run(this, varying)
    uncompiled_states = states
    uncompiled: Tensors | None = None
    if this.compiled:
        for event in recording.breaks():
            raise CompileError(
                f"the host takes over between two graphs ({event.point.what}), and compiled "
                f"code cannot be cut there: {event.where}"
            )
        uncompiled = cloned(outputs, this.written)
    compiles = this.compiled or recording.compiles
    reads = HostReads(this.graph_pool.device.type)
    takes_over = any(event.point.rule == "no-graph" for event in recording.events)
    for left in range(warmup - 1, 0, -1):
        this.rewind()
        if left == 1:  # what the last run changes, every call would
            state = PythonState(this.roots, search=False)
            unguarded = this.state.unguarded_now()
        with (
            # A compiler reads clocks and files, and takes long enough without being listened to.
            _no_printing() if compiles else no_side_effects(lambda: takes_over),
            reads.remembered() if compiles and left == 1 else nullcontext(),
            this.journal.playing(),
        ):
            outputs = this.function()
        states = this.host.states()
    assert state is not None
    _refuse_changes(state, unguarded)
    warmed_up = WarmedUp(
        first_outputs=first_outputs,
        uncompiled=uncompiled,
        reads=reads,
        outputs=[t.clone() for t in outputs],
        written=[tensor.clone() for tensor in this.written],
        recording=recording,
        varying=varying,
        state=state,
        draws_random_numbers=draws,
        states=states,
        uncompiled_states=uncompiled_states,
    )
    if any(event.folds and not event.is_of_the_host for event in recording.events):
        this.host.refuse_one_shots("and what it reads has to be confirmed with other inputs")
        _confirm(this, warmed_up)
    return warmed_up


def _refuse_changes(*states: PythonState) -> None:
    changes = list(dict.fromkeys(name for state in states for name in state.changes()))
    if changes:
        raise CaptureError(
            f"each call rebinds {some(changes)} in Python, which a replay would not do. Keep "
            "such state in a tensor that is written in place (copy_, add_), or outside."
        )


def record_run(this: Run, varying: set[int]) -> tuple[Recording, list[torch.Tensor]]:
    """Run and record; ``varying`` are storage keys of what changes from call to call.

    Raises:
        CaptureError: it does what no graph can hold and nothing can take over.
    """
    device, index = this.graph_pool.device, this.graph_pool.index
    stream = device.stream_id(index)

    def off_stream() -> str | None:
        # The stream that cannot capture: its work would silently not be in the graph.
        return "default-stream" if stream and not device.stream_id(index) else None

    recorder = Recorder(
        device.type,
        this.inputs,
        this.log,
        keep_values=True,
        off_stream=off_stream,
        varying=varying,
        forced=this.forced,
        generators=this.host,
    )

    this.host.begin()
    with (
        no_side_effects(lambda: recorder.quiet > 0),
        listening(recorder.observe, answer_capturing=True),
        recorder.watching(),
        this.journal.playing(),
    ):
        try:
            outputs = this.function()
        except Exception as error:
            _refuse_layout(this, recorder.recording)
            if not recorder.recording.asks_capturing or isinstance(error, CaptureError):
                raise
            raise CaptureError(
                "the function asks torch.cuda.is_current_stream_capturing() and takes another way "
                f"in a capture, which fails: {users_line_of(error)}: {one_line(error)}"
            ) from error
    this.host.end()
    recorder.recording.unseen = [t for t in outputs if not recorder.has_seen(t)]
    inputs = set(map(storage_key, this.inputs))
    if any(storage_key(output) in inputs for output in outputs):
        recorder.laid_out("views", "the result")
    _refuse_layout(this, recorder.recording)
    for note in recorder.recording.notes:
        if RULES[note.rule].effect == "eager":
            raise explain(note.rule, note.what, note.where)
    return recorder.recording, outputs


def _refuse_layout(this: Run, recording: Recording) -> None:
    if this.layout in ("rows", "aligned") and this.host.draws():
        error = LayoutError("argument: it draws random numbers in an order that depends on memory")
        error.draws = True
        raise error
    asked = recording.layout
    if this.layout == "rows":
        asked = asked or recording.views
    if asked is not None and this.layout in ("rows", "padded"):
        why = explain("argument", asked.what, asked.where, "It asks how it lies in memory.")
        raise LayoutError(str(why))


def _changing(this: Run, recording: Recording) -> set[int]:
    """Storage keys of the tensors from outside whose values cannot be taken for constant."""
    written = {storage_key(region) for region in this.log.regions()}
    # Inference tensors do not count their versions, so nobody could see them change; nor can a
    # tensor be asked that is made anew in each call.
    return written | {
        key
        for key, original in recording.originals.items()
        if (tensor := original()) is None or tensor.is_inference()
    }


def _must_record_again(recording: Recording, varying: set[int], device: Device) -> bool:
    """Whether the run would have been recorded otherwise, had it been known what is moving."""
    if not recording.events:
        return False
    # What is on the device comes to the host in an event; the emulated one has but one memory.
    seen = {
        key
        for key, tensor in recording.outside.items()
        if device.kind == "emulated" or tensor.device.type != device.type
    }
    return not varying.isdisjoint(seen | recording.sources_of_folds())


def _confirm(this: Run, eager: WarmedUp) -> None:
    """Run once more with other inputs: what is folded has to come out the same.

    Raises:
        CaptureError: it did not, or that run failed.
    """
    this.rewind()
    expected = eager.recording.events
    log = UndoLog()
    other = dataclasses.replace(this, log=log, journal=copy(this.journal))
    try:
        with other_inputs(this):
            try:
                recording, _ = record_run(other, eager.varying)
            finally:
                log.undo()
    except Exception as error:
        raise CaptureError(
            f"with other inputs the function raised {one_line(error)}, so it could not be "
            f"confirmed that {report_line(expected[0])} does not depend on them."
        ) from error
    finally:
        this.rewind()
    for before, now in itertools.zip_longest(expected, recording.events):
        if before is None or now is None or before.point.what != now.point.what:
            break  # it took another path, as data-dependent code does
        if before.folds and not before.same_outcome(now):
            raise explain(
                before.point.rule,
                before.point.what,
                before.where,
                "With other inputs another value came out, although no operation that torch "
                "knows leads there from the inputs.",
            )
        if not before.folds and not before.same_outcome(now):
            break


@contextmanager
def other_inputs(this: Run) -> Iterator[None]:
    """Let the static inputs hold other values than those that were given."""

    def put(values: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for static, value in zip(this.inputs, values, strict=True):
                overwrite(static, value)

    with torch.no_grad():
        kept = [value.clone() for value in this.given]
    try:
        put(list(map(_other_values, kept)))
        yield
    finally:
        put(kept)


def _other_values(static: torch.Tensor) -> torch.Tensor:
    """Values that an argument might have as well: the same ones elsewhere, floats also changed."""
    if not static.numel():
        return static
    other = static.flatten().roll(1).reshape(static.shape)
    return other * 0.75 + 0.125 if static.is_floating_point() else other


def cloned(outputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> Tensors:
    """Copies: later runs write to the same memory."""
    return [t.clone() for t in outputs], [t.clone() for t in written]


def some(names: list[str]) -> str:
    """The first of ``names``, for a message."""
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")


def report_line(event: Event) -> str:
    """Where an event is, and what becomes of it in a graph."""
    how = "folded" if event.folds else "between two graphs"
    return f"{event.where}: {event.point.what}, {how}"


@contextmanager
def no_side_effects(let_pass: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """End a run of ours before it does something outside of torch, such as writing a file.

    Args:
        let_pass: whether what happens now belongs to a point at which the host takes over.

    Raises:
        CaptureError: it is about to.
    """
    met: list[tuple[str, str, Source]] = []

    def tell(rule: str, what: str) -> bool:
        if not let_pass():
            met.append((rule, what, users_line()))
        return not let_pass()

    try:
        with side_effects(tell):
            yield
    except (Exception, Unexpected):
        if not met:
            raise
    if met:  # outside of the handler: the error there holds the tensors of the run
        raise explain(*met[0])


class _Unheard:
    """Stands in for ``sys.stdout``, and drops what is printed."""

    original: Any = None

    def write(self, text: str) -> int:
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


@contextmanager
def _no_printing() -> Iterator[None]:
    """Drop what this thread prints: a compiler may print what it likes."""
    stream = _Unheard()
    with substitute(sys, "stdout", stream) as claim:
        stream.original = claim.original
        yield
