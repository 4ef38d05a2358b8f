"""What ``enable(emulate=True)`` puts in place of names of torch, by their paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from ..device import current_device
from ..device.capture_rules import REFUSED_CALLS
from ..device.emulated_capture import current_capture
from ..errors import DeviceError
from .device_use import check_device, is_forked, is_there, is_used, use_device
from .emulated_streams import (
    Event,
    Stream,
    capture_of,
    current_stream,
    default_stream,
    refuse_waiting,
    set_stream,
    stream_now,
)
from .legacy_types import TYPES, set_default_tensor_type
from .tensor import SimulatedTensor
from .torch_cuda import CONSTANT_ANSWERS, SEEDING

__all__ = ["replacements"]

# Answers of ``check`` that are not those of a machine on which code really runs.
_OTHERWISE = ("torch.cuda.graph.__exit__", "torch.overrides.has_torch_function")
_MEMORY = ("cuda", "cuda.memory", "accelerator", "accelerator.memory")

# Functions of one device, or of two: which of their arguments names it. They refuse other devices
# in the words of torch, or as CUDA does.
_INVALID = "Invalid device id"
_PROPERTIES = {"get_device_name", "get_device_capability", "get_device_properties"}
_FIRST_ARGUMENT = {
    *_PROPERTIES,
    "_exchange_device",
    "_maybe_exchange_device",
    "_accelerator_exchangeDevice",
    "_accelerator_maybeExchangeDevice",
    "_cuda_setDevice",
    "set_device_index",
    "set_device_idx",
    "mem_get_info",
    "get_memory_info",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
}
_DEVICE_AT = {
    **dict.fromkeys(_FIRST_ARGUMENT, (0,)),
    "set_per_process_memory_fraction": (1,),
    "can_device_access_peer": (0, 1),
    "get_rng_state": (0,),
    "set_rng_state": (1,),
}
# What uses the device; other questions can be asked before, and after a fork().
_USES = _FIRST_ARGUMENT | {"init", "_lazy_init", "current_device", "can_device_access_peer"}
_USES |= {"current_device_index", "current_device_idx", "_cuda_getDevice"}


def replacements(allocated: Callable[[], int]) -> dict[str, Any]:
    """Path of a name -> what stands for it.

    Args:
        allocated: gives the bytes that tensors of the device hold.
    """
    peak = 0

    def memory_allocated(device: Any = None) -> int:
        nonlocal peak
        check_device(device)
        now = allocated()
        peak = max(peak, now)
        return now

    def max_memory_allocated(device: Any = None) -> int:
        memory_allocated(device)
        return peak

    def reset_peak(device: Any = None) -> None:
        nonlocal peak
        check_device(device)
        peak = 0

    def memory_stats(device: Any = None) -> dict[str, int]:
        now = memory_allocated(device)
        return {
            f"{kind}_bytes.all.{name}": value
            for kind in ("allocated", "active", "reserved")
            for name, value in (("current", now), ("peak", peak))
        }

    found = {
        path: _of_device(path, answer)
        for path, answer in CONSTANT_ANSWERS.items()
        if path not in _OTHERWISE
    }
    for module in _MEMORY:
        found |= {
            f"torch.{module}.memory_allocated": memory_allocated,
            f"torch.{module}.max_memory_allocated": max_memory_allocated,
            f"torch.{module}.memory_reserved": memory_allocated,
            f"torch.{module}.max_memory_reserved": max_memory_allocated,
            f"torch.{module}.reset_peak_memory_stats": reset_peak,
            f"torch.{module}.memory_stats": memory_stats,
        }
    for module in ("cuda", "cuda.random"):
        for name, function in SEEDING.items():
            found[f"torch.{module}.{name}"] = _seeding(f"torch.cuda.{name}", function)
    return found | {
        "torch.cuda.Stream": Stream,
        "torch.cuda.streams.Stream": Stream,
        "torch.cuda.ExternalStream": _external_stream,
        "torch.cuda.streams.ExternalStream": _external_stream,
        "torch.cuda.Event": Event,
        "torch.cuda.streams.Event": Event,
        "torch.cuda.current_stream": current_stream,
        "torch.cuda.default_stream": default_stream,
        "torch.cuda.set_stream": set_stream,
        "torch.accelerator.current_stream": current_stream,
        "torch.accelerator.set_stream": set_stream,
        "torch._C._cuda_getCurrentStream": lambda device=0: (current_stream().stream_id, 0, 1),
        "torch._C._cuda_setStream": lambda stream_id, **kwargs: set_stream(
            Stream(stream_id=stream_id)
        ),
        "torch.cuda.synchronize": _synchronize,
        "torch._C._cuda_synchronize": _synchronize,
        "torch.accelerator.synchronize": _synchronize,
        "torch.cuda.graph_pool_handle": current_device().pool_handle,
        "torch.cuda.graphs.graph_pool_handle": current_device().pool_handle,
        "torch.cuda.graphs._cuda_isCurrentStreamCapturing": _is_capturing,
        "torch._C._cuda_isCurrentStreamCapturing": _is_capturing,
        "torch.cuda.set_device": _of_device("set_device_index", lambda *args, **kwargs: None),
        "torch.cuda.is_initialized": is_used,
        "torch.cuda._is_in_bad_fork": is_forked,
        "torch.cuda.random._is_in_bad_fork": is_forked,
        "torch._C._get_accelerator": lambda *args: torch.device("cuda"),
        "torch.set_default_tensor_type": set_default_tensor_type,
        **TYPES,
        **_REFUSED,
        **_WITHOUT_EFFECT,
        "torch.cuda.get_allocator_backend": lambda: "native",
        "torch.cuda.memory.get_allocator_backend": lambda: "native",
        "torch._C._host_emptyCache": lambda: None,
        "torch.cuda.default_generators": (torch.default_generator,),
        "torch.autograd._engine_run_backward": _run_backward,
        "torch.autograd.graph._engine_run_backward": _run_backward,
    }


def _refused(path: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise DeviceError(f"{path}() is not emulated: run this part on a GPU, or leave it out.")

    name = path.rpartition(".")[2]
    return type(name, (), {"__init__": refuse}) if name[0].isupper() else refuse


_REFUSED = {
    path: _refused(path)
    for path in (
        "torch.cuda.MemPool",
        "torch.cuda.memory.MemPool",
        "torch.cuda.use_mem_pool",
        "torch.cuda.memory.use_mem_pool",
        "torch.cuda.cudart",
        "torch.cuda.caching_allocator_alloc",
        "torch.cuda.memory.caching_allocator_alloc",
        "torch.cuda.caching_allocator_delete",
        "torch.cuda.memory.caching_allocator_delete",
        "torch.cuda.caching_allocator_enable",
        "torch.cuda.memory.caching_allocator_enable",
        "torch.cuda.CUDAPluggableAllocator",
        "torch.cuda.memory.CUDAPluggableAllocator",
        "torch.cuda.change_current_allocator",
        "torch.cuda.memory.change_current_allocator",
        "torch.cuda.memory._record_memory_history",
        "torch.cuda.memory._snapshot",
        "torch.cuda.memory._dump_snapshot",
        "torch.cuda.memory._set_allocator_settings",
        "torch.cuda.current_blas_handle",
        "torch.cuda.current_solver_handle",
        "torch.cuda.get_gencode_flags",
        "torch.cuda.list_gpu_processes",
        "torch.cuda.memory.list_gpu_processes",
        "torch.cuda._compile_kernel",
        "torch._C._scatter",
        "torch._C._gather",
        "torch._C._broadcast",
        "torch._C._broadcast_coalesced",
        *(
            f"torch.cuda.{name}"
            for name in ("memory_usage", "utilization", "temperature", "power_draw", "clock_rate")
        ),
        "torch.cuda.device_memory_used",
    )
}
_WITHOUT_EFFECT: dict[str, Callable[..., Any]] = dict.fromkeys(
    ("torch.cuda._sleep", "torch.cuda.profiler.start", "torch.cuda.profiler.stop"),
    lambda *args, **kwargs: None,
)


def _of_device(path: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    """``answer``, which refuses devices that are not there, and any after ``fork()``."""
    name = path.rpartition(".")[2]
    places, uses = _DEVICE_AT.get(name, ()), name in _USES
    if not places and not uses:
        return answer

    def function(*args: Any, **kwargs: Any) -> Any:
        if uses:
            use_device()
        for device in (*(args[at] for at in places if at < len(args)), kwargs.get("device")):
            if name in _PROPERTIES or name == "can_device_access_peer":
                if not is_there(device):
                    raise AssertionError(_INVALID)
            else:
                check_device(device)
        return answer(*args, **kwargs)

    return function


def _synchronize(device: Any = None) -> None:
    check_device(device)
    refuse_waiting("torch.cuda.synchronize()")


def _is_capturing() -> bool:
    return capture_of(stream_now()) is not None


def _external_stream(stream_ptr: int, device: Any = None, **kwargs: Any) -> Stream:
    return Stream(device, stream_id=stream_ptr)


def _seeding(path: str, function: Callable[..., Any]) -> Callable[..., Any]:
    rule = REFUSED_CALLS.get(path)

    def seeding(*args: Any, **kwargs: Any) -> Any:
        capture = current_capture()
        if capture is not None and rule is not None:
            capture.fail(rule.error(f"{path}()"))
        return function(None, *args, **kwargs)

    return _of_device(path, seeding)


_NO_BACKWARD = (
    "Backward does not run on the emulated device: torch's autograd engine needs a real one. "
    "Emulation is for inference; run the training step on the CPU or on a GPU."
)

_engine: Any = torch.autograd._engine_run_backward  # type: ignore[attr-defined]


def _run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's engine asks the device for streams in C++, where none is."""
    if any(isinstance(output, SimulatedTensor) for output in t_outputs):
        raise DeviceError(_NO_BACKWARD)
    try:
        return _engine(t_outputs, *args, **kwargs)
    except RuntimeError as error:  # inside of torch.func.grad, tensors are wrapped
        if "Cannot access accelerator device" not in str(error):
            raise
        raise DeviceError(_NO_BACKWARD) from error
