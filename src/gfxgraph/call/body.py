"""The function as a capture runs it: on static inputs, with a result that is checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import is_
from typing import Any

import torch

from ..errors import ArgumentError, CaptureError
from ..graph.lift import Lifting, Unread
from ..graph.static_objects import StaticObjects
from ..record.effects import storage_key
from .key import unsuitable_for_graph
from .narrow import leave_out, mask_of, parts_of_arguments
from .replay import builder
from .signature import Arguments, Given, LeftOut, Objects, Spec, constants, count_tensors, flatten
from .static_inputs import by_storage, parts_of
from .suitable import describe

__all__ = ["Body", "ChangesArgument", "require_storable", "result_taken_apart"]

_HOST = torch.device("cpu")


class ChangesArgument(CaptureError):
    """The function changes an argument that is no tensor."""


class Body:
    """The function on static inputs; it has to return the same kind of thing in each run.

    Args:
        fn: the function.
        spec: of its arguments.
        static_inputs: their tensors; the list may be given others.
        device: where the graph runs.

    Attributes:
        out_spec: of its result, once there was one.
        there: objects that were there before our runs. Where a result holds one, it is that one.
        apart: the classes whose objects are taken apart where they are arguments.
        objects: the objects and dicts that the newest run was given.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        spec: Spec,
        static_inputs: list[torch.Tensor],
        device: torch.device,
    ) -> None:
        self.out_spec: Spec | None = None
        self.there: list[object] = []
        self.apart: Collection[type] = ()
        self.objects = StaticObjects()
        self._fn, self._spec, self._device = fn, spec, device
        self._static_inputs = static_inputs
        self._shapes = [(static.shape, static.stride()) for static in static_inputs]

    def __call__(self) -> list[torch.Tensor]:
        """The tensors of the result.

        Raises:
            CaptureError: the function does what a replay cannot do.
        """
        static_inputs, spec = self._static_inputs, self._spec
        static_args, static_kwargs = arguments = builder(spec, static_inputs)()
        is_lifted = isinstance(self._fn, Lifting)
        met = Arguments(None if is_lifted else self.apart)
        flatten(arguments, met)
        self.objects.begin(parts_of_arguments(spec, arguments, is_lifted), met.containers())
        # A replay would return others than the caller's.
        refused = [item for item in met.containers() if not isinstance(item, tuple)]
        poison = None
        if self.objects.probe is not None:
            poison = Unread() if self.objects.probe == "poison" else None
            leave_out(spec, arguments, mask_of(spec, self.objects.read), poison)
        # Autocast keeps casts of weights, which would hide later changes of the weights.
        LeftOut.used.clear()
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            returned = self._fn(*static_args, **static_kwargs)
        finally:
            torch.set_autocast_cache_enabled(cached)
        as_itself = self.objects.as_itself
        if any(dataclasses.is_dataclass(cls) and cls.__eq__ is object.__eq__ for cls in as_itself):
            raise CaptureError("argument: the function may ask which dataclass it is given")
        if any(cls is other for cls in as_itself for other in self.apart):
            raise ChangesArgument("argument: the function asks which object it is given")
        if self.objects.refusal:
            raise CaptureError(f"argument: {self.objects.refusal}")
        if LeftOut.used:
            raise CaptureError(f"argument: {LeftOut.used[0]}")
        if any(map(vars, static_inputs)):
            raise CaptureError("argument: the function sets an attribute of a tensor")
        if self.objects.probe is not None:
            if poison is not None and poison.was_used:
                raise CaptureError("argument: the function uses what it was not seen to read")
        else:
            self._require_unchanged(arguments)
        with torch._C.DisableTorchFunction():  # it is us who ask
            shapes = [(static.shape, static.stride()) for static in static_inputs]
        if self._shapes != shapes:
            raise CaptureError("argument: the function changes the shape of a tensor in place")
        if is_lifted:
            with torch._C.DisableTorchFunction():  # it is us who ask
                return self._lifted(returned, refused)
        objects = Objects(self.there, refused=refused)
        if self.out_spec is None:
            outputs, out_spec = result_taken_apart(returned, self.there, objects)
            self.objects.is_whole(objects.containers())
            return self.accept(outputs, out_spec)
        outputs, out_spec = flatten(returned, objects)
        self.objects.is_whole(objects.containers())
        if out_spec != self.out_spec:
            raise CaptureError("result: its structure or its plain values change between calls")
        return outputs

    def _require_unchanged(self, arguments: tuple[Any, ...]) -> None:
        after, spec_after = flatten(arguments, Arguments(self.apart))
        if spec_after != self._spec or not all(map(is_, after, self._static_inputs)):
            raise ChangesArgument("argument: the function changes a container that it is given")

    def _lifted(
        self, returned: tuple[Any, tuple[Any, ...]], refused: list[Any]
    ) -> list[torch.Tensor]:
        """The tensors of a result, and of what is to be stored after a replay."""
        objects = Objects(self.there, refused=refused)
        # A result may be what was there before: ``old, self.h = self.h, new; return old``.
        entry = self._spec[3][0][3][0]
        objects.inputs_are(self._static_inputs[: count_tensors(entry)])
        outputs, spec = result_taken_apart(returned[0], self.there, objects)
        objects.inputs_are(self._static_inputs)
        try:
            effects, spec_of_effects = flatten(returned[1], objects)
        except ArgumentError as error:
            raise CaptureError(f"what it stores: {error}") from error
        reason = unsuitable_for_graph(effects, "what it stores")
        if reason is not None:
            raise CaptureError(reason)
        require_storable(outputs, effects, self._static_inputs, count_tensors(entry))
        both: Spec = ("sequence", tuple, None, (spec, spec_of_effects))
        if self.out_spec is None:
            return self.accept([*outputs, *effects], both)
        if both != self.out_spec:
            raise CaptureError(
                "result: its structure or its plain values, or those that it stores, change "
                "between calls"
            )
        return [*outputs, *effects]

    def accept(self, outputs: list[torch.Tensor], spec: Spec) -> list[torch.Tensor]:
        """Expect such results from now on."""
        stray = [t.device for t in outputs if t.device not in (self._device, _HOST)]
        if stray:
            raise CaptureError(f"result: is on {stray[0]}, but the graph runs on {self._device}")
        self.out_spec = spec
        return outputs


