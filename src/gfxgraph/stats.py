"""The counters of the process, and the log.

The log is the logger ``gfxgraph``. Each line is an event name and ``key=value`` pairs; the record
carries them as ``record.event`` and ``record.fields`` for handlers that want structure.
:class:`JsonLines` formats it as JSON.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Protocol, TypedDict, cast

from . import settings
from .errors import SettingError
from .forking import new_lock
from .tables import Printed, counted
from .troubleshooting import section_of

__all__ = [
    "BY_HAND",
    "TIMES",
    "CallableCounts",
    "Elements",
    "JsonLines",
    "ReplayCounter",
    "Stats",
    "Tally",
    "configure_log",
    "log",
    "printable",
    "tally",
]

logger = logging.getLogger("gfxgraph")

BY_HAND = "BridgedCUDAGraph"
"""Stands for a callable where code captures and replays by hand."""

TIMES = tuple(n * 10**e for e in (3, 4, 5, 6, 7, 8) for n in (1, 2, 5) if n * 10**e >= 5000)
"""Upper bounds of the host times that are counted together, in nanoseconds: 5 us to 0.5 s."""

# So many callables are counted each by its name, and so many reasons of each; then as "other". A
# name, or a reason that holds a number, may be another one in each call.
_MAX_CALLABLES, _MAX_REASONS, _OTHER = 100, 20, "other"
_MAX_LABEL = 200  # characters


class Stats(TypedDict):
    """The result of :func:`gfxgraph.stats`.

    Attributes:
        enabled_at: seconds since the epoch of the last ``enable()``, ``None`` when off.
        capture_count: graphs captured.
        replay_count: replays of graphs.
        fallback_count: calls that ran eagerly although a graph was asked for.
        validation_failures: replays that differed from eager execution.
        avg_replay_us: mean host time in microseconds until a replay was launched. It covers one in
            62 replays through ``BridgedCUDAGraph.replay``, the first among them, and of ``graphed``
            and the like only the first replay of each graph, which also uploads it: calls are not
            timed. 0.0 if none was timed (``verify=False``).
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


@dataclass
class CallableCounts:
    """What all callables of one name did since the process began. No number ever gets smaller.

    Attributes:
        captures: graphs captured.
        capture_failures: tries to capture that gave no graph.
        fallbacks: reason -> calls that ran eagerly for it.
        replays: replays of graphs.
        launches: replays that were timed until they were launched, see ``Stats.avg_replay_us``.
        launch_ns: the nanoseconds that these took.
        times: of the calls that were timed as a sample, how many took up to each of :data:`TIMES`,
            and not up to the one before; the last number: how many took longer.
        times_ns: the nanoseconds that these took.
        needed: elements of the dynamic dimensions that calls of buckets asked for.
        computed: elements that were computed for these, padding included.
    """

    captures: int = 0
    capture_failures: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    replays: int = 0
    launches: int = 0
    launch_ns: int = 0
    times: list[int] = field(default_factory=lambda: [0] * (len(TIMES) + 1))
    times_ns: int = 0
    needed: int = 0
    computed: int = 0

    def copy(self) -> CallableCounts:
        """The numbers as they are now."""
        return replace(self, fallbacks=self.fallbacks.copy(), times=[*self.times])


class _Part(Protocol):
    """Counts of a callable that are kept elsewhere, by what is too quick to ask for our lock."""

    def add_to(self, counts: CallableCounts) -> None:
        """Add these counts."""

    def clear(self) -> None:
        """Start at zero."""


