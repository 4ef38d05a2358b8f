"""Shows a diagnosis in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..device.platform import Platform
from ..tables import counted
from .checks import Finding, Level
from .doctor import Diagnosis

__all__ = ["show"]

_STYLES: dict[Level, str] = {
    "error": "bold red",
    "warning": "bold yellow",
    "info": "bold cyan",
    "ok": "bold green",
}
_AS_IT_IS: dict[str, Any] = {"soft_wrap": True, "markup": False, "highlight": False}


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Print ``diagnosis``: the verdict, the machine, then the findings, the worst first."""
    levels = [one.level for one in diagnosis.findings]
    counts = [counted(levels.count(level), level) for level in ("error", "warning")]
    style: Level = ("ok", "warning", "error")[diagnosis.status]
    _print(console, f"{' and '.join(counts)}.", "", _STYLES[style])
    console.print()
    if diagnosis.platform is not None:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in _facts(diagnosis.platform):
            table.add_row(name, Text(value))
        console.print(table)
    if not diagnosis.here:
        console.print()
        _print(console, "", "Checked from a file about another machine; nothing was run there.")
    for finding in diagnosis.findings:
        console.print()
        _show_finding(finding, console)


def _facts(platform: Platform) -> Iterator[tuple[str, str]]:
    arch = platform.arch or "architecture not known"
    if platform.vendor == "amd" and platform.hardware_arch not in (None, platform.arch):
        arch += f", really {platform.hardware_arch}"
    if platform.vendor == "emulated":
        yield "device", f"emulated on {platform.name or 'the CPU'} ({arch})"
        files = platform.device_files
        found = "not known" if files is None else ", ".join(files)
        yield "driver", found or "no driver of a GPU found"
        if platform.hardware_arch:
            yield "hardware", platform.hardware_arch
    else:
        yield "device", f"{platform.name or platform.vendor} ({arch})"
        yield "driver", platform.driver or "not known"
    if platform.vendor == "amd" or platform.rocm:
        yield "ROCm", platform.rocm or "not known"
    elif platform.vendor == "nvidia":
        yield "CUDA", platform.cuda or "not known"
    yield "torch", platform.torch or "not known"
    yield "Triton", _version(platform.triton)
    package = {"nvidia": "cuda-bindings", "amd": "rocm-bindings-hip"}.get(platform.vendor)
    if package:
        yield "bindings", f"{package} {_version(platform.bindings)}"
    if platform.vllm:
        yield "vLLM", platform.vllm
    for name, value in platform.variables.items():
        yield "variable", f"{name}={value}"


def _version(version: str | None) -> str:
    return "not known" if version is None else version or "not installed"


def _show_finding(finding: Finding, console: Console) -> None:
    name = finding.id or finding.check
    _print(console, f"{finding.level} {name}: ", finding.text, _STYLES[finding.level])
    if finding.remedy:
        _print(console, "  ", finding.remedy)
    for source in finding.sources:
        console.print(Text(f"  {source}", "dim"), **_AS_IT_IS)


def _print(console: Console, head: str, text: str, style: str = "") -> None:
    filled = textwrap.fill(
        head + text,
        min(console.width, 100),
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    shown = Text(filled)
    shown.stylize(style, 0, len(head.rstrip()))
    console.print(shown, **_AS_IT_IS)
