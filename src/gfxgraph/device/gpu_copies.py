"""Copies to several places of a GPU in one launch.

Torch's ``_foreach_copy_`` makes one launch for each dtype, and its operator takes longer than that.
Here it is one kernel for all, which the driver launches from :class:`gfxgraph._compiled.Copies`.
It has run on an H200; for other GPUs from sm_75 to sm_120 it was only assembled, with ptxas 13.0.
"""

from __future__ import annotations

import array
import ctypes
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..stats import log

try:
    from .._compiled import Copies
except ImportError:  # optional
    Copies = None  # type: ignore[assignment,misc]

__all__ = ["MOST_PLACES", "copies_to"]

MOST_PLACES = 120
"""As many as the 4 KiB hold that every driver passes to a kernel: ``MOST`` in ``_compiled.c``, and
``pieces`` below."""

# Each block copies 16 KiB of one piece: 256 threads, each of them 16 bytes four times. What is left
# behind the last 16 bytes is copied byte by byte, in the first block of the piece. A piece takes 32
# bytes: where to, where from, how many bytes, and its first block.
_PTX = b"""
.version 6.5
.target sm_75
.address_size 64

.visible .entry gfxgraph_copy(.param .align 8 .b8 pieces[3840], .param .u32 count)
{
    .reg .pred %last, %is0, %is1, %is2, %is3, %rest;
    .reg .b16 %byte;
    .reg .b32 %block, %thread, %count, %n, %first;
    .reg .b32 %a<4>, %b<4>, %c<4>, %d<4>;
    .reg .b64 %piece, %to, %at, %size, %whole, %offset, %place, %left, %from0, %into0;

    mov.u32 %block, %ctaid.x;
    mov.u32 %thread, %tid.x;
    ld.param.u32 %count, [count];
    mov.b64 %piece, pieces;
    mov.u32 %n, 1;
FIND:
    setp.ge.u32 %last, %n, %count;
    @%last bra FOUND;
    ld.param.u32 %first, [%piece+56];
    setp.gt.u32 %last, %first, %block;
    @%last bra FOUND;
    add.u64 %piece, %piece, 32;
    add.u32 %n, %n, 1;
    bra FIND;
FOUND:
    ld.param.u64 %to, [%piece];
    ld.param.u64 %at, [%piece+8];
    ld.param.u64 %size, [%piece+16];
    ld.param.u32 %first, [%piece+24];
    cvta.to.global.u64 %to, %to;
    cvta.to.global.u64 %at, %at;
    and.b64 %whole, %size, -16;
    sub.u32 %block, %block, %first;
    mul.wide.u32 %offset, %block, 16384;
    mul.wide.u32 %place, %thread, 16;
    add.u64 %offset, %offset, %place;
    add.u64 %from0, %at, %offset;
    add.u64 %into0, %to, %offset;

    setp.lt.u64 %is0, %offset, %whole;
    add.u64 %offset, %offset, 4096;
    setp.lt.u64 %is1, %offset, %whole;
    add.u64 %offset, %offset, 4096;
    setp.lt.u64 %is2, %offset, %whole;
    add.u64 %offset, %offset, 4096;
    setp.lt.u64 %is3, %offset, %whole;
    @%is0 ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%from0];
    @%is1 ld.global.v4.u32 {%b0, %b1, %b2, %b3}, [%from0+4096];
    @%is2 ld.global.v4.u32 {%c0, %c1, %c2, %c3}, [%from0+8192];
    @%is3 ld.global.v4.u32 {%d0, %d1, %d2, %d3}, [%from0+12288];
    @%is0 st.global.v4.u32 [%into0], {%a0, %a1, %a2, %a3};
    @%is1 st.global.v4.u32 [%into0+4096], {%b0, %b1, %b2, %b3};
    @%is2 st.global.v4.u32 [%into0+8192], {%c0, %c1, %c2, %c3};
    @%is3 st.global.v4.u32 [%into0+12288], {%d0, %d1, %d2, %d3};

    cvt.u64.u32 %place, %thread;
    sub.u64 %left, %size, %whole;
    setp.lt.u64 %rest, %place, %left;
    setp.eq.and.u32 %rest, %block, 0, %rest;
    @!%rest bra DONE;
    add.u64 %place, %place, %whole;
    add.u64 %from0, %at, %place;
    add.u64 %into0, %to, %place;
    ld.global.u8 %byte, [%from0];
    st.global.u8 [%into0], %byte;
DONE:
    ret;
}
"""


def copies_to(index: int, places: Sequence[tuple[int, int]]) -> Callable[..., int] | None:
    """See :meth:`gfxgraph.device.base.Device.copy_together`."""
    if Copies is None or torch.version.hip or not 0 < len(places) <= MOST_PLACES:
        return None
    if any(at % 16 or not size for at, size in places):
        return None
    found = _kernel(index)
    if found is None:
        return None
    words = array.array("Q", itertools.chain.from_iterable(places))
    return Copies(*found, words.tobytes()).start


# By GPU: the address of the driver's launch, and the kernel; None: it has none.
_kernels: dict[int, tuple[int, int] | None] = {}


def _kernel(index: int) -> tuple[int, int] | None:
    if index not in _kernels:
        try:
            _kernels[index] = _loaded(index)
        except (OSError, AttributeError, RuntimeError, MemoryError) as error:
            log(logging.DEBUG, "no_kernel_that_copies", because=str(error))
            if isinstance(error, MemoryError):  # this may pass
                return None
            _kernels[index] = None
    return _kernels[index]


def _loaded(index: int) -> tuple[int, int]:
    driver = ctypes.CDLL("libcuda.so.1")
    launch = ctypes.cast(driver.cuLaunchKernel, ctypes.c_void_p).value
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    with torch.cuda.device(index):
        torch.cuda.current_stream().synchronize()  # the context is there now
        _ask(driver.cuModuleLoadData, ctypes.byref(module), _PTX)
    _ask(driver.cuModuleGetFunction, ctypes.byref(kernel), module, b"gfxgraph_copy")
    if not launch or not kernel.value:
        raise RuntimeError("the CUDA driver gave no kernel")
    return launch, kernel.value


def _ask(function: Any, *args: Any) -> None:
    error = function(*args)
    if error:
        # CUDA_ERROR_OUT_OF_MEMORY
        kind = MemoryError if error == 2 else RuntimeError
        raise kind(f"{function.__name__}() of the CUDA driver: error {error}")
