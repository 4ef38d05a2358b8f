"""The hardware and its graph primitive: CUDA, HIP, or emulated on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import lru_cache
from platform import python_version
from typing import Any

import torch

from .base import Device, DeviceFacts, PoolHandle, generator_state
from .emulated import EmulatedDevice
from .gpu import GpuDevice

__all__ = [
    "Device",
    "DeviceFacts",
    "PoolHandle",
    "current_device",
    "generator_state",
    "index_of",
    "machine_and_versions",
]


@lru_cache(maxsize=1)
def current_device() -> Device:
    """The device that graphs run on: the GPU that torch can use, else the emulated device.

    It is decided once per process, as in torch.
    """
    return GpuDevice() if torch.cuda.is_available() else EmulatedDevice()


def index_of(device: Device, tensors: Iterable[torch.Tensor] = ()) -> int:
    """Which one of its kind holds the first of ``tensors`` that are on such a device.

    The current one, if none is.
    """
    where = next((t.device for t in tensors if t.device.type == device.type), None)
    return device.index(where or torch.device(device.type))


def machine_and_versions() -> tuple[dict[str, Any], dict[str, str]]:
    """The machine and the versions that a report was made with, in values that JSON has."""
    device = current_device()
    facts = device.facts(0)
    machine = {
        "device": facts.name,
        "vendor": facts.vendor,
        "arch": facts.arch,
        "driver": facts.driver,
        "runtime": facts.runtime,
        "emulated": device.kind == "emulated",
    }
    versions = {
        "gfxgraph": sys.modules["gfxgraph"].__version__,
        "torch": torch.__version__,
        "python": python_version(),
    }
    return machine, versions
