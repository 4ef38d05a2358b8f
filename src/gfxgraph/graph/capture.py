"""Safe capture: warm up, capture, replay once against eager, and leave no trace of it.

The caller has run the function once for real. Everything here happens on top of the state that
this call left behind, and is taken back: tensors written in place, the generator, Python
attributes. What is left is a graph.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from ..device import Device
from ..errors import CaptureError, GfxGraphError, VerificationError
from ..interpose.dynamo import Uncompiled, compiled_code, without_graphs_of_inductor
from ..interpose.source import Source
from ..record.collectives import refused
from ..record.effects import KnownTensors, UndoLog, Unexpected, nobody_else_holds, storage_key
from ..record.explain import explain
from ..record.journal import Journal
from ..record.recorder import Recorder, Recording
from ..record.side_effects import side_effects
from ..stats import log
from .compare import Tolerance, difference
from .first_call import one_shots_before, raise_if_moved
from .first_replay import compare_all, first_replay, rounding, timed_replay, verify
from .guard import Guard
from .host_state import HostState
from .locks import LOCK, inside_gfxgraph
from .pool import GraphPool
from .segments import Graft, Segment
from .state import PythonState
from .trace import Failed, Traced, capture_with_fallbacks, trace
from .warm_up import Layout, Run, WarmedUp, no_side_effects, one_line, report_line, some, warm_up

__all__ = [
    "CapturedGraph",
    "capture",
    "capture_like",
    "run_and_roll_back",
]


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
        generators: the user's own generators that it draws from.
        calls_user: whether a function of the user's runs between two graphs.
        guard: watches what the graphs rely on.
        pool_bytes: bytes by which the memory pool grew.
        draws_random_numbers: whether a run advances a generator.
        report: what was folded and where the host takes over, a sentence each.
        peak_bytes: bytes of the device that eager execution took at most for what it makes.
        sample: what the first replay gave, if it was made; for whoever wants to look at it.
        state: what Python held then, if the function only computes: nothing was folded, written,
            drawn, or worth a note.
        compiled: whether what it holds is compiled code.
        code: compiled code that it uses, kept for as long as it lives.
        not_compiled: why what the function itself has compiled is in there as it is.
        asks_layout: whether what it does depends on how its arguments lie in memory.
        launch_ns: nanoseconds in which the host launched a replay; 0: not timed.
        regions: what replays write outside, but for the static inputs; in the order of the first
            writes, and one may be part of another.
        groups: names of the process groups, each of one rank, whose collectives it holds.
        slack: what replays may differ by from eager execution, in any dtype: compiled code rounds
            at other places.
        time_replay: replays from the state that the capture found, puts that back, and gives the
            seconds until the device was done; ``None`` where that was not asked for.
        graft: where a new path belongs in its tree; put there by whoever keeps it.
    """

    root: Segment
    last: Segment
    written: dict[int, torch.Tensor]
    outside: dict[int, torch.Tensor]
    saved: list[torch.Tensor]
    saves_generator: bool
    generators: tuple[torch.Generator, ...]
    calls_user: bool
    guard: Guard
    pool_bytes: int
    draws_random_numbers: bool
    report: list[str]
    peak_bytes: int = 0
    state: PythonState | None = None
    sample: list[torch.Tensor] = dataclasses.field(default_factory=list)
    compiled: bool = False
    code: list[object] = dataclasses.field(default_factory=list)
    not_compiled: str = ""
    launch_ns: int = 0
    regions: list[torch.Tensor] = dataclasses.field(default_factory=list)
    groups: frozenset[str] = frozenset()
    slack: float = 0.0
    time_replay: Callable[[], float] | None = None
    asks_layout: bool = False
    graft: Graft | None = None

    def release(self) -> None:
        """Let go of all graphs; the caller holds LOCK."""
        self.root.reset()
        if self.graft is not None:
            self.graft.child.reset()

    @property
    def plain(self) -> bool:
        """Whether the function only computes."""
        return self.state is not None

    @property
    def outputs(self) -> list[torch.Tensor]:
        """The tensors that the function returned while it was captured."""
        return self.last.outputs or []


