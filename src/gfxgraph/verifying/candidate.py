"""Compares one candidate with eager, and runs experiments to find out why it differs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch

from ..call.dispatch import Dispatcher
from ..call.graphed import GraphedStats
from ..errors import first_paragraph
from ..graph.places import Item
from .bench import Bench, Function, Key, Round, Values
from .compare import Errors, same, within
from .inputs import Inputs, fresh
from .report import Cause, CauseKind, OutputErrors, VerifyResult

__all__ = ["Candidate"]

# Experiments change each tensor and call both sides again, to find those that a candidate ignores.
_MAX_TENSORS = 64
# Bytes of weights to change, to see whether the candidate follows changes at all.
_SAMPLE_BYTES = 64 << 20


class Candidate:
    """Compares one candidate with eager, and experiments with it."""

    def __init__(self, bench: Bench, function: Function, name: str, views: bool) -> None:
        self._bench, self._function, self._name, self._views = bench, function, name, views

    def result(self) -> VerifyResult:
        """Compare, and experiment if something differs."""
        bench = self._bench
        rounds: list[Round] = []
        replays = 0
        try:
            for _ in range(2):
                before = _stats(self._function)
                rounds.append(bench.round(self._function))
            after = _stats(self._function)
            if before and after:
                replays = after.replays - before.replays
        except (Exception, SystemExit) as error:
            bench.restart()
            return self._report(rounds, None, [], [], first_paragraph(error))
        captured = None if after is None else replays >= len(bench.inputs)
        rows = self._rows(rounds)
        lost = [] if self._views else self._lost(rounds)
        causes = [Cause.of("overwritten", ", ".join(lost))] if lost else []
        cautions: list[Cause] = []
        noticed = 0
        try:
            if not all(row.ok for row in rows):
                causes += self._causes(rounds)
            elif captured is not False:
                noticed, unnoticed = self._changed_values()
                causes += unnoticed
                cautions = self._cautions()  # moves weights, so that the graphs are made again
        except (Exception, SystemExit) as error:
            # An experiment may pass values that it cannot take.
            bench.restart()
            cautions = [Cause.of("experiment", first_paragraph(error))]
        return self._report(rounds, captured, causes, cautions, noticed=noticed)

    def _report(
        self,
        rounds: list[Round],
        captured: bool | None,
        causes: list[Cause],
        cautions: list[Cause],
        error: str | None = None,
        noticed: int = 0,
    ) -> VerifyResult:
        stats = _stats(self._function)
        runs = len(self._bench.inputs)
        return VerifyResult(
            self._name,
            runs * len(rounds),
            captured,
            stats.replays if stats else None,
            _why_not(stats, captured, runs) if stats else "",
            stats.fallbacks if stats else {},
            self._rows(rounds),
            tuple(causes),
            tuple(cautions),
            error,
            noticed,
        )

    def _rows(self, rounds: list[Round]) -> tuple[OutputErrors, ...]:
        expected = self._bench.expected
        found: dict[Key, Errors] = {}

        def add(call: int, keys: Iterable[Key], got: Values, right: Values, given: Values) -> None:
            for key in keys:
                errors = found.setdefault(key, Errors(*key, self._bench.threshold))
                untouched = given.get(key)
                errors.add(call, got.get(key, untouched), right.get(key, untouched))

        count = len(expected.calls)
        for n, one in enumerate(rounds):
            for run, (got, right) in enumerate(zip(one.calls, expected.calls, strict=True)):
                keys = right.values | got.values
                add(n * count + run + 1, keys, got.values, right.values, right.given)
            # The candidate's own state does not matter.
            add((n + 1) * count, expected.state, one.state, expected.state, {})
        # Parts that are no tensors get a row only if they differ.
        rows = [(errors.row(), errors.holds_tensors) for errors in found.values()]
        return tuple(row for row, of_tensors in rows if of_tensors or not row.ok)

    def _lost(self, rounds: list[Round]) -> list[str]:
        """Results that a later call overwrites, unless eager's are overwritten too."""
        lost = [name for one in rounds for name in one.overwritten]
        return [
            name for name in dict.fromkeys(lost) if name not in self._bench.expected.overwritten
        ]

    # ---- experiments

    def _causes(self, rounds: list[Round]) -> list[Cause]:
        bench = self._bench
        again, once_more = (bench.round(bench.eager) for _ in range(2))
        if self._rounds_differ(again, once_more):
            return [Cause.of("not-reproducible")]
        if self._rounds_differ(bench.expected, again):
            return [Cause.of("side-effect")]
        changes = [*self._arguments()], [*self._outside()]
        arguments, tensors = ([cause for cause, seen in one if seen is False] for one in changes)
        if arguments and tensors and not any(seen for one in changes for _, seen in one):
            found = [Cause.of("not-replayed")]
        else:
            found = arguments + tensors
        found += self._python_state(rounds)
        found += self._random(bool(found))
        if not found and all(row.ok for row in self._rows([rounds[1]])):
            found.append(Cause.of("capture"))
        return found

    def _arguments(self) -> Iterator[tuple[Cause, bool | None]]:
        """A cause for each argument, and what :meth:`_reacts` says of it."""
        bench, base = self._bench, self._bench.inputs[0]
        other = bench.inputs[-1]
        tensors = [name for name, const in bench.arguments.items() if const is None]
        for n, (name, leaf) in enumerate(zip(tensors, base.leaves, strict=True)):
            new = other.leaves[n] if n < len(other.leaves) else leaf
            if same(new, leaf) or (new.shape, new.dtype) != (leaf.shape, leaf.dtype):
                new = fresh(leaf, bench.seed + len(bench.inputs))
            yield Cause.of("input", name), self._reacts(base.with_leaf(n, new))
        values = [(n, c) for n, c in bench.arguments.items() if c is not None and c.is_value]
        others = other.names(bench.fn)
        changed = [name for name, const in values if others.get(name, const) != const]
        if changed and len(other.leaves) == len(base.leaves):
            reacts = self._reacts(Inputs(base.leaves, other.spec))
            yield Cause.of("constant", ", ".join(changed)), reacts

    def _outside(self) -> Iterator[tuple[Cause, bool | None]]:
        """The same for the floating-point tensors that eager reads from outside."""
        for name, tensor in list(self._bench.outside.items())[:_MAX_TENSORS]:
            with _put_back([tensor]):
                reacts = self._reacts(before=partial(_disturb, [tensor]))
            yield Cause.of("external", name), reacts

    def _python_state(self, rounds: list[Round]) -> list[Cause]:
        """The state that changes from call to call in eager and not in the candidate."""
        bench = self._bench
        expected, got = bench.expected, rounds[-1]
        baked = [
            key[1]
            for key in expected.rebound
            if not within(got.state.get(key), expected.state[key], bench.threshold)
        ]
        if baked:
            return [Cause.of("python-state", ", ".join(baked))]
        first, second = bench.once(bench.eager, times=2)
        if self._differ(first, second) and self._unmoved(*bench.once(self._function, times=2)):
            return [Cause.of("state", ", ".join(name for _, name in expected.state))]
        return []

    def _random(self, explained: bool) -> list[Cause]:
        """Compare the candidate's random numbers with eager's, under seeds."""
        bench = self._bench
        run = len(bench.inputs)  # a seed that no call had
        (one,), (other,) = (bench.once(bench.eager, run=r) for r in (0, run))
        if not self._differ(one, other):
            return []
        (got,), (again,), (new,) = (bench.once(self._function, run=r) for r in (0, 0, run))
        if not self._unmoved(got, again):
            return [Cause.of("random-unregistered")]
        if self._unmoved(got, new):
            return [Cause.of("random-baked")]
        return [Cause.of("random-other")] if not explained and self._differ(got, one) else []

    def _cautions(self) -> list[Cause]:
        """Changes of weights that the candidate would not follow."""
        sample: list[torch.Tensor] = []
        size = 0
        for tensor in sorted(self._bench.outside.values(), key=torch.Tensor.numel):
            size += tensor.numel() * tensor.element_size()
            if size <= _SAMPLE_BYTES:
                sample.append(tensor)
        found = []
        changes: dict[CauseKind, Any] = {"changed-later": _disturb, "moved-later": _rebind}
        for kind, change in changes.items():
            with _put_back(sample):
                if sample and self._reacts(before=partial(change, sample)) is False:
                    found.append(Cause.of(kind))
        return found

    def _changed_values(self) -> tuple[int, list[Cause]]:
        """Change each number and string that eager reads in Python, and see whether the guards of
        the candidate's graphs notice; where they do not, whether its results follow.

        Returns:
            How many changes they noticed, and those that the results do not follow.
        """
        dispatcher = getattr(self._function, "_dispatcher", None)
        guards = dispatcher.guards() if isinstance(dispatcher, Dispatcher) else []
        guards = [guard for guard in guards if guard.holds()]
        noticed, lost = 0, []
        for place in self._bench.values if guards else ():
            other = Item(place.path, place.container, place.key, _other(place.value))
            try:
                other.put_back()  # which lets the place hold it
            except TypeError:  # of a class made in C
                continue
            try:
                is_noticed = not all(guard.places_hold() for guard in guards)
                if not is_noticed and self._reacts(before=other.put_back) is False:
                    lost.append(place.path)
            finally:
                place.put_back()
            noticed += is_noticed
        return noticed, [Cause.of("value-later", ", ".join(lost))] if lost else []

    def _reacts(
        self, given: Inputs | None = None, before: Callable[[], object] = lambda: None
    ) -> bool | None:
        """Whether the candidate's results change; ``None``: eager's do not, or it raises then."""
        bench = self._bench
        plain, got = self._plain
        try:
            (changed,) = bench.once(bench.eager, given, before=before)
        except (Exception, SystemExit):
            bench.restart()
            return None
        if not self._differ(plain, changed):
            return None
        (new,) = bench.once(self._function, given, before=before)
        return not self._unmoved(got, new)

    @cached_property
    def _plain(self) -> tuple[Values, Values]:
        """The results of eager and of the candidate for the first inputs."""
        bench = self._bench
        (eager,), (candidate,) = (bench.once(fn) for fn in (bench.eager, self._function))
        return eager, candidate

    def _rounds_differ(self, got: Round, expected: Round) -> bool:
        calls = zip(got.calls, expected.calls, strict=True)
        return any(self._differ(one.values, other.values) for one, other in calls)

    def _differ(self, got: Values, expected: Values) -> bool:
        return got.keys() != expected.keys() or not all(
            within(got[key], expected[key], self._bench.threshold) for key in expected
        )

    @staticmethod
    def _unmoved(one: Values, other: Values) -> bool:
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)


