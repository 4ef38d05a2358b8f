"""Settings of torch that hold for the whole process, and that a function may change.

A replay changes none of them, so a function that leaves one at another value than it found cannot
be a graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import torch

__all__ = ["SETTINGS", "Setting", "deciding"]


class Setting(NamedTuple):
    """How a setting is read and written.

    Attributes:
        name: for messages.
        read: gives it; ``None`` where torch refuses to tell.
        write: sets it.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], None]


def _of_c(name: str, get: str, put: str, *args: str) -> Setting | None:
    getter: Any = getattr(torch._C, get, None)
    setter: Any = getattr(torch._C, put, None)
    if getter is None or setter is None:
        return None

    def read() -> Any:
        try:
            return getter(*args)
        except RuntimeError:  # the older way to ask, after the newer one was used to set
            return None

    def write(value: Any) -> None:
        if value is not None:
            # What is set to two values is refused where the older way is asked for the newer one.
            with suppress(RuntimeError):
                setter(*args, *(value if type(value) is tuple else (value,)))

    return Setting(name, read, write)


def _deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _sdp(kind: str) -> Setting | None:
    name = f"torch.backends.cuda.enable_{kind}_sdp"
    return _of_c(name, f"_get_{kind}_sdp_enabled", f"_set_sdp_use_{kind}")


def _precision(operation: str) -> Setting | None:
    name = f"the fp32_precision of cuda for {operation}"
    getter, setter = "_get_fp32_precision_getter", "_set_fp32_precision_setter"
    return _of_c(name, getter, setter, "cuda", operation)


_CUBLAS = "torch.backends.cuda.matmul.allow_"
_REDUCED = "_reduced_precision_reduction"
_HALF = ("fp16", "bf16")
_FOUND = (
    Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting("torch.use_deterministic_algorithms", _deterministic, _set_deterministic),
    Setting("the number of threads of torch", torch.get_num_threads, torch.set_num_threads),
    # First what torch 2.9 has in place of allow_tf32, then the older flags, which set that too.
    *map(_precision, ("matmul", "conv", "rnn")),
    _of_c(f"{_CUBLAS}tf32", "_get_cublas_allow_tf32", "_set_cublas_allow_tf32"),
    _of_c(
        "torch.set_float32_matmul_precision",
        "_get_float32_matmul_precision",
        "_set_float32_matmul_precision",
    ),
    *(
        _of_c(
            f"{_CUBLAS}{dtype}{_REDUCED}",
            f"_get_cublas_allow_{dtype}{_REDUCED}",
            f"_set_cublas_allow_{dtype}{_REDUCED}",
        )
        for dtype in _HALF
    ),
    *(
        _of_c(f"torch.backends.cudnn.{name}", f"_get_cudnn_{name}", f"_set_cudnn_{name}")
        for name in ("allow_tf32", "benchmark", "deterministic", "enabled")
    ),
    *map(_sdp, ("flash", "mem_efficient", "math", "cudnn")),
)
SETTINGS = [setting for setting in _FOUND if setting is not None]


_BACKEND = "torch.backends.cudnn."
_DECIDING = (
    ("torch.use_deterministic_algorithms", "_get_deterministic_algorithms"),
    *((f"{_CUBLAS}{dtype}{_REDUCED}", f"_get_cublas_allow_{dtype}{_REDUCED}") for dtype in _HALF),
    *(
        (f"{_BACKEND}{name}", f"_get_cudnn_{name}")
        for name in ("enabled", "benchmark", "deterministic")
    ),
    *(
        (f"torch.backends.cuda.enable_{kind}_sdp", f"_get_{kind}_sdp_enabled")
        for kind in ("flash", "mem_efficient", "math", "cudnn")
    ),
)
# These raise once the newer way to set them was used as well.
_OF_FLOAT32 = (
    ("matmul", f"{_CUBLAS}tf32", "_get_cublas_allow_tf32"),
    ("conv", f"{_BACKEND}allow_tf32", "_get_cudnn_allow_tf32"),
)


def deciding(on_host: bool) -> list[tuple[str, Callable[[], Any], Any]]:
    """Name, getter and present value of each setting by which torch picks its kernels.

    They are asked in each call, so they are few: about 0.3 us. A getter may raise ``RuntimeError``
    after a change.

    Args:
        on_host: for graphs that are emulated, whose kernels are the CPU's.
    """
    found = [(name, getattr(torch._C, get, None)) for name, get in _DECIDING]
    if on_host:
        name = "torch.set_float32_matmul_precision"
        found.append((name, torch.get_float32_matmul_precision))
    else:
        newer: Any = getattr(torch._C, "_get_fp32_precision_getter", None)
        for operation, name, get in _OF_FLOAT32:
            getter = getattr(torch._C, get)
            try:
                getter()
            except RuntimeError:
                getter = functools.partial(newer, "cuda", operation)
            found.append((name, getter))
    return [(name, getter, getter()) for name, getter in found if getter is not None]
