"""Safe capture: warm up, capture, replay once against eager, and leave no trace of it.

The caller has run the function once for real. Everything here happens on top of the state that
this call left behind, and is taken back: tensors written in place, the generator, Python
attributes. What is left is a graph.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.utils._pytree as pytree

from ..compiling.rng import on_compile_in_capture
from ..device import Device, PoolHandle
from ..errors import CaptureError, CompileError, GfxGraphError, VerificationError
from ..record.effects import KnownTensors, UndoLog, Unexpected, nobody_else_holds, storage_key
from ..record.explain import explain
from ..record.pretend_cuda import listening
from ..record.recorder import Event, Recorder, Recording, threads_told
from ..record.rules import RULES
from ..record.source import users_line, users_line_of
from ..stats import log, tally
from .bridged import BridgedCUDAGraph
from .compare import BY_DTYPE, Tolerance, difference
from .guard import Guard
from .host_reads import HostReads
from .lane import Lane
from .segments import Failure, Graft, Segment, Tracer, run
from .state import PythonState

__all__ = [
    "CAPTURING",
    "LOCK",
    "CapturedGraph",
    "as_of_now",
    "being_busy",
    "busy",
    "capture",
    "capture_like",
    "no_garbage_collection",
    "rehearse",
    "turn_to_capture",
]

LOCK = threading.RLock()
"""Held while a graph is captured or replayed, by whatever thread.

