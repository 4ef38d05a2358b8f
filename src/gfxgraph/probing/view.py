"""Shows a report of parity in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .capabilities import groups
from .report import FOOT, ParityReport, State, since, where

__all__ = ["show"]

_STYLES: dict[State, str] = {
    "works": "green",
    "bridged": "cyan",
    "absent": "red",
    "not probed": "yellow",
}


def show(report: ParityReport, console: Console) -> None:
    """Print ``report``: the verdict, then a table for each group."""
    console.print(Text(report.verdict, "bold"), soft_wrap=True)
    console.print(Text(where(report), "dim"), soft_wrap=True)
    for group, heading in groups().items():
        rows = [row for row in report.rows if row.capability.group == group]
        if not rows:
            continue
        table = Table(
            box=None, padding=(0, 2, 0, 0), pad_edge=False, title=heading, title_justify="left",
            title_style="bold",
        )  # fmt: skip
        table.add_column("capability", width=19)
        table.add_column("here", width=10)
        table.add_column("CUDA", width=4)
        table.add_column("ROCm", width=5)
        table.add_column("what was seen, or why not, and what else there is", ratio=1)
        for row in rows:
            table.add_row(
                Text(row.capability.name),
                Text(row.state, _STYLES[row.state]),
                *map(Text, since(row)),
                Text(row.text),
            )
        console.print()
        console.print(table)
    console.print()
    console.print(Text(FOOT, "dim"))
