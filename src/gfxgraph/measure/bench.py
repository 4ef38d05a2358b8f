"""``bench``: what graphs gain for one function, and why."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from ..call.graphed import Graphed
from ..call.signature import Const
from ..call.suitable import check_function, describe
from ..device import current_device
from ..errors import ArgumentError, first_paragraph
from ..interpose.interrupts import interrupt_in
from ..interpose.signatures import require_fit
from ..interpose.source import name_of
from ..record.collectives import refused
from ..verifying.bench import Bench
from ..verifying.inputs import Inputs
from .activity import Activity, activity
from .agreement import difference
from .report import BenchReport, WayReport
from .timing import Percentiles, Samples, in_turn, median_interval
from .traffic import measure, sizes_of
from .ways import Function, Way, default_ways, way_of

__all__ = ["Progress", "Run", "bench", "calls_of", "check_options", "chosen_ways", "measuring"]

Progress = Callable[[str, float], object]
"""Told what is done, and which share of it is over, from 0 to 1."""

_FIRST_CALLS = 3
_SLOWEST = 3600.0


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

    Each way makes three calls first, whose results are compared with eager's. Then all ways are
    called in turn, round after round, so that a drift of the machine hits all alike. At last
    torch.profiler sees a few calls of each, for the work of the device.

    Everything runs under ``torch.no_grad()``, on copies of the arguments. What ``fn`` changes
    outside is put back before each round and at the end.

    Args:
        fn: the function, module or method. If it is graphed, that is the way ``"graph"``.
        *args: its arguments, with at least one tensor (here or in ``kwargs``).
        ways: names of what to measure beside eager: ``"graph"``, ``"compile"``,
            ``"reduce-overhead"``, ``"compile+graph"``, ``"make_graphed_callables"``,
            ``"max-autotune"``. Default: all but the last, which compiles for minutes; without a
            GPU ``"graph"``.
        seconds: how long to time calls, all ways together, and as long again for ``traffic``.
            Default 10. At least 6 rounds are made.
        traffic: the positional arguments of calls that differ in one size, in the order in which
            they come: compares a graph for each size, buckets, and code that is compiled for any
            size. Default: all calls are of one size.
        kwargs: keyword arguments of ``fn``.
        progress: called with what is being done and with the share that is over.

    Returns:
        The report: ``report.verdict``, ``report["graph"].speedup``; printed, it is a text.

    Raises:
        ArgumentError: an argument is not of the kind that is taken.
        CaptureError: ``fn`` issues a collective in a group of several ranks; nothing was sent.
        Exception: any error of ``fn`` itself. Errors of other ways are rows of the report.
    """
    with measuring("bench", fn, args, kwargs, chosen_ways(ways), seconds, progress) as run:
        calls = None if traffic is None else calls_of("bench", run.eager, traffic, kwargs or {})
        report = run.report(None if run.is_emulated else _activity)
        if calls is None:
            return report
        compiles = any(way.name.startswith("compile") for way in run.ways)
        rows = measure(run.eager, calls, run.synchronize, seconds, compiles, progress)
        return replace(report, traffic=rows)


@contextmanager
def measuring(
    what: str,
    fn: Function,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    ways: list[Way],
    seconds: float,
    progress: Progress,
) -> Iterator[Run]:
    """Check what :func:`bench` takes, and put back what its calls change.

    Args:
        what: the name of the function that is called with this, for messages.
        ways: what to measure, eager first.
        fn, args, kwargs, seconds, progress: see :func:`bench`.

    Raises:
        ArgumentError: an argument is not of the kind that is taken.
    """
    check_function(fn, f"{what}(fn)")
    check_options(what, seconds, kwargs)
    eager = fn
    while isinstance(eager, Graphed):
        eager = eager.__wrapped__
    name = name_of(eager)
    require_fit(eager, args, kwargs or {}, f"{what}({name})")
    try:
        given = Inputs.of(args, kwargs or {})
    except ArgumentError as error:
        raise ArgumentError(f"{what}({name}): an argument cannot be copied: {error}") from error
    if not given.leaves:
        raise ArgumentError(
            f"{what}({name}): there is no tensor among the arguments; give those of a usual call."
        )
    if any(leaf.is_meta for leaf in given.leaves):
        raise ArgumentError(f"{what}({name}): tensors on the meta device have no values.")
    with torch.no_grad():
        state = Bench(eager, name, [given], 0, None)
        with state.all_put_back(), refused():
            yield Run(fn, name, given, state, ways, seconds, progress)


