"""Calls of sizes that were met before, answered without padding them first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..entry import Entry
from ..layout import LayoutKey
from ..replay import NO_MATCH, FastPath, builder, copier
from ..signature import Spec
from ..static_inputs import first_of_each, made_in, maker_of_copies
from .padding import cut, fills
from .sizes import Buckets, SizedCall

__all__ = ["SizedReplays", "shapes_of"]

# Sizes that have a fast path of their own, some kilobytes each.
_MAX_SIZED = 1024


class SizedReplays:
    """The fast paths of calls by the shapes of their arguments.

    Each copies the tensors of a call into a corner of the static inputs, fills the rest with the
    padding, and cuts the static outputs.

    Attributes:
        answered: how many calls of each size these answered; changed under the lock of all replays
            only.
    """

    def __init__(self) -> None:
        self.answered: Counter[tuple[int, ...]] = Counter()
        self._by_shapes: dict[Any, FastPath] = {}

    def fast_path(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Answer a call of a size that was met before."""
        shapes = shapes_of(args, kwargs)
        fast_path = self._by_shapes.get(shapes)
        if fast_path is None:
            return NO_MATCH
        result = fast_path(fn, args, kwargs)
        if result is NO_MATCH:
            self._by_shapes.pop(shapes, None)  # its graph may be gone
        return result

    def forget(self) -> None:
        """Start anew."""
        self._by_shapes.clear()
        self.answered = Counter()

    def add(
        self,
        call: SizedCall,
        entry: Entry,
        result_spec: Spec,
        buckets: Buckets,
        layout: LayoutKey,
    ) -> None:
        """Answer later calls of these very sizes from the static tensors of the bucket itself."""
        if call.shapes is None or len(self._by_shapes) >= _MAX_SIZED:
            return
        pads = list(map(buckets.pad_of, call.names))
        if any(map(callable, pads)):
            return
        static_inputs, outputs = entry.static_tensors
        if any(map(entry.is_outside, outputs)) or entry.linked:
            return
        corners = [
            cut(s, dims, call.sizes) for s, dims in zip(static_inputs, call.plan, strict=True)
        ]
        copy = copier(entry.graph_pool.device, corners, call.leaves)
        around = [
            fill
            for static, dims, pad in zip(static_inputs, call.plan, pads, strict=True)
            for fill in fills(static, dims, call.sizes, pad)
        ]
        copies: list[Any] = [
            made_in(mode, _maker_of_rows(output, dims, call.sizes))
            for output, dims, mode in zip(outputs, entry.carried, entry.modes, strict=True)
        ]
        # One tensor that comes twice in the result is one tensor again.
        copies = [copies[n] for n in first_of_each(outputs)]
        make, answered = builder(result_spec, copies), self.answered
        sizes = buckets.in_order(call.sizes)

        def filled(given: Sequence[torch.Tensor]) -> None:
            copy(given)
            for fill in around:
                fill()

        def build() -> Any:
            answered[sizes] += 1
            return make()

        replay = entry.sized_replay(filled if around else copy, build)
        if replay is not None:
            self._by_shapes[call.shapes] = layout.recogniser(
                call, entry.reached, entry.asks_attributes
            )(replay)


def _maker_of_rows(
    output: torch.Tensor, dims: Mapping[int, str], sizes: Mapping[str, int]
) -> Callable[[], torch.Tensor]:
    """A function that copies the rows of a static output, as eager execution lays them out."""
    if torch.ops.aten.is_non_overlapping_and_dense(output):
        return cut(output, dims, sizes).clone
    make = maker_of_copies(output)
    return lambda: cut(make(), dims, sizes)


def shapes_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Tells calls of other sizes and in other modes apart; ``None``: not all are tensors."""
    try:
        named = tuple([(name, value.shape) for name, value in kwargs.items()]) if kwargs else ()
        shapes = tuple([value.shape for value in args])
        return shapes, named, torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    except AttributeError:
        return None
