"""How tensors lie in memory, and the static inputs and copies that lie as they do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import torch

from ..device import Device
from ..errors import CaptureError
from ..record.effects import overwrite, storage_key
from ..record.storages import is_whole
from .suitable import FREED

__all__ = [
    "Part",
    "alignment",
    "by_storage",
    "bytes_of",
    "cloner",
    "dense_strides",
    "first_of_each",
    "made_in",
    "make_static",
    "maker_of_copies",
    "overlapping",
    "overlaps_itself",
    "parts_of",
    "shares_memory",
    "static_strides",
]

# Bytes between the elements of a static input that lies in memory as its argument does.
_MAX_GAPS = 256 << 20

# Bytes of the widest load of a kernel that works on vectors: four doubles.
_LOADED_AT_ONCE = 32


def shares_memory(leaves: Sequence[torch.Tensor]) -> bool:
    """Whether two of ``leaves`` live on one storage."""
    filled = [storage_key(leaf) for leaf in leaves if leaf.numel()]
    return len(set(filled)) < len(filled)


def bytes_of(tensor: torch.Tensor) -> int:
    """Bytes of the elements of ``tensor``."""
    return tensor.numel() * tensor.element_size()


def alignment(leaf: torch.Tensor) -> int:
    """Bytes by which ``leaf`` lies behind a multiple of what kernels load at once."""
    return leaf.data_ptr() % _LOADED_AT_ONCE if leaf.numel() else 0


def make_static(
    leaf: torch.Tensor, device: torch.device, strides: Sequence[int] | None, behind: int = 0
) -> torch.Tensor:
    """A static input for ``leaf``: same shape and dtype, on ``device``, with what it holds now.

    Args:
        leaf: the argument.
        device: where the graph runs.
        strides: of the static input; ``None``: it is contiguous.
        behind: its :func:`alignment`, in bytes.

    Raises:
        CaptureError: with such strides it takes far more memory than its elements do, or the call
            has freed the memory of ``leaf``.
    """
    if not is_whole(leaf):
        raise CaptureError(f"argument: {FREED}")
    if strides is None:
        strides = _contiguous_strides(leaf.shape)
    span = _span(leaf.shape, strides)
    if (span - leaf.numel()) * leaf.element_size() > _MAX_GAPS:
        raise CaptureError(
            f"argument: a slice of shape {tuple(leaf.shape)} with strides {strides} lies in "
            f"{span * leaf.element_size() >> 20} MiB, and its static input would too. Pass it "
            "contiguous()."
        )
    # Never an inference tensor: it is written in whatever mode the caller is in.
    with torch.inference_mode(False), torch.no_grad():
        if behind:
            offset = behind // leaf.element_size()
            memory = torch.empty(offset + span, dtype=leaf.dtype, device=device)
            static = memory.as_strided(leaf.shape, strides, offset)
        else:
            static = torch.empty_strided(leaf.shape, strides, dtype=leaf.dtype, device=device)
        if leaf.is_neg():
            static = torch._neg_view(static)
        if leaf.is_conj():
            static = static.conj()
        overwrite(static, leaf)
        if type(leaf) is torch.nn.Parameter:  # the function may ask
            return torch.nn.Parameter(static, leaf.requires_grad)
        return static.requires_grad_(leaf.requires_grad)


def _contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(1, size))
    return tuple(reversed(strides)) if shape else ()


def maker_of_copies(
    output: torch.Tensor, device: Device | None = None
) -> Callable[[], torch.Tensor]:
    """A function that makes copies of ``output`` that lie in memory as it does.

    ``device``: that of graphs, on whose current stream they are made.
    """
    if output.is_conj():
        plain = maker_of_copies(output.conj(), device)
        return lambda: plain().conj()
    if output.is_neg():
        plain = maker_of_copies(torch._neg_view(output), device)
        return lambda: torch._neg_view(plain())
    if output.stride() == torch.empty_like(output, device="meta").stride() or not output.numel():
        return output.clone if device is None else cloner(device, output)
    strides = output.stride()
    if 0 not in strides and not overlaps_itself(output):

        def copy() -> torch.Tensor:
            return torch.empty_strided(
                output.shape, strides, dtype=output.dtype, device=output.device
            ).copy_(output)

        return copy
    span = _span(output.shape, strides)
    memory = output.as_strided((span,), (1,))
    return lambda: memory.clone().as_strided(output.shape, strides)


def cloner(device: Device, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The ``clone()`` of a dense tensor; where the device has a copy of its own by that, since to
    copy through torch's operators takes longer."""
    is_plain = type(tensor) is torch.Tensor and not (tensor.requires_grad or tensor.is_quantized)
    if not is_plain or tensor.device.type != device.type or not tensor.numel():
        return tensor.clone
    index, stream_id = device.index(tensor.device), device.stream_id
    copy_bytes = device.copy_bytes(index, bytes_of(tensor))
    if copy_bytes is None:
        return tensor.clone

    def clone() -> torch.Tensor:
        made = torch.empty_like(tensor)
        if copy_bytes(made.data_ptr(), tensor.data_ptr(), stream_id(index)):
            made.copy_(tensor)
        return made

    return clone


