"""The hot path, whole: from the arguments of a call to the result of a replay.

``Graphed.__call__`` calls the fast path of the entry that was used last. It has three parts, and a
call that a graph answers runs nothing else of gfxgraph:

1. **match**, generated for each key: are these the arguments, the tensors and the modes that the
   graph was captured for? It collects the tensors, and ends in ``return replay(...)``.
2. **replay**, a closure that :meth:`Replay.function` makes: it copies the tensors into the static
   inputs, launches the graph, and looks whether all that the graph reads is still in its place.
3. **build**, generated too: it makes the result out of copies of the static outputs.

Each of them gives :data:`NO_MATCH` where the graph is not the answer; nothing that the caller could
see has happened then, and ``Dispatcher.__call__`` goes on. Whatever can be done before a call is
done when the entry is made: a replay on an H200 leaves the host some microseconds for all of this.

For ``def f(x, scale): return {"y": x * scale}``, called as ``f(x, scale=2.0)``, the two generated
functions are these (a debugger steps into them; names that begin with an underscore are objects)::

    def match(fn, args, kwargs):
        try:
            if len(args) != 1: return NO_MATCH
            t1 = args[0]
            if tuple(kwargs) != _2: return NO_MATCH
            kwargs_0, = kwargs.values()
            c4 = kwargs_0
            if c4 is not _3 and (type(c4) is not _4 or c4 != _3): return NO_MATCH
            if not _5(t1): return NO_MATCH         # the tensors, in one call to C++
            if _6() is not _7: return NO_MATCH     # grad mode, and others
            leaves = (t1, )
        except (AttributeError, LookupError):
            return NO_MATCH
        return _12(fn, args, kwargs, leaves)       # replay

    def build():
        return {_1: _2(), }                        # _2 copies the static output
"""

from __future__ import annotations

import enum
import functools
import itertools
import linecache
import logging
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from operator import is_, itemgetter, methodcaller
from threading import get_ident
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.utils import _pytree

from ..device import Device
from ..errors import ArgumentError, one_line
from ..graph import raw
from ..graph.captured import CapturedGraph
from ..graph.device_state import DeviceState
from ..graph.host_state import default_generators
from ..graph.locks import LOCK, PATIENCE, TURNS
from ..graph.pool import GraphPool
from ..graph.segments import Segment, run
from ..interpose.codes import address
from ..interpose.interrupts import interrupt_in
from ..record.effects import overwrite, storage_key
from ..record.journal import Journal
from ..stats import ReplayCounter, log
from .caller import CallersArguments
from .held import Counter, OfCall, at, hold_numbers, store
from .signature import (
    TENSOR,
    TOO_DEEP,
    Array,
    Const,
    Given,
    LeftOut,
    Spec,
    Weak,
    bits,
    is_left_out,
    is_numpy_scalar,
    is_whole,
    more_than,
)
from .static_inputs import Part, shares_memory

__all__ = [
    "NO_MATCH",
    "Condition",
    "FastPath",
    "Replay",
    "builder",
    "copier",
    "copy_one",
    "matcher",
    "miss",
]

NO_MATCH: Any = object()
"""The answer of a fast path whose graph does not fit, or may not be used any more."""

Condition = tuple["Callable[..., object] | dict[str, Any]", str, object]
"""A function and what to call it with (``""``: nothing), or a dict and a key; then the very object
that must be found."""

