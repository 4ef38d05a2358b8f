"""Safe capture: warm up, capture, replay once against eager, and leave no trace of it.

The caller has run the function once for real. Everything here happens on top of the state that
this call left behind, and is taken back: tensors written in place, the generator, Python
attributes. What is left is a graph.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from ..device.overrides import hidden_modes
from ..errors import CaptureError, GfxGraphError, VerificationError, let_go, one_line
from ..interpose.codes import address
from ..interpose.dynamo import compiled_code, without_graphs_of_inductor
from ..interpose.host_reads import HostReads
from ..interpose.interrupts import interrupt_in
from ..interpose.source import Source
from ..record.answers import Answers
from ..record.collectives import Issued, held_in_graphs, refused, together
from ..record.effects import Unexpected, nobody_else_holds, storage_key
from ..record.explain import explain, some
from ..record.journal import Journal
from ..record.recorder import Recording
from ..stats import log
from . import raw
from .captured import CapturedGraph
from .compare import Tolerance, difference, require_equal, rounding
from .fallbacks import capture_with_fallbacks, lower, reads_often, trace_lightly
from .first_call import one_shots_before, raise_if_moved
from .guard import Guard
from .lift import EffectsError, lift_among
from .locks import LOCK, inside_gfxgraph, is_only_thread
from .lookups import REGISTERED
from .lowering import OutgrownError, Ways
from .pool import GraphPool
from .rebinding import prove
from .rollback import Modes, Snapshot, only_computes
from .session import CaptureSession, Failed, Target
from .state import PythonState
from .torch_settings import Settings, deciding, of_autograd
from .warm_up import (
    WarmedUp,
    first_call_counts,
    must_record_again,
    refuse_effects,
    report_line,
    varying,
    warm_up,
)
from .witness import witness

__all__ = ["CaptureOptions", "capture", "capture_like"]


@dataclass(frozen=True)
class CaptureOptions:
    """How to capture.

    Attributes:
        warmup: how many eager runs before the capture, at least 1.
        tolerance: how far the first replay may be from eager; ``None``: do not compare.
        branching: whether a function whose course depends on data may become several graphs.
        share_inputs: put the static inputs on memory that all graphs of the pool use for theirs,
            where that can be.
        admit: raises if there is no room for what takes so many bytes at its peak.
        timed: whether calls are to be timed, see ``CapturedGraph.time_call``.
        rebind: numbers of inputs to read where the caller has them, if that is proven safe.
        agree: the graph is to hold collectives: waits until all ranks have come as far, and raises
            where one does not. It takes the recording once there is one, and ``None`` when the
            graph is there. ``None``: graphs are cut at collectives.
    """

    warmup: int
    tolerance: Tolerance | None
    branching: bool = True
    share_inputs: bool = False
    admit: Callable[[int], None] = lambda peak_bytes: None
    timed: bool = False
    rebind: frozenset[int] = frozenset()
    agree: Callable[[Recording | None], None] | None = None


def capture(
    target: Target,
    options: CaptureOptions,
    graph_pool: GraphPool,
    *,
    extends: CapturedGraph | None = None,
    static_inputs: Sequence[torch.Tensor] | None = None,
) -> CapturedGraph:
    """Warm up, capture and verify a function, then take back what all that did.

    Host reads and host constants that do not depend on the inputs are folded: the graph holds what
    came out in a run that was watched, and a second run with other inputs has confirmed it. At
    those that do depend on them the graph ends, and the host decides how the call goes on.

    Args:
        target: the function and its arguments.
        options: how to capture.
        graph_pool: the memory pool to capture into, and the stream to warm up and to capture on.
        extends: what was captured of the function for other data. The new path follows on that,
            and is added to it by whoever keeps it. Default: a tree of its own.
        static_inputs: the static inputs of ``extends``. Other threads may go on replaying it.

    Raises:
        LayoutError: the function asks how its arguments lie in memory, which is not how its static
            inputs do.
        CompileError: the host decides how the call goes on, which compiled code cannot be cut for.
        CaptureError: the function cannot be captured. The text says why, and names the user's
            line where there is one; the error that was met first, if any, is its ``__cause__``.
        VerificationError: the first replay differs from eager execution.
    """
    device, index = graph_pool.device, graph_pool.index
    before = Snapshot.take(device, index, target.roots, graph_pool.on_stream)
    journal = Journal.of_the_call(witness)
    _refuse_as_found(before, target, journal)
    session = CaptureSession(target, graph_pool, before, journal)
    if extends is not None:
        session.forced |= extends.forced
    with (
        session.rolled_back(),
        inside_gfxgraph(),
        without_graphs_of_inductor(),
        refused() as issued,
        held_in_graphs(options.agree is not None),
    ):
        with graph_pool.on_stream():
            eager = warm_up(session, options.warmup)
        raise_if_moved(before.python.stores)
        before.host.check_still()
        journal.refuse(before.python.reaches)  # the runs of nobody's call
        through = before.memory.written_through()
        if through:
            raise explain("side-effect", f"a write through {through}", Source())
        if options.tolerance is not None:
            # The recorded run was not compiled, so it rounds at other places.
            least = rounding(eager.recording.dtypes, device) if eager.recording.compiles else 0.0
            session.judge = functools.partial(difference, tolerance=options.tolerance, least=least)
        if before.python.missed():
            with graph_pool.on_stream():
                _refuse_memos(session)
        _compare_runs(session, eager, options.tolerance)
        _refuse_foreign_tensors(session, eager)
        if extends is not None and extends.lowering is not None:
            session.lowering = extends.lowering
            try:
                with graph_pool.on_stream():
                    eager.recording, _ = session.record_again()
            except CaptureError as error:
                if not extends.lowering.learn():
                    raise
                raise OutgrownError(str(error)) from error
        elif target.ways is not None and not target.compiled:
            _let_the_device_decide(session, eager, target.ways, extends)
        options.admit(eager.recording.peak_bytes)
        if static_inputs is not None:
            session.static_inputs = list(static_inputs)
        elif options.share_inputs and _can_share_inputs(session, eager):
            session.static_inputs = graph_pool.shared_inputs(session.inputs)
        root = None if extends is None else extends.root
        session.keeps_graph = bool(options.rebind)
        if options.agree is not None:
            options.agree(eager.recording)
        capture_with_fallbacks(session, eager, options.branching, root)
        session.rewind()
        if options.agree is not None:
            options.agree(None)
        with nullcontext() if options.agree is None else together():
            sample = _verify_first_replay(session, eager)
        rebinding, how = prove(session, options.rebind, eager.draws_random_numbers)
        before.host.check_still()
        _refuse_unsettled(session)
        _refuse_changed(session)
        _refuse_locks(session, extends)
    captured = _captured(session, eager, extends)
    if target.ways is not None:
        target.ways.ran |= session.ran
    return dataclasses.replace(
        captured,
        groups=captured.groups | issued.groups,
        collectives=() if options.agree is None else tuple(eager.recording.collectives),
        sample=sample,
        rebinding=rebinding,
        report=[*captured.report, *how],
        time_call=session.time_call if options.timed or session.could_be_lowered else None,
    )


def capture_like(
    template: CapturedGraph,
    target: Target,
    options: CaptureOptions,
    graph_pool: GraphPool,
) -> CapturedGraph | None:
    """Capture a function that was captured before, for tensors of other sizes.

    One recorded run takes the place of warm-up, and the guard of ``template`` watches this graph as
    well. So that run may only compute, and may rely on nothing that ``template`` does not rely on:
    what it reads in Python, its tensors from outside, its locks, and the settings of torch that
    decide for its operators.

    Args:
        template: what was captured before; its ``state`` is known.
        target: the function and its arguments.
        options: as for :func:`capture`.
        graph_pool: likewise.

    Returns:
        The graph; ``None`` where anything was not as expected, with nothing changed: capture it
        the long way, which finds out what it is.
    """
    # Ranks go the same way, and the long one is open to all of them.
    if target.is_lifted or options.agree is not None or not template.guard.holds():
        return None
    pays = template.guard.told or (template.guard.graphs and target.layout == "padded")
    answers = _kept_back(template) if pays else None
    captured = _tried_like(template, target, options, graph_pool, answers)
    if captured is None and answers is not None:
        captured = _tried_like(template, target, options, graph_pool, None)
    return captured


def _tried_like(
    template: CapturedGraph,
    target: Target,
    options: CaptureOptions,
    graph_pool: GraphPool,
    answers: Answers | None,
) -> CapturedGraph | None:
    """See :func:`capture_like`; ``answers``: keeps sizes back from the recorded run."""
    session = _session_like(template, target, graph_pool)
    before, handled = session.before, sys.exc_info()[1]
    try:
        _refuse_as_found(before, target, session.journal)
        with (
            session.rolled_back(),
            inside_gfxgraph(),
            without_graphs_of_inductor(),
            refused() as issued,
        ):
            captured = _captured_like(template, session, options, issued, answers)
        template.guard.graphs += 1
        return captured
    except (Exception, Unexpected) as error:
        session.reads.put_back(before.python)
        if interrupt_in(error):
            raise
        # Met again, and explained, on the long way.
        log(logging.DEBUG, "not_alike", because=one_line(error))
        let_go(error, handled)
        if isinstance(error, Failed):
            graph_pool.renew_pool()
        session.inputs[:] = session.given
    return None


def why_unlike(template: CapturedGraph, target: Target, graph_pool: GraphPool) -> str:
    """Why graphs of other sizes must not answer a call; ``""``: they may.

    One recorded run, which is rolled back, says what the call reads, does and leaves. All of that
    has to be what ``template`` does: its guard watches nothing else.

    Args:
        template: what was captured for other sizes.
        target: the function, and the arguments of the call.
        graph_pool: where ``template`` lies.
    """
    answers = _kept_back(template)
    if answers is not None and answers.are_expected:
        if _is_told_the_same(template, target, graph_pool, answers):
            return ""
    elif answers is not None:
        session = _session_like(template, target, graph_pool)
        if not _why_unlike(template, session, answers) and _learn(template, session, answers):
            return ""
    return _why_unlike(template, _session_like(template, target, graph_pool))


def _kept_back(template: CapturedGraph) -> Answers | None:
    """Stand-ins for the sizes of a call: see :mod:`~gfxgraph.record.answers`.

    They compare the answers of torch with those that calls of other sizes got. A run that gets the
    same answers reads and does the same. If no run has noted answers yet, a recorded run can.
    ``None``: stand-ins do not help here.
    """
    guard = template.guard
    if template.autograd or template.differentiates or template.state is None:
        return None  # it may call functions of the program's, or do more than compute
    if guard.told is None:
        guard.told = []
        return Answers()
    return Answers(guard.told) if guard.told and is_only_thread() else None


def _is_told_the_same(
    template: CapturedGraph, target: Target, graph_pool: GraphPool, answers: Answers
) -> bool:
    """Run a call with its sizes kept back, unrecorded; whether it gets the expected answers."""
    alone = only_computes(template, graph_pool.device, graph_pool.index, target.inputs)
    handled = sys.exc_info()[1]
    try:
        with graph_pool.on_stream(), alone, hidden_modes(), answers:
            target.function()
    except (Exception, Unexpected) as error:
        if interrupt_in(error):
            raise
        # Met again, and explained, in a run that is recorded.
        log(logging.DEBUG, "not_alike", because=one_line(error))
        let_go(error, handled)
        return False
    return answers.were_told


def _learn(template: CapturedGraph, session: CaptureSession, answers: Answers) -> bool:
    """Learn what torch tells calls whose sizes are kept back; whether they go the usual way."""
    reads = session.reads
    # Code in C that wants an `int` and gets a stand-in raises others.
    is_usual = all(issubclass(kind, _OF_NO_SIZE) for _, kind in reads.handled)
    is_usual &= answers.are_all and not reads.asks_who_watches
    template.guard.told = answers.told if is_usual else []
    return is_usual


_OF_NO_SIZE = (LookupError, AttributeError, ImportError, OSError, GeneratorExit)


def _session_like(template: CapturedGraph, target: Target, graph_pool: GraphPool) -> CaptureSession:
    state = None if template.state is None else template.state.again()
    device, index = graph_pool.device, graph_pool.index
    before = Snapshot.take(device, index, target.roots, graph_pool.on_stream, state)
    return CaptureSession(target, graph_pool, before, Journal.of_the_call(witness))


def _why_unlike(
    template: CapturedGraph, session: CaptureSession, answers: Answers | None = None
) -> str:
    """See :func:`why_unlike`; ``answers`` as for :meth:`CaptureSession.record`."""
    before, target, handled = session.before, session.target, sys.exc_info()[1]
    try:
        _refuse_as_found(before, target, session.journal)
        with session.rolled_back(), inside_gfxgraph(), without_graphs_of_inductor():
            host, on_stream = before.host, session.pool.on_stream
            with refused() as issued, on_stream(), host.standing_still(), Modes() as modes:
                recording, _ = session.record(answers=answers)
            if modes.changed:
                return f"it changes {some(modes.changed)}"
            refuse_effects(session)
            session.varying = varying(session, recording)
            _require_alike(template, session, recording, issued)
    except (Exception, Unexpected) as error:
        session.reads.put_back(before.python)
        if interrupt_in(error):
            raise
        let_go(error, handled)
        return str(error) if isinstance(error, (GfxGraphError, Unexpected)) else one_line(error)
    finally:
        with LOCK:
            before.restore()
    return ""


def _captured_like(
    template: CapturedGraph,
    session: CaptureSession,
    options: CaptureOptions,
    issued: Issued,
    answers: Answers | None,
) -> CapturedGraph:
    """See :func:`_tried_like`.

    Raises:
        Exception: it cannot be captured like that.
    """
    host = session.before.host
    # Then what the function reads, ``template`` reads, so that it need not be seen.
    is_told = answers is not None and answers.are_expected
    with session.pool.on_stream(), host.standing_still(), Modes() as modes:
        recording, outputs = session.record(not is_told, answers)
    if answers is not None and is_told:
        _require_told(template, session, recording, answers, modes)
    elif answers is not None and not _learn(template, session, answers):
        raise Unexpected("the function may do something else where sizes are kept back")
    refuse_effects(session)
    session.varying = varying(session, recording)
    _require_alike(template, session, recording, issued)
    first = session.target.first_outputs
    if session.reads.asks_who_watches or (
        first is not None and not first_call_counts(session, recording, outputs)
    ):
        raise Unexpected("the function may do something else where nobody watches")
    eager = WarmedUp(
        outputs,
        recording,
        outputs,
        written=[],
        states=host.states(),
        uncompiled=None,
        uncompiled_states={},
        reads=HostReads(session.pool.device.type),
        state=session.before.python,
        draws_random_numbers=host.draws(),
    )
    if options.tolerance is not None:
        session.judge = functools.partial(difference, tolerance=options.tolerance)
    options.admit(recording.peak_bytes)
    if options.share_inputs and _can_share_inputs(session, eager):
        session.static_inputs = session.pool.shared_inputs(session.inputs)
    session.keeps_graph = bool(options.rebind)
    trace_lightly(session, recording)
    session.rewind()
    sample = _verify_first_replay(session, eager)
    rebinding, how = prove(session, options.rebind, eager.draws_random_numbers)
    host.check_still()
    _refuse_locks(session, None)
    _refuse_unsettled(session)
    _refuse_changed(session)
    captured = _captured(session, eager, None, template.guard)
    if is_told:
        captured = dataclasses.replace(captured, stored=template.stored, locks=template.locks)
    return dataclasses.replace(
        captured, sample=sample, rebinding=rebinding, report=[*captured.report, *how]
    )


def _require_told(
    template: CapturedGraph,
    session: CaptureSession,
    recording: Recording,
    answers: Answers,
    modes: Modes,
) -> None:
    """Raise if a run whose reads were not seen was told something else, or did more.

    Raises:
        Unexpected: it did.
    """
    draws = session.before.host.draws() and not template.draws_random_numbers
    for is_other, what in (
        (not answers.were_told, "is told something else"),
        (bool(modes.changed), "leaves another mode"),
        (recording.compiles, "calls what is to be compiled"),
        (draws, "draws random numbers"),
        (not template.guard.holds(), "rebinds something"),
    ):
        if is_other:
            raise Unexpected(f"the function {what}")


def _require_alike(
    template: CapturedGraph, session: CaptureSession, recording: Recording, issued: Issued
) -> None:
    """Raise if a run did more than ``template`` does, or relies on what that does not.

    Raises:
        Unexpected: it did.
    """
    reads, guard, objects = session.reads, template.guard, session.target.objects
    device, python = session.pool.device, session.before.python
    static = set(map(storage_key, session.inputs))
    outside = {*recording.outside, *map(storage_key, recording.unseen)}
    held = {(address(tensor), name) for tensor, name, _ in guard.watched_held()}
    leaves = set(map(address, guard.watched_hooks()))
    settings = _settings(session, recording).keys()
    folded = recording.sources_of_folds()
    computes, watched = template.state is not None, guard.places()
    read = [place.path for key, place in reads.places.items() if key not in watched]
    unknown = list(dict.fromkeys(reversed(read)))  # what was read last says most
    for is_other, what in (
        (computes and not _leaves_nothing(session, recording), "does more than compute"),
        (not issued.groups <= template.groups, "issues a collective"),
        (reads.is_doubtful, "has frames of which not all was seen"),
        (not folded <= guard.watched_values().keys(), "reads other values on the host"),
        (must_record_again(recording, session.varying, device), "reads what may vary on the host"),
        (recording.autograd > template.autograd, "lets autograd take part"),
        (recording.differentiates > template.differentiates, "runs backward passes"),
        (bool(unknown), f"reads {some(unknown)}, which calls of other sizes do not"),
        (not reads.may_not_be_given() <= template.stored, "stores in other Python state"),
        (bool(objects) and objects.leaves_out(objects.read), "reads its arguments in part"),
        (not reads.locks.keys() <= set(map(address, template.locks)), "takes another lock"),
        (not outside - static <= template.outside.keys(), "uses another tensor"),
        (not {(address(t), n) for t, n, _ in recording.held} <= held, "asks other tensors"),
        (not set(map(address, recording.leaves)) <= leaves, "reaches other leaves"),
        (not settings <= guard.settings.keys(), "has other operators"),
        (bool(python.changes() or reads.changes()), "changes something in Python"),
        (bool(python.missed()), "keeps results by the objects it is given"),
    ):
        if is_other:
            raise Unexpected(f"the function {what}")


def _let_the_device_decide(
    session: CaptureSession, eager: WarmedUp, ways: Ways, extends: CapturedGraph | None
) -> None:
    """Let the device decide where it can, or find out whether it could.

    Raises:
        CaptureError: it was to be measured, and the device can decide nowhere.
    """
    now = session.target.lowers and extends is None
    known = extends is not None and bool(extends.measured)
    if ways.measures and not now and (known or not reads_often(eager.recording)):
        return
    lower(session, eager, ways, now)
    if ways.measures and now and session.lowering is None:
        raise CaptureError("; ".join(eager.not_lowered) or "its host reads no less then")


# What rules a capture out.


def _refuse_as_found(before: Snapshot, target: Target, journal: Journal) -> None:
    """Raise if the function need not even run to know that no graph can hold it."""
    python, host = before.python, before.host
    if python.scripted:
        raise explain("torchscript", some(python.scripted), Source())
    if torch.is_grad_enabled() and python.recorded():
        raise CaptureError(
            f"autograd records into {some(python.recorded())}; a replay records nothing. "
            "Call it under torch.no_grad() or torch.inference_mode()."
        )
    raise_if_moved()
    journal.refuse(python.reaches)
    if target.layout == "padded":
        host.one_shots.refuse("and runs with padded arguments")
    host.one_shots.check(one_shots_before())


def _refuse_memos(session: CaptureSession) -> None:
    """Raise if a cache of ``functools`` takes equal tensors for new ones.

    It would answer the capture with the result of warming up, and the graph would hold that one.
    """
    session.rewind()
    before, inputs = PythonState(session.target.roots), list(session.inputs)
    session.inputs[:] = [torch.empty_like(tensor).copy_(tensor) for tensor in inputs]
    try:
        session.target.function()
    finally:
        session.inputs[:] = inputs
    places = session.reads.places
    missed = []
    for name, cache in before.missed():
        place = places.get(("cache", address(cache)))
        missed.append(name if place is None else place.described(name))
    if missed:
        raise CaptureError(
            f"{some(missed)} keeps results by the very tensors and objects that it is given "
            "(functools.cache, lru_cache), and these are new in each call, so a replay would give "
            "that of another call. Let it take numbers only, or leave the cache out."
        )


def _refuse_foreign_tensors(session: CaptureSession, eager: WarmedUp) -> None:
    """Raise if a run uses a tensor that something else has made for it."""
    recording, device = eager.recording, session.pool.device
    made = [
        t
        for t in recording.outside.values()
        if t.device.type == device.type and nobody_else_holds(t)
    ]
    known = {
        *session.before.python.names(),
        *map(storage_key, session.target.first_outputs or ()),
    }
    made += [t for t in recording.unseen if storage_key(t) not in known]
    if made:
        raise CaptureError(
            f"the function uses a tensor of shape {tuple(made[0].shape)} that is made in "
            "the call but not by it: on another thread, or by a library outside of torch. "
            "A graph would hold that one for ever. Make it outside and pass it."
        )


def _refuse_locks(session: CaptureSession, extends: CapturedGraph | None) -> None:
    """Raise if the function takes a lock that a replay could not hold from beginning to end."""
    traced, lift = session.traced, lift_among(list(session.target.roots.values()))
    assert traced is not None
    breaks = extends is not None or traced.root.step is not None
    reason = session.reads.not_held(stores=lift is not None, breaks=breaks)
    if reason:
        raise CaptureError(reason)


def _refuse_changed(session: CaptureSession) -> None:
    changed, of_others = session.reads.changes(), session.reads.changed_by_others()
    if changed and changed == of_others:
        raise CaptureError(
            f"another thread changed {some(changed)} while the function was captured",
            transient=True,
        )
    if changed and len(sys.modules) > session.modules:
        raise CaptureError(
            f"{some(changed)} changed during the capture, in which a module was imported: a later "
            "call captures",
            transient=True,
        )
    if changed:
        raise CaptureError(
            f"each call changes {some(changed)}, which it also reads, and a replay would not. Keep "
            "such state in a tensor that is written in place (copy_, add_), or outside.",
            transient=changed == [REGISTERED],  # a class may be registered once
        )


def _refuse_unsettled(session: CaptureSession) -> None:
    """Raise if warming up has changed something in Python after all."""
    python = session.before.python
    changes = python.changes()
    if changes and any(raw.is_a(value, torch.Tensor) for value in python.changed().values()):
        raise EffectsError(
            f"each call stores a tensor in {some(changes)}, which a replay would not do.",
            session.reads.slots([python.changed_items()]),
        )
    if changes:
        raise CaptureError(
            f"the second call still changed {some(changes)} in Python; wait until it has settled.",
            transient=True,
        )


# What is compared.


def _compare_runs(session: CaptureSession, eager: WarmedUp, tolerance: Tolerance | None) -> None:
    """Compare the recorded run with the first call, and compiled code with that run.

    Raises:
        VerificationError: they differ.
    """
    if tolerance is None or session.judge is None:
        return
    recording, first = eager.recording, session.target.first_outputs
    if (
        first is not None
        and not len(session.before.memory)
        and not eager.draws_random_numbers
        and not any(event.point.rule == "no-graph" for event in recording.events)
    ):
        what = "second run differs from first"
        # Of a function that is lifted the first call gave the result, and no effects.
        got = eager.first_outputs[: len(first)]
        require_equal((got, []), (first, []), session.judge, what)
    if eager.uncompiled is not None:
        least = rounding(recording.dtypes, session.pool.device)
        judge = functools.partial(difference, tolerance=tolerance, least=least)
        what = "compiled function differs from eager execution"
        require_equal((eager.outputs, eager.written), eager.uncompiled, judge, what)


def _verify_first_replay(session: CaptureSession, eager: WarmedUp) -> list[torch.Tensor]:
    """Replay, and compare with eager execution; gives the outputs.

    Raises:
        VerificationError: they differ.
    """
    if session.judge is None:
        return []
    expected, states = (eager.outputs, eager.written), eager.states
    if session.pool.device.kind == "emulated" and eager.uncompiled is not None:
        # That is what such a graph holds.
        expected, states = eager.uncompiled, eager.uncompiled_states
    draws = eager.draws_random_numbers
    got = session.first_replay(session.written, draws)
    # Another thread may have drawn from the same generator in between.
    require_equal(got, expected, session.judge, transient=draws)
    elsewhere = session.before.host.elsewhere(states)
    if elsewhere is not None:
        raise VerificationError(
            f"the first replay leaves {elsewhere} in another state than eager execution does",
            transient=True,  # another thread may have drawn from it
        )
    return got[0]


# What comes out.


def _can_share_inputs(session: CaptureSession, eager: WarmedUp) -> bool:
    # What a call writes to them is copied back to its arguments, and a host that reads
    # them between two graphs may take its time: such inputs stay apart.
    written = set(map(storage_key, session.before.memory.regions()))
    return not (eager.recording.breaks() or written & set(map(storage_key, session.inputs)))


def _settings(session: CaptureSession, recording: Recording) -> Settings:
    """The settings of torch that decide what a recorded run computes."""
    kernels = None if session.reads.asks_settings else recording.kernels
    settings = deciding(kernels, session.pool.device.kind == "emulated")
    return settings | of_autograd() if recording.autograd else settings


def _captured(
    session: CaptureSession,
    eager: WarmedUp,
    extends: CapturedGraph | None,
    guard: Guard | None = None,
) -> CapturedGraph:
    """The captured graphs of ``session``, as a path of ``extends`` if there is one.

    ``guard``: what watches all that they rely on. Default: a new one does.
    """
    recording, traced, host = eager.recording, session.traced, session.before.host
    assert traced is not None
    device, compiled = session.pool.device, session.target.compiled
    draws = eager.draws_random_numbers
    static = {storage_key(tensor) for tensor in (*session.inputs, *session.given)}
    early = recording.written_before_the_last_break() - static
    if device.kind == "emulated":  # where any operator may raise, also after the last break
        early = {key for key, _ in recording.writes} - static
    originals = {
        key: tensor for key, ref in recording.originals.items() if (tensor := ref()) is not None
    }
    folded_from = {k: t for k, t in originals.items() if k in recording.sources_of_folds()}
    # What is only returned is used as well: replays give the very memory of then.
    given_back = {storage_key(t): t.detach() for t in recording.unseen}
    outside = {k: t for k, t in (given_back | recording.outside).items() if k not in static}
    held = list(
        {(address(t), name): (t, name, value) for t, name, value in recording.held}.values()
    )
    leaves = {address(t): t for t in recording.leaves if storage_key(t) not in static}
    settings = _settings(session, recording)
    if extends is not None:
        outside = extends.outside | outside
        leaves |= {address(t): t for t in extends.guard.watched_hooks()}
        folded_from |= extends.guard.watched_values()
        held += extends.guard.watched_held()
    regions = session.before.memory.regions()
    leaves_nothing = _leaves_nothing(session, recording)
    holds_compiled = recording.compiles and not session.not_compiled and device.kind != "emulated"
    captured = CapturedGraph(
        traced.root,
        traced.last,
        written={storage_key(t): originals.get(storage_key(t), t) for t in session.written},
        outside=outside,
        saved=[region for region in regions if storage_key(region) in early],
        saves_generator=recording.draws and bool(recording.breaks()),
        generators=host.used,
        calls_user=any(e.point.rule in ("collective", "no-graph") for e in recording.events),
        guard=guard
        or eager.state.guard(
            outside,
            folded_from,
            session.reads,
            held,
            settings,
            leaves.values(),
            None if extends is None else extends.guard,
        ),
        pool_bytes=traced.pool_bytes,
        draws_random_numbers=draws,
        report=_report(eager, compiled or holds_compiled),
        peak_bytes=recording.peak_bytes,
        state=eager.state if leaves_nothing else None,
        plain=leaves_nothing and not (recording.events or recording.notes or draws),
        compiled=compiled,
        code=compiled_code() if holds_compiled else [],
        not_compiled=session.not_compiled,
        launch_ns=traced.launch_ns,
        stored=session.reads.may_not_be_given(),
        asks_layout=bool(recording.layout or recording.views),
        asks_sharing=recording.sharing is not None,
        regions=[region for region in regions if storage_key(region) not in static],
        slack=rounding(recording.dtypes, device) if compiled or recording.compiles else 0.0,
        forced=frozenset(session.forced),
        graft=traced.graft,
        reached=session.journal.reached,
        returned_again=_the_same(traced.last.outputs, eager.first_outputs),
        locks=tuple(lock for _, lock in session.reads.locks.values()),
        autograd=recording.autograd,
        differentiates=recording.differentiates,
        decided_at=recording.decided_at,
        lowering=session.lowering,
        could_be_lowered=session.could_be_lowered,
    )
    return captured if extends is None else extends.with_path(captured)


def _the_same(
    outputs: Sequence[torch.Tensor] | None, earlier: Sequence[torch.Tensor]
) -> frozenset[int]:
    """Numbers of those that are the same objects in both; the earlier ones are still alive."""
    pairs = zip(outputs or (), earlier, strict=False)
    return frozenset(n for n, (now, then) in enumerate(pairs) if now is then)


def _report(eager: WarmedUp, is_compiled: bool) -> list[str]:
    # Constants of the host are part of compiled code.
    shown = [e for e in eager.recording.events if e.point.kind == "read" or not is_compiled]
    by_host = filter(None, eager.recording.decisions)
    return list(dict.fromkeys((*map(report_line, shown), *by_host, *eager.not_lowered)))


def _leaves_nothing(session: CaptureSession, recording: Recording) -> bool:
    """Whether a run only computes, from tensors, constants of the host and random numbers."""
    return not (
        any(not event.is_of_the_host for event in recording.events)
        or any(note.rule != "random" for note in recording.notes)
        or session.lowering is not None
        or len(session.before.memory)
        or session.before.host.one_shots
        or session.target.compiled
        or recording.compiles
    )