A replay in one thread fails while another captures (torch's generator cannot do both). A replay
holds it until its work is launched; a capture for its duration, not for its warm-up.
"""

CAPTURING = threading.RLock()
"""Held from the first warm-up to the end of the verification. Never waited for: a thread that
cannot have it runs eagerly. Two warm-ups at once would rewind each other's generators, and torch
keeps whether a dispatch mode is active in flags of the process, which two threads can leave set.
"""

# Seconds that an explicit capture waits for another thread's. Not for ever: what that one captures
# may wait for this thread.
_TURN = 60.0

# Operators that may become branches because a capture failed at them, before it is given up.
_MAX_FORCED = 8

# Compiled code rounds at other places than eager execution: what it may differ by, in tolerances.
_COMPILED_SLACK = 4.0

_local = threading.local()


@contextmanager
def turn_to_capture() -> Iterator[None]:
    """Hold :data:`CAPTURING` for captures that the user asked for, and wait for it.

    Raises:
        CaptureError: another thread has been capturing for a minute.
    """
    if not CAPTURING.acquire(timeout=_TURN):
        raise CaptureError(
            f"another thread has been capturing for {_TURN:.0f} s; call capture() after it.",
            transient=True,
        )
    try:
        yield
    finally:
        CAPTURING.release()


def busy() -> bool:
    """Whether this thread is inside a run, a warm-up or a capture that we have started."""
    return getattr(_local, "busy", False)


@contextmanager
def being_busy() -> Iterator[None]:
    """Mark this thread as :func:`busy`."""
    before = busy()
    _local.busy = True
    try:
        yield
    finally:
        _local.busy = before


@dataclass
class CapturedGraph:
    """A function as one graph, or as a tree of them, ready to be replayed.

    Attributes:
        root: the first graph.
        last: the end of the path that was captured now.
        written: storage key -> a tensor on it, for all storages from outside that replays write,
            static inputs among them.
        outside: storage key -> a tensor on it, for all that the graphs use from outside, without
            the static inputs. Holding them keeps their memory.
        saved: regions that a call may have written when its data turns out to take a path that
            was not captured.
        saves_generator: whether it may have drawn random numbers by then.
        guard: watches what the graphs rely on.
        pool_bytes: bytes by which the memory pool grew.
        draws_random_numbers: whether a run advances a generator.
        report: what was folded and where the host takes over, a sentence each.
        peak_bytes: bytes of the device that eager execution took at most for what it makes.
        sample: what the first replay gave, if it was made; for whoever wants to look at it.
        state: what Python held then, if the function only computes: nothing was folded, written,
            drawn, or worth a note.
        compiled: whether what it holds is compiled code.
        time_replay: replays from the state that the capture found, puts that back, and gives the
            seconds until the device was done; ``None`` where that was not asked for.
    """

    root: Segment
    last: Segment
    written: dict[int, torch.Tensor]
    outside: dict[int, torch.Tensor]
    saved: list[torch.Tensor]
    saves_generator: bool
    guard: Guard
    pool_bytes: int
    draws_random_numbers: bool
    report: list[str]
    peak_bytes: int = 0
    state: PythonState | None = None
    sample: list[torch.Tensor] = dataclasses.field(default_factory=list)
    compiled: bool = False
    time_replay: Callable[[], float] | None = None

    @property
    def plain(self) -> bool:
        """Whether the function only computes."""
        return self.state is not None

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The tensors that the function returned while it was captured."""
        return self.last.outputs or []


@dataclass
class _WarmedUp:
    """What warming up found; ``outputs`` and ``written`` hold what eager execution gives.

    Of compiled code they hold what that gives, ``uncompiled`` what it should, and ``reads`` what it
    asked the device for.
    """

    first_outputs: list[torch.Tensor]
    uncompiled: _Tensors | None
    reads: HostReads
    outputs: list[torch.Tensor]
    written: list[torch.Tensor]
    recording: Recording
    moving: set[int]
    state: PythonState
    draws_random_numbers: bool


@dataclass
class _Run:
    """What all parts of one capture share; the arguments are those of :func:`capture`.

    ``given`` holds the arguments; ``inputs`` may become other tensors, shared with other graphs.
    """

    function: Callable[[], list[torch.Tensor]]
    inputs: list[torch.Tensor]
    given: list[torch.Tensor]
    lane: Lane
    roots: dict[str, object]
    log: UndoLog
    generators: tuple[torch.Generator, ...]
    rewind: Callable[[], None]
    forced: set[str]
    compiled: bool = False

    def random_state(self) -> list[torch.Tensor]:
        """The states of all generators."""
        default = self.lane.device.rng_state(self.lane.index)
        return [default, *(g.get_state() for g in self.generators)]


def capture(
    function: Callable[[], list[torch.Tensor]],
    inputs: list[torch.Tensor],
    *,
    lane: Lane,
    warmup: int,
    roots: dict[str, object],
    tolerance: Tolerance | None,
    branching: bool = True,
    first_outputs: list[torch.Tensor] | None = None,
    tree: CapturedGraph | None = None,
    share_inputs: bool = False,
    admit: Callable[[int], None] = lambda peak_bytes: None,
    compiled: bool = False,
    timed: bool = False,
) -> CapturedGraph:
    """Warm up, capture and verify ``function``, then take back what all that did.

    Host reads and host constants that do not depend on the inputs are folded: the graph holds what
    came out in a run that was watched, and a second run with other inputs has confirmed it. At
    those that do depend on them the graph ends, and the host decides how the call goes on.

    Args:
        function: runs on the static inputs and returns the static outputs.
        inputs: the static inputs.
        lane: the memory pool to capture into, and the stream to warm up and to capture on.
        warmup: how many eager runs before the capture, at least 1.
        roots: the Python objects that the function reaches, by name.
        tolerance: how far the first replay may be from eager; ``None``: do not compare.
        branching: whether a function whose course depends on data may become several graphs.
        first_outputs: what the first call gave for the same arguments. A function that writes
            nothing and draws nothing gives the same again, or it has seen that its arguments are
            static inputs now.
        tree: what was captured of the function for other data; the new path is added to it, if
            all goes well.
        share_inputs: put the static inputs on memory that all graphs of the lane use for theirs,
            where that can be: ``inputs`` then holds others.
        admit: raises if there is no room for what takes so many bytes at its peak.
        compiled: whether ``function`` runs compiled code wherever it is not under our modes; that
            is compared with the recorded run, which is not compiled.
        timed: whether its replays are to be timed.

    Raises:
        CompileError: the host decides how the call goes on, which compiled code cannot be cut for.
        CaptureError: the function cannot be captured. The text says why, and names the user's
            line where there is one; the error that was met first, if any, is its ``__cause__``.
        VerificationError: the first replay differs from eager execution.
    """
    device, index = lane.device, lane.index
    log = UndoLog()
    python_state = PythonState(roots)
    if torch.is_grad_enabled() and python_state.recorded():
        raise CaptureError(
            f"autograd records into {_some(python_state.recorded())}; a replay records nothing. "
            "Call it under torch.no_grad() or torch.inference_mode()."
        )
    generators = tuple(python_state.generators)
    states = [(g, g.get_state()) for g in generators]
    rng_state = device.rng_state(index)
    python_random = random.getstate()

    def rewind() -> None:
        log.undo()
        device.set_rng_state(rng_state, index)
        for generator, state in states:
            generator.set_state(state)

    given = list(inputs)
    this = _Run(function, inputs, given, lane, roots, log, generators, rewind, set(), compiled)
    traced: _Traced | None = None
    sample: list[torch.Tensor] = []
    try:
        with being_busy():
            with device.on_stream(lane.stream, index):
                eager = _warm_up(this, warmup)
            if random.getstate() != python_random:
                raise CaptureError(
                    "each call draws from Python's random module, which a replay would not do. "
                    "Draw outside of the function and pass the number.",
                    transient=True,  # it may have been another thread
                )
            if first_outputs is not None and not len(log) and not eager.draws_random_numbers:
                _compare("second run", "first", eager.first_outputs, first_outputs, tolerance)
            if eager.uncompiled is not None and tolerance is not None:
                _verify(
                    (eager.outputs, eager.written),
                    eager.uncompiled,
                    tolerance,
                    what="compiled function",
                    least=_rounding(eager.recording.dtypes, device),
                )
            made = [
                t
                for t in eager.recording.outside.values()
                if t.device.type == device.type and nobody_else_holds(t)
            ]
            if made:
                raise CaptureError(
                    f"the function uses a tensor of shape {tuple(made[0].shape)} that is made in "
                    "the call but not by it: on another thread, or by a library outside of torch. "
                    "A graph would hold that one for ever. Make it outside and pass it."
                )
            admit(eager.recording.peak_bytes)
            # What a call writes to them is copied back to its arguments, and a host that reads
            # them between two graphs may take its time: such inputs stay apart.
            regions = set(map(storage_key, log.regions()))
            if share_inputs and not (
                eager.recording.breaks() or regions & set(map(storage_key, inputs))
            ):
                inputs[:] = lane.shared_inputs(inputs)
            traced = _capture_somehow(this, eager, branching, tree)
            rewind()
            if tolerance is not None:
                expected = (eager.outputs, eager.written)
                if device.kind == "emulated" and eager.uncompiled is not None:
                    expected = eager.uncompiled  # that is what such a graph holds
                got = _first_replay(traced, this, log.regions(), eager.draws_random_numbers)
                _verify(got, expected, tolerance, eager.draws_random_numbers)
                sample = got[0]
            changes = python_state.changes()
            if changes:
                raise CaptureError(
                    f"the second call still changed {_some(changes)} in Python; wait until it has "
                    "settled.",
                    transient=True,
                )
    except BaseException as error:
        if traced is not None:
            traced.undo()
        python_state.restore()
        random.setstate(python_random)
        if isinstance(error, GfxGraphError) or not isinstance(error, Exception):
            raise
        raise CaptureError(
            f"warm-up failed: {_one_line(error)}",
            # Up to torch 2.11 nobody can draw random numbers while another thread captures.
            transient="Offset increment outside graph capture" in str(error),
        ) from error
    finally:
        rewind()
    recording = eager.recording
    static = {storage_key(tensor) for tensor in (*inputs, *given)}
    early = recording.written_before_the_last_break() - static
    originals = {
        key: tensor for key, ref in recording.originals.items() if (tensor := ref()) is not None
    }
    folded_from = {k: t for k, t in originals.items() if k in recording.sources_of_folds()}
    outside = {key: t for key, t in recording.outside.items() if key not in static}
    written = {storage_key(r): originals.get(storage_key(r), r) for r in log.regions()}
    saved = [region for region in log.regions() if storage_key(region) in early]
    saves_generator = recording.draws is not None and bool(recording.breaks())
    # Constants of the host are part of compiled code.
    told = [e for e in recording.events if not compiled or e.point.kind == "read"]
    report = list(dict.fromkeys(map(_told, told)))
    pool_bytes = traced.pool_bytes
    if tree is not None:
        outside, written = tree.outside | outside, tree.written | written
        saved = tree.saved + saved
        saves_generator |= tree.saves_generator
        folded_from |= tree.guard.watched_versions()
        report = list(dict.fromkeys(tree.report + report))
        pool_bytes += tree.pool_bytes
    special = (
        recording.events
        or any(note.rule != "random" for note in recording.notes)  # attention without dropout
        or len(log)
        or eager.draws_random_numbers
        or generators
        or tree is not None
        or compiled
    )
    return CapturedGraph(
        traced.root,
        traced.last,
        written=written,
        outside=outside,
        saved=saved,
        saves_generator=saves_generator,
        guard=eager.state.guard(outside, folded_from),
        pool_bytes=pool_bytes,
        draws_random_numbers=eager.draws_random_numbers,
        report=report,
        peak_bytes=recording.peak_bytes,
        state=None if special else eager.state,
        sample=sample,
        compiled=compiled,
        time_replay=functools.partial(_timed_replay, traced, this) if timed else None,
    )


def capture_like(
    model: CapturedGraph,
    function: Callable[[], list[torch.Tensor]],
    inputs: list[torch.Tensor],
    *,
    lane: Lane,
    tolerance: Tolerance | None,
    peak_bytes: int,
) -> CapturedGraph | None:
    """Capture a function that was captured before for inputs of another size.

    A single eager run takes the place of warm-up and recording: it has to use the tensors that
    ``model`` uses and no others, write to nothing, draw nothing, and leave Python as it is. Static
    inputs are shared with the other graphs of the lane.

    Args:
        model: what was captured before; it is plain.
        function: as for :func:`capture`.
        inputs: as for :func:`capture`; holds others afterwards.
        lane: as for :func:`capture`.
        tolerance: as for :func:`capture`.
        peak_bytes: what it takes in eager execution, as far as can be told.

    Returns:
        The graph; ``None`` where anything was not as expected, with nothing changed: capture it
        the long way, which finds out what it is.
    """
    device, index, given = lane.device, lane.index, list(inputs)
    this = _Run(function, inputs, given, lane, {}, UndoLog(), (), lambda: None, set())
    traced: _Traced | None = None
    captured: CapturedGraph | None = None
    if _compiles():  # it would compile in the capture: under a mode that code steps aside
        return None
    try:
        with _only_computes(model, device, index, given) as watching:
            with device.on_stream(lane.stream, index), watching:
                outputs = function()
            inputs[:] = lane.shared_inputs(inputs)
            traced = _trace(this, None, listen=False)
        sample: list[torch.Tensor] = []
        if tolerance is not None:
            got = _first_replay(traced, this)
            _verify(got, (outputs, []), tolerance)
            sample = got[0]
        captured = dataclasses.replace(
            model,
            root=traced.root,
            last=traced.last,
            pool_bytes=traced.pool_bytes,
            peak_bytes=peak_bytes,
            sample=sample,
        )
    except (Exception, Unexpected) as error:
        # Met again, and explained, on the long way.
        log(logging.DEBUG, "not_alike", because=_one_line(error))
        if isinstance(error, _Failed):
            lane.renew_pool()
    finally:
        if captured is None:
            inputs[:] = given
            if traced is not None:
                traced.undo()
    return captured


@contextmanager
def _only_computes(
    model: CapturedGraph,
    device: Device,
    index: int,
    inputs: Sequence[torch.Tensor],
) -> Iterator[AbstractContextManager[Any]]:
    """Let a function run that only computed when ``model`` was captured, and see that it does.

    Yields what looks at the operations; the first run goes on in there.

    Args:
        model: what was captured of it.
        device: where it runs.
        index: which one of its kind.
        inputs: what it may read beside what ``model`` reads.

    Raises:
        Unexpected: something is not as it was, or the run did more; that is taken back.
    """
    state, python_random = model.state, random.getstate()

    def changed() -> bool:
        return not model.guard.holds() or bool(state and state.changes(registries=False))

    if state is None or changed():
        raise Unexpected("something that the function reaches is another object now")
    mode = KnownTensors((*map(storage_key, inputs), *model.outside))
    before = device.rng_state(index)
    more: list[str] = []
    with being_busy(), _no_printing() as printed, threads_told(_unexpected_thread):
        try:
            yield mode
        finally:
            if printed:
                more.append("prints")
            if random.getstate() != python_random:
                random.setstate(python_random)
                more.append("draws from Python's random module")
            if mode.may_draw and not before.equal(device.rng_state(index)):
                device.set_rng_state(before, index)
                more.append("draws random numbers")
            if changed():
                state.restore()  # it was the same before
                more.append("rebinds something")
    if more:
        raise Unexpected(f"the function {', '.join(more)}")


def _unexpected_thread() -> None:
    raise Unexpected("a thread is started")


def as_of_now(
    device: Device, index: int, regions: Sequence[torch.Tensor] = ()
) -> Callable[[], AbstractContextManager[None]]:
    """Remember what the path of a call depends on, beside its arguments.

    Entering what is returned puts that back for as long as it is entered: a capture after the call
    then takes the path that the call took.

    Args:
        device: the device whose generator it is.
        index: which one of its kind.
        regions: memory that the call may write to.
    """

    def now() -> tuple[list[torch.Tensor], torch.Tensor]:
        return [region.clone() for region in regions], device.rng_state(index)

    def put(values: list[torch.Tensor], random_state: torch.Tensor) -> None:
        for region, value in zip(reversed(regions), reversed(values), strict=True):
            region.copy_(value)
        device.set_rng_state(random_state, index)

    @contextmanager
    def put_back() -> Iterator[None]:
        with torch.no_grad():
            after = now()
            put(*before)
        try:
            yield
        finally:
            with torch.no_grad():
                put(*after)

    with torch.no_grad():
        before = now()
    return put_back


def rehearse(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: Sequence[torch.Tensor],
    device: Device,
    model: CapturedGraph | None = None,
) -> tuple[Any, bool]:
    """Run ``function``, and take back what that did outside.

    The caller holds :data:`CAPTURING`.

    Args:
        function: what to run.
        args: its arguments.
        kwargs: its keyword arguments.
        inputs: the tensors among them.
        device: where it runs.
        model: what was captured of it, for whatever sizes: if it only computes, there should be
            nothing to take back, and the run is faster.

    Returns:
        The result, and whether random numbers of the device were drawn.
    """
    where = next((t.device for t in inputs if t.device.type == device.type), None)
    index = device.index(where or torch.device(device.type))
    if model is not None and model.plain:
        try:
            with _only_computes(model, device, index, inputs) as watching, watching:
                result = function(*args, **kwargs)
            return result, False
        except Unexpected as surprise:
            log(logging.DEBUG, "not_alike", because=str(surprise))
    written = UndoLog()
    state = PythonState({"the function": function})
    recorder = Recorder(device.type, inputs, written, keep_values=True)
    python_random = random.getstate()
    with LOCK:
        back = as_of_now(device, index)
    try:
        with being_busy(), _no_printing(), back(), recorder.watching():
            result = function(*args, **kwargs)
            # It may be memory that is put back now.
            result = pytree.tree_map_only(torch.Tensor, torch.clone, result)
        return result, recorder.recording.draws is not None
    finally:
        written.undo()
        state.restore()
        random.setstate(python_random)


def _told(event: Event) -> str:
    how = "folded" if event.folds else "between two graphs"
    return f"{event.where}: {event.point.what}, {how}"


def _warm_up(this: _Run, warmup: int) -> _WarmedUp:
    with _no_printing() as printed:
        # The first run is watched. Later ones run as they would without us: under the watching
        # mode torch.compile steps aside.
        before = this.random_state()
        state = PythonState(this.roots) if warmup == 1 else None
        recording, outputs = _record_run(this, set())
        first_outputs = outputs
        draws = not all(map(torch.equal, before, this.random_state()))
        moving = _changing(this, recording)
        if _matters(recording, moving, this.lane.device):
            # Only now it is known what changes from call to call.
            this.rewind()
            state = PythonState(this.roots) if warmup == 1 else None
            recording, outputs = _record_run(this, moving)
        uncompiled: _Tensors | None = None
        if this.compiled:
            for event in recording.breaks():
                raise CompileError(
                    f"the host takes over between two graphs ({event.point.what}), and compiled "
                    f"code cannot be cut there: {event.where}"
                )
            uncompiled = _cloned(outputs, this.log.regions())
        heard, reads = list(printed), HostReads(this.lane.device.type)
        for left in range(warmup - 1, 0, -1):
            this.rewind()
            if left == 1:  # what the last run changes, every call would
                state = PythonState(this.roots)
            with reads.remembered() if this.compiled and left == 1 else nullcontext():
                outputs = this.function()
        assert state is not None
        changes = state.changes()
    if this.compiled:  # a compiler may print what it likes
        printed = heard
    if printed:
        raise CaptureError(
            f"the function prints ({''.join(printed).strip()[:60]!r}); a replay does not run "
            "Python. Remove the print, or keep it outside of the graphed function."
        )
    if changes:
        raise CaptureError(
            f"each call rebinds {_some(changes)} in Python, which a replay would not do. Keep "
            "such state in a tensor that is written in place (copy_, add_), or outside."
        )
    warmed_up = _WarmedUp(
        first_outputs=first_outputs,
        uncompiled=uncompiled,
        reads=reads,
        outputs=[t.clone() for t in outputs],
        written=[region.clone() for region in this.log.regions()],
        recording=recording,
        moving=moving,
        state=state,
        draws_random_numbers=draws,
    )
    if any(event.folds and not event.is_of_the_host for event in recording.events):
        _confirm(this, warmed_up)
    return warmed_up


def _record_run(this: _Run, moving: set[int]) -> tuple[Recording, list[torch.Tensor]]:
    device, index = this.lane.device, this.lane.index
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
        moving=moving,
        forced=this.forced,
    )

    def refuse_thread() -> None:  # before it runs: what it writes could not be taken back
        recorder.met("thread", "Thread.start()")
        raise explain("thread", "Thread.start()", users_line())

    with (
        threads_told(refuse_thread),
        listening(recorder.heard, answer_capturing=True),
        recorder.watching(),
    ):
        outputs = this.function()
    for note in recorder.recording.notes:
        if RULES[note.rule].effect == "eager":
            raise explain(note.rule, note.what, note.where)
    return recorder.recording, outputs


