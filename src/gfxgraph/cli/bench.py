"""``gfxgraph bench``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import Make, Target, fail, on_target

if TYPE_CHECKING:
    from ..measure.report import BenchReport

__all__ = ["Sizes", "bench", "read_sizes"]


def bench(
    target: Target,
    specs: Annotated[
        list[str] | None,
        typer.Argument(help="Its arguments, as for check, but none on meta."),
    ] = None,
    make: Make = None,
    way: Annotated[
        list[str] | None,
        typer.Option(
            help="What to measure beside eager; may come several times. One of graph, compile, "
            "reduce-overhead, compile+graph, make_graphed_callables, max-autotune. Default: all "
            "but the last; without a GPU graph.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="How long to time calls, all ways together.")
    ] = 10.0,
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="N=SIZE[:WEIGHT],...",
            help="Also send calls of many sizes: 'N=1:50,7:30,64:20' where the arguments have N, "
            "such as 'float32[N,32]'. The first size is that of all other measurements.",
        ),
    ] = None,
    calls: Annotated[
        int, typer.Option(min=2, max=10_000, help="With --shapes: how many calls to draw.")
    ] = 100,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="OLD.JSON", help="Show what has changed since this report."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the report as JSON.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Measure what a graph, torch.compile and both gain for a function.

    Status 0: measured; 2: a wrong argument, or eager raises.
    """
    from ..errors import GfxGraphError
    from ..measure.report import BenchReport

    if make and specs:
        fail("Give the arguments or --make, not both.", status=2)
    try:
        older = BenchReport.from_json(compare) if compare else None  # before minutes of work
        if out is not None and not out.absolute().parent.is_dir():
            fail(f"--out: there is no folder {out.absolute().parent}.", status=2)
        sizes = read_sizes(shapes, specs or [], make, calls) if shapes is not None else None
        report = _measured(target, specs or [], make, sizes, ways=way or None, seconds=seconds)
        if out is not None:
            report.to_json(out)
        changes = report.compare(older) if older is not None else []
    except GfxGraphError as error:
        fail(str(error), status=2)
    if as_json:
        typer.echo(report.to_json())
        return
    typer.echo(str(report))
    if older is not None:
        from ..tables import table

        heads = ("way", "before us", "after us", "after / before", "speedup before", "after", "")
        rows = (
            (
                c.name,
                f"{c.before_us:.1f}",
                f"{c.after_us:.1f}",
                f"{c.ratio:.3f}",
                f"{c.speedup_before:.2f}",
                f"{c.speedup_after:.2f}",
                "differs" if c.differs else "",
            )
            for c in changes
        )
        typer.echo("\n".join(["", *table(heads, rows)]))


@dataclass(frozen=True)
class Sizes:
    """What ``--shapes`` asks for: a name in the arguments, and the sizes that it stands for."""

    name: str
    first: int
    drawn: list[int]

    def traffic(self, specs: list[str]) -> list[tuple[Any, ...]]:
        """The positional arguments of the calls that were drawn, on the device."""
        from ..analyze.view import arguments
        from ..device import current_device
        from ..verifying.inputs import on_device

        device = current_device().type
        kinds = {n: arguments(self.put_into(specs, n))[0] for n in set(self.drawn)}
        return [on_device(kinds[n], device) for n in self.drawn]

    def put_into(self, specs: list[str], size: int) -> list[str]:
        """The specs with this size in place of the name."""
        return [_within(spec, self.name, str(size)) for spec in specs]


def _within(spec: str, name: str, size: str) -> str:
    """``spec`` with the name replaced among its sizes."""
    head, bracket, rest = spec.partition("[")
    shape, end, tail = rest.partition("]")
    sizes = [size if part.strip() == name else part for part in shape.split(",")]
    return f"{head}{bracket}{','.join(sizes)}{end}{tail}"


def read_sizes(text: str, specs: list[str], make: str | None, calls: int) -> Sizes:
    """Read ``--shapes``; a wrong one ends the command."""
    name, _, rest = text.partition("=")
    weights: dict[int, float] = {}
    for part in rest.split(","):
        match = re.fullmatch(r"\s*([1-9]\d*)(?::(\d+(?:\.\d+)?))?\s*", part)
        if match is None:
            name = ""
            break
        weights[int(match[1])] = float(match[2] or 1)
    if not name.strip().isidentifier() or len(weights) < 2 or not any(weights.values()):
        fail(
            f"--shapes {text!r}: expected a name and at least two sizes, with weights where they "
            "differ: N=1:50,7:30,64:20.",
            status=2,
        )
    drawn = Random(0).choices(list(weights), list(weights.values()), k=calls)
    found = Sizes(name.strip(), next(iter(weights)), drawn)
    changed = [a for a, b in zip(specs, found.put_into(specs, 1), strict=True) if a != b]
    if make or not changed:
        fail(f"--shapes: {name} is no size of an argument, such as float32[{name},8].", status=2)
    if any("=" in spec for spec in changed):
        fail(f"--shapes: expected {name} in positional arguments only.", status=2)
    return found


def _measured(
    target: str, specs: list[str], make: str | None, sizes: Sizes | None, **options: Any
) -> BenchReport:
    """Load what the command line names, and measure."""
    from ..measure.bench import bench

    def work(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], progress: Any) -> BenchReport:
        if sizes:
            options["traffic"] = sizes.traffic(specs)
        return bench(fn, *args, kwargs=kwargs, progress=progress, **options)

    return on_target(target, sizes.put_into(specs, sizes.first) if sizes else specs, make, work)
