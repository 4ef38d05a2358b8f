"""The dispatcher: how a call of a graphed callable is answered.

Most calls never get here: ``Graphed.__call__`` asks the fast path of the entry that was used last
(see replay.py). :meth:`Dispatcher.__call__` answers the rest, and is the place to begin reading.

- entries.py keeps the entries, and knows which one to try first.
- key.py and layout.py say which calls can share a graph.
- first_call.py runs a call for its caller and looks at what it does; builder.py captures after it.
- A strategy says how calls get to graphs: each kind of call to its own (:class:`Exact`), or padded
  to buckets (buckets/padded.py).
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from ..errors import ArgumentError, CaptureError, VerificationError, one_line
from ..forking import new_lock
from ..graph.guard import Guard
from ..graph.lift import EffectsError, Lift, Lifting
from ..graph.locks import LOCK, PATIENCE, is_inside_gfxgraph, is_lock_ours, when_free
from ..graph.pool import GraphPool
from ..graph.torch_settings import around_autograd
from ..record import collectives
from ..record.explain import some
from ..record.journal import interrupting
from ..stats import log, tally
from . import validation
from .builder import Builder
from .entries import Entries
from .entry import Entry, Refusal
from .first_call import FirstCalls
from .key import Call, describe_key, no_graph_now, without_sizes
from .layout import LayoutKey
from .lifted import fast_path_of, lifted_call, state_on_host
from .narrow import ObjectArguments
from .options import Options
from .replay import NO_MATCH, FastPath, builder, miss
from .request import Request, Wanted
from .signature import Spec
from .stats import GraphedStats
from .suitable import inference
from .thrash import WORTH_IT, Thrash
from .together import Together, begin
from .writers import Writers

__all__ = ["Dispatcher", "Exact", "owners", "reset_with"]

# So often more is found that calls write, or read, with hardly a replay in between.
_MAX_LIFTS = 6
# Paths of one key, before calls that would need one more run eagerly.
_MAX_PATHS = 64
# So many paths without as many replays, keyed by more than yes and no: the data hardly ever takes
# the same one twice.
_PATHS_ON_TRIAL = 8

# What a rank says that it would do with a call.
_NEW, _EAGER, _REPLAYS = "has no graph", "runs eagerly", "replays graph "

_INTERRUPTS = (
    "the call came in the middle of a replay in the same memory: from a finalizer, a signal "
    "handler or a no_graph function"
)


class Dispatcher:
    """Answers the calls of one callable, or of one method of one instance.

    Args:
        name: what reasons and reports call it.
        options: see there.
        strategy: how calls get to graphs.
        method: the graphed method that it belongs to.
        graph_pools: device index -> the pool to capture into; given to several dispatchers, their
            graphs share memory.

    Attributes:
        fast_path: tried first, by whoever calls this.
        owner: the instance that it belongs to.
    """

    fast_path: FastPath

    def __init__(
        self,
        name: str,
        options: Options,
        strategy: Exact,
        method: Any = None,
        graph_pools: dict[int, GraphPool] | None = None,
        outer: Dispatcher | None = None,
    ) -> None:
        self.name = name
        self.method = method
        self.owner: weakref.ref[Any] | None = None
        self.options = options
        self.strategy = strategy
        limit, is_padded = options.max_graphs, strategy.layout.is_padded
        is_lifted = outer is not None
        new_thrash = functools.partial(Thrash, strategy.kinds, limit, is_padded, is_lifted)
        self.entries = Entries(name, limit, new_thrash, self._order_changed)
        self._writers = Writers(self.entries)
        pools = {} if graph_pools is None else graph_pools
        self.builder = Builder(self.entries, options, strategy, pools)
        self.first_calls = FirstCalls(self.entries, self._writers, options.fallback == "raise")
        #: Answers the calls instead, if they write to places in Python.
        self._lifted: Dispatcher | None = None
        self._lift = Lift(())
        self._lifts = self._replays_before = 0
        self._outer = None if outer is None else weakref.ref(outer)
        #: Set once graphs hold collectives: what the ranks decide together. It outlives a reset(),
        #: of which the other ranks do not know.
        self._together: Together | None = None
        #: The entry that answered the last call of an outline, where the recent ones did not.
        self._likely: weakref.WeakValueDictionary[Any, Entry] = weakref.WeakValueDictionary()
        #: Keys whose graph differed from eager execution in a later replay.
        self._differed: set[str] = set()
        self._order_changed()

    def __call__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Answer a call that :attr:`fast_path` did not: try the other recent entries, then its key.

        The entry of the key says what happens: a graph is replayed (a hit), a refusal runs eagerly.
        Without an entry (a miss) the call runs eagerly, and a graph for the next one is captured.
        """
        if self._lifted is not None:
            return self.fast_path(fn, args, kwargs)
        others = self._others
        likely = self._likely.get(_outline(args, kwargs)) if others else None
        for entry in others if likely is None else (likely, *others):
            result = entry.fast_path(fn, args, kwargs)
            if result is not NO_MATCH:
                with self.entries.lock:  # what entries.promote() does, without its weak reference
                    self.entries.move_to_front(entry)
                    self._order_changed()
                return result
        if is_inside_gfxgraph():  # inside the graph of a caller: its graph includes our work
            return fn(*args, **kwargs)
        if self._interrupts():
            with interrupting():
                return self.run_eagerly(fn, args, kwargs, _INTERRUPTS)
        reason = no_graph_now()
        if reason is None and self.entries.autograd:
            reason = around_autograd()
        if reason is None:
            leaves, spec, reason = self.strategy.objects.taken_apart(args, kwargs)
        if reason is None and self._outer is not None:
            reason = state_on_host(leaves, spec)
        if reason is not None:
            return self.run_eagerly(fn, args, kwargs, reason)
        return self.strategy.answer(self, Call(fn, args, kwargs, leaves, spec))

    def _interrupts(self) -> bool:
        """Whether this thread is replaying one of the graphs that share memory with ours.

        Until that call has its result, another replay or a capture would overwrite it.
        """
        pools = list(self.builder.graph_pools.values())  # at once: another thread may add one
        return any(graph_pool.is_replaying for graph_pool in pools) and is_lock_ours()

    def without_grad(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The same, under ``torch.no_grad()`` where no argument may ask for gradients."""
        if not torch.is_grad_enabled():
            return self(fn, args, kwargs)
        with inference(args, kwargs):
            result = self.fast_path(fn, args, kwargs)
            return self(fn, args, kwargs) if result is NO_MATCH else result

    def answer(self, call: Call) -> Any:
        """Answer a call by its key."""
        if self._together is not None and self._together.mode != "split":
            return self._answer_together(call, self._together)
        request, entry, changes = self._known(call)
        if entry is None and self.strategy.objects.learn(call):
            self.entries.drop_by_identity(self.strategy.objects.classes)
            return self(*call.given)
        if entry is None:  # a miss
            reason = self._postponed(request)
            if reason is not None:
                return self.run_eagerly(*call.given, reason)
            return self.first_calls.run(request, functools.partial(self._make, request, changes))
        if isinstance(entry, Refusal):
            return self.run_eagerly(*call.given, entry.reason, entry.kind)
        result = self._hit(request, entry)
        if result is not NO_MATCH:
            self._note_likely(call, entry)
            return result
        if self.entries.get(request.key) is not entry:  # released by another thread meanwhile
            return self.answer(call)
        raised, classes = entry.raised(), self.strategy.objects.classes
        why = raised or entry.why_not(call.leaves, (call.args, call.kwargs), classes)
        reason = f"its graph could not be used: {why}"
        if raised and self.options.fallback == "raise":
            self.entries.count_fallback(reason)
            self._eagerly(*call.given)  # raises that error too, unless the function catches it
            raise CaptureError(f"{self.name}: {reason}")
        return self.run_eagerly(*call.given, reason)

    def _note_likely(self, call: Call, entry: Entry) -> None:
        """Note which entry has answered a call of this outline."""
        if not self._others:  # nor would it be asked for
            return
        # An entry answers calls of any number of outlines, if it does not depend on some argument.
        if len(self._likely) >= 2 * self.options.max_graphs:
            self._likely.clear()
        self._likely[_outline(call.args, call.kwargs)] = entry

    def _answer_together(self, call: Call, together: Together) -> Any:
        """Answer a call of a function whose graphs hold collectives: as all ranks do."""
        if together.mode == "eager":
            return self.run_eagerly(*call.given, together.why)
        with together.lock, ExitStack() as held:
            # From what is said to what is done no other thread replays or captures.
            is_free = validation.take(held, LOCK, PATIENCE)
            request, entry, changes = self._known(call)
            word, detail = self._word(request, entry, changes, is_free)
            if together.decide(word, detail):
                if entry is None and word == _NEW:
                    held.close()
                    return self._first_together(request, changes, together)
                if word.startswith(_REPLAYS):
                    assert isinstance(entry, Entry)
                    result = self.strategy.replay(request, entry)
                    if result is NO_MATCH:  # the other ranks have launched theirs
                        raise CaptureError(f"{self.name}: a graph of all ranks was not replayed")
                    return result
                together.why = detail[0]
            elif isinstance(entry, Entry):
                self.release(request.key)
        if together.mode == "split":
            return self.answer(call)
        return self.run_eagerly(*call.given, f"not replayed: {together.why}")

    def _word(
        self, request: Request, entry: Entry | Refusal | None, changes: list[str], is_free: bool
    ) -> tuple[str, list[str]]:
        """What this rank would do with a call, and why."""
        leaves, kind = request.call.leaves, describe_key(request.call.leaves, request.call.spec)
        if isinstance(entry, Refusal):
            return _EAGER, [entry.reason]
        if not is_free:
            return _EAGER, ["another thread is capturing"]
        if entry is None:
            reason = self._postponed(request)
            why = f"{some(changes)} has changed" if changes else f"for {kind}"
            return (_NEW, [why]) if reason is None else (_EAGER, [reason])
        if not entry.is_ready(leaves):
            args, classes = (request.call.args, request.call.kwargs), self.strategy.objects.classes
            return _EAGER, [entry.why_not(leaves, args, classes)]
        return f"{_REPLAYS}{entry.number}", [f"for {kind}"]

    def _first_together(self, request: Request, changes: list[str], together: Together) -> Any:
        """Run a call on all ranks, and make a graph after it on all or none."""
        together.begins()
        try:
            return self.first_calls.run(request, functools.partial(self._make, request, changes))
        finally:
            together.ended()

    def _known(self, call: Call) -> tuple[Request, Entry | Refusal | None, list[str]]:
        """The entry of a call, and what was changed in vain since a graph of its key."""
        changed: list[str] = []
        for request in self.strategy.requests(call):
            entry, changes = self.entries.known(request.key)
            changed += changes
            if entry is not None:
                break
        return request, entry, changed

    def run_eagerly(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reason: str,
        kind: type[Exception] = CaptureError,
    ) -> Any:
        """Run a call without a graph.

        Raises:
            Exception: a ``kind``, with ``fallback="raise"``.
        """
        self.entries.count_fallback(reason)
        if self.options.fallback == "raise":
            raise kind(f"{self.name}: {reason}")
        return self._eagerly(fn, args, kwargs)

    def _eagerly(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.entries.count_eager_call()
        with self._writers.passing():
            return fn(*args, **kwargs)

    def make(self, request: Request) -> Exception | None:
        """Make a graph for calls like this one, without answering one; take back what that does.

        The caller holds CAPTURING.

        Returns:
            Why there is none; ``None`` if there is one.
        """
        entry, changes = self.entries.known(request.key)
        if isinstance(entry, Refusal) and not entry.is_for_room:
            return entry.kind(entry.reason)
        return None if isinstance(entry, Entry) else self._make(request, changes)

    @property
    def is_lifted(self) -> bool:
        """Whether its graphs hold what calls write in Python."""
        return self._lifted is not None

    @property
    def has_calls(self) -> bool:
        """Whether it knows a kind of calls."""
        return self.is_lifted or bool(self.entries.all())

    def release(self, key: Any) -> None:
        """Release the graph of a key."""
        with self.entries.lock:
            if self.entries.get(key) is not None:
                self.entries.drop(key)
        self.entries.release_dropped()

    def guards(self) -> list[Guard]:
        """The guards of all graphs."""
        entries = self.entries.graphs().values()
        found = [entry.captured.guard for entry in entries if entry.captured is not None]
        return found + ([] if self._lifted is None else self._lifted.guards())

    def kept(self) -> list[Entry | Refusal]:
        """All entries, the least recently used first."""
        return self.entries.all() if self._lifted is None else self._lifted.kept()

    def kept_for(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Entry | Refusal | str:
        """The entry of calls with these arguments, stale or not, or why they have none.

        Raises:
            ArgumentError: with buckets, the arguments have no dynamic dimension, or disagree on it.
        """
        if self._lifted is not None:
            return self._lifted.kept_for(*lifted_call(self._lift, fn, args, kwargs), {})
        leaves, spec, reason = self.strategy.objects.taken_apart(args, kwargs)
        if reason is not None:
            return reason
        for request in self.strategy.requests(Call(fn, args, kwargs, leaves, spec)):
            entry = self.entries.get(request.key)
            if entry is not None:
                return entry
        return "no call with such arguments was captured"

    def prepare(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        unproven: bool = False,
    ) -> Exception | None:
        """Make a graph for calls with such arguments; see :meth:`make`.

        ``unproven``: they are made, by a recipe. A failure leaves nothing behind, and the first
        call that finds the graph is compared with it.
        """
        reason = _INTERRUPTS if self._interrupts() else no_graph_now()
        if reason is not None:
            return CaptureError(reason, transient=True)
        leaves, spec, reason = self.strategy.objects.taken_apart(args, kwargs)
        if reason is not None:
            return CaptureError(reason)
        request = self._known(Call(fn, args, kwargs, leaves, spec))[0]
        if not unproven:
            return self.make(request)
        with self._writers.alone(always=True) as is_alone:
            if not is_alone:
                return CaptureError("another thread is calling the function", transient=True)
            if self._lifted is not None or self.entries.get(request.key) is not None:
                return CaptureError("calls like it are known already")
            error = self._make(replace(request, unproven=True), [])
        made = self.entries.get(request.key)
        if isinstance(made, Entry):
            self._writers.writes |= bool(made.regions())
        return error

    def static_inputs(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """See :meth:`Graphed.static_inputs`."""
        if self.strategy.layout.is_padded:
            raise ArgumentError(
                f"{self.name}: with buckets= all graphs share their static inputs; pass the "
                "arguments to each call."
            )
        leaves, spec, reason = self.strategy.objects.taken_apart(args, kwargs)
        if reason is not None:
            raise ArgumentError(f"{self.name}: {reason}")
        with self.entries.lock:
            request, entry, _ = self._known(Call(fn, args, kwargs, leaves, spec))
            if not isinstance(entry, Entry):
                why = f": {entry.reason}" if entry else "; call it once with them first"
                raise CaptureError(f"{self.name} has no graph for these arguments{why}.")
            # What the graph does not depend on stays what it is.
            of_graph = dict(zip(map(id, request.call.leaves), entry.static_inputs(), strict=True))
            inputs = [of_graph.get(id(leaf), leaf) for leaf in leaves]
            static: tuple[tuple[Any, ...], dict[str, Any]] = builder(spec, inputs)()
            return static

    def stats(self) -> GraphedStats:
        """See :meth:`Graphed.stats`."""
        lifted = self._lifted
        if lifted is not None:
            paths = (slot.path for slot in self._lift.slots.values())
            known = lifted.stats()
            return replace(known, stored=[*paths, *known.stored])
        with self.entries.lock:
            found = self.entries.all()
            entries = [entry for entry in found if isinstance(entry, Entry)]
            rows = [entry.row() for entry in entries]
            counts, compiled = self.entries.counts, self.builder.compiled
            pools = list(self.builder.graph_pools.values())
            known = GraphedStats(
                captures=counts.captures,
                replays=self.entries.replays(),
                eager_calls=counts.eager_calls,
                fallbacks=dict(counts.fallbacks),
                evictions=counts.evictions,
                recaptures=counts.recaptures,
                changed=dict(counts.changed),
                graphs=rows,
                refused={e.key: e.reason for e in found if isinstance(e, Refusal)},
                pool_bytes=sum(graph_pool.pool_bytes() for graph_pool in pools)
                + sum(entry.bytes_of_bodies() for entry in entries),
                input_bytes=sum({k: b for e in entries for k, b in e.input_storages()}.values()),
                compile_s=0.0 if compiled is None else compiled.seconds,
                not_compiled={e.key: e.not_compiled for e in entries if e.not_compiled},
                thrashing=tuple(self.entries.thrash.reasons),
                stored=list(dict.fromkeys(name for entry in entries for name in entry.stored)),
            )
        return self.strategy.stats(known)

    def reset(self) -> None:
        """Release all graphs, and forget all reasons and counts."""
        for entry in self.empty():
            when_free(entry.release)

    def empty(self) -> list[Entry]:
        """Forget everything; gives the graphs, for the caller to release."""
        with self.entries.lock:
            graphs = self.entries.empty()
            if self._lifted is not None:
                graphs += self._lifted.empty()
                self._lifted, self._lift = None, Lift(())
                self._lifts = self._replays_before = 0
                self._order_changed()
            self.builder.forget()
            self.strategy.forget()
            self._differed.clear()
            return graphs

    def __reduce__(self) -> Any:
        return type(None), ()  # graphs are left out of copies and pickles of their instance

    # A call whose key has a graph.

    def _hit(self, request: Request, entry: Entry) -> Any:
        """Replay, and compare that with eager execution where it is due; else NO_MATCH."""
        call = request.call
        classes = self.strategy.objects.classes
        if entry.sees_more(call.leaves, (call.args, call.kwargs), classes):
            return NO_MATCH
        if entry.unproven:
            return self._proved(request, entry)
        result = self.strategy.meet(self, request, entry)
        if result is NO_MATCH and validation.due(entry):
            replay = self.strategy.trial(request, entry)
            if replay is not None:
                result = self._compared(request, entry, replay)
        if result is NO_MATCH:
            with self._writers.passing():
                result = self.strategy.replay(request, entry)
        return result

    def _compared(self, request: Request, entry: Entry, replay: Callable[[], Any]) -> Any:
        """Answer a call by a replay that is compared with eager execution.

        Returns:
            The result; NO_MATCH: it was not compared, and nothing was done.

        Raises:
            VerificationError: the replay differs, and ``fallback="raise"``.
        """
        entries = self.entries
        found = self._comparison(request, entry, replay)
        if found is None:
            return NO_MATCH
        if found.difference is None:
            return found.result
        tally.add("validation_failures")
        entries.count_fallback("a replay was not what eager execution gives (validate)")
        reason = f"a later replay differs from eager execution in {found.difference}"
        with entries.lock:
            entries.count_eager_call()
            again = entry.key not in self._differed
            self._differed.add(entry.key)
            for other in entries.graphs().values():
                other.compared_at = None  # what changed may matter to it too
            if entries.get(request.key) is entry:
                entries.drop(request.key)
                if again:  # what changed may stay as it is now
                    entries.counts.recaptures += 1
                else:
                    entries.keep(request.key, Refusal(entry.key, reason, VerificationError))
            is_first = entries.is_new("validation")
        entries.release_dropped()
        what = "captured again" if again else "runs eagerly from now on"
        level = logging.WARNING if is_first else logging.INFO
        log(level, "validation_failed", function=self.name, key=entry.key, because=reason, so=what)
        if self.options.fallback == "raise":
            raise VerificationError(f"{self.name}: {reason}")
        return found.result

    def _comparison(
        self, request: Request, entry: Entry, replay: Callable[[], Any]
    ) -> validation.Comparison | None:
        """See :func:`~gfxgraph.call.validation.compare`."""
        call, run = request.call, request.call.run
        if entry.stores:
            run = functools.partial(_with_arguments, call.run, call.args, call.kwargs)
        found = validation.compare(entry, call.leaves, self.options.verify, replay, run)
        if found is None or not entry.stores:
            return found
        return replace(found, result=found.result[0])

    def _proved(self, request: Request, entry: Entry) -> Any:
        """Answer the first call of a graph that was made without one, and compare both.

        The function runs for its caller. Where the graph gives something else it is dropped, and
        the next call of its kind is captured like any other. NO_MATCH: it was dropped before the
        function ran.
        """
        call, entries = request.call, self.entries
        with self._writers.passing():
            result, different = self.strategy.prove(self, request, entry)
        if different is not None:
            with entries.lock:
                if entries.get(request.key) is entry:
                    entries.drop(request.key)
                    entries.counts.recaptures += 1
                if result is not NO_MATCH:
                    entries.count_eager_call()
            entries.release_dropped()
            because = f"a graph made from a recipe: {different}"
            log(logging.INFO, "captured_again", function=self.name, because=because)
            return result
        if result is NO_MATCH:  # another thread is in the way: one of the next calls is compared
            return self._eagerly(*call.given)
        with entries.lock:
            if entries.get(request.key) is entry and not entry.in_doubt:
                entries.prove(entry, self.builder.fast_path(entry, request.fitted))
        return result

    # A call without an entry.

    def _postponed(self, request: Request) -> str | None:
        """Why a call without a graph is not captured now, but only counted."""
        if self.entries.closed:
            return self.entries.closed
        reason = self.entries.postponed(request.key, request.fitted.spec)
        may_run_eagerly = self.options.fallback == "eager"
        if reason is not None and self.entries.is_new(reason):
            tally.thrashes(self.name, reason)
            if not may_run_eagerly:
                log(logging.WARNING, "thrashing", function=self.name, because=reason)
        # Who asks for a graph or an error gets his graph.
        return reason if may_run_eagerly else None

    def _make(
        self, request: Request, changes: list[str], result: Any = NO_MATCH
    ) -> Exception | None:
        wanted = self.strategy.wanted(self.entries, request, changes, result)
        together = self._begun_together(is_call=result is not NO_MATCH)
        if together is None or together.mode == "split":
            return self.builder.make(wanted, self)
        if result is NO_MATCH:
            return CaptureError("its graphs hold collectives: call it on all ranks first")
        error = together.make(
            lambda: self.builder.make(wanted, self), lambda: self._graph_of(request.key)
        )
        if error is not None and self._graph_of(request.key) is not None:
            self.release(request.key)
        return error

    def _graph_of(self, key: Any) -> Entry | None:
        entry = self.entries.get(key)
        return entry if isinstance(entry, Entry) else None

    def _begun_together(self, is_call: bool) -> Together | None:
        """What the ranks decide on, if graphs are to hold the collectives of the function."""
        found, group = collectives.found_before(), self.options.group
        wants = self.options.collectives == "inside" and self.options.compile is None
        # A rank of a group that was given takes part also where it sends nothing itself.
        takes_part = found or (group is not None and is_call)
        if self._together is None and wants and takes_part and not self.strategy.layout.is_padded:
            begun = begin(self.name, found, self._release_held, group)
            if isinstance(begun, str):
                if self.entries.is_new(begun):
                    log(logging.WARNING, "split", function=self.name, because=begun)
            else:
                self._together = self.builder.together = begun
                self._order_changed()
        return self._together

    def _release_held(self) -> None:
        """Release the graphs that hold collectives: the ranks decide together no more."""
        with self.entries.lock:
            for key, entry in self.entries.graphs().items():
                if entry.captured is not None and entry.captured.collectives:
                    self.entries.drop(key)
            self._order_changed()
        self.entries.release_dropped()

    # Calls that an entry sends back.

    def refused(
        self, reason: str, kind: type[Exception], fn: Any, args: Any, kwargs: Any, leaves: Any
    ) -> Any:
        """Answer a call whose key was refused."""
        if is_inside_gfxgraph():
            return fn(*args, **kwargs)
        return self.run_eagerly(fn, args, kwargs, reason, kind)

    def new_path(
        self,
        key: Any,
        spec: Spec,
        fn: Any,
        args: Any,
        kwargs: Any,
        leaves: Sequence[torch.Tensor],
        spoilt: str = "",
    ) -> Any:
        """Run a call whose data takes a path that was not captured, and capture that one.

        ``spoilt``: why no path of the tree can answer such calls from now on.
        """
        entry = self.entries.get(key)
        if spoilt:
            if isinstance(entry, Entry):
                self._give_up(key, spec, entry, spoilt)
            return self.run_eagerly(fn, args, kwargs, spoilt)
        if not isinstance(entry, Entry) or entry.captured is None:
            return self(fn, args, kwargs)
        call = Call(fn, args, kwargs, list(leaves), spec)
        closed = self._stops_growing(key, spec, entry)
        if closed is not None:
            return self.run_eagerly(fn, args, kwargs, closed)

        # With what the call leaves in its arguments it might take another path.
        try:
            found = entry.found(leaves)
        except RuntimeError as error:  # mostly, no memory is left
            reason = f"what it writes to could not be copied: {one_line(error)}"
            return self.run_eagerly(fn, args, kwargs, reason)

        def make(result: Any) -> Exception | None:
            wanted = Wanted(call, key, [], result, extends=entry, found=found)
            return self.builder.make(wanted, self)

        return self.first_calls.run(Request(call, call, key), make, entry)

    def _stops_growing(self, key: Any, spec: Spec, entry: Entry) -> str | None:
        """Why a tree gets no further path; where its data never takes one twice, it is refused."""
        assert entry.captured is not None
        root, entries = entry.captured.root, self.entries
        paths = root.paths()
        if entry.closed is None and paths >= _MAX_PATHS:
            entry.closed = f"its data takes more than {_MAX_PATHS} paths: {entry.where()}"
        elif paths >= _PATHS_ON_TRIAL and entry.replays < paths and not root.decides():
            how_often = "nearly every" if entry.replays else "every"
            reason = entry.differs(f"{how_often} call ({paths} paths, {entry.replays} replays)")
            tally.thrashes(self.name, entries.thrash.say(reason))
            self._give_up(key, spec, entry, reason)
        return entry.closed or entries.thrash.stops_growing(paths, entry.replays)

    def _give_up(self, key: Any, spec: Spec, entry: Entry, reason: str) -> None:
        """Release a tree; its calls run eagerly from now on."""
        entries = self.entries
        with entries.lock:
            if entries.get(key) is entry:
                entries.drop(key)
                refusal = Refusal(entry.key, reason, CaptureError)
                entries.keep_refusal(key, spec, refusal, lambda spec: miss)
        entries.release_dropped()

    def lift(self, error: EffectsError, call: Call) -> bool:
        """Let graphs store what a call has written, from the next call on; whether that can be."""
        outer = None if self._outer is None else self._outer()
        if outer is not None:
            known = call.fn.lift if isinstance(call.fn, Lifting) else None
            worked = self.entries.replays() - outer._replays_before >= WORTH_IT
            grown = None if known is None else known.grown(error.slots, anew=worked)
            if worked:
                outer._lifts = 0
            return grown is not None and outer._lift_over(grown)
        can_lift = error.slots and self.options.outputs == "own" and self.options.compile is None
        if not can_lift or self.strategy.shares_inputs:
            return False
        return self._lift_over(Lift(error.slots))

    def _lift_over(self, lift: Lift) -> bool:
        self._lifts += 1
        if self._lifts > _MAX_LIFTS:
            return False
        before = self._lifted
        options = self.options
        if options.collectives == "inside":
            options = replace(options, collectives="split")
        inner = Dispatcher(self.name, options, Exact(), self.method, self.builder.graph_pools, self)
        inner._writers.writes = True  # what captures put into the places is for nobody else
        inner.entries.counts = self.entries.counts
        self._lifted, self._lift = inner, lift
        self._order_changed()
        # Those of our own are of calls that took a way without such writes.
        for entries in (self.entries, *(() if before is None else (before.entries,))):
            entries.drop_all()
            entries.release_dropped()
        self._replays_before = self.entries.replays()
        return True

    def _order_changed(self) -> None:
        """Other entries are to be tried first."""
        if self._lifted is not None:
            self.fast_path = fast_path_of(self._lift, self._lifted)
            return
        together = getattr(self, "_together", None)
        decides = together is not None and together.mode != "split"
        self.fast_path, self._others = self.strategy.fast_paths(
            () if self.entries.is_paused or decides else self.entries.order
        )


class Exact:
    """How the calls of a callable get to graphs: each kind of call to a graph of its own.

    Another way derives from it, and says in its own methods what it does otherwise.

    Args:
        shares_inputs: see :class:`~gfxgraph.call.builder.Keys`.

    Attributes:
        kinds: how many kinds of calls there are; 0: nobody knows.
        layout: see :class:`~gfxgraph.call.builder.Keys`.
        objects, templates: the same.
    """

    kinds = 0

    def __init__(self, shares_inputs: bool = False) -> None:
        self.shares_inputs = shares_inputs
        self.layout = LayoutKey()
        self.objects: ObjectArguments = ObjectArguments()
        self.templates: dict[Any, Any] = {}

    def answer(self, dispatcher: Dispatcher, call: Call) -> Any:
        """Hand a call to :meth:`Dispatcher.answer`, after what is to be done before."""
        return dispatcher.answer(call)

    def key_of(self, call: Call) -> Any:
        """Structure, tensors, constants and modes."""
        return self.layout.key_of(call)

    def request(self, call: Call) -> Request:
        """The graph that would answer a call, and the call as it takes it."""
        return Request(call, call, self.key_of(call))

    def requests(self, call: Call) -> Iterator[Request]:
        """The graphs that would answer it: by what was read of its objects, and by all of it."""
        for narrower in self.objects.narrowed(call):
            key = self.key_of(narrower)
            if self.objects.is_known(key):
                yield Request(narrower, narrower, key)
        yield self.request(call)

    def prove(
        self, dispatcher: Dispatcher, request: Request, entry: Entry
    ) -> tuple[Any, str | None]:
        """Answer the first call of an unproven entry, compared with its graph.

        Returns:
            The result, NO_MATCH where there is none; and how the graph differs, ``None`` where it
            does not. NO_MATCH and ``None``: another thread is in the way.
        """
        if [leaf.is_inference() for leaf in request.call.leaves] != entry.given_inference:
            return NO_MATCH, "it is for tensors of another inference mode"
        missed = False
        trial = self.trial(request, entry)

        def replay() -> Any:
            nonlocal missed
            result = NO_MATCH if trial is None else trial()
            missed = result is NO_MATCH
            return result

        found = dispatcher._comparison(request, entry, replay)
        if found is None:
            return NO_MATCH, "its data takes another path" if missed else None
        return found.result, found.difference

    def meet(self, dispatcher: Dispatcher, request: Request, entry: Entry) -> Any:
        """Run a call that is not to be answered by a replay yet; else NO_MATCH."""
        return NO_MATCH

    def trial(self, request: Request, entry: Entry) -> Callable[[], Any] | None:
        """A replay that may be compared with eager execution; ``None``: there is none.

        Where graphs store something in arguments, it stores that in copies, and gives these too.
        """
        call, replay = request.call, entry.trial()
        if not entry.stores:
            return functools.partial(replay, call.fn, call.args, call.kwargs, call.leaves)
        leaves, spec, _ = self.objects.taken_apart(call.args, call.kwargs)
        args, kwargs = builder(spec, leaves)()
        in_copies = functools.partial(replay, call.fn, args, kwargs, call.leaves)
        return functools.partial(_with_arguments, in_copies, args, kwargs)

    def replay(self, request: Request, entry: Entry) -> Any:
        """Replay a graph and build the result; NO_MATCH where that cannot be."""
        call = request.call
        return entry.replay(call.fn, call.args, call.kwargs, call.leaves)

    def wanted(
        self, entries: Entries, request: Request, changes: list[str], result: Any = NO_MATCH
    ) -> Wanted:
        """The graph to make after a call that gave ``result``; how it is judged is part of that."""
        return Wanted(request.call, request.key, changes, result, unproven=request.unproven)

    def template(self, entries: Entries, call: Call, unproven: bool = False) -> Entry | None:
        """A graph for other sizes, after which that of a call can be captured."""
        found = entries.get(self.templates.get(without_sizes(self.key_of(call))))
        if not isinstance(found, Entry) or found.captured is None or found.captured.state is None:
            return None
        return None if found.unproven and not unproven else found

    def fast_paths(self, order: Sequence[Entry | Refusal]) -> tuple[FastPath, Sequence[Any]]:
        """The fast path to try first, and the entries to try next.

        Here those used last; the others not while a call may be one to compare.
        """
        first = validation.fast_path(order[0]) if order else miss
        return first, () if validation.every() else order[1:]

    def forget(self) -> None:
        """Forget all that was learned of the callable."""
        self.layout.forget()
        self.objects.forget()
        self.templates.clear()

    def stats(self, known: GraphedStats) -> GraphedStats:
        """The statistics, with those of the strategy."""
        return known


def _outline(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The shapes of tensors and the types of all else: most kinds of calls differ in it.

    A type by its number: it need not be hashable, and is not kept alive.
    """
    return tuple(
        [
            value.shape if type(value) is torch.Tensor and not value.is_nested else id(type(value))
            for value in (*args, *kwargs.values())
        ]
    )


def _with_arguments(run: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call, and what that has left in its arguments."""
    result = run()
    return NO_MATCH if result is NO_MATCH else (result, args, kwargs)


def reset_with(owner: Any, dispatcher: Dispatcher) -> None:
    """Release the graphs when ``owner`` goes, and not when the garbage collector comes round."""
    # Weakly: whatever the graphs hold must not keep the owner alive.
    weakref.finalize(owner, _reset, weakref.ref(dispatcher)).atexit = False
    with _lock:
        _owners[dispatcher] = weakref.ref(owner)


def owners() -> list[tuple[Dispatcher, Any]]:
    """All dispatchers whose owner is alive, with that, in the order in which they were made."""
    with _lock:
        found = [(dispatcher, owner()) for dispatcher, owner in _owners.items()]
    return [(dispatcher, owner) for dispatcher, owner in found if owner is not None]


_lock = new_lock()
_owners: weakref.WeakKeyDictionary[Dispatcher, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def _reset(dispatcher: weakref.ref[Dispatcher]) -> None:
    alive = dispatcher()
    if alive is not None:
        for entry in alive.empty():
            when_free(entry.release, patience=0.0)
