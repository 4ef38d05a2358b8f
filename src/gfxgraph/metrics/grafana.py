"""The dashboard for Grafana, made of a table of panels."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["dashboard"]

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_PROCESSES = 'job=~"$job", instance=~"$instance"'
_CALLABLES = f'{_PROCESSES}, callable=~"$callable"'
_WIDTH, _HEIGHT, _COLUMNS = 12, 8, 24  # of a panel; of the grid


class _Panel(NamedTuple):
    """Lines over time: expressions, and what the legend calls each. Below 0 there is nothing."""

    title: str
    unit: str
    about: str
    lines: tuple[tuple[str, str], ...]


def _rate(name: str, by: str = "", selected: str = _CALLABLES) -> str:
    """The rate of a counter per second, summed over all labels except those in ``by``."""
    rate = f"(rate(gfxgraph_{name}{{{selected}}}[$__rate_interval]))"
    return f"sum by ({by}) {rate}" if by else f"sum {rate}"


def _quantile(share: float) -> str:
    return f"histogram_quantile({share}, {_rate('replay_host_seconds_bucket', 'callable, le')})"


def _increase(name: str, by: str = "callable", selected: str = _CALLABLES) -> str:
    return f"sum by ({by}) (increase(gfxgraph_{name}{{{selected}}}[$__rate_interval]))"


_EACH = "{{callable}}"
_PANELS = (
    _Panel(
        "Replays",
        "ops",
        "Replays of graphs in a second.",
        ((_rate("replays_total", "callable"), _EACH),),
    ),
    _Panel(
        "Share of calls that ran eagerly",
        "percentunit",
        "Fallbacks, of all fallbacks and replays.",
        (
            (
                f"{_rate('fallbacks_total', 'callable')} / "
                f"({_rate('fallbacks_total', 'callable')} + {_rate('replays_total', 'callable')})",
                _EACH,
            ),
        ),
    ),
    _Panel(
        "Fallbacks by reason",
        "ops",
        "Calls in a second that ran eagerly although a graph was asked for.",
        ((_rate("fallbacks_total", "callable, reason"), "{{callable}}: {{reason}}"),),
    ),
    _Panel(
        "Captures",
        "short",
        "Graphs captured. In a server that is warm there are none.",
        ((_increase("captures_total"), _EACH),),
    ),
    _Panel(
        "Capture failures",
        "short",
        "Tries to capture that gave no graph.",
        ((_increase("capture_failures_total"), _EACH),),
    ),
    _Panel(
        "Validation failures",
        "short",
        "Replays that differed from eager execution. There should be none.",
        ((_increase("validation_failures_total", "instance", _PROCESSES), "{{instance}}"),),
    ),
    _Panel(
        "Host time of a replay",
        "s",
        "Median and 99th percentile of a sample of the calls.",
        ((_quantile(0.5), f"{_EACH} p50"), (_quantile(0.99), f"{_EACH} p99")),
    ),
    _Panel(
        "Host time until the launch",
        "s",
        "Mean over replays by hand, and over the first replay of each graph.",
        (
            (
                f"{_rate('launch_host_seconds_sum', 'callable')} / "
                f"{_rate('launch_host_seconds_count', 'callable')}",
                _EACH,
            ),
        ),
    ),
    _Panel(
        "Padding",
        "percentunit",
        "Share of the elements computed that nobody asked for.",
        (
            (
                f"1 - {_rate('bucket_elements_needed_total', 'callable')} / "
                f"{_rate('bucket_elements_computed_total', 'callable')}",
                _EACH,
            ),
        ),
    ),
    _Panel(
        "Memory pools",
        "bytes",
        "Bytes of the memory pools of graphs.",
        (
            (
                f"sum by (instance, callable) (gfxgraph_memory_pool_bytes{{{_PROCESSES}}})",
                "{{instance}} {{callable}}",
            ),
        ),
    ),
    _Panel(
        "Graphs",
        "short",
        "Graphs that callables hold.",
        ((f"sum by (callable) (gfxgraph_graphs{{{_CALLABLES}}})", _EACH),),
    ),
)


def dashboard() -> dict[str, Any]:
    """A dashboard with all metrics, as Grafana imports it; it asks for a data source."""
    return {
        "title": "gfxgraph",
        "uid": "gfxgraph",
        "description": "CUDA and HIP graphs: replays, fallbacks and their reasons, captures, "
        "host time, padding, memory.",
        "tags": ["gfxgraph"],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,  # one crosshair in all panels
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_data_source(), *map(_variable, ("job", "instance", "callable"))]},
        "panels": [_panel(number, panel) for number, panel in enumerate(_PANELS)],
    }


def _data_source() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
        "refresh": 1,
    }


def _variable(label: str) -> dict[str, Any]:
    """A choice among the values of a label; all of them to begin with."""
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values(gfxgraph_replays_total, {label})",
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "hide": 0,
        "refresh": 2,  # also when another time is chosen
        "sort": 1,
    }


def _panel(number: int, panel: _Panel) -> dict[str, Any]:
    row, column = divmod(number * _WIDTH, _COLUMNS)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": {"x": column, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + n), "datasource": _SOURCE, "expr": expr, "legendFormat": text}
            for n, (expr, text) in enumerate(panel.lines)
        ],
    }
