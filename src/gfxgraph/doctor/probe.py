"""Queries this machine in another process, which a driver may crash or hang."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..device.platform import Platform
from ..errors import ArgumentError

__all__ = ["Probe", "probe"]

# argv: a malformed setting should become a finding, not end this process at its import of gfxgraph.
_CODE = """\
import sys
sys.path[:], sys.argv[:] = {path!r}, ["gfxgraph"]
from gfxgraph.doctor.probe import main
main()
"""


@dataclass(frozen=True)
class Probe:
    """The answer of the machine.

    Attributes:
        platform: the machine; ``None`` if it did not answer.
        health: result of :func:`gfxgraph.health_check`; ``None`` where there is none.
        problem: why one of them is missing.
    """

    platform: Platform | None
    health: dict[str, Any] | None
    problem: str | None


def probe(command: Sequence[str] | None = None, timeout: float = 180) -> Probe:
    """Query this machine.

    Args:
        command: prints a platform and the result of a health check, a line each; default our own.
        timeout: seconds after which it counts as hanging.
    """
    command = command or [sys.executable, "-c", _CODE.format(path=sys.path)]
    problem = ""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as error:
        out = error.stdout or ""
        text = out.decode(errors="replace") if isinstance(out, bytes) else out
        problem = f"did not answer for {timeout:g} s"
    else:
        text = done.stdout
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            problem = f"ended by {_ending(done.returncode)}: {last}"
    platform, health = _lines(text)
    if health is None:
        step = "that looks at the device" if platform is None else "that captures a small graph"
        return Probe(platform, None, f"The process {step} {problem or 'gave no answer'}.")
    if problem:
        return Probe(platform, health, f"A small graph worked, and then its process {problem}.")
    return Probe(platform, health, None)


def main() -> None:
    """Print the platform, then the health check."""
    from ..bridge.enable import health_check
    from ..device.platform import this_platform

    print(json.dumps(this_platform().to_dict()), flush=True)
    print(json.dumps(health_check()), flush=True)


def _lines(text: str) -> tuple[Platform | None, dict[str, Any] | None]:
    """The two results, as far as they are there; ignores other output (of libraries)."""
    platform, health = None, None
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and "native_bridge" in found:
            health = found
        elif isinstance(found, dict) and "vendor" in found:
            try:
                platform = Platform.from_dict(found)
            except ArgumentError:
                continue
    return platform, health


def _ending(status: int) -> str:
    if status > 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
