"""Calls of any size, answered from graphs of a few sizes."""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from ..device import current_device
from ..errors import ArgumentError
from ..graph.capture import CAPTURING, rehearse
from ..graph.compare import Tolerance, difference
from .engine import GraphedStats, Options
from .entry import Attempt, copier, miss
from .graphed import Graphed
from .signature import MISS, Spec, builder, flatten
from .traffic import suggest_buckets

__all__ = ["PoolStats", "ShapeBucketPool"]

Padding: TypeAlias = (
    float | Literal["auto", "zero", "last"] | Callable[[torch.Tensor, int, int], Any]
)
"""What to pad with: a number, ``"zero"``, ``"last"`` (the last row again), or a function of
(tensor, dim, size) that gives the padded tensor. ``"auto"``: the last row in dimension 0, since a
row of zeros may be none that the model can compute (all of it masked), and zeros in the others, by
which an attention mask leaves the padding out."""

Dims: TypeAlias = Mapping[str, Mapping[int, str]]

_BATCH = "batch"
# Each bucket is a graph, and a combination of buckets too.
_MAX_BUCKETS = 4096
# Sizes that have a quick way of their own, some kilobytes each.
_MAX_SIZED = 1024


@dataclass(frozen=True)
class PoolStats:
    """What a :class:`ShapeBucketPool` has done since it was made.

    Attributes:
        graphs: captures, replays and the graphs, see :class:`~gfxgraph.GraphedStats`.
        traffic: how often each size came, a tuple in the order of ``dims``.
        eager: reason -> how many calls ran eagerly because of it.
        asked: elements of the dynamic dimensions that calls asked for (rows, or rows x length).
        computed: elements that were computed for them, padding included.
        dims: the names of the dynamic dimensions.
    """

    graphs: GraphedStats
    traffic: dict[tuple[int, ...], int]
    eager: dict[str, int]
    asked: int
    computed: int
    dims: tuple[str, ...]

    @property
    def padding(self) -> float:
        """Share of what was computed that nobody asked for, 0.0 to 1.0."""
        return 1 - self.asked / self.computed if self.computed else 0.0


@dataclass
class _Bucket:
    """What is known of one combination of buckets: why it is not used, or what its outputs carry.

    Attributes:
        reason: why its calls run eagerly; ``None``: they do not.
        outputs: for each tensor of the result, dimension -> name.
    """

    reason: str | None
    outputs: list[dict[int, str]]


@dataclass
class _Sized:
    """The quick way of calls of one size.

    Attributes:
        sizes: of the dynamic dimensions.
        computed: elements that a call computes.
        calls: how many it has answered.
        attempt: recognises a call, and answers it.
    """

    sizes: tuple[int, ...]
    computed: int
    calls: int = 0
    attempt: Attempt = miss


