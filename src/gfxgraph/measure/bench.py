"""``bench``: what graphs gain for one function, and why."""

from __future__ import annotations

import gc
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from ..call.buckets.pool import ShapeBucketPool
from ..call.signature import Const, flatten
from ..call.stats import GraphedStats
from ..call.suitable import check_function, describe, unsuitable
from ..device import current_device
from ..errors import ArgumentError, first_paragraph
from ..interpose.interrupts import interrupt_in
from ..interpose.signatures import require_fit
from ..interpose.source import name_of
from ..record.collectives import refused
from ..verifying.bench import Bench, Round, Values
from ..verifying.inputs import Inputs
from .activity import PROFILED, Activity, activity
from .agreement import difference
from .report import BenchReport, WayReport
from .settled import settled
from .timing import Interval, Percentiles, Samples, in_turn, speedup
from .traffic import measure, sizes_of
from .ways import Function, Way, default_ways, is_graphed, stats_of, unwrapped, way_of

__all__ = [
    "Calls",
    "Progress",
    "Run",
    "bench",
    "check_options",
    "checked",
    "chosen_ways",
    "measuring",
    "traffic_of",
]

Progress = Callable[[str, float], object]
"""Told what is done, and which share of it is over, from 0 to 1."""

_FIRST_CALLS = 3
_IN_A_ROW = 8
"""Calls after which it shows whether graphs follow what a function changes."""
_SLOWEST = 3600.0
_LONGEST = 80
"""Characters of a value in the report."""
_NOT_AGAIN = (
    "no call was a replay: each was the first of its kind, or another thread captured meanwhile"
)
# The shares of timed calls that ran eagerly, above which the row says so, and has no times.
_RARELY, _MOSTLY = 0.01, 0.5


def bench(
    fn: Function,
    /,
    *args: Any,
    ways: Iterable[str] | None = None,
    seconds: float = 10.0,
    traffic: Iterable[tuple[Any, ...]] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    progress: Progress = lambda what, share: None,
) -> BenchReport:
    """Measure what a call of ``fn`` takes: eagerly, as a graph, compiled, and both.

    A first call fills the caches of ``fn``. Then each way makes three calls, whose results are
    compared with eager's; eight in a row if ``fn`` changes its arguments or something outside. Then
    all ways are called in turn, round after round, so that a drift of the machine hits all alike.
    At last torch.profiler sees a few calls of each, for the work of the device.

    Everything runs under ``torch.no_grad()``, on copies of the arguments. What ``fn`` changes is
    put back before every eighth timed call and at the end.

    Args:
        fn: the function, module or method. If it is graphed, that is the way ``"graph"``.
        *args: its arguments, with at least one tensor (here or in ``kwargs``).
        ways: names of what to measure beside eager: ``"graph"``, ``"compile"``,
            ``"reduce-overhead"``, ``"compile+graph"``, ``"make_graphed_callables"``,
            ``"max-autotune"``. Default: all but the last, which compiles for minutes; without a
            GPU ``"graph"``.
        seconds: how long to time calls, all ways together, and as long again for ``traffic``.
            Default 10. At least 6 rounds are made, and at most 400, of at most 50 calls of each. On
            a GPU, up to three times as long, while an interval is wider than 5 %.
        traffic: the positional arguments of calls that differ in one size, in the order in which
            they come: compares a graph for each size, buckets, and code that is compiled for any
            size. Default: all calls are of one size.
        kwargs: keyword arguments of ``fn``.
        progress: called with what is being done and with the share that is over.

    Returns:
        The report: ``report.verdict``, ``report["graph"].speedup``; printed, it is a text.

    Raises:
        ArgumentError: an argument is not of the kind that is taken.
        CaptureError: ``fn`` issues a collective in a group of several ranks; nothing was sent. Or
            it does what nobody can put back, such as a backward pass that makes a new ``.grad``.
        Exception: any error of ``fn`` itself. Errors of other ways are rows of the report.
    """
    given = checked("bench", fn, args, seconds, kwargs, progress)
    chosen = chosen_ways("bench", ways)
    calls = None if traffic is None else traffic_of("bench", unwrapped(fn), traffic, kwargs or {})
    with measuring(fn, given, chosen, seconds, progress) as run:
        report = run.report(None if run.is_emulated else _activity)
        if calls is None:
            return report
        compiles = any(way.name.startswith("compile") for way in chosen)
        rows = measure(unwrapped(fn), calls, run.synchronize, seconds, compiles, progress)
        return replace(report, traffic=rows)