def _changing(this: _Run, recording: Recording) -> set[int]:
    """Storage keys of the tensors from outside whose values cannot be taken for constant."""
    written = {storage_key(region) for region in this.log.regions()}
    # Inference tensors do not count their versions, so nobody could see them change; nor can a
    # tensor be asked that is made anew in each call.
    return written | {
        key
        for key, original in recording.originals.items()
        if (tensor := original()) is None or tensor.is_inference()
    }


def _matters(recording: Recording, moving: set[int], device: Device) -> bool:
    """Whether the run would have been recorded otherwise, had it been known what is moving."""
    if not recording.events:
        return False
    # What is on the device comes to the host in an event; the emulated one has but one memory.
    seen = {
        key
        for key, tensor in recording.outside.items()
        if device.kind == "emulated" or tensor.device.type != device.type
    }
    return not moving.isdisjoint(seen | recording.sources_of_folds())


def _confirm(this: _Run, eager: _WarmedUp) -> None:
    """Run once more with other inputs: what is folded has to come out the same.

    Raises:
        CaptureError: it did not, or that run failed.
    """
    this.rewind()
    expected = eager.recording.events
    log = UndoLog()
    other = dataclasses.replace(this, log=log)
    try:
        with _no_printing(), _other_inputs(this):
            try:
                recording, _ = _record_run(other, eager.moving)
            finally:
                log.undo()
    except Exception as error:
        raise CaptureError(
            f"with other inputs the function raised {_one_line(error)}, so it could not be "
            f"confirmed that {_told(expected[0])} does not depend on them."
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
def _other_inputs(this: _Run) -> Iterator[None]:
    """Let the static inputs hold other values than those that were given."""
    kept = [value.clone() for value in this.given]
    try:
        for static, value in zip(this.inputs, kept, strict=True):
            static.copy_(_other_values(value))
        yield
    finally:
        for static, value in zip(this.inputs, kept, strict=True):
            static.copy_(value)


def _other_values(static: torch.Tensor) -> torch.Tensor:
    """Values that an argument might have as well: the same ones elsewhere, floats also changed."""
    if not static.numel():
        return static
    other = static.flatten().roll(1).reshape(static.shape)
    return other * 0.75 + 0.125 if static.is_floating_point() else other


@dataclass
class _Traced:
    """A path that was captured, and how to undo it."""

    root: Segment
    last: Segment
    graft: Graft | None
    pool_bytes: int

    def attach(self) -> None:
        """Make it part of the tree."""
        if self.graft is not None:
            self.graft.parent.children[self.graft.key] = self.graft.child

    def undo(self) -> None:
        """Release it, and leave the tree as it was."""
        if self.graft is None:
            self.root.reset()
        else:
            self.graft.parent.children.pop(self.graft.key, None)
            self.graft.child.reset()


def _capture_somehow(
    this: _Run, eager: _WarmedUp, branching: bool, tree: CapturedGraph | None
) -> _Traced:
    """Capture as it is, or by folding and branching; an operator that fails becomes a branch."""
    # Under our modes compiled code steps aside; under those that capture on the emulated device as
    # well, so there a graph holds the function as it is.
    if this.compiled and this.lane.device.kind != "emulated":

        def function() -> list[torch.Tensor]:
            with eager.reads.repeated():
                return this.function()

        try:
            return _trace(dataclasses.replace(this, function=function), None)
        except _Failed as failed:
            this.lane.renew_pool()
            raise failed.explained from failed.__cause__
    root = None if tree is None else tree.root
    for _ in range(_MAX_FORCED):
        breaks = eager.recording.breaks()
        if breaks and not branching:
            raise explain(
                breaks[0].point.rule, breaks[0].point.what, breaks[0].where, 'branching="off".'
            )
        try:
            for only in _lighter_ways(eager.recording) if root is None else ():
                try:
                    return _trace(this, None if only is None else eager, only=only)
                except _Failed as failed:
                    if failed.cause_is_final and not only:
                        raise
                    this.lane.renew_pool()
                    this.rewind()
            return _trace(this, eager, root)
        except _Failed as failed:
            this.lane.renew_pool()
            if failed.operator is None or not branching or failed.operator in this.forced:
                raise failed.explained from failed.__cause__
            this.forced.add(failed.operator)
        this.rewind()
        with this.lane.device.on_stream(this.lane.stream, this.lane.index):
            eager.recording, _ = _record_run(this, eager.moving)
    raise CaptureError(f"these operators cannot be captured: {', '.join(sorted(this.forced))}")


def _lighter_ways(recording: Recording) -> Iterator[frozenset[int] | None]:
    """In which calls to see operations in a capture that may do; ``None``: as it is."""
    if recording.breaks():
        return
    # Under our modes Dynamo leaves compiled code alone.
    if not recording.events or _compiles():
        yield None
    calls = recording.calls_that_fold()
    if calls:
        yield calls


class _Failed(Exception):
    """A capture failed: at which operator, and the error that says so."""

    def __init__(self, operator: str | None, explained: CaptureError, final: bool) -> None:
        super().__init__(operator)
        self.operator = operator
        self.explained = explained
        self.cause_is_final = final


def _trace(
    this: _Run,
    eager: _WarmedUp | None,
    root: Segment | None = None,
    only: frozenset[int] | None = None,
    listen: bool = True,
) -> _Traced:
    """Capture, following the recording of ``eager``; as it is, without one.

    Args:
        this: what to capture.
        eager: what warming up found.
        root: the tree so far.
        only: the calls in which to see operations; the others run as fast as without us.
        listen: without, calls of the host that no graph can hold are let through, and fail.
    """
    this.rewind()
    lane, device = this.lane, this.lane.device
    events = [] if eager is None else eager.recording.events
    # Nothing on the device reads the static inputs now. What found a way from there to the host
    # that no operation of torch shows brings other constants than before.
    confirms = events and all(e.folds for e in events) and any(e.is_of_the_host for e in events)

    def begin() -> BridgedCUDAGraph:
        # A graph with nothing in it is gone again, and the pool with it if no other uses that.
        in_use = any(segment.graph for segment in tracer.new.everything())
        return _begin(device, lane.pool(in_use), this.generators)

    with LOCK:
        in_use, _ = device.memory(lane.index)
        device.clear_library_workspaces()
        tracer = Tracer(
            device.type,
            this.inputs,
            events,
            begin,
            root,
            moving=() if eager is None else eager.moving,
            forced=this.forced,
            only=only,
        )
        with (
            device.on_stream(lane.stream, lane.index),
            no_garbage_collection(),
            _other_inputs(this) if confirms else nullcontext(),
            listening(tracer.heard) if listen else nullcontext(),
        ):
            try:
                tracer.start()
                compiled_before = _frames_compiled()
                with nullcontext() if eager is None else tracer.watching():
                    outputs = this.function()
                if _frames_compiled() > compiled_before:
                    on_compile_in_capture(next(iter(this.roots), "a function"))
                last = tracer.finish(outputs)
            except BaseException as error:
                tracer.abandon()  # before this stream is joined, which a capture would refuse
                if not isinstance(error, Exception):
                    raise
                raise _failed(error, tracer.failure) from error
        device.clear_library_workspaces()
        # Where the device holds no more than before, the pool did not grow.
        grown = lane.measure() if device.memory(lane.index)[0] != in_use else 0
        traced = _Traced(tracer.root, last, tracer.graft, grown)
        traced.attach()
        return traced


def _begin(
    device: Device, pool: PoolHandle, generators: tuple[torch.Generator, ...]
) -> BridgedCUDAGraph:
    graph = BridgedCUDAGraph()
    for generator in generators:
        if generator.device.type == device.type:
            graph.register_generator_state(generator)
    # thread_local: other threads may go on allocating meanwhile.
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    graph.owns_pool = True
    return graph


def _failed(error: Exception, failure: Failure | None) -> _Failed:
    """What is known about a capture that failed with ``error``."""
    if isinstance(error, CaptureError):
        return _Failed(None, error, final=True)
    where = users_line_of(error) if failure is None else failure.where
    operator = None if failure is None else getattr(failure.func, "_name", None)
    explained = CaptureError(
        f"capture failed: {where}: {operator or 'the capture'}: {_one_line(error)}"
    )
    explained.rule, explained.operation = "forbidden-call", operator
    explained.file, explained.line = where.file, where.line
    explained.remedy = RULES["forbidden-call"].remedy
    # An error of the function's own, or no memory: another way of capturing would not help.
    final = isinstance(error, torch.OutOfMemoryError)
    return _Failed(operator, explained, final)


def _compiles() -> bool:
    """Whether something in this process was compiled, so that the function may call it."""
    return bool(_frames_compiled())


def _frames_compiled() -> int:
    """How many frames Dynamo has looked at in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(sum(dynamo.counters["frames"].values()))


_Tensors: TypeAlias = tuple[list[torch.Tensor], list[torch.Tensor]]
"""Outputs, and what was written to tensors from outside."""


def _first_replay(
    traced: _Traced,
    this: _Run,
    written: Sequence[torch.Tensor] = (),
    draws: bool = False,
) -> _Tensors:
    lane = this.lane
    with LOCK:
        lane.follow(lane.device.stream_id(lane.index))
        with torch.no_grad():
            for static, value in zip(this.inputs, this.given, strict=True):
                if static is not value:
                    static.copy_(value)
        last = run(traced.root)
        if last is not traced.last:
            raise VerificationError(
                "the first replay took another path than eager execution", transient=draws
            )
        # Copied at once: another graph of the same memory pool may overwrite them.
        return _cloned(last.outputs or (), written)


def _cloned(outputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> _Tensors:
    return [t.clone() for t in outputs], [t.clone() for t in written]


def _timed_replay(traced: _Traced, this: _Run) -> float:
    device, index = this.lane.device, this.lane.index
    this.rewind()
    device.synchronize(index)
    start = time.perf_counter()
    _first_replay(traced, this)
    device.synchronize(index)
    seconds = time.perf_counter() - start
    this.rewind()
    return seconds


def _verify(
    got: _Tensors,
    expected: _Tensors,
    tolerance: Tolerance,
    draws: bool = False,
    what: str = "first replay",
    least: float = 0.0,
) -> None:
    for tensors, others, part in zip(got, expected, ("output", "written tensor"), strict=True):
        _compare(
            what,
            "eager execution",
            tensors,
            others,
            tolerance,
            part,
            transient=draws,  # another thread may have drawn from the same generator in between
            least=least,
        )


def _compare(
    what: str,
    other: str,
    got: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
    tolerance: Tolerance | None,
    part: str = "output",
    transient: bool = False,
    least: float = 0.0,
) -> None:
    if tolerance is None:
        return
    for n, pair in enumerate(zip(got, expected, strict=True)):
        found = difference(*pair, tolerance, least)
        if found is not None:
            tally.add("validation_failures")
            raise VerificationError(
                f"the {what} differs from {other} in {part} {n}: {found}", transient=transient
            )


def _rounding(dtypes: set[torch.dtype], device: Device) -> float:
    """What compiled code may differ by that computes in ``dtypes``: its results may be wider."""
    if device.kind != "emulated" and torch.get_float32_matmul_precision() != "highest":
        # TF32 has the mantissa of float16.
        dtypes = {torch.float16 if dtype == torch.float32 else dtype for dtype in dtypes}
    return _COMPILED_SLACK * max((BY_DTYPE.get(dtype, 0.0) for dtype in dtypes), default=0.0)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A collection in the middle of a capture may free other graphs, which CUDA forbids there."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Listener:
    """Stands in for ``sys.stdout``: keeps what this thread prints, passes on what others print."""

    def __init__(self, stream: Any, heard: list[str]) -> None:
        self._stream = stream
        self._thread = threading.get_ident()
        self._heard = heard

    def write(self, text: str) -> Any:
        if threading.get_ident() != self._thread:
            return self._stream.write(text)
        self._heard.append(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _no_printing() -> Iterator[list[str]]:
    """Keep what is printed in warm-up runs, which the user did not ask for."""
    heard: list[str] = []
    before = sys.stdout
    sys.stdout = _Listener(before, heard)
    try:
        yield heard
    finally:
        sys.stdout = before
