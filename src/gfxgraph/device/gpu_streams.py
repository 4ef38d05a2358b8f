"""Streams of CUDA and HIP that no other code gets."""

from __future__ import annotations

from functools import cache

import torch

from ..errors import DeviceError

__all__ = ["own_stream"]


@cache
def own_stream(index: int, purpose: str) -> torch.cuda.Stream:
    """A stream for ``purpose`` that is in no pool.

    torch hands out 32 streams in turn. A capture on one of them would also take in the work of
    other code on the same stream, which would then read memory that nothing has written. Without
    cuda-bindings, and on HIP, it is a stream of the pool of the highest priority, which little code
    uses.
    """
    try:
        from cuda.bindings import runtime
    except ImportError:
        return torch.cuda.Stream(index, priority=-3)
    with torch.cuda.device(index):
        error, handle = runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking)
    if int(error):
        raise DeviceError(f"cannot create a capture stream on GPU {index}: {error}.")
    return torch.cuda.ExternalStream(int(handle), device=index)
