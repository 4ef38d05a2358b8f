"""Calls whose large tensors the graph reads where the caller has them, instead of copies of them.

The graph runs on the current stream of the caller, as eager kernels would: what a caller may do
with a tensor after an eager call, it may do after this. See ``docs/internals/rebinding.md``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch.autograd import forward_ad

from .. import settings
from ..device import Device
from ..graph.moved import ALIGNED, Rebinding
from ..graph.rebinding import LEAST_BYTES
from ..stats import log
from .replay import copier, copy_one
from .static_inputs import bytes_of

__all__ = ["binding_copier", "rebindable"]


def rebindable(
    device: Device, static_inputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]
) -> frozenset[int]:
    """Numbers of the arguments that a graph might read where they are."""
    if not (settings.rebind() and device.binds_inputs):
        return frozenset()
    return frozenset(
        n
        for n, (static, leaf) in enumerate(zip(static_inputs, leaves, strict=True))
        if bytes_of(static) >= LEAST_BYTES
        and type(static) is torch.Tensor
        and static.device == leaf.device
        and not (static.requires_grad or static.is_conj() or static.is_neg())
        and 0 not in static.stride()
    )


def binding_copier(
    rebinding: Rebinding,
    device: Device,
    static_inputs: list[torch.Tensor],
    leaves: Sequence[torch.Tensor],
) -> Callable[[Sequence[torch.Tensor]], None]:
    """A function like that of :func:`~gfxgraph.call.replay.copier`, which binds what it can."""
    position = {id(static): k for k, static in enumerate(rebinding.inputs)}
    bound = [
        (position[id(static)], n, static, static.data_ptr(), static.stride())
        for n, static in enumerate(static_inputs)
        if id(static) in position
    ]
    others = [n for n, static in enumerate(static_inputs) if id(static) not in position]
    copy = copier(device, [static_inputs[n] for n in others], [leaves[n] for n in others])
    # What no call passes, since it does not matter, is read where it was.
    unused = {k: static.data_ptr() for k, static in enumerate(rebinding.inputs)}
    bind, dual = rebinding.bind, vars(forward_ad)

    def bind_and_copy(sources: Sequence[torch.Tensor]) -> None:
        if dual["_current_level"] >= 0:
            raise NotImplementedError("a graph would leave out the tangent of a dual tensor")
        addresses = dict(unused)
        for k, n, static, start, strides in bound:
            leaf = sources[n]
            address = leaf.data_ptr()
            # Kernels were chosen for this alignment and these strides; 0: its memory was freed.
            if address and not (address - start) % ALIGNED and leaf.stride() == strides:
                addresses[k] = address
            else:
                copy_one(static, leaf)
        copy([sources[n] for n in others])
        if bind(addresses):
            return
        # Memory of another kind, say: a copy will do.
        for k, n, static, _, _ in bound:
            if addresses[k] != unused[k]:
                copy_one(static, sources[n])
        if not bind(dict(unused)):
            log(logging.WARNING, "not_rebound", because="the CUDA driver refuses")
            raise NotImplementedError("the CUDA driver refuses to change the graph")

    return bind_and_copy
