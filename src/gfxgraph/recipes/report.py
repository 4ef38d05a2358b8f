"""What became of each recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..tables import Shown, fields, in_bytes, table

__all__ = ["RecipeReport", "RecipeRow"]


@dataclass(frozen=True)
class RecipeRow:
    """A row of :class:`RecipeReport`.

    Attributes:
        function: the module and the qualified name of the callable.
        key: shapes and dtypes of the tensors of its calls, and their other arguments.
        outcome: ``"saved"``, ``"captured"`` or ``"skipped"``.
        reason: why it was skipped; else empty.
        replays: how often its graph was replayed when it was saved.
        seconds: that its capture took at this start.
        bytes: of memory that its graph takes on the device.
    """

    function: str
    key: str
    outcome: Literal["saved", "captured", "skipped"]
    reason: str = ""
    replays: int = 0
    seconds: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class RecipeReport(Shown):
    """What became of each recipe. Printed, it is a table.

    Attributes:
        path: the file.
        rows: a row for each recipe, in the order in which they were taken.
        reason: why no recipe was taken at all, such as that there is no file; else empty.
        seconds: that all of it took.
    """

    path: str
    rows: list[RecipeRow] = field(default_factory=list)
    reason: str = ""
    seconds: float = 0.0

    @property
    def saved(self) -> list[RecipeRow]:
        """The recipes that were written."""
        return [row for row in self.rows if row.outcome == "saved"]

    @property
    def captured(self) -> list[RecipeRow]:
        """The recipes that were captured."""
        return [row for row in self.rows if row.outcome == "captured"]

    @property
    def skipped(self) -> list[RecipeRow]:
        """Those that were not taken, with the reason."""
        return [row for row in self.rows if row.outcome == "skipped"]

    @property
    def bytes(self) -> int:
        """Bytes that the graphs of all recipes take on the device."""
        return sum(row.bytes for row in self.rows)

    def _printed(self) -> list[str]:
        counts = [
            (outcome, len(rows))
            for outcome, rows in (
                ("saved", self.saved),
                ("captured", self.captured),
                ("skipped", self.skipped),
            )
            if rows
        ]
        head: list[tuple[str, object]] = [("recipes", self.path), *counts]
        if self.reason:
            head.append(("reason", self.reason))
        head += [("seconds", self.seconds), ("memory", in_bytes(self.bytes))]
        lines = fields(head)
        if self.rows:
            rows = [
                (f"{row.function}: {row.key}", row.outcome, row.replays, f"{row.seconds:.2f}")
                for row in self.rows
            ]
            lines += table(("recipe", "outcome", "replays", "seconds"), rows)
        reasons = dict.fromkeys(row.reason for row in self.skipped)
        lines += fields([("skipped since", list(reasons))]) if reasons else []
        return lines
