"""The function as a capture runs it: on static inputs, with a result that is checked."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..errors import ArgumentError, CaptureError
from ..graph.lift import Counted, Lifting, Unread
from ..graph.locks import is_only_thread
from ..graph.static_objects import StaticObjects
from ..interpose.dynamo import hides
from ..interpose.interrupts import interrupt_in
from ..record.effects import storage_key
from .held import Advance, Counter, Held, holds_way, is_used
from .key import unsuitable_for_graph
from .narrow import leave_out, mask_of, parts_of_arguments
from .replay import builder
from .signature import (
    Arguments,
    Const,
    Given,
    LeftOut,
    Objects,
    Spec,
    constants,
    count_tensors,
    flatten,
)
from .static_inputs import by_storage, parts_of
from .suitable import describe

__all__ = ["Body", "ChangesArgument", "Counts", "require_storable", "result_taken_apart"]

_HOST = torch.device("cpu")


CHANGES = "argument: the function changes a container that it is given"


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
        out_spec: of its result, once there was one; see :func:`result_and_stored`.
        counters: places in the arguments to which it only adds a number.
        no_counters: those with numbers that it uses for more.
        may_store: whether a replay may store something in its arguments.
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
        self.may_store = False
        self.counters: Collection[Counter] = ()
        self.no_counters: frozenset[Counter] = frozenset()
        self._fn, self._spec, self._device = fn, spec, device
        self._static_inputs = static_inputs
        self._shapes = [(static.shape, static.stride()) for static in static_inputs]
        self._calls_compiled = False

    @property
    def is_lifted(self) -> bool:
        """Whether the function takes state as an argument."""
        return isinstance(self._fn, Lifting)

    def __call__(self) -> list[torch.Tensor]:
        """The tensors of the result.

        Raises:
            CaptureError: the function does what a replay cannot do.
        """
        static_inputs, spec = self._static_inputs, self._spec
        static_args, static_kwargs = arguments = builder(spec, static_inputs)()
        is_lifted = self.is_lifted
        met = Arguments(None if is_lifted else self.apart)
        flatten(arguments, met)
        self.objects.begin(parts_of_arguments(spec, arguments, is_lifted), met.containers())
        poison = None
        if self.objects.probe is not None:
            poison = Unread() if self.objects.probe == "poison" else None
            known = {
                path: read if read is None else read | self.objects.counted.get(path, set())
                for path, read in self.objects.read.items()
            }
            leave_out(spec, arguments, mask_of(spec, known), poison)
        held = Held(static_args, static_kwargs, spec, int(is_lifted))
        self.objects.ways = held.ways
        state = None if not is_lifted else Held((static_args[0],), {}, spec)
        counted = held.count(self.counters)
        for (_, name), item, _ in counted:
            self.objects.count(item, name)
        LeftOut.used.clear()
        try:
            with self._without_casts():
                returned = self._fn(*static_args, **static_kwargs)
        except Exception as error:
            if interrupt_in(error) is None:
                self._require_counted(counted)
            raise
        self._require_counted(counted)
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
        if poison is not None and poison.was_used:
            raise CaptureError("argument: the function uses what it was not seen to read")
        with torch._C.DisableTorchFunction():  # it is us who ask
            shapes = [(static.shape, static.stride()) for static in static_inputs]
        if self._shapes != shapes:
            raise CaptureError("argument: the function changes the shape of a tensor in place")
        self.objects.stores |= held.has_changed()
        if (state is not None and state.has_changed()) or (
            self.objects.stores and not self.may_store
        ):
            raise ChangesArgument(CHANGES)
        numbers = held.numbers() if self.may_store else {}
        new = {place for place, item in numbers.items() if item in self.objects}
        if new - self.no_counters:
            raise Counts(new - self.no_counters)
        # A replay would return others than the caller's.
        refused = [item for item in met.containers() if not isinstance(item, tuple)]
        if self.may_store:
            refused = [item for item in refused if id(item) not in held.ways]
        new_objects = functools.partial(Objects, self.there, refused)
        held_if = held if self.may_store else None
        try:
            with torch._C.DisableTorchFunction():  # it is us who ask
                if is_lifted:
                    return self._lifted(returned[0], returned[1], held_if, new_objects)
                outputs, out_spec, objects = result_and_stored(
                    returned, held_if, static_inputs, new_objects, counters=self.counters
                )
        except CaptureError:
            self._require_counted(counted)
            raise
        self.objects.is_whole(objects.containers())
        if self.out_spec is None:
            self.there = self.there or objects.met()  # what the next run gives too was there before
            return self.accept(outputs, out_spec)
        if out_spec != self.out_spec:
            raise CaptureError("result: its structure or its plain values change between calls")
        return outputs

    @contextmanager
    def _without_casts(self) -> Iterator[None]:
        """Autocast keeps casts of weights, which would hide later changes of the weights.

        So its cache is off, unless code runs that Dynamo has compiled: that is for the setting of
        the caller, and with another one it would be compiled again. Then there is nothing in the
        cache when the run begins.
        """
        hidden, cached = hides(), torch.is_autocast_cache_enabled()
        is_inside = _is_inside_autocast(self._device)
        # All threads share the cache.
        leaves = self._calls_compiled and hidden is None and (not is_inside or is_only_thread())
        if leaves and is_inside:
            torch.clear_autocast_cache()
        elif not leaves:
            torch.set_autocast_cache_enabled(False)
        try:
            yield
        finally:
            if leaves and is_inside:  # a capture has made what is in there
                torch.clear_autocast_cache()
            torch.set_autocast_cache_enabled(cached)
            self._calls_compiled |= hidden is not None and hidden.asked

    def _require_counted(self, counted: Sequence[tuple[Counter, Any, Counted]]) -> None:
        """Raise if a run has used a counter for more than counting.

        Raises:
            Counts: it has.
        """
        used = {place for place, item, stands_in in counted if is_used(place, item, stands_in)}
        if used:
            raise Counts(used)

    def _lifted(
        self,
        result: Any,
        left: tuple[Any, ...],
        held: Held | None,
        new_objects: Callable[[], Objects],
    ) -> list[torch.Tensor]:
        """The tensors of a result, and of what is to be stored after a replay."""
        # A result may be what was there before: ``old, self.h = self.h, new; return old``.
        entry = self._spec[3][0][3][0]
        outputs, spec, objects = result_and_stored(
            result,
            held,
            self._static_inputs,
            new_objects,
            count_tensors(entry),
            self.counters,
            left,
        )
        if spec[0] != "stores":
            objects.inputs_are(self._static_inputs)
        try:
            effects, spec_of_effects = flatten(left, objects)
        except ArgumentError as error:
            if isinstance(self._fn, Lifting):
                self._fn.lift.require_unused()
            raise CaptureError(f"what it stores: {error}") from error
        reason = unsuitable_for_graph(effects, "what it stores")
        if reason is not None:
            raise CaptureError(reason)
        require_storable(outputs, effects, self._static_inputs, count_tensors(entry))
        both: Spec = ("sequence", tuple, None, (spec, spec_of_effects))
        if spec[0] == "stores":
            both = (*spec[:3], (*spec[3], spec_of_effects))
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


def _is_inside_autocast(device: torch.device) -> bool:
    """Whether the caller is inside a region of autocast, or has switched it on otherwise."""
    torch.autocast_increment_nesting()
    is_nested = torch.autocast_decrement_nesting() > 0
    return is_nested or any(map(torch.is_autocast_enabled, (_HOST.type, device.type)))


class Counts(CaptureError):
    """A run has put another number in the place of one, or has used one for more than counting.

    Attributes:
        places: where.
    """

    def __init__(self, places: Collection[Counter]) -> None:
        super().__init__("argument: the function changes a number that it is given")
        self.places = places


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
        # Last: of arguments that are results it would be taken for a question of the function's.
        if (
            len(group) > 1
            and not set(map(id, group)).isdisjoint(map(id, effects))
            and not parts_of(group)
        ):
            raise CaptureError("what it stores: shares memory with other tensors of the result")


def result_and_stored(
    result: Any,
    held: Held | None,
    leaves: Sequence[torch.Tensor],
    new_objects: Callable[[], Objects],
    count: int = 0,
    counters: Collection[Counter] = (),
    left: tuple[Any, ...] = (),
) -> tuple[list[torch.Tensor], Spec, Objects]:
    """The tensors of a result and its spec; and of what a run has left in its arguments.

    Where it has, or gives away a container of these, the spec is ``("stores", None, changes,
    (result, *values))``.

    Args:
        result: of the run.
        held: what its arguments held before; ``None``: it may not store anything there.
        leaves: the tensors among these.
        new_objects: makes what meets the objects of the result.
        count: how many of the tensors are state.
        counters: places in the arguments to which it adds a number. Default: none.
        left: what it has left in its state. Default: nothing.

    Returns:
        These, and what has met the objects.

    Raises:
        CaptureError: a graph can neither give such a result nor store these values.
    """
    try:
        changes = [] if held is None else held.changes(counters)
        ways = {} if held is None else held.ways
        if not changes and not _holds_container(left, leaves, ways):
            objects = new_objects()
            objects.inputs_are(leaves[:count], ways)
            outputs, spec = result_taken_apart(result, objects)
            if not holds_way(spec):
                return outputs, spec, objects
        # Each is what it was in the call, also in the result.
        objects = new_objects()
        objects.inputs_are(leaves, ways)
        outputs, spec = result_taken_apart(result, objects)
        stored: list[torch.Tensor] = []
        specs = []
        for value in [value for _, values in changes for value in values]:
            is_count = type(value) is Advance
            tensors, of_value = (
                ([], ("const", Const(value))) if is_count else flatten(value, objects)
            )
            stored += tensors
            specs.append(of_value)
    except ArgumentError as error:
        raise ChangesArgument(f"{CHANGES}: {error}") from error
    reason = unsuitable_for_graph(stored, "what it stores in an argument")
    if reason is not None:
        raise CaptureError(reason)
    require_storable(outputs, stored, leaves, 0)
    found = tuple(change for change, _ in changes)
    return [*outputs, *stored], ("stores", None, found, (spec, *specs)), objects


def _holds_container(
    left: tuple[Any, ...], leaves: Sequence[torch.Tensor], ways: Mapping[int, Any]
) -> bool:
    """Whether a run has left a container of its arguments in its state."""
    objects = Objects()
    objects.inputs_are(leaves, ways)
    try:
        return holds_way(flatten(left, objects)[1])
    except ArgumentError:
        return False  # so it cannot be stored


def result_taken_apart(result: Any, objects: Objects) -> tuple[list[torch.Tensor], Spec]:
    """The tensors of a result and its spec.

    Args:
        result: what a call gave.
        objects: what meets its objects.

    Raises:
        CaptureError: a graph cannot give such a result.
    """
    try:
        leaves, spec = flatten(result, objects)
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
