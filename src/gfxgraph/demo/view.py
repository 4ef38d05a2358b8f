"""Shows the report of the demo in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..tables import in_bytes
from .demo import DemoReport

__all__ = ["show"]


def show(report: DemoReport, console: Console) -> None:
    """Print ``report`` on ``console``."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in _lines(report):
        table.add_row(name, value)
    if report.graphs:
        table.add_row("", _graphs(report))
    if report.query is not None:
        cut = " (cut at 512 tokens)" if report.query_truncated else ""
        table.add_row("query", Text(report.query + cut))
    console.print(table)
    for hit in report.hits:
        console.print(Text(f"\n{hit.score:.3f}  passage {hit.passage + 1}", style="bold"))
        console.print(Text(textwrap.indent(textwrap.fill(hit.text, 76), "  ")))


def _lines(report: DemoReport) -> Iterator[tuple[str, Text]]:
    difference, padding, timing = report.difference, report.padding, report.timing
    batch_sizes, lengths = (", ".join(map(str, sizes)) for sizes in report.buckets.values())
    rows, tokens = timing.bucket
    inside = 1 - padding.tokens / padding.computed
    lines = [
        ("device", _device(report)),
        ("passages", f"{report.passages}, {report.truncated} of them cut at 512 tokens"),
        ("batches", f"{sum(report.batches.values())} of up to {report.batch_size} passages"),
        ("buckets", f"{batch_sizes} rows x {lengths} tokens"),
        (
            "padding",
            f"{padding.share:.1%} of the tokens computed, {inside:.1%} with that in batches",
        ),
        (
            "",
            f"(with lengths of powers of two {padding.powers_of_two:.1%}, "
            f"with 512 alone {padding.longest:.1%})",
        ),
        ("difference", f"max {difference.max:.2g}, mean {difference.mean:.2g} (graph - eager)"),
        (
            "time a batch",
            f"eager {timing.eager_ms:.3f} ms, graph {timing.graph_ms:.3f} ms, "
            f"eager / graph = {timing.ratio:.2f}",
        ),
        (
            "",
            f"({timing.rows} x {timing.tokens} tokens, for the graph padded to {rows} x {tokens}; "
            f"median of {timing.runs})",
        ),
    ]
    if report.emulated:
        lines.append(("", "Timings on the emulated device say nothing about a GPU."))
    fallbacks = sum(report.fallbacks.values())
    lines.append(
        ("graphs", f"{report.captures} captured, {report.replays} replays, {fallbacks} fallbacks")
    )
    for reason, count in report.fallbacks.items():
        lines.append(("", f"fell back {count} times: {reason}"))
    pool, inputs = in_bytes(report.pool_bytes), in_bytes(report.input_bytes)
    lines.append(("memory", f"{pool} for all graphs, {inputs} for the inputs that they share"))
    return ((name, Text(value)) for name, value in lines)


def _graphs(report: DemoReport) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="")
    table.add_column("graph", no_wrap=True)
    for name in ("replays", "inputs", "adds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.graphs:
        sizes = in_bytes(row.input_bytes), in_bytes(row.private_bytes)
        table.add_row(Text(row.key), str(row.replays), *sizes)
    return table


def _device(report: DemoReport) -> str:
    facts = report.device
    versions = {"driver": facts.driver, "runtime": facts.runtime, "torch": facts.torch}
    known = [f"{name} {version}" for name, version in versions.items() if version]
    return f"{facts.name} ({', '.join([facts.vendor, facts.arch, *known])})"
