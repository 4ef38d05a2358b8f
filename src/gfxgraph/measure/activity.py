"""What the device does during a call, from the events of torch.profiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

__all__ = ["PROFILED", "Activity", "activity", "is_launch", "stretches"]

PROFILED = 5
"""How many calls the profiler sees."""

T = TypeVar("T", int, float)

# How the runtimes call what hands work to the device. From the names that CUPTI and roctracer give.
_LAUNCHES = (
    "LaunchKernel",
    "LaunchCooperativeKernel",
    "GraphLaunch",
    "ModuleLaunch",
    "Memcpy",
    "Memset",
)


@dataclass(frozen=True)
class Activity:
    """The work of the device for one call.

    Attributes:
        busy_us: microseconds in which at least one kernel or copy ran.
        kernels_us: the sum of the times of all of them; more than ``busy_us`` where some ran side
            by side.
        kernels: how many kernels and copies ran.
        launches: how many calls of the runtime gave the device work. A graph is one.
        top: name -> microseconds, of the kernels that took longest.
    """

    busy_us: float
    kernels_us: float
    kernels: float
    launches: float
    top: dict[str, float]


def activity(
    call: Callable[[], Any], synchronize: Callable[[], object], times: int = PROFILED
) -> Activity | None:
    """Profile ``times`` calls, after one more; ``None``: the profiler saw no work of a device."""
    call()
    synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as seen:
        for _ in range(times):
            call()
        synchronize()
    kineto: Any = seen.profiler.kineto_results
    spans: list[tuple[int, int]] = []
    by_name: Counter[str] = Counter()
    launches = 0
    for event in kineto.events():
        on_device = event.device_type() != DeviceType.CPU
        if on_device and not event.is_user_annotation():
            spans.append((event.start_ns(), event.start_ns() + event.duration_ns()))
            by_name[event.name()] += event.duration_ns()
        elif not on_device and is_launch(event.name()):
            launches += 1
    if not spans:
        return None
    busy = sum(end - start for start, end in stretches(spans))
    return Activity(
        busy_us=round(busy / 1000 / times, 3),
        kernels_us=round(sum(by_name.values()) / 1000 / times, 3),
        kernels=round(len(spans) / times, 1),
        launches=round(launches / times, 1),
        top={name: round(ns / 1000 / times, 3) for name, ns in by_name.most_common(8)},
    )


def is_launch(name: str) -> bool:
    """Whether a call of the runtime with this name gives the device work."""
    return name.startswith(("cuda", "cu", "hip")) and any(part in name for part in _LAUNCHES)


def stretches(spans: Iterable[tuple[T, T]]) -> Iterator[tuple[T, T]]:
    """The union of intervals, as intervals that do not touch, in order."""
    first: T | None = None
    for start, end in sorted(spans):
        if first is None:
            first, until = start, end
        elif start > until:
            yield first, until
            first, until = start, end
        elif end > until:
            until = end
    if first is not None:
        yield first, until
