"""Each kind of file is recognised by what it says, and stands in its section."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict

import pytest

import gfxgraph
from gfxgraph.compiling.breaks import Break, BreakReport, Region
from gfxgraph.compiling.log import Compilation
from gfxgraph.device.platform import this_platform
from gfxgraph.doctor.checks import Finding
from gfxgraph.doctor.doctor import Diagnosis
from gfxgraph.inspecting.model import GraphNode, InspectedGraph
from gfxgraph.inspecting.report import InspectReport
from gfxgraph.interpose.source import Source
from gfxgraph.measure.timing import Percentiles
from gfxgraph.measure.trace_report import TraceReport
from gfxgraph.measure.trace_rows import Copies, Gaps, HotKernel, HotOperator, Span, WayTrace
from gfxgraph.probing.capabilities import capabilities
from gfxgraph.probing.report import ParityReport, Row
from gfxgraph.recipes.file import File
from gfxgraph.reporting.files import read
from gfxgraph.reporting.kinds import KINDS, parts_of
from gfxgraph.reporting.parts import SECTIONS
from gfxgraph.verifying.report import Cause, Divergence, OutputErrors, VerifyReport, VerifyResult
from tests.helpers.paths import RESULTS

BROKEN = OutputErrors(
    "out", "output", "float32", 1e-4, 1.0, 0.5, 0.5, Divergence(2, (0,), 1, 2, "x")
)
VERIFIED = VerifyReport(
    "act",
    "NVIDIA H200",
    "2.11",
    4,
    0,
    VerifyResult(
        "The graph", 8, True, 7, "", {}, (BROKEN,), (Cause.of("overwritten", "out"),), (), None
    ),
)
FOUND = Finding("warning", "the driver is old", "update it", check="driver")
WHERE = Source("m.py", 3, "act")
TIMES = Percentiles(2432.0, 3000.0, 4000.0)
TRACED = WayTrace(
    "eager",
    "ok",
    end_to_end_us=TIMES,
    host_us=TIMES,
    calls=5,
    busy_us=430.0,
    idle=0.82,
    kernels=2,
    launches=2,
    gaps=Gaps(1, 9.0, 9.0, 9.0, 1.0),
    copies=(Copies("HtoD", "pinned", 1, 4, 1.0, False, None),),
    hot=(HotKernel("gemm", 1, 9.0, 0.5, False, WHERE),),
    timeline=tuple(Span(start, 5.0, "0/7", "kernel", "k") for start in (10.0, 16.0, 900.0)),
)
OF = {"name": "act", "device": "NVIDIA H200", "emulated": False, "torch": "2.11", "gfxgraph": "0.1"}
TRACE = TraceReport(
    **OF,
    arguments=("x",),
    python="3.12",
    seconds=2.0,
    changes_state=False,
    speedup=4.5,
    ways=(TRACED, dataclasses.replace(TRACED, name="graph", launches=1, graph_launches=1)),
    operators=(HotOperator("aten.mm", 1, 5.0, True, WHERE),),
    operations=1,
).to_dict()
NODE = GraphNode("0", "kernel", "gemm", (), 0, {}, "m.py", 3, "act", "x @ w")
INSPECTED = InspectReport(**OF, graphs=(InspectedGraph("act", (NODE, NODE)),)).to_dict()
EXPERIMENT = {
    "schema": "gfxgraph.experiment/1",
    "name": "smoke",
    "question": "Are replays alike?",
    "function": "act",
    "shows": "All of it.",
    "conclusion": "2 of 20 replays differ.",
    "holds": False,
    "rows": [{"what": "replays", "is_so": True, "count": 20}],
    "notes": ["a note"],
    "machine": {"device": "NVIDIA H200", "emulated": False},
    "versions": {"torch": "2.11"},
}
LOGGED = Compilation("0", "act", "m.py", 3, "inductor", False, 1.5, 9, {}, 2, False, None)
BREAK = Break("m.py", 3, "act", "p()", "x")
BROKEN_UP = BreakReport("act", (Region("act", "m.py", 1, 3),), (BREAK,), 0, 2)

FILES = {
    "verify": (VERIFIED.to_dict(), "verification", "verify: act differs from eager."),
    "doctor": (
        Diagnosis(this_platform(), True, (FOUND,), None).to_dict(),
        "machines",
        "the driver is old",
    ),
    "env": (
        {"schema": 1, "recommended": [{"name": "A", "value": "1"}], "no_effect": []},
        "machines",
        "To set",
    ),
    "parity": (
        ParityReport(
            (Row(capabilities()[0], "works", "one node"), Row(capabilities()[1], "absent")),
            {"device": "NVIDIA H200", "emulated": False},
            {"torch": "2.11"},
        ).to_dict(),
        "machines",
        "2 capabilities: 1 works, 0 are bridged, 1 absent.",
    ),
    "trace": (TRACE, "timelines", "eager: busy for"),
    "inspect": (INSPECTED, "timelines", "1 graph. Nodes: kernel 2."),
    "experiment": (EXPERIMENT, "experiments", "smoke: act: 2 of 20 replays differ."),
    "process": (gfxgraph.stats() | {"validation_failures": 2}, "memory", "2 replays differed"),
    "breaks": (
        BROKEN_UP,
        "hazards",
        "1 compiled region, 1 break",
    ),
    "compilations": (
        {"torch": "2.11", "seconds": 1.5, "compilations": [asdict(LOGGED)]},
        "experiments",
        "1 compilation in 1.5 s.",
    ),
    "recipes": (asdict(File("gfxgraph recipes", 1, {"torch": "2.11"}, [])), "memory", "0 graphs"),
    "a benchmark": (
        {"command": "python3 -m benchmarks.runs.x", "torch": "2.11", "device": "emulated",
         "eager_ms": 2.0, "graph_ms": 1.0},
        "experiments",
        "the times say nothing of a GPU",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_stands_in_its_section_and_says_what_it_found(name, tmp_path):
    data, section, words = FILES[name]
    text = data.to_json() if isinstance(data, BreakReport) else json.dumps(data)
    (tmp_path / "a.json").write_text(text)
    ((_, (part,)),), left_out = read([tmp_path])
    assert part.section == section and left_out == []
    said = [part.sentence, *(flag.text for flag in part.flags), *(one.title for one in part.tables)]
    assert words in " ".join([*said, *(chart.words for chart in part.charts)])


@pytest.mark.parametrize("ok", [True, "false", 1])
def test_what_differs_is_an_error_whatever_else_the_file_says(ok):
    (part,) = parts_of(VERIFIED.to_dict() | {"ok": ok}, {"file": "a.json"})
    assert part.level == "error"


def test_a_list_of_reports_is_a_part_for_each(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([EXPERIMENT, EXPERIMENT | {"schema": "x/1"}]))
    ((_, parts),), left_out = read([tmp_path])
    assert [part.level for part in parts] == ["error"]
    assert [one.file.rpartition(", ")[2] for one in left_out] == ["entry 2"]


def test_what_a_timeline_draws_as_one_lies_closer_than_a_pixel():
    (part,) = parts_of(TRACE, {"file": "a.json"})
    (row, *_) = part.charts[0].table.rows
    assert row == ("eager", "16", "905")  # from 10 to 21, and from 900 to 905
    assert [gain.times for gain in part.gains] == [4.5]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.name)
def test_each_result_of_this_repository_is_shown_whole(path):
    (shown,), left_out = read([path])
    assert left_out == [] and shown.parts
    for part in shown.parts:
        assert part.section in SECTIONS and part.tables and part.title
        assert part.facts["file"] == path.name


def test_a_gain_of_a_benchmark_is_the_time_of_eager_over_that_of_the_graph():
    (part,) = parts_of(json.loads((RESULTS / "policies.json").read_text()), {"file": "a.json"})
    times = {(gain.function, gain.way): gain.times for gain in part.gains}
    assert times["pi0", "graph"] == pytest.approx(360.269 / 55.875)
    assert times["pi0, compiled", "compile + graph"] == pytest.approx(298.835 / 33.581)


def test_times_of_captures_are_no_gain():
    row = {"name": "a", "eager_ms": 1.0, "graph_ms": 700.0, "replays": 1}
    data = {"command": "benchmarks/x.py", "torch": "2.11", "rows": [row, row | {"replays": 4}]}
    (part,) = parts_of(data, {"file": "a.json"})
    assert len(part.gains) == 1 and "1 have fewer than 3 replays" in part.sentence


def test_kinds_with_a_schema_have_names_of_their_own():
    names = [kind.name for kind in KINDS if kind.name.startswith("gfxgraph.")]
    assert len(names) == len(set(names))
