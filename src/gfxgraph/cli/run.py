"""``gfxgraph run``."""

from __future__ import annotations

from typing import Annotated

import typer

from .common import fail

__all__ = ["run"]


def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT|COMMAND|MODULE",
            help="The script, command of an installed package (such as vllm) or module to run.",
        ),
    ],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGUMENT...", help="Its arguments.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="Run a module, as with python -m.")] = False,
    emulate: Annotated[
        bool, typer.Option("--emulate", help="Run code that says cuda on a machine without a GPU.")
    ] = False,
) -> None:
    """Run a program with gfxgraph enabled and the recommended variables set.

    The variables are set before the program starts; those that are set already keep their values.
    Everything else is as with python. With --emulate the program and the processes that it starts
    find an emulated GPU (docs/emulate.md); on a machine with a GPU this is refused.
    """
    from ..doctor.launch import prepared, refuse, start
    from ..errors import GfxGraphError
    from ..simulate.emulation import refuse_on_a_gpu

    try:
        refuse(target, module)
        if emulate:
            refuse_on_a_gpu()
        environ = prepared() | ({"GFXGRAPH_EMULATE": "1"} if emulate else {})
    except GfxGraphError as error:
        fail(str(error), status=2)
    start(target, args or [], environ, module=module)
