"""What the command ``check`` takes and shows."""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import Any

import torch
from rich.console import Console

from ..errors import ArgumentError
from ..record.report import Report

__all__ = ["arguments", "load", "show"]

_VERDICTS = {
    "captures": "captures as it is",
    "folds": "captures by folding constants",
    "branches": "captures as several graphs, with the host in between",
    "eager": "stays eager",
}


def load(target: str) -> Any:
    """The object that ``module:attribute`` names, also from the current directory.

    Raises:
        ArgumentError: there is no such module or attribute.
    """
    module, colon, path = target.partition(":")
    if not colon or not path:
        raise ArgumentError(f"{target!r}: expected module:callable, such as my_policy:model.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"{target!r} cannot be loaded: {error}.") from error
    return found


def arguments(specs: list[str]) -> list[torch.Tensor]:
    """Tensors for specs such as ``float32[4,8]``: normal numbers, integers 0 and 1.

    Raises:
        ArgumentError: a spec is malformed.
    """
    return [_tensor(spec) for spec in specs]


def _tensor(spec: str) -> torch.Tensor:
    match = re.fullmatch(r"(\w+)\[([\d, ]*)\]", spec)
    dtype = getattr(torch, match[1], None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"{spec!r}: expected a dtype and a shape, such as float32[4,8].")
    shape = [int(size) for size in match[2].split(",") if size.strip()]
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape).to(dtype)
    return torch.randint(2, shape).to(dtype)


def show(report: Report, console: Console) -> None:
    """Print the verdict and the hazards, in the order of the run."""
    console.print(f"{report.name}: {_VERDICTS[report.verdict]}", style="bold", markup=False)
    for hazard in report.hazards:
        place = f"{hazard.file}:{hazard.line}" if hazard.file else "(no line)"
        times = f" ({hazard.count} times)" if hazard.count > 1 else ""
        lines = [
            f"\n{hazard.severity}: {hazard.rule}: {hazard.what}{times}",
            f"  {place}",
            f"    {hazard.source}" if hazard.source else "",
            f"  {hazard.why}",
            f"  Instead: {hazard.remedy}" if hazard.effect != "captures" else "",
        ]
        console.print("\n".join(filter(None, lines)), markup=False, soft_wrap=True)
    console.print(
        f"\n{report.operations} operations on {report.device}, torch {report.torch}", markup=False
    )
