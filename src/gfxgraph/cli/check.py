"""``gfxgraph check``."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from .common import (
    NO_GRAPH,
    DocsUrl,
    Make,
    Sarif,
    Target,
    fail,
    one_document,
    write_sarif,
)

__all__ = ["check"]


def check(
    target: Target,
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGUMENT...",
            help="Its arguments: a tensor 'float32[4,8]', 'int64[1,16]:32000' (0 <= n < 32000; "
            "without a limit integers are 0 and 1) or 'float16[4,8]:meta' (a shape without data); "
            "a number, true, false or none; by name 'mask=bool[4,8]'. Put -- before a negative "
            "number.",
        ),
    ] = None,
    make: Make = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    sarif: Sarif = None,
    docs_url: DocsUrl = None,
) -> None:
    """Report what a graph would make of a function; needs no GPU.

    Status 0: its calls are replays; 1: it runs eagerly, or raises; 2: a wrong argument; 3: it takes
    a new path for each new value, and will not replay.
    """
    import torch
    from rich.console import Console

    from ..analyze.check import check
    from ..analyze.targets import arguments, fit, load, made, simulated_gpu
    from ..analyze.view import located, show
    from ..errors import GfxGraphError
    from ..record.rules import RULES

    one_document(as_json, sarif)
    if make and specs:
        fail("Give the arguments or --make, not both.", status=2)
    torch.manual_seed(0)  # the same report each time
    try:
        with redirect_stdout(sys.stderr):  # what modules print when they are loaded
            with simulated_gpu():
                fn = load(target)
                args, kwargs = made(make) if make else arguments(specs or [])
            fit(fn, args, kwargs)
            report = check(fn, *args, **kwargs)
    except GfxGraphError as error:
        fail(str(error), status=2)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
    else:
        show(report, Console(stderr=sarif == "-"))
    if sarif:
        write_sarif(sarif, located(report, fn), RULES, docs_url)
    statuses = {"eager": 1, "new-paths": NO_GRAPH}
    raise typer.Exit(statuses.get(report.verdict, 0))
