"""What the commands ``bench``, ``trace`` and ``experiment`` say of three models.

``PYTHONPATH=src python3 -m benchmarks.runs.commands [bench|trace|experiments ...]``. Runs the
commands as a user does, each in a process of its own, and keeps their JSON. Takes about three
minutes on a GPU.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import Any

from benchmarks.lib.report import RESULTS, ROOT, about, arguments, write

_OF = "benchmarks.lib.targets:"
# By file: for each run its title and the arguments of `gfxgraph`.
COMMANDS: dict[str, dict[str, str]] = {
    "bench": {
        "12 blocks of width 768, 64 tokens": f'bench {_OF}blocks "float16[1,64,768]"',
        "4 layers of 8192, 8192 rows": (
            f'bench {_OF}big "float16[8192,8192]" --way graph --seconds 4'
        ),
        "8 layers of 256 and GELU": (
            f'bench {_OF}net "float16[N,256]" --way graph --way compile'
            " --shapes N=1:50,7:30,64:20,3,100 --seconds 3"
        ),
    },
    "trace": {"12 blocks of width 768, 64 tokens": f'trace {_OF}blocks "float16[1,64,768]"'},
    "experiments": {
        name: f"experiment {name} --seconds 4"
        for name in ("smoke", "modes", "lengths", "allocations", "streams", "ranks")
    },
}


def ran(command: str) -> dict[str, Any]:
    """The report that ``gfxgraph`` prints as JSON, without the paths of this machine.

    Raises:
        RuntimeError: the command fails.
    """
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "gfxgraph", *shlex.split(command), "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
    )
    if done.returncode not in (0, 1):  # 1: what an experiment asks does not hold
        raise RuntimeError(f"gfxgraph {command}: status {done.returncode}\n{done.stderr[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout.replace(f"{ROOT}/", ""))
    return report


def main() -> None:
    """Run them, and write a file for each command."""
    parser = arguments(__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(COMMANDS)}; default: all")
    options = parser.parse_args()
    if unknown := set(options.names) - set(COMMANDS):
        parser.error(f"no such command: {', '.join(sorted(unknown))}")
    folder = options.out or RESULTS
    for name in options.names or COMMANDS:
        found = about("commands", options.commit)
        runs = found["runs"] = []
        for model, command in COMMANDS[name].items():
            print(f"gfxgraph {command}", flush=True)
            runs.append({"model": model, "command": f"gfxgraph {command}", "report": ran(command)})
        write(folder / f"{name}.json", found)


if __name__ == "__main__":
    main()
