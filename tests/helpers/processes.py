"""Python in a process of its own, with the gfxgraph that is tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.helpers.paths import SOURCE


def python(
    *arguments: Any, cwd: Path | None = None, timeout: float = 300, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with ``arguments``, and environment variables on top of those of this process."""
    path = os.pathsep.join(filter(None, (SOURCE, os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path} | variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def printed(code: str, **options: Any) -> str:
    """What ``code`` prints in a process of its own, which has to end well; see :func:`python`."""
    done = python("-c", code, **options)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout.strip()
