"""The dashboard: what Grafana takes, and only metrics that are exported."""

from __future__ import annotations

import itertools
import json
import re

import pytest
import torch

import gfxgraph
from tests.helpers.processes import python
from tests.helpers.scrape import read


@pytest.fixture(scope="module")
def dashboard():
    """As the command prints it."""
    done = python("-m", "gfxgraph", "metrics", "dashboard")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def expressions(dashboard):
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_the_command_prints_what_the_function_gives(dashboard):
    assert dashboard == gfxgraph.metrics.dashboard()


def test_every_field_is_one_of_the_schema_of_grafana(dashboard):
    """Its Python types, made of that schema, drop what they do not know."""
    schema = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    known = json.loads(json.dumps(schema.Dashboard.from_json(dashboard), cls=JSONEncoder))
    for name, value in dashboard.items():
        if name != "panels":
            assert contains(known[name], value), name
    for panel, ours in zip(known["panels"], dashboard["panels"], strict=True):
        assert contains(panel, {k: v for k, v in ours.items() if k != "targets"}), ours["title"]


def contains(known, ours):
    if isinstance(ours, dict):
        return all(name in known and contains(known[name], value) for name, value in ours.items())
    if isinstance(ours, list):
        return len(known) == len(ours) and all(map(contains, known, ours))
    return known == ours


def test_queries_and_options_are_those_of_prometheus_and_of_the_panel(dashboard):
    prometheus = pytest.importorskip("grafana_foundation_sdk.models.prometheus")
    timeseries = pytest.importorskip("grafana_foundation_sdk.models.timeseries")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    for panel in dashboard["panels"]:
        options = timeseries.Options.from_json(panel["options"])
        assert contains(json.loads(json.dumps(options, cls=JSONEncoder)), panel["options"])
        for target in panel["targets"]:
            query = prometheus.Dataquery.from_json(target)
            assert contains(json.loads(json.dumps(query, cls=JSONEncoder)), target)


def test_panels_have_ids_of_their_own_and_do_not_overlap(dashboard):
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len({p["title"] for p in panels})
    assert len(panels) == len({panel["id"] for panel in panels}) > 10
    places = [panel["gridPos"] for panel in panels]
    for place in places:
        assert place["x"] >= 0 and place["w"] > 0 and place["x"] + place["w"] <= 24
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below


def test_everything_asks_the_chosen_data_source(dashboard):
    variables = dashboard["templating"]["list"]
    assert variables[0]["type"] == "datasource" and variables[0]["query"] == "prometheus"
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels = dashboard["panels"]
    asked = [*variables[1:], *panels, *(target for panel in panels for target in panel["targets"])]
    assert all(one["datasource"] == source for one in asked)
    known = {variable["name"] for variable in variables} | {"__rate_interval"}
    assert set(re.findall(r"\$\{?(\w+)", " ".join(expressions(dashboard)))) <= known
    for panel in panels:
        assert [t["refId"] for t in panel["targets"]] == ["A", "B", "C"][: len(panel["targets"])]


def test_expressions_use_all_metrics_that_are_exported_and_no_others(dashboard, server, device):
    graph = gfxgraph.graphed(lambda x: x.cpu().numpy())
    pool = gfxgraph.ShapeBucketPool(lambda x: x * 2, buckets=[4])
    with torch.no_grad():
        for _ in range(12):
            graph(torch.ones(2, device=device)), pool(torch.ones(2, device=device))
    labels = {}
    for name, found in read(server.url):
        labels.setdefault(name, set()).update(name for name, _ in found)
    used = set()
    for expression in expressions(dashboard):
        assert expression.count("(") == expression.count(")")
        for name, selected in re.findall(r"(gfxgraph_\w+)\{([^}]*)\}", expression):
            used.add(name)
            assert set(re.findall(r"(\w+)=~", selected)) <= labels[name] | {"job", "instance"}
        by = [set(names.split(", ")) for names in re.findall(r"by \(([^)]*)\)", expression)]
        of = labels[re.findall(r"gfxgraph_\w+", expression)[0]]
        assert all(names <= of | {"instance"} for names in by)
    assert used <= labels.keys()
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in labels}
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in used} == families


def test_the_page_lists_every_metric(server):
    from tests.helpers.paths import ROOT

    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    families = gfxgraph.metrics.Collector().describe()
    names = {f.name + ("_total" if f.type == "counter" else "") for f in families}
    assert {name for name in names if f"| `{name}" not in page} == set()
    assert set(re.findall(r"^\| `(gfxgraph_\w+)", page, re.MULTILINE)) == names
