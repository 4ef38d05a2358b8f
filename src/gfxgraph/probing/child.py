"""Runs probes in another process, which a driver may crash or hang; that costs the probe only."""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Literal, NamedTuple

from ..errors import DeviceError, one_line

__all__ = ["Job", "Kind", "Outcome", "run"]

Kind = Literal["works", "absent", "unprobed", "wrong", "error", "died", "hung"]

_PROBES = "gfxgraph.probing.probes"
_CODE = """\
import sys
sys.path[:], sys.argv[:] = {path!r}, ["gfxgraph"]
import gfxgraph
from gfxgraph.probing.child import main
main()
"""


class Job(NamedTuple):
    """A probe to run.

    Attributes:
        key: of the row.
        probe: its name.
        functions: of HIP's runtime that the row needs.
    """

    key: str
    probe: str
    functions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What came of a probe.

    Attributes:
        kind: ``"works"``: proved; ``"absent"``: it says that the machine does not have it;
            ``"unprobed"``: it cannot be told; ``"wrong"``: values were wrong, or nothing was
            compared; ``"error"``: it raised; ``"died"``, ``"hung"``: its process did.
        text: what it saw, or why not.
        seconds: how long it took.
    """

    kind: Kind
    text: str
    seconds: float = 0.0


def run(
    jobs: Iterable[Job],
    module: str = _PROBES,
    timeout: float = 120.0,
    progress: Callable[[str], None] = lambda key: None,
) -> dict[str, Outcome]:
    """Run probes, as many as possible in one process.

    A process ends with the first probe that fails. If that was not its first one, the probe runs
    again in a new process: what ran before may have been the cause.

    Args:
        jobs: the probes.
        module: has them, in a dict ``PROBES``.
        timeout: seconds that a probe may take; the start of a process counts to the first.
        progress: is called with the key of each that is done.

    Returns:
        Key -> outcome.
    """
    left, found = list(jobs), dict[str, Outcome]()
    alone = False  # whether the next one runs first in its process
    while left:
        limit = left[:1] if alone else left
        outcomes, ready = _in_one_process(limit, module, timeout)
        for n, (key, outcome) in enumerate(outcomes):
            if outcome.kind not in ("works", "absent", "unprobed") and n > 0:
                alone = True
                break
            found[key] = outcome
            left.pop(0)
            progress(key)
        else:
            alone = False
        if not ready:  # the process dies before any probe: so will the next
            last = outcomes[-1][1]
            found.update({job.key: last for job in left})
            left = []
    return found


def _in_one_process(
    jobs: list[Job], module: str, timeout: float
) -> tuple[list[tuple[str, Outcome]], bool]:
    """The outcomes as far as one process gets, at least one; and whether it came to a probe."""
    outcomes: list[tuple[str, Outcome]] = []
    ready = False
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _CODE.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1", "GFXGRAPH": "0"},
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None
        lines: queue.Queue[bytes | None] = queue.Queue()
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        try:
            work = json.dumps({"module": module, "jobs": jobs}).encode()
            with suppress(BrokenPipeError):  # it has ended; what it left tells why
                process.stdin.write(work)
                process.stdin.close()
            for job in jobs:
                start, answer = time.monotonic(), None
                while answer is None:
                    rest = start + timeout - time.monotonic()
                    try:
                        line = lines.get(timeout=max(rest, 0.01))
                    except queue.Empty:
                        text = f"did not end within {timeout:g} s, and was stopped"
                        answer = Outcome("hung", text, timeout)
                        break
                    if line is None:
                        seconds = time.monotonic() - start
                        answer = Outcome("died", _ending(process.wait(), errors), seconds)
                        break
                    if line.strip() == b"ready":
                        ready = True
                        continue
                    answer = _answer(line, job)
                outcomes.append((job.key, answer))
                if answer.kind not in ("works", "absent", "unprobed"):
                    break
        finally:
            _end(process)
            reader.join()
            process.stdout.close()
    return outcomes, ready


def _read(stream: IO[bytes], lines: queue.Queue[bytes | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _answer(line: bytes, job: Job) -> Outcome:
    """The outcome that a line tells of a job."""
    try:
        found = json.loads(line)
        if found["key"] == job.key:
            return Outcome(found["kind"], str(found["text"]), float(found["seconds"]))
    except (KeyError, TypeError, ValueError):
        pass
    return Outcome("wrong", f"its process answered with {line[:60]!r}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process, and those that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ending(status: int, errors: IO[bytes]) -> str:
    """How a process ended, and its last line."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    if status >= 0:
        how = f"status {status}"
    else:
        try:
            how = signal.Signals(-status).name
        except ValueError:
            how = f"signal {-status}"
    last = f": {lines[-1].strip()[:200]}" if lines else ""
    return f"its process ended by {how}{last}"


def main() -> None:
    """Run the probes that standard input names; print a line of JSON for each."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    work = json.loads(sys.stdin.read())
    probes = importlib.import_module(work["module"]).PROBES
    print("ready", file=out, flush=True)
    for key, name, functions in work["jobs"]:
        start = time.perf_counter()
        kind, text = _run(probes, name, tuple(functions))
        seconds = round(time.perf_counter() - start, 3)
        answer = {"key": key, "kind": kind, "text": text, "seconds": seconds}
        print(json.dumps(answer), file=out, flush=True)
        if kind not in ("works", "absent", "unprobed"):
            break
    out.flush()
    os._exit(0)  # a driver in a bad state may not let Python end


def _run(probes: dict[str, Any], name: str, functions: tuple[str, ...]) -> tuple[Kind, str]:
    import torch

    from .probes.cuda import NotSupported
    from .probes.here import Absent, Here, Unprobed, Wrong

    here = Here(functions)
    try:
        torch.manual_seed(0)
        probes[name](here)
        if here.device == "cuda":
            torch.cuda.synchronize()
    except (Absent, NotSupported) as missing:
        return "absent", str(missing)
    except Unprobed as unknown:
        return "unprobed", str(unknown)
    except Wrong as wrong:
        return "wrong", str(wrong)
    except DeviceError as refused:
        return "error", str(refused)
    except Exception as error:
        return "error", one_line(error)
    if not here.saw:
        return "wrong", "the probe compared nothing, which proves nothing"
    return "works", "; ".join(here.saw)
