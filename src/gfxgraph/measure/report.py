"""The report of ``bench``: a row for each way, one sentence as the verdict, and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..errors import ArgumentError
from ..tables import Shown, as_json, filled, in_bytes, table
from .activity import Activity
from .timing import Interval, Percentiles
from .traffic import TrafficReport

__all__ = [
    "SCHEMA",
    "BenchReport",
    "Change",
    "Status",
    "WayReport",
    "called",
    "made_of",
    "read_report",
    "written",
]

SCHEMA = "gfxgraph.bench/1"

Status = Literal["ok", "eager", "differs", "raises"]
"""``"eager"``: a graph was asked for, and calls run eagerly."""

# A difference below this is not worth a change of anybody's program.
_WORTH = 1.05
# The share of a call in which the device waits, above which launches are what limits it.
_IDLE = 0.25
# Arguments that the printed report names.
_SHOWN = 16

T = TypeVar("T")


@dataclass(frozen=True)
class WayReport:
    """What one way of calling the function takes.

    Attributes:
        name: the way.
        status: ``"ok"``, or why it has no times that count.
        note: the reason, where the status is another; else ``""``.
        first_call_s: seconds of its first call, until the device is done. With what was made
            before it, such as a capture.
        ready_s: seconds of its first three calls: captures and compilation lie there.
        relative_error: the largest error of its results against eager's, relative to the largest
            value of eager's.
        calls: how many calls were timed.
        host_us: until a call returns, the device being idle when it begins.
        end_to_end_us: until the device is done.
        speedup: how many times as fast as eager, end to end.
        activity: what the device does in a call; ``None`` without a GPU.
        idle: the share of an end-to-end call in which the device does nothing; ``None`` without.
        held_bytes: device memory that this way keeps beside the function's: pools, compiled code.
        peak_bytes: device memory of tensors that one call takes on top, at most.
    """

    name: str
    status: Status
    note: str = ""
    first_call_s: float | None = None
    ready_s: float | None = None
    relative_error: float | None = None
    calls: int = 0
    host_us: Percentiles | None = None
    end_to_end_us: Percentiles | None = None
    speedup: Interval | None = None
    activity: Activity | None = None
    idle: float | None = None
    held_bytes: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Change:
    """How the time of one way differs between two reports.

    Attributes:
        name: the way.
        before_us: the median end to end in the older one.
        after_us: the same in the newer one.
        ratio: after / before.
        speedup_before: times as fast as eager in the older one. A ratio within one run depends less
            on the machine than a time does.
        speedup_after: the same in the newer one.
        differs: whether the intervals of the two speedups have nothing in common.
    """

    name: str
    before_us: float
    after_us: float
    ratio: float
    speedup_before: float
    speedup_after: float
    differs: bool


@dataclass(frozen=True)
class BenchReport(Shown):
    """The result of :func:`gfxgraph.bench`.

    Attributes:
        name: the function.
        arguments: the arguments, in words.
        device: name of the device.
        emulated: whether graphs were emulated, so that times say nothing of a GPU.
        torch: version of torch.
        gfxgraph: version of gfxgraph.
        seconds: that calls might be timed for; ``calls`` of a way says how many were.
        changes_state: whether the function writes to its arguments or outside: what it changes was
            put back before every eighth timed call.
        ways: a row for each way, in the order in which they were measured.
        traffic: a row for each way of answering calls of many sizes; empty if none were given.
    """

    name: str
    arguments: tuple[str, ...]
    device: str
    emulated: bool
    torch: str
    gfxgraph: str
    seconds: float
    changes_state: bool
    ways: tuple[WayReport, ...]
    traffic: tuple[TrafficReport, ...] = ()

    def __getitem__(self, name: str) -> WayReport:
        for way in self.ways:
            if way.name == name:
                return way
        raise KeyError(name)

    @property
    def fastest(self) -> WayReport:
        """The way with right results that is fastest, end to end; eager among them."""
        timed = [way for way in self.ways if way.status == "ok" and way.speedup]
        return max(timed, key=lambda way: way.speedup.median)  # type: ignore[union-attr]

    @property
    def verdict(self) -> str:
        """What graphs gain, and why: one or two sentences."""
        if self.emulated:
            return (
                "No GPU here: the graphs are emulated. This shows that the ways run and agree with "
                "eager; the times say nothing of a GPU."
            )
        graph = next((way for way in self.ways if way.name == "graph"), None)
        words = self._of_graph(graph) if graph else ""
        best = self.fastest
        if best.name not in ("eager", "graph") and best.speedup and best.speedup.low > 1:
            taken = graph.speedup.median if graph and graph.speedup else 1.0
            if best.speedup.median > _WORTH * taken:
                words += f" Fastest is {best.name}: {best.speedup.median:.2f} times as fast."
        if words or best.name == "eager" or not best.speedup:
            return words.strip() or "Eager is the fastest of the ways that were measured."
        gain = f"{best.speedup.median:.2f} times as fast ({best.speedup.low:.2f} to "
        return (
            f"No way is clearly faster than eager: {best.name} is {gain}{best.speedup.high:.2f})."
        )

    @property
    def setting(self) -> str:
        """What was measured where; times of another setting cannot be compared."""
        return f"{called(self.name, self.arguments)} on {self.device}, torch {self.torch}"

    def _of_graph(self, graph: WayReport) -> str:
        if graph.status == "eager":
            return f"There is no graph: {graph.note.rstrip('.')}."
        if graph.status != "ok" or graph.speedup is None:
            return f"The graph {graph.status}: {graph.note.rstrip('.')}."
        gain, idle = graph.speedup, self["eager"].idle
        bound = ""
        if idle is not None:
            limit = "launch-bound" if idle > _IDLE else "compute-bound"
            bound = f" Eager is {limit}: the device is idle for {idle:.0%} of a call."
        if gain.low > _WORTH:
            size = f"{gain.median:.2f} times as fast as eager ({gain.low:.2f} to {gain.high:.2f})"
            return f"A graph is worth it: {size}.{bound}"
        return (
            f"A graph is not worth it here: {gain.median:.2f} times as fast as eager "
            f"({gain.low:.2f} to {gain.high:.2f}).{bound}"
        )

    def compare(self, older: BenchReport) -> list[Change]:
        """How the ways that both reports have differ in time.

        Raises:
            ArgumentError: ``older`` is of another function.
        """
        older.require_function(self.name)
        found = []
        for way in self.ways:
            before = next((one for one in older.ways if one.name == way.name), None)
            pair = [(one.end_to_end_us, one.speedup) for one in (before, way) if one is not None]
            if len(pair) < 2 or any(None in both for both in pair):
                continue
            (old, was), (new, now) = pair
            assert old and new and was and now
            found.append(
                Change(
                    way.name,
                    old.p50,
                    new.p50,
                    round(new.p50 / old.p50, 4),
                    was.median,
                    now.median,
                    was.high < now.low or now.high < was.low,
                )
            )
        return found

    def require_function(self, name: str) -> None:
        """Refuse to compare with a report of another function.

        Raises:
            ArgumentError: this report is not of a function with this name.
        """
        if name != self.name:
            raise ArgumentError(f"The older report is of {self.name}, this one of {name}.")

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data; docs/bench.md has its fields."""
        return {"schema": SCHEMA, "verdict": self.verdict, **asdict(self)}

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON, also written to the file ``path`` if there is one.

        Raises:
            ArgumentError: the file cannot be written.
        """
        return written("bench", self.to_dict(), path)

    @classmethod
    def from_json(cls, path: str | Path) -> BenchReport:
        """A report that :meth:`to_json` has written.

        Raises:
            ArgumentError: the file cannot be read, or is no report of ``bench``.
        """
        data = read_report(path, "bench", SCHEMA)
        try:
            ways = tuple(_with_parts(WayReport, row) for row in data["ways"])
            traffic = tuple(_with_parts(TrafficReport, row) for row in data["traffic"])
            given = {"ways": ways, "traffic": traffic, "arguments": tuple(data["arguments"])}
            report = made_of(cls, {**data, **given})
            report["eager"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"{path}: a report of bench, but damaged: {error!r}") from error
        return report

    def _printed(self) -> list[str]:
        lines = [
            filled(called(self.name, self.arguments)),
            filled(self.verdict),
            f"{self.device}, torch {self.torch}",
            "",
        ]
        heads = ("way", "speedup", "95 %", "end to end us", "p95", "p99", "host us", "busy us")
        lines += table((*heads, "idle", "launches"), map(_times, self.ways))
        lines += [""]
        lines += table(
            ("way", "first call s", "first three s", "kept", "a call takes", "error", "calls"),
            map(_costs, self.ways),
        )
        lines += [filled(f"{w.name}: {w.status}: {w.note}") for w in self.ways if w.note]
        if self.traffic:
            columns = ("speedup", "95 %", "call us", "p95", "p99", "first pass s", "captures")
            rows = table(("many sizes", *columns, "eager", "padding"), map(_many, self.traffic))
            lines += ["", *rows]
            lines += [filled(f"{w.name}: {w.status}: {w.note}") for w in self.traffic if w.note]
        return lines


def written(what: str, report: dict[str, Any], path: str | Path | None) -> str:
    """The report of ``what`` as JSON, also written to the file ``path`` if there is one.

    Raises:
        ArgumentError: the file cannot be written.
    """
    try:
        return as_json(report, path)
    except (OSError, TypeError, ValueError) as error:
        raise ArgumentError(f"{what}: the report cannot be written: {error}") from error


def read_report(path: str | Path, what: str, schema: str) -> dict[str, Any]:
    """What :func:`written` has written.

    Raises:
        ArgumentError: the file cannot be read, or says that it is something else.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"{path}: cannot be read as a report of {what}: {error}") from error
    found = data.get("schema") if isinstance(data, dict) else None
    if found != schema:
        raise ArgumentError(
            f"{path}: expected a report of {what}, whose schema is {schema!r}, not {found!r}."
        )
    checked: dict[str, Any] = data
    return checked


