"""All graphs of a callable that pads its calls to buckets: any size from graphs of a few."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from ...call import validation
from ...device import current_device
from ...errors import ArgumentError, CaptureError, GfxGraphError
from ...graph.captured import CapturedGraph
from ...graph.locks import CAPTURING, inside_gfxgraph, is_inside_gfxgraph, turn_to_capture
from ...graph.rollback import run_and_roll_back
from ...record.effects import UndoLog, storage_key
from ...record.explain import some
from ...record.recorder import Recording
from ...tables import fields as fields_of
from ..engine import IN_USE, Engine, GraphedStats, Options, key_of, no_graph_now, taken_apart
from ..entry import Entry, FastPath, Refusal, copier, miss
from ..signature import NO_MATCH, Spec, builder, flatten
from ..thrash import Thrash
from .made import made_like
from .padding import cut, fills
from .rows import Judge, Ran, Runner, carried_by, pieces_differ, tells_apart
from .sizes import Buckets, Call, argument_names, labels, product
from .traffic import suggest_buckets

__all__ = ["BucketEngine", "PoolStats", "new_engine"]

# Sizes that have a quick way of their own, some kilobytes each.
_MAX_SIZED = 1024


@dataclass(frozen=True)
class PoolStats(GraphedStats):
    """What a callable with buckets has done; see :class:`~gfxgraph.GraphedStats` for the rest.

    Attributes:
        traffic: how often each size came, a tuple in the order of ``dims``.
        asked: elements of the dynamic dimensions that calls asked for (rows, or rows x length).
        computed: elements that were computed for them, padding included.
        dims: the names of the dynamic dimensions.
    """

    traffic: dict[tuple[int, ...], int]
    asked: int
    computed: int
    dims: tuple[str, ...]

    def _lines(self) -> list[str]:
        sizes = ", ".join(f"{'x'.join(map(str, s))}: {n}" for s, n in self.traffic.items())
        of_sizes = (f"calls of {'x'.join(self.dims)}", sizes), ("padding", f"{self.padding:.1%}")
        return super()._lines() + fields_of(of_sizes)

    @property
    def padding(self) -> float:
        """Share of what was computed that nobody asked for, 0.0 to 1.0."""
        return 1 - self.asked / self.computed if self.computed else 0.0


class BucketEngine(Engine):
    """All graphs of one callable whose calls are padded to buckets.

    Args:
        name: what reasons and reports call it.
        options: its ``buckets`` are what to pad to.
        method: see :class:`Engine`.
    """

    _pads = True

    def __init__(self, name: str, options: Options, method: Any = None) -> None:
        assert options.buckets is not None
        self.buckets: Buckets = options.buckets
        count = product(map(len, self.buckets.sizes.values()))
        options = replace(options, max_graphs=max(options.max_graphs, 2 * count))
        #: Quick ways of calls, by the shapes of their arguments.
        self._sized: dict[Any, FastPath] = {}
        #: What these answered, by size; changed under the lock of all replays only.
        self._quick: Counter[tuple[int, ...]] = Counter()
        self._traffic: Counter[tuple[int, ...]] = Counter()
        self._models: dict[Any, Entry] = {}
        self._captured_for: set[tuple[torch.dtype, ...]] = set()
        #: By function and kind of call: sizes (with their names) at which it was compared. There
        #: is no entry where nothing is to be compared.
        self._met: dict[Any, set[tuple[str, int]]] = {}
        #: By the same: up to which sizes it was judged, by name.
        self._judged: dict[Any, dict[str, int]] = {}
        #: Graph -> dimension -> why calls above it are not answered in pieces, if they are not.
        self._in_pieces: weakref.WeakKeyDictionary[Entry, dict[str, str | None]]
        self._in_pieces = weakref.WeakKeyDictionary()
        super().__init__(name, options, method, share_inputs=True)

    def _quick_way(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Answer a call of a size that was met before."""
        shapes = _shapes(args, kwargs)
        fast_path = self._sized.get(shapes)
        if fast_path is None:
            return NO_MATCH
        result = fast_path(fn, args, kwargs)
        if result is NO_MATCH:
            self._sized.pop(shapes, None)  # its graph may be gone
        return result

    def _set_hot(self, entries: Any) -> None:
        super()._set_hot(entries)
        self.front = miss if validation.every() or self._pauses else self._quick_way

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call that no quick way did.

        Raises:
            ArgumentError: the arguments have no dynamic dimension, disagree on its size, are too
                large where ``larger="error"``, or of another dtype than all buckets were captured
                for.
        """
        if is_inside_gfxgraph():  # inside the graph of a caller: its graph includes our work
            return fn(*args, **kwargs)
        reason = no_graph_now()
        if reason is not None:
            return self._run_eagerly(fn, args, kwargs, reason)
        leaves, spec, reason = taken_apart(args, kwargs)
        if reason is not None:
            return self._run_eagerly(fn, args, kwargs, reason)
        call = self._taken_apart(fn, args, kwargs, leaves, spec)
        self._check_dtypes(call)
        with self._lock:
            self._traffic[self._in_order(call.sizes)] += 1
        return self._answer(fn, call, _shapes(args, kwargs))

    def prepare_all(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        progress: Callable[[Sequence[Any]], Iterable[Any]],
    ) -> None:
        """Capture all buckets now; see :meth:`ShapeBucketPool.capture`."""
        reason = no_graph_now()
        if reason is not None:
            raise CaptureError(f"{self.name}: {reason}")
        call = self._taken_apart(fn, args, kwargs, *flatten((args, kwargs)))
        if 0 in call.sizes.values():
            raise ArgumentError("capture() takes arguments with at least one row.")
        choices = self.buckets.choices(call.sizes)
        with self._lock:
            self._keep_after = self._clock
        try:
            for chosen in progress([tuple(bucket.values()) for bucket in choices]):
                bucket = dict(zip(call.sizes, chosen, strict=True))
                with turn_to_capture():
                    self._prepare_bucket(fn, call, bucket)
        finally:
            self._keep_after = float("inf")
        self._captured_for.add(_dtypes(call.leaves))

    def suggest(self, count: int, dim: str | None) -> list[int]:
        """What :meth:`ShapeBucketPool.suggest` gives."""
        names = tuple(self.buckets.sizes)
        dim = names[0] if dim is None and len(names) == 1 else dim
        if dim not in names:
            raise ArgumentError(f"suggest(dim={dim!r}): expected one of {', '.join(names)}.")
        sizes: Counter[int] = Counter()
        for found, times in self._all_traffic().items():
            sizes[found[names.index(dim)]] += times
        sizes.pop(0, None)
        return suggest_buckets(sizes, count=count)

    def stats(self) -> PoolStats:
        """What :meth:`Graphed.stats` gives."""
        known = super().stats()
        traffic, names = self._all_traffic(), tuple(self.buckets.sizes)
        return PoolStats(
            **{field.name: getattr(known, field.name) for field in fields(known)},
            traffic=dict(traffic),
            asked=sum(times * product(sizes) for sizes, times in traffic.items()),
            computed=sum(
                times * product(map(self.buckets.computed, names, sizes))
                for sizes, times in traffic.items()
            ),
            dims=names,
        )

    def empty(self) -> list[Entry]:
        """Forget everything; gives the graphs, for the caller to release."""
        with self._lock:
            self._sized.clear()
            self._models.clear()
            self._met.clear()
            self._judged.clear()
            self._captured_for.clear()
            self._traffic.clear()
            self._quick = Counter()
            return super().empty()

    def _drop(self, key: Any) -> int:
        entry = self._keys[key]
        self._models = {k: model for k, model in self._models.items() if model is not entry}
        return super()._drop(key)

    def static_inputs(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """There are none to write into: the graphs of all buckets use the same memory."""
        raise ArgumentError(
            f"{self.name}: with buckets= all graphs share their static inputs; pass the arguments "
            "to each call."
        )

    # How a call is answered.

    def _answer(self, fn: Callable[..., Any], call: Call, shapes: Any = None) -> Any:
        if 0 in call.sizes.values():  # there is nothing to compute, so no fallback either
            with self._lock:
                self._counts.eager_calls += 1
            return fn(*call.args, **call.kwargs)
        too_large = [n for n, size in call.sizes.items() if size > self.buckets.sizes[n][-1]]
        if too_large:
            return self._answer_larger(fn, call, too_large)
        padded = call.resized(self.buckets.of(call.sizes), self.buckets)
        key = self._key_of(fn, padded.leaves, padded.spec)
        entry, changes = self._known(key)
        if entry is None:
            reason = self._postponed(key, padded.spec)
            if reason is not None:
                return self._run_eagerly(fn, call.args, call.kwargs, reason)
            make = functools.partial(self._make, fn, call, padded.sizes, key, changes)
            return self._first_call(fn, call.args, call.kwargs, key, padded.leaves, make)
        if isinstance(entry, Refusal):
            return self._run_eagerly(fn, call.args, call.kwargs, entry.reason, entry.kind)
        is_met = self._is_met(key, call.sizes)
        if not is_met and CAPTURING.acquire(blocking=False):  # else one of the next calls
            try:
                return self._meet(fn, call, padded, key, entry)
            finally:
                CAPTURING.release()
        replay = functools.partial(entry.replay, fn, padded.args, padded.kwargs, padded.leaves)
        if validation.due(entry) and not self._draws_other_numbers(entry, call, padded):
            finished = functools.partial(self._cut, entry, call, padded, replay)
            run = functools.partial(fn, *call.args, **call.kwargs)
            result = self._compared(key, entry, call.leaves, finished, run)
            if result is not NO_MATCH:
                return result
        result = replay()
        if result is NO_MATCH:
            if self._keys.get(key) is not entry:  # released by another thread meanwhile
                return self._answer(fn, call, shapes)
            return self._run_eagerly(fn, call.args, call.kwargs, IN_USE)
        if is_met and shapes is not None and len(self._sized) < _MAX_SIZED:
            self._make_sized(fn, shapes, call, entry, flatten(result)[1])
        return self._cut(entry, call, padded, lambda: result)

    @staticmethod
    def _cut(entry: Entry, call: Call, padded: Call, replay: Callable[[], Any]) -> Any:
        """The rows asked for of what a replay gives."""
        result = replay()
        if result is NO_MATCH or call.sizes == padded.sizes:
            return result
        results, spec = flatten(result)
        pairs = zip(results, entry.carried, strict=True)
        return builder(spec, [cut(result, dims, call.sizes) for result, dims in pairs])()

    def _is_met(self, key: Any, sizes: Mapping[str, int]) -> bool:
        """Whether calls of these sizes were compared with eager execution, where they are to be."""
        met = self._met.get(_alike(key))
        return met is None or met.issuperset(sizes.items())

    def _meet(
        self, fn: Callable[..., Any], call: Call, padded: Call, key: Any, entry: Entry
    ) -> Any:
        """Run the first call of a size for its caller, and compare the bucket with that.

        What a function does for one size only, none of the inputs made for its judgement shows.
        Where they differ the bucket is refused from now on. The caller holds CAPTURING.
        """
        captured, verify = entry.captured, self._options.verify
        run, got, different = self._runner(captured), None, None
        try:
            if captured is not None and not captured.plain:  # before the state is that of later
                got, expected = run(fn, padded), run(fn, call)
        except GfxGraphError as error:
            different = str(error)
        state = self._state_before(fn, call.args, call.kwargs)
        with inside_gfxgraph():
            answer = fn(*call.args, **call.kwargs)
        with self._lock:
            self._counts.eager_calls += 1
        rebound = state.replaced()
        if rebound:
            different = (
                f"calls of another size rebind {some(rebound)} to something else, which a replay "
                "would not do."
            )
        elif captured is not None and captured.plain:
            result = entry.replay(fn, padded.args, padded.kwargs, padded.leaves)
            if result is not NO_MATCH:
                entry.uncount()
                expected, got = Ran(*flatten(answer), []), Ran(*flatten(result), [])
        if got is not None:
            judge = Judge(fn, call, padded.sizes, self.buckets, entry.carried, run, verify)
            different = judge.difference(expected, got, call.sizes)
        with self._lock:
            if different is None:
                if got is not None:
                    self._met.setdefault(_alike(key), set()).update(call.sizes.items())
            elif self._keys.get(key) is entry:
                self._drop(key)
                self._keep(key, Refusal(entry.key, different, CaptureError, miss))
        self._release_dropped()
        return answer

    @staticmethod
    def _draws_other_numbers(entry: Entry, call: Call, padded: Call) -> bool:
        """Whether padding makes it draw others than eager execution does."""
        captured = entry.captured
        return captured is None or (captured.draws_random_numbers and call.sizes != padded.sizes)

    def _prepare_bucket(
        self, fn: Callable[..., Any], call: Call, bucket: dict[str, int]
    ) -> Exception | None:
        padded = call.resized(bucket, self.buckets)
        key = self._key_of(fn, padded.leaves, padded.spec)
        known, changes = self._known(key)
        if isinstance(known, Refusal) and not known.is_for_room:
            return known.kind(known.reason)
        return None if isinstance(known, Entry) else self._make(fn, call, bucket, key, changes)

    def _make(
        self,
        fn: Callable[..., Any],
        call: Call,
        bucket: dict[str, int],
        key: Any,
        changes: list[str],
        result: Any = NO_MATCH,
    ) -> Exception | None:
        """Keep a graph for a bucket, or a refusal; the caller holds CAPTURING.

        Args:
            fn: the function.
            call: a call, of any size.
            bucket: to capture.
            key: of the call padded to the bucket.
            changes: see :meth:`_try_capture`.
            result: what the call gave, if it was made.
        """
        if isinstance(self._keys.get(key), Entry):
            return None
        called = result is not NO_MATCH
        # Something has to be padded for a look at what padding does.
        if result is NO_MATCH or any(call.sizes[n] == size > 1 for n, size in bucket.items()):
            sizes = {name: _much_smaller(size) for name, size in bucket.items()}
            # Where there is a graph for another size, made inputs are known to be taken.
            is_known = not called and self._is_judged(fn, call)
            small = (
                made_like(call, sizes, self.buckets)
                if is_known
                else call.resized(sizes, self.buckets)
            )
            call, result = small, NO_MATCH
        padded = call.resized(bucket, self.buckets)
        judge = functools.partial(self._judge, fn, call, padded, result)
        try:
            return self._try_capture(
                fn, key, padded.leaves, padded.spec, NO_MATCH, changes, judge=judge, called=called
            )
        finally:
            entry = self._keys.get(key)
            if isinstance(entry, Entry) and entry.captured is not None and entry.captured.plain:
                self._models[_alike(key)] = entry

    def _new_thrash(self) -> Thrash:
        kinds = product(map(len, self.buckets.sizes.values()))
        return Thrash(kinds, limit=self._options.max_graphs, is_padded=True)

    def _key_of(self, fn: Callable[..., Any], leaves: list[torch.Tensor], spec: Spec) -> Any:
        # Padded tensors share no memory. Of those that do, a replay sees whether it writes to them.
        spec, tensors, _, conditions = key_of(fn, leaves, spec)
        return spec, tensors, conditions

    def _model(
        self, fn: Callable[..., Any], leaves: list[torch.Tensor], spec: Spec
    ) -> Entry | None:
        return self._models.get(_alike(self._key_of(fn, leaves, spec)))

    def _is_judged(self, fn: Callable[..., Any], call: Call) -> bool:
        return (
            self.buckets.rows == "judge"
            and self._options.verify is not False
            and self._model(fn, call.leaves, call.spec) is not None
        )

    def _make_sized(
        self, fn: Callable[..., Any], shapes: Any, call: Call, entry: Entry, result_spec: Spec
    ) -> None:
        """Answer later calls of these very sizes from the static tensors themselves."""
        pads = list(map(self.buckets.pad_of, call.names))
        if any(map(callable, pads)):
            return
        static_inputs, outputs = entry.static_tensors
        if any(map(entry.is_outside, outputs)):
            return
        corners = [
            cut(s, dims, call.sizes) for s, dims in zip(static_inputs, call.plan, strict=True)
        ]
        copy = copier(corners, call.leaves)
        around = [
            fill
            for static, dims, pad in zip(static_inputs, call.plan, pads, strict=True)
            for fill in fills(static, dims, call.sizes, pad)
        ]
        clones: list[Any] = [
            cut(output, dims, call.sizes).clone
            for output, dims in zip(outputs, entry.carried, strict=True)
        ]
        make, quick, sizes = builder(result_spec, clones), self._quick, self._in_order(call.sizes)

        def filled(given: Sequence[torch.Tensor]) -> None:
            copy(given)
            for fill in around:
                fill()

        def build() -> Any:
            quick[sizes] += 1
            return make()

        replay = entry.replay_with(filled if around else copy, build)
        if replay is not None:
            self._sized[shapes] = self.recogniser(fn, call.leaves, call.spec)(replay)

    def _answer_larger(self, fn: Callable[..., Any], call: Call, too_large: list[str]) -> Any:
        name = too_large[0]
        step, whole = self.buckets.sizes[name][-1], call.sizes[name]
        if self.buckets.larger == "error":
            raise ArgumentError(
                f"{name} {whole} is above the largest bucket, {step}. Add a bucket, or "
                'let larger="eager" or "split".'
            )
        reason: str | None = f"{name} is above the largest bucket"
        if self.buckets.larger == "split" and len(too_large) == 1:
            first = call.piece(name, 0, step)
            entry, reason = self._entry_now(fn, first)
            if entry is not None:
                reason = self._whole_in_pieces(fn, call, name, entry)
            if entry is not None and reason is None:
                starts = range(0, whole, step)
                parts = [call.piece(name, at, min(step, whole - at)) for at in starts]
                results, specs = zip(
                    *(flatten(self._answer(fn, part)) for part in parts), strict=True
                )
                merged = []
                for tensors, dims in zip(zip(*results, strict=True), entry.carried, strict=True):
                    dim = next((d for d, of_dim in dims.items() if of_dim == name), None)
                    merged.append(tensors[0] if dim is None else torch.cat(tensors, dim))
                return builder(specs[0], merged)()
        return self._run_eagerly(fn, call.args, call.kwargs, reason or "")

    def _entry_now(self, fn: Callable[..., Any], call: Call) -> tuple[Entry | None, str | None]:
        """The graph for a call, made without running it; or why there is none."""
        bucket = self.buckets.of(call.sizes)
        if not CAPTURING.acquire(blocking=False):
            return None, "another thread is capturing, which a new bucket would need to do"
        try:
            reason = _text(self._prepare_bucket(fn, call, bucket))
        finally:
            CAPTURING.release()
        if reason is not None:
            return None, reason
        padded = call.resized(bucket, self.buckets)
        return self.entry(fn, padded.leaves, padded.spec), "its graph was released meanwhile"

    def _whole_in_pieces(
        self, fn: Callable[..., Any], call: Call, name: str, entry: Entry
    ) -> str | None:
        """Why pieces are no answer for such a call; asked once for each graph."""
        known = self._in_pieces.setdefault(entry, {})
        if name not in known:
            if self._options.verify is False or entry.captured is None:
                return None
            if entry.captured.draws_random_numbers:  # only if somebody said that it may
                return None
            if not CAPTURING.acquire(blocking=False):
                return "another thread is capturing, and pieces are to be compared with the whole"
            try:
                whole, step = (
                    made_like(call, call.sizes, self.buckets),
                    self.buckets.sizes[name][-1],
                )
                run, verify = self._runner(entry.captured), self._options.verify
                known[name] = pieces_differ(fn, whole, name, step, entry.carried, run, verify)
            except Exception as error:  # made inputs may be none that it takes
                known[name] = f"it raises {type(error).__name__}: {error}"
            finally:
                CAPTURING.release()
        different = known[name]
        return None if different is None else f'larger="split": {different}'

    # Whether padding leaves alone what was asked for.

    def _judge(
        self, fn: Callable[..., Any], call: Call, padded: Call, result: Any, entry: Entry
    ) -> None:
        """Compare a call with the same call padded, and learn what the outputs carry.

        Raises:
            CaptureError: the graph is no use, since padding changes what was asked for.
        """
        captured, verify = entry.captured, self._options.verify
        assert captured is not None  # just made
        if captured.root.step is not None:
            raise CaptureError(
                f"{entry.where()}: there the host decides how the call goes on, by data of which "
                "padding is a part. Keep that out of the function, or graph it without buckets."
            )
        if captured.written.keys() & set(map(storage_key, entry.static_tensors[0])):
            raise CaptureError(
                "the function writes to an argument, of which a padded call passes a copy. Let it "
                "return what it computes."
            )
        model = self._models.get(_alike(self._key_of(fn, padded.leaves, padded.spec)))
        if verify is False and model is not None:
            entry.carried = model.carried
            return
        run, judged = self._runner(captured), self.buckets.rows == "judge"
        if judged and verify is not False and captured.draws_random_numbers:
            raise CaptureError(
                "the function draws random numbers: padded, it draws others than in eager "
                'execution. If they may be others, say so with rows="independent".'
            )
        got = Ran(captured.sample or entry.static_tensors[1], entry.out_spec, [])
        if not captured.plain:
            got = run(fn, padded)
        expected = run(fn, call) if result is NO_MATCH else Ran(*flatten(result), got.writes)
        self._learn_dims(fn, entry, call, padded, expected, got, run)
        if verify is False or captured.draws_random_numbers:
            return
        judge = Judge(fn, call, padded.sizes, self.buckets, entry.carried, run, verify)
        different = judge.difference(expected, got, call.sizes)
        if different:
            raise CaptureError(different)
        # What was captured after the model of another size reads and does what that does.
        like = None if model is None else model.captured
        if not judged:
            return
        alike = _alike(self._key_of(fn, padded.leaves, padded.spec))
        if like is None or captured.guard is not like.guard:
            self._met[alike], self._judged[alike] = set(), {}
        known = self._judged.setdefault(alike, {})
        if any(size > known.get(name, 1) for name, size in judge.small.items()):
            self._met.setdefault(alike, set()).update(judge())
            known.update(judge.small)
        # The graph was compared with the function at the bucket itself.
        self._met.setdefault(alike, set()).update(call.sizes.items(), padded.sizes.items())

    def _learn_dims(
        self,
        fn: Callable[..., Any],
        entry: Entry,
        call: Call,
        padded: Call,
        expected: Ran,
        got: Ran,
        run: Runner,
    ) -> None:
        """Let the entry know which dimensions of its outputs carry which size.

        Raises:
            CaptureError: the result is no function of the sizes.
        """
        other, of_other, given = call.sizes, expected, self.buckets.out_dims
        if given is None and not tells_apart(other, padded.sizes):
            probe = call.resized(_other_sizes(padded.sizes), self.buckets)
            of_other, other = run(fn, probe), probe.sizes
        if not got.spec == expected.spec == of_other.spec:
            raise CaptureError("the structure or a plain value of the result depends on the size")
        if given is not None:
            entry.carried = given
            _check_out_dims(given, got.tensors, padded.sizes)
            return
        entry.carried = [
            carried_by(position, small.shape, other, large.shape, padded.sizes)
            for position, (small, large) in enumerate(
                zip(of_other.tensors, got.tensors, strict=True)
            )
        ]

    def _runner(self, captured: CapturedGraph | None) -> Runner:
        """A runner for made calls: it runs them and rolls back what they do outside."""
        device = current_device()

        def run(fn: Callable[..., Any], call: Call) -> Ran:
            writes: list[torch.Tensor] = []

            def look(written: UndoLog, recording: Recording) -> None:
                writes.extend(region.clone() for region in written.regions())

            result, draws = run_and_roll_back(
                fn, call.args, call.kwargs, call.leaves, device, captured, look
            )
            return Ran(*flatten(result), writes, draws)

        return run

    # What the arguments are.

    def _taken_apart(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[torch.Tensor],
        spec: Spec,
    ) -> Call:
        names = list(argument_names(fn, spec))
        plan = self.buckets.plan(leaves, names)
        sizes = self._sizes(names, plan, leaves)
        return Call(args, kwargs, leaves, spec, names, list(labels(fn, spec)), plan, sizes)

    def _sizes(
        self, names: list[str], plan: list[Mapping[int, str]], leaves: list[torch.Tensor]
    ) -> dict[str, int]:
        found: dict[str, tuple[int, str]] = {}
        for argument, dims, leaf in zip(names, plan, leaves, strict=True):
            for dim, name in dims.items():
                if not -leaf.dim() <= dim < leaf.dim():
                    raise ArgumentError(
                        f"{argument} has {leaf.dim()} dimensions, but its dimension {dim} is to be "
                        f"{name!r}."
                    )
                size = leaf.shape[dim]
                if name in found and found[name][0] != size:
                    other_size, other = found[name]
                    raise ArgumentError(
                        f"{name!r} is {size} in {argument} and {other_size} in {other}: expected "
                        "one size. Say which dimensions are dynamic with dims=."
                    )
                found[name] = size, argument
        if not found:
            raise ArgumentError(
                "no argument has a dynamic dimension: expected a tensor with a batch dimension"
                f"{'' if self.buckets.dims is None else ' named in dims'}, got {len(leaves)} "
                "tensors."
            )
        return {name: size for name, (size, _) in found.items()}

    def _check_dtypes(self, call: Call) -> None:
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

    def _in_order(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(sizes.get(name, 1) for name in self.buckets.sizes)

    def _all_traffic(self) -> Counter[tuple[int, ...]]:
        with self._lock:
            return self._traffic + Counter(self._quick)


def new_engine(name: str, options: Options, method: Any = None) -> Engine:
    """The engine that ``options`` ask for."""
    return (Engine if options.buckets is None else BucketEngine)(name, options, method)


def _text(error: Exception | None) -> str | None:
    return None if error is None else str(error)


def _alike(key: Any) -> Any:
    """What keys of one function have in common whatever the sizes."""
    spec, tensors, conditions = key
    return spec, tuple((len(shape), *rest) for shape, *rest in tensors), conditions


def _check_out_dims(
    given: list[dict[int, str]], outputs: list[torch.Tensor], bucket: dict[str, int]
) -> None:
    if len(given) != len(outputs):
        raise CaptureError(f"out_dims are for {len(given)} tensors, the result has {len(outputs)}")
    for position, (dims, output) in enumerate(zip(given, outputs, strict=True)):
        for dim, name in dims.items():
            if not -output.dim() <= dim < output.dim() or output.shape[dim] != bucket[name]:
                raise CaptureError(
                    f"out_dims: dimension {dim} of output {position}, of shape "
                    f"{tuple(output.shape)}, is not {name!r}, which is {bucket[name]}"
                )


def _much_smaller(size: int) -> int:
    """A size that leaves much to pad, and is not 1, where models may do something else."""
    return max(2, size // 8) if size > 2 else 1


def _other_sizes(bucket: dict[str, int]) -> dict[str, int]:
    """Sizes near those of a bucket that tell its dimensions apart."""
    other: dict[str, int] = {}
    for n, (name, size) in enumerate(bucket.items(), 1):
        other[name] = size - n if size > n else size + n
    return other


def _dtypes(leaves: list[torch.Tensor]) -> tuple[torch.dtype, ...]:
    return tuple(leaf.dtype for leaf in leaves)


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What tells calls of other sizes and in other modes apart, if all arguments are tensors."""
    try:
        named = tuple([(name, value.shape) for name, value in kwargs.items()]) if kwargs else ()
        shapes = tuple([value.shape for value in args])
        return shapes, named, torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    except AttributeError:
        return None
