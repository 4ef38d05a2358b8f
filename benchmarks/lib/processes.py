"""Work in processes of its own, since a device assert or a hang ends a process."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any


def fresh_processes(
    context: Any,
    target: Callable[..., None],
    items: Iterable[tuple[Any, ...]],
    workers: int,
    seconds: float,
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Run ``target(connection, *item)`` in a process of its own for each item.

    Yields each item with what ``target`` sent, or with ``"crash"`` or ``"hang"`` (nothing for
    ``seconds``).
    """
    pending = deque(items)
    running: dict[Connection, tuple[Any, tuple[Any, ...], float]] = {}
    try:
        while pending or running:
            while pending and len(running) < workers:
                item = pending.popleft()
                ours, theirs = multiprocessing.Pipe()
                process = context.Process(target=target, args=(theirs, *item), daemon=True)
                process.start()
                theirs.close()
                running[ours] = (process, item, time.monotonic() + seconds)
            answers: dict[Any, Any] = {}
            for ready in wait(list(running), timeout=0.2):
                try:
                    answers[ready] = ready.recv()  # type: ignore[union-attr]
                except (EOFError, OSError):
                    answers[ready] = "crash"
            now = time.monotonic()
            late = [c for c, (_, _, limit) in running.items() if now > limit]
            for connection, answer in {**dict.fromkeys(late, "hang"), **answers}.items():
                process, item, _ = running.pop(connection)
                process.kill()
                process.join(5)
                connection.close()
                yield item, answer
    finally:
        for process, _, _ in running.values():
            process.kill()


def start_context(method: str, threads: int = 2) -> Any:
    """Processes that begin with torch imported and CUDA untouched, where the system can fork."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    # Asking whether there is a GPU must not start the driver: it does not survive a fork.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["torch"])
    return context


def one_line(error: BaseException) -> str:
    """Class and first line of ``error``, and the names of CUDA's and its libraries' errors."""
    text = str(error)
    names = set(re.findall(r"cudaError\w+|CU[A-Z]+_STATUS_\w+|MAGMA\w+|nvrtc\w*", text))
    first = re.sub(r"\s+", " ", text.strip().partition("\n")[0])[:200]
    more = sorted(n for n in names if n not in first)
    return f"{type(error).__name__}: {first}" + (f" ({', '.join(more)[:120]})" if more else "")


def quiet() -> None:
    """Send what this process prints to nowhere: libraries print, and device asserts do."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
