"""Inputs made to judge a function by: of the kind of given ones, of any size, no two rows alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import torch

from .padding import cut, layout_of
from .sizes import Call

__all__ = ["Kind", "as_indices", "is_mask", "made_like", "poisoned", "probes"]

Kind: TypeAlias = Literal["signed", "given"]
"""``"signed"``: floats around zero, of the size of the given ones; ``"given"``: the given rows,
each times a positive number, for functions that take no others."""

# Up to this bucket every size is tried, if there is one dynamic dimension.
_ALL_SIZES = 8


def is_mask(label: str, leaf: torch.Tensor) -> bool:
    """Whether an argument says which elements count, and is no data itself."""
    return leaf.dtype is torch.bool or "mask" in label.lower()


def made_like(
    call: Call, sizes: Mapping[str, int], kind: Kind = "signed", ending: bool = True
) -> Call:
    """A call of these sizes.

    Integers are among those that were given, since they may be indices. A mask holds both its
    values in each row.

    Args:
        call: what its arguments are like.
        sizes: of the dynamic dimensions.
        kind: of floats.
        ending: whether rows of masks end in the larger value.
    """
    leaves = []
    for n, (leaf, dims, label) in enumerate(zip(call.leaves, call.plan, call.labels, strict=True)):
        shape = list(leaf.shape)
        for dim, name in dims.items():
            shape[dim] = sizes[name]
        if not dims or not leaf.numel():
            leaves.append(leaf)
            continue
        generator = torch.Generator(leaf.device)
        generator.manual_seed(1000 + n)
        if is_mask(label, leaf):
            made = _mask(leaf, shape, dims, ending, generator)
        elif leaf.is_floating_point() or leaf.is_complex():
            made = (_signed if kind == "signed" else _of_the_given)(leaf, shape, generator)
        else:
            made = _among(leaf, shape, generator)
            made = as_indices(leaf, made, call.sizes, sizes)
        leaves.append(made.contiguous(memory_format=layout_of(leaf)))
    return call.with_tensors(leaves, dict(sizes))


def as_indices(
    given: torch.Tensor,
    made: torch.Tensor,
    given_sizes: Mapping[str, int],
    sizes: Mapping[str, int],
) -> torch.Tensor:
    """``made``, with nothing beyond these sizes where the given values may be places or lengths."""
    if made.is_floating_point() or made.is_complex() or not given.numel():
        return made
    largest = int(given.amax())
    limit = largest
    for name, size in given_sizes.items():
        if largest <= size and sizes[name] < size:  # a length may be the size itself
            limit = min(limit, sizes[name] - (largest < size))
    return made if limit == largest else made.clamp(max=limit)


def poisoned(call: Call, sizes: Mapping[str, int]) -> Call:
    """The same call with far larger numbers of both signs in all rows beyond these sizes."""
    leaves = []
    for leaf, dims, label in zip(call.leaves, call.plan, call.labels, strict=True):
        if is_mask(label, leaf) or not dims or not leaf.is_floating_point():
            leaves.append(leaf)
            continue
        large = leaf * 8
        cut(large, dims, sizes).copy_(cut(leaf, dims, sizes))
        leaves.append(large)
    return call.with_tensors(leaves, call.sizes)


def probes(bucket: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes below a bucket to run a function with."""
    if len(bucket) == 1 and max(bucket.values()) <= _ALL_SIZES:
        for name, size in bucket.items():
            yield from ({name: n} for n in range(1, size))
        return
    found = {
        name: sorted({n for n in (1, 2, 3, size // 2, size - 1) if 0 < n < size} or {size})
        for name, size in bucket.items()
    }
    longest = max(map(len, found.values()))
    for n in range(longest):
        # Not in step: a dimension is small where another is large too.
        yield {
            name: sizes[(n + shift) % len(sizes)]
            for shift, (name, sizes) in enumerate(found.items())
        }
    if len(bucket) > 1:
        for name, sizes in found.items():
            yield {**bucket, name: sizes[len(sizes) // 2]}


def _signed(leaf: torch.Tensor, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    size = leaf.abs().to(torch.float32)
    size = size[size.isfinite() & (size > 0)]
    scale = float(size.mean()) if size.numel() else 1.0
    dtype = torch.complex64 if leaf.is_complex() else torch.float32
    made = torch.randn(shape, generator=generator, device=leaf.device, dtype=dtype)
    return (made * scale).to(leaf.dtype)


def _of_the_given(
    leaf: torch.Tensor, shape: Sequence[int], generator: torch.Generator
) -> torch.Tensor:
    rows = _tiled(leaf, shape)
    factors = torch.rand(
        (shape[0], *[1] * (len(shape) - 1)), generator=generator, device=leaf.device
    )
    return (rows * (0.5 + factors).to(torch.float32)).to(leaf.dtype)


def _tiled(leaf: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The elements of ``leaf`` again and again along its dimensions, up to ``shape``."""
    for dim, size in enumerate(shape):
        if leaf.shape[dim] != size:
            places = torch.arange(size, device=leaf.device) % leaf.shape[dim]
            leaf = leaf.index_select(dim, places)
    return leaf


def _among(leaf: torch.Tensor, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    values = leaf.flatten()
    places = torch.randint(values.numel(), shape, generator=generator, device=leaf.device)
    return values[places]


def _mask(
    leaf: torch.Tensor,
    shape: Sequence[int],
    dims: Mapping[int, str],
    ending: bool,
    generator: torch.Generator,
) -> torch.Tensor:
    """Both values in each row, where there are two; rows of one element hold the usual one."""
    if leaf.dtype is torch.bool:
        low, high = torch.zeros_like(leaf.flatten()[0]), torch.ones_like(leaf.flatten()[0])
    else:
        low, high = torch.aminmax(leaf)
        if bool(low == high) and bool((low == 0) | (low == 1)) and not leaf.is_floating_point():
            low, high = torch.zeros_like(low), torch.ones_like(low)
        elif bool(low == high) and bool(low == 1):
            low = torch.zeros_like(low)
    upper = torch.rand(shape, generator=generator, device=leaf.device) < 0.6
    usual = bool((leaf == high).double().mean() > 0.5)
    rows = max(dim % len(shape) for dim in dims)  # along the last dynamic dimension
    length = shape[rows]
    if length == 1:
        upper.fill_(usual)
    else:
        upper.select(rows, 0).fill_(not ending)
        upper.select(rows, length - 1).fill_(ending)
    return torch.where(upper, high, low)
