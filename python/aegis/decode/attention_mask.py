"""Masks of ``attn_implementation="aegis"``: ranges of positions where few tokens are decoded, SDPA's masks elsewhere.

A range travels through a Hugging Face model as *spans*: an int64 tensor (batch, 1, queries, 2) with a start and an end
for each query. Models hand a 4-D mask through to the attention function as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function, sdpa_mask

__all__ = ["is_spans", "make_mask", "slot_mask"]


def is_spans(mask: Tensor | None) -> bool:
    """Whether ``mask`` is spans; a mask in the usual sense is bool or floating-point."""
    return mask is not None and mask.dtype == torch.int64 and mask.ndim == 4 and mask.shape[3] == 2


def slot_mask(spans: Tensor, slots: int, window: int = 0) -> Tensor:
    """Spans as the bool mask (batch, 1, queries, slots) of a buffer where position p lies in slot ``p % slots``."""
    start, end = spans[..., 0, None], spans[..., 1, None]
    begin = torch.maximum(start, end - window) if window else start
    positions = begin + (torch.arange(slots, device=spans.device) - begin) % slots
    return positions < end


def make_mask(
    *,
    batch_size: int,
    kv_length: int,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    **arguments: Any,
) -> Tensor | None:
    """The mask function that transformers (4.57 and newer) calls once per forward pass and kind of layer.

    Returns:
        For one query, spans where what it sees is one range of keys in each row (no mask, left padding, a sliding
        window, chunks), counted from the first key that the cache returns; otherwise, and where a compiler traces a
        mask whose values would have to be looked at, the bool mask (batch, 1, 1, kv_length) that SDPA would get. For
        more queries, what transformers' own function for SDPA returns.
    """
    arguments |= {
        "batch_size": batch_size,
        "kv_length": kv_length,
        "kv_offset": kv_offset,
        "mask_function": mask_function,
        "attention_mask": attention_mask,
    }
    # transformers 5 says q_length and q_offset, which may be a tensor; 4 gives the positions of the queries.
    positions: Tensor | None = arguments.get("cache_position")
    if (arguments["q_length"] if positions is None else len(positions)) != 1:
        mask: Tensor | None = sdpa_mask(**arguments)
        return mask
    last = arguments.get("q_offset", 0) if positions is None else positions
    if mask_function is causal_mask_function:
        mask = _causal(batch_size, last, kv_offset, attention_mask, arguments.get("device"))
        if mask is not None:
            return mask
    mask = sdpa_mask(**arguments | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    if mask is None or torch.compiler.is_compiling():
        return mask
    return _spans_of_rows(mask[:, 0, 0]) if mask.shape[1:3] == (1, 1) else mask


def _causal(
    batch: int, last: int | Tensor, kv_offset: int, attention_mask: Tensor | None, device: Any
) -> Tensor | None:
    """What a query at position ``last`` sees: spans or, where there are holes, a mask; None where that is not known
    without building the mask."""
    if attention_mask is None:
        if isinstance(last, Tensor):
            end = (last.reshape(1) + (1 - kv_offset)).expand(batch)
            return torch.stack([torch.zeros_like(end), end], 1).view(batch, 1, 1, 2)
        return torch.tensor([[0, last + 1 - kv_offset]] * batch, device=device).view(batch, 1, 1, 2)
    if torch.compiler.is_compiling():
        return None
    end_here = int(last) + 1 - kv_offset
    live = attention_mask[:, kv_offset:].bool()
    if live.shape[1] != end_here:
        return None
    if bool(live.all()):
        return torch.tensor([[0, end_here]] * batch, device=live.device).view(batch, 1, 1, 2)
    return _spans_of_rows(live)


def _spans_of_rows(live: Tensor) -> Tensor:
    """(batch, keys) bool to spans, or to a mask (batch, 1, 1, keys) where a row has holes."""
    count = live.sum(1)
    begins = live[:, 1:] & ~live[:, :-1]
    if bool((begins.sum(1) + live[:, 0] > 1).any()):
        return live[:, None, None]
    start = live.to(torch.uint8).argmax(1)
    return torch.stack([start, start + count], 1).view(-1, 1, 1, 2)