def require_storable(
    outputs: Sequence[torch.Tensor],
    effects: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    count: int,
) -> None:
    """Raise unless a replay can store copies of some of its tensors in Python.

    Args:
        outputs: the tensors of the result.
        effects: those to be stored.
        inputs: what was in the places before the call, then the tensors among the arguments.
        count: how many were in the places.

    Raises:
        CaptureError: it cannot.
    """
    if any(tensor.requires_grad for tensor in effects):
        raise CaptureError("what it stores: requires grad")
    keys = list(map(storage_key, inputs))
    is_old = set(keys[:count])
    if any(storage_key(tensor) in keys for tensor in effects) or any(
        storage_key(tensor) in is_old for tensor in outputs
    ):
        raise CaptureError("what it stores: is a view of an argument, or of what was there")
    for group in by_storage([*outputs, *effects]):
        if (
            len(group) > 1
            and not parts_of(group)
            and not set(map(id, group)).isdisjoint(map(id, effects))
        ):
            raise CaptureError("what it stores: shares memory with other tensors of the result")


def result_taken_apart(
    result: Any, there: Iterable[object] = (), objects: Objects | None = None
) -> tuple[list[torch.Tensor], Spec]:
    """The tensors of a result and its spec.

    Args:
        result: what a call gave.
        there: objects that were there before.
        objects: what has met them. Default: anew.

    Raises:
        CaptureError: a graph cannot give such a result.
    """
    try:
        leaves, spec = flatten(result, Objects(there) if objects is None else objects)
    except ArgumentError as error:
        raise CaptureError(f"result: {error}") from error
    for const in constants(spec):
        if not const.is_value and not isinstance(const.value, Given):
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
