"""Experiment ``allocations``: what allocates memory, in eager execution and in a replay."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ...device import current_device, index_of
from ...device.operators import is_view
from ...interpose.source import users_line
from ...record.collectives import refused
from ...tables import counted
from ...verifying.bench import Bench
from ...verifying.inputs import Inputs
from ..settled import settled
from .report import Outcome
from .subject import Subject

__all__ = ["run"]


def run(subject: Subject) -> Outcome:
    """Count in one eager call, for each line, and in one replay."""
    given = Inputs.of(subject.args, subject.kwargs)
    subject.progress("eager", 0.2)
    with torch.no_grad(), refused(), settled(subject.eager, [given]) as state:
        state.restart()
        rows = _eager_rows(subject, given)
        state.restart()
        total = _row("all of eager", "", *(sum(row[c] for row in rows) for c in _COUNTS))
        subject.progress("replays", 0.6)
        own, results, why = _replay(subject, state, given, "own")
        view, _, why_no_view = _replay(subject, state, given, "view")
    if own is None:
        words = f"There is no graph to look at: {why.rstrip('.')}."
        return Outcome((*rows, total), words, False)
    replays = [_row("a replay", 'outputs="own"', *own)]
    words = (
        f"Eager allocates {counted(total['allocations'], 'time')} in a call, a replay "
        f"{counted(own[0], 'time')} for {counted(results, 'result')}"
    )
    holds = own[0] <= results and not own[2]
    if view is None:
        notes = (f"With outputs='view' there is no graph: {why_no_view}",)
        return Outcome((*rows, total, *replays), f"{words}.", holds, notes)
    replays.append(_row("a replay", 'outputs="view"', *view))
    words += f", and with outputs='view' {counted(view[0], 'time')}."
    return Outcome((*rows, total, *replays), words, holds and not view[0] and not view[2])


Counts = tuple[int, int, int]
"""Allocations, their bytes, and how often the driver gave memory."""

_COUNTS = ("allocations", "bytes", "driver_calls")


def _row(place: str, operation: str, allocations: int, size: int, driver: int) -> dict[str, Any]:
    return {
        "place": place,
        "operation": operation,
        "allocations": allocations,
        "bytes": size,
        "driver_calls": driver,
    }


def _eager_rows(subject: Subject, given: Inputs) -> list[dict[str, Any]]:
    """A row for each line and operator that allocates, in the order of the run."""
    args, kwargs, _ = given.make()
    seen = _Allocations()
    with seen:
        subject.eager(*args, **kwargs)
    return [_row(*key, *counts) for key, counts in seen.found.items()]


class _Allocations(TorchDispatchMode):
    """Counts what each operator allocates, for each line of the user's."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[tuple[str, str], list[int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.OpOverload) and is_view(func):
            return func(*args, **kwargs)
        before = _counters()
        result = func(*args, **kwargs)
        counts = _new_storages(result, (args, kwargs)) if before is None else _since(before)
        if counts[0]:
            where = users_line(_eager_rows.__code__)
            place = "-" if where.file is None else f"{Path(where.file).name}:{where.line}"
            name = str(func).removeprefix("aten.").removesuffix(".default")
            row = self.found.setdefault((place, name), [0, 0, 0])
            for n, count in enumerate(counts):
                row[n] += count
        return result


def _new_storages(result: Any, given: Any) -> Counts:
    """The memory of ``result`` that is not that of ``given``."""
    old = {_address(t) for t in _tensors(given)}
    new = {_address(t): t.untyped_storage().nbytes() for t in _tensors(result)}
    sizes = [size for key, size in new.items() if key not in old and size]
    return len(sizes), sum(sizes), 0


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()  # that of a view of a pool is of its own


def _tensors(tree: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(tree)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.layout is torch.strided]


def _counters() -> Counter[str] | None:
    """The counters of torch's allocator; ``None`` without a GPU."""
    device = current_device()
    if device.type != "cuda":
        return None
    stats = torch.cuda.memory_stats(index_of(device))
    return Counter(
        allocations=stats.get("allocation.all.allocated", 0),
        bytes=stats.get("allocated_bytes.all.allocated", 0),
        driver_calls=stats.get("segment.all.allocated", 0),
    )


def _since(before: Counter[str]) -> Counts:
    now = _counters() or Counter()
    allocations, size, driver = (now[name] - before[name] for name in _COUNTS)
    return allocations, size, driver


def _replay(
    subject: Subject, state: Bench, given: Inputs, outputs: str
) -> tuple[Counts | None, int, str]:
    """What one replay allocates, how many results it has, and why there is none."""
    step = subject.graphed(outputs=outputs)
    try:
        kept = []
        for _ in range(4):
            state.restart()
            args, kwargs, _ = given.make()
            kept.append(step(*args, **kwargs))  # so that no later result lies in its memory
        state.restart()
        replays = step.stats().replays
        gc.collect()
        before = _counters()
        if before is not None:
            kept.clear()  # a call takes the memory of the result before
        result = step(*args, **kwargs)
        counts = _new_storages(result, (kept, args, kwargs)) if before is None else _since(before)
        if step.stats().replays == replays:
            return None, 0, next(iter(step.stats().fallbacks), "no call was a replay")
        return counts, len({_address(t) for t in _tensors(result)}), ""
    finally:
        step.reset()
        state.restart()
