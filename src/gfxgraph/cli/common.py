"""Shared by the commands: options, output that may be closed, errors."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO, TypeAlias, TypeVar

import typer

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ..analyze.lint_rules import LintRule
    from ..analyze.sarif import Item
    from ..record.rules import Rule

__all__ = [
    "NO_GRAPH",
    "App",
    "DocsUrl",
    "Make",
    "PlatformFile",
    "RequireGraph",
    "Sarif",
    "Target",
    "fail",
    "on_target",
    "one_document",
    "write_sarif",
]


Result = TypeVar("Result")


class _Pipe(io.FileIO):
    """Standard output that may be closed; ``gfxgraph ... | head`` keeps the status."""

    def write(self, data: Buffer) -> int:
        """Write ``data``, unless the reader has closed the pipe."""
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            return memoryview(data).nbytes

    @classmethod
    def instead_of(cls, stream: TextIO) -> TextIO:
        """``stream``, wrapped in such an object if it is a file or a pipe."""
        try:
            number = stream.fileno()
        except (AttributeError, OSError, ValueError):  # none, or one in memory
            return stream
        stream.flush()
        return io.TextIOWrapper(
            io.BufferedWriter(cls(number, "w", closefd=False)),
            stream.encoding,
            "backslashreplace",  # a terminal may not know all characters of the source
            line_buffering=stream.isatty(),
        )


class App(typer.Typer):
    """A command line whose reader may close its output."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command of ``sys.argv``."""
        sys.stdout, sys.stderr = map(_Pipe.instead_of, (sys.stdout, sys.stderr))
        return super().__call__(*args, **kwargs)


Target: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="module:callable or file.py:callable, such as my_policy:act, my_policy.py:act, "
        "'my_policy:Policy(scale=0.5).act' or 'my_policy:make_model()'.",
    ),
]
Make: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--make",
        metavar="TARGET",
        help="A function that returns the arguments instead: a tuple of them, or (args, kwargs), "
        "a tuple and a dict. Such as my_policy:example.",
    ),
]
Sarif: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--sarif",
        metavar="FILE",
        help="Also write SARIF 2.1.0, for code review; with '-' to standard output, and all other "
        "output to standard error.",
    ),
]
DocsUrl: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--docs-url",
        metavar="URL",
        help="Address of the docs that SARIF links to. [default: where gfxgraph comes from]",
    ),
]
RequireGraph: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--require-graph", help="Exit with status 3 if calls would not be replays of a graph."
    ),
]
NO_GRAPH = 3

PlatformFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--platform",
        metavar="FILE",
        help="Check another machine: a JSON file with vendor, arch, rocm, torch ..., or the "
        "output of doctor --json there.",
    ),
]


def one_document(as_json: bool, sarif: str | None) -> None:
    """Exit if two documents would be on standard output."""
    if as_json and sarif == "-":
        fail("--json and --sarif - would both be on standard output.", status=2)


def write_sarif(
    file: str,
    items: Iterable[Item],
    rules: Mapping[str, Rule | LintRule],
    docs: str | None = None,
) -> None:
    """Write findings as SARIF to ``file``, or to standard output (``"-"``)."""
    from .. import __version__
    from ..analyze.addresses import docs_address
    from ..analyze.sarif import to_sarif
    from ..tables import write_text

    log = to_sarif(items, rules, __version__, docs=docs or docs_address())
    text = json.dumps(log, indent=2)
    if file == "-":
        typer.echo(text)
        return
    try:
        write_text(file, f"{text}\n")
    except OSError as error:
        fail(f"--sarif: {error}", status=2)


def on_target(
    target: str, specs: list[str], make: str | None, work: Callable[..., Result]
) -> Result:
    """Load what the command line names, show progress, and work on it.

    An error of the target, and a wrong argument, end the command with status 2.

    Args:
        target: see ``Target``.
        specs: the arguments of a call.
        make: see ``Make``; in place of ``specs``.
        work: gets the function, the arguments in a tuple and a dict, on the device, and what shows
            progress.
    """
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from ..analyze.targets import arguments, fit, load, made
    from ..device import current_device
    from ..errors import GfxGraphError, one_line
    from ..interpose.source import is_raised_by_code, users_line_of
    from ..verifying.inputs import on_device

    torch.manual_seed(0)
    device = current_device().type
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    try:
        with (
            redirect_stdout(sys.stderr),  # what modules print when they are loaded
            Progress(*columns, console=Console(stderr=True), transient=True) as shown,
        ):
            task = shown.add_task("loading", total=1.0)
            fn = on_device(load(target), device)
            args, kwargs = on_device(made(make) if make else arguments(specs), device)
            fit(fn, args, kwargs)

            def progress(what: str, share: float) -> None:
                shown.update(task, description=what, completed=share)

            return work(fn, args, kwargs, progress)
    except GfxGraphError as error:
        fail(str(error), status=2)
    except BaseException as error:  # eager's own
        if not is_raised_by_code(error):
            raise
        fail(f"{target} raises {one_line(error)} ({users_line_of(error)}).", status=2)


def fail(message: str, status: int = 1) -> NoReturn:
    """Print an error and exit."""
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(status)
