"""The inputs of ``verify``: arguments by name, and fresh values for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils._pytree as pytree

from ..call.arguments import named_arguments
from ..call.buckets.padding import are_offsets
from ..call.replay import builder
from ..call.signature import Const, Spec, flatten

__all__ = ["Inputs", "fresh", "on_device"]


@dataclass(frozen=True)
class Inputs:
    """The arguments of a call.

    Attributes:
        leaves: the tensors among them.
        spec: their structure, and the values that are no tensors.
    """

    leaves: tuple[torch.Tensor, ...]
    spec: Spec

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
        """Make inputs of these arguments.

        Raises:
            ArgumentError: one holds data that cannot be copied, such as a NumPy array.
        """
        leaves, spec = flatten((tuple(args), dict(kwargs)))
        return cls(tuple(leaf.detach() for leaf in leaves), spec)

    def make(self) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
        """The arguments with copies of the tensors, for the function to write; and the copies."""
        copies = [leaf.clone() for leaf in self.leaves]
        args, kwargs = builder(self.spec, copies)()
        return args, kwargs, copies

    def fresh(self, seed: int) -> Inputs:
        """The same with other values in the tensors."""
        return replace(self, leaves=tuple(fresh(leaf, seed) for leaf in self.leaves))

    def with_leaf(self, position: int, leaf: torch.Tensor) -> Inputs:
        """The same with another tensor at ``position``."""
        leaves = list(self.leaves)
        leaves[position] = leaf
        return replace(self, leaves=tuple(leaves))

    def names(self, fn: Callable[..., Any]) -> dict[str, Const | None]:
        """Each tensor (``None``) and each constant by the name of its parameter in ``fn``."""
        return dict(named_arguments(fn, self.spec))


def fresh(leaf: torch.Tensor, seed: int) -> torch.Tensor:
    """Fresh values that ``leaf`` might have as well, within its range; fixed by ``seed``.

    Floating-point numbers are normal noise with its mean and standard deviation, cut to its range.
    Those of two values or with infinities (masks), integers and booleans are rolled along the last
    dimension, so that a mask that is all true stays so. Offsets (ascending integers from 0) stay.
    Buckets judge padding with other values: those of ``call/buckets/made.py`` vary as much as
    possible, these stay close to the given ones.
    """
    # The layout stays, since it is part of the kind of a call.
    return torch.empty_like(leaf).copy_(_other_values(leaf, seed))


def _other_values(leaf: torch.Tensor, seed: int) -> torch.Tensor:
    if leaf.numel() < 2:
        return _noise(leaf, seed) if leaf.is_floating_point() else leaf
    if leaf.is_complex():
        return torch.view_as_complex(_other_values(torch.view_as_real(leaf), seed).contiguous())
    if not leaf.is_floating_point():
        return leaf if are_offsets(leaf) else _rolled(leaf, seed)
    wide = leaf.float()
    low, high = wide.aminmax()
    if low == high:
        return _noise(leaf, seed)
    if not wide.isfinite().all() or ((wide == low) | (wide == high)).all():
        return _rolled(leaf, seed)
    noise = _normal(leaf, seed) * wide.std() + wide.mean()
    return noise.clamp(low, high).to(leaf.dtype)


def on_device(item: Any, device: str) -> Any:
    """``item`` with its CPU tensors moved to ``device``; a module is moved in place."""
    for module in (item, getattr(item, "__self__", None), getattr(item, "__wrapped__", None)):
        if isinstance(module, torch.nn.Module):
            module.to(device)
            return item
    return pytree.tree_map_only(
        torch.Tensor, lambda t: t.to(device) if t.device.type == "cpu" else t, item
    )


def _normal(leaf: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator(leaf.device).manual_seed(seed)
    return torch.randn(leaf.shape, generator=generator, device=leaf.device)


def _noise(leaf: torch.Tensor, seed: int) -> torch.Tensor:
    """Noise around the one value of ``leaf``; around 0 with deviation 1."""
    wide, noise = leaf.float(), _normal(leaf, seed)
    return torch.where(wide == 0, noise, wide * (1 + 0.1 * noise)).to(leaf.dtype)


def _rolled(leaf: torch.Tensor, seed: int) -> torch.Tensor:
    dim = max(d for d in range(leaf.dim()) if leaf.shape[d] > 1)
    return leaf.roll(1 + seed % (leaf.shape[dim] - 1), dim)
