"""``gfxgraph verify``."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import NO_GRAPH, Make, RequireGraph, Target, fail

if TYPE_CHECKING:
    from ..verifying.report import VerifyReport

__all__ = ["verify"]


def verify(
    target: Target,
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGUMENT...", help="Its arguments, as for check, but none on meta."
        ),
    ] = None,
    make: Make = None,
    candidate: Annotated[
        str | None,
        typer.Option(
            "--candidate",
            metavar="TARGET",
            help="module:callable to compare with eager in place of gfxgraph's graph, such as a "
            "wrapper around your own graph.",
        ),
    ] = None,
    runs: Annotated[
        int,
        typer.Option("--runs", metavar="COUNT", min=1, help="Inputs, each with a seed of its own."),
    ] = 4,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            metavar="NUMBER",
            min=0,
            help="Allowed relative error; default by dtype: 0.01 for 16 bits, less above.",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", metavar="NUMBER", min=0, max=(1 << 63) - 1, help="Seed of the first run."
        ),
    ] = 0,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Compare torch.compile with eager too.")
    ] = False,
    views: Annotated[
        bool, typer.Option("--views", help="The next call may overwrite a result.")
    ] = False,
    require_graph: RequireGraph = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Compare a function's graph with eager over many inputs, and explain differences.

    Status 0: nothing differs, also if it runs eagerly; 1: something differs; 2: a wrong argument,
    or eager raises; 3: with --require-graph, nothing differs but calls are not replays.
    """
    if make and specs:
        fail("Give the arguments or --make, not both.", status=2)
    report = _compare(
        target,
        specs or [],
        make,
        candidate,
        runs=runs,
        threshold=threshold,
        compiled=compiled,
        views=views,
        seed=seed,
    )
    typer.echo(json.dumps(report.to_dict(), indent=2) if as_json else str(report))
    if report.ok and require_graph and not report.is_graph:
        if report.is_graph is None:
            fail("--require-graph: the candidate does not tell whether it is a graph.", status=2)
        raise typer.Exit(NO_GRAPH)
    raise typer.Exit(not report.ok)


def _compare(
    target: str, specs: list[str], make: str | None, candidate: str | None, **options: Any
) -> VerifyReport:
    """Load what the command line names, and compare; a wrong argument or an error ends it."""
    import torch

    from ..analyze.targets import arguments, fit, load, made
    from ..device import current_device
    from ..errors import GfxGraphError, one_line
    from ..interpose.source import is_raised_by_code, users_line_of
    from ..verifying.inputs import on_device
    from ..verifying.verify import verify

    torch.manual_seed(options["seed"])  # the same report each time
    device = current_device().type
    try:
        with redirect_stdout(sys.stderr):  # what modules print when they are loaded
            fn = on_device(load(target), device)
            args, kwargs = on_device(made(make) if make else arguments(specs), device)
            fit(fn, args, kwargs)
            other = load(candidate) if candidate else None
            return verify(fn, *args, candidate=other, kwargs=kwargs, **options)
    except GfxGraphError as error:
        fail(str(error), status=2)
    except BaseException as error:  # eager's own
        if not is_raised_by_code(error):
            raise
        where = users_line_of(error)
        fail(f"{target} raises {one_line(error)} ({where}).", status=2)
