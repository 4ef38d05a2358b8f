"""``gfxgraph lint``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import DocsUrl, Sarif, fail, one_document, write_sarif

__all__ = ["lint"]


def lint(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Files and folders of source code.")
    ],
    select: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="RULE,...", help="Check only these rules."),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="RULE,...", help="Skip these rules.")
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="PATTERN",
            help="Skip these files and folders, such as 'tests' or '*_pb2.py'.",
        ),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            metavar="SEVERITY",
            help="Exit with status 1 from this severity on: error, warning, note or never. "
            "[default: warning]",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            metavar="FILE",
            help="Report only what this file of findings does not hold.",
        ),
    ] = None,
    write_baseline: Annotated[
        Path | None,
        typer.Option(
            "--write-baseline", metavar="FILE", help="Write the findings to a baseline; status 0."
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", metavar="COUNT", min=0, help="How many processes read; 0: one a core."
        ),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    sarif: Sarif = None,
    docs_url: DocsUrl = None,
) -> None:
    """Check source code without running it; needs no GPU and no torch.

    Options come from [tool.gfxgraph.lint] of pyproject.toml where they are not given. The comment
    "# gfxgraph: ignore" on a line suppresses its findings, "# gfxgraph: ignore[RULE]" those of a
    rule.

    Status 0: no finding of --fail-on or worse; 1: there is one; 2: a wrong argument or setting.
    """
    from rich.console import Console

    from ..analyze.lint import LINT_RULES
    from ..analyze.lint import lint as run
    from ..analyze.lint_settings import FAIL_ON, new_findings, settings_from
    from ..analyze.lint_settings import write_baseline as write
    from ..analyze.view import show_findings
    from ..errors import GfxGraphError

    one_document(as_json, sarif)
    if fail_on is not None and fail_on not in FAIL_ON:
        fail(f"--fail-on {fail_on!r}: expected one of {', '.join(FAIL_ON)}.", status=2)
    stale = known = 0
    try:
        settings = settings_from(_here())
        found = findings = run(
            paths,
            select=_listed(select) if select else settings.select,
            ignore=_listed(ignore) if ignore else settings.ignore,
            exclude=exclude or settings.exclude,
            jobs=jobs or _cores(),
        )
        if write_baseline is not None:
            write(write_baseline, findings)
            count = len(findings)
            typer.echo(f"{count} finding{'s' * (count != 1)} in {write_baseline}.", err=True)
            raise typer.Exit
        baseline = baseline or settings.baseline
        if baseline is not None:
            findings, stale = new_findings(baseline, found)
            known = len(found) - len(findings)
    except GfxGraphError as error:
        fail(str(error), status=2)
    if as_json:
        typer.echo(json.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        show_findings(findings, Console(stderr=sarif == "-"), known=known)
    if stale:
        typer.echo(
            f"{stale} of {baseline} no longer there: write it again with --write-baseline.",
            err=True,
        )
    if sarif:
        write_sarif(sarif, findings, LINT_RULES, docs_url)
    least = FAIL_ON.index(fail_on or settings.fail_on)
    raise typer.Exit(any(FAIL_ON.index(finding.severity) <= least < 3 for finding in findings))


def _listed(given: list[str]) -> list[str]:
    """Rules that came apart, or with commas between them."""
    return [rule.strip() for one in given for rule in one.split(",") if rule.strip()]


def _here() -> Path:
    try:
        return Path.cwd()
    except OSError:
        fail("The current folder does not exist any more.", status=2)


def _cores() -> int:
    """How many cores this process may use."""
    affinity: Any = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
