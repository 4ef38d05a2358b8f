"""Writes the traces of several ways as one file for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..interpose.source import Source
from .kineto import Call, Event

__all__ = ["require_writable", "write"]

_ON_HOST = ("cpu_op", "user_annotation", "_runtime", "_driver")
_FLOW = "ac2g"
_FIRST_STREAM = 1000
_MOST_FLOWS = 1 << 32


def require_writable(path: str | Path, what: str) -> Path:
    """The absolute ``path``, if a file can be written there.

    Raises:
        ArgumentError: there is no such folder, or it may not be written to.
    """
    try:
        path = Path(path)
        there = path.exists()
        with path.open("ab"):
            pass
        if not there:
            path.unlink()
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
        path.write_text(json.dumps(data), encoding="utf-8")
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
    work = {id(one.event): one for call in calls for one in call.work}
    tracks: dict[Any, int] = {}

    def track(key: Any, title: str, first: int) -> Iterator[Event]:
        if key not in tracks:
            tracks[key] = first + len(tracks)
            yield _named(process, tracks[key], "thread_name", name=title)
            yield _named(process, tracks[key], "thread_sort_index", sort_index=tracks[key])

    kept: list[tuple[Event, Any]] = []
    for event in events:
        here = (event.get("pid"), event.get("tid"))
        done = work.get(id(event))
        if done is not None:
            yield from track(here, done.stream, _FIRST_STREAM)
            kept.append((event, here))
        elif _is_on_host(event) and origin <= event["ts"] <= end:
            yield from track(here, f"host thread {here[1]}", 1)
            kept.append((event, here))
    for event, here in kept:
        line = lines.get(id(event))
        args = {**(event.get("args") or {}), **({"line": str(line)} if line else {})}
        yield {
            "ph": "X",
            "cat": event["cat"],
            "name": event["name"],
            "pid": process,
            "tid": tracks[here],
            "ts": round(event["ts"] - origin, 3),
            "dur": round(event.get("dur", 0), 3),
            "args": args,
        }
    for event in events:  # arrows from a launch to its kernels
        here = (event.get("pid"), event.get("tid"))
        if event.get("cat") == _FLOW and here in tracks and origin <= event["ts"] <= end:
            more = {"bp": event["bp"]} if "bp" in event else {}
            yield {
                "ph": event["ph"],
                "cat": _FLOW,
                "name": _FLOW,
                "id": process * _MOST_FLOWS + int(event["id"]),
                "pid": process,
                "tid": tracks[here],
                "ts": round(event["ts"] - origin, 3),
                **more,
            }


def _is_on_host(event: Event) -> bool:
    category = str(event.get("cat", ""))
    ours = category.endswith(_ON_HOST) and category != "gpu_user_annotation"
    return ours and event.get("ph") == "X"


def _named(process: int, thread: int, what: str, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "ts": 0, "args": args}
