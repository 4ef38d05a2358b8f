"""One key of a graphed callable: a graph with its static inputs and outputs, or a refusal."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import torch
from torch.autograd import forward_ad

from ..compiling.tuning import Tuned
from ..errors import CaptureError, MemoryCapError
from ..graph.captured import CapturedGraph
from ..graph.guard import Guard
from ..graph.locks import LOCK, when_captured_next
from ..graph.moved import REBOUND
from ..graph.pool import GraphPool
from ..interpose.codes import address
from ..record.effects import storage_key
from ..record.explain import some
from ..stats import tally
from .held import counts, hold_numbers, written_as
from .narrow import Mask
from .rebound import binding_copier
from .replay import FastPath, Replay, builder, copier, copy_one, miss
from .signature import Arguments, Spec, flatten
from .static_inputs import Part, bytes_of, cloner, first_of_each, made_in, maker_of_copies, parts_of
from .stats import GraphRow
from .suitable import GOES_ON, ends_autograd

__all__ = ["SHARED", "Entry", "Refusal"]

_ALIAS = torch.ops.aten.alias.default

SHARED = (
    "arguments share memory, or an expanded one does with itself, and the function writes to them"
)


@dataclass(eq=False)
class Refusal:
    """A key that runs eagerly, and why.

    Attributes:
        key: shapes and dtypes of the tensors, and the other arguments.
        reason: why.
        kind: the class of the error that said so. Not the error itself: its traceback holds on to
            every tensor of the failed run.
        fast_path: runs a call that fits the key eagerly.
        used: when it was last used, for the order of release.
        objects: the arguments that are compared by identity.
    """

    key: str
    reason: str
    kind: type[Exception]
    fast_path: FastPath = miss
    used: int = 0
    objects: list[weakref.ref[Any]] = field(default_factory=list)

    @property
    def is_for_room(self) -> bool:
        """Whether there was no room for a graph, which may change."""
        return issubclass(self.kind, MemoryCapError)


class Entry:
    """A captured graph with its static inputs and outputs.

    Everything that can be done before a call is done here: which tensors are copied where, how the
    result is built, what is watched. A call checks, copies, launches and builds.

    Args:
        captured: the graph.
        graph_pool: where it lies.
        static_inputs: what it reads the arguments from.
        leaves: the tensors of a call that it is for.
        out_spec: the spec of the result.
        own_outputs: whether each call gets copies of the static outputs.
        given: holds the tensors of a call during its replay, for results that are one of them; and
            the arguments, where something is stored there. Default: no result is.
        stores: whether that is so.
        of_state: numbers of the containers among the state of a lifted function.
        name: of the callable.

    Attributes:
        key: shapes and dtypes of the tensors, and the other arguments.
        fast_path: recognises a call and replays; whoever keeps this entry sets it.
        replay: replays for tensors that fit.
        used: when it was last used, for the order of release.
        closed: why calls that need another path run eagerly from now on.
        compared_at: how often it was replayed when it was last compared with eager execution.
        in_doubt: whether it differed then, which another thread may have been the reason for.
        not_compiled: why it holds no compiled code, where that was asked for.
        unproven: it was captured with arguments that a recipe made, and no call was compared yet.
        given_inference: of each tensor that it was captured with, whether it is an inference one.
        keeps: what the graph uses beside tensors: compiled code.
        tuned: what a search for settings of Inductor has found for such calls.
        private_input_bytes: bytes of static inputs that only this graph has.
        mask: what of the arguments matters.
        asks_attributes: whether the function asks tensors for attributes that their class lacks.
        stored: names of the places in the arguments that calls write.
        modes: of each output, whether it is an inference tensor in eager execution.
        carried: of a function for several sizes: of each output, which dimensions carry which size.
        linked: of such a function: numbers of the outputs that share memory with others.
        number: where it holds collectives, that of its capture, the same on all ranks.
    """

    def __init__(
        self,
        captured: CapturedGraph,
        graph_pool: GraphPool,
        static_inputs: list[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        out_spec: Spec,
        own_outputs: bool,
        given: list[Any] | None = None,
        stores: bool = False,
        of_state: Collection[int] = (),
        *,
        name: str,
    ) -> None:
        self.used = self.number = 0
        self.stores, self._of_state = stores, frozenset(of_state)
        self.closed: str | None = None
        self.compared_at: int | None = None
        self.in_doubt = False
        self.not_compiled = ""
        self.tuned: Tuned | None = None
        self.unproven = False
        self.given_inference = [leaf.is_inference() for leaf in leaves]
        self.keeps: object = None
        self.private_input_bytes = 0
        self.carried: list[dict[int, str]] = []
        self.linked: frozenset[int] = frozenset()
        self.mask: Mask = None
        self.asks_attributes = False
        self.key, self._name = "", name
        self.out_spec = out_spec
        changes = out_spec[2] if out_spec[0] == "stores" else ()
        self.counters = counts(changes, out_spec[3][1:]) if changes else []
        self.stored = [name for change in changes for name in written_as(change, bool(of_state))]
        self.graph_pool = graph_pool
        self.captured: CapturedGraph | None = captured
        self.counter = tally.replay_counter(name)
        if captured.launch_ns:  # calls are not timed
            self.counter.ns, self.counter.timed = captured.launch_ns, 1
        self._static_inputs = static_inputs
        self._guard = captured.guard
        self._input_bytes = sum(map(bytes_of, static_inputs))
        self._own_outputs = own_outputs
        same = first_of_each(captured.outputs)
        parts = self._parts(captured)
        # Views of arguments are as these are; all else is as the function has made it.
        given_as = dict(zip(map(storage_key, static_inputs), leaves, strict=True))
        self.modes = [given_as.get(storage_key(o), o).is_inference() for o in captured.outputs]
        with LOCK:
            graph_pool.graphs += 1
            # Each call copies them before another graph runs, which may use their memory then.
            if own_outputs and captured.root.step is None:
                captured.last.outputs = graph_pool.release_outputs(captured.outputs)
                shared = {id(part.memory): part.memory for part in parts.values()}
                released = graph_pool.release_outputs(list(shared.values()))
                memory = dict(zip(shared, released, strict=True))
                parts = {n: p._replace(memory=memory[id(p.memory)]) for n, p in parts.items()}
        for n, part in parts.items():
            parts[n] = part._replace(
                copy=made_in(self.modes[n], cloner(graph_pool.device, part.memory))
            )
        # One tensor that comes twice in the result is one tensor again.
        whole = enumerate(self._handed_out(captured))
        handed_out = [parts.get(n, made) for n, made in whole]
        self._given = given
        if captured.rebinding is None:
            copy = copier(graph_pool.device, static_inputs, leaves)
        else:
            copy = binding_copier(captured.rebinding, graph_pool.device, static_inputs, leaves)
        build = builder(out_spec, [handed_out[n] for n in same], () if given is None else given)
        if given is not None:
            copy = _noting(given, copy, stores)
            build = _forgetting(given, static_inputs, build)
        captured.last.build = build
        self._replay = Replay(captured, static_inputs, copy, build, stores, self.counters)
        #: Replays of this graph that fill the static inputs or build the result in another way.
        self._others: weakref.WeakSet[Replay] = weakref.WeakSet()
        self.replay = self._replay.function(captured, graph_pool, self.counter)
        self.fast_path: FastPath = miss
        self._path_before: FastPath = miss

    def _handed_out(self, captured: CapturedGraph) -> list[Any]:
        """Of each output what a call gives: itself, or a function that copies it."""
        inputs = set(map(storage_key, self._static_inputs))

        def hand_out(n: int, output: torch.Tensor) -> Any:
            # Copies of the next call would overwrite each other in an input.
            if storage_key(output) not in inputs:
                if self.is_outside(output):  # a cache that the function returns, or its weight
                    if n in captured.returned_again:
                        return output
                    # A view of that, made anew.
                    return functools.partial(_ALIAS, output) if output._is_view() else output.detach
                if not self._own_outputs:
                    return output
            return made_in(self.modes[n], maker_of_copies(output, self.graph_pool.device))

        return list(itertools.starmap(hand_out, enumerate(captured.outputs)))

    def _parts(self, captured: CapturedGraph) -> dict[int, Part]:
        """The outputs that are copied together with others, since they share memory."""
        elsewhere = captured.outside.keys() | set(map(storage_key, self._static_inputs))
        groups: dict[int, list[int]] = {}
        for n, output in enumerate(captured.outputs):
            if self._own_outputs and storage_key(output) not in elsewhere:
                groups.setdefault(storage_key(output), []).append(n)
        found: dict[int, Part] = {}
        for numbers in groups.values():
            parts = parts_of([captured.outputs[n] for n in numbers])
            found |= dict(zip(numbers, parts, strict=False))
        return found

    def sized_replay(
        self, copy: Callable[[Sequence[torch.Tensor]], None], build: Callable[[], Any]
    ) -> Callable[..., Any] | None:
        """A replay that fills the static inputs and makes the result in another way.

        ``None``: this key writes to its arguments, or is no single graph.
        """
        captured = self.captured
        if captured is None or captured.root.step is not None or self._replay.written_inputs:
            return None
        return self._another(captured, copy, build)

    def trial(self) -> Callable[..., Any]:
        """A replay that gives NO_MATCH where the data takes a path that was not captured."""
        captured, build = self.captured, self._replay.build
        if captured is None or captured.root.step is None or build is None:
            return self.replay
        return self._another(captured, self._replay.copy, build)

    def _another(
        self,
        captured: CapturedGraph,
        copy: Callable[[Sequence[torch.Tensor]], None],
        build: Callable[[], Any],
    ) -> Callable[..., Any]:
        other = Replay(captured, self._static_inputs, copy, build, self.stores, self.counters)
        self._others.add(other)  # as long as somebody has its function
        return other.function(captured, self.graph_pool, self.counter)

    def answer_by(self, fast_path: FastPath) -> None:
        """From now on that recognises calls and replays, unless the graph was released."""
        self.fast_path = fast_path
        if self.captured is None:  # by another thread meanwhile
            self.fast_path = miss

    def set_aside(self) -> None:
        """From now on no call is recognised, until :meth:`bring_back`."""
        self._path_before, self.fast_path = self.fast_path, miss

    def bring_back(self) -> None:
        """Recognise calls again."""
        self.answer_by(self._path_before)

    def holds(self) -> bool:
        """Whether all that it reads is as it was; see :meth:`stale`."""
        return self._guard.holds()

    def may_hold_again(self) -> bool:
        """Whether it is stale by plain values alone, which may come back."""
        return self._guard.may_hold_again()

    def let_answer(self, on_new_path: Callable[..., Any]) -> None:
        """From now on that answers a call whose data takes a path that was not captured."""
        self._replay.on_new_path = on_new_path

    def uncount(self) -> None:
        """The last replay answered no call."""
        with LOCK:
            self.counter.replays -= 1

    @property
    def written_inputs(self) -> list[int]:
        """The positions of the arguments that it writes to."""
        return [n for n, _ in self._replay.written_inputs]

    @property
    def static_tensors(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The static inputs and outputs."""
        return self._static_inputs, [] if self.captured is None else self.captured.outputs

    def now(self) -> tuple[CapturedGraph, list[torch.Tensor]]:
        """The captured graph, and the static inputs.

        Raises:
            CaptureError: it was released.
        """
        with LOCK:
            if self.captured is None:
                raise CaptureError("its graphs were released meanwhile", transient=True)
            return self.captured, self._static_inputs

    def is_outside(self, output: torch.Tensor) -> bool:
        """Whether a static output lives outside of the graph, such as a cache."""
        return self.captured is not None and storage_key(output) in self.captured.outside

    def regions(self) -> list[torch.Tensor]:
        """The memory that calls write to, but for their arguments."""
        captured, inputs = self.captured, set(map(storage_key, self._static_inputs))
        if captured is None:
            return []
        written = captured.written.items()
        return [*captured.saved, *(tensor for key, tensor in written if key not in inputs)]

    def found(self, leaves: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Copies of the arguments that calls write to, by place."""
        written = () if self.captured is None else self.captured.written
        with torch.no_grad():
            return {
                place: leaves[place].clone()
                for place, static in enumerate(self._static_inputs)
                if storage_key(static) in written
            }

    def input_storages(self) -> Iterator[tuple[int, int]]:
        """Storage key and bytes of each static input."""
        return ((storage_key(s), s.untyped_storage().nbytes()) for s in self._static_inputs)

    @property
    def replays(self) -> int:
        """How often it was replayed."""
        return self.counter.replays

    def where(self) -> str:
        """The place at which most ways of the data part."""
        step = self.captured.root.widest().step if self.captured else None
        return "" if step is None else f"{step.where} ({step.point.what})"

    def differs(self, how_often: str) -> str:
        """That the data takes another way in so many calls, and what to do about it."""
        step = self.captured.root.widest().step if self.captured else None
        if step is None or step.point.kind != "call" or step.point.rule == "no-graph":
            return (
                f"the value read at {self.where()} differs in {how_often}. Keep the value in a "
                "tensor, or compare it on the device and read the outcome."
            )
        return (
            f"the shape of what {self.where()} gives differs in {how_often}. Give graphed only "
            "what comes before it (model.backbone.forward = graphed(model.backbone.forward)), or "
            "use a form of fixed shape there, such as topk or a mask."
        )

    def with_path(
        self,
        captured: CapturedGraph,
        static_inputs: list[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        spec: Spec,
    ) -> Entry:
        """An entry with another path, which answers calls from :meth:`take_over` on."""
        stores, given = self.stores or spec[0] == "stores", self._given
        copy = self._replay.copy
        if stores and not self.stores:  # the other paths have to note the call, too
            given = [] if given is None else given
            copy = _noting(given, copy, True)
            for segment in captured.root.everything():
                if segment.build is not None and segment is not captured.last:
                    segment.build = _forgetting(given, static_inputs, segment.build)
        entry = Entry(
            captured,
            self.graph_pool,
            static_inputs,
            leaves,
            spec,
            self._own_outputs,
            given,
            stores,
            self._of_state,
            name=self._name,
        )
        entry.key = self.key
        tally.retire(entry.counter)
        entry.counter = self.counter
        entry._replay.copy = copy
        entry.replay = entry._replay.function(captured, self.graph_pool, self.counter)
        entry.let_answer(self._replay.on_new_path)
        entry.not_compiled = self.not_compiled
        entry.counters += self.counters
        entry.stored = list(dict.fromkeys([*self.stored, *entry.stored]))
        return entry

    def take_over(self, tree: Entry) -> None:
        """Answer the calls that ``tree`` did, and those of the new path."""
        with LOCK:
            if tree.captured is not None:  # else it was released meanwhile
                tree.captured = None  # its graphs live on
                tree.graph_pool.graphs -= 1
                tree._forget()
            if self.captured is not None and self.captured.graft is not None:
                self.captured.graft.attach()
                self.captured.graft = None

    def build(self) -> Any:
        """The result as it is now."""
        return None if self._replay.build is None else self._replay.build()

    @property
    def reached(self) -> frozenset[int]:
        """The numbers of objects that may be no arguments: the function stores to one of both."""
        captured = self.captured
        # Of calls that store state for good, that is part of the key.
        if captured is None or (self._given is not None and not self.stores):
            return frozenset()
        return captured.stored - self._of_state

    @property
    def differentiates(self) -> bool:
        """Whether backward passes run inside."""
        return self.captured is not None and self.captured.differentiates

    def sees_more(
        self, leaves: Sequence[torch.Tensor], args: Any, classes: Collection[type]
    ) -> bool:
        """Whether arguments are more to the function than static ones.

        A container is one that it stores to; a tensor has attributes and it asks for such; or a
        backward pass goes on from a tensor, or calls a hook there.
        """
        if self.asks_attributes and any(map(vars, leaves)):
            return True
        if self.differentiates and not all(map(ends_autograd, leaves)):
            return True
        if not self.reached:
            return False
        met = Arguments(classes)
        flatten(args, met)
        return not self.reached.isdisjoint(map(address, met.containers()))

    def raised(self) -> str:
        """That an operator has ended the last replay of this thread; ``""``: none has."""
        error = self._replay.raised.pop(get_ident(), "")
        return error and f"an operator raised {error}, on the emulated device"

    def is_ready(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Whether a replay for these tensors will go through, if it is not stale; under LOCK."""
        pool = self.graph_pool
        return (
            self.captured is not None
            and not pool.is_replaying
            and not pool.device.is_capturing()
            and vars(forward_ad)["_current_level"] < 0
            and not self._replay.clashes(leaves)
        )

    def why_not(self, leaves: Sequence[torch.Tensor], args: Any, classes: Collection[type]) -> str:
        """Why a call that fits got no replay, as far as that can still be seen."""
        if self.asks_attributes and any(map(vars, leaves)):
            return "an argument is a tensor with attributes, and the function asks for such"
        if self.differentiates and not all(map(ends_autograd, leaves)):
            return f"argument: {GOES_ON}"
        if self.sees_more(leaves, args, classes):
            return "an argument is a container that it stores to"
        if self.counters and not hold_numbers(args, self.counters):
            return "an argument holds no whole number where calls count"
        if self._replay.clashes(leaves):
            return (
                "an argument shares memory with another one, or with a tensor that the call writes"
            )
        if vars(forward_ad)["_current_level"] >= 0:
            return "forward-mode differentiation is on"
        changes = self._guard.changes()
        if changes:
            return f"{some(changes)} has changed meanwhile"
        if self.captured is not None and self.captured.locks:
            return "another thread held a lock that the function takes, or was capturing"
        return "another thread was capturing"

    def overlaps(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Whether one of ``leaves`` shares memory that the graph writes, or writes to it."""
        return self._replay.overlaps(leaves)

    def stale(self) -> list[str]:
        """The names of all that was rebound or moved since the capture.

        Raises:
            DeadTensorError: see ``Guard.check_alive``.
        """
        if self._guard.holds():  # so it is alive, too
            return []
        self._guard.check_alive()
        return self._guard.changes()

    def static_inputs(self) -> list[torch.Tensor]:
        """The static inputs; from now on a call may pass them, and they are not copied.

        Raises:
            CaptureError: the graph reads arguments where they are, and cannot be changed.
        """
        static_inputs = self._static_inputs
        with LOCK:
            if self.captured is not None and self.captured.rebinding is not None:
                self.captured.rebinding.to_static_inputs()
                self.captured.report[:] = [
                    line for line in self.captured.report if not line.endswith(REBOUND)
                ]
                self.captured.rebinding = None

        def copy_others(leaves: Sequence[torch.Tensor]) -> None:
            ours = set(map(storage_key, static_inputs))
            # A static input that stands in another's place is read before it is written.
            others = [
                (s, leaf.clone() if storage_key(leaf) in ours else leaf)
                for s, leaf in zip(static_inputs, leaves, strict=True)
                if leaf is not s
            ]
            for static, leaf in others:
                copy_one(static, leaf)

        self._replay.copy = copy_others
        return static_inputs

    def bytes_of_bodies(self) -> int:
        """Bytes that bodies of conditional nodes have beside the memory pool."""
        segments = () if self.captured is None else self.captured.root.everything()
        return sum(s.graph.bytes_of_bodies() for s in segments if s.graph is not None)

    def row(self) -> GraphRow:
        """Its row in ``stats()``."""
        captured = self.captured
        pool_bytes = 0 if captured is None else captured.pool_bytes + self.bytes_of_bodies()
        return GraphRow(
            self.key,
            pool_bytes,
            self._input_bytes,
            pool_bytes + self.private_input_bytes,
            self.counter.replays,
            0 if captured is None else captured.root.paths(),
            [] if captured is None else captured.report,
            captured is not None and captured.compiled,
            self.tuned,
        )

    def release(self) -> int:
        """Let go of the graph and its memory; not while this thread replays in the same memory.

        Returns:
            How often it was replayed.
        """
        with LOCK:
            if self.captured is not None and self.graph_pool.is_replaying:
                when_captured_next(self.release)  # asked by a finalizer, say; the replay goes on
                return self.counter.replays
            if self.captured is not None:
                self.captured.release()
                self.graph_pool.release(self._static_inputs)
                tally.retire(self.counter)
            self.captured = None
            self._forget()
        return self.counter.replays

    def _forget(self) -> None:
        for replay in (self._replay, *self._others):
            replay.forget()
        self._static_inputs, self._given = [], None
        self._guard = Guard({}, (), (), {})
        self.keeps = None
        self.fast_path = self._path_before = self.replay = miss


def _noting(
    given: list[Any], copy: Callable[[Sequence[torch.Tensor]], None], stores: bool
) -> Callable[[Sequence[torch.Tensor]], None]:
    """``copy``, which also notes the tensors of the call, and with ``stores`` its arguments."""

    def copy_noted(leaves: Any) -> None:
        copy(leaves)
        given[:] = (*leaves, leaves.arguments) if stores else leaves

    return copy_noted


def _forgetting(
    given: list[Any], static_inputs: list[torch.Tensor], build: Callable[[], Any]
) -> Callable[[], Any]:
    """``build``, after which the call is forgotten that was noted before."""

    def build_and_forget() -> Any:
        if not given:  # nobody has called
            given[:] = static_inputs
        try:
            return build()
        finally:
            given.clear()

    return build_and_forget