FastPath = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""A function of the callable, its positional and its keyword arguments: the result or NO_MATCH."""

# From so many inputs on it pays to keep autograd out of the copies: entering its guard costs
# 0.5 us, and autograd looks at each tensor (measured on an H200 with torch 2.11).
_MANY = 16
# Nanoseconds. What is launched in less time leaves another thread no time to look at the guard.
_LONG_LAUNCH = 100_000
_NO_TANGENT = "a copy would leave out the tangent of a dual tensor"


def miss(*args: Any) -> Any:
    """The fast path of what cannot answer any call."""
    return NO_MATCH


# ---- replay


class Replay:
    """One way to replay a graph: how its inputs are filled, and how its result is built.

    Args:
        captured: the graph.
        static_inputs: what it reads the arguments from.
        copy: fills these from the tensors of a call.
        build: makes the result.
        stores: whether ``copy`` is given the arguments as well, since the result is stored there.
        counters: the places in the arguments where it advances a number.

    Attributes:
        copy: as given; a replay looks it up each time, so it may be replaced.
        build: as given; ``None``: the graph was released, and every replay gives NO_MATCH.
        on_new_path: answers a call whose data takes a path that was not captured.
        raised: by thread, the class of the error that has ended its last replay (emulated ones).
        written_inputs: the static inputs that the graph writes to, and their numbers.
    """

    def __init__(
        self,
        captured: CapturedGraph,
        static_inputs: list[torch.Tensor],
        copy: Callable[[Sequence[torch.Tensor]], None],
        build: Callable[[], Any],
        stores: bool = False,
        counters: Sequence[Counter] = (),
    ) -> None:
        self.copy, self._stores, self._counters = copy, stores, counters
        self.build: Callable[[], Any] | None = build
        self.on_new_path: Callable[..., Any] = miss
        self.raised: dict[int, str] = {}
        self.written_inputs = [
            (n, static)
            for n, static in enumerate(static_inputs)
            if storage_key(static) in captured.written
        ]
        inputs = set(map(storage_key, static_inputs))
        # Whether its arguments may share no memory, because the graph writes to one, say.
        self._keeps_apart = bool(self.written_inputs) or captured.asks_sharing
        # Other memory that they may not share.
        self._touched = captured.written.keys() - inputs
        if self._keeps_apart:
            self._touched |= captured.outside.keys()
        self._static_inputs = static_inputs

    def function(
        self, captured: CapturedGraph, graph_pool: GraphPool, counter: ReplayCounter
    ) -> Callable[..., Any]:
        """The function that replays, for tensors that fit.

        A closure, since it is the path of every call and looks up each of its names in one step.
        """
        make = self._of_one_graph if captured.root.step is None else self._of_tree
        replay, counters = make(captured, graph_pool, counter), self._counters
        if captured.locks:
            replay = _with_locks(captured.locks, replay)
        if not self._stores:
            return replay

        def replay_and_store(fn: Any, args: Any, kwargs: Any, leaves: Sequence[Any]) -> Any:
            if counters and not hold_numbers((args, kwargs), counters):
                return NO_MATCH
            return replay(fn, args, kwargs, OfCall.of(leaves, (args, kwargs)))

        return replay_and_store

    def overlaps(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Whether one of ``leaves`` shares memory that the graph writes, or writes to it."""
        return any(storage_key(leaf) in self._touched for leaf in leaves)

    def clashes(self, leaves: Sequence[torch.Tensor]) -> bool:
        """Whether ``leaves`` share memory with what the graph writes, or with one another."""
        return bool(
            (self._touched and self.overlaps(leaves))
            or (self._keeps_apart and shares_memory(leaves))
        )

    def forget(self) -> None:
        """Let go of all tensors: from now on every replay gives NO_MATCH."""
        self.build, self.copy, self.on_new_path = None, nothing, miss

    def _of_one_graph(
        self, captured: CapturedGraph, graph_pool: GraphPool, counter: ReplayCounter
    ) -> Callable[..., Any]:
        stream_id, is_capturing = graph_pool.device.stream_id, graph_pool.device.is_capturing
        index, guard, write_back = graph_pool.index, captured.guard, self.written_inputs
        launch: Callable[[], object] = captured.root.launch or nothing
        # What was sent to other ranks cannot be undone.
        if graph_pool.device.kind == "emulated" and not captured.collectives:
            launch = _undone_where_it_raises(captured, graph_pool, launch, self.raised)
        memory_holds, written = guard.memory_holds, _counted(captured.written)
        # A replay that changes nothing but its own outputs can be thrown away, so it may be
        # launched before it is known that every weight is still in its place.
        look_first = bool(captured.written) or captured.draws_random_numbers or self._keeps_apart
        passes_on = bool(written or write_back)
        launcher = None if look_first else _launcher(captured, graph_pool, launch)

        def replay(fn: Any, args: Any, kwargs: Any, leaves: Sequence[torch.Tensor]) -> Any:
            for is_ours in TURNS:
                begun = None
                try:
                    # With a limit: the thread that captures may be waiting for this one.
                    is_ours = is_ours or LOCK.acquire(True, PATIENCE)
                    if not is_ours or graph_pool.is_replaying:  # this call interrupts a replay
                        return NO_MATCH
                    begun = graph_pool.is_replaying = True
                    build = self.build
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
                        if self.clashes(leaves):
                            return NO_MATCH
                    # Where the device is busy, the host is ahead of it, and may have to wait.
                    launch_now = launcher(stream) if launcher else None
                    try:
                        self.copy(leaves)
                    except NotImplementedError:  # one of them is a dual tensor of forward-mode AD
                        return NO_MATCH
                    # Asked while the device copies: a graph may not be launched onto memory that is
                    # gone. That a weight was replaced by another may be found out after the launch.
                    if memory_holds and not memory_holds():
                        return NO_MATCH
                    if launch_now is not None:
                        are_same = launch_now()
                    elif launch():  # raised an error: eager execution does, or catches it
                        return NO_MATCH
                    if passes_on:
                        _pass_on(written, write_back, leaves)
                    # Asked while the device replays.
                    if not look_first:
                        holds = guard.rest_holds if launch_now and are_same else guard.places_hold
                        if not holds() and guard.changes():
                            return NO_MATCH
                    counter.replays += 1
                    return build()
                finally:
                    if begun:
                        graph_pool.is_replaying = False
                    if is_ours:
                        LOCK.release()

        return replay

    def _of_tree(
        self, captured: CapturedGraph, graph_pool: GraphPool, counter: ReplayCounter
    ) -> Callable[..., Any]:
        guard, root, write_back = captured.guard, captured.root, self.written_inputs
        statics, reached = self._static_inputs, captured.reached
        device, index = graph_pool.device, graph_pool.index
        written, calls_user = _counted(captured.written), captured.calls_user
        generators: tuple[torch.Generator, ...] = ()
        if captured.saves_generator:
            generators = (*default_generators(device, index), *captured.generators)
        state = DeviceState(captured.saved, generators)

        def disturbed() -> list[str]:
            return [] if guard.holds() else guard.changes()

        def replay(fn: Any, args: Any, kwargs: Any, leaves: Sequence[torch.Tensor]) -> Any:
            for is_ours in TURNS:
                begun = None
                try:
                    is_ours = is_ours or LOCK.acquire(True, PATIENCE)
                    if not is_ours or graph_pool.is_replaying:
                        return NO_MATCH
                    begun = graph_pool.is_replaying = True
                    if self.build is None or device.is_capturing():
                        return NO_MATCH
                    stream = device.stream_id(index)
                    if stream != graph_pool.last_stream:
                        graph_pool.sync_to(stream)
                    if not guard.places_hold() and guard.changes():
                        return NO_MATCH
                    if self.clashes(leaves):
                        return NO_MATCH
                    with torch.no_grad():
                        before = state.now()
                        try:
                            self.copy(leaves)
                        except NotImplementedError:
                            return NO_MATCH
                        if guard.memory_holds and not guard.memory_holds():
                            return NO_MATCH
                        if calls_user:  # what that does is done, whatever path the data takes
                            caller = CallersArguments(
                                statics, leaves, (args, kwargs), self.copy, reached
                            )
                            journal = Journal(generators, disturbed=disturbed, caller=caller)
                            with journal.playing():
                                last = _run_tree(root)
                        else:
                            last = _run_tree(root)
                        if (
                            last is not None
                            and last.build is not None
                            and not (calls_user and caller.fits and journal.keep(last.returned))
                        ):
                            _pass_on(written, write_back, leaves)
                            counter.replays += 1
                            return last.build()
                        state.put_back(*before)
                        if calls_user:
                            caller.put_back()
                finally:
                    if begun:
                        graph_pool.is_replaying = False
                    if is_ours:
                        LOCK.release()
                break
            with journal.resumed() if calls_user else nullcontext():
                return self.on_new_path(
                    fn, args, kwargs, leaves, journal.spoilt if calls_user else ""
                )

        return replay


