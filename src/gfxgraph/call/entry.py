"""One key of a graphed callable: a graph with its static inputs and outputs, or a refusal."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from copy import copy as copy_object
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from ..device import Device, generator_state
from ..errors import CaptureError, MemoryCapError
from ..graph.captured import CapturedGraph
from ..graph.guard import Guard
from ..graph.locks import LOCK, PATIENCE
from ..graph.pool import GraphPool
from ..graph.segments import run
from ..record.effects import overwrite, storage_key
from ..record.journal import Journal
from ..stats import tally
from .signature import NO_MATCH, Spec, builder

__all__ = [
    "SHARED",
    "Entry",
    "FastPath",
    "GraphRow",
    "Refusal",
    "alignment",
    "bytes_of",
    "contiguous_strides",
    "copier",
    "make_static",
    "miss",
    "overlaps_itself",
    "shares_memory",
]

SHARED = (
    "arguments share memory, or an expanded one does with itself, and the function writes to them"
)

FastPath = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""A function of the callable, its positional and its keyword arguments: the result or NO_MATCH."""


# From so many inputs on it pays to keep autograd out of the copies: entering its guard costs
# 0.5 us, and autograd looks at each tensor (measured on an H200 with torch 2.11).
_MANY = 16

# Bytes between the elements of a static input that lies in memory as its argument does.
_MAX_GAPS = 256 << 20

# Bytes of the widest load of a kernel that works on vectors: four doubles.
_LOADED_AT_ONCE = 32


@dataclass(frozen=True)
class GraphRow:
    """A row of :class:`~gfxgraph.call.graphed.GraphedStats`.

    Attributes:
        key: shapes and dtypes of the tensors, and the other arguments.
        pool_bytes: bytes by which its capture made the memory pool grow.
        input_bytes: bytes of its static inputs.
        private_bytes: bytes that the device holds for it alone: what its capture added to the pool
            and to the memory of static inputs.
        replays: how often it was replayed.
        paths: ways that data takes through it; 1 where its course does not depend on data.
        report: what was folded into it, and where the host takes over between its graphs.
        compiled: whether it holds code of ``torch.compile``.
    """

    key: str
    pool_bytes: int
    input_bytes: int
    private_bytes: int
    replays: int
    paths: int
    report: list[str]
    compiled: bool


class Refusal:
    """A key that runs eagerly, and why.

    Attributes:
        key: shapes and dtypes of the tensors, and the other arguments.
        reason: why.
        kind: the class of the error that said so. Not the error itself: its traceback holds on to
            every tensor of the failed run.
        attempt: runs a call that fits the key eagerly.
        used: when it was last used, for the order of release.
        objects: the arguments that are compared by identity.
    """

    def __init__(self, key: str, reason: str, kind: type[Exception], fast_path: FastPath) -> None:
        self.key = key
        self.reason = reason
        self.kind = kind
        self.fast_path = fast_path
        self.used = 0
        self.objects: list[weakref.ref[Any]] = []

    @property
    def is_for_room(self) -> bool:
        """Whether there was no room for a graph, which may change."""
        return issubclass(self.kind, MemoryCapError)


