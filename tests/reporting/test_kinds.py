"""Each kind of file is recognised by what it says, and stands in its section."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

import gfxgraph
from gfxgraph.compiling.breaks import Break, BreakReport, Region
from gfxgraph.compiling.log import Compilation
from gfxgraph.device.platform import this_platform
from gfxgraph.doctor.checks import Finding
from gfxgraph.doctor.doctor import Diagnosis
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
WHERE = {"file": "m.py", "line": 3, "function": "act", "text": "x @ w"}
TRACED = {
    "name": "eager",
    "status": "ok",
    "note": "",
    "lines": "",
    "end_to_end_us": {"p50": 2432.0, "p95": 3000.0, "p99": 4000.0},
    "host_us": {"p50": 2400.0, "p95": 3000.0, "p99": 4000.0},
    "busy_us": 430.0,
    "idle": 0.82,
    "kernels": 2,
    "launches": 2,
    "gaps": {"count": 1, "total_us": 9.0, "longest_us": 9.0},
    "hot": [
        {"name": "gemm", "calls": 1, "total_us": 9.0, "share": 0.5, "in_graph": False}
        | {"where": WHERE}
    ],
    "copies": [
        {"direction": "HtoD", "memory": "pinned", "calls": 1, "bytes": 4, "total_us": 1.0}
        | {"in_graph": False, "where": None}
    ],
    "timeline": [
        {"start_us": start, "us": 5.0, "stream": "0/7", "kind": "kernel", "name": "k", "count": 1}
        for start in (10.0, 16.0, 900.0)
    ],
}
OF = {"name": "act", "device": "NVIDIA H200", "emulated": False, "torch": "2.11", "gfxgraph": "0.1"}
TRACE = OF | {
    "schema": "gfxgraph.trace/1",
    "verdict": "Eager: 2 launches.",
    "arguments": ["x"],
    "speedup": 4.5,
    "ways": [TRACED, TRACED | {"name": "graph", "launches": 1}],
    "operators": [{"name": "aten.mm", "calls": 1, "host_us": 5.0, "where": WHERE}],
    "operations": 1,
}
NODE = {"id": "0", "type": "kernel", "name": "gemm", "file": "m.py", "line": 3, "source": "x @ w"}
INSPECTED = OF | {"schema": "gfxgraph.inspect/1", "graphs": [{"name": "act", "nodes": [NODE] * 2}]}
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
    "trace": (TRACE, "timelines", "eager: busy for"),
    "inspect": (INSPECTED, "timelines", "1 graph. Nodes: kernel 2."),
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
