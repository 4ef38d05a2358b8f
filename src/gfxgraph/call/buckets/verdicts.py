"""Which sizes of one callable may be padded, and which were compared with eager execution.

A bucket is judged before its graph is used (:mod:`.rows`). The first call of each size is recorded,
and compared with eager execution: what a function does for one size only, no made input shows.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ...device import current_device
from ...errors import CaptureError
from ...graph.captured import CapturedGraph
from ...graph.compare import Tolerance
from ...graph.guard import Guard
from ...graph.locks import turn_if_free
from ...graph.rollback import run_and_roll_back
from ...interpose.interrupts import interrupt_in
from ...record.effects import UndoLog, storage_key
from ...record.recorder import Recording
from ..entry import Entry
from ..replay import NO_MATCH
from ..request import WhyUnlike
from ..signature import flatten
from .made import made_like
from .rows import Judge, Ran, Runner, carried_by, pieces_differ, tells_apart
from .sizes import Buckets, SizedCall

__all__ = ["RUNS_OF_A_RECORDING", "Case", "Verdicts", "runner"]


RUNS_OF_A_RECORDING = 10
"""Eager runs that take about as long as a recorded one."""
# How many sizes of one kind of calls are recorded at their first call.
_RECORDED_AT_ONCE = 64

Sizes: TypeAlias = frozenset[tuple[str, int]]


@dataclass
class Case:
    """A call and the same call padded, by which a graph is judged.

    Attributes:
        call: smaller than the bucket, where that can be.
        padded: the call that the graph is captured with.
        key: of that.
        result: what the call gave; NO_MATCH: it was not made.
        is_sample: whether the graph was captured with ``padded``; else with other arguments.
    """

    call: SizedCall
    padded: SizedCall
    key: Any
    result: Any
    is_sample: bool = True


class Verdicts:
    """Judges the graphs of buckets, and remembers what was found.

    Args:
        buckets: what to pad to.
        verify: tolerance of the comparisons; ``False``: nothing is compared.
    """

    def __init__(self, buckets: Buckets, verify: Tolerance) -> None:
        self._buckets, self._verify = buckets, verify
        #: By the guard of graphs: the sizes, with their names, of which a recorded run has shown
        #: that these do what calls do. There is no entry where nothing is to be compared.
        self._met: weakref.WeakKeyDictionary[Guard, set[Sizes]] = weakref.WeakKeyDictionary()
        #: By the same: the sizes that were recorded, compared or not.
        self._alike: weakref.WeakKeyDictionary[Guard, set[Sizes]] = weakref.WeakKeyDictionary()
        #: How often calls of sizes came that are not recorded yet.
        self._waiting: Counter[tuple[Any, Sizes]] = Counter()
        #: By function and kind of call: up to which sizes it was judged, by name.
        self._judged: dict[Any, dict[str, int]] = {}
        #: Graph -> sizes above it -> why they are not answered in pieces, if they are not.
        self._in_pieces: weakref.WeakKeyDictionary[Entry, dict[Sizes, str | None]]
        self._in_pieces = weakref.WeakKeyDictionary()

    def forget(self) -> None:
        """Start anew."""
        self._met.clear()
        self._alike.clear()
        self._waiting.clear()
        self._judged.clear()

    @property
    def judges(self) -> bool:
        """Whether functions are judged at all."""
        return self._buckets.rows == "judge" and self._verify is not False

    def compares(self, entry: Entry) -> bool:
        """Whether calls of further sizes are compared; else somebody has said what they do."""
        captured = entry.captured
        draws = captured is not None and captured.draws_random_numbers
        return self.judges or (entry.unproven and not draws)

    def is_met(self, entry: Entry, sizes: Mapping[str, int]) -> bool:
        """Whether calls of these sizes were compared with eager execution, where they are to be."""
        met = None if entry.captured is None else self._met.get(entry.captured.guard)
        return met is None or frozenset(sizes.items()) in met

    def waits(self, key: Any, sizes: Mapping[str, int]) -> bool:
        """Whether a call of these sizes is not worth a recorded run yet.

        The first sizes are recorded at once. A later size first runs eagerly for about as long as a
        recorded run takes, so a size that hardly comes again is never recorded.
        """
        at = alike(key), frozenset(sizes.items())
        if at not in self._waiting and len(self._waiting) < _RECORDED_AT_ONCE:
            self._waiting[at] = RUNS_OF_A_RECORDING
        self._waiting[at] += 1
        return self._waiting[at] <= RUNS_OF_A_RECORDING

    def add_met(self, entry: Entry, sizes: Mapping[str, int]) -> None:
        """A call of these sizes was recorded and compared."""
        if entry.captured is not None:
            met = self._met.setdefault(entry.captured.guard, set())
            met.add(frozenset(sizes.items()))

    def why_unlike(self, call: SizedCall, entry: Entry, why_unlike: WhyUnlike) -> str | None:
        """Why a graph of other sizes must not answer calls of these sizes; ``None``: it may.

        Args:
            call: of these sizes.
            entry: the graph.
            why_unlike: records the call.
        """
        if entry.captured is None:
            return None
        known = self._alike.setdefault(entry.captured.guard, set())
        sizes = frozenset(call.sizes.items())
        if sizes not in known:
            why = why_unlike(call, entry)
            if why:
                return f"calls of the sizes {call.sizes} may do something else: {why}"
            known.add(sizes)
        return None

    def smaller(self, template: Entry | None, bucket: Mapping[str, int]) -> dict[str, int]:
        """Sizes to try a bucket with: below its own, and recorded already if there are such.

        ``template``: the graph of another size, if there is one.
        """
        guard = None if template is None or template.captured is None else template.captured.guard
        known = [dict(sizes) for sizes in (() if guard is None else self._alike.get(guard, ()))]
        below = [s for s in known if all(s.get(n, size) < size for n, size in bucket.items())]
        wanted = {name: _much_smaller(size) for name, size in bucket.items()}
        return min(
            below,
            key=lambda sizes: sum(abs(sizes[n] - size) for n, size in wanted.items()),
            default=wanted,
        )

    def difference(
        self, call: SizedCall, padded: SizedCall, entry: Entry, expected: Ran, got: Ran
    ) -> str | None:
        """How a padded run differs from one that is not."""
        judge = self._judge(call, padded, entry, runner(entry.captured))
        return judge.difference(expected, got, call.sizes)

    def _judge(self, call: SizedCall, padded: SizedCall, entry: Entry, run: Runner) -> Judge:
        verify = True if self._verify is False else self._verify  # what a recipe made is compared
        return Judge(call.fn, call, padded.sizes, self._buckets, entry.carried, run, verify)

    def judge_at(self, call: SizedCall, padded: SizedCall, entry: Entry) -> None:
        """Judge calls of one size: made ones, since those of a caller may hide a difference.

        Args:
            call: of this size.
            padded: the same, as large as the bucket.
            entry: the graph of the bucket.

        Raises:
            CaptureError: padding can reach what is kept, or nobody can say.
        """
        if self.judges:
            self._judge(call, padded, entry, runner(entry.captured)).at(call.sizes)

    def judge(
        self, case: Case, entry: Entry, template: Entry | None, why_unlike: WhyUnlike
    ) -> None:
        """Compare a call with the same call padded, and learn what the outputs carry.

        Args:
            case: the two calls.
            entry: the graph, which was captured with the padded one.
            template: the graph of another size, if there is one.
            why_unlike: records calls of other sizes.

        Raises:
            CaptureError: the graph is no use, since padding changes what was asked for.
        """
        captured, verify = entry.captured, self._verify
        assert captured is not None  # just made
        _raise_if_padding_decides(entry, captured)
        if verify is False and template is not None:
            entry.carried = template.carried
            return
        kind, like = alike(case.key), None if template is None else template.captured
        # What was captured after the template of another size reads and does what that does.
        if like is None or captured.guard is not like.guard:
            self._judged[kind] = {}
        of_bucket = frozenset(case.padded.sizes.items())
        self._alike.setdefault(captured.guard, set()).add(of_bucket)
        judged = self._buckets.rows == "judge"
        run = runner(captured)
        if verify is not False:
            run = self._recorded(entry, why_unlike)
        if judged and verify is not False and captured.draws_random_numbers:
            raise CaptureError(
                "the function draws random numbers: padded, it draws others than in eager "
                'execution. If they may be others, say so with rows="independent".'
            )
        call, padded = case.call, case.padded
        got = Ran(captured.sample or entry.static_tensors[1], entry.out_spec, [])
        if not captured.plain or not case.is_sample:
            got = run(call.fn, padded)
        if case.result is NO_MATCH:
            expected = run(call.fn, call)
        else:
            expected = Ran(*flatten(case.result), got.writes)
            run(call.fn, call)  # the padded call may leave less
        self._learn_dims(entry, case, expected, got, run)
        if verify is False:
            return
        met = self._met.setdefault(captured.guard, set())
        judge = self._judge(call, padded, entry, run)
        is_answered = self._buckets.of(call.sizes) == padded.sizes  # not by another bucket
        if not captured.draws_random_numbers:
            different = judge.difference(expected, got, call.sizes)
            if different:
                raise CaptureError(different)
            if judged:
                self._judge_rows(judge, kind)
                # Rows are kept apart as long as masks and the like hold what they hold.
                captured.guard.watch_versions(judge.gates.values())
            if judged and is_answered:
                judge.at(call.sizes)
        met.add(of_bucket)
        if is_answered:
            met.add(frozenset(call.sizes.items()))

    def _judge_rows(self, judge: Judge, kind: Any) -> None:
        """Judge sizes that were not judged before; see :class:`~.rows.Judge`."""
        known = self._judged.setdefault(kind, {})
        if any(size > known.get(name, 1) for name, size in judge.small.items()):
            judge()
            known.update(judge.small)

    def _recorded(self, entry: Entry, why_unlike: WhyUnlike) -> Runner:
        """A runner of made calls that records the first one of each size."""
        run = runner(entry.captured)

        def recorded(fn: Callable[..., Any], call: SizedCall) -> Ran:
            why = self.why_unlike(call, entry, why_unlike)
            if why is not None:
                raise CaptureError(why)
            return run(fn, call)

        return recorded

    def _learn_dims(self, entry: Entry, case: Case, expected: Ran, got: Ran, run: Runner) -> None:
        """Let the entry know which dimensions of its outputs carry which size.

        Raises:
            CaptureError: the result is no function of the sizes.
        """
        call, padded = case.call, case.padded
        other, of_other, given = call.sizes, expected, self._buckets.out_dims
        if given is None and not tells_apart(other, padded.sizes):
            probe = call.resized(_other_sizes(padded.sizes), self._buckets)
            of_other, other = run(call.fn, probe), probe.sizes
        if not got.spec == expected.spec == of_other.spec:
            raise CaptureError("the structure or a plain value of the result depends on the size")
        if given is not None:
            entry.carried = given
            _check_out_dims(given, got.tensors, padded.sizes)
            return
        pairs = enumerate(zip(of_other.tensors, got.tensors, strict=True))
        entry.carried = [
            carried_by(position, small.shape, other, large.shape, padded.sizes)
            for position, (small, large) in pairs
        ]

    def against_pieces(
        self, call: SizedCall, name: str, entry: Entry, why_unlike: WhyUnlike
    ) -> str | None:
        """Why pieces are no answer for such a call; asked once for each graph and size.

        Args:
            call: above the largest bucket.
            name: of the dimension along which it would be cut.
            entry: of the largest bucket.
            why_unlike: records the call.
        """
        known, sizes = self._in_pieces.setdefault(entry, {}), frozenset(call.sizes.items())
        if sizes not in known:
            if self._verify is False or entry.captured is None:
                return None
            if entry.captured.draws_random_numbers:  # only if somebody said that it may
                return None
            if entry.linked:
                return "its results share memory, and those of pieces would not"
            with turn_if_free() as is_ours:
                if not is_ours:
                    return "another thread is capturing, and pieces are to be compared with it"
                try:
                    whole = made_like(call, call.sizes, self._buckets)
                    step, run = self._buckets.sizes[name][-1], runner(entry.captured)
                    known[sizes] = self.why_unlike(call, entry, why_unlike) or pieces_differ(
                        call.fn, whole, name, step, entry.carried, run, self._verify
                    )
                except Exception as error:  # made inputs may be none that it takes
                    if interrupt_in(error):
                        raise
                    known[sizes] = f"it raises {type(error).__name__}: {error}"
        different = known[sizes]
        return None if different is None else f'larger="split": {different}'


def _much_smaller(size: int) -> int:
    """A size that leaves much to pad, and is not 1, where models may do something else."""
    return max(2, size // 8) if size > 2 else 1


def alike(key: Any) -> Any:
    """The part of a key that is the same for all sizes."""
    spec, tensors, shared, conditions = key
    return spec, tuple((len(shape), *rest) for shape, *rest in tensors), shared, conditions


def runner(captured: CapturedGraph | None) -> Runner:
    """A runner for made calls: it runs them and rolls back what they do outside."""
    device = current_device()

    def run(fn: Callable[..., Any], call: SizedCall) -> Ran:
        writes: list[torch.Tensor] = []

        def look(written: UndoLog, recording: Recording) -> None:
            writes.extend(region.clone() for region in written.regions())

        result, draws = run_and_roll_back(
            fn, call.args, call.kwargs, call.leaves, device, captured, look
        )
        return Ran(*flatten(result), writes, draws)

    return run


def _raise_if_padding_decides(entry: Entry, captured: CapturedGraph) -> None:
    if captured.root.step is not None:
        raise CaptureError(
            f"{entry.where()}: there the host decides how the call goes on, by data of which "
            "padding is a part. Keep that out of the function, or graph it without buckets."
        )
    if captured.decided_at is not None:
        raise CaptureError(
            f"{captured.decided_at}: there the device decides how the call goes on, by data of "
            "which padding is a part. Keep that out of the function, or graph it without buckets."
        )
    if captured.written.keys() & set(map(storage_key, entry.static_tensors[0])):
        raise CaptureError(
            "the function writes to an argument, of which a padded call passes a copy. Let it "
            "return what it computes."
        )


def _check_out_dims(
    given: list[dict[int, str]], outputs: list[torch.Tensor], bucket: dict[str, int]
) -> None:
    if len(given) != len(outputs):
        raise CaptureError(f"out_dims are for {len(given)} tensors, the result has {len(outputs)}")
    for position, (dims, output) in enumerate(zip(given, outputs, strict=True)):
        for dim, name in dims.items():
            if not -output.dim() <= dim < output.dim() or output.shape[dim] != bucket[name]:
                raise CaptureError(
                    f"out_dims: dimension {dim} of output {position}, of shape "
                    f"{tuple(output.shape)}, is not {name!r}, which is {bucket[name]}"
                )


def _other_sizes(bucket: dict[str, int]) -> dict[str, int]:
    """Sizes near those of a bucket that tell its dimensions apart."""
    other: dict[str, int] = {}
    for n, (name, size) in enumerate(bucket.items(), 1):
        other[name] = size - n if size > n else size + n
    return other
