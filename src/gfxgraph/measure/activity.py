"""What the device does during a call, from the events of torch.profiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

__all__ = ["PROFILED", "Activity", "activity"]

PROFILED = 5
"""How many calls the profiler sees."""

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
        elif not on_device and _is_launch(event.name()):
            launches += 1
    if not spans:
        return None
    return Activity(
        busy_us=round(_covered(spans) / 1000 / times, 3),
        kernels_us=round(sum(by_name.values()) / 1000 / times, 3),
        kernels=round(len(spans) / times, 1),
        launches=round(launches / times, 1),
        top={name: round(ns / 1000 / times, 3) for name, ns in by_name.most_common(8)},
    )


def _is_launch(name: str) -> bool:
    return name.startswith(("cuda", "cu", "hip")) and any(part in name for part in _LAUNCHES)


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """The length of the union of intervals."""
    total, until = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total
