"""Which capabilities of CUDA graphs a machine has: ``gfxgraph parity``, with its origin.

``PYTHONPATH=src python3 -m benchmarks.runs.parity --out parity.json`` takes about a minute on a
GPU. ``benchmarks/results/parity_emulated.json`` is of a machine without one.
"""

from __future__ import annotations

import sys

from benchmarks.lib.report import about, arguments, write


def main() -> int:
    """The command; 1 if a capability is absent that CUDA's documentation promises."""
    options = arguments(__doc__, "parity.json").parse_args()
    import gfxgraph

    report = gfxgraph.parity()
    write(options.out, {**about("parity", options.commit), "report": report.to_dict()})
    print(report.verdict)
    for row in report.rows:
        if row.state != "works":
            print(f"{row.capability.id}: {row.state}: {row.text}")
    return int(report.counts["absent"] > 0 and gfxgraph.device_type() == "cuda")


if __name__ == "__main__":
    sys.exit(main())
