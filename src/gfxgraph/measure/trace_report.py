"""The report of ``trace``: what host and device do in a call, for each way, as text and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..tables import Shown, counted, filled, table
from .report import called, made_of, read_report, written
from .trace_rows import (
    SHOWN,
    HotOperator,
    WayTrace,
    at,
    copies_table,
    kernels_table,
    rows_from,
    share,
    short,
    times_of,
    waits_of,
    way_from,
)

__all__ = ["SCHEMA", "TraceReport"]

SCHEMA = "gfxgraph.trace/1"


@dataclass(frozen=True)
class TraceReport(Shown):
    """The result of :func:`gfxgraph.trace`.

    Attributes:
        name: the function.
        arguments: the arguments, in words.
        device: name of the device.
        emulated: whether there is no GPU, so that nothing is known of a device.
        torch: version of torch.
        gfxgraph: version of gfxgraph.
        python: version of Python.
        seconds: that calls were timed for without a profiler.
        changes_state: whether the function writes to its arguments or outside; that was put back
            before each call.
        speedup: how many times as fast as eager the graph is, end to end; ``None``: no graph.
        ways: eager and graph.
        operators: what eager execution calls, by operator and line; the longest on the host first,
            at most 40. Measured with each operation marked, which makes them slower.
        operations: how many operators of a call give the device work.
        chrome: the file of the trace; ``""``: none was written.
        commands: name of a tool -> a command that shows more; from the command line only.
    """

    name: str
    arguments: tuple[str, ...]
    device: str
    emulated: bool
    torch: str
    gfxgraph: str
    python: str
    seconds: float
    changes_state: bool
    speedup: float | None
    ways: tuple[WayTrace, ...]
    operators: tuple[HotOperator, ...]
    operations: int
    chrome: str = ""
    commands: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> WayTrace:
        for way in self.ways:
            if way.name == name:
                return way
        raise KeyError(name)

    @property
    def verdict(self) -> str:
        """What a graph takes away: one or two sentences."""
        eager, graph = self["eager"], self["graph"]
        if graph.status == "eager":
            gain = f"There is no graph: {graph.note.rstrip('.')}."
        elif graph.status != "ok":
            gain = f"The graph {graph.status}: {graph.note.rstrip('.')}."
        elif self.emulated or graph.launches is None:
            launches = 1 if graph.graph_launches is None else graph.graph_launches
            gain = f"A replay is {_launches(launches)}."
        else:
            gain = (
                f"With the graph: {_launches(graph.launches)}, idle for {share(graph.idle)} of a "
                f"call, {self.speedup or 1:.2f} times as fast."
            )
        if not eager.calls:
            return (
                "The calls were made in ranges for another profiler, such as gfxgraph eager call "
                "1. Nothing was traced here."
            )
        if self.emulated:
            return (
                "No GPU here: this trace shows operators, their lines and the time of the host, "
                "and nothing of a device. On a GPU eager would launch the kernels of "
                f"{counted(self.operations, 'operator')} one by one. {gain}"
            )
        if eager.busy_us is None:
            return (
                "torch.profiler saw no work of the GPU. The function may use none; or another "
                "profiler holds CUPTI or roctracer."
            )
        return (
            f"Eager: {_launches(eager.launches)}, and the device is idle for {share(eager.idle)} "
            f"of a call. {gain}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data; docs/trace.md has its fields."""
        return {"schema": SCHEMA, "verdict": self.verdict, **asdict(self)}

    def to_json(self, path: str | Path | None = None) -> str:
        """The report as JSON, also written to the file ``path`` if there is one.

        Raises:
            ArgumentError: the file cannot be written.
        """
        return written("trace", self.to_dict(), path)

    @classmethod
    def from_json(cls, path: str | Path) -> TraceReport:
        """A report that :meth:`to_json` has written.

        Raises:
            ArgumentError: the file cannot be read, or is no report of ``trace``.
        """
        data = read_report(path, "trace", SCHEMA)
        try:
            parts = {
                "arguments": tuple(data["arguments"]),
                "ways": tuple(map(way_from, data["ways"])),
                "operators": rows_from(HotOperator, data["operators"]),
            }
            report = made_of(cls, {**data, **parts})
            report["eager"], report["graph"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"{path}: a report of trace, but damaged: {error!r}") from error
        return report

    def _printed(self) -> list[str]:
        lines = [filled(called(self.name, self.arguments)), filled(self.verdict)]
        is_traced = any(way.calls for way in self.ways)
        lines += [f"{self.device}, torch {self.torch}", ""]
        heads = ("way", "end to end us", "host us", "traced us", "busy us", "kernels us", "idle")
        lines += table((*heads, "traced", "launches", "graphs"), map(times_of, self.ways))
        lines += [filled(f"{w.name}: {w.status}: {w.note}") for w in self.ways if w.note]
        if any(way.gaps for way in self.ways):
            waits = ("gaps of a call", "count", "median us", "total us", "longest us", "before us")
            lines += ["", *table(waits, (waits_of(w) for w in self.ways if w.gaps))]
        for way in self.ways:
            lines += copies_table(way) + kernels_table(way)
        if self.operators and not any(way.hot for way in self.ways):
            lines += self._operators()
        if self.chrome:
            lines += ["", f"Trace: {self.chrome}. Open it in https://ui.perfetto.dev."]
        if self.commands and is_traced:
            where = "On a machine with a GPU these" if self.emulated else "These"
            lines += ["", f"{where} show more:", *(f"  {line}" for line in self.commands.values())]
        return lines

    def _operators(self) -> list[str]:
        heads = ("operators of eager", "calls", "host us", "launches", "line")
        rows = (
            (
                short(o.name),
                o.calls,
                f"{o.host_us:.1f}",
                "yes" if o.launches else "no",
                at(o.where),
            )
            for o in self.operators[:SHOWN]
        )
        return ["", *table(heads, rows)]


def _launches(count: float | None) -> str:
    return f"{count:g} launch{'' if count == 1 else 'es'}"
