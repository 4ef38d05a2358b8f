"""What ``check`` found in a function: hazards in the order of the run, and a verdict."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .rules import Effect

__all__ = ["Hazard", "Report", "Severity"]

Severity = Literal["error", "warning", "note"]
"""``"error"``: it stays eager because of this; ``"warning"``: it captures by folding or branching;
``"note"``: it captures as it is."""

_ORDER: tuple[Effect, ...] = ("captures", "folds", "branches", "eager")


@dataclass
class Hazard:
    """One thing that a function does and that matters in a graph, at one place in the source.

    Attributes:
        rule: id of the rule in the catalogue (:data:`gfxgraph.record.rules.RULES`).
        severity: how bad it is, see :data:`Severity`.
        effect: what it makes of the function.
        what: what was called, such as ``"Tensor.item()"`` or ``"aten.nonzero.default"``.
        file: file of the user's line; ``None`` where it has none (``<stdin>``).
        line: its number, from 1; 0 where there is none.
        source: its text.
        count: how often it happened in the run.
        tainted: whether the data depends on the inputs, on random numbers, or on tensors from
            outside that change from call to call.
        why: why it matters in a graph.
        remedy: the code to write instead.
    """

    rule: str
    severity: Severity
    effect: Effect
    what: str
    file: str | None
    line: int
    source: str
    count: int
    tainted: bool
    why: str
    remedy: str


@dataclass
class Report:
    """What :func:`gfxgraph.check` returns.

    Attributes:
        name: the function.
        verdict: ``"captures"`` as it is, ``"folds"``: by folding constants, ``"branches"``: as
            several graphs with the host in between, ``"eager"``: it stays eager.
        hazards: in the order in which the run met them.
        operations: device operations of the run.
        device: what it was checked on: ``"cuda (pretended, computed on the CPU)"``.
        torch: version of torch.
    """

    name: str
    hazards: list[Hazard] = field(default_factory=list)
    operations: int = 0
    device: str = ""
    torch: str = ""

    @property
    def verdict(self) -> Effect:
        """The worst effect of a hazard."""
        return max((h.effect for h in self.hazards), key=_ORDER.index, default="captures")

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        return {"verdict": self.verdict, **asdict(self)}