def checked(
    what: str,
    fn: Function,
    args: tuple[Any, ...],
    seconds: float,
    kwargs: Mapping[str, Any] | None,
    progress: Progress,
) -> Inputs:
    """Copies of the arguments of :func:`bench`, or of another function that takes the same.

    Args:
        what: its name.
        fn, args, seconds, kwargs, progress: see :func:`bench`.

    Raises:
        ArgumentError: an argument is not of the kind that is taken.
    """
    check_function(fn, f"{what}(fn)")
    if isinstance(fn, ShapeBucketPool):
        raise ArgumentError(
            f"{what}(fn) takes a function, a module or a method, not a pool. Give its model_fn; "
            "bench(traffic=) measures buckets."
        )
    check_options(what, seconds, kwargs, progress)
    eager = unwrapped(fn)
    where = f"{what}({name_of(eager)})"
    require_fit(eager, args, kwargs or {}, where)
    given = _copied(args, kwargs or {}, where)
    if not given.leaves:
        raise ArgumentError(
            f"{where}: there is no tensor among the arguments; give those of a usual call."
        )
    return given


@contextmanager
def measuring(
    fn: Function, given: Inputs, ways: list[Way], seconds: float, progress: Progress
) -> Iterator[Run]:
    """What measures calls of ``fn``; at the end all that they have changed is put back.

    Raises:
        Exception: any error of ``fn``.
    """
    progress("eager", 0.0)
    with torch.no_grad(), refused(), settled(unwrapped(fn), [given]) as state:
        yield Run(fn, given, state, ways, seconds, progress)
    # torch leaves graphs in reference cycles. One that goes in the middle of a capture ends that.
    gc.collect()


See = Callable[
    [str, Callable[[], Any], Callable[[], object], Callable[[], object]], "Activity | None"
]
"""Looks at the device during calls. It gets the name of the way; what makes a call; what puts back
before one what calls change; and what waits for the device."""


def _activity(
    name: str,
    call: Callable[[], Any],
    prepare: Callable[[], object],
    synchronize: Callable[[], object],
) -> Activity | None:
    return activity(call, synchronize)


