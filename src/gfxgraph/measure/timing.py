"""Times of calls taken in turn, and what can be said of their ratios."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Interval", "Percentiles", "Samples", "in_turn", "median_interval", "speedup"]

_CONFIDENCE = 0.95
_LEAST_DISTURBED = 0.1
"""The share of calls that speedups compare. What else a machine does only ever adds time to a call.
On a shared host that took the median of eager calls from 2.3 to 3.9 ms between three runs in a row,
and the median of their fastest tenth from 2.09 to 2.12 ms."""
MIN_ROUNDS = 6
"""With five values no interval of 95 % of the median can be given."""
_MAX_ROUNDS = 400
_SECONDS_OF_A_ROUND = 0.02
_MOST_CALLS = 50


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of times, in microseconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        """Those of ``values``, by the nearest rank."""
        ordered = sorted(values)

        def at(share: float) -> float:
            return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 3)

        return cls(at(0.5), at(0.95), at(0.99))


@dataclass(frozen=True)
class Interval:
    """A median or a ratio of two, and where the true one lies with 95 % confidence."""

    median: float
    low: float
    high: float


@dataclass
class Samples:
    """The times of one way, in microseconds; one list for each round."""

    host: list[list[float]] = field(default_factory=list)
    total: list[list[float]] = field(default_factory=list)


def median_interval(values: Sequence[float]) -> Interval:
    """The median, with the interval that order statistics give without any assumption."""
    low, high = _bounds(values, 0.5, _CONFIDENCE)
    return Interval(round(statistics.median(values), 4), round(low, 4), round(high, 4))


def speedup(theirs: Samples, ours: Samples, steps: int = 1) -> Interval:
    """How many times as fast ``ours`` are as ``theirs``, end to end.

    Each time is the median of the fastest tenth of calls; of more, if they are so few that nothing
    could be said of so small a part.

    Args:
        theirs: the times of the other way.
        ours: the times of the way; the same object has a speedup of exactly 1.
        steps: calls of a round repeat after so many, and only every so-many-th are alike.
    """
    if theirs is ours:
        return Interval(1.0, 1.0, 1.0)
    # Both of two intervals hold what they should with the confidence that one of them has to have.
    confidence = (1 + _CONFIDENCE) / 2
    calls = [
        [[us for one in samples.total for us in one[step::steps]] for step in range(steps)]
        for samples in (theirs, ours)
    ]
    fewest = min(len(alike) for way in calls for alike in way if alike)
    share = 1 - ((1 - confidence) / 2) ** (1 / fewest)  # of less, the fastest call may be no bound
    share = min(0.5, max(_LEAST_DISTURBED / 2, share))
    (theirs_low, their, theirs_high), (ours_low, our, ours_high) = (
        map(sum, zip(*(_quantile(alike, share, confidence) for alike in way if alike), strict=True))
        for way in calls
    )
    return Interval(
        round(their / our, 4), round(theirs_low / ours_high, 4), round(theirs_high / ours_low, 4)
    )


def _quantile(
    values: Sequence[float], share: float, confidence: float
) -> tuple[float, float, float]:
    low, high = _bounds(values, share, confidence)
    return low, sorted(values)[round(share * (len(values) - 1))], high


def _bounds(values: Sequence[float], share: float, confidence: float) -> tuple[float, float]:
    """Two of the values between which the true quantile at ``share`` lies.

    Source: the number of values below the true quantile is binomial, B(n, share), so the interval
    from the k-th smallest to the m-th smallest value misses it with probability
    P(X < k) + P(X >= m).
    """
    ordered, n = sorted(values), len(values)
    missed, below, low = (1 - confidence) / 2, 0.0, 0
    for k in range(n):
        below += math.exp(
            math.lgamma(n + 1)
            - math.lgamma(k + 1)
            - math.lgamma(n - k + 1)
            + k * math.log(share)
            + (n - k) * math.log1p(-share)
        )
        if below <= missed:
            low = k
        if below >= 1 - missed:
            return ordered[low], ordered[k]
    return ordered[low], ordered[-1]


def in_turn(
    calls: Mapping[str, Callable[[], Any]],
    synchronize: Callable[[], object],
    seconds: float,
    before_call: Callable[[str, int], object] = lambda name, n: None,
    progress: Callable[[float], object] = lambda share: None,
) -> dict[str, Samples]:
    """Call each in turn, many rounds, so that a drift of the machine hits all alike.

    Args:
        calls: name -> a call that is warm.
        synchronize: waits for the device.
        seconds: how long, in all; at least 6 rounds, and at most 400.
        before_call: called before each call with the name and the number of the call in its round,
            outside of what is timed.
        progress: told the share of the time that is over.
    """
    samples = {name: Samples() for name in calls}
    often: dict[str, int] = {}
    start = time.perf_counter()
    for n in range(_MAX_ROUNDS + 1):
        over = (time.perf_counter() - start) / seconds
        progress(min(over, 1.0))
        if over >= 1 and n > MIN_ROUNDS:
            break
        for name, call in calls.items():
            host: list[float] = []
            total: list[float] = []
            spent: list[float] = []
            for number in range(often.get(name, 2)):
                prepared = time.perf_counter_ns()
                before_call(name, number)
                synchronize()
                begin = time.perf_counter_ns()
                call()
                middle = time.perf_counter_ns()
                synchronize()
                end = time.perf_counter_ns()
                host.append((middle - begin) / 1000)
                total.append((end - begin) / 1000)
                spent.append((end - prepared) / 1000)
            if n == 0:  # the first round only shows how long a call takes
                enough = _SECONDS_OF_A_ROUND / (min(spent) / 1e6 + 1e-9)
                often[name] = min(_MOST_CALLS, max(1, round(enough)))
                continue
            samples[name].host.append(host)
            samples[name].total.append(total)
    return samples
