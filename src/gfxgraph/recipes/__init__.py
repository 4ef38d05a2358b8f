"""The kinds of calls that a service answers from graphs, kept for its next start."""

from ..interpose.modules import import_undrawn

import_undrawn("rich.style")  # our progress bar needs it, and its import draws a random number
