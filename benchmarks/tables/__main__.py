"""Writes pages and pictures: ``PYTHONPATH=src python3 -m benchmarks.tables [NAME ...]``.

By default all that need nothing but files of results. ``cases`` has to be named: it asks
``gfxgraph.check`` about each case, for which torch must be a CUDA or ROCm build.
"""

from __future__ import annotations

import argparse
import importlib

DEFAULT = (
    "readme",
    "figures",
    "pictures",
    "models",
    "alternatives",
    "memory",
    "operators",
    "parity",
    "versions",
)
NAMES = (*DEFAULT, "cases")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Make pages of benchmarks/results.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all but cases"
    )
    names = parser.parse_args().names or DEFAULT
    if unknown := set(names) - set(NAMES):
        parser.error(f"no such page: {', '.join(sorted(unknown))}")
    for name in names:
        module = importlib.import_module(f"benchmarks.tables.{name}")
        if name == "pictures":
            module.write()
        else:
            module.PAGE.write_text(module.made(), encoding="utf-8")


if __name__ == "__main__":
    main()
