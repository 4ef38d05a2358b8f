"""``gfxgraph doctor``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .common import PlatformFile, fail

__all__ = ["doctor"]


def doctor(
    platform: PlatformFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Describe this machine and the known problems of its graphs.

    It captures and replays a small graph in a separate process.

    Status 0: nothing above info; 1: warnings; 2: errors, also in the options.
    """
    from rich.console import Console

    from ..device.platform import read_platform
    from ..doctor.doctor import diagnose, saved_health
    from ..doctor.probe import probe
    from ..doctor.view import show
    from ..errors import GfxGraphError

    try:
        if platform:
            diagnosis = diagnose(read_platform(platform), saved=saved_health(platform))
        else:
            diagnosis = diagnose(None, probe())
    except GfxGraphError as error:
        fail(str(error), status=2)
    if as_json:
        typer.echo(json.dumps(diagnosis.to_dict(), indent=2))
    else:
        show(diagnosis, Console())
    raise typer.Exit(diagnosis.status)
