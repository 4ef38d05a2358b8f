"""The counters of the process, and the log.

The log is the logger ``gfxgraph``. Each line is an event name and ``key=value`` pairs; the record
carries them as ``record.event`` and ``record.fields`` for handlers that want structure.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from typing import TypedDict, cast

from . import settings
from .errors import SettingError
from .forking import new_lock
from .tables import Printed

__all__ = ["ReplayCounter", "Stats", "Tally", "configure_log", "log", "tally"]

logger = logging.getLogger("gfxgraph")


class Stats(TypedDict):
    """The result of :func:`gfxgraph.stats`.

    Attributes:
        enabled_at: seconds since the epoch of the last ``enable()``, ``None`` when off.
        capture_count: graphs captured.
        replay_count: replays of graphs.
        fallback_count: calls that ran eagerly although a graph was asked for.
        validation_failures: replays that differed from eager execution.
        avg_replay_us: mean host time in microseconds until a replay was launched. It covers the
            replays through ``BridgedCUDAGraph.replay``, and of ``graphed`` and the like only the
            first replay of each graph, which also uploads it: calls are not timed. 0.0 if none was
            timed (``verify=False``).
        capture_failures: captures that raised.
        compile_failures: graphs of uncompiled functions, because compiling failed, or because
            compiled code could not be captured.
        fallbacks: reason -> how many of ``fallback_count``.
        compiles_in_capture: frames that torch compiled while a stream was captured.
        thrashing: callable -> why most of its calls are not captured: what differs between them.
    """

    enabled_at: float | None
    capture_count: int
    replay_count: int
    fallback_count: int
    validation_failures: int
    avg_replay_us: float
    capture_failures: int
    compile_failures: int
    fallbacks: dict[str, int]
    compiles_in_capture: int
    thrashing: dict[str, str]


class ReplayCounter:
    """The replays of one graph. Only the replaying thread writes it, so it has no lock."""

    __slots__ = ("ns", "replays", "timed")

    def __init__(self) -> None:
        self.replays = 0
        self.timed = 0
        self.ns = 0


class Tally:
    """The counters of this process."""

    def __init__(self) -> None:
        self._lock = new_lock()  # graphs that the garbage collector drops are counted, too
        self.enabled_at: float | None = None
        self._counts: Counter[str] = Counter()
        self._fallbacks: Counter[str] = Counter()
        self._thrashing: dict[str, str] = {}
        self._live: set[ReplayCounter] = set()
        self._retired = ReplayCounter()

    def add(self, name: str) -> None:
        """Add 1 to the counter ``name``, a key of :class:`Stats`."""
        with self._lock:
            self._counts[name] += 1

    def fallback(self, who: str, reason: str, calls: int = 1) -> None:
        """Count calls of ``who`` that ran eagerly; log each reason once."""
        key = f"{who}: {reason}"
        with self._lock:
            first = key not in self._fallbacks
            self._fallbacks[key] += calls
        if first:
            log(logging.WARNING, "fallback", function=who, ran="eager", reason=reason)

    def thrashes(self, who: str, reason: str) -> None:
        """Report that ``who`` has stopped capturing, since its calls differ."""
        with self._lock:
            self._thrashing[who] = reason

    def replay_counter(self) -> ReplayCounter:
        """A counter for one graph, part of :meth:`snapshot` until and after :meth:`retire`."""
        counter = ReplayCounter()
        with self._lock:
            self._live.add(counter)
        return counter

    def retire(self, counter: ReplayCounter) -> None:
        """Keep the counts of a graph that is gone."""
        with self._lock:
            if counter in self._live:
                self._live.remove(counter)
                _add(self._retired, counter)

    def clear(self) -> None:
        """Set every counter to zero."""
        with self._lock:
            self._counts.clear()
            self._fallbacks.clear()
            self._thrashing.clear()
            for counter in (self._retired, *self._live):
                counter.replays = counter.timed = counter.ns = 0

    def snapshot(self) -> Stats:
        """The counters now."""
        with self._lock:
            total = ReplayCounter()
            for counter in (self._retired, *self._live):
                _add(total, counter)
            counts = Stats(
                enabled_at=self.enabled_at,
                capture_count=self._counts["capture_count"],
                replay_count=total.replays,
                fallback_count=sum(self._fallbacks.values()),
                validation_failures=self._counts["validation_failures"],
                avg_replay_us=total.ns / 1000 / total.timed if total.timed else 0.0,
                capture_failures=self._counts["capture_failures"],
                compile_failures=self._counts["compile_failures"],
                fallbacks=dict(self._fallbacks),
                compiles_in_capture=self._counts["compiles_in_capture"],
                thrashing=dict(self._thrashing),
            )
        return cast(Stats, Printed(counts))


def _add(total: ReplayCounter, part: ReplayCounter) -> None:
    total.replays += part.replays
    total.timed += part.timed
    total.ns += part.ns


tally = Tally()


def log(level: int, event: str, **fields: object) -> None:
    """Log an event with its fields."""
    if not _Configured.yes:
        _configure_by_the_environment()
    if logger.isEnabledFor(level):
        text = " ".join(f"{name}={value!r}" for name, value in fields.items())
        logger.log(level, "%s %s", event, text, extra={"event": event, "fields": fields})


class _Configured:
    yes = False


class _ToStderr(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.10 takes no argument
    """Prints while the program has no logging of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if logger.handlers == [self] and not logging.getLogger().handlers:
            self.setStream(sys.stderr)
            super().emit(record)


def _configure_by_the_environment() -> None:
    """Configure the log by ``HGB_LOG_LEVEL``, without ``enable()``."""
    _Configured.yes = True
    if not os.environ.get("HGB_LOG_LEVEL", "").strip():
        return
    try:
        configure_log()
    except SettingError as error:  # of any variable; logging must not raise
        logger.error("%s", error)


def configure_log(level: int | None = None) -> None:
    """Set the level, and print to stderr while the program has no logging of its own.

    Args:
        level: a level of :mod:`logging`; default that of ``HGB_LOG_LEVEL``.
    """
    _Configured.yes = True
    logger.setLevel(settings.log_level() if level is None else level)
    if not logger.handlers:
        handler = _ToStderr()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
