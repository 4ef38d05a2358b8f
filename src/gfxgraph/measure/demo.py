"""The demo: embed a text with a real model, eagerly and through a graph, and search in it."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import device_facts, device_type, graphed
from ..device import DeviceFacts
from .encoder import Batch, SentenceEncoder, batches, tokenize
from .passages import InputError, passages

__all__ = ["Difference", "GraphRow", "Hit", "Report", "Timing", "run"]


@dataclass(frozen=True)
class Difference:
    """How far the vectors of the graph are from those of eager execution, over all passages."""

    max: float
    mean: float


@dataclass(frozen=True)
class Timing:
    """Milliseconds that one batch takes from the call until the device is done."""

    rows: int
    tokens: int
    """Length of a row."""
    runs: int
    """Each time is the median of so many."""
    eager_ms: float
    graph_ms: float
    ratio: float
    """Eager over graph: above 1 the graph is faster."""


@dataclass(frozen=True)
class GraphRow:
    """One captured graph."""

    key: str
    replays: int
    pool_bytes: int
    input_bytes: int


@dataclass(frozen=True)
class Hit:
    """A passage near the query."""

    score: float
    """Cosine of the angle between the two, 1 for the same meaning."""
    passage: int
    text: str


@dataclass(frozen=True)
class Report:
    """All that a run of the demo found."""

    device: DeviceFacts
    passages: int
    truncated: int
    """Passages that were cut at 512 tokens."""
    batch_size: int
    batches: dict[int, int]
    """Length of the rows in tokens -> how many batches."""
    difference: Difference
    timing: Timing
    captures: int
    replays: int
    eager_calls: int
    fallbacks: dict[str, int]
    """Reason -> how often."""
    graphs: list[GraphRow]
    query: str | None
    query_truncated: bool
    hits: list[Hit]

    @property
    def emulated(self) -> bool:
        """Whether the graphs ran on the emulated device, where times mean nothing."""
        return self.device.vendor == "emulated"


def run(
    text: str,
    *,
    query: str | None = None,
    batch_size: int = 16,
    top: int = 3,
    limit: int | None = None,
    track: Callable[[Sequence[Batch]], Iterable[Batch]] = iter,
) -> Report:
    """Embed the passages of ``text`` and find those nearest to ``query``.

    Args:
        text: what to embed; see :func:`gfxgraph.measure.passages.passages` for how it is split.
        query: what to look for.
        batch_size: passages in a batch.
        top: how many passages to find.
        limit: use only so many passages from the start of the text.
        track: wraps the batches to show progress.
    """
    found = passages(text)[:limit]
    if not found:
        raise InputError("The text holds no passage: there is no letter or digit in it.")
    if query is not None:
        _check(query)
    # The query is one text more, so it runs through the same batches and graphs.
    tokens = tokenize(found if query is None else [*found, query])
    todo = list(batches(tokens, batch_size, device_type()))

    eager = SentenceEncoder().to(device_type())
    graph = graphed(eager)
    with torch.inference_mode():
        expected, vectors = _embed(eager, graph, track(todo))
        timing = _time(eager, graph, todo)

    stats = graph.stats()
    apart = (expected - vectors)[: len(found)].abs()
    return Report(
        device=device_facts(),
        passages=len(found),
        truncated=sum(tokens.truncated[: len(found)]),
        batch_size=batch_size,
        batches=_lengths(todo),
        difference=Difference(max=apart.max().item(), mean=apart.mean().item()),
        timing=timing,
        captures=stats.captures,
        replays=stats.replays,
        eager_calls=stats.eager_calls,
        fallbacks=dict(stats.fallbacks),
        graphs=[
            GraphRow(row.key, row.replays, row.pool_bytes, row.input_bytes) for row in stats.graphs
        ],
        query=query,
        query_truncated=query is not None and tokens.truncated[-1],
        hits=[] if query is None else _nearest(vectors[-1], vectors[:-1], found, top),
    )


def _check(query: str) -> None:
    if not query.strip():
        raise InputError("The query is empty.")
    try:
        query.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"The query {query!r} is not UTF-8 text.") from error


Embed = Callable[[Tensor, Tensor], Tensor]


def _embed(eager: Embed, graph: Embed, todo: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """The vectors of all texts in their order, from both, on the CPU."""
    order: list[int] = []
    expected: list[Tensor] = []
    vectors: list[Tensor] = []
    for batch in todo:
        rows = len(batch.texts)
        order += batch.texts
        expected.append(eager(batch.ids, batch.mask)[:rows].cpu())
        vectors.append(graph(batch.ids, batch.mask)[:rows].cpu())
    back = torch.tensor(order).argsort()
    return torch.cat(expected)[back], torch.cat(vectors)[back]


def _time(eager: Embed, graph: Embed, todo: Sequence[Batch]) -> Timing:
    """Time the most frequent shape, warm, the two by turns so that both see the same clock."""
    usual = Counter(_lengths(todo)).most_common(1)[0][0]
    batch = next(batch for batch in todo if batch.ids.shape[1] == usual)
    on_gpu = device_type() == "cuda"
    runs = 50 if on_gpu else 5
    times: dict[Embed, list[float]] = {eager: [], graph: []}
    for _ in range(runs):
        for embed, taken in times.items():
            start = time.perf_counter()
            embed(batch.ids, batch.mask)
            if on_gpu:
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - start)
    eager_ms, graph_ms = (1000 * statistics.median(taken) for taken in times.values())
    return Timing(
        rows=batch.ids.shape[0],
        tokens=usual,
        runs=runs,
        eager_ms=eager_ms,
        graph_ms=graph_ms,
        ratio=eager_ms / graph_ms,
    )


def _lengths(todo: Sequence[Batch]) -> dict[int, int]:
    return dict(Counter(batch.ids.shape[1] for batch in todo))


def _nearest(query: Tensor, vectors: Tensor, texts: Sequence[str], top: int) -> list[Hit]:
    scores, order = (vectors @ query).topk(min(top, len(texts)))
    return [
        Hit(score, passage, texts[passage])
        for score, passage in zip(scores.tolist(), order.tolist(), strict=True)
    ]