def called(name: str, arguments: tuple[str, ...]) -> str:
    """The call that was measured, in words."""
    shown = ", ".join(arguments[:_SHOWN])
    more = len(arguments) - _SHOWN
    return f"{name}({shown}{f', and {more} more' if more > 0 else ''})"


def _times(way: WayReport) -> tuple[str, ...]:
    host, total, gain, seen = way.host_us, way.end_to_end_us, way.speedup, way.activity
    return (
        way.name,
        f"{gain.median:.2f}" if gain else "-",
        f"{gain.low:.2f}-{gain.high:.2f}" if gain else "-",
        *((f"{us:.1f}" for us in (total.p50, total.p95, total.p99)) if total else "---"),
        f"{host.p50:.1f}" if host else "-",
        f"{seen.busy_us:.1f}" if seen else "-",
        f"{way.idle:.0%}" if way.idle is not None else "-",
        f"{seen.launches:g}" if seen else "-",
    )


def _many(row: TrafficReport) -> tuple[str, ...]:
    gain, call = row.speedup, row.call_us
    return (
        row.name,
        f"{gain.median:.2f}" if gain else "-",
        f"{gain.low:.2f}-{gain.high:.2f}" if gain else "-",
        *((f"{us:.1f}" for us in (call.p50, call.p95, call.p99)) if call else "---"),
        "-" if row.first_pass_s is None else f"{row.first_pass_s:.3f}",
        str(row.captures),
        f"{row.eager_calls:.0%}",
        f"{row.padding:.0%}",
    )


