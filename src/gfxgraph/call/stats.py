"""The statistics of a graphed callable."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..compiling.tuning import Tuned
from ..errors import ArgumentError
from ..tables import Shown, as_json, counted, fields, filled, in_bytes, table

__all__ = ["SCHEMA", "Counts", "GraphRow", "GraphedStats"]

SCHEMA = "gfxgraph.stats/1"


@dataclass(frozen=True)
class GraphRow:
    """A row of :class:`~gfxgraph.call.graphed.GraphedStats`.

    Attributes:
        key: shapes and dtypes of the tensors, and the other arguments.
        pool_bytes: bytes by which its capture made the memory pool grow, and of what the bodies of
            its conditional nodes have for themselves.
        input_bytes: bytes of its static inputs.
        private_bytes: bytes that the device holds for it alone: what its capture added to the pool
            and to the memory of static inputs.
        replays: how often it was replayed.
        paths: ways that data takes through it; 1 where its course does not depend on data.
        report: what was folded into it, and where the host takes over between its graphs.
        compiled: whether it holds code of ``torch.compile``.
        tuned: what ``compile="tuned"`` has tried for such calls, and kept; ``None``: nothing was
            searched for.
    """

    key: str
    pool_bytes: int
    input_bytes: int
    private_bytes: int
    replays: int
    paths: int
    report: list[str]
    compiled: bool
    tuned: Tuned | None = None


@dataclass(frozen=True)
class GraphedStats(Shown):
    """The counts, graphs and reasons of a graphed callable. Printed, they are a table.

    Attributes:
        captures: graphs captured.
        replays: calls answered by a replay.
        eager_calls: calls answered eagerly: the first call of each key, and fallbacks.
        fallbacks: reason -> calls that ran eagerly for it.
        evictions: graphs released because there were more than ``max_graphs``, or because another
            needed the memory and they were never replayed.
        recaptures: graphs captured again because something that they rely on was changed.
        changed: what was changed, and the line that reads it -> graphs captured again for it.
        graphs: a row a graph, least recently used first.
        refused: arguments (as ``key`` of a row) -> why calls with such run eagerly.
        pool_bytes: bytes of the memory pools that the graphs share, and of what the bodies of
            conditional nodes have for themselves.
        input_bytes: bytes of all static inputs, shared ones counted once.
        compile_s: seconds that runs took in which something was compiled; 0.0 without ``compile=``.
        not_compiled: arguments (as ``key`` of a row) -> why their graph holds no compiled code
            although ``compile=``, or the function itself, asks for it.
        thrashing: why calls that could be captured are not, since nearly each is of a kind of its
            own: what differs between them, and what to write.
        stored: the places in Python that calls write, and that each replay stores again.
    """

    captures: int
    replays: int
    eager_calls: int
    fallbacks: dict[str, int]
    evictions: int
    recaptures: int
    changed: dict[str, int]
    graphs: list[GraphRow]
    refused: dict[str, str]
    pool_bytes: int
    input_bytes: int
    compile_s: float
    not_compiled: dict[str, str]
    thrashing: tuple[str, ...]
    stored: list[str] = field(default_factory=list, kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """The statistics as plain data, for JSON."""
        return {"schema": SCHEMA, **asdict(self)}

    def to_json(self, path: str | Path | None = None) -> str:
        """The statistics as JSON, also written to the file ``path`` if there is one.

        Raises:
            ArgumentError: the file cannot be written.
        """
        try:
            return as_json(self.to_dict(), path)
        except OSError as error:
            raise ArgumentError(f"The statistics cannot be written: {error}.") from error

    def _printed(self) -> list[str]:
        memory = f"{in_bytes(self.pool_bytes)} in pools, {in_bytes(self.input_bytes)} of inputs"
        counts = ("captures", "replays", "eager_calls", "evictions", "recaptures")
        rows: list[tuple[str, Any]] = [(name, getattr(self, name)) for name in counts]
        rows += [("memory", memory), ("thrashing", self.thrashing)]
        rows += [("fallbacks", [f"{n} calls: {why}" for why, n in self.fallbacks.items()])]
        rows += [("changed", [f"{n} times: {what}" for what, n in self.changed.items()])]
        rows += [("refused", self.refused)]
        if self.stored:
            rows += [("stored", ", ".join(self.stored))]
        if self.not_compiled or self.compile_s:
            rows += [("compile_s", self.compile_s), ("not_compiled", self.not_compiled)]
        rows += [(f"tuned {g.key}", g.tuned.lines()) for g in self.graphs if g.tuned]
        head = [filled(self._in_words()), ""]
        if not self.graphs:
            return head + fields(rows)
        graphs = [(g.key, g.replays, g.paths, in_bytes(g.private_bytes)) for g in self.graphs]
        return head + fields(rows) + table(("graph", "replays", "paths", "memory"), graphs)

    def _in_words(self) -> str:
        """What became of the calls."""
        calls = self.replays + self.eager_calls
        if not calls and not self.captures:
            return "No call yet."
        kept = counted(len(self.graphs), "graph") if self.graphs else "No graph"
        return f"{kept}; {self.replays} of {counted(calls, 'call')} were replays."


@dataclass
class Counts:
    """The counts of a callable, without the replays of graphs that it still has."""

    captures: int = 0
    released_replays: int = 0
    eager_calls: int = 0
    evictions: int = 0
    recaptures: int = 0
    changed: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
