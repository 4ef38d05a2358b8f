"""Compiles the optional part of gfxgraph: what each replay does and Python takes long for.

Hatchling runs it when the package is built or installed. Without a C compiler, and with
``GFXGRAPH_COMPILED=0``, the package has no compiled part; NumPy and ctypes do the same. It uses the
stable interface of Python alone, so one file is for every version from 3.10 on. No failure here
fails the installation, except for a setting that says neither yes nor no.
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

PART = Path("src/gfxgraph/_compiled")
WHERE = f"{PART}.abi3.so"


class Compiled(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the compiled part into a wheel, and beside its source for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it."""
        if self.target_name != "wheel":
            return
        why = compiled(Path(self.root))
        if why:
            self.app.display_warning(f"gfxgraph has no compiled part: {why}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"].append(f"/{WHERE}")
        build_data |= {"pure_python": False, "tag": f"cp310-abi3-{platform}"}


def compiled(root: Path) -> str:
    """Compile the part; gives why there is none, not one of an earlier build either.

    Raises:
        ValueError: ``GFXGRAPH_COMPILED`` is neither ``0`` nor ``1``, nor empty.
    """
    wanted = os.environ.get("GFXGRAPH_COMPILED", "").strip()
    if wanted not in ("", "0", "1"):
        raise ValueError(f"GFXGRAPH_COMPILED={wanted!r}: expected 0 or 1; leave it out for 1")
    where = root / WHERE
    try:
        where.unlink(missing_ok=True)
        why = "GFXGRAPH_COMPILED is 0" if wanted == "0" else _compile(root)
        if why:
            where.unlink(missing_ok=True)  # what a compiler has begun
        return why or ("" if where.is_file() else f"the compiler gave no {where.name}")
    except (OSError, ValueError) as error:  # no compiler, no right to write there, a quote in CC
        return str(error)


def _compile(root: Path) -> str:
    if sys.platform == "win32" or sys.implementation.name != "cpython":
        return "it needs CPython on Linux or macOS"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    link = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    include = f"-I{sysconfig.get_path('include')}"
    command = [*compiler, "-O2", "-fPIC", *link, include, f"{PART}.c", "-o", WHERE]
    done = subprocess.run(
        command, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    said = done.stderr.decode(errors="replace").strip()
    return f"{shlex.join(command)}\n{said}" if done.returncode else ""
