"""The names of ``torch.cuda`` that the engines use, for a machine without a GPU.

To be replaced by ``gfxgraph.enable(emulate=True)`` where that exists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from gfxgraph.device import current_device

__all__ = ["give_torch_cuda"]


class _Stream:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cpu")
        self.cuda_stream = 0

    def wait_stream(self, other: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    __hash__ = None  # type: ignore[assignment]


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    wait = record


def give_torch_cuda(put: Callable[..., None] = setattr) -> None:
    """Replace the names in this process; ``put(owner, name, value)`` does it."""
    device, stream = current_device(), _Stream()
    names = {
        "Stream": _Stream,
        "Event": _Event,
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "set_stream": lambda stream: None,
        "graph_pool_handle": device.pool_handle,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "is_current_stream_capturing": device.is_capturing,
        "current_device": lambda: 0,
    }
    for name, value in names.items():
        put(torch.cuda, name, value)
    if not hasattr(torch._C, "_host_emptyCache"):
        torch._C._host_emptyCache = lambda: None