class Run:
    """The measurements of one call of :func:`bench`.

    Attributes:
        state: calls the function from the same state each time.
        is_emulated: whether there is no GPU.
        samples: way -> the times of its calls, once there is a report.
    """

    def __init__(
        self,
        fn: Function,
        given: Inputs,
        state: Bench,
        ways: list[Way],
        seconds: float,
        progress: Progress,
    ) -> None:
        self._fn, self._given, self.state = fn, given, state
        self._ways, self._seconds, self._progress = ways, seconds, progress
        self._device = current_device()
        self.is_emulated = self._device.kind == "emulated"
        self.samples: dict[str, Samples] = {}
        places = {leaf.device for leaf in given.leaves if leaf.device.type == self._device.type}
        self._index = max((place.index or 0 for place in places), default=0)

    def report(self, see: See | None) -> BenchReport:
        """Measure each way, and let ``see`` look at the device at the end."""
        state = self.state
        self._writes_containers = self._finds_containers_written()
        self._changes_state = self._writes_containers or _is_changed(state.expected)
        if self._changes_state:
            state.inputs = [self._given] * _IN_A_ROW
            state.prepare()
        rows: dict[str, WayReport] = {}
        calls: dict[str, Calls] = {}
        for n, way in enumerate(self._ways):
            self._progress(way.name, n / len(self._ways))
            rows[way.name], made = self._made_ready(way)
            if made is not None:
                calls[way.name] = self.calls_of(made)
        gc.collect()
        for call in calls.values():
            call.prepare()
            call()
        before = {name: _eager_calls(call.function) for name, call in calls.items()}
        timed = self.samples = in_turn(
            calls,
            self.synchronize,
            self._seconds,
            lambda name, number: calls[name].prepare(number),
            lambda share: self._progress("timing", share),
            self._is_precise,
        )
        for name, samples in timed.items():
            self._progress(f"{name} in the profiler", 1.0)
            row = _judged(rows[name], calls[name].function, before[name], samples)
            if row.status == "ok":
                row = self._with_times(row, samples, timed["eager"])
                row = self._with_memory(row, calls[name])
                row = row if see is None else self._seen(row, calls[name], see)
            rows[name] = row
        for call in calls.values():
            if is_graphed(call.function) and call.function is not self._fn:
                call.function.reset()  # type: ignore[attr-defined]
        facts = self._device.facts(self._index)
        return BenchReport(
            self.state.name,
            tuple(_in_words(path, value) for path, value in self._arguments()),
            facts.name,
            self.is_emulated,
            torch.__version__,
            sys.modules["gfxgraph"].__version__,
            self._seconds,
            self._changes_state,
            tuple(rows.values()),
        )

    def calls_of(self, function: Function) -> Calls:
        """Calls of a function with the arguments."""
        return Calls(function, self._given, self.state, self._changes_state)

    def _finds_containers_written(self) -> bool:
        """Whether it changes what a list, a dict or the like among its arguments holds."""
        changed = False

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal changed
            leaves, _ = flatten((args, kwargs))
            result = self.state.eager(*args, **kwargs)
            try:
                after, spec = flatten((args, kwargs))
            except ArgumentError:  # it put something there that cannot be copied
                changed = True
                return result
            same = len(after) == len(leaves) and all(map(operator.is_, after, leaves))
            changed = not same or spec != self._given.spec
            return result

        self.state.once(call)
        return changed

    def _arguments(self) -> Iterable[tuple[str, Any]]:
        leaves = iter(self._given.leaves)
        for path, const in self._given.names(self.state.fn).items():
            yield path, next(leaves) if const is None else const

    def synchronize(self) -> None:
        """Wait for the device."""
        self._device.synchronize(self._index)

    def _made_ready(self, way: Way) -> tuple[WayReport, Function | None]:
        """Make the calls of a way warm, and compare them with eager's."""
        if way.needs_gpu and self.is_emulated:
            return WayReport(way.name, "raises", "it needs a GPU"), None
        before = self._memory()
        took: list[float] = []
        function: Function | None = None

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal function
            self.synchronize()
            start = perf_counter()
            if function is None:
                function = way.make(self._fn, self._given.make()[:2])
            result = function(*args, **kwargs)
            self.synchronize()
            took.append(perf_counter() - start)
            return result

        try:
            if self._changes_state:
                found = _values(self.state.round(call))
            else:
                found = [self.state.once(call)[0] for _ in range(_FIRST_CALLS)]
        except Exception as error:
            self.state.restart()
            if interrupt_in(error) or way.name == "eager":
                raise
            return WayReport(way.name, "raises", first_paragraph(error)), None
        right = _values(self.state.expected)
        right = right if self._changes_state else right * _FIRST_CALLS
        wrong, largest = difference(found, right, way.slack)
        found.clear()  # or its memory would count as that of the way
        row = WayReport(
            way.name,
            "ok",
            relative_error=largest,
            first_call_s=round(took[0], 6),
            ready_s=round(sum(took[:_FIRST_CALLS]), 6),
            held_bytes=self._memory() - before,
        )
        if way.name == "eager":
            row = replace(row, note=self._unsteady(wrong))
        elif wrong:
            return replace(row, status="differs", note=wrong), None
        stats = stats_of(function) if function is not None else None
        if stats is not None:
            if not stats.replays:
                return replace(row, status="eager", note=_reason(stats)), None
            if way.name == "compile+graph" and stats.not_compiled:
                why = next(iter(stats.not_compiled.values()))
                row = replace(row, note=f"the graph is of the function as it is: {why}")
        return row, function

    def _with_times(self, row: WayReport, samples: Samples, eager: Samples) -> WayReport:
        host = [value for calls in samples.host for value in calls]
        total = [value for calls in samples.total for value in calls]
        return replace(
            row,
            calls=len(total),
            host_us=Percentiles.of(host),
            end_to_end_us=Percentiles.of(total),
            speedup=self._speedup(eager, samples),
        )

    def _is_precise(self, timed: Mapping[str, Samples]) -> bool:
        """Whether more time would not narrow the intervals enough to be worth it."""
        found = (self._speedup(timed["eager"], samples) for samples in timed.values())
        return self.is_emulated or all(speedup.is_narrow for speedup in found)

    def _speedup(self, eager: Samples, samples: Samples) -> Interval:
        return speedup(eager, samples, _IN_A_ROW if self._changes_state else 1)

    def _with_memory(self, row: WayReport, call: Calls) -> WayReport:
        if self.is_emulated:
            return row
        call.prepare()
        torch.cuda.reset_peak_memory_stats(self._index)
        start = torch.cuda.memory_allocated(self._index)
        call()
        self.synchronize()
        peak = torch.cuda.max_memory_allocated(self._index) - start
        return replace(row, peak_bytes=peak)

    def _seen(self, row: WayReport, call: Calls, see: See) -> WayReport:
        call.prepare(times=PROFILED + 1 if self._writes_containers else 1)
        seen = see(row.name, call, call.prepare_alike, self.synchronize)
        if seen is None or row.end_to_end_us is None:
            return row
        idle = round(max(0.0, 1 - seen.busy_us / row.end_to_end_us.p50), 4)
        return replace(row, activity=seen, idle=idle)

    def _unsteady(self, wrong: str) -> str:
        """What keeps eager calls from being equal, in words."""
        notes = [f"its own calls differ: {wrong}"] if wrong else []
        advanced = self.state.advanced()
        if advanced:
            notes.append(f"each call advances {', '.join(advanced)}, which nobody can put back")
        return "; ".join(notes)

    def _memory(self) -> int:
        """Bytes of the device that cannot be given back to the driver."""
        if self.is_emulated:
            return 0
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._index)


