"""The calls that CUDA refuses while a stream captures, beside the operators of
:mod:`.operator_table`.

The emulated capture raises these errors. The recorder and ``check`` ask the same questions
(:func:`is_host_copy`, :data:`HOST_READ_FUNCTIONS`) and describe the answers in the words of
``record/rules.py``, which address a function under ``graphed``; the texts here address code that
captures a graph by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from ..errors import CaptureForbidden
from ..interpose.cuda_calls import OBSERVED
from .operator_table import Call, Refusal

__all__ = [
    "AS_ON_CUDA",
    "DATA_DEPENDENT_SHAPE",
    "GENERATOR",
    "HOST_COPIES",
    "HOST_COPY",
    "HOST_READ",
    "HOST_READ_FUNCTIONS",
    "NOT_RUNNABLE",
    "REFUSED_CALLS",
    "SYNCHRONISATION",
    "TENSOR_KIND",
    "Rule",
    "is_host_copy",
    "is_move",
    "operator_error",
]


class Rule(NamedTuple):
    """Why something is refused during capture, and what to do instead."""

    reason: str
    instead: str

    def error(self, what: object) -> CaptureForbidden:
        """The error for the operation ``what``."""
        return CaptureForbidden(
            f"{what} is not permitted while a graph is being captured: {self.reason}. "
            f"{self.instead}."
        )


HOST_READ = Rule(
    "it reads device data on the host, which has to wait for the device",
    "Keep the value in a tensor (torch.where, a mask), or read it outside of the capture",
)
HOST_COPY = Rule(
    "it copies host data to the device out of pageable memory",
    "Make the tensor before the capture, or on the device (torch.full, zeros, arange)",
)
DATA_DEPENDENT_SHAPE = Rule(
    "the shape of its result depends on device data, which the host has to read",
    "Use a form of fixed shape, such as torch.where, masked_fill, topk, "
    "repeat_interleave(output_size=...), or run it outside of the capture",
)
SYNCHRONISATION = Rule(
    "it waits for the device",
    "Synchronize before or after the capture",
)
_SEEDING = Rule(
    "it sets the state of the device's generator from the host",
    "Seed before the capture; each replay then draws new numbers from the generator",
)
GENERATOR = Rule(
    "it draws from a generator that the graph does not know",
    "Use the default generator, or call register_generator_state(generator) before the capture",
)
TENSOR_KIND = Rule(
    "a graph of the emulated device holds plain dense tensors only",
    "Give it a torch.Tensor in host memory, or run this part outside of the capture",
)
NOT_RUNNABLE = Rule(
    "it has no fake implementation that tells the shape of its result, and failed on zeros",
    "Give it one (torch.library.register_fake), or run it outside of the capture",
)

# Only a function mode sees these calls; a dispatch mode on CPU tensors does not.
HOST_READ_FUNCTIONS: dict[object, str] = {
    torch.Tensor.tolist: "Tensor.tolist()",
    torch.Tensor.numpy: "Tensor.numpy()",
    torch.Tensor.cpu: "Tensor.cpu()",
    torch.Tensor.__array__: "numpy.asarray(tensor)",
    torch.Tensor.__repr__: "Printing a tensor",
    torch.Tensor.__format__: "Formatting a tensor",
}

_OUTSIDE = "Run it outside of the capture"
_OPERATOR_RULES: dict[Refusal, Rule] = {
    "host-read": HOST_READ,
    "data-dependent-shape": DATA_DEPENDENT_SHAPE,
    "hidden-sync": Rule("on CUDA it waits for the device inside", _OUTSIDE),
    "forbidden-call": Rule("capturing it was measured to fail on a GPU", _OUTSIDE),
}

_HOST_READ_OPERATORS = {
    "aten::_local_scalar_dense": "Tensor.item(), as in bool(), int(), float() and `if tensor:`,",
    "aten::allclose": "torch.allclose()",
    "aten::equal": "torch.equal()",
}


def operator_error(call: Call, why: Refusal) -> CaptureForbidden:
    """The error for a call of an operator that a capture refuses."""
    if why == "data-dependent-shape" and torch.Tag.dynamic_output_shape not in call.func.tags:
        return DATA_DEPENDENT_SHAPE.error(f"{call.func} through a boolean mask")
    name = _HOST_READ_OPERATORS.get(call.func._schema.name, str(call.func))
    return _OPERATOR_RULES[why].error(name)


def is_host_copy(
    func: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    on_host: Callable[[torch.Tensor], bool],
) -> str | None:
    """The name of ``func`` if this call copies host data to the device.

    A scalar without a device, ``torch.tensor(2.0)``, stays on the host also where there is a GPU,
    and may be an operand there. Lists and arrays without a device reach the dispatch mode as
    ``lift_fresh``.
    """
    if func is torch.Tensor.new_tensor:
        data = args[1] if len(args) > 1 else kwargs.get("data")
        return None if isinstance(data, torch.Tensor) else "Tensor.new_tensor()"
    if is_move(func, args, kwargs):
        return "Tensor.to(device)" if on_host(args[0]) else None
    name = _CONSTRUCTORS.get(func)
    if name is None or kwargs.get("device") is None:
        return None
    data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    is_empty = isinstance(data, (list, tuple)) and not data  # nothing is copied
    if is_empty or (isinstance(data, torch.Tensor) and not on_host(data)):
        return None
    return name


def is_move(func: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether ``func`` moves a tensor to the device, or to that of another tensor."""
    if func is torch.Tensor.to:
        return any(
            isinstance(value, (str, torch.device, torch.Tensor))
            for value in (*args[1:], *kwargs.values())
        )
    return func is torch.Tensor.cuda


_CONSTRUCTORS: dict[object, str] = {
    torch.tensor: "torch.tensor(..., device=...)",
    torch.as_tensor: "torch.as_tensor(..., device=...)",
    torch.asarray: "torch.asarray(..., device=...)",
}

HOST_COPIES = frozenset(
    {torch.Tensor.new_tensor, torch.Tensor.to, torch.Tensor.cuda, *_CONSTRUCTORS}
)
"""All functions for which :func:`is_host_copy` and :func:`is_move` may say yes."""


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    if num_classes < 0:
        return F.one_hot(tensor, num_classes)
    zeros = tensor.new_zeros((*tensor.shape, num_classes))
    # A replay on the CPU raises if there is no such class, and the call then runs eagerly.
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)


AS_ON_CUDA: dict[object, Callable[..., Any]] = {F.one_hot: _one_hot}
"""Functions that check their arguments on the host, but on CPU tensors only."""


def _refused_calls() -> Iterator[tuple[str, Rule]]:
    """Calls that wait, and calls that set a generator; its state may be read."""
    for path, (kind, _) in OBSERVED.items():
        if kind in ("synchronize", "query"):
            yield path, SYNCHRONISATION
        elif kind == "seed" and not path.rpartition(".")[2].startswith(("get_", "initial_")):
            yield path, _SEEDING


REFUSED_CALLS = dict(_refused_calls())
"""Calls of torch that a capture refuses, by their paths."""
