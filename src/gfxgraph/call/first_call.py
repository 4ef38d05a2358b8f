"""The first call of a key runs for its caller; then a graph for the next one is made."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ..device import current_device, index_of
from ..errors import one_line
from ..graph import raw
from ..graph.age import collect_what_is_due, grow_old
from ..graph.executed import Executed
from ..graph.first_call import as_of_now
from ..graph.host_state import default_generators
from ..graph.lift import Lifting, owner_name
from ..graph.locks import LOCK, inside_gfxgraph, no_garbage_collection, turn_if_free
from ..graph.memory import Memory, checksum
from ..graph.one_shots import Found, is_one_shot
from ..graph.state import PythonState
from ..graph.witness import witness
from ..interpose.interrupts import held_back, own_handlers
from ..record import collectives
from ..record.explain import some
from ..record.journal import Journal
from ..stats import log
from .entries import Entries
from .entry import Entry
from .held import Held
from .key import Call
from .request import Request
from .writers import Writers

__all__ = ["FirstCalls"]

# A cache may have to be filled for another kind of calls, and for one more.
_MAX_REBINDS = 2

AsBefore = Callable[[str], AbstractContextManager[Any]]
"""Given what a call did, enters the state that the call found."""


@dataclass
class _Observed:
    """A run for the caller, and what a capture after it has to know.

    Attributes:
        result: of the run.
        mixes: whether it wrote to a tensor of its arguments in place, and stored something in them
            in Python as well, without copies of the tensors of before.
        rebound: names of attributes that it bound to something else than graphs rely on.
        doubts: why another run of the same call may do something else.
        as_before: see :data:`AsBefore`.
        issued: the collectives that it issued.
        journal: what it did that is done once only.
        executed: the code that it ran.
    """

    result: Any
    mixes: bool
    rebound: list[str]
    doubts: str
    as_before: AsBefore
    issued: collectives.Issued
    journal: Journal
    executed: Executed


class FirstCalls:
    """Runs the first calls of one callable, and has graphs made after them.

    Args:
        entries: of the callable.
        writers: lets a capture be alone.
        raises: whether it is an error for the caller that no graph can be made.
    """

    def __init__(self, entries: Entries, writers: Writers, raises: bool) -> None:
        self._entries, self._writers, self._raises = entries, writers, raises
        #: What first calls have run.
        self._executed = Executed()
        #: Whether a call was seen to do both, so that copies of the tensors are made before it.
        self._mixes = False
        #: Numbers of storages that calls have written, where they also reach what can be advanced
        #: and not be put back.
        self._written: set[int] = set()

    def run(
        self,
        request: Request,
        make: Callable[[Any], Exception | None],
        extends: Entry | None = None,
    ) -> Any:
        """Run a call for its caller, then ``make`` a graph for the next call of its key.

        No lock of ours is held while the caller's own run goes on, and none is waited for; but a
        function that writes to tensors of its own is captured while no other call of it goes on.

        Args:
            request: the call.
            make: makes the graph, given the result of the call; gives the error where it cannot.
            extends: the tree of graphs that gets another path.
        """
        with held_back():
            observed = self._observe(request, extends)
        if observed.mixes:
            self._entries.count_eager_call()
            self._mixes = True
            return observed.result  # the next call is captured
        if observed.rebound:
            self._give_up_what_rebinds(request.key, extends, observed.rebound)
            return observed.result
        self._entries.count_eager_call()
        with turn_if_free() as is_ours:
            if not is_ours or self._entries.get(request.key) is not extends:
                return observed.result  # another thread captures; one of the next calls will
            with (  # as if the call had not been
                self._writers.alone() as is_alone,
                observed.as_before(observed.doubts),
                collectives.known(observed.issued),
                observed.journal.offered(),
                observed.executed.known(),
                no_garbage_collection(),  # what is made here would start one of all objects
            ):
                if not is_alone:
                    return observed.result  # another call takes long; one of the next calls will
                error = make(observed.result)
                request.call.held = None  # copies of tensors
                grow_old()
        try:
            if error is not None and self._raises:
                raise error
        finally:
            error = None  # its traceback holds this frame, and every tensor of the failed capture
            collect_what_is_due()
        return observed.result

    def state_before(self, call: Call) -> PythonState:
        """The state in Python that the function reaches, before a call of it."""
        for entry in self._entries.order:
            if isinstance(entry, Entry) and entry.captured and entry.captured.state:
                state = entry.captured.state
                if not state.changes(registries=False):
                    return state
        with self._executed.known():
            name = owner_name(call.fn, self._entries.name)
            return PythonState({name: call.fn, "argument": (call.args, call.kwargs)})

    def _observe(self, request: Request, extends: Entry | None) -> _Observed:
        """Run a call for its caller, and look at what that does."""
        call, leaves = request.call, request.fitted.leaves
        call.held = Held(call.args, call.kwargs, call.spec, int(isinstance(call.fn, Lifting)))
        may_mix = bool(call.held.ways) and request.fitted is call
        if self._mixes and may_mix:
            with torch.no_grad():
                call.held.found = {n: leaf.clone() for n, leaf in enumerate(leaves)}
        state = self.state_before(call)
        # Not by weak references: torch.utils.swap_tensors() refuses tensors that have any.
        tensors = [tensor for _, tensor in state.tensors()]
        versions_outside = list(map(_version, tensors))
        # A run from other memory may go another way, and advance what cannot be put back.
        at_stake = any(is_one_shot(item) for _, item in state.stateful)
        memory = Memory(state.all_tensors() if at_stake else ())
        written = memory.of(self._written)
        as_before, generators = self._as_of_now(leaves, state.stateful, extends, written)
        versions = list(map(_version, leaves))
        marks = _marks(leaves) if call.held.ways else []
        # No such function runs in a graph of a lifted one, whose state is among the leaves.
        others = () if isinstance(call.fn, Lifting) else leaves
        journal = Journal(generators, witness, leaves=others)
        executed = Executed()
        with (
            self._writers.gate.passing(),
            inside_gfxgraph(),
            collectives.noticed() as issued,
            journal.playing(),
            executed.listening(),
            own_handlers(),
        ):
            result = call.fn(*call.args, **call.kwargs)
        journal.note_result(result)
        ran_anew = executed.spaces.keys() - self._executed.spaces.keys()
        self._executed.learn(executed)
        self._writers.writes |= versions_outside != list(map(_version, tensors))
        is_first = not self._entries.graphs()
        given = call.held.ways
        wrote = versions != list(map(_version, leaves))
        mixes = may_mix and not call.held.found and call.held.has_changed()
        mixes = mixes and (wrote or marks != _marks(leaves))
        lines = {path: executed.changed_at(path) for path in state.stirred()}
        call.stirred = [f"{path} ({', '.join(at)})" if at else path for path, at in lines.items()]
        rebound = [] if is_first else state.replaced(extends is not None, given)
        # Without the places in containers: one name for what grows with each call.
        changed = {name.partition("[")[0] for name in state.changes()} if state.stateful else set()
        doubts = [f"changes {some(sorted(changed))} in Python"] if changed else []
        if ran_anew:
            doubts.append("runs code for the first time")
        if None in versions or wrote:
            doubts.append("writes to its arguments")
        wrote_to = memory.written()
        new = {name for number, name in wrote_to.items() if number not in self._written}
        if new or memory.hidden:
            # Before the next call they are saved.
            doubts.append(f"writes to {some(sorted(new.union(memory.hidden)))}")
            self._written |= wrote_to.keys()
        return _Observed(
            result, mixes, rebound, " and ".join(doubts), as_before, issued, journal, executed
        )

    def _as_of_now(
        self,
        leaves: list[torch.Tensor],
        found: Found,
        extends: Entry | None,
        written: list[torch.Tensor],
    ) -> tuple[AsBefore, list[torch.Generator]]:
        device = current_device()
        on_device = any(leaf.device.type == device.type for leaf in leaves)
        # While another thread captures, its generator is not to be asked; replays are soon over.
        concerned = on_device or extends is not None or found
        if not concerned:
            return nullcontext, []
        with turn_if_free(all_leave=False) as is_ours:
            if not is_ours:
                return nullcontext, []
            generators = [g for _, g in found if raw.is_a(g, torch._C.Generator)]
            generators += default_generators(device, index_of(device, leaves))
            with LOCK:
                regions = [*(extends.regions() if extends else ()), *written]
                try:
                    return as_of_now(regions, generators, found), generators
                except torch.OutOfMemoryError as error:  # the call itself may well have room
                    log(logging.DEBUG, "state_not_saved", because=one_line(error))
                    return nullcontext, []

    def _give_up_what_rebinds(self, key: Any, extends: Entry | None, names: list[str]) -> None:
        """Release graphs, since a call of another kind than theirs has rebound ``names``.

        Each run of one kind may bind the same value there, so that none differs from the one
        before. A replay binds nothing, and what the other kind has left there stays.
        """
        entries = self._entries
        with entries.lock:
            # Where it is no other way of a tree, it is something that no guard sees.
            for known in [key] if extends is not None else list(entries.graphs()):
                if isinstance(entries.get(known), Entry):
                    entries.counts.recaptures += 1
                    entries.drop(known)
            if entries.count_try("rebinds") > _MAX_REBINDS:
                entries.closed = (
                    f"calls of another kind, or whose data takes another way, rebind {some(names)} "
                    "to something else, which a replay would not do. Keep such state in a tensor "
                    "that is written in place (copy_, add_), or outside."
                )
                entries.drop_all()
        entries.release_dropped()


def _version(tensor: torch.Tensor) -> int | None:
    """How often it was written to; ``None``: nobody counts."""
    return None if tensor.is_inference() else tensor._version


def _marks(tensors: list[torch.Tensor]) -> list[object]:
    """Sums of the bytes of those whose versions nobody counts; what equals nothing: not known."""
    return [_sum(tensor) for tensor in tensors if tensor.is_inference()]


def _sum(tensor: torch.Tensor) -> object:
    is_plain = tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested)
    if not is_plain or tensor.is_conj() or tensor.is_neg():
        return object()
    return checksum(tensor.detach().contiguous().reshape(-1).view(torch.uint8))
