"""Makes the entries of one callable: a graph, another path of a tree, or why there is neither."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from ..device import current_device, index_of
from ..errors import ArgumentError, CaptureError, GfxGraphError, let_go
from ..graph.capture import CaptureOptions, capture, capture_like, why_unlike
from ..graph.captured import CapturedGraph
from ..graph.compare import Tolerance
from ..graph.lift import EffectsError, Lifting, owner_name
from ..graph.lowering import OutgrownError, Ways
from ..graph.pool import GraphPool
from ..graph.session import AroundAutograd, LayoutError, Target
from ..interpose.interrupts import interrupt_in
from ..record import collectives
from ..record.effects import overwrite, storage_key
from ..record.explain import some
from ..stats import log, tally
from .body import Body, ChangesArgument, Counts, result_and_stored
from .budget import admit
from .compiled import Compiled
from .entries import Entries
from .entry import SHARED, Entry, Refusal
from .faster import NotWorthIt, device_is_faster, graph_of_compiled, note_not_compiled
from .held import Held
from .key import Call, describe_key, what_moved, without_sizes
from .layout import LayoutKey
from .narrow import Mask, ObjectArguments
from .options import Options
from .rebound import rebindable
from .replay import NO_MATCH, FastPath, builder, miss
from .request import Wanted
from .signature import Objects, Spec, count_tensors, objects_in, renumbered
from .static_inputs import bytes_of, shares_memory
from .suitable import GOES_ON, ends_autograd
from .thrash import Traits, traits
from .together import Together
from .tuned import TunedCode

__all__ = ["MADE_PARAMETER", "NO_WORK", "Builder", "Keys"]

# Captures because something that is no tensor differed between calls, before its key stays eager.
_MAX_TRIES = 8
# How many kinds of calls of one callable have a template: those that came last.
_MAX_TEMPLATES = 64


class Keys(Protocol):
    """The part of a strategy that a builder needs: what calls have in common.

    Attributes:
        layout: whether keys say how tensors lie in memory.
        objects: what is known of arguments that are objects.
        shares_inputs: whether graphs of one pool share the memory of their static inputs too.
        templates: by what calls of all sizes have in common, the key of a graph to capture others
            after.
    """

    layout: LayoutKey
    objects: ObjectArguments
    shares_inputs: bool
    templates: dict[Any, Any]

    def key_of(self, call: Call) -> Any:
        """The key of a call: calls with equal keys can share one graph."""

    def template(self, entries: Entries, call: Call, unproven: bool = False) -> Entry | None:
        """A graph of the same function for other sizes, after which this one can be captured.

        ``unproven``: also one that no call was compared with.
        """


class Answers(Protocol):
    """Answers the calls that an entry does not; see :class:`~gfxgraph.call.dispatch.Dispatcher`."""

    fast_path: FastPath

    def __call__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...

    def new_path(
        self, key: Any, spec: Spec, fn: Any, args: Any, kwargs: Any, leaves: Sequence[torch.Tensor]
    ) -> Any: ...

    def lift(self, error: EffectsError, call: Call) -> bool: ...

    def refused(
        self, reason: str, kind: type[Exception], fn: Any, args: Any, kwargs: Any, leaves: Any
    ) -> Any: ...


MADE_PARAMETER = "a torch.nn.Parameter that each call makes, or that is an argument"

NO_WORK = (
    "this kind of call gives the device no work (it takes the next action from a queue, say), so "
    "a graph would be slower"
)


class Builder:
    """Makes the entries of one callable.

    Args:
        entries: where to keep them.
        options: of the callable.
        keys: what its calls have in common.
        graph_pools: device index -> the pool to capture into.

    Attributes:
        compiled: the compiled code; ``None`` without ``compile=``.
        together: what the ranks decide together, where graphs hold collectives.
    """

    def __init__(
        self, entries: Entries, options: Options, keys: Keys, graph_pools: dict[int, GraphPool]
    ) -> None:
        self.graph_pools = graph_pools
        self._entries, self._options, self._keys = entries, options, keys
        self.compiled = self._new_compiled()
        self._ways = self._new_ways()
        self.together: Together | None = None

    def forget(self) -> None:
        """Start anew."""
        self.graph_pools.clear()
        self.compiled = self._new_compiled()

    def _new_ways(self) -> Ways | None:
        measures, options = self._options.branching == "auto", self._options
        # Padding could decide; and of compiled code another choice is made.
        never = measures and (options.buckets is not None or options.compile is not None)
        return None if never or options.branching == "off" else Ways(measures)

    def _new_compiled(self) -> Compiled | None:
        how = self._options.compile
        # A compilation for each of many buckets would take its time again and again.
        dynamic = self._options.buckets is not None
        if how is None:
            return None
        return (Compiled if how.seconds is None else TunedCode)(how, dynamic)

    def make(self, wanted: Wanted, answers: Answers) -> Exception | None:
        """Keep a graph, or a refusal and its error.

        Where a tree is extended and that fails, its other paths stay.

        Returns:
            Why there is no graph; ``None`` if there is one.
        """
        kind = describe_key(wanted.call.leaves, wanted.call.spec)
        found: Traits = {}
        handled = sys.exc_info()[1]
        try:
            self._refuse_collectives()
            if wanted.is_on_trial:
                found = traits(wanted.call.fn, wanted.call.leaves, wanted.call.spec)
            self._count(wanted, kind)
            now = self._keys.key_of(wanted.call)
            if now != wanted.key:
                raise CaptureError(what_moved(wanted.key, now))
            if wanted.call.stirred:
                raise CaptureError(_STIRS.format(some([*wanted.call.stirred])), transient=True)
            try:
                entry = self._entry(wanted)
            except LayoutError as error:
                if wanted.extends is not None or not self._keys.layout.widen(error):
                    raise
                wanted = replace(wanted, key=self._keys.key_of(wanted.call))
                entry = self._entry(wanted)
            wanted, entry = self._the_faster(wanted, entry)
            self._keep(wanted, entry, found, answers)
            return None
        except Exception as error:  # the caller has his result: whatever it is, it is no graph
            interrupt = interrupt_in(error)
            if interrupt is not None:
                raise interrupt from interrupt.__cause__
            if self._options.fallback == "eager":
                let_go(error, handled)  # nobody gets to see it
            # Nothing is learned from made arguments: a call with real ones may do better.
            if wanted.unproven:
                return _as_ours(error)
            self._entries.autograd |= isinstance(error, AroundAutograd)
            if isinstance(error, OutgrownError) and wanted.extends is not None:
                self._capture_anew(wanted.key, wanted.extends, str(error))
                return None
            if isinstance(error, EffectsError) and self._may_go_on(error, wanted.call, answers):
                return None
            if isinstance(error, ChangesArgument) and self._keys.objects.give_up(wanted.call):
                self._entries.count_fallback(str(error), calls=int(wanted.is_answered))
                return error
            return self._refuse(wanted, kind, found, _as_ours(error), answers)

    def _refuse_collectives(self) -> None:
        """Raise if the caller's own run has issued collectives that keep it from a graph.

        Raises:
            CaptureError: it has.
        """
        splits, why = self._options.collectives != "refuse", 'It was asked for: "refuse".'
        if self._keys.layout.is_padded:
            splits, why = False, _PADDED
        collectives.raise_if_known(splits, why)

    def _may_go_on(self, error: EffectsError, call: Call, answers: Answers) -> bool:
        """Whether a graph can store what a call has written, from the next call on."""
        numbers = {slot.argument for slot in error.slots} - {None}
        if not numbers:
            return answers.lift(error, call)
        written = [item for n, item in enumerate(objects_in(call.spec)) if n in numbers]
        if not self._may_store or not self._keys.objects.take_apart(written):
            return False
        self._entries.drop_by_identity(self._keys.objects.classes)
        return True

    def _count(self, wanted: Wanted, kind: str) -> None:
        """Count captures that may be one of many alike.

        Raises:
            CaptureError: there were too many.
        """
        entries, changes = self._entries, wanted.changes
        if changes or (objects_in(wanted.call.spec) and wanted.extends is None):
            entries.count_try(kind)
        if entries.tries(kind) > _MAX_TRIES:
            entries.drop_unused(kind)
            reason = (
                f"{', '.join(changes[:3]) or 'an argument that is no tensor'} changes on every "
                "call, so every call would need its own graph. Pass it as a number or a tensor, "
                "or set it once, before the calls."
            )
            tally.thrashes(entries.name, entries.thrash.say(reason))
            raise CaptureError(reason)

    def _keep(self, wanted: Wanted, entry: Entry, found: Traits, answers: Answers) -> None:
        """Let calls find a new graph, if it is one to keep."""
        entries, call, key, tree = self._entries, wanted.call, wanted.key, wanted.extends
        try:
            wanted.judge(entry, self.why_unlike)
        except Exception:
            entry.release()
            raise
        if entry.captured is not None:
            entry.captured.sample.clear()
            self._keys.layout.learn(entry.captured)
            entries.autograd |= entry.captured.autograd
        if entry.mask is not None:
            call = self._keys.objects.narrow(call, entry.mask)
            key = self._keys.key_of(call)
            self._keys.objects.know(entry.mask, key)
        if entry.captured is not None and entry.captured.state is not None:
            self._note_template(key)
        if wanted.unproven:
            entry.unproven = True
        else:
            entry.fast_path = self.fast_path(entry, call)
        entry.let_answer(functools.partial(answers.new_path, key, call.spec))
        if entry.captured is not None and entry.captured.groups:
            collectives.release_with_groups(entries.release_groups, entry.captured.groups)
        with entries.lock:
            entries.counts.captures += 1
            tally.captured(entries.name)
            kept = tree is None or entries.replace(key, tree, entry)
            if tree is None:
                if wanted.is_on_trial:
                    entries.thrash.tried(key, found, entry.counter, "")
                entries.keep(key, entry)
        entries.release_dropped()
        if not kept:
            entry.release()
        elif tree is not None:
            entry.take_over(tree)
            could_be_lowered = entry.captured is not None and entry.captured.could_be_lowered
            if could_be_lowered and self._ways is not None and not self._ways.measures:
                self._capture_anew(key, entry, "calls have gone each way, so the device can decide")

    def _note_template(self, key: Any) -> None:
        """Graphs for other sizes can be captured after the one with this key."""
        templates = self._keys.templates
        if not objects_in(key[0]):  # nothing of a call's own is to live on
            templates[without_sizes(key)] = key
        while len(templates) > _MAX_TEMPLATES:
            del templates[next(iter(templates))]

    def _the_faster(self, wanted: Wanted, entry: Entry) -> tuple[Wanted, Entry]:
        """Give the captured entry, or one in which the device decides, where that one is faster.

        It passes the same proofs as with ``branching="device"``. The timed calls leave nothing
        behind.
        """
        tree = entry.captured
        if tree is None or self._ways is None or not tree.could_be_lowered:
            return wanted, entry
        if not self._ways.measures:
            tree.time_call = None
            return wanted, entry
        anew, other = replace(wanted, extends=None), None
        try:
            other = self._capture(anew, timed=True, lowers=True)
            is_faster, tree.measured = device_is_faster(tree, other.captured)
        except Exception as error:
            if interrupt_in(error):
                _undo(entry)
                raise
            is_faster, tree.measured = False, f"not tried: {error}"
        finally:
            tree.time_call = None  # it holds what it takes to get back to the state of now
            if other is not None and other.captured is not None:
                other.captured.time_call = None
        kept, gone = (other, entry) if is_faster and other is not None else (entry, other)
        if gone is not None:
            _undo(gone)
        if kept is entry:
            tree.report.append(f"the host decides: {tree.measured}")
            return wanted, entry
        assert kept.captured is not None
        kept.captured.measured = tree.measured
        kept.captured.report.append(f"the device decides: {tree.measured}")
        if wanted.extends is not None:
            self._capture_anew(wanted.key, wanted.extends, tree.measured)
        return anew, kept

    def _capture_anew(self, key: Any, entry: Entry, why: str) -> None:
        """Let go of a tree: the next call captures one in which the device decides elsewhere."""
        entries = self._entries
        log(logging.INFO, "captured_anew", function=entries.name, because=why)
        with entries.lock:
            if entries.get(key) is entry:
                entries.drop(key)
        entries.release_dropped()

    def fast_path(self, entry: Entry, call: Call) -> FastPath:
        """A function that recognises calls like this one, and replays the graph."""
        recogniser = self._keys.layout.recogniser(
            call, entry.reached, entry.asks_attributes, entry.differentiates
        )
        return recogniser(entry.replay)

    def _refuse(
        self, wanted: Wanted, kind: str, found: Traits, error: GfxGraphError, answers: Answers
    ) -> Exception | None:
        """Keep a refusal where the next try would fail as well; gives the error, if it is one."""
        entries, call, tree = self._entries, wanted.call, wanted.extends
        if tree is not None and tree.captured is None:
            return None  # released by another thread meanwhile: nothing is wrong with this path
        reason, cls = str(error), type(error)
        entries.count_fallback(reason, calls=int(wanted.is_answered))
        if cls is not NotWorthIt:
            tally.not_captured(entries.name)
        # Numbers and texts only: no object of the caller's may live on because of it.
        is_counted = objects_in(call.spec) and tree is None
        tries = entries.tries(kind) if is_counted else entries.count_try(hash(wanted.key))
        with entries.lock:
            if tree is not None:
                if tries > _MAX_TRIES:
                    tree.closed = reason
                return error
            if not getattr(error, "transient", False) or tries > _MAX_TRIES:
                if wanted.is_on_trial and cls is not NotWorthIt:
                    entries.thrash.tried(wanted.key, found, None, reason)
                # Not of the refusal: that holds its fast path, and would hold itself.
                refuse = functools.partial(answers.refused, reason, cls)

                def fast_path(spec: Spec) -> FastPath:
                    try:
                        return self._keys.layout.recogniser(replace(call, spec=spec))(refuse)
                    except (RecursionError, ArgumentError):  # too deep for an expression
                        return miss

                refusal = Refusal(kind, reason, cls)
                entries.keep_refusal(wanted.key, call.spec, refusal, fast_path)
        entries.release_dropped()
        return error

    def why_unlike(self, call: Call, entry: Entry) -> str:
        """Why a call may do something that the graph of other sizes does not; ``""``: it does not.

        The caller holds :data:`~gfxgraph.graph.locks.CAPTURING`.
        """
        captured = entry.captured
        if captured is None or captured.calls_user:  # what is called may run once in each call
            return ""
        _, device = _place(call.leaves, ())
        _, target = self._target(Wanted(call, None, []), None, device, Objects(), None, False)
        return why_unlike(captured, target, entry.graph_pool)

    def _entry(self, wanted: Wanted) -> Entry:
        """A graph of the function, of compiled code where that was asked for and can be had."""
        capture_it = functools.partial(self._capture_counting, wanted)
        if self.compiled is None or wanted.extends is not None:
            return capture_it()
        return graph_of_compiled(
            capture_it, self.compiled, self._entries, self._options, wanted.call
        )

    def _capture_counting(
        self, wanted: Wanted, code: Compiled | None = None, timed: bool = False
    ) -> Entry:
        """The same; numbers that calls only advance in their arguments are counted by replays."""
        for _ in range(_MAX_TRIES):
            try:
                return self._capture(wanted, code, timed)
            except Counts as error:
                self._keys.objects.learn_counters(error.places)
        return self._capture(wanted, code, timed)

    def _capture(
        self,
        wanted: Wanted,
        code: Compiled | None = None,
        timed: bool = False,
        lowers: bool = False,
    ) -> Entry:
        """Capture the function, or the compiled code of it.

        Args:
            wanted: what to capture.
            code: the compiled code.
            timed: whether calls are to be timed.
            lowers: whether the device decides where it can, as with ``branching="device"``.

        Raises:
            Exception: see :func:`~gfxgraph.graph.capture.capture`; or nobody could use the graph.
        """
        leaves, tree = wanted.call.leaves, wanted.extends
        fn, spec = wanted.call.fn, wanted.call.spec
        lift = fn.lift if isinstance(fn, Lifting) else None
        first, met = self._first_outputs(wanted)
        index, torch_device = _place(leaves, first[0] if first else ())
        # Another thread may release the tree, and its pool with it, whenever we do not hold LOCK.
        extended = None if tree is None else tree.now()
        graph_pool = self._pool_on(index) if tree is None else tree.graph_pool
        # Arguments that nobody called with were made for this, and go with it.
        ours = leaves if wanted.result is NO_MATCH else ()
        allocated = max(0, current_device().allocated(index) - sum(map(bytes_of, ours)))

        body, target = self._target(wanted, code, torch_device, met, first, lowers)
        static_inputs = target.inputs
        own_statics, input_bytes = list(static_inputs), graph_pool.input_bytes
        site = _Site(graph_pool, allocated, target, extended, leaves)
        try:
            with nullcontext() if lift is None else lift.as_it_was():
                captured = self._captured(wanted, site, code, timed)
        except BaseException:
            graph_pool.renew_pool()
            raise
        assert body.out_spec is not None  # it ran
        graph_pool.update_overhead(captured.peak_bytes)
        given = [s for s in static_inputs if storage_key(s) in captured.written]
        refusal = None
        if first is not None and not _agrees(body.out_spec, first[1], lift is not None):
            refusal = "result: its structure or its plain values change between calls"
        elif given and (shares_memory(leaves) or any(0 in s.stride() for s in given)):
            refusal = SHARED
        elif any(
            type(output) is torch.nn.Parameter
            and not (n in captured.returned_again and storage_key(output) in captured.outside)
            for n, output in enumerate(captured.outputs)
        ):
            refusal = (
                f"result: it, or what is stored, holds {MADE_PARAMETER}, and a copy of one is a "
                "plain tensor. Give the tensor itself."
            )
        idles = lift is not None and captured.root.launch is None and captured.root.step is None
        if refusal is not None or (idles and self._options.fallback == "eager"):
            _reset(captured)
            raise NotWorthIt(NO_WORK) if refusal is None else CaptureError(refusal)
        if tree is not None:
            entry = tree.with_path(captured, static_inputs, leaves, body.out_spec)
            entry.asks_attributes = tree.asks_attributes or body.objects.asks_attributes
            return entry
        whole = code is not None or captured.root.step is not None
        mask = None if whole else self._keys.objects.mask(spec, body.objects.read)
        entry = self._checked(wanted.call, captured, site, body, mask)
        inputs = zip(static_inputs, own_statics, strict=True)
        of_its_own = sum(bytes_of(static) for static, own in inputs if static is own)
        entry.private_input_bytes = graph_pool.input_bytes - input_bytes + of_its_own
        return entry

    def _first_outputs(
        self, wanted: Wanted
    ) -> tuple[tuple[list[torch.Tensor], Spec] | None, Objects]:
        """The result of the caller's own call, taken apart, if there was one, and its objects."""
        result, call = wanted.result, wanted.call
        if result is NO_MATCH:
            return None, Objects()
        count, left = 0, ()
        if isinstance(call.fn, Lifting):
            count, (result, left) = count_tensors(call.spec[3][0][3][0]), result
        held = call.held if self._may_store else None
        counters = self._keys.objects.counters
        outputs, spec, met = result_and_stored(
            result, held, call.leaves, Objects, count, counters, left
        )
        return (outputs, spec), met

    def _target(
        self,
        wanted: Wanted,
        code: Compiled | None,
        device: torch.device,
        met: Objects,
        first: tuple[list[torch.Tensor], Spec] | None,
        lowers: bool,
    ) -> tuple[Body, Target]:
        """The function on static inputs; ``met`` has seen the objects of the ``first`` result."""
        fn, leaves, spec = wanted.call.fn, wanted.call.leaves, wanted.call.spec
        static_inputs, layout = self._keys.layout.static_inputs(leaves, device)
        with torch.no_grad():
            before = {} if wanted.call.held is None else wanted.call.held.found
            for place, value in (before | dict(wanted.found)).items():
                overwrite(static_inputs[place], value)
        body = Body(fn if code is None else code.of(fn), spec, static_inputs, device)
        target = Target(
            body,
            static_inputs,
            roots={
                owner_name(fn, self._entries.name): fn,
                **{f"argument {n}": value for n, value in enumerate(objects_in(spec))},
            },
            layout=layout,
            compiled=code is not None,
            first_outputs=None if first is None else first[0],
            objects=body.objects,
            is_lifted=body.is_lifted,
            ways=self._ways,
            lowers=lowers or self._options.branching == "device",
        )
        known = self._keys.objects
        body.there, body.apart, body.may_store = met.met(), known.classes, self._may_store
        body.counters, body.no_counters = known.counters, known.no_counters
        if code is None and wanted.extends is None:
            body.objects.leaves_out = lambda read: known.mask(spec, read) is not None
        if first is not None and not isinstance(fn, Lifting) and not body.there:
            body.accept(*first)
        return body, target

    def _captured(
        self, wanted: Wanted, site: _Site, code: Compiled | None, timed: bool
    ) -> CapturedGraph:
        extends, static_inputs = site.extended or (None, None)
        together = self.together
        agree = None if together is None or together.mode == "split" else together.agree
        options = CaptureOptions(
            warmup=self._options.warmup,
            tolerance=self._tolerance,
            branching=self._options.branching != "off",
            share_inputs=self._keys.shares_inputs,
            admit=functools.partial(self._make_room, site),
            timed=timed or (code is not None and code.measure),
            rebind=frozenset() if agree else self._rebindable(site),
            agree=agree,
        )
        # What is timed has to know the way back to the state of now.
        if wanted.extends is None and code is None and not timed:
            template = self._keys.template(self._entries, wanted.call, wanted.unproven)
            if template is not None and template.captured is not None:
                found = capture_like(template.captured, site.target, options, site.graph_pool)
                if found is not None:
                    return found
        return capture(
            site.target, options, site.graph_pool, extends=extends, static_inputs=static_inputs
        )

    def _rebindable(self, site: _Site) -> frozenset[int]:
        """Arguments that the graph might read where they are; none may lie in its own memory."""
        is_exact = not (self._keys.layout.is_padded or self._keys.shares_inputs)
        if not is_exact or self._options.outputs != "own" or site.extended is not None:
            return frozenset()
        return rebindable(site.graph_pool.device, site.target.inputs, site.leaves)

    @property
    def _may_store(self) -> bool:
        """Whether replays may store something in the arguments of their calls."""
        is_exact = not (self._keys.layout.is_padded or self._keys.shares_inputs)
        return is_exact and self._options.outputs == "own" and self._options.compile is None

    @property
    def _tolerance(self) -> Tolerance | None:
        return None if self._options.verify is False else self._options.verify

    def _make_room(self, site: _Site, peak_bytes: int) -> None:
        """Make sure that the device has room; raises where it has not."""
        shared = site.target.inputs if self._keys.shares_inputs else ()
        more = functools.partial(site.graph_pool.bytes_for, peak_bytes, shared)
        admit(site.graph_pool, more, site.allocated, self._entries)

    def _checked(
        self, call: Call, captured: CapturedGraph, site: _Site, body: Body, mask: Mask
    ) -> Entry:
        """The entry of a graph that calls can use."""
        static_inputs, out_spec, is_lifted = site.target.inputs, body.out_spec, body.is_lifted
        assert out_spec is not None  # it ran
        stores = out_spec[0] == "stores"
        made = builder(call.spec, static_inputs)() if stores else None
        of_state = Held(call.args[:1], {}, call.spec).ways if is_lifted else ()
        if mask is not None:
            numbers = {id(leaf): n for n, leaf in reversed(list(enumerate(call.leaves)))}
            call = self._keys.objects.narrow(call, mask)
            kept = [numbers[id(leaf)] for leaf in call.leaves]
            static_inputs = [static_inputs[n] for n in kept]
            out_spec = renumbered(out_spec, kept)
        # What is built once, to see that it can be, is stored in arguments made for that.
        given = [*static_inputs, made] if stores else []
        entry = Entry(
            captured,
            site.graph_pool,
            static_inputs,
            call.leaves,
            out_spec,
            self._options.outputs == "own",
            given if is_lifted or stores else None,
            stores,
            of_state,
            name=self._entries.name,
        )
        entry.key = describe_key(call.leaves, call.spec)
        entry.mask, entry.asks_attributes = mask, site.target.objects.asks_attributes
        try:
            args, classes = (call.args, call.kwargs), self._keys.objects.classes
            if entry.differentiates and not all(map(ends_autograd, call.leaves)):
                raise CaptureError(f"argument: {GOES_ON}", transient=True)
            if entry.sees_more(call.leaves, args, classes):
                raise CaptureError(
                    "an argument is a container that the function stores to, or a tensor with "
                    "attributes, and the function asks for attributes"
                )
            if entry.overlaps(call.leaves):
                raise CaptureError("an argument shares memory with what the function writes")
            entry.build()  # a class of the result may not let itself be built
        except Exception:
            entry.release()
            raise
        if captured.not_compiled:
            note_not_compiled(self._entries, entry, captured.not_compiled)
        return entry

    def _pool_on(self, index: int) -> GraphPool:
        with self._entries.lock:
            graph_pool = self.graph_pools.get(index)
            if graph_pool is None:
                graph_pool = self.graph_pools[index] = GraphPool(current_device(), index)
            return graph_pool


