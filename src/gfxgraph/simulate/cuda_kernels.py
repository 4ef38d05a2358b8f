"""Replacements for kernels that only CUDA has, made of operators that the CPU has too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree

__all__ = ["KERNELS", "attention", "lowered"]


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``scaled_dot_product_attention`` without its choice among fused kernels.

    In a CUDA build that choice asks the device. This one calls simple operators only.
    """
    query, key, value, attn_mask = lowered((query, key, value, attn_mask))
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype} key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    with torch.autocast("cuda", enabled=False):
        return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def lowered(values: Any) -> Any:
    """``values`` with the tensors that autocast would cast for a kernel as a whole."""
    if not torch.is_autocast_enabled("cuda"):
        return values
    dtype = torch.get_autocast_dtype("cuda")

    def lower(tensor: torch.Tensor) -> torch.Tensor:
        is_eligible = tensor.is_floating_point() and tensor.dtype is not torch.float64
        return tensor.to(dtype) if is_eligible and tensor.is_cuda else tensor

    return pytree.tree_map_only(torch.Tensor, lower, values)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        added = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = added.masked_fill_(attn_mask.logical_not(), float("-inf"))
    result: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )[0]
    return result


def _lstm_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    cell: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gates = input_gates + hidden_gates
    for bias in (input_bias, hidden_bias):
        gates = gates if bias is None else gates + bias
    keep, forget, new, out = gates.chunk(4, 1)
    keep, forget, new, out = keep.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid()
    cell = forget * cell + keep * new
    return out * cell.tanh(), cell, torch.cat([keep, forget, new, out], 1)


def _gru_cell(
    input_gates: torch.Tensor,
    hidden_gates: torch.Tensor,
    hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    given = input_gates if input_bias is None else input_gates + input_bias
    kept = hidden_gates if hidden_bias is None else hidden_gates + hidden_bias
    (r, z, n), (r_kept, z_kept, n_kept) = given.chunk(3, 1), kept.chunk(3, 1)
    r, z = (r + r_kept).sigmoid(), (z + z_kept).sigmoid()
    n = (n + r * n_kept).tanh()
    return n + z * (hidden - n), torch.cat([r, z, n, hidden, n_kept], 1)


KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_use_cudnn_ctc_loss": lambda *args: False,
    "aten::_use_miopen_ctc_loss": lambda *args: False,
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::cudnn_grid_sampler": lambda image, grid: torch.grid_sampler_2d(image, grid, 0, 0, True),
}
"""Name of an operator without a CPU kernel -> a function that computes it on the CPU."""
