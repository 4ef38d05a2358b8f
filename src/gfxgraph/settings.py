"""Settings from the environment, read at each use.

================================  =======================================================
``GFXGRAPH``                      ``1``, ``debug`` or ``validate``: ``enable()`` on import;
                                  ``0`` or empty: off (the default)
``GFXGRAPH_EMULATE``              ``1``: ``enable(emulate=True)`` on import, where there is no
                                  GPU; ``gfxgraph run --emulate`` sets it
``GFXGRAPH_LAZY``                 seconds, a number above 0: the plugins for vLLM and SGLang
                                  capture the largest size at start, and the others between
                                  two steps, once a batch needs them, for so long in all
``GFXGRAPH_RANKS_TIMEOUT``        seconds, a number above 0, default 30: how long a rank waits
                                  for the others when they decide together about a graph
                                  that holds collectives
``GFXGRAPH_REBIND``               ``1``: graphs may read large arguments where the caller has
                                  them, instead of copies; not yet for production
``GFXGRAPH_RELEASE_BELOW``        MiB, a number above 0: these plugins drop graphs that were
                                  never replayed once less memory of the device is free
``GFXGRAPH_TRACEBACK``            ``short`` (default), or ``full``: the traceback of an error
                                  in a graphed function keeps the frames of gfxgraph
``GFXGRAPH_VALIDATE_EVERY``       with ``validate``: which replays are compared with eager
                                  execution beside the first, a whole number from 1,
                                  default 100. Where it is set, the plugins for vLLM and
                                  SGLang compare theirs also without ``validate``
``GFXGRAPH_VRAM_CAP``             share of the device's memory that captures may fill,
                                  0.0 to 1.0, default 0.80; captures by hand look at it
                                  only where it is set
``HGB_LOG_LEVEL``                 ``debug``, ``info``, ``warn`` or ``warning`` (default), ``error``
``HGB_LOG_FORMAT``                ``text`` (default), or ``json``: each line of the log is
                                  a JSON object
``SGLANG_RDNA2_KERNELS``          ``1``: the plugin for SGLang is active, as with ``GFXGRAPH=1``;
                                  it changes no kernel
``SGLANG_DISABLE_GFXGRAPH``       ``1``: ``enable()`` does nothing
``HSA_OVERRIDE_GFX_VERSION``      read by the HSA runtime, reported by us: ``10.3.0``
================================  =======================================================
"""

from __future__ import annotations

import logging
import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from .errors import SettingError

__all__ = [
    "LogFormat",
    "Mode",
    "Settings",
    "Traceback",
    "emulate",
    "explicit_validate_every",
    "explicit_vram_cap",
    "from_environment",
    "log_format",
    "log_level",
    "mode",
    "rdna2_kernels",
    "rebind",
    "traceback",
]

T = TypeVar("T")
Mode = Literal["off", "on", "debug", "validate"]
LogFormat = Literal["text", "json"]
Traceback = Literal["short", "full"]

