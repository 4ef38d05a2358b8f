"""The strategy of a callable with buckets: any size is answered from graphs of a few sizes."""

from __future__ import annotations

import functools
import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...errors import ArgumentError, CaptureError, one_line
from ...forking import new_lock
from ...graph.compare import Tolerance
from ...graph.locks import inside_gfxgraph, is_only_thread, turn_if_free, turn_to_capture
from ...interpose.interrupts import interrupt_in, own_handlers
from ...record.effects import storage_key
from ...stats import Elements, tally
from .. import timing, validation
from ..dispatch import Dispatcher, Exact
from ..entries import Entries
from ..entry import Entry, Refusal
from ..key import Call, key_of, no_graph_now
from ..layout import LayoutKey
from ..narrow import NoObjects
from ..number_inputs import NumberDispatcher
from ..options import Options
from ..replay import NO_MATCH, FastPath, builder, miss
from ..request import Request, Wanted, WhyUnlike
from ..signature import flatten
from ..static_inputs import first_of_each, made_in, overlapping
from ..stats import GraphedStats
from .made import made_like
from .padding import cut, dim_of
from .rows import Ran
from .sized import SizedReplays, shapes_of
from .sizes import Buckets, SizedCall
from .stats import PoolStats
from .traffic import suggest_buckets
from .verdicts import RUNS_OF_A_RECORDING, Case, Verdicts, runner

__all__ = ["Padded", "new_dispatcher"]

# Tries to judge a graph of a recipe beside other threads.
_MAX_JUDGED = 8

_FEW = (
    f"calls of this size are few: one is recorded after {RUNS_OF_A_RECORDING} others, and then the "
    "graph of a bucket answers them"
)
_LINKED = (
    "result: some of its tensors share memory. A padded call cannot cut them so that they still "
    "do. Return copies."
)

_TWO_WAYS = (
    "argument: one tensor is passed as two arguments that are padded differently, which would make "
    "two tensors of it. Pass a copy of it, or pad both alike."
)


