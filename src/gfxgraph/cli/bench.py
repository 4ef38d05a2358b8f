"""``gfxgraph bench``."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
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
        typer.Argument(
            metavar="ARGUMENT...", help="Its arguments, as for check, but none on meta."
        ),
    ] = None,
    make: Make = None,
    way: Annotated[
        list[str] | None,
        typer.Option(
            "--way",
            metavar="WAY",
            help="What to measure beside eager; may come several times. One of graph, compile, "
            "reduce-overhead, compile+graph, make_graphed_callables, max-autotune. Default: all "
            "but the last; without a GPU graph.",
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", metavar="SECONDS", help="How long to time calls, all ways together."
        ),
    ] = 10.0,
    shapes: Annotated[
        str | None,
        typer.Option(
            "--shapes",
            metavar="N=SIZE[:WEIGHT],...",
            help="Also send calls of many sizes: 'N=1:50,7:30,64:20' where the arguments have N, "
            "such as 'float32[N,32]'. The first size is that of all other measurements.",
        ),
    ] = None,
    calls: Annotated[
        int | None,
        typer.Option(
            "--calls",
            metavar="COUNT",
            min=2,
            max=10_000,
            help="With --shapes: how many calls to draw. [default: 100]",
        ),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(
            "--compare", metavar="OLD.JSON", help="Show what has changed since this report."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Also write the report as JSON.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Measure what a graph, torch.compile and both gain for a function.

    Status 0: measured; 2: a wrong argument, or eager raises.
    """
    from ..errors import GfxGraphError
    from ..measure.report import BenchReport
    from ..tables import as_json as json_of
    from ..tables import filled, table

    if make and specs:
        fail("Give the arguments or --make, not both.", status=2)
    try:
        older = BenchReport.from_json(compare) if compare else None  # before minutes of work
        out = out and out.absolute()  # the function may change the current folder
        if out is not None and not out.parent.is_dir():
            fail(f"--out: there is no folder {out.parent}.", status=2)
        if out is not None and out.is_dir():
            fail(f"--out: {out} is a folder; expected a file.", status=2)
        if calls is not None and shapes is None:
            fail("--calls: expected --shapes too, which says from what to draw.", status=2)
        sizes = read_sizes(shapes, specs or [], make, calls or 100) if shapes is not None else None
        options = {"ways": way or None, "seconds": seconds}
        report = _measured(target, specs or [], make, sizes, older, **options)
    except GfxGraphError as error:
        fail(str(error), status=2)
    unwritten = ""
    if out is not None:
        try:
            report.to_json(out)
        except GfxGraphError as error:  # said after what was measured
            unwritten = str(error)
    changes = report.compare(older) if older is not None else None
    if as_json:
        more = {} if changes is None else {"changes": [asdict(change) for change in changes]}
        typer.echo(json_of({**report.to_dict(), **more}))
    else:
        typer.echo(str(report))
    if older is not None and changes is not None and not as_json:
        if older.setting != report.setting:
            typer.echo("\n" + filled(f"The older report is of {older.setting}."))
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
    if unwritten:
        fail(unwritten, status=2)


@dataclass(frozen=True)
class Sizes:
    """What ``--shapes`` asks for: a name in the arguments, and the sizes that it stands for."""

    name: str
    first: int
    drawn: list[int]

    def traffic(self, specs: list[str]) -> list[tuple[Any, ...]]:
        """The positional arguments of the calls that were drawn, on the device."""
        from ..analyze.targets import arguments
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
    used = sum(weight > 0 for weight in weights.values())
    if not name.strip().isidentifier() or used < 2 or not math.isfinite(sum(weights.values())):
        fail(
            f"--shapes {text!r}: expected a name and at least two sizes, with weights where they "
            "differ: N=1:50,7:30,64:20.",
            status=2,
        )
    drawn = Random(0).choices(list(weights), list(weights.values()), k=calls)
    if len(set(drawn)) < 2:
        fail(
            f"--shapes: all {calls} calls that were drawn have the size {drawn[0]}. Ask for more "
            "--calls, or give weights that differ less.",
            status=2,
        )
    found = Sizes(name.strip(), next(iter(weights)), drawn)
    changed = [a for a, b in zip(specs, found.put_into(specs, 1), strict=True) if a != b]
    if make or not changed:
        fail(f"--shapes: {name} is no size of an argument, such as float32[{name},8].", status=2)
    if any("=" in spec for spec in changed):
        fail(f"--shapes: expected {name} in positional arguments only.", status=2)
    return found


def _measured(
    target: str,
    specs: list[str],
    make: str | None,
    sizes: Sizes | None,
    older: BenchReport | None,
    **options: Any,
) -> BenchReport:
    """Load what the command line names, and measure."""
    from ..interpose.source import name_of
    from ..measure.bench import bench
    from ..measure.ways import unwrapped

    def work(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], progress: Any) -> BenchReport:
        if older is not None:
            older.require_function(name_of(unwrapped(fn)))
        if sizes:
            options["traffic"] = sizes.traffic(specs)
        return bench(fn, *args, kwargs=kwargs, progress=progress, **options)

    given = sizes.put_into(specs, sizes.first) if sizes else specs
    return on_target(target, given, make, work)