def made_in(is_inference: bool, make: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """``make``, for calls in the inference mode of now, whose result is an inference tensor or not:
    the function may switch that mode on or off."""
    if is_inference is torch.is_inference_mode_enabled():
        return make

    def made() -> torch.Tensor:
        with torch.inference_mode(is_inference):
            return make()

    return made


class Part(NamedTuple):
    """A tensor that shares its memory with others of the result.

    Attributes:
        memory: of all that share it, as the graph leaves it.
        copy: makes a copy of that.
        shape, strides, offset: of the tensor in there.
        is_conj, is_neg: whether it is a view that conjugates or negates what is read.
        is_memory: it is the whole of the memory, and no view of it.
        is_view: it is a view to autograd.
    """

    memory: torch.Tensor
    copy: Callable[[], torch.Tensor]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    is_conj: bool
    is_neg: bool
    is_memory: bool
    is_view: bool


def by_storage(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Those on one storage together, each object once."""
    found: dict[int, dict[int, torch.Tensor]] = {}
    for tensor in tensors:
        found.setdefault(storage_key(tensor), {})[id(tensor)] = tensor
    return [list(group.values()) for group in found.values()]


def parts_of(outputs: Sequence[torch.Tensor]) -> list[Part]:
    """Copies of tensors on one storage that share memory as these do; none where they are alone.

    Where they lie far from each other in memory, or are of several dtypes, nothing is shared.
    """
    first = outputs[0]
    if len(set(map(id, outputs))) < 2 or any(
        t.dtype != first.dtype or not t.numel() for t in outputs
    ):
        return []
    spans = [_span(t.shape, t.stride()) for t in outputs]
    start = min(t.storage_offset() for t in outputs)
    end = max(t.storage_offset() + span for t, span in zip(outputs, spans, strict=True))
    if end - start > 2 * sum(spans) + _MAX_BETWEEN:
        return []
    bases = (t for t in outputs if _is_base(t) and t.numel() == end - start)
    memory = base = next(bases, None)
    if memory is None:
        plain = first.conj() if first.is_conj() else first
        plain = torch._neg_view(plain) if plain.is_neg() else plain
        memory = plain.as_strided((end - start,), (1,), start)
    return [
        Part(
            *(memory, memory.clone, tuple(t.shape), t.stride()),
            *(int(t.storage_offset()) - int(start), t.is_conj(), t.is_neg()),
            *(t is base, t._is_view() or t.is_inference()),  # which is none to autograd
        )
        for t in outputs
    ]


def _is_base(tensor: torch.Tensor) -> bool:
    """Whether others may be views of it, and its clone lies in memory as it does."""
    if tensor._is_view() or tensor.is_conj() or tensor.is_neg():
        return False
    return tensor.stride() == torch.empty_like(tensor, device="meta").stride()


# Elements between tensors on one storage that are copied with them.
_MAX_BETWEEN = 1 << 20


def overlapping(tensors: Sequence[torch.Tensor]) -> frozenset[int]:
    """Positions of the tensors that share elements with another tensor object among these."""
    linked = {
        number
        for one, other in itertools.combinations({id(t): t for t in tensors}.values(), 2)
        if _overlap(one, other)
        for number in (id(one), id(other))
    }
    return frozenset(n for n, t in enumerate(tensors) if id(t) in linked)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not one.numel() or not other.numel():
        return False
    size, begin, other_begin = one.element_size(), one.data_ptr(), other.data_ptr()
    end = begin + _span(one.shape, one.stride()) * size
    other_end = other_begin + _span(other.shape, other.stride()) * other.element_size()
    if end <= other_begin or other_end <= begin:
        return False
    start, elements = (
        min(begin, other_begin),
        (max(end, other_end) - min(begin, other_begin)) // size,
    )
    is_alike = size == other.element_size() and (begin - other_begin) % size == 0
    if not is_alike or elements > _MAX_MARKED:
        return True  # nobody looks
    marks = torch.zeros(elements, dtype=torch.bool, device="cpu")
    marks.as_strided(one.shape, one.stride(), (begin - start) // size).fill_(True)
    return bool(marks.as_strided(other.shape, other.stride(), (other_begin - start) // size).any())


# Elements that are looked at one by one.
_MAX_MARKED = 1 << 24


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie between the first and the last one of a tensor, both included."""
    return 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements share memory; an expanded dimension alone does not count."""
    pairs = sorted(
        (step, size)
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        if size > 1 and step
    )
    reach = 0
    for step, size in pairs:
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


def first_of_each(leaves: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """For each tensor the number of the first one that is the same object."""
    ids = list(map(id, leaves))
    return tuple(map(ids.index, ids))


def dense_strides(
    leaf: torch.Tensor, shape: Sequence[int], sizes: Collection[int] = ()
) -> tuple[int, ...]:
    """The strides of a dense tensor, with dimensions in memory in the order of those of another.

    Args:
        leaf: the other tensor.
        shape: of the dense one.
        sizes: dimensions that have another size in other calls. Where ``leaf`` has one element
            along one of them, its stride there says nothing. Default: none.
    """
    steps = [*(torch.empty_like(leaf, device="meta") if overlaps_itself(leaf) else leaf).stride()]
    for dim in sorted(sizes, reverse=True):
        if leaf.shape[dim] == 1:
            inner = zip(leaf.shape[dim + 1 :], steps[dim + 1 :], strict=True)
            steps[dim] = max((size * step for size, step in inner), default=1)
    made, step = [0] * len(steps), 1
    for dim in sorted(range(len(steps)), key=lambda n: (steps[n], leaf.shape[n] > 1, -n)):
        made[dim], step = step, step * max(1, shape[dim])
    return tuple(made)


def static_strides(leaf: torch.Tensor, exactly: bool) -> tuple[int, ...] | None:
    """The strides that the static input for ``leaf`` has; ``None``: those of a contiguous one.

    What an operator of torch gives for a slice of rows is what it gives for a contiguous tensor.
    It is not for one that is expanded, or permuted and sliced, nor where a dimension of one element
    lies elsewhere, as in images of one channel whose channels come last: operators lay out results
    by its stride, which may have more elements there.
    """
    strides, in_rows = leaf.stride(), _contiguous_strides(leaf.shape)
    if strides == in_rows:
        return None
    if overlaps_itself(leaf):
        return torch.empty_like(leaf, device="meta").stride()
    if exactly:
        return strides
    least = 1
    for size, stride in zip(reversed(leaf.shape), reversed(strides), strict=True):
        if stride < least:
            dense = dense_strides(leaf, leaf.shape) if leaf.is_contiguous() else strides
            return None if dense == in_rows else dense
        least = stride * max(1, size)
    return None
