"""Rounding."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "to_bfloat16_rne",
]


def to_bfloat16_rne(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """float32 to bfloat16, rounded to nearest, ties to even.

    Args:
        x: float32 of any shape and strides.
        out: bfloat16 of the same shape and device and any strides, written in place; its elements may not overlap.

    Returns:
        bfloat16 of the shape of ``x``, contiguous, or ``out``. Not differentiable.

    The bits are those of ``x.to(torch.bfloat16)`` for every number, the infinities and the denormal numbers included,
    on every instruction set and on CUDA, whether or not the processor flushes denormal numbers. A NaN becomes 0x7fff,
    whatever its sign and payload; torch gives another NaN, and on the CPU which one depends on its place in the tensor.

    Raises:
        ValueError: a wrong dtype, shape or device, or memory that overlaps; nothing has been written.

    Cost: one pass, on the calling thread or, above 65,536 elements, on torch's intra-op threads; bound by memory where
    both tensors are dense in the same order.
    """
    if out is None:
        result: Tensor = torch.ops.aegis.to_bfloat16_rne(x)
        return result
    torch.ops.aegis.to_bfloat16_rne.out(x, out=out)
    return out
