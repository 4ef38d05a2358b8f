"""The function as a capture runs it: on static inputs, with a result that is checked."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import Any

import torch

from ..errors import ArgumentError, CaptureError
from .key import unsuitable_for_graph
from .replay import builder
from .signature import Spec, constants, flatten
from .suitable import describe

__all__ = ["Body", "result_taken_apart"]

_HOST = torch.device("cpu")


class Body:
    """The function on static inputs; it has to return the same kind of thing in each run.

    Args:
        fn: the function.
        spec: of its arguments.
        static_inputs: their tensors; the list may be given others.
        device: where the graph runs.

    Attributes:
        out_spec: of its result, once there was one.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        spec: Spec,
        static_inputs: list[torch.Tensor],
        device: torch.device,
    ) -> None:
        self.out_spec: Spec | None = None
        self._fn, self._spec, self._device = fn, spec, device
        self._static_inputs = static_inputs
        self._shapes = [(static.shape, static.stride()) for static in static_inputs]

    def __call__(self) -> list[torch.Tensor]:
        """The tensors of the result.

        Raises:
            CaptureError: the function does what a replay cannot do.
        """
        static_inputs, spec = self._static_inputs, self._spec
        static_args, static_kwargs = builder(spec, static_inputs)()
        # Autocast keeps casts of weights, which would hide later changes of the weights.
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            returned = self._fn(*static_args, **static_kwargs)
        finally:
            torch.set_autocast_cache_enabled(cached)
        after, spec_after = flatten((static_args, static_kwargs))
        if spec_after != spec or not all(map(is_, after, static_inputs)):
            raise CaptureError("argument: the function changes a container that it is given")
        with torch._C.DisableTorchFunction():  # it is us who ask
            shapes = [(static.shape, static.stride()) for static in static_inputs]
        if self._shapes != shapes:
            raise CaptureError("argument: the function changes the shape of a tensor in place")
        if self.out_spec is None:
            return self.accept(*result_taken_apart(returned))
        outputs, out_spec = flatten(returned)
        if out_spec != self.out_spec:
            raise CaptureError("result: its structure or its plain values change between calls")
        return outputs

    def accept(self, outputs: list[torch.Tensor], spec: Spec) -> list[torch.Tensor]:
        """Expect such results from now on."""
        stray = [t.device for t in outputs if t.device not in (self._device, _HOST)]
        if stray:
            raise CaptureError(f"result: is on {stray[0]}, but the graph runs on {self._device}")
        self.out_spec = spec
        return outputs


def result_taken_apart(result: Any) -> tuple[list[torch.Tensor], Spec]:
    """The tensors of a result and its spec.

    Raises:
        CaptureError: a graph cannot give such a result.
    """
    try:
        leaves, spec = flatten(result)
    except ArgumentError as error:
        raise CaptureError(f"result: {error}") from error
    for const in constants(spec):
        if not const.is_value:
            raise CaptureError(
                f"result: holds a {describe(const.value)}, which a replay cannot make anew. "
                "Return tensors, numbers and containers of them."
            )
    reason = unsuitable_for_graph(leaves, "result")
    if reason is not None:
        raise CaptureError(reason)
    if any(t.requires_grad for t in leaves):
        raise CaptureError(
            "result: requires grad; a replay records nothing for autograd. Call it under "
            "torch.no_grad() or torch.inference_mode()."
        )
    return leaves, spec
