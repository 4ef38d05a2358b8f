"""The command ``gfxgraph``: a file for each of its commands.

torch, transformers and modules that import them are imported inside the commands, so that
``--help`` stays quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

from .bench import bench
from .check import check
from .common import App, fail
from .demo import demo
from .doctor import doctor
from .env import env
from .experiment import experiment
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
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


_WITHOUT_TORCH = {"lint"}


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

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
    from .. import _start
    from ..errors import SettingError, TorchVersionError

    if context.invoked_subcommand in _WITHOUT_TORCH:
        return
    try:
        _start()
    except TorchVersionError as error:
        fail(str(error), status=2)
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
    app.command()(_command)
app.add_typer(metrics, name="metrics")
app.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[--emulate] [-m]",
)(run)
