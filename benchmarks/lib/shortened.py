"""Texts for result files, without the folders of the machine that made them."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["shortened"]

_ROOT = Path(__file__).parents[1]


def shortened(text: str) -> str:
    """``text`` with paths from where a package or this repository begins."""
    text = re.sub(r"[^\s:\"']*/(?:site-packages|dist-packages|python3\.\d+)/", "", text)
    return text.replace(f"{_ROOT}/", "")
