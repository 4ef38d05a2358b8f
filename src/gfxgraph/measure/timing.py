"""Times of calls taken in turn, and what can be said of their ratios."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Interval", "Percentiles", "Samples", "in_turn", "median_interval"]

_CONFIDENCE = 0.95
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
    """A median, and the interval in which the true one lies with 95 % confidence."""

    median: float
    low: float
    high: float


@dataclass
class Samples:
    """The times of one way, in microseconds; one list for each round."""

    host: list[list[float]] = field(default_factory=list)
    total: list[list[float]] = field(default_factory=list)


def median_interval(values: Sequence[float]) -> Interval:
    """The median, with the interval that order statistics give without any assumption.

    Source: the number of values below the true median is binomial with p = 1/2, so the interval
    from the k-th smallest to the k-th largest value misses it with probability
    2 * P(X < k), X ~ B(n, 1/2).
    """
    ordered, n = sorted(values), len(values)
    below, k = 0.0, 0
    while k < n // 2:
        below += math.comb(n, k) / 2**n
        if 2 * below > 1 - _CONFIDENCE:
            break
        k += 1
    k = max(k, 1)
    return Interval(
        round(statistics.median(ordered), 4), round(ordered[k - 1], 4), round(ordered[n - k], 4)
    )


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
