"""The source-only rules find their own bad example, and not their good one."""

from __future__ import annotations

import json

import pytest

from gfxgraph.analyze.lint import LINT_RULES, lint
from gfxgraph.errors import ArgumentError
from tests.helpers.command import gfxgraph_command

EXAMPLES = [rule for rule in LINT_RULES.values() if rule.bad]


def found(tmp_path, source, name="example.py"):
    (tmp_path / name).write_text(source)
    return [finding.rule for finding in lint([tmp_path])]


@pytest.mark.parametrize("rule", EXAMPLES, ids=lambda rule: rule.id)
def test_a_rule_finds_its_bad_example(tmp_path, rule):
    assert rule.id in found(tmp_path, rule.bad)


@pytest.mark.parametrize("rule", EXAMPLES, ids=lambda rule: rule.id)
def test_a_rule_does_not_find_its_good_example(tmp_path, rule):
    assert rule.id not in found(tmp_path, rule.good)


REDUCED = 'torch.compile(model, mode="reduce-overhead")'
FOR_ROCM = [
    f"if torch.version.hip:\n    model = {REDUCED}\n",
    f"if torch.version.hip is not None and big:\n    model = {REDUCED}\n",
    f"if not torch.version.hip:\n    pass\nelse:\n    model = {REDUCED}\n",
    f"if torch.version.hip is None:\n    pass\nelif big:\n    model = {REDUCED}\n",
    f"model = {REDUCED} if is_hip() else model\n",
]
FOR_CUDA = [
    f"if torch.version.hip:\n    pass\nelse:\n    model = {REDUCED}\n",
    f"if not torch.version.hip and big:\n    model = {REDUCED}\n",
    f"if torch.version.hip is None:\n    model = {REDUCED}\n",
    f'if kind != "rocm" and kind != None:\n    model = {REDUCED}\n',
    f"model = model if is_rocm() else {REDUCED}\n",
]


@pytest.mark.parametrize(
    ("source", "is_found"), [(one, True) for one in FOR_ROCM] + [(one, False) for one in FOR_CUDA]
)
def test_graphs_of_the_compiler_are_a_finding_in_the_branch_for_rocm_alone(
    tmp_path, source, is_found
):
    source = f"import torch\n\ndef fast(model, big, kind):\n    # rocm\n{_in(source)}"
    assert ("cudagraphs-on-rocm" in found(tmp_path, source)) is is_found


def _in(text):
    return "".join(f"    {line}\n" for line in text.splitlines())


def test_the_command_tells_by_its_status(tmp_path):
    (tmp_path / "bad.py").write_text(LINT_RULES["triton-unclamped-offset"].bad)
    result = gfxgraph_command("lint", tmp_path, "--json")
    assert result.exit_code == 1
    assert json.loads(result.output)[0]["rule"] == "triton-unclamped-offset"
    (tmp_path / "bad.py").write_text("x = 1\n")
    assert gfxgraph_command("lint", tmp_path).exit_code == 0


def test_a_path_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ArgumentError):
        lint([tmp_path / "nowhere"])


def test_a_lone_carriage_return_ends_a_line_of_a_notebook(tmp_path):
    cell = {"cell_type": "code", "source": "import os\ros.environ['HIP_GRAPH_ENABLED'] = '1'"}
    (tmp_path / "book.ipynb").write_text(json.dumps({"cells": [cell], "nbformat": 4}))
    result = gfxgraph_command("lint", tmp_path, "--json")
    assert result.exit_code in (0, 1) and isinstance(json.loads(result.output), list)


def test_a_notebook_that_is_nested_too_deep_is_unreadable_and_stops_nothing(tmp_path):
    (tmp_path / "deep.ipynb").write_text("[" * 100_000)
    (tmp_path / "other.py").write_text("def broken(:\n")
    found = json.loads(gfxgraph_command("lint", tmp_path, "--json").output)
    assert [finding["rule"] for finding in found] == ["unreadable", "unreadable"]
