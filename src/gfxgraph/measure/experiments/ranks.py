"""Experiment ``ranks``: graphs over several processes, with collectives between and in them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from ...device import current_device
from ...errors import ArgumentError, DeviceError, one_line
from ...verifying.inputs import on_device
from .rank import DIED, Job, Row
from .report import Outcome
from .subject import Subject

__all__ = ["run"]

_ANSWER_S = 30.0
"""How long a rank waits for another, in seconds."""
_LIMIT_S = 180.0
"""How long all of them may take, in seconds."""


def run(subject: Subject) -> Outcome:
    """Start the ranks, and put together what they have seen."""
    if not dist.is_available() or not dist.is_gloo_available():
        return Outcome((), "This build of torch has no torch.distributed with gloo.", None)
    call = None if subject.fn is None else _pickled(subject)
    subject.progress("ranks", 0.2)
    with tempfile.TemporaryDirectory(prefix="gfxgraph-ranks-") as folder:
        rows, ended, texts = _Processes(Path(folder), subject.ranks, call).rows()
    shown = tuple(
        {key: value for key, value in row.items() if key != "note"}
        for row in sorted(rows, key=lambda row: (row["case"], row["rank"]))
    )
    notes = tuple(f"{r['case']}, rank {r['rank']}: {r['note']}" for r in rows if r["note"])
    expected = [0] * subject.ranks if call else [*[0] * (subject.ranks - 1), DIED]
    if None in ended:
        rank = ended.index(None)
        words = f"Rank {rank} did not end in {_LIMIT_S:g} s, and was ended."
        return Outcome(shown, words, False, notes)
    if ended != expected:
        # All of them: the others lose the connection to the one that has failed.
        words = " ".join(
            f"Rank {n} ended with status {status}: {texts[n].rstrip('.')}."
            for n, status in enumerate(ended)
            if status != expected[n]
        )
        return Outcome(shown, words, False, notes)
    return Outcome(shown, *_judged(rows, subject.ranks, call is not None), notes)


def _judged(rows: list[Row], world: int, is_users: bool) -> tuple[str, bool]:
    wrong = next((row for row in rows if not row["right"]), None)
    if wrong is not None:
        words = f"{wrong['case']}: rank {wrong['rank']} has no right result"
        return f"{words}{', ' if wrong['note'] else ''}{wrong['note']}.", False
    if is_users:
        have = [row["rank"] for row in rows if row["replays"]]
        if len(have) == world:
            return f"All {world} ranks have a graph, and give what eager gives.", True
        if not have:
            why = next(row["note"] for row in rows)
            return f"No rank has a graph, all run eagerly alike: {why.rstrip('.')}.", True
        others = next(row["note"] for row in rows if not row["replays"])
        return f"Only ranks {have} have a graph, and all are right: {others}.", True
    by_case = {case: [row for row in rows if row["case"] == case] for case in _CASES}
    replays = {case: [row["replays"] for row in found] for case, found in by_case.items()}
    sent = {case: {row["collectives"] for row in found} for case, found in by_case.items()}
    # With other backends than NCCL a graph of a GPU holds no sum, and is cut there.
    most = {0, 1} if current_device().kind == "emulated" else {0, 1, 2}
    acts_alike = (
        all(replays["all capture"])
        and all(row["agreed"] == "graphs" for row in by_case["all capture"])
        and not any(replays["one cannot capture"])
        and all(replays["cut at the sum"])
        and all(replays["cut, one cannot"][:-1])
        and not replays["cut, one cannot"][-1]
        and all(replays["sum inside"])
        and len(set(map(bool, replays["inside, one cannot"][:-1]))) == 1
        and all(row["agreed"] == "no" for row in by_case["one is gone"])
        and all(found == {0} for case, found in sent.items() if case not in _INSIDE)
        and all(len(sent[case]) == 1 and sent[case] <= most for case in _INSIDE)
    )
    if acts_alike:
        return (
            f"{world} ranks use their graphs once all have one; cut at a sum, each rank does as "
            "well as it can; with the sum inside all replay, or none. No capture sends what the "
            "others do not take part in, and a rank that is gone leaves nobody waiting.",
            True,
        )
    return "The ranks do not act alike.", False


_INSIDE = ("sum inside", "inside, one cannot")
_CASES = (
    "all capture",
    "one cannot capture",
    "cut at the sum",
    "cut, one cannot",
    *_INSIDE,
    "one is gone",
)


def _pickled(subject: Subject) -> bytes:
    """The function and its arguments, for other processes."""
    fn = subject.eager
    given = on_device((subject.args, dict(subject.kwargs)), "cpu")
    try:
        found = pickle.dumps((fn, *given))
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise ArgumentError(
            f"experiment('ranks'): {subject.name} cannot be sent to other processes: "
            f"{one_line(error)}. Expected a function at the top of a module, or a module."
        ) from error
    if b"__main__" in found:
        raise ArgumentError(
            f"experiment('ranks'): {subject.name} is made in the program that runs, which other "
            "processes cannot import. Put it into a module of its own."
        )
    return found


class _Processes:
    """The ranks, each a process; they are ended in any case."""

    def __init__(self, folder: Path, world: int, call: bytes | None) -> None:
        gpus = torch.cuda.device_count() if current_device().type == "cuda" else 0
        self._folder, self._world = folder, world
        job: Job = {
            "world": world,
            "backend": "nccl" if gpus >= world and dist.is_nccl_available() else "gloo",
            "folder": str(folder),
            "timeout_s": _ANSWER_S,
            "call": call,
        }
        self._job = folder / "job"
        self._job.write_bytes(pickle.dumps(job))

    def rows(self) -> tuple[list[Row], list[int | None], list[str]]:
        """The rows of all ranks, their statuses (``None``: ended by us), the ends of their logs."""
        ranks: list[subprocess.Popen[bytes]] = []
        until = time.monotonic() + _LIMIT_S
        with ExitStack() as stack:
            try:
                for rank in range(self._world):
                    log = stack.enter_context(self._log(rank).open("wb"))
                    ranks.append(self._start(rank, log))
                while any(rank.poll() is None for rank in ranks) and time.monotonic() < until:
                    time.sleep(0.02)
                ended = [rank.poll() for rank in ranks]
            except OSError as error:
                raise DeviceError(f"experiment('ranks'): no process starts: {error}") from error
            finally:
                for process in ranks:
                    process.kill()
                for process in ranks:
                    process.wait()
        texts = [self._log(n).read_text("utf-8", "replace") for n in range(self._world)]
        found: list[Row] = []
        for rank in range(self._world):
            file = self._folder / f"{rank}.json"
            if file.is_file():
                found += json.loads(file.read_text(encoding="utf-8"))
        return found, ended, [_last_line(text) for text in texts]

    def _log(self, rank: int) -> Path:
        return self._folder / f"{rank}.log"

    def _start(self, rank: int, log: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"{__package__}.rank", str(self._job), str(rank)]
        variables = {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self._world),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | variables,
        )


def _last_line(text: str) -> str:
    """What a log ends with."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it said nothing"
