"""The catalogue of rules that read source."""

from __future__ import annotations

from . import capturing, environment, forward, kernels, reading, repeated, versions, wrappers
from .source import LintRule

__all__ = ["LINT_RULES", "LintRule"]

_MODULES = (kernels, forward, capturing, repeated, wrappers, versions, environment, reading)

LINT_RULES: dict[str, LintRule] = {rule.id: rule for room in _MODULES for rule in room.RULES}
"""The catalogue, by rule id."""
