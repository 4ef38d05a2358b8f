"""How long calls take. Nothing of gfxgraph is imported here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def synchronize() -> None:
    """Wait for the device, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(call: Callable[..., T], *args: Any, **kwargs: Any) -> tuple[T, float]:
    """What a call returns, and the seconds until the device is done with it."""
    synchronize()
    start = time.perf_counter()
    result = call(*args, **kwargs)
    synchronize()
    return result, time.perf_counter() - start


def milliseconds(call: Callable[[], Any], times: int) -> float:
    """The median until the device is done."""
    return round(statistics.median(1000 * timed(call)[1] for _ in range(times)), 3)


def for_seconds(seconds: float) -> Iterator[None]:
    """Rounds until the time is over."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        yield


def in_turn(
    ways: Mapping[str, Callable[[], Any]], rounds: Iterable[Any], batch: int, warm_up: int = 0
) -> dict[str, dict[str, float]]:
    """Median microseconds of each way, taken in turn, so that drift hits all alike.

    Args:
        ways: name -> a call.
        rounds: as many as this has, each way is called ``batch`` times in a row.
        batch: see ``rounds``; the call before the batch is not counted.
        warm_up: calls of each way before all that.

    Returns:
        For each way ``host_us``, until the call returns (the device is idle when it starts), and
        ``end_to_end_us``, until the device is done; ``calls`` were counted.
    """
    host: dict[str, list[float]] = {name: [] for name in ways}
    total: dict[str, list[float]] = {name: [] for name in ways}
    for call in ways.values():
        for _ in range(warm_up):
            call()
    for _ in rounds:
        for name, call in ways.items():
            call()
            for _ in range(batch):
                synchronize()
                start = time.perf_counter_ns()
                call()
                middle = time.perf_counter_ns()
                synchronize()
                end = time.perf_counter_ns()
                host[name].append((middle - start) / 1000)
                total[name].append((end - start) / 1000)
    return {
        name: {
            "host_us": round(statistics.median(host[name]), 2),
            "end_to_end_us": round(statistics.median(total[name]), 2),
            "calls": len(host[name]),
        }
        for name in ways
    }


def back_to_back(
    ways: Mapping[str, Callable[[], Any]], rounds: Iterable[Any], calls: int = 50
) -> dict[str, float]:
    """Median microseconds of a call among so many of which none is waited for, ways in turn."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in rounds:
        for name, call in ways.items():
            call()
            synchronize()
            start = time.perf_counter_ns()
            for _ in range(calls):
                call()
            synchronize()
            taken[name].append((time.perf_counter_ns() - start) / 1000 / calls)
    return {name: round(statistics.median(times), 2) for name, times in taken.items()}
