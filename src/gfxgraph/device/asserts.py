"""Values for which a kernel of torch would stop a GPU.

Where an index is out of range, a kernel on a CPU raises an error. A kernel on a GPU may stop the
device: then each later call of the process fails. So runs of ours with values that no caller has
given ask first. The list holds the operators that raise such an error on a CPU for the samples of
``torch.testing`` (torch 2.13), and some that read behind a tensor without an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload

from .overrides import WithoutModes

__all__ = ["OutOfRange", "may_assert", "require_taken", "taken"]

Given: TypeAlias = Mapping[str, Any]
Ranges: TypeAlias = Iterator[tuple[torch.Tensor, float, float]]
"""Tensors, and the smallest and the largest value that each may hold."""


class OutOfRange(IndexError):
    """A kernel is given values that it does not take."""


def require_taken(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if a kernel would stop the device because of the values that it is given.

    It waits for the device, once for each operator that could. An operator of another library is
    not known.

    Args:
        func: the operator that is about to run.
        args: its arguments.
        kwargs: its keyword arguments.

    Raises:
        OutOfRange: a value is none that the kernel takes.
    """
    if not isinstance(func, OpOverload) or not may_assert(func):
        return
    with WithoutModes(), torch.no_grad():
        for values, low, high in _asserted(func, args, kwargs):
            if not values.numel():
                continue
            least, most = (float(v) for v in torch.stack(values.aminmax()).tolist())
            if not low <= least <= most <= high:  # NaN is no index either
                raise OutOfRange(
                    f"{func} is given values from {least:g} to {most:g}, and takes those from "
                    f"{low:g} to {high:g}"
                )


