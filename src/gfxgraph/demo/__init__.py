"""The demo: search by meaning, with and without graphs."""

from ..interpose.modules import import_undrawn

import_undrawn("rich.style")  # our tables need it, and its import draws a random number
