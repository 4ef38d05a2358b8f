"""Experiment ``smoke``: do replays of one graph give the same, and the right thing?"""

from __future__ import annotations

import gc
from typing import Any

import torch

from ...device import current_device
from ...record.collectives import refused
from ...verifying.bench import Bench, Values
from ...verifying.compare import same
from ...verifying.inputs import Inputs
from ..agreement import difference
from ..settled import settled
from ..ways import is_graphed
from .report import Outcome
from .subject import Subject

__all__ = ["run"]

_REPLAYS = 20
_INPUTS = 4
_KINDS = (torch.Tensor, torch.nn.Parameter)


def run(subject: Subject) -> Outcome:
    """Capture, replay 20 times, and compare everything."""
    given = Inputs.of(subject.args, subject.kwargs)
    inputs = [given, *(given.fresh(seed) for seed in range(1, _INPUTS))]
    step: Any = subject.fn if subject.fn and is_graphed(subject.fn) else subject.graphed()
    try:
        subject.progress("eager", 0.1)
        with torch.no_grad(), refused(), settled(subject.eager, inputs) as state:
            return _Smoke(state, step, subject).outcome()
    finally:
        if step is not subject.fn:
            step.reset()


class _Smoke:
    """The rows of one run."""

    def __init__(self, state: Bench, step: Any, subject: Subject) -> None:
        self._state, self._step, self._subject = state, step, subject
        self._rows: list[dict[str, Any]] = []

    def _add(self, check: str, found: str, holds: bool | None) -> None:
        self._rows.append({"check": check, "found": found, "holds": holds})

    def outcome(self) -> Outcome:
        state, step, told = self._state, self._step, self._subject.progress
        eager = state.once(state.eager, times=2)
        told("capture", 0.3)
        for _ in range(3):  # a call that writes in Python is captured at the second
            state.once(step)
        before = step.stats()
        told("replays", 0.5)
        replays = [state.once(step)[0] for _ in range(_REPLAYS)]
        after = step.stats()
        count = after.replays - before.replays
        reason = next(iter(after.fallbacks), "no call was a replay")
        self._add(
            "calls are replays of a graph",
            f"{count} of {_REPLAYS}",
            count == _REPLAYS,
        )
        self._add_replays(eager, replays)
        told("other inputs", 0.8)
        self._add_inputs()
        told("memory", 0.9)
        self._add_memory()
        return self._concluded(count, reason)

    def _add_replays(self, eager: list[Values], replays: list[Values]) -> None:
        repeats = not _unlike(eager)
        unlike = _unlike(replays)
        found = "bit-identical" if not unlike else f"{unlike} differs"
        # Where eager's own results vary, such as by atomic additions, those of a replay may.
        self._add(
            "replays of one input are alike",
            found if repeats else f"{found}; so do eager's own" if unlike else found,
            not unlike if repeats else (None if unlike else True),
        )
        right = {**self._state.expected.calls[0].values}
        right |= {k: v for k, v in eager[0].items() if k[0] == "state"}
        words, error = difference(replays, [right] * len(replays), 1.0)
        exact = not _unlike([right, *replays])
        agrees = "bit-identical" if exact else f"within the tolerance, error {error:.1e}"
        self._add("they give what eager gives", words or agrees, not words)

    def _add_inputs(self) -> None:
        found = self._state.round(self._step)
        wrong = []
        for n, (call, right) in enumerate(
            zip(found.calls, self._state.expected.calls, strict=True)
        ):
            words, _ = difference([call.values], [right.values], 1.0)
            if words:
                wrong.append(f"input {n + 1}, {words.partition(', ')[2]}")
        self._add(
            "other inputs of its kind are right",
            wrong[0] if wrong else f"{_INPUTS} inputs",
            not wrong,
        )
        kept = ", ".join(found.overwritten)
        self._add(
            "later calls leave earlier results alone",
            f"{kept} is overwritten" if kept else f"{_INPUTS} results kept",
            not kept,
        )

    def _add_memory(self) -> None:
        state, step = self._state, self._step
        state.once(step)
        before = _live_bytes()
        for _ in range(_REPLAYS):
            state.once(step)
        grown = _live_bytes() - before
        self._add("memory does not grow", f"{grown:+d} bytes", grown <= 0)

    def _concluded(self, count: int, reason: str) -> Outcome:
        wrong = [row for row in self._rows if row["holds"] is False]
        if not count:
            words = f"There is no graph to test: {reason.rstrip('.')}."
        elif wrong:
            words = f"Of the graph it is not so that {wrong[0]['check']}: {wrong[0]['found']}."
        else:
            words = (
                f"{count} replays are alike and give what eager gives "
                f"({self._rows[2]['found']}), other inputs are right, earlier results stay, and "
                "memory does not grow."
            )
        return Outcome(tuple(self._rows), words, not wrong)


def _unlike(calls: list[Values]) -> str:
    """The name of the first value in which the calls differ in a bit; ``""``: in none."""
    first, *others = calls
    for key, value in first.items():
        if any(key in other and not same(other[key], value) for other in others):
            return key[1]
    return ""


def _live_bytes() -> int:
    """Bytes of the tensors that live; on the emulated device those that Python knows."""
    gc.collect()
    device = current_device()
    if device.kind != "emulated":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    storages = {}
    for item in gc.get_objects():
        if type(item) in _KINDS and item.layout is torch.strided:
            storage = item.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())