def capture(
    function: Callable[[], list[torch.Tensor]],
    inputs: list[torch.Tensor],
    *,
    graph_pool: GraphPool,
    warmup: int,
    roots: dict[str, object],
    tolerance: Tolerance | None,
    branching: bool = True,
    first_outputs: list[torch.Tensor] | None = None,
    tree: CapturedGraph | None = None,
    static_inputs: Sequence[torch.Tensor] | None = None,
    share_inputs: bool = False,
    admit: Callable[[int], None] = lambda peak_bytes: None,
    compiled: bool = False,
    timed: bool = False,
    layout: Layout = "own",
) -> CapturedGraph:
    """Warm up, capture and verify ``function``, then take back what all that did.

    Host reads and host constants that do not depend on the inputs are folded: the graph holds what
    came out in a run that was watched, and a second run with other inputs has confirmed it. At
    those that do depend on them the graph ends, and the host decides how the call goes on.

    Args:
        function: runs on the static inputs and returns the static outputs.
        inputs: the arguments, in memory of their own; holds the static inputs afterwards.
        graph pool: the memory pool to capture into, and the stream to warm up and to capture on.
        warmup: how many eager runs before the capture, at least 1.
        roots: the Python objects that the function reaches, by name.
        tolerance: how far the first replay may be from eager; ``None``: do not compare.
        branching: whether a function whose course depends on data may become several graphs.
        first_outputs: what the first call gave for the same arguments. A function that writes
            nothing and draws nothing gives the same again, or it has seen that its arguments are
            static inputs now.
        tree: what was captured of the function for other data. The new path follows on that, and
            is added to it by whoever keeps it.
        static_inputs: the static inputs of ``tree``. Other threads may go on replaying it.
        share_inputs: put the static inputs on memory that all graphs of the pool use for theirs,
            where that can be.
        admit: raises if there is no room for what takes so many bytes at its peak.
        compiled: whether ``function`` runs compiled code wherever it is not under our modes; that
            is compared with the recorded run, which is not compiled.
        timed: whether its replays are to be timed.
        layout: how the static inputs lie in memory.

    Raises:
        LayoutError: the function asks how its arguments lie in memory, which is not how its static
            inputs do.
        CompileError: the host decides how the call goes on, which compiled code cannot be cut for.
        CaptureError: the function cannot be captured. The text says why, and names the user's
            line where there is one; the error that was met first, if any, is its ``__cause__``.
        VerificationError: the first replay differs from eager execution.
    """
    device, index = graph_pool.device, graph_pool.index
    log = UndoLog()
    python_state = PythonState(roots)
    if python_state.scripted:
        raise explain("torchscript", some(python_state.scripted), Source())
    if torch.is_grad_enabled() and python_state.recorded():
        raise CaptureError(
            f"autograd records into {some(python_state.recorded())}; a replay records nothing. "
            "Call it under torch.no_grad() or torch.inference_mode()."
        )
    raise_if_moved()
    host = HostState(device, index, python_state.stateful)
    if layout == "padded":
        host.refuse_one_shots("and runs with padded arguments")
    host.check_one_shots(one_shots_before())

    def rewind() -> None:
        # On the stream of the runs, which saved the values: their memory is used again there.
        with device.on_stream(graph_pool.stream, index):
            log.undo()
        host.rewind()

    given = list(inputs)
    this = Run(
        function,
        inputs,
        given,
        given,
        graph_pool,
        roots,
        log,
        python_state,
        host,
        rewind,
        set(),
        compiled,
    )
    this.layout = layout
    this.journal = Journal.of_the_call()
    traced: Traced | None = None
    sample: list[torch.Tensor] = []
    try:
        with inside_gfxgraph(), without_graphs_of_inductor(), refused() as issued:
            with device.on_stream(graph_pool.stream, index):
                eager = warm_up(this, warmup)
            host.check_still()
            least = _least(eager, device)
            if tolerance is not None:
                this.judge = functools.partial(difference, tolerance=tolerance, least=least)
            if python_state.missed():
                with device.on_stream(graph_pool.stream, index):
                    _refuse_memos(this)
            if (
                first_outputs is not None
                and not len(log)
                and not eager.draws_random_numbers
                and not any(event.point.rule == "no-graph" for event in eager.recording.events)
            ):
                runs = (eager.first_outputs, first_outputs)
                compare_all("second run", "first", *runs, tolerance, least=least)
            if eager.uncompiled is not None and tolerance is not None:
                verify(
                    (eager.outputs, eager.written),
                    eager.uncompiled,
                    tolerance,
                    what="compiled function",
                    least=rounding(eager.recording.dtypes, device),
                )
            made = [
                t
                for t in eager.recording.outside.values()
                if t.device.type == device.type and nobody_else_holds(t)
            ]
            known = {*python_state.names(), *map(storage_key, first_outputs or ())}
            made += [t for t in eager.recording.unseen if storage_key(t) not in known]
            if made:
                raise CaptureError(
                    f"the function uses a tensor of shape {tuple(made[0].shape)} that is made in "
                    "the call but not by it: on another thread, or by a library outside of torch. "
                    "A graph would hold that one for ever. Make it outside and pass it."
                )
            admit(eager.recording.peak_bytes)
            root = None if tree is None else tree.root
            # What a call writes to them is copied back to its arguments, and a host that reads
            # them between two graphs may take its time: such inputs stay apart.
            regions = set(map(storage_key, log.regions()))
            if static_inputs is not None:
                this.static_inputs = list(static_inputs)
            elif share_inputs and not (
                eager.recording.breaks() or regions & set(map(storage_key, inputs))
            ):
                this.static_inputs = graph_pool.shared_inputs(inputs)
            traced = capture_with_fallbacks(this, eager, branching, root)
            rewind()
            if tolerance is not None:
                expected, states = (eager.outputs, eager.written), eager.states
                if device.kind == "emulated" and eager.uncompiled is not None:
                    # That is what such a graph holds.
                    expected, states = eager.uncompiled, eager.uncompiled_states
                got = first_replay(traced, this, this.written, eager.draws_random_numbers)
                drawn = eager.draws_random_numbers
                verify(got, expected, tolerance, drawn, least=least)
                elsewhere = host.elsewhere(states)
                if elsewhere is not None:
                    raise VerificationError(
                        f"the first replay leaves {elsewhere} in another state than eager "
                        "execution does",
                        transient=True,  # another thread may have drawn from it
                    )
                sample = got[0]
            host.check_still()
            changes = python_state.changes()
            if changes:
                raise CaptureError(
                    f"the second call still changed {some(changes)} in Python; wait until it has "
                    "settled.",
                    transient=True,
                )
    except BaseException as error:
        if traced is not None:
            traced.undo()
        python_state.restore()
        if isinstance(error, GfxGraphError) or not isinstance(error, Exception):
            raise
        raise CaptureError(
            f"warm-up failed: {one_line(error)}",
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
    # What is only returned is used as well: replays give the very memory of then.
    given_back = {storage_key(t): t.detach() for t in recording.unseen}
    outside = {k: t for k, t in (given_back | recording.outside).items() if k not in static}
    written = {storage_key(t): originals.get(storage_key(t), t) for t in this.written}
    saved = [region for region in log.regions() if storage_key(region) in early]
    rewritten = [region for region in log.regions() if storage_key(region) not in static]
    saves_generator = recording.draws is not None and bool(recording.breaks())
    generators = host.used
    holds_compiled = recording.compiles and not this.not_compiled and device.kind != "emulated"
    # Constants of the host are part of compiled code.
    told = [
        event
        for event in recording.events
        if event.point.kind == "read" or not (compiled or holds_compiled)
    ]
    report = list(dict.fromkeys(map(report_line, told)))
    pool_bytes = traced.pool_bytes
    if tree is not None:
        outside, written = tree.outside | outside, tree.written | written
        saved, rewritten = tree.saved + saved, tree.regions + rewritten
        saves_generator |= tree.saves_generator
        generators = tuple(dict.fromkeys((*tree.generators, *generators)))
        folded_from |= tree.guard.watched_versions()
        report = list(dict.fromkeys(tree.report + report))
        pool_bytes += tree.pool_bytes
    special = (
        recording.events
        or any(note.rule != "random" for note in recording.notes)  # attention without dropout
        or len(log)
        or eager.draws_random_numbers
        or not host.is_plain
        or tree is not None
        or compiled
        or recording.compiles
    )
    return CapturedGraph(
        traced.root,
        traced.last,
        written=written,
        outside=outside,
        saved=saved,
        saves_generator=saves_generator,
        generators=generators,
        calls_user=any(event.point.rule == "no-graph" for event in recording.events)
        or (tree is not None and tree.calls_user),
        guard=eager.state.guard(outside, folded_from),
        pool_bytes=pool_bytes,
        draws_random_numbers=eager.draws_random_numbers,
        report=report,
        peak_bytes=recording.peak_bytes,
        state=None if special else eager.state,
        sample=sample,
        compiled=compiled,
        code=compiled_code() if holds_compiled else [],
        not_compiled=this.not_compiled,
        launch_ns=traced.launch_ns,
        asks_layout=bool(recording.layout or recording.views),
        regions=rewritten,
        groups=frozenset(issued.groups) | (frozenset() if tree is None else tree.groups),
        slack=rounding(recording.dtypes, device) if compiled or recording.compiles else 0.0,
        time_replay=functools.partial(timed_replay, traced, this) if timed else None,
        graft=traced.graft,
    )


def _refuse_memos(this: Run) -> None:
    """Raise if a cache of ``functools`` takes equal tensors for new ones.

    It would answer the capture with the result of warming up, and the graph would hold that one.
    """
    this.rewind()
    before, inputs = PythonState(this.roots), list(this.inputs)
    this.inputs[:] = [torch.empty_like(tensor).copy_(tensor) for tensor in inputs]
    try:
        this.function()
    finally:
        this.inputs[:] = inputs
    if before.missed():
        raise CaptureError(
            f"{some(before.missed())} keeps results by the very tensors that it is given "
            "(functools.cache, lru_cache), so a replay would give that of another call. Let it "
            "take numbers only, or leave the cache out."
        )


def _least(eager: WarmedUp, device: Device) -> float:
    """What its runs may differ by: the watched one is not compiled."""
    return rounding(eager.recording.dtypes, device) if eager.recording.compiles else 0.0


def capture_like(
    model: CapturedGraph,
    function: Callable[[], list[torch.Tensor]],
    inputs: list[torch.Tensor],
    *,
    graph_pool: GraphPool,
    tolerance: Tolerance | None,
    peak_bytes: int,
) -> CapturedGraph | None:
    """Capture a function that was captured before for inputs of another size.

    A single eager run takes the place of warm-up and recording: it has to use the tensors that
    ``model`` uses and no others, write to nothing, draw nothing, and leave Python as it is. Static
    inputs are shared with the other graphs of the graph pool.

    Args:
        model: what was captured before; it is plain.
        function: as for :func:`capture`.
        inputs: as for :func:`capture`; holds others afterwards.
        graph pool: as for :func:`capture`.
        tolerance: as for :func:`capture`.
        peak_bytes: what it takes in eager execution, as far as can be told.

    Returns:
        The graph; ``None`` where anything was not as expected, with nothing changed: capture it
        the long way, which finds out what it is.
    """
    device, index, given = graph_pool.device, graph_pool.index, list(inputs)
    host = HostState(device, index)
    nothing, undo = PythonState({}), UndoLog()
    this = Run(
        function, inputs, given, given, graph_pool, {}, undo, nothing, host, lambda: None, set()
    )
    traced: Traced | None = None
    captured: CapturedGraph | None = None
    try:
        with _only_computes(model, device, index, given) as watching:
            with device.on_stream(graph_pool.stream, index), watching:
                outputs = function()
            this.static_inputs = graph_pool.shared_inputs(inputs)
            traced = trace(this, None, listen=False)
        sample: list[torch.Tensor] = []
        if tolerance is not None:
            got = first_replay(traced, this)
            verify(got, (outputs, []), tolerance)
            sample = got[0]
        captured = dataclasses.replace(
            model,
            root=traced.root,
            last=traced.last,
            pool_bytes=traced.pool_bytes,
            peak_bytes=peak_bytes,
            sample=sample,
            launch_ns=traced.launch_ns,
        )
    except (Exception, Unexpected) as error:
        # Met again, and explained, on the long way.
        log(logging.DEBUG, "not_alike", because=one_line(error))
        if isinstance(error, Failed):
            graph_pool.renew_pool()
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
    state = model.state

    def changed() -> bool:
        return not model.guard.holds() or bool(state and state.changes(registries=False))

    if state is None or changed():
        raise Unexpected("something that the function reaches is another object now")
    mode = KnownTensors((*map(storage_key, inputs), *model.outside))
    host = HostState(device, index)
    more: list[str] = []
    uncompiled = Uncompiled()

    def effect(rule: str, what: str) -> bool:
        more.append(f"does something outside of torch ({what})")
        return True

    with inside_gfxgraph(), side_effects(effect), uncompiled, refused() as issued:
        try:
            yield mode
        finally:
            if uncompiled.asked:
                more.append("calls what is to be compiled")
            if issued.groups:
                more.append("issues a collective")
            if host.has_moved():
                host.rewind()
                more.append("draws random numbers")
            if changed():
                state.restore()  # it was the same before
                more.append("rebinds something")
    if more:
        raise Unexpected(f"the function {', '.join(more)}")


def run_and_roll_back(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: Sequence[torch.Tensor],
    device: Device,
    model: CapturedGraph | None = None,
    look: Callable[[UndoLog, Recording], None] = lambda written, recording: None,
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
        look: called after the run, before anything is taken back, with what knows the regions
            that it wrote, and with its recording; not where ``model`` made it faster.

    Returns:
        The result, and whether random numbers of the device were drawn.

    Raises:
        CaptureError: it does something outside of torch, and the run ended before that; or it
            rebinds something in Python.
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
    host = HostState(device, index, state.stateful)
    host.refuse_one_shots("and is tried with arguments that nobody called it with")
    recorder = Recorder(device.type, inputs, written, keep_values=True, generators=host)
    try:
        with inside_gfxgraph(), no_side_effects(), refused(), recorder.watching():
            result = function(*args, **kwargs)
            # It may be memory that is put back now.
            result = pytree.tree_map_only(torch.Tensor, torch.clone, result)
            look(written, recorder.recording)
        rebound = state.replaced()
        if rebound:
            raise CaptureError(
                f"calls with other arguments rebind {some(rebound)} to something else, which a "
                "replay would not do. Keep such state in a tensor that is written in place "
                "(copy_, add_), or outside."
            )
        return result, recorder.recording.draws is not None
    finally:
        written.undo()
        state.restore()
        with LOCK:
            host.rewind()
