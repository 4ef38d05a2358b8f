"""All graphs of one callable: which one answers a call, when one is made, when it is released."""

from __future__ import annotations

import functools
import logging
import statistics
import sys
import time
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import is_
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from ..device import current_device
from ..errors import (
    ArgumentError,
    CaptureError,
    CompileError,
    GfxGraphError,
    VerificationError,
)
from ..forking import new_lock
from ..graph import raw
from ..graph.capture import CaptureOptions, capture, capture_like
from ..graph.compare import Tolerance
from ..graph.executed import Executed
from ..graph.first_call import as_of_now
from ..graph.host_state import default_generators
from ..graph.locks import CAPTURING, LOCK, Gate, inside_gfxgraph, is_inside_gfxgraph, when_free
from ..graph.one_shots import Found
from ..graph.pool import GraphPool
from ..graph.session import Layout, LayoutError, Target
from ..graph.state import PythonState
from ..record import collectives
from ..record.effects import storage_key
from ..record.explain import some
from ..record.journal import Journal
from ..stats import log, tally
from ..tables import fields, in_bytes, table
from . import validation
from .budget import admit, register
from .compiled import Compile, Compiled
from .entry import (
    SHARED,
    Entry,
    FastPath,
    GraphRow,
    Refusal,
    alignment,
    bytes_of,
    contiguous_strides,
    make_static,
    miss,
    overlaps_itself,
    shares_memory,
)
from .signature import (
    NO_MATCH,
    TOO_DEEP,
    Condition,
    Const,
    Spec,
    builder,
    constants,
    flatten,
    matcher,
    tensor_check,
    without_objects,
)
from .suitable import describe, unsuitable
from .thrash import WORTH_IT, Thrash, Traits, traits

if TYPE_CHECKING:
    from .buckets.sizes import Buckets

__all__ = [
    "IN_USE",
    "Engine",
    "GraphedStats",
    "Options",
    "key_of",
    "no_graph_now",
    "reset_with",
    "taken_apart",
]

# Captures because something that is no tensor was another one, before its key stays eager.
_MAX_TRIES = 8
# A cache may have to be filled for another kind of calls, and for one more.
_MAX_REBINDS = 2
# So many counts of tries are remembered.
_MAX_COUNTED = 1024

IN_USE = (
    "its graph could not be used: an argument shares memory with what it writes, or another thread "
    "was capturing"
)

# Paths of one key, before calls that would need another one run eagerly.
_MAX_PATHS = 64
# So many paths without as many replays, keyed by more than yes and no: the data hardly ever takes
# the same one twice.
_PATHS_ON_TRIAL = 8

# Replays that are timed to choose between two graphs, and those before.
_ROUNDS = 20
_ROUNDS_OF_WARMTH = 5

_HOST = torch.device("cpu")

# A call looks at so many of the keys met last before it works out its own key.
_HOT = 8


@dataclass(frozen=True)
class GraphedStats:
    """What a graphed callable has done. Printed, it is a table.

    Attributes:
        captures: graphs captured.
        replays: calls answered by a replay.
        eager_calls: calls answered eagerly: the first call of each key, and fallbacks.
        fallbacks: reason -> calls that ran eagerly for it.
        evictions: graphs released because there were more than ``max_graphs``, or because another
            needed the memory and they were never replayed.
        recaptures: graphs captured again because a weight was rebound or moved.
        graphs: a row a graph, least recently used first.
        refused: arguments (as ``key`` of a row) -> why calls with such run eagerly.
        pool_bytes: bytes of the memory pools that the graphs share.
        input_bytes: bytes of all static inputs, shared ones counted once.
        compile_s: seconds that runs took in which something was compiled; 0.0 without ``compile=``.
        not_compiled: arguments (as ``key`` of a row) -> why their graph holds no compiled code
            although ``compile=``, or the function itself, asks for it.
        thrashing: why calls that could be captured are not, since nearly each is of a kind of its
            own: what differs between them, and what to write.
    """

    captures: int
    replays: int
    eager_calls: int
    fallbacks: dict[str, int]
    evictions: int
    recaptures: int
    graphs: list[GraphRow]
    refused: dict[str, str]
    pool_bytes: int
    input_bytes: int
    compile_s: float
    not_compiled: dict[str, str]
    thrashing: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        memory = f"{in_bytes(self.pool_bytes)} in pools, {in_bytes(self.input_bytes)} of inputs"
        counts = ("captures", "replays", "eager_calls", "evictions", "recaptures")
        rows: list[tuple[str, Any]] = [(name, getattr(self, name)) for name in counts]
        rows += [("memory", memory), ("thrashing", self.thrashing)]
        rows += [("fallbacks", [f"{n} calls: {why}" for why, n in self.fallbacks.items()])]
        rows += [("refused", self.refused)]
        if self.not_compiled or self.compile_s:
            rows += [("compile_s", self.compile_s), ("not_compiled", self.not_compiled)]
        if not self.graphs:
            return fields(rows)
        graphs = [(g.key, g.replays, g.paths, in_bytes(g.private_bytes)) for g in self.graphs]
        return fields(rows) + table(("graph", "replays", "paths", "memory"), graphs)


@dataclass(frozen=True)
class Options:
    """See :func:`~gfxgraph.call.graphed.graphed`."""

    warmup: int = 3
    outputs: Literal["own", "view"] = "own"
    verify: Tolerance = True
    fallback: Literal["eager", "raise"] = "eager"
    max_graphs: int = 32
    branching: Literal["auto", "off"] = "auto"
    buckets: Buckets | None = None
    compile: Compile | None = None

    def __post_init__(self) -> None:
        def number(name: str) -> bool:
            value = getattr(self, name)
            return isinstance(value, int) and not isinstance(value, bool) and value >= 1

        tolerance = isinstance(self.verify, bool) or (
            isinstance(self.verify, (int, float)) and 0 <= self.verify < float("inf")
        )
        for name, fits, takes in (
            ("warmup", number("warmup"), "a whole number from 1"),
            ("outputs", self.outputs in ("own", "view"), "'own' or 'view'"),
            ("verify", tolerance, "True, False or a tolerance from 0"),
            ("fallback", self.fallback in ("eager", "raise"), "'eager' or 'raise'"),
            ("max_graphs", number("max_graphs"), "a whole number from 1"),
            ("branching", self.branching in ("auto", "off"), "'auto' or 'off'"),
        ):
            if not fits:
                raise ArgumentError(f"graphed({name}={getattr(self, name)!r}): expected {takes}.")


@dataclass
class _Counts:
    captures: int = 0
    released_replays: int = 0
    eager_calls: int = 0
    evictions: int = 0
    recaptures: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)


