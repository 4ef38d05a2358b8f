"""What contributors and releases need agrees with the rest of the repository."""

from __future__ import annotations

import importlib.util
import re
import shutil
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


@pytest.fixture
def hook(tmp_path):
    """The hook of the build, and a source with a compiled part of an earlier build."""
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "tools" / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    (tmp_path / found.WHERE).parent.mkdir(parents=True)
    (tmp_path / found.WHERE).write_text("earlier")
    shutil.copy(ROOT / f"{found.PART}.c", tmp_path / f"{found.PART}.c")
    return found


@pytest.mark.parametrize(
    "setting, value, why",
    [
        ("GFXGRAPH_COMPILED", "0", "GFXGRAPH_COMPILED is 0"),
        ("CC", "false", "false -O2"),
        ("CC", "true", "gave no _compiled.abi3.so"),
        ("CC", "gcc 'x", "No closing quotation"),
        ("CC", "/no/compiler", "No such file"),
        ("CC", r"sh -c 'printf \\377 >&2; exit 1'", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_without_a_compiler_there_is_no_compiled_part(
    hook, tmp_path, monkeypatch, setting, value, why
):
    monkeypatch.setenv(setting, value)
    assert why in hook.compiled(tmp_path)
    assert not (tmp_path / hook.WHERE).exists()


def test_a_source_that_cannot_be_written_to_has_no_compiled_part(hook, tmp_path):
    (tmp_path / hook.WHERE).unlink()
    (tmp_path / hook.WHERE).mkdir()
    assert hook.compiled(tmp_path)


def test_a_setting_of_the_build_that_says_neither_yes_nor_no_is_an_error(
    hook, tmp_path, monkeypatch
):
    monkeypatch.setenv("GFXGRAPH_COMPILED", "no")
    with pytest.raises(ValueError, match="'no': expected 0 or 1"):
        hook.compiled(tmp_path)
