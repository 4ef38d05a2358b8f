"""Sees what a run does to storages themselves: no operation of torch shows it.

``storage.resize_(0)`` frees memory that tensors still point to. No mode sees that, and no replay
would repeat it. What reads and writes the data of a storage (``storage[0] = 1``, ``copy_``) does so
in operations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from ..interpose.patch import intercept

__all__ = ["calls_of_storages", "is_whole"]

# What typed storages do ends in one of these, or in an operation.
_METHODS = (
    "_byteswap _set_cdata _set_from_file _share_cuda_ _share_fd_cpu_ _share_filename_cpu_ "
    "_swap_data_ptr_ _write_file byteswap data_ptr resize_ share_memory_"
)


def calls_of_storages(tell: Callable[[str, torch.UntypedStorage], None]) -> ExitStack:
    """Let ``tell`` know of such calls of this thread, before they happen, until it is closed.

    Args:
        tell: takes the name of the method, and the storage. May raise to prevent the call.
    """

    def handler(
        name: str, original: Callable[..., Any], storage: Any, *args: Any, **kwargs: Any
    ) -> Any:
        tell(name, storage)
        return original(storage, *args, **kwargs)

    with ExitStack() as stack:
        for name in _METHODS.split():
            told = functools.partial(handler, name)
            stack.enter_context(intercept(torch.UntypedStorage, name, told))
        return stack.pop_all()


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether the storage of ``tensor`` holds all its elements; if not, nobody may read it."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return True
    with torch._C.DisableTorchFunction():  # it is us who ask
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
        return needed <= tensor.untyped_storage().nbytes()
