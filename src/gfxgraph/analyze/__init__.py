"""Looks for what a graph cannot hold, without making one: check, lint, and their reports."""

from ..interpose.modules import import_undrawn

import_undrawn("rich.style")  # our tables need it, and its import draws a random number
