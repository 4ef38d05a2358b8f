"""``gfxgraph experiment``."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .bench import Sizes, read_sizes
from .common import Make, fail, on_target

if TYPE_CHECKING:
    from ..measure.experiments.report import ExperimentReport

__all__ = ["experiment"]

_ALL = "all"
# With `all` these run their own functions: another process, or another device, is theirs.
_OWN = ("streams", "ranks")


def experiment(
    name: Annotated[
        str | None,
        typer.Argument(
            help="smoke, modes, lengths, allocations, streams, ranks, or all. Without a name they "
            "are listed."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Argument(
            help="module:callable, such as my_policy:act. Default: a small built-in function."
        ),
    ] = None,
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGUMENT...", help="Its arguments, as for check, but none on meta."
        ),
    ] = None,
    make: Make = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            "--shapes",
            metavar="N=SIZE[:WEIGHT],...",
            help="For lengths: the sizes of calls, as for bench: 'N=1:50,7:30,64:20' where the "
            "arguments have N, such as 'float32[N,32]'.",
        ),
    ] = None,
    calls: Annotated[
        int | None,
        typer.Option(
            "--calls",
            metavar="COUNT",
            min=2,
            max=10_000,
            help="With --shapes: how many calls to draw. [default: 20]",
        ),
    ] = None,
    way: Annotated[
        list[str] | None,
        typer.Option(
            "--way",
            metavar="WAY",
            help="For modes: what to measure beside eager, as for bench; may come several times. "
            "For lengths: compile.",
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", metavar="SECONDS", help="How long to time calls, each experiment."
        ),
    ] = 5.0,
    ranks: Annotated[
        int, typer.Option("--ranks", metavar="COUNT", help="For ranks: how many processes.")
    ] = 2,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Also write the report as JSON.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Run one of six experiments on graphs, and say whether what one expects holds.

    Status 0: it holds, or cannot be shown on this machine; 1: it does not hold; 2: a wrong
    argument, or the function raises.
    """
    from ..errors import GfxGraphError
    from ..measure.chrome import require_writable
    from ..measure.experiments.experiment import EXPERIMENTS
    from ..measure.experiments.report import reports_as_json

    if name is None:
        from ..tables import table

        rows = ((one.name, one.question) for one in EXPERIMENTS.values())
        typer.echo("\n".join(table(("experiment", "question"), rows)))
        return
    if name not in (*EXPERIMENTS, _ALL):
        fail(f"{name}: expected one of {', '.join(EXPERIMENTS)}, or {_ALL}.", status=2)
    if make and specs:
        fail("Give the arguments or --make, not both.", status=2)
    if target is None and (make or shapes):
        fail("--make and --shapes need a function, module:callable.", status=2)
    if name == "lengths" and target is not None and shapes is None:
        fail("lengths needs --shapes N=SIZE,... and arguments that have N, float32[N,8].", status=2)
    if shapes is not None and name not in ("lengths", _ALL):
        fail("Only lengths takes --shapes.", status=2)
    if way and name not in ("modes", "lengths", _ALL):
        fail("Only modes and lengths take --way.", status=2)
    if calls is not None and shapes is None:
        fail("--calls: expected --shapes too, which says from what to draw.", status=2)
    sizes = read_sizes(shapes, specs or [], make, calls or 20) if shapes is not None else None
    options: dict[str, Any] = {"seconds": seconds, "ranks": ranks}
    try:
        if out is not None:  # before any work; the function may change the current folder
            out = require_writable(out, "--out")
        reports = _reports(name, target, specs or [], make, sizes, way or None, options)
        text = reports_as_json(reports) if name == _ALL else reports[0].to_json()
    except GfxGraphError as error:
        fail(str(error), status=2)
    typer.echo(text if as_json else "\n\n".join(map(str, reports)))
    if out is not None:
        from ..tables import write_text

        try:
            write_text(out, f"{text}\n")
        except OSError as error:  # said after what was found
            fail(f"--out: {error}", status=2)
    raise typer.Exit(int(any(report.holds is False for report in reports)))


def _reports(
    name: str,
    target: str | None,
    specs: list[str],
    make: str | None,
    sizes: Sizes | None,
    ways: list[str] | None,
    options: dict[str, Any],
) -> list[ExperimentReport]:
    """The reports, in order."""
    from ..measure.experiments.experiment import EXPERIMENTS, experiment
    from ..measure.experiments.streams import a_gpu

    names: list[Any] = [*EXPERIMENTS] if name == _ALL else [name]

    def options_of(one: str) -> dict[str, Any]:
        wanted = ways if one in ("modes", name) else None
        if one == "lengths" and name == _ALL and "compile" in (ways or ()):
            wanted = ["compile"]
        return {**options, "ways": wanted}

    if target is None:
        return [experiment(one, **options_of(one)) for one in names]

    def work(
        fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], progress: Any
    ) -> list[ExperimentReport]:
        reports = []
        for one in names:
            more = {**options_of(one), "progress": progress}
            own = name == _ALL and (one in _OWN or (one == "lengths" and sizes is None))
            if own:
                reports.append(experiment(one, **more))
                continue
            if one == "lengths" and sizes is not None:
                more["traffic"] = sizes.traffic(specs)
            reports.append(experiment(one, fn, *args, kwargs=kwargs, **more))
        return reports

    given = sizes.put_into(specs, sizes.first) if sizes else specs
    # Modules that are loaded for `streams` find a device to put tensors on.
    with a_gpu() if name == "streams" else nullcontext():
        return on_target(target, given, make, work)
