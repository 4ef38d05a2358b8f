"""``gfxgraph parity``: what this machine does, what the table says of others, and the page."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

import gfxgraph
from benchmarks.tables import parity as page
from gfxgraph.device.known_issues import known_issues
from gfxgraph.errors import ArgumentError
from gfxgraph.probing.capabilities import capabilities, groups, sources
from gfxgraph.probing.child import Job, run
from gfxgraph.probing.parity import _row
from gfxgraph.probing.report import ParityReport, Row
from gfxgraph.probing.view import show
from tests.helpers.command import gfxgraph_command
from tests.helpers.devices import HAS_GPU
from tests.helpers.processes import printed

# The table.


def test_each_row_has_a_sentence_a_probe_and_what_to_do_instead():
    names = json.loads(
        printed("import gfxgraph, json; from gfxgraph.probing.probes import PROBES; "
                "print(json.dumps(sorted(PROBES)))")
    )  # fmt: skip
    ids = [one.id for one in capabilities()]
    assert len(ids) == len(set(ids)) >= 54
    for one in capabilities():
        assert one.id in names, one.id
        assert one.does.endswith(".") and one.instead and one.group in groups(), one.id
        assert one.bridge is None or (one.bridge.probe in names and one.bridge.how), one.id
    used = {*ids, *(one.bridge.probe for one in capabilities() if one.bridge)}
    assert set(names) == used


def test_each_fact_has_a_source_that_is_read_or_reported():
    used = set()
    for one in capabilities():
        assert (set(one.facts) == {"cuda", "rocm"}) == (one.group != "gfxgraph"), one.id
        for fact in one.facts.values():
            assert fact.sources, one.id
            assert fact.since in (None, "any") or re.fullmatch(r"\d+\.\d+(\.\d+)?", fact.since)
            assert fact.since != "any" or one.group == "torch"
            used |= set(fact.sources)
    assert used == set(sources())
    for source in sources().values():
        assert source.url.startswith("https://") and source.how in ("read", "reported")


def test_the_issues_of_a_row_are_known_ones():
    known = {one.id for one in known_issues()}
    assert {issue for one in capabilities() for issue in one.issues} <= known


# This machine.


@pytest.fixture(scope="module")
def report():
    return gfxgraph.parity(["torch", "gfxgraph", "driver", "capture"])


@pytest.mark.long
@pytest.mark.skipif(HAS_GPU, reason="there the driver's rows work")
def test_without_a_gpu_rows_of_gfxgraph_work_and_those_of_the_driver_do_not(report):
    states = {row.capability.id: row.state for row in report.rows}
    assert len(states) == len(capabilities())
    for row in report.rows:
        if row.capability.group == "gfxgraph":
            assert row.state == "works" and row.saw, (row.capability.id, row.why)
        if row.capability.group == "driver":
            has_bridge = row.capability.bridge is not None
            assert row.state == ("bridged" if has_bridge else "absent"), (
                row.capability.id,
                row.why,
            )
            assert "there is no GPU" in row.why
    assert states["torch_graph"] == states["fork_join"] == "works"
    assert states["conditional_while"] == "bridged"


@pytest.mark.gpu
@pytest.mark.long
def test_what_the_documentation_of_the_driver_promises_is_not_absent(report):
    version = tuple(map(int, str(report.machine["runtime"]).split(".")[:2]))
    if report.machine["vendor"] != "nvidia" or version < (12, 4):
        pytest.skip("needs CUDA 12.4 or newer")
    for row in report.rows:
        since = row.capability.facts["cuda"].since if row.capability.facts else "any"
        promised = since == "any" or tuple(map(int, since.split("."))) <= version
        assert not promised or row.state in ("works", "not probed"), (row.capability.id, row.why)


@pytest.mark.long
def test_the_printed_report_begins_with_its_verdict_and_fits_the_terminal(report):
    out = io.StringIO()
    show(report, Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert lines[0] == report.verdict == str(report).splitlines()[0]
    assert all(len(line) <= 80 for line in lines)
    assert sum(report.counts.values()) == len(report.rows) == len(capabilities())


@pytest.mark.long
def test_json_has_a_schema_and_the_sources_of_each_fact(report):
    data = json.loads(report.to_json())
    assert data["schema"] == "gfxgraph.parity/1" and data["verdict"] == report.verdict
    row = next(one for one in data["rows"] if one["id"] == "conditional_if")
    assert row["read"]["cuda"]["since"] == "12.4" and row["read"]["rocm"]["since"] is None
    assert {one["how"] for one in row["read"]["rocm"]["sources"]} == {"read", "reported"}


# States.


def outcome(name):
    return run([Job("row", name)], module="tests.parity.bad_probes")["row"]


@pytest.mark.long
def test_a_row_whose_probe_dies_is_bridged_only_if_the_other_way_is_proved(monkeypatch):
    from tests.helpers.paths import ROOT

    monkeypatch.syspath_prepend(str(ROOT))
    one = next(one for one in capabilities() if one.bridge)
    died, good, bad, unknown = map(outcome, ("aborts", "good", "wrong", "unprobed"))
    bridged, absent = _row(one, died, good), _row(one, died, bad)
    assert (bridged.state, bridged.text) == ("bridged", one.bridge.how)
    assert "SIGABRT" in bridged.why and bridged.saw == "one and one is 2"
    assert absent.state == "absent" and "expected 3" in absent.text and one.instead in absent.text
    assert _row(one, unknown, None).state == "not probed"
    assert _row(replace(one, bridge=None), died, None).state == "absent"


def test_the_verdict_counts_and_speaks_of_one_as_of_one():
    rows = [Row(capabilities()[0], state) for state in ("works", "bridged", "not probed")]
    verdict = ParityReport(tuple(rows)).verdict
    assert verdict == "3 capabilities: 1 works, 1 is bridged, 0 absent, 1 not probed"


# The command.


@pytest.mark.long
def test_the_command_writes_what_it_shows(tmp_path):
    done = gfxgraph_command("parity", "--only", "gfxgraph", "--json", "--out", tmp_path / "p.json")
    data = json.loads(done.stdout)
    assert done.exit_code == int(data["counts"]["absent"] > 0)
    assert {row["group"] for row in data["rows"]} == {"gfxgraph"}
    assert json.loads((tmp_path / "p.json").read_text()) == data


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--only", "drivers"), "expected driver, capture, torch, gfxgraph"),
        (("--timeout", "0"), "expected seconds, a number above 0"),
        (("--out", "/no/such/folder/p.json"), "/no/such/folder"),
    ],
)
def test_a_wrong_option_is_status_2_with_nothing_on_standard_output(options, words):
    done = gfxgraph_command("parity", *options)
    assert done.exit_code == 2 and not done.stdout and words in done.stderr


def test_wrong_arguments_say_what_is_expected():
    for only in ("drivers", [], 5, [5]):
        with pytest.raises(ArgumentError, match="expected"):
            gfxgraph.parity(only)
    for timeout in (True, 0, float("nan"), float("inf"), "5"):
        with pytest.raises(ArgumentError, match="number above 0"):
            gfxgraph.parity(timeout=timeout)


# The page.


def test_the_page_is_what_was_measured_and_read():
    assert page.PAGE.read_text(encoding="utf-8") == page.made()


def test_the_results_have_every_row():
    for path in (page.GPU, page.EMULATED):
        rows = json.loads(path.read_text(encoding="utf-8"))["report"]["rows"]
        assert [row["id"] for row in rows] == [one.id for one in capabilities()]