class Calls:
    """Calls of one way. What they change is put back before every eighth."""

    def __init__(self, function: Function, given: Inputs, state: Bench, changes: bool) -> None:
        self.function = function
        self._given, self._state, self._changes = given, state, changes
        self._ready = [given.make()[:2]]

    def prepare(self, number: int = 0, times: int = 1) -> None:
        """Make arguments for ``times`` calls, the first of which has this number in a row."""
        if not self._changes:
            return
        if number % _IN_A_ROW == 0:
            self._state.restart()
        self._ready.clear()
        self._ready += [self._given.make()[:2] for _ in range(times)]

    def prepare_alike(self) -> None:
        """Prepare a call that takes the course of the others, also by random numbers."""
        self.prepare()
        self._state.draw_again()

    def __call__(self) -> Any:
        """Make one call."""
        args, kwargs = self._ready.pop() if len(self._ready) > 1 else self._ready[0]
        return self.function(*args, **kwargs)


def _is_changed(expected: Round) -> bool:
    written = any(part == "argument" for part, _ in expected.calls[0].values)
    return written or bool(expected.state)


def _values(found: Round) -> list[Values]:
    *values, last = (call.values for call in found.calls)
    return [*values, {**last, **found.state}]


def _eager_calls(function: Function) -> int:
    stats = stats_of(function)
    return stats.eager_calls if stats is not None else 0


