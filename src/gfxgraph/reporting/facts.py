"""Where figures come from, as files say it: command, commit, device and versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PACKAGES", "facts_of"]

PACKAGES = (
    "torch",
    "gfxgraph",
    "python",
    "runtime",
    "driver",
    "transformers",
    "diffusers",
    "lerobot",
    "timm",
    "torchvision",
    "prometheus-client",
    "starlette",
    "uvicorn",
)


def facts_of(data: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    """What ``data`` says of its origin, and what is ``known`` of it otherwise.

    Args:
        data: the file, or a report in it.
        known: what stands around it: the file, the command of a wrapper.
    """
    found = {**known}
    several: dict[str, dict[str, None]] = {}
    about = data.get("about")
    for source in (data, about if isinstance(about, dict) else {}):
        for name in ("command", "commit", "date"):
            if isinstance(source.get(name), str):
                found[name] = source[name]
        if isinstance(source.get("commits"), list):
            found["commit"] = ", ".join(map(str, source["commits"]))
        device = source.get("device", source.get("gpu"))
        if isinstance(device, dict):  # of demo: what platform says
            source = {**device, **source}
            device = device.get("name")
        if isinstance(device, str):
            found["device"] = device
        for name in PACKAGES:
            if isinstance(source.get(name), str) and source[name]:
                found[name] = source[name]
    runs, said = data.get("runs"), set(found)
    for run in runs if isinstance(runs, list) else ():
        if isinstance(run, dict):
            for name in ("device", "torch", "python", "commit"):
                if isinstance(run.get(name), str) and name not in said:
                    several.setdefault(name, {})[run[name]] = None
    return found | {name: ", ".join(values) for name, values in several.items()}
