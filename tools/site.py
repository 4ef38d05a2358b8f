"""Hooks of the docs site (mkdocs.yml): docstrings in Markdown.

A docstring names another object by a role of Sphinx (``:meth:`replay` ``), which Markdown would
show as it stands.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|data|attr|mod):`~?([^`]+)`")


class Roles(griffe.Extension):
    """Turns roles of Sphinx into code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object once it is loaded."""
        if obj.docstring is not None:
            obj.docstring.value = _ROLE.sub(_as_code, obj.docstring.value)


def _as_code(role: re.Match[str]) -> str:
    return f"`{role[1].rpartition('.')[2] if '~' in role[0] else role[1]}`"
