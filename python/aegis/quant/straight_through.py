"""Ternary weights in training: rounded on the way forward, and not on the way back (Bengio et al. 2013)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["absmean", "round_to_trits", "ternary_training_linear"]


def absmean(weight: Tensor) -> Tensor:
    """The scale of BitNet b1.58 (Ma et al. 2024): the mean magnitude of a weight, and never zero."""
    if weight.numel() == 0:
        return weight.new_ones(())
    return weight.abs().mean().clamp(min=1e-5)


def round_to_trits(weight: Tensor, scale: Tensor) -> Tensor:
    """What a weight becomes when it is packed with one scale: as :func:`aegis.ops.pack_ternary` rounds."""
    return torch.where(weight.abs() > scale / 2, weight.sign(), 0) * scale


def round_to_int8(x: Tensor) -> Tensor:
    """What :func:`aegis.ops.ternary_linear` makes of activations: every row in steps of its largest magnitude / 127."""
    largest = x.abs().amax(-1, keepdim=True)
    step = torch.where(largest == 0, 1.0, largest / 127)
    return (x / step).round() * step


def ternary_training_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``nn.functional.linear`` with both operands rounded as in a packed layer; gradients are those without."""
    with torch.no_grad():
        wide = weight.float()
        rounded_weight = round_to_trits(wide, absmean(wide)).to(weight.dtype)
        rounded_x = round_to_int8(x.float()).to(x.dtype) if x.numel() else x
    return nn.functional.linear(x + (rounded_x - x).detach(), weight + (rounded_weight - weight).detach(), bias)
