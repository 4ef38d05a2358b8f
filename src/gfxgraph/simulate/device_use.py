"""Which device is there, and which process may use it."""

from __future__ import annotations

import os
from typing import Any

import torch

__all__ = [
    "check_device",
    "forget_use",
    "is_forked",
    "is_there",
    "is_used",
    "use_device",
]

#: The process that has first used the device; ``None``: none has.
_user: list[int] = []


def use_device() -> None:
    """Note that this process uses the device.

    Raises:
        RuntimeError: the process that it was forked from has used it.
    """
    if not _user:
        _user.append(os.getpid())
    elif is_forked():
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
            "must use the 'spawn' start method"
        )


def is_forked() -> bool:
    """Whether the device was used before the ``fork()`` that made this process."""
    return bool(_user) and _user[0] != os.getpid()


def is_used() -> bool:
    """``torch.cuda.is_initialized()``."""
    return bool(_user) and not is_forked()


def forget_use() -> None:
    """As if nobody had used the device; a child for which it is lost stays without it."""
    if not is_forked():
        _user.clear()


_DeviceRefused: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)


def is_there(device: Any) -> bool:
    """Whether ``device`` is the emulated one.

    Raises:
        ValueError: it is not of CUDA.
    """
    if device is None:
        return True
    if isinstance(device, int) and not isinstance(device, bool):
        index: int | None = device
    else:
        asked = torch.device(device)
        if asked.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {asked}")
        index = asked.index
    return index in (None, 0, -1)


def check_device(device: Any) -> None:
    """Raise for any device but the first, in torch's words."""
    if not is_there(device):
        raise _DeviceRefused(
            f"CUDA error: invalid device ordinal: {device}. There is one emulated device, cuda:0."
        )
