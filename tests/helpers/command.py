"""The command ``gfxgraph`` in this process, and a module for it to work on."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from gfxgraph.cli import app


def gfxgraph_command(*args: Any) -> Result:
    """What the command gives for these arguments."""
    return CliRunner().invoke(app, list(map(str, args)))


def importable(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    """Be in ``folder``, where there is a module that nobody has imported."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    (folder / f"{name}.py").write_text(source)


def shown(show: Callable[[Any, Console], None], item: Any, **options: Any) -> str:
    """The text that ``show`` prints of an item, 80 columns wide; more options of the console."""
    out = io.StringIO()
    show(item, Console(file=out, **({"width": 80} | options)))
    return out.getvalue()
