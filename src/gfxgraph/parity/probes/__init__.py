"""The probes: small programs, each of which proves one capability by values."""

from . import bridges, capture, conditional, driver, on_torch, own
from .here import PROBES

__all__ = ["PROBES", "bridges", "capture", "conditional", "driver", "on_torch", "own"]
