"""Warming up: the runs before a capture, of which the first is recorded."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ..device import Device
from ..errors import CaptureError, CompileError, one_line
from ..interpose.host_reads import HostReads
from ..interpose.interrupts import interrupt_in
from ..interpose.patch import substitute
from ..record.effects import UndoLog, storage_key
from ..record.explain import explain, some
from ..record.recorder import Event, Recording
from ..record.side_effects import no_side_effects
from ..stats import log
from .compare import Tensors
from .lift import EffectsError
from .session import CaptureSession, cloned
from .state import PythonState

__all__ = [
    "WarmedUp",
    "confirm",
    "first_call_counts",
    "must_record_again",
    "refuse_effects",
    "report_line",
    "varying",
    "warm_up",
]


@dataclass
class WarmedUp:
    """The findings of warm-up.

    Attributes:
        first_outputs: what the recorded run gave.
        recording: of that run.
        outputs: what eager execution gives; of compiled code, what that gives.
        written: what it writes to tensors from outside, in the same way.
        states: where it leaves torch's generators.
        uncompiled: of compiled code, outputs and writes of the recorded run, which is not compiled.
        uncompiled_states: where that left the generators.
        reads: what compiled code asked the device for.
        state: what Python held before the last run, which changed nothing of it.
        draws_random_numbers: whether a run advances a generator.
        not_lowered: where the host decides although the device was to, and why.
    """

    first_outputs: list[torch.Tensor]
    recording: Recording
    outputs: list[torch.Tensor]
    written: list[torch.Tensor]
    states: dict[int, torch.Tensor]
    uncompiled: Tensors | None
    uncompiled_states: dict[int, torch.Tensor]
    reads: HostReads
    state: PythonState
    draws_random_numbers: bool
    not_lowered: list[str] = field(default_factory=list)


def warm_up(session: CaptureSession, warmup: int) -> WarmedUp:
    """Run ``warmup`` times, each from the state of the first; with compiled code at least 3 times.

    The first call takes the place of the second run where that would find nothing else.

    Raises:
        CaptureError: what the function does cannot be in a graph.
        CompileError: it is to be compiled, and has points at which the host takes over.
    """
    # The first run is watched, and nothing in it is compiled. Later ones run as they would
    # without us. What the last run changes in Python, every call would.
    host, python, roots = session.before.host, session.before.python, session.target.roots
    stores = python.stores
    states = [python]
    with host.standing_still():
        recording, outputs = session.record()
    refuse_effects(session)
    session.repeats = not session.reads.is_doubtful
    if python.changes() or session.reads.changes() or not session.repeats:
        # It may take another way now: that is watched as well, before anything runs unwatched.
        session.rewind()
        states = [PythonState(roots, search=False, stores=stores), python.unguarded_now()]
        recording, outputs = session.record()
        _refuse_changes(session, *states)
    _refuse_witnesses(session, recording)
    first_outputs = outputs
    draws, uncompiled_states = host.draws(), host.states()
    session.varying = varying(session, recording)
    if must_record_again(recording, session.varying, session.pool.device):
        # Only now it is known what changes from call to call.
        recording, outputs = session.record_again()
    if session.target.compiled or recording.compiles:
        warmup = max(3, warmup)  # one is recorded, one compiles, and one is as all others will be
    if session.before.memory.lends and warmup == 1:
        warmup = 2  # a run that may write to what the recorded one could only read
    elif warmup == 2 and first_call_counts(session, recording, outputs):
        warmup = 1
    uncompiled = _uncompiled(session, recording, outputs) if session.target.compiled else None
    generators, reads = uncompiled_states, HostReads(session.pool.device.type)
    for left in range(warmup - 1, 0, -1):
        session.rewind()
        if left == 1:
            states = [PythonState(roots, search=False, stores=stores), python.unguarded_now()]
        outputs = _run_unwatched(session, recording, reads if left == 1 else None)
        generators = host.states()
    _refuse_changes(session, *states)
    eager = WarmedUp(
        first_outputs,
        recording,
        *cloned(outputs, session.written),
        states=generators,
        uncompiled=uncompiled,
        uncompiled_states=uncompiled_states,
        reads=reads,
        state=states[0],
        draws_random_numbers=draws,
    )
    if any(event.folds and not event.is_of_the_host for event in recording.events):
        host.one_shots.refuse("and what it reads has to be confirmed with other inputs")
        confirm(session, recording)
    objects = session.target.objects
    if objects.leaves_out(objects.read):
        _confirm_what_was_read(session, eager)
    return eager


def first_call_counts(
    session: CaptureSession, recording: Recording, outputs: list[torch.Tensor]
) -> bool:
    """Whether the first call, which nobody watched, was as good as one more run.

    It did nothing but compute a result, which equals that of the recorded run; so it also drew the
    same random numbers, if any.
    """
    target, first = session.target, session.target.first_outputs
    return (
        first is not None
        and not (target.is_lifted or target.objects.stores or len(session.before.memory))
        and not (recording.compiles or recording.autograd or session.before.host.one_shots)
        and all(event.is_of_the_host for event in recording.events)
        # Else it may have done less than it does where nobody watches.
        and not session.reads.asks_who_watches
        and len(outputs) == len(first)
        and all(map(_are_same, outputs, first))
    )


def _run_unwatched(
    session: CaptureSession, recording: Recording, reads: HostReads | None
) -> list[torch.Tensor]:
    """Run as without us; ``reads`` remembers what compiled code asks the device for."""
    compiles = session.target.compiled or recording.compiles
    takes_over = any(event.point.rule == "no-graph" for event in recording.events)
    with (
        # A compiler reads clocks and files, and takes long enough without being listened to.
        _no_printing() if compiles else no_side_effects(lambda: takes_over),
        reads.remembered() if compiles and reads is not None else nullcontext(),
    ):
        return session.run()


def _uncompiled(
    session: CaptureSession, recording: Recording, outputs: list[torch.Tensor]
) -> Tensors:
    """Copies of what the recorded run gave.

    Raises:
        CompileError: the host takes over between two graphs.
    """
    for event in recording.breaks():
        raise CompileError(
            f"the host takes over between two graphs ({event.point.what}), and compiled "
            f"code cannot be cut there: {event.where}"
        )
    return cloned(outputs, session.written)


def refuse_effects(session: CaptureSession) -> None:
    """Raise if the first run has written to places in Python that are to be stored again."""
    python = session.before.python
    names, slots = session.reads.put_back(python)
    if names:
        raise EffectsError(
            f"each call writes to {some(names)} in Python, which a replay would not do. Keep "
            "such state in a tensor that is written in place (copy_, add_), or outside.",
            slots,
        )
    changed = python.changed_items() if python.changes() else None
    if changed and session.reads.slots([changed]):
        _refuse_changes(session, python)


def _refuse_witnesses(session: CaptureSession, recording: Recording) -> None:
    """Raise if code of the host runs in the middle of a call that stores something in Python.

    A replay stores it at its end: that code would find there what was there before the call.
    """
    stores = session.target.is_lifted or session.target.objects.stores
    for event in recording.events:
        if stores and event.point.rule == "no-graph":
            raise CaptureError(
                f"{event.point.what}, which is marked no_graph, runs in the middle of a call that "
                "stores something in Python: a replay would store it only after that. Call it "
                "before or after the graphed function."
            )


def _refuse_changes(session: CaptureSession, *states: PythonState) -> None:
    changes = list(dict.fromkeys(name for state in states for name in state.changes()))
    if changes:
        items = [state.changed_items() for state in states]
        lines = session.reads.stores.lines(itertools.chain.from_iterable(filter(None, items)))
        raise EffectsError(
            f"each call rebinds {some(changes)} in Python{f' ({some(lines)})' if lines else ''}, "
            "which a replay would not do. Keep such state in a tensor that is written in place "
            "(copy_, add_), or outside.",
            session.reads.slots(items),
        )


def varying(session: CaptureSession, recording: Recording) -> set[int]:
    """Storage keys of the tensors from outside whose values cannot be taken for constant."""
    written = {storage_key(region) for region in session.before.memory.regions()}
    # Each call would compare all of it: reading the value, as eager execution does, takes less.
    large = {
        key
        for key in recording.sources_of_folds() & recording.outside.keys()
        if recording.outside[key].untyped_storage().nbytes() > _MOST_COMPARED
    }
    # Inference tensors do not count their versions, so nobody could see them change; nor can a
    # tensor be asked that is made anew in each call.
    return (
        written
        | large
        | {
            key
            for key, original in recording.originals.items()
            if (tensor := original()) is None or tensor.is_inference()
        }
    )


# Bytes of a storage.
_MOST_COMPARED = 1 << 20


def must_record_again(recording: Recording, varying: set[int], device: Device) -> bool:
    """Whether the recording was made without knowing of a tensor that varies and matters to it."""
    if not (recording.events or recording.host_reads):
        return False
    # What is on the device comes to the host in an event; the emulated one has but one memory.
    seen = {
        key
        for key, tensor in recording.outside.items()
        if device.kind == "emulated" or tensor.device.type != device.type
    }
    return not varying.isdisjoint(seen | recording.sources_of_folds())


def confirm(session: CaptureSession, recording: Recording) -> None:
    """Run once more with other inputs: what is folded has to come out the same.

    Raises:
        CaptureError: it did not, or that run failed.
    """
    session.rewind()
    expected = recording.events
    log = UndoLog()
    other = copy(session)
    other.before = dataclasses.replace(session.before, memory=log)
    other.journal = copy(session.journal)
    other.has_other_inputs = True
    try:
        with session.other_inputs():
            try:
                recording, _ = other.record(with_reads=False)
            finally:
                log.undo()
    except Exception as error:
        if interrupt_in(error):
            raise
        raise CaptureError(
            f"with other inputs the function raised {one_line(error)}, so it could not be "
            f"confirmed that {report_line(expected[0])} does not depend on them."
        ) from error
    finally:
        session.rewind()
    for before, now in itertools.zip_longest(expected, recording.events):
        if before is None or now is None or before.point.what != now.point.what:
            break  # it took another path, as data-dependent code does
        if before.same_outcome(now):
            continue
        if not before.folds:
            break
        raise explain(
            before.point.rule,
            before.point.what,
            before.where,
            "With other inputs another value came out, although no operation that torch "
            "knows leads there from the inputs.",
        )


def _confirm_what_was_read(session: CaptureSession, eager: WarmedUp) -> None:
    """Run without what was not read of the arguments, and with what may not be used in its place.

    Code in C may have read it unseen. Where a run differs, all of the arguments matters.
    """
    objects = session.target.objects
    if eager.recording.breaks() or session.before.host.one_shots:
        objects.all_matters()
        return
    other = copy(session)
    probes: tuple[Literal["poison", "nothing"], ...] = ("poison", "nothing")
    for objects.probe in probes:
        session.rewind()
        other.before = dataclasses.replace(session.before, memory=UndoLog())
        other.journal = copy(session.journal)
        try:
            recording, outputs = other.record(with_reads=False)
            known = eager.recording
            same = (recording.operations, recording.kernels) == (known.operations, known.kernels)
            same &= all(map(_are_same, outputs, eager.first_outputs))
            same &= all(map(_are_same, session.written, eager.written))
        except Exception as error:
            if interrupt_in(error):
                raise
            log(logging.DEBUG, "argument_is_whole", because=one_line(error))
            same = False
        finally:
            objects.probe = None
            other.before.memory.undo()
            session.before.python.restore()
            session.rewind()
        if not same:
            objects.all_matters()
            return


def _are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are alike and hold equal values; NaN equals NaN in the same place."""
    if any(getattr(one, what) != getattr(other, what) for what in ("shape", "dtype", "device")):
        return False
    if one.stride() != other.stride():
        return False
    try:
        return bool(torch.all((one == other) | ((one != one) & (other != other))))
    except NotImplementedError:  # torch compares no values of this dtype
        return False


def report_line(event: Event) -> str:
    """Where an event is, and what becomes of it in a graph."""
    how = "folded" if event.folds else "between two graphs"
    return f"{event.where}: {event.point.what}, {how}"


class _Discard:
    """Stands in for ``sys.stdout``, and drops what is printed."""

    original: Any = None

    def write(self, text: str) -> int:
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


@contextmanager
def _no_printing() -> Iterator[None]:
    """Drop what this thread prints: a compiler may print what it likes."""
    stream = _Discard()
    with substitute(sys, "stdout", stream) as claim:
        stream.original = claim.original
        yield
