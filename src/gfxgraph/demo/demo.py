"""The demo: embed a text with a real model, eagerly and through graphs, and search in it."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..call.buckets.pool import PoolStats, ShapeBucketPool
from ..call.buckets.traffic import padded_work, suggest_buckets
from ..device import DeviceFacts, current_device
from .encoder import MAX_TOKENS, Batch, SentenceEncoder, Tokens, batches, tokenize
from .passages import InputError, passages

__all__ = ["DemoReport", "Difference", "GraphRow", "Hit", "Padding", "Timing", "run"]

# Each combination of the two is a graph.
_LENGTHS = 4
_BATCH_SIZES = 2
_POWERS_OF_TWO = [2**n for n in range(MAX_TOKENS.bit_length())]


@dataclass(frozen=True)
class Difference:
    """The difference between the vectors of the graphs and of eager execution, over all passages.

    Eager execution gets each batch unpadded; graphs pad it.
    """

    max: float
    mean: float


@dataclass(frozen=True)
class Padding:
    """Computed tokens for all texts, and the share of padding among them."""

    tokens: int
    """Tokens of the texts."""
    asked: int
    """Tokens of the batches, whose rows are as long as the longest of them."""
    computed: int
    """Tokens of the buckets."""
    share: float
    """The share of padding in the tokens that graphs compute, 0 to 1."""
    powers_of_two: float
    """That share if the lengths of the buckets were powers of two."""
    longest: float
    """That share if all buckets were as long as the longest text that the model takes."""


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one batch from the call until the device is done."""

    rows: int
    tokens: int
    """Length of a row, as eager execution gets it."""
    bucket: tuple[int, int]
    """Rows and tokens that the graph pads it to."""
    runs: int
    """Each time is the median of this many runs."""
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
    """Bytes by which its capture made the memory pool of all graphs grow."""
    input_bytes: int
    """Bytes of its inputs, in memory that all graphs share."""
    private_bytes: int
    """Bytes of the device for this graph alone."""


@dataclass(frozen=True)
class Hit:
    """A passage near the query."""

    score: float
    """Cosine of the angle between the two, 1 for the same meaning."""
    passage: int
    text: str


@dataclass(frozen=True)
class DemoReport:
    """The results of a run of the demo."""

    device: DeviceFacts
    passages: int
    truncated: int
    """Passages that were cut at 512 tokens."""
    batch_size: int
    buckets: dict[str, list[int]]
    """The sizes that batches are padded to: rows, ``"batch"``, and tokens, ``"seq"``."""
    batches: dict[int, int]
    """Length of the bucket in tokens -> how many batches."""
    padding: Padding
    difference: Difference
    timing: Timing
    captures: int
    replays: int
    """Batches that a graph answered. Timing runs are not counted, here and below."""
    eager_calls: int
    fallbacks: dict[str, int]
    """Reason -> how often."""
    graphs: list[GraphRow]
    """The largest first, which is the order in which they are captured."""
    pool_bytes: int
    """Bytes of the memory pool of all graphs."""
    input_bytes: int
    """Bytes of the inputs of all graphs."""
    query: str | None
    query_truncated: bool
    hits: list[Hit]

    @property
    def emulated(self) -> bool:
        """Whether the graphs ran on the emulated device, where times mean nothing."""
        return self.device.vendor == "emulated"


Track = Callable[[Sequence[Any], str], Iterable[Any]]


def _untracked(items: Sequence[Any], what: str) -> Iterable[Any]:
    return items


