"""``gfxgraph trace``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import Make, Target, fail, on_target

if TYPE_CHECKING:
    from ..measure.trace_report import TraceReport

__all__ = ["trace"]


def trace(
    target: Target,
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGUMENT...", help="Its arguments, as for check, but none on meta."
        ),
    ] = None,
    make: Make = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            metavar="SECONDS",
            help="How long to time calls without a profiler, both ways together.",
        ),
    ] = 2.0,
    chrome: Annotated[
        Path | None,
        typer.Option(
            "--chrome", metavar="FILE", help="Write the trace itself, for https://ui.perfetto.dev."
        ),
    ] = None,
    mark: Annotated[
        bool,
        typer.Option(
            "--mark",
            help="Trace nothing: make the calls in NVTX or roctx ranges, for nsys or rocprofv3.",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Also write the report as JSON.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Trace a function, eagerly and as a graph: kernels with their lines, gaps, copies.

    Status 0: traced; 2: a wrong argument, or eager raises.
    """
    from dataclasses import replace

    from ..errors import GfxGraphError
    from ..measure.chrome import require_writable
    from ..measure.trace import trace

    if make and specs:
        fail("Give the arguments or --make, not both.", status=2)

    def work(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], progress: Any) -> TraceReport:
        return trace(
            fn,
            *args,
            seconds=seconds,
            chrome=chrome,
            mark=mark,
            kwargs=kwargs,
            progress=progress,
        )

    unwritten = ""
    try:
        if out is not None:
            out = require_writable(out, "--out")  # before the work
            if chrome is not None and chrome.resolve() == out.resolve():
                fail("--out and --chrome name the same file; expected two.", status=2)
        report = on_target(target, specs or [], make, work)
    except GfxGraphError as error:
        fail(str(error), status=2)
    report = replace(report, commands=_commands(target, specs or [], make))
    if out is not None:
        try:
            report.to_json(out)
        except GfxGraphError as error:  # said after what was measured
            unwritten = str(error)
    typer.echo(report.to_json() if as_json else str(report))
    if unwritten:
        fail(unwritten, status=2)


def _commands(target: str, specs: list[str], make: str | None) -> dict[str, str]:
    """Commands of tools that see more, for the same calls."""
    given = [*specs, *(["--make", make] if make else [])]
    marked = shlex.join(
        ["python3", "-m", "gfxgraph", "trace", target, *given, "--mark", "--seconds", "0.1"]
    )
    return {
        # Source: the user guide of Nsight Systems, "CLI Profile Command Switch Options".
        "nsys": "nsys profile --trace=cuda,nvtx,osrt --cuda-graph-trace=node "
        f"--output=gfxgraph-trace {marked}",
        # Source: ROCprofiler-SDK, "Using rocprofv3".
        "rocprofv3": "rocprofv3 --runtime-trace --output-format pftrace "
        f"--output-directory gfxgraph-trace -- {marked}",
    }
