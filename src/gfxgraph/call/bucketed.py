"""All graphs of a callable that pads its calls to buckets: any size from graphs of a few."""

from __future__ import annotations

import functools
import inspect
import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

import torch

from ..device import current_device
from ..errors import ArgumentError, CaptureError
from ..graph.capture import CapturedGraph, rehearse
from ..graph.compare import difference
from ..graph.turns import CAPTURING, busy, turn_to_capture
from ..tables import fields as fields_of
from .engine import (
    IN_USE,
    Engine,
    GraphedStats,
    Options,
    key_of,
    no_graph_now,
    taken_apart,
)
from .entry import Attempt, Entry, Refusal, copier
from .padding import Padding, cut, fills, layout_of, pad_to, piece
from .signature import MISS, Spec, builder, flatten
from .thrash import Thrash
from .traffic import suggest_buckets

__all__ = [
    "BucketEngine",
    "Buckets",
    "Dims",
    "Larger",
    "OutDims",
    "PoolStats",
    "argument_names",
    "new_engine",
]

Dims: TypeAlias = Mapping[str, Mapping[int, str]]
OutDims: TypeAlias = Sequence[Mapping[int, str]]
Larger: TypeAlias = Literal["eager", "split", "error"]

_BATCH = "batch"
# Each bucket is a graph, and a combination of buckets too.
_MAX_BUCKETS = 4096
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