def run(
    text: str,
    *,
    query: str | None = None,
    batch_size: int = 16,
    top: int = 3,
    limit: int | None = None,
    track: Track = _untracked,
) -> DemoReport:
    """Embed the passages of ``text`` and find those nearest to ``query``.

    Args:
        text: the text to embed; see :func:`gfxgraph.demo.passages.passages` for how it is split.
        query: the text to search for.
        batch_size: passages in a batch.
        top: how many passages to find.
        limit: use only this many passages from the start of the text.
        track: wraps an iterable, given with a word for it, to show progress.
    """
    found = passages(text)[:limit]
    if not found:
        raise InputError("The text holds no passage: there is no letter or digit in it.")
    if query is not None:
        _check(query)
    # The query is one more text, so it runs through the same batches and graphs.
    tokens = tokenize(found if query is None else [*found, query])
    lengths = suggest_buckets(map(len, tokens.ids), count=_LENGTHS)
    todo = list(batches(tokens, batch_size, lengths, current_device().type))
    rows = suggest_buckets([len(batch.texts) for batch in todo], count=_BATCH_SIZES)

    eager = SentenceEncoder().to(current_device().type)
    pool = ShapeBucketPool(
        eager,
        buckets={"batch": rows, "seq": lengths},
        dims={"ids": {0: "batch", 1: "seq"}, "mask": {0: "batch", 1: "seq"}},
    )
    with torch.inference_mode():
        example = todo[-1].ids, todo[-1].mask
        pool.capture(*example, progress=lambda buckets: track(buckets, "Capturing"))
        expected, vectors = _embed(eager, pool, track(todo, "Embedding"))
        stats = pool.stats()
        timing = _time(eager, pool, todo)

    apart = (expected - vectors)[: len(found)].abs()
    return DemoReport(
        device=current_device().facts(),
        passages=len(found),
        truncated=sum(tokens.truncated[: len(found)]),
        batch_size=batch_size,
        buckets=pool.buckets,
        batches=dict(Counter(_bucket(batch, pool)[1] for batch in todo)),
        padding=_padding(tokens, stats, rows),
        difference=Difference(max=apart.max().item(), mean=apart.mean().item()),
        timing=timing,
        captures=stats.captures,
        replays=stats.replays,
        eager_calls=stats.eager_calls,
        fallbacks=dict(stats.fallbacks),
        graphs=[
            GraphRow(row.key, row.replays, row.pool_bytes, row.input_bytes, row.private_bytes)
            for row in sorted(stats.graphs, key=lambda row: -row.input_bytes)
        ],
        pool_bytes=stats.pool_bytes,
        input_bytes=stats.input_bytes,
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


def _embed(eager: Embed, pool: Embed, todo: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """The vectors of all texts in order, from eager execution and from graphs, on the CPU."""
    order: list[int] = []
    expected: list[Tensor] = []
    vectors: list[Tensor] = []
    for batch in todo:
        order += batch.texts
        expected.append(eager(batch.ids, batch.mask).cpu())
        vectors.append(pool(batch.ids, batch.mask).cpu())
    back = torch.tensor(order).argsort()
    return torch.cat(expected)[back], torch.cat(vectors)[back]


def _bucket(batch: Batch, pool: ShapeBucketPool) -> tuple[int, int]:
    """Rows and tokens that a batch is padded to."""
    rows, tokens = batch.ids.shape
    return _fitting(rows, pool.buckets["batch"]), _fitting(tokens, pool.buckets["seq"])


def _fitting(size: int, buckets: Sequence[int]) -> int:
    return next(bucket for bucket in buckets if bucket >= size)


def _padding(tokens: Tokens, stats: PoolStats, batch_sizes: Sequence[int]) -> Padding:
    rows: Counter[int] = Counter()  # that are computed, by the length of their batch
    for (count, length), times in stats.traffic.items():
        rows[length] += times * _fitting(count, batch_sizes)

    def share(lengths: Sequence[int]) -> float:
        computed = sum(length * times for length, times in rows.items())
        return 1 - stats.asked / (computed + padded_work(rows, lengths))

    return Padding(
        tokens=sum(map(len, tokens.ids)),
        asked=stats.asked,
        computed=stats.computed,
        share=stats.padding,
        powers_of_two=share(_POWERS_OF_TWO),
        longest=share([MAX_TOKENS]),
    )


def _time(eager: Embed, pool: ShapeBucketPool, todo: Sequence[Batch]) -> Timing:
    """Time a usual batch, warm, both in turns so that they see the same clock."""
    bucket = Counter(_bucket(batch, pool) for batch in todo).most_common(1)[0][0]
    alike = [batch for batch in todo if _bucket(batch, pool) == bucket]
    batch = alike[len(alike) // 2]  # they come by length, so this one is padded as usual
    on_gpu = current_device().type == "cuda"
    runs = 50 if on_gpu else 5
    times: dict[Embed, list[float]] = {eager: [], pool: []}
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
        tokens=batch.ids.shape[1],
        bucket=bucket,
        runs=runs,
        eager_ms=eager_ms,
        graph_ms=graph_ms,
        ratio=eager_ms / graph_ms,
    )


def _nearest(query: Tensor, vectors: Tensor, texts: Sequence[str], top: int) -> list[Hit]:
    scores, order = (vectors @ query).topk(min(top, len(texts)))
    return [
        Hit(score, passage, texts[passage])
        for score, passage in zip(scores.tolist(), order.tolist(), strict=True)
    ]
