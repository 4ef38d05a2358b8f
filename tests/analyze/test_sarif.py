"""``--sarif`` writes what code review reads: SARIF 2.1.0, each result at a line of a file."""

from __future__ import annotations

import json

import pytest

from gfxgraph.analyze.lint import LINT_RULES, lint
from gfxgraph.analyze.report import Hazard
from gfxgraph.analyze.sarif import to_sarif
from gfxgraph.record.rules import RULES
from tests.helpers.command import gfxgraph_command as run
from tests.helpers.command import importable

FUNCTIONS = """\
import torch

calls = []

def reads(x):
    return x.cpu()

def several(x):
    y = x + torch.rand_like(x)
    if y.sum() > 0:
        print("positive")
    return y

def counts(x):
    calls.append(1)
    return x

def learns(x):
    with torch.enable_grad():
        return x * torch.ones_like(x, requires_grad=True)
"""

ONE_FINDING = """\
import torch
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    y = x.sum().item()
"""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    importable(tmp_path, monkeypatch, "sarif_subject", FUNCTIONS)
    return tmp_path


def checked(function):
    result = run("check", f"sarif_subject:{function}", "float32[4,8]", "--sarif", "out.sarif")
    assert result.exit_code in (0, 1), result.output
    with open("out.sarif", encoding="utf-8") as file:
        return json.load(file)


def results_of(log):
    return log["runs"][0]["results"]


def hazard(**changes):
    rule = RULES["host-read"]
    fields = {
        "rule": rule.id,
        "severity": "warning",
        "effect": "folds",
        "what": "Tensor.item()",
        "file": "a.py",
        "line": 3,
        "source": "x.item()",
        "count": 1,
        "tainted": False,
        "why": rule.why,
        "remedy": rule.remedy,
    }
    return Hazard(**{**fields, **changes})


def one(item):
    return results_of(to_sarif([item], RULES | LINT_RULES, "1"))[0]


@pytest.mark.parametrize("function", ["reads", "several", "counts"])
def test_a_log_has_what_the_schema_and_code_scanning_require(function):
    log = checked(function)
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-schema-2.1.0.json")
    driver = log["runs"][0]["tool"]["driver"]
    assert driver["name"] == "gfxgraph" and driver["version"]
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)
    for rule in driver["rules"]:
        for text in ("shortDescription", "fullDescription", "help"):
            assert rule[text]["text"]
    for result in results_of(log):
        assert ids[result["ruleIndex"]] == result["ruleId"]
        assert result["message"]["text"]
        assert result["level"] in ("error", "warning", "note")
        assert result["occurrenceCount"] >= 1
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["artifactLocation"] == {"uri": "sarif_subject.py", "uriBaseId": "%SRCROOT%"}
        assert place["region"]["startLine"] >= 1
    fingerprints = [str(result["partialFingerprints"]) for result in results_of(log)]
    assert len(set(fingerprints)) == len(fingerprints) > 0


def test_levels_are_the_severities():
    levels = {result["ruleId"]: result["level"] for result in results_of(checked("several"))}
    assert levels["random"] == "note"
    assert levels["host-read"] == "warning"
    assert levels["print"] == "error"


def test_a_result_is_at_its_line():
    (result,) = results_of(checked("reads"))
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region == {"startLine": 6, "snippet": {"text": "return x.cpu()"}}


def test_what_has_no_line_is_where_the_function_is_defined():
    (result,) = results_of(checked("learns"))
    assert result["ruleId"] == "autograd"
    region = result["locations"][0]["physicalLocation"]["region"]
    assert region["startLine"] == 1 + FUNCTIONS.splitlines().index("def learns(x):")


def test_findings_of_lint_are_written_with_their_column(in_a_folder):
    (in_a_folder / "bad.py").write_text(ONE_FINDING)
    assert run("lint", "bad.py", "--sarif", "out.sarif").exit_code == 1
    (found,) = lint([in_a_folder / "bad.py"])
    (result,) = results_of(json.loads((in_a_folder / "out.sarif").read_text()))
    assert result["ruleId"] == found.rule and result["level"] == found.severity
    region = result["locations"][0]["physicalLocation"]["region"]
    assert (region["startLine"], region["startColumn"]) == (found.line, found.column)
    assert "occurrenceCount" not in result


