"""What contributors and releases need agrees with the rest of the repository."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT


def pinned(name: str) -> set[str]:
    """The versions of a package that requirements/constraints.txt allows."""
    text = (ROOT / "requirements" / "constraints.txt").read_text(encoding="utf-8")
    return set(re.findall(rf"^{name}==([^;\s]+)", text, re.MULTILINE))


def test_pre_commit_runs_the_versions_that_make_lint_runs():
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"ruff==([\d.]+)", text)) == pinned("ruff")


def test_all_that_the_docs_need_is_pinned():
    for name in ("mkdocs", "mkdocs-material", "mkdocstrings", "mkdocstrings-python", "griffelib"):
        assert pinned(name), name


@pytest.mark.parametrize(
    "path", sorted(str(p.relative_to(ROOT)) for p in (ROOT / ".github").rglob("*.yml"))
)
def test_a_file_for_github_is_yaml(path):
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    if "ISSUE_TEMPLATE" in path and not path.endswith("config.yml"):
        assert {"name", "description", "body"} <= found.keys()


@pytest.mark.long
def test_wheel_and_sdist_are_complete(tmp_path):
    pytest.importorskip("hatchling")
    build = (sys.executable, "-m", "hatchling", "build", "-d", tmp_path)
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    check = (sys.executable, ROOT / "tools" / "check_dist.py", tmp_path)
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