def _reset(captured: CapturedGraph) -> None:
    """Release what was captured now."""
    (captured.root if captured.graft is None else captured.graft.child).reset()


def _undo(entry: Entry) -> None:
    """Release an entry that nobody keeps; of a path, the tree stays."""
    if entry.captured is not None and entry.captured.graft is not None:
        _reset(entry.captured)
    else:
        entry.release()


def _as_ours(error: Exception) -> GfxGraphError:
    """An error, as one of ours."""
    if isinstance(error, GfxGraphError):
        return error
    wrapped = CaptureError(f"cannot be captured: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _agrees(spec: Spec, first: Spec, is_lifted: bool) -> bool:
    """Whether a run of ours has given, and stored in its arguments, what the first call has."""
    if "stores" in (spec[0], first[0]):
        return spec[:3] == first[:3] and spec[3][: len(first[3])] == first[3]
    return bool((spec[3][0] if is_lifted else spec) == first)


@dataclass
class _Site:
    """The surroundings of one capture.

    Attributes:
        graph_pool: where the graph is captured.
        allocated: bytes that tensors held before.
        target: the function, and the static inputs; the capture may put others there.
        extended: the tree that gets another path, and its static inputs.
        leaves: the arguments of the call.
    """

    graph_pool: GraphPool
    allocated: int
    target: Target
    extended: tuple[CapturedGraph, list[torch.Tensor]] | None
    leaves: Sequence[torch.Tensor]


def _place(
    leaves: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> tuple[int, torch.device]:
    """Which one of the devices a graph runs on, as a number and as torch says it.

    Raises:
        CaptureError: there are tensors, and all are elsewhere.
    """
    device, known = current_device(), [*leaves, *outputs]
    if known and all(t.device.type != device.type for t in known):
        raise CaptureError(f"no tensor among arguments and results is on {device.type}")
    index = index_of(device, known)
    return index, torch.device("cuda", index) if device.type == "cuda" else torch.device("cpu")


_PADDED = (
    "With buckets a graph would send more than eager execution does, which another rank may be in."
)
_STIRS = (
    "a call changes {}, a set, and nothing can put back in which order its items come, or which "
    "one its pop() gives; so no graph is made of that call. Keep such items in a list or a dict, "
    "or outside."
)
