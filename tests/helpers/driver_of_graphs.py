"""A small library in C that stands for the drivers of CUDA and HIP."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from gfxgraph.device import gpu_graphs, gpu_nodes

# As in the library: what a function can be told to do beside returning an error.
NULL_HANDLES, MORE = -1, -2


def compiled_library(path: Path, *options: str) -> Path:
    """Compile the library to ``path``; ``-DhipName=other`` takes a function out of it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    source = str(Path(__file__).with_suffix(".c"))
    command = [compiler, "-shared", "-fPIC", "-w", *options, "-o", str(path), source, "-ldl"]
    subprocess.run(command, check=True)
    return path


@contextmanager
def hip_is_loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """The library at ``path`` is the runtime that a torch for HIP has loaded."""
    library = ctypes.CDLL(str(path))
    monkeypatch.setattr(torch.version, "hip", "7.2")
    monkeypatch.setattr(gpu_nodes, "_loaded", lambda *names: library)
    remembered = gpu_nodes.driver_of_graphs, gpu_graphs.driver_of_executables
    for driver in remembered:
        driver.cache_clear()
    try:
        yield library
    finally:
        for driver in remembered:
            driver.cache_clear()
