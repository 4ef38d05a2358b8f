"""The command line itself: help, versions, completion, narrow terminals, verdicts first."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest
import torch

import gfxgraph
from gfxgraph import tables
from tests.helpers.command import gfxgraph_command, importable
from tests.helpers.paths import ROOT

COMMANDS = "check verify bench trace experiment inspect report lint doctor parity env run demo"


@pytest.fixture
def narrow(monkeypatch):
    """A terminal of 40 columns."""
    monkeypatch.setenv("COLUMNS", "40")
    yield
    tables.fit(tables.WIDTH)


@pytest.mark.parametrize("command", COMMANDS.split())
def test_help_fits_40_columns_and_names_what_it_takes_in_words(narrow, command):
    text = gfxgraph_command(command, "-h").output
    assert max(map(len, text.splitlines())) <= 40
    assert not re.search(r"<\w+>|\b(?:INTEGER|FLOAT|RANGE|SPECS)\b", text)


def test_the_list_of_commands_fits_40_columns(narrow):
    text = gfxgraph_command("-h").output
    assert max(map(len, text.splitlines())) <= 40 and "lint" in text


def test_version_tells_of_torch_and_the_device():
    lines = gfxgraph_command("--version").output.splitlines()
    assert lines[0].split() == ["gfxgraph", gfxgraph.__version__]
    assert lines[2].split() == ["torch", str(torch.__version__)]
    assert lines[3].startswith("device ")


def test_a_shell_completes_the_names_of_commands():
    environ = {
        **os.environ,
        "_GFXGRAPH_COMPLETE": "complete_bash",
        "COMP_WORDS": "gfxgraph li",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "gfxgraph"], env=environ, capture_output=True, text=True
    )
    assert done.stdout.split() == ["lint"], done.stderr


@pytest.fixture
def subject(tmp_path, monkeypatch):
    importable(tmp_path, monkeypatch, "cli_subject", "def f(x):\n    return x * 2\n")


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        (["verify", "cli_subject:f", "float32[4,8]"], "f: the graph is right."),
        (["check", "cli_subject:f", "float32[4,8]"], "f: captures unmodified"),
    ],
)
def test_the_first_line_is_the_verdict_and_all_fit_40_columns(narrow, subject, command, verdict):
    lines = gfxgraph_command(*command).stdout.splitlines()
    assert re.fullmatch(verdict, lines[0]) and max(map(len, lines)) <= 40


def test_the_counters_begin_with_a_verdict():
    stats = gfxgraph.stats()
    first, blank, *rest = str(stats).splitlines()
    assert re.fullmatch(r".*(captured|replays?); (no call|\d+ calls?) ran eagerly\.", first)
    assert not blank and len(rest) >= len(stats)
    fast = gfxgraph.graphed(lambda x: x + 1)
    assert str(fast.stats()).splitlines()[0] == "No call yet."
    with torch.no_grad():
        for _ in range(3):
            fast(torch.ones(2))
    assert re.fullmatch(r"1 graph; \d of 3 calls were replays\.", str(fast.stats()).splitlines()[0])


@pytest.mark.parametrize(
    "path", sorted((ROOT / "src/gfxgraph/cli").glob("*.py")), ids=lambda p: p.name
)
def test_every_option_says_its_name(path):
    """Typer 0.27.2 calls an option without one as its metavar: ``--SECONDS``."""
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "typer.Option":
            name = ast.unparse(call.args[0]) if call.args else ""
            assert re.match(r"'--?[a-z]", name), f"{path.name}:{call.lineno}: {ast.unparse(call)}"