_MODES: dict[str, Mode] = {
    "": "off",
    "0": "off",
    "1": "on",
    "debug": "debug",
    "validate": "validate",
}
_SWITCH = {"": False, "0": False, "1": True}
_LEVELS = {
    "": logging.WARNING,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_LEAST, _MOST = math.ulp(0.0), sys.float_info.max
# Not all that float() takes, such as "1_000", "+3", "nan" and digits of other scripts.
_NUMBER, _WHOLE = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", r"[0-9]{1,18}"
# Variables that hold a number: name, what it takes, how that is written, the smallest and largest.
_VRAM_CAP = "GFXGRAPH_VRAM_CAP", "a number from 0.0 to 1.0", _NUMBER, 0.0, 1.0
_VALIDATE_EVERY = "GFXGRAPH_VALIDATE_EVERY", "a whole number from 1", _WHOLE, 1.0, _MOST
_LAZY = "GFXGRAPH_LAZY", "seconds, a number above 0", _NUMBER, _LEAST, _MOST
_RELEASE_BELOW = "GFXGRAPH_RELEASE_BELOW", "MiB, a number above 0", _NUMBER, _LEAST, _MOST
_RANKS_TIMEOUT = "GFXGRAPH_RANKS_TIMEOUT", "seconds, a number above 0", _NUMBER, _LEAST, _MOST
_FORMATS: dict[str, LogFormat] = {"": "text", "text": "text", "json": "json"}
_TRACEBACKS: dict[str, Traceback] = {"": "short", "short": "short", "full": "full"}


@dataclass(frozen=True)
class Settings:
    """The settings of the environment; the table of this module says what they mean."""

    mode: Mode = "off"  # GFXGRAPH
    vram_cap: float = 0.80  # GFXGRAPH_VRAM_CAP
    log_level: int = logging.WARNING  # HGB_LOG_LEVEL, as a level of logging
    rdna2_kernels: bool = False  # SGLANG_RDNA2_KERNELS
    disabled: bool = False  # SGLANG_DISABLE_GFXGRAPH
    gfx_override: str | None = None  # HSA_OVERRIDE_GFX_VERSION, None if it is not set
    validate_every: int = 100  # GFXGRAPH_VALIDATE_EVERY
    log_format: LogFormat = "text"  # HGB_LOG_FORMAT
    emulate: bool = False  # GFXGRAPH_EMULATE
    lazy: float | None = None  # GFXGRAPH_LAZY, seconds
    release_below: float | None = None  # GFXGRAPH_RELEASE_BELOW, MiB
    rebind: bool = False  # GFXGRAPH_REBIND
    ranks_timeout: float = 30.0  # GFXGRAPH_RANKS_TIMEOUT, seconds
    traceback: Traceback = "short"  # GFXGRAPH_TRACEBACK


def mode(environ: Mapping[str, str] = os.environ) -> Mode:
    """The value of ``GFXGRAPH``, even if other variables are malformed.

    Raises:
        SettingError: its value is malformed.
    """
    return _choice(environ, "GFXGRAPH", _MODES)


def emulate(environ: Mapping[str, str] = os.environ) -> bool:
    """The value of ``GFXGRAPH_EMULATE``, even if other variables are malformed.

    Raises:
        SettingError: its value is malformed.
    """
    return _choice(environ, "GFXGRAPH_EMULATE", _SWITCH)


def log_level(environ: Mapping[str, str] = os.environ) -> int:
    """The value of ``HGB_LOG_LEVEL``, even if other variables are malformed.

    Raises:
        SettingError: its value is malformed.
    """
    return _choice(environ, "HGB_LOG_LEVEL", _LEVELS)


def log_format(environ: Mapping[str, str] = os.environ) -> LogFormat:
    """The value of ``HGB_LOG_FORMAT``, even if other variables are malformed.

    Raises:
        SettingError: its value is malformed.
    """
    return _choice(environ, "HGB_LOG_FORMAT", _FORMATS)


def rebind(environ: Mapping[str, str] = os.environ) -> bool:
    """The value of ``GFXGRAPH_REBIND``, even if other variables are malformed.

    Raises:
        SettingError: its value is malformed.
    """
    return _choice(environ, "GFXGRAPH_REBIND", _SWITCH)


def traceback(environ: Mapping[str, str] = os.environ) -> Traceback:
    """The value of ``GFXGRAPH_TRACEBACK``, even if other variables are malformed.

    Raises:
        SettingError: its value is malformed.
    """
    return _choice(environ, "GFXGRAPH_TRACEBACK", _TRACEBACKS)


def rdna2_kernels(environ: Mapping[str, str] = os.environ) -> bool:
    """The value of ``SGLANG_RDNA2_KERNELS``, even if other variables are malformed.

    Raises:
        SettingError: its value is malformed.
    """
    return _choice(environ, "SGLANG_RDNA2_KERNELS", _SWITCH)


def explicit_vram_cap(environ: Mapping[str, str] = os.environ) -> float | None:
    """The value of ``GFXGRAPH_VRAM_CAP``, ``None`` if it is not set.

    Raises:
        SettingError: its value is malformed.
    """
    return _number(environ, *_VRAM_CAP)


def explicit_validate_every(environ: Mapping[str, str] = os.environ) -> int | None:
    """The value of ``GFXGRAPH_VALIDATE_EVERY``, ``None`` if it is not set.

    Raises:
        SettingError: its value is malformed.
    """
    every = _number(environ, *_VALIDATE_EVERY)
    return None if every is None else int(every)


def from_environment(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Args:
        environ: where to read them, default the process's environment.

    Raises:
        SettingError: a variable is malformed; the message names it and its value.
    """

    override = environ.get("HSA_OVERRIDE_GFX_VERSION", "").strip()
    if override and not re.fullmatch(r"\d+\.\d+\.[0-9a-f]+", override):
        takes = "three numbers such as '10.3.0'"
        raise _malformed("HSA_OVERRIDE_GFX_VERSION", override, takes)
    every, cap = explicit_validate_every(environ), explicit_vram_cap(environ)
    of_ranks = _number(environ, *_RANKS_TIMEOUT)
    return Settings(
        mode=mode(environ),
        validate_every=Settings.validate_every if every is None else every,
        vram_cap=Settings.vram_cap if cap is None else cap,
        log_level=log_level(environ),
        log_format=log_format(environ),
        rdna2_kernels=rdna2_kernels(environ),
        disabled=_choice(environ, "SGLANG_DISABLE_GFXGRAPH", _SWITCH),
        gfx_override=override or None,
        emulate=emulate(environ),
        lazy=_number(environ, *_LAZY),
        release_below=_number(environ, *_RELEASE_BELOW),
        rebind=rebind(environ),
        ranks_timeout=Settings.ranks_timeout if of_ranks is None else of_ranks,
        traceback=traceback(environ),
    )


def _choice(environ: Mapping[str, str], name: str, takes: Mapping[str, T]) -> T:
    text = environ.get(name, "").strip().lower()
    if text not in takes:
        raise _malformed(name, environ[name], ", ".join(repr(t) for t in takes if t))
    return takes[text]


def _number(
    environ: Mapping[str, str], name: str, takes: str, written: str, least: float, most: float
) -> float | None:
    """The number that a variable holds; ``None`` where it is not set, or empty."""
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch(written, text) or not least <= float(text) <= most:
        raise _malformed(name, environ[name], takes)
    return float(text)


def _malformed(name: str, value: str, takes: str) -> SettingError:
    return SettingError(f"{name}={value!r}: this variable takes {takes}. Correct or unset it.")
