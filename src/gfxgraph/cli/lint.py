"""``gfxgraph lint``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .common import Sarif, fail, one_document, write_sarif

__all__ = ["lint"]


def lint(
    paths: Annotated[list[Path], typer.Argument(help="Files and folders of source code.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    sarif: Sarif = None,
) -> None:
    """Check source code without running it. Status 1: there are findings."""
    from rich.console import Console

    from ..analyze.lint import LINT_RULES, lint
    from ..analyze.view import show_findings
    from ..errors import GfxGraphError

    one_document(as_json, sarif)
    try:
        findings = lint(paths)
    except GfxGraphError as error:
        fail(str(error), status=2)
    if as_json:
        typer.echo(json.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        show_findings(findings, Console(stderr=sarif == "-"))
    if sarif:
        write_sarif(sarif, findings, LINT_RULES)
    raise typer.Exit(bool(findings))
