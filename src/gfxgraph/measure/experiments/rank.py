"""One rank of the experiment ``ranks``, a process of its own: ``python -m ... JOB RANK``."""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import re
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch
import torch.utils._pytree as pytree
from torch import distributed as dist

from ...call.graphed import Graphed, graphed
from ...device import current_device
from ...errors import one_line
from ...interpose.source import users_line_of
from ...record.collectives import noticed
from ...verifying.compare import within
from ...verifying.inputs import on_device
from ..agreement import alike
from . import functions

__all__ = ["DIED", "Job", "Row", "main"]

DIED = 13
"""The exit status of the rank that ends too early, on purpose."""
_CALLS = 3
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


class Job(TypedDict):
    """What all ranks are given.

    ``call`` has the function and its arguments, pickled; ``None``: the built-in cases run.
    """

    world: int
    backend: str
    folder: str
    timeout_s: float
    call: bytes | None


class Row(TypedDict):
    """What one rank has seen of one case."""

    case: str
    rank: int
    captures: int
    replays: int
    collectives: int
    agreed: str
    right: bool
    note: str


def main(job: Job, rank: int) -> None:
    """Take part, and write the rows to a file."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if current_device().type == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    folder = Path(job["folder"])
    timeout = timedelta(seconds=job["timeout_s"])
    dist.init_process_group(
        job["backend"],
        init_method=f"file://{folder / 'meet'}",
        rank=rank,
        world_size=job["world"],
        timeout=timeout,
    )
    # The ranks agree on the host: there a rank that is gone is an error, and not the end of all.
    group = dist.new_group(backend="gloo", timeout=timeout)
    ranks = _Ranks(rank, job["world"], group)
    with torch.no_grad():
        rows = ranks.of_users(job["call"]) if job["call"] is not None else ranks.of_ours()
        (folder / f"{rank}.json").write_text(json.dumps(rows), encoding="utf-8")
        if job["call"] is None:
            rows.append(ranks.without_the_last())
            (folder / f"{rank}.json").write_text(json.dumps(rows), encoding="utf-8")
    os._exit(0)  # a group of which a rank is gone cannot be shut down


class _Ranks:
    """This rank among the others."""

    def __init__(self, rank: int, world: int, group: Any) -> None:
        self._rank, self._world, self._group = rank, world, group

    def agree(self, mine: bool) -> bool:
        """Whether all ranks say yes.

        Raises:
            RuntimeError: a rank is gone, or does not answer in time.
        """
        all_say = torch.tensor([int(mine)])
        dist.all_reduce(all_say, op=dist.ReduceOp.MIN, group=self._group)
        return bool(all_say.item())

    # The built-in cases.

    def of_ours(self) -> list[Row]:
        """Two stages with a sum between them, outside of what is graphed, and inside."""
        last = self._rank == self._world - 1
        cannot = functions.first_stage_that_draws if last else functions.first_stage
        summed = functions.summed_that_draws if last else functions.summed
        return [
            self._staged("all capture", functions.first_stage),
            self._staged("one cannot capture", cannot),
            self._summed("cut at the sum", functions.summed, "split"),
            self._summed("cut, one cannot", summed, "split"),
            self._summed("sum inside", functions.summed, "inside"),
            self._summed("inside, one cannot", summed, "inside"),
        ]

    def _summed(
        self, case: str, fn: Callable[..., torch.Tensor], how: Literal["split", "inside"]
    ) -> Row:
        """One function with the sum inside; how many collectives were sent beside the calls'."""
        mine, right = self._given(functions.first_stage)
        step, before = graphed(fn, collectives=how), _sent()
        results = [step(mine) for _ in range(_CALLS)]
        stats = step.stats()
        # A replay sends what its graph holds without the group, which then does not count it.
        unseen = stats.replays if how == "inside" and dist.get_backend() == "nccl" else 0
        sent = _sent() - before - (_CALLS - unseen)
        correct = all(within(result, right, None) for result in results)
        why = next(iter(stats.fallbacks), "")
        told = "graphs" if stats.replays else "runs eagerly"
        return self._row(case, [step], stats.replays, told, correct, why, sent)

    def _given(self, first: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """What this rank is given, and what is to come out."""
        device = current_device().type
        inputs = [torch.full((4, 8), 0.1 * (n + 1), device=device) for n in range(self._world)]
        total = sum((first(x) for x in inputs), torch.zeros_like(inputs[0]))
        return inputs[self._rank], functions.second_stage(total)

    def without_the_last(self) -> Row:
        """The last rank ends in the middle; the others are told instead of waiting."""
        try:
            self.agree(True)
            if self._rank == self._world - 1:
                os._exit(DIED)
            self.agree(True)
        except RuntimeError as error:
            why = re.sub(r"\[\S*gloo\S*\] ", "", one_line(error))[:100]  # torch's own source
            return self._row("one is gone", [], 0, "no", True, f"told by {why}")
        return self._row("one is gone", [], 0, "yes", False, "it was not noticed")

    def _staged(self, case: str, first: Callable[..., torch.Tensor]) -> Row:
        mine, right = self._given(first)
        stages = [graphed(first), graphed(functions.second_stage)]
        with noticed() as issued:
            for stage in stages:
                for _ in range(_CALLS):
                    stage(mine)
        why = next((reason for stage in stages for reason in stage.stats().fallbacks), "")
        ready = all(stage.stats().replays for stage in stages)
        agreed = self.agree(ready)
        before, after = stages if agreed else (first, functions.second_stage)
        replays = _replays(stages)
        results = []
        for _ in range(_CALLS):
            between = before(mine)
            self._add_up(between)
            results.append(after(between))
        correct = all(within(result, right, None) for result in results)
        used = _replays(stages) - replays
        told = "graphs" if agreed else "all run eagerly"
        return self._row(case, stages, used, told, correct, why, len(issued.found))

    def _add_up(self, tensor: torch.Tensor) -> None:
        """The collective between the stages, which is in no graph."""
        if dist.get_backend() == "nccl" or not tensor.is_cuda:
            dist.all_reduce(tensor)
            return
        on_host = tensor.cpu()  # ranks that share a GPU
        dist.all_reduce(on_host)
        tensor.copy_(on_host)

    # The user's function.

    def of_users(self, call: bytes) -> list[Row]:
        """Call the function, graphed, and compare it with eager."""
        fn, args, kwargs = pickle.loads(call)
        fn, args, kwargs = on_device((fn, args, kwargs), current_device().type)
        fn = on_device(fn, current_device().type)
        step = graphed(fn)

        def once(function: Callable[..., Any]) -> Any:
            torch.manual_seed(0)
            given = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
            return function(*given[0], **given[1])

        try:
            right = once(fn)
            results = [once(step) for _ in range(_CALLS)]
        except Exception as error:
            self.agree(False)
            note = f"it raises {one_line(error)} ({users_line_of(error)})"
            return [self._row("your function", [], 0, "no", False, note)]
        why = next(iter(step.stats().fallbacks), "")
        agreed = self.agree(step.stats().replays > 0)
        told = "graphs" if agreed else "all run eagerly"
        correct = all(alike(result, right) for result in results)
        return [self._row("your function", [step], step.stats().replays, told, correct, why)]

    def _row(
        self,
        case: str,
        stages: list[Graphed[..., Any]],
        replays: int,
        agreed: str,
        right: bool,
        note: str,
        collectives: int = 0,
    ) -> Row:
        return {
            "case": case,
            "rank": self._rank,
            "captures": sum(stage.stats().captures for stage in stages),
            "replays": replays,
            "collectives": collectives,
            "agreed": agreed,
            "right": right,
            "note": note,
        }


def _sent() -> int:
    """How many collectives were sent in the group of all ranks."""
    group: Any = dist.group.WORLD
    return int(group._get_sequence_number_for_group())


def _replays(stages: list[Graphed[..., Any]]) -> int:
    return sum(stage.stats().replays for stage in stages)


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        main(pickle.loads(Path(sys.argv[1]).read_bytes()), int(sys.argv[2]))
