"""Positions and masks for rows of different lengths, which transformers cannot make by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from aegis.decode.cache_layer import SlottedLayer
from aegis.decode.cache_positions import Positions

__all__ = ["attention_masks", "next_positions"]


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
    config: Any, layers: Iterable[SlottedLayer], positions: Positions, tokens: int, batch_size: int | None
) -> Tensor | dict[str, Tensor]:
    """See :meth:`SlottedStaticCache.attention_mask`."""
    queries = next_positions(positions, tokens, batch_size)
    masks: dict[str, Tensor] = {}
    for layer in layers:
        if layer.kind in masks:
            continue
        if tokens == 1 and layer.reads_spans():
            masks[layer.kind] = _spans(layer, queries)
        else:
            masks[layer.kind] = _mask(layer, queries, additive=config._attn_implementation == "eager")
    return next(iter(masks.values())) if len(masks) == 1 else masks


def _spans(layer: SlottedLayer, query: Tensor) -> Tensor:
    start = torch.zeros_like(query)
    if layer.window is not None and layer.kind == "chunked_attention":
        start = query // layer.window * layer.window
    elif layer.window is not None:
        start = (query + 1 - layer.window).clamp(min=0)
    return torch.cat([start, query + 1], 1).view(-1, 1, 1, 2)


def _mask(layer: SlottedLayer, queries: Tensor, additive: bool) -> Tensor:
    keys = layer.key_positions(*queries.shape)[:, None, None, :]
    query = queries[:, None, :, None]
    seen = (keys >= 0) & (keys <= query)
    if layer.window is not None and layer.kind == "chunked_attention":
        seen &= keys // layer.window == query // layer.window
    elif layer.window is not None:
        seen &= keys > query - layer.window
    if not additive:
        return seen
    dtype = getattr(layer, "dtype", None) or torch.get_default_dtype()
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)
