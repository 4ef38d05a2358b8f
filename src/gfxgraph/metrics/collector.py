"""The collector: the counters of the process as metrics of Prometheus."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..call import timing
from ..errors import MissingPackageError
from ..stats import TIMES, CallableCounts, printable, tally

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["Collector", "prometheus"]

# Metric, attribute of CallableCounts, help. Names of counters get "_total".
_COUNTERS = (
    ("captures", "captures", "Graphs captured."),
    ("capture_failures", "capture_failures", "Tries to capture that gave no graph."),
    ("replays", "replays", "Replays of graphs."),
    ("bucket_elements_needed", "needed", "Elements that calls of buckets asked for."),
    (
        "bucket_elements_computed",
        "computed",
        "Elements computed for calls of buckets, padding included.",
    ),
)
_BOUNDS = [*(repr(ns / 1e9) for ns in TIMES), "+Inf"]


def prometheus() -> Any:
    """The package ``prometheus_client``.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        import prometheus_client
    except ImportError as error:
        raise MissingPackageError(
            f"metrics need the package prometheus-client, which cannot be imported ({error}): "
            "pip install prometheus-client"
        ) from error
    return prometheus_client


class Collector:
    """The metrics of all graphs of this process, for a registry of ``prometheus_client``.

    >>> registry.register(gfxgraph.metrics.Collector())

    From the first collector on, one call in 61 of each graph is timed, for
    ``gfxgraph_replay_host_seconds``. Everything else was counted before as well. A registry takes
    one collector: its ``register()`` refuses another with a ``ValueError`` that lists the names.

    Raises:
        MissingPackageError: prometheus-client is not installed.
    """

    def __init__(self) -> None:
        self._families = prometheus().metrics_core
        timing.switch(True)

    def describe(self) -> list[Metric]:
        """The metrics without callables, which tell a registry their names."""
        return list(self._metrics({}, {}, {}))

    def collect(self) -> Iterator[Metric]:
        """The metrics now. Nothing is asked of the device, and no capture is waited for."""
        return self._metrics(tally.by_callable(), *_held())

    def _metrics(
        self, found: dict[str, CallableCounts], graphs: dict[str, int], pools: dict[str, int]
    ) -> Iterator[Metric]:
        families = self._families

        def each(kind: Callable[..., Any], name: str, about: str, of: Mapping[str, int]) -> Metric:
            metric = kind(f"gfxgraph_{name}", about, labels=["callable"])
            for who, value in of.items():
                metric.add_metric([who], value)
            return metric  # type: ignore[no-any-return]

        for name, attribute, about in _COUNTERS:
            rows = ((who, getattr(counts, attribute)) for who, counts in found.items())
            is_of_buckets = name.startswith("bucket")
            values = {who: value for who, value in rows if value or not is_of_buckets}
            yield each(families.CounterMetricFamily, name, about, values)
        fallbacks = families.CounterMetricFamily(
            "gfxgraph_fallbacks",
            "Calls that ran eagerly although a graph was asked for.",
            labels=["callable", "reason"],
        )
        times = families.HistogramMetricFamily(
            "gfxgraph_replay_host_seconds",
            "Host time of calls that a replay answered, of a sample of them.",
            labels=["callable"],
        )
        launches = families.SummaryMetricFamily(
            "gfxgraph_launch_host_seconds",
            "Host time until a replay was launched: of each replay by hand, and of the first one "
            "of each other graph.",
            labels=["callable"],
        )
        for who, counts in found.items():
            for reason, calls in counts.fallbacks.items():
                fallbacks.add_metric([who, reason], calls)
            if any(counts.times):
                buckets = list(zip(_BOUNDS, itertools.accumulate(counts.times), strict=True))
                times.add_metric([who], buckets, sum_value=counts.times_ns / 1e9)
            if counts.launches:
                launches.add_metric([who], counts.launches, counts.launch_ns / 1e9)
        yield from (fallbacks, times, launches)
        yield families.CounterMetricFamily(
            "gfxgraph_validation_failures",
            "Replays that differed from eager execution.",
            value=tally.snapshot()["validation_failures"],
        )
        gauge = families.GaugeMetricFamily
        yield each(gauge, "graphs", "Graphs that callables hold.", graphs)
        about = "Bytes of the memory pools of graphs, as measured at the captures."
        yield each(gauge, "memory_pool_bytes", about, pools)


def _held() -> tuple[dict[str, int], dict[str, int]]:
    """The graphs, and the bytes of their memory pools, by callable."""
    graphs: dict[str, int] = {}
    users: dict[Any, set[str]] = {}
    for holder in timing.holders():
        entries, label = holder.graphs().values(), tally.label(holder.name)
        graphs[label] = graphs.get(label, 0) + len(entries)
        for entry in entries:
            users.setdefault(entry.graph_pool, set()).add(label)
    pools: dict[str, int] = {}
    for graph_pool, labels in users.items():
        # Branches of a ConditionalGraph share one, which is counted once.
        label = printable("+".join(sorted(labels)))
        pools[label] = pools.get(label, 0) + graph_pool.held_bytes()
    return graphs, pools
