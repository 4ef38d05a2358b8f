"""The part of a key that says how tensors lie in memory: their strides and their alignment.

A static input need not lie in memory as its argument does: a copy brings the data over. Only where
the function can tell the difference do strides and alignment belong to the key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..device import current_device
from ..graph.captured import CapturedGraph
from ..graph.session import Layout, LayoutError
from ..graph.tensor_check import tensor_check
from .key import SEEN_BY_CHECK, Call, conditions, key_of
from .replay import FastPath, matcher
from .static_inputs import alignment, first_of_each, make_static, static_strides
from .suitable import ends_autograd

__all__ = ["LayoutKey"]


def _and_end_autograd(check: Callable[..., bool]) -> Callable[..., bool]:
    return lambda *tensors: check(*tensors) and all(map(ends_autograd, tensors))


@dataclass
class LayoutKey:
    """Whether the keys of a callable say how its arguments lie in memory.

    Attributes:
        is_padded: arguments are padded, so they lie as padding leaves them, and no key says it.
        asks_layout: the function asks how its arguments lie in memory: all strides are in the key.
        draws: it draws random numbers on the device. Kernels that do so for whole vectors draw in
            another order for tensors that are not aligned, so alignment is in the key.
    """

    is_padded: bool = False
    asks_layout: bool = False
    draws: bool = False

    def forget(self) -> None:
        """Start anew."""
        self.asks_layout = self.draws = False

    def key_of(self, call: Call) -> Any:
        """See :func:`~gfxgraph.call.key.key_of`."""
        return key_of(call.fn, call.leaves, call.spec, self.asks_layout, self.draws)

    def recogniser(
        self,
        call: Call,
        outside: Collection[int] = (),
        are_bare: bool = False,
        end_autograd: bool = False,
    ) -> Callable[[Callable[..., Any]], FastPath]:
        """A function that makes of a replay a fast path for calls like this one only.

        Args:
            call: such a call.
            outside: numbers of objects that are no arguments of such calls. Default: none.
            are_bare: whether their tensors have no attributes of their own. Default: that is open.
            end_autograd: whether backward passes end at their tensors. Default: that is open.
        """
        same = first_of_each(call.leaves)
        tensors = [call.leaves[n] for n in dict.fromkeys(same)]
        check = self._check(tensors) if call.leaves else None
        if check is not None and end_autograd and any(t.requires_grad for t in tensors):
            check = _and_end_autograd(check)
        # The check of the tensors sees dispatch modes and transforms, and autocast where one of
        # them is on the device. It does not see inference mode: a tensor in it and an inference
        # tensor outside have the same dispatch keys.
        seen: tuple[Any, ...] = () if check is None else SEEN_BY_CHECK
        if all(tensor.device.type != current_device().type for tensor in tensors):
            seen = tuple(asked for asked in seen if asked is not torch.is_autocast_enabled)
        asked = [condition for condition in conditions(call.fn) if condition[0] not in seen]
        return functools.partial(matcher, call.spec, check, asked, same, outside, are_bare)

    def _check(self, tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
        """A function that says whether tensors are of the kind that these are."""
        check = tensor_check(tensors)
        if not self.draws:
            return check
        wanted = list(map(alignment, tensors))
        return lambda *found: check(*found) and list(map(alignment, found)) == wanted

    def static_inputs(
        self, leaves: Sequence[torch.Tensor], device: torch.device
    ) -> tuple[list[torch.Tensor], Layout]:
        """Static inputs for the tensors of a call, and how they lie in memory compared with these.

        Raises:
            CaptureError: see :func:`~gfxgraph.call.static_inputs.make_static`.
        """
        # One argument that comes twice is one tensor: the function may ask.
        made: dict[int, torch.Tensor] = {}
        for leaf in leaves:
            if id(leaf) not in made:
                strides = static_strides(leaf, self.asks_layout)
                behind = alignment(leaf) if self.draws else 0
                made[id(leaf)] = make_static(leaf, device, strides, behind)
        static_inputs = [made[id(leaf)] for leaf in leaves]
        if self.is_padded:
            return static_inputs, "padded"
        if [static.stride() for static in static_inputs] != [leaf.stride() for leaf in leaves]:
            return static_inputs, "rows"
        if list(map(alignment, static_inputs)) != list(map(alignment, leaves)):
            return static_inputs, "aligned"
        return static_inputs, "own"

    def widen(self, error: LayoutError) -> bool:
        """Put into the key what a failed capture asked for; whether a second one may succeed."""
        known = self.asks_layout and (self.draws or not error.draws)
        if self.is_padded or known:
            return False
        self.asks_layout = True
        self.draws |= error.draws
        return True

    def learn(self, captured: CapturedGraph) -> None:
        """Put into the key what a capture has shown to matter."""
        if not self.is_padded:
            self.draws |= captured.draws_random_numbers
            self.asks_layout |= captured.asks_layout or self.draws
