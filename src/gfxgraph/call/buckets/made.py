"""Inputs made to judge a function by: of the kind of given ones, of any size, no two rows alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import torch

from .padding import Padding, are_offsets, as_indices, cut, is_mask, laid_out, padding_value
from .sizes import Buckets, SizedCall

__all__ = ["Kind", "made_like", "poisoned", "probes"]

Kind: TypeAlias = Literal["signed", "positive", "given", "within"]
"""``"signed"``: floats around zero, of the size of the given ones; ``"given"``: the given rows,
each times a positive number, for functions that take no others; ``"within"``: and that is at most
one, for functions that make indices of them."""

# Up to this bucket every size is tried, if there is one dynamic dimension.
_ALL_SIZES = 8


@torch.no_grad()
def made_like(
    call: SizedCall,
    sizes: Mapping[str, int],
    buckets: Buckets,
    kind: Kind = "signed",
    ending: bool = True,
) -> SizedCall:
    """A call of these sizes.

    Integers are among those that were given, since they may be indices, and ascend from 0 if those
    do. In a mask everything counts in some rows, and part of it in others.

    Args:
        call: what its arguments are like.
        sizes: of the dynamic dimensions.
        buckets: what to pad with; what a mask is padded with does not count.
        kind: of floats.
        ending: whether all rows of masks end in what counts.
    """
    leaves, is_given = [], kind in ("given", "within")
    for n, (leaf, dims, label) in enumerate(zip(call.leaves, call.plan, call.labels, strict=True)):
        shape = list(leaf.shape)
        for dim, name in dims.items():
            shape[dim] = sizes[name]
        if not dims or not leaf.numel():
            fits = leaf if is_mask(label, leaf) else as_indices(leaf, leaf, call.sizes, sizes)
            leaves.append(fits)
            continue
        generator = torch.Generator(leaf.device)
        generator.manual_seed(1000 + n)
        if is_mask(label, leaf):
            pad = buckets.pad_of(call.names[n])
            is_known = any(padding_value(pad, dim) is not None for dim in dims)
            made = _mask(leaf, shape, dims, pad, ending, generator)
            if is_given and not is_known:  # which of its values hides is not known
                made = _tiled(leaf, shape)
        elif leaf.is_floating_point() or leaf.is_complex():
            if is_given:
                made = _of_the_given(leaf, shape, generator, 1.5 if kind == "given" else 1.0)
            else:
                made = _signed(leaf, shape, generator)
            made = made.abs() if kind == "positive" else made
        else:
            made = as_indices(leaf, _among(leaf, shape, generator), call.sizes, sizes)
            if are_offsets(leaf):
                made = made.sort()[0]
                made[0] = 0
        leaves.append(laid_out(made, leaf, dims))
    return call.with_tensors(leaves, dict(sizes))


def poisoned(call: SizedCall, sizes: Mapping[str, int]) -> SizedCall:
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
    leaf: torch.Tensor, shape: Sequence[int], generator: torch.Generator, most: float
) -> torch.Tensor:
    rows = _tiled(leaf, shape)
    factors = torch.rand(
        (shape[0], *[1] * (len(shape) - 1)), generator=generator, device=leaf.device
    )
    return (rows * (most - factors).to(torch.float32)).to(leaf.dtype)


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
    pad: Padding,
    ending: bool,
    generator: torch.Generator,
) -> torch.Tensor:
    values = [torch.as_tensor(v, dtype=leaf.dtype, device=leaf.device) for v in (0, 1)]
    low, high = values if leaf.dtype is torch.bool else torch.aminmax(leaf)
    if bool(low == high) and not (leaf.is_floating_point() and bool(low == 0)):
        low, high = values
    hides, counts = low, high
    for dim in dims:
        value = padding_value(pad, dim)
        if value is not None:
            hides = torch.as_tensor(value, dtype=leaf.dtype, device=leaf.device)
            counts = high if bool(hides == low) else low
    counted = torch.rand(shape, generator=generator, device=leaf.device) < 0.6
    along = max(dim % len(shape) for dim in dims)
    counted.select(along, 0).fill_(True)
    if shape[along] > 1:
        counted.select(along, -1).fill_(ending)
    if len(shape) > 1:
        counted.select(0 if along else 1, 0).fill_(True)
    return torch.where(counted, counts, hides)
