"""``gfxgraph metrics``."""

from __future__ import annotations

import json

import typer

__all__ = ["metrics"]

metrics = typer.Typer(no_args_is_help=True, help="Metrics of servers, for Prometheus and Grafana.")


@metrics.callback()
def _group() -> None:
    """Metrics of servers, for Prometheus and Grafana."""


@metrics.command()
def dashboard() -> None:
    """Print a dashboard for Grafana, as JSON.

    gfxgraph metrics dashboard > gfxgraph.json, and in Grafana: Dashboards, New, Import.
    """
    from ..metrics import dashboard

    typer.echo(json.dumps(dashboard(), indent=2))
