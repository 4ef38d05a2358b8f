"""``gfxgraph run``."""

from __future__ import annotations

from typing import Annotated

import typer

from .common import fail

__all__ = ["run"]


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
    from ..doctor.launch import prepared, refuse, start
    from ..errors import GfxGraphError

    try:
        refuse(target, module)
        environ = prepared()
    except GfxGraphError as error:
        fail(str(error), status=2)
    start(target, args or [], environ, module=module)
