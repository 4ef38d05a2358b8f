"""Compares one candidate with eager, and runs experiments to find out why it differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import pairwise
from time import monotonic
from typing import Any, TypeAlias

import torch

from ..call.entries import all_graphs
from ..call.entry import Entry
from ..call.graphed import GraphedStats
from ..errors import first_paragraph
from ..graph.locks import inside_gfxgraph, turn_to_capture
from ..graph.places import Place
from ..interpose.dynamo import frames_compiled
from .bench import Bench, Function, Key, Round, Values
from .compare import Errors, same, within
from .inputs import Inputs, fresh
from .places import Change, Kept, can_be_made, change_each, value_change, with_values
from .report import NO_PLACES, Cause, CauseKind, OutputErrors, Places, VerifyResult

__all__ = ["Candidate"]

Outcome: TypeAlias = Values | type[BaseException]
"""The results of a call, or the class of its error."""

# Experiments change each tensor and call both sides again, to find those that a candidate ignores.
_MAX_TENSORS = 64
# Bytes of weights to change, to see whether the candidate follows changes at all.
_SAMPLE_BYTES = 64 << 20
# Seconds in which places are changed, and in which calls are made after such a change.
_SECONDS, _SECONDS_OF_RUNS = 10.0, 5.0
_MAX_RUNS = 32
# So many places of a cause are named.
_NAMES = 8
_NOT_REPRODUCIBLE = Cause.of("not-reproducible")


class Candidate:
    """Compares one candidate with eager, and experiments with it."""

    def __init__(self, bench: Bench, function: Function, name: str, views: bool) -> None:
        self._bench, self._function, self._name, self._views = bench, function, name, views
        #: Values and weights after whose change nothing was called, since there was no time.
        self._left = 0
        self._kept = Kept(())

    def result(self) -> VerifyResult:
        """Compare, and experiment if something differs."""
        bench = self._bench
        rounds: list[Round] = []
        after = None
        replays: list[int] = []

        def called(*args: Any, **kwargs: Any) -> Any:
            result = self._function(*args, **kwargs)
            now = _stats(self._function)
            replays.append(now.replays if now else 0)
            return result

        try:
            for _ in range(2):
                replayed = {entry: entry.replays for entry in all_graphs()}
                rounds.append(bench.round(called))
            after = _stats(self._function)
            # Also those inside of a candidate that is no graph itself.
            graphs = [one for one in all_graphs() if one.replays > replayed.get(one, 0)]
        except (Exception, SystemExit) as error:
            bench.restart()
            return self._report(rounds, self._rows(rounds), None, [], [], first_paragraph(error))
        captured = None
        if after:
            # The first call of a round may meet state that was put back: then it is as a very
            # first call, and the others have to be replays.
            last = replays[-len(bench.inputs) - 1 :]
            is_replay = [now > then for then, now in pairwise(last)]
            captured = all(is_replay[1:] if bench.expected.state and is_replay[1:] else is_replay)
        rows = self._rows(rounds)
        lost = [] if self._views else self._lost(rounds)
        causes = [Cause.of("overwritten", ", ".join(lost))] if lost else []
        cautions: list[Cause] = []
        places = NO_PLACES
        try:
            if not all(row.ok for row in rows):
                causes += self._causes(rounds)
                if causes == [_NOT_REPRODUCIBLE] and after and not after.replays:
                    # Both have run the same code: there is nothing to compare.
                    rows, causes, cautions = (), [], causes
            elif captured is not False:
                places, missed = self._changed_places(graphs)
                bench.restart()
                causes += missed
                if not graphs:
                    cautions = self._fixed_values()
                elif places.changed and not missed:
                    cautions = self._captured_again(graphs)
                cautions += self._cautions()  # moves weights, so that the graphs are made again
        except (Exception, SystemExit) as error:
            # An experiment may pass values that it cannot take.
            bench.restart()
            cautions = [Cause.of("experiment", first_paragraph(error))]
        return self._report(rounds, rows, captured, causes, cautions, places=places)

    def _report(
        self,
        rounds: list[Round],
        rows: tuple[OutputErrors, ...],
        captured: bool | None,
        causes: list[Cause],
        cautions: list[Cause],
        error: str | None = None,
        places: Places = NO_PLACES,
    ) -> VerifyResult:
        stats = _stats(self._function)
        runs = len(self._bench.inputs)
        advanced = self._bench.advanced()
        return VerifyResult(
            self._name,
            runs * len(rounds),
            captured,
            stats.replays if stats else None,
            _why_not(stats, captured, runs) if stats else "",
            stats.fallbacks if stats else {},
            rows,
            tuple(causes),
            (*cautions, *([Cause.of("advanced", _listed(advanced))] if advanced else [])),
            error,
            places,
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
            return [_NOT_REPRODUCIBLE]
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

    def _changed_places(self, graphs: list[Entry]) -> tuple[Places, list[Cause]]:
        """Change each place that the graphs watch, and see whether their guards notice. Then call
        both sides with other values and weights.

        Returns:
            What was tried, and the changes that results would not follow.
        """
        bench = self._bench
        captured = [entry.captured for entry in graphs if entry.captured is not None]
        guards = [one.guard for one in captured if one.guard.holds()]
        is_settled = bool(guards)
        if not guards:  # they rely on what a first call leaves, such as a cache
            bench.call(self._function)
            guards = [one.guard for one in captured if one.guard.holds()]
        if not guards:
            return NO_PLACES, []
        # Compiled code would be compiled again for each value.
        is_compiled = any(one.compiled or one.not_compiled for one in captured)
        watched = [place for guard in guards for place in guard.places().values()]
        with turn_to_capture():  # of another thread it would hold what was changed
            found = change_each(guards, bench.values, _SECONDS)
            may_run = is_settled and not is_compiled
            ran, left, stale = self._run_changed([*watched, *bench.values] if may_run else [])
        causes = [Cause.of("value-later", _listed(stale))] if stale else []
        missed = [name for name in found.unnoticed if name not in stale]
        if missed:
            causes.append(Cause.of("unnoticed", _listed(missed)))
        if found.stuck:
            causes.append(Cause.of("stuck", _listed(found.stuck)))
        return Places(found.changed, found.noticed, ran, found.unchanged, left), causes

    def _run_changed(self, places: Sequence[Place]) -> tuple[int, int, list[str]]:
        """Call both sides after a change of a value or of a weight.

        Returns:
            How many changes were tried, how many were not, and the names of the places after whose
            change the candidate differs.
        """
        ran, stale = 0, []
        for change in self._sampled(places):
            expected = self._outcome(self._bench.eager, change)
            replays = _replays()
            got = self._outcome(self._without_captures, change)
            ran += 1
            # What only the candidate reads may well change its results alone. Without a replay both
            # ran the same code: with such a value it may read what nobody has written.
            is_stale = self._differs(expected, self._plain[0]) and self._differs(got, expected)
            if is_stale and _replays() > replays:
                stale.append(change.name)
        return ran, self._left, stale

    def _sampled(self, places: Sequence[Place]) -> Iterator[Change]:
        """Changes of values and weights, as many as there is time for."""
        rest, bench = with_values(places), self._bench
        self._kept = Kept(places)
        until, compiled, count = monotonic() + _SECONDS_OF_RUNS, frames_compiled(), 0
        while rest and count < _MAX_RUNS and monotonic() < until:
            if frames_compiled() != compiled:
                break
            change = value_change(rest.pop(0))
            if change is None or not can_be_made(change):
                continue
            try:
                written = bench.written_after(change.do, self._patience)
            finally:
                change.undo()
                self._kept.put_back()
            if written is None:
                self._left += 1
                continue
            count += 1
            with _put_back(written):
                yield change
        self._left += len(rest)

    def _outcome(self, function: Function, change: Change) -> Outcome:
        """The results after a change, or the class of the error."""
        try:
            (values,) = self._bench.once(function, before=change.do)
        except (Exception, SystemExit) as error:
            self._bench.restart()
            return type(error)
        finally:
            change.undo()
            self._kept.put_back()
        return values

    @cached_property
    def _patience(self) -> float:
        """Seconds that a call may take after a change of a value: another number may keep a loop
        from ending."""
        began = monotonic()
        self._bench.once(self._bench.eager)
        return max(1.0, 10 * (monotonic() - began))

    def _differs(self, got: Outcome, expected: Outcome) -> bool:
        if isinstance(expected, type) or isinstance(got, type):
            return expected is not got
        return self._differ(got, expected)

    def _without_captures(self, *args: Any, **kwargs: Any) -> Any:
        """The candidate: a call whose graph does not hold any more runs eagerly, and keeps it."""
        with inside_gfxgraph():
            return self._function(*args, **kwargs)

    def _captured_again(self, graphs: list[Entry]) -> list[Cause]:
        """A caution if not the same graphs answer calls after all was put back."""
        guards = [entry.captured.guard for entry in graphs if entry.captured is not None]
        changes = [name for guard in guards for name in guard.changes()]
        before = sum(entry.replays for entry in graphs)
        self._bench.once(self._function)
        replays = sum(entry.replays for entry in graphs) > before
        return [] if replays else [Cause.of("captured-again", _listed(changes))]

    def _fixed_values(self) -> list[Cause]:
        """Changes of values in Python that a candidate of somebody else would not follow."""
        fixed = []
        for change in self._sampled(self._bench.values):
            try:
                if self._reacts(before=change.do) is False:
                    fixed.append(change.name)
            finally:
                change.undo()
                self._kept.put_back()
        return [Cause.of("fixed-later", _listed(fixed))] if fixed else []

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
    if not reasons and stats.changed:
        return f"each call finds something else there: {_listed([*stats.changed])}"
    return reasons[0] if reasons else "each call is of a new kind"


def _replays() -> int:
    """How often graphs were replayed so far."""
    return sum(entry.replays for entry in all_graphs())


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NAMES]) + (" ..." if len(names) > _NAMES else "")


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