def _stats(fn: Any) -> GraphedStats | None:
    found = fn.stats() if callable(getattr(type(fn), "stats", None)) else None
    return found if isinstance(found, GraphedStats) else None


def _why_not(stats: GraphedStats, captured: bool | None, runs: int) -> str:
    """Why calls are not replays."""
    if captured:
        # Two inputs may differ in the outcome of one comparison.
        for row in stats.graphs:
            if row.paths >= max(3, runs):
                places = [line for line in row.report if line.endswith("between two graphs")]
                return (
                    "each input takes its own path, so a call replays only if its values come "
                    f"again: {'; '.join(places)}"
                )
        return ""
    by_calls = sorted(stats.fallbacks, key=lambda reason: -stats.fallbacks[reason])
    reasons = [*stats.refused.values(), *stats.thrashing, *by_calls]
    return reasons[0] if reasons else "each call is of a new kind"


def _other(value: Any) -> Any:
    """Another value of the kind of ``value``."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"{value}_"
    if isinstance(value, float):
        return value * 1.5 + 0.25 if math.isfinite(value) else 0.25
    return value + 1


@contextmanager
def _put_back(tensors: list[torch.Tensor]) -> Iterator[None]:
    values = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def _disturb(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.mul_(0.75).add_(0.05)


def _rebind(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.data = tensor.detach() * 0.75 + 0.05
