"""Whether tensors are of the kind that a graph was captured for, asked in one call to C++."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..interpose.codes import address
from .words import question_of_kinds

__all__ = ["python_tensor_check", "tensor_check"]


def tensor_check(leaves: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A function of as many tensors: do they have the type, dtype, device, shape and strides?

    It also answers ``False`` when autocast was switched on or off, or a dispatch mode is active,
    and mostly when inference mode was. torch's own C++ guards where this torch has them, which are
    asked of few where there are many tensors; the same in Python elsewhere.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards

        def guards(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
            asked = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
            return asked.check

        return question_of_kinds(leaves, guards) or _but_nested(leaves, guards(leaves))
    except (ImportError, AttributeError, TypeError):  # private: gone, or called differently
        return python_tensor_check(leaves)


def _but_nested(leaves: Sequence[torch.Tensor], check: Callable[..., bool]) -> Callable[..., bool]:
    """``check``, which is not asked of nested tensors: torch's guards ask for strides, which these
    do not have, and the process ends. They look at no tensor of another type."""
    kinds = set(map(type, leaves))

    def check_strided(*tensors: Any) -> bool:
        with torch._C.DisableTorchFunction():  # no code of a mode or of a subclass runs
            if any(type(tensor) in kinds and tensor.is_nested for tensor in tensors):
                return False
        return check(*tensors)

    return check_strided


def python_tensor_check(leaves: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """The same as :func:`tensor_check` without private parts of torch."""

    def describe(tensor: Any) -> Any:
        has_strides = tensor.layout is torch.strided and not tensor.is_nested
        return (
            type(tensor),
            tensor.dtype,
            tensor.device,
            tensor.layout,
            tensor.is_nested,
            has_strides and (tensor.shape, tensor.stride()),
            tensor.requires_grad and torch.is_grad_enabled(),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def modes() -> Any:
        return (
            torch.is_inference_mode_enabled(),
            torch._C._len_torch_dispatch_stack(),
            torch._C._functorch.peek_interpreter_stack() is None,
            torch._C._get_tracing_state() is None,
            *(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")),
        )

    modes_then = modes()
    expected = [describe(leaf) for leaf in leaves]

    def check(*tensors: Any) -> bool:
        once = len(set(map(address, tensors))) == len(tensors)
        return (
            once
            and modes() == modes_then
            and all(
                isinstance(tensor, torch.Tensor) and describe(tensor) == wanted
                for tensor, wanted in zip(tensors, expected, strict=True)
            )
        )

    return check