def _launcher(
    captured: CapturedGraph, graph_pool: GraphPool, by_torch: Callable[[], object]
) -> Callable[[int], Callable[[], bool] | None] | None:
    """How a graph is launched on a stream while a thread of ours compares the words of its guard.

    The function of a stream gives one that launches, and says whether the words are the same;
    ``None``: the launch is left to torch. So it is on all streams where another thread does not
    pay.
    """
    words, graph = captured.guard.words, captured.root.graph
    if words is None or graph is None or captured.launch_ns < _LONG_LAUNCH or captured.collectives:
        return None
    found = graph_pool.device.launcher(graph_pool.index, graph)
    if found is None:
        return None
    is_idle, launch, executable = found
    beside = words.beside

    def launch_now(stream: int) -> bool:
        has_failed, are_same = beside(launch, executable, stream)
        if has_failed:
            by_torch()  # which raises torch's error
        return are_same and not has_failed

    return lambda stream: functools.partial(launch_now, stream) if is_idle(stream) else None


def _with_locks(locks: Sequence[Any], replay: Callable[..., Any]) -> Callable[..., Any]:
    """A replay that holds the locks which the function takes.

    It waits for none: while another thread holds one, the call runs eagerly, and waits where the
    function does. A replay that held one lock and waited for another could deadlock.
    """

    def replay_with_locks(fn: Any, args: Any, kwargs: Any, leaves: Any) -> Any:
        for is_ours in TURNS:
            taken: list[Any] = []
            try:
                is_ours = is_ours or LOCK.acquire(True, PATIENCE)
                if is_ours:
                    taken.extend(filter(_take, locks))  # in one go: no interrupt comes in between
                return replay(fn, args, kwargs, leaves) if len(taken) == len(locks) else NO_MATCH
            finally:
                try:
                    for lock in reversed(taken):
                        lock.release()
                finally:
                    if is_ours:
                        LOCK.release()

    return replay_with_locks


_take = methodcaller("acquire", False)


def _pass_on(
    written: list[torch.Tensor],
    write_back: list[tuple[int, torch.Tensor]],
    leaves: Sequence[torch.Tensor],
) -> None:
    """Count what a graph has written, and copy what it wrote to inputs to those of the call."""
    if written:
        increment_version(written)
    if write_back:
        with torch.no_grad():
            for n, static in write_back:
                leaves[n].copy_(static)


def _counted(written: dict[int, torch.Tensor]) -> list[torch.Tensor]:
    """Those that count their versions: a replay writes behind torch's back, and who takes their
    values for constant has to notice."""
    return [tensor for tensor in written.values() if not tensor.is_inference()]


def _run_tree(root: Segment) -> Segment | None:
    """Run a tree; ``None``: the data takes another way, or what the host does raises an error.

    The call then runs in eager execution, which raises the error for the caller, unless the
    function catches it.
    """
    try:
        return run(root)
    except Exception as error:
        if interrupt_in(error):
            raise
        log(logging.DEBUG, "replay_raised", because=one_line(error))
        return None


