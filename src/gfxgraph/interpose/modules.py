"""Imports modules that another thread may be importing at the same moment."""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["import_whole", "loaded"]


def loaded(name: str) -> Any:
    """The module ``name``; ``None`` if it was not imported, or is still being imported."""
    module = sys.modules.get(name)
    unfinished = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if unfinished else module


def import_whole(name: str) -> Any:
    """Import the module ``name``, after the packages that it is in, each to its end.

    ``import a.b`` does not wait for another thread that is importing ``a``: that thread may then
    find ``a.b`` half made, or Python sees a deadlock and raises in one of them (Python 3.10 to
    3.13; ``_find_and_load_unlocked`` of ``importlib._bootstrap`` asks only whether ``a`` is in
    ``sys.modules``).
    """
    parts = name.split(".")
    for end in range(1, len(parts)):
        importlib.import_module(".".join(parts[:end]))
    return importlib.import_module(name)
