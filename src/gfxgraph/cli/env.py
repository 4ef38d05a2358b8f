"""``gfxgraph env``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from .common import PlatformFile, fail

__all__ = ["env"]


def env(
    platform: PlatformFile = None,
    shell: Annotated[
        str,
        typer.Option(
            "--shell",
            metavar="SHELL",
            help="Syntax of the lines: sh (also bash, zsh), fish or powershell.",
        ),
    ] = "sh",
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """Print the environment variables to set here, as shell lines.

    Each comes with its reason and its source. Most machines need none.

    eval "$(gfxgraph env)" sets them in sh, bash and zsh.
    """
    from ..device.platform import read_platform, this_platform
    from ..doctor.environment import SHELLS, recommended, remarks, script
    from ..errors import GfxGraphError

    if shell not in SHELLS:
        fail(f"--shell takes {', '.join(SHELLS)}, not {shell!r}.", status=2)
    try:
        machine = read_platform(platform) if platform else this_platform()
    except GfxGraphError as error:
        fail(str(error), status=2)
    if as_json:
        found = {
            "schema": 1,
            "recommended": [asdict(one) for one in recommended(machine)],
            "no_effect": [asdict(one) for one in remarks(machine)],
        }
        typer.echo(json.dumps(found, indent=2))
    else:
        typer.echo(script(machine, shell))
