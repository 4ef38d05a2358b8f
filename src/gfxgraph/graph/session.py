"""One capture: the state that its steps share, and each of the steps.

Runs that are recorded, the capture and the first replay all start where the caller's own run left
off: :meth:`CaptureSession.rewind` goes back there. ``warm_up.py`` and ``fallbacks.py`` say which
steps follow each other, ``capture.py`` puts the whole together.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Literal, TypeAlias, TypeGuard

import torch

from ..compiling.rng import tell_if_compiled
from ..device import PoolHandle
from ..device.nodes import Parameters
from ..errors import CaptureError, GfxGraphError, VerificationError, one_line
from ..interpose.cuda_calls import listening
from ..interpose.dynamo import frames_compiled, without_graphs_of_inductor
from ..interpose.interrupts import interrupt_in
from ..interpose.patch import intercept
from ..interpose.source import Source, users_line_of
from ..record.again import Passages
from ..record.answers import Answers
from ..record.effects import overwrite, storage_key
from ..record.explain import explain
from ..record.interceptor import current_interceptor
from ..record.journal import Journal, Judge
from ..record.recorder import Recorder, Recording
from ..record.rules import RULES
from ..record.side_effects import no_side_effects
from .compare import Tensors
from .control_flow import in_place_of_torchs
from .lift import lift_among
from .lines import runs_functions
from .locks import LOCK, inside_gfxgraph, no_garbage_collection, release_waiting
from .lowering import Lowering, Ways
from .native import NativeGraph
from .pool import GraphPool
from .reads import Reads
from .rollback import Around, Snapshot
from .segments import Graft, Segment, run
from .static_objects import StaticObjects
from .torch_settings import around_autograd
from .tracer import Tracer

__all__ = [
    "AroundAutograd",
    "CaptureSession",
    "Failed",
    "Layout",
    "LayoutError",
    "Target",
    "Traced",
    "cloned",
    "other_values",
]

Layout: TypeAlias = Literal["own", "aligned", "rows", "padded"]
"""How static inputs lie in memory: as the arguments do; at the beginning of memory of their own;
there and without the gaps of a slice; or as padded arguments do, for calls of any layout."""


class LayoutError(CaptureError):
    """The function depends on how its arguments lie in memory.

    ``draws``: since it draws random numbers, in an order that depends on that.
    """

    draws = False


class AroundAutograd(CaptureError):
    """What is active around the call changes the work of autograd inside: the next may do."""


class Failed(Exception):
    """A capture failed: at which operator, and the error that says so."""

    def __init__(self, operator: str | None, explained: CaptureError, final: bool) -> None:
        super().__init__(operator)
        self.operator = operator
        self.explained = explained
        self.cause_is_final = final


@dataclass(frozen=True)
class Target:
    """A function to capture, and the arguments to capture it with.

    Attributes:
        function: runs on the static inputs and returns the static outputs.
        inputs: the list that it takes its arguments from, in memory of their own. Holds the static
            inputs after a capture.
        roots: the Python objects that it reaches, by name.
        layout: how the static inputs lie in memory.
        compiled: whether it runs compiled code wherever it is not under our modes. The results of
            that are compared with those of the recorded run, which is not compiled.
        first_outputs: what the first call gave for the same arguments. A function that writes
            nothing and draws nothing gives the same again, or it has seen that its arguments are
            static inputs now.
        objects: the objects and dicts that it is given, and what it reads of them.
        ways: of a function in which the device may decide, what is known of that.
        lowers: whether it does in a new tree of graphs. Default ``False``: it is only found out
            whether it could.
        is_lifted: whether it takes what it reads of its state as an argument, and gives what it
            has stored there as a result.
    """

    function: Callable[[], list[torch.Tensor]]
    inputs: list[torch.Tensor]
    roots: dict[str, object]
    layout: Layout = "own"
    compiled: bool = False
    first_outputs: list[torch.Tensor] | None = None
    objects: StaticObjects = field(default_factory=StaticObjects)
    is_lifted: bool = False
    ways: Ways | None = None
    lowers: bool = False


@dataclass
class Traced:
    """A path that was captured, and how to undo it.

    Attributes:
        root: the first graph of the tree.
        last: the end of the path.
        graft: where the path belongs in its tree; ``None``: it is a tree of its own.
        pool_bytes: bytes by which the memory pool grew.
        launch_ns: nanoseconds in which the host launched the newest first replay; 0: not timed.
    """

    root: Segment
    last: Segment
    graft: Graft | None
    pool_bytes: int
    launch_ns: int = 0

    def undo(self) -> None:
        """Release it."""
        (self.root if self.graft is None else self.graft.child).reset()


@dataclass
class CaptureSession:
    """All that the steps of one capture share, and the steps.

    Attributes:
        target: what to capture.
        pool: the memory pool to capture into, and the stream of all runs.
        before: the state that each run starts from.
        given: what runs find in the list of inputs: tensors that nobody else uses.
        static_inputs: what a capture finds there. They may belong to other graphs too: whoever
            writes to them holds LOCK.
        varying: storage keys of what changes from call to call, as far as that is known.
        forced: operators at which the graph is cut, because a capture failed at them.
        not_compiled: why what the function itself has compiled is not in the graph.
        journal: what ``no_graph`` functions gave in the caller's own run.
        reads: what Python state the recorded run has read.
        repeats: whether frames are left out that run as they ran before (``repeats.py``).
        judge: says how a tensor differs from what it should be; ``None``: nothing is compared.
        keeps_graph: whether the graph can be changed later on.
        lowering: the statements at which the device decides; ``None``: at none.
        ran: the ways that such statements took in this call.
        could_be_lowered: whether the device could decide in a new tree of graphs.
        traced: what was captured.
        has_other_inputs: whether the inputs hold other values than those that were given.
        modules: how many modules were imported at the start.
    """

    target: Target
    pool: GraphPool
    before: Snapshot
    journal: Journal = field(default_factory=Journal)
    given: list[torch.Tensor] = field(init=False)
    static_inputs: list[torch.Tensor] = field(init=False)
    varying: set[int] = field(default_factory=set)
    forced: set[str] = field(default_factory=set)
    not_compiled: str = ""
    reads: Reads = field(default_factory=lambda: Reads({}))
    repeats: bool = True
    judge: Judge | None = None
    keeps_graph: bool = False
    lowering: Lowering | None = None
    ran: set[tuple[CodeType, int, int]] = field(default_factory=set)
    could_be_lowered: bool = False
    traced: Traced | None = None
    has_other_inputs: bool = False
    modules: int = field(default_factory=lambda: len(sys.modules))
    #: The arguments of the newest :meth:`trace`; what held the method would hold itself.
    _traced_with: dict[str, Any] = field(default_factory=dict, init=False)
    #: The memory pool of a capture that nobody will replay.
    _pool_of_trial: PoolHandle | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.given = self.static_inputs = list(self.target.inputs)

    @property
    def inputs(self) -> list[torch.Tensor]:
        """The list that the function takes its arguments from."""
        return self.target.inputs

    @property
    def written(self) -> list[torch.Tensor]:
        """The tensors that runs write to: regions outside, and the static inputs as a whole."""
        places = dict(zip(map(storage_key, self.given), self.inputs, strict=True))
        regions = self.before.memory.regions()
        return [places.get(storage_key(region), region) for region in regions]

    # The way back.

    def rewind(self) -> None:
        """Put back memory and generators, for the next step."""
        self.before.rewind()

    @contextmanager
    def rolled_back(self) -> Iterator[None]:
        """Take back what the steps inside do; where one fails, release what was captured as well.

        Raises:
            CaptureError: a step failed with an error that is not one of ours.
        """
        try:
            yield
        except BaseException as error:
            if self.traced is not None:
                self.traced.undo()
            self.before.python.restore()
            if isinstance(error, GfxGraphError) or not _is_failure(error):
                raise
            raise CaptureError(
                f"warm-up failed: {one_line(error)}",
                # Up to torch 2.11 nobody can draw random numbers while another thread captures.
                transient="Offset increment outside graph capture" in str(error),
            ) from error
        finally:
            self.rewind()
            self.before.python.take_out_of_caches()

    # Eager runs.

    def run(self) -> list[torch.Tensor]:
        """Run the function as it would run without us."""
        with self.journal.playing():
            return self.target.function()

    def record_again(self) -> tuple[Recording, list[torch.Tensor]]:
        """Rewind and record once more; see :meth:`record`."""
        self.rewind()
        found = self.record()
        if self.reads.is_doubtful:
            self.repeats = False
            self.rewind()
            found = self.record()
        return found

    def record(
        self, with_reads: bool = True, answers: Answers | None = None
    ) -> tuple[Recording, list[torch.Tensor]]:
        """Run and record; gives the outputs, too.

        Args:
            with_reads: record what Python state is read as well, which takes most of the time.
            answers: keeps sizes back from the function. Default: they are not.

        Raises:
            LayoutError: the function asks how its arguments lie in memory, which is not how its
                static inputs do.
            CaptureError: it does what no graph can hold and nothing can take over.
        """
        recorder, host = self._recorder(), self.before.host
        recording = recorder.recording
        between = recorder.around = Around(self.before.python)
        if with_reads:
            fresh = (*self.inputs, *self.given)
            sizes = Answers() if answers is None else answers
            outside = (lambda: recorder.data_reads + sizes.of_sizes) if self.repeats else None
            stores = self.before.python.stores
            self.reads = Reads(self.target.roots, fresh, self.target.objects, outside, stores)
            self.reads.stops = True
            if self.lowering is None:
                self.reads.passages = Passages(recorder)
            self.reads.closed, self.reads.answers = self.before.python.closed, answers
            self.reads.older = self.before.python.addresses()
            between.reads = self.reads
        elif self.before.python.stores is not None:
            self.before.python.stores.meet_all()
        host.begin()
        with (
            no_side_effects(lambda: recorder.quiet > 0),
            listening(recorder.observe, answer_capturing=True),
            recorder.watching(),
            self.journal.playing(),
        ):
            try:
                with (
                    in_place_of_torchs(),
                    self._lowered(),
                    self.reads.recording() if with_reads else nullcontext(),
                    nullcontext() if answers is None else answers,
                ):
                    self.reads.require_seen()
                    outputs = self.target.function()
                    if self.lowering is not None:
                        with recorder.unseen():
                            theirs: Set[int] | None = recorder.outside.keys() - recorder.inputs
                            if self.target.is_lifted or self.target.objects.stores:
                                theirs = None
                            self.lowering.require_untold(outputs, recorder.name, theirs)
                self.reads.require_seen()
            except Exception as error:
                # The error holds this frame: swap_tensors() refuses what is referenced weakly.
                recording.originals.clear()
                if not _is_failure(error):
                    raise
                self._refuse_layout(recording)
                recorder.refuse_writes_to_arrays(error)
                if not recording.asks_capturing or isinstance(error, CaptureError):
                    raise
                raise CaptureError(
                    "the function asks torch.cuda.is_current_stream_capturing() and takes another "
                    f"way in a capture, which fails: {users_line_of(error)}: {one_line(error)}"
                ) from error
            finally:
                recorder.around = None  # else both would hold each other
                if with_reads:
                    self.target.objects.take_out(self.reads.places)
        host.end()
        lift = lift_among(list(self.target.roots.values()))
        if with_reads and lift is not None:
            lift.take_out(self.reads.places)
        if with_reads:
            self.reads.settle()
        between.refuse()
        recording.unseen = [t for t in outputs if not recorder.has_seen(t)]
        inputs = set(map(storage_key, self.inputs))
        if any(storage_key(output) in inputs for output in outputs):
            recorder.laid_out("views", "the result")
        self._refuse_layout(recording)
        for note in recording.notes:
            if RULES[note.rule].effect == "eager":
                raise explain(note.rule, note.what, note.where)
        around = around_autograd() if recording.autograd else None
        if around is not None:
            raise AroundAutograd(around, transient=True)
        return recording, outputs

    @contextmanager
    def _lowered(self) -> Iterator[None]:
        """Let the device decide inside where it can."""
        if self.lowering is None:
            yield
            return
        with self.lowering.on(), intercept(torch.Tensor, "__hash__", _hash):
            yield
        self.reads.renew(self.lowering.functions())

    def _recorder(self) -> Recorder:
        device, index = self.pool.device, self.pool.index
        stream_id = device.stream_id  # asked at each operation
        stream = stream_id(index)

        def off_stream() -> str | None:
            # The stream that cannot capture: its work would silently not be in the graph.
            return "default-stream" if stream and not stream_id(index) else None

        return Recorder(
            device.type,
            self.inputs,
            self.before.memory,
            keep_values=True,
            off_stream=off_stream,
            varying=self.varying,
            forced=self.forced,
            generators=self.before.host,
            may_decide_on_device=True,
            is_tried=self.has_other_inputs or self.target.layout == "padded",
        )

    def _refuse_layout(self, recording: Recording) -> None:
        layout = self.target.layout
        if layout in ("rows", "aligned") and self.before.host.draws():
            error = LayoutError(
                "argument: it draws random numbers in an order that depends on memory"
            )
            error.draws = True
            raise error
        asked = recording.layout
        if layout == "rows":
            asked = asked or recording.views
        if asked is not None and layout in ("rows", "padded"):
            why = explain("argument", asked.what, asked.where, "It asks how it lies in memory.")
            raise LayoutError(str(why))

    @contextmanager
    def other_inputs(self) -> Iterator[None]:
        """Let the static inputs hold other values than those that were given."""
        with torch.no_grad():
            kept = [value.clone() for value in self.given]
        try:
            with torch.no_grad():
                others = list(map(other_values, kept))
            self._fill(others)
            yield
        finally:
            self._fill(kept)

    def _fill(self, values: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for static, value in zip(self.inputs, values, strict=True):
                if static is not value:
                    overwrite(static, value)

    # The capture, and its first replay.

    def trace(
        self,
        recording: Recording | None = None,
        *,
        root: Segment | None = None,
        only: frozenset[int] | None = None,
        listen: bool = True,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Traced:
        """Capture the function.

        Args:
            recording: what to follow. Default: the function is captured as it runs.
            root: the tree that it becomes a path of. Default: it is a tree of its own.
            only: the calls in which to see operations; the others run as fast as without us.
                Default: all.
            listen: hear calls of the host that no graph can hold. Without, they are let through,
                and fail. Default ``True``.
            around: entered around the function.

        Raises:
            Failed: it cannot be captured in this way.
        """
        self._traced_with = {
            "recording": recording,
            "root": root,
            "only": only,
            "listen": listen,
            "around": around,
        }
        pool, device, index = self.pool, self.pool.device, self.pool.index
        events = [] if recording is None else recording.events
        # Nothing on the device reads the static inputs now. What found a way from there to the
        # host that no operation of torch shows brings other constants than before.
        confirms = events and all(e.folds for e in events) and any(e.is_of_the_host for e in events)
        with LOCK:
            release_waiting()
            # What was launched on other streams may still read the static inputs.
            pool.sync_to(device.stream_id(index))
            self.inputs[:] = self.static_inputs
            in_use, _ = device.memory(index)
            device.clear_library_workspaces()
            tracer = Tracer(
                device.type,
                self.inputs,
                events,
                self._begin,
                self.target.objects,
                root,
                decisions=() if recording is None else recording.decisions,
                varying=() if recording is None else self.varying,
                forced=self.forced,
                only=only,
            )
            with (
                pool.on_stream(),
                no_garbage_collection(),
                self.other_inputs() if confirms else nullcontext(),
                listening(tracer.observe) if listen else nullcontext(),
            ):
                last = self._run_into(tracer, around, sees=recording is not None)
            device.clear_library_workspaces()
            # Where the device holds no more than before, the pool did not grow.
            growth = pool.measure() if device.memory(index)[0] != in_use else 0
            self.traced = Traced(tracer.root, last, tracer.graft, growth)
            if self.keeps_graph and self._pool_of_trial is None:
                for segment in self.traced.root.everything():
                    if segment.graph is not None:
                        segment.graph.instantiate()
            return self.traced

    @contextmanager
    def with_inputs(self, inputs: list[torch.Tensor]) -> Iterator[None]:
        """Let other tensors be the static inputs, and what was given."""
        kept = self.given, self.static_inputs, list(self.inputs)
        self.given = self.static_inputs = inputs
        self.inputs[:] = inputs
        try:
            yield
        finally:
            self.given, self.static_inputs, self.inputs[:] = kept

    def captured_again(self, inputs: list[torch.Tensor]) -> list[Parameters]:
        """What the nodes are given in another capture in the same way, which is then let go of.

        Args:
            inputs: the static inputs of that capture.

        Raises:
            DeviceError: the driver does not tell.
            Failed: it cannot be captured again.
            MissingPackageError: what asks the driver is not installed.
        """
        device, traced = self.pool.device, self.traced
        self.rewind()
        self._pool_of_trial = device.pool_handle()
        try:
            with self.with_inputs(inputs):
                trial = self.trace(**self._traced_with)
                try:
                    graph = trial.root.graph
                    return [] if graph is None else device.parameters(graph)
                finally:
                    trial.undo()
        finally:
            self.traced, self._pool_of_trial = traced, None

    @runs_functions
    def _run_into(
        self, tracer: Tracer, around: Callable[[], AbstractContextManager[Any]], sees: bool
    ) -> Segment:
        """Run the function into the graphs of ``tracer``; gives the last segment."""
        try:
            tracer.start()
            compiled_before = frames_compiled()
            try:
                with (
                    self.journal.playing(),
                    tracer.watching() if sees else nullcontext(),
                    in_place_of_torchs() if around is nullcontext else around(),
                    self._lowered(),
                ):
                    outputs = self.target.function()
            finally:  # it may be why the capture fails
                roots = self.target.roots
                tell_if_compiled(compiled_before, lambda: next(iter(roots), "a function"))
            return tracer.finish(outputs)
        except BaseException as error:
            tracer.abandon()  # before this stream is joined, which a capture would refuse
            if not _is_failure(error):
                raise
            raise _failed(error, tracer.failure) from error

    def _begin(self, in_use: bool) -> NativeGraph:
        """Begin the capture of a graph; ``in_use``: others of this session use the pool."""
        # A graph with nothing in it is gone again, and the pool with it if no other uses that.
        pool = self._pool_of_trial or self.pool.pool(in_use)
        graph = NativeGraph(self.keeps_graph)
        for generator in self.before.host.generators:
            if generator.device.type == self.pool.device.type:
                graph.register_generator_state(generator)
        # thread_local: other threads may go on allocating meanwhile.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        graph.owns_pool = True
        return graph

    def first_replay(self, written: Sequence[torch.Tensor] = (), draws: bool = False) -> Tensors:
        """Replay what was captured, with the arguments that were given.

        Args:
            written: tensors outside that it writes.
            draws: whether it draws random numbers: another thread may draw in between.

        Returns:
            Copies of the outputs and of ``written``.

        Raises:
            VerificationError: it took another path than the capture.
        """
        traced, pool = self.traced, self.pool
        assert traced is not None
        with LOCK, pool.replaying():
            pool.sync_to(pool.device.stream_id(pool.index))
            self._fill(self.given)
            start = time.perf_counter_ns()
            with self.journal.playing(self.judge):
                last = run(traced.root, traced.graft)
            # At a read the host waits for the device.
            traced.launch_ns = time.perf_counter_ns() - start if traced.root.step is None else 0
            if last is not traced.last:
                raise VerificationError(
                    "the first replay took another path than eager execution", transient=draws
                )
            # Copied at once: another graph of the same memory pool may overwrite them.
            return cloned(last.outputs or (), written)

    def time_call(self, how: Literal["eager", "replay"]) -> float:
        """Seconds of a call until the device is done; then the state is put back, in any case."""
        device, index = self.pool.device, self.pool.index

        def replay() -> None:
            cloned(self.inputs, ())  # as long as copying the arguments of a call to them
            self.first_replay()

        call = self.run if how == "eager" else replay
        self.rewind()
        try:
            with inside_gfxgraph(), without_graphs_of_inductor():
                device.synchronize(index)
                start = time.perf_counter()
                call()
                device.synchronize(index)
                return time.perf_counter() - start
        finally:  # also where the call is interrupted, or fails
            self.rewind()


def _hash(original: Callable[[torch.Tensor], int], tensor: torch.Tensor) -> int:
    """The hash of a tensor tells it from others; no mode sees that it is asked for."""
    interceptor = current_interceptor()
    if interceptor is not None and not (interceptor.quiet or interceptor.handling):
        interceptor.tells_apart(tensor)
    return original(tensor)


def cloned(outputs: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> Tensors:
    """Copies: later runs write to the same memory."""
    return [t.clone() for t in outputs], [t.clone() for t in written]


def other_values(static: torch.Tensor) -> torch.Tensor:
    """Values that an argument might have as well: the same ones elsewhere, floats also changed."""
    if not static.numel():
        return static
    other = static.flatten().roll(1).reshape(static.shape)
    return other * 0.75 + 0.125 if static.is_floating_point() else other


def _is_failure(error: BaseException) -> TypeGuard[Exception]:
    """Whether it is the function's error or one of ours, and has not come from outside."""
    return isinstance(error, Exception) and interrupt_in(error) is None


def _failed(error: Exception, failure: tuple[Any, Source] | None) -> Failed:
    """The failure of a capture, explained; ``failure``: see :class:`Tracer`."""
    if isinstance(error, CaptureError):
        return Failed(None, error, final=True)
    func, where = failure or (None, users_line_of(error))
    operator = getattr(func, "_name", None)
    explained = CaptureError(
        f"capture failed: {where}: {operator or 'the capture'}: {one_line(error)}"
    )
    explained.rule, explained.operation = "forbidden-call", operator
    explained.file, explained.line = where.file, where.line
    explained.remedy = RULES["forbidden-call"].remedy
    # An error of the function's own, or no memory: another way of capturing would not help.
    final = isinstance(error, torch.OutOfMemoryError)
    return Failed(operator, explained, final)
