"""``gfxgraph doctor``: describes the machine, tries a graph, lists known problems."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..device.platform import Platform
from ..errors import ArgumentError
from .checks import CHECKS, Finding, Level
from .probe import Probe

__all__ = ["Diagnosis", "diagnose", "saved_health"]

SCHEMA = 1
_ORDER: dict[Level, int] = {"ok": 0, "info": 0, "warning": 1, "error": 2}

Check = Callable[[Platform], Iterable[Finding]]


@dataclass(frozen=True)
class Diagnosis:
    """The result of :func:`diagnose`.

    Attributes:
        platform: the machine; ``None`` if it could not be queried.
        here: whether it is this machine.
        findings: the findings, the worst first.
        health: the result of :func:`gfxgraph.health_check`; ``None``: it did not run or did not
            end.
    """

    platform: Platform | None
    here: bool
    findings: tuple[Finding, ...]
    health: Mapping[str, Any] | None

    @property
    def status(self) -> int:
        """Exit status: 0 nothing above info, 1 warnings, 2 errors."""
        return max((_ORDER[one.level] for one in self.findings), default=0)

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis for ``--json``."""
        return {
            "schema": SCHEMA,
            "status": ("ok", "warning", "error")[self.status],
            "here": self.here,
            "platform": self.platform.to_dict() if self.platform else None,
            "health": dict(self.health) if self.health else None,
            "findings": [asdict(one) | {"sources": list(one.sources)} for one in self.findings],
        }


def diagnose(
    platform: Platform | None,
    probe: Probe | None = None,
    checks: Mapping[str, Check] = CHECKS,
    saved: Iterable[Finding] = (),
) -> Diagnosis:
    """Run all checks; one that raises becomes a finding.

    Args:
        platform: the machine to check; ``None``: that of ``probe``.
        probe: the answer of this machine; ``None``: check another machine, without running anything
            there.
        checks: name -> check, default all.
        saved: the findings of the other machine about a graph, from :func:`saved_health`.
    """
    findings = list(saved)
    if probe is not None:
        platform = platform or probe.platform
        findings.append(replace(_health(probe), check="health"))
    for name, check in checks.items() if platform else ():
        assert platform is not None
        try:
            findings += (replace(one, check=name) for one in check(platform))
        except Exception as error:
            findings.append(
                Finding(
                    "warning",
                    f"This check failed: {type(error).__name__}: {error}",
                    "Its subject was not checked. Please report it, with the output of gfxgraph "
                    "doctor --json.",
                    check=name,
                )
            )
    findings.sort(key=lambda one: -_ORDER[one.level])
    health = probe.health if probe else None
    return Diagnosis(platform, probe is not None, tuple(findings), health)


def saved_health(path: Path) -> list[Finding]:
    """The finding about a small graph in the output of ``gfxgraph doctor --json``, if any.

    Raises:
        ArgumentError: the file is not as doctor writes it.
    """
    findings = json.loads(path.read_text(encoding="utf-8")).get("findings", [])
    try:
        saved = [one for one in findings if one["check"] == "health"]
        found = [Finding(**one | {"sources": tuple(one["sources"])}) for one in saved]
        if all(one.level in _ORDER and isinstance(one.text, str) for one in found):
            return found
    except (KeyError, TypeError):
        pass
    raise ArgumentError(f"{path}: its findings are not as gfxgraph doctor --json writes them.")


def _health(probe: Probe) -> Finding:
    if probe.problem is not None:
        return Finding(
            "error",
            probe.problem,
            "Try a plain torch.cuda.CUDAGraph in a new process; the driver's log (dmesg) may say "
            "more.",
        )
    health = probe.health
    assert health is not None
    if not health["ok"]:
        text = f"A small graph does not work: {health['details']}"
        return Finding("error", text, "Until it does, gfxgraph runs everything eagerly.")
    if health["tier"] == "emulated":
        text = "A small graph was captured and replayed on the emulated device, not on a GPU."
        return Finding("ok", text)
    text = f"A small graph was {health['details']}."
    if not health["native_bridge"]:
        text += " The driver itself was not reached, so the nodes of graphs are not known."
    return Finding("ok", text)