class Entry:
    """A captured graph with its static inputs and outputs.

    Everything that can be done before a call is done here: which tensors are copied where, how the
    result is built, what is watched. A call checks, copies, launches and builds.
    """

    def __init__(
        self,
        key: str,
        captured: CapturedGraph,
        graph_pool: GraphPool,
        static_inputs: list[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        out_spec: Spec,
        own_outputs: bool,
        private_input_bytes: int,
    ) -> None:
        self.used = 0
        #: Why calls that need another path run eagerly from now on.
        self.closed: str | None = None
        #: How often it was replayed when it was compared with eager execution last.
        self.compared_at: int | None = None
        #: Whether it differed then, which another thread may have been the reason for.
        self.in_doubt = False
        #: Why it holds no compiled code, where that was asked for.
        self.not_compiled = ""
        #: What the graph uses beside tensors: compiled code.
        self.keeps: object = None
        self.key = key
        self.out_spec = out_spec
        self.graph_pool = graph_pool
        self._twins: weakref.WeakSet[Entry] = weakref.WeakSet()
        self.captured: CapturedGraph | None = captured
        self.counter = tally.replay_counter()
        if captured.launch_ns:  # calls are not timed
            self.counter.ns, self.counter.timed = captured.launch_ns, 1
        self._statics = static_inputs
        self._guard = captured.guard
        self._input_bytes = sum(map(bytes_of, static_inputs))
        #: Of a function for several sizes: of each output, which dimensions carry which size.
        self.carried: list[dict[int, str]] = []
        self._private_input_bytes = private_input_bytes
        self._copy = copier(static_inputs, leaves)
        with LOCK:
            graph_pool.graphs += 1
            # Each call copies them before another graph runs, which may use their memory then.
            if own_outputs and captured.root.step is None:
                captured.last.outputs = graph_pool.release_outputs(captured.outputs)

        inputs = set(map(storage_key, static_inputs))
        # Memory that a call's arguments may not share, because the graph writes to one of the two.
        self._touched = captured.written.keys() - inputs
        if captured.written.keys() & inputs:
            self._touched |= captured.outside.keys()

        def hand_out(output: torch.Tensor) -> Any:
            if storage_key(output) in inputs:  # the next call's copies would overwrite each other
                return _like(output)
            # What lives outside (a cache that the function returns) is itself in eager, too.
            if not own_outputs or storage_key(output) in captured.outside:
                return output
            return _like(output)

        self._build: Callable[[], Any] | None = builder(
            out_spec, [hand_out(o) for o in captured.outputs]
        )
        captured.last.build = self._build
        self._own_outputs = own_outputs
        self._write_back = write_back = [
            (n, static)
            for n, static in enumerate(static_inputs)
            if storage_key(static) in captured.written
        ]
        #: Replays for tensors that fit. A closure, since it is the path of every call and looks
        #: up each of these names in one step.
        self.replay = (
            self._make_replay(captured, write_back)
            if captured.root.step is None
            else self._make_tree_replay(captured, write_back)
        )
        #: Answers a call whose data takes a path that was not captured; whoever keeps this entry
        #: sets it, where there are such calls.
        self.on_new_path: Callable[..., Any] = miss
        #: Recognises a call and replays; whoever keeps this entry sets it.
        self.fast_path: FastPath = miss

    def replay_with(
        self, copy: Callable[[Sequence[torch.Tensor]], None], build: Callable[[], Any]
    ) -> Callable[..., Any] | None:
        """A replay that fills the static inputs and makes the result in another way.

        Args:
            copy: fills them from the tensors of a call.
            build: makes the result out of the static outputs.

        Returns:
            The replay; ``None``: this key writes to its arguments, or is no single graph.
        """
        captured = self.captured
        if captured is None or captured.root.step is not None or self._write_back:
            return None
        twin = copy_object(self)
        twin._copy, twin._build, twin._twins = copy, build, weakref.WeakSet()
        self._twins.add(twin)  # as long as somebody has its replay
        return twin._make_replay(captured, [])

    def trial(self) -> Callable[..., Any]:
        """A replay that gives NO_MATCH where the data takes a path that was not captured."""
        captured = self.captured
        if captured is None or captured.root.step is None:
            return self.replay
        twin = copy_object(self)
        twin.on_new_path, twin._twins = miss, weakref.WeakSet()
        self._twins.add(twin)
        return twin._make_tree_replay(captured, self._write_back)

    def uncount(self) -> None:
        """The last replay answered no call."""
        with LOCK:
            self.counter.replays -= 1

    @property
    def written_inputs(self) -> list[int]:
        """The positions of the arguments that it writes to."""
        return [n for n, _ in self._write_back]

    @property
    def device(self) -> Device:
        """Where it runs."""
        return self.graph_pool.device

    @property
    def index(self) -> int:
        """Which one of its kind."""
        return self.graph_pool.index

    @property
    def static_tensors(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The static inputs and outputs."""
        return self._statics, [] if self.captured is None else self.captured.outputs

    def now(self) -> tuple[CapturedGraph, list[torch.Tensor]]:
        """What was captured, and the static inputs.

        Raises:
            CaptureError: it was released.
        """
        with LOCK:
            if self.captured is None:
                raise CaptureError("its graphs were released meanwhile", transient=True)
            return self.captured, self._statics

    def is_outside(self, output: torch.Tensor) -> bool:
        """Whether a static output lives outside of the graph, such as a cache."""
        return self.captured is not None and storage_key(output) in self.captured.outside

    def _make_replay(
        self, captured: CapturedGraph, write_back: list[tuple[int, torch.Tensor]]
    ) -> Callable[..., Any]:
        graph_pool, index, counter = self.graph_pool, self.graph_pool.index, self.counter
        stream_id, is_capturing = graph_pool.device.stream_id, graph_pool.device.is_capturing
        guard = self._guard
        launch, memory_holds = captured.root.launch or _nothing, guard.memory_holds
        rewritten = _counted(captured.written)
        # A replay that changes nothing but its own outputs can be thrown away, so it may be
        # launched before it is known that every weight is still in its place.
        look_first = bool(captured.written) or captured.draws_random_numbers
        touched, dual = self._touched, vars(forward_ad)

        below_autograd = getattr(torch._C, "_AutoDispatchBelowAutograd", None)  # private to torch
        if len(self._statics) < _MANY:
            below_autograd = None

        def replay(fn: Any, args: Any, kwargs: Any, leaves: Sequence[torch.Tensor]) -> Any:
            # Never for ever: the thread that captures may wait for this one.
            if not LOCK.acquire(False) and not LOCK.acquire(True, PATIENCE):
                return NO_MATCH
            scope = None
            try:
                if below_autograd is not None:
                    if dual["_current_level"] >= 0:
                        return NO_MATCH
                    scope = below_autograd()
                    scope.__enter__()
                build = self._build
                if build is None:  # released meanwhile
                    return NO_MATCH
                stream = stream_id(index)
                if stream and is_capturing():
                    return NO_MATCH
                if stream != graph_pool.last_stream:
                    graph_pool.sync_to(stream)
                if look_first:
                    if not guard.places_hold() and guard.changes():
                        return NO_MATCH
                    if (touched and self.overlaps(leaves)) or (
                        write_back and shares_memory(leaves)
                    ):
                        return NO_MATCH
                try:
                    self._copy(leaves)
                except NotImplementedError:  # one of them is a dual tensor of forward-mode AD
                    return NO_MATCH
                # Asked while the device copies: a graph may not be launched onto memory that is
                # gone. That a weight was replaced by another may be found out after the launch.
                if memory_holds and not memory_holds():
                    return NO_MATCH
                launch()
                if rewritten:
                    increment_version(rewritten)
                if write_back:
                    with torch.no_grad():
                        for n, static in write_back:
                            leaves[n].copy_(static)
                # Asked while the device replays.
                if not look_first and not guard.places_hold() and guard.changes():
                    return NO_MATCH
                counter.replays += 1
                return build()
            finally:
                if scope is not None:
                    scope.__exit__(None, None, None)
                LOCK.release()

        return replay

    def _make_tree_replay(
        self, captured: CapturedGraph, write_back: list[tuple[int, torch.Tensor]]
    ) -> Callable[..., Any]:
        graph_pool, counter, guard, root = self.graph_pool, self.counter, self._guard, captured.root
        device, index = graph_pool.device, graph_pool.index
        rewritten, saved = _counted(captured.written), captured.saved
        generators = captured.generators if captured.saves_generator else ()
        calls_user = captured.calls_user
        drawn_from = (
            (device.default_generator(index), *generators) if captured.saves_generator else ()
        )

        def replay(fn: Any, args: Any, kwargs: Any, leaves: Sequence[torch.Tensor]) -> Any:
            if not LOCK.acquire(False) and not LOCK.acquire(True, PATIENCE):
                return NO_MATCH
            try:
                if self._build is None or device.is_capturing():
                    return NO_MATCH
                stream = device.stream_id(index)
                if stream != graph_pool.last_stream:
                    graph_pool.sync_to(stream)
                if not guard.places_hold() and guard.changes():
                    return NO_MATCH
                if self.overlaps(leaves) or (write_back and shares_memory(leaves)):
                    return NO_MATCH
                with torch.no_grad():
                    values = [region.clone() for region in saved]
                    random = device.rng_state(index) if captured.saves_generator else None
                    states = [generator_state(g) for g in generators] if generators else ()
                    try:
                        self._copy(leaves)
                    except NotImplementedError:
                        return NO_MATCH
                    if guard.memory_holds and not guard.memory_holds():
                        return NO_MATCH
                    if calls_user:  # what that does is done, whatever path the data takes
                        journal = Journal(copies=False, generators=drawn_from)
                        with journal.playing():
                            try:
                                last = run(root)
                            except Exception:
                                if not journal.raised:
                                    raise
                                last = None  # the function may catch it
                    else:
                        last = run(root)
                    if last is not None and last.build is not None:
                        if rewritten:
                            increment_version(rewritten)
                        for n, static in write_back:
                            leaves[n].copy_(static)
                        counter.replays += 1
                        return last.build()
                    for region, value in zip(reversed(saved), reversed(values), strict=True):
                        region.copy_(value)
                    if random is not None:
                        device.set_rng_state(random, index)
                    for generator, state in zip(generators, states, strict=True):
                        generator.set_state(state)
            finally:
                LOCK.release()
            with journal.resumed() if calls_user else nullcontext():
                return self.on_new_path(fn, args, kwargs, leaves)

        return replay

    def regions(self) -> list[torch.Tensor]:
        """The memory that calls write to, but for their arguments."""
        captured, inputs = self.captured, set(map(storage_key, self._statics))
        if captured is None:
            return []
        written = captured.written.items()
        return [*captured.saved, *(tensor for key, tensor in written if key not in inputs)]

    def peak_bytes_for(self, static_inputs: Sequence[torch.Tensor]) -> int:
        """What eager execution takes for other inputs, if it grows as they do."""
        if self.captured is None:
            return 0
        return (
            self.captured.peak_bytes
            * sum(map(bytes_of, static_inputs))
            // max(1, self._input_bytes)
        )

    def input_storages(self) -> Iterator[tuple[int, int]]:
        """Storage key and bytes of each static input."""
        return ((storage_key(s), s.untyped_storage().nbytes()) for s in self._statics)

    @property
    def replays(self) -> int:
        """How often it was replayed."""
        return self.counter.replays

    def where(self) -> str:
        """The first place at which the host decides how a call goes on."""
        step = self.captured.root.step if self.captured else None
        return "" if step is None else f"{step.where} ({step.point.what})"

    def with_path(
        self,
        captured: CapturedGraph,
        static_inputs: list[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        spec: Spec,
    ) -> Entry:
        """An entry with another path, which answers calls from :meth:`take_over` on."""
        entry = Entry(
            self.key, captured, self.graph_pool, static_inputs, leaves, spec, self._own_outputs, 0
        )
        entry._copy = self._copy
        tally.retire(entry.counter)
        entry.counter = self.counter
        entry.replay = entry._make_tree_replay(captured, entry._write_back)
        entry.on_new_path = self.on_new_path
        entry.not_compiled = self.not_compiled
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
        return None if self._build is None else self._build()

    def overlaps(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Whether one of ``leaves`` shares memory that the graph writes, or writes to it."""
        return any(storage_key(leaf) in self._touched for leaf in leaves)

    def stale(self) -> list[str]:
        """What was rebound or moved since the capture.

        Raises:
            DeadTensorError: see ``Guard.check_alive``.
        """
        self._guard.check_alive()
        return self._guard.changes()

    def static_inputs(self) -> list[torch.Tensor]:
        """The static inputs; from now on a call may pass them, and they are not copied."""
        static_inputs = self._statics

        def copy_others(leaves: Sequence[torch.Tensor]) -> None:
            others = [
                (s, leaf) for s, leaf in zip(static_inputs, leaves, strict=True) if leaf is not s
            ]
            ours = set(map(storage_key, static_inputs))
            # A static input that stands in another's place is read before it is written.
            others = [
                (s, leaf.clone() if storage_key(leaf) in ours else leaf) for s, leaf in others
            ]
            for static, leaf in others:
                (_copy_expanded if 0 in static.stride() else _copy_one)(static, leaf)

        self._copy = copy_others
        return static_inputs

    def row(self) -> GraphRow:
        """What ``stats()`` shows of it."""
        captured = self.captured
        return GraphRow(
            self.key,
            0 if captured is None else captured.pool_bytes,
            self._input_bytes,
            (0 if captured is None else captured.pool_bytes) + self._private_input_bytes,
            self.counter.replays,
            0 if captured is None else captured.root.paths(),
            [] if captured is None else captured.report,
            captured is not None and captured.compiled,
        )

    def release(self) -> int:
        """Let go of the graph and its memory.

        Returns:
            How often it was replayed.
        """
        with LOCK:
            if self.captured is not None:
                self.captured.release()
                self.graph_pool.release(self._statics)
                tally.retire(self.counter)
            self.captured = None
            self._forget()
        return self.counter.replays

    def _forget(self) -> None:
        for twin in self._twins:
            twin._build = None
            twin._copy = _nothing
        self._build = None
        self._statics = []
        self._guard = Guard({}, (), ())
        self.keeps = None
        self._copy = _nothing
        self.fast_path = self.replay = self.on_new_path = miss


def miss(*args: Any) -> Any:
    """The attempt of what cannot answer any call."""
    return NO_MATCH


def shares_memory(leaves: Sequence[torch.Tensor]) -> bool:
    """Whether two of ``leaves`` live on one storage."""
    filled = [storage_key(leaf) for leaf in leaves if leaf.numel()]
    return len(set(filled)) < len(filled)


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of the elements of ``tensor``."""
    return tensor.numel() * tensor.element_size()


def alignment(leaf: torch.Tensor) -> int:
    """Bytes by which ``leaf`` lies behind a multiple of what kernels load at once."""
    return leaf.data_ptr() % _LOADED_AT_ONCE if leaf.numel() else 0


def make_static(
    leaf: torch.Tensor, device: torch.device, strides: Sequence[int] | None, behind: int = 0
) -> torch.Tensor:
    """A static input for ``leaf``: same shape and dtype, on ``device``, with what it holds now.

    Args:
        leaf: the argument.
        device: where the graph runs.
        strides: of the static input; ``None``: it is contiguous.
        behind: its :func:`alignment`, in bytes.

    Raises:
        CaptureError: with such strides it takes far more memory than its elements do.
    """
    if strides is None:
        strides = contiguous_strides(leaf.shape)
    span = 1 + sum((n - 1) * step for n, step in zip(leaf.shape, strides, strict=True))
    if (span - leaf.numel()) * leaf.element_size() > _MAX_GAPS:
        raise CaptureError(
            f"argument: a slice of shape {tuple(leaf.shape)} with strides {strides} lies in "
            f"{span * leaf.element_size() >> 20} MiB, and its static input would too. Pass it "
            "contiguous()."
        )
    # Never an inference tensor: it is written in whatever mode the caller is in.
    with torch.inference_mode(False), torch.no_grad():
        if behind:
            offset = behind // leaf.element_size()
            memory = torch.empty(offset + span, dtype=leaf.dtype, device=device)
            static = memory.as_strided(leaf.shape, strides, offset)
        else:
            static = torch.empty_strided(leaf.shape, strides, dtype=leaf.dtype, device=device)
        if leaf.is_neg():
            static = torch._neg_view(static)
        if leaf.is_conj():
            static = static.conj()
        overwrite(static, leaf)
        if type(leaf) is torch.nn.Parameter:  # the function may ask
            return torch.nn.Parameter(static, leaf.requires_grad)
        return static.requires_grad_(leaf.requires_grad)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(1, size))
    return tuple(reversed(strides)) if shape else ()


def _like(output: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Makes copies of ``output`` that lie in memory as it does."""
    if output.is_conj():
        plain = _like(output.conj())
        return lambda: plain().conj()
    if output.stride() == torch.empty_like(output, device="meta").stride() or not output.numel():
        return output.clone
    strides = output.stride()
    if 0 not in strides and not overlaps_itself(output):

        def copy() -> torch.Tensor:
            return torch.empty_strided(
                output.shape, strides, dtype=output.dtype, device=output.device
            ).copy_(output)

        return copy
    span = 1 + sum((n - 1) * step for n, step in zip(output.shape, strides, strict=True))
    memory = output.as_strided((span,), (1,))
    return lambda: memory.clone().as_strided(output.shape, strides)


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements share memory; an expanded dimension alone does not count."""
    pairs = sorted(
        (step, size)
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        if size > 1 and step
    )
    reach = 0
    for step, size in pairs:
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


def _copy_one(static: torch.Tensor, leaf: torch.Tensor) -> None:
    # From pageable memory the driver has taken the data when the call returns, whether we wait
    # or not. From pinned memory it has not, so wait, as eager `.to(device)` does.
    with torch.no_grad():
        static.copy_(leaf, non_blocking=not leaf.is_cuda and not leaf.is_pinned())


def _copy_expanded(static: torch.Tensor, leaf: torch.Tensor) -> None:
    with torch.no_grad():
        overwrite(static, leaf)


def _nothing(*leaves: object) -> None:
    pass


def _counted(written: dict[int, torch.Tensor]) -> list[torch.Tensor]:
    """Those that count their versions: a replay writes behind torch's back, and who takes their
    values for constant has to notice."""
    return [tensor for tensor in written.values() if not tensor.is_inference()]


def copier(
    static_inputs: list[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> Callable[[Sequence[torch.Tensor]], None]:
    """A function that copies tensors like ``leaves`` into ``static_inputs``, one launch a dtype."""
    groups: dict[torch.dtype, list[int]] = {}
    alone: list[int] = []
    for n, (static, leaf) in enumerate(zip(static_inputs, leaves, strict=True)):
        if not leaf.numel():
            continue
        lazy = static.is_conj() or static.is_neg() or 0 in static.stride()
        if leaf.device == static.device and not leaf.requires_grad and not lazy:
            groups.setdefault(static.dtype, []).append(n)
        else:
            alone.append(n)
    if not groups and not alone:
        return _nothing
    if not alone and len(groups) == 1 and len(next(iter(groups.values()))) == len(static_inputs):
        return functools.partial(torch._foreach_copy_, static_inputs)

    picks = [
        ([static_inputs[n] for n in members], itemgetter(*members, members[0]))
        for members in groups.values()
    ]

    def copy_groups(sources: Sequence[torch.Tensor]) -> None:
        for targets, pick in picks:
            # itemgetter gives a tuple from two names on, hence the one too many
            torch._foreach_copy_(targets, pick(sources)[:-1])

    if not alone:
        return copy_groups
    ways = [
        (_copy_expanded if 0 in static_inputs[n].stride() else _copy_one, static_inputs[n], n)
        for n in alone
    ]
    dual = vars(forward_ad)

    def copy_all(sources: Sequence[torch.Tensor]) -> None:
        if dual["_current_level"] >= 0:
            raise NotImplementedError("a copy would leave out the tangent of a dual tensor")
        copy_groups(sources)
        for copy, static, n in ways:
            copy(static, sources[n])

    return copy_all
