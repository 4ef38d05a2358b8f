"""``gfxgraph lint`` reads whatever lies in a folder, and says what it cannot read."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gfxgraph.analyze.lint import LINT_RULES
from tests.helpers.command import gfxgraph_command

INERT = LINT_RULES["inert-variable"].bad
SETS = "os.environ['HIP_GRAPH_ENABLED'] = '1'"


def cells(*sources):
    found = [{"cell_type": "code", "source": source} for source in sources]
    return json.dumps({"cells": found})


@pytest.mark.parametrize(
    ("name", "content", "rules"),
    [
        ("a.py", "\ufeff" + INERT, ["inert-variable"]),
        ("a.py", INERT.encode("utf-16"), ["unreadable"]),
        ("a.py", b"# coding: latin-1\n# \xe9\n" + INERT.encode(), ["inert-variable"]),
        ("a.py", b"x = '\xe9'\n", ["unreadable"]),
        ("a.py", b"# coding: nonsense\n", ["unreadable"]),
        ("a.py", b"x = 1\0\n", ["unreadable"]),
        ("a.py", b"", []),
        ("a.py", b"\r\nimport os\r\n" + SETS.encode() + b"\r\n", ["inert-variable"]),
        ("a.py", b"import os\r" + SETS.encode() + b"\r", ["inert-variable"]),
        ("a.py", f"\x0cimport os\n{SETS}  # gfxgraph: ignore\n", []),
        ("a.py", "x = " + "-" * 20_000 + "1\n", ["unreadable"]),
        ("a.py", "import torch\nX = [" + "1, " * 1_500_000 + "]\n", ["unreadable"]),
        (
            "a.py",
            "import torch\n\ndef predict(x: torch.Tensor):\n    y = "
            + " + ".join(["x.relu()"] * 3_000)
            + "\n    return y.item()\n",
            None,
        ),
        (
            "a.py",
            "import torch\n\nclass A(B): ...\n\nclass B(A):\n"
            "    def forward(self, x: torch.Tensor): return self.g(x)\n"
            "    def g(self, x): return self.forward(x).item()\n",
            ["sync-in-forward"],
        ),
        ("a.ipynb", "{}", ["unreadable"]),
        ("a.ipynb", "[1, 2", ["unreadable"]),
        ("a.ipynb", cells(""), []),
        ("a.ipynb", cells(5, ["import os\n", SETS]), ["inert-variable"]),
        ("a.ipynb", cells("%%bash\nrm x", "!ls\n%env HIP_GRAPH_ENABLED=1"), ["inert-variable"]),
        ("a.sh", b"\xff export HIP_GRAPH_ENABLED=1\n", ["unreadable"]),
        ("a.sh", "export HIP_GRAPH_ENABLED='1\nA=\"\n", ["inert-variable"]),
        ("x.py/a.py", INERT, ["inert-variable"]),
        ("ast.py", "raise SystemExit\n", []),
    ],
)
def test_a_file_is_read_or_said_not_to_be(tmp_path, name, content, rules):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    result = gfxgraph_command("lint", tmp_path, "--json")
    found = [one["rule"] for one in json.loads(result.stdout)]
    assert found == rules if rules is not None else len(found) == 1


def test_links_pipes_and_folders_that_cannot_be_read_stop_nothing(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "self.py").symlink_to("self.py")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "a" / "b.py").write_text(INERT)
    result = gfxgraph_command("lint", tmp_path, "--json")
    assert [one["rule"] for one in json.loads(result.stdout)] == ["inert-variable"]
    assert gfxgraph_command("lint", tmp_path / "pipe.py").exit_code == 2


@pytest.mark.parametrize(
    "options",
    [
        ["--write-baseline", "."],
        ["--write-baseline", "no/k.json"],
        ["--baseline", "."],
        ["--sarif", "."],
        ["--json", "--sarif", "-"],
        ["--fail-on", "Fatal"],
        ["--jobs", "-1"],
        ["--ignore", "nothing"],
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    result = gfxgraph_command("lint", ".", *options)
    assert result.exit_code == 2 and "Error: " in result.stderr


def test_a_terminal_of_ascii_and_a_folder_that_is_gone(tmp_path):
    (tmp_path / "\u00e9.py").write_text(f"import os\n{SETS}  # \u00e9\n", encoding="utf-8")
    environ = {**os.environ, "PYTHONIOENCODING": "ascii", "GFXGRAPH": "nonsense"}
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        f"import os, sys; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r})\n"
        f"sys.argv = ['gfxgraph', 'lint', *sys.argv[1:]]\nfrom gfxgraph.cli import app\napp()"
    )
    plain = [sys.executable, "-m", "gfxgraph", "lint", str(tmp_path)]
    done = subprocess.run(plain, env=environ, capture_output=True, text=True)
    assert done.returncode == 1 and "\\xe9" in done.stdout and not done.stderr
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environ, capture_output=True, text=True
    )
    assert done.returncode == 2 and "current folder does not exist" in done.stderr