See = Callable[
    [str, Callable[[], Any], Callable[[], None], Callable[[], object]], "Activity | None"
]
"""Looks at the device during calls. It gets the name of the way; what makes a call; what puts back
before one what calls change; and what waits for the device."""


def _activity(
    name: str,
    call: Callable[[], Any],
    put_back: Callable[[], None],
    synchronize: Callable[[], object],
) -> Activity | None:
    return activity(call, synchronize)


class Run:
    """The measurements of one call of :func:`bench`.

    Attributes:
        ways: what is measured.
        eager: the function itself.
        state: calls it from the same state each time.
        is_emulated: whether there is no GPU.
    """

    def __init__(
        self,
        fn: Function,
        name: str,
        given: Inputs,
        state: Bench,
        ways: list[Way],
        seconds: float,
        progress: Progress,
    ) -> None:
        self._fn, self._name, self._given, self.state = fn, name, given, state
        self.ways, self._seconds, self._progress = ways, seconds, progress
        self._device = current_device()
        self.eager, self.is_emulated = state.fn, self._device.kind == "emulated"
        places = {leaf.device for leaf in given.leaves if leaf.device.type == self._device.type}
        self._index = max((place.index or 0 for place in places), default=0)

    def report(self, see: See | None) -> BenchReport:
        """Measure each way, and let ``see`` look at the device at the end."""
        state = self.state
        self._progress("eager", 0.0)
        state.prepare()  # an error of the function is its caller's
        rows: dict[str, WayReport] = {}
        calls: dict[str, Function] = {}
        for n, way in enumerate(self.ways):
            self._progress(way.name, n / len(self.ways))
            rows[way.name], made = self.made_ready(way)
            if made is not None:
                calls[way.name] = made
        timed = self.timed(calls)
        for name, samples in timed.items():
            self._progress(f"{name} in the profiler", 1.0)
            rows[name] = self._with_times(rows[name], samples, timed["eager"])
            if see is not None:
                rows[name] = self._seen(rows[name], calls[name], see)
        for call in calls.values():
            if isinstance(call, Graphed) and call is not self._fn:
                call.reset()
        facts = self._device.facts(self._index)
        return BenchReport(
            self._name,
            tuple(_in_words(path, value) for path, value in self._arguments()),
            facts.name,
            self.is_emulated,
            torch.__version__,
            sys.modules["gfxgraph"].__version__,
            self._seconds,
            self._changes_state,
            tuple(rows.values()),
        )

    @property
    def _changes_state(self) -> bool:
        call = self.state.expected.calls[0]
        return bool(self.state.expected.state) or any(key[0] == "argument" for key in call.values)

    def _arguments(self) -> Iterable[tuple[str, Any]]:
        leaves = iter(self._given.leaves)
        for path, const in self._given.names(self.state.fn).items():
            yield path, next(leaves) if const is None else const

    def synchronize(self) -> None:
        """Wait for the device."""
        self._device.synchronize(self._index)

    def made_ready(self, way: Way) -> tuple[WayReport, Function | None]:
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
            found = [self.state.once(call, times=1)[0] for _ in range(_FIRST_CALLS)]
        except Exception as error:
            self.state.restart()
            if interrupt_in(error) or way.name == "eager":
                raise
            return WayReport(way.name, "raises", first_paragraph(error)), None
        row = WayReport(
            way.name,
            "ok",
            first_call_s=round(took[0], 6),
            ready_s=round(sum(took), 6),
            held_bytes=self._memory() - before,
        )
        expected = self.state.expected
        right = {**expected.calls[0].values, **expected.state}
        wrong, largest = difference(found, right, way.slack)
        row = replace(row, relative_error=largest)
        if wrong:
            return replace(row, status="differs", note=wrong), None
        if isinstance(function, Graphed):
            stats = function.stats()
            if not stats.replays:
                reason = next(iter(stats.fallbacks), "no call was a replay")
                return replace(row, status="eager", note=reason), None
            if way.name == "compile+graph" and stats.not_compiled:
                why = next(iter(stats.not_compiled.values()))
                row = replace(row, note=f"the graph is of the function as it is: {why}")
        return row, function

    def ready(self, function: Function) -> tuple[Callable[[], Any], Callable[[], None]]:
        """What makes a call, and what puts back before one what calls change."""
        args, kwargs, leaves = self._given.make()

        def put_back() -> None:
            if self._changes_state:
                self.state.restart()
                for leaf, value in zip(leaves, self._given.leaves, strict=True):
                    leaf.copy_(value)

        return lambda: function(*args, **kwargs), put_back

    def timed(self, functions: dict[str, Function]) -> dict[str, Samples]:
        """Call all of them in turn, each from the same state."""
        ready = {name: self.ready(function) for name, function in functions.items()}
        calls = {name: call for name, (call, _) in ready.items()}
        gc.collect()
        for call in calls.values():
            call()
        return in_turn(
            calls,
            self.synchronize,
            self._seconds,
            lambda name: ready[name][1](),
            lambda share: self._progress("timing", share),
        )

    def _with_times(self, row: WayReport, samples: Samples, eager: Samples) -> WayReport:
        host = [value for calls in samples.host for value in calls]
        total = [value for calls in samples.total for value in calls]
        # Of each round, whose calls the machine has treated alike.
        ratios = [
            Percentiles.of(theirs).p50 / Percentiles.of(ours).p50
            for theirs, ours in zip(eager.total, samples.total, strict=True)
        ]
        return replace(
            row,
            calls=len(total),
            host_us=Percentiles.of(host),
            end_to_end_us=Percentiles.of(total),
            speedup=median_interval(ratios),
        )

    def _seen(self, row: WayReport, function: Function, see: See) -> WayReport:
        call, put_back = self.ready(function)
        put_back()
        if not self.is_emulated:
            torch.cuda.reset_peak_memory_stats(self._index)
            start = torch.cuda.memory_allocated(self._index)
            call()
            self.synchronize()
            row = replace(row, peak_bytes=torch.cuda.max_memory_allocated(self._index) - start)
        seen = see(row.name, call, put_back, self.synchronize)
        if seen is None or row.end_to_end_us is None:
            return row
        idle = round(max(0.0, 1 - seen.busy_us / row.end_to_end_us.p50), 4)
        return replace(row, activity=seen, idle=idle)

    def _memory(self) -> int:
        """Bytes of the device that cannot be given back to the driver."""
        if self.is_emulated:
            return 0
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._index)


def _in_words(path: str, value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{path}={str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return f"{path}={value!r}"


def chosen_ways(ways: Iterable[str] | None, what: str = "bench") -> list[Way]:
    """Eager, and the ways with these names; ``None``: the usual ones.

    Raises:
        ArgumentError: there is no such way; the message names the function ``what``.
    """
    if ways is None:
        return default_ways()
    if isinstance(ways, str) or not isinstance(ways, Iterable):
        raise ArgumentError(f"{what}(ways=): expected names of ways, not {describe(ways)}.")
    return list(dict.fromkeys([way_of("eager", what), *(way_of(name, what) for name in ways)]))


def calls_of(
    what: str, fn: Function, traffic: Iterable[tuple[Any, ...]], kwargs: Mapping[str, Any]
) -> list[Inputs]:
    """Calls that differ in one size, for :func:`~gfxgraph.measure.traffic.measure`.

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
        calls.append(Inputs.of(args, kwargs))
    if not calls:
        raise ArgumentError(f"{what}(traffic=): there are no calls.")
    sizes_of(fn, calls, what)  # before minutes of work
    return calls


def check_options(what: str, seconds: Any, kwargs: Any) -> None:
    """Raise unless both are what :func:`bench` takes.

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