class Engine:
    """All graphs of one callable, or of one method of one instance.

    Args:
        name: what reasons and reports call it.
        options: see there.
        method: the graphed method that it belongs to.
        graph_pools: device index -> the pool to capture into; given to several engines, their
            graphs share memory.
        share_inputs: whether graphs of a graph pool share the memory of their static inputs too.
    """

    #: Whether static inputs are padded arguments, which lie in memory otherwise.
    _pads = False

    def __init__(
        self,
        name: str,
        options: Options,
        method: Any = None,
        graph_pools: dict[int, GraphPool] | None = None,
        share_inputs: bool = False,
    ) -> None:
        self.name = name
        self.method = method
        self.owner: weakref.ref[Any] | None = None
        self._options = options
        self._share_inputs = share_inputs
        self._lock = new_lock()
        self._keys: OrderedDict[Any, Entry | Refusal] = OrderedDict()
        self._graph_pools: dict[int, GraphPool] = {} if graph_pools is None else graph_pools
        self._counts = _Counts()
        self._told: set[str] = set()
        self._tries: Counter[int | str] = Counter()
        #: Keys of which an object is gone.
        self._gone: deque[Any] = deque()
        #: Graphs that are no longer kept, and are not released yet.
        self._dropped: deque[Entry] = deque()
        self._thrash = self._new_thrash()
        #: Whether it writes to tensors of its own; then no call goes on beside a capture.
        self._writes = self._pauses = False
        self._gate = Gate()
        #: Why nothing of it can be captured.
        self._closed = ""
        #: What first calls have run.
        self._executed = Executed()
        #: Whether the function asks how its arguments lie in memory: that is part of a key then.
        self._asks_layout = False
        #: Whether it draws random numbers on the device. Kernels that do so for whole vectors draw
        #: in another order for tensors that are not aligned, so that is part of a key then.
        self._draws = False
        #: Keys whose graph differed from eager execution in a later replay.
        self._differed: set[str] = set()
        self._clock = 0
        #: Graphs that were met later than this are not released for room.
        self._keep_after: float = float("inf")
        self._compiled = self._new_compiled()
        self._set_hot(())
        register(self)
        validation.register(self)

    def __reduce__(self) -> Any:
        return type(None), ()  # graphs are left out of copies and pickles of their instance

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call that the attempt at the front did not."""
        for entry in self._others:
            result = entry.fast_path(fn, args, kwargs)
            if result is not NO_MATCH:
                self._promote(entry)
                return result
        return self._call_by_key(fn, args, kwargs)

    def stats(self) -> GraphedStats:
        """What :meth:`Graphed.stats` gives."""
        with self._lock:
            found = sorted(self._keys.values(), key=lambda e: e.used)
            entries = [entry for entry in found if isinstance(entry, Entry)]
            rows = [entry.row() for entry in entries]
            counts = self._counts
            return GraphedStats(
                captures=counts.captures,
                replays=counts.released_replays + sum(row.replays for row in rows),
                eager_calls=counts.eager_calls,
                fallbacks=dict(counts.fallbacks),
                evictions=counts.evictions,
                recaptures=counts.recaptures,
                graphs=rows,
                refused={e.key: e.reason for e in found if isinstance(e, Refusal)},
                pool_bytes=sum(
                    graph_pool.pool_bytes() for graph_pool in list(self._graph_pools.values())
                ),
                input_bytes=sum({k: b for e in entries for k, b in e.input_storages()}.values()),
                compile_s=0.0 if self._compiled is None else self._compiled.seconds,
                not_compiled={e.key: e.not_compiled for e in entries if e.not_compiled},
                thrashing=tuple(self._thrash.reasons),
            )

    def reset(self) -> None:
        """Release all graphs, and forget all reasons and counts."""
        for entry in self.empty():
            when_free(entry.release)

    def empty(self) -> list[Entry]:
        """Forget everything; gives the graphs, for the caller to release."""
        with self._lock:
            graphs = [entry for entry in self._keys.values() if isinstance(entry, Entry)]
            self._keys.clear()
            self._set_hot(())
            self._graph_pools.clear()
            self._tries.clear()
            self._thrash = self._new_thrash()
            self._asks_layout = self._draws = False
            self._closed = ""
            self._differed.clear()
            self._counts = _Counts()
            self._compiled = self._new_compiled()
            return graphs

    def _release_groups(self) -> None:
        """Release the graphs that hold collectives: a group of theirs is destroyed."""
        with self._lock:
            for key, entry in list(self._keys.items()):
                if isinstance(entry, Entry) and entry.captured and entry.captured.groups:
                    why = "a process group is shut down whose collective it holds"
                    log(logging.INFO, "graph_released", function=self.name, because=why)
                    self._drop(key)
        self._release_dropped()

    def release_unused(self, all_or_none: bool) -> int:
        """Release the graphs that were never replayed.

        Args:
            all_or_none: only if none was.

        Returns:
            How many.
        """
        with self._lock:
            graphs = {key: e for key, e in self._keys.items() if isinstance(e, Entry)}
            unused = [k for k, e in graphs.items() if not e.replays and e.used <= self._keep_after]
            if all_or_none and len(unused) < len(graphs):
                return 0
            for key in unused:
                self._drop(key)
            self._counts.evictions += len(unused)
        self._release_dropped()
        return len(unused)

    def static_inputs(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What :meth:`Graphed.static_inputs` gives."""
        leaves, spec = flatten((args, kwargs))
        with self._lock:
            entry = self._keys.get(self._key_of(fn, leaves, spec))
            if not isinstance(entry, Entry):
                why = f": {entry.reason}" if entry else "; call it once with them first"
                raise CaptureError(f"{self.name} has no graph for these arguments{why}.")
            static: tuple[tuple[Any, ...], dict[str, Any]] = builder(spec, entry.static_inputs())()
            return static

    def prepare(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Exception | None:
        """Make a graph for calls like this one, and take back all that this does.

        The caller holds CAPTURING.

        Returns:
            Why there is none; ``None`` if there is one.
        """
        reason = no_graph_now()
        if reason is not None:
            return CaptureError(reason, transient=True)
        leaves, spec, reason = taken_apart(args, kwargs)
        if reason is not None:
            return CaptureError(reason)
        key = self._key_of(fn, leaves, spec)
        entry, changes = self._known(key)
        if isinstance(entry, Refusal) and not entry.is_for_room:
            return entry.kind(entry.reason)
        if isinstance(entry, Entry):
            return None
        return self._try_capture(fn, key, leaves, spec, NO_MATCH, changes)

    def _call_by_key(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if is_inside_gfxgraph():  # inside the graph of a caller: its graph includes our work
            return fn(*args, **kwargs)
        reason = no_graph_now()
        if reason is None:
            leaves, spec, reason = taken_apart(args, kwargs)
        if reason is not None:
            return self._run_eagerly(fn, args, kwargs, reason)
        key = self._key_of(fn, leaves, spec)
        entry, changes = self._known(key)
        if entry is None:
            reason = self._postponed(key, spec)
            if reason is not None:
                return self._run_eagerly(fn, args, kwargs, reason)
            make = functools.partial(self._try_capture, fn, key, leaves, spec, changes=changes)
            return self._first_call(fn, args, kwargs, key, leaves, make)
        if isinstance(entry, Entry):
            result = NO_MATCH
            if validation.due(entry):
                replay = functools.partial(entry.trial(), fn, args, kwargs, leaves)
                run = functools.partial(fn, *args, **kwargs)
                result = self._compared(key, entry, leaves, replay, run)
            if result is NO_MATCH:
                with self._gate.passing() if self._writes else nullcontext():
                    result = entry.replay(fn, args, kwargs, leaves)
            if result is not NO_MATCH:
                return result
            if self._keys.get(key) is not entry:  # released by another thread meanwhile
                return self._call_by_key(fn, args, kwargs)
            return self._run_eagerly(fn, args, kwargs, IN_USE)
        return self._run_eagerly(fn, args, kwargs, entry.reason, entry.kind)

    def _compared(
        self,
        key: Any,
        entry: Entry,
        leaves: list[torch.Tensor],
        replay: Callable[[], Any],
        run: Callable[[], Any],
    ) -> Any:
        """Answer a call by a replay that is compared with eager execution.

        Returns:
            The result; NO_MATCH: it was not compared, and nothing was done.

        Raises:
            VerificationError: the replay differs, and ``fallback="raise"``.
        """
        found = validation.compare(entry, leaves, self._options.verify, replay, run)
        if found is None:
            return NO_MATCH
        if found.difference is None:
            return found.result
        tally.add("validation_failures")
        self._count_fallback("a replay was not what eager execution gives (validate)")
        reason = f"a later replay differs from eager execution in {found.difference}"
        with self._lock:
            self._counts.eager_calls += 1
            again = entry.key not in self._differed
            self._differed.add(entry.key)
            for other in self._keys.values():
                if isinstance(other, Entry):
                    other.compared_at = None  # what changed may matter to it too
            if self._keys.get(key) is entry:
                self._drop(key)
                if again:  # what changed may stay as it is now
                    self._counts.recaptures += 1
                else:
                    self._keep(key, Refusal(entry.key, reason, VerificationError, miss))
            first = "validation" not in self._told
            self._told.add("validation")
        self._release_dropped()
        what = "captured again" if again else "runs eagerly from now on"
        level = logging.WARNING if first else logging.INFO
        log(level, "validation_failed", function=self.name, key=entry.key, because=reason, so=what)
        if self._options.fallback == "raise":
            raise VerificationError(f"{self.name}: {reason}")
        return found.result

    def validation_changed(self) -> None:
        """Comparing was turned on or off."""
        with self._lock:
            self._set_hot(self._hot)

    def _key_of(self, fn: Callable[..., Any], leaves: list[torch.Tensor], spec: Spec) -> Any:
        return key_of(fn, leaves, spec, self._asks_layout, self._draws)

    def _new_compiled(self) -> Compiled | None:
        how = self._options.compile
        # A compilation for each of many buckets would take its time again and again.
        return None if how is None else Compiled(how, dynamic=self._options.buckets is not None)

    def _new_thrash(self) -> Thrash:
        return Thrash(kinds=0, limit=self._options.max_graphs, is_padded=False)

    def _postponed(self, key: Any, spec: Spec) -> str | None:
        """Why a call without a graph is not captured now, but only counted."""
        if self._closed:
            return self._closed
        with self._lock:
            self._clock += 1
            is_full = len(self._keys) >= self._options.max_graphs
            full = self._keys.values() if is_full else ()
            reason = self._thrash.postpones(key, spec, self._clock, full)
        may_run_eagerly = self._options.fallback == "eager"
        if reason is not None and reason not in self._told:
            self._told.add(reason)
            tally.thrashes(self.name, reason)
            if not may_run_eagerly:
                log(logging.WARNING, "thrashing", function=self.name, because=reason)
        # Who asks for a graph or an error gets his graph.
        return reason if may_run_eagerly else None

    def _known(self, key: Any) -> tuple[Entry | Refusal | None, list[str]]:
        """What there is for ``key``; if it is stale, nothing, and what was changed in vain."""
        with self._lock:
            while self._gone:  # before another object is taken for one whose number it has
                dead = self._gone.popleft()
                if isinstance(self._keys.get(dead), Refusal):
                    self._drop(dead)
            entry = self._keys.get(key)
            changes = entry.stale() if isinstance(entry, Entry) else []
            if changes:
                self._counts.recaptures += 1
                if self._drop(key) >= WORTH_IT:
                    changes = []
                entry = None
            elif entry is not None:
                self._promote(entry)
        self._release_dropped()
        return entry, changes

    def _first_call(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: Any,
        leaves: list[torch.Tensor],
        make: Callable[[Any], Exception | None],
        tree: Entry | None = None,
    ) -> Any:
        """Run ``fn`` for the caller, then ``make`` a graph for the next call of this key.

        No lock of ours is held while the caller's own run goes on, and none is waited for; but a
        function that writes to tensors of its own is captured while no other call of it goes on.
        """
        state = self._state_before(fn, args, kwargs)
        outside = [(weakref.ref(t), _version(t)) for t in state.tensors().values()]
        as_before, generators = self._as_of_now(leaves, state.stateful, tree)
        versions = list(map(_version, leaves))
        journal = Journal(generators=generators)
        executed = Executed()
        with (
            self._gate.passing(),
            inside_gfxgraph(),
            collectives.noticed() as issued,
            journal.playing(),
            executed.listening(),
        ):
            result = fn(*args, **kwargs)
        ran_anew = executed.spaces.keys() - self._executed.spaces.keys()
        self._executed.learn(executed)
        if not self._writes:
            self._writes = any(
                (tensor := reference()) is not None and _version(tensor) != version
                for reference, version in outside
            )
        with self._lock:
            is_first = not any(isinstance(entry, Entry) for entry in self._keys.values())
        rebound = [] if is_first else state.replaced(guarded=tree is not None)
        # Without the places in containers: one name for what grows with each call.
        changed = {name.partition("[")[0] for name in state.changes()} if state.stateful else set()
        del outside, state
        if rebound:
            self._give_up_what_rebinds(key, tree, rebound)
            return result
        with self._lock:
            self._counts.eager_calls += 1
        if not CAPTURING.acquire(blocking=False):
            return result  # another thread captures; one of the next calls will
        try:
            with self._lock:
                if self._keys.get(key) is not tree:
                    return result
            doubts = [f"changes {some(sorted(changed))} in Python"] if changed else []
            if ran_anew:
                doubts.append("runs code for the first time")
            if None in versions or versions != list(map(_version, leaves)):
                doubts.append("writes to its arguments")
            with (
                self._alone() as is_alone,
                as_before(" and ".join(doubts)),
                collectives.known(issued),
                journal.offered(),
                executed.known(),
            ):
                if not is_alone:
                    return result  # another call takes long; one of the next calls will
                error = make(result)
        finally:
            CAPTURING.release()
        try:
            if error is not None and self._options.fallback == "raise":
                raise error
        finally:
            error = None  # its traceback holds this frame, and every tensor of the failed capture
        return result

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """No other thread calls the function, where it writes to tensors of its own."""
        if not self._writes:
            yield True
            return
        try:
            with self._gate.alone() as is_free:
                with self._lock:
                    self._pauses = True
                    self._set_hot(self._hot)
                time.sleep(2 * sys.getswitchinterval())  # who is about to replay gets there
                with LOCK:  # and is done
                    pass
                yield is_free
        finally:
            with self._lock:
                self._pauses = False
                self._set_hot(self._hot)

    def _state_before(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PythonState:
        """What the function reaches, as it is now."""
        for entry in self._hot:
            if isinstance(entry, Entry) and entry.captured and entry.captured.state:
                state = entry.captured.state
                if not state.changes(registries=False):
                    return state
        with self._executed.known():
            return PythonState({self.name: fn, "argument": (args, kwargs)})

    def _give_up_what_rebinds(self, key: Any, tree: Entry | None, names: list[str]) -> None:
        """Release graphs, since a call of another kind than theirs has rebound ``names``.

        Each run of one kind may bind the same value there, so that none differs from the one
        before. A replay binds nothing, and what the other kind has left there stays.
        """
        with self._lock:
            # Where it is no other way of a tree, it is something that no guard sees.
            for known in [key] if tree is not None else list(self._keys):
                if isinstance(self._keys.get(known), Entry):
                    self._counts.recaptures += 1
                    self._drop(known)
            if self._try("rebinds") > _MAX_REBINDS:
                self._closed = (
                    f"calls of another kind, or whose data takes another way, rebind {some(names)} "
                    "to something else, which a replay would not do. Keep such state in a tensor "
                    "that is written in place (copy_, add_), or outside."
                )
                for known in list(self._keys):
                    self._drop(known)
        self._release_dropped()

    def _as_of_now(
        self, leaves: list[torch.Tensor], found: Found, tree: Entry | None
    ) -> tuple[Callable[[str], AbstractContextManager[Any]], list[torch.Generator]]:
        device = current_device()
        where = next((t.device for t in leaves if t.device.type == device.type), None)
        index = device.index(where or torch.device(device.type))
        # While another thread captures, its generator is not to be asked; replays are soon over.
        if (where is None and tree is None and not found) or not CAPTURING.acquire(blocking=False):
            return nullcontext, []
        try:
            generators = [g for _, g in found if raw.is_a(g, torch._C.Generator)]
            generators += default_generators(device, index)
            with LOCK:
                regions = tree.regions() if tree else ()
                return as_of_now(device, index, regions, found), generators
        finally:
            CAPTURING.release()

    def _try_capture(
        self,
        fn: Callable[..., Any],
        key: Any,
        leaves: list[torch.Tensor],
        spec: Spec,
        result: Any,
        changes: list[str],
        tree: Entry | None = None,
        judge: Callable[[Entry], None] = lambda entry: None,
        called: bool = False,
    ) -> Exception | None:
        """Keep a graph under ``key``, or a refusal and its error.

        With ``tree``, which has that key, another path is added to it; where that fails, its other
        paths stay. ``judge`` raises where a graph is not to be kept. ``called``: a call ran
        eagerly, also if its result is not given.
        """
        fits = self.recogniser(fn, leaves, spec)
        kind = _describe_key(leaves, spec)
        opaque = any(not const.is_value for const in constants(spec))
        on_trial = tree is None and not changes and (called or result is not NO_MATCH)
        found: Traits = {}
        try:
            collectives.raise_if_known()
            if on_trial:
                found = traits(fn, leaves, spec)
            if changes or (opaque and tree is None):
                self._try(kind)
            if self._tries[kind] > _MAX_TRIES:
                self._drop_unused(kind)
                reason = (
                    f"{', '.join(changes[:3]) or 'an argument that is no tensor'} differs between "
                    "calls, so each would need a graph of its own. Keep it out of the object, or "
                    "pass it as a number or a tensor."
                )
                tally.thrashes(self.name, self._thrash.say(reason))
                raise CaptureError(reason)
            if self._key_of(fn, leaves, spec) != key:
                raise CaptureError("argument: the function changes the shape of a tensor in place")
            try:
                entry = self._make_entry(fn, leaves, spec, result, tree)
            except LayoutError as error:
                known = self._asks_layout and (self._draws or not error.draws)
                if self._pads or tree is not None or known:
                    raise
                self._asks_layout = True
                self._draws |= error.draws
                key = self._key_of(fn, leaves, spec)
                entry = self._make_entry(fn, leaves, spec, result, tree)
            try:
                judge(entry)
            except Exception:
                entry.release()
                raise
            if entry.captured is not None:
                entry.captured.sample.clear()
                if not self._pads:
                    self._asks_layout |= entry.captured.asks_layout
                    if entry.captured.draws_random_numbers and not self._draws:
                        self._asks_layout = self._draws = True
                        fits = self.recogniser(fn, leaves, spec)
            entry.fast_path = fits(entry.replay)
            entry.on_new_path = functools.partial(self._new_path, key, spec)
            if entry.captured is not None and entry.captured.groups:
                collectives.release_with_groups(self._release_groups, entry.captured.groups)
            with self._lock:
                self._counts.captures += 1
                released = tree is not None and self._keys.pop(key, None) is not tree
                if not released:
                    self._set_hot(tuple(e for e in self._hot if e is not tree))
                    if on_trial:
                        self._thrash.tried(key, found, entry.counter, "")
                    self._keep(key, entry)
            self._release_dropped()
            if released:
                entry.release()
            elif tree is not None:
                entry.take_over(tree)
            return None
        except Exception as error:  # the caller has his result: whatever it is, it is no graph
            if not isinstance(error, GfxGraphError):
                wrapped = CaptureError(f"cannot be captured: {type(error).__name__}: {error}")
                wrapped.__cause__ = error
                error = wrapped
            if tree is not None and tree.captured is None:
                return None  # released by another thread meanwhile: nothing is wrong with this path
            reason, cls = str(error), type(error)
            self._count_fallback(reason, calls=int(result is not NO_MATCH or called))
            # Numbers and texts only: no object of the caller's may live on because of it.
            tries = self._tries[kind] if opaque and tree is None else self._try(hash(key))
            with self._lock:
                if tree is not None:
                    if tries > _MAX_TRIES:
                        tree.closed = reason
                    return error
                if not getattr(error, "transient", False) or tries > _MAX_TRIES:
                    if on_trial:
                        self._thrash.tried(key, found, None, reason)
                    refuse = functools.partial(self._refuse, reason, cls)

                    def fast_path(spec: Spec) -> FastPath:
                        return _refusal_attempt(self.recogniser(fn, leaves, spec), refuse)

                    self._keep_refusal(key, spec, Refusal(kind, reason, cls, miss), fast_path)
            self._release_dropped()
            return error

    def _try(self, what: int | str) -> int:
        """Count; how often that was done."""
        with self._lock:
            self._tries[what] += 1
            if len(self._tries) > _MAX_COUNTED:  # the oldest gets some tries more
                del self._tries[next(iter(self._tries))]
            return self._tries[what]

    def _keep_refusal(
        self, key: Any, spec: Spec, refusal: Refusal, fast_path: Callable[[Spec], FastPath]
    ) -> None:
        """Keep it as long as the objects among the arguments live, which it does not hold.

        Args:
            key: of the calls.
            spec: of their arguments.
            refusal: what to keep.
            attempt: makes the attempt that recognises such calls.
        """
        gone, objects = self._gone, [c.value for c in constants(spec) if not c.is_value]
        try:
            spec, weak = without_objects(spec), (without_objects(key[0]), *key[1:])
            refusal.objects = [weakref.ref(o, lambda _: gone.append(weak)) for o in objects]
            key = weak
        except TypeError:  # a class without weak references; not more than graphs are kept
            pass
        refusal.fast_path = fast_path(spec)
        self._keep(key, refusal)

    def _drop_unused(self, kind: str) -> None:
        """Drop the graphs of a kind that each object would have its own of."""
        with self._lock:
            for key, entry in list(self._keys.items()):
                if isinstance(entry, Entry) and entry.key == kind and not entry.replays:
                    self._drop(key)
        self._release_dropped()

    def recogniser(
        self, fn: Callable[..., Any], leaves: list[torch.Tensor], spec: Spec
    ) -> Callable[[Callable[..., Any]], FastPath]:
        """Makes of a replay an attempt that takes calls like this one only."""
        same = _first_of_each(leaves)
        tensors = [leaves[n] for n in dict.fromkeys(same)]
        check = tensor_check(tensors) if leaves else None
        if check is not None and self._draws:
            check = _aligned_check(check, tensors)
        # The check of the tensors sees inference mode, autocast, dispatch modes and transforms.
        conditions = [c for c in _conditions(fn) if check is None or c[0] not in _SEEN_BY_CHECK]
        return functools.partial(matcher, spec[3][0], spec[3][1], check, conditions, same)

    def entry(self, fn: Callable[..., Any], leaves: list[torch.Tensor], spec: Spec) -> Entry | None:
        """The graph for such arguments, if there is one."""
        found = self._keys.get(self._key_of(fn, leaves, spec))
        return found if isinstance(found, Entry) else None

    def _new_path(self, key: Any, spec: Spec, fn: Any, args: Any, kwargs: Any, leaves: Any) -> Any:
        """Run a call whose data takes a path that was not captured, and capture that one."""
        entry = self._keys.get(key)
        if not isinstance(entry, Entry) or entry.captured is None:
            return self._call_by_key(fn, args, kwargs)
        paths = entry.captured.root.paths()
        if entry.closed is None and paths >= _MAX_PATHS:
            entry.closed = f"its data takes more than {_MAX_PATHS} paths: {entry.where()}"
        elif (
            paths >= _PATHS_ON_TRIAL and entry.replays < paths and not entry.captured.root.decides()
        ):
            how_often = "nearly every" if entry.replays else "every"
            reason = (
                f"the value read at {entry.where()} differs in {how_often} call ({paths} paths, "
                f"{entry.replays} replays). Keep the value in a tensor, or compare it on the "
                "device and read the outcome."
            )
            with self._lock:
                tally.thrashes(self.name, self._thrash.say(reason))
                if self._keys.get(key) is entry:
                    self._drop(key)
                    refusal = Refusal(entry.key, reason, CaptureError, miss)
                    self._keep_refusal(key, spec, refusal, lambda spec: miss)
            self._release_dropped()
        closed = entry.closed or self._thrash.stops_growing(paths, entry.replays)
        if closed is not None:
            return self._run_eagerly(fn, args, kwargs, closed)
        leaves = list(leaves)
        make = functools.partial(self._try_capture, fn, key, leaves, spec, changes=[], tree=entry)
        return self._first_call(fn, args, kwargs, key, leaves, make, entry)

    def _refuse(
        self, reason: str, kind: type[Exception], fn: Any, args: Any, kwargs: Any, leaves: Any
    ) -> Any:
        """Answer a call whose key was refused."""
        return (
            fn(*args, **kwargs)
            if is_inside_gfxgraph()
            else self._run_eagerly(fn, args, kwargs, reason, kind)
        )

    def _make_entry(
        self,
        fn: Callable[..., Any],
        leaves: list[torch.Tensor],
        spec: Spec,
        result: Any,
        tree: Entry | None,
    ) -> Entry:
        """A graph of the function, of compiled code where that was asked for and can be had."""
        code = self._compiled
        if code is None or tree is not None:
            return self._capture(fn, leaves, spec, result, tree)
        try:
            if code.kinds >= self._options.max_graphs:
                raise CompileError(
                    f"it was compiled for {code.kinds} kinds of calls, and max_graphs is "
                    f"{self._options.max_graphs}"
                )
            compiled = self._capture(fn, leaves, spec, result, None, code)
            compiled.keeps = code
        except Exception as error:
            if getattr(error, "transient", False) or self._options.fallback == "raise":
                raise
            reason = str(error)
        else:
            if not code.measure:
                return compiled
            return self._the_faster(compiled, fn, leaves, spec, result)
        return self._not_compiled(self._capture(fn, leaves, spec, result, None), reason)

    def _not_compiled(self, entry: Entry, reason: str) -> Entry:
        """Count, and log when first met, why a graph holds no compiled code."""
        entry.not_compiled = reason
        tally.add("compile_failures")
        if reason not in self._told:
            self._told.add(reason)
            log(logging.WARNING, "not_compiled", function=self.name, key=entry.key, reason=reason)
        return entry

    def _the_faster(
        self,
        compiled: Entry,
        fn: Callable[..., Any],
        leaves: list[torch.Tensor],
        spec: Spec,
        result: Any,
    ) -> Entry:
        """``compiled``, or a graph of the function as it is where that is as fast."""
        try:
            plain = self._capture(fn, leaves, spec, result, None, timed=True)
        except Exception as error:
            log(logging.INFO, "not_measured", function=self.name, because=str(error))
            if compiled.captured is not None:
                compiled.captured.time_replay = None
                compiled.captured.report.append(f"compiled: not timed: {error}")
            return compiled
        try:
            times = _replay_us(compiled, plain)
        except BaseException:
            compiled.release()
            plain.release()
            raise
        kept, verdict = compiled, "not timed: on the emulated device both do the same"
        if times:
            of_compiled, of_plain = times
            kept = compiled if of_compiled < of_plain else plain
            verdict = f"{of_compiled:.1f} us a replay compiled, {of_plain:.1f} us as it is"
        if kept is plain:
            plain.not_compiled = f"it would be no faster: {verdict}"
        elif compiled.captured is not None:
            compiled.captured.report.append(f"compiled: {verdict}")
        (plain if kept is compiled else compiled).release()
        how = "compiled" if kept is compiled else "as it is"
        log(logging.INFO, "measured", function=self.name, key=kept.key, kept=how, because=verdict)
        return kept

    def _capture(
        self,
        fn: Callable[..., Any],
        leaves: list[torch.Tensor],
        spec: Spec,
        result: Any,
        tree: Entry | None,
        code: Compiled | None = None,
        timed: bool = False,
    ) -> Entry:
        device = current_device()
        first = None if result is NO_MATCH else _taken_apart(result)
        known = [*leaves, *(first[0] if first else ())]
        on_device = [t for t in known if t.device.type == device.type]
        if not on_device and known:
            raise CaptureError(f"no tensor among arguments and results is on {device.type}")
        index = device.index(on_device[0].device if on_device else torch.device(device.type))
        torch_device = torch.device("cuda", index) if device.type == "cuda" else torch.device("cpu")
        # Another thread may release the tree, and its pool with it, whenever we do not hold LOCK.
        extends, tree_statics = (None, None) if tree is None else tree.now()
        graph_pool = self._lane_on(index) if tree is None else tree.graph_pool
        # Arguments that nobody called with were made for this, and go with it.
        ours = leaves if result is NO_MATCH else ()
        allocated = max(0, device.allocated(index) - sum(map(bytes_of, ours)))

        # One argument that comes twice is one tensor: the function may ask.
        made: dict[int, torch.Tensor] = {}
        for leaf in leaves:
            if id(leaf) not in made:
                strides = _strides(leaf, self._asks_layout)
                behind = alignment(leaf) if self._draws else 0
                made[id(leaf)] = make_static(leaf, torch_device, strides, behind)
        static_inputs = [made[id(leaf)] for leaf in leaves]
        layout: Layout = "own"
        if self._pads:
            layout = "padded"
        elif any(
            s.stride() != leaf.stride() for s, leaf in zip(static_inputs, leaves, strict=True)
        ):
            layout = "rows"
        elif list(map(alignment, static_inputs)) != list(map(alignment, leaves)):
            layout = "aligned"
        body = _Body(fn if code is None else code.of(fn), spec, static_inputs, torch_device)
        first_outputs = None if first is None else body.accept(*first)
        opaque = [c.value for c in constants(spec) if not c.is_value]
        tolerance = None if self._options.verify is False else self._options.verify
        own_statics, input_bytes = list(static_inputs), graph_pool.input_bytes

        def room_for(peak_bytes: int) -> None:
            shared = static_inputs if self._share_inputs else ()
            admit(
                graph_pool,
                functools.partial(graph_pool.bytes_for, peak_bytes, shared),
                allocated,
                self,
            )

        target = Target(
            body,
            static_inputs,
            roots={self.name: fn} | {f"argument {n}": value for n, value in enumerate(opaque)},
            layout=layout,
            compiled=code is not None,
            first_outputs=first_outputs,
        )
        how = CaptureOptions(
            # One run is recorded, one compiles, and one is as all others will be.
            warmup=self._options.warmup if code is None else max(3, self._options.warmup),
            tolerance=tolerance,
            branching=self._options.branching == "auto",
            share_inputs=self._share_inputs,
            admit=room_for,
            timed=timed or (code is not None and code.measure),
        )
        try:
            captured = None
            # What is timed has to know the way back to the state of now.
            model = None if tree or code or timed else self._model(fn, leaves, spec)
            if model is not None and model.captured is not None:
                peak_bytes = model.peak_bytes_for(static_inputs)
                room_for(peak_bytes)
                captured = capture_like(
                    model.captured, target, graph_pool, tolerance=tolerance, peak_bytes=peak_bytes
                )
            captured = captured or capture(
                target, how, graph_pool, extends=extends, static_inputs=tree_statics
            )
        except BaseException:
            graph_pool.renew_pool()
            raise
        assert body.out_spec is not None  # it ran
        graph_pool.update_overhead(captured.peak_bytes)
        given = [s for s in static_inputs if storage_key(s) in captured.written]
        if given and (shares_memory(leaves) or any(0 in s.stride() for s in given)):
            (captured.root if captured.graft is None else captured.graft.child).reset()
            raise CaptureError(SHARED)
        if tree is not None:
            return tree.with_path(captured, static_inputs, leaves, body.out_spec)
        entry = Entry(
            _describe_key(leaves, spec),
            captured,
            graph_pool,
            static_inputs,
            leaves,
            body.out_spec,
            self._options.outputs == "own",
            graph_pool.input_bytes
            - input_bytes
            + sum(
                bytes_of(s) for s, own in zip(static_inputs, own_statics, strict=True) if s is own
            ),
        )
        try:
            if entry.overlaps(leaves):
                raise CaptureError("an argument shares memory with what the function writes")
            entry.build()  # a class of the result may not let itself be built
        except Exception:
            entry.release()
            raise
        if captured.not_compiled:
            self._not_compiled(entry, captured.not_compiled)
        return entry

    def _lane_on(self, index: int) -> GraphPool:
        with self._lock:
            graph_pool = self._graph_pools.get(index)
            if graph_pool is None:
                graph_pool = self._graph_pools[index] = GraphPool(current_device(), index)
            return graph_pool

    def _model(
        self, fn: Callable[..., Any], leaves: list[torch.Tensor], spec: Spec
    ) -> Entry | None:
        """A graph of the same function for other sizes, after which this one can be captured."""
        return None

    def _run_eagerly(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reason: str,
        kind: type[Exception] = CaptureError,
    ) -> Any:
        self._count_fallback(reason)
        if self._options.fallback == "raise":
            raise kind(f"{self.name}: {reason}")
        with self._lock:
            self._counts.eager_calls += 1
        if not self._writes:
            return fn(*args, **kwargs)
        with self._gate.passing():
            return fn(*args, **kwargs)

    def _count_fallback(self, reason: str, calls: int = 1) -> None:
        with self._lock:
            self._counts.fallbacks[reason] += calls
        tally.fallback(self.name, reason, calls)

    def _keep(self, key: Any, entry: Entry | Refusal) -> None:
        while len(self._keys) >= self._options.max_graphs:
            oldest = min(self._keys, key=lambda key: self._keys[key].used)
            is_graph = isinstance(self._keys[oldest], Entry)
            replays = self._drop(oldest)
            if is_graph:
                self._counts.evictions += 1
                self._thrash.released(replays)
        self._keys[key] = entry
        self._promote(entry)

    def _promote(self, entry: Entry | Refusal) -> None:
        """Put ``entry`` to the front; called whenever another one is there."""
        with self._lock:
            self._clock += 1
            entry.used = self._clock
            self._set_hot((entry, *(e for e in self._hot if e is not entry))[:_HOT])

    def _set_hot(self, entries: tuple[Entry | Refusal, ...]) -> None:
        self._hot = entries
        if self._pauses:
            entries = ()
        self.front = validation.front(entries[0]) if entries else miss
        #: Asked when the front does not answer; not while a call may be one to compare.
        self._others = () if validation.every() else entries[1:]

    def _drop(self, key: Any) -> int:
        """Forget a key; how often its graph was replayed.

        The caller holds our lock, and calls :meth:`_release_dropped` when it no longer does.
        """
        entry = self._keys.pop(key)
        self._set_hot(tuple(e for e in self._hot if e is not entry))
        if not isinstance(entry, Entry):
            return 0
        self._dropped.append(entry)
        return entry.replays

    def _release_dropped(self) -> None:
        # Not under our lock: this waits for LOCK, whose holder may be waiting for ours. While a
        # thread captures, a finalizer, or the function itself, may ask any callable for anything.
        while self._dropped:
            try:
                entry = self._dropped.popleft()
            except IndexError:  # another thread took the last
                return
            when_free(functools.partial(self._release, entry))

    def _release(self, entry: Entry) -> None:
        replays = entry.release()
        with self._lock:
            self._counts.released_replays += replays


class _Body:
    """The function on static inputs; it has to return the same kind of thing in each run.

    Args:
        fn: the function.
        spec: of its arguments.
        static_inputs: their tensors; the list may be given others.
        device: where the graph runs.

    Attributes:
        out_spec: of its result, once there was one.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        spec: Spec,
        static_inputs: list[torch.Tensor],
        device: torch.device,
    ) -> None:
        self.out_spec: Spec | None = None
        self._fn, self._spec, self._statics, self._device = fn, spec, static_inputs, device
        self._shapes = [(static.shape, static.stride()) for static in static_inputs]

    def __call__(self) -> list[torch.Tensor]:
        static_inputs, spec = self._statics, self._spec
        static_args, static_kwargs = builder(spec, static_inputs)()
        # Autocast keeps casts of weights, which would hide later changes of the weights.
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            returned = self._fn(*static_args, **static_kwargs)
        finally:
            torch.set_autocast_cache_enabled(cached)
        after, spec_after = flatten((static_args, static_kwargs))
        if spec_after != spec or not all(map(is_, after, static_inputs)):
            raise CaptureError("argument: the function changes a container that it is given")
        with torch._C.DisableTorchFunction():  # it is us who ask
            shapes = [(static.shape, static.stride()) for static in static_inputs]
        if self._shapes != shapes:
            raise CaptureError("argument: the function changes the shape of a tensor in place")
        if self.out_spec is None:
            return self.accept(*_taken_apart(returned))
        outputs, out_spec = flatten(returned)
        if out_spec != self.out_spec:
            raise CaptureError("result: its structure or its plain values change between calls")
        return outputs

    def accept(self, outputs: list[torch.Tensor], spec: Spec) -> list[torch.Tensor]:
        """Expect such results from now on."""
        stray = [t.device for t in outputs if t.device not in (self._device, _HOST)]
        if stray:
            raise CaptureError(f"result: is on {stray[0]}, but the graph runs on {self._device}")
        self.out_spec = spec
        return outputs


def _taken_apart(result: Any) -> tuple[list[torch.Tensor], Spec]:
    """The tensors of a result and its spec.

    Raises:
        CaptureError: a graph cannot give such a result.
    """
    try:
        leaves, spec = flatten(result)
    except ArgumentError as error:
        raise CaptureError(f"result: {error}") from error
    for const in constants(spec):
        if not const.is_value:
            raise CaptureError(
                f"result: holds a {describe(const.value)}, which a replay cannot make anew. "
                "Return tensors, numbers and containers of them."
            )
    reason = _unsuitable(leaves, "result")
    if reason is not None:
        raise CaptureError(reason)
    if any(t.requires_grad for t in leaves):
        raise CaptureError(
            "result: requires grad; a replay records nothing for autograd. Call it under "
            "torch.no_grad() or torch.inference_mode()."
        )
    return leaves, spec


def reset_with(owner: Any, engine: Engine) -> None:
    """Release the graphs when ``owner`` goes, and not when the garbage collector comes round."""
    # Weakly: whatever the graphs hold must not keep the owner alive.
    weakref.finalize(owner, _reset, weakref.ref(engine)).atexit = False


def _reset(engine: weakref.ref[Engine]) -> None:
    alive = engine()
    if alive is not None:
        for entry in alive.empty():
            when_free(entry.release, patience=0.0)


def _version(tensor: torch.Tensor) -> int | None:
    """How often it was written to; ``None``: nobody counts."""
    return None if tensor.is_inference() else tensor._version


def _replay_us(*entries: Entry) -> list[float]:
    """Median microseconds of a replay of each, taken in turn: the device's clock may change.

    None on the emulated device.
    """
    calls = [e.captured.time_replay for e in entries if e.captured and e.captured.time_replay]
    if current_device().kind == "emulated":
        calls = []
    for _ in range(_ROUNDS_OF_WARMTH):
        for call in calls:
            call()
    rounds = [[call() for call in calls] for _ in range(_ROUNDS)]
    for entry in entries:  # it holds what it takes to get back to the state of then
        if entry.captured is not None:
            entry.captured.time_replay = None
    return [1e6 * statistics.median(seconds) for seconds in zip(*rounds, strict=True)]


def _refusal_attempt(fits: Callable[[Any], FastPath], refuse: Any) -> FastPath:
    try:
        return fits(refuse)
    except (RecursionError, ArgumentError):  # a structure too deep for an expression
        return miss


def _root_module(fn: Any) -> torch.nn.Module | None:
    while isinstance(fn, functools.partial):
        fn = fn.func
    owner = getattr(fn, "__self__", fn)
    scripted = isinstance(owner, torch.jit.ScriptModule)  # its flag is in C++, or frozen
    return owner if isinstance(owner, torch.nn.Module) and not scripted else None


_SEEN_BY_CHECK = (
    torch.is_inference_mode_enabled,
    torch.is_autocast_enabled,
    torch._C._len_torch_dispatch_stack,
    torch._C._functorch.peek_interpreter_stack,
    vars(forward_ad),  # their copies refuse dual tensors
)


def _conditions(fn: Any) -> list[Condition]:
    """What must be as it is now for a call to be of the same kind, beside its arguments."""
    device_type = current_device().type
    found: list[Condition] = [
        (torch.is_grad_enabled, "", torch.is_grad_enabled()),
        (torch.is_inference_mode_enabled, "", torch.is_inference_mode_enabled()),
        (torch.is_autocast_enabled, device_type, torch.is_autocast_enabled(device_type)),
        (torch._C._len_torch_dispatch_stack, "", 0),
        (torch._C._functorch.peek_interpreter_stack, "", None),
        (vars(forward_ad), "_current_level", -1),
        # set_default_device() and the like are function modes
        (torch._C._len_torch_function_stack, "", torch._C._len_torch_function_stack()),
        (torch.get_default_dtype, "", torch.get_default_dtype()),
    ]
    if torch._C._len_torch_function_stack():
        found.append((_default_devices, "", _default_devices()))
    if torch.is_autocast_enabled(device_type):
        found.append((torch.get_autocast_dtype, device_type, torch.get_autocast_dtype(device_type)))
    module = _root_module(fn)
    if module is not None:
        found.append((vars(module), "training", module.training))
    return found


def _aligned_check(
    check: Callable[..., bool], tensors: Sequence[torch.Tensor]
) -> Callable[..., bool]:
    """``check``, and whether tensors are aligned as these are."""
    wanted = list(map(alignment, tensors))
    return lambda *found: check(*found) and list(map(alignment, found)) == wanted


def key_of(
    fn: Any,
    leaves: Sequence[torch.Tensor],
    spec: Spec,
    asks_layout: bool = False,
    draws: bool = False,
) -> Any:
    """The key of a call: calls with equal keys can share one graph.

    With ``asks_layout`` that includes all strides; without, the slices of buffers of any size have
    one key with contiguous tensors. With ``draws`` it includes how tensors are aligned.
    """
    storages = [storage_key(leaf) if leaf.numel() else None for leaf in leaves]
    shared = None
    if shares_memory(leaves):
        shared = tuple(storages.index(s) for s in storages), _first_of_each(leaves)
    return (
        spec,
        tuple(
            (
                leaf.shape,
                leaf.dtype,
                leaf.device,
                _strides(leaf, asks_layout),
                alignment(leaf) if draws else 0,
                overlaps_itself(leaf),
                leaf.requires_grad,
                leaf.is_conj(),
                leaf.is_neg(),
                type(leaf),
            )
            for leaf in leaves
        ),
        shared,
        tuple(Const(value) for _, _, value in _conditions(fn)),
    )


def _first_of_each(leaves: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """For each tensor the number of the first one that is the same object."""
    ids = list(map(id, leaves))
    return tuple(map(ids.index, ids))


def _strides(leaf: torch.Tensor, exactly: bool) -> tuple[int, ...] | None:
    """The strides that the static input for ``leaf`` has; ``None``: those of a contiguous one.

    What an operator of torch gives for a slice of rows is what it gives for a contiguous tensor.
    It is not for one that is expanded, or permuted and sliced.
    """
    strides, in_rows = leaf.stride(), contiguous_strides(leaf.shape)
    if strides == in_rows:
        return None
    if overlaps_itself(leaf):
        return torch.empty_like(leaf, device="meta").stride()
    if exactly:
        return strides
    least = 1
    for size, stride in zip(reversed(leaf.shape), reversed(strides), strict=True):
        if stride < least:
            return None if leaf.is_contiguous() else strides
        least = stride * max(1, size)
    return None


def no_graph_now() -> str | None:
    """Why no call can use a graph right now, whatever its arguments."""
    if current_device().is_capturing():
        return "called while another graph is captured: its work went into that graph"
    if torch._C._len_torch_dispatch_stack():
        return "called under a TorchDispatchMode, which a replay would pass by"
    if torch._C._len_torch_function_stack() and _default_devices() is None:
        return "called under a TorchFunctionMode, which a replay would pass by"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return (
            "called inside a torch.func transform (vmap, grad, jvp), which a replay would pass by"
        )
    if vars(forward_ad)["_current_level"] >= 0:
        return "called inside forward-mode AD, for which a replay computes nothing"
    if torch._C._get_tracing_state() is not None:
        return "called while torch.jit.trace records, which a replay would pass by"
    return None


def _default_devices() -> str | None:
    """The devices that ``with torch.device()`` and ``set_default_device`` ask for.

    The same object for the same devices; ``None`` where another function mode is active.
    """
    count = torch._C._len_torch_function_stack()
    modes = [torch._C._get_function_stack_at(n) for n in range(count)]
    if any(type(mode) is not DeviceContext for mode in modes):
        return None
    return sys.intern(",".join(str(mode.device) for mode in modes))


def taken_apart(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[torch.Tensor], Spec, str | None]:
    """The tensors and the spec of a call, and why no graph can take it."""
    try:
        leaves, spec = flatten((args, kwargs))
        hash(spec)
        return leaves, spec, _unsuitable(leaves, "argument")
    except (ArgumentError, AttributeError, RecursionError, TypeError) as error:
        too_deep = isinstance(error, RecursionError)
        return [], (), f"argument: {TOO_DEEP if too_deep else error}"


def _unsuitable(leaves: Sequence[torch.Tensor], what: str) -> str | None:
    """Why these tensors cannot be inputs or outputs of a graph."""
    for leaf in leaves:
        reason = unsuitable(leaf)
        if reason is not None:
            return f"{what}: {reason}"
    device = current_device().type
    strange = {leaf.device for leaf in leaves if leaf.device.type not in ("cpu", device)}
    if strange:
        return f"{what}: is on {strange.pop()}, which holds no data that a graph on {device} reads"
    devices = sorted({str(leaf.device) for leaf in leaves if leaf.device.type == device})
    if len(devices) > 1:
        return f"{what}s: are on several devices ({', '.join(devices)}); a graph runs on one"
    return None


def _describe_key(leaves: Sequence[torch.Tensor], spec: Spec) -> str:
    tensors = [
        f"{str(leaf.dtype).removeprefix('torch.')}[{','.join(map(str, leaf.shape))}]"
        for leaf in leaves
    ]
    return ", ".join([*tensors, *(repr(const) for const in constants(spec))])
