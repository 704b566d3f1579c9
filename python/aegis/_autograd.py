"""Gradients of the operators that have them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def _linear_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    x, weight, _ = inputs
    # Each is needed for the other's gradient alone.
    ctx.save_for_backward(
        x if ctx.needs_input_grad[1] else None,
        weight if ctx.needs_input_grad[0] else None,
    )


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    rows = grad.reshape(-1, grad.shape[-1])
    bias_wanted = ctx.needs_input_grad[2:] == (True,)  # the dispatcher drops a bias that is None
    return (
        None if weight is None else grad @ weight,
        None if x is None else rows.t() @ x.reshape(-1, x.shape[-1]),
        rows.sum(0) if bias_wanted else None,
    )


def _refuse(name: str, instead: str) -> None:
    """Results that require a gradient where an operand does, and say so when it is asked for."""

    def backward(ctx: Any, *grads: Tensor) -> None:
        raise RuntimeError(f"{name}: expected no gradient to be asked for, since it has none; {instead}")

    torch.library.register_autograd(f"aegis::{name}", backward)


_refuse("float8_linear", "float8 layers are for inference")
_refuse("float8_quantize", "detach x first")
_TRAINS = "aegis.quant.TernaryLinear(..., train=True) is what trains ternary weights"
_refuse("pack_ternary", _TRAINS)
_refuse("unpack_ternary", _TRAINS)
_refuse("ternary_linear", _TRAINS)
torch.library.register_autograd("aegis::skinny_linear", _linear_backward, setup_context=_linear_context)