class Padded(Exact):
    """Calls are padded to buckets, and the results are cut.

    Args:
        buckets: what to pad to.
        verify: tolerance of comparisons; ``False``: nothing is compared.
        name: of the callable.
    """

    def __init__(self, buckets: Buckets, verify: Tolerance, name: str) -> None:
        super().__init__(shares_inputs=True)
        self.buckets = buckets
        self.kinds = math.prod(map(len, buckets.sizes.values()))
        self.layout = LayoutKey(is_padded=True)
        self.objects = NoObjects()
        self._verify = verify
        self._verdicts = Verdicts(buckets, verify)
        self._name = name
        self._sized = SizedReplays()
        self._timed = timing.timed_always(name, self._sized.fast_path, NO_MATCH)
        self._lock = new_lock()
        self._traffic: Counter[tuple[int, ...]] = Counter()
        self._captured_for: set[tuple[torch.dtype, ...]] = set()
        #: Of a size: what it asks for, and what is computed.
        self._elements: dict[tuple[int, ...], tuple[int, int]] = {}
        #: Ends the count of elements that the process keeps; ``None``: there is none yet.
        self._end_of_count: Callable[[], object] | None = None

    def _begin_to_count(self) -> None:
        """Let the process count the elements of calls, until they are forgotten or we are gone."""
        traffic, answered = self._traffic, self._sized.answered
        read = functools.partial(_elements, self.buckets, self._elements, traffic, answered)
        elements = Elements(read)
        tally.join(elements, self._name)
        end = weakref.finalize(self, tally.retire, elements)
        end.atexit = False
        self._end_of_count = end

    def forget(self) -> None:
        """Forget graphs, verdicts and traffic."""
        with self._lock:
            self._sized.forget()
            self.templates.clear()
            self._verdicts.forget()
            self._captured_for.clear()
            self._traffic = Counter()
            if self._end_of_count is not None:
                self._end_of_count()  # a new one begins with the next call: this may be a finalizer
            self._end_of_count = None

    # How a call finds its bucket.

    def answer(self, dispatcher: Dispatcher, call: Call) -> Any:
        """Count the size of a call, then answer it.

        Raises:
            ArgumentError: the arguments have no dynamic dimension, disagree on its size, are too
                large where ``larger="error"``, or of another dtype than all buckets were captured
                for.
        """
        shapes = shapes_of(call.args, call.kwargs)
        sized = SizedCall.of(call, self.buckets, shapes)
        self._check_dtypes(sized)
        with self._lock:
            if self._end_of_count is None:
                self._begin_to_count()
            self._traffic[self.buckets.in_order(sized.sizes)] += 1
        return self._answer(dispatcher, sized)

    def _answer(self, dispatcher: Dispatcher, call: SizedCall) -> Any:
        if 0 in call.sizes.values():  # there is nothing to compute, so no fallback either
            dispatcher.entries.count_eager_call()
            return call.run()
        if self._is_padded_in_two_ways(call):
            return dispatcher.run_eagerly(*call.given, _TWO_WAYS)
        too_large = [n for n, size in call.sizes.items() if size > self.buckets.sizes[n][-1]]
        if too_large:
            return self._answer_larger(dispatcher, call, too_large)
        return dispatcher.answer(call)

    def _is_padded_in_two_ways(self, call: SizedCall) -> bool:
        """Whether one tensor comes as two arguments of which only one is padded, or otherwise."""

        def way(n: int) -> Any:
            return call.plan[n], self.buckets.pad_of(call.names[n])

        same = enumerate(first_of_each(call.leaves))
        return any(n != first and way(n) != way(first) for n, first in same)

    def request(self, call: Call) -> Request:
        """The call, padded to the smallest bucket that fits.

        Raises:
            ArgumentError: a size is 0, or see :meth:`SizedCall.of`.
        """
        sized = call if isinstance(call, SizedCall) else SizedCall.of(call, self.buckets)
        if 0 in sized.sizes.values():
            raise ArgumentError(
                f"{self._name}: a dynamic dimension has the size 0. Such calls compute nothing, "
                "and have no graph."
            )
        return self._request(sized, self.buckets.of(sized.sizes))

    def _request(self, call: SizedCall, bucket: dict[str, int]) -> Request:
        padded = call.resized(bucket, self.buckets)
        return Request(call, padded, self.key_of(padded))

    def key_of(self, call: Call) -> Any:
        """Structure, shapes, constants and modes."""
        # Padded tensors share no memory. Of those that do, a replay sees whether it writes to them.
        spec, tensors, shared, conditions = key_of(call.fn, call.leaves, call.spec)
        return spec, tensors, shared and shared[1], conditions  # one that comes twice stays one

    def fast_paths(self, order: Sequence[Entry | Refusal]) -> tuple[FastPath, Sequence[Any]]:
        """Sizes that were met before; not while a call may be one to compare."""
        if validation.every() or not order:
            return miss, ()
        return self._timed if timing.is_on() else self._sized.fast_path, ()

    # How a bucket answers it.

    def meet(self, dispatcher: Dispatcher, request: Request, entry: Entry) -> Any:
        """Run the first call of a size for its caller, and compare the bucket with that.

        What a function does for one size only, none of the inputs made for its judgement shows.
        Where they differ the bucket is refused from now on.
        """
        call, _ = _sized(request)
        if self._verdicts.is_met(entry, call.sizes):
            return NO_MATCH
        if self._verdicts.waits(request.key, call.sizes):
            dispatcher.entries.count_fallback(_FEW)  # no reason to raise: a graph will answer it
            dispatcher.entries.count_eager_call()
            return call.run()
        with turn_if_free(all_leave=False) as is_ours:  # otherwise one of the next calls
            if not is_ours:
                return NO_MATCH
            answer, different, _ = self._meet(dispatcher, request, entry)
        entries = dispatcher.entries
        if different is not None:
            with entries.lock:
                if entries.get(request.key) is entry:
                    entries.drop(request.key)
                    entries.keep(request.key, Refusal(entry.key, different, CaptureError))
            entries.release_dropped()
        return answer

    def prove(
        self, dispatcher: Dispatcher, request: Request, entry: Entry
    ) -> tuple[Any, str | None]:
        """Run the first call for its caller, compare the bucket with it, and judge it anew."""
        with turn_if_free(all_leave=False) as is_ours:
            if not is_ours or not entry.unproven:
                return NO_MATCH, None
            wanted = self.wanted(dispatcher.entries, request, [], is_captured=True)
            try:
                wanted.judge(entry, dispatcher.builder.why_unlike)
            except Exception as error:  # as where a graph is made: it is no use
                interrupt = interrupt_in(error)
                if interrupt is not None:
                    raise interrupt from interrupt.__cause__
                # A thread that draws random numbers meanwhile may be the reason.
                tries = dispatcher.entries.count_try(f"judged {entry.key}")
                is_doubtful = tries < _MAX_JUDGED and not is_only_thread()
                return NO_MATCH, None if is_doubtful else str(error)
            answer, different, is_compared = self._meet(dispatcher, request, entry)
        if different is None and not is_compared:
            different = "it could not be replayed"
        return answer, different

    def _meet(
        self, dispatcher: Dispatcher, request: Request, entry: Entry
    ) -> tuple[Any, str | None, bool]:
        """The result of a call, how a replay differs from it, and whether both were compared."""
        call, padded = _sized(request)
        captured, entries = entry.captured, dispatcher.entries
        run, got, expected, different = runner(captured), None, None, None
        is_to_replay = False
        try:
            # Rolled back: then it is seen what the run for the caller will read, do and leave.
            different = self._verdicts.why_unlike(call, entry, dispatcher.builder.why_unlike)
            if different is None and captured is not None:
                self._verdicts.judge_at(call, padded, entry)
                is_to_replay = captured.plain
                if not captured.plain:
                    expected, got = run(call.fn, call), run(call.fn, padded)
        except torch.OutOfMemoryError as error:  # the call itself may well have room
            entries.count_fallback(f"no room to record a call of its size: {one_line(error)}")
        except Exception as error:
            if interrupt_in(error):
                raise
            different = str(error)
        with inside_gfxgraph(), own_handlers():
            answer = call.run()
        entries.count_eager_call()
        if is_to_replay:
            result = entry.replay(call.fn, padded.args, padded.kwargs, padded.leaves)
            if result is not NO_MATCH:
                entry.uncount()
                expected, got = Ran(*flatten(answer), []), Ran(*flatten(result), [])
        if expected is not None and got is not None and self._verdicts.compares(entry):
            different = self._verdicts.difference(call, padded, entry, expected, got)
        if got is not None and different is None and self._verify is not False:
            with entries.lock:
                self._verdicts.add_met(entry, call.sizes)
        return answer, different, got is not None

    def trial(self, request: Request, entry: Entry) -> Callable[[], Any] | None:
        """A padded replay, where padding draws the random numbers that eager execution does."""
        call, padded = _sized(request)
        captured = entry.captured
        if captured is None or (captured.draws_random_numbers and call.sizes != padded.sizes):
            return None
        return functools.partial(self._replay, request, entry, entry.trial())

    def replay(self, request: Request, entry: Entry) -> Any:
        """Replay a bucket, and cut the result to the rows asked for."""
        return self._replay(request, entry, entry.replay)

    def _replay(self, request: Request, entry: Entry, replay: Callable[..., Any]) -> Any:
        call, padded = _sized(request)
        result = replay(call.fn, padded.args, padded.kwargs, padded.leaves)
        if result is NO_MATCH:
            return NO_MATCH
        if call.shapes is not None and self._verdicts.is_met(entry, call.sizes):
            self._sized.add(call, entry, flatten(result)[1], self.buckets, self.layout)
        if call.sizes == padded.sizes:
            return result
        results, spec = flatten(result)
        rows: list[torch.Tensor] = []
        for n, first in enumerate(first_of_each(results)):
            whole = results[n]
            part = cut(whole, entry.carried[n], call.sizes)
            if first != n:  # one tensor that comes twice
                part = rows[first]
            # A copy keeps the order of the dimensions in memory, and leaves the gaps out, as eager
            # execution gives it. What lives outside is no copy there either.
            elif _has_gaps(part, whole) and n not in entry.linked and not entry.is_outside(whole):
                part = made_in(whole.is_inference(), part.clone)()
            rows.append(part)
        return builder(spec, rows)()

    # How a bucket is captured.

    def wanted(
        self,
        entries: Entries,
        request: Request,
        changes: list[str],
        result: Any = NO_MATCH,
        is_captured: bool = False,
    ) -> Wanted:
        """The graph of a bucket, judged by a call that is smaller than the bucket.

        ``is_captured``: there is one, which was captured with other arguments.
        """
        unproven = request.unproven
        call, padded = _sized(request)
        called, bucket = result is not NO_MATCH, padded.sizes
        # Something has to be padded for a look at what padding does.
        if result is NO_MATCH or any(call.sizes[n] == size > 1 for n, size in bucket.items()):
            template = self.template(entries, call, unproven)
            sizes = self._verdicts.smaller(template, bucket)
            # Where there is a graph for another size, made inputs are known to be taken.
            is_known = not called and self._verdicts.judges and template is not None
            make = functools.partial(made_like, call) if is_known else call.resized
            call = make(sizes, self.buckets)
            padded, result = call.resized(bucket, self.buckets), NO_MATCH
        case = Case(call, padded, request.key, result, not is_captured)
        judge = functools.partial(self._judge, entries, case, unproven)
        return Wanted(padded, request.key, changes, called=called, judge=judge, unproven=unproven)

    def _judge(
        self,
        entries: Entries,
        case: Case,
        unproven: bool,
        entry: Entry,
        why_unlike: WhyUnlike,
    ) -> None:
        template = self.template(entries, case.padded, unproven)
        if template is not None:  # a graph that was made after another one has no recording
            entry.asks_attributes |= template.asks_attributes
        self._verdicts.judge(case, entry, template, why_unlike)
        inputs, outputs = entry.static_tensors
        # Views of arguments are copies, and what lives outside is given as it is.
        elsewhere = set(map(storage_key, inputs))
        own = [
            n
            for n, output in enumerate(outputs)
            if storage_key(output) not in elsewhere and not entry.is_outside(output)
        ]
        entry.linked = frozenset(own[n] for n in overlapping([outputs[n] for n in own]))
        fewer = {name: max(1, size - 1) for name, size in case.padded.sizes.items()}
        if any(
            _has_gaps(cut(outputs[n], entry.carried[n], fewer), outputs[n]) for n in entry.linked
        ):
            raise CaptureError(_LINKED)

    def prepare_all(
        self,
        dispatcher: Dispatcher,
        call: Call,
        progress: Callable[[Sequence[Any]], Iterable[Any]],
    ) -> None:
        """Capture all buckets now; see :meth:`ShapeBucketPool.capture`."""
        reason = no_graph_now()
        if reason is not None:
            raise CaptureError(f"{dispatcher.name}: {reason}")
        call.leaves, call.spec = flatten((call.args, call.kwargs))
        sized = SizedCall.of(call, self.buckets)
        if 0 in sized.sizes.values():
            raise ArgumentError("capture() takes arguments with at least one row.")
        choices = self.buckets.choices(sized.sizes)
        dispatcher.entries.keep_after = dispatcher.entries.tick()
        try:
            for chosen in progress([tuple(bucket.values()) for bucket in choices]):
                bucket = dict(zip(sized.sizes, chosen, strict=True))
                with turn_to_capture():
                    dispatcher.make(self._request(sized, bucket))
        finally:
            dispatcher.entries.keep_after = float("inf")
        self._captured_for.add(_dtypes(sized.leaves))

    # Calls above the largest bucket.

    def _answer_larger(self, dispatcher: Dispatcher, call: SizedCall, too_large: list[str]) -> Any:
        name = too_large[0]
        step, whole = self.buckets.sizes[name][-1], call.sizes[name]
        if self.buckets.larger == "error":
            raise ArgumentError(
                f"{name} {whole} is above the largest bucket, {step}. Add a bucket, or "
                'let larger="eager" or "split".'
            )
        reason: str | None = f"{name} is above the largest bucket"
        if self.buckets.larger == "split" and len(too_large) == 1:
            piece = call.piece(name, 0, step)
            entry, reason = self._entry_now(dispatcher, piece)
            if entry is not None:
                record = dispatcher.builder.why_unlike
                reason = self._verdicts.against_pieces(call, name, entry, record)
            if entry is not None and reason is None:
                return self._answer_in_pieces(dispatcher, call, name, entry)
        return dispatcher.run_eagerly(*call.given, reason or "")

    def _answer_in_pieces(
        self, dispatcher: Dispatcher, call: SizedCall, name: str, entry: Entry
    ) -> Any:
        parts = call.pieces(name, self.buckets.sizes[name][-1])
        results, specs = zip(
            *(flatten(self._answer(dispatcher, part)) for part in parts), strict=True
        )
        merged: list[torch.Tensor] = []
        for n, first in enumerate(first_of_each(results[0])):
            dim = dim_of(entry.carried[n], name)
            whole = results[0][n] if dim is None else torch.cat([part[n] for part in results], dim)
            merged.append(whole if first == n else merged[first])
        return builder(specs[0], merged)()

    def _entry_now(
        self, dispatcher: Dispatcher, call: SizedCall
    ) -> tuple[Entry | None, str | None]:
        """The graph for a call, made without running it; or why there is none."""
        request = self.request(call)
        with turn_if_free() as is_ours:
            if not is_ours:
                return None, "another thread is capturing, which a new bucket would need to do"
            error = dispatcher.make(request)
            reason = None if error is None else str(error)
            error = None  # its traceback holds the tensors of the failed capture
        if reason is not None:
            return None, reason
        found = dispatcher.entries.get(request.key)
        return found if isinstance(found, Entry) else None, "its graph was released meanwhile"

    # What is known of the calls.

    def suggest(self, count: int, dim: str | None) -> list[int]:
        """See :meth:`ShapeBucketPool.suggest`."""
        names = tuple(self.buckets.sizes)
        dim = names[0] if dim is None and len(names) == 1 else dim
        if dim not in names:
            raise ArgumentError(f"suggest(dim={dim!r}): expected one of {', '.join(names)}.")
        sizes: Counter[int] = Counter()
        for found, times in self._all_traffic().items():
            sizes[found[names.index(dim)]] += times
        sizes.pop(0, None)
        return suggest_buckets(sizes, count=count)

    def stats(self, known: GraphedStats) -> PoolStats:
        """The statistics, with those of sizes."""
        traffic = self._all_traffic()
        asked, computed = _elements(self.buckets, self._elements, traffic)
        return PoolStats(
            **vars(known),
            traffic=dict(traffic),
            asked=asked,
            computed=computed,
            dims=tuple(self.buckets.sizes),
        )

    def _all_traffic(self) -> Counter[tuple[int, ...]]:
        with self._lock:
            return self._traffic + Counter(self._sized.answered)

    def _check_dtypes(self, call: SizedCall) -> None:
        """A call that capture() was not made for is a mistake more often than a wish."""
        found, known = _dtypes(call.leaves), self._captured_for
        if not known or found in known:
            return
        expected = next((k for k in known if len(k) == len(found)), None)
        if expected is not None:
            wrong = next(
                n for n, pair in enumerate(zip(found, expected, strict=True)) if len(set(pair)) > 1
            )
            raise ArgumentError(
                f"{call.names[wrong]} is {found[wrong]}, but capture() was called with "
                f"{expected[wrong]}. Convert it, or call capture() with such arguments too."
            )


