"""Metrics for Prometheus, and a dashboard for Grafana.

They need ``pip install prometheus-client``; importing this module does not.

>>> registry.register(gfxgraph.metrics.Collector())  # a registry of yours
>>> server = gfxgraph.metrics.serve(port=9100)  # or an endpoint of its own

docs/metrics.md lists what is exported.
"""

from __future__ import annotations

from .collector import Collector
from .grafana import dashboard
from .server import Server, serve

__all__ = ["Collector", "Server", "dashboard", "serve"]
