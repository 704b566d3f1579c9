"""Shapes and dtypes of every operator's results, for torch.compile and torch.export.

These also run for any call that has a meta tensor among its arguments, even where the others are not: without a check
the result would be memory that nobody filled.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _same_device(like: str, device: torch.device, **tensors: Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != device:
            raise ValueError(f"{name}: expected to be on the device of {like}, {device}, got {tensor.device}")


@torch.library.register_fake("aegis::decode_attention")
def _(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    spans: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    rows: Tensor | None = None,
) -> Tensor:
    _same_device("query", query.device, keys=keys, values=values, spans=spans, rows=rows)
    batch, heads, _, head_size = query.shape
    return query.new_empty((batch, 1, heads, head_size))


@torch.library.register_fake("aegis::decode_attention.paged")
def _(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    spans: Tensor,
    scale: float,
    blocks: Tensor,
    window: int = 0,
    softcap: float = 0.0,
    rows: Tensor | None = None,
) -> Tensor:
    _same_device("query", query.device, keys=keys, values=values, spans=spans, blocks=blocks, rows=rows)
    batch, heads, _, head_size = query.shape
    return query.new_empty((batch, 1, heads, head_size))


@torch.library.register_fake("aegis::extract_batch")
def _(arena: Tensor, offsets: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    _same_device("arena", arena.device, offsets=offsets)
    shape = (offsets.shape[0], block_size)
    return offsets.new_empty(shape), offsets.new_empty(shape)


@torch.library.register_fake("aegis::extract_batch.out")
def _(arena: Tensor, offsets: Tensor, *, inputs: Tensor, targets: Tensor) -> None:
    _same_device("arena", arena.device, offsets=offsets, inputs=inputs, targets=targets)
    return None


@torch.library.register_fake("aegis::float8_linear.inference")
@torch.library.register_fake("aegis::float8_linear")
def _(x: Tensor, weight: Tensor, weight_scale: Tensor, bias: Tensor | None = None) -> Tensor:
    _same_device("x", x.device, weight=weight, weight_scale=weight_scale, bias=bias)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@torch.library.register_fake("aegis::float8_quantize")
def _(x: Tensor, block: int = 0) -> tuple[Tensor, Tensor]:
    groups = 1 if block == 0 else (x.shape[-1] + block - 1) // block
    return (
        x.new_empty(x.shape, dtype=torch.float8_e4m3fn),
        x.new_empty((*x.shape[:-1], groups), dtype=torch.float32),
    )


@torch.library.register_fake("aegis::gather_records")
def _(source: Tensor, indices: Tensor) -> Tensor:
    _same_device("source", source.device, indices=indices)
    return source.new_empty((indices.shape[0], *source.shape[1:]))


@torch.library.register_fake("aegis::gather_records.out")
def _(source: Tensor, indices: Tensor, *, out: Tensor) -> None:
    _same_device("source", source.device, indices=indices, out=out)
    return None


@torch.library.register_fake("aegis::gather_records_scaled")
def _(source: Tensor, indices: Tensor, scale: Tensor, bias: Tensor, dtype: int) -> Tensor:
    _same_device("source", source.device, indices=indices, scale=scale, bias=bias)
    return source.new_empty((indices.shape[0], *source.shape[1:]), dtype=(torch.float32, torch.bfloat16)[dtype])


@torch.library.register_fake("aegis::gather_records_scaled.out")
def _(source: Tensor, indices: Tensor, scale: Tensor, bias: Tensor, *, out: Tensor) -> None:
    _same_device("source", source.device, indices=indices, scale=scale, bias=bias, out=out)
    return None


@torch.library.register_fake("aegis::kv_append_")
def _(
    keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, positions: Tensor, rows: Tensor | None = None
) -> None:
    _same_device(
        "keys",
        keys.device,
        values=values,
        new_keys=new_keys,
        new_values=new_values,
        positions=positions,
        rows=rows,
    )
    return None


@torch.library.register_fake("aegis::kv_append_.paged")
def _(
    keys: Tensor,
    values: Tensor,
    new_keys: Tensor,
    new_values: Tensor,
    positions: Tensor,
    blocks: Tensor,
    rows: Tensor | None = None,
) -> None:
    _same_device(
        "keys",
        keys.device,
        values=values,
        new_keys=new_keys,
        new_values=new_values,
        positions=positions,
        blocks=blocks,
        rows=rows,
    )
    return None


@torch.library.register_fake("aegis::kv_move_")
def _(keys: Tensor, values: Tensor, sources: Tensor, positions: Tensor, rows: Tensor | None = None) -> None:
    _same_device("keys", keys.device, values=values, sources=sources, positions=positions, rows=rows)
    return None


@torch.library.register_fake("aegis::pack_ternary")
def _(weight: Tensor, scale: Tensor | None = None, per_tensor: bool = False) -> tuple[Tensor, Tensor]:
    _same_device("weight", weight.device, scale=scale)
    rows, k = weight.shape
    scales = (1 if per_tensor else rows) if scale is None else scale.shape[0]
    return (
        weight.new_empty((rows, (k + 15) // 16), dtype=torch.uint32),
        weight.new_empty(scales, dtype=torch.float32),
    )


@torch.library.register_fake("aegis::sample")
def _(logits: Tensor, settings: Tensor, state: Tensor, keep_ties: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    _same_device("logits", logits.device, settings=settings, state=state)
    rows = logits.shape[0]
    return (
        logits.new_empty(rows, dtype=torch.int64),
        logits.new_empty(rows, dtype=torch.bool),
        logits.new_empty(rows, dtype=torch.float32),
    )


@torch.library.register_fake("aegis::sample.out")
def _(
    logits: Tensor,
    settings: Tensor,
    state: Tensor,
    keep_ties: bool = False,
    *,
    tokens: Tensor,
    valid: Tensor | None = None,
    logprobs: Tensor | None = None,
) -> None:
    _same_device(
        "logits",
        logits.device,
        settings=settings,
        state=state,
        tokens=tokens,
        valid=valid,
        logprobs=logprobs,
    )
    return None


@torch.library.register_fake("aegis::skinny_linear.inference")
@torch.library.register_fake("aegis::skinny_linear")
def _(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    _same_device("x", x.device, weight=weight, bias=bias)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@torch.library.register_fake("aegis::skinny_linear.out")
def _(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor) -> None:
    _same_device("x", x.device, weight=weight, bias=bias, out=out)
    return None


@torch.library.register_fake("aegis::ternary_linear.inference")
@torch.library.register_fake("aegis::ternary_linear")
def _(x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None = None, exact: bool = False) -> Tensor:
    _same_device("x", x.device, packed=packed, scale=scale, bias=bias)
    return x.new_empty((*x.shape[:-1], packed.shape[0]))


@torch.library.register_fake("aegis::to_bfloat16_rne")
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.bfloat16)


@torch.library.register_fake("aegis::to_bfloat16_rne.out")
def _(x: Tensor, *, out: Tensor) -> None:
    _same_device("x", x.device, out=out)
    return None


@torch.library.register_fake("aegis::token_probabilities")
def _(scores: Tensor, settings: Tensor, keep_ties: bool = False) -> Tensor:
    _same_device("scores", scores.device, settings=settings)
    return scores.new_empty(scores.shape, dtype=torch.float32)


@torch.library.register_fake("aegis::token_probabilities.out")
def _(scores: Tensor, settings: Tensor, keep_ties: bool = False, *, out: Tensor) -> None:
    _same_device("scores", scores.device, settings=settings, out=out)
    return None


@torch.library.register_fake("aegis::unpack_ternary")
def _(packed: Tensor, scale: Tensor, k: int) -> Tensor:
    _same_device("packed", packed.device, scale=scale)
    return packed.new_empty((packed.shape[0], k), dtype=torch.float32)
