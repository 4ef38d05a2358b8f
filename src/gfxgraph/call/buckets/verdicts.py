"""Which sizes of one callable may be padded, and which were compared with eager execution.

A bucket is judged before its graph is used (:mod:`.rows`), and the first call of each size is
compared with eager execution: what a function does for one size only, no made input shows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...device import current_device
from ...errors import CaptureError
from ...graph.captured import CapturedGraph
from ...graph.compare import Tolerance
from ...graph.locks import turn_if_free
from ...graph.rollback import run_and_roll_back
from ...interpose.interrupts import interrupt_in
from ...record.effects import UndoLog, storage_key
from ...record.recorder import Recording
from ..entry import Entry
from ..replay import NO_MATCH
from ..signature import flatten
from .made import made_like
from .rows import Judge, Ran, Runner, carried_by, pieces_differ, tells_apart
from .sizes import Buckets, SizedCall

__all__ = ["Case", "Verdicts", "runner"]


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
        #: By function and kind of call: sizes (with their names) at which it was compared. There
        #: is no entry where nothing is to be compared.
        self._met: dict[Any, set[tuple[str, int]]] = {}
        #: The kinds of calls of which each first one of a size fills a cache.
        self._fills: set[Any] = set()
        #: By the same: up to which sizes it was judged, by name.
        self._judged: dict[Any, dict[str, int]] = {}
        #: Graph -> dimension -> why calls above it are not answered in pieces, if they are not.
        self._in_pieces: weakref.WeakKeyDictionary[Entry, dict[str, str | None]]
        self._in_pieces = weakref.WeakKeyDictionary()

    def forget(self) -> None:
        """Start anew."""
        self._met.clear()
        self._fills.clear()
        self._judged.clear()

    @property
    def judges(self) -> bool:
        """Whether functions are judged at all."""
        return self._buckets.rows == "judge" and self._verify is not False

    def is_met(self, key: Any, sizes: Mapping[str, int]) -> bool:
        """Whether calls of these sizes were compared with eager execution, where they are to be."""
        met = self._met.get(alike(key))
        return met is None or met.issuperset(sizes.items())

    def add_met(self, key: Any, sizes: Mapping[str, int]) -> None:
        """Calls of these sizes were compared."""
        self._met.setdefault(alike(key), set()).update(sizes.items())

    def difference(
        self, call: SizedCall, padded: SizedCall, entry: Entry, expected: Ran, got: Ran
    ) -> str | None:
        """How a padded run differs from one that is not."""
        run = runner(entry.captured)
        verify = True if self._verify is False else self._verify  # what a recipe made is compared
        judge = Judge(call.fn, call, padded.sizes, self._buckets, entry.carried, run, verify)
        return judge.difference(expected, got, call.sizes)

    def judge(self, case: Case, entry: Entry, template: Entry | None) -> None:
        """Compare a call with the same call padded, and learn what the outputs carry.

        Args:
            case: the two calls.
            entry: the graph, which was captured with the padded one.
            template: the graph of another size, if there is one.

        Raises:
            CaptureError: the graph is no use, since padding changes what was asked for.
        """
        captured, verify = entry.captured, self._verify
        assert captured is not None  # just made
        _raise_if_padding_decides(entry, captured)
        if verify is False and template is not None:
            entry.carried = template.carried
            return
        run, judged = runner(captured), self._buckets.rows == "judge"
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
            fills = run(call.fn, call).fills  # the padded call may leave less
            expected = Ran(*flatten(case.result), got.writes, fills=fills)
        self._learn_dims(entry, case, expected, got)
        if verify is False or captured.draws_random_numbers:
            return
        judge = Judge(call.fn, call, padded.sizes, self._buckets, entry.carried, run, verify)
        different = judge.difference(expected, got, call.sizes)
        if different:
            raise CaptureError(different)
        if judged:
            like = None if template is None else template.captured
            judge.fills = expected.fills
            self._judge_rows(judge, case, captured, like)

    def _judge_rows(
        self, judge: Judge, case: Case, captured: CapturedGraph, like: CapturedGraph | None
    ) -> None:
        """Judge sizes that were not judged before; see :class:`~.rows.Judge`."""
        kind = alike(case.key)
        # What was captured after the template of another size reads and does what that does.
        if like is None or captured.guard is not like.guard:
            self._met[kind], self._judged[kind] = set(), {}
        known, met = self._judged.setdefault(kind, {}), self._met.setdefault(kind, set())
        if any(size > known.get(name, 1) for name, size in judge.small.items()):
            met.update(judge())
            known.update(judge.small)
        # The graph was compared with the function at the bucket itself.
        compared = {*case.call.sizes.items(), *case.padded.sizes.items()}
        if judge.fills:
            self._fills.add(kind)
        if kind not in self._fills:
            met.update(compared)

    def _learn_dims(self, entry: Entry, case: Case, expected: Ran, got: Ran) -> None:
        """Let the entry know which dimensions of its outputs carry which size.

        Raises:
            CaptureError: the result is no function of the sizes.
        """
        call, padded = case.call, case.padded
        other, of_other, given = call.sizes, expected, self._buckets.out_dims
        if given is None and not tells_apart(other, padded.sizes):
            probe = call.resized(_other_sizes(padded.sizes), self._buckets)
            of_other, other = runner(entry.captured)(call.fn, probe), probe.sizes
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

    def against_pieces(self, call: SizedCall, name: str, entry: Entry) -> str | None:
        """Why pieces are no answer for such a call; asked once for each graph.

        Args:
            call: above the largest bucket.
            name: of the dimension along which it would be cut.
            entry: of the largest bucket.
        """
        known = self._in_pieces.setdefault(entry, {})
        if name not in known:
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
                    known[name] = pieces_differ(
                        call.fn, whole, name, step, entry.carried, run, self._verify
                    )
                except Exception as error:  # made inputs may be none that it takes
                    if interrupt_in(error):
                        raise
                    known[name] = f"it raises {type(error).__name__}: {error}"
        different = known[name]
        return None if different is None else f'larger="split": {different}'


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

        ran = run_and_roll_back(fn, call.args, call.kwargs, call.leaves, device, captured, look)
        return Ran(*flatten(ran.result), writes, ran.draws, ran.fills)

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