def taken(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[int, tuple[float, float]]:
    """By the id of a tensor that an operator is given: the smallest and the largest value that it
    takes there, if that is known."""
    return {id(values): (low, high) for values, low, high in _asserted(op, args, kwargs)}


def may_assert(op: OpOverload) -> bool:
    """Whether :func:`require_taken` has something to ask of an operator."""
    return _ranges_of(op) is not None


def _asserted(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ranges:
    ranges = _ranges_of(op)
    if ranges is None:
        return
    names = op._schema.arguments
    given = {argument.name: argument.default_value for argument in names}
    given |= {argument.name: item for argument, item in zip(names, args, strict=False)} | kwargs
    yield from ranges(given)


@cache
def _ranges_of(op: OpOverload) -> Callable[[Given], Ranges] | None:
    space, _, name = op._schema.name.partition("::")
    if space != "aten":
        return None
    return _ASSERTS.get(name) or _ASSERTS.get(name.removesuffix("_"))


def _along_dim(given: Given) -> Ranges:
    tensor, dim = given["self"], given["dim"]
    size = tensor.shape[dim] if tensor.dim() else 1
    yield given["index"], 0, size - 1


def _fills(given: Given) -> Ranges:
    tensor, dim = given["self"], given["dim"]
    size = tensor.shape[dim] if tensor.dim() else 1
    yield given["index"], -size, size - 1


def _at_places(given: Given) -> Ranges:
    dim = 0
    for index in given["indices"]:
        if index is None:
            dim += 1
        elif index.dtype in (torch.bool, torch.uint8):  # a mask: as many dimensions as it has
            dim += index.dim()
        else:
            size = given["self"].shape[dim]
            yield index, -size, size - 1
            dim += 1


def _flat(given: Given) -> Ranges:
    count = given["self"].numel()
    yield given["index"], -count, count - 1


def _rows(given: Given) -> Ranges:
    table = given["weight"] if "weight" in given else given["self"]
    yield given["indices"], 0, table.shape[0] - 1


def _bags(given: Given) -> Ranges:
    yield from _rows(given)
    yield from _offsets(given["offsets"], given["indices"].shape[0])


def _offsets(offsets: torch.Tensor | None, end: int) -> Ranges:
    if offsets is not None:
        yield offsets, 0, end
        yield offsets.diff(), 0, end


def _classes(given: Given) -> Ranges:
    scores, target = given["self"], given["target"]
    count = scores.shape[1 if scores.dim() > 1 else 0] if scores.dim() else 1
    counts = target != given.get("ignore_index")
    yield target if counts is True or bool(counts.all()) else target[counts], 0, count - 1


def _several_classes(given: Given) -> Ranges:
    count = given["self"].shape[-1] if given["self"].dim() else 1
    yield given["target"], -1, count - 1


def _symbols(given: Given) -> Ranges:
    yield given["targets"], 0, given["log_probs"].shape[-1] - 1


def _shares(given: Given) -> Ranges:
    yield given["self"], 0, 1


def _shares_given(given: Given) -> Ranges:
    shares = given.get("p", given["self"])
    if isinstance(shares, torch.Tensor):  # and not one number for all
        yield shares, 0, 1


def _padded(given: Given) -> Ranges:
    for offsets in given["offsets"]:
        yield from _offsets(offsets, given["values"].shape[0])


def _rates(given: Given) -> Ranges:
    yield given["self"], 0, math.inf


def _tries(given: Given) -> Ranges:
    yield given["count"], 0, math.inf
    yield given["prob"], 0, 1


def _weights(given: Given) -> Ranges:
    most = torch.finfo(given["self"].dtype).max
    yield given["self"], 0, most
    yield given["self"].sum(-1, dtype=torch.float64), math.ulp(0.0), math.inf


def _true(given: Given) -> Ranges:
    yield given["self"] != 0, 1, 1


def _source(given: Given) -> Ranges:
    mask, _ = torch.broadcast_tensors(given["mask"], given["self"])
    yield mask.sum(), 0, given["source"].numel()


def _unpooled(given: Given) -> Ranges:
    yield given["indices"], 0, math.prod(given["output_size"]) - 1


def _pivots(given: Given) -> Ranges:
    table, pivots, *_ = given.values()
    yield pivots, 1, table.shape[-2]


def _segments(given: Given) -> Ranges:
    if given["lengths"] is not None:
        size = given["data"].shape[given["axis"]]
        yield given["lengths"], 0, size
        yield given["lengths"].sum(-1), 0, size


def _repeats(given: Given) -> Ranges:
    if isinstance(given["repeats"], torch.Tensor):
        yield given["repeats"], 0, math.inf
        if given["output_size"] is not None:
            yield given["repeats"].sum(), given["output_size"], given["output_size"]


def _sequences(given: Given) -> Ranges:
    yield from _offsets(given["cum_seq_q"], math.prod(given["query"].shape[:-2]))
    yield from _offsets(given["cum_seq_k"], math.prod(given["key"].shape[:-2]))


def _efficient_sequences(given: Given) -> Ranges:
    yield from _offsets(given["cu_seqlens_q"], math.prod(given["query"].shape[:-2]))
    yield from _offsets(given["cu_seqlens_k"], math.prod(given["key"].shape[:-2]))


_ASSERTS: dict[str, Callable[[Given], Ranges]] = {
    **dict.fromkeys(
        (
            *("gather", "scatter", "scatter_add", "scatter_reduce"),
            *("index_select", "index_add", "index_copy", "index_reduce"),
        ),
        _along_dim,
    ),
    "index_fill": _fills,
    **dict.fromkeys(
        (
            *("index", "index_put", "_index_put_impl"),
            *("_unsafe_index", "_unsafe_index_put"),
        ),
        _at_places,
    ),
    **dict.fromkeys(("take", "put"), _flat),
    **dict.fromkeys(("embedding", "embedding_renorm"), _rows),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _bags),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss"), _classes),
    "multilabel_margin_loss_forward": _several_classes,
    "_ctc_loss": _symbols,
    "binary_cross_entropy": _shares,
    "bernoulli": _shares_given,
    "multinomial": _weights,
    "poisson": _rates,
    "binomial": _tries,
    "_jagged_to_padded_dense_forward": _padded,
    **dict.fromkeys(("_assert_async", "_functional_assert_async"), _true),
    "masked_scatter": _source,
    **dict.fromkeys(("max_unpool2d", "max_unpool3d"), _unpooled),
    "repeat_interleave": _repeats,
    **dict.fromkeys(("lu_unpack", "linalg_lu_solve"), _pivots),
    "segment_reduce": _segments,
    "_flash_attention_forward": _sequences,
    "_efficient_attention_forward": _efficient_sequences,
}
