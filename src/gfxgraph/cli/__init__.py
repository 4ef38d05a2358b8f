"""The command ``gfxgraph``: a file for each of its commands.

torch, transformers and modules that import them are imported inside the commands, so that
``--help`` stays quick.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Iterator
from platform import python_version
from typing import Annotated

import typer

from .bench import bench
from .check import check
from .common import App, fail
from .demo import demo
from .doctor import doctor
from .env import env
from .experiment import experiment
from .helping import Command, Group
from .inspect import inspect
from .lint import lint
from .metrics import metrics
from .parity import parity
from .report import report
from .run import run
from .trace import trace
from .verify import verify

__all__ = ["app"]

app = App(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


_WITHOUT_TORCH = {"lint"}


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo("\n".join(_versions()))
        raise typer.Exit


def _versions() -> Iterator[str]:
    """gfxgraph, what it runs with, and on what."""
    from importlib.util import find_spec

    from .. import __version__

    yield f"gfxgraph  {__version__}"
    yield f"python    {python_version()} ({sys.platform})"
    if find_spec("torch") is None:
        yield "torch     not installed"
        return
    import torch

    from ..device import current_device
    from ..errors import GfxGraphError

    yield f"torch     {torch.__version__}"
    try:
        facts = current_device().facts(0)
    except GfxGraphError as error:
        yield f"device    {error}"
        return
    emulated = "emulated on " if facts.vendor == "emulated" else ""
    yield f"device    {emulated}{facts.name or facts.vendor} ({facts.arch})"


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Show the versions of gfxgraph, Python and torch, and the device.",
        ),
    ] = False,
) -> None:
    """Run any PyTorch inference function as a CUDA or HIP graph."""
    from .. import _start
    from ..tables import WIDTH, fit

    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        fit(shutil.get_terminal_size().columns)
        context.call_on_close(functools.partial(fit, WIDTH))
    from ..errors import SettingError, TorchVersionError

    if context.invoked_subcommand in _WITHOUT_TORCH:
        return
    try:
        _start()
    except TorchVersionError as error:
        fail(str(error), status=2)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        command = context.invoked_subcommand
        fail(f"gfxgraph {command} needs torch, which is not installed here.", status=2)
    except SettingError as error:
        if context.invoked_subcommand != "doctor":
            fail(str(error), status=2)


for _command in (
    demo,
    check,
    verify,
    bench,
    trace,
    experiment,
    inspect,
    report,
    lint,
    doctor,
    parity,
    env,
):
    app.command(cls=Command)(_command)
app.add_typer(metrics, name="metrics")
app.command(
    cls=Command,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[--emulate] [-m]",
)(run)
