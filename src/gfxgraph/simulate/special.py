"""Operators that need more on the simulated device than that their arguments are unpacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .tensor import SimulatedTensor, data_for, inside, shape_of

if TYPE_CHECKING:
    from .operation import Call

__all__ = ["INDEXING", "INDEX_WRITES", "MIX", "READ_ON_HOST", "SECOND_ON_HOST", "SPECIAL"]


def _item(call: Call, tensor: torch.Tensor) -> Any:
    if not call.is_unknown(tensor):
        return NotImplemented
    value = torch.ones((), dtype=tensor.dtype).item()
    call.assume(value)
    return value


def _truth(call: Call, *args: Any, **kwargs: Any) -> Any:
    """``torch.equal`` and the like."""
    if not any(map(call.is_unknown, args)):
        return NotImplemented
    call.assume(True)
    return True


def _to_copy(call: Call, tensor: torch.Tensor, **kwargs: Any) -> Any:
    device = kwargs.get("device")
    if device is None or device.type != "cpu" or not call.is_unknown(tensor):
        return NotImplemented
    kwargs.pop("non_blocking", None)
    result = torch.ones_like(inside(tensor), **kwargs)
    call.assume(result)
    return result


def _copy(call: Call, to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    if isinstance(to, SimulatedTensor) or not call.is_unknown(source):
        return NotImplemented
    if call.world is not None:
        call.world.note_writes([to], False)
    call.assume(to.fill_(1))
    return to


def _index(call: Call, tensor: torch.Tensor, indices: list[Any], *rest: Any) -> Any:
    """Masks of unknown values take every other element."""
    masks = [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]
    if not masks or not any(map(call.is_unknown, (tensor, *indices))):
        return NotImplemented
    found: list[Any] = []
    for index in indices:
        if all(index is not mask for mask in masks):
            found.append(index)
            continue
        mask = shape_of(index) if call.is_unknown(index) else inside(index)
        if mask.is_meta:
            call.assume(mask)
        for positions in data_for(mask, True).nonzero().unbind(1):
            found.append(SimulatedTensor(shape_of(positions)))
    return call.other(call.op, tensor, found, *rest)


def _pin_memory(call: Call, tensor: torch.Tensor, device: Any = None) -> Any:
    if call.world is None:
        return NotImplemented
    if isinstance(tensor, SimulatedTensor):
        raise RuntimeError(f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned")
    return call.world.pin(tensor.clone())


def _is_pinned(call: Call, tensor: torch.Tensor, device: Any = None) -> Any:
    return call.world is not None and call.world.is_pinned(tensor)


def _softmax(call: Call, tensor: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    """Cast first: only CUDA has a kernel that casts on the way."""
    if not half_to_float:
        return NotImplemented
    wide = call.other(torch.ops.aten._to_copy.default, tensor, dtype=torch.float)
    return call.other(call.op, wide, dim, False)


def _flatten_weights(call: Call, weights: list[torch.Tensor], *args: Any) -> torch.Tensor:
    """Do nothing: cuDNN prefers weights in one piece of memory, but computes the same without."""
    return SimulatedTensor(torch.empty(0, dtype=weights[0].dtype))


def _pack(call: Call, tensor: torch.Tensor, lengths: torch.Tensor, *args: Any) -> Any:
    if not isinstance(lengths, SimulatedTensor):
        return NotImplemented
    raise RuntimeError(
        "'lengths' argument should be a 1D CPU int64 tensor, but got "
        f"{lengths.dim()}D cuda:0 {lengths.type().rpartition('.')[2].removesuffix('Tensor')} tensor"
    )


SPECIAL: dict[str, Callable[..., Any]] = {
    "aten::_local_scalar_dense": _item,
    "aten::equal": _truth,
    "aten::allclose": _truth,
    "aten::_to_copy": _to_copy,
    "aten::copy_": _copy,
    "aten::index": _index,
    "aten::_unsafe_index": _index,
    "aten::_pack_padded_sequence": _pack,
    "aten::_pin_memory": _pin_memory,
    "aten::_cudnn_rnn_flatten_weight": _flatten_weights,
    "aten::is_pinned": _is_pinned,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
}

# Operators that take tensors of the host beside those of the device.
MIX = frozenset(
    f"aten::{name}"
    for name in (
        "_copy_from",
        "_copy_from_and_resize",
        "_use_cudnn_ctc_loss",
        "_use_miopen_ctc_loss",
        "_ctc_loss",
        "_foreach_copy_",
        "_index_put_impl_",
        "_pack_padded_sequence",
        "_to_copy",
        "_unsafe_index",
        "_unsafe_index_put",
        "copy",
        "copy_",
        "index",
        "index_put",
        "index_put_",
        "tensor_split",
    )
)

# Those among them that need the values there.
READ_ON_HOST = frozenset({"aten::_ctc_loss", "aten::_pack_padded_sequence"})

# Operators whose second result is on the host.
SECOND_ON_HOST = frozenset({"aten::_pack_padded_sequence"})

INDEXING = frozenset({"aten::index", "aten::_unsafe_index"})

INDEX_WRITES = frozenset(
    f"aten::{name}" for name in ("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
)
"""Operators that write through indices; torch moves those to the tensor that is written."""
