"""Methods and functions of torch whose work C++ would do on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree

from ..errors import DeviceError
from .storages import copy_storage, new_storage, refuse_to_share, set_storage, share_with_torch
from .subclasses import make_parameter, make_subclass, use_subclass
from .tensor import SimulatedTensor

__all__ = ["METHODS"]


def _no_trace(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``torch.jit.trace``: C++ would record the operations past the emulated device."""
    if any(isinstance(v, SimulatedTensor) for v in pytree.tree_leaves((args, kwargs))):
        raise DeviceError(
            "torch.jit.trace() does not see the emulated device: trace on the host, or on a GPU."
        )
    return original(*args, **kwargs)


def _profile_the_host(
    original: Callable[..., Any], profiler: Any, *args: Any, **kwargs: Any
) -> None:
    """Let profilers not ask for events of CUDA: there are none, and each would be a warning."""
    if kwargs.get("use_device") == "cuda":
        kwargs["use_device"] = None
    kwargs.pop("use_cuda", None)
    original(profiler, *args, **kwargs)
    if getattr(profiler, "use_device", None) == "cuda":
        profiler.use_device = None
    activities: set[Any] = getattr(profiler, "activities", set())
    if torch.profiler.ProfilerActivity.CUDA in activities:
        activities = {torch.profiler.ProfilerActivity.CPU, *activities}
        profiler.activities = activities - {torch.profiler.ProfilerActivity.CUDA}


METHODS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (torch.nn.Parameter, "__new__", make_parameter),
    (torch.Tensor, "_make_subclass", make_subclass),
    (torch.Tensor, "as_subclass", use_subclass),
    (torch.Tensor, "set_", set_storage),
    (torch.Tensor, "__dlpack__", refuse_to_share),
    (torch, "from_dlpack", share_with_torch),
    (torch.utils.dlpack, "from_dlpack", share_with_torch),
    (torch.utils.dlpack, "to_dlpack", refuse_to_share),
    (torch, "to_dlpack", refuse_to_share),
    (torch.UntypedStorage, "__new__", new_storage),
    (torch.UntypedStorage, "copy_", copy_storage),
    (torch.jit, "trace", _no_trace),
    (torch.jit, "trace_module", _no_trace),
    (torch.profiler.profile, "__init__", _profile_the_host),
    (torch.autograd.profiler.profile, "__init__", _profile_the_host),
)
"""Owner, name and handler (:func:`~gfxgraph.interpose.patch.intercept`)."""
