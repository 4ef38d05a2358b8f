"""Compiles the optional part of gfxgraph, which compares memory on the path of each replay.

Hatchling runs it when the package is built or installed. Without a C compiler, and with
``GFXGRAPH_COMPILED=0``, the package has no compiled part, and NumPy does the same. It uses the
stable interface of Python alone, so one file is for every version from 3.10 on.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PART = Path("src/gfxgraph/graph/_same_words")
WHERE = f"{PART}.abi3.so"


class Compiled(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the compiled part into a wheel, and beside its source for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it."""
        if self.target_name != "wheel":
            return
        why = compiled(Path(self.root))
        if why:
            (Path(self.root) / WHERE).unlink(missing_ok=True)
            self.app.display_warning(f"gfxgraph has no compiled part: {why}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"].append(f"/{WHERE}")
        build_data |= {"pure_python": False, "tag": f"cp310-abi3-{platform}"}


def compiled(root: Path) -> str:
    """Compile the part; gives why it could not be."""
    if os.environ.get("GFXGRAPH_COMPILED") == "0":
        return "GFXGRAPH_COMPILED is 0"
    if sys.platform == "win32" or sys.implementation.name != "cpython":
        return "it needs CPython on Linux or macOS"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    link = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    include = f"-I{sysconfig.get_path('include')}"
    command = [*compiler, "-O2", "-fPIC", *link, include, f"{PART}.c", "-o", WHERE]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else f"{shlex.join(command)}\n{done.stderr.strip()}"
