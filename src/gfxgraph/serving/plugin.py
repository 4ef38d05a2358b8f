"""The entry points: what vLLM and SGLang call in each of their processes.

Nothing else is imported before a variable has switched gfxgraph on.
"""

from __future__ import annotations

import logging
import os

from .. import settings
from ..stats import log

__all__ = ["sglang", "vllm"]

_told: set[tuple[str, int]] = set()  # engine and process


def vllm() -> None:
    """Entry point of ``vllm.general_plugins``; does nothing unless ``GFXGRAPH`` asks for it.

    Raises:
        SettingError: gfxgraph is switched on, and a variable is malformed.
    """
    if settings.mode() != "off" and _activated("vLLM"):
        from .vllm import install

        _ask()
        install(_compare_every())


def sglang() -> None:
    """Entry point of ``sglang.srt.plugins``.

    Does nothing unless ``GFXGRAPH`` or ``SGLANG_RDNA2_KERNELS=1`` asks for it.

    Raises:
        SettingError: gfxgraph is switched on, and a variable is malformed.
    """
    if (settings.mode() != "off" or settings.rdna2_kernels()) and _activated("SGLang"):
        from .sglang import install

        _ask()
        install(_compare_every())


def _activated(engine: str) -> bool:
    """Whether gfxgraph is in force now; says so once a process."""
    asked = settings.from_environment()
    if asked.disabled:
        return False
    from ..bridge.enable import enable, is_enabled
    from ..device import current_device
    from ..graph.native import NativeGraph

    if not is_enabled():
        enable(debug=asked.mode == "debug", validate=asked.mode == "validate")
    NativeGraph.global_is_thread_local = True
    key = engine, os.getpid()
    if key not in _told:
        _told.add(key)
        amd = {"amd": "not tried on an AMD GPU"} if current_device().kind == "hip" else {}
        every = _compare_every()
        also = {
            "compared_every": every or None,
            "lazy_seconds": asked.lazy,
            "release_below_mib": asked.release_below,
        }
        log(
            logging.WARNING,  # the level that is shown by default
            "serving",
            engine=engine,
            failed_captures="run eagerly",
            switch_off="SGLANG_DISABLE_GFXGRAPH=1",
            **{name: value for name, value in also.items() if value is not None},
            **amd,
        )
    return True


def _ask() -> None:
    """What is to be done between two steps."""
    from .between import BETWEEN

    asked = settings.from_environment()
    BETWEEN.lazy = asked.lazy or 0.0
    BETWEEN.release_below = (asked.release_below or 0.0) * 2**20


def _compare_every() -> int:
    """How often replays of the engine are compared with eager execution; 0: never."""
    asked = settings.from_environment()
    is_on = asked.mode == "validate" or settings.explicit_validate_every() is not None
    return asked.validate_every if is_on else 0
