"""Checks this machine, recommends variables, and starts programs with them."""

from ..interpose.modules import import_undrawn

import_undrawn("rich.style")  # our tables need it, and its import draws a random number
