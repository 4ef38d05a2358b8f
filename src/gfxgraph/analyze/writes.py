"""What becomes of the places in Python that a call writes.

``graphed`` lifts a function over these places (:mod:`gfxgraph.graph.lift`). Here the function runs
as it does there, so that ``check`` says what ``graphed`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..call.body import require_storable
from ..call.entry import SHARED
from ..call.signature import (
    Arguments,
    Given,
    Objects,
    Spec,
    can_be_apart,
    constants,
    flatten,
    objects_in,
)
from ..call.static_inputs import shares_memory
from ..call.suitable import describe
from ..errors import ArgumentError, CaptureError, one_line
from ..graph.lift import EffectsError, Lift, Slot
from ..graph.reads import Reads
from ..graph.static_objects import StaticObjects
from ..interpose.interrupts import interrupt_in
from ..record.effects import Unexpected, storage_key
from ..record.explain import some
from ..simulate.tensor import inside

__all__ = ["Call", "is_of_one_kind", "written"]

_EAGER = "python-state"
_MAX_LIFTS = 6  # as in call/dispatch.py
_CYCLE = 8  # runs, in search of a value that comes again


@dataclass(frozen=True)
class Call:
    """A call that is run again and again.

    Attributes:
        run: makes it, and gives its result.
        rewind: puts back what it has changed.
        inputs: the tensors among its arguments.
        given: what the last run has read of them.
        ways: gives the containers among those of the last run, by number, and the ways to them.
        there: the objects that the result of an earlier call was made of.
        reads: gives what records one run.
        around: what has to be entered around each run.
        written: storage keys of the tensors from outside that it writes to.
        gave: the tensors of the result of a run that began in the same state; ``None``: they
            cannot be compared.
    """

    run: Callable[[], Any]
    rewind: Callable[[], object]
    inputs: Sequence[torch.Tensor]
    given: StaticObjects
    ways: Callable[[], Mapping[int, Any]]
    there: Sequence[object]
    reads: Callable[[], Reads]
    around: Callable[[], AbstractContextManager[object]]
    written: Collection[int]
    gave: Sequence[torch.Tensor] | None


@dataclass(frozen=True)
class Written:
    """What becomes of places that a call writes.

    Attributes:
        rules: the rule about each, by its identity.
        reason: why graphed() cannot store all of them again; ``""``: it can.
        result: the spec of the result; ``None``: there is a reason.
    """

    rules: dict[Any, str]
    reason: str = ""
    result: Spec | None = None


def written(call: Call, slots: Sequence[Slot]) -> Written:
    """Run a call as a lifted function runs, to see what becomes of the places that it writes."""
    lift, reason = Lift(slots), ""
    for _ in range(_MAX_LIFTS):
        call.rewind()
        try:
            found = _run(call, lift)
            if _EAGER in found.rules.values() and _comes_again(call, lift):
                again = {slot: r.replace(_EAGER, "stored-value") for slot, r in found.rules.items()}
                found = replace(found, rules=again)
            return found
        except EffectsError as error:
            grown, reason = lift.grown(error.slots), str(error)
            if grown is None:
                break
            lift = grown
        except Unexpected:  # it has effects outside of torch, which is a reason of its own
            break
        except Exception as error:
            if interrupt_in(error):
                raise
            reason = str(error) if isinstance(error, CaptureError) else one_line(error)
            break
    return Written(dict.fromkeys(lift.slots, _EAGER), reason)


def _comes_again(call: Call, lift: Lift) -> bool:
    """Whether the values that are read form a cycle: then each of them has a graph."""
    call.rewind()
    seen = [_key(lift.gather())]
    for _ in range(_CYCLE):
        with call.around():
            call.run()
        if _key(lift.gather()) in seen:
            return True
        seen.append(_key(lift.gather()))
    return False


def _run(call: Call, lift: Lift) -> Written:
    entry, reads = lift.gather(), call.reads()
    with lift.as_it_was():
        with call.around(), reads.recording():
            lift.begin(entry, is_alone=True)  # no other thread is in the simulated world
            try:
                result = call.run()
            except Exception as error:
                if interrupt_in(error) is None:
                    lift.require_unused()
                raise
            effects = lift.end()
        call.given.take_out(reads.places)
        lift.take_out(reads.places)
        reads.settle()
        changed = reads.changes()
        if changed:
            raise CaptureError(f"each call also changes {some(changed)}, which it reads")
    try:
        return _judged(call, lift, entry, result, effects)
    except ArgumentError as error:
        raise CaptureError(f"what it stores: {error}") from error


def _judged(
    call: Call, lift: Lift, entry: list[Any], result: Any, effects: tuple[Any, ...]
) -> Written:
    met = Objects()
    given, of_entry = flatten(entry, met)
    known = set(map(id, objects_in(of_entry)))
    # As arguments of a graph.
    flatten(entry, Arguments([type(item) for item in met.met() if can_be_apart(item)]))
    every = [*given, *call.inputs]
    if shares_memory(every) and any(storage_key(tensor) in call.written for tensor in every):
        raise CaptureError(f"argument: {SHARED}")
    refused = [c for c in met.containers() if not isinstance(c, tuple)]
    objects = Objects(call.there, [item for item in refused if item is not entry])
    objects.inputs_are(given, call.ways())
    outputs, spec = flatten(result, objects)
    _require_made_anew(spec, "result")
    objects.inputs_are(every, call.ways())
    held = dict(zip((slot.identity for slot in lift.read), entry, strict=True))
    rules: dict[Any, str] = {}
    stored: list[torch.Tensor] = []
    for slot, value in zip(lift.slots.values(), effects, strict=True):
        if slot.is_counter:
            rules[slot.identity] = "stored-counter"
            continue
        leaves, spec = flatten(value, objects)
        _require_made_anew(spec, "what it stores", known)
        stored += leaves
        is_tensor = leaves or any(isinstance(c.value, Given) for c in constants(spec))
        rules[slot.identity] = "stored-tensor" if is_tensor else "stored-value"
        # What is read is part of the key of the next call, but for the data of tensors.
        if slot.identity in held and _key(held[slot.identity]) != _key(value):
            rules[slot.identity] = _EAGER
    require_storable(outputs, stored, every, len(given))
    gave, spec = flatten(result, Objects())
    if call.gave is not None and not _are_equal(gave, call.gave):
        raise CaptureError("a call reads it in a way that is not seen")
    return Written(rules, result=spec)


def _are_equal(ours: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether both are the same tensors, as far as these have data."""
    if list(map(_kind, ours)) != list(map(_kind, others)):
        return False
    pairs = [(inside(one), inside(other)) for one, other in zip(ours, others, strict=True)]
    return all(
        one.is_meta or torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs
    )


def _require_made_anew(spec: Spec, what: str, known: Collection[int] = ()) -> None:
    """Raise unless a replay can make it; ``known``: numbers of objects that were there before."""
    for const in constants(spec):
        is_there = isinstance(const.value, Given) or id(const.value) in known
        if not const.is_value and not is_there:
            raise CaptureError(f"{what}: holds a {describe(const.value)}")


def _key(value: Any) -> tuple[Spec, list[tuple[Any, ...]]]:
    """What is equal for values that can be input of one graph."""
    leaves, spec = flatten(value, Objects())
    return spec, list(map(_kind, leaves))


def is_of_one_kind(before: Any, now: Any) -> bool:
    """Whether both are made of tensors of the same kinds."""
    try:
        return _key(before)[1] == _key(now)[1]
    except ArgumentError:
        return True


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device.type
