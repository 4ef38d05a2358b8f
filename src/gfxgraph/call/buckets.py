"""Calls of any size, answered from graphs of a few sizes."""

from __future__ import annotations

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
from .entry import Attempt, copier
from .graphed import Graphed
from .padding import Padding, cut, fills, pad_to, piece
from .signature import MISS, Spec, builder, flatten
from .traffic import suggest_buckets

__all__ = ["PoolStats", "ShapeBucketPool"]

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
        return _Call(args, kwargs, leaves, self.spec, self.names, self.plan, sizes)

    def cut(self, sizes: dict[str, int]) -> _Call:
        """The same call with fewer rows."""
        pairs = zip(self.leaves, self.plan, strict=True)
        return self.with_tensors([cut(leaf, dims, sizes) for leaf, dims in pairs], sizes)

    def key(self, bucket: dict[str, int]) -> Any:
        """What tells this call, padded to ``bucket``, from others."""
        shapes = []
        for leaf, dims in zip(self.leaves, self.plan, strict=True):
            shape = list(leaf.shape)
            for dim, name in dims.items():
                shape[dim] = bucket[name]
            shapes.append((tuple(shape), leaf.dtype, leaf.device))
        return self.spec, tuple(shapes)


class ShapeBucketPool:
    """A function for any batch size (and length), answered from graphs of a few sizes.

    A call is padded to the smallest bucket that fits, replayed, and cut to what was asked for. The
    first time that a bucket is used, a padded run is compared with an unpadded one: where padding
    changes what was asked for (batch norm in training, attention across rows), the bucket is not
    used and its calls run eagerly. A function that draws random numbers is not compared: padded, it
    draws others.

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
        #: Quick ways of calls, by the shapes of their arguments.
        self._sized: dict[Any, Attempt] = {}
        #: What these answered, by size; changed under the lock of all replays only.
        self._quick: Counter[tuple[int, ...]] = Counter()
        self._traffic: Counter[tuple[int, ...]] = Counter()
        self._eager: Counter[str] = Counter()
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
        attempt = self._sized.get(shapes)
        if attempt is not None:
            result = attempt(self.model_fn, args, kwargs)
            if result is not MISS:
                return result
            self._sized.pop(shapes, None)  # its graph may be gone
        call = self._taken_apart(args, kwargs)
        with self._lock:
            self._traffic[self._in_order(call.sizes)] += 1
        return self._answer(call, shapes)

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

        Raises:
            ArgumentError: see :meth:`__call__`; also if a size is 0.
        """
        call = self._taken_apart(args, kwargs)
        if 0 in call.sizes.values():
            raise ArgumentError("capture() takes arguments with at least one row.")
        choices = itertools.product(*(self._buckets[name] for name in call.sizes))
        for chosen in progress(sorted(choices, key=lambda c: (_product(c), c), reverse=True)):
            bucket = dict(zip(call.sizes, chosen, strict=True))
            held = {name: min(size, bucket[name]) for name, size in call.sizes.items()}
            example = self._padded(call.cut(held), bucket)
            self._ready(example, bucket)
            self._graphed(*example.args, **example.kwargs)

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
            for found, times in (self._traffic + Counter(self._quick)).items():
                sizes[found[names.index(dim)]] += times
        sizes.pop(0, None)
        return suggest_buckets(sizes, count=count)

    def stats(self) -> PoolStats:
        """What this pool has done since it was made."""
        with self._lock:
            traffic, eager = self._traffic + Counter(self._quick), dict(self._eager)
        return PoolStats(
            graphs=self._graphed.stats(),
            traffic=dict(traffic),
            eager=eager,
            asked=sum(times * _product(sizes) for sizes, times in traffic.items()),
            computed=sum(
                times * _product(map(self._computed, self._buckets, sizes))
                for sizes, times in traffic.items()
            ),
            dims=tuple(self._buckets),
        )

    def reset(self) -> None:
        """Release all graphs; the next calls start anew."""
        with self._lock:
            self._known.clear()
            self._sized.clear()
        self._graphed.reset()

    def _computed(self, name: str, size: int) -> int:
        """What a size becomes by padding."""
        whole, rest = divmod(size, largest := self._buckets[name][-1])
        if size <= largest:
            whole, rest = 0, size
        elif self._larger != "split":
            return size
        return whole * largest + (self._fitting(name, rest) or 0 if rest else 0)

    def _in_order(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(sizes.get(name, 1) for name in self._buckets)

    # How a call is answered.

    def _answer(self, call: _Call, shapes: Any = None) -> Any:
        if 0 in call.sizes.values():
            return self._run_eagerly(call, "a size is 0: there is nothing to compute")
        too_large = [n for n, size in call.sizes.items() if size > self._buckets[n][-1]]
        if too_large:
            return self._answer_larger(call, too_large)
        bucket = self._bucket(call.sizes)
        known = self._ready(call, bucket)
        if known is None:
            reason = "another thread is capturing, which a new bucket would need to do"
            return self._run_eagerly(call, reason)
        if known.reason is not None:
            return self._run_eagerly(call, known.reason)
        if call.sizes == bucket:
            return self._graphed(*call.args, **call.kwargs)
        padded = self._padded(call, bucket)
        results, spec = flatten(self._graphed(*padded.args, **padded.kwargs))
        if shapes is not None and len(self._sized) < _MAX_SIZED:
            self._make_sized(shapes, call, padded, known, spec)
        pairs = zip(results, known.outputs, strict=True)
        return builder(spec, [cut(result, dims, call.sizes) for result, dims in pairs])()

    def _make_sized(
        self, shapes: Any, call: _Call, padded: _Call, known: _Bucket, result_spec: Spec
    ) -> None:
        """Answer later calls of these very sizes from the static tensors themselves."""
        engine, fn = self._graphed._engine, self.model_fn
        entry = engine.entry(fn, padded.leaves, call.spec)
        pads = [self._pad_of(name) for name in call.names]
        if entry is None or any(map(callable, pads)):
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
            for output, dims in zip(outputs, known.outputs, strict=True)
        ]
        make, quick, sizes = builder(result_spec, clones), self._quick, self._in_order(call.sizes)

        def filled(given: Sequence[torch.Tensor]) -> None:
            copy(given)
            for fill in around:
                fill()

        def build() -> Any:
            quick[sizes] += 1
            return make()

        replay = entry.replay_with(filled, build)
        if replay is not None:
            self._sized[shapes] = engine.recogniser(fn, call.leaves, call.spec)(replay)

    def _answer_larger(self, call: _Call, too_large: list[str]) -> Any:
        name = too_large[0]
        step = self._buckets[name][-1]
        if self._larger == "error":
            raise ArgumentError(
                f"{name} {call.sizes[name]} is above the largest bucket, {step}. Add a bucket, or "
                'let larger="eager" or "split".'
            )
        reason = f"{name} is above the largest bucket"
        if self._larger == "eager" or len(too_large) > 1:
            return self._run_eagerly(call, reason)
        pieces: list[list[torch.Tensor]] = []
        spec: Spec = ()
        for start in range(0, call.sizes[name], step):
            length = min(step, call.sizes[name] - start)
            leaves = [
                piece(leaf, dims, name, start, length)
                for leaf, dims in zip(call.leaves, call.plan, strict=True)
            ]
            part = call.with_tensors(leaves, {**call.sizes, name: length})
            results, spec = flatten(self._answer(part))
            pieces.append(results)
        bucket = self._bucket({**call.sizes, name: step})
        known = self._known.get(call.key(bucket))
        if known is None or known.reason is not None:
            return self._run_eagerly(call, reason)
        merged = []
        for tensors, dims in zip(zip(*pieces, strict=True), known.outputs, strict=True):
            dim = next((d for d, of_dim in dims.items() if of_dim == name), None)
            merged.append(tensors[0] if dim is None else torch.cat(tensors, dim))
        return builder(spec, merged)()

    def _run_eagerly(self, call: _Call, reason: str) -> Any:
        with self._lock:
            self._eager[reason] += 1
        return self.model_fn(*call.args, **call.kwargs)

    def _pad_of(self, argument: str) -> Padding:
        return self._pad.get(argument, "auto") if isinstance(self._pad, Mapping) else self._pad

    # What the arguments are.

    def _taken_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        leaves, spec = flatten((args, kwargs))
        names = list(self._names(spec))
        if self._dims is None:
            plan: list[Mapping[int, str]] = [{0: _BATCH} if leaf.dim() else {} for leaf in leaves]
        else:
            plan = [self._dims.get(name, {}) for name in names]
        return _Call(args, kwargs, leaves, spec, names, plan, self._sizes(names, plan, leaves))

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

    def _bucket(self, sizes: Mapping[str, int]) -> dict[str, int]:
        return {name: self._fitting(name, size) or size for name, size in sizes.items()}

    def _padded(self, call: _Call, bucket: dict[str, int]) -> _Call:
        padded = []
        for argument, dims, leaf in zip(call.names, call.plan, call.leaves, strict=True):
            for dim, name in dims.items():
                leaf = pad_to(leaf, dim, bucket[name], self._pad_of(argument))
            padded.append(leaf)
        return call.with_tensors(padded, bucket)

    # Whether padding leaves alone what was asked for.

    def _ready(self, call: _Call, bucket: dict[str, int]) -> _Bucket | None:
        """What is known of a bucket, found out now if need be; ``None``: not at the moment."""
        key = call.key(bucket)
        known = self._known.get(key)
        if known is not None:
            return known
        if not CAPTURING.acquire(blocking=False):
            return None
        try:
            known = self._compared(call, bucket)
        finally:
            CAPTURING.release()
        with self._lock:
            return self._known.setdefault(key, known)

    def _compared(self, call: _Call, bucket: dict[str, int]) -> _Bucket:
        """Compare a padded run with an unpadded one."""
        smaller = {
            name: size if size < bucket[name] else max(1, size - 1)
            for name, size in call.sizes.items()
        }
        unpadded = call.cut(smaller)
        (expected, expected_spec), draws = self._rehearsed(unpadded)
        (got, got_spec), _ = self._rehearsed(self._padded(unpadded, bucket))
        if got_spec != expected_spec:
            return _Bucket("the structure or a plain value of the result depends on the size", [])
        outputs: list[dict[int, str]] = []
        for position, (a, b) in enumerate(zip(expected, got, strict=True)):
            carried: dict[int, str] = {}
            for dim, (size, size_padded) in enumerate(zip(a.shape, b.shape, strict=False)):
                fits = [n for n in smaller if (smaller[n], bucket[n]) == (size, size_padded)]
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
                different = difference(cut(b, carried, smaller), a, self._verify)
                if different:
                    return _Bucket(
                        f"padding from {smaller} to {bucket} changes the rows asked for "
                        f"(output {position}: {different}): rows influence each other, or pad= "
                        "has to be another value",
                        [],
                    )
        return _Bucket(None, outputs)

    def _rehearsed(self, call: _Call) -> tuple[tuple[list[torch.Tensor], Spec], bool]:
        device = current_device()
        result, draws = rehearse(self.model_fn, call.args, call.kwargs, call.leaves, device)
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
