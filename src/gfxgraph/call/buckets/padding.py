"""Tensors made larger up to a bucket, and cut to what was asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import torch

from ...errors import ArgumentError
from ..static_inputs import dense_strides

__all__ = [
    "Padding",
    "are_offsets",
    "as_indices",
    "check_padding",
    "cut",
    "dim_of",
    "fills",
    "is_mask",
    "laid_out",
    "pad_to",
    "padding_value",
    "piece",
]

Padding: TypeAlias = (
    float | Literal["auto", "zero", "last"] | Callable[[torch.Tensor, int, int], Any]
)
"""What to pad with: a number, ``"zero"``, ``"last"`` (the last row again), or a function of
(tensor, dim, size) that gives the padded tensor. ``"auto"``: the last row in dimension 0, since a
row of zeros may be none that the model can compute (all of it masked), and zeros in the others, by
which an attention mask leaves the padding out."""


def cut(leaf: torch.Tensor, dims: Mapping[int, str], sizes: Mapping[str, int]) -> torch.Tensor:
    """The first rows of ``leaf``, of each dynamic dimension as many as ``sizes`` says."""
    for dim, name in dims.items():
        if leaf.shape[dim] != sizes[name]:
            leaf = leaf.narrow(dim, 0, sizes[name])
    return leaf


def piece(
    leaf: torch.Tensor, dims: Mapping[int, str], name: str, start: int, length: int
) -> torch.Tensor:
    """Some rows of ``leaf``, along the dimensions of that name."""
    for dim, of_dim in dims.items():
        if of_dim == name:
            leaf = leaf.narrow(dim, start, length)
    return leaf


def dim_of(dims: Mapping[int, str], name: str) -> int | None:
    """The first dimension of that name."""
    return next((dim for dim, of_dim in dims.items() if of_dim == name), None)


def is_mask(label: str, leaf: torch.Tensor) -> bool:
    """Whether an argument says which elements count, and is no data itself."""
    return leaf.dtype is torch.bool or "mask" in label.lower()


def as_indices(
    given: torch.Tensor,
    made: torch.Tensor,
    given_sizes: Mapping[str, int],
    sizes: Mapping[str, int],
) -> torch.Tensor:
    """``made``, with nothing beyond these sizes where the given values may be places or lengths."""
    is_whole = not (made.is_floating_point() or made.is_complex() or made.dtype is torch.bool)
    if not is_whole or not given.numel():
        return made
    largest = int(given.amax())
    limit = largest
    for name, size in given_sizes.items():
        if largest <= size and sizes[name] < size:  # a length may be the size itself
            limit = min(limit, sizes[name] - (largest < size))
    return made if limit == largest else made.clamp(max=limit)


def are_offsets(leaf: torch.Tensor) -> bool:
    """Whether these are ascending integers from 0, such as where sequences begin."""
    if leaf.dim() != 1 or leaf.dtype == torch.bool or leaf.is_floating_point() or not leaf.numel():
        return False
    ascending = (leaf[1:] >= leaf[:-1]).all() & (leaf[0] == 0) & (leaf[-1] > 0)
    return bool(ascending)


def laid_out(tensor: torch.Tensor, leaf: torch.Tensor, dims: Iterable[int]) -> torch.Tensor:
    """``tensor``, dense, with its dimensions in memory in the order of those of an argument.

    ``dims``: those of the argument that have a size of their own in each call.
    """
    strides = dense_strides(leaf, tensor.shape, [dim % leaf.dim() for dim in dims])
    if tensor.stride() == strides:
        return tensor
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def check_padding(pad: object) -> None:
    """Raise unless it is a :data:`Padding`.

    Raises:
        ArgumentError: it is not.
    """
    is_number = isinstance(pad, (int, float)) and not isinstance(pad, bool)
    is_word = isinstance(pad, str) and pad in ("auto", "zero", "last")
    if not (is_number or is_word or callable(pad)):
        raise ArgumentError(
            f"pad={pad!r}: expected a number, 'auto', 'zero', 'last', or a function of (tensor, "
            "dim, size)."
        )


def pad_to(leaf: torch.Tensor, dim: int, size: int, pad: Padding) -> torch.Tensor:
    """``leaf`` with one dimension as large as ``size``.

    Raises:
        ArgumentError: ``pad`` gave another shape.
    """
    missing = size - leaf.shape[dim]
    if missing <= 0:
        return leaf
    if callable(pad):
        padded: Any = pad(leaf, dim, size)
        wanted = _with(leaf, dim, size)
        if not isinstance(padded, torch.Tensor) or [*padded.shape] != wanted:
            raise ArgumentError(
                f"pad= gave {getattr(padded, 'shape', padded)!r} for dimension {dim}; expected a "
                f"tensor of shape {wanted}."
            )
        return padded
    if pad == "auto":
        pad = "zero" if dim else "last"
    if pad == "last":
        return torch.cat([leaf, leaf.narrow(dim, -1, 1).expand(_with(leaf, dim, missing))], dim)
    value = 0 if pad == "zero" else pad
    return torch.cat([leaf, leaf.new_full(_with(leaf, dim, missing), value)], dim)


def padding_value(pad: Padding, dim: int) -> float | None:
    """The number that a dimension is padded with; ``None``: it is padded with something else."""
    kind = ("zero" if dim else "last") if pad == "auto" else pad
    return None if callable(kind) or kind == "last" else 0 if kind == "zero" else kind


def fills(
    static: torch.Tensor, dims: Mapping[int, str], sizes: Mapping[str, int], pad: Padding
) -> Iterator[Callable[[], object]]:
    """Functions that pad a static input around the copied rows, as :func:`pad_to` does."""
    later = dict(dims)
    for dim, name in dims.items():
        del later[dim]
        size, missing = sizes[name], static.shape[dim] - sizes[name]
        if missing <= 0:
            continue
        reached = cut(static, later, sizes)  # the dimensions that are padded after this one
        rest = reached.narrow(dim, size, missing)
        kind = ("zero" if dim else "last") if pad == "auto" else pad
        if kind == "last":
            last = reached.narrow(dim, size - 1, 1).expand(rest.shape)
            yield functools.partial(rest.copy_, last)
        else:
            value: Any = 0 if kind == "zero" else kind
            yield functools.partial(rest.fill_, value)


def _with(leaf: torch.Tensor, dim: int, size: int) -> list[int]:
    shape = list(leaf.shape)
    shape[dim] = size
    return shape
