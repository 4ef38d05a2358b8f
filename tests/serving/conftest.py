"""The engines as published: their Python files, unpacked into a folder of this run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.paths import ROOT, SOURCE
from tests.helpers.processes import python

_VERSIONS = {"sglang": "0.5.23", "vllm": "0.33.0"}
_NEEDED = {
    "sglang": "dill distro einops msgspec openai orjson partial-json-parser psutil pybase64 "
    "python-multipart sniffio starlette pyzmq requests tqdm transformers",
    "vllm": "cbor2 psutil xxhash pyzmq openai fastapi msgspec cachetools py-cpuinfo cloudpickle "
    "einops pybase64 regex tqdm transformers partial-json-parser",
}
#: A folder with wheels that were downloaded before; they are not downloaded again.
_WHEELS = "GFXGRAPH_TEST_WHEELS"

Run = Callable[..., Any]


@pytest.fixture(scope="session")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs code in a process that has SGLang; gives what it prints as JSON, last line."""
    return _engine("sglang", tmp_path_factory)


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs code in a process that has vLLM; gives what it prints as JSON, last line."""
    return _engine("vllm", tmp_path_factory)


def _engine(name: str, factory: pytest.TempPathFactory) -> Run:
    folder = factory.mktemp(name)
    wheels = Path(os.environ.get(_WHEELS, folder / "wheels"))
    if not list(wheels.glob(f"{name}-{_VERSIONS[name]}-*.whl")):
        _pip(name, "download", "--no-deps", f"{name}=={_VERSIONS[name]}", "-d", wheels)
    (wheel,) = wheels.glob(f"{name}-{_VERSIONS[name]}-*.whl")
    with zipfile.ZipFile(wheel) as file:
        inside = file.namelist()
        parts = [one for one in inside if one.endswith((".py", ".json")) or one.endswith("/")]
        file.extractall(folder / "engine", [*parts, *(n for n in inside if ".dist-info/" in n)])
    _pip(name, "install", "--target", folder / "needed", *_NEEDED[name].split())
    _distribution(folder / "ours")
    path = [folder / "ours", folder / "engine", SOURCE, ROOT]

    def run(code: str, **variables: str) -> Any:
        # What it needs comes last: the environment's own torch and its like come first.
        code = f"import sys; sys.path.append({str(folder / 'needed')!r})\n{code}"
        variables = {"PYTHONPATH": os.pathsep.join(map(str, path)), **variables}
        done = python("-W", "ignore", "-c", code, cwd=folder, **variables)
        assert done.returncode == 0, done.stderr[-6000:]
        found = json.loads(done.stdout.strip().splitlines()[-1])
        return found | {"stderr": done.stderr} if isinstance(found, dict) else found

    return run


def _pip(name: str, *arguments: Any) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        pytest.skip(f"{name} {_VERSIONS[name]} and what it needs cannot be installed: {last}")


def _distribution(folder: Path) -> None:
    """What an installation of this gfxgraph leaves behind, with its entry points."""
    tomllib = pytest.importorskip("tomllib", reason="reads pyproject.toml (Python 3.11)")
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = folder / "gfxgraph-0.0.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gfxgraph\nVersion: 0.0.0\n")
    (info / "entry_points.txt").write_text(
        "\n".join(
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
            for group, points in groups.items()
        )
    )
