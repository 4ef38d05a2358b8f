"""The user's line of each kernel, from eager runs whose operations are marked."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._ops import OpOverload
from torch.profiler import record_function

from ..device.operators import ALLOCATIONS, is_view
from ..device.overrides import UnwrappedDispatchMode
from ..interpose.cuda_calls import listening
from ..interpose.dynamo import Uncompiled
from ..interpose.source import Source, users_line
from .kineto import MARK, Call, Work, calls_in, profiled

__all__ = ["Operation", "Recorded", "lines_of", "recorded"]

# It makes no view, and yet no kernel runs.
_NO_KERNEL = ALLOCATIONS | {"aten::_unsafe_view"}


@dataclass(frozen=True)
class Operation:
    """An operator that a run called.

    Attributes:
        name: such as ``"aten.add.Tensor"``.
        where: the user's line.
        launches: whether it gives the device work: it has a tensor there, and is neither a view
            nor a mere allocation.
    """

    name: str
    where: Source
    launches: bool


@dataclass(frozen=True)
class Recorded:
    """A marked eager run.

    Attributes:
        operations: the operators of the run in order.
        call: what the profiler saw of it; the marks in it are positions in ``operations``.
        asks_capturing: whether it asked if a capture is underway, and was told that one is.
    """

    operations: list[Operation]
    call: Call
    asks_capturing: bool

    @property
    def work(self) -> list[tuple[Work, Source | None]]:
        """What the device ran, each with its line, in the order of the launches."""
        return [(work, self._line(work.mark)) for work in self.call.work]

    def _line(self, mark: int | None) -> Source | None:
        if mark is None or mark >= len(self.operations):
            return None
        where = self.operations[mark].where
        return where if where.file is not None else None


class _Marking(UnwrappedDispatchMode):
    """Gives each operation a range in the trace, and remembers its line."""

    supports_higher_order_operators = True

    def __init__(self, device_type: str, within: CodeType) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._within = within  # lines of those who call us launch nothing
        self._device_types = {device_type, "cuda"}  # what runs emulated may say "cuda" too
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        number, where = len(self.operations), users_line(self._within)
        self.operations.append(Operation(str(func), where, False))
        with record_function(f"{MARK}{number}"):
            result = func(*args, **(kwargs or {}))
        if self._launches(func, (args, kwargs, result)):
            self.operations[number] = Operation(str(func), where, True)
        return result

    def _launches(self, func: Any, values: Any) -> bool:
        if isinstance(func, OpOverload) and (is_view(func) or func._schema.name in _NO_KERNEL):
            return False
        return any(
            isinstance(value, torch.Tensor) and value.device.type in self._device_types
            for value in pytree.tree_leaves(values)
        )


def recorded(
    call: Callable[[], Any],
    prepare: Callable[[], object],
    synchronize: Callable[[], object],
    device_type: str,
    on_gpu: bool,
    in_capture: bool,
) -> Recorded:
    """Run an eager call with its operations marked.

    Args:
        call, prepare, synchronize, on_gpu: see :func:`profiled`.
        device_type: what ``tensor.device.type`` is on the device.
        in_capture: ``torch.cuda.is_current_stream_capturing()`` says yes, as in a capture.
    """
    modes: list[_Marking] = []
    asked: list[bool] = []

    def observe(kind: str, what: str, detail: object) -> None:
        if kind == "capturing":
            asked.append(True)

    def marked() -> None:
        modes.append(_Marking(device_type, marked.__code__))
        with Uncompiled(), listening(observe, answer_capturing=in_capture), modes[-1]:
            call()

    (seen,) = calls_in(profiled(marked, prepare, synchronize, 1, on_gpu))
    return Recorded(modes[-1].operations, seen, bool(asked))


def lines_of(
    found: Sequence[Work], known: Sequence[tuple[Work, Source | None]]
) -> list[Source | None]:
    """The line of each of ``found``, as far as it follows from a recorded run of the same function.

    It follows if both runs have the same kernels, by name and in the same order: the n-th of one
    is the n-th of the other. The order of a graph is that of execution, and that is the order of
    the launches if one stream did all. Else it follows for a name that occurs as often in both, if
    a single line launched it. Copies and fills are compared apart from kernels: a graph may lack
    some, such as those of constants.

    Args:
        found: what the device ran, in order.
        known: what the recorded run ran, in the order of its launches, with lines.
    """
    lines: dict[int, Source | None] = {}
    for is_kernel in (True, False):
        ours = [n for n, work in enumerate(found) if (work.kind == "kernel") is is_kernel]
        theirs = [pair for pair in known if (pair[0].kind == "kernel") is is_kernel]
        names = [found[n].name for n in ours]
        in_order = not any(found[n].in_graph for n in ours) or _on_one_stream(w for w, _ in known)
        if in_order and names == [work.name for work, _ in theirs]:
            lines.update(zip(ours, (line for _, line in theirs), strict=True))
            continue
        counts = Counter(names)
        by_name: dict[str, list[Source | None]] = defaultdict(list)
        for work, line in theirs:
            by_name[work.name].append(line)
        for n in ours:
            of_name = by_name[found[n].name]
            if len(of_name) == counts[found[n].name] and len(set(of_name)) == 1:
                lines[n] = of_name[0]
    return [lines.get(n) for n in range(len(found))]


def _on_one_stream(work: Iterable[Work]) -> bool:
    return len({one.stream for one in work}) <= 1
