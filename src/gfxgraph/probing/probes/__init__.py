"""The probes: small programs, each of which proves one capability by values.

``own`` and ``bridges`` use gfxgraph as its users do. It looks into functions of theirs and not into
its own, so these two files run in modules that are not part of it.
"""

from __future__ import annotations

import linecache
import sys
from importlib.resources import files
from types import ModuleType

from . import capture, conditional, driver, on_torch
from .here import PROBES

__all__ = ["PROBES", "capture", "conditional", "driver", "on_torch"]


def _run_as_a_users(name: str) -> None:
    source = files(__package__).joinpath(f"{name}.py").read_text(encoding="utf-8")
    module, path = ModuleType(f"parity_{name}"), f"parity/{name}.py"
    sys.modules[module.__name__] = module
    module.__file__ = path
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)


for _name in ("own", "bridges"):
    _run_as_a_users(_name)