class Buckets:
    """Which sizes there are graphs for, and how a call gets to one of them.

    Args:
        sizes: sizes in ascending order; or a mapping from the name of a dimension to its sizes.
        dims: argument name -> dimension -> name of the size; ``None``: dimension 0 of each tensor
            that has one is ``"batch"``.
        pad: what to pad with.
        larger: what becomes of a call above the largest bucket.
        out_dims: for each tensor of the result, dimension -> name; ``None``: seen by comparing.

    Raises:
        ArgumentError: one of them holds what it does not take.
    """

    def __init__(
        self,
        sizes: Sequence[int] | Mapping[str, Sequence[int]],
        dims: Dims | None = None,
        pad: Padding | Mapping[str, Padding] = "auto",
        larger: Larger = "eager",
        out_dims: OutDims | None = None,
    ) -> None:
        if larger not in ("eager", "split", "error"):
            raise ArgumentError(f"larger={larger!r}: expected 'eager', 'split' or 'error'.")
        self.sizes = _checked_buckets(sizes)
        self.dims = None if dims is None else _checked_dims(dims, self.sizes)
        if dims is None and tuple(self.sizes) != (_BATCH,):
            raise ArgumentError(
                f"buckets for {', '.join(map(repr, self.sizes))}: say which dimensions of the "
                'arguments these are, such as dims={"input_ids": {0: "batch", 1: "seq"}}.'
            )
        self.pad = pad
        self.larger = larger
        self.out_dims = None if out_dims is None else [dict(dims) for dims in out_dims]
        unknown = {n for dims in self.out_dims or () for n in dims.values()} - self.sizes.keys()
        if unknown:
            raise ArgumentError(
                f"out_dims name {sorted(unknown)}, but buckets are for {sorted(self.sizes)}."
            )

    def pad_of(self, argument: str) -> Padding:
        """What to pad this argument with."""
        return self.pad.get(argument, "auto") if isinstance(self.pad, Mapping) else self.pad

    def plan(self, leaves: Sequence[torch.Tensor], names: Sequence[str]) -> list[Mapping[int, str]]:
        """For each tensor, in the argument of that name, its dynamic dimensions."""
        if self.dims is None:
            return [{0: _BATCH} if leaf.dim() else {} for leaf in leaves]
        return [self.dims.get(name, {}) for name in names]

    def fitting(self, name: str, size: int) -> int | None:
        """The smallest bucket for such a size."""
        sizes = self.sizes[name]
        position = bisect_left(sizes, size)
        return sizes[position] if position < len(sizes) else None

    def of(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The smallest buckets for such sizes; where there is none, the size."""
        return {name: self.fitting(name, size) or size for name, size in sizes.items()}

    def choices(self, names: Iterable[str]) -> list[dict[str, int]]:
        """All combinations, the largest first."""
        names = list(names)
        found = sorted(itertools.product(*map(self.sizes.__getitem__, names)), reverse=True)
        found.sort(key=_product, reverse=True)
        return [dict(zip(names, sizes, strict=True)) for sizes in found]

    def computed(self, name: str, size: int) -> int:
        """What a size becomes by padding."""
        largest = self.sizes[name][-1]
        if size <= largest:
            return self.fitting(name, size) or size
        if self.larger != "split":
            return size
        whole, rest = divmod(size, largest)
        return whole * largest + (self.fitting(name, rest) or 0 if rest else 0)


@dataclass
class _Call:
    """A call, taken to pieces.

    Attributes:
        args: its arguments.
        kwargs: its keyword arguments.
        leaves: the tensors among them.
        spec: the rest of them.
        names: for each tensor the name of its argument.
        plan: for each tensor its dynamic dimensions.
        sizes: of these, by name.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[torch.Tensor]
    spec: Spec
    names: list[str]
    plan: list[Mapping[int, str]]
    sizes: dict[str, int]

    def with_tensors(self, leaves: list[torch.Tensor], sizes: dict[str, int]) -> _Call:
        """The same call with other tensors."""
        args, kwargs = builder(self.spec, leaves)()
        return replace(self, args=args, kwargs=kwargs, leaves=leaves, sizes=sizes)

    def piece(self, name: str, start: int, length: int) -> _Call:
        """Some of its rows, along the dimensions of that name."""
        pairs = zip(self.leaves, self.plan, strict=True)
        leaves = [piece(leaf, dims, name, start, length) for leaf, dims in pairs]
        return self.with_tensors(leaves, {**self.sizes, name: length})

    def resized(self, sizes: dict[str, int], buckets: Buckets) -> _Call:
        """The same call with as many rows, cut or padded."""
        leaves = []
        for argument, dims, leaf in zip(self.names, self.plan, self.leaves, strict=True):
            fitted = cut(leaf, dims, {n: min(s, self.sizes[n]) for n, s in sizes.items()})
            for dim, name in dims.items():
                fitted = pad_to(fitted, dim, sizes[name], buckets.pad_of(argument))
            # All sizes get the same layout, or they would be calls of different kinds.
            leaves.append(fitted.contiguous(memory_format=layout_of(leaf)))
        return self.with_tensors(leaves, sizes)


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
        count = _product(map(len, self.buckets.sizes.values()))
        options = replace(options, max_graphs=max(options.max_graphs, 2 * count))
        #: Quick ways of calls, by the shapes of their arguments.
        self._sized: dict[Any, Attempt] = {}
        #: What these answered, by size; changed under the lock of all replays only.
        self._quick: Counter[tuple[int, ...]] = Counter()
        self._traffic: Counter[tuple[int, ...]] = Counter()
        self._models: dict[Any, Entry] = {}
        self._captured_for: set[tuple[torch.dtype, ...]] = set()
        super().__init__(name, options, method, share_inputs=True)

    def _quick_way(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Answer a call of a size that was met before."""
        shapes = _shapes(args, kwargs)
        attempt = self._sized.get(shapes)
        if attempt is None:
            return MISS
        result = attempt(fn, args, kwargs)
        if result is MISS:
            self._sized.pop(shapes, None)  # its graph may be gone
        return result

    def _set_hot(self, entries: Any) -> None:
        super()._set_hot(entries)
        self.front = self._quick_way

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call that no quick way did.

        Raises:
            ArgumentError: the arguments have no dynamic dimension, disagree on its size, are too
                large where ``larger="error"``, or of another dtype than all buckets were captured
                for.
        """
        if busy():  # inside the graph of a caller: its graph includes our work
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
            asked=sum(times * _product(sizes) for sizes, times in traffic.items()),
            computed=sum(
                times * _product(map(self.buckets.computed, names, sizes))
                for sizes, times in traffic.items()
            ),
            dims=names,
        )

    def reset(self) -> None:
        """Release all graphs, and forget all reasons and counts."""
        super().reset()
        with self._lock:
            self._sized.clear()
            self._models.clear()
            self._captured_for.clear()
            self._traffic.clear()
            self._quick = Counter()

    def static_inputs(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """There are none to write into: the graphs of all buckets use the same memory."""
        raise ArgumentError(
            f"{self.name}: with buckets= all graphs share their static inputs; pass the arguments "
            "to each call."
        )

    # How a call is answered.

    def _answer(self, fn: Callable[..., Any], call: _Call, shapes: Any = None) -> Any:
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
        result = entry.replay(fn, padded.args, padded.kwargs, padded.leaves)
        if result is MISS:
            if self._keys.get(key) is not entry:  # released by another thread meanwhile
                return self._answer(fn, call, shapes)
            return self._run_eagerly(fn, call.args, call.kwargs, IN_USE)
        results, spec = flatten(result)
        if shapes is not None and len(self._sized) < _MAX_SIZED:
            self._make_sized(fn, shapes, call, entry, spec)
        if call.sizes == padded.sizes:
            return result
        pairs = zip(results, entry.carried, strict=True)
        return builder(spec, [cut(result, dims, call.sizes) for result, dims in pairs])()

    def _prepare_bucket(
        self, fn: Callable[..., Any], call: _Call, bucket: dict[str, int]
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
        call: _Call,
        bucket: dict[str, int],
        key: Any,
        changes: list[str],
        result: Any = MISS,
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
        called = result is not MISS
        # Something has to be padded for a look at what padding does.
        if result is MISS or any(call.sizes[n] == size > 1 for n, size in bucket.items()):
            sizes = {name: _much_smaller(size) for name, size in bucket.items()}
            call, result = call.resized(sizes, self.buckets), MISS
        padded = call.resized(bucket, self.buckets)
        judge = functools.partial(self._judge, fn, call, padded, result)
        try:
            return self._try_capture(
                fn, key, padded.leaves, padded.spec, MISS, changes, judge=judge, called=called
            )
        finally:
            entry = self._keys.get(key)
            if isinstance(entry, Entry) and entry.captured is not None and entry.captured.plain:
                self._models[_alike(key)] = entry

    def _new_thrash(self) -> Thrash:
        kinds = _product(map(len, self.buckets.sizes.values()))
        return Thrash(kinds, limit=self._options.max_graphs, is_padded=True)

    def _key_of(self, fn: Callable[..., Any], leaves: list[torch.Tensor], spec: Spec) -> Any:
        # Padded tensors share no memory. Of those that do, a replay sees whether it writes to them.
        spec, tensors, _, conditions = key_of(fn, leaves, spec)
        return spec, tensors, conditions

    def _model(
        self, fn: Callable[..., Any], leaves: list[torch.Tensor], spec: Spec
    ) -> Entry | None:
        return self._models.get(_alike(self._key_of(fn, leaves, spec)))

    def _make_sized(
        self, fn: Callable[..., Any], shapes: Any, call: _Call, entry: Entry, result_spec: Spec
    ) -> None:
        """Answer later calls of these very sizes from the static tensors themselves."""
        pads = list(map(self.buckets.pad_of, call.names))
        if any(map(callable, pads)):
            return
        statics, outputs = entry.statics
        if any(map(entry.is_outside, outputs)):
            return
        corners = [cut(s, dims, call.sizes) for s, dims in zip(statics, call.plan, strict=True)]
        copy = copier(corners, call.leaves)
        around = [
            fill
            for static, dims, pad in zip(statics, call.plan, pads, strict=True)
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

    def _answer_larger(self, fn: Callable[..., Any], call: _Call, too_large: list[str]) -> Any:
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

    def _entry_now(self, fn: Callable[..., Any], call: _Call) -> tuple[Entry | None, str | None]:
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

    # Whether padding leaves alone what was asked for.

    def _judge(
        self, fn: Callable[..., Any], call: _Call, padded: _Call, result: Any, entry: Entry
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
        model = self._models.get(_alike(self._key_of(fn, padded.leaves, padded.spec)))
        if verify is False and model is not None:
            entry.carried = model.carried
            return
        got, spec = captured.sample or entry.statics[1], entry.out_spec
        if not captured.plain:
            got, spec = flatten(self._aside(fn, padded, captured))
        expected, expected_spec = flatten(
            self._aside(fn, call, captured) if result is MISS else result
        )
        other, shapes, other_spec = call.sizes, [t.shape for t in expected], expected_spec
        given = self.buckets.out_dims
        if given is None and not _tells_apart(other, padded.sizes):
            probe = call.resized(_other_sizes(padded.sizes), self.buckets)
            tensors, other_spec = flatten(self._aside(fn, probe, captured))
            other, shapes = probe.sizes, [t.shape for t in tensors]
        if not spec == expected_spec == other_spec:
            raise CaptureError("the structure or a plain value of the result depends on the size")
        if given is not None:
            entry.carried = given
            _check_out_dims(given, got, padded.sizes)
        else:
            entry.carried = [
                _carried(position, shape, other, tensor.shape, padded.sizes)
                for position, (shape, tensor) in enumerate(zip(shapes, got, strict=True))
            ]
        if verify is False or captured.draws_random_numbers:
            return
        for position, (a, b, dims) in enumerate(zip(expected, got, entry.carried, strict=True)):
            different = difference(cut(b, dims, call.sizes), a, verify)
            if different:
                raise CaptureError(
                    f"padding from {call.sizes} to {padded.sizes} changes the rows asked for "
                    f"(output {position}: {different}): rows influence each other, or pad= has to "
                    "be another value"
                )

    def _aside(self, fn: Callable[..., Any], call: _Call, captured: CapturedGraph) -> Any:
        """Run a call that nobody made; what it does outside is taken back."""
        device = current_device()
        result, _ = rehearse(fn, call.args, call.kwargs, call.leaves, device, captured)
        return result

    # What the arguments are.

    def _taken_apart(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leaves: list[torch.Tensor],
        spec: Spec,
    ) -> _Call:
        names = list(argument_names(fn, spec))
        plan = self.buckets.plan(leaves, names)
        return _Call(args, kwargs, leaves, spec, names, plan, self._sizes(names, plan, leaves))

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

    def _check_dtypes(self, call: _Call) -> None:
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


def _carried(
    position: int,
    shape: Sequence[int],
    sizes: dict[str, int],
    shape_of_bucket: Sequence[int],
    bucket: dict[str, int],
) -> dict[int, str]:
    """Which dimensions of an output carry which size, seen in two shapes of it."""
    carried: dict[int, str] = {}
    for dim, (size, larger) in enumerate(zip(shape, shape_of_bucket, strict=True)):
        names = [n for n, s in sizes.items() if (s, bucket[n]) == (size, larger)]
        if size != larger and not names:
            raise CaptureError(
                f"dimension {dim} of output {position} is {size} for {sizes} and {larger} for "
                f"{bucket}: it is no dynamic dimension"
            )
        if size != larger:
            carried[dim] = names[0]
    return carried


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


def _tells_apart(sizes: dict[str, int], bucket: dict[str, int]) -> bool:
    """Whether a dimension that differs between the two shows which one it is."""
    pairs = [(size, bucket[name]) for name, size in sizes.items()]
    return len(set(pairs)) == len(pairs) and all(a != b for a, b in pairs)


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


def _checked_buckets(
    buckets: Sequence[int] | Mapping[str, Sequence[int]],
) -> dict[str, list[int]]:
    by_name = dict(buckets) if isinstance(buckets, Mapping) else {_BATCH: buckets}
    if not by_name:
        raise ArgumentError("buckets={}: expected sizes for at least one dimension.")
    for name, sizes in by_name.items():
        if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Iterable):
            raise ArgumentError(f"buckets of {name!r}: expected a list of sizes, not {sizes!r}.")
        sizes = by_name[name] = list(sizes)
        if not sizes:
            raise ArgumentError(f"buckets of {name!r}: the list is empty; expected sizes.")
        for size in sizes:
            if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size < 2**31:
                raise ArgumentError(
                    f"buckets of {name!r}: {size!r} is no size; expected whole numbers from 1."
                )
        if sizes != sorted(set(sizes)):
            raise ArgumentError(
                f"buckets of {name!r}: {sizes} is not in ascending order without repetitions; "
                f"expected {sorted(set(sizes))}."
            )
    count = _product(map(len, by_name.values()))
    if count > _MAX_BUCKETS:
        raise ArgumentError(
            f"{count} combinations of buckets, at most {_MAX_BUCKETS} are taken: each is a graph."
        )
    return {name: list(sizes) for name, sizes in by_name.items()}


def _checked_dims(dims: Dims, buckets: Mapping[str, Sequence[int]]) -> Dims:
    named = {name for of_argument in dims.values() for name in of_argument.values()}
    if named != set(buckets):
        raise ArgumentError(
            f"dims name {sorted(named)}, buckets {sorted(buckets)}: expected the same names."
        )
    return dims


def argument_names(fn: Any, spec: Spec) -> Iterator[str]:
    """For each tensor the name of the argument that it is in."""
    known = _parameters(fn)
    args, kwargs = spec[3]
    for position, child in enumerate(args[3]):
        name = known[min(position, len(known) - 1)] if known else str(position)
        yield from itertools.repeat(name, _tensors(child))
    for name, child in zip(kwargs[2], kwargs[3], strict=True):
        yield from itertools.repeat(str(name), _tensors(child))


def _parameters(fn: Any) -> list[str]:
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # written in C: its arguments have no names
        return []
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return [p.name for p in parameters if p.kind in positional]


def _tensors(spec: Spec) -> int:
    if spec[0] == "tensor":
        return 1
    return 0 if spec[0] == "const" else sum(map(_tensors, spec[3]))


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What tells calls of other sizes and in other modes apart, if all arguments are tensors."""
    try:
        named = tuple([(name, value.shape) for name, value in kwargs.items()]) if kwargs else ()
        shapes = tuple([value.shape for value in args])
        return shapes, named, torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    except AttributeError:
        return None


def _product(numbers: Iterable[int]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result