def _elements(
    buckets: Buckets,
    known: dict[tuple[int, ...], tuple[int, int]],
    *traffic: Counter[tuple[int, ...]],
) -> tuple[int, int]:
    """The elements that calls of these sizes asked for, and those computed for them."""
    asked = computed = 0
    for counter in traffic:
        for sizes, times in counter.copy().items():  # another thread may add to it
            of_one = known.get(sizes)
            if of_one is None:
                padded = map(buckets.computed, buckets.sizes, sizes)
                of_one = known[sizes] = math.prod(sizes), math.prod(padded)
            asked += times * of_one[0]
            computed += times * of_one[1]
    return asked, computed


def new_dispatcher(name: str, options: Options, method: Any = None) -> Dispatcher:
    """The dispatcher that ``options`` ask for."""
    strategy = Exact() if options.buckets is None else Padded(options.buckets, options.verify, name)
    options = replace(options, max_graphs=max(options.max_graphs, 2 * strategy.kinds))
    if options.inputs:
        return NumberDispatcher(options.inputs, name, options, strategy, method)
    return Dispatcher(name, options, strategy, method)


def _has_gaps(part: torch.Tensor, whole: torch.Tensor) -> bool:
    """Whether rows of a tensor without gaps have gaps."""
    return part is not whole and _is_dense(whole) and not _is_dense(part)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie in memory without gaps, in whatever order."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def _sized(request: Request) -> tuple[SizedCall, SizedCall]:
    """The call, and the call padded to its bucket."""
    call, fitted = request.call, request.fitted
    assert isinstance(call, SizedCall) and isinstance(fitted, SizedCall)
    return call, fitted


def _dtypes(leaves: list[torch.Tensor]) -> tuple[torch.dtype, ...]:
    return tuple(leaf.dtype for leaf in leaves)
