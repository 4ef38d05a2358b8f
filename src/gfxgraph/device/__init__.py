"""The hardware and its graph primitive: CUDA, HIP, or emulated on the CPU."""

from __future__ import annotations

from functools import lru_cache

import torch

from .base import Device, DeviceFacts, Graph, PoolHandle, generator_state
from .emulated import EmulatedDevice
from .gpu import GpuDevice

__all__ = ["Device", "DeviceFacts", "Graph", "PoolHandle", "current_device", "generator_state"]


@lru_cache(maxsize=1)
def current_device() -> Device:
    """The device that graphs run on: the GPU that torch can use, else the emulated device.

    It is decided once per process, as in torch.
    """
    return GpuDevice() if torch.cuda.is_available() else EmulatedDevice()
