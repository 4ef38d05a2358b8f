"""Where things are in this repository."""

from __future__ import annotations

from pathlib import Path

import gfxgraph

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
# Of the gfxgraph that is tested, which need not be the one in this repository.
SOURCE = str(Path(gfxgraph.__file__).parents[1])
