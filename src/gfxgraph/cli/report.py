"""``gfxgraph report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import fail

__all__ = ["report"]

_LEFT_OUT = 1


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...",
            readable=False,  # report() names what cannot be read, and shows the rest
            help="JSON that commands of gfxgraph wrote, or directories with such files.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", readable=False, help="The page.")
    ] = Path("report.html"),
    title: Annotated[
        str, typer.Option("--title", metavar="TEXT", help="Its heading.")
    ] = "gfxgraph report",
) -> None:
    """Make one HTML page of JSON from bench, check, lint, verify, doctor and others.

    Status 0: all files are shown; 1: some are left out, and the page says why; 2: no page.
    """
    from ..errors import GfxGraphError
    from ..reporting.report import report

    try:
        made = report(paths, out, title=title)
    except GfxGraphError as error:
        fail(str(error), status=2)
    typer.echo(str(made))
    if made.left_out:
        raise typer.Exit(_LEFT_OUT)
