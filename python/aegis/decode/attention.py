"""``attn_implementation="aegis"``: attention to the live part of a key-value cache, for Hugging Face models.

    import aegis.decode
    aegis.decode.register_attention()
    model.set_attn_implementation("aegis")

On the CPU, a decoded token goes to :func:`aegis.ops.decode_attention`, whose cost grows with what a token sees and not
with the size of the cache's buffers, and so do a few at a time, each with a range of its own. A token whose keys lie on
the pages of an :class:`aegis.PagedKVCache` does on CUDA, too. Everything else (prefill, training, CUDA) goes to torch's
scaled_dot_product_attention, as ``"sdpa"`` does, or, where that lacks something (score capping, sinks), to plain torch
operations, as ``"eager"`` does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from aegis.decode.attention_mask import is_spans, make_mask, slot_mask
from aegis.decode.huggingface import ATTENTION
from aegis.decode.paged_attention import pages_of

__all__ = ["attend", "register_attention"]

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def register_attention() -> None:
    """Makes ``attn_implementation="aegis"`` known to transformers (4.57 and newer); a second call changes nothing.

    It registers a mask function too: with an attention function alone, transformers drops the padding mask.
    """
    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, make_mask)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that transformers calls in each layer.

    Args:
        query: (batch, heads, queries, head_size).
        key, value: (rows, key_heads, keys, head_size), rows >= batch: live prefixes, as most caches return them, or
            whole buffers of an :class:`aegis.SlottedStaticCache`, or the pages of an :class:`aegis.PagedKVCache`.
        attention_mask: None; a bool or floating-point mask as SDPA takes it; or int64 spans (batch, 1, queries, 2):
            each query sees positions ``start <= p < end``, of which p lies in slot ``p % keys``.
        softcap: scores become ``softcap * tanh(score / softcap)``.
        s_aux: (heads,), sinks: scores that take their share of the softmax and give nothing.
        sliding_window: within spans, only the last so many positions count. Other masks contain the window.

    Returns:
        (batch, queries, heads, head_size), and None or the attention weights.

    Raises:
        ValueError: spans for another number of queries, or what aegis.ops.decode_attention refuses.
    """
    window = kwargs.get("sliding_window") or 0
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    queries = query.shape[2]
    if attention_mask is not None and is_spans(attention_mask) and attention_mask.shape[2] != queries:
        raise ValueError(f"attention_mask: expected spans for {queries} queries, got {attention_mask.shape[2]}")
    # What neither the operator nor a function of transformers' knows.
    extras = s_aux is not None or kwargs.get("position_bias") is not None
    paged = pages_of(key, attention_mask)
    if paged is not None:
        pages, attention_mask = paged
        if is_spans(attention_mask) and not extras and _suits(query, key, value, dropout):
            return torch.ops.aegis.decode_attention.paged(
                query, key, value, attention_mask, scale, pages.blocks, window, softcap or 0.0, pages.rows
            ), None
        length = None if attention_mask is None or is_spans(attention_mask) else attention_mask.shape[3]
        key, value = (pages.linear(pool, query.shape[0], length) for pool in (key, value))
    elif _decodes(query, key, value, attention_mask, dropout) and not extras:
        spans = _all_keys(query, key) if attention_mask is None else attention_mask
        if queries > 1:
            return _attend_each(query, key, value, spans, scale, window, softcap or 0.0), None
        return torch.ops.aegis.decode_attention(query, key, value, spans, scale, window, softcap or 0.0), None
    key, value = key[: query.shape[0]], value[: query.shape[0]]
    if attention_mask is not None and (queries == 1 or is_spans(attention_mask)):
        key, value, attention_mask = _aligned(key, value, attention_mask, window)
    if paged is not None and attention_mask is not None and attention_mask.dtype == torch.bool:
        # Pages hold, behind a row's tokens, what others left there: a NaN would come through its weight of 0.
        unseen = ~attention_mask.any(2)[..., None]
        key, value = key.masked_fill(unseen, 0), value.masked_fill(unseen, 0)
    if softcap or s_aux is not None:
        return _eager(module, query, key, value, attention_mask, dropout, scale, is_causal, softcap, s_aux)
    result: tuple[Tensor, None] = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs
    )
    return result


def _decodes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float) -> bool:
    """Whether the operator is to do it: on CUDA, SDPA does where keys lie in one buffer."""
    return (
        (is_spans(mask) or (mask is None and query.shape[2] == 1))
        and query.device.type == "cpu"
        and query.shape[0] <= key.shape[0]
        and _suits(query, key, value, dropout)
    )


def _suits(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> bool:
    """Whether the operator can do it."""
    wants_gradient = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    return (
        not dropout
        and not wants_gradient
        and query.dtype in _DTYPES
        and query.dtype == key.dtype == value.dtype
        and query.shape[3] == key.shape[3]
        and key.shape == value.shape
        and query.stride(3) == key.stride(3) == value.stride(3) == 1
    )


def _attend_each(
    query: Tensor, key: Tensor, value: Tensor, spans: Tensor, scale: float, window: int, softcap: float
) -> Tensor:
    """Several queries of a row as batch rows that share its keys: 1.1 to 4 times as fast as SDPA with a mask for up to
    8, and each gives what it would give alone."""
    batch, heads, queries, size = query.shape
    rows = torch.arange(batch).repeat_interleave(queries)
    each = query.transpose(1, 2).reshape(batch * queries, heads, 1, size)
    result: Tensor = torch.ops.aegis.decode_attention(
        each, key, value, spans.reshape(-1, 2), scale, window, softcap, rows
    )
    return result.view(batch, queries, heads, size)


def _all_keys(query: Tensor, key: Tensor) -> Tensor:
    spans = torch.zeros(query.shape[0], 2, dtype=torch.int64)
    spans[:, 1] = key.shape[2]
    return spans


def _aligned(key: Tensor, value: Tensor, mask: Tensor, window: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and a mask of the same length: a mask is over positions, and a cache may have given whole buffers."""
    if is_spans(mask):
        if key.device.type == "cpu" and not torch.compiler.is_compiling():
            live = min(int(mask[..., 1].max()), key.shape[2])  # what lies behind is nobody's, and may be no number
            key, value = key[:, :, :live], value[:, :, :live]
        return key, value, slot_mask(mask, key.shape[2], window)
    slots = key.shape[2]
    length = mask.shape[3]
    if length <= slots:
        return key[:, :, :length], value[:, :, :length], mask
    # The buffers have wrapped, and keep the newest positions.
    newest = torch.arange(length - slots, length, device=key.device) % slots
    return key[:, :, newest], value[:, :, newest], mask[..., length - slots :]


def _eager(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scale: float,
    is_causal: bool | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """What SDPA cannot do, step by step, with masked scores at the dtype's smallest as transformers has them."""
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scores = query @ key.transpose(2, 3) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    queries = query.shape[2]
    if mask is None and queries > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        mask = torch.ones(queries, key.shape[2], dtype=torch.bool, device=query.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], 3)
    weights = torch.softmax(scores, 3, dtype=torch.float32).to(query.dtype)
    if sinks is not None:
        weights = weights[..., :-1]
    weights = torch.nn.functional.dropout(weights, dropout, module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights
