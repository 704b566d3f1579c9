"""Operators that make batches."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "extract_batch",
    "gather_records",
    "gather_records_scaled",
]


_SCALED_DTYPES = {torch.float32: 0, torch.bfloat16: 1}


def extract_batch(
    arena: Tensor,
    offsets: Tensor,
    block_size: int | None = None,
    *,
    inputs: Tensor | None = None,
    targets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Cut windows out of a flat token arena: inputs, and targets one token later.

    Args:
        arena: (n,) uint8, uint16, uint32, int32 or int64, contiguous.
        offsets: (batch,) int64 on the arena's device; window starts, ``0 <= offset < n - block_size``.
        block_size: tokens in a window; taken from ``inputs`` when that is given.
        inputs: (batch, block_size) int64 or int32, written in place. Together with ``targets``.
        targets: (batch, block_size) int64, written in place.

    Returns:
        ``(inputs, targets)``, fresh int64 tensors unless given. Narrowing to int32 saturates, it never wraps.

    Raises:
        ValueError: a wrong dtype, shape, stride, device or an overlap; nothing has been written.
        IndexError: an offset outside the arena (CPU); nothing has been written. On CUDA, where a look at the
            offsets would stall the stream, such a row is filled with -1 instead.

    Cost: one pass, on the calling thread (CPU) or the current stream (CUDA); bound by memory latency when the
    arena is larger than the caches.
    """
    if inputs is None and targets is None:
        if block_size is None:
            raise TypeError("block_size: expected an int, got None (and no inputs to take it from)")
        result: tuple[Tensor, Tensor] = torch.ops.aegis.extract_batch(arena, offsets, block_size)
        return result
    if inputs is None or targets is None:
        raise TypeError("inputs and targets: expected both or neither")
    if block_size is not None and inputs.ndim == 2 and inputs.shape[1] != block_size:
        raise ValueError(f"inputs: expected {block_size} columns (block_size), got {inputs.shape[1]}")
    torch.ops.aegis.extract_batch.out(arena, offsets, inputs=inputs, targets=targets)
    return inputs, targets


def gather_records(source: Tensor, indices: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Copy rows of ``source``, chosen by number: what ``source[indices]`` gives, for data larger than the caches.

    Args:
        source: ``(n, *row)`` of any dtype; each row contiguous, rows may lie apart.
        indices: (batch,) int64 on the source's device; ``0 <= index < n``.
        out: ``(batch, *row)`` of the source's dtype, contiguous, written in place.

    Returns:
        ``(batch, *row)``, fresh unless ``out`` is given. Not differentiable.

    Raises:
        ValueError: a wrong dtype, shape, stride, device or an overlap; nothing has been written.
        IndexError: an index outside the source (CPU), naming its place; nothing has been written. On CUDA, where a
            look at the indices would stall the stream, such a row is filled with zeroes instead.

    Cost: one pass, on the calling thread (CPU) or the current stream (CUDA); bound by the latency of memory for short
    rows and by its bandwidth for long ones.
    """
    if out is None:
        result: Tensor = torch.ops.aegis.gather_records(source, indices)
        return result
    torch.ops.aegis.gather_records.out(source, indices, out=out)
    return out


def gather_records_scaled(
    source: Tensor,
    indices: Tensor,
    scale: Tensor,
    bias: Tensor,
    dtype: torch.dtype = torch.float32,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Copy uint8 rows, chosen by number, as floating-point values: ``source[indices] * scale + bias`` by channel.

    Args:
        source: ``(n, channels, *rest)`` uint8; each row contiguous, rows may lie apart.
        indices: (batch,) int64; ``0 <= index < n``.
        scale, bias: (channels,) float32, finite. All four on one device.
        dtype: of the result, torch.float32 or torch.bfloat16; ``torch.ops.aegis`` takes 0 or 1 for them.
        out: ``(batch, channels, *rest)`` of either dtype, contiguous, written in place; ``dtype`` is ignored then.

    Returns:
        ``(batch, channels, *rest)``, fresh unless ``out`` is given. The arithmetic is float32 without fused
        multiply-add, so the bits are those of torch's ``x.float() * scale + bias``; bfloat16 is that, rounded to
        nearest even. Every instruction set and CUDA give the same.

    Raises:
        ValueError: as for :func:`gather_records`, and a scale or bias that is not finite (CPU).
        IndexError: as for :func:`gather_records`; on CUDA such a row is filled with zeroes.

    Cost: one pass; the intermediate tensors of the three torch operations are never made.
    """
    if out is None:
        if dtype not in _SCALED_DTYPES:
            raise ValueError(f"dtype: expected torch.float32 or torch.bfloat16, got {dtype}")
        result: Tensor = torch.ops.aegis.gather_records_scaled(source, indices, scale, bias, _SCALED_DTYPES[dtype])
        return result
    torch.ops.aegis.gather_records_scaled.out(source, indices, scale, bias, out=out)
    return out
