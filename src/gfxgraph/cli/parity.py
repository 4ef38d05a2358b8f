"""``gfxgraph parity``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from .common import fail

if TYPE_CHECKING:
    from ..probing.report import ParityReport

__all__ = ["parity"]


def parity(
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="GROUP",
            help="Only this group: driver, capture, torch or gfxgraph; may come several times.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", help="Seconds after which a probe counts as hanging."
        ),
    ] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Also write the report as JSON.")
    ] = None,
) -> None:
    """Show which capabilities of CUDA graphs this machine has, proved by running each.

    Each runs in another process; one that crashes or hangs costs its row only.

    Status 0: every capability works, is bridged, or is not probed; 1: some are absent; 2: a wrong
    option.
    """
    from rich.console import Console

    from ..errors import ArgumentError, GfxGraphError
    from ..measure.chrome import require_writable
    from ..probing.view import show

    try:
        path = require_writable(out, "--out") if out is not None else None
        report = _report(only, timeout)
    except GfxGraphError as error:
        fail(str(error), status=2)
    if as_json:
        typer.echo(report.to_json())
    else:
        show(report, Console())
    if path is not None:
        try:
            report.to_json(path)
        except ArgumentError as error:  # said after what was found
            fail(str(error), status=2)
    raise typer.Exit(int(report.counts["absent"] > 0))


def _report(only: list[str] | None, timeout: float) -> ParityReport:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ..probing.parity import parity

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("probing", total=None)

        def progress(done: int, of: int) -> None:
            shown.update(task, completed=done, total=of)

        return parity(only or None, timeout=timeout, progress=progress)
