"""Notebooks show reports as tables, and those among the examples run."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import gfxgraph
from gfxgraph.compiling.breaks import Break, Region
from gfxgraph.inspecting.model import GraphNode, InspectedGraph
from gfxgraph.measure.report import WayReport
from gfxgraph.measure.timing import Interval, Percentiles
from gfxgraph.measure.trace_rows import HotOperator, WayTrace
from gfxgraph.recipes.report import RecipeRow
from gfxgraph.tables import Sections
from gfxgraph.verifying.report import OutputErrors, VerifyResult
from tests.helpers.paths import ROOT, SOURCE

NOTEBOOKS = {"walkthrough": 8, "first_graph": 4}  # name -> reports that it shows
EVIL = "<script>alert(1)</script>&\"'"
HERE = {"device": "NVIDIA H200", "emulated": False, "torch": "2.11.0", "gfxgraph": "0.1.0"}


class Read(HTMLParser):
    """Which elements there are, and the words of the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open, "an element is not closed"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag != "br":
            self.open.append(tag)
        assert all(name == "style" for name, _ in attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += f"{data} "


def stats():
    graph = gfxgraph.graphed(lambda x, what: x * 2)
    with torch.no_grad():
        for _ in range(3):
            graph(torch.ones(3, device=gfxgraph.device_type()), EVIL)
    return graph.stats()


def bench():
    times, gain = Percentiles(541.0, 600.0, 700.0), Interval(4.49, 4.45, 4.53)
    way = WayReport("graph", "ok", EVIL, end_to_end_us=times, speedup=gain)
    eager = WayReport("eager", "ok", end_to_end_us=Percentiles(2432.0, 2500.0, 2600.0))
    ways = (eager, way)
    return gfxgraph.BenchReport(EVIL, (), **HERE, seconds=1.0, changes_state=False, ways=ways)


def trace():
    ways = (WayTrace("eager", "ok", EVIL), WayTrace("graph", "ok", calls=3, idle=0.25))
    operators = (HotOperator(EVIL, 7, 12.5, True, None),)
    known = {"python": "3.12", "seconds": 1.0, "changes_state": False, "speedup": 2.0}
    return gfxgraph.TraceReport(
        EVIL, (), **HERE, **known, ways=ways, operators=operators, operations=7
    )


def inspected(name=EVIL):
    nodes = (GraphNode("0", "kernel", name, (), 0, {}), GraphNode("1", "memcpy", "", ("0",), 0, {}))
    return gfxgraph.InspectReport(EVIL, **HERE, graphs=(InspectedGraph(EVIL, nodes),))


def verified():
    row = OutputErrors(EVIL, "output", "float32", 1e-4, 0.25, 0.125, 0.5, None)
    result = VerifyResult("The graph", 4, True, 4, "", {EVIL: 2}, (row,), (), (), None)
    return gfxgraph.VerifyReport(EVIL, "cuda", "2.11.0", 2, 0, result)


def experiment():
    return gfxgraph.ExperimentReport(
        name="smoke",
        question="are they alike?",
        function=EVIL,
        shows="All of it.",
        rows=({"check_of": EVIL, "found": 20, "holds": True},),
        conclusion="20 replays are alike.",
        holds=True,
        notes=(EVIL,),
        machine={"device": "NVIDIA H200"},
        versions={"torch": "2.11.0"},
    )


REPORTS = {
    "stats": stats,
    "branches": lambda: Sections({EVIL: stats()}),
    "bench": bench,
    "trace": trace,
    "inspect": inspected,
    "diff": lambda: inspected("a").diff(inspected()),
    "verify": verified,
    "experiment": experiment,
    "recipes": lambda: gfxgraph.RecipeReport(EVIL, [RecipeRow("f", EVIL, "captured", "", 41)]),
    "breaks": lambda: gfxgraph.BreakReport(
        EVIL, (Region("f", "a.py", 3, 4),), (Break("a.py", 5, "f", EVIL, EVIL),), 0, 4
    ),
    "page": lambda: gfxgraph.ReportPage(Path(EVIL), ("a.json",), ()),
}


@pytest.mark.parametrize("kind", REPORTS)
def test_a_notebook_shows_every_word_that_is_printed(kind, device):
    report = REPORTS[kind]()
    shown = Read(report._repr_html_())
    assert set(str(report).split()) <= set(shown.text.split())
    assert "<script>" in str(report), "the hostile name is in the report"
    assert set(shown.tags) <= {"div", "pre", "table", "tr", "th", "td"}


@pytest.mark.parametrize("kind", ["stats", "bench", "trace", "inspect", "verify", "experiment"])
def test_figures_stand_in_cells_of_a_table(kind, device):
    html = REPORTS[kind]()._repr_html_()
    figure = {
        "stats": "2",
        "bench": "541.0",
        "trace": "12.5",
        "inspect": "memcpy",
        "verify": "0.25",
        "experiment": "20",
    }[kind]
    assert f">{figure}</td>" in html


def test_inductors_settings_are_shown_too():
    settings = gfxgraph.inductor_settings()
    assert settings.rows[0].name in Read(settings._repr_html_()).text


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_holds_no_outputs(name):
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", 4)
    nbformat.validate(notebook)
    codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert codes and not any(cell.outputs or cell.execution_count for cell in codes)


@pytest.mark.long
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_shows_each_report_as_html(device, name, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", SOURCE)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", 4)
    nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3").execute()
    shown = [
        output.data["text/html"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "execute_result"
    ]
    assert len(shown) == NOTEBOOKS[name]
    assert name != "walkthrough" or "report.html: 7 files shown." in shown[-1]