class ShapeBucketPool:
    """A function for any batch size (and length), answered from graphs of a few sizes.

    A call is padded to the smallest bucket that fits, replayed, and cut to what was asked for. The
    first time that a bucket is used, a padded run is compared with an unpadded one: where padding
    changes what was asked for (batch norm in training, attention across rows), the bucket is not
    used and its calls run eagerly.

    Args:
        model_fn: the function or module. What it writes or draws in those runs is taken back.
        buckets: sizes in ascending order; or a mapping from the name of a dimension to its sizes.
        dims: which dimensions are dynamic: argument name -> dimension -> name of the size. Default:
            the first dimension of each tensor that has one is ``"batch"``.
        pad: what to pad with, see :data:`Padding`; or a mapping from argument names to that.
            Default ``"auto"``.
        larger: what becomes of a call above the largest bucket: ``"eager"`` (default), ``"split"``:
            in pieces of the largest bucket, along the one dimension that is too large, or
            ``"error"``.
        verify: tolerance of the comparisons, as for :func:`~gfxgraph.graphed`; ``False``: none.
        warmup: eager runs before a capture. Default 3.

    Raises:
        ArgumentError: an option holds what it does not take.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        buckets: Sequence[int] | Mapping[str, Sequence[int]],
        *,
        dims: Dims | None = None,
        pad: Padding | Mapping[str, Padding] = "auto",
        larger: Literal["eager", "split", "error"] = "eager",
        verify: Tolerance = True,
        warmup: int = 3,
    ) -> None:
        if larger not in ("eager", "split", "error"):
            raise ArgumentError(f"larger={larger!r}: expected 'eager', 'split' or 'error'.")
        self._buckets = _checked_buckets(buckets)
        self._dims = None if dims is None else _checked_dims(dims, self._buckets)
        if dims is None and tuple(self._buckets) != (_BATCH,):
            raise ArgumentError(
                f"buckets for {', '.join(map(repr, self._buckets))}: say which dimensions of the "
                'arguments these are, such as dims={"input_ids": {0: "batch", 1: "seq"}}.'
            )
        self._pad = pad
        self._larger = larger
        self._verify = verify
        graphs = 2 * len(list(itertools.product(*self._buckets.values())))
        self._graphed: Graphed[Any] = Graphed(
            model_fn, options=Options(warmup=warmup, verify=verify, max_graphs=graphs)
        )
        self._parameters = _parameters(model_fn)
        self._known: dict[Any, _Bucket] = {}
        self._sized: dict[Any, _Sized] = {}
        self._traffic: Counter[tuple[int, ...]] = Counter()
        self._eager: Counter[str] = Counter()
        self._asked = self._computed = 0
        self._lock = threading.Lock()

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The function as it was given."""
        fn: Callable[..., Any] = self._graphed.__wrapped__
        return fn

    @property
    def buckets(self) -> dict[str, list[int]]:
        """The sizes, by the name of the dimension."""
        return {name: list(sizes) for name, sizes in self._buckets.items()}

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Answer a call of any size.

        Raises:
            ArgumentError: the arguments have no dynamic dimension, disagree on its size, or are too
                large where ``larger="error"``.
        """
        shapes = _shapes(args, kwargs)
        sized = self._sized.get(shapes)
        if sized is not None:
            result = sized.attempt(self.model_fn, args, kwargs)
            if result is not MISS:
                return result
            with self._lock:
                self._forget_sized(shapes)  # its graph may be gone
        leaves, spec = flatten((args, kwargs))
        names, plan = self._plan(spec, leaves)
        sizes = self._sizes(names, plan, leaves)
        if 0 in sizes.values():
            return self._run_eagerly(args, kwargs, "a size is 0: there is nothing to compute")
        bucket = {
            name: fitting
            for name, size in sizes.items()
            if (fitting := self._fitting(name, size)) is not None
        }
        if len(bucket) < len(sizes):
            too_large = [name for name in sizes if name not in bucket]
            return self._call_larger(args, kwargs, sizes, too_large)
        return self._call_bucket(shapes, args, kwargs, leaves, spec, names, plan, sizes, bucket)

    def capture(
        self,
        /,
        *args: Any,
        progress: Callable[[Sequence[Any]], Iterable[Any]] = iter,
        **kwargs: Any,
    ) -> None:
        """Capture all buckets now, the largest first, so that the smaller share its memory.

        Args:
            *args: arguments of any size; they are cut and padded to each bucket.
            progress: wraps the list of buckets, such as ``rich.progress.track``.
            **kwargs: keyword arguments.
        """
        leaves, spec = flatten((args, kwargs))
        names, plan = self._plan(spec, leaves)
        sizes = self._sizes(names, plan, leaves)
        if 0 in sizes.values():
            raise ArgumentError("capture() takes arguments with at least one row.")
        choices = itertools.product(*(self._buckets[name] for name in sizes))
        for chosen in progress(sorted(choices, key=lambda c: (_product(c), c), reverse=True)):
            bucket = dict(zip(sizes, chosen, strict=True))
            held = {name: min(sizes[name], bucket[name]) for name in sizes}
            cut = [_cut(leaf, dims, held) for leaf, dims in zip(leaves, plan, strict=True)]
            example = self._padded(names, plan, cut, bucket)
            self._ready(spec, names, plan, example, bucket, bucket)
            args, kwargs = builder(spec, example)()
            self._graphed(*args, **kwargs)

    def suggest(self, count: int, dim: str | None = None) -> list[int]:
        """Buckets that would have padded least for the calls so far.

        Args:
            count: how many.
            dim: the name of the dimension; may be left out if there is one.

        Raises:
            ArgumentError: no call came yet, or there is no such dimension.
        """
        names = tuple(self._buckets)
        dim = names[0] if dim is None and len(names) == 1 else dim
        if dim not in names:
            raise ArgumentError(f"suggest(dim={dim!r}): expected one of {', '.join(names)}.")
        sizes: Counter[int] = Counter()
        with self._lock:
            for found, times in self._all_traffic().items():
                sizes[found[names.index(dim)]] += times
        sizes.pop(0, None)
        return suggest_buckets(sizes, count=count)

    def stats(self) -> PoolStats:
        """What this pool has done since it was made."""
        with self._lock:
            traffic = self._all_traffic()
            sized = [*self._sized.values()]
            return PoolStats(
                self._graphed.stats(),
                dict(traffic),
                dict(self._eager),
                self._asked + sum(s.calls * _product(filter(None, s.sizes)) for s in sized),
                self._computed + sum(s.calls * s.computed for s in sized),
                tuple(self._buckets),
            )

    def _all_traffic(self) -> Counter[tuple[int, ...]]:
        traffic = Counter(self._traffic)
        for sized in [*self._sized.values()]:
            traffic[sized.sizes] += sized.calls
        return traffic

    def reset(self) -> None:
        """Release all graphs; the next calls start anew."""
        with self._lock:
            self._known.clear()
            self._forget_sized()
        self._graphed.reset()

    # How a call is answered.

    def _call_bucket(
        self,
        shapes: Any,
        args: Any,
        kwargs: Any,
        leaves: list[torch.Tensor],
        spec: Spec,
        names: list[str],
        plan: list[Mapping[int, str]],
        sizes: dict[str, int],
        bucket: dict[str, int],
    ) -> Any:
        known = self._ready(spec, names, plan, leaves, sizes, bucket)
        if known is None:
            reason = "another thread is capturing, which a new bucket would need to do"
            return self._run_eagerly(args, kwargs, reason)
        if known.reason is not None:
            return self._run_eagerly(args, kwargs, known.reason)
        self._count(sizes, bucket)
        if sizes == bucket:
            return self._graphed(*args, **kwargs)
        args, kwargs = builder(spec, self._padded(names, plan, leaves, bucket))()
        results, result_spec = flatten(self._graphed(*args, **kwargs))
        cut = [_cut(r, dims, sizes) for r, dims in zip(results, known.outputs, strict=True)]
        if len(self._sized) < _MAX_SIZED:
            self._make_sized(shapes, leaves, spec, names, plan, sizes, bucket, known, result_spec)
        return builder(result_spec, cut)()

    def _make_sized(
        self,
        shapes: Any,
        leaves: list[torch.Tensor],
        spec: Spec,
        names: list[str],
        plan: list[Mapping[int, str]],
        sizes: dict[str, int],
        bucket: dict[str, int],
        known: _Bucket,
        result_spec: Spec,
    ) -> None:
        """Answer later calls of these very sizes from the static tensors themselves."""
        example = self._padded(names, plan, leaves, bucket)
        entry = self._graphed._engine.entry(self.model_fn, example, spec)
        pads = [self._pad_of(name) for name in names]
        if shapes is None or entry is None or any(map(callable, pads)):
            return
        statics, outputs = entry.statics
        if any(entry.is_outside(output) for output in outputs):
            return
        views = [_cut(static, dims, sizes) for static, dims in zip(statics, plan, strict=True)]
        copy = copier(views, leaves)
        fills = [
            fill
            for static, dims, pad in zip(statics, plan, pads, strict=True)
            for fill in _fills(static, dims, sizes, pad)
        ]

        def filled(given: Sequence[torch.Tensor]) -> None:
            copy(given)
            for fill in fills:
                fill()

        clones: list[Any] = [
            _cut(output, dims, sizes).clone
            for output, dims in zip(outputs, known.outputs, strict=True)
        ]
        make = builder(result_spec, clones)
        sized = _Sized(tuple(sizes.get(n, 0) for n in self._buckets), _product(bucket.values()))

        def build() -> Any:
            sized.calls += 1  # nobody else replays meanwhile
            return make()

        replay = entry.replay_with(filled, build)
        if replay is not None:
            sized.attempt = self._graphed._engine.recogniser(self.model_fn, leaves, spec)(replay)
            self._sized[shapes] = sized

    def _pad_of(self, argument: str) -> Padding:
        return self._pad.get(argument, "auto") if isinstance(self._pad, Mapping) else self._pad

    def _call_larger(
        self, args: Any, kwargs: Any, sizes: dict[str, int], too_large: list[str]
    ) -> Any:
        what = ", ".join(
            f"{name} {sizes[name]} is above the largest bucket, {self._buckets[name][-1]}"
            for name in too_large
        )
        if self._larger == "error":
            raise ArgumentError(f'{what}. Add a bucket, or let larger="eager" or "split".')
        if self._larger == "eager" or len(too_large) > 1:
            return self._run_eagerly(args, kwargs, f"{too_large[0]} is above the largest bucket")
        (name,) = too_large
        step = self._buckets[name][-1]
        leaves, spec = flatten((args, kwargs))
        _, plan = self._plan(spec, leaves)
        pieces: list[list[torch.Tensor]] = []
        result_spec: Spec = ()
        for start in range(0, sizes[name], step):
            length = min(step, sizes[name] - start)
            piece = [
                _slice(leaf, dims, name, start, length)
                for leaf, dims in zip(leaves, plan, strict=True)
            ]
            piece_args, piece_kwargs = builder(spec, piece)()
            results, result_spec = flatten(self(*piece_args, **piece_kwargs))
            pieces.append(results)
        carried = self._carried(spec, plan, leaves, {**sizes, name: step})
        if carried is None:
            return self._run_eagerly(args, kwargs, f"{name} is above the largest bucket")
        merged = []
        for position, tensors in enumerate(zip(*pieces, strict=True)):
            dim = next((d for d, n in carried[position].items() if n == name), None)
            merged.append(tensors[0] if dim is None else torch.cat(tensors, dim))
        return builder(result_spec, merged)()

    def _carried(
        self,
        spec: Spec,
        plan: list[Mapping[int, str]],
        leaves: list[torch.Tensor],
        sizes: dict[str, int],
    ) -> list[dict[int, str]] | None:
        """Which dimensions the outputs carry in the bucket that such sizes take."""
        bucket = {name: self._fitting(name, size) or 0 for name, size in sizes.items()}
        known = self._known.get(_key(spec, plan, leaves, bucket))
        return None if known is None or known.reason is not None else known.outputs

    def _forget_sized(self, *which: Any) -> None:
        """Let go of the ways of these sizes, or of all; what they counted stays."""
        for shapes in which or [*self._sized]:
            sized = self._sized.pop(shapes, None)
            if sized is not None:
                self._traffic[sized.sizes] += sized.calls
                self._asked += sized.calls * _product(filter(None, sized.sizes))
                self._computed += sized.calls * sized.computed

    def _run_eagerly(self, args: Any, kwargs: Any, reason: str) -> Any:
        with self._lock:
            self._eager[reason] += 1
        return self.model_fn(*args, **kwargs)

    def _count(self, sizes: dict[str, int], bucket: dict[str, int]) -> None:
        with self._lock:
            self._traffic[tuple(sizes.get(name, 0) for name in self._buckets)] += 1
            self._asked += _product(sizes.values())
            self._computed += _product(bucket.values())

    # What the arguments are.

    def _plan(
        self, spec: Spec, leaves: list[torch.Tensor]
    ) -> tuple[list[str], list[Mapping[int, str]]]:
        """For each tensor the name of its argument, and its dynamic dimensions."""
        names = list(self._names(spec))
        if self._dims is None:
            return names, [{0: _BATCH} if leaf.dim() else {} for leaf in leaves]
        return names, [self._dims.get(name, {}) for name in names]

    def _names(self, spec: Spec) -> Iterator[str]:
        args, kwargs = spec[3]
        for position, child in enumerate(args[3]):
            yield from itertools.repeat(self._parameter(position), _tensors(child))
        for name, child in zip(kwargs[2], kwargs[3], strict=True):
            yield from itertools.repeat(str(name), _tensors(child))

    def _parameter(self, position: int) -> str:
        known = self._parameters
        return known[min(position, len(known) - 1)] if known else str(position)

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
                f"{'' if self._dims is None else ' named in dims'}, got {len(leaves)} tensors."
            )
        return {name: size for name, (size, _) in found.items()}

    def _fitting(self, name: str, size: int) -> int | None:
        sizes = self._buckets[name]
        position = bisect_left(sizes, size)
        return sizes[position] if position < len(sizes) else None

    def _padded(
        self,
        names: list[str],
        plan: list[Mapping[int, str]],
        leaves: list[torch.Tensor],
        bucket: dict[str, int],
    ) -> list[torch.Tensor]:
        padded = []
        for argument, dims, leaf in zip(names, plan, leaves, strict=True):
            for dim, name in dims.items():
                leaf = _pad_to(leaf, dim, bucket[name], self._pad_of(argument))
            padded.append(leaf)
        return padded

    # Whether padding leaves alone what was asked for.

    def _ready(
        self,
        spec: Spec,
        names: list[str],
        plan: list[Mapping[int, str]],
        leaves: list[torch.Tensor],
        sizes: dict[str, int],
        bucket: dict[str, int],
    ) -> _Bucket | None:
        """What is known of a bucket, found out now if need be; ``None``: not at the moment."""
        key = _key(spec, plan, leaves, bucket)
        known = self._known.get(key)
        if known is not None:
            return known
        if not CAPTURING.acquire(blocking=False):
            return None
        try:
            known = self._compared(spec, names, plan, leaves, sizes, bucket)
        finally:
            CAPTURING.release()
        with self._lock:
            return self._known.setdefault(key, known)

    def _compared(
        self,
        spec: Spec,
        names: list[str],
        plan: list[Mapping[int, str]],
        leaves: list[torch.Tensor],
        sizes: dict[str, int],
        bucket: dict[str, int],
    ) -> _Bucket:
        """Compare a padded run with an unpadded one."""
        smaller = {
            name: size if size < bucket[name] else max(1, size - 1) for name, size in sizes.items()
        }
        unpadded = [_cut(leaf, dims, smaller) for leaf, dims in zip(leaves, plan, strict=True)]
        padded = self._padded(names, plan, unpadded, bucket)
        (expected, expected_spec), draws = self._rehearsed(spec, unpadded)
        (got, got_spec), _ = self._rehearsed(spec, padded)
        if got_spec != expected_spec:
            return _Bucket("the structure or a plain value of the result depends on the size", [])
        outputs: list[dict[int, str]] = []
        for position, (a, b) in enumerate(zip(expected, got, strict=True)):
            carried: dict[int, str] = {}
            for dim, (size, size_padded) in enumerate(zip(a.shape, b.shape, strict=False)):
                fits = [n for n in sizes if (smaller[n], bucket[n]) == (size, size_padded)]
                if size != size_padded and not fits:
                    return _Bucket(
                        f"dimension {dim} of output {position} is {size} for {smaller} and "
                        f"{size_padded} for {bucket}: it is no dynamic dimension",
                        [],
                    )
                if size != size_padded:
                    carried[dim] = fits[0]
            outputs.append(carried)
            if self._verify is not False and not draws:
                different = difference(_cut(b, carried, smaller), a, self._verify)
                if different:
                    return _Bucket(
                        f"padding from {smaller} to {bucket} changes the rows asked for "
                        f"(output {position}: {different}): rows influence each other, or pad= "
                        "has to be another value",
                        [],
                    )
        return _Bucket(None, outputs)

    def _rehearsed(
        self, spec: Spec, leaves: list[torch.Tensor]
    ) -> tuple[tuple[list[torch.Tensor], Spec], bool]:
        args, kwargs = builder(spec, leaves)()
        device = current_device()
        result, draws = rehearse(self.model_fn, args, kwargs, leaves, device)
        return flatten(result), draws


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


def _key(
    spec: Spec,
    plan: list[Mapping[int, str]],
    leaves: list[torch.Tensor],
    bucket: dict[str, int],
) -> Any:
    shapes = []
    for leaf, dims in zip(leaves, plan, strict=True):
        shape = list(leaf.shape)
        for dim, name in dims.items():
            shape[dim] = bucket[name]
        shapes.append((tuple(shape), leaf.dtype, leaf.device))
    return spec, tuple(shapes)


def _cut(leaf: torch.Tensor, dims: Mapping[int, str], sizes: Mapping[str, int]) -> torch.Tensor:
    for dim, name in dims.items():
        if leaf.shape[dim] != sizes[name]:
            leaf = leaf.narrow(dim, 0, sizes[name])
    return leaf


def _slice(
    leaf: torch.Tensor, dims: Mapping[int, str], name: str, start: int, length: int
) -> torch.Tensor:
    for dim, of_dim in dims.items():
        if of_dim == name:
            leaf = leaf.narrow(dim, start, length)
    return leaf


def _pad_to(leaf: torch.Tensor, dim: int, size: int, pad: Padding) -> torch.Tensor:
    missing = size - leaf.shape[dim]
    if missing <= 0:
        return leaf
    if callable(pad):
        padded: Any = pad(leaf, dim, size)
        wanted = [*leaf.shape]
        wanted[dim] = size
        if not isinstance(padded, torch.Tensor) or [*padded.shape] != wanted:
            raise ArgumentError(
                f"pad= gave {getattr(padded, 'shape', padded)!r} for dimension {dim}; expected a "
                f"tensor of shape {wanted}."
            )
        return padded
    if pad == "auto":
        pad = "zero" if dim else "last"
    if pad == "last":
        return torch.cat([leaf, leaf.narrow(dim, -1, 1).expand(_with(leaf, dim, missing))], dim)
    if pad != "zero" and (isinstance(pad, bool) or not isinstance(pad, (int, float))):
        raise ArgumentError(
            f"pad={pad!r}: expected a number, 'auto', 'zero', 'last', or a function of (tensor, "
            "dim, size)."
        )
    value = 0 if pad == "zero" else pad
    return torch.cat([leaf, leaf.new_full(_with(leaf, dim, missing), value)], dim)


def _fills(
    static: torch.Tensor, dims: Mapping[int, str], sizes: Mapping[str, int], pad: Padding
) -> Iterator[Callable[[], object]]:
    """What pads a static input around what a call has copied there, as :func:`_pad_to` does."""
    later = dict(dims)
    for dim, name in dims.items():
        del later[dim]
        size, missing = sizes[name], static.shape[dim] - sizes[name]
        if missing <= 0:
            continue
        reached = _cut(static, later, sizes)  # the dimensions that are padded after this one
        rest = reached.narrow(dim, size, missing)
        kind = ("zero" if dim else "last") if pad == "auto" else pad
        if kind == "last":
            last = reached.narrow(dim, size - 1, 1).expand(rest.shape)
            yield functools.partial(rest.copy_, last)
        else:
            value: Any = 0 if kind == "zero" else kind
            yield functools.partial(rest.fill_, value)


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What tells calls of other sizes apart, if all arguments are tensors."""
    try:
        if not kwargs:
            return tuple([value.shape for value in args])
        named = [(name, value.shape) for name, value in kwargs.items()]
        return tuple([value.shape for value in args]), tuple(named)
    except AttributeError:
        return None


def _with(leaf: torch.Tensor, dim: int, size: int) -> list[int]:
    shape = list(leaf.shape)
    shape[dim] = size
    return shape


def _product(numbers: Iterable[int]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result