class ReplayCounter:
    """The replays of one graph. Only the replaying thread writes it, so it has no lock.

    Attributes:
        replays: those that were counted one by one.
        left: how many more may be nothing but a launch; each of these takes 1 off, which costs less
            than anything else that counts.
        timed: replays that were timed.
        ns: the nanoseconds that these took.
    """

    __slots__ = ("_allowed", "left", "ns", "replays", "timed")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start at zero."""
        self.replays = self.left = self._allowed = 0
        self.timed = 0
        self.ns = 0

    def total(self) -> int:
        """All replays."""
        return self.replays + self._allowed - self.left

    def allow(self, launches: int) -> None:
        """Let the next replays be nothing but launches."""
        self.replays, self._allowed, self.left = self.total(), launches, launches

    def add_to(self, counts: CallableCounts) -> None:
        """Add the replays, and the time that they took."""
        counts.replays += self.total()
        counts.launches += self.timed
        counts.launch_ns += self.ns


class Elements:
    """The elements that calls of buckets asked for, and those computed.

    Args:
        read: gives both.
    """

    def __init__(self, read: Callable[[], tuple[int, int]]) -> None:
        self._read, self._before = read, (0, 0)

    def clear(self) -> None:
        """Start at zero."""
        self._before = self._read()

    def add_to(self, counts: CallableCounts) -> None:
        """Add both."""
        needed, computed = self._read()
        counts.needed += needed - self._before[0]
        counts.computed += computed - self._before[1]


class _Counts(Printed):
    """The counters as they are printed: a verdict, then a line for each."""

    @property
    def verdict(self) -> str:  # type: ignore[override]
        """What has happened, in a sentence."""
        graphs, replays = self["capture_count"], self["replay_count"]
        done = f"{counted(graphs, 'graph')} captured, {counted(replays, 'replay')}"
        if not graphs and not replays:
            done = "No graph was captured"
        eager = self["fallback_count"]
        rest = f"{counted(eager, 'call')} ran eagerly" if eager else "no call ran eagerly"
        wrong = self["validation_failures"]
        bad = f"{counted(wrong, 'replay')} differed from eager. " if wrong else ""
        return f"{bad}{done}; {rest}."


class Tally:
    """The counters of this process."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self.enabled_at: float | None = None
        self._counts: Counter[str] = Counter()
        self._fallbacks: Counter[str] = Counter()
        self._thrashing: dict[str, str] = {}
        self._by_label: dict[str, CallableCounts] = {}
        #: Parts, and the labels of their callables.
        self._live: dict[_Part, str] = {}
        #: Parts whose graph is gone; their counts are kept when somebody next asks or adds one.
        self._leaving: deque[_Part] = deque()
        #: The most replays that were told of each label.
        self._told: dict[str, int] = {}

    def add(self, name: str) -> None:
        """Add 1 to the counter ``name``, a key of :class:`Stats`."""
        with self._lock:
            self._counts[name] += 1

    def captured(self, who: str) -> None:
        """Count a graph of the callable ``who``."""
        with self._lock:
            self._by_label[self.label(who)].captures += 1

    def not_captured(self, who: str) -> None:
        """Count a try to capture a graph of the callable ``who`` that gave none."""
        with self._lock:
            self._by_label[self.label(who)].capture_failures += 1

    def time(self, who: str, ns: int) -> None:
        """Count a call of ``who`` that a replay answered, and the host time that it took."""
        with self._lock:
            counts = self._by_label[self.label(who)]
            counts.times[bisect_left(TIMES, ns)] += 1
            counts.times_ns += ns

    def fallback(self, who: str, reason: str, calls: int = 1) -> None:
        """Count calls of ``who`` that ran eagerly; log each reason once."""
        key = f"{who}: {reason}"
        with self._lock:
            first = key not in self._fallbacks
            self._fallbacks[key] += calls
            if calls:
                known = self._by_label[self.label(who)].fallbacks
                label = printable(reason)
                known[label if label in known or len(known) < _MAX_REASONS else _OTHER] += calls
        if first:
            see = {"see": f"troubleshooting.md#{found}"} if (found := section_of(reason)) else {}
            log(logging.WARNING, "fallback", function=who, ran="eager", reason=reason, **see)

    def thrashes(self, who: str, reason: str) -> None:
        """Report that ``who`` has stopped capturing, since its calls differ."""
        with self._lock:
            self._thrashing[who] = reason

    def label(self, who: str) -> str:
        """The name under which a callable is counted: its own, or ``"other"``."""
        label = printable(who)
        with self._lock:
            if label not in self._by_label:
                if len(self._by_label) >= _MAX_CALLABLES:
                    label = _OTHER
                self._by_label.setdefault(label, CallableCounts())
            return label

    def replay_counter(self, who: str = BY_HAND) -> ReplayCounter:
        """A counter for one graph of ``who``, part of all counts until and after :meth:`retire`."""
        counter = ReplayCounter()
        self.join(counter, who)
        return counter

    def join(self, part: _Part, who: str) -> None:
        """Let a part of the counts of ``who`` be one, until and after :meth:`retire`."""
        with self._lock:
            self._settle()
            self._live[part] = self.label(who)

    def check_replays(self) -> None:
        """Let no graph's next replay be nothing but a launch."""
        with self._lock:
            for part in self._live.copy():
                if isinstance(part, ReplayCounter):
                    part.allow(0)

    def retire(self, part: _Part) -> None:
        """Keep the counts of a part that is gone; the garbage collector may call it at any time."""
        self._leaving.append(part)

    def _settle(self) -> None:
        while self._leaving:
            part = self._leaving.popleft()
            label = self._live.pop(part, None)
            if label is not None:
                part.add_to(self._by_label[label])

    def clear(self) -> None:
        """Set every counter to zero."""
        with self._lock:
            self._settle()
            self._counts.clear()
            self._fallbacks.clear()
            self._thrashing.clear()
            self._told.clear()
            # Those of live parts keep their labels.
            self._by_label = {label: CallableCounts() for label in self._live.values()}
            for part in self._live:
                part.clear()

    def by_callable(self) -> dict[str, CallableCounts]:
        """The counts of each callable by its label, now."""
        with self._lock:
            self._settle()
            found = {label: counts.copy() for label, counts in self._by_label.items()}
            # A copy: the garbage collector, which may come at any time, changes neither.
            for part, label in self._live.copy().items():
                part.add_to(found[label])
            # A replay that is compared with eager execution is counted, and may be taken back.
            for label, counts in found.items():
                counts.replays = self._told[label] = max(counts.replays, self._told.get(label, 0))
        return found

    def snapshot(self) -> Stats:
        """The counters now."""
        with self._lock:
            self._settle()
            total = CallableCounts()
            for kept in self._by_label.values():
                total.replays += kept.replays
                total.launches += kept.launches
                total.launch_ns += kept.launch_ns
            for part in self._live.copy():
                part.add_to(total)
            counts = Stats(
                enabled_at=self.enabled_at,
                capture_count=self._counts["capture_count"],
                replay_count=total.replays,
                fallback_count=sum(self._fallbacks.values()),
                validation_failures=self._counts["validation_failures"],
                avg_replay_us=total.launch_ns / 1000 / total.launches if total.launches else 0.0,
                capture_failures=self._counts["capture_failures"],
                compile_failures=self._counts["compile_failures"],
                fallbacks=dict(self._fallbacks),
                compiles_in_capture=self._counts["compiles_in_capture"],
                thrashing=dict(self._thrashing),
            )
        return cast(Stats, _Counts(counts))