def _undone_where_it_raises(
    captured: CapturedGraph,
    graph_pool: GraphPool,
    launch: Callable[[], object],
    raised: dict[int, str],
) -> Callable[[], bool]:
    """A launch on the emulated device, whose operators may raise by the values of tensors.

    On a GPU a kernel cannot raise: an operator that looks at what came out ends the graph. What
    is made here tells whether one has raised, and then nothing is left of the launch. ``raised``
    gets the error, by thread.
    """
    generators = list(captured.generators)
    if captured.draws_random_numbers:
        generators.insert(0, graph_pool.device.default_generator(graph_pool.index))
    state = DeviceState(captured.regions, generators)

    def launch_or_undo() -> bool:
        with torch.no_grad():
            before = state.now()
        try:
            launch()
        except Exception as error:
            if interrupt_in(error):
                raise
            raised[get_ident()] = type(error).__name__
            log(logging.DEBUG, "replay_raised", because=one_line(error))
            with torch.no_grad():
                state.put_back(*before)
            return True
        raised.pop(get_ident(), None)
        return False

    return launch_or_undo


# ---- copying into static inputs


def copy_one(static: torch.Tensor, leaf: torch.Tensor) -> None:
    """Copy a tensor of a call into its static input, which may be expanded."""
    (_copy_expanded if 0 in static.stride() else _copy_dense)(static, leaf)


def _copy_dense(static: torch.Tensor, leaf: torch.Tensor) -> None:
    # From pageable memory the driver has taken the data when the call returns, whether we wait
    # or not. From pinned memory it has not, so wait, as eager `.to(device)` does.
    with torch.no_grad():
        static.copy_(leaf, non_blocking=not leaf.is_cuda and not leaf.is_pinned())


def _copy_expanded(static: torch.Tensor, leaf: torch.Tensor) -> None:
    with torch.no_grad():
        overwrite(static, leaf)


def nothing(*leaves: object) -> None:
    """Copy nothing."""


