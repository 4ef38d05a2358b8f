"""When a callable stops capturing: each call is of a new kind, so no graph is ever replayed.

A capture costs as much as some ten eager calls, so it pays only for a kind of call that comes
again. Two observations show that it does not:

- the last few graphs were captured one after the other, and not one of them was replayed;
- graphs are released for others before they were replayed a few times: more kinds of calls come in
  turn than there are graphs allowed.

From then on a kind is captured only once it has come several times, and only in the place of a
graph that nobody used in between. What differs between the calls is said once.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ..graph.lift import Lifting
from ..stats import ReplayCounter
from .arguments import named, named_arguments
from .signature import Const, Spec, objects_in

__all__ = ["WORTH_IT", "Thrash", "Traits", "traits"]

WORTH_IT = 3
"""A graph that was replayed so often was worth its capture."""

# Attempts in a row without a replay, before kinds of calls have to come again to be captured.
_ON_TRIAL = 8
# The same for a function that writes Python state, which most often differs in each call then.
_LIFTED_ON_TRIAL = 3
# At most so many calls of a kind are waited for.
_MAX_CALLS = 64
# Kinds of calls whose number is remembered, each some 200 bytes.
_MAX_KINDS = 1024
# Differences that are named.
_MAX_NAMED = 3
_MODES = (
    ": they differ in their mode (grad, inference, autocast, training), or in which tensors are "
    "one, as while a queue fills up"
)


class _Kept(Protocol):
    used: int


@dataclass(frozen=True)
class _Trait:
    """One thing in which calls may differ.

    Attributes:
        what: which: ``"dimension 0 of argument x"``.
        remedy: what to write where it differs in each call; ``"size"`` for a dimension.
        argument: the argument's name.
        dim: the dimension that it is; -1: none.
    """

    what: str
    remedy: str = field(compare=False)
    argument: str = ""
    dim: int = -1


Traits = dict[_Trait, Hashable]
"""What tells one kind of call from others. Numbers and texts only: no object of the caller's may
live on because of it."""


@dataclass
class _Attempt:
    traits: Traits
    counter: ReplayCounter | None
    refusal: str

    @property
    def was_replayed(self) -> bool:
        return self.counter is not None and self.counter.replays > 0


@dataclass(slots=True)
class _Seen:
    """How often a kind without a graph came.

    Attributes:
        since: the time of the first call.
        objects: the arguments that are compared by identity: another object may get the address
            of one that is gone.
        calls: how many.
    """

    since: int
    objects: list[weakref.ref[Any]] = field(default_factory=list)
    calls: int = 0


class Thrash:
    """Decides whether a new kind of call is captured.

    Args:
        kinds: how many more kinds than usual are expected, such as buckets.
        limit: graphs that are kept.
        is_padded: whether sizes are padded to buckets already.

    Attributes:
        reasons: why calls are not captured: what differs, and what to write.
    """

    def __init__(self, kinds: int, limit: int, is_padded: bool, is_lifted: bool = False) -> None:
        self.reasons: list[str] = []
        self._limit, self._is_padded = limit, is_padded
        self._trial: deque[_Attempt] = deque(
            maxlen=_LIFTED_ON_TRIAL if is_lifted else _ON_TRIAL + kinds
        )
        self._seen: OrderedDict[int, _Seen] = OrderedDict()
        self._replays: dict[int, int] = {}
        self._wasted = 0
        #: How many calls of one kind make a capture.
        self._calls_needed = 1
        # Made once: a reason that changes would be logged with each change.
        self._reason = self._no_room = ""

    def postpones(self, key: Hashable, spec: Spec, now: int, full: Collection[_Kept]) -> str | None:
        """Why a call without a graph is not captured now; ``None``: it may be.

        Args:
            key: of the call.
            spec: of its arguments.
            now: the time, counted as in ``used`` of the graphs.
            full: all that is kept, if one of them would have to go for another; else nothing.
        """
        if self._calls_needed == 1:
            trial = self._trial
            if len(trial) < (trial.maxlen or 0) or any(one.was_replayed for one in trial):
                return None
            self._begin(self._no_replays())
        seen = self._met(key, spec, now)
        if seen.calls < self._calls_needed:
            return self._reason
        if full and self._least_used(full, now) > seen.since:
            if not any(hasattr(one, "replays") for one in full):  # nothing could be captured
                return self._reason
            self._no_room = self._no_room or self.say(
                f"more than {self._limit} kinds of calls come in turn, and max_graphs is "
                f"{self._limit}: all graphs that are kept are in use{self._differences()}. "
                "Or raise max_graphs=."
            )
            return self._no_room
        return None

    def tried(
        self, key: Hashable, traits: Traits, counter: ReplayCounter | None, refusal: str
    ) -> None:
        """A call was captured, or could not be.

        Args:
            key: of the call.
            traits: of the call.
            counter: of the graph's replays; ``None``: there is no graph.
            refusal: why there is none.
        """
        self._seen.pop(hash(key), None)
        self._trial.append(_Attempt(traits, counter, refusal))

    def released(self, replays: int) -> None:
        """A graph was released for another after so many replays."""
        if replays >= WORTH_IT:
            self._wasted = 0
            self._calls_needed = min(self._calls_needed, 2)
            return
        self._wasted += 1
        if self._wasted >= (self._trial.maxlen or 0):
            self._wasted = 0
            self._begin(
                f"graphs are released (max_graphs={self._limit}) before they are replayed "
                f"{WORTH_IT} times{self._differences()}. Or raise max_graphs=."
            )

    def stops_growing(self, paths: int, replays: int) -> str | None:
        """Why no further path is added to a graph of so many, replayed so often."""
        return self._reason if self._calls_needed > 1 and paths > 1 and not replays else None

    def say(self, reason: str) -> str:
        """Show ``reason`` in :attr:`reasons`."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        return reason

    def _begin(self, reason: str) -> None:
        self._calls_needed = min(2 * self._calls_needed, _MAX_CALLS)
        self._reason = self._reason or self.say(reason)

    def _met(self, key: Hashable, spec: Spec, now: int) -> _Seen:
        objects, mark = objects_in(spec), hash(key)
        seen = self._seen.get(mark)
        if seen is None or not _are(seen.objects, objects):
            seen = self._seen[mark] = _Seen(now, _references(objects))
        self._seen.move_to_end(mark)
        if len(self._seen) > _MAX_KINDS:
            self._seen.popitem(last=False)
        seen.calls += 1
        return seen

    def _least_used(self, kept: Collection[_Kept], now: int) -> int:
        """When that was used which was not used for longest."""
        replays = {id(one): getattr(one, "replays", 0) for one in kept}
        for one in kept:  # what is met first in each call is not counted as used by each call
            if replays[id(one)] != self._replays.get(id(one), 0):
                one.used = now
        self._replays = replays
        return min(one.used for one in kept)

    def _no_replays(self) -> str:
        count, refusals = len(self._trial), [one.refusal for one in self._trial]
        if all(refusals):
            return (
                f"{count} kinds of calls in turn could not be captured, so others are not tried "
                f"until they come again. The last: {refusals[-1]}"
            )
        return (
            f"{count} kinds of calls were captured and none came again"
            f"{self._differences() or _MODES}. A kind that comes again is still captured."
        )

    def _differences(self) -> str:
        """The difference between the calls on trial, and the remedy."""
        calls = [one.traits for one in self._trial]
        always = [t for t in calls[-1] if all(t in call for call in calls)] if calls else []
        values = {trait: {call[trait] for call in calls} for trait in always}
        every = [trait for trait, found in values.items() if len(found) == len(calls)]
        found = every or [trait for trait, found in values.items() if len(found) > 1]
        if not found:
            return ""
        sizes = [trait for trait in found if trait.dim >= 0]
        if sizes:  # strides follow sizes
            found = [trait for trait in found if not trait.what.startswith("the layout")]
        named = [_with_types(trait.what, values[trait]) for trait in found[:_MAX_NAMED]]
        verb = "differs" if len(named) == 1 else "differ"
        when = "in every call" if every else "between calls"
        remedies = [self._for_sizes(sizes)] if sizes else []
        remedies += dict.fromkeys(trait.remedy for trait in found if trait.dim < 0)
        numbers = [trait.argument for trait in found if trait.remedy == _AS_INPUT]
        remedies = [f"{r}{numbers})" if r == _AS_INPUT else r for r in remedies]
        return f": {', '.join(named)} {verb} {when}. {'. '.join(remedies)}"

    def _for_sizes(self, sizes: Sequence[_Trait]) -> str:
        if self._is_padded:
            return "Give that dimension a name in dims=, and buckets of its own"
        dims: dict[str, dict[int, str]] = {}
        for trait in sizes:
            name = {0: "batch", 1: "length"}.get(trait.dim, f"size{trait.dim}")
            dims.setdefault(trait.argument, {})[trait.dim] = name
        names = dict.fromkeys(name for of_one in dims.values() for name in of_one.values())
        how = "buckets=[...]"
        if list(names) != ["batch"]:
            how = f"buckets={{{', '.join(f'{name!r}: [...]' for name in names)}}}, dims={dims}"
        return f"Write graphed(..., {how}) with a few sizes: each call is padded to one of them"


