"""``gfxgraph lint`` as people use it: options, settings, a baseline, many cores, no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gfxgraph.analyze.lint import LINT_RULES, lint
from tests.helpers.command import gfxgraph_command

INERT = LINT_RULES["inert-variable"].bad  # a warning
LATE = LINT_RULES["env-after-torch"].bad  # a note
BROKEN = "import torch\ndef f(:\n"  # an error


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, **files):
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run(*args):
    return gfxgraph_command("lint", *args)


def rules(*args):
    result = run(*args, "--json")
    assert result.exit_code in (0, 1), result.output
    return [one["rule"] for one in json.loads(result.stdout)]


def test_linting_imports_no_torch_and_needs_none(in_a_folder):
    write(in_a_folder, one=INERT)
    code = (
        "import sys; sys.argv = ['gfxgraph', 'lint', 'one.py']; sys.modules['torch'] = None\n"
        "from gfxgraph.cli import app\napp()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "inert-variable" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("source", "least", "status"),
    [
        (BROKEN, "error", 1),
        (INERT, "error", 0),
        (INERT, None, 1),
        (LATE, None, 0),
        (LATE, "note", 1),
        (BROKEN, "never", 0),
        ("x = 1\n", "note", 0),
    ],
)
def test_the_status_says_if_there_is_something_as_bad(in_a_folder, source, least, status):
    write(in_a_folder, one=source)
    assert run(".", *(["--fail-on", least] if least else [])).exit_code == status


def test_rules_are_selected_and_ignored_by_name(in_a_folder):
    write(in_a_folder, one=INERT, two=LATE)
    assert rules(".") == ["inert-variable", "env-after-torch"]
    assert rules(".", "--select", "inert-variable") == ["inert-variable"]
    assert rules(".", "--ignore", "inert-variable, unreadable") == ["env-after-torch"]
    assert run(".", "--select", "nothing").exit_code == 2


@pytest.mark.parametrize("pattern", ["old", "old/", "src/old/*.py", "a.py", "src/o*", "*a.py"])
def test_what_is_excluded_is_not_read(in_a_folder, pattern):
    write(in_a_folder, src__old__a=INERT, src__b=LATE)
    assert rules(".", "--exclude", pattern) == ["env-after-torch"]


def test_settings_come_from_the_nearest_pyproject(in_a_folder, monkeypatch):
    write(in_a_folder, src__old__a=INERT, src__b=LATE, src__c=INERT)
    text = '[tool.gfxgraph.lint]\nexclude = ["old"]\nignore = ["env-after-torch"]\n'
    (in_a_folder / "pyproject.toml").write_text(text + 'fail-on = "error"\n')
    monkeypatch.chdir(in_a_folder / "src")
    assert rules(".") == ["inert-variable"] and run(".").exit_code == 0
    assert run(".", "--fail-on", "warning").exit_code == 1
    assert rules(".", "--ignore", "unreadable", "--exclude", "c.py") == [
        "env-after-torch",
        "inert-variable",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "fail_on = 1",
        'fail-on = "all"',
        'select = "inert-variable"',
        'select = ["inert"]',
        "ignore = [1]",
        "exclude = true",
        "baseline = 3",
        "nothing = 1",
        "= broken",
    ],
)
def test_a_malformed_setting_is_refused_and_named(in_a_folder, text):
    write(in_a_folder, one="x = 1\n")
    (in_a_folder / "pyproject.toml").write_text(f"[tool.gfxgraph.lint]\n{text}\n")
    result = run(".")
    assert result.exit_code == 2 and "pyproject.toml" in result.stderr
    assert text.partition(" ")[0] in result.stderr or "broken" in text


@pytest.mark.parametrize("text", ["tool = 1", "[tool]\ngfxgraph = 2", "[[tool.gfxgraph.lint]]"])
def test_a_table_that_is_none_is_refused(in_a_folder, text):
    (in_a_folder / "pyproject.toml").write_text(text)
    assert run(".").exit_code == 2


def test_a_baseline_leaves_out_what_was_there_also_where_it_has_moved(in_a_folder, monkeypatch):
    write(in_a_folder, src__one=INERT)
    assert run("src", "--write-baseline", "known.json").exit_code == 0
    write(in_a_folder, src__one=f"\n\nimport sys\n{INERT}")
    result = run("src", "--baseline", "known.json")
    assert result.exit_code == 0 and "1 more in the baseline" in result.output
    write(in_a_folder, src__one=INERT + INERT)  # one more of the same
    assert run("src", "--baseline", "known.json").exit_code == 1
    monkeypatch.chdir(in_a_folder / "src")
    assert run("one.py", "--baseline", "../known.json").exit_code == 1
    write(in_a_folder, src__one="x = 1\n")
    assert "1 of ../known.json no longer there" in run(".", "--baseline", "../known.json").stderr


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schema": "gfxgraph.lint-baseline/1"}', "[" * 100_000, "\0"]
)
def test_what_is_no_baseline_is_refused(in_a_folder, text):
    (in_a_folder / "known.json").write_text(text)
    assert "known.json" in run(".", "--baseline", "known.json").stderr
    assert run(".", "--baseline", "known.json").exit_code == 2
    assert run(".", "--baseline", "nowhere.json").exit_code == 2


def test_many_processes_find_the_same_as_one(in_a_folder):
    write(in_a_folder, **{f"m{number}": INERT if number % 3 else BROKEN for number in range(60)})
    done = subprocess.run(
        [sys.executable, "-m", "gfxgraph", "lint", ".", "--json", "--jobs", "2"],
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout) == [one.to_dict() for one in lint([Path(".")])] != []


def test_a_file_that_is_reached_twice_is_read_once(in_a_folder):
    write(in_a_folder, src__one=INERT)
    (in_a_folder / "link").symlink_to(in_a_folder / "src", target_is_directory=True)
    (in_a_folder / "src" / "again.py").symlink_to(in_a_folder / "src" / "one.py")
    (in_a_folder / "src" / "loop").symlink_to(in_a_folder, target_is_directory=True)
    assert rules(".", "src", "./src/one.py", in_a_folder / "src" / "one.py", "link") == [
        "inert-variable"
    ]
