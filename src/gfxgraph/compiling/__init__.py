"""``torch.compile``: recommended settings, fixes, what it compiled, and where it breaks."""

from ..interpose.modules import import_undrawn

import_undrawn("rich.style")  # our tables need it, and its import draws a random number
