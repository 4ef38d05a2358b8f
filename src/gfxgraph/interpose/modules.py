"""Imports modules that another thread may be importing at the same moment, or that draw."""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

__all__ = ["import_undrawn", "import_whole", "loaded"]


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


def import_undrawn(name: str) -> None:
    """Import a module that draws random numbers at its import; put the generators back.

    Those are the global ones of Python, NumPy and torch. Only for modules that are imported in no
    time: what another thread draws meanwhile is put back as well.
    """
    if loaded(name) is not None:
        return
    numpy, torch = loaded("numpy.random"), loaded("torch")
    python = random.getstate()
    host = None if torch is None else torch.get_rng_state()
    legacy = None if numpy is None else numpy.get_state()
    try:
        import_whole(name)
    finally:
        random.setstate(python)
        if torch is not None:
            torch.set_rng_state(host)
        if numpy is not None:
            numpy.set_state(legacy)