def traits(fn: Callable[..., Any], leaves: Sequence[torch.Tensor], spec: Spec) -> Traits:
    """In what a call of ``fn`` may differ from others."""
    found: Traits = {}
    tensors = iter(leaves)
    # The state that a call reads comes first.
    of_state = len(list(named(spec[3][0][3][0], ""))) if isinstance(fn, Lifting) else 0
    for n, (name, const) in enumerate(named_arguments(fn, spec)):
        label = name if n < of_state else f"argument {name}"
        if const is None:
            found.update(_of_tensor(name, label, next(tensors)))
        else:
            mark = hash(const) if const.is_value else id(const.value)
            found[_of_constant(name, label, const)] = (type(const.value).__name__, mark)
    names = tuple(trait.what for trait in found)
    found[_Trait("the structure of the arguments", "Give them one structure")] = hash(names)
    return found


def _of_tensor(name: str, label: str, leaf: torch.Tensor) -> Traits:
    found: Traits = {
        _Trait(f"the number of dimensions of {label}", "Reshape it before", name): leaf.dim(),
        _Trait(f"the dtype of {label}", "Convert it before", name): str(leaf.dtype),
        _Trait(f"the device of {label}", "Move it before", name): str(leaf.device),
        _Trait(f"whether {label} requires grad", "detach() it before", name): leaf.requires_grad,
    }
    for dim, size in enumerate(leaf.shape):
        found[_Trait(f"dimension {dim} of {label}", "", name.partition("[")[0], dim)] = size
    if leaf.layout is torch.strided and not leaf.is_contiguous():
        layout: Hashable = leaf.stride()
    else:
        layout = ()
    found[_Trait(f"the layout of {label}", "Call contiguous() before", name)] = layout
    return found


