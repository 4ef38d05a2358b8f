"""A file of gfxgraph imports only from its own layer and from those below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

SOURCE = ROOT / "src" / "gfxgraph"

# From the top down. The picture and the reasons: docs/architecture.md.
LAYERS = [
    {"__main__", "cli"},
    {
        "demo",
        "doctor",
        "inspecting",
        "integrations",
        "measure",
        "metrics",
        "probing",
        "recipes",
        "reporting",
        "serving",
    },
    {"verifying"},
    {"analyze"},
    {"bridge"},
    {"call"},
    {"simulate"},
    {"graph"},
    {"record"},
    {"compiling"},
    {"device"},
    {
        "_compiled",
        "errors",
        "forking",
        "interpose",
        "settings",
        "stats",
        "tables",
        "troubleshooting",
    },
]
HEIGHT = {room: -depth for depth, layer in enumerate(LAYERS) for room in layer}
TOP = HEIGHT["cli"]
FACE = "__init__"  # gfxgraph/__init__.py: may import everything, is imported only by the top


def violations(source: Path) -> list[str]:
    """A sentence for each import in the package at ``source`` that points upwards."""
    found = []
    for path in sorted(source.rglob("*.py")):
        room = _room(source, path)
        name = path.relative_to(source.parent)
        if room == FACE:
            continue
        if room not in HEIGHT:
            found.append(f"{name}: {room!r} is in no layer; give it a place in LAYERS.")
            continue
        for line, target in imports(source, path):
            if target != FACE and target not in HEIGHT:
                found.append(f"{name}:{line}: imports {target!r}, which is in no layer.")
            elif (TOP if target == FACE else HEIGHT[target]) > HEIGHT[room]:
                what = "gfxgraph itself" if target == FACE else repr(target)
                found.append(f"{name}:{line}: {room!r} must not import {what}: it is above it.")
    return found


def imports(source: Path, path: Path) -> Iterator[tuple[int, str]]:
    """The line and the room of every import from gfxgraph, also in functions and for types."""
    package = ("gfxgraph", *path.relative_to(source).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                targets = [tuple(alias.name.split(".")) for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                start = package[: len(package) - level + 1] if level else ()
                start += tuple(module.split(".")) if module else ()
                targets = [(*start, alias.name) for alias in names]
            case ast.Call(args=[ast.Constant(value=str(module)), *_]) if _imports(node.func):
                targets = [tuple(module.split("."))]
            case _:
                continue
        for target in targets:
            if target[0] == "gfxgraph":
                yield node.lineno, _room_of_import(source, target)


def _imports(function: ast.expr) -> bool:
    return ast.unparse(function) in {"importlib.import_module", "import_module", "__import__"}


def _room(source: Path, path: Path) -> str:
    return path.relative_to(source).with_suffix("").parts[0]


def _room_of_import(source: Path, target: tuple[str, ...]) -> str:
    """``gfxgraph.graphed`` is a name of the face, ``gfxgraph.graph`` is a room."""
    name = target[1] if len(target) > 1 else FACE
    is_room = (source / name).is_dir() or (source / f"{name}.py").is_file()
    return name if is_room or name in HEIGHT else FACE


def test_layers():
    assert (SOURCE / "__init__.py").is_file()
    found = violations(SOURCE)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        (
            "graph/one.py",
            "import torch\n\nfrom gfxgraph.call import graphed\n",
            "gfxgraph/graph/one.py:3: 'graph' must not import 'call': it is above it.",
        ),
        (
            "device/cuda.py",
            "def facts():\n    from ..compiling import settings\n",
            "gfxgraph/device/cuda.py:2: 'device' must not import 'compiling': it is above it.",
        ),
        (
            "errors.py",
            "from . import stats, device\n",
            "gfxgraph/errors.py:1: 'errors' must not import 'device': it is above it.",
        ),
        (
            "call/many.py",
            "from .. import graphed\n",
            "gfxgraph/call/many.py:1: 'call' must not import gfxgraph itself: it is above it.",
        ),
        (
            "record/late.py",
            "import importlib\nimportlib.import_module('gfxgraph.graph.native')\n",
            "gfxgraph/record/late.py:2: 'record' must not import 'graph': it is above it.",
        ),
        (
            "stats.py",
            "import torch, gfxgraph.settings as s, gfxgraph.cli\n",
            "gfxgraph/stats.py:1: 'stats' must not import 'cli': it is above it.",
        ),
        (
            "graph/two.py",
            "if TYPE_CHECKING:\n    from ..call import A\n",
            "gfxgraph/graph/two.py:2: 'graph' must not import 'call': it is above it.",
        ),
        (
            "helpers/text.py",
            "import re\n",
            "gfxgraph/helpers/text.py: 'helpers' is in no layer; give it a place in LAYERS.",
        ),
    ],
)
def test_an_import_upwards_is_named(tmp_path, file, text, sentence):
    assert violations(_tree(tmp_path, file, text)) == [sentence]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("__init__.py", "from .call import graphed\nfrom .cli import app\n"),
        ("cli.py", "from . import __version__\nfrom .demo.demo import run\n"),
        ("call/many.py", "from ..graph import one\nfrom . import key\nfrom .key import Key\n"),
        ("compiling/fix.py", "from ..device import current_device\nfrom ..errors import Error\n"),
        ("errors.py", "import torch\nfrom gfxgraphics.call import name\n"),
    ],
)
def test_imports_downwards_and_sideways_pass(tmp_path, file, text):
    assert violations(_tree(tmp_path, file, text)) == []


def _tree(tmp_path: Path, file: str, text: str) -> Path:
    path = tmp_path / "gfxgraph" / file
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return tmp_path / "gfxgraph"
