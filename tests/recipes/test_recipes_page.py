"""docs/recipes.md: its example does what the page says."""

from __future__ import annotations

import re

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.processes import printed


@pytest.mark.long
def test_the_example_captures_at_its_second_start(tmp_path):
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code += "\nprint('captures', gfxgraph.stats()['capture_count'], len(report.captured))\n"
    first, second = (printed(code, cwd=tmp_path) for _ in range(2))
    assert "there is no file recipes.json" in first and first.endswith("captures 4 0")
    assert second.endswith("captures 4 4")
    lines = [line.split()[:2] for line in second.splitlines() if "captured  2" in line]
    shown = [line.split()[:2] for line in page.splitlines() if "captured  2" in line]
    assert lines == shown and len(lines) == 4