def _of_constant(name: str, label: str, const: Const) -> _Trait:
    value = const.value
    if not const.is_value:
        remedy = "Pass one object in all calls, or what is in it as tensors"
    elif isinstance(value, (bool, int, float, complex)):
        remedy = "Pass a tensor instead of the number"
        if name.isidentifier():
            remedy += f": {name}=torch.tensor(...)"
            if type(value) in (int, float):
                remedy = _AS_INPUT
        if label == name:  # state
            remedy = "Keep the number in a tensor that is written in place (add_)"
    else:
        remedy = "Take few values of it, or keep it out of the function"
    return _Trait(label, remedy, name)


# What follows are the names of the numbers.
_AS_INPUT = "Pass tensors instead of the numbers, or write graphed(..., inputs="


def _with_types(what: str, values: Iterable[Hashable]) -> str:
    """``"argument scale (float)"``."""
    types = {v[0] for v in values if isinstance(v, tuple) and v and isinstance(v[0], str)}
    return f"{what} ({' or '.join(sorted(types))})" if types else what


def _references(objects: Sequence[object]) -> list[weakref.ref[Any]]:
    try:
        return [weakref.ref(item) for item in objects]
    except TypeError:  # such an object cannot be known again
        return [_gone] * len(objects)


def _are(references: Sequence[weakref.ref[Any]], objects: Sequence[object]) -> bool:
    return len(references) == len(objects) and all(
        reference() is item for reference, item in zip(references, objects, strict=True)
    )


_gone: weakref.ref[Any] = weakref.ref(set())
