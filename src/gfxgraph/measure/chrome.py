"""Writes the traces of several ways as one file for Perfetto."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..interpose.source import Source
from ..tables import write_text
from .kineto import EXACT, Call, Event, Work

__all__ = ["require_writable", "write"]

_ON_HOST = ("cpu_op", "user_annotation", "_runtime", "_driver")
_FIRST_STREAM = 1000
_MOST = 1 << 32


def require_writable(path: str | Path, what: str) -> Path:
    """The absolute ``path``, if a file can be written there.

    Raises:
        ArgumentError: there is no such folder, or it may not be written to.
    """
    try:
        path = Path(path)
        there = path.exists()
        # Who reads a pipe would take the check for the end.
        if not there or path.is_file() or path.is_dir():
            with path.open("ab"):
                pass
        if not there:
            path.resolve().unlink()  # what a link names, and not the link
    except (OSError, TypeError, ValueError) as error:
        raise ArgumentError(f"{what}: {path} cannot be written: {error}") from error
    return path.absolute()


def write(
    path: Path,
    ways: Mapping[str, tuple[Sequence[Event], Sequence[Call]]],
    lines: Mapping[int, Source],
    about: Mapping[str, Any],
) -> None:
    """Write a trace with a process for each way; in each the first call begins at 0.

    Source: the Trace Event Format, "JSON Object Format".

    Args:
        path: the file.
        ways: name -> the events of its trace, and the calls in them.
        lines: ``id`` of an event -> the user's line.
        about: what is traced, for ``otherData``.

    Raises:
        ArgumentError: the file cannot be written.
    """
    events = [
        event
        for process, (name, (found, calls)) in enumerate(ways.items(), 1)
        for event in _process(process, name, found, calls, lines)
    ]
    data = {"displayTimeUnit": "ms", "otherData": dict(about), "traceEvents": events}
    try:
        write_text(path, json.dumps(data))
    except OSError as error:
        raise ArgumentError(f"trace(chrome=): the trace cannot be written: {error}") from error


def _process(
    process: int,
    name: str,
    events: Sequence[Event],
    calls: Sequence[Call],
    lines: Mapping[int, Source],
) -> Iterator[Event]:
    yield _named(process, 0, "process_name", name=name)
    yield _named(process, 0, "process_sort_index", sort_index=process)
    if not calls:
        return
    origin, end = calls[0].start_us, calls[-1].end_us
    tracks: dict[tuple[str, int], int] = {}
    at: dict[int, int] = {}  # id of an event -> its track

    def written(event: Event, title: str, lane: int, first: int) -> Iterator[Event]:
        if (title, lane) not in tracks:
            track = tracks[title, lane] = first + len(tracks)
            shown = f"{title} ({lane + 1})" if lane else title
            yield _named(process, track, "thread_name", name=shown)
            yield _named(process, track, "thread_sort_index", sort_index=track)
        at[id(event)] = tracks[title, lane]
        line = lines.get(id(event))
        yield {
            "ph": "X",
            "cat": event["cat"],
            "name": event["name"],
            **_place(process, at[id(event)], event["ts"] - origin),
            "dur": round(event.get("dur", 0), 3),
            "args": {**(event.get("args") or {}), **({"line": str(line)} if line else {})},
        }

    for event in events:
        if _is_on_host(event) and origin <= event["ts"] <= end:
            yield from written(event, f"host thread {event.get('tid')}", 0, 1)
    until: dict[str, list[float]] = defaultdict(list)
    launched: set[int] = set()
    every = [work for call in calls for work in call.work]
    for work in sorted(every, key=lambda work: work.start_us):
        # Kernels of one stream may overlap, and what overlaps on a track is not shown.
        lane = _free(until[work.stream], work)
        yield from written(work.event, work.stream, lane, _FIRST_STREAM)
        start = at.get(id(work.launch))
        if start is not None and id(work.launch) not in launched:  # of a graph the first kernel
            launched.add(id(work.launch))
            arrow = {"cat": "launch", "name": "launch", "id": process * _MOST + len(launched)}
            yield {"ph": "s", **arrow, **_place(process, start, work.launched_us - origin)}
            there = _place(process, at[id(work.event)], work.start_us - origin)
            yield {"ph": "f", "bp": "e", **arrow, **there}


def _free(until: list[float], work: Work) -> int:
    """The first of the lanes of a stream on which nothing runs any more; a new one if need be."""
    for lane, end in enumerate(until):
        if end <= work.start_us + EXACT:
            until[lane] = work.end_us
            return lane
    until.append(work.end_us)
    return len(until) - 1


def _place(process: int, track: int, us: float) -> Event:
    return {"pid": process, "tid": track, "ts": round(us, 3)}


def _is_on_host(event: Event) -> bool:
    category = str(event.get("cat", ""))
    ours = category.endswith(_ON_HOST) and category != "gpu_user_annotation"
    return ours and event.get("ph") == "X"


def _named(process: int, thread: int, what: str, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "ts": 0, "args": args}
