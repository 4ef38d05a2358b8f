"""What an endpoint for Prometheus says."""

from __future__ import annotations

from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["read"]


def read(url: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples of a scrape: name and labels -> value."""
    with urlopen(url, timeout=30) as response:
        text = response.read().decode("utf-8")
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"{key} comes twice"
            found[key] = sample.value
    return found