def copier(
    device: Device, static_inputs: list[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> Callable[[Sequence[torch.Tensor]], None]:
    """A function that copies tensors like ``leaves`` into ``static_inputs``.

    That is one launch where the device has such a copy, and else one for each dtype.

    Later tensors may lie in memory in another way, if the key of a call does not say it. Nobody
    asks for the versions of static inputs: no caller gets a view of one.
    """
    dense: list[int] = []
    others: list[int] = []
    alone: list[int] = []
    for n, (static, leaf) in enumerate(zip(static_inputs, leaves, strict=True)):
        if not leaf.numel():
            continue
        # A static input of a bucket is not conjugated where an argument is.
        lazy = any(t.is_conj() or t.is_neg() for t in (static, leaf)) or 0 in static.stride()
        if leaf.device != static.device or leaf.requires_grad or lazy:
            alone.append(n)
        else:
            (dense if static.is_contiguous() else others).append(n)
    copy_dense = _copier_past_torch(device, static_inputs, dense)
    if copy_dense is None:
        others, copy_dense = sorted(dense + others), nothing
    copy_others = _copier_by_dtype(static_inputs, others)
    if not alone and (copy_dense is nothing or copy_others is nothing):
        return copy_dense if copy_others is nothing else copy_others
    ways = [
        (_copy_expanded if 0 in static_inputs[n].stride() else _copy_dense, static_inputs[n], n)
        for n in alone
    ]
    dual = vars(forward_ad)

    def copy_all(sources: Sequence[torch.Tensor]) -> None:
        if dual["_current_level"] >= 0:
            raise NotImplementedError(_NO_TANGENT)
        copy_dense(sources)
        copy_others(sources)
        for copy, static, n in ways:
            copy(static, sources[n])

    return copy_all


def _copier_by_dtype(
    static_inputs: list[torch.Tensor], numbers: list[int]
) -> Callable[[Sequence[torch.Tensor]], None]:
    """Copies those with these numbers, in one launch of torch for each dtype."""
    groups: dict[torch.dtype, list[int]] = {}
    for n in numbers:
        groups.setdefault(static_inputs[n].dtype, []).append(n)
    if not groups:
        return nothing
    around = _below_autograd if len(numbers) >= _MANY else lambda copy: copy
    if len(groups) == 1 and len(numbers) == len(static_inputs):
        return around(functools.partial(torch._foreach_copy_, static_inputs))
    picks = [
        ([static_inputs[n] for n in members], itemgetter(*members, members[0]))
        for members in groups.values()
    ]

    def copy(sources: Sequence[torch.Tensor]) -> None:
        for targets, pick in picks:
            # itemgetter gives a tuple from two names on, hence the one too many
            torch._foreach_copy_(targets, pick(sources)[:-1])

    return around(copy)


def _below_autograd(
    copy: Callable[[Sequence[torch.Tensor]], object],
) -> Callable[[Sequence[torch.Tensor]], None]:
    """A copy in which autograd takes no part."""
    below = getattr(torch._C, "_AutoDispatchBelowAutograd", nullcontext)  # private to torch
    dual = vars(forward_ad)

    def copy_below_autograd(sources: Sequence[torch.Tensor]) -> None:
        if dual["_current_level"] >= 0:
            raise NotImplementedError(_NO_TANGENT)
        scope = below()  # entered as long as it lives
        try:
            copy(sources)
        finally:
            del scope

    return copy_below_autograd


def _copier_past_torch(
    device: Device, static_inputs: list[torch.Tensor], numbers: list[int]
) -> Callable[[Sequence[torch.Tensor]], None] | None:
    """Copies those with these numbers, which are contiguous, without torch's operators.

    These take longer. ``None``: the device has no such copy, or there is nothing to copy.
    """
    places = [(static_inputs[n].data_ptr(), static_inputs[n].nbytes) for n in numbers]
    if not places:
        return None
    index, stream_id = device.index(static_inputs[numbers[0]].device), device.stream_id
    by_torch = _copier_by_dtype(static_inputs, numbers)
    dual = vars(forward_ad)
    if len(places) == 1:
        ((to, size),), (number,) = places, numbers
        copy_bytes = device.copy_bytes(index, size)
        if copy_bytes is None:
            return None

        def copy_of_one(sources: Sequence[torch.Tensor]) -> None:
            leaf = sources[number]
            if dual["_current_level"] >= 0:
                raise NotImplementedError(_NO_TANGENT)
            if not leaf.is_contiguous() or copy_bytes(to, leaf.data_ptr(), stream_id(index)):
                by_torch(sources)

        return copy_of_one
    start = device.copy_together(index, places)
    if start is None:
        return None
    pick, is_dense, begin = itemgetter(*numbers), torch.Tensor.is_contiguous, torch.Tensor.data_ptr

    def copy(sources: Sequence[torch.Tensor]) -> None:
        given = pick(sources)
        if dual["_current_level"] >= 0:
            raise NotImplementedError(_NO_TANGENT)
        if not all(map(is_dense, given)) or start(stream_id(index), *map(begin, given)):
            by_torch(sources)

    return copy


# ---- match and build


def matcher(
    spec: Spec,
    check: Callable[..., bool] | None,
    conditions: Sequence[Condition],
    same: Sequence[int],
    outside: Collection[int],
    are_bare: bool,
    then: Callable[[Any, tuple[Any, ...], dict[str, Any], Sequence[torch.Tensor]], Any],
) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
    """A function of ``(fn, args, kwargs)``: :data:`NO_MATCH`, or what ``then`` makes of a call.

    Args:
        spec: of ``(args, kwargs)``.
        check: says of all tensors whether they fit, see
            :func:`~gfxgraph.graph.tensor_check.tensor_check`; ``None`` if there
            are none.
        conditions: what else must hold.
        same: for each tensor, the number of the first one that is the same object. ``check`` is
            given each once, and sees by itself that these are different objects.
        outside: numbers of objects that are no arguments of such calls.
        are_bare: whether the tensors have no attributes of their own.
        then: called with all that and the tensors when they fit.
    """
    source = _Source()
    found: list[str] = []
    args, kwargs = spec[3]
    once = len(set(same)) == len(same)
    if once and all(child == TENSOR for child in args[3]) and not kwargs[3]:
        source.refuse_if(f"len(args) != {len(args[3])} or kwargs")
        result, star = "args", "*args"
    else:
        source.match("args", args, found)
        source.match("kwargs", kwargs, found)
        source.match_objects(outside)
        result = "(" + "".join(f"{name}, " for name in found) + ")"
        star = ", ".join(found[n] for n in dict.fromkeys(same))
        for name, first in zip(found, same, strict=True):
            if found[first] is not name:
                source.refuse_if(f"{name} is not {found[first]}")
    if check is not None:
        source.refuse_if(f"not {source.name(check)}({star})")
    if are_bare:
        source.refuse_if(f"any(map({source.name(vars)}, {result}))")
    for asked, name, expected in conditions:
        given = repr(name) if name else ""
        value = f"[{given}]" if isinstance(asked, dict) else f"({given})"
        source.refuse_if(f"{source.name(asked)}{value} is not {source.name(expected)}")
    source.line(f"leaves = {result}")
    return source.compile(
        "match(fn, args, kwargs)", f"{source.name(then)}(fn, args, kwargs, leaves)"
    )


def builder(spec: Spec, leaves: Sequence[Any], given: Sequence[Any] = ()) -> Callable[[], Any]:
    """A function without arguments that builds the tree of ``spec``.

    Args:
        spec: what to build.
        leaves: a tensor stands for itself; a function is called to make the tensor, and
            :class:`~gfxgraph.call.static_inputs.Part` is a view of memory that others share.
        given: where the tensors of the call are found while the function runs, and its arguments
            behind these.
    """
    if spec == TENSOR and not isinstance(leaves[0], torch.Tensor):
        return leaves[0]  # type: ignore[no-any-return]
    source = _Source(_has_again(spec), given)
    named: list[str] = []
    first: dict[int, int] = {}
    memory: dict[int, str] = {}
    for n, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            named.append(source.name(leaf))
        elif isinstance(leaf, Part) and first.setdefault(id(leaf), n) == n:
            made = memory.get(id(leaf.memory))
            if made is None:
                memory[id(leaf.memory)] = f"m{n}"
                made = f"(m{n} := {source.name(leaf.copy)}())"
            view = made
            if not leaf.is_memory:
                view += f".as_strided({leaf.shape}, {leaf.strides}, {leaf.offset})"
                view += ".conj()" * leaf.is_conj + ".detach()" * (not leaf.is_view)
            named.append(
                f"(t{n} := {f'{source.name(torch._neg_view)}({view})' if leaf.is_neg else view})"
            )
        elif first.setdefault(id(leaf), n) != n:  # one tensor that comes twice
            named.append(f"t{first[id(leaf)]}")
        else:
            named.append(f"(t{n} := {source.name(leaf)}())")
    return source.compile("build()", source.build(spec, iter(named)))


def _has_again(spec: Spec) -> bool:
    """Whether one object comes twice in the tree of ``spec``."""
    if spec[0] in ("tensor", "const"):
        return False
    return spec[0] == "again" or any(map(_has_again, spec[3]))


_numbers = itertools.count()


@functools.lru_cache(maxsize=1024)
def _code(text: str) -> types.CodeType:
    """Calls of one structure and other shapes have the same source."""
    file = f"<gfxgraph>.{next(_numbers)}"
    code = compile(text, file, "exec")
    # A debugger steps into it and a traceback shows its lines, as long as it lives.
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    weakref.finalize(code, linecache.cache.pop, file, None).atexit = False
    return code


class _Source:
    """Source code of one function, and the objects that it names."""

    def __init__(self, is_shared: bool = False, given: Sequence[Any] = ()) -> None:
        self.is_shared, self._built, self._given = is_shared, 0, given
        self._lines: list[str] = []
        self._names: dict[str, Any] = {"__name__": __name__, "NO_MATCH": NO_MATCH}
        # Variables: of containers, in the order in which they end, and of those that may change.
        self._ended: list[str] = []
        self._mutable: list[str] = []

    def line(self, text: str) -> None:
        self._lines.append(text)

    def refuse_if(self, condition: str) -> None:
        self.line(f"if {condition}: return NO_MATCH")

    def name(self, value: Any) -> str:
        name = f"_{len(self._names)}"
        self._names[name] = value
        return name

    def compile(self, signature: str, result: str) -> Callable[..., Any]:
        """The function that runs the lines and returns ``result``."""
        lines = [f"def {signature}:"]
        if self._lines:
            # An argument that lacks what it had (an attribute, a key) does not fit.
            lines += ["    try:", *(f"        {line}" for line in self._lines)]
            lines += ["    except (AttributeError, LookupError):", "        return NO_MATCH"]
        text = "\n".join([*lines, f"    return {result}"])
        try:
            code = _code(text)
        except (SyntaxError, MemoryError, RecursionError) as error:  # of Python's parser
            raise ArgumentError(TOO_DEEP) from error
        exec(code, self._names)
        # Taken out of its own globals: a function that holds itself waits for the garbage
        # collector, and with it the memory of every tensor that it names.
        return self._names.pop(signature.partition("(")[0])  # type: ignore[no-any-return]

    def match(self, expression: str, spec: Spec, found: list[str]) -> None:
        kind = spec[0]
        if kind == "tensor":
            found.append(expression)
            return
        if kind == "const":
            self._match_const(expression, spec[1])
            return
        if kind == "again":
            self.refuse_if(f"{expression} is not {self._ended[spec[1]]}")
            return
        cls, here = spec[1], expression
        # Arguments come in a tuple and a dict of their own.
        is_ours = expression in ("args", "kwargs")
        if not is_ours:
            here = f"n{len(self._lines)}"
            self.line(f"{here} = {expression}")
            self.refuse_if(f"type({here}) is not {self.name(cls)}")
        parts: list[str] = []
        children: tuple[Spec, ...] = ()
        plain = _plain_values(spec)
        if plain is None:
            parts, children = self._parts_of(here, spec, is_ours), spec[3]
        else:  # one question, however long it is
            known = self.name((cls(plain), tuple(map(type, plain))))
            self.refuse_if(f"not {self.name(_holds)}({here}, *{known})")
        for part, child in zip(parts, children, strict=True):
            if child == TENSOR:
                leaf = f"t{len(self._lines)}"
                self.line(f"{leaf} = {part}")
                found.append(leaf)
            else:
                self.match(part, child, found)
        self._ended.append(here)
        if not is_ours and not issubclass(cls, (tuple, slice, range)):
            self._mutable.append(here)

    def _parts_of(self, here: str, spec: Spec, is_ours: bool) -> list[str]:
        """Expressions for what a container holds, after a look whether it has such parts."""
        kind, cls, keys, children, *more = spec
        if kind == "registered":
            flatten_fn = self.name(_pytree.SUPPORTED_NODES[cls].flatten_fn)
            self.line(f"{here}_parts, {here}_context = {flatten_fn}({here})")
            ended = len(self._ended)
            self.match(f"{here}_context", keys, [])  # it holds no tensors
            del self._ended[ended:]
            if cls.__dictoffset__:
                known, asked = self.name(more[0]), self.name(more_than)
                self.refuse_if(f"{asked}({here}, {here}_parts) != {known}")
            here = f"{here}_parts"
        if kind in ("sequence", "namedtuple", "structseq", "registered"):
            self.refuse_if(f"len({here}) != {len(children)}")
            if kind == "namedtuple" and cls.__dictoffset__:
                self.refuse_if(f"{here}.__dict__")
            return [f"{here}[{n}]" for n in range(len(children))]
        if kind in ("dict", "mapping"):
            if cls is OrderedDict:
                self.refuse_if(f"{here}.__dict__")
            key_types = more[0]
            if kind == "mapping":
                key_types, attributes = more[0]
                self._match_attributes(here, attributes)
                self.line(f"{here}_data = {here}.data")
                here = f"{here}_data"
                self.refuse_if(f"type({here}) is not {self.name(dict)}")
            return self._values_of(here, keys, () if is_ours else key_types)
        if kind == "fields":
            self.refuse_if(f"tuple({here}) != {self.name(keys)}")
            self.refuse_if(f"len({here}.__dict__) != {more[0]}")
            return [f"{here}[{self.name(key)}]" for key in keys]
        if kind in ("dataclass", "slice"):
            if kind == "slice" or not cls.__dictoffset__:
                return [f"{here}.{key}" for key in keys]
            own = self._own_dict(here, f"{here}.__dict__")
            self.refuse_if(f"len({own}) != {more[0]}")
            # Half as long as to ask the object. What the class gets meanwhile the guard notices.
            return [f"{here}.{key}" if raw.is_slot(cls, key) else f"{own}[{key!r}]" for key in keys]
        if kind == "object":
            own, names, keys = self._attributes(here, cls), keys[1], keys[1]
        elif kind == "read":  # only what is read of it matters
            was, names = more[0]
            own = here if was == "dict" else self._attributes(here, cls)
        else:  # a namespace
            own, names = f"{here}.__dict__", keys
        self.refuse_if(f"tuple({own}) != {self.name(names)}")
        return [f"{own}[{self.name(key)}]" for key in keys]

    def _values_of(self, here: str, keys: Any, key_types: Any) -> list[str]:
        """Variables for the values of a dict with these keys."""
        self.refuse_if(f"tuple({here}) != {self.name(keys)}" if keys else here)
        if key_types:  # 1, True and an enum may be equal as keys
            self.refuse_if(f"tuple(map(type, {here})) != {self.name(key_types)}")
        parts = [f"{here}_{n}" for n in range(len(keys))]
        if parts:
            self.line(f"{', '.join(parts)}, = {here}.values()")
        return parts

    def _match_attributes(self, here: str, attributes: Any) -> None:
        """A mapping has these attributes beside its data."""
        self.refuse_if(f"len({here}.__dict__) != {len(attributes) + 1}")
        for name, const in attributes:
            value = f"{here}.__dict__[{name!r}]"
            if type(const.value) is LeftOut:
                self.refuse_if(f"not {self.name(is_left_out)}({value})")
            else:
                self._match_const(value, const)

    def match_objects(self, outside: Collection[int]) -> None:
        """Require that distinct containers are distinct, and that none of them is ``outside``."""
        if not self._mutable or (len(self._mutable) == 1 and not outside):
            return
        listed = ", ".join(f"{self.name(address)}({name})" for name in self._mutable)
        self.line(f"numbers = {{{listed}}}")
        if len(self._mutable) > 1:
            self.refuse_if(f"len(numbers) != {len(self._mutable)}")
        if outside:
            self.refuse_if(f"not numbers.isdisjoint({self.name(outside)})")

    def _attributes(self, here: str, cls: type) -> str:
        """A variable for the attributes of an object."""
        return self._own_dict(here, f"{self.name(raw.getter_of_attributes_of(cls))}({here})")

    def _own_dict(self, here: str, attributes: str) -> str:
        """A variable for the dict of these; one of a class of its own may answer anything."""
        self.line(f"{here}_own = {attributes}")
        self.refuse_if(f"type({here}_own) is not {self.name(dict)}")
        return f"{here}_own"

    def _match_const(self, expression: str, const: Const) -> None:
        here = f"c{len(self._lines)}"
        known = const.value
        value = self.name(known)
        cls = type(known)
        self.line(f"{here} = {expression}")
        if isinstance(const, Weak):
            self.refuse_if(f"{here} is not {value}()")
            return
        if not const.is_value or known is None or cls is bool or isinstance(known, enum.Enum):
            self.refuse_if(f"{here} is not {value}")
            return
        differs = f"{here} != {value}"
        if is_numpy_scalar(known):
            number: Any = known
            what = self.name((number.dtype.str, number.tobytes()))
            differs = f"({here}.dtype.str, {here}.tobytes()) != {what}"
        elif isinstance(known, (float, complex)) and (known != known or not is_whole(known)):
            differs = f"{self.name(bits)}({here}) != {self.name(bits(known))}"
        self.refuse_if(
            f"{here} is not {value} and (type({here}) is not {self.name(cls)} or {differs})"
        )

    def build(self, spec: Spec, leaves: Any) -> str:
        """An expression that makes the tree of ``spec``."""
        if spec[0] == "tensor":
            return str(next(leaves))
        if spec[0] == "const":
            const: Any = spec[1]
            if isinstance(const, Array):
                return f"{self.name(const.copy)}()"
            if isinstance(const.value, Given):
                where, of_call = const.value.where, self.name(self._given)
                if type(where) is int:
                    return f"{of_call}[{where}]"
                return f"{self.name(at)}({of_call}[-1], {self.name(where)})"
            return self.name(const.value)
        if spec[0] == "again":
            return f"o{spec[1]}"
        if spec[0] == "stores":
            return self._build_and_store(spec, leaves)
        text = self._build(spec, leaves)
        self._built += 1
        return f"(o{self._built - 1} := {text})" if self.is_shared else text

    def _build_and_store(self, spec: Spec, leaves: Any) -> str:
        """An expression that makes a result, and stores what a call leaves in its arguments."""
        _, _, changes, children = spec
        result, *parts = [self.build(child, leaves) for child in children]
        count = sum(len(change[-1]) for change in changes)
        values = "".join(f"{part}, " for part in parts[:count])
        effects = "".join(f", {part}" for part in parts[count:])  # of a lifted function
        arguments, known = f"{self.name(self._given)}[-1]", self.name(changes)
        return f"{self.name(store)}({arguments}, {known}, {result}, ({values}){effects})"

    def _build(self, spec: Spec, leaves: Any) -> str:
        kind = spec[0]
        _, cls, keys, children, *more = spec
        plain = _plain_values(spec)
        if plain is not None:
            name = self.name(plain)
            return f"[*{name}]" if cls is list else name
        parts = [self.build(child, leaves) for child in children]
        listed = "".join(f"{part}, " for part in parts)
        if kind == "sequence":
            return f"[{listed}]" if cls is list else f"({listed})"
        make = self.name(cls)
        if kind == "namedtuple":
            return f"{make}._make(({listed}))"
        if kind == "structseq":
            return f"{make}(({listed}))"
        if kind == "slice":
            return f"{make}({listed})"
        if kind == "registered":
            unflatten = self.name(_pytree.SUPPORTED_NODES[cls].unflatten_fn)
            count, is_shared = self._built, self.is_shared
            self.is_shared = False  # nothing in there is what comes again
            context = self.build(keys, leaves)
            self._built, self.is_shared = count, is_shared
            return f"{unflatten}([{listed}], {context})"
        if kind == "object":
            how = self.name((cls, *keys, *more[0]))
            return f"{self.name(_make_plain_object)}({how}, ({listed}))"
        if kind in ("dataclass", "namespace"):
            return f"{self.name(_make_object)}({make}, {self.name(keys)}, ({listed}))"
        pairs = "".join(
            f"{self.name(key)}: {part}, " for key, part in zip(keys, parts, strict=True)
        )
        if kind == "fields":
            return f"{make}(**{{{pairs}}})"
        if kind == "mapping":
            names = ("data", *(name for name, _ in more[0][1]))
            values = "".join(f"{self.name(const.value)}, " for _, const in more[0][1])
            made = f"{{{pairs}}}, {values}"
            return f"{self.name(_make_object)}({make}, {self.name(names)}, ({made}))"
        return f"{{{pairs}}}" if cls is dict else f"{make}({{{pairs}}})"


def _plain_values(spec: Spec) -> tuple[Any, ...] | None:
    """What a long list or tuple holds, if that is nothing but plain values."""
    if spec[0] != "sequence" or len(spec[3]) < _LONG:
        return None
    values = []
    for child in spec[3]:
        if child[0] != "const" or type(child[1]) is not Const:
            return None
        value: Any = child[1].value
        kind = type(value)
        # Floats that are equal to others, or not to themselves, are asked for one by one.
        if kind not in _PLAIN and not (kind is float and value == value and is_whole(value)):
            return None
        values.append(value)
    return tuple(values)


_LONG = 32
_PLAIN = frozenset((int, str, bytes, bool, type(None)))


def _holds(items: Any, values: Any, types: tuple[type, ...]) -> bool:
    """Whether a list or tuple holds these values, of these types; runs no code of the program."""
    if len(items) != len(types) or not all(map(is_, map(type, items), types)):
        return False
    return bool(items == values)


def _make_plain_object(how: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
    """An object of any class without ``__init__``: its items, its attributes, its slots."""
    cls, keys, names, in_slots, base, size = how
    made: Any = base.__new__(cls)
    items, rest = values[: len(keys)], values[len(keys) :]
    if base is OrderedDict or base is dict:
        for key, value in zip(keys, items, strict=True):
            base.__setitem__(made, key, value)
    elif base is deque:
        deque.__init__(made, items, size)
    elif base is list:
        list.extend(made, items)
    elif base is set:
        set.update(made, items)
    own = raw.attributes(made)
    if own is not None:
        own.update(zip(names, rest, strict=False))
    found = raw.slots(made) if in_slots else {}
    for name, value in zip(in_slots, rest[len(names) :], strict=True):
        found[name].__set__(made, value)
    return made


def _make_object(cls: type, names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """Made without ``__init__``, which may have fields left out or checks that read the data."""
    made: Any = cls.__new__(cls) if cls is types.SimpleNamespace else object.__new__(cls)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made