def _reason(stats: GraphedStats) -> str:
    """Why calls run eagerly."""
    fallbacks = stats.fallbacks
    return max(fallbacks, key=fallbacks.__getitem__, default=_NOT_AGAIN)


def _judged(row: WayReport, function: Function, before: int, samples: Samples) -> WayReport:
    """``row``, with what the timed calls show: that of a graph they ran eagerly."""
    stats = stats_of(function)
    share = min(1.0, (_eager_calls(function) - before) / sum(map(len, samples.total)))
    if stats is None or share < _RARELY:
        return row
    note = f"{share:.0%} of the timed calls ran eagerly: {_reason(stats)}"
    return replace(row, status="eager" if share > _MOSTLY else "ok", note=note)


def _copied(args: tuple[Any, ...], kwargs: Mapping[str, Any], where: str) -> Inputs:
    try:
        given = Inputs.of(args, kwargs)
    except ArgumentError as error:
        raise ArgumentError(f"{where}: an argument cannot be copied: {error}") from error
    for leaf in given.leaves:
        if leaf.is_meta:
            raise ArgumentError(f"{where}: tensors on the meta device have no values.")
        if leaf.layout is not torch.strided or leaf.is_nested:
            raise ArgumentError(
                f"{where}: a tensor among the arguments {unsuitable(leaf)}. Give a dense tensor, "
                "and make the other in the function."
            )
    return given


def _in_words(path: str, value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{path}={str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    text = repr(value)
    return f"{path}={text if len(text) <= _LONGEST else f'{text[:_LONGEST]}...'}"


def chosen_ways(what: str, ways: Iterable[str] | None) -> list[Way]:
    """Eager, and the ways with these names; ``None``: the usual ones.

    Raises:
        ArgumentError: there is no such way; the message names the function ``what``.
    """
    if ways is None:
        return default_ways()
    if isinstance(ways, str) or not isinstance(ways, Iterable):
        raise ArgumentError(f"{what}(ways=): expected names of ways, not {describe(ways)}.")
    return list(dict.fromkeys([way_of("eager"), *(way_of(name, what) for name in ways)]))


def traffic_of(
    what: str, fn: Function, traffic: Iterable[tuple[Any, ...]], kwargs: Mapping[str, Any]
) -> list[Inputs]:
    """Copies of the arguments of calls that differ in one size.

    Raises:
        ArgumentError: they are no such calls; the message names the function ``what``.
    """
    if isinstance(traffic, (str, torch.Tensor)) or not isinstance(traffic, Iterable):
        raise ArgumentError(f"{what}(traffic=): expected tuples, not {describe(traffic)}.")
    calls = []
    for args in traffic:
        if not isinstance(args, tuple):
            raise ArgumentError(
                f"{what}(traffic=): expected a tuple of arguments for each call, not "
                f"{describe(args)}."
            )
        require_fit(fn, args, kwargs, f"{what}(traffic=)")
        calls.append(_copied(args, kwargs, f"{what}(traffic=)"))
    if not calls:
        raise ArgumentError(f"{what}(traffic=): there are no calls.")
    sizes_of(fn, calls, what)  # before minutes of work
    return calls


def check_options(what: str, seconds: Any, kwargs: Any, progress: Any) -> None:
    """Raise unless all are what :func:`bench` takes.

    Raises:
        ArgumentError: one is not; the message names the function ``what``.
    """
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not 0 < seconds <= _SLOWEST:
        raise ArgumentError(
            f"{what}(seconds={Const(seconds)!r}): expected a number above 0, at most {_SLOWEST:g}."
        )
    known = kwargs is None or isinstance(kwargs, Mapping)
    if not known or not all(isinstance(name, str) for name in kwargs or ()):
        raise ArgumentError(
            f"{what}(kwargs={Const(kwargs)!r}): expected keyword arguments, a dict from their "
            "names."
        )
    if not callable(progress):
        raise ArgumentError(
            f"{what}(progress={Const(progress)!r}): expected a function of what is being done and "
            "of the share that is over."
        )
