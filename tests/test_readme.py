"""What the README shows is what was measured, and its examples run."""

from __future__ import annotations

import re

import pytest

from benchmarks.tables import readme
from tests.helpers.paths import ROOT

README = (ROOT / "README.md").read_text()


def test_the_figures_are_those_of_the_results():
    assert readme.page(README) == README


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_an_example_runs(example, device, capsys):
    if "import torch" not in example:
        example = "import torch, gfxgraph\n" + example
    exec(compile(example, "README.md", "exec"), {})