def _costs(way: WayReport) -> tuple[str, ...]:
    return (
        way.name,
        *("-" if s is None else f"{s:.3f}" for s in (way.first_call_s, way.ready_s)),
        *("-" if n is None else in_bytes(n) for n in (way.held_bytes, way.peak_bytes)),
        "-" if way.relative_error is None else f"{way.relative_error:.1e}",
        str(way.calls or "-"),
    )


_PARTS: dict[str, type] = {
    "host_us": Percentiles,
    "end_to_end_us": Percentiles,
    "call_us": Percentiles,
    "speedup": Interval,
    "activity": Activity,
}


def _with_parts(kind: type[T], row: Mapping[str, Any]) -> T:
    parts = {n: _PARTS[n] for n in _PARTS if row.get(n) is not None}
    made: dict[str, Any] = {n: made_of(part, row[n]) for n, part in parts.items()}
    for n, part in made.items():
        numbers = vars(part).values() if isinstance(part, (Percentiles, Interval)) else ()
        for number in numbers:
            if isinstance(number, bool) or not (math.isfinite(number) and number >= 0):
                raise ValueError(f"{n} has {number!r}")
    if row.get("end_to_end_us") is not None and not row["end_to_end_us"]["p50"] > 0:
        raise ValueError("a call took no time")
    return made_of(kind, {**row, **made})


def made_of(kind: type[T], data: Mapping[str, Any]) -> T:
    """The dataclass ``kind`` with those values of ``data`` that are fields of it.

    Raises:
        KeyError: one is missing.
        TypeError: one is of another type.
    """
    hints = get_type_hints(kind)
    names: Iterable[str] = (one.name for one in fields(kind))  # type: ignore[arg-type]
    given = {name: data[name] for name in names}
    for name, value in given.items():
        if not _fits(value, hints[name]):
            raise TypeError(f"{name} is {value!r}")
    return kind(**given)


def _fits(value: Any, hint: Any) -> bool:
    """Whether ``value`` is of the type that a field of a report has."""
    parts = get_args(hint)
    match get_origin(hint):
        case origin if origin is Literal:
            return value in parts
        case origin if origin in (Union, UnionType):
            return any(_fits(value, part) for part in parts)
        case origin if origin is tuple:
            return isinstance(value, tuple) and all(_fits(one, parts[0]) for one in value)
        case origin if origin is dict:
            return isinstance(value, dict) and all(_fits(one, parts[1]) for one in value.values())
    kinds = (int, float) if hint is float else hint
    return isinstance(value, kinds) and (hint is bool or not isinstance(value, bool))