@functools.lru_cache(maxsize=4096)
def printable(text: str) -> str:
    """One line of at most 200 characters, which UTF-8 can encode."""
    line = " ".join(text[: 2 * _MAX_LABEL].split())
    return line.encode("utf-8", "backslashreplace").decode("utf-8")[:_MAX_LABEL]


tally = Tally()


def log(level: int, event: str, **fields: object) -> None:
    """Log an event with its fields."""
    if not _Configured.yes:
        _configure_by_the_environment()
    if logger.isEnabledFor(level):
        text = " ".join(f"{name}={_text(value, repr)}" for name, value in fields.items())
        logger.log(level, "%s %s", event, text, extra={"event": event, "fields": fields})


class _Configured:
    yes = False


class _ToStderr(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.10 takes no argument
    """Prints while the program has no logging of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if logger.handlers == [self] and not logging.getLogger().handlers:
            self.setStream(sys.stderr)
            super().emit(record)


class JsonLines(logging.Formatter):
    """Formats each record as one line of JSON, for any handler of :mod:`logging`.

    The object has ``time`` (ISO 8601, UTC), ``level``, ``event`` and ``fields``, of a record of
    another logger ``"message"`` and its text as ``fields["message"]``; and ``exception``, the
    traceback, where there is one. What JSON cannot hold becomes a string.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        event = getattr(record, "event", None)
        fields = getattr(record, "fields", None)
        if event is None or not isinstance(fields, dict):
            event, fields = "message", {"message": record.getMessage()}
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname,
            "event": event,
            "fields": fields,
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return json.dumps(line, default=_text, allow_nan=False)
        except (TypeError, ValueError, RecursionError):  # a key that is no string, nan, a cycle
            line["fields"] = {str(name): _json_or_text(value) for name, value in fields.items()}
            return json.dumps(line)


def _json_or_text(value: object) -> object:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return _text(value)
    return value


def _text(value: object, how: Callable[[object], str] = str) -> str:
    try:
        return how(value)
    except Exception as error:  # the program's own class
        return f"{how.__name__}() of a {type(value).__name__} raises {type(error).__name__}"


def _configure_by_the_environment() -> None:
    """Configure the log by ``HGB_LOG_LEVEL`` and ``HGB_LOG_FORMAT``, without ``enable()``."""
    _Configured.yes = True
    if not any(os.environ.get(name, "").strip() for name in ("HGB_LOG_LEVEL", "HGB_LOG_FORMAT")):
        return
    try:
        configure_log()
    except SettingError as error:  # of any variable; logging must not raise
        logger.error("%s", error)


def configure_log(level: int | None = None) -> None:
    """Set the level, and print to stderr while the program has no logging of its own.

    Args:
        level: a level of :mod:`logging`; default that of ``HGB_LOG_LEVEL``.

    Raises:
        SettingError: a variable that says how to log is malformed.
    """
    _Configured.yes = True
    as_json = settings.log_format() == "json"
    if not logger.handlers:
        handler, text = _ToStderr(), "%(asctime)s %(name)s %(levelname)s %(message)s"
        handler.setFormatter(JsonLines() if as_json else logging.Formatter(text))
        logger.addHandler(handler)
    logger.setLevel(settings.log_level() if level is None else level)
