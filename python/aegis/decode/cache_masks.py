"""Positions and masks for rows of different lengths, which transformers cannot make by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from aegis.decode.cache_layer import SlottedLayer
from aegis.decode.cache_positions import Positions

__all__ = ["additive", "attention_masks", "first_seen", "next_positions"]

MOST_SPANS = 8
"""Queries of a row up to which ranges are faster than a mask for SDPA (measured)."""


def next_positions(positions: Positions, tokens: int, batch_size: int | None) -> Tensor:
    """(batch, tokens) int64. Without a batch size: of the selected rows, or up to the last row in use."""
    if batch_size is None:
        batch_size = (
            len(positions.selected) if positions.selected is not None else max(positions.current_rows(), default=-1) + 1
        )
    positions.batch_rows(batch_size)
    where = positions.where(batch_size)
    return where[:, None] + torch.arange(tokens, device=where.device)


def attention_masks(
    config: Any,
    layers: Iterable[SlottedLayer],
    positions: Positions,
    tokens: int,
    batch_size: int | None,
    padding: Tensor | None,
) -> Tensor | dict[str, Tensor]:
    """See :meth:`SlottedStaticCache.attention_mask`."""
    queries = next_positions(positions, tokens, batch_size)
    if padding is None:
        padding = torch.zeros_like(queries[:, 0])
    elif padding.shape != queries.shape[:1] or padding.dtype != torch.int64 or padding.device != queries.device:
        raise ValueError(
            f"padding: expected int64 of shape ({len(queries)},) on {queries.device}, got {padding.dtype} of shape "
            f"{tuple(padding.shape)} on {padding.device}"
        )
    masks: dict[str, Tensor] = {}
    for layer in layers:
        if layer.kind in masks:
            continue
        if tokens <= MOST_SPANS and layer.reads_spans():
            masks[layer.kind] = _spans(layer, queries, padding)
        else:
            seen = _seen(layer, queries, padding)
            masks[layer.kind] = additive(layer, seen) if config._attn_implementation == "eager" else seen
    return next(iter(masks.values())) if len(masks) == 1 else masks


def first_seen(layer: SlottedLayer, queries: Tensor, padding: Tensor) -> Tensor:
    """(batch, tokens): the first position that each query sees."""
    first = padding[:, None].expand_as(queries)
    if layer.window is None:
        return first
    if layer.kind == "chunked_attention":
        return torch.maximum(first, queries // layer.window * layer.window)
    return torch.maximum(first, queries + 1 - layer.window)


def _spans(layer: SlottedLayer, queries: Tensor, padding: Tensor) -> Tensor:
    """One query's keys are whole buffers, which it reads by position; those of more begin with some position."""
    spans = torch.stack([first_seen(layer, queries, padding), queries + 1], 2)
    if queries.shape[1] > 1:
        spans = spans - layer.key_positions(*queries.shape)[:, :1, None]
    return spans[:, None]


def _seen(layer: SlottedLayer, queries: Tensor, padding: Tensor) -> Tensor:
    keys = layer.key_positions(*queries.shape)[:, None, None, :]
    first = first_seen(layer, queries, padding)
    return (keys >= first[:, None, :, None]) & (keys <= queries[:, None, :, None])


def additive(layer: SlottedLayer, seen: Tensor) -> Tensor:
    """A bool mask as eager attention wants it: 0, or the least number of the layer's dtype."""
    dtype = getattr(layer, "dtype", None) or torch.get_default_dtype()
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)
