"""Times of calls taken in turn, and what can be said of their ratios."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Interval", "Percentiles", "Samples", "in_turn", "median_interval", "speedup"]

_CONFIDENCE = 0.95
_LEAST_DISTURBED = 0.1
"""The share of calls that speedups compare. What else a machine does only ever adds time to a call.
On a shared host that took the median of eager calls from 2.3 to 3.9 ms between three runs in a row,
and the median of their fastest tenth from 2.09 to 2.12 ms. Their mean is steadier still: a graph on
an H200 takes 493 us in some calls and 535 in the others, and four runs in a row, of which each had
a few more or less of the former, gave speedups 2 % apart, not 6."""
_FEW = 10
"""So many calls are compared at least, if that is no more than half of them."""
_RESAMPLES = 200
_NARROW = 0.05
_TIMES = 3
"""How often as much is measured, at most, if the machine disturbs it."""
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

    @property
    def is_narrow(self) -> bool:
        """Whether it is no wider than a twentieth of what it holds."""
        return self.high - self.low <= _NARROW * self.median


@dataclass
class Samples:
    """The times of one way, in microseconds; one list for each round."""

    host: list[list[float]] = field(default_factory=list)
    total: list[list[float]] = field(default_factory=list)


def median_interval(values: Sequence[float]) -> Interval:
    """The median, with the interval that order statistics give without any assumption."""
    low, high = _bounds(values, 0.5)
    return Interval(round(statistics.median(values), 4), round(low, 4), round(high, 4))


def speedup(theirs: Samples, ours: Samples, steps: int = 1) -> Interval:
    """How many times as fast ``ours`` are as ``theirs``, end to end.

    Each time is the mean of the fastest tenth of calls; of more, if they are so few that nothing
    could be said of so small a part. The interval comes from the same ratio of rounds that are
    drawn again and again out of those measured, both ways together: a drift of the machine lasts
    for rounds, and hits both.

    Args:
        theirs: the times of the other way, in as many rounds.
        ours: the times of the way; the same object has a speedup of exactly 1.
        steps: calls of a round repeat after so many, and only every so-many-th are alike.
    """
    if theirs is ours:
        return Interval(1.0, 1.0, 1.0)
    ways = [_fastest_first(samples, steps) for samples in (theirs, ours)]
    rounds, draws = range(len(ours.total)), random.Random(0)

    def ratio(often: Mapping[int, int]) -> float:
        their, our = (sum(_mean_of_fastest(alike, often) for alike in way) for way in ways)
        return their / our

    found = sorted(ratio(Counter(draws.choices(rounds, k=len(rounds)))) for _ in range(_RESAMPLES))
    cut = round((1 - _CONFIDENCE) / 2 * _RESAMPLES)
    low, high = found[cut], found[-1 - cut]
    return Interval(round(ratio(dict.fromkeys(rounds, 1)), 4), round(low, 4), round(high, 4))


def _fastest_first(samples: Samples, steps: int) -> list[list[tuple[float, int]]]:
    """For each step its calls, each with the number of its round."""
    alike = (
        sorted((us, n) for n, calls in enumerate(samples.total) for us in calls[step::steps])
        for step in range(steps)
    )
    return [calls for calls in alike if calls]


def _mean_of_fastest(calls: Sequence[tuple[float, int]], often: Mapping[int, int]) -> float:
    """Of calls, the fastest first, if each round had come so often."""
    wanted = left = max(min(_FEW, (len(calls) + 1) // 2), round(_LEAST_DISTURBED * len(calls)))
    total = us = 0.0
    for us, n in calls:
        taken = min(often.get(n, 0), left)
        total += taken * us
        left -= taken
        if not left:
            break
    return (total + left * us) / wanted  # few and short rounds may give too few


def _bounds(values: Sequence[float], share: float) -> tuple[float, float]:
    """Two of the values between which the true quantile at ``share`` lies.

    Source: the number of values below the true quantile is binomial, B(n, share), so the interval
    from the k-th smallest to the m-th smallest value misses it with probability
    P(X < k) + P(X >= m).
    """
    ordered, n = sorted(values), len(values)
    missed, below, low = (1 - _CONFIDENCE) / 2, 0.0, 0
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
    is_precise: Callable[[dict[str, Samples]], bool] = lambda samples: True,
) -> dict[str, Samples]:
    """Call each in turn, many rounds, so that a drift of the machine hits all alike.

    Args:
        calls: name -> a call that is warm.
        synchronize: waits for the device.
        seconds: how long, in all; at least 6 rounds, and at most 400 in that time.
        before_call: called before each call with the name and the number of the call in its round,
            outside of what is timed.
        progress: told the share of the time that is over.
        is_precise: asked when the time is over; if it says no, as much is measured once more, and
            then a third time.
    """
    samples = {name: Samples() for name in calls}
    often: dict[str, int] = {}
    start, times, most = time.perf_counter(), 1, _MAX_ROUNDS
    for n in itertools.count():
        over = (time.perf_counter() - start) / seconds
        progress(min(over, 1.0))
        if (over >= times and n > MIN_ROUNDS) or n > most:
            if times >= _TIMES or is_precise(samples):
                break
            times, most = times + 1, n + _MAX_ROUNDS
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
