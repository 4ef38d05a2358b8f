"""The report of the demo, for a terminal."""

from __future__ import annotations

import textwrap

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .demo import Report

__all__ = ["show"]


def show(report: Report, console: Console) -> None:
    """Print ``report`` on ``console``."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in _lines(report):
        table.add_row(name, Text(value))
    console.print(table)
    for hit in report.hits:
        console.print(Text(f"\n{hit.score:.3f}  passage {hit.passage + 1}", style="bold"))
        console.print(Text(textwrap.indent(textwrap.fill(hit.text, 76), "  ")))


def _lines(report: Report) -> list[tuple[str, str]]:
    difference, timing = report.difference, report.timing
    shapes = ", ".join(f"{count} of {length}" for length, count in report.batches.items())
    fallbacks = sum(report.fallbacks.values())
    lines = [
        ("device", _device(report)),
        ("passages", f"{report.passages}, {report.truncated} of them cut at 512 tokens"),
        ("batches", f"{shapes} tokens, {report.batch_size} rows each"),
        ("difference", f"max {difference.max:.2g}, mean {difference.mean:.2g} (graph - eager)"),
        (
            "time a batch",
            f"eager {timing.eager_ms:.3f} ms, graph {timing.graph_ms:.3f} ms, "
            f"eager / graph = {timing.ratio:.2f} "
            f"({timing.rows} rows of {timing.tokens} tokens, median of {timing.runs})",
        ),
        ("graphs", f"{report.captures} captured, {report.replays} replays, {fallbacks} fallbacks"),
    ]
    if report.emulated:
        lines.insert(5, ("", "Timings on the emulated device do not speak for a GPU."))
    for reason, count in report.fallbacks.items():
        lines.append(("", f"fell back {count} times: {reason}"))
    for row in report.graphs:
        memory = f"pool {_size(row.pool_bytes)}, inputs {_size(row.input_bytes)}"
        lines.append(("", f"{row.key}: {row.replays} replays, {memory}"))
    if report.query is not None:
        cut = " (cut at 512 tokens)" if report.query_truncated else ""
        lines.append(("query", report.query + cut))
    return lines


def _device(report: Report) -> str:
    facts = report.device
    versions = {"driver": facts.driver, "runtime": facts.runtime, "torch": facts.torch}
    known = [f"{name} {version}" for name, version in versions.items() if version]
    return f"{facts.name} ({', '.join([facts.vendor, facts.arch, *known])})"


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"
