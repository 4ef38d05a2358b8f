"""Calls of many sizes: a graph for each, buckets, code compiled for any size, or eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, perf_counter_ns
from typing import Any

from ..call.buckets.traffic import suggest_buckets
from ..call.graphed import Graphed, graphed
from ..errors import ArgumentError, first_paragraph
from ..interpose.interrupts import interrupt_in
from ..verifying.bench import Bench
from ..verifying.inputs import Inputs
from .agreement import difference
from .settled import settled
from .timing import Interval, Percentiles, median_interval
from .ways import compiled_for, stats_of

__all__ = ["Sizes", "TrafficReport", "measure", "sizes_of"]

Function = Callable[..., Any]

_BUCKETS = 4
_MIN_PASSES, _MAX_PASSES = 6, 60


@dataclass(frozen=True)
class TrafficReport:
    """How one way answers calls of many sizes.

    Attributes:
        name: ``"eager"``; ``"graph"``: one for each size; ``"buckets"``: each call is padded to the
            next of a few sizes; ``"fixed"``: to the largest; ``"compile"``:
            ``torch.compile(fn, dynamic=True)``.
        status: ``"ok"``, ``"differs"`` or ``"raises"``.
        note: the reason, where the status is another or calls ran eagerly; for buckets their sizes.
        first_pass_s: seconds of the first pass over all calls, with captures and compilations.
        call_us: of a call end to end, once all sizes have come.
        speedup: how many times as fast as eager the later passes are.
        captures: graphs that were captured.
        eager_calls: the share of calls in the later passes that ran eagerly.
        padding: the share of the computed elements that is padding; 0.0 without buckets.
    """

    name: str
    status: str
    note: str = ""
    first_pass_s: float | None = None
    call_us: Percentiles | None = None
    speedup: Interval | None = None
    captures: int = 0
    eager_calls: float = 0.0
    padding: float = 0.0


@dataclass(frozen=True)
class Sizes:
    """Where the arguments of calls differ.

    Attributes:
        of: the size of each call.
        dims: argument name -> the dimension that has it.
    """

    of: tuple[int, ...]
    dims: dict[str, int]


def sizes_of(fn: Function, calls: Sequence[Inputs], what: str = "bench") -> Sizes:
    """The one size in which calls differ.

    Raises:
        ArgumentError: they differ in anything but one size, or in nothing; the message names the
            function ``what``.
    """
    dims: dict[str, int] = {}
    sizes: list[int | None] = [None] * len(calls)
    first = calls[0]
    names = [name for name, const in first.names(fn).items() if const is None]
    for call in calls:
        if call.spec != first.spec:
            raise ArgumentError(
                f"{what}(traffic=): the calls differ in more than the sizes of tensors."
            )
    for position, name in enumerate(names):
        leaves = [call.leaves[position] for call in calls]
        if len({(leaf.dtype, leaf.device) for leaf in leaves}) > 1:
            raise ArgumentError(f"{what}(traffic=): {name} has various dtypes or devices.")
        if len({leaf.dim() for leaf in leaves}) > 1:
            raise ArgumentError(f"{what}(traffic=): {name} has various numbers of dimensions.")
        vary = [d for d in range(leaves[0].dim()) if len({leaf.shape[d] for leaf in leaves}) > 1]
        if len(vary) > 1:
            raise ArgumentError(f"{what}(traffic=): {name} has two dimensions that change.")
        for d in vary:
            dims[name] = d
            for n, leaf in enumerate(leaves):
                if sizes[n] not in (None, leaf.shape[d]):
                    raise ArgumentError(
                        f"{what}(traffic=): {name} has a size of its own, {leaf.shape[d]} where "
                        f"others have {sizes[n]}."
                    )
                sizes[n] = leaf.shape[d]
    if 0 in sizes:
        raise ArgumentError(f"{what}(traffic=): a call has the size 0; expected sizes from 1.")
    if not dims:
        raise ArgumentError(f"{what}(traffic=): expected calls of several sizes; all have one.")
    return Sizes(tuple(size for size in sizes if size is not None), dims)


def measure(
    fn: Function,
    calls: Sequence[Inputs],
    synchronize: Callable[[], object],
    seconds: float,
    compiled: bool,
    progress: Callable[[str, float], object],
    fixed: bool = False,
) -> tuple[TrafficReport, ...]:
    """Send the calls through each way, pass after pass.

    Args:
        fn: the eager function.
        calls: their arguments, in the order in which they come.
        synchronize: waits for the device.
        seconds: how long to time passes; at least 6 are made.
        compiled: whether to measure ``torch.compile`` too.
        progress: told what is being done, and the share of it that is over.
        fixed: whether to measure too what padding all calls to the largest size takes.

    Raises:
        ArgumentError: the calls differ in anything but one size, or in nothing.
    """
    sizes = sizes_of(fn, calls)
    buckets = suggest_buckets(sizes.of, _BUCKETS)
    dims = {name: {d: "size"} for name, d in sizes.dims.items()}
    functions: dict[str, Function] = {
        "eager": fn,
        "graph": graphed(fn, max_graphs=max(32, len(set(sizes.of)))),
    }
    padded = {"buckets": buckets, **({"fixed": [max(sizes.of)]} if fixed else {})}
    for name, few in padded.items():
        functions[name] = graphed(fn, buckets={"size": few}, dims=dims)
    if compiled:
        functions["compile"] = compiled_for(fn, dynamic=True)
    kinds = list(dict(zip(sizes.of, calls, strict=True)).values())
    with settled(fn, kinds) as state:
        passes = _Passes(calls, kinds, state, synchronize)
        for n, (name, function) in enumerate(functions.items()):
            progress(f"traffic: {name}", n / len(functions))
            passes.first(name, function, 4.0 if name == "compile" else 1.0)
        passes.later(seconds, progress)
    for name, few in padded.items():
        computed = sum(min(b for b in few if b >= size) for size in sizes.of)
        row = passes.rows[name]
        if row.status == "ok":
            note = f"sizes {', '.join(map(str, few))}"
            passes.rows[name] = replace(
                row,
                note=f"{note}; {row.note}" if row.note else note,
                padding=round(1 - sum(sizes.of) / computed, 4) if row.eager_calls < 1 else 0.0,
            )
    for function in functions.values():
        if isinstance(function, Graphed):
            function.reset()
    return tuple(passes.rows.values())


class _Passes:
    """Passes over all calls, and what they show of each way."""

    def __init__(
        self,
        calls: Sequence[Inputs],
        kinds: Sequence[Inputs],
        state: Bench,
        synchronize: Callable[[], object],
    ) -> None:
        self._calls, self._kinds, self._state = calls, kinds, state
        self._synchronize = synchronize
        self._ways: dict[str, Function] = {}
        self._counted: dict[str, tuple[int, int]] = {}
        self.rows: dict[str, TrafficReport] = {}

    def first(self, name: str, function: Function, slack: float) -> None:
        """The first pass of a way; then each size once more, compared with eager."""
        try:
            took = sum(self._once(function)) / 1e6
            self._state.restart()
            found = [self._state.once(function, kind, n)[0] for n, kind in enumerate(self._kinds)]
        except Exception as error:
            self._state.restart()
            if interrupt_in(error) or name == "eager":
                raise
            self.rows[name] = TrafficReport(name, "raises", first_paragraph(error))
            return
        for n, values in enumerate(found):
            right = {**self._state.once(self._state.eager, self._kinds[n], n)[0]}
            words, _ = difference([values], [right], slack)
            if words:
                self.rows[name] = TrafficReport(name, "differs", words)
                return
        captures = function.stats().captures if isinstance(function, Graphed) else 0
        self.rows[name] = TrafficReport(name, "ok", first_pass_s=round(took, 6), captures=captures)
        self._ways[name] = function
        self._counted[name] = _counts(function)

    def later(self, seconds: float, progress: Callable[[str, float], object]) -> None:
        """More passes of all ways in turn."""
        took: dict[str, list[list[float]]] = {name: [] for name in self._ways}
        start = perf_counter()
        for n in range(_MAX_PASSES):
            over = (perf_counter() - start) / seconds
            progress("traffic: timing", min(over, 1.0))
            if over >= 1 and n >= _MIN_PASSES:
                break
            for name, function in self._ways.items():
                took[name].append(self._once(function))
                self._state.restart()
        for name, passes in took.items():
            ratios = [
                sum(theirs) / sum(ours) for theirs, ours in zip(took["eager"], passes, strict=True)
            ]
            (replays, eager), before = _counts(self._ways[name]), self._counted[name]
            answered = replays + eager - sum(before)
            why = _why_eager(self._ways[name]) if eager > before[1] else ""
            self.rows[name] = replace(
                self.rows[name],
                note=f"runs eagerly: {why}" if why else "",
                call_us=Percentiles.of([us for one in passes for us in one]),
                speedup=median_interval(ratios),
                eager_calls=round((eager - before[1]) / answered, 4) if answered else 0.0,
            )

    def _once(self, function: Function) -> list[float]:
        """One pass: the microseconds of each call from the initial state, on the device."""
        took = []
        for call in self._calls:
            if self._state.expected.state:
                self._state.restart()
            args, kwargs, _ = call.make()
            self._synchronize()
            start = perf_counter_ns()
            function(*args, **kwargs)
            self._synchronize()
            took.append((perf_counter_ns() - start) / 1000)
        return took


def _why_eager(function: Function) -> str:
    """The most frequent reason."""
    stats = stats_of(function)
    fallbacks = stats.fallbacks if stats is not None else {}
    return max(fallbacks, key=fallbacks.__getitem__, default="")


def _counts(function: Function) -> tuple[int, int]:
    """Replays and eager calls so far, of a graphed function."""
    if not isinstance(function, Graphed):
        return 0, 0
    stats = function.stats()
    return stats.replays, stats.eager_calls
