"""The engines as published: their Python files, unpacked into a folder of this run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.helpers.paths import ROOT, SOURCE

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the ways in which a test runs, one in three runs in ``make test-long``, all in test-full.

    Each is a process that imports an engine, which takes seconds.
    """
    ways: dict[str, int] = {}
    for item in items:
        name, is_one_of_several, _ = item.nodeid.partition("[")
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("long"):
            # Another one of them for each test.
            number = ways.setdefault(name, len(ways))
            if is_one_of_several and number % 3:
                item.add_marker("full")
            ways[name] += 1


@pytest.fixture(scope="session")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs code in a process that has SGLang; gives what it prints as JSON, last line."""
    yield from _engine("sglang", tmp_path_factory)


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs code in a process that has vLLM; gives what it prints as JSON, last line."""
    yield from _engine("vllm", tmp_path_factory)


def _engine(name: str, factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder, here = _unpacked(name, factory), factory.mktemp(name)
    path = [folder / "ours", folder / "engine", SOURCE, ROOT]
    template = subprocess.Popen(
        # What it needs comes last: the environment's own torch and its like come first.
        [sys.executable, "-W", "ignore", "-c", _TEMPLATE, folder / "needed"],
        cwd=here,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run(code: str, **variables: str) -> Any:
        assert template.stdin is not None and template.stdout is not None
        print(json.dumps([code, variables]), file=template.stdin, flush=True)
        status = template.stdout.readline().strip()
        written, said = (here / "out").read_text(), (here / "err").read_text()
        assert status == "0", said[-6000:]
        found = json.loads(written.strip().splitlines()[-1])
        return found | {"stderr": said} if isinstance(found, dict) else found

    with template:
        yield run


def _unpacked(name: str, factory: pytest.TempPathFactory) -> Path:
    """The folder with the engine, what it needs, and our entry points."""
    # The processes of xdist share it.
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"{name}-unpacked"
    with FileLock(f"{folder}.lock"):
        if (folder / "ours").exists():
            return folder
        wheels = Path(os.environ.get(_WHEELS, folder / "wheels"))
        if not list(wheels.glob(f"{name}-{_VERSIONS[name]}-*.whl")):
            _pip(name, "download", "--no-deps", f"{name}=={_VERSIONS[name]}", "-d", wheels)
        (wheel,) = wheels.glob(f"{name}-{_VERSIONS[name]}-*.whl")
        with zipfile.ZipFile(wheel) as file:
            parts = [n for n in file.namelist() if n.endswith((".py", ".json", "/"))]
            inside = [n for n in file.namelist() if ".dist-info/" in n]
            file.extractall(folder / "engine", [*parts, *inside])
        _pip(name, "install", "--target", folder / "needed", *_NEEDED[name].split())
        _distribution(folder / "ours")
    return folder


# Runs each program that it is told in a child of fork(): importing torch takes longer than most.
_TEMPLATE = """
import json, os, sys
import torch._inductor.compile_fx

sys.path.append(sys.argv[1])
for line in sys.stdin:
    code, variables = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    os.environ.update(variables)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdin, sys.argv = open(os.devnull), ["-c"]
    exec(compile(code, "<program>", "exec"), vars(sys.modules["__main__"]))
    sys.exit()
"""


def _pip(name: str, *arguments: Any) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=150)
        last = (done.stderr.strip().splitlines() or ["no message"])[-1] if done.returncode else ""
    except subprocess.TimeoutExpired:
        last = "it takes longer than 150 s"
    if last:
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
