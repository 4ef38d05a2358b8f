"""``make bench``: runs this project's benchmarks, and makes pages of what they find.

``PYTHONPATH=src python3 -m benchmarks.suite [NAME ...] [--minutes N]``. Each runs in a process of
its own and has a limit. A result replaces the file in ``benchmarks/results`` only if the program
ended well. At the end the tables of the README and of ``docs`` are made of the files. The whole
takes hours and needs the packages that a benchmark measures (diffusers, lerobot, timm,
transformers, ...); name those that you want. Status 1: one of them failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.lib.report import RESULTS, ROOT


class Program(NamedTuple):
    """A program of ``benchmarks/runs``.

    Attributes:
        files: what it writes; one that gives several is told a folder.
        minutes: how long it may take.
        options: what it is given beside ``--out`` and ``--commit``.
    """

    files: tuple[str, ...]
    minutes: float = 5.0
    options: tuple[str, ...] = ()


PROGRAMS: dict[str, Program] = {
    "host_time": Program(("host_time.json",)),
    "commands": Program(("bench.json", "trace.json", "experiments.json"), 10.0),
    "update": Program(("update.json",)),
    "control_flow": Program(("control_flow.json",)),
    "executables": Program(("executables.json",)),
    "release": Program(("release.json",)),
    "no_graph": Program(("no_graph.json",)),
    "metrics": Program(("metrics.json",), 10.0),
    "rebinding": Program(("rebinding.json",)),
    "recipes": Program(("recipes.json",)),
    "parity": Program(("parity.json",)),
    "runners": Program(("runners.json",)),
    "capture_failures": Program(("capture_failures.json",), 15.0, ("--failures", "200")),
    "buckets": Program(("buckets.json",), 30.0),
    "compiled": Program(("compiled.json",), 60.0),
    "decode": Program(("decode.json",), 20.0),
    "denoising": Program(("diffusion.json",), 20.0),
    "embeddings": Program(("embeddings.json",), 15.0),
    "generation": Program(("generation.json",), 10.0),
    "models": Program(("models.json",), 60.0),
    "policies": Program(("policies.json",), 20.0),
    "recaptures": Program(("recaptures.json",), 20.0),
    "whole_calls": Program(("whole_calls.json",), 20.0),
    "scale": Program(("scale.json",), 10.0),
    "tuned": Program(("tuned.json",), 10.0),
    "memory": Program(("memory.json",), 10.0),
    "alternatives": Program(("alternatives.json",), 30.0, ("--seconds", "1700")),
}
"""In the order in which they run. The others need two trees (``host_time_trees``, ``first_call``)
or two GPUs (``ranks_nccl``), or are parts of tests (``cases``, ``operators``, ``versions``)."""


def run(name: str, commit: str, results: Path, seconds: float) -> str:
    """Run one; gives why it has no result, or ``""``."""
    program = PROGRAMS[name]
    with tempfile.TemporaryDirectory() as folder:
        several = len(program.files) > 1
        out = Path(folder) if several else Path(folder) / program.files[0]
        command = [sys.executable, "-m", f"benchmarks.runs.{name}", "--out", str(out)]
        try:
            done = subprocess.run(
                [*command, "--commit", commit, *program.options],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": _path()},
                timeout=min(seconds, 60.0 * program.minutes),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return f"it took more than {error.timeout:.0f} s"
        if done.returncode != 0:
            return f"it ended with status {done.returncode}"
        for file in program.files:
            path = Path(folder) / file
            if not path.is_file():
                return f"it wrote no {file}"
            json.loads(path.read_text(encoding="utf-8"))
        for file in program.files:
            shutil.move(Path(folder) / file, results / file)
    return ""


def _path() -> str:
    return os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Run benchmarks, and make pages of the results.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--minutes", type=float, default=600.0, help="for all; default 600")
    parser.add_argument("--commit", default="", help="of gfxgraph, for the record")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of results")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in PROGRAMS]:
        parser.error(f"no such benchmark: {', '.join(unknown)}; expected {', '.join(PROGRAMS)}")
    if not options.results.is_dir():
        parser.error(f"--results: there is no folder {options.results}")
    until = time.monotonic() + 60.0 * options.minutes
    failed = {}
    for name in options.names or PROGRAMS:
        left = until - time.monotonic()
        why = run(name, options.commit, options.results, left) if left > 0 else "no time was left"
        print(f"{name}: {why or 'measured'}", flush=True)
        if why:
            failed[name] = why
    if options.results == RESULTS:
        subprocess.run([sys.executable, "-m", "benchmarks.tables"], cwd=ROOT, check=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
