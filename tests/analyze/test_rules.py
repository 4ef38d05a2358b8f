"""Every rule of ``check`` finds its bad example, at its line, and not its good one."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch

import gfxgraph
from gfxgraph.analyze.lint_rules import LINT_RULES
from gfxgraph.analyze.rules_page import page
from gfxgraph.errors import CaptureError
from gfxgraph.record.rules import RULES
from tests.helpers.paths import ROOT

# They are about the call as a whole.
WITHOUT_LINE = {"argument", "autograd", "torchscript"}


@pytest.fixture
def example(tmp_path, monkeypatch):
    """Writes an example to a file and gives its ``f``, the argument for it, and the file."""

    def load(rule, kind):
        file = tmp_path / f"{kind}_{rule.id.replace('-', '_')}.py"
        file.write_text(getattr(rule, kind))
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, file.stem, module)
        spec.loader.exec_module(module)
        x = torch.randn(4, 8)
        sparse = (rule.id, kind) == ("argument", "bad")
        return module.f, x.to_sparse() if sparse else x, str(file)

    return load


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_a_rule_finds_its_bad_example(example, rule):
    f, x, file = example(rule, "bad")
    found = [hazard for hazard in gfxgraph.check(f, x).hazards if hazard.rule == rule.id]
    assert found and all(hazard.effect in (rule.effect, rule.tainted) for hazard in found)
    if rule.id not in WITHOUT_LINE:
        assert {hazard.file for hazard in found} == {file}
        assert found[0].line > 0 and found[0].source in rule.bad.split("\n")[found[0].line - 1]


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_a_rule_does_not_find_its_good_example(example, rule):
    f, x, _ = example(rule, "good")
    report = gfxgraph.check(f, x)
    assert rule.id not in {hazard.rule for hazard in report.hazards}
    assert report.verdict == "captures"


@torch.no_grad()
@pytest.mark.parametrize(("rule", "words"), [("argument", "layout"), ("autograd", "autograd")])
def test_a_graphed_function_tells_them_too(example, device, rule, words):
    f, x, _ = example(RULES[rule], "bad")
    with pytest.raises(CaptureError, match=words):
        gfxgraph.graphed(f, fallback="raise")(x.to(device))


def test_the_page_is_what_the_catalogues_make():
    assert not RULES.keys() & LINT_RULES.keys()  # an id is one place on the page
    written = ROOT / "docs" / "rules.md"
    assert written.read_text(encoding="utf-8") == f"{page()}\n", (
        "run python -m gfxgraph.analyze.rules_page"
    )