def test_a_finding_in_a_notebook_names_its_cell(in_a_folder):
    cell = {"cell_type": "code", "source": [ONE_FINDING], "metadata": {}, "outputs": []}
    (in_a_folder / "book.ipynb").write_text(json.dumps({"cells": [cell], "nbformat": 4}))
    (found,) = lint([in_a_folder / "book.ipynb"])
    result = one(found)
    assert result["message"]["text"].startswith(f"cell 1, line {found.line}: ")
    (location,) = result["locations"]
    assert location["logicalLocations"] == [{"name": f"cell 1, line {found.line}"}]
    assert location["physicalLocation"]["region"] == {"startLine": 1}


def test_a_finding_in_a_file_as_a_whole_is_at_its_first_line(in_a_folder):
    (in_a_folder / "bad.py").write_bytes(b"\xff(")
    (found,) = lint([in_a_folder / "bad.py"])
    assert one(found)["locations"][0]["physicalLocation"]["region"]["startLine"] == 1


def test_a_message_says_what_and_why_and_what_to_do():
    text = one(hazard(what="an unended sentence"))["message"]["text"]
    assert text.startswith("an unended sentence. ")
    assert RULES["host-read"].why in text and text.endswith(RULES["host-read"].remedy)


def test_a_file_elsewhere_is_named_by_its_whole_address(tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("else where") / "ü.py"
    location = one(hazard(file=str(elsewhere)))["locations"][0]["physicalLocation"]
    assert location["artifactLocation"] == {"uri": elsewhere.as_uri()}


def test_the_address_of_a_file_is_quoted(in_a_folder):
    location = one(hazard(file=str(in_a_folder / "a b#1.py")))["locations"][0]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "a%20b%231.py"


def test_a_fingerprint_outlives_a_move_in_the_file():
    prints = [one(hazard(line=line))["partialFingerprints"] for line in (3, 30)]
    assert prints[0] == prints[1]
    assert one(hazard(source="y.item()"))["partialFingerprints"] != prints[0]


def test_the_same_line_twice_has_two_fingerprints():
    twice = results_of(to_sarif([hazard(line=3), hazard(line=4)], RULES, "1"))
    assert twice[0]["partialFingerprints"] != twice[1]["partialFingerprints"]


def test_a_rule_links_to_its_page_where_there_is_one():
    log = to_sarif([], RULES, "1", docs="https://example.org/docs")
    driver = log["runs"][0]["tool"]["driver"]
    assert driver["informationUri"] == "https://example.org/docs"
    for rule in driver["rules"]:
        assert rule["helpUri"] == f"https://example.org/docs/rules.html#{rule['id']}"
    assert results_of(log) == []


def test_on_standard_output_the_log_is_alone():
    result = run("check", "sarif_subject:reads", "float32[4,8]", "--sarif", "-")
    assert results_of(json.loads(result.stdout))
    assert "reads: captures as several graphs" in result.stderr


def test_a_file_is_written_beside_what_is_printed(in_a_folder):
    result = run("check", "sarif_subject:reads", "float32[4,8]", "--json", "--sarif", "out.sarif")
    assert json.loads(result.stdout)["verdict"] == "branches"
    assert results_of(json.loads((in_a_folder / "out.sarif").read_text()))


@pytest.mark.parametrize(
    "command", [["check", "sarif_subject:reads", "float32[4,8]"], ["lint", "sarif_subject.py"]]
)
def test_two_documents_on_standard_output_are_refused(command):
    result = run(*command, "--json", "--sarif", "-")
    assert result.exit_code == 2 and "--sarif" in result.output


def test_a_file_that_cannot_be_written_is_a_bad_argument():
    result = run("lint", "sarif_subject.py", "--sarif", "nowhere/out.sarif")
    assert result.exit_code == 2 and "nowhere" in result.output
