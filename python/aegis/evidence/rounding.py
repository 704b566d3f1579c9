"""Rounding float32 weights to bfloat16 values, in three ways."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from aegis.ops import to_bfloat16_rne

__all__ = ["round_weights_"]

_UPPER = -65536  # 0xFFFF0000: sign, exponent and the 7 bits of mantissa that bfloat16 has


@torch.no_grad()
def round_weights_(weights: Iterable[Tensor], how: str, generator: torch.Generator | None = None) -> None:
    """Rounds each weight in place to a value that bfloat16 has.

    Args:
        weights: float32, contiguous and finite.
        how: "nearest" (ties to even), "truncate" (towards zero), or "stochastic": up or down with the probability that
            makes the expectation the value itself.
        generator: for "stochastic", on the weights' device.
    """
    for weight in weights:
        if how == "nearest":
            weight.copy_(to_bfloat16_rne(weight))
            continue
        bits = weight.view(torch.int32)
        if how == "stochastic":  # a carry out of the lower half happens as often as their size says
            bits += torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32, device=bits.device, generator=generator)
        bits &= _UPPER
