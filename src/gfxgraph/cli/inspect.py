"""``gfxgraph inspect``."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import NO_GRAPH, Make, Target, fail

if TYPE_CHECKING:
    from ..inspecting.report import InspectReport

__all__ = ["inspect"]

_WRITERS = {".html": "to_html", ".svg": "to_svg", ".dot": "to_dot", ".json": "to_json"}


def inspect(
    target: Target,
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGUMENT...", help="Its arguments, as for check, but none on meta."
        ),
    ] = None,
    make: Make = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Also write all nodes: a page (.html), an image (.svg), Graphviz's language "
            "(.dot) or .json; may come several times.",
        ),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(
            "--compare", metavar="OLD.JSON", help="Show which nodes came, went or changed since."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Capture a function, and show the nodes of its graph and the line that made each.

    Status 0: shown; 2: a wrong argument, or the function raises; 3: there is no graph, such as
    where calls run eagerly.
    """
    from ..errors import ArgumentError, CaptureError, GfxGraphError
    from ..inspecting.report import InspectReport
    from ..measure.chrome import require_writable

    if make and specs:
        fail("Give the arguments or --make, not both.", status=2)
    for path in out or ():
        if path.suffix.lower() not in _WRITERS:
            fail(f"--out {path}: expected a name that ends in {', '.join(_WRITERS)}.", status=2)
    unwritten = []
    try:  # before any work; the function may change the current folder
        older = InspectReport.from_json(compare) if compare else None
        files = [require_writable(path, "--out") for path in out or ()]
        report = _inspected(target, specs or [], make)
    except CaptureError as error:
        fail(str(error), status=NO_GRAPH)
    except GfxGraphError as error:
        fail(str(error), status=2)
    for path in files:
        try:
            getattr(report, _WRITERS[path.suffix.lower()])(path)
        except ArgumentError as error:  # said after what was found
            unwritten.append(str(error))
    typer.echo(report.to_json() if as_json else str(report))
    if older is not None and not as_json:
        typer.echo(f"\nSince {compare}:\n{older.diff(report)}")
    if unwritten:
        fail("\n".join(unwritten), status=2)


def _inspected(target: str, specs: list[str], make: str | None) -> InspectReport:
    """Load what the command line names, call it and inspect it; an error of its ends this."""
    import torch

    from ..analyze.targets import arguments, fit, load, made
    from ..call.graphed import answering, graphed
    from ..device import current_device
    from ..errors import GfxGraphError, one_line
    from ..graph.native import NativeGraph
    from ..inspecting.inspect import inspect
    from ..interpose.source import is_raised_by_code, users_line_of
    from ..verifying.inputs import on_device

    NativeGraph.keeps_nodes = True
    torch.manual_seed(0)
    device = current_device().type
    try:
        with redirect_stdout(sys.stderr), torch.no_grad():  # what modules print when loaded
            found: Any = load(target)
            fn = found if answering(found) is not None else on_device(found, device)
            args, kwargs = on_device(made(make) if make else arguments(specs), device)
            fit(fn, args, kwargs)
            step = fn if answering(fn) is not None else graphed(fn)
            for _ in range(2):  # a call that writes in Python is captured at the second
                step(*args, **kwargs)
            return inspect(step)
    except GfxGraphError:
        raise
    except BaseException as error:  # the function's own
        if not is_raised_by_code(error):
            raise
        fail(f"{target} raises {one_line(error)} ({users_line_of(error)}).", status=2)
