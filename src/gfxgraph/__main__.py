"""``python -m gfxgraph`` is the command ``gfxgraph``."""

from .cli import app

app(prog_name="gfxgraph")
