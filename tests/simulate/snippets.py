"""The Python code of a page."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["of_page"]

_ROOT = Path(__file__).parents[2]


def of_page(path: str) -> list[str]:
    """The blocks of the page at ``path`` that are marked as Python."""
    return re.findall(r"^```python\n(.*?)^```", (_ROOT / path).read_text("utf-8"), re.M | re.S)
