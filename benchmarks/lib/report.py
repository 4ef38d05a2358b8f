"""Files of results: where they go, what each says of its machine, and how texts are kept.

Nothing of gfxgraph is imported before :func:`about` is called.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def arguments(about: str | None, out: str | None = None) -> argparse.ArgumentParser:
    """A parser that knows ``--out`` and ``--commit``.

    Args:
        about: the docstring of the program; its first line is the description.
        out: the file in ``benchmarks/results`` that is written by default.
    """
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    default = RESULTS / out if out else None
    parser.add_argument("--out", type=Path, default=default, help=f"default: {out}" * bool(out))
    parser.add_argument("--commit", default="", help="of gfxgraph, for the record")
    return parser


def about(command: str, commit: str, *packages: str) -> dict[str, Any]:
    """How and where something was measured: what a file of results begins with."""
    import gfxgraph

    facts = gfxgraph.device_facts()
    return {
        "command": f"PYTHONPATH=src python3 -m benchmarks.runs.{command}",
        "commit": commit,
        "device": facts.name if gfxgraph.device_type() == "cuda" else "emulated",
        "torch": facts.torch,
        **versions(*packages),
    }


def versions(*packages: str) -> dict[str, str]:
    """Of those packages that are installed."""
    installed = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[package] = importlib.metadata.version(package)
    return installed


def write(path: Path, found: dict[str, Any]) -> None:
    """Write results; called after each part, so that what was measured stays whatever happens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def earlier(path: Path, head: dict[str, Any]) -> dict[str, Any]:
    """What ``path`` holds beside ``head``, if it was measured like that; else nothing."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    same = all(found.get(name) == value for name, value in head.items())
    return {name: value for name, value in found.items() if name not in head} if same else {}


def failure(error: BaseException) -> dict[str, str]:
    """The row of something that raised, without the folders of files that it names."""
    text = shortened(f"{type(error).__name__}: {' '.join(str(error).split())}")
    return {"error": re.sub(r"(?<![\w.~])~?/(?:[\w.+@~-]+/)+", "", text)[:300]}


def shortened(text: str) -> str:
    """``text`` with paths from where a package or this repository begins."""
    text = re.sub(r"[^\s:\"']*/(?:site-packages|dist-packages|python3\.\d+)/", "", text)
    return text.replace(f"{ROOT}/", "")
